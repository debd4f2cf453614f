"""Name the first causes that exit codes, the kernel and the scheduler show."""

from __future__ import annotations

import re
import signal
from collections import defaultdict
from collections.abc import Callable, Iterator

from ...text.units import duration_text
from ..finding import Evidence
from . import read_core, rules
from .absent import recorded_words
from .model import Core, Moment, Suspect
from .scene import Scene, code_text, ended_text, host_of, names, of_failure, of_moment, short

Suspects = Iterator[Suspect]
_FROM_ANYBODY = ("save-at-sigterm",)
"""What to do about a signal of which nothing says that a scheduler sent it."""
STANDSTILL_SECONDS, STANDSTILL_TIMES = 20.0, 10.0
"""A job is stalled if it made no step for this long, and for this many times as long as usual."""


def find(scene: Scene) -> Suspects:
    """Yield what was seen of the ends of ranks, hosts and the job."""
    for rule in RULES:
        yield from rule(scene)


def exits(scene: Scene) -> Suspects:
    """Yield ranks that a signal or an exit code ended, unless the launcher made them end."""
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
    text = f"{names(alone)} was killed by SIGTERM, which its launcher did not send"
    yield Suspect(
        cause="dead.stopped",
        ranks=tuple(alone),
        confidence="likely",
        weight=0.76,
        evidence=(Evidence(text, left.source if left is not None else ""),),
        figures={"who": names(alone).capitalize()},
        time=left.time if left is not None else None,
        advice=_FROM_ANYBODY,
    )


_FAULTS = frozenset((signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE))
_OF_GPUS = re.compile(
    r"lib(?:cuda|cudart|nvidia-ml|nccl|cudnn|cublas|amdhip64|rccl|torch|torch_cuda|torch_cpu|c10)[._\d]"
)
SAME_END_SECONDS = 1.5
"""Ends of ranks within this many seconds have no order: an agent looks no more often."""
MOST_CORES, MOST_LIBRARIES = 4, 8
_CRASHES = tuple(-one for one in _FAULTS)
"""Signals that nobody but the kernel sends, for what the process itself did."""


def _of_exits(scene: Scene, code: int, waited: bool, ranks: list[int]) -> Suspect:
    """Return the ranks that ended with one code. If all did, no rank is the culprit."""
    lead = scene.get(ranks[0])
    cause = "dead.silent-exit"
    if code < 0:
        cause = "dead.killed" if code == -signal.SIGKILL else "dead.crash"
    source = lead.exit.source if lead.exit is not None else ""
    evidence = [Evidence(f"{names(ranks)} {ended_text(code, ranks)}", source)]
    what = code_text(code)
    complaints = lead.complaints if lead.has_log else scene.loose.complaints
    said = complaints[-1] if complaints else None
    if code > 0 and said is not None:
        cause, what = rules.of_message(said[0]), short(said[0], 160)
        evidence.append(Evidence(f"it said: {short(said[0])}", said[1]))
    elif code == 1 and (not lead.has_log or not any(r.failures for r in scene.ranks.values())):
        # Python ends so after an exception, and no file here would show one
        cause = "dead.exception"
    elif lead.last_lines:
        text, at = lead.last_lines[-1]
        evidence.append(Evidence(f"its last line: {short(text)}", at))
    everyone = len(ranks) > 1 and len(ranks) >= scene.world
    evidence += recorded_words(lead)
    host = host_of(scene, ranks)
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
            "ended": ended_text(code, () if everyone else ranks),
        },
        host=host,
        time=lead.exit.time if lead.exit is not None else None,
    )


def cores(scene: Scene) -> Suspects:
    """Yield the processes whose core files show that a signal ended them.

    Native code also aborts because it lost another rank, so that SIGABRT of a rank that waited says
    nothing of the first cause.
    """
    crashed = [one for one in scene.job.cores if one.signal in read_core.CRASHES]
    crashed = [one for one in crashed if one.signal != signal.SIGABRT or not _gave_up(scene, one)]
    crashed.sort(key=lambda one: one.time or 0.0)
    for number, core in enumerate(crashed[:MOST_CORES]):
        code = code_text(-core.signal)
        who = f"PID {core.pid}" if core.rank is None else f"rank {core.rank} (PID {core.pid})"
        died = f"{who} died of {code} in: {short(core.command or core.name, 120)}"
        evidence = [Evidence(died, core.source)]
        if core.place:
            evidence.append(Evidence(f"it was in {core.place}", core.source))
        sent = core.sender not in (None, core.pid)
        if sent:
            text = f"process {core.sender} had sent the signal"
            evidence.append(Evidence(text, core.source))
        libraries = _libraries(core)
        if libraries:
            text = f"mapped, of {len(core.files)} files: {', '.join(libraries)}"
            evidence.append(Evidence(text, core.source))
        yield Suspect(
            cause="dead.crash",
            ranks=() if core.rank is None else (core.rank,),
            confidence="definite"
            if len(crashed) == 1 and core.signal in _FAULTS and not sent
            else "likely",
            weight=0.9 - 0.1 * min(number, 2),
            evidence=tuple(evidence),
            figures={
                "who": who[:1].upper() + who[1:],
                "what": code + (f" in {core.place}" if core.place else ""),
                "core": core.source,
                "program": core.program,
            },
            host=scene.get(core.rank).host if core.rank is not None else "",
            time=core.time,
        )


def _gave_up(scene: Scene, core: Core) -> bool:
    """Return whether the process of a core file aborted because of another rank."""
    waited = core.rank is not None and scene.get(core.rank).waited
    told = core.rank is not None and core.rank in scene.own_failures
    return waited or told or bool(scene.aborts)


def _libraries(core: Core) -> list[str]:
    """Return the mapped libraries of the GPU and of torch, each once, with what their names say."""
    names = (path.rpartition("/")[2] for path in core.files)
    return sorted({name for name in names if _OF_GPUS.match(name)})[:MOST_LIBRARIES]


def recorded_ends(scene: Scene) -> Suspects:
    """Yield the rank that a recording saw end before all others, without an error message."""
    ends = sorted(
        (rank.gone[0], number) for number, rank in scene.ranks.items() if rank.gone is not None
    )
    first = [number for at, number in ends if at - ends[0][0] < SAME_END_SECONDS]
    if not ends or len(first) == len(ends) or len(first) > len(scene.ranks) // 2:
        return
    lead = scene.get(first[0])
    if set(first) & set(scene.own_failures) or lead.finished or lead.gone is None:
        return
    text = f"{names(first)} ended first, and {duration_text(ends[len(first)][0] - ends[0][0])}"
    text += f" before the others: {short(lead.gone[1])}"
    yield Suspect(
        cause="dead.killed",
        ranks=tuple(first),
        confidence="likely",
        weight=0.76,
        evidence=(
            Evidence(text, lead.recorded[1] if lead.recorded else ""),
            *recorded_words(lead),
        ),
        figures={
            "who": names(first).capitalize(),
            "ended": "ended first and without an error message",
        },
        time=ends[0][0],
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
        figures={
            "who": f"The GPU of {names(ranks)}" if ranks else "A GPU",
            "what": short(found[0].text, 160),
        },
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
            advice=_FROM_ANYBODY if rule == "agent-signal" else (),
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
            advice=_FROM_ANYBODY,
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
    return Evidence(text, last.step_source)


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
    exits, cores, recorded_ends, host_memory, device_faults, scheduler, nodes,
)  # fmt: skip
