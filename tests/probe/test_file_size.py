"""The trainer goes on whatever of ours meets a limit on file sizes.

The limit's signal is at the default.
"""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.fakes.asking import ask
from tests.fakes.probe_client import (
    PLACE_APART,
    TRAINING,
    Reader,
    environment,
    sockets,
    trainer,
    wait_for,
)

pytestmark = pytest.mark.slow

LIMITED = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
"""


def run(code, tmp_path):
    more = {"XDG_STATE_HOME": str(tmp_path), "GPUSCOPE_BLACKBOX_DIR": str(tmp_path / "boxes")}
    command = [sys.executable, "-c", LIMITED + code]
    return subprocess.run(
        command, env=environment(**more), capture_output=True, text=True, timeout=120
    )


def test_a_trainer_goes_on_without_its_black_box_and_says_why(tmp_path):
    pytest.importorskip("torch")
    watched = (
        TRAINING
        + LIMITED
        + "limit(65536)\n"
        + PLACE_APART
        + "import gpuscope; gpuscope.watch()\ntrain(300)"
    )
    with trainer(watched, fork=True) as process:
        reader = Reader(wait_for(lambda: sockets(process.pid), 60, "a socket")[0])
        _, text = reader.until(lambda: reader.reasons.get((1, "black_box")))
        assert "the limit for a file is 65536 (ulimit -f)" in text
        answer, _, _ = ask(reader, "profile", {"steps": 9})
        assert (answer.code, "ulimit -f" in answer.reason) == ("refused", True), answer
        seen = reader.value("step")
        reader.until(lambda: reader.value("step") > seen)
        reader.close()


WRITERS = """
import sys
from gpuscope.probe import blackbox, blob_file, file_size, records
from gpuscope.wire.frames import Event, Hello
if sys.argv[1:] == ["late"]:  # the limit is lowered after we have looked at it
    file_size.limit = lambda: None
def told(call):
    try:
        print(call())
    except (blob_file.Refusal, OSError) as error:
        print(error)
def box(size=1):
    made.event(Event(1, "note", 0, "x" * size), {})
    return made.problem
made = blackbox.BlackBox(lambda hz: Hello())
assert not box()
limit(9000)
told(lambda: [box(3000) for _ in range(9)][-1])
made.ended({"how": "exit"})
made.keep()
made = blackbox.BlackBox(lambda hz: Hello())
told(box)
told(lambda: records.write("oom-a.pickle.gz", bytes(99999)))
file = blob_file.unlinked()
file.write(bytes(5000))
told(lambda: file.write(bytes(5000)))
"""


@pytest.mark.parametrize(("looked", "words"), [("early", "ulimit -f"), ("late", "File too large")])
def test_nothing_that_is_written_ends_it(looked, words, tmp_path):
    done = run(WRITERS.replace("sys.argv[1:]", repr([looked])), tmp_path)
    assert done.returncode == 0, done.stderr
    assert [words in line for line in done.stdout.splitlines()] == [True] * 4, done.stdout


def test_the_trainers_own_files_get_the_signal_as_before(tmp_path):
    code = """
from gpuscope.probe import file_size
with file_size.no_signal(): pass
limit(9000)
with open("own", "wb", 0) as own:
    own.write(bytes(9000))
    own.write(b"x")
"""
    assert (
        run(code.replace('"own"', repr(str(tmp_path / "own"))), tmp_path).returncode
        == -signal.SIGXFSZ
    )
