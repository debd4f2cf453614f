"""Each way to look into a process says what it shows, why it is closed, and its price.

The agent's request to inject is here too.
"""

from __future__ import annotations

import io
import json
import os
import queue
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from gpuscope.agent.inject_requests import Injections
from gpuscope.attach import attach_options, bundle, inject_target
from gpuscope.attach.inject import CannotInject
from gpuscope.attach.inject_target import permission, process
from gpuscope.cli.commands.attach import local as attach_local
from gpuscope.wire import frames
from tests.attach.test_inject import TIGHT, detach, pytestmark, socket_of, victim
from tests.fakes import pythons

__all__ = ["pytestmark"]


def test_the_ladder_of_a_plain_process_and_its_consent():
    with victim(TIGHT) as running:
        found = attach_options.look(running.pid)
        assert [rung.name for rung in found.rungs] == ["probe", "pep768", "ptrace", "outside"]
        assert [rung.open for rung in found.rungs] == [False, False, True, True]
        assert "no remote debugging" in found.rung("pep768").why
        text = found.consent().text()
        for word in (str(running.pid), "count += 1", "yours", "ptrace", "pauses", "Undo"):
            assert word in text
        assert f"gpuscope attach {running.pid} --inject=ptrace" in found.text()
        with pytest.raises(CannotInject, match="no remote debugging"):
            found.consent("pep768")
        data = json.loads(json.dumps(found.data()))
        assert data["best"] == "ptrace"
        assert data["consent"]["start"] == process(running.pid).start


def test_the_ladder_of_3_14_begins_with_its_own_door():
    binary = pythons.find_or_skip(14)
    with victim(TIGHT, binary) as running:
        found = attach_options.look(running.pid)
        assert found.best.name == "pep768"
        assert not found.rung("ptrace").open
        assert "PEP 768 attach" in found.rung("ptrace").why
    with victim(TIGHT, binary, PYTHON_DISABLE_REMOTE_DEBUG="1") as running:
        found = attach_options.look(running.pid)
        assert found.best.name == "outside"
        assert found.rung("pep768").code == "disabled"
        assert "switched off" in found.text()
        assert "Training not touched" in found.text()
        assert "gpuscope enable" in found.text()


def test_a_process_that_is_none_or_no_python():
    with subprocess.Popen(["sleep", "60"]) as running:
        try:
            found = attach_options.look(running.pid)
            assert found.best.name == "outside"
            assert "no CPython found in it" in found.text()
            with pytest.raises(CannotInject, match="no CPython"):
                found.consent()
        finally:
            running.kill()
    gone = attach_options.look(running.pid)
    assert gone.uid is None
    assert "there is no process" in gone.text()


def test_hostile_arguments_are_shown_harmless():
    with victim("import sys\n" + TIGHT + "# \x1b]52;c;x\x07 \u202e") as running:
        text = attach_options.look(running.pid).text()
        assert not [char for char in text if not char.isprintable() and char != "\n"]


@pytest.mark.parametrize(
    ("scope", "sentence", "command"),
    [
        (1, "lets only a parent process or root attach (ptrace_scope=1)", "gpuscope enable"),
        (2, "lets only root attach", "sudo gpuscope attach"),
        (3, "until it is rebooted", "gpuscope run train.py"),
    ],
)
def test_yama_is_named_with_the_way_around_it(monkeypatch, scope, sentence, command):
    monkeypatch.setattr(inject_target, "yama_scope", lambda: scope)
    why, following = permission(process(os.getpid()))
    assert sentence in why
    assert command in following


