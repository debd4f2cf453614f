"""Compute what one rank allocates whose blocks are sharded by FSDP2's ``fully_shard``.

The input is the trace of a training on one GPU. It is assumed that each block of the model (a module
whose name ends in a number, as ``layers.3``) is sharded, and then the model around them, which has
the remaining parameters. What a user can choose is a :class:`Policy`.

=======================  ======================================================================================
a block's forward pass   a buffer on a stream of its own gathers the parameters, which are copied out; the next
                         block's copy frees the buffer. The block's end frees the copies
a block's backward pass  the same, but the next block is gathered meanwhile. At the end, whole gradients are
                         copied into one buffer and reduced into one of this rank's share
the model around         is there whole from the forward pass to the end of the backward pass; if it is sharded
                         in between, from the first gradient within the model on
=======================  ======================================================================================

With a type of its own for parameters, the trace is that of a model in this type. Each rank's shares
stay in float32; they are cast before they are gathered, and reduced gradients are cast back. With
parameters on the host, the GPU has only what is gathered, and a gradient until it is copied away.

Standard library only.
"""  # noqa: E501

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from .request import Request
from .trace import Owner, PhaseMark, Trace

GATHER_STREAM, REDUCE_STREAM = 1001, 1002
"""Streams of the buffers, which share no memory with other streams."""
AROUND = ""
_BLOCK = re.compile(r"^(.*?\.\d+)(?:\.|$)")
_GATHERED = Owner("parameter", "", "all_gather")
_COPIED = Owner("gradient", "", "reduce_scatter")
_BYTES = {"fp32": 4, "bf16": 2}


@dataclass(frozen=True, slots=True)
class Policy:
    """How a model is sharded, by the switches of :mod:`gpuscope.lab.toggles`."""

    wrap: str = "blocks"
    reshard: str = "blocks"
    params: str = "fp32"
    reduce: str = "as-params"
    offload: bool = False
    ahead: int = 0

    @classmethod
    def of(cls, request: Request) -> Policy:
        return cls(
            request.fsdp_wrap,
            request.fsdp_reshard,
            request.fsdp_params,
            request.fsdp_reduce,
            request.fsdp_offload,
            request.fsdp_ahead,
        )

    def share(self, size: int, ranks: int) -> int:
        """Return the bytes of one rank's float32 share of what takes ``size`` bytes to compute."""
        return -(-size * _BYTES["fp32"] // _BYTES[self.params] // ranks)

    def at_rest(self, size: int, ranks: int) -> int:
        """Return what of that share is on the GPU between the steps."""
        return 0 if self.offload else self.share(size, ranks)

    def reduced(self, size: int) -> int:
        """Return the bytes of gradients in the type in which they are reduced."""
        kind = self.params if self.reduce == "as-params" else self.reduce
        return size * _BYTES[kind] // _BYTES[self.params]


def block_of(module: str) -> str:
    """Return the name of the block that a module is or lies in, or :data:`AROUND`."""
    found = _BLOCK.match(module)
    return found[1] if found else AROUND


class FullySharded:
    """Turns ``old`` into ``new``, whose blocks already have the sizes of one rank."""

    def __init__(self, old: Trace, new: Trace, ranks: int, policy: Policy):
        self._old, self._new, self._ranks, self._policy = old, new, ranks, policy
        self._parameters: dict[str, list[int]] = defaultdict(list)
        for block, size in enumerate(old.sizes):
            owner = old.owner(block)
            if owner.category == "parameter":
                self._parameters[self._named(owner.module)].append(size)
        self._blocks = [name for name in self._parameters if name != AROUND]
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
        left_out = self._cast_in_build() if self._policy.params != "fp32" else set()
        around = self._bounds()
        for at, (marks, event) in enumerate(self._old.with_marks()):
            for mark in marks:
                self._begin(mark.name)
            if event is None:
                break
            if at in around:
                around[at]()
            if (event if event >= 0 else ~event) in left_out:
                continue
            if self._phase in ("forward", "backward") and event >= 0:
                self._enter(event)
            self._pass_on(event)
        return self._new

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

    def _cast_in_build(self) -> set[int]:
        """Return the blocks that live only while the model is built, with those it was cast from.

        A real rank builds the model elsewhere and never casts it as a whole.
        """
        end = next((mark.at for mark in self._old.marks if mark.name != "build"), 0)
        return {~event for event in self._old.events[:end] if event < 0}

    def _named(self, module: str) -> str:
        return AROUND if self._policy.wrap == "root" else block_of(module)

    # ── the passes ────────────────────────────────────────────────────────────────────────────────

    def _begin(self, name: str) -> None:
        if self._phase == "forward":
            self._end_forward()
        elif self._phase == "backward":
            self._end_backward()
        self._phase, self._running = name, AROUND
        self._new.marks.append(PhaseMark(len(self._new.events), name))
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
            self._gather_after(name)
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
        elif self._policy.reshard != "never":
            self._shard(name)

    def _end_forward(self) -> None:
        self._leave()
        self._running = AROUND
        if self._policy.reshard == "always":
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
            cast = self._cast(self._parameters[name])
            size = sum(self._parameters[name])
            self._buffers[name] = self._allocated(size, _GATHERED, GATHER_STREAM)
            for block in cast:
                self._freed(block)

    def _cast(self, sizes: list[int]) -> list[int]:
        """Copy this rank's shares to the GPU, in the type in which they are gathered."""
        policy, ranks = self._policy, self._ranks

        def copy(size: int) -> int:
            return self._allocated(size, _GATHERED, GATHER_STREAM)

        if not policy.offload:
            return [copy(-(-sum(sizes) // ranks))] if policy.params != "fp32" else []
        copies = []
        for size in sizes:
            block = copy(policy.share(size, ranks))
            if policy.params != "fp32":
                block, whole = copy(-(-size // ranks)), block
                self._freed(whole)
            copies.append(block)
        return copies

    def _gather_after(self, name: str) -> None:
        """Gather the blocks after ``name``, if the program asks for that."""
        place = self._blocks.index(name) + 1
        for after in self._blocks[place : place + self._policy.ahead]:
            self._gather(after)

    def _gather_before(self, name: str) -> None:
        """Gather the blocks whose backward pass comes after that of ``name``."""
        place = self._order.index(name) if name in self._order else len(self._order)
        ahead = max(1, self._policy.ahead) if name else 1
        for before in reversed(self._order[max(0, place - ahead) : place]):
            self._gather(before)

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
        policy = self._policy
        self._copied_to = self._allocated(policy.reduced(size), _COPIED)
        gradients = self._full.pop(name, {})
        for block in gradients.values():
            self._freed(block)
        reduced = -(-policy.reduced(size) // self._ranks)
        share = self._allocated(reduced, _COPIED, REDUCE_STREAM)
        if reduced != policy.share(size, self._ranks):
            short = share
            share = self._allocated(policy.share(size, self._ranks), _COPIED, REDUCE_STREAM)
            self._freed(short)
        if policy.offload:  # it is copied to the host
            self._freed(share)
        elif gradients:
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
