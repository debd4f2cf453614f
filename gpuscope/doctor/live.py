"""Examine what runs now: take the store's view of a host and return findings.

Every rule is a pure function, and its evidence shows the arithmetic. A healthy trainer gets no
warning: a card that is nearly full is not a fault while its peaks are steady, and growing memory is
a fault only where it is about to run out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace

from ..model.job_order import worst_first
from ..store.view import DeviceView, HistoryOf, HostView, JobView, no_history
from . import (
    live_causes,
    live_devices,
    live_effects,
    live_input,
    live_loss,
    live_memory,
    live_pace,
    live_stall,
    live_states,
    live_syncs,
    live_time,
)
from .finding import Abstained, Finding, Report
from .live_scene import Findings, LiveScene, living
from .order import pid_of

_OF_A_JOB: tuple[Callable[[LiveScene, JobView], Findings], ...] = (
    live_stall.standstill,
    live_stall.lost_ranks,
    live_loss.not_finite,
    live_memory.evaluation,
    live_memory.growth,
    live_memory.pressure,
    live_memory.full_but_steady,
    live_devices.foreign_memory,
    live_devices.ranks_on_one_device,
    live_devices.data_parallel,
    live_devices.on_the_cpu,
    live_input.waits_for_input,
    live_causes.rows,
    live_syncs.syncs_in_each_micro_batch,
    live_time.copies,
    live_time.communication,
    live_time.slow_rank,
    live_pace.slower,
    live_time.launch_bound,
    live_states.idle_tensor_cores,
    live_time.skipped_steps,
)
_BY_ITS_LOG = (live_loss.not_finite,)
"""What can be told of a training without a probe."""
_OF_A_DEVICE: tuple[Callable[[LiveScene, DeviceView], Findings], ...] = (
    live_states.device_health,
    live_states.full,
)
_OF_A_HOST: tuple[Callable[[LiveScene], Findings], ...] = (
    live_devices.host_memory,
    live_devices.shared_memory,
)


def examine(
    host: HostView, history: HistoryOf = no_history, pids: Collection[int] | None = None
) -> Report:
    """Returns what is wrong with the trainers, the devices and the memory of ``host``.

    A training without a probe is judged by its log, and named only where that says something. The
    host itself is judged only as far as it affects the trainers. With ``pids``, only the jobs
    of these processes and the devices that they use are examined. A job whose ranks have all ended
    is left to :mod:`gpuscope.doctor.postmortem`.
    """
    scene = LiveScene(host, history)
    found: list[Finding | Abstained] = []
    examined: list[str] = []
    for job in worst_first(host):
        if pids is not None and set(pids).isdisjoint(pids_of(job)):
            continue
        rules = _OF_A_JOB if living(job) else _BY_ITS_LOG
        told = [
            live_effects.with_effect(scene, job, one) for rule in rules for one in rule(scene, job)
        ]
        if told or living(job):
            examined.append(_job_name(job))
        name = "" if job.title.startswith("pid ") else job.title
        found += [replace(one, job=name) if isinstance(one, Finding) else one for one in told]
    devices = [one for one in host.devices if one.gone is None and _is_asked_for(one, host, pids)]
    if not examined and pids is not None:
        devices = []
    for device in devices:
        inside = tuple(t.definition.pid for t in host.trainers if device in scene.devices(t))
        found += [
            replace(one, pids=inside) if isinstance(one, Finding) else one
            for rule in _OF_A_DEVICE
            for one in rule(scene, device)
        ]
    if examined:
        found += [one for rule in _OF_A_HOST for one in rule(scene)]
    return Report(
        findings=tuple(one for one in found if isinstance(one, Finding)),
        abstained=tuple(one for one in found if isinstance(one, Abstained)),
        examined=(*examined, *([_count_text(devices)] if devices else [])),
        problems=()
        if host.unread is None
        else (f"Not all trainers here were checked: {host.unread.text}",),
    )


def _is_asked_for(device: DeviceView, host: HostView, pids: Collection[int] | None) -> bool:
    """Returns whether a device is used by one of the processes, or all devices are asked for."""
    if pids is None:
        return True
    here = {one.id for one in host.processes if one.definition.pid in pids}
    inside = {one.id for one in host.trainers if one.definition.pid in pids}
    return any(use.process in here for use in device.uses if use.gone is None) or any(
        one.definition.trainer in inside for one in device.allocators if one.gone is None
    )


def _count_text(devices: Sequence[DeviceView]) -> str:
    return f"{len(devices)} GPUs" if len(devices) > 1 else f"GPU {devices[0].definition.index}"


def pids_of(job: JobView) -> Iterator[int]:
    """Yields the pids of a job's members."""
    yield from (trainer.definition.pid for trainer in job.trainers)
    yield from (process.definition.pid for process in job.processes)


def job_of(finding: Finding, host: HostView) -> JobView | None:
    """Returns the job that a finding is about, None where it is about the host or several jobs."""
    named = pid_of(finding)
    pids = set(finding.pids if named is None else (named,))
    about = [job for job in host.jobs if not pids.isdisjoint(pids_of(job))]
    return about[0] if len(about) == 1 else None


def _job_name(job: JobView) -> str:
    ranks = living(job)
    if not ranks:
        return f"the log of {job.title} (pid {job.processes[0].definition.pid}), without a probe"
    if len(ranks) == 1:
        return f"{job.title} (pid {ranks[0].definition.pid})"
    return f"{job.title} ({len(ranks)} ranks)"