@pytest.mark.slow
def test_attach_pid_asks_before_it_writes_and_keeps_a_log(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with victim(TIGHT) as running:
        looked = attach_local.attach_pid(running.pid)
        assert not looked.ok
        assert not attach_local.audit_path().exists()
        assert not socket_of(running.pid).exists()
        done = attach_local.attach_pid(running.pid, "auto", patience=30)
        assert done.ok
        assert done.method == "ptrace"
        assert done.data["stop_seconds"] > 0
        assert attach_local.attach_pid(running.pid).method == "probe"
        detach(running.pid)
    lines = attach_local.audit_path().read_text().splitlines()
    assert len(lines) == 2
    assert f"into pid {running.pid}" in lines[0]
    assert "done" in lines[1]
    assert attach_local.audit_path().stat().st_mode & 0o077 == 0
    refused = attach_local.attach_pid(running.pid, "auto")
    assert refused.code == "gone"
    assert "there is no process" in refused.text


class Agent:
    """The requests of an agent, and what it answers."""

    def __init__(self) -> None:
        self.answers: queue.Queue[Any] = queue.Queue()
        self.injections = Injections(self.answers.put)

    def ask(self, number: int, **args: Any) -> None:
        self.injections.request(frames.Request("inject", number, args, 40.0))

    def final(self) -> Any:
        while True:
            answer = self.answers.get(timeout=60)
            if isinstance(answer, (frames.Result, frames.Error)):
                return answer


@pytest.mark.slow
def test_an_agent_injects_on_request(capfd):
    agent = Agent()
    with victim(TIGHT) as running:
        start = process(running.pid).start
        agent.ask(1, pid=running.pid, start=start, method="look")
        assert isinstance(agent.answers.get(timeout=10), frames.Ack)
        looked = agent.final()
        assert looked.value["best"] == "ptrace"
        assert not socket_of(running.pid).exists()
        agent.ask(2, pid=running.pid, start=start, method="auto")
        assert isinstance(agent.answers.get(timeout=10), frames.Ack)
        done = agent.final()
        assert done.id == 2
        assert done.value["method"] == "ptrace"
        assert done.value["stop_seconds"] > 0
        detach(running.pid)
    assert f"inject pid {running.pid} start {start}" in capfd.readouterr().err


def test_what_an_agent_refuses():
    agent = Agent()
    for args in (
        {},
        {"pid": 1},
        {"pid": True, "start": 1, "method": "auto"},
        {"pid": -1, "start": 1, "method": "auto"},
        {"pid": 1, "start": 1, "method": "gdb"},
        {"pid": "1", "start": 1, "method": "auto"},
    ):
        agent.ask(1, **args)
        assert agent.final().code == "refused"
    with victim(TIGHT) as running:
        agent.ask(2, pid=running.pid, start=process(running.pid).start + 7, method="auto")
        assert agent.final().code == "gone"
    assert not agent.injections.cancel(2)


def test_a_second_request_for_the_same_trainer_is_busy_and_a_running_one_can_be_cancelled():
    agent = Agent()
    code = "import ctypes\nprint('ready', flush=True)\nctypes.CDLL(None).sleep(30)\n"
    with victim(code) as running:
        args = {"pid": running.pid, "start": process(running.pid).start, "method": "ptrace"}
        agent.ask(1, **args)
        agent.ask(2, **args)
        busy = agent.final()
        assert (busy.id, busy.code) == (2, "busy")
        assert "request 1" in busy.reason
        while not isinstance(agent.answers.get(timeout=30), frames.Progress):
            pass
        assert agent.injections.cancel(1)
        ended = agent.final()
        assert (ended.id, ended.code) == (1, "cancelled")
        assert not socket_of(running.pid).exists()


@pytest.mark.slow
def test_a_shipped_agent_carries_all_that_it_needs(tmp_path):
    """From its zip alone, with a Python that has nothing else: it looks, and injects."""
    archive = tmp_path / "agent.zip"
    archive.write_bytes(bundle.zipped(bundle.agent_contents(), compress=True))
    assert (
        "gpuscope/attach/inject_worker.py"
        in zipfile.ZipFile(io.BytesIO(archive.read_bytes())).namelist()
    )
    code = (
        f"import sys; sys.path.insert(0, {str(archive)!r})\n"
        "from gpuscope.attach.inject import inject\n"
        "print(inject(int(sys.argv[1]), patience=30).method)\n"
    )
    with victim(TIGHT) as running:
        python = pythons.find(8) or sys.executable
        done = subprocess.run(
            [python, "-I", "-S", "-c", code, str(running.pid)], capture_output=True, text=True
        )
        assert done.stdout == "ptrace\n", done.stderr
        assert Path(socket_of(running.pid)).exists()
        detach(running.pid)
