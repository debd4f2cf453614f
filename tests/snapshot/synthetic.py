"""Snapshots as torch writes them, made without a GPU.

There is a small caching allocator with its trace, and each release's keys.

The allocator keeps what the real one keeps: sizes rounded to 512 bytes, segments of 2 MiB, 20 MiB
or whole 2 MiB pages, blocks that are reused by size, frees that come back later when another stream
still used the block.
"""

from __future__ import annotations

import gzip
import io
import pickle
import random
from collections import defaultdict
from pathlib import Path
from typing import Any

MIB = 1 << 20
RELEASES = ("2.1", "2.3", "2.6", "2.9", "2.13")
KINDS = (
    "alloc",
    "free_requested",
    "free_completed",
    "segment_alloc",
    "segment_free",
    "snapshot",
    "oom",
)


def make_stacks(count: int = 200, depth: int = 20, seed: int = 7) -> list[list[dict[str, Any]]]:
    """Python stacks, innermost first: torch's modules on top of a user's model and script."""
    rng = random.Random(seed)
    inner = [
        {
            "name": name,
            "filename": f"/usr/lib/python3/site-packages/torch/nn/modules/{file}.py",
            "line": line,
        }
        for name, file, line in (
            ("forward", "linear", 125),
            ("_call_impl", "module", 1747),
            ("forward", "conv", 549),
        )
    ]
    outer = [
        {"name": f"run_{n}", "filename": "/home/ada/train.py", "line": 10 + n} for n in range(depth)
    ]
    stacks = []
    for number in range(count):
        own = [
            {
                "name": f"layer_{number % 24}",
                "filename": "/home/ada/model.py",
                "line": 100 + number,
            },
            {"name": "forward", "filename": "/home/ada/model.py", "line": 40 + number % 24},
        ]
        stacks.append(inner[: rng.randint(1, 3)] + own + outer[: max(0, depth - 5)])
    return stacks


