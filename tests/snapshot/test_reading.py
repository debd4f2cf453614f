"""Snapshots of every release are read in the real child.

What it says agrees with what torch's own reader says.
"""

from __future__ import annotations

import copy
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpuscope.snapshot.model import Summary
from gpuscope.snapshot.reader import SnapshotError, open_snapshot
from tests.fakes.program import python
from tests.snapshot import synthetic

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def small():
    return synthetic.training(4000, devices=1, leak=2)


def summary_of(path: Path, **more: object) -> Summary:
    with open_snapshot(path, **more) as reading:  # type: ignore[arg-type]
        return reading.summary


def codes(notes):
    return {note.code for note in notes}


@pytest.mark.parametrize("release", synthetic.RELEASES)
def test_every_release_gives_the_same_views(tmp_path, small, release):
    data = synthetic.snapshot([], release) | {"segments": small["segments"]}
    keep = {"2.1": 6, "2.3": 6, "2.6": 7, "2.9": 8, "2.13": 9}[release]
    names = [
        "action",
        "addr",
        "size",
        "stream",
        "time_us",
        "frames",
        "compile_context",
        "user_metadata",
        "pool_id",
    ]
    data["device_traces"] = [
        [{key: entry[key] for key in names[:keep] if key in entry} for entry in trace]
        for trace in small["device_traces"]
    ]
    found = summary_of(synthetic.write(data, tmp_path / "a.pickle"))
    (device,) = found.devices
    assert (device.totals.segments, device.trace.entries) == (
        len(data["segments"]),
        len(data["device_traces"][0]),
    )
    assert found.complete
    assert not found.notes
    assert not device.notes
    assert bool(found.settings) is (release != "2.1")


@pytest.mark.parametrize(
    ("protocol", "packed"),
    [(0, False), (0, True), (1, False), (2, True), (3, False), (4, True), (5, False)],
)
def test_protocols_and_packing(tmp_path, small, protocol, packed):
    found = summary_of(synthetic.write(small, tmp_path / "a", protocol, packed))
    assert found.devices[0].totals.reserved_bytes == sum(
        one["total_size"] for one in small["segments"]
    )
    assert (found.compressed, found.protocol) == (packed, protocol if protocol >= 2 else None)


def test_totals_agree_with_torchs_own_summary(tmp_path, small):
    torch_viz = pytest.importorskip("torch.cuda._memory_viz")
    totals = summary_of(synthetic.write(small, tmp_path / "a")).devices[0].totals
    text = torch_viz.segsum(copy.deepcopy(small))
    said = dict(re.findall(r"^(segments|total_reserved|total_allocated): (.+)$", text, re.M))
    assert int(said["segments"]) == totals.segments
    assert said["total_reserved"] == torch_viz._format_size(totals.reserved_bytes)
    assert said["total_allocated"] == torch_viz._format_size(totals.allocated_requested_bytes)
    assert torch_viz._format_size(totals.reserved_bytes - totals.allocated_requested_bytes) in text


def test_torch_draws_the_synthetic_snapshot_too(small):
    torch_viz = pytest.importorskip("torch.cuda._memory_viz")
    assert "Active Memory Timeline" in torch_viz.trace_plot(copy.deepcopy(small))
    assert f"{len(small['device_traces'][0])} entries" in torch_viz.trace(copy.deepcopy(small))


def test_several_devices_apart(tmp_path):
    data = synthetic.training(1500, devices=3)
    data["device_traces"].insert(0, [])  # ordinal 0 saw nothing
    for segment in data["segments"]:
        segment["device"] += 1
    found = summary_of(synthetic.write(data, tmp_path / "a"))
    assert [one.device for one in found.devices] == [1, 2, 3]
    for one in found.devices:
        mine = [segment for segment in data["segments"] if segment["device"] == one.device]
        assert one.totals.reserved_bytes == sum(segment["total_size"] for segment in mine)
        assert one.trace.entries == len(data["device_traces"][one.device])


