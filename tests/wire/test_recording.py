"""Recordings: what was whole is kept, whatever happens to the rest of the file."""

from __future__ import annotations

import gzip
import json
import random
import re
import subprocess
import time
from pathlib import Path

import pytest

from gpuscope.wire import recording
from gpuscope.wire.codec import decode, encode
from gpuscope.wire.frames import Bye, Event, Frame, Hello, Progress, Sample
from gpuscope.wire.recording import RecordingError, RecordingReader, RecordingWriter
from tests.fakes import pythons
from tests.fakes.wire import SECOND, sample, session

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def clock(monkeypatch):
    """The writer's clock, moved by hand: it decides when to flush."""

    class Clock:
        now = 1000.0

    monkeypatch.setattr(recording.time, "monotonic", lambda: Clock.now)
    return Clock


def write(
    path: Path, said: list[tuple[float, Frame]], clock: type, **options: object
) -> list[bytes]:
    """Records and gives back the lines, without those repeated at key frames."""
    lines = []
    with RecordingWriter(path, **options) as writer:
        for rx, frame in said:
            clock.now = 1000.0 + rx
            lines.append(encode(frame).rstrip())
            writer.write("src", rx, lines[-1])
    return lines


def without_repeated_hellos(lines: list[bytes]) -> list[bytes]:
    return [line for i, line in enumerate(lines) if i == 0 or not line.startswith(b'{"k":"hello"')]


def test_what_was_written_is_read(tmp_path, clock):
    path = tmp_path / "a.gsr"
    lines = write(path, session(), clock, label="here", version="1.2")
    reader = RecordingReader(path)
    got = list(reader)
    assert reader.problem is None
    assert (reader.header["label"], reader.header["version"], reader.header["redacted"]) == (
        "here",
        "1.2",
        False,
    )
    assert without_repeated_hellos([g.line for g in got]) == lines
    assert [g.rx for g in got] == sorted(g.rx for g in got)
    assert got[-1].rx == 9.5
    assert {g.source for g in got} == {0}


def test_it_is_json_lines_in_gzip(tmp_path, clock):
    path = tmp_path / "a.gsr"
    write(path, session(3), clock)
    with gzip.open(path) as file:
        documents = [json.loads(line) for line in file]
    assert documents[0]["k"] == "recording"
    assert documents[0]["v"] == 1
    assert documents[1]["l"]["k"] == "hello"
    assert set(documents[1]) == {"@", "rx", "l"}
    assert documents[-1]["end"] is True


def test_reading_can_begin_at_every_member(tmp_path, clock):
    path = tmp_path / "a.gsr"
    write(path, session(20), clock)
    reader = RecordingReader(path)
    everything = list(reader)
    members = reader.index()
    assert [m.rx for m in members] == [0.0, 4.0, 8.0, 12.0, 16.0]
    for member in members:
        got = list(reader.lines(member.offset))
        assert reader.problem is None
        assert got == everything[-len(got) :]
        first = decode(got[0].line)
        assert isinstance(first, Hello)
        # The repeated hello tells the time of its key frame: whoever joins here has the right
        # clock.
        assert first.m == 100 * SECOND + int(member.rx * SECOND)
        assert first.t == 1_000_000.0 + member.rx


def test_an_existing_file_is_not_overwritten(tmp_path, clock):
    path = tmp_path / "a.gsr"
    path.write_text("precious")
    with pytest.raises(RecordingError, match="exists already"):
        RecordingWriter(path)
    assert path.read_text() == "precious"
    write(path, session(2), clock, overwrite=True)
    assert len(list(RecordingReader(path))) > 10
    with pytest.raises(RecordingError, match="cannot write"):
        RecordingWriter(tmp_path / "missing" / "a.gsr")


def test_cut_at_any_byte_what_came_before_is_read(tmp_path, clock):
    path = tmp_path / "a.gsr"
    write(path, session(2, key_every=1), clock)
    everything = list(RecordingReader(path))
    content = path.read_bytes()
    seen = []
    for length in sorted({*range(0, len(content), 4), *range(len(content) - 64, len(content))}):
        path.write_bytes(content[:length])
        reader = RecordingReader(path)
        got = list(reader)
        assert reader.problem is not None, length
        assert reader.problem.text
        assert got == everything[: len(got)], length
        if len(got):
            assert reader.problem.code == "cut"
        seen.append(len(got))
        reader.index()
    assert seen == sorted(seen)
    assert seen[-1] == len(everything)