class Allocator:
    """One device.

    ``share_frames``: every event of a stack has the same list object, else each allocation its own.
    """

    def __init__(
        self,
        device: int = 0,
        seed: int = 1,
        share_frames: bool = False,
        start: int = 0x7F0000000000,
    ) -> None:
        self.device, self.rng, self.share = device, random.Random(seed), share_frames
        self.next = start + device * (1 << 40)
        self.segments: list[dict[str, Any]] = []
        # address: [size, requested, state, frames, segment number]
        self.blocks: dict[int, list[Any]] = {}
        self.free: dict[tuple[int, bool], list[int]] = defaultdict(list)
        # small and large: [segment number, next address, end]
        self.tail: dict[bool, list[int]] = {}
        self.trace: list[dict[str, Any]] = []
        self.clock = 1_760_000_000_000_000
        self.stream = 0

    def note(self, action: str, addr: int, size: int, frames: list[Any] | None) -> None:
        self.clock += 3
        entry: dict[str, Any] = {
            "action": action,
            "device_free" if action == "oom" else "addr": addr,
            "size": size,
        }
        entry["stream"] = self.stream
        entry["time_us"] = self.clock
        if frames is not None:
            entry["frames"] = frames
        self.trace.append(entry)

    def alloc(self, requested: int, frames: list[Any] | None) -> int:
        frames = list(frames) if frames is not None and not self.share else frames
        size = max(512, (requested + 511) // 512 * 512)
        small = size <= MIB
        cached = self.free[size, small]
        if cached:
            addr = cached.pop()
        else:
            tail = self.tail.get(small)
            if tail is None or tail[1] + size > tail[2]:
                total = (
                    2 * MIB
                    if small
                    else 20 * MIB
                    if size < 10 * MIB
                    else (size + 2 * MIB - 1) // (2 * MIB) * 2 * MIB
                )
                segment = {"address": self.next, "total": total, "small": small, "frames": frames}
                self.segments.append(segment)
                self.note("segment_alloc", self.next, total, frames)
                tail = self.tail[small] = [len(self.segments) - 1, self.next, self.next + total]
                self.next += total + 2 * MIB
            addr = tail[1]
            tail[1] += size
            self.blocks[addr] = [size, 0, "inactive", None, tail[0]]
        block = self.blocks[addr]
        block[1:4] = requested, "active_allocated", frames
        self.note("alloc", addr, requested, frames)
        return addr

    def release(self, addr: int, pending: bool = False) -> None:
        block = self.blocks[addr]
        self.note("free_requested", addr, block[1], block[3])
        block[2] = "active_pending_free"
        if not pending:
            self.complete(addr)

    def complete(self, addr: int) -> None:
        block = self.blocks[addr]
        self.note("free_completed", addr, block[1], block[3])
        block[2] = "inactive"
        self.free[block[0], block[0] <= MIB].append(addr)

    def segment_dicts(self, history: bool = True) -> list[dict[str, Any]]:
        """Return the segments as ``_snapshot()["segments"]`` does.

        Blocks are in order of address, neighbouring free ones merged.
        """
        per: dict[int, list[tuple[int, list[Any]]]] = defaultdict(list)
        for addr, block in self.blocks.items():
            per[block[4]].append((addr, block))
        out = []
        for number, segment in enumerate(self.segments):
            blocks: list[dict[str, Any]] = []

            def add(
                addr: int,
                size: int,
                requested: int,
                state: str,
                frames: list[Any],
                to: list[Any] = blocks,
            ) -> None:
                if state == "inactive" and to and to[-1]["state"] == "inactive":
                    to[-1]["size"] += size
                else:
                    to.append(
                        {
                            "address": addr,
                            "size": size,
                            "requested_size": requested,
                            "state": state,
                            "frames": frames,
                        }
                    )

            at = segment["address"]
            for addr, (size, requested, state, frames, _) in sorted(
                per[number], key=lambda row: row[0]
            ):
                live = state != "inactive"
                add(
                    addr,
                    size,
                    requested if live else 0,
                    state,
                    (frames or []) if live and history else [],
                )
                at = addr + size
            end = segment["address"] + segment["total"]
            if at < end:
                add(at, end - at, 0, "inactive", [])
            active = [block for block in blocks if block["state"] != "inactive"]
            out.append(
                {
                    "device": self.device,
                    "address": segment["address"],
                    "total_size": segment["total"],
                    "allocated_size": sum(
                        b["size"] for b in active if b["state"] == "active_allocated"
                    ),
                    "active_size": sum(b["size"] for b in active),
                    "requested_size": sum(b["requested_size"] for b in active),
                    "stream": self.stream,
                    "segment_type": "small" if segment["small"] else "large",
                    "segment_pool_id": (0, 0),
                    "is_expandable": False,
                    "frames": (segment["frames"] or []) if history else [],
                    "blocks": blocks,
                }
            )
        return out


def train(
    allocator: Allocator, entries: int, stacks: list[list[dict[str, Any]]], leak: int = 0
) -> None:
    """Take steps of a training until the trace has ``entries``.

    Weights are allocated once, activations forward, frees come backward, some of them late,
    interleaved. Every ``leak``-th step keeps one tensor.
    """
    rng = allocator.rng
    for number in range(40):
        allocator.alloc(rng.choice((4, 6, 9)) * MIB + 100 * number, stacks[number % len(stacks)])
    step, late = 0, []
    while len(allocator.trace) < entries:
        step += 1
        live = []
        for number in range(120):
            size = rng.choice((2_000, 70_000, 900_000, 3_000_000, 12_000_000))
            live.append(
                allocator.alloc(size + 64 * (number % 7), stacks[(number * 3) % len(stacks)])
            )
            if number % 3 == 0 and len(live) > 4:
                allocator.release(live.pop(-2))
        if leak and step % leak == 0:
            live.pop()
        while live:
            addr = live.pop()
            pending = rng.random() < 0.05
            allocator.release(addr, pending)
            if pending:
                late.append(addr)
            elif late and rng.random() < 0.2:
                allocator.complete(late.pop(0))
    del allocator.trace[entries:]


def snapshot(
    allocators: list[Allocator], release: str = "2.13", history: bool = True
) -> dict[str, Any]:
    """The dictionary of ``torch.cuda.memory._snapshot()`` in that release.

    Ends every trace with its own entry.
    """
    number = tuple(map(int, release.split(".")))
    segments = [segment for one in allocators for segment in one.segment_dicts(history)]
    traces = [list(one.trace) if history else [] for one in allocators]
    for one, trace in zip(allocators, traces, strict=True):
        if trace:
            trace.append(
                {"action": "snapshot", "addr": 0, "size": 0, "stream": 0, "time_us": one.clock + 1}
            )
    for trace in traces:
        for entry in trace:
            if number >= (2, 6):
                entry.setdefault("compile_context", "N/A")
            if number >= (2, 9):
                entry.setdefault("user_metadata", "")
            if number >= (2, 13):
                entry.setdefault("pool_id", (0, 0))
    out: dict[str, Any] = {"segments": segments, "device_traces": traces}
    if number >= (2, 2):
        conf = {
            "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False",
            "max_split_size": -1,
            "roundup_power2_divisions": {},
        }
        out["allocator_settings"] = conf
    if number >= (2, 6):
        out["external_annotations"] = []
    return out


def training(
    entries: int, devices: int = 1, release: str = "2.13", leak: int = 0, **more: Any
) -> dict[str, Any]:
    allocators = []
    for device in range(devices):
        allocator = Allocator(device, seed=device + 1, **more)
        train(allocator, entries, make_stacks(), leak)
        settle(allocator)
        allocators.append(allocator)
    return snapshot(allocators, release)


def settle(allocator: Allocator) -> None:
    """After the trace was cut to length: blocks as the trace leaves them."""
    state: dict[int, tuple[str, int, Any]] = {}
    for entry in allocator.trace:
        action, addr = entry["action"], entry.get("addr", 0)
        if action == "alloc":
            state[addr] = ("active_allocated", entry["size"], entry.get("frames"))
        elif action == "free_requested":
            state[addr] = ("active_pending_free", entry["size"], entry.get("frames"))
        elif action == "free_completed":
            state[addr] = ("inactive", 0, None)
    known = {entry["addr"] for entry in allocator.trace if entry["action"] == "segment_alloc"}
    allocator.segments = [segment for segment in allocator.segments if segment["address"] in known]
    gone = len(allocator.segments)
    for addr, block in list(allocator.blocks.items()):
        if block[4] >= gone:
            del allocator.blocks[addr]
        elif addr in state:
            block[2], block[1], block[3] = state[addr]
        else:
            block[1:4] = 0, "inactive", None
    allocator.free.clear()
    for addr, block in allocator.blocks.items():
        if block[2] == "inactive":
            allocator.free[block[0], block[0] <= MIB].append(addr)
    allocator.tail = {small: tail for small, tail in allocator.tail.items() if tail[0] < gone}


def write(data: Any, path: Path, protocol: int = 4, packed: bool = False) -> Path:
    """To a file, packed by gzip where asked."""
    raw = pickle.dumps(data, protocol)
    path.write_bytes(gzip.compress(raw, 1) if packed else raw)
    return path


def dumped(data: Any, protocol: int = 4) -> bytes:
    buffer = io.BytesIO()
    pickle.dump(data, buffer, protocol)
    return buffer.getvalue()
