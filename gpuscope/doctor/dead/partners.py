"""Name the ranks whose sends and receives do not fit together.

NCCL's flight recorder holds each of these calls with both ranks, Gloo's holds none: there, stacks
and exceptions only say that a rank waits in a send or a receive, and at which line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise

from ..finding import Evidence
from .absent import Suspects, elsewhere
from .model import Call, Rank, Suspect
from .scene import POINT_TO_POINT, Scene, in_words, names, waits
from .waiting import minority, of_recorder, unfinished, waiting_places, waiting_transfers

_RECEIVES = frozenset(("recv", "irecv"))


def find(scene: Scene) -> Suspects:
    """Yield what the sends and receives of all ranks suspect."""
    for rule in RULES:
        yield from rule(scene)


# ── flight recorders ──────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Wait:
    """A rank's send or receive that is not done, and to which its partner has none that fits."""

    rank: int
    partner: int
    call: Call


def recorded(scene: Scene) -> Suspects:
    """Yield circles of ranks, and the rank on which a chain of waiting ranks ends."""
    begun = {number: _begun(waiting_transfers(rank)) for number, rank in scene.ranks.items()}
    yield from _unequal(scene, begun)
    found: dict[int, Wait] = {}
    for number, calls in begun.items():
        for call in calls:
            partner = call.partner(number)
            if partner is None or _answer(begun.get(partner, ()), call):
                continue
            if not _is_elsewhere(scene, number, calls[-1], partner):
                found.setdefault(number, Wait(number, partner, call))
    circle = _circle(found)
    if circle:
        yield _of_circle(scene, [found[number] for number in circle])
        return
    ends: dict[int, list[Wait]] = {}
    for wait in found.values():
        ends.setdefault(_end(found, wait), []).append(wait)
    for number, chain in ends.items():
        direct = [wait for wait in chain if wait.partner == number]
        yield _of_end(scene, number, direct, len(chain))


def _begun(calls: list[Call]) -> list[Call]:
    """Return those of a rank's unfinished transfers, the oldest first, that the device has begun.

    NCCL queues a call: it does not begin behind one that blocks, nor behind an earlier one with
    the same partner, and answers nobody until then. Those of a batch begin together.
    """

    def holds(first: Call, call: Call) -> bool:
        same_group = first.group == call.group
        if same_group and first.number == call.number:
            return False
        pair = {first.source, first.target} == {call.source, call.target}
        return first.blocks or (same_group and pair)

    return [
        call
        for index, call in enumerate(calls)
        if not any(holds(first, call) for first in calls[:index])
    ]


def _is_elsewhere(scene: Scene, number: int, last: Call, partner: int) -> bool:
    """Return whether a rank started its transfers and went on: to other code, or a collective.

    A call that blocks holds the device, however far Python has come. And if the partner has nothing
    to do and is in other code, that explains more.
    """
    rank, other = scene.get(number), scene.get(partner)
    if _is_in_other_code(rank) and not last.blocks:
        idle = other.has_flight and unfinished(other) is None
        return not (idle and _is_in_other_code(other))
    busy = _unfinished_collective(rank)
    return busy is not None and (busy.created or 0.0) > (last.created or 0.0)


def _is_in_other_code(rank: Rank) -> bool:
    return bool(rank.stacks) and not waits(rank)


def _answer(calls: Iterable[Call], call: Call) -> Call | None:
    """Return the other side of a call, if the partner waits in it as well."""
    return next(
        (
            one
            for one in calls
            if one.group == call.group
            and (one.source, one.target) == (call.source, call.target)
            and one.sends != call.sends
        ),
        None,
    )


def _unequal(scene: Scene, pending: dict[int, list[Call]]) -> Suspects:
    """Yield the send and the receive of two ranks that fit but for their size or type."""
    for number, calls in pending.items():
        for call in [one for one in calls if one.sends]:
            other = _answer(pending.get(call.target or 0, ()), call)
            if other is None:
                continue
            what = "size" if _size(other) != _size(call) else "type"
            if what == "type" and other.types == call.types:
                continue
            ranks = (number, call.target or 0)
            mine, theirs = (_size(one) if what == "size" else one.types for one in (call, other))
            yield Suspect(
                cause="dead.collective-size" if what == "size" else "dead.collective-dtype",
                ranks=ranks,
                confidence="likely",
                weight=0.88,
                evidence=(
                    _of_call(scene, ranks[0], call),
                    _of_call(scene, ranks[1], other),
                ),
                figures={
                    "who": names(ranks[:1]).capitalize(),
                    "call": "its send",
                    "others": f"{names(ranks[1:])} its recv",
                    "what": mine,
                    "other": theirs,
                },
                where=call.place,
                time=call.created,
            )


def _size(call: Call) -> str:
    return call.shapes.removeprefix("nothing to ").removesuffix(" to nothing") or "nothing"


def _circle(found: dict[int, Wait]) -> list[int]:
    """Return ranks of which each waits for the next, and the last for the first."""
    known: set[int] = set()
    for start in sorted(found):
        path: dict[int, None] = {}
        rank = start
        while rank in found and rank not in known:
            known.add(rank)
            path[rank] = None
            rank = found[rank].partner
        if rank in path:
            ranks = list(path)
            return ranks[ranks.index(rank) :]
    return []


def _end(found: dict[int, Wait], wait: Wait) -> int:
    """Return the rank that waits for none in a chain of waiting ranks without a circle."""
    while wait.partner in found:
        wait = found[wait.partner]
    return wait.partner


