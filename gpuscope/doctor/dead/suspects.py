"""Name the first causes that ranks themselves print: exceptions, and lines with a meaning."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator

from ..finding import Confidence, Evidence
from . import rules
from .absent import recorded_words
from .model import Failure, Moment, Suspect
from .scene import (
    Scene,
    code_text,
    ended_text,
    host_of,
    names,
    of_failure,
    of_moment,
    own_frame,
    short,
)

Suspects = Iterator[Suspect]
COMPARED = ("mismatch", "size", "models-differ")
"""Exceptions that name a difference between ranks: ``apart`` finds out which rank differs."""
_VARYING = re.compile(r"0x[0-9a-f]+|\d+|'[^']*'|\"[^\"]*\"|/\S+")
_OF_OTHERS = re.compile(
    r"\b(?:ranks?|peers?|connect\w*|tim(?:ed?|ing) ?out|timeout|store|collective|process group|nccl"
    r"|gloo|barrier|heartbeat|other|remote|socket|abort\w*)\b",
    re.I,
)
"""Words of an exception that may be about another rank, so that it is not sure to come first."""
_OF_ANYTHING = re.compile(r"(?:RuntimeError|OSError|Exception|SystemError|PermissionError)\b")
"""Exceptions that may be of the system as well as of the program."""
_ASKED = re.compile(r"[Tt]ried to allocate [\d.]+ [KMGT]?i?B(?:ytes)?\b")
SOONER_SECONDS = 2.0
"""An exception is ranked first if it is known to come this many seconds before another one."""


def find(scene: Scene) -> Suspects:
    """Yield what ranks themselves print."""
    for rule in RULES:
        yield from rule(scene)


def failures(scene: Scene) -> Suspects:
    """Yield the exceptions of ranks that nothing else explains, alike ones together."""
    groups: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for number, failure in scene.own_failures.items():
        if failure.kind not in COMPARED:
            groups[failure.cause, _VARYING.sub("#", failure.text)[:120]].append(number)
    everyone = len(scene.own_failures)
    times = {
        number: failure.time
        for number, failure in scene.own_failures.items()
        if failure.time is not None
    }
    first = min(times.values(), default=None)
    others = len(groups) > 1
    surely_fatal = any(failure.fatal for failure in scene.own_failures.values())
    for (cause, _), ranks in groups.items():
        own = [times[number] for number in ranks if number in times]
        at = min(own, default=None)
        late = at is not None and first is not None and at - first >= SOONER_SECONDS
        flagged = any(rank.exit is not None and rank.exit.first for rank in map(scene.get, ranks))
        sooner = at is not None and at == first and len(times) == everyone
        weight = 0.9 - 0.25 * late - (0.05 if others and not flagged and not sooner else 0.0)
        if others and cause == "dead.wrong-address":
            weight -= 0.2  # the others cannot reach a rank that failed before it listened
        if not any(scene.own_failures[number].fatal for number in ranks) and surely_fatal:
            weight -= 0.3  # it may have been caught, and others surely ended their process
        lead = min(ranks, key=lambda number: (times.get(number, float("inf")), number))
        failure = scene.own_failures[lead]
        sure = not others and not late and failure.means == "cause"
        yield _of_failure(scene, cause, ranks, failure, lead, weight, sure)


def _of_failure(
    scene: Scene,
    cause: str,
    ranks: list[int],
    failure: Failure,
    lead: int,
    weight: float,
    sure: bool,
) -> Suspect:
    frame = own_frame(failure.frames, innermost_last=True)
    evidence = [of_failure(failure, names([lead]))]
    if len(failure.chain) > 1 and failure.first + 1 < len(failure.chain):
        text = f"then, in the same rank: {short(failure.chain[-1])}"
        evidence.append(Evidence(text, failure.source))
    if cause == "dead.device-error":
        evidence += [
            of_moment(one) for one in scene.moments("kernel-assert") if one.rank in (lead, None)
        ][:1]
    evidence += recorded_words(scene.get(lead))
    same = [number for number in ranks if number != lead]
    if same:
        evidence.append(Evidence(f"{names(same)} failed in the same way"))
    everyone = len(ranks) > 1 and len(ranks) >= scene.world
    complained = [n for n in ranks if _complaint(scene, n, cause)] if everyone else []
    if 0 < len(complained) <= scene.world // 2:
        # all ranks heard of it and raised the same, but only these said what happened to them
        everyone, sure, lead = False, False, complained[0]
        text, source = _complaint(scene, lead, cause) or ("", "")
        evidence.insert(0, Evidence(f"only {names(complained)} said: {short(text)}", source))
        ranks, same = complained, complained[1:]
    sure = sure and failure.kind != "before-waiting"
    if cause == "dead.exception":
        sure = sure and not _OF_ANYTHING.match(failure.text)
    sure = sure and len(ranks) < max(scene.world, 2) and not _OF_OTHERS.search(failure.text)
    confidence: Confidence = "definite" if sure else "likely"
    return Suspect(
        cause=cause or "dead.exception",
        ranks=() if everyone else (lead, *same),
        confidence=confidence,
        weight=weight,
        evidence=tuple(evidence),
        figures={
            "who": "Every rank" if everyone else names(ranks).capitalize(),
            "first": "" if everyone else " first",
            "what": _what(failure),
        },
        where=frame.place if frame is not None else "",
        host=host_of(scene, ranks),
        time=failure.time,
        traceback=failure.traceback,
    )


def _what(failure: Failure) -> str:
    """Return what a title says of an exception: its evidence has all of it."""
    asked = _ASKED.search(failure.text) if failure.cause == "dead.out-of-memory-gpu" else None
    return f"t{asked[0][1:]}" if asked is not None else short(failure.text, 160)


def _complaint(scene: Scene, number: int, cause: str) -> tuple[str, str] | None:
    """Return the line in which a rank itself named this cause, with its source."""
    found = [one for one in scene.get(number).complaints if rules.of_message(one[0]) == cause]
    return found[-1] if found else None


def unplaced(scene: Scene) -> Suspects:
    """Yield exceptions that no file gives to a rank, such as those of a launcher."""
    own = [one for one in scene.loose.failures if one.means == "cause" and one.kind not in COMPARED]
    seen = {failure.text[:200] for failure in scene.own_failures.values()}
    fresh = [one for one in own if one.text[:200] not in seen]
    if not fresh:
        return
    failure = fresh[0]
    same = [one for one in fresh if one.cause == failure.cause]
    alone = not scene.ranks
    ranks = _ended_by_exceptions(scene)
    frame = own_frame(failure.frames, innermost_last=True)
    yield Suspect(
        cause=failure.cause or "dead.exception",
        ranks=tuple(ranks),
        confidence="definite" if alone and len(same) == len(fresh) else "likely",
        weight=0.85 if alone or not scene.own_failures else 0.4,
        evidence=(*(of_failure(one) for one in fresh[:3]), *_exits_of(scene, ranks)),
        figures={
            "who": names(ranks).capitalize()
            if ranks
            else "The program"
            if alone
            else "A process whose rank is not known",
            "what": _what(failure),
        },
        where=frame.place if frame is not None else "",
        time=failure.time,
        traceback=failure.traceback,
    )


def _ended_by_exceptions(scene: Scene) -> list[int]:
    """Return the ranks that ended as Python does after an exception, and printed none of their own.

    Of several, those that torchrun saw end first.
    """
    found = [
        number
        for number, rank in scene.ranks.items()
        if rank.exit is not None and rank.exit.code == 1 and rank.told is None and not rank.failures
    ]
    first = [n for n in found if (left := scene.get(n).exit) is not None and left.first]
    return first or found


def _exits_of(scene: Scene, ranks: list[int]) -> Iterator[Evidence]:
    for number in ranks[:2]:
        left = scene.get(number).exit
        if left is not None:
            text = f"{names([number])} {ended_text(left.code, [number])}, the others were ended"
            yield Evidence(text, left.source)


def messages(scene: Scene) -> Suspects:
    """Yield causes that lines of a rank's own log name, such as a crash of the interpreter."""
    groups: defaultdict[str, list[tuple[int, Moment]]] = defaultdict(list)
    for number, rank in scene.ranks.items():
        for moment in rank.moments:
            if moment.means == "cause" and moment.rule in (
                "python-crash",
                "usage",
                "bus-error",
                "disk-full",
                "no-script",
            ):
                groups[moment.cause].append((number, moment))
    for cause, found in groups.items():
        ranks = sorted({number for number, _ in found})
        if set(ranks) & set(scene.own_failures):
            continue
        if "Aborted" in found[0][1].text and (scene.get(ranks[0]).waited or scene.aborts):
            continue
        lead, moment = found[0]
        told = scene.get(lead).told is not None
        yield Suspect(
            cause=cause,
            ranks=tuple(ranks),
            confidence="likely",
            weight=0.55 if told else 0.85,
            evidence=(of_moment(moment), *_stack(scene, lead), *_exit(scene, lead)),
            figures={"who": names(ranks).capitalize(), "what": short(moment.text, 160)},
            time=moment.time,
        )


def _stack(scene: Scene, number: int) -> Iterator[Evidence]:
    for stack in scene.get(number).stacks[:1]:
        frame = own_frame(stack.frames, innermost_last=False)
        if frame is not None:
            text = f"its stack: {frame.place} in {frame.function}"
            yield Evidence(text, stack.source)


def _exit(scene: Scene, number: int) -> Iterator[Evidence]:
    left = scene.get(number).exit
    if left is not None:
        yield Evidence(f"torchrun saw it end with {code_text(left.code)}", left.source)


RULES: tuple[Callable[[Scene], Suspects], ...] = (failures, unplaced, messages)
