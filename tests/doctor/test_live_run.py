"""The diagnosis under a traceback: real trainers, started by `gpuscope run`, that fail."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpuscope.attach import run
from tests.attach.test_run import finished, gpuscope_run, write
from tests.fakes.probe_client import environment

HEAD = "gpuscope doctor, on what ended here"
FULL = (
    "CUDA out of memory. Tried to allocate 5.25 GiB. GPU 0 has a total capacity of 33.10 GiB of which 3.71 GiB is "
    "free. Including non-PyTorch memory, this process has 29.30 GiB memory in use. Of the allocated memory 17.02 GiB "
    "is allocated by PyTorch, and 11.40 GiB is reserved by PyTorch but unallocated."
)
FAILS = f"import sys\nprint('to stdout')\nprint('to stderr', file=sys.stderr)\nraise RuntimeError({FULL!r})\n"


def test_a_failing_trainer_is_diagnosed_below_its_traceback_and_ends_as_before(tmp_path):
    script = write(tmp_path / "train.py", FAILS)
    bare = subprocess.run([sys.executable, script], capture_output=True, text=True, env=environment(PYTHONPATH=None))
    code, out, err = finished(script)
    assert (code, out) == (bare.returncode, bare.stdout)
    first, _, rest = err.partition("\n")
    assert first.startswith("gpuscope: watching pid ")
    trainers, _, said = rest.partition("\n" + HEAD)
    assert trainers == bare.stderr
    assert "expandable-segments" in said
    assert "11.40 GiB reserved but unallocated" in said


def test_no_doctor_leaves_it_out(tmp_path):
    code, _, err = finished("--no-doctor", write(tmp_path / "train.py", FAILS))
    assert code == 1
    assert HEAD not in err
    assert err.endswith("reserved by PyTorch but unallocated.\n")


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        ("pass", 0),
        ("import sys; sys.exit(7)", 7),
        ("raise KeyError('a name of mine')", 1),
        ("import os; os._exit(5)", 5),
    ],
)
def test_where_there_is_nothing_to_say_nothing_is_said(tmp_path, ending, code):
    script = write(tmp_path / "train.py", ending + "\n")
    bare = subprocess.run([sys.executable, script], capture_output=True, text=True, env=environment(PYTHONPATH=None))
    status, out, err = finished(script)
    assert (status, out) == (code, "")
    assert err.partition("\n")[2] == bare.stderr


def test_a_signal_ends_it_as_before(tmp_path):
    process = gpuscope_run(write(tmp_path / "train.py", "import time; print('up', flush=True); time.sleep(60)\n"))
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=30)
    assert process.returncode == -signal.SIGTERM
    assert HEAD not in err


def test_a_program_whose_output_the_trainer_reads_stays_as_it_is(tmp_path):
    """Its standard error is not the one that `run` had: nothing of ours may stand in it."""
    inner = write(tmp_path / "inner.py", FAILS)
    outer = (
        f"import subprocess, sys\ndone = subprocess.run([sys.executable, {inner!r}], capture_output=True, text=True)\n"
    )
    code, out, err = finished(write(tmp_path / "outer.py", outer + "print(done.stderr)\n"))
    assert code == 0
    assert "to stderr" in out
    assert HEAD not in out + err


def test_of_the_ranks_of_one_launcher_one_is_diagnosed(tmp_path):
    together = (
        "import os, time\n"
        f"here = {str(tmp_path)!r}\n"
        "open(os.path.join(here, 'rank-' + os.environ['LOCAL_RANK']), 'w').close()\n"
        "while len([name for name in os.listdir(here) if name.startswith('rank-')]) < 2: time.sleep(0.002)\n"
    )
    script = write(tmp_path / "train.py", together + FAILS)
    outer = (
        "import os, subprocess, sys\n"
        "def rank(n):\n"
        "    return subprocess.Popen([sys.executable, sys.argv[1]], env={**os.environ, 'LOCAL_RANK': str(n)})\n"
        "ranks = [rank(0), rank(1)]\n"
        "sys.exit(max(rank.wait() for rank in ranks))\n"
    )
    code, _, err = finished(write(tmp_path / "launch.py", outer), script)
    assert code == 1
    assert err.count("RuntimeError: CUDA out of memory") == 2
    assert err.count(HEAD) == 1


def test_on_a_terminal_it_stands_below_the_traceback_too(tmp_path):
    script = write(tmp_path / "train.py", "import os\nprint(os.isatty(0), os.isatty(1), os.isatty(2))\n" + FAILS)
    main, other = pty.openpty()
    starter = "import sys; from gpuscope.verbs.run import main; sys.exit(main(sys.argv[1:]))"
    process = subprocess.Popen(
        [sys.executable, "-c", starter, script], stdin=other, stdout=other, stderr=other, cwd=Path(__file__).parents[2],
        env=environment(VIRTUAL_ENV=sys.prefix, PYTHONPATH=str(Path(__file__).parents[2])),
    )  # fmt: skip
    os.close(other)
    shown = b""
    while True:
        try:
            part = os.read(main, 65536)
        except OSError:
            break
        if not part:
            break
        shown += part
    os.close(main)
    assert process.wait(30) == 1
    assert b"True True True" in shown
    assert 0 < shown.index(b"Traceback") < shown.index(HEAD.encode())


def test_options_reach_the_trainer_only_as_an_environment(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("")
    env = {"PATH": os.environ["PATH"]}
    argv, found, _ = run.plan(["train.py", "--no-doctor"], env)
    assert argv[-2:] == ["train.py", "--no-doctor"]
    device, inode, python, program = json.loads(found[run.DOCTOR])
    assert (device, inode) == (os.fstat(2).st_dev, os.fstat(2).st_ino)
    assert python == sys.executable
    assert Path(program).name == "doctor_after.py"
    assert run.DOCTOR not in run.plan(["--no-doctor", "train.py"], found)[1]
