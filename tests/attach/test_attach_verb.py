"""``gpuscope attach PID --inject`` and ``--detach`` act on real processes.

The tests see what is asked, what comes of it, and exit codes.
"""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpuscope.cli import main as cli
from tests.attach.test_inject import CALM, socket_of
from tests.attach.test_inject import victim as started
from tests.fakes.probe_client import wait_for
from tests.fakes.program import program
from tests.fakes.ptrace import BY_PTRACE

pytestmark = BY_PTRACE


@pytest.fixture
def victim():
    """A process that nothing of ours has prepared."""
    with started(CALM) as child:
        yield child


@pytest.fixture
def gpuscope(tmp_path):
    """Runs ``gpuscope attach`` with these words, nobody at the keyboard."""

    return lambda *words: program("attach", *words, env=environment(tmp_path))


def environment(tmp_path: Path) -> dict[str, str]:
    return {
        **os.environ,
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
    }


@pytest.mark.slow
def test_a_probe_is_put_in_and_taken_out_and_each_is_written_down(gpuscope, victim, tmp_path):
    done = gpuscope(victim.pid, "--inject")
    assert done.returncode == 2, "nobody agreed"
    assert f"Attach gpuscope's probe to pid {victim.pid}" in done.stderr
    for word in (
        "Method: ptrace",
        "Overhead: ",
        "Undo: ",
        "There is no terminal to ask in. Next: the same command with --yes",
    ):
        assert word in done.stderr
    assert not socket_of(victim.pid).exists()

    done = gpuscope(victim.pid, "--inject", "--yes")
    assert done.returncode == 0, done.stderr
    assert f"The probe is in pid {victim.pid} (ptrace)" in done.stderr
    assert socket_of(victim.pid).exists()

    done = gpuscope(victim.pid, "--detach")
    assert done.returncode == 2
    assert socket_of(victim.pid).exists(), "nobody agreed"
    done = gpuscope(victim.pid, "--detach", "--yes")
    assert done.returncode == 0, done.stderr
    assert "the process continues" in done.stderr
    wait_for(lambda: not socket_of(victim.pid).exists(), what="the end of the probe")
    assert victim.poll() is None
    lines = (tmp_path / "state" / "gpuscope" / "attach.log").read_text().splitlines()
    assert [
        word in line for word, line in zip(("inject ptrace", "done", "detach"), lines, strict=True)
    ] == [True] * 3
    assert all(str(victim.pid) in line for line in lines)


def test_a_process_that_stands_still_is_busy_and_exit_code_2(gpuscope, victim):
    os.kill(victim.pid, signal.SIGSTOP)
    done = gpuscope(victim.pid, "--inject", "--yes")
    assert done.returncode == 2, done.stderr
    assert "Training not touched" in done.stderr
    os.kill(victim.pid, signal.SIGCONT)
    assert not socket_of(victim.pid).exists()


@pytest.mark.slow
def test_what_cannot_be_is_said_with_its_code(gpuscope, victim):
    done = gpuscope(victim.pid, "--detach", "--yes")
    assert (done.returncode, "no listening probe" in done.stderr) == (3, True)
    done = gpuscope(victim.pid, "--inject=pep768", "--yes")
    assert (done.returncode, "no remote debugging" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    "words",
    [
        ["--inject"],
        ["--detach"],
        [str(os.getpid()), "--inject", "--detach"],
        [str(os.getpid()), "--json"],
    ],
)
def test_options_that_name_no_process_or_contradict_each_other_are_usage(words, capsys):
    assert cli.main(["attach", *words]) == 64
    assert "gpuscope attach: --" in capsys.readouterr().err


@pytest.mark.slow
def test_of_several_the_first_that_is_refused_ends_it(gpuscope, victim):
    static = subprocess.Popen(["sleep", "60"])
    try:
        done = gpuscope(victim.pid, static.pid, os.getpid(), "--inject", "--yes")
        assert done.returncode == 2, done.stderr
        assert f"Done before: 1 of 3. Not tried: {os.getpid()}." in done.stderr
        assert socket_of(victim.pid).exists()
    finally:
        static.kill()
        static.wait()


@pytest.mark.slow
@pytest.mark.parametrize(("answer", "code"), [("", 2), ("yes", 0)])
def test_on_a_terminal_only_yes_agrees(victim, tmp_path, answer, code):
    master, slave = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-m", "gpuscope", "attach", str(victim.pid), "--inject"],
        stdin=slave,
        stderr=slave,
        stdout=subprocess.PIPE,
        env={**environment(tmp_path), "TERM": "dumb"},
        start_new_session=True,
    )
    os.close(slave)
    try:
        said = read_until(master, b"Type yes: ")
        os.write(master, answer.encode() + b"\n")
        said += read_until(master, b"\0")
        assert child.wait(30) == code, said
        assert socket_of(victim.pid).exists() == (code == 0)
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
        os.close(master)


def read_until(descriptor: int, end: bytes) -> bytes:
    """What comes until ``end``, or until the other side is closed."""
    said, until = b"", time.monotonic() + 20
    while end not in said and time.monotonic() < until:
        if select.select([descriptor], [], [], 0.5)[0]:
            try:
                said += os.read(descriptor, 4096)
            except OSError:
                break
    return said


def test_the_list_has_ranks_together_and_commands_on_one_line(gpuscope, tmp_path):
    from tests.fakes.torchlike import likeness

    code = likeness(tmp_path, CALM)
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "RANK": str(rank),
                "WORLD_SIZE": "2",
                "MASTER_ADDR": "n1",
                "MASTER_PORT": "29511",
            },
        )
        for rank in range(2)
    ]
    try:
        for child in ranks:
            assert child.stdout is not None
            child.stdout.readline()
        done = gpuscope("--timeout", "1")
        lines = [
            line
            for line in done.stdout.splitlines()
            if line.split()[:1] in [[str(c.pid)] for c in ranks]
        ]
        assert [line.split()[2] for line in lines] == ["0", "1"], done.stdout
        assert all(line.endswith("your consent (ptrace)") for line in lines)
        above = done.stdout.splitlines()[done.stdout.splitlines().index(lines[0]) - 1]
        assert above.startswith("job n1:29511"), "the job's own line"
    finally:
        for child in ranks:
            child.kill()
            child.wait()
            child.stdout.close()


def test_a_terminal_without_unicode_gets_the_list(tmp_path):
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = program("attach", "--timeout", "1", env={**environment(tmp_path), **plain})
    assert "Traceback" not in done.stderr
    assert "gpuscope attach USER@HOST" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["u@far"], "gpuscope devices u@far --json"),
        (["u@far:12"], "gpuscope ps u@far --json"),
        (["k8s:a/b"], "gpuscope devices k8s:a/b --json"),
        (["--via", "docker exec -i x"], "gpuscope devices --via 'docker exec -i x' --json"),
    ],
)
def test_without_a_terminal_the_command_that_needs_none_is_for_the_same_place(
    words, command, gpuscope
):
    done = gpuscope(*words)
    assert done.returncode == 3
    assert done.stderr.rstrip().endswith(f"Next: {command}"), done.stderr
