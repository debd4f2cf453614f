"""Whoever has a device open is found by /proc/*/fd.

What may not be looked at is said, never left out in silence.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuscope.agent import holding
from gpuscope.collect import container, holders
from gpuscope.wire import frames as f
from tests.fakes.program import python

OPENS = (
    "import sys, time; held = [open(name) for name in sys.argv[1:]]; print('open', "
    "flush=True); time.sleep(60)"
)


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Files stand in for /dev/nvidia0 and /dev/nvidia1; what follows is real."""
    monkeypatch.setattr(holders, "_PREFIX", f"{tmp_path}/nvidia")
    for minor in (0, 1, 10):
        (tmp_path / f"nvidia{minor}").touch()
    return f"{tmp_path}/nvidia"


@pytest.fixture
def child(device: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", OPENS, f"{device}1", f"{device}10", f"{device}1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def ask(**args: f.Scalar) -> f.Result | f.Error:
    return holding.answer(f.Request("holders", 7, dict(args)))


def test_a_process_with_the_device_open_is_named(child: subprocess.Popen[bytes]) -> None:
    answer = ask(minors="0,1")
    assert isinstance(answer, f.Result)
    nobody, held = answer.value["devices"]
    assert (nobody["minor"], nobody["processes"]) == (0, [])
    assert held["minor"] == 1
    (one,) = held["processes"]
    assert (one["pid"], held["more"]) == (child.pid, 0)
    assert one["command"].startswith(shlex.quote(sys.executable))
    assert one["user"]


def test_what_may_not_be_read_is_counted_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.scandir

    def scandir(path: str):  # type: ignore[no-untyped-def]
        if path.startswith(f"{tmp_path}/4"):
            raise PermissionError(13, "Permission denied")
        return real(path)

    for pid in (41, 42, 51):
        (tmp_path / str(pid) / "fd").mkdir(parents=True)
    monkeypatch.setattr(os, "scandir", scandir)
    monkeypatch.setattr(container, "pid_namespace_note", lambda: None)
    told = holders.holders_document([0], proc=str(tmp_path))
    assert told["hidden_processes"] == 2
    assert (
        told["why"]
        == "the open files of 2 processes of other users cannot be read here (/proc/PID/fd); "
        "root can read them"
    )
    monkeypatch.setattr(
        container, "pid_namespace_note", lambda: f.Unknown(f.HIDDEN_BY_CONTAINER, "…")
    )
    assert "look on its host" in holders.holders_document([0], proc=str(tmp_path))["why"]
    assert holders.holders_document([0], proc=str(tmp_path / "none"))["why"].endswith(
        "none cannot be listed: no such file or directory"
    )


@pytest.mark.parametrize(
    "option", ["rw,hidepid=2", "rw,hidepid=invisible", "rw,gid=4,hidepid=ptraceable", "rw"]
)
def test_processes_that_proc_hides_are_said(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "proc" / "self").mkdir(parents=True)
    lines = (
        "21 27 0:20 / /sys rw - sysfs sysfs rw,hidepid=2\n"
        f"22 27 0:21 / /proc rw,relatime - proc proc {option}\n"
    )
    (tmp_path / "proc" / "self" / "mountinfo").write_text(lines)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert holders.others_are_hidden(str(tmp_path)) is (option != "rw")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert not holders.others_are_hidden(str(tmp_path)), "root sees them"


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to look as somebody else")
def test_as_another_user_it_says_whom_it_could_not_look_into(
    child: subprocess.Popen[bytes],
) -> None:
    code = (
        "import os\n"
        "from gpuscope.collect import container, holders, process_context, processes\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "told = holders.holders_document([1])\n"
        "print(told['hidden_processes'] > 0, told['devices'][0]['processes'], told['why'])"
    )
    done = python("-c", code, check=True)
    assert done.stdout.startswith("True [] the open files of ")


def test_so_many_are_told(
    device: str, monkeypatch: pytest.MonkeyPatch, child: subprocess.Popen[bytes]
) -> None:
    monkeypatch.setattr(holders, "MAX_PROCESSES", 0)
    answer = ask(minors="1")
    assert isinstance(answer, f.Result)
    assert (answer.value["devices"][0]["processes"], answer.value["devices"][0]["more"]) == ([], 1)


@pytest.mark.parametrize(
    "minors", [None, "", "a", "1,", "-1", "1;2", "99999", ",".join("1" * 65), 3, True]
)
def test_what_is_no_request_is_refused(minors: f.Scalar) -> None:
    answer = ask(minors=minors)
    assert isinstance(answer, f.Error)
    assert answer.code == "refused"