def test_without_history_only_stacks_and_time_are_unknown(tmp_path):
    allocator = synthetic.Allocator()
    synthetic.train(allocator, 500, synthetic.make_stacks(4))
    data = synthetic.snapshot([allocator], history=False)
    found = summary_of(synthetic.write(data, tmp_path / "a"))
    (device,) = found.devices
    assert codes(found.notes) == {"no_frames"}
    assert codes(device.notes) == {"no_trace"}
    assert device.trace is None
    assert device.stacks.rows == []
    assert device.stacks.unknown_bytes == device.totals.allocated_bytes > 0
    assert sum(bucket.bytes for bucket in device.sizes) == device.totals.allocated_bytes


def test_a_list_of_segments_alone_is_a_snapshot(tmp_path, small):
    found = summary_of(synthetic.write(small["segments"], tmp_path / "a"))
    assert found.devices[0].totals.segments == len(small["segments"])


def test_the_record_of_an_oom_is_shown_beside_the_snapshot(tmp_path, small):
    record = {
        "requested_bytes": 1 << 31,
        "stack": [["/x/torch/nn/functional.py", 9, "linear"], ["train.py", 4, "main"], 7],
        "statistics": {"allocated_bytes.all.current": 5},
        "note": "\x1b[2J",
        "seconds": float("inf"),
        "huge": 1 << 80,
        "left_out": {"segments": 0, "entries": 0},
    }
    found = summary_of(
        synthetic.write({**small, "gpuscope": record}, tmp_path / "a", 2, packed=True)
    )
    assert found.record["requested_bytes"] == 1 << 31
    assert found.record["statistics.allocated_bytes.all.current"] == 5
    assert (found.record["note"], found.record["seconds"]) == ("\\x1b[2J", "inf")
    assert [(frame.file, frame.line, frame.function) for frame in found.stack[:2]] == [
        ("/x/torch/nn/functional.py", 9, "linear"),
        ("train.py", 4, "main"),
    ]
    assert found.headline == 1
    assert found.notes == []
    assert found.devices[0].trace.before_bytes == 0


def test_a_record_that_lacks_segments_says_so_and_knows_no_level(tmp_path, small):
    left = {"segments": 3, "blocks": 70, "bytes": 6 << 20, "entries": 5}
    data = {**small, "segments": small["segments"][3:], "gpuscope": {"device": 0, "left_out": left}}
    found = summary_of(synthetic.write(data, tmp_path / "a"))
    assert [note.code for note in found.notes] == ["left_out", "left_out"]
    assert "6.00 MiB" in found.notes[0].text
    assert found.devices[0].trace.before_bytes is None
    none = {
        "segments": [],
        "device_traces": [[]],
        "gpuscope": {"segments_why": "not listed: 99999 blocks"},
    }
    found = summary_of(synthetic.write(none, tmp_path / "b"))
    assert found.devices == []
    assert "99999" in found.notes[0].text


def test_the_probes_own_record_is_read(tmp_path, small):
    """What ``probe/oom.py`` packs, also where it has to leave something out."""
    from gpuscope.probe import oom

    about = {
        "v": 1,
        "kind": "oom",
        "device": 0,
        "requested_bytes": 1 << 30,
        "free_bytes": 5,
        "total_bytes": 1 << 37,
    }
    data = {
        "segments": small["segments"],
        "device_traces": small["device_traces"],
        "gpuscope": about,
    }
    (tmp_path / "a").write_bytes(oom.packed(data))
    found = summary_of(tmp_path / "a")
    assert (found.compressed, found.protocol, found.record["kind"]) == (True, 2, "oom")
    assert found.devices[0].totals.segments == len(small["segments"])
    assert found.devices[0].trace.before_bytes == 0


def test_unknown_keys_states_and_actions_are_said_and_do_no_harm(tmp_path, small):
    data = copy.deepcopy(small)
    data["from_the_future"] = {"a": 1}
    data["device_traces"][0].insert(
        10, {"action": "teleport", "addr": 1, "size": 2, "time_us": 3, "novel": []}
    )
    data["segments"][0]["blocks"][-1]["state"] = "quantum"
    data["segments"][0]["colour"] = "blue"
    found = summary_of(synthetic.write(data, tmp_path / "a"))
    assert "from_the_future" in " ".join(note.text for note in found.notes)
    assert {"unknown_action", "unknown_state"} <= codes(found.devices[0].notes)
    assert found.devices[0].trace.actions["other"] == 1
    assert [mark.action for mark in found.devices[0].trace.marks] == ["teleport", "snapshot"]
    assert found.devices[0].trace.before_bytes == 0


