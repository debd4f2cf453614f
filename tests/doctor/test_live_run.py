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
from gpuscope.probe import diagnosis, rendezvous
from tests.attach.test_run import finished, gpuscope_run, write
from tests.fakes.probe_client import environment
from tests.fakes.program import python

HEAD = "gpuscope doctor on this failure"
FULL = (
    "CUDA out of memory. Tried to allocate 5.25 GiB. GPU 0 has a total capacity of 33.10 GiB of "
    "which 3.71 GiB is free. Including non-PyTorch memory, this process has 29.30 GiB memory in "
    "use. Of the allocated memory 17.02 GiB is allocated by PyTorch, and 11.40 GiB is reserved by "
    "PyTorch but unallocated."
)
FAILS = (
    "import sys\nprint('to stdout')\nprint('to stderr', file=sys.stderr)\n"
    f"raise RuntimeError({FULL!r})\n"
)


def test_a_failing_trainer_is_diagnosed_below_its_traceback_and_ends_as_before(tmp_path):
    script = write(tmp_path / "train.py", FAILS)
    bare = python(script, env=environment(PYTHONPATH=None))
    code, out, err = finished(script)
    assert (code, out) == (bare.returncode, bare.stdout)
    first, _, rest = err.partition("\n")
    assert first.startswith("gpuscope: watching pid ")
    trainers, _, said = rest.partition("\n" + HEAD)
    assert trainers == bare.stderr
    assert "expandable-segments" in said
    assert "11.4 GiB reserved but unallocated" in said


def test_a_python_without_torch_is_named_and_how_to_choose_another(tmp_path):
    script = write(tmp_path / "train.py", "raise ModuleNotFoundError('no torch', name='torch')\n")
    code, _, err = finished(script)
    assert code == 1
    assert f"gpuscope: {sys.executable} has no torch." in err
    assert f"gpuscope run -- /path/to/python {script}" in err


def test_no_doctor_leaves_it_out(tmp_path):
    code, _, err = finished("--no-doctor", write(tmp_path / "train.py", FAILS))
    assert code == 1
    assert HEAD not in err
    assert err.endswith("reserved by PyTorch but unallocated.\n")


@pytest.mark.slow
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
    bare = python(script, env=environment(PYTHONPATH=None))
    status, out, err = finished(script)
    assert (status, out) == (code, "")
    assert err.partition("\n")[2] == bare.stderr


def test_a_signal_ends_it_as_before(tmp_path):
    process = gpuscope_run(
        write(tmp_path / "train.py", "import time; print('up', flush=True); time.sleep(60)\n")
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=30)
    assert process.returncode == -signal.SIGTERM
    assert HEAD not in err


@pytest.mark.slow
def test_a_program_whose_output_the_trainer_reads_stays_as_it_is(tmp_path):
    """Its standard error is not the one that `run` had: nothing of ours may stand in it."""
    inner = write(tmp_path / "inner.py", FAILS)
    outer = (
        f"import subprocess, sys\ndone = subprocess.run([sys.executable, {inner!r}], "
        "capture_output=True, text=True)\n"
    )
    code, out, err = finished(write(tmp_path / "outer.py", outer + "print(done.stderr)\n"))
    assert code == 0
    assert "to stderr" in out
    assert HEAD not in out + err


LAUNCHER = (
    "import os, subprocess, sys\n"
    "def rank(n):\n"
    "    return subprocess.Popen([sys.executable, sys.argv[1]], env={**os.environ, 'LOCAL_RANK': "
    "str(n)})\n"
    "ranks = [rank(0), rank(1)]\n"
    "codes = [rank.wait() for rank in ranks]\n"
)
"""As torchrun does it, without torch."""


def launched(tmp_path, rank, end="sys.exit(max(codes))\n"):
    """Exit code and standard error of a launcher with two ranks."""
    script = write(
        tmp_path / "train.py", "import os, sys, time\nrank = int(os.environ['LOCAL_RANK'])\n" + rank
    )
    code, _, err = finished(write(tmp_path / "launch.py", LAUNCHER + end), script)
    return code, err


