"""Name the possible first causes that only a comparison of the ranks shows.

A rank calls another collective than the others, or calls fewer of them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator

from ...snapshot.model import Frame
from ..finding import Confidence, Evidence
from .absent import Suspects, elsewhere
from .desync import Difference, Lag, variants_text
from .model import Call, Rank, Suspect
from .scene import (
    POINT_TO_POINT,
    Scene,
    collective_of,
    fatal,
    names,
    of_failure,
)
from .waiting import minority, of_recorder, waiting_places, waiting_transfers

_FIELD = re.compile(r"(\w+)=(\[[^\]]*\]|[^,\[]+)")
_CAUSES = {
    "operation": "dead.collective-order",
    "size": "dead.collective-size",
    "type": "dead.collective-dtype",
}


SURE_BYTES = 64
"""Parts of fewer bytes are rounded, so that the ratio of their sizes tells nothing of types."""


def find(scene: Scene) -> Suspects:
    """Yield what a comparison of the ranks suspects."""
    for rule in RULES:
        yield from rule(scene)


# ── flight recorders ──────────────────────────────────────────────────────────────────────────────


def differences(scene: Scene) -> Suspects:
    """Yield the collectives in which the ranks differ by what their flight recorders hold."""
    for difference in scene.compared.differences:
        odd = difference.odd
        cause = _CAUSES[difference.what]
        ranks = odd or sorted(rank for side, _ in difference.sides[1:] for rank in side)
        if difference.what == "operation" and odd and _is_at_its_end(scene, difference, odd):
            cause = "dead.uneven-steps"
        usual = _usual_group(scene, difference, odd[0]) if odd else None
        if usual is not None and cause != "dead.uneven-steps":
            same = usual == difference.group
            cause = "dead.collective-order" if same else "dead.collective-group"
        sure = usual == difference.group if difference.what == "operation" else usual is None
        evidence = [
            Evidence(text, of_recorder(scene, side[0]))
            for text, (side, _) in zip(variants_text(difference), difference.sides, strict=True)
        ]
        waiting = difference.waiting
        if waiting and len(waiting) < sum(len(side) for side, _ in difference.sides):
            # NCCL compares nothing: a rank with the smaller tensor finishes, and goes on
            text = f"{names(waiting)} waits in it, while the others have finished theirs"
            evidence.append(Evidence(text, of_recorder(scene, waiting[0])))
        sure = sure and bool(odd) and len(difference.sides[0][0]) >= 2
        confidence: Confidence = "definite" if sure else "likely"
        yield Suspect(
            cause=cause,
            ranks=tuple(ranks),
            confidence=confidence if cause == _CAUSES[difference.what] else "likely",
            weight=0.92 if odd else 0.85 if waiting else 0.7,
            evidence=tuple(evidence),
            figures={
                "who": names(ranks).capitalize(),
                "what": _differing(difference, difference.sides[-1][1]),
                "other": _differing(difference, difference.sides[0][1]),
                "others": "the others" if odd else names(difference.sides[0][0]),
            },
            where=difference.sides[-1][1].place,
            time=difference.sides[-1][1].created,
        )


def _differing(difference: Difference, call: Call) -> str:
    """Return that of a call in which it differs from the others."""
    if difference.what == "operation":
        return call.title
    return f"{call.shapes if difference.what == 'size' else call.types} in {call.title}"


def _is_at_its_end(scene: Scene, difference: Difference, odd: list[int]) -> bool:
    """Return whether the odd ranks had done all their steps: their last call is a barrier."""
    call = difference.sides[-1][1]
    usual = difference.sides[0][1]
    if "barrier" not in call.operation or "barrier" in usual.operation:
        return False
    for number in odd:
        calls = scene.get(number).calls.get(difference.group, ())
        if not calls or calls[-1].number != difference.number:
            return False
    return True


def _usual_group(scene: Scene, difference: Difference, odd: int) -> str | None:
    """Return the group in which other ranks make the odd call at other times, if they make it.

    If that is the same group, the odd rank is ahead or behind, and the size of its tensor is right.
    If it is another group, the rank used the wrong one.
    """
    mine = difference.sides[-1][1]
    found = set()
    for number in difference.sides[0][0][:4]:
        for group, calls in scene.get(number).calls.items():
            if number != odd and any(
                (call.operation, call.shapes, call.types)
                == (mine.operation, mine.shapes, mine.types)
                for call in calls
            ):
                found.add(group)
    return difference.group if difference.group in found else next(iter(sorted(found)), None)


def lags(scene: Scene) -> Suspects:
    """Yield the ranks that launched fewer collectives of a group than the others."""
    crossed = dict(scene.compared.crossed)
    for lag in scene.compared.lags:
        # those that wait in a send or a receive are judged by ``partners``
        behind = sorted(n for n in lag.behind if not waiting_transfers(scene.get(n)))
        if not behind:
            continue
        if len(behind) > len(lag.waiting) and len(lag.waiting) > 0 and len(behind) > 1:
            behind = [number for number in behind if lag.behind[number] == min(lag.behind.values())]
        evidence = [
            Evidence(
                f"{names(lag.waiting)} launched {lag.call.title}"
                + (f" of group {lag.call.label}" if lag.call.label != "default_pg" else "")
                + (f" at {lag.call.place}" if lag.call.place else ""),
                of_recorder(scene, lag.waiting[0]),
            ),
            *(
                Evidence(
                    f"{names([number])} launched only {lag.behind[number]} of that group, and "
                    f"{lag.last[number].title} as its last"
                    + (f" at {lag.last[number].place}" if lag.last[number].place else ""),
                    of_recorder(scene, number),
                )
                for number in behind[:4]
            ),
        ]
        across = [number for number in behind if number in crossed]
        if across:
            yield _crossed(scene, lag, across, evidence)
            continue
        yield elsewhere(scene, behind, evidence, 0.88, lag.call.title)


def _crossed(scene: Scene, lag: Lag, ranks: list[int], evidence: list[Evidence]) -> Suspect:
    call = dict(scene.compared.crossed)[ranks[0]]
    usual = Counter(
        sum(1 for one in calls if not one.point_to_point)
        for number in lag.waiting
        for group, calls in scene.get(number).calls.items()
        if group == call.group
    )
    often = bool(usual) and max(usual) >= 2
    text = f"{names(ranks)} waits in {call.title} of group {call.label or call.group}"
    text += f" at {call.place}" if call.place else ""
    return Suspect(
        cause="dead.collective-order" if often else "dead.collective-group",
        ranks=tuple(ranks),
        confidence="likely",
        weight=0.9,
        evidence=(*evidence, Evidence(text, of_recorder(scene, ranks[0]))),
        figures={
            "who": names(ranks).capitalize(),
            "what": f"{call.title} of group {call.label}",
            "other": f"{lag.call.title} of group {lag.call.label}",
        },
        where=call.place,
        time=call.created,
    )


# ── what ranks printed about each other ───────────────────────────────────────────────────────────


def fingerprints(scene: Scene) -> Suspects:
    """Yield ranks whose collective or model differs, by the messages that name both sides."""
    pairs: list[_Pair] = []
    counts: dict[int, str] = {}
    against: set[int] = set()
    shown = []
    for number, rank in scene.ranks.items():
        for failure in rank.failures:
            fields = failure.fields
            if failure.kind == "mismatch":
                mine, theirs = (dict(_FIELD.findall(fields[one])) for one in ("mine", "theirs"))
                pairs.append((int(fields["rank"]), mine, int(fields["other"]), theirs))
            elif failure.kind == "models-differ":
                against.add(number)
                if "mine" in fields:
                    counts[int(fields["rank"])] = fields["mine"]
                    counts[int(fields["other"])] = fields["theirs"]
            else:
                continue
            shown.append(of_failure(failure, names([number])))
    if pairs:
        yield from _of_fingerprints(pairs, shown)
    if against:
        odd = minority(counts) or (sorted(against) if len(against) <= scene.world // 2 else [0])
        yield Suspect(
            cause="dead.model-mismatch",
            ranks=tuple(odd),
            confidence="likely",
            weight=0.92,
            evidence=tuple(shown[:4]),
            figures={"who": names(odd).capitalize(), "what": shown[0].text},
        )


_Pair = tuple[int, dict[str, str], int, dict[str, str]]
"""A rank, the fields of its collective, another rank and those of its: they differ."""


def _of_fingerprints(pairs: list[_Pair], shown: list[Evidence]) -> Suspects:
    """Yield the rank whose collective differs, from what each rank said of itself and of another.

    A rank names the first rank that differs from it, so the odd one is in every pair.
    """
    for field, cause in (
        ("OpType", "dead.collective-order"),
        ("TensorShape", "dead.collective-size"),
        ("TensorDtypes", "dead.collective-dtype"),
    ):
        apart = [one for one in pairs if one[1].get(field) != one[3].get(field)]
        if not apart:
            continue
        named = Counter(number for one in apart for number in (one[0], one[2]))
        ranked = named.most_common()
        odd = [number for number, count in ranked if count == ranked[0][1]]
        values = {one[2]: one[3].get(field, "") for one in apart}
        # a rank knows its own collective better than torch reads that of the other one
        values |= {one[0]: one[1][field] for one in apart if field in one[1]}
        other = next(one[2] if one[0] == odd[0] else one[0] for one in apart if odd[0] in one)
        if values[odd[0]] == "BARRIER":
            cause = "dead.uneven-steps"
        sure = len(odd) == 1 and len(named) > 2 and cause in _CAUSES.values()
        yield Suspect(
            cause=cause,
            ranks=tuple(odd),
            confidence="definite" if sure and field != "TensorShape" else "likely",
            weight=0.93 if len(odd) == 1 else 0.7,
            evidence=tuple(shown[:4]),
            figures={
                "who": names(odd).capitalize(),
                "what": values[odd[0]],
                "other": values[other],
            },
        )
        return


def sizes(scene: Scene) -> Suspects:
    """Yield ranks whose tensor had another size, by gloo's check of what arrives.

    The check fails in the rank that has the smaller tensor, or receives from the one with the
    larger. It may fail in a thread of its own, which ends the process by SIGABRT.
    """
    found = {
        number: failure
        for number, rank in scene.ranks.items()
        for failure in rank.failures
        if failure.kind == "size"
    }
    unplaced = [one for one in scene.loose.failures if one.kind == "size"]
    if unplaced and scene.aborted:
        found.setdefault(scene.aborted[0], unplaced[0])
    if not found or any(one.what != "operation" and one.odd for one in scene.compared.differences):
        return
    lead = next(iter(found))
    sender = (lead + 1) % max(scene.world, 1)  # in gloo's ring
    ranks = _minority_of_places(scene) or list(dict.fromkeys((*sorted(found), sender)))
    own = collective_of(found[lead].frames[::-1])
    of_others = {operation for _, operation, _ in waiting_places(scene).values()}
    of_two = own in POINT_TO_POINT if own else bool(of_others) and of_others <= POINT_TO_POINT
    if of_two:
        ranks = sorted(found)
    fields = found[lead].fields
    theirs, mine = int(fields.get("mine", 0)), int(fields.get("theirs", 0))
    least, most = sorted((mine, theirs))
    types = least >= SURE_BYTES and most in (2 * least, 4 * least) and not of_two
    evidence = [of_failure(one, names([number])) for number, one in [*found.items()][:4]]
    if of_two:
        text = f"{names([lead])} receives another size than its partner sends"
        evidence.append(Evidence(text))
    elif scene.world > 2:
        text = f"the tensor of {names([lead])} is too small, or that of {names([sender])} too large"
        evidence.append(Evidence(text))
    yield Suspect(
        cause="dead.collective-dtype" if types else "dead.collective-size",
        ranks=tuple(ranks),
        confidence="likely",
        weight=0.9,
        evidence=tuple(evidence),
        figures={
            "who": names(ranks).capitalize(),
            "what": f"{mine} bytes",
            "other": f"{theirs} bytes",
        },
    )


# ── where each rank was ───────────────────────────────────────────────────────────────────────────


def _minority_of_places(scene: Scene) -> list[int]:
    return minority(
        {number: place for number, (place, _, _) in waiting_places(scene).items() if place}
    )


def places(scene: Scene) -> Suspects:
    """Yield ranks that waited in another collective, or at another line, than most others."""
    found = waiting_places(scene)
    if len(found) < 3 and len(found) < scene.world:
        return
    if all(operation in POINT_TO_POINT for _, operation, _ in found.values()):
        return  # ``partners`` judges these
    operations = {number: operation for number, (_, operation, _) in found.items() if operation}
    odd = minority(operations)
    by_operation = bool(odd)
    if not odd:
        odd = minority({n: place for n, (place, _, _) in found.items() if place})
    if not odd or len(odd) > scene.world // 2:
        return
    most = [number for number in found if number not in odd]
    place, operation, evidence = found[odd[0]]
    usual_place, usual, usual_evidence = found[most[0]]
    ended = (
        "barrier" in operation
        and "barrier" not in usual
        and _is_not_ahead(scene, odd, most)
        and _is_below(_frames(scene.get(odd[0])), _frames(scene.get(most[0])))
    )
    yield Suspect(
        cause="dead.uneven-steps" if ended else "dead.collective-order",
        ranks=tuple(odd),
        confidence="likely",
        weight=0.8 if by_operation else 0.74,
        evidence=(evidence, usual_evidence, *_step_evidence(scene, odd, most)),
        figures={
            "who": names(odd).capitalize(),
            "what": f"{operation or 'a collective'} at {place}",
            "other": f"{usual or 'a collective'} at {usual_place}",
        },
        where=place,
    )


def _frames(rank: Rank) -> list[Frame]:
    """Return the user's own frames of where a rank waited, the outermost first."""
    failure = fatal(rank)
    frames = failure.frames if failure is not None else []
    if not frames and rank.stacks:
        frames = rank.stacks[0].frames[::-1]
    return [frame for frame in frames if frame.own]


def _is_below(odd: list[Frame], usual: list[Frame]) -> bool:
    """Return whether the odd stack is further down in the function in which two stacks part.

    What is called above it in that function is inside of the loop, and not behind its end.
    """
    for mine, theirs in zip(odd, usual, strict=False):
        if (mine.file, mine.function) != (theirs.file, theirs.function):
            return True
        if mine.line != theirs.line:
            return mine.line > theirs.line
    return True


def _is_not_ahead(scene: Scene, odd: list[int], most: list[int]) -> bool:
    mine = [step for number in odd if (step := scene.get(number).step) is not None]
    theirs = [step for number in most if (step := scene.get(number).step) is not None]
    return not mine or not theirs or max(mine) <= max(theirs)


def _step_evidence(scene: Scene, odd: list[int], most: list[int]) -> Iterator[Evidence]:
    for group in (odd, most):
        known = [number for number in group if scene.get(number).step is not None]
        if known:
            rank = scene.get(known[0])
            text = f"last step of {names(known[:1])}: {rank.step}"
            yield Evidence(text, rank.step_source)


RULES: tuple[Callable[[Scene], Suspects], ...] = (differences, lags, fingerprints, sizes, places)