def test_a_cut_loses_a_second_at_most(tmp_path, clock):
    """As if the machine had lost power: what had been flushed by then is all there is."""
    path = tmp_path / "a.gsr"
    writer = RecordingWriter(path)
    for rx, frame in session(30, key_every=1000):
        clock.now = 1000.0 + rx
        writer.write("src", rx, encode(frame))
        on_disk = list(RecordingReader(path))
        if rx > 1:
            assert on_disk
            assert rx - on_disk[-1].rx <= 1.0


def test_damage_anywhere_shows_nothing_false(tmp_path, clock):
    path = tmp_path / "a.gsr"
    write(path, session(12), clock)
    everything = list(RecordingReader(path))
    content = path.read_bytes()
    random_ = random.Random(3)
    losses = []
    for _ in range(300):
        at = random_.randrange(200, len(content))
        damaged = bytearray(content)
        damaged[at] ^= 1 << random_.randrange(8)
        path.write_bytes(damaged)
        reader = RecordingReader(path)
        got = list(reader)
        assert got == everything[: len(got)], at
        if len(got) < len(everything):
            assert reader.problem is not None
            assert reader.problem.code in ("damaged", "cut", "too_large")
            # No more than about two seconds (four samples and a key frame's definitions) before the
            # damage are lost.
            losses.append(len(everything) * at / len(content) - len(got))
    assert losses
    assert max(losses) < 40


def test_damage_inside_the_only_member_keeps_what_was_verified(tmp_path, clock):
    path = tmp_path / "a.gsr"
    write(path, session(20, key_every=1000), clock)
    content = bytearray(path.read_bytes())
    content[len(content) * 3 // 4] ^= 0x55
    path.write_bytes(content)
    reader = RecordingReader(path)
    got = list(reader)
    assert reader.problem.code == "damaged"
    assert got[-1].rx > 8


def packed(*lines: bytes) -> bytes:
    return gzip.compress(b"".join(line + b"\n" for line in lines))


HEADER = b'{"k":"recording","v":1,"version":"1.0","t":1,"redacted":false,"label":""}'
LINE = b'{"@":0,"rx":1.5,"l":{"k":"bye"}}'


def read(path: Path, content: bytes, **limits: int) -> tuple[list[recording.Line], RecordingReader]:
    path.write_bytes(content)
    reader = RecordingReader(path, **limits)
    return list(reader), reader


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "not_a_recording"),
        (b"plain text\n", "not_a_recording"),
        (packed(b"not json"), "not_a_recording"),
        (packed(b"[1]"), "not_a_recording"),
        (packed(b'{"k":"hello"}'), "not_a_recording"),
        (packed(b'{"k":"recording","v":"1"}'), "not_a_recording"),
        (packed(b"[" * 100_000), "not_a_recording"),
        (gzip.compress(b"\0" * 10_000_000), "not_a_recording"),
        (packed(b'{"k":"recording","v":2,"version":"9.0\\u001b[2J"}', LINE), "other_format"),
    ],
    # gzip's bytes hold the time
    ids=lambda value: f"{len(value)} bytes" if isinstance(value, bytes) else value,
)
def test_what_is_no_recording_is_said(tmp_path, content, code):
    got, reader = read(tmp_path / "a.gsr", content)
    assert got == []
    assert reader.problem.code == code
    assert reader.index() == []
    assert "\x1b" not in reader.problem.text


def test_a_missing_file_is_a_problem_not_an_exception(tmp_path):
    reader = RecordingReader(tmp_path / "none.gsr")
    assert list(reader) == []
    assert reader.problem.code == "unreadable"
    assert "No such file" in reader.problem.text
    assert RecordingReader(tmp_path).problem.code == "unreadable"


@pytest.mark.slow
def test_bombs_are_stopped(tmp_path):
    path = tmp_path / "a.gsr"
    began = time.monotonic()
    got, reader = read(path, packed(HEADER, LINE, b"x" * 30_000_000))
    assert got == [(0, 1.5, b'{"k":"bye"}')]
    assert reader.problem.code == "too_large"
    # a line without end
    got, reader = read(path, gzip.compress(HEADER + b"\n" + b"x" * 30_000_000))
    assert (got, reader.problem.code) == ([], "too_large")
    got, reader = read(path, gzip.compress(HEADER + b"\n" + LINE + b"\n" + b"\n" * 20_000_000))
    assert len(got) == 1
    assert reader.problem.code == "too_large"
    got, reader = read(path, packed(HEADER, *[LINE] * 100_000), max_total_bytes=1_000_000)
    assert 0 < len(got) < 50_000
    assert reader.problem.code == "too_large"
    assert time.monotonic() - began < 20


