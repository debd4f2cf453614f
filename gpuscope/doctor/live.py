"""Examines what runs now: takes the store's view of a host and returns findings.

Every rule is pure, and its evidence shows the arithmetic. A healthy trainer gets no warning or
worse: a card that is nearly full is not a fault while its peaks are steady, and growing memory is
one only where it is about to run out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from ..store.view import HistoryOf, HostView, JobView, no_history
from . import live_devices, live_effects, live_input, live_memory, live_stall, live_time
from .finding import Abstained, Finding, Report
from .live_scene import Said, Scene, living

_OF_A_JOB: tuple[Callable[[Scene, JobView], Said], ...] = (
    live_stall.standstill,
    live_stall.lost_ranks,
    live_memory.evaluation,
    live_memory.growth,
    live_memory.pressure,
    live_memory.full_but_steady,
    live_devices.foreign_memory,
    live_devices.ranks_on_one_device,
    live_devices.data_parallel,
    live_devices.on_the_cpu,
    live_input.waits_for_input,
    live_time.copies,
    live_time.communication,
    live_time.slow_rank,
    live_time.launch_bound,
    live_time.skipped_steps,
)
_OF_A_HOST: tuple[Callable[[Scene], Said], ...] = (
    live_devices.host_memory,
    live_devices.shared_memory,
)


def examine(
    host: HostView, history: HistoryOf = no_history, pids: Collection[int] | None = None
) -> Report:
    """Returns what is wrong with the trainers of ``host``, and with the host itself.

    The host is judged as far as it bears on the trainers. With ``pids``, only the jobs of these
    processes are examined. A job whose ranks have all ended is left to
    :mod:`gpuscope.doctor.postmortem`.
    """
    scene = Scene(host, history)
    said: list[Finding | Abstained] = []
    examined = []
    for job in host.jobs:
        if living(job) and (pids is None or not set(pids).isdisjoint(_pids(job))):
            examined.append(_job_name(job))
            said += [
                live_effects.with_effect(scene, job, one)
                for rule in _OF_A_JOB
                for one in rule(scene, job)
            ]
    if examined:
        said += [one for rule in _OF_A_HOST for one in rule(scene)]
    return Report(
        findings=tuple(one for one in said if isinstance(one, Finding)),
        abstained=tuple(one for one in said if isinstance(one, Abstained)),
        examined=tuple(examined),
        problems=()
        if host.unread is None
        else (f"Not all trainers here were checked: {host.unread.text}",),
    )


def _pids(job: JobView) -> Iterator[int]:
    yield from (trainer.definition.pid for trainer in job.trainers)
    yield from (process.definition.pid for process in job.processes)


def _job_name(job: JobView) -> str:
    ranks = living(job)
    if len(ranks) == 1:
        return f"{job.title} (pid {ranks[0].definition.pid})"
    return f"{job.title} ({len(ranks)} ranks)"
