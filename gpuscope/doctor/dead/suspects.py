"""Name the first causes that single ranks, the kernel or the scheduler show by themselves."""

from __future__ import annotations

import re
import signal
from collections import defaultdict
from collections.abc import Callable, Iterator

from ...text.units import duration_text
from ..finding import Confidence, Evidence
from . import rules
from .model import Failure, Moment, Suspect
from .scene import Scene, names, of_failure, of_moment, own_frame, short

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
STANDSTILL_SECONDS, STANDSTILL_TIMES = 20.0, 10.0
"""A job that made no step for so long, and for so many times as long as usual, stood still."""
SOONER_SECONDS = 2.0
"""An exception that is known to come so much sooner than another one comes first."""


def find(scene: Scene) -> Suspects:
    """Yield what is suspected of each source by itself."""
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
        evidence.append(Evidence(text=text, source=failure.source))
    same = [number for number in ranks if number != lead]
    if same:
        evidence.append(Evidence(text=f"{names(same)} failed in the same way"))
    everyone = len(ranks) > 1 and len(ranks) >= scene.world
    complained = [n for n in ranks if _complaint(scene, n, cause)] if everyone else []
    if 0 < len(complained) <= scene.world // 2:
        # all ranks heard of it and raised the same, but only these said what happened to them
        everyone, sure, lead = False, False, complained[0]
        text, source = _complaint(scene, lead, cause) or ("", "")
        evidence.insert(
            0, Evidence(text=f"only {names(complained)} said: {short(text)}", source=source)
        )
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
            "what": short(failure.text, 160),
        },
        where=frame.place if frame is not None else "",
        host=_host(scene, ranks),
        time=failure.time,
        traceback=failure.traceback,
    )


def _complaint(scene: Scene, number: int, cause: str) -> tuple[str, str] | None:
    """Return the line in which a rank itself named this cause, with its source."""
    found = [one for one in scene.get(number).complaints if rules.of_message(one[0]) == cause]
    return found[-1] if found else None


def _host(scene: Scene, ranks: list[int]) -> str:
    hosts = {scene.get(number).host for number in ranks}
    return hosts.pop() if len(hosts) == 1 and len(scene.hosts) > 1 else ""


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
            "what": short(failure.text, 160),
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
            text = f"{names([number])} ended with {code_text(left.code)}, the others were ended"
            yield Evidence(text=text, source=left.source)


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
            yield Evidence(text=text, source=stack.source)


def _exit(scene: Scene, number: int) -> Iterator[Evidence]:
    left = scene.get(number).exit
    if left is not None:
        yield Evidence(text=f"torchrun saw it end with {code_text(left.code)}", source=left.source)


