"""Files that are cut, foreign, huge or made to do harm are refused or shown in part.

Nothing runs, and nothing hangs.
"""

from __future__ import annotations

import gzip
import json
import os
import pickle
import signal
import struct
import subprocess
import sys
import threading
import zipfile

import pytest

from gpuscope.snapshot import limits
from gpuscope.snapshot.reader import CHILD, SnapshotError, open_snapshot
from tests.fakes.waiting import alive
from tests.snapshot import synthetic

MIB = 1 << 20


def refused(path, **more) -> SnapshotError:
    with pytest.raises(SnapshotError) as caught:
        open_snapshot(path, **more)
    return caught.value


def outcome(path, **more):
    """The summary, or the refusal."""
    try:
        with open_snapshot(path, **more) as reading:
            return reading.summary
    except SnapshotError as error:
        return error


@pytest.fixture(scope="module")
def data():
    return synthetic.training(6000, devices=2)


# ── wants to run something ────────────────────────────────────────────────────────────────────────


class Harm:
    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.system, (f"touch {self.mark}",)


@pytest.mark.parametrize(
    ("protocol", "packed", "where"),
    [
        (0, False, "alone"),
        (0, True, "hidden"),
        (2, False, "hidden"),
        (4, True, "alone"),
        (5, False, "hidden"),
    ],
)
def test_a_global_is_refused_and_never_called(tmp_path, protocol, packed, where):
    mark = tmp_path / "ran"
    harm = Harm(mark)
    whole = (
        harm
        if where == "alone"
        else {"segments": [], "device_traces": [[{"action": "alloc", "addr": harm}]]}
    )
    error = refused(synthetic.write(whole, tmp_path / "evil.pickle", protocol, packed))
    assert error.code == "hostile"
    assert "system" in error.what
    assert not mark.exists()
    with open(tmp_path / "evil.pickle", "rb") as file:  # and it would have run
        pickle.loads(gzip.decompress(file.read()) if packed else file.read())
    assert mark.exists()


@pytest.mark.parametrize(
    "raw",
    [
        b"(S'touch ran'\nios\nsystem\n.",  # INST
        b"\x80\x02cos\nsystem\n.",  # the global alone
        b"\x80\x04\x8c\x02os\x8c\x06system\x93.",  # STACK_GLOBAL
        b"\x80\x02Pname\n.",  # a persistent id
        b"\x80\x02X\x01\x00\x00\x00aQ.",
        b"\x80\x02\x82\x01.",  # extension codes of every width
        b"\x80\x02\x83\x01\x00.",
        b"\x80\x02\x84\x01\x00\x00\x00.",
        b"\x80\x02]X\x01\x00\x00\x00aR.",  # call what is no callable
        b"\x80\x02]]\x81.",
        b"\x80\x02}}b.",  # set the state of a dictionary
        b"\x80\x05\x97.",  # a buffer out of band
    ],
)
def test_every_other_way_to_a_callable(tmp_path, raw, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "evil"
    path.write_bytes(raw)
    assert refused(path).code in ("hostile", "foreign")
    assert [one.name for one in tmp_path.iterdir()] == ["evil"]


# ── foreign ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_foreign_files_are_named_and_what_to_do_is_said(tmp_path):
    with zipfile.ZipFile(tmp_path / "zip", "w") as archive:
        archive.writestr("model/data.pkl", b"x")
    (tmp_path / "html").write_text("<!DOCTYPE html>\n<html>…")
    (tmp_path / "json").write_text('{"a": 1}')
    (tmp_path / "trace").write_text('{"schemaVersion": 1, "traceEvents": []}')
    (tmp_path / "gsr").write_bytes(gzip.compress(b'{"k":"hello","role":"agent"}\n'))
    (tmp_path / "text").write_text("Traceback (most recent call last):\n")
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "noise").write_bytes(os.urandom(1000))
    (tmp_path / "old").write_bytes(pickle.dumps(0x1950A86A20F9469CFC6C, 2))
    synthetic.write({"state_dict": {}, "epoch": 3}, tmp_path / "other")
    (tmp_path / "badgz").write_bytes(b"\x1f\x8b" + os.urandom(64))
    words = {
        "zip": "checkpoint",
        "html": "_memory_viz",
        "json": "JSON",
        "trace": "torch.profiler",
        "gsr": "gpuscope replay",
        "text": "not a pickle",
        "empty": "empty",
        "noise": "pickle",
        "old": "torch.save",
        "other": "state_dict, epoch",
        "badgz": "gzip",
    }
    for name, word in words.items():
        error = refused(tmp_path / name)
        assert (name, error.code) == (name, "foreign")
        assert word in error.what, (name, error.what)


