"""Compare the collectives of all ranks, as their flight recorders have them.

Ranks of a group number its collectives alike. Where two ranks have different ones under one number,
they went apart there; where a rank has fewer, the others wait for it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from ...text.ranges import named_ranges
from .model import Call, Job, Rank

UNEQUAL = frozenset(
    ("gather", "scatter", "reduce", "send", "recv", "barrier", "all_to_all", "alltoall",
     "alltoall_base", "all_to_all_single", "all_to_all_v_single", "all_gather_v", "allgather_v",
     "reduce_scatter_v")
)  # fmt: skip
"""Operations whose ranks may well have tensors of different shapes."""


@dataclass(slots=True)
class Difference:
    """A collective in which ranks of one group differ.

    ``what`` is operation, size or type. ``sides`` are the ranks of each variant with one call of
    it, the most common variant first. ``waiting`` are the ranks in which it is not done.
    """

    what: str
    group: str
    number: int
    sides: list[tuple[list[int], Call]]
    waiting: list[int] = field(default_factory=list)

    @property
    def odd(self) -> list[int]:
        """Return the ranks that differ from most; none where no variant is the more common one."""
        if len(self.sides) > 1 and len(self.sides[0][0]) == len(self.sides[1][0]):
            return []
        return sorted(rank for ranks, _ in self.sides[1:] for rank in ranks)


@dataclass(slots=True)
class Lag:
    """A collective that some ranks launched and others never did.

    ``behind`` are the ranks that did not, with their last number in the group; ``call`` is that of
    those who wait.
    """

    group: str
    call: Call
    waiting: list[int]
    behind: dict[int, int]
    last: dict[int, Call] = field(default_factory=dict)


@dataclass(slots=True)
class Compared:
    """What the comparison found.

    ``alike`` are groups in which every rank is as far as the others. ``without`` are ranks without
    a dump, where others have one.
    """

    differences: list[Difference] = field(default_factory=list)
    lags: list[Lag] = field(default_factory=list)
    alike: list[str] = field(default_factory=list)
    crossed: list[tuple[int, Call]] = field(default_factory=list)
    without: list[int] = field(default_factory=list)


def compare(job: Job) -> Compared:
    """Return how the ranks of a job differ in their collectives."""
    found = Compared()
    with_dump = {number: rank for number, rank in job.ranks.items() if rank.calls and number >= 0}
    if not with_dump:
        return found
    found.without = sorted(number for number in range(job.world or 0) if number not in with_dump)
    by_group: defaultdict[str, dict[int, list[Call]]] = defaultdict(dict)
    for number, rank in with_dump.items():
        for group, calls in rank.calls.items():
            own = [call for call in calls if not call.point_to_point]
            if own:
                by_group[group][number] = own
    for group, ranks in by_group.items():
        difference = _first_difference(group, ranks)
        if difference is not None:
            found.differences.append(difference)
            continue
        lag = _lag(group, ranks)
        if lag is not None:
            found.lags.append(lag)
        elif len(ranks) > 1:
            found.alike.append(group)
    found.lags.sort(key=lambda lag: -len(lag.waiting))
    found.crossed = _crossed(found.lags, with_dump)
    return found


def _first_difference(group: str, ranks: dict[int, list[Call]]) -> Difference | None:
    """Return the first number under which ranks have different collectives."""
    if len(ranks) < 2:
        return None
    numbered: defaultdict[int, dict[int, Call]] = defaultdict(dict)
    for rank, calls in ranks.items():
        for call in calls:
            numbered[call.number].setdefault(rank, call)
    for number in sorted(numbered):
        variants = numbered[number]
        if len(variants) < 2:
            continue
        for what in ("operation", "size", "type"):
            sides = _sides(what, variants)
            if len(sides) > 1:
                waiting = sorted(rank for rank, call in variants.items() if not call.done)
                return Difference(what, group, number, sides, waiting)
    return None


def _sides(what: str, calls: dict[int, Call]) -> list[tuple[list[int], Call]]:
    variants: defaultdict[str, list[int]] = defaultdict(list)
    for rank, call in calls.items():
        if what == "operation":
            key = call.operation
        elif call.operation.split(" ")[0].lstrip("_") in UNEQUAL:
            key = ""
        else:
            key = call.shapes if what == "size" else call.types
        variants[key].append(rank)
    return [
        (ranks, calls[ranks[0]])
        for ranks in sorted(variants.values(), key=lambda ranks: (-len(ranks), min(ranks)))
    ]


def _lag(group: str, ranks: dict[int, list[Call]]) -> Lag | None:
    """Return which ranks launched fewer collectives of a group than the others."""
    last = {rank: calls[-1] for rank, calls in ranks.items()}
    most = max(call.number for call in last.values())
    ahead = [rank for rank, call in last.items() if call.number == most]
    behind = {rank: call.number for rank, call in last.items() if call.number < most}
    if not behind:
        return None
    first = min(behind.values()) + 1
    call = next((one for one in ranks[ahead[0]] if one.number == first), last[ahead[0]])
    waiting = [rank for rank in last if rank not in behind]
    return Lag(group, call, sorted(waiting), behind, {rank: last[rank] for rank in behind})


def _crossed(lags: Iterable[Lag], ranks: dict[int, Rank]) -> list[tuple[int, Call]]:
    """Return ranks that are behind in one group while they are ahead or wait in another.

    Gloo marks a call that timed out as done, so the numbers decide as well.
    """
    found = []
    for lag in lags:
        for number in lag.behind:
            for group, calls in ranks[number].calls.items():
                if group == lag.group or not calls:
                    continue
                others = [ranks[one].calls.get(group, ()) for one in lag.waiting]
                most = max((one[-1].number for one in others if one), default=0)
                if not calls[-1].done or calls[-1].number > most:
                    found.append((number, calls[-1]))
    return found


def variants_text(difference: Difference) -> list[str]:
    """Return a sentence for each side of a difference."""
    texts = []
    for ranks, call in difference.sides:
        who = named_ranges("rank", ranks)
        shape = f" of {call.shapes}" if call.shapes else ""
        kind = f" {call.types}" if call.types else ""
        at = f" at {call.place}" if call.place else ""
        texts.append(f"{who}: {call.operation} {call.number}{shape}{kind}{at}")
    return texts
