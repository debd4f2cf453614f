"""Say where the time of the trainers of a host went, for every verb that asks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..doctor import (
    live_input,
    live_loss,
    live_scene,
    live_stall,
    live_states,
    live_syncs,
    live_time,
    table,
)
from ..doctor.finding import Finding
from ..doctor.live_causes import Judged, of_ledger
from ..doctor.live_scene import Findings, LiveScene
from ..doctor.steps import steps_of
from ..model import slowdown, time_ledger
from ..model.late_rank import LateRank, late_rank
from ..model.lost_loss import loss_of
from ..model.ranks import name_of
from ..model.standstill import NO_LEDGER, standstill_of
from ..model.step_time import measured_step, split_of, warmed_up
from ..model.time_cause import settings_of
from .time_document import TrainerTime, document

if TYPE_CHECKING:
    from ..store.store import Store
    from ..store.view import HistoryOf, HostView, JobView, TrainerView


def history_of(store: Store, key: str) -> HistoryOf:
    """Return the histories of a source."""
    return lambda entity, column, seconds: store.history(key, entity, column, seconds)


def late_of(
    trainers: Sequence[TrainerView], host: HostView, history: HistoryOf, window: float
) -> LateRank | None:
    """Return the rank of a job that the others wait for, by samples of the last seconds."""
    ledgers = {one.key: time_ledger.of_trainer(one, window) for one in trainers}
    return late_rank(trainers, history, host, ledgers)


def _of_its_gpu(trainer: TrainerView) -> str:
    """Say that nothing is known of the GPU of a trainer, "" where something is."""
    used = [one for one in trainer.allocators if one.gone is None and one.definition.ordinal >= 0]
    if not trainer.definition.cuda or not used or any(one.gpu is not None for one in used):
        return ""
    return (
        "It trains on a MIG slice or on a GPU that the driver does not list here, so that nothing "
        "is judged by the GPU's own readings. Which GPUs are listed: gpuscope devices"
    )


def _input(scene: LiveScene, trainer: TrainerView) -> Findings:
    """Return how a trainer waits for input by the parts of its steps, where these are told."""
    told = not time_ledger.recent(trainer).looks and warmed_up(trainer)
    return live_input.of_ranks(scene, [trainer] if told else [])


def _parts(trainer: TrainerView, ledger: time_ledger.TimeLedger) -> tuple[tuple[str, float], ...]:
    """Return the parts of the last steps, the longest first: none beside a ledger that tells."""
    if ledger.sure or not measured_step([trainer]):
        return ()
    seconds = {name: max(0.0, spent) for name, spent in split_of(trainer).items()}
    return tuple(sorted(seconds.items(), key=lambda one: -one[1]))


def _by_readings(
    scene: LiveScene, trainer: TrainerView, judged: Sequence[Judged]
) -> tuple[Finding, ...]:
    """Return what the readings of the job's cards show, where nobody has looked inside a step.

    What its steps show of copies, communication and reductions comes with it.
    """
    job = scene.host.job_of(trainer)
    if job is None:
        return ()
    told = {one.finding.pitfall for one in judged}
    found = [
        *_input(scene, trainer),
        *live_time.copies(scene, job),
        *live_time.communication(scene, job),
        *live_syncs.syncs_in_each_micro_batch(scene, job),
    ]
    if scene.look(trainer) is None:
        found += [*live_states.idle_tensor_cores(scene, job), *live_time.launch_bound(scene, job)]
    return tuple(one for one in found if isinstance(one, Finding) and one.pitfall not in told)


def _of_late_rank(scene: LiveScene, trainer: TrainerView, late: LateRank) -> tuple[Finding, ...]:
    """Return what to do about the rank that the others wait for, which may be this one."""
    job = scene.host.job_of(trainer)
    if job is None:
        return ()
    found = live_time.of_late_rank(scene, job, live_scene.living(job), late)
    return tuple(one for one in found if isinstance(one, Finding))


def _urgent(scene: LiveScene, trainer: TrainerView, still: bool, over: bool) -> tuple[Finding, ...]:
    """Return what is to be done before a step can be faster, or is worth it.

    Of a training that is ``over`` nothing can be helped any more.
    """
    job = scene.host.job_of(trainer)
    if job is None:
        return ()
    looked_for = [live_loss.not_finite, *([live_stall.standstill] if still else [])]
    found = []
    for look in looked_for:
        one = next((one for one in look(scene, job) if isinstance(one, Finding)), None)
        if one is None:
            continue
        fixes = one.fixes or tuple(table.load()[one.pitfall].fixes_for(one.cause))
        steps = steps_of(replace(one, fixes=fixes), over or scene.recorded)
        first = [next((fix for fix in steps if fix.now == now), None) for now in (True, False)]
        found.append(replace(one, fixes=tuple(fix for fix in first if fix is not None)))
    return tuple(found)


def of_trainer(
    trainer: TrainerView,
    host: HostView,
    history: HistoryOf,
    window: float,
    again: str,
    note: str = "",
    late: LateRank | None = None,
    over: bool = False,
) -> TrainerTime:
    """Return what is known of the time of one trainer in the last ``window`` seconds.

    ``again`` is the command that asks for it again. ``late`` is the rank of its job that the others
    wait for. ``over`` says that it is known from a file.
    """
    definition, still = trainer.definition, standstill_of(trainer, host.job_of(trainer))
    lost = loss_of(host, trainer, history)
    judged: list[Judged] = []
    readings: tuple[Finding, ...] = ()
    waits_for: tuple[Finding, ...] = ()
    # a faster step is no answer to a hang, so nothing is judged of it
    scene = LiveScene(host, history)
    if still is not None:
        ledger = time_ledger.until_last_step(trainer, window)
    else:
        ledger = time_ledger.of_trainer(trainer, window)
        judged = of_ledger(scene, trainer, ledger, late)
        readings = _by_readings(scene, trainer, judged)
        if late is not None:
            waits_for = _of_late_rank(scene, trainer, late)
    script = (definition.script or "").rsplit("/", 1)[-1]
    parts = [script or "a trainer"]
    parts += [f"rank {definition.rank}"] if definition.rank is not None else []
    return TrainerTime(
        name=", ".join([*parts, f"pid {definition.pid}"]),
        short=name_of(trainer),
        pid=definition.pid,
        rank=definition.rank,
        job=definition.job,
        ledger=ledger,
        late=late if still is None else None,
        slowdown=slowdown.of_trainer(trainer, host, history) if still is None else None,
        again=again,
        note=note or _of_its_gpu(trainer),
        parts=_parts(trainer, ledger),
        long_steps=tuple((_wall(host, one.began), one.seconds) for one in ledger.without),
        standstill=still,
        lost=lost.text if lost is not None else "",
        unshown=NO_LEDGER if trainer.minutes and not ledger.rows else "",
        on_gpu=definition.cuda,
        median_step_seconds=trainer.number("step_seconds"),
        settings=settings_of(trainer.minutes[-1] if trainer.minutes else {}),
        judged=tuple(judged),
        readings=readings,
        waits_for=waits_for,
        urgent=_urgent(scene, trainer, still is not None, over) if still or lost else (),
    )


def _wall(host: HostView, moment: float) -> float | None:
    if host.wall_seconds is None or host.sampled_seconds is None:
        return None
    return host.wall_seconds - (host.sampled_seconds - moment)


def of_job(
    job: JobView, host: HostView, history: HistoryOf, window: float, again: str
) -> list[TrainerTime]:
    """Return what is known of the time of each rank of a job, from a file."""
    late = late_of(job.trainers, host, history, window)
    return [
        of_trainer(one, host, history, window, again, late=late, over=True) for one in job.trainers
    ]


def documents(host: HostView, history: HistoryOf, window: float) -> list[dict[str, Any]]:
    """Return the document of ``gpuscope why`` of each job here whose time is known."""
    found = []
    for job in host.jobs:
        ranks = of_job(job, host, history, window, "gpuscope why PID")
        if any(one.ledger.looks or one.unshown for one in ranks):
            found.append(document(job.title, ranks))
    return found
