"""Children that answer in lines, and commands that are run once, however badly they behave."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from gpuscope.process import child, line_child
from tests.fakes.waiting import alive, until

ANSWERS = """
import json, os, sys
for line in sys.stdin:
    asked = json.loads(line)
    print("working on it", file=sys.stderr, flush=True)
    if asked == "die": os.kill(os.getpid(), 11)
    if asked == "leave": os.write(2, b"cannot go on\\n"); os._exit(3)
    if asked == "flood":
        while True: os.write(1, b"x" * 65536)
    if asked == "two": os.write(1, b'1\\n2\\n'); continue
    if asked == "hang": sys.stdin.read()
    print(json.dumps(asked), flush=True)
"""
PRINTS = """
import os, sys
answers = os.fdopen(int(sys.argv[1]), "w")
for line in sys.stdin:
    print("chatter", flush=True)
    answers.write(line); answers.flush()
"""
LONG = 60.0


def soon(seconds: float = LONG) -> float:
    return time.monotonic() + seconds


@pytest.fixture
def answering():
    with contextlib.closing(
        line_child.LineChild([sys.executable, "-c", ANSWERS], max_line_bytes=1 << 20)
    ) as running:
        yield running


def ask(running: line_child.LineChild, question: object, seconds: float = LONG) -> bytes:
    running.write(json.dumps(question).encode() + b"\n")
    return running.read_line(soon(seconds))


def test_each_question_gets_its_line(answering):
    long = "x" * 300_000
    assert [ask(answering, one) for one in ("a", {"b": 1}, long)] == [
        b'"a"',
        b'{"b": 1}',
        json.dumps(long).encode(),
    ]
    assert ask(answering, "two") == b"1"
    assert answering.read_line(soon()) == b"2"
    assert answering.running


def test_how_a_child_ended_is_said(answering):
    with pytest.raises(line_child.Ended, match="it ended: signal SIGSEGV"):
        ask(answering, "die")
    with pytest.raises(line_child.Ended):
        answering.write(b'"more"\n')


def test_the_last_words_of_a_child_that_left_are_kept(answering):
    with pytest.raises(line_child.Ended, match="exit code 3"):
        ask(answering, "leave")
    assert answering.last_words == "cannot go on"


def test_a_child_that_never_answers_and_one_that_says_too_much(answering):
    with pytest.raises(line_child.Late):
        ask(answering, "hang", seconds=0.05)
    other = line_child.LineChild([sys.executable, "-c", ANSWERS], max_line_bytes=1000)
    with contextlib.closing(other), pytest.raises(line_child.TooMuch, match="more than 1000 bytes"):
        ask(other, "flood")


def test_a_child_that_prints_answers_on_a_pipe_of_its_own():
    with contextlib.closing(
        line_child.LineChild([sys.executable, "-c", PRINTS], own_pipe=True)
    ) as running:
        assert ask(running, "one") == b'"one"'
        assert ask(running, "two") == b'"two"'
        assert running.last_words == "chatter"


def test_another_thread_may_end_it_while_one_waits(answering):
    ended = []

    def wait() -> None:
        try:
            ask(answering, "hang")
        except line_child.Ended as error:
            ended.append(str(error))

    waiting = threading.Thread(target=wait)
    waiting.start()
    answering.kill()
    waiting.join(LONG)
    assert ended
    assert not alive(answering.pid)


def test_what_a_child_started_ends_with_it():
    script = (
        "import subprocess, sys; print(subprocess.Popen(['sleep', '600']).pid, flush=True); "
        "sys.stdin.read()"
    )
    running = line_child.LineChild([sys.executable, "-c", script])
    pid = int(running.read_line(soon()))
    running.close()
    running.close()
    until(lambda: not alive(pid), LONG)


def test_what_cannot_be_started_leaves_no_descriptor():
    before = len(os.listdir("/proc/self/fd"))
    for own_pipe in (False, True):
        with pytest.raises(OSError, match="nowhere"):
            line_child.LineChild(["/nowhere/python"], own_pipe=own_pipe)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_command_is_run_once():
    told = child.ask(["sh", "-c", "echo out; echo err >&2"], LONG)
    assert (told.output, told.last_words, told.code, told.failure) == (b"out\n", "err", 0, "")
    assert child.ask(["sh", "-c", "exit 4"], LONG).failure == "ended with exit code 4"
    assert child.ask(["sh", "-c", "kill -9 $$"], LONG).failure == "ended with signal SIGKILL"


def test_a_command_that_hangs_floods_or_leaves_somebody_behind_is_not_waited_for():
    late = child.ask(["sh", "-c", "echo first; sleep 600"], 0.2)
    assert (late.output, late.code, late.failure) == (b"first\n", None, "did not end within 0.2 s")
    assert child.ask(["yes"], LONG, max_bytes=1000).failure == "answered more than 1000 bytes"
    told = child.ask(["sh", "-c", "sleep 600 & echo $!"], LONG)
    assert told.failure == ""
    until(lambda: not alive(int(told.output)), LONG)


def test_an_answer_at_the_very_end_of_a_slow_command_is_read(monkeypatch):
    """An answer at the very end of a slow command is read.

    The command has been silent for long, then answers and ends, right between our look at its pipe
    and our look at it.
    """
    (out, answer), (errors, said) = os.pipe(), os.pipe()
    ended = []

    def has_exited(_) -> bool:
        if not ended:
            ended.append(True)
            os.write(answer, b"gpu[1-2]\n")
            os.close(answer)
            os.close(said)
        return True

    monkeypatch.setattr(child, "has_exited", has_exited)
    parts: list[bytes] = []
    told = child.CommandOutput(b"", b"", None, "")
    with open(out, "rb") as stdout, open(errors, "rb") as stderr:
        process = SimpleNamespace(stdout=stdout, stderr=stderr)
        child._read_all(process, parts, told, soon(), 1 << 20)  # type: ignore[arg-type]
    assert (parts, told.failure) == ([b"gpu[1-2]\n"], "")


def test_a_command_gets_its_whole_input_and_starts_where_it_should(tmp_path):
    much = b"x" * 300_000
    told = child.ask(["sh", "-c", "cat; pwd"], LONG, input=much, folder=str(tmp_path))
    assert told.output == much + os.fsencode(tmp_path) + b"\n"
    assert child.ask(["sh", "-c", "exit 3"], LONG, input=much).code == 3, "one that reads nothing"
    assert child.ask(["cat"], LONG).output == b"", "no input is an empty one"


def test_a_command_may_keep_the_terminal_to_ask_for_a_password():
    own = str(os.getsid(0)).encode()
    session = ["sh", "-c", "cut -d' ' -f6 /proc/$$/stat"]
    assert child.ask(session, LONG, keep_terminal=True).output.strip() == own
    assert child.ask(session, LONG).output.strip() != own
    late = child.ask(["sleep", "600"], 0.2, keep_terminal=True)
    assert (late.code, late.failure) == (None, "did not end within 0.2 s")


def test_a_child_says_how_it_ended_in_one_way():
    words = [child.how_it_ended(code) for code in (None, 0, 1, -signal.SIGKILL, -63, -200)]
    assert words == ["", "exit code 0", "exit code 1", "signal SIGKILL", "signal 63", "signal 200"]