def code_text(code: int) -> str:
    """Return ``exit code 3``, or ``SIGKILL`` for a negative number."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def exits(scene: Scene) -> Suspects:
    """Yield ranks that a signal or an exit code ended, without an exception or being told to."""
    groups: defaultdict[tuple[int, bool], list[int]] = defaultdict(list)
    for number, rank in scene.ranks.items():
        left = rank.exit
        if left is None or left.code in (0, -signal.SIGTERM) or rank.told is not None:
            continue
        if number in scene.own_failures or (rank.waited and left.code in (1, -signal.SIGABRT)):
            continue
        if left.code == -signal.SIGABRT and scene.aborts:
            continue
        if left.code == 1 and not rank.failures and scene.loose_causes:
            continue
        if any(moment.rule == "python-crash" for moment in rank.moments):
            continue
        groups[left.code, rank.waited].append(number)
    for (code, waited), ranks in groups.items():
        yield _of_exits(scene, code, waited, ranks)
    yield from _stopped(scene)


def _stopped(scene: Scene) -> Suspects:
    """Yield a rank that SIGTERM ended though its launcher did not send it, unlike to the others."""
    ends = {number: rank for number, rank in scene.ranks.items() if rank.exit is not None}
    told = [number for number, rank in ends.items() if rank.told is not None]
    alone = [
        number
        for number, rank in ends.items()
        if rank.exit is not None
        and rank.exit.code == -signal.SIGTERM
        and rank.told is None
        and not rank.waited
        and number not in scene.own_failures
    ]
    if len(alone) != 1 or not told:
        return
    left = ends[alone[0]].exit
    text = f"{names(alone)} ended with SIGTERM, which its launcher did not send"
    yield Suspect(
        cause="dead.stopped",
        ranks=tuple(alone),
        confidence="likely",
        weight=0.76,
        evidence=(Evidence(text=text, source=left.source if left is not None else ""),),
        figures={"who": names(alone).capitalize()},
        time=left.time if left is not None else None,
    )


_CRASHES = (-signal.SIGSEGV, -signal.SIGBUS, -signal.SIGILL, -signal.SIGFPE)
"""Signals that nobody but the kernel sends, for what the process itself did."""


def _of_exits(scene: Scene, code: int, waited: bool, ranks: list[int]) -> Suspect:
    """Return the ranks that ended with one code. Where all did, none is the culprit."""
    lead = scene.get(ranks[0])
    cause = "dead.silent-exit"
    if code < 0:
        cause = "dead.killed" if code == -signal.SIGKILL else "dead.crash"
    source = lead.exit.source if lead.exit is not None else ""
    evidence = [Evidence(text=f"{names(ranks)} ended with {code_text(code)}", source=source)]
    what = code_text(code)
    complaints = lead.complaints if lead.has_log else scene.loose.complaints
    said = complaints[-1] if complaints else None
    if code > 0 and said is not None:
        cause, what = rules.of_message(said[0]), short(said[0], 160)
        evidence.append(Evidence(text=f"it said: {short(said[0])}", source=said[1]))
    elif code == 1 and (not lead.has_log or not any(r.failures for r in scene.ranks.values())):
        # Python ends so after an exception, and no file here would show one
        cause = "dead.exception"
    elif lead.last_lines:
        text, at = lead.last_lines[-1]
        evidence.append(Evidence(text=f"its last line: {short(text)}", source=at))
    everyone = len(ranks) > 1 and len(ranks) >= scene.world
    host = _host(scene, ranks)
    if cause == "dead.killed" and len(ranks) > 1 and ranks == sorted(scene.hosts.get(host, ())):
        cause = "dead.node-lost"
    return Suspect(
        cause=cause,
        ranks=() if everyone else tuple(ranks),
        confidence="definite" if code in _CRASHES and len(ranks) == 1 and not waited else "likely",
        weight=0.6 if waited else 0.86 if code < 0 else 0.75,
        evidence=tuple(evidence),
        figures={
            "who": f"Host {host}"
            if cause == "dead.node-lost"
            else "Every rank"
            if everyone
            else names(ranks).capitalize(),
            "what": what,
        },
        host=host,
        time=lead.exit.time if lead.exit is not None else None,
    )


def host_memory(scene: Scene) -> Suspects:
    """Yield the ranks that the kernel killed for lack of the host's memory."""
    found = scene.moments("kernel-memory", "slurm-memory")
    if not found:
        return
    killed = [
        number
        for number, rank in scene.ranks.items()
        if rank.exit is not None and rank.exit.code == -signal.SIGKILL and rank.told is None
    ]
    loaders = [
        number
        for number, failure in scene.own_failures.items()
        if failure.cause in ("dead.killed", "dead.out-of-memory-host", "dead.crash")
    ]
    named = [one.rank for one in found if one.rank is not None]
    by_pid = [
        number
        for number, rank in scene.ranks.items()
        if rank.pid is not None and any(one.fields.get("pid") == str(rank.pid) for one in found)
    ]
    tasks = [
        int(one.fields["task"])
        for one in found
        if one.fields.get("task", "").isdigit() and int(one.fields["task"]) < scene.world
    ]
    by_host = [
        number
        for one in found
        if one.host
        for number in scene.hosts.get(one.host, ())
        if number not in scene.waiting and number not in scene.own_failures
    ]
    ranks = by_pid or named or killed or loaders or tasks or by_host
    if not ranks and len(scene.silent) == 1:
        ranks = scene.silent
    sure = bool(by_pid) or (len(killed) == 1 and not by_pid)
    yield Suspect(
        cause="dead.out-of-memory-host",
        ranks=tuple(dict.fromkeys(ranks)),
        confidence="definite" if sure and len(set(ranks)) == 1 else "likely",
        weight=0.93,
        evidence=tuple(of_moment(one) for one in found[:3]),
        figures={"who": names(ranks).capitalize() if ranks else "A process of the job"},
        host=found[0].host,
        time=found[0].time,
    )


