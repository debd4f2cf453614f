"""Histories as torch records them, made by the simulated allocator, also as a snapshot's pickle."""

from __future__ import annotations

import gzip
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpuscope.model.allocator_settings import DEFAULT, AllocatorSettings
from gpuscope.predict.allocator import TraceRun
from gpuscope.predict.allocator_blocks import FREE, PENDING, UNMAPPED, Block
from gpuscope.predict.allocator_engine import Engine
from gpuscope.predict.trace import Trace
from gpuscope.snapshot.columns import CODES
from gpuscope.snapshot.history import HeldSegment, History

Entry = tuple[str, int, int, int]
"""Action, address (of an oom: what was free), size, stream."""


def segments_of(
    held: Sequence[Block | None], sizes: Sequence[int], engine: Engine
) -> list[HeldSegment]:
    """Return the segments of an allocator that holds these blocks, of so many requested bytes."""
    requested = {id(one): sizes[number] for number, one in enumerate(held) if one is not None}
    heads: dict[int, Block] = {}
    for one in [*held, *(block for shelf in engine.shelves.values() for block in shelf)]:
        block = one
        while block is not None and block.prev is not None:
            block = block.prev
        if block is not None:
            heads[block.address] = block
    segments = []
    for _, head in sorted(heads.items()):
        block, segment = head, None
        while block is not None:
            if block.state == UNMAPPED:
                segment = None
            else:
                if segment is None:
                    shelf = block.shelf
                    segment = HeldSegment(
                        block.address, 0, shelf.stream, not shelf.small, bool(block.grown), ""
                    )
                    segments.append(segment)
                segment.size += block.size
                if block.state != FREE:
                    segment.blocks.append(
                        (block.address, block.size, requested[id(block)], block.state == PENDING)
                    )
            block = block.next
    return segments


class Recorder:
    """An allocator with its history on.

    It is as if on a device of ``capacity`` bytes with scattered addresses.
    """

    def __init__(
        self, trace: Trace, settings: AllocatorSettings = DEFAULT, capacity: int | None = None
    ) -> None:
        self.entries: list[Entry] = []
        self.trace = trace
        self.engine = engine = Engine(settings, capacity, place=self._place)
        self.run = TraceRun(trace, engine, after_oom=True)
        self.cursor, self.given = 0x7F5280000000, 0
        release = engine.releasing.segment

        def segment(block: Block) -> None:
            self.entries.append(("segment_free", block.address, block.size, block.shelf.stream))
            release(block)

        engine.releasing.segment = segment  # type: ignore[method-assign]

    def _place(self, size: int, stream: int) -> int:
        # neither ascending nor descending, up to 101 segments
        address = self.cursor + (self.given * 37 % 101 << 30)
        self.given += 1
        self.entries.append(("segment_alloc", address, size, stream))
        return address

    def all(self) -> Recorder:
        """Runs the whole trace."""
        for at, event in enumerate(self.trace.events):
            number = event if event >= 0 else ~event
            block = self.run.held[number]
            stream = self.trace.streams.get(number, 0)
            if event < 0 and block is not None:
                for action in ("free_requested", "free_completed"):
                    self.entries.append((action, block.address, self.trace.sizes[number], stream))
            self.run.go(at + 1)
            block = self.run.held[number]
            if event >= 0 and block is not None:
                self.entries.append(("alloc", block.address, self.trace.sizes[number], stream))
            if self.run.ooms and self.run.ooms[-1].where.event == at:
                free = self.run.ooms[-1].free_bytes
                self.entries.append(("oom", free, self.run.sizes[number], stream))
        return self

    def segments(self) -> list[HeldSegment]:
        return segments_of(self.run.held, self.trace.sizes, self.engine)

    def history(self, last: int | None = None) -> History:
        """With ``last``: of a ring that keeps so many entries."""
        kept = self.entries[-last:] if last else [] if last == 0 else self.entries
        found = History(known=True, segments=self.segments())
        for action, address, size, stream in kept:
            found.code.append(CODES[action])
            found.addr.append(0 if action == "oom" else address)
            found.size.append(size)
            found.stream.append(stream)
        return found

    def free_at(self, last: int | None = None) -> dict[int, int | None]:
        kept = self.entries[-last:] if last else self.entries
        return {at: free for at, (action, free, _, _) in enumerate(kept) if action == "oom"}

    def write(
        self, path: Path, record: dict[str, Any] | None = None, last: int | None = None
    ) -> Path:
        """Write a snapshot as ``torch.cuda.memory._dump_snapshot`` does.

        With ``record``, write it as the probe's flight recorder does.
        """
        kept = self.entries[-last:] if last else self.entries
        segments = []
        for one in self.segments():
            blocks = []
            end = one.address
            for address, size, requested, _ in [*one.blocks, (one.address + one.size, 0, 0, False)]:
                if address > end:
                    blocks.append(_block(end, address - end, 0, "inactive"))
                if size:
                    blocks.append(_block(address, size, requested, "active_allocated"))
                end = address + size
            active = sum(block["size"] for block in blocks if block["state"] != "inactive")
            segments.append(
                {
                    "device": 0,
                    "address": one.address,
                    "total_size": one.size,
                    "allocated_size": active,
                    "active_size": active,
                    "stream": one.stream,
                    "segment_type": "large" if one.large else "small",
                    "segment_pool_id": (0, 0),
                    "is_expandable": False,
                    "blocks": blocks,
                }
            )
        trace = [
            {
                "action": action,
                "device_free" if action == "oom" else "addr": address,
                "size": size,
                "stream": stream,
                "time_us": 1_760_000_000_000_000 + 5 * at,
                "frames": [],
            }
            for at, (action, address, size, stream) in enumerate(kept)
        ]
        data: dict[str, Any] = {
            "segments": segments,
            "device_traces": [trace],
            "allocator_settings": {},
        }
        if record is not None:
            data["gpuscope"] = record
        path.write_bytes(gzip.compress(pickle.dumps(data, protocol=2)))
        return path


def _block(address: int, size: int, requested: int, state: str) -> dict[str, Any]:
    return {
        "address": address,
        "size": size,
        "requested_size": requested,
        "state": state,
        "frames": [],
    }
