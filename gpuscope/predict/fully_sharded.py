"""Compute what one rank allocates whose blocks are sharded by FSDP2's ``fully_shard``.

The input is the trace of a training on one GPU. It is assumed that each block of the model (a module
whose name ends in a number, as ``layers.3``) is sharded, and then the model around them, which has
the remaining parameters. By default parameters are sharded again after the forward pass; with
``reshard_after_forward=False`` they stay whole until the backward pass is done with them.

=======================  ======================================================================================
a block's forward pass   a buffer on a stream of its own gathers the parameters, which are copied out; the next
                         block's copy frees the buffer. The block's end frees the copies
a block's backward pass  the same, but the next block is gathered meanwhile. At the end, whole gradients are
                         copied into one buffer and reduced into one of this rank's share
the model around         is there whole during all of the forward pass, and from the first gradient within the
                         model to the end of the backward pass
=======================  ======================================================================================

Standard library only.
"""  # noqa: E501

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable

from .trace import Mark, Owner, Trace

GATHER_STREAM, REDUCE_STREAM = 1001, 1002
"""Streams of the buffers, which share no memory with other streams."""
AROUND = ""
_BLOCK = re.compile(r"^(.*?\.\d+)(?:\.|$)")
_GATHERED = Owner("parameter", "", "all_gather")
_COPIED = Owner("gradient", "", "reduce_scatter")