def device_faults(scene: Scene) -> Suspects:
    """Yield GPUs that the driver reported as faulty."""
    found = scene.moments("xid", "gpu-lost")
    if not found:
        return
    pids = {one.fields.get("pid", "").strip("'<>") for one in found}
    ranks = [
        number
        for number, rank in scene.ranks.items()
        if rank.pid is not None and str(rank.pid) in pids
    ] or [
        number
        for number, failure in scene.own_failures.items()
        if failure.cause in ("dead.device-error", "dead.device-error")
    ]
    software = all(
        one.fields.get("xid") in ("13", "31", "43", "45", "68", "69")
        for one in found
        if one.rule == "xid"
    )
    yield Suspect(
        cause="dead.device-error",
        ranks=tuple(ranks),
        confidence="likely",
        weight=0.5 if software else 0.92,
        evidence=tuple(of_moment(one) for one in found[:3]),
        figures={"who": f"The GPU of {names(ranks)}" if ranks else "A GPU"},
        host=found[0].host,
        time=found[0].time,
    )


def scheduler(scene: Scene) -> Suspects:
    """Yield what the scheduler or somebody else did to the whole job."""
    weights = {"time-limit": 0.8, "preempted": 0.8, "cancelled": 0.45, "agent-signal": 0.42}
    for rule, weight in weights.items():
        found = scene.moments(rule)
        if not found or (
            rule in ("cancelled", "agent-signal")
            and scene.moments("time-limit", "preempted", "node-failure", "slurm-memory")
        ):
            continue
        calm = not scene.own_failures and not scene.timed_out
        stood = _stood_before(scene, found[0])
        calm = calm and stood is None
        yield Suspect(
            cause=found[0].cause,
            ranks=(),
            confidence="definite" if calm and rule in ("time-limit", "preempted") else "likely",
            weight=weight + 0.1 * calm - 0.15 * (stood is not None),
            evidence=(*(of_moment(one) for one in found[:3]), *([stood] if stood else [])),
            figures={"who": "The job"},
            time=found[0].time,
        )
    interrupted = [
        (number, failure)
        for number, rank in [*scene.ranks.items(), (-1, scene.loose)]
        for failure in rank.failures
        if failure.means == "told" and "KeyboardInterrupt" in failure.text
    ]
    if interrupted and not scene.own_failures:
        yield Suspect(
            cause="dead.stopped",
            ranks=(),
            confidence="likely",
            weight=0.5,
            evidence=tuple(of_failure(failure) for _, failure in interrupted[:2]),
            figures={"who": "The job"},
        )


def _stood_before(scene: Scene, end: Moment) -> Evidence | None:
    """Return what shows that the job had made no step for long when it was ended."""
    steps = [rank for rank in scene.ranks.values() if rank.step_time is not None]
    if end.time is None or not steps:
        return None
    last = max(steps, key=lambda rank: rank.step_time or 0.0)
    gap = end.time - (last.step_time or 0.0)
    usual = [rank.step_seconds for rank in steps if rank.step_seconds]
    if gap < STANDSTILL_SECONDS or (usual and gap < STANDSTILL_TIMES * max(usual)):
        return None
    text = f"the last step of any rank was {duration_text(gap)} before: {last.step}"
    return Evidence(text=text, source=last.step_source)


def nodes(scene: Scene) -> Suspects:
    """Yield hosts that the scheduler reported as failed, with their ranks."""
    found = scene.moments("node-failure")
    if not found:
        return
    hosts = [one.host for one in found if one.host]
    ranks = [number for host in hosts for number in scene.hosts.get(host, ())]
    yield Suspect(
        cause="dead.node-lost",
        ranks=tuple(dict.fromkeys(ranks)),
        confidence="definite",
        weight=0.95,
        evidence=tuple(of_moment(one) for one in found[:3]),
        figures={"who": f"Host {hosts[0]}" if hosts else "A host"},
        host=hosts[0] if hosts else "",
        time=found[0].time,
    )


RULES: tuple[Callable[[Scene], Suspects], ...] = (
    failures, unplaced, messages, exits, host_memory, device_faults, scheduler, nodes,
)  # fmt: skip
