"""Walk over the allocator's segments for what only they show.

These are private pools that are idle, and cuBLAS workspaces.

``torch._C._cuda_memorySnapshot`` without its trace lists segments and blocks (0.3–0.5 ms on an
H200, longer with more blocks). It also writes an entry into a history that is being recorded. So it
is called seldom, only while somebody watches, and not at all if it would return a history too. In a
training it is called right after an optimizer step, when nothing else in the training allocates.
Figures that do not belong to the same moment are discarded.
"""

from __future__ import annotations

import os
import re
import sys
import time
from typing import Any, Dict, List, Optional, Set, Tuple

from ..wire.frames import NOT_INITIALISED, NOT_SUPPORTED, Unknown
from . import cuda, snapshots, symbols
from .marks import capturing

EVERY_SECONDS = 30.0
COST_SHARE = 1000
"""After a walk this many times its duration pass before the next: at most 0.1 % of the time."""
AGAIN_SECONDS = 3.0
"""Seconds until the next walk, if the allocator changed during one."""
MAX_BLOCKS = 20_000
"""With more live blocks than this, a walk would delay the training by tens of milliseconds."""
STEP_SECONDS = 2.0
"""After this long without a step, the probe's thread makes the walk."""
COLUMNS = ("private_pool_idle_bytes", "private_pool_inactive_split_bytes", "workspace_bytes")
HOPPER_BYTES, EARLIER_BYTES = 32 << 20, 8_519_680
"""The sizes of cuBLAS workspaces that torch allocates if CUBLAS_WORKSPACE_CONFIG is not set:
CUDABlas' :4096:2:16:8 up to compute capability 8.x.
"""
SEEN = 2
"""A workspace must be found in this many walks in a row."""
_ONCE = Unknown(
    NOT_INITIALISED, "distinguished from temporary blocks by a second walk over the segments"
)
_NOT_YET = Unknown(NOT_INITIALISED, "counted in a walk over the segments, at most every 30 s")
_STACKS = Unknown(
    NOT_SUPPORTED,
    "a history is recorded, and listing segments would make torch import modules here",
)
_MOVING = Unknown(
    NOT_INITIALISED, "the allocator changed during the walk over the segments: tried again"
)
Reading = Any  # Union[int, Unknown]


class Segments:
    """Reads figures from the segments.

    :meth:`after_step` is called in the thread that steps, everything else in the probe's thread.
    """

    def __init__(self) -> None:
        self.values: Dict[int, Dict[str, Reading]] = {}  # by ordinal
        self.seconds = 0.0  # duration of the last walk
        self._next = 0.0
        self._walk_requested = False
        self._ordinals: List[int] = []
        self._taken: Any = None
        self._reason = _NOT_YET
        self._stacks = False  # blocks may have frames, because a history was recorded
        self._sizes: Dict[int, Tuple[int, ...]] = {}
        self._workspaces: Dict[int, List[Set[int]]] = {}  # by ordinal: addresses in the last walks

    def after_step(self) -> None:
        if self._walk_requested:
            self._walk_requested = False
            self._take()

    def tick(
        self, ordinals: List[int], step_age: Optional[float], owned: Set[Tuple[int, int]]
    ) -> None:
        """Make a walk, or use the last one, when it is time.

        A step ended ``step_age`` seconds ago, None without any. ``owned`` holds (ordinal, address)
        of blocks that belong to tensors which the ledger counts.
        """
        taken, self._taken = self._taken, None
        if taken is not None:
            self._read(taken, owned)
        now = time.monotonic()
        if now < self._next or not ordinals:
            return
        self._ordinals = list(ordinals)
        if step_age is not None and step_age < STEP_SECONDS:
            self._walk_requested = True
            return
        self._walk_requested = False
        self._take()
        taken, self._taken = self._taken, None
        if taken is not None:
            self._read(taken, owned)

    def of(self, ordinal: int) -> Dict[str, Reading]:
        return self.values.get(ordinal) or dict.fromkeys(
            (*COLUMNS, "private_pool_bytes"), self._reason
        )

    def sizes(self, ordinal: int) -> Tuple[int, ...]:
        """Return the sizes in bytes that workspaces have on this device."""
        if ordinal not in self._sizes:
            self._sizes[ordinal] = workspace_sizes(os.environ, _major(ordinal))
        return self._sizes[ordinal]

    def _take(self) -> None:
        torch: Any = sys.modules.get("torch")
        self._next = time.monotonic() + EVERY_SECONDS
        try:
            if capturing(torch):
                self._next = time.monotonic() + AGAIN_SECONDS
                return
            self._stacks = self._stacks or snapshots.recording() is True
            if self._stacks and not symbols.loaded():
                self._next = time.monotonic() + AGAIN_SECONDS
                self._give_up(_STACKS)
                return
            wanted = argument(torch)
            if isinstance(wanted, Unknown):
                self._give_up(wanted)
                return
            before = [torch._C._cuda_memoryStats(ordinal) for ordinal in self._ordinals]
            if sum(int(_current(stats, "active")) for stats in before) > MAX_BLOCKS:
                self._give_up(
                    Unknown(
                        NOT_SUPPORTED,
                        f"more than {MAX_BLOCKS} blocks: a walk would delay the training",
                    )
                )
                return
            begin = time.monotonic()
            segments = torch._C._cuda_memorySnapshot(*wanted)["segments"]
            self.seconds = time.monotonic() - begin
            self._next = begin + max(EVERY_SECONDS, self.seconds * COST_SHARE)
            after = [torch._C._cuda_memoryStats(ordinal) for ordinal in self._ordinals]
        except Exception as error:
            self._give_up(
                Unknown(
                    NOT_SUPPORTED, f"this torch does not list its segments: {type(error).__name__}"
                )
            )
            return
        if [_moment(stats) for stats in before] == [_moment(stats) for stats in after]:
            self._taken = segments
        else:
            self._next = begin + max(AGAIN_SECONDS, self.seconds * COST_SHARE)
            self._reason = _MOVING

    def _give_up(self, reason: Unknown) -> None:
        self._reason = reason
        self.values = {}

    def _read(self, segments: Any, owned: Set[Tuple[int, int]]) -> None:
        for ordinal in self._ordinals:
            mine = [segment for segment in segments if segment.get("device") == ordinal]
            found: Dict[str, Reading] = dict(private_pools(mine))
            last = self._workspaces.setdefault(ordinal, [])
            sizes = self.sizes(ordinal)
            live = workspace_blocks(mine, sizes)
            last.append({place for place in live if (ordinal, place) not in owned})
            del last[:-SEEN]
            # A temporary block of the same size is seldom at the same address in several walks; a
            # workspace always is.
            if len(last) < SEEN:
                found["workspace_bytes"] = _ONCE
            else:
                found["workspace_bytes"] = sum(live[place] for place in set.intersection(*last))
            # Workspaces are made in the first steps, one for each thread and stream. So "none" is
            # not a final answer either.
            if len(last) < SEEN or last[-1] != last[-2] or (sizes and not last[-1]):
                self._next = min(
                    self._next, time.monotonic() + max(AGAIN_SECONDS, self.seconds * COST_SHARE)
                )
            self.values[ordinal] = found