class FullySharded:
    """Turns ``old`` into ``new``, whose blocks already have the sizes of one rank."""

    def __init__(self, old: Trace, new: Trace, ranks: int, reshard: bool):
        self._old, self._new, self._ranks, self._reshard = old, new, ranks, reshard
        self._parameters: dict[str, list[int]] = defaultdict(list)
        for block, size in enumerate(old.sizes):
            owner = old.owner(block)
            if owner.category == "parameter":
                self._parameters[self._named(owner.module)].append(size)
        self._owners = {owner: place for place, owner in enumerate(new.owner_table)}
        self._phase = self._running = AROUND
        self._order: list[str] = []
        self._whole: dict[str, list[int]] = {}
        """The copies of the parameters of the groups that are there whole."""
        self._buffers: dict[str, int] = {}
        """The buffers of the groups that are gathered and not yet copied out."""
        self._copied_from: int | None = None
        self._copied_to: int | None = None
        self._full: dict[str, dict[int, int]] = defaultdict(dict)
        """For each gradient that is not yet reduced, the block of its whole size."""
        self._share: dict[int, list[int]] = {}
        """For each gradient, this rank's share, and how many gradients are in it."""

    def run(self) -> Trace:
        old, new = self._old, self._new
        marks = list(old.marks)
        around: dict[int, Callable[[], None]] = self._bounds()
        for at, event in enumerate(old.events):
            while marks and marks[0].at <= at:
                self._begin(marks.pop(0).name)
            if at in around:
                around[at]()
            if self._phase in ("forward", "backward") and event >= 0:
                self._enter(event)
            self._pass_on(event)
        for mark in marks:
            self._begin(mark.name)
        return new

    def _bounds(self) -> dict[int, Callable[[], None]]:
        """Return what happens to the model around the blocks, and before which events.

        Its forward pass ends, and its backward pass begins, where modules run.
        """
        found: dict[int, Callable[[], None]] = {}
        phase, first, last = "", None, None
        places = {mark.at: mark.name for mark in self._old.marks}
        for at, event in enumerate([*self._old.events, None]):
            if at in places:
                if phase == "forward" and last is not None:
                    found[last + 1] = self._end_forward
                elif phase == "backward" and first is not None:
                    found[first] = self._begin_backward
                phase, first, last = places[at], None, None
            if event is not None and event >= 0 and self._old.owner(event).module:
                first, last = at if first is None else first, at
        return found

    def _named(self, module: str) -> str:
        found = _BLOCK.match(module)
        return found[1] if found else AROUND

    # ── the passes ────────────────────────────────────────────────────────────────────────────────

    def _begin(self, name: str) -> None:
        if self._phase == "forward":
            self._end_forward()
        elif self._phase == "backward":
            self._end_backward()
        self._phase, self._running = name, AROUND
        self._new.marks.append(Mark(len(self._new.events), name))
        if name == "forward":
            self._order.clear()
            self._make_whole(AROUND)

    def _enter(self, event: int) -> None:
        """Pass from one block to the next, if the module of this event says so."""
        module = self._old.owner(event).module
        name = self._named(module)
        if not module or name == self._running or (name and name not in self._parameters):
            return
        self._leave()
        self._running = name
        if not name:
            return
        if self._phase == "forward":
            self._order.append(name)
            self._make_whole(name)
        else:
            self._make_whole(name)
            self._gather_before(name)

    def _leave(self) -> None:
        """End the pass of the block that runs."""
        name = self._running
        if not name:
            return
        if self._phase == "backward":
            self._shard(name)
            self._reduce(name)
        elif self._reshard:
            self._shard(name)

    def _end_forward(self) -> None:
        self._leave()
        self._running = AROUND
        if self._reshard:
            self._shard(AROUND)
        self._freed(self._copied_from)
        self._copied_from = None

    def _begin_backward(self) -> None:
        self._make_whole(AROUND)
        self._gather_before(AROUND)

    def _end_backward(self) -> None:
        self._leave()
        self._running = AROUND
        self._shard(AROUND)
        self._reduce(AROUND)
        self._freed(self._copied_to)
        self._copied_to = None
        for buffer in self._buffers.values():
            self._freed(buffer)
        self._buffers.clear()

    # ── parameters ────────────────────────────────────────────────────────────────────────────────

    def _gather(self, name: str) -> None:
        if name not in self._whole and name not in self._buffers and self._parameters[name]:
            size = sum(self._parameters[name])
            self._buffers[name] = self._allocated(size, _GATHERED, GATHER_STREAM)

    def _gather_before(self, name: str) -> None:
        """Gather the block whose backward pass comes after that of ``name``."""
        place = self._order.index(name) if name in self._order else len(self._order)
        if place > 0:
            self._gather(self._order[place - 1])

    def _make_whole(self, name: str) -> None:
        if name in self._whole:
            return
        self._gather(name)
        buffer = self._buffers.pop(name, None)
        self._whole[name] = [self._allocated(size, _GATHERED) for size in self._parameters[name]]
        self._freed(self._copied_from)
        self._copied_from = None
        if self._phase == "forward":
            self._copied_from = buffer
        else:
            self._freed(buffer)

    def _shard(self, name: str) -> None:
        for block in self._whole.pop(name, ()):
            self._freed(block)

    # ── gradients ─────────────────────────────────────────────────────────────────────────────────

    def _pass_on(self, event: int) -> None:
        block = event if event >= 0 else ~event
        owner = self._old.owner(block)
        if owner.category != "gradient" or self._phase == "build":
            self._new.events.append(event)
            return
        full = self._full[self._named(owner.module)]
        if event >= 0:
            full[block] = self._allocated(self._old.sizes[block], owner)
        elif block in full:
            self._freed(full.pop(block))
        elif block in self._share:
            share = self._share.pop(block)
            share[1] -= 1
            if not share[1]:
                self._freed(share[0])

    def _reduce(self, name: str) -> None:
        size = sum(self._parameters[name])
        if not size:
            return
        self._freed(self._copied_to)
        self._copied_to = None
        self._copied_to = self._allocated(size, _COPIED)
        gradients = self._full.pop(name, {})
        for block in gradients.values():
            self._freed(block)
        share = self._allocated(-(-size // self._ranks), _COPIED, REDUCE_STREAM)
        if gradients:
            counted = [share, len(gradients)]
            self._share.update(dict.fromkeys(gradients, counted))
        else:  # it is added to the gradients that are there
            self._freed(share)

    # ── blocks ────────────────────────────────────────────────────────────────────────────────────

    def _allocated(self, size: int, owner: Owner, stream: int = 0) -> int:
        new = self._new
        if owner not in self._owners:
            self._owners[owner] = len(new.owner_table)
            new.owner_table.append(owner)
        block = len(new.sizes)
        new.sizes.append(size)
        new.owners.append(self._owners[owner])
        new.events.append(block)
        if stream:
            new.streams[block] = stream
        return block

    def _freed(self, block: int | None) -> None:
        if block is not None:
            self._new.events.append(~block)