def test_a_compressed_file_that_is_cut_off_at_its_start_is_not_called_empty(tmp_path):
    (tmp_path / "cut").write_bytes(gzip.compress(os.urandom(5000))[:2000])
    error = refused(tmp_path / "cut")
    assert (error.code, error.what) == (
        "foreign",
        "compressed by gzip, and empty or cut off near its start.",
    )


def test_what_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    assert refused(tmp_path / "fifo").code == "unusable"
    assert refused(tmp_path).code == "unusable"
    assert refused(tmp_path / "nothing").code == "missing"
    assert refused("/dev/zero").code == "unusable"


# ── cut ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("packed", [False, True])
def test_a_file_cut_in_its_traces_shows_what_was_whole(tmp_path, data, packed):
    raw = synthetic.dumped(data)
    whole = len(synthetic.dumped(data["segments"]))
    path = tmp_path / "cut"
    cut = whole + (len(raw) - whole) * 3 // 4  # in the middle of the second device
    path.write_bytes(gzip.compress(raw)[:-2000] if packed else raw[:cut])
    with open_snapshot(path) as reading:
        found = reading.summary
    assert not found.complete
    (note,) = [note for note in found.notes if note.code == "truncated"]
    assert f"{found.read_bytes:,} bytes" in note.text
    assert [one.device for one in found.devices] == [0, 1]
    assert sum(one.totals.segments for one in found.devices) == len(data["segments"])
    if not packed:
        assert found.read_bytes == cut
        assert found.devices[0].trace.entries == len(data["device_traces"][0])
    entries = found.devices[1].trace.entries
    assert 0 < entries < len(data["device_traces"][1])
    assert found.devices[1].trace.before_bytes is None
    assert "level" in {note.code for note in found.devices[1].notes}