def _of_circle(scene: Scene, circle: list[Wait]) -> Suspect:
    """Return the suspect of a circle: those first whose call is unlike all calls before it."""
    unusual = [one for one in circle if _is_unusual(scene.get(one.rank), one.call)]
    ordered = [*unusual, *(one for one in circle if one not in unusual)]
    everyone = not unusual and len(circle) == scene.world
    ranks = tuple(one.rank for one in (unusual if len(unusual) == 1 else ordered))
    chain = " → ".join(str(one.rank) for one in [*circle, circle[0]])
    what = f"each waits for the next: {chain}"
    if len(unusual) == 1:
        what = f"{in_words(unusual[0].call)}, which it does not do otherwise; {what}"
    return Suspect(
        cause="dead.point-to-point",
        ranks=() if everyone else ranks,
        confidence="likely",
        weight=0.9,
        evidence=tuple(_of_call(scene, one.rank, one.call) for one in ordered[:6]),
        figures={"who": "Every rank" if everyone else names(ranks).capitalize(), "what": what},
        where=ordered[0].call.place,
        time=ordered[0].call.created,
    )


def _is_unusual(rank: Rank, call: Call) -> bool:
    """Return whether a rank made no other call with this partner in this direction."""
    return not any(
        one is not call and one.operation == call.operation
        for one in rank.calls.get(call.group, ())
    )


def _of_end(scene: Scene, number: int, direct: list[Wait], waiting: int) -> Suspect:
    """Return the suspect of a chain: the rank that does not make the call that is waited for."""
    rank = scene.get(number)
    evidence = [_of_call(scene, one.rank, one.call) for one in direct[:4]]
    first = direct[0]
    missing = f"{'recv' if first.call.sends else 'send'} of {names([first.rank])}'s data"
    missing = missing if first.call.sends else f"send to {names([first.rank])}"
    busy = _unfinished_collective(rank)
    if busy is None:
        return elsewhere(scene, [number], evidence, 0.86, missing)
    at = f" at {busy.place}" if busy.place else ""
    text = f"{names([number])} waits in {busy.title}{at}, and never called the {missing}"
    return Suspect(
        cause="dead.point-to-point",
        ranks=(number,),
        confidence="likely",
        weight=0.86,
        evidence=(*evidence, Evidence(text, of_recorder(scene, number))),
        figures={
            "who": names([number]).capitalize(),
            "what": f"never called the {missing}, for which {waiting} waited",
        },
        where=busy.place,
        time=busy.created,
    )


def _unfinished_collective(rank: Rank) -> Call | None:
    found = [
        call
        for calls in rank.calls.values()
        for call in calls[-1:]
        if not call.point_to_point and not call.done
    ]
    return max(found, key=lambda call: call.created or 0.0, default=None)


def _of_call(scene: Scene, number: int, call: Call) -> Evidence:
    shape = f" of {_size(call)} {call.types}".rstrip()
    at = f" at {call.place}" if call.place else ""
    text = f"{names([number])} waits in its {in_words(call)}{shape}{at}"
    return Evidence(text, of_recorder(scene, number))


# ── stacks and exceptions ─────────────────────────────────────────────────────────────────────────


def in_stacks(scene: Scene) -> Suspects:
    """Yield what can be said where every rank waits in a send or a receive, and nothing says whom.

    All in the same call wait for each other. Else the odd one is suspected, or two neighbours of
    which one waits in a send and the next in a receive.
    """
    found = waiting_places(scene)
    if len(found) < max(scene.world, 2) or any(map(waiting_transfers, scene.ranks.values())):
        return
    if any(operation not in POINT_TO_POINT for _, operation, _ in found.values()):
        return
    where = {number: place for number, (place, _, _) in found.items()}
    shown = [found[number][2] for number in sorted(found)]
    if len(set(where.values())) == 1:
        operation = found[min(found)][1]
        text = f"all of them wait in {operation} at {where[min(found)]}, so that none is answered"
        yield _of_places((), "Every rank", text, shown[:3], 0.8, where[min(found)])
        return
    odd = minority({n: operation for n, (_, operation, _) in found.items()})
    odd = odd or minority(where)
    if len(odd) == 1:
        place, operation, evidence = found[odd[0]]
        text = f"it waits in {operation} at {place}, for which no other rank has the other side"
        others = [one for one in shown if one is not evidence]
        who = names(odd).capitalize()
        yield _of_places(tuple(odd), who, text, [evidence, *others[:3]], 0.76, place)
        return
    for number, following in pairwise(sorted(found)):
        if found[number][1] not in _RECEIVES and found[following][1] in _RECEIVES:
            text = (
                f"{names([number])} waits in a send and {names([following])} in a receive: one of "
                "them names another rank, tag or order"
            )
            pair = (number, following)
            both = [found[one][2] for one in pair]
            yield _of_places(pair, names(pair).capitalize(), text, both, 0.7, where[number])
            return


def _of_places(
    ranks: tuple[int, ...], who: str, what: str, evidence: list[Evidence], weight: float, place: str
) -> Suspect:
    return Suspect(
        cause="dead.point-to-point",
        ranks=ranks,
        confidence="likely",
        weight=weight,
        evidence=tuple(evidence),
        figures={"who": who, "what": what},
        where=place,
    )


RULES: tuple[Callable[[Scene], Suspects], ...] = (recorded, in_stacks)
