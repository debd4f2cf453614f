"""Rules over what runs now: the store's picture of a host in, findings with their arithmetic out.

Every rule is pure. A healthy trainer gets nothing of warning or worse: a card that is nearly full is not a fault while
its peaks are steady, and memory that grows is one only where it is about to run out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from ..store.view import HistoryOf, HostView, JobView, no_history
from . import live_devices, live_effects, live_input, live_memory, live_stall, live_time
from .finding import Abstained, Finding, Report
from .live_scene import Said, Scene, living

_OF_A_JOB: tuple[Callable[[Scene, JobView], Said], ...] = (
    live_stall.standing,
    live_stall.lost_ranks,
    live_memory.evaluation,
    live_memory.growth,
    live_memory.pressure,
    live_memory.full_but_steady,
    live_devices.foreign,
    live_devices.ranks_on_one_device,
    live_devices.data_parallel,
    live_devices.on_the_cpu,
    live_input.waits_for_input,
    live_time.copies,
    live_time.communication,
    live_time.straggling,
    live_time.launch_bound,
    live_time.skipped,
)
_OF_A_HOST: tuple[Callable[[Scene], Said], ...] = (live_devices.host_memory, live_devices.shared_memory)


def examine(host: HostView, history: HistoryOf = no_history, pids: Collection[int] | None = None) -> Report:
    """What is wrong with the trainers of ``host``, and with the host as far as it bears on them. ``pids``: of the jobs
    of these processes only. A job whose ranks have all ended is not looked at (:mod:`gpuscope.doctor.postmortem`)."""
    scene = Scene(host, history)
    said: list[Finding | Abstained] = []
    examined = []
    for job in host.jobs:
        if living(job) and (pids is None or not set(pids).isdisjoint(_pids(job))):
            examined.append(_name(job))
            said += [live_effects.told(scene, job, one) for rule in _OF_A_JOB for one in rule(scene, job)]
    if examined:
        said += [one for rule in _OF_A_HOST for one in rule(scene)]
    return Report(
        findings=tuple(one for one in said if isinstance(one, Finding)),
        abstained=tuple(one for one in said if isinstance(one, Abstained)),
        examined=tuple(examined),
        problems=() if host.unread is None else (f"Not all trainers here were looked at: {host.unread.text}",),
    )


def _pids(job: JobView) -> Iterator[int]:
    yield from (trainer.definition.pid for trainer in job.trainers)
    yield from (process.definition.pid for process in job.processes)


def _name(job: JobView) -> str:
    ranks = living(job)
    if len(ranks) == 1:
        return f"{job.title} (pid {ranks[0].definition.pid})"
    return f"{job.title} ({len(ranks)} ranks)"