@pytest.mark.slow
@pytest.mark.parametrize("protocol", [2, 5])
def test_cut_anywhere_it_is_a_partial_view_or_a_plain_refusal(tmp_path, protocol):
    data = synthetic.training(300)
    raw = synthetic.dumped(data, protocol)
    kinds = set()
    for number in range(6):
        path = tmp_path / "cut"
        path.write_bytes(raw[: len(raw) * number // 6 + 3])
        found = outcome(path)
        if isinstance(found, SnapshotError):
            assert (found.code, "bytes" in found.what) == ("truncated", True)
        else:
            assert not found.complete
        kinds.add(type(found))
    assert len(kinds) == 2


@pytest.mark.slow
def test_devices_keep_their_numbers_in_a_cut_file(tmp_path, data):
    """A trainer on cuda:1 leaves an empty trace for cuda:0."""
    moved = {"segments": [], "device_traces": [[], [], data["device_traces"][0]]}
    raw = synthetic.dumped(moved)
    path = tmp_path / "cut"
    path.write_bytes(raw[: len(raw) // 2])
    with open_snapshot(path) as reading:
        assert [one.device for one in reading.summary.devices] == [2]


def test_damage_in_the_middle_is_said(tmp_path, data):
    raw = bytearray(synthetic.dumped(data))
    at = len(raw) * 2 // 3
    raw[at : at + 200] = b"\xff" * 200
    path = tmp_path / "damaged"
    path.write_bytes(raw)
    with open_snapshot(path) as reading:
        found = reading.summary
    assert {note.code for note in found.notes} & {"damaged", "truncated"}
    assert sum(one.totals.segments for one in found.devices) == len(data["segments"])


# ── bombs ─────────────────────────────────────────────────────────────────────────────────────────


def nested_tuples(levels: int) -> bytes:
    """Return one pickled value that is nested very deep.

    It is a tuple of the same tuple twice, and so on; its hash takes 2 ** levels steps.
    """
    return b"K\x01" + b"2\x86" * levels


@pytest.mark.slow
def test_a_pickle_that_computes_for_ever_is_stopped_on_time(tmp_path):
    path = tmp_path / "forever"
    path.write_bytes(b"\x80\x04}" + nested_tuples(200) + b"Ns.")
    children = []
    error = refused(path, timeout=1.5, on_start=lambda reading: children.append(reading.pid))
    assert error.code in ("timeout", "crashed")
    assert not alive(children[0])


@pytest.mark.slow
def test_the_child_also_ends_itself_when_its_processor_time_is_used_up(tmp_path):
    path = tmp_path / "forever"
    path.write_bytes(b"\x80\x04}" + nested_tuples(200) + b"Ns.")
    question = json.dumps({"ask": "open", "path": str(path), "top": 3}) + "\n"
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", str(CHILD), "0", "1"], stdin=subprocess.PIPE
    )
    child.stdin.write(question.encode())
    child.stdin.flush()
    assert child.wait(60) == -signal.SIGXCPU
    child.stdin.close()


def test_the_child_ends_with_its_parent_even_in_the_middle_of_a_load(tmp_path):
    path = tmp_path / "long"
    with gzip.open(path, "wb", 1) as file:
        file.write(b"\x80\x04")
        for _ in range(64):
            file.write(b"N0" * MIB)
        file.write(b"}.")
    question = json.dumps({"ask": "open", "path": str(path), "top": 3}) + "\n"
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", str(CHILD), "0", "300"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    child.stdin.write(question.encode())
    child.stdin.flush()
    child.stdin.close()  # as the kernel does when the parent is gone
    assert child.wait(60) == 0
    assert b"ok" not in child.stdout.read()
    child.stdout.close()


def test_a_tuple_nested_too_deep_kills_the_child_only(tmp_path):
    path = tmp_path / "deep"
    path.write_bytes(b"\x80\x04}K\x01" + b"\x85" * 600_000 + b"Ns.")
    error = refused(path)
    assert error.code in ("crashed", "hostile", "foreign")
    assert error.what


@pytest.mark.parametrize("opening", [b"]", b"}K\x01", b"("])
def test_deep_nesting_is_only_odd_content(tmp_path, opening):
    inner = {
        b"]": b"]" * 500_000 + b"a" * 499_999,
        b"}K\x01": b"}K\x01" * 99_999 + b"N" + b"s" * 99_999,
        b"(": b"(" * 500_000,
    }
    path = tmp_path / "deep"
    path.write_bytes(b"\x80\x02}X\x08\x00\x00\x00segments" + inner[opening] + b"s.")
    found = outcome(path)
    if isinstance(found, SnapshotError):
        assert found.code in ("foreign", "crashed", "truncated")
    else:
        assert [one.totals.reserved_bytes for one in found.devices] in ([], [0])


@pytest.mark.slow
def test_a_list_named_a_million_times_is_not_walked_a_million_times(tmp_path):
    block = {"size": 512, "state": "active_allocated", "frames": []}
    segment = {"device": 0, "address": 0, "total_size": 512 * 100_000, "blocks": [block] * 20_000}
    error = refused(synthetic.write({"segments": [segment] * 20_000}, tmp_path / "laughs"))
    assert error.code == "hostile"
    trace = [{"action": "alloc", "addr": 1, "size": 1}] * 100_000
    with open_snapshot(
        synthetic.write({"device_traces": [trace] * 4000}, tmp_path / "traces")
    ) as reading:
        # the same list again is the same trace
        assert [one.device for one in reading.summary.devices] == [0]


@pytest.mark.parametrize(
    "raw",
    [
        b"\x80\x04r\xff\xff\xff\x7f.",  # a place far out in the memo
        b"\x80\x04Nr\xf0\xff\xff\x7f.",
        b"\x80\x04\x8e" + struct.pack("<Q", 1 << 40) + b"x",  # bytes that are not there
        b"\x80\x04\x8e" + struct.pack("<Q", 1 << 63) + b"x",
        b"\x80\x04\x95" + struct.pack("<Q", 1 << 50) + b"N.",
        b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b"x",
        b"\x80\x02\x8b" + struct.pack("<i", 0x7FFFFFFF) + b"x",
        b"L" + b"9" * 1_000_000 + b"L\n.",
    ],
)
def test_numbers_that_ask_for_all_memory(tmp_path, raw):
    path = tmp_path / "huge"
    path.write_bytes(raw)
    assert refused(path, memory_limit=512 * MIB).code in ("foreign", "too_big", "truncated")


@pytest.mark.slow
def test_a_file_far_beyond_the_cap_is_read_in_part(tmp_path):
    """5 GB, most of it a hole in the file: the segments come first and are kept."""
    path = tmp_path / "big"
    data = synthetic.training(3000)
    head = synthetic.dumped({**data, "more": b""})
    assert head.endswith(b"C\x00\x94u.")
    with open(path, "wb") as file:
        file.write(head[: -len(b"C\x00\x94u.")] + b"\x8e" + struct.pack("<Q", 5 << 30))
        file.truncate(file.tell() + (5 << 30))
    with open_snapshot(path, memory_limit=512 * MIB) as reading:
        found = reading.summary
    (note,) = [note for note in found.notes if note.code == "memory"]
    assert "5.00 GiB" in note.text
    assert "512 MiB" in note.text
    assert not found.complete
    assert found.devices[0].totals.segments == len(data["segments"])
    assert found.devices[0].trace.entries == len(data["device_traces"][0])
    assert found.peak_rss_bytes < 512 * MIB


def test_a_file_of_which_nothing_fits_is_refused_with_size_and_cap(tmp_path):
    path = tmp_path / "big"
    with open(path, "wb") as file:
        file.write(b"\x80\x04\x8e" + struct.pack("<Q", 3 << 30))
        file.truncate(3 << 30)
    error = refused(path, memory_limit=300 * MIB)
    assert error.code == "too_big"
    assert "3.00 GiB" in error.what
    assert "300 MiB" in error.what


@pytest.mark.slow
def test_many_small_things_reach_the_cap_and_leave_a_part(tmp_path, data):
    path = tmp_path / "many"
    entry = b"}(U\x01aJ\x00\x00\x00\x40U\x01bJ\x00\x00\x00\x41U\x01cJ\x00\x00\x00\x42u"
    path.write_bytes(synthetic.dumped(data, 2)[:-2] + b"U\x04more](" + entry * 1_000_000 + b"eu.")
    with open_snapshot(path, memory_limit=256 * MIB) as reading:
        assert "memory" in {note.code for note in reading.summary.notes}
        assert len(reading.summary.devices) == 2


# ── ends from outside ─────────────────────────────────────────────────────────────────────────────


def test_a_child_that_does_not_answer_is_killed_on_time(tmp_path, data):
    path = synthetic.write(data, tmp_path / "a")
    stopped = []

    def stop(reading):
        os.kill(reading.pid, signal.SIGSTOP)
        stopped.append(reading.pid)

    assert refused(path, timeout=1.0, on_start=stop).code == "timeout"
    with pytest.raises(ProcessLookupError):
        os.kill(stopped[0], 0)


def test_closing_from_another_thread_ends_a_wait(tmp_path, data):
    path = synthetic.write(data, tmp_path / "a")

    def stop(reading):
        os.kill(reading.pid, signal.SIGSTOP)
        threading.Timer(0.2, reading.close).start()

    assert refused(path, timeout=60, on_start=stop).code == "cancelled"


def test_a_child_that_is_killed_is_said(tmp_path, data):
    path = synthetic.write(data, tmp_path / "a")
    error = refused(path, on_start=lambda reading: os.kill(reading.pid, signal.SIGKILL))
    assert error.code == "crashed"
    assert "SIGKILL" in error.what


def test_the_cap_is_half_of_what_is_free_at_most():
    assert limits.default_limit(1 << 50, False) <= limits.available_bytes() // 2 + MIB * 512
    assert limits.default_limit(1000, False) < 1 << 30
    assert limits.default_limit(10 << 20, True) > limits.default_limit(10 << 20, False)
    assert limits.for_files("/dev/null", "/nowhere") == (
        limits.default_limit(0, False),
        limits.default_seconds(0, False),
    )
    assert limits.default_seconds(1000, False) < limits.default_seconds(1 << 33, False) <= 1800