STARTS_THE_OTHER = (
    "import os, subprocess, sys\n"
    "if os.environ.setdefault('LOCAL_RANK', '0') == '1': sys.stdin.read()\n"
    "else:\n"
    "    other = subprocess.Popen([sys.executable, sys.argv[0]], env={**os.environ, 'LOCAL_RANK': "
    "'1'}, stdin=-1)\n"
    "    class Last:\n"
    "        def __del__(self, other=other, wait=os.waitpid):\n"
    "            other.stdin.close(), wait(other.pid, 0)\n"
    "    last = Last()\n"
)
"""The program that the user starts becomes rank 0 and starts rank 1, as with Lightning. What is
called at its very end, or when ``last`` goes, lets rank 1 go on and waits for it.
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "before", ["", "    del last\n"], ids=["the first fails first", "the other fails first"]
)
def test_a_rank_that_starts_the_others_is_one_of_them(tmp_path, before):
    script = write(
        tmp_path / "train.py", f"{STARTS_THE_OTHER}{before}raise RuntimeError({FULL!r})\n"
    )
    for _ in range(2):  # both times by one parent, that no rank speaks for
        code, _, err = finished(script)
        assert code == 1
        assert err.count("Traceback") == 2
        assert err.count(HEAD) == 1


@pytest.mark.slow
def test_of_the_ranks_of_one_launcher_the_first_is_diagnosed(tmp_path):
    """Its process is long gone when the other fails."""
    gone = f"mark = {str(tmp_path / 'gone')!r}\n"
    says = "open(mark + '.new', 'w').write(str(os.getpid())); os.rename(mark + '.new', mark)"
    first = f"if rank == 0: {says}; raise RuntimeError({FULL!r})\n"
    waits = (
        "while not os.path.exists(mark): time.sleep(0.01)\n"
        "while os.path.exists('/proc/' + open(mark).read()): time.sleep(0.01)\n"
    )
    later = "raise RuntimeError('CUDA error: device-side assert triggered')\n"
    code, err = launched(tmp_path, gone + first + waits + later)
    assert code == 1
    assert err.count("Traceback") == 2
    assert err.count(HEAD) == 1
    assert 0 < err.index(HEAD) < err.index("device-side assert")


@pytest.mark.slow
def test_a_rank_that_only_lost_its_peer_leaves_the_word_to_the_other(tmp_path):
    mark = f"mark = {str(tmp_path / 'lost')!r}\n"
    follows = (
        "if rank == 0: open(mark, 'w').close(); raise RuntimeError('Connection closed by "
        "peer [127.0.0.1]:33251')\n"
    )
    cause = f"while not os.path.exists(mark): time.sleep(0.01)\nraise RuntimeError({FULL!r})\n"
    code, err = launched(tmp_path, mark + follows + cause)
    assert code == 1
    assert err.count(HEAD) == 1
    assert "expandable-segments" in err.partition(HEAD)[2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rank", "heads"), [("os.kill(os.getpid(), 9)\n", 1), (f"raise RuntimeError({FULL!r})\n", 1)]
)
def test_the_launcher_speaks_where_no_rank_could(tmp_path, rank, heads):
    """One that was killed says nothing; its launcher knows the signal."""
    end = (
        "raise RuntimeError('train.py FAILED: exitcode : -9 (pid: 6602) (SIGKILL) Signal 9 "
        "(SIGKILL) received')\n"
    )
    _, err = launched(tmp_path, rank, end)
    assert err.count(HEAD) == heads
    assert ("host-memory-limit" in err) == rank.startswith("os.kill")


def test_marks_of_launchers_that_are_gone_are_removed(tmp_path):
    own = f"{diagnosis.MARK}{os.getpid()}-{rendezvous.start_ticks()}-0"
    for name in (
        f"{diagnosis.MARK}{os.getpid()}-1-0",
        f"{diagnosis.MARK}4194303-7-2",
        own,
        "7-8.box",
    ):
        (tmp_path / name).touch()
    diagnosis._clean(str(tmp_path))
    assert {path.name for path in tmp_path.iterdir()} == {own, "7-8.box"}


@pytest.mark.slow
def test_on_a_terminal_it_stands_below_the_traceback_too(tmp_path):
    script = write(
        tmp_path / "train.py",
        "import os\nprint(os.isatty(0), os.isatty(1), os.isatty(2))\n" + FAILS,
    )
    main, other = pty.openpty()
    starter = "import sys; from gpuscope.cli.commands.run import main; sys.exit(main(sys.argv[1:]))"
    process = subprocess.Popen(
        [sys.executable, "-c", starter, script],
        stdin=other,
        stdout=other,
        stderr=other,
        cwd=Path(__file__).parents[2],
        env=environment(VIRTUAL_ENV=sys.prefix, PYTHONPATH=str(Path(__file__).parents[2])),
    )
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
    assert Path(program).name == "after_failure.py"
    assert run.DOCTOR not in run.plan(["--no-doctor", "train.py"], found)[1]
