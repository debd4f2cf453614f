"""``gpuscope snapshot PID`` finds, asks and writes.

Every way in which it cannot is said, with what helps.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpuscope.cli import main as cli
from gpuscope.cli import trainers_of
from gpuscope.cli.commands.snapshot import live as snapshot_live
from gpuscope.snapshot.reader import open_snapshot
from gpuscope.wire import frames as f
from tests.fakes import views
from tests.fakes.asked import Answer, AskedSource, fails, gives
from tests.fakes.probe_client import TRAINING, sockets, trainer, wait_for

ROOT = Path(__file__).parents[2]
TAKEN = {
    "bytes": 5,
    "entries": 120_000,
    "snapshot_seconds": 0.31,
    "pickle_seconds": 0.034,
    "history": True,
}


def frames_of(pid: int, cuda: bool = True) -> list[f.Frame]:
    """One trainer with this pid on one device."""
    out: list[f.Frame] = [views.hello(), views.host_def(), views.gpu(0)]
    for frame in views.trainer(pid, 0, 1, "ada", True, "job"):
        if frame.trainer is not None:
            frame.trainer.cuda = cuda
        out.append(frame)
    n = pid % 100
    out.append(
        f.Sample(0, int(views.END * 1e9), h=[views.host_row()], t=[views.trainer_row(n, 100, 0.5)])
    )
    return out


@pytest.fixture
def ask(monkeypatch, tmp_path, capsys):
    """Return a function that runs the verb over a source with these answers.

    It returns (exit code, output, errors, what was asked).
    """
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr(trainers_of, "NONE_SECONDS", 0.5)

    def run(
        *words: str, frames: list[f.Frame] | None = None, **answers: Answer
    ) -> tuple[int, str, str, list[Any]]:
        source = AskedSource(frames if frames is not None else frames_of(os.getpid()), **answers)
        monkeypatch.setattr("gpuscope.tui.app.launch.local_source", lambda hz, settings: source)
        code = cli.main(["snapshot", *words])
        out, errors = capsys.readouterr()
        return code, out, errors, source.asked

    return run


def test_a_snapshot_is_written_and_said_how_to_read(ask, tmp_path):
    path = tmp_path / "s.pickle"
    code, out, _, asked = ask(str(os.getpid()), "-o", str(path), snapshot=gives(TAKEN, b"12345"))
    assert code == 0
    assert path.read_bytes() == b"12345"
    assert f"{path}: 5 B, the trainer paused 310 ms" in out
    assert "120,000 events of history; with stacks" in out
    assert f"Read it: gpuscope snapshot {path}" in out
    assert asked == [("snapshot", {"trainer": 300 + os.getpid() % 100})]


def test_without_a_name_it_goes_into_the_data_folder(ask, tmp_path):
    code, out, _, _ = ask(str(os.getpid()), snapshot=gives({**TAKEN, "history": False}, b"12345"))
    assert code == 0
    (path,) = (tmp_path / "data" / "gpuscope" / "snapshots").iterdir()
    assert str(path) in out
    assert "no stacks, because history was off" in out
    assert f"gpuscope snapshot {os.getpid()} --history 100000 --trial" in out


def test_json_is_a_document(ask, tmp_path):
    path = tmp_path / "s.pickle"
    code, out, _, _ = ask(
        str(os.getpid()),
        "-o",
        str(path),
        "--json",
        snapshot=gives({**TAKEN, "bytes": "no"}, b"12345"),
    )
    assert code == 0
    assert json.loads(out) == {"pid": os.getpid(), "path": str(path), **TAKEN, "bytes": 5}


def test_a_file_that_is_there_stays_unless_forced(ask, tmp_path):
    path = tmp_path / "s.pickle"
    path.write_text("mine")
    code, _, errors, asked = ask(str(os.getpid()), "-o", str(path), snapshot=gives(TAKEN, b"12345"))
    assert (code, asked) == (3, [])
    assert "--force" in errors
    assert path.read_text() == "mine"
    assert (
        ask(str(os.getpid()), "-o", str(path), "--force", snapshot=gives(TAKEN, b"12345"))[0] == 0
    )
    assert path.read_bytes() == b"12345"


def test_history_is_tried_then_turned_on_then_off(ask):
    price = {
        "enabled": False,
        "entries": 1000,
        "cost_percent": 3.1,
        "cost_low_percent": 1.0,
        "cost_high_percent": 5.2,
    }
    code, out, _, asked = ask(
        str(os.getpid()), "--history", "1000", "--trial", history=gives({**price, "steps": 20})
    )
    assert code == 0
    assert (
        f"History costs +3.1 % (+1.0 to +5.2) per step in pid {os.getpid()}, measured over 20 "
        "steps." in out
    )
    assert asked[0][1]["trial_steps"] == 20
    code, out, _, asked = ask(
        str(os.getpid()), "--history", "1000", history=gives({"enabled": True, "entries": 1000})
    )
    assert "On in pid" in out
    assert asked[0][1]["trial_steps"] == 0
    _, out, _, _ = ask(
        str(os.getpid()), "--history", "0", history=gives({"enabled": False, "entries": 0})
    )
    assert out == f"Off in pid {os.getpid()}.\n"


@pytest.mark.parametrize(
    ("code", "reason", "wanted"),
    [
        ("busy", "busy with profile for pid 7", "One such request at a time"),
        ("unsupported", "there is no CUDA allocator to ask", "was not touched"),
        ("timeout", "snapshot: no answer within 300 s", "Is it stopped"),
    ],
)
def test_a_refusal_is_said_with_what_helps(ask, tmp_path, code, reason, wanted):
    path = tmp_path / "s.pickle"
    exit_code, _, errors, _ = ask(str(os.getpid()), "-o", str(path), snapshot=fails(code, reason))
    assert exit_code == 3
    assert f"gpuscope snapshot: {reason}.\n" in errors
    assert wanted in errors
    assert not path.exists()


def test_a_training_on_the_cpu_has_no_allocator(ask):
    code, _, errors, asked = ask(str(os.getpid()), frames=frames_of(os.getpid(), cuda=False))
    assert (code, len(asked)) == (3, 1)
    assert "this test does not answer snapshot.\n" in errors
    assert "trains without CUDA, and only torch's CUDA allocator can be inspected" in errors


def test_a_process_without_a_probe_is_named_with_the_command_that_helps(ask):
    code, _, errors, _ = ask(str(os.getpid()), frames=frames_of(1 << 21))
    assert code == 3
    assert f"there is no probe in pid {os.getpid()} (" in errors
    assert "gpuscope run train.py" in errors


def test_a_pid_that_is_not_there(ask):
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    code, _, errors, _ = ask(str(ended.pid))
    assert code == 3
    assert f"no process has pid {ended.pid} here" in errors


def test_a_launcher_names_its_trainers(ask):
    with subprocess.Popen(["sleep", "60"]) as child:
        code, _, errors, _ = ask(str(os.getpid()), frames=frames_of(child.pid))
        child.kill()
    assert code == 3
    assert "it started a trainer. Choose one:" in errors
    assert f"gpuscope snapshot {child.pid}    (rank 0, train.py)" in errors


def test_a_folder_that_cannot_be_written_is_said(ask, tmp_path):
    code, _, errors, _ = ask(
        str(os.getpid()),
        "-o",
        str(tmp_path / "no" / "s.pickle"),
        snapshot=fails("failed", "cannot write it: no folder"),
    )
    assert code == 3
    assert "cannot write it" in errors


@pytest.mark.parametrize(
    "words", [("--trial",), ("--history", "0", "--trial"), ("--history", "5", "-o", "x")]
)
def test_options_that_contradict_each_other_are_usage(ask, words):
    assert ask(str(os.getpid()), *words)[0] == 64


@pytest.mark.parametrize(
    ("text", "wanted"), [("12", True), ("0", False), ("1.pickle", False), ("²", False), ("", False)]
)
def test_what_is_a_pid(text, wanted):
    assert snapshot_live.is_pid(text) is wanted


def test_a_file_named_like_a_pid_is_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("1234").write_text("x")
    assert not snapshot_live.is_pid("1234")


CODE = (
    TRAINING + "from tests.fakes import allocator\nmade = allocator.install(2000)\n"
    "import gpuscope\ngpuscope.watch(model=model, optimizer=optimizer)\ntrain(100_000, 0.005)"
)
"""A real training with a probe; only its allocator is not there."""


@pytest.mark.slow
def test_through_the_real_agent_and_a_real_probe(tmp_path):
    pytest.importorskip("torch")
    path = tmp_path / "s.pickle"
    with trainer(CODE, fork=True) as process:
        wait_for(lambda: sockets(process.pid), 60, "a socket")

        def verb(*words: str) -> dict[str, Any]:
            command = [
                sys.executable,
                "-m",
                "gpuscope",
                "snapshot",
                str(process.pid),
                *words,
                "--json",
            ]
            done = subprocess.run(command, capture_output=True, text=True, timeout=90, cwd=ROOT)
            assert done.returncode == 0, done.stderr
            answer: dict[str, Any] = json.loads(done.stdout)
            return answer

        price = verb("--history", "1000", "--trial")
        assert price["enabled"] is False
        assert price["steps"] > 0
        assert isinstance(price["cost_percent"], float)
        assert verb("--history", "1000")["enabled"] is True
        taken = verb("-o", str(path))
    assert taken["history"] is True
    assert taken["bytes"] == path.stat().st_size
    with open_snapshot(path) as reading:
        (device,) = reading.summary.devices
    assert device.totals.allocated_bytes == 512
    assert device.trace is not None
    assert device.trace.entries == taken["entries"] == 2000


def test_a_file_that_is_no_snapshot_is_refused_with_what_reads_it(ask, tmp_path):
    path = tmp_path / "notes on it.md"
    path.write_text("# A heading\n")
    code, _, errors, _ = ask(str(path))
    assert code == 3
    assert "not a pickle" in errors
    assert f"Next: gpuscope doctor '{path}' " in errors
