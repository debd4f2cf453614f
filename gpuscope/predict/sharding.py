"""Compute what one rank of several allocates, from the trace of a training on one GPU.

Standard library only.

============  =============================================================================================
dp            nothing: the first of several devices is traced as it is
ddp           nothing: the buckets are in its trace
zero1         as ddp, whose buckets are in its trace; the optimizer's state and temporaries are those of the
              rank that gets most: ``ZeroRedundancyOptimizer`` gives each rank whole parameters
zero2         gradients are divided as well; two buckets pass while the backward pass runs
fsdp          parameters too; where they are whole for a while is in ``fully_sharded.py``
============  =============================================================================================

What is divided was not traced, so each adds a doubt with its share of the error bar. Memory of NCCL
lies outside torch.
"""  # noqa: E501

from __future__ import annotations

from ..text.units import count_text
from .fully_sharded import FullySharded, Policy
from .request import SHARDINGS, CannotPredict, Doubt
from .trace import Owner, PhaseMark, Trace

BUCKET_BYTES = 25 << 20
"""The default bucket size of DistributedDataParallel."""
DOUBT_PERCENT = {"dp": 5.0, "ddp": 1.0, "zero1": 2.0, "zero2": 5.0, "fsdp": 1.0}
_DIVIDED = {
    "zero1": ("optimizer",),
    "zero2": ("optimizer", "gradient"),
    "fsdp": ("optimizer", "parameter"),
}


PLAIN = Policy()


def sharded(
    trace: Trace, kind: str, ranks: int, policy: Policy = PLAIN
) -> tuple[Trace, list[Doubt]]:
    """Return the trace of one of ``ranks`` ranks, and its doubt. With "none", the same trace.

    ``policy`` counts for fsdp.
    """
    if kind not in SHARDINGS:
        raise CannotPredict(
            f"There is no sharding {kind!r}.", f"Known: {', '.join(SHARDINGS)}.", "fsdp", "usage"
        )
    if ranks < 1:
        raise CannotPredict(
            "A job needs at least one rank.", f"{ranks} were given.", "--ranks 8", "usage"
        )
    if kind == "none":
        return trace, []
    if kind == "dp":
        text = (
            f"The first of DataParallel's {ranks} GPUs was traced, by torch's source; it was "
            "not measured. The others take less."
        )
        return trace, [Doubt("sharding", text, "DataParallel", DOUBT_PERCENT[kind])]
    every = count_text(ranks, "rank")
    if kind == "ddp":
        text = f"One of {every} was traced, with its buckets, without NCCL's memory."
        return trace, [Doubt("sharding", text, "", DOUBT_PERCENT[kind])]
    text = f"One of {every} under {kind} is computed from one GPU's training, not traced."
    found = _Sharding(trace, kind, ranks, policy).run()
    return found, [Doubt("sharding", text, "", DOUBT_PERCENT[kind])]


class _Sharding:
    def __init__(self, trace: Trace, kind: str, ranks: int, policy: Policy):
        self._old, self._kind, self._ranks, self._policy = trace, kind, ranks, policy
        self._new = Trace(
            sizes=list(trace.sizes),
            owners=list(trace.owners),
            owner_table=list(trace.owner_table),
            streams=dict(trace.streams),
        )
        self._passing: list[int] = []

    def run(self) -> Trace:
        old, new = self._old, self._new
        self._divide()
        if self._kind == "fsdp":
            return FullySharded(old, new, self._ranks, self._policy).run()
        gradients = self._sizes("gradient")
        for marks, event in old.with_marks():
            for mark in marks:
                if mark.name == "optimizer":
                    self._give_back()
                new.marks.append(PhaseMark(len(new.events), mark.name))
                if self._kind == "zero2" and mark.name == "backward":
                    self._take(
                        [min(BUCKET_BYTES, sum(gradients))] * 2,
                        Owner("temporary", "", "reduce_scatter"),
                    )
            if event is not None:
                new.events.append(event)
        return new

    def _divide(self) -> None:
        """Make blocks smaller whose content is divided among the ranks."""
        divided = _DIVIDED.get(self._kind, ())
        part, whole = self._share()
        old, sizes = self._old, self._new.sizes
        phase = ""
        for marks, event in old.with_marks():
            phase = marks[-1].name if marks else phase
            if event is None or event < 0:
                continue
            category = old.owner(event).category
            if category in divided or (
                divided and phase == "optimizer" and category == "temporary"
            ):
                if self._kind == "fsdp":
                    sizes[event] = self._policy.at_rest(sizes[event], self._ranks)
                else:
                    sizes[event] = -(-sizes[event] * part // whole)

    def _share(self) -> tuple[int, int]:
        """Return the bytes of one rank and of all of them, which is how blocks are divided."""
        if self._kind != "zero1":
            return 1, self._ranks
        loads = [0] * self._ranks
        sizes = [
            size
            for block, size in enumerate(self._old.sizes)
            if self._old.owner(block).category == "parameter"
        ]
        for size in sorted(sizes, reverse=True):
            loads[loads.index(min(loads))] += size
        return (max(loads), sum(loads)) if sizes else (1, self._ranks)

    def _sizes(self, category: str) -> list[int]:
        """Return the sizes of blocks of ``category`` that exist after the first backward pass."""
        old = self._old
        end = next((mark.at for mark in old.marks if mark.name == "optimizer"), len(old.events))
        return [old.sizes[one] for one in old.live(end) if old.owner(one).category == category]

    def _allocate(self, size: int, owner: Owner) -> int:
        new = self._new
        if owner not in new.owner_table:
            new.owner_table.append(owner)
        block = len(new.sizes)
        new.sizes.append(size)
        new.owners.append(new.owner_table.index(owner))
        new.events.append(block)
        return block

    def _take(self, sizes: list[int], owner: Owner) -> None:
        self._passing += [self._allocate(size, owner) for size in sizes if size > 0]

    def _give_back(self) -> None:
        self._new.events += [~block for block in reversed(self._passing)]
        self._passing.clear()
