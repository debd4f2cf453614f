"""Name the ranks that others waited for: those that are missing where all the others are."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator

from ...text.units import count_text, duration_text
from ..finding import Evidence
from .model import Moment, Rank, Suspect
from .scene import (
    LOADER,
    Scene,
    code_text,
    collective_of,
    fatal,
    in_loader,
    in_torchs_loader,
    names,
    of_failure,
    short,
    stands_at,
    waits,
)

Suspects = Iterator[Suspect]
_TRANSFERS = frozenset(("SEND", "RECV", "COALESCED"))
_LIMIT = re.compile(r"(?:Timed out waiting |ran for |Timeout\(ms\)=|monitoredBarrier in )(\d+)")


def find(scene: Scene, explained: bool) -> Suspects:
    """Yield the ranks that others waited for.

    ``explained`` says that a rank is known to have failed: silence then tells nothing.
    """
    for rule in RULES:
        if not (explained and rule is missing):
            yield from rule(scene)


def barriers(scene: Scene) -> Suspects:
    """Yield the ranks that a monitored barrier names as missing."""
    named: dict[int, Evidence] = {}
    for rank in (*scene.ranks.values(), scene.loose):
        for one in rank.effects():
            ranks = one.fields.get("ranks", "")
            if "monitoredBarrier" in one.text and ranks:
                evidence = Evidence(short(one.text), one.source)
                for digits in re.findall(r"\d+", ranks):
                    named.setdefault(int(digits), evidence)
    missing = [number for number in named if number not in scene.own_failures]
    if missing:
        yield elsewhere(scene, sorted(missing), list(dict.fromkeys(named.values()))[:2], 0.87)


def watchdogs(scene: Scene) -> Suspects:
    """Yield the ranks that launched fewer collectives, by what the watchdogs of NCCL printed.

    A rank whose own last ones are not completed is not elsewhere: it waits too, in one that the
    others may have finished without it. Sends and receives are counted likewise, but ranks may well
    have different numbers of them.
    """
    if any(one.fields.get("operation") in _TRANSFERS for one in scene.moments("watchdog")):
        return
    states: dict[tuple[str, int], Moment] = {}
    for moment in scene.moments("watchdog-state"):
        if moment.rank is not None:
            states.setdefault((moment.fields.get("group", ""), moment.rank), moment)
    by_group: defaultdict[str, dict[int, int]] = defaultdict(dict)
    for (group, rank), moment in states.items():
        by_group[group][rank] = int(moment.fields["enqueued"])
    for group, enqueued in by_group.items():
        most = max(enqueued.values())
        behind = [number for number, count in enqueued.items() if count < most]
        if behind and len(behind) <= len(enqueued) // 2:
            least = min(enqueued.values())
            behind = [
                number
                for number in behind
                if enqueued[number] == least
                and int(states[group, number].fields["completed"]) >= least
            ]
            ahead = next(number for number, count in enqueued.items() if count == most)
            evidence = [_of_state(states[group, number]) for number in (*behind[:3], ahead)]
            if behind:
                yield elsewhere(scene, sorted(behind), evidence, 0.8)


def _of_state(state: Moment) -> Evidence:
    """Return how far a rank had come by what its watchdog printed, without the advice around it."""
    enqueued, completed = state.fields["enqueued"], state.fields["completed"]
    text = f"the watchdog of {names([state.rank or 0])}: last enqueued NCCL work: {enqueued}, last "
    return Evidence(f"{text}completed NCCL work: {completed}", state.source)


def recorded(scene: Scene) -> Suspects:
    """Yield the ranks that held up the others, by what a recording of the job shows."""
    for one in scene.job.recorded:
        behind = [number for number in one.behind if number not in scene.own_failures]
        if behind:
            yield elsewhere(scene, behind, [Evidence(one.text, one.source)], 0.8)


def missing(scene: Scene) -> Suspects:
    """Yield the ranks that said nothing while the others waited for them or lost them."""
    silent = scene.silent
    if not scene.waiting or not silent:
        return
    if len(silent) > max(1, scene.world // 2):
        yield from _alone(scene)
        return
    suspects = _narrowed(scene, silent)
    who = sorted(scene.waiting)
    first = scene.get(who[0])
    effect = next(first.effects(), None)
    evidence = []
    if effect is not None:
        text = f"{names(who)} waited or lost the connection: {short(effect.text, 160)}"
        evidence.append(Evidence(text, effect.source))
    host = _whole_host(scene, silent)
    if host and not any(scene.get(number).told for number in silent):
        yield _gone(scene, silent, host, evidence)
        return
    weight = 0.76 if len(suspects) == 1 else 0.66
    yield elsewhere(scene, suspects, evidence, weight)


def _alone(scene: Scene) -> Suspects:
    """Yield the only rank that waited: it may be in a collective to which no other rank comes."""
    if len(scene.waiting) != 1 or not scene.timed_out:
        return
    number = next(iter(scene.waiting))
    failure = fatal(scene.get(number))
    if failure is None:
        return
    operation = collective_of(failure.frames[::-1]) or "a collective"
    yield Suspect(
        cause="dead.collective-order",
        ranks=(number,),
        confidence="likely",
        weight=0.45,
        evidence=(
            of_failure(failure, names([number])),
            Evidence("no other rank says that it waited: they may be in another collective"),
        ),
        figures={"who": names([number]).capitalize(), "what": operation, "other": "theirs"},
    )


def _narrowed(scene: Scene, silent: list[int]) -> list[int]:
    """Return those silent ranks that something else speaks against as well."""
    get = scene.get
    kept = (
        [n for n in silent if get(n).stacks and not waits(get(n))],
        [n for n in silent if n in scene.compared.without and scene.compared.alike],
        [n for n in silent if get(n).finished],
        [n for n in silent if scene.listed and get(n).exit is None],
    )
    for fewer in kept:
        if fewer:
            return fewer
    steps = {n: step for n in silent if (step := scene.get(n).step) is not None}
    if steps and min(steps.values()) < max(steps.values()):
        return [number for number in steps if steps[number] == min(steps.values())]
    return silent


def _whole_host(scene: Scene, silent: list[int]) -> str:
    """Return the host of which all ranks are silent, while those of other hosts are not."""
    if len(scene.hosts) < 2:
        return ""
    for host, ranks in scene.hosts.items():
        if len(ranks) > 1 and set(ranks) == set(silent):
            return host
    return ""


def _gone(scene: Scene, ranks: list[int], host: str, evidence: list[Evidence]) -> Suspect:
    lines = [
        Evidence(
            f"{names([number])} ends with: {short(scene.get(number).last_line, 120)}",
            scene.get(number).step_source,
        )
        for number in ranks[:2]
        if scene.get(number).last_line
    ]
    return Suspect(
        cause="dead.node-lost",
        ranks=tuple(ranks),
        confidence="likely",
        weight=0.84,
        evidence=(
            *evidence,
            *lines,
            Evidence(f"all ranks of {host} stop without an error message, and nothing ended them"),
        ),
        figures={"who": f"Host {host}"},
        host=host,
    )


def elsewhere(
    scene: Scene,
    ranks: list[int],
    evidence: list[Evidence],
    weight: float,
    never_called: str = "",
) -> Suspect:
    """Return what ranks did that others waited for, as far as it is known.

    ``never_called`` is the collective that they never launched, by their flight recorders.
    """
    lead = scene.get(ranks[0])
    place, function, source = stands_at(lead)
    more: list[Evidence] = []
    ended_well = _ended_well(scene, ranks[0])
    cause = "dead.code-hang"
    what = f"never called {never_called}" if never_called else "did not arrive"
    if place and not waits(lead):
        text = f"{names(ranks[:1])} was at {place} in {function}"
        more.append(Evidence(text, source))
        cause = "dead.input-hang" if in_loader(lead) else "dead.code-hang"
        what = f"{what}, and was in {function}" if never_called else f"was in {function}"
        weight += 0.1
    elif ended_well:
        more.append(ended_well)
        cause = "dead.uneven-steps"
        what = f"{what}, and had ended" if never_called else "had ended"
        weight += 0.06
    elif not scene.timed_out and lead.exit is None and lead.told is None and not never_called:
        died = scene.listed or lead.sources or scene.lost_connections
        cause = "dead.killed" if died else "dead.code-hang"
        what = "ended without an error message"
    if cause == "dead.code-hang" and not place and LOADER.search(lead.last_line):
        cause = "dead.input-hang"
    if lead.last_line and not place and cause != "dead.uneven-steps":
        more.append(Evidence(f"its last line: {short(lead.last_line, 160)}", lead.step_source))
    more += recorded_words(lead)
    if lead.told is not None:
        text = f"{names(ranks[:1])} still ran when its launcher ended it"
        more.append(Evidence(text, lead.told.source))
    return Suspect(
        cause=cause,
        ranks=tuple(ranks),
        confidence="likely",
        weight=min(weight, 0.94),
        evidence=(*evidence, *more),
        figures={
            "who": names(ranks).capitalize(),
            "what": what,
            "ended": "ended without an error message",
            "waiters": _waiters(scene, ranks),
        },
        where=place,
        advice=("limit-the-wait",)
        if cause == "dead.input-hang" and place and not in_torchs_loader(lead)
        else (),
    )


def recorded_words(rank: Rank) -> list[Evidence]:
    """Return the last step and the memory of a rank, if a recording or a black box has them."""
    if rank.recorded is None or not rank.recorded[0]:
        return []
    words, source = rank.recorded
    return [Evidence(f"last recorded of {names([rank.number])}: {words}", source)]


def _waiters(scene: Scene, ranks: list[int]) -> str:
    """Return ``63 others waited 10 min``, or ``Rank 0 waited 10 min``, as far as it is known."""
    waiting = scene.waiting - set(ranks)
    who = count_text(len(waiting), "other") if waiting else "The others"
    if len(waiting) == 1:
        who = names(waiting).capitalize()
    limits = [
        int(match[1]) / 1e3
        for rank in scene.ranks.values()
        for one in rank.effects()
        if (match := _LIMIT.search(one.text)) is not None
    ]
    return f"{who} waited {duration_text(max(limits))}" if limits else f"{who} waited"


def _ended_well(scene: Scene, number: int) -> Evidence | None:
    """Return what shows that a rank had come to its end without an error."""
    rank = scene.get(number)
    if rank.finished:
        text = f"{names([number])} says that it is done: {short(rank.last_line, 100)}"
        return Evidence(text, rank.finished)
    if rank.exit is not None and rank.exit.code == 0:
        return Evidence(f"{names([number])} ended with {code_text(0)}", rank.exit.source)
    others = [one for n, one in scene.ranks.items() if n != number and one.exit is not None]
    launcher = scene.listed and rank.exit is None and rank.told is None
    if launcher and len(others) >= scene.world - 1 and scene.world > 1:
        text = f"torchrun lists every rank as failed or ended by it, but not {names([number])}"
        return Evidence(text, others[0].exit.source if others[0].exit else "")
    return None


RULES: tuple[Callable[[Scene], Suspects], ...] = (barriers, watchdogs, recorded, missing)