def test_lines_that_are_none_of_ours_are_skipped(tmp_path):
    content = packed(
        HEADER,
        b'{"note":"from the future"}',
        b'{"@":"x","rx":1,"l":{}}',
        b'{"@":0,"rx":NaN,"l":{}}',
        b'{"@":0,"rx":1,"l":"text"}',
        b"[" * 5000,
        LINE,
    )
    got, reader = read(tmp_path / "a.gsr", content)
    assert [(g.source, g.rx) for g in got] == [(0, 1.5)]
    assert reader.problem.code == "cut"  # nobody wrote an end


def test_garbage_behind_a_member_is_damage(tmp_path, clock):
    path = tmp_path / "a.gsr"
    write(path, session(3), clock)
    everything = list(RecordingReader(path))
    got, reader = read(path, path.read_bytes() + b"garbage")
    assert got == everything
    assert reader.problem.code == "damaged"


def test_lines_that_are_no_frames_are_not_recorded(tmp_path):
    path = tmp_path / "a.gsr"
    with RecordingWriter(path) as writer:
        for line in (b"", b"text", b'{"a":1}\n{"b":2}', b'{"k":"hello","t":"x"}', b'{"k":"key"'):
            writer.write("src", 0, line)
        writer.write("src", 0, encode(Bye("x")))
    assert [g.line for g in RecordingReader(path)] == [b'{"k":"bye","why":"x"}']


SECRETS = ("ann", "node-1", "train.py", "/data", "run-1", "secret", "10.1.2.3", "bob@corp.example")


def test_redaction_hides_names_everywhere_and_consistently(tmp_path, clock):
    path = tmp_path / "a.gsr"
    text = (
        "ann: python -u /data/train.py --lr 1 failed on node-1 (10.1.2.3), see ~/secret.log, "
        "ask bob@corp.example"
    )
    said = [
        *session(2),
        (1.6, Event(3, "gone", 5 * SECOND, text, {"where": "data/secret.pt", "n": 1})),
        (
            1.7,
            Sample(
                9,
                103 * SECOND,
                why=[[1, "power_watts", "no_permission", "cannot read /data/secret"]],
            ),
        ),
        (1.8, Progress(1, 0.5, "secret")),
        (1.9, Bye("ann left node-1")),
    ]
    write(path, said, clock, redact=True, label="secret")
    content = gzip.decompress(path.read_bytes()).decode()
    for secret in SECRETS:
        assert not re.search(rf"(?<!\w){re.escape(secret)}", content), secret
    reader = RecordingReader(path)
    frames = [decode(g.line) for g in reader]
    assert reader.header["redacted"] is True
    assert reader.header["label"] == ""
    assert not any(isinstance(f, Progress) for f in frames)
    processes = [f.proc for f in frames if getattr(f, "proc", None)]
    assert [(p.pid, p.user, p.command) for p in processes] == [
        (30, "user-1", "command-1"),
        (40, "user-1", "command-1"),
    ]
    trainers = [f.trainer for f in frames if getattr(f, "trainer", None)]
    assert {(t.job, t.script) for t in trainers} == {("job-1", "script-1")}
    assert next(f for f in frames if isinstance(f, Hello)).host == "host-1"
    event = next(f for f in frames if isinstance(f, Event))
    assert event.text.startswith(
        "user-1: command-1 failed on host-1 (<address>), see <path>, ask <address>"
    )
    assert event.data == {"where": "<path>", "n": 1}
    samples = [f for f in frames if isinstance(f, Sample)]
    assert samples[0].g == sample(1).g
    assert samples[-1].why == [[1, "power_watts", "no_permission", "cannot read <path>"]]


def test_a_full_disk_is_an_error_in_words():
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    with pytest.raises(RecordingError, match="No space left"):
        RecordingWriter("/dev/full", overwrite=True)


@pytest.mark.parametrize("minor", [8, 14])
def test_the_file_format_needs_only_the_standard_library(tmp_path, minor):
    python = pythons.find_or_skip(minor)
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from gpuscope.wire import recording, redact, blobs, clean\n"
        "from gpuscope.wire.codec import encode\n"
        "from gpuscope.wire.frames import Hello, Sample\n"
        "with recording.RecordingWriter(sys.argv[2], redact=True) as w:\n"
        "    w.write('a', 0, encode(Hello(host='h'))); w.write('a', 1, encode(Sample(1, 2)))\n"
        "print(len(list(recording.RecordingReader(sys.argv[2]))))\n"
    )
    done = subprocess.run(
        [python, "-I", "-c", code, str(ROOT), str(tmp_path / "a.gsr")],
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == "2", done.stderr
