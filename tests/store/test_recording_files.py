"""Files that are no recordings, or damaged, are refused by the real command.

So are places that cannot be recorded into.
"""

from __future__ import annotations

import asyncio
import gzip
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from gpuscope.store.decode import decode
from gpuscope.store.recorder import record
from gpuscope.store.replay import ReplaySource
from gpuscope.store.source import AgentSource
from gpuscope.store.store import Store
from gpuscope.wire.codec import encode
from gpuscope.wire.frames import (
    Key,
    ProcDef,
    TrainerDef,
)
from gpuscope.wire.recording import RecordingReader, RecordingWriter
from tests.fakes.in_process import command
from tests.fakes.program import program
from tests.fakes.waiting import until, until_true
from tests.fakes.wire import SECOND, definitions, hello, sample
from tests.recordings import REDACTED, SHIPPED

ROOT = Path(__file__).parent.parent.parent
REAL = sorted(SHIPPED.glob("*.gsr"))
PATIENCE = 20.0


def header(**more: object) -> bytes:
    values = {"k": "recording", "v": 1, "version": "1.0", "t": 1.0, **more}
    return str(values).replace("'", '"').encode() + b"\n"


def as_fifo(path: Path) -> None:
    os.mkfifo(path)


def as_content(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content)


NO_RECORDINGS = {
    "text": (as_content(b"step 1 loss 2.0\n"), "`gpuscope record FILE` makes one"),
    "a bomb behind the header": (as_content(gzip.compress(header() + b"\n" * 30_000_000)), "empty"),
    "of another format": (
        as_content(gzip.compress(header(v=9, version="7.0"))),
        "has format 9, written by gpuscope 7.0. This is gpuscope",
    ),
    "cut in the header": (as_content(gzip.compress(header())[:30]), "its start is missing"),
    "a FIFO": (as_fifo, "it is a named pipe, not a file"),
    "missing": (lambda path: None, "there is no file"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NO_RECORDINGS)
def test_replay_says_what_is_wrong_with_a_file(tmp_path, name):
    make, words = NO_RECORDINGS[name]
    path = tmp_path / "a\nb.gsr"
    make(path)
    done = program("replay", path)
    assert done.returncode == 3
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    # What is wrong, and what to do: the newline in the name is visible, not one of ours.
    said = done.stderr.splitlines()
    assert len(said) == 2
    assert said[-1].startswith("Next: ")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_replay_of_a_file_that_may_not_be_read(tmp_path):
    path = tmp_path / "a.gsr"
    path.write_bytes(b"x")
    path.chmod(0)
    done = program("replay", path)
    assert (done.returncode, "Permission denied" in done.stderr) == (3, True)


def test_replay_without_a_file_or_of_an_option_is_a_usage_error():
    assert command("replay").returncode == 64
    assert command("replay", "--speed", "0", "x.gsr").returncode == 64
    assert command("record", "--hz", "1000", "x.gsr").returncode == 64


# ── damage ────────────────────────────────────────────────────────────────────────────────────────


def shown(path: Path) -> tuple[Store, int, RecordingReader]:
    """Read a file as the viewer does.

    Returns the store, the number of lines, and the reader with its problem.
    """
    store, count = Store(), 0
    reader = RecordingReader(path)
    sources = {member.source for member in reader.index()} or {0}
    for number in sources:
        store.add_source(str(number), "label")
    for line in reader:
        count += 1
        if line.source in sources:
            store.apply(str(line.source), decode(line.line), line.rx)
    store.view()
    return store, count, reader


@pytest.mark.parametrize("real", REAL, ids=lambda path: path.stem)
def test_a_real_recording_cut_anywhere_plays_up_to_the_cut(tmp_path, real):
    content, path = real.read_bytes(), tmp_path / "a.gsr"
    everything = list(RecordingReader(real))
    before = 0
    for length in range(0, len(content), 593):
        path.write_bytes(content[:length])
        reader = RecordingReader(path)
        got = list(reader)
        assert got == everything[: len(got)], length
        assert len(got) >= before
        assert reader.problem is not None
        assert reader.problem.code in ("cut", "not_a_recording")
        before = len(got)
        ReplaySource(path)
    assert before > len(everything) * 0.9


def members_of(path: Path) -> list[bytes]:
    content = path.read_bytes()
    starts = [0, *(member.offset for member in RecordingReader(path).index()), len(content)]
    return [content[start:end] for start, end in pairwise(starts)]


def session(path: Path, seconds: int) -> Path:
    """Write a recording of ``seconds``.

    It has half a second a sample, a key frame every ten seconds, and one second of the host's clock
    a second.
    """
    with RecordingWriter(path) as writer:
        for frame in (hello(), *definitions()):
            writer.write("a", 0.0, encode(frame))
        for q in range(1, seconds * 2):
            if q % 20 == 0:
                writer.write(
                    "a",
                    q / 2,
                    encode(Key(q, 100 * SECOND + q * SECOND // 2, 1e6 + q / 2, len(definitions()))),
                )
                for definition in definitions():
                    writer.write("a", q / 2, encode(definition))
            writer.write("a", q / 2, encode(sample(q)))
    return path


def test_members_in_another_order_are_read_and_the_axis_still_grows(tmp_path):
    path = session(tmp_path / "a.gsr", 40)
    head, *parts, last = members_of(path)
    assert len(parts) == 3
    path.write_bytes(b"".join([head, parts[1], parts[0], parts[2], last]))
    store, count, _ = shown(path)
    assert count > 100
    for device in store.view().host.devices:
        seconds = store.history("0", device.id, "used_bytes").seconds
        assert all(earlier < later for earlier, later in pairwise(seconds))
    source = ReplaySource(path)
    assert source.duration_seconds == 39.5
    for wanted in (5.0, 15.0, 25.0, 35.0):
        offset = source._member_before(wanted)
        assert next(iter(RecordingReader(path).lines(offset))).rx <= wanted
    # The end came before the last member: it is not taken for a recording that was closed.
    path.write_bytes(b"".join([head, *parts[:2], last, parts[2]]))
    assert shown(path)[2].problem.code == "cut"


def test_a_recording_may_be_full_of_members(tmp_path):
    """Each of them wants to be looked at before the first frame is drawn."""
    path = tmp_path / "a.gsr"
    path.write_bytes(
        session(tmp_path / "b.gsr", 5).read_bytes()
        + b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03" * 300_000
    )
    assert len(RecordingReader(path).index()) == 1


# ── recording ─────────────────────────────────────────────────────────────────────────────────────


def test_record_refuses_what_it_would_destroy_and_says_how_to_go_on(tmp_path):
    path = tmp_path / "my run.gsr"
    path.write_text("precious")
    done = program("record", path)
    assert done.returncode == 3
    assert "exists already" in done.stderr
    assert f"gpuscope record --force '{path}'" in done.stderr
    assert path.read_text() == "precious"


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("folder", "Is a directory"),
        ("fifo", "cannot write"),
        ("folder/none/x.gsr", "No such file"),
        ("/proc/x.gsr", "cannot write"),
    ],
)
def test_record_says_why_a_place_will_not_do(tmp_path, where, words):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    done = command("record", "--force", "--duration", "1", tmp_path / where)
    assert done.returncode == 3
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert "--force" not in done.stderr


def limited() -> None:
    """Limit files to 3600 bytes, like a disk that is full.

    There is room for some lines also where many programs are seen beside.
    """
    resource.setrlimit(resource.RLIMIT_FSIZE, (3600, 3600))


@pytest.mark.slow
def test_a_disk_that_fills_up_ends_the_recording_and_keeps_what_was_written(tmp_path):
    path = tmp_path / "a.gsr"
    done = program("record", "--hz", "10", "--duration", "45", path, preexec_fn=limited)
    assert done.returncode == 2, done.stderr
    assert "It ended early: cannot write" in done.stderr
    assert "File too large" in done.stderr
    store, count, reader = shown(path)
    assert reader.problem.code == "cut"
    assert count > 5
    assert store.view().host.number("cpu_percent") is not None


@pytest.mark.slow
@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL], ids=lambda n: n.name
)
def test_what_was_recorded_outlives_a_signal(tmp_path, number):
    path = tmp_path / "a.gsr"
    child = subprocess.Popen(
        [sys.executable, "-m", "gpuscope", "record", "--hz", "10", path],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        until(lambda: path.exists() and len(list(RecordingReader(path))) > 15, PATIENCE)
        written = list(RecordingReader(path))
        child.send_signal(number)
        _, said = child.communicate(timeout=PATIENCE)
    finally:
        child.kill()
        child.communicate()
    got = list(reader := RecordingReader(path))
    assert got[: len(written)] == written
    if number == signal.SIGKILL:
        assert reader.problem.code == "cut"
    else:
        assert reader.problem is None
        assert child.returncode == 0, said
        assert f"gpuscope replay {path}" in said


def test_a_file_that_is_removed_while_it_is_written_is_no_crash(tmp_path):
    path = tmp_path / "a.gsr"
    script = (
        f"import sys; sys.stdout.write({encode(hello()).decode()!r}); sys.stdout.flush(); "
        "sys.stdin.read()"
    )

    async def check() -> int:
        task = asyncio.create_task(
            record(AgentSource([sys.executable, "-c", script], "k", "l"), path, seconds=0.3)
        )
        await until_true(path.exists, 60)
        path.unlink()
        return (await task).size_bytes

    assert asyncio.run(check()) > 0


# ── what is committed ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("real", sorted(REDACTED.glob("*.gsr")), ids=lambda path: path.stem)
def test_a_redacted_recording_names_nobody(real):
    reader = shown(real)[2]
    assert reader.header["redacted"] is True
    assert reader.header["label"] == ""
    for line in RecordingReader(real):
        frame = decode(line.line)
        if hasattr(frame, "host") and isinstance(frame.host, str):
            assert frame.host.startswith("host-")
        process = getattr(frame, "proc", None)
        if isinstance(process, ProcDef):
            assert process.user is None or process.user.startswith("user-")
            assert process.command is None or "/" not in process.command
            assert process.name is None or "/" not in process.name
        trainer = getattr(frame, "trainer", None)
        if isinstance(trainer, TrainerDef):
            assert trainer.script is None or "/" not in trainer.script


@pytest.mark.parametrize("real", REAL, ids=lambda path: path.stem)
def test_a_shipped_recording_is_small_whole_and_names_its_scripts(real):
    assert real.stat().st_size <= 1 << 20
    store, _, reader = shown(real)
    assert reader.problem is None
    assert (reader.header["redacted"], reader.header["label"]) == (False, "gpu-1")
    (host,) = store.view().hosts
    for trainer in host.trainers:
        script = trainer.definition.script or ""
        assert script.startswith("/home/ada/gpuscope/demos/") or script == "gpuscope lab"
    assert any(trainer.minutes for trainer in host.trainers), "a time ledger"
    assert host.devices
    for device in host.devices:
        for column in ("used_bytes", "utilization_percent", "power_watts"):
            values = store.history("0", device.id, column).values
            assert sum(value is not None for value in values) > 20, column
    assert any((trainer.number("step") or 0) > 20 for trainer in host.trainers)


def test_recordings_of_one_and_of_two_devices_are_committed():
    assert {len(shown(real)[0].view().host.devices) for real in REAL} == {1, 2}
    named = (SHIPPED / "README.md").read_text()
    assert all(f"`{real.name}`" in named for real in REAL)
