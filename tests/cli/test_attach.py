"""``gpuscope attach``: the list, what it needs a terminal for, and several hosts in one session."""

from __future__ import annotations

import argparse
import json
import os
import re
from dataclasses import dataclass, field
from typing import Any

import pytest

from gpuscope.cli import main as cli
from gpuscope.cli import remote
from gpuscope.cli.commands.attach import listing as attach_listing
from gpuscope.cli.commands.attach import verb as attach_verb
from gpuscope.store.store import Store
from gpuscope.tui.background.sources import Hosts
from gpuscope.wire.frames import Def, Hello, ProcDef
from tests.fakes.in_process import command
from tests.fakes.probe_client import TRAINING, sockets, trainer, wait_for


def arguments(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    attach_verb.add_arguments(parser)
    return parser.parse_args(list(words))


def test_a_list_of_what_runs_here_and_what_it_needs(capsys):
    with trainer(TRAINING + "import gpuscope; gpuscope.watch(); train(300)", fork=True) as process:
        # it imports torch, on a machine that others use too
        wait_for(lambda: sockets(process.pid), 60, "a socket")
        assert cli.main(["attach", "--json"]) == 0
        rows = {row["pid"]: row for row in json.loads(capsys.readouterr().out)["attachable"]}
        row = rows[process.pid]
        assert (row["probe"], row["needs"]) == (True, "nothing: it has a probe")
        assert row["next"] == f"gpuscope attach {process.pid}"
        assert cli.main(["attach"]) == 0
        assert "Look inside: gpuscope attach PID" in capsys.readouterr().out


def test_what_a_process_without_a_probe_needs_is_told():
    with trainer("import time; time.sleep(60)") as process:
        method, needs = attach_listing._needs(process.pid)
        assert needs == f"your consent ({method})" if method else len(needs) > 10
    assert attach_listing._needs(process.pid) == (
        "",
        f"there is no process {process.pid} here.",
    )


@pytest.mark.parametrize("words", [["attach", "h"], ["attach", "--via", "docker exec -i c"]])
def test_without_a_terminal_it_says_what_needs_none(words):
    done = command(*words)
    assert done.returncode == 3
    assert "needs a terminal" in done.stderr
    assert "gpuscope devices" in done.stderr


@pytest.mark.parametrize("verb", ["attach", "why", "doctor", "snapshot", "wait"])
def test_a_pid_that_is_none_is_said_with_the_same_exit_code_by_all(verb, capsys):
    pid = (1 << 22) - 1
    assert cli.main([verb, str(pid)]) == 3
    said = "".join(capsys.readouterr())
    assert re.search(rf"there is no process {pid} here|[Nn]o process has pid {pid} here", said)
    assert "gpuscope ps" in said


def test_each_place_has_one_source_whatever_is_wanted_there(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("ada@c\nada@a:8\n")
    words = arguments("ada@a:7", "ada@b", "ada@a:9", str(os.getpid()), "--hosts", str(path))
    places = attach_verb._places(words)

    @dataclass
    class Prompts:
        answer: Any = None

    hosts, ways = attach_verb.hosts_of(words, places, 2.0, Prompts())
    ways.close()
    assert [source.key for source in hosts.sources] == ["ada@a", "ada@b", "local", "ada@c"]
    assert hosts.wanted == [("ada@a", 7), ("ada@a", 9), ("local", os.getpid()), ("ada@a", 8)]


@dataclass
class Still:
    """A source that says nothing by itself."""

    key: str
    badge: str = ""
    taps: list[Any] = field(default_factory=list)

    @property
    def label(self) -> str:
        return self.key


def test_a_wanted_process_is_looked_at_on_its_host_once():
    hosts = Hosts([Still("a"), Still("b")], [("b", 7)])  # type: ignore[list-item]
    store = Store()
    for key in ("a", "b"):
        store.add_source(key, key)
        store.apply(key, Hello(pid=1, boot=key, t=1.0, m=1), 1.0)
    store.apply("a", Def(1, proc=ProcDef(7, 3)), 1.0)  # the same number on another host
    assert hosts.sought(store.host) is None
    assert hosts.place() == "1/2"
    store.apply("b", Def(1, proc=ProcDef(7, 3)), 1.0)
    host, pid = hosts.sought(store.host)
    assert (host.key, pid, hosts.place()) == ("b", 7, "2/2")
    assert hosts.sought(store.host) is None
    assert hosts.host(store.view()).key == "b"
    assert hosts.step(1).key == "a"


def test_one_verb_looks_at_one_place():
    words = argparse.Namespace(via="", ssh_command="ssh", remote_python="")
    assert remote.one_place(words, "ada@h").host == "ada@h"
    assert remote.is_remote(words, "ada@h")
    assert not remote.is_remote(words, "4242")
    with pytest.raises(remote.BadTarget):
        remote.one_place(words, "-oProxyCommand=x")
