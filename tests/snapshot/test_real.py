"""Snapshots of real allocators: committed ones, and one taken here where there is a GPU."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gpuscope.snapshot.reader import open_snapshot

DATA = Path(__file__).parents[2] / "demos" / "snapshots"
NEWEST = Path(__file__).parents[1] / "data" / "snapshot-torch-2.15.pickle.gz"
"""By torch 2.15's own allocators, over a driver that only counted: what they wrote is real, the
memory was not.
"""

TRAINING = """
import json, sys, torch
memory = torch.cuda.memory
memory._record_memory_history(enabled="all", context="alloc", stacks="python", max_entries=100_000)
def leak():
    return torch.ones(300_000, device="cuda")
model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(6)]).cuda()
optimizer = torch.optim.AdamW(model.parameters())
kept = []
def steps(count):
    for _ in range(count):
        optimizer.zero_grad()
        model(torch.randn(512, 1024, device="cuda")).square().mean().backward()
        optimizer.step()
        kept.append(leak())
    torch.cuda.synchronize()
def dump(name):
    memory._dump_snapshot(sys.argv[1] + "/" + name)
    with open(sys.argv[1] + "/" + name + ".json", "w") as file:
        json.dump(torch.cuda.memory_stats(0), file)
steps(4)
dump("early.pickle")
steps(8)
try:
    torch.empty(1 << 46, dtype=torch.uint8, device="cuda")
except torch.cuda.OutOfMemoryError:
    pass
dump("late.pickle")
"""


@pytest.mark.parametrize("path", sorted(DATA.glob("*.pickle*")), ids=lambda path: path.name)
def test_committed_snapshots_add_up(path):
    """Kept small, whole, and in agreement with what torch wrote beside the blocks."""
    assert path.stat().st_size <= 300_000
    with open_snapshot(path) as reading:
        summary = reading.summary
    assert summary.complete
    assert summary.devices
    for device in summary.devices:
        assert "mismatch" not in {note.code for note in device.notes}
        assert (
            device.totals.reserved_bytes
            == device.totals.active_bytes + device.totals.inactive_bytes
            > 0
        )


def test_annotations_and_pinned_memory_of_newer_torch_are_read():
    with open_snapshot(NEWEST) as reading:
        summary = reading.summary
    (device,) = summary.devices
    assert {note.code for note in summary.notes} == {"pinned"}
    assert summary.notes[0].text.startswith(
        "pinned host memory: 8.00 MiB in 2 blocks, 8.00 MiB of it in use"
    )
    assert "unknown_action" not in {note.code for note in device.notes}
    assert device.totals.reserved_bytes == 20 << 20
    assert device.trace.actions["annotate"] == 1
    assert [(mark.action, mark.text) for mark in device.trace.marks] == [
        ("annotate", "saved for backward")
    ]


def test_a_file_that_ends_in_pinned_memory_has_only_its_devices(tmp_path):
    whole = gzip.decompress(NEWEST.read_bytes())
    (tmp_path / "cut.pickle").write_bytes(whole[:-100])
    with open_snapshot(tmp_path / "cut.pickle") as reading:
        assert [(device.device, device.trace.entries) for device in reading.summary.devices] == [
            (0, 6)
        ]


@pytest.mark.gpu
@pytest.mark.parametrize("expandable", [False, True])
def test_a_real_snapshot_says_what_the_allocators_statistics_say(tmp_path, expandable):
    setting = f"expandable_segments:{expandable}"
    env = {name: value for name, value in os.environ.items() if name != "PYTORCH_ALLOC_CONF"}
    env["PYTORCH_CUDA_ALLOC_CONF"] = setting  # the name that every release reads
    words = [sys.executable, "-c", TRAINING, str(tmp_path)]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    for name in ("early.pickle", "late.pickle"):
        statistics = json.loads((tmp_path / f"{name}.json").read_text())
        with open_snapshot(tmp_path / name) as reading:
            device = next(one for one in reading.summary.devices if one.device == 0)
            at_peak = reading.at(0, "peak")
        totals = device.totals
        for key in ("reserved_bytes", "allocated_bytes", "active_bytes", "requested_bytes"):
            assert getattr(totals, key) == statistics[f"{key}.all.current"], key
        if not expandable:
            assert totals.inactive_split_bytes == statistics["inactive_split_bytes.all.current"]
        assert device.trace is not None
        assert device.trace.before_bytes == 0
        # requested_bytes counts active blocks, as the line of active bytes does
        assert max(device.trace.timeline.active.high) == statistics["requested_bytes.all.peak"]
        assert at_peak.allocated_bytes == max(device.trace.timeline.allocated.high)
    assert [mark.size_bytes for mark in device.trace.marks if mark.action == "oom"] == [1 << 46]
    with open_snapshot(tmp_path / "late.pickle") as reading:
        diff = next(
            one for one in reading.diff(tmp_path / "early.pickle").devices if one.device == 0
        )
    assert diff.by == "stack"
    assert any(re.search("leak", frame.function) for frame in diff.rows[0].frames)
    assert diff.rows[0].after_count - diff.rows[0].before_count == 8