def private_pools(segments: List[Dict[str, Any]]) -> Dict[str, Reading]:
    """Return the bytes of the private pools among ``segments``.

    Private pools belong to CUDA graphs or to a ``MemPool``. The result is the reserved bytes, the
    idle bytes, and those idle bytes that are in partly used segments. Expandable segments have no
    inactive splits by torch's own definition.
    """
    if any("segment_pool_id" not in segment for segment in segments):
        reason = Unknown(
            NOT_SUPPORTED, "this torch does not show which segments belong to private pools"
        )
        return dict.fromkeys((*COLUMNS[:2], "private_pool_bytes"), reason)
    reserved = idle = split = 0
    for segment in segments:
        if tuple(segment["segment_pool_id"]) == (0, 0):
            continue
        free = int(segment["total_size"]) - int(segment["active_size"])
        reserved += int(segment["total_size"])
        idle += free
        if segment["active_size"] and not segment.get("is_expandable"):
            split += free
    return {
        "private_pool_bytes": reserved,
        "private_pool_idle_bytes": idle,
        "private_pool_inactive_split_bytes": split,
    }


def workspace_blocks(segments: List[Dict[str, Any]], sizes: Tuple[int, ...]) -> Dict[int, int]:
    """Return {address: bytes} of live blocks whose requested size is exactly one of ``sizes``."""
    found: Dict[int, int] = {}
    for segment in segments:
        if segment["active_size"] < min(sizes, default=0):
            continue
        place = int(segment["address"])
        for block in segment["blocks"]:
            if (
                block["state"] == "active_allocated"
                and int(block.get("requested_size", block["size"])) in sizes
            ):
                found[int(block.get("address", place))] = int(block["size"])
            place += int(block["size"])
    return found


def workspace_sizes(env: Any, major: int) -> Tuple[int, ...]:
    """Return the sizes of cuBLAS and cublasLt workspaces in bytes; ``major`` is 0 if unknown."""
    sizes = {HOPPER_BYTES if major >= 9 else EARLIER_BYTES}
    chosen = re.findall(r":([0-9]{1,9}):([0-9]{1,6})", env.get("CUBLAS_WORKSPACE_CONFIG", ""))
    if chosen:  # pairs of KiB and count; torch allocates their sum
        sizes = {sum(int(size) * int(count) for size, count in chosen) * 1024}
        sizes |= {sum(int(size) for size, _ in chosen) * 1024}  # some releases forget the count
    light = env.get("CUBLASLT_WORKSPACE_SIZE", "")
    if light.isdigit() and len(light) < 10:
        sizes.add(int(light) * 1024)
    return tuple(sorted(size for size in sizes if size))


def argument(torch: Any) -> Any:
    """Return the arguments with which the snapshot contains no history.

    They are a tuple. If this torch has no such arguments, the result is the reason.
    """
    function = getattr(sys.modules.get("torch.cuda.memory"), "memory_snapshot", None)
    code = getattr(function, "__code__", None)
    if code is not None and "include_traces" in code.co_varnames[: code.co_argcount]:
        return ((0, 0, False),)
    enabled = getattr(torch._C, "_cuda_isHistoryEnabled", None)
    if enabled is None:
        return Unknown(
            NOT_SUPPORTED, "this torch cannot list its segments without the history of allocations"
        )
    if enabled():
        return Unknown(
            NOT_SUPPORTED,
            "a history of allocations is being recorded: listing segments would copy all of it",
        )
    return (None,) if code is None or code.co_argcount else ()


def _current(stats: Any, name: str) -> int:
    return int(stats[name]["all"]["current"])


def _moment(stats: Any) -> Tuple[int, int, int]:
    return (
        _current(stats, "reserved_bytes"),
        _current(stats, "active_bytes"),
        _current(stats, "active"),
    )


def _major(ordinal: int) -> int:
    try:
        return int(cuda.device_properties(ordinal).major)
    except Exception:
        return 0