def test_control_characters_in_frames_are_made_visible(tmp_path):
    allocator = synthetic.Allocator()
    allocator.alloc(1000, [{"filename": "/a/\x1b]52;c;x\x07.py", "line": 3, "name": "f\u202e"}])
    found = summary_of(synthetic.write(synthetic.snapshot([allocator]), tmp_path / "a"))
    frame = found.devices[0].stacks.rows[0].frames[0]
    assert "\x1b" not in frame.file + frame.function
    assert "\u202e" not in frame.function


def test_the_headline_is_the_users_own_frame(tmp_path):
    internal = [
        {
            "filename": "/opt/venv/lib/python3.11/site-packages/torch/nn/modules/module.py",
            "line": 1,
            "name": "_call",
        },
        {"filename": "??", "line": 0, "name": "at::native::empty"},
        {"filename": "/src/pytorch/torch/nn/functional.py", "line": 2, "name": "linear"},
        {
            "filename": "/opt/venv/lib/python3.11/site-packages/transformers/llama.py",
            "line": 3,
            "name": "forward",
        },
    ]
    own = [{"filename": "/home/ada/train.py", "line": 4, "name": "main"}]
    script = [{"filename": "<frozen runpy>", "line": 5, "name": "_run"}]
    expected = {
        "all": (internal + own + script, 4),
        "library": (internal, 3),
        "torch": (internal[:3], 0),
    }
    for name, (frames, number) in expected.items():
        allocator = synthetic.Allocator()
        allocator.alloc(1000, frames)
        found = summary_of(synthetic.write(synthetic.snapshot([allocator]), tmp_path / name))
        assert found.devices[0].stacks.rows[0].headline == number, name


def test_the_child_knows_no_msgspec_and_no_torch(tmp_path, small):
    path = synthetic.write(small, tmp_path / "a")
    question = f'{{"ask":"open","path":"{path}","top":3}}\n'
    code = (
        "import sys, runpy; sys.argv = ['child', '0', '30']; import os; real = os._exit\n"
        "names = ('msgspec', 'torch', 'gpuscope.store')\n"
        "def leave(n): print('LOADED', *[m for m in names if m in sys.modules], file=sys.stderr, "
        "flush=True); real(n)\n"
        "os._exit = leave\n"
        f"runpy.run_path({str(ROOT / 'gpuscope/snapshot/child.py')!r}, run_name='__main__')"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", code], stdin=pipe, stdout=pipe, stderr=pipe, text=True
    ) as child:
        child.stdin.write(question)
        child.stdin.flush()
        assert child.stdout.readline().startswith("ok {")
        child.stdin.close()
        assert child.stderr.read() == "LOADED\n"


@pytest.mark.slow
def test_it_works_from_any_place_the_package_lies_in(tmp_path, small):
    """As installed: another directory, which nothing but its own path leads to."""
    shutil.copytree(
        ROOT / "gpuscope",
        tmp_path / "site" / "gpuscope",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    synthetic.write(small, tmp_path / "a.pickle")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r})\n"
        "from gpuscope.snapshot import reader\n"
        "assert reader.__file__.startswith(sys.path[0]), reader.__file__\n"
        "with reader.open_snapshot('a.pickle') as r: print(r.summary.devices[0].totals.segments)"
    )
    done = python("-c", code, cwd=tmp_path)
    assert done.stdout.strip() == str(len(small["segments"])), done.stderr


def test_a_closed_reading_answers_no_more_and_leaves_no_process(tmp_path, small):
    with open_snapshot(synthetic.write(small, tmp_path / "a")) as reading:
        pid = reading.pid
        os.kill(pid, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    with pytest.raises(SnapshotError) as caught:
        reading.at(0, "end")
    assert caught.value.code == "cancelled"


@pytest.mark.slow
def test_progress_is_the_share_of_the_file(tmp_path):
    data = synthetic.training(2000)
    data["padding"] = [bytes(1 << 20) for _ in range(40)]
    shares: list[float] = []
    with open_snapshot(synthetic.write(data, tmp_path / "a"), on_progress=shares.append):
        pass
    assert shares == sorted(shares)
    assert len(shares) >= 3
    assert 0 < shares[0] < shares[-1] <= 1
