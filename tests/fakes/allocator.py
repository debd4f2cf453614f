"""A simulated CUDA allocator, for a trainer without a card.

It is put into ``torch.cuda.memory`` and ``torch._C``.

It is meant only for what needs a card. ``install()`` runs in the trainer's own process.
"""

from __future__ import annotations

import sys
import time
from typing import Any

STATISTICS = {
    "allocated_bytes": {"all": {"current": 3000, "peak": 4000, "allocated": 9000, "freed": 6000}},
    "reserved_bytes": {"all": {"current": 8000, "peak": 8000, "allocated": 8000, "freed": 0}},
    "reserved_bytes_by_private_pools": {(0, 7): {"all": {"current": 512}}},
    "num_ooms": 2,
}
FRAMES = 24
"""Frames in the Python stacks of a training of some depth."""
STACKS = 400
"""The number of different stacks, because a training does the same again and again."""


def snapshot(entries: int) -> dict[str, Any]:
    """Return what torch's ``_snapshot()`` gives.

    Its entries share the frames of their stacks, as the real one's do.
    """
    places = [
        {"filename": f"/home/ann/train/model_{n % 40}.py", "line": n, "name": f"forward_{n}"}
        for n in range(900)
    ]
    stacks = [[places[(7 * n + 3 * depth) % 900] for depth in range(FRAMES)] for n in range(STACKS)]
    trace = []
    for n in range(entries):
        action = ("alloc", "free_requested", "free_completed", "segment_alloc")[n % 4]
        trace.append(
            {
                "action": action,
                "addr": 0x7F0000000000 + 512 * n,
                "size": 512 * (1 + n % 9),
                "stream": 0,
                "time_us": 1_700_000_000_000_000 + 11 * n,
                "compile_context": "N/A",
                "user_metadata": "",
                "pool_id": (0, 0),
                "frames": stacks[n % STACKS] if action == "alloc" else [],
            }
        )
    block = {
        "address": 0x7F0000000000,
        "size": 512,
        "requested_size": 500,
        "state": "active_allocated",
        "frames": [],
    }
    segment = {
        "device": 0,
        "address": 0x7F0000000000,
        "total_size": 2 << 20,
        "allocated_size": 512,
        "active_size": 512,
        "requested_size": 500,
        "stream": 0,
        "segment_type": "small",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": [
            block,
            {**block, "address": 0x7F0000000200, "size": (2 << 20) - 512, "state": "inactive"},
        ],
    }
    settings = {"expandable_segments": False}
    return {"segments": [segment], "device_traces": [trace], "allocator_settings": settings}


class Allocator:
    """A simulated allocator.

    A snapshot has ``entries`` while history is on, and a step of the training then takes
    ``slow_seconds`` more.
    """

    def __init__(self, entries: int = 0, slow_seconds: float = 0.0) -> None:
        self.entries = entries
        self.slow_seconds = slow_seconds
        self.recording = False
        self.calls: list[Any] = []

    def record(self, enabled: Any = "all", **how: Any) -> None:
        self.calls.append((enabled, how))
        self.recording = enabled is not None

    def snapshot(self) -> dict[str, Any]:
        self.calls.append("snapshot")
        return snapshot(self.entries)

    def pause(self) -> None:
        """Wait as long as history costs; to be called in each step."""
        if self.recording:
            time.sleep(self.slow_seconds)


def install(entries: int = 0, slow_seconds: float = 0.0) -> Allocator:
    import torch

    made = Allocator(entries, slow_seconds)
    core: Any = sys.modules["torch._C"]
    torch.cuda.is_initialized = lambda: True
    # otherwise an optimizer of a build with CUDA asks for its streams
    torch.cuda.is_available = lambda: False
    torch.cuda.device_count = core._cuda_getDeviceCount = lambda: 2
    torch.cuda.memory._snapshot = made.snapshot
    torch.cuda.memory._record_memory_history = made.record
    core._cuda_isHistoryEnabled = lambda: made.recording
    core._cuda_hasPrimaryContext = lambda ordinal: ordinal == 0
    core._cuda_getAllocatorBackend = lambda: "native"
    core._cuda_memoryStats = lambda ordinal: STATISTICS
    core._cuda_hostMemoryStats = lambda: {"allocated_bytes": {"current": 4096}, "num_host_alloc": 1}
    return made
