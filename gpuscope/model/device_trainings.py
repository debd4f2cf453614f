"""Judge what the trainings on a device mean for it.

``device_state`` makes the device's state of this.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import fsum

from ..store.view import DeviceView, Entity, HistoryOf, HostView, TrainerView, no_history
from ..text.units import percent_text, window_text
from .growth import trend_of
from .input_cure import is_hopeless
from .memory_layers import living, trainer_of
from .memory_room import MemoryRoom, alarm, room_of
from .ranks import names_of
from .stalls import Stall, find_stall, place, waits_in_collective
from .standstill import stands_still
from .step_time import input_share, input_window, warmed_up
from .time_ledger import recent, until_last_step

STARVED = 0.2
"""A training that waits for input for this share of a step is starved."""
STARVED_CPU = 0.40
"""The share that is a warning on a CPU too, where the loader and the training share the cores, so
that some waiting is normal: one works while the other waits.
"""
LATELY_SECONDS = 60.0
LASTING_SECONDS = 10.0
"""Readings are averaged over this time, because a single one may fall into an evaluation."""
TENSOR_IDLE_PERCENT = 5.0
"""Tensor cores that are busy for less of the time do next to nothing.

Measured on H200s: 1.8 % in a GPT that trains in float32, 20 % in a far smaller one under bf16.
"""
WORKING_PERCENT, FULL_POWER = 50.0, 0.6
"""SMs that are active for this share of the time, at this share of the power limit, compute."""
BANDWIDTH_PERCENT, FP32_PERCENT, FP64_PERCENT = 60.0, 25.0, 20.0
"""Memory that is busy for more of the time is what kernels wait for. Float32 units that are busy
for less, or float64 units for more, mean that tensor cores cannot do the work.
"""

OTHERS_PERCENT, OTHERS_BYTES = 5.0, float(1 << 30)
"""A process computes where its kernels run for this share of the time. Where the driver does not
tell that, one that holds this much memory may.
"""


def is_steady(host: HostView, device: DeviceView) -> bool:
    """Tell whether a full device is known to be well.

    No memory on it grows, and no allocation had to be retried lately.

    The doctor judges alike (``doctor.live_memory.full_but_steady``).
    """
    allocators = living(device)
    ids, now = {one.id for one in allocators}, host.sampled_seconds or 0.0
    lately = any(
        m.kind == "retry" and m.id in ids and now - m.seconds < LATELY_SECONDS for m in host.marks
    )
    known = all(
        (trend := trend_of(one)) is not None
        and not trend.grows
        and one.number("alloc_retries") is not None
        for one in allocators
    )
    return bool(allocators) and known and not lately


def filling(
    host: HostView, device: DeviceView, history: HistoryOf = no_history
) -> MemoryRoom | None:
    """Return the training on a device that runs out of memory first, None unless that is soon."""
    found: list[tuple[float, MemoryRoom]] = []
    for allocator in living(device):
        trend, trainer = trend_of(allocator), trainer_of(host, allocator)
        if trend is None or not trend.grows or trainer is None or trainer.gone is not None:
            continue
        room = room_of((device,), trainer, allocator, history)
        if room.runs_out is not None and alarm(room) is not None:
            found.append((room.runs_out.steps, room))
    return min(found, key=lambda one: one[0])[1] if found else None


def told_input(trainer: TrainerView, brief: bool = False) -> tuple[float | None, str]:
    """Return the share of input wait that every screen tells of a trainer, and of what it is one.

    It is that of the wall clock where it is divided, else of its last steps. ``brief`` is as beside
    a state in a table: ``the time`` or ``a step``. Of a trainer that hangs it is that of the time
    before: a rank that is stuck in its loader has waited in no step that ended.
    """
    ledger = until_last_step(trainer) if stands_still(trainer) else recent(trainer)
    if ledger.sure and (row := next((r for r in ledger.rows if r.name == "input"), None)):
        last = f"the last {window_text(round(ledger.seconds))}"
        return row.share, "the time" if brief else last
    return input_share(trainer), "a step" if brief else input_window(trainer)


def starvation(host: HostView, device: DeviceView, history: HistoryOf = no_history) -> str:
    """Return how much of its step the training on a device waits for input, "" unless much."""
    for allocator in living(device):
        trainer = trainer_of(host, allocator)
        share = starving(host, trainer, history) if trainer else None
        if trainer and share is not None and starving_warns(host, trainer, share, history):
            return f"{percent_text(share)} of {told_input(trainer, brief=True)[1]}"
    return ""


def starving(host: HostView, trainer: TrainerView, history: HistoryOf = no_history) -> float | None:
    """Return the share of a step that a trainer waits for its input.

    None unless the share is large and costs time, and while the training warms up: its first batch
    always takes long. That the thread waits proves nothing while the GPU still works on kernels
    that were launched before.
    """
    share, _ = told_input(trainer)
    if share is None or share < STARVED or not warmed_up(trainer):
        return None
    if trainer.definition.cuda and is_measured(trainer):
        return share if (input_share(trainer) or 0.0) >= share / 2 else None
    busy = None if is_measured(trainer) else busy_meanwhile(host, trainer, history)
    return None if busy is not None and works_through(busy.percent, share) else share


def starving_warns(
    host: HostView, trainer: TrainerView, share: float, history: HistoryOf = no_history
) -> bool:
    """Tell whether a wait for input of that share is a warning, and not only worth a word.

    It is none where nothing can be done about it.
    """
    large = share >= (STARVED if trainer.definition.cuda else STARVED_CPU)
    return large and not is_hopeless(host, trainer, history)


def warned_starving(host: HostView, trainer: TrainerView, history: HistoryOf = no_history) -> float:
    """Return the share of a step that a trainer waits for input where that is a warning, else 0."""
    share = starving(host, trainer, history)
    warns = share is not None and starving_warns(host, trainer, share, history)
    return share if warns and share is not None else 0.0


def is_measured(trainer: TrainerView) -> bool:
    """Whether the wait for input was measured on the device that computes, not in a thread."""
    return not trainer.definition.cuda or trainer.number("input_seconds") is not None


def works_through(busy_percent: float, share: float) -> bool:
    """Whether a GPU is too busy to have waited for that share of a step."""
    return busy_percent / 100 + share > 1.0 + STARVED / 2


@dataclass(frozen=True, slots=True)
class Busy:
    """The share of the time that a trainer's busiest GPU works.

    By its SMs, or where these are unknown by the time in which any kernel runs, which is no less.
    """

    percent: float
    by_sms: bool


def busy_meanwhile(
    host: HostView, trainer: TrainerView, history: HistoryOf = no_history
) -> Busy | None:
    """Return how busy the GPUs of a trainer are; None where that is unknown."""
    homes = {one.gpu for one in trainer.allocators if one.gone is None}
    found = []
    for device in host.devices:
        if device.id in homes and device.gone is None:
            sm = recent_mean(device, "sm_active_percent", history)
            load = recent_mean(device, "utilization_percent", history)
            busy = load if sm is None else sm
            if busy is not None:
                found.append(Busy(busy, sm is not None))
    return max(found, key=lambda one: one.percent, default=None)


def recent_mean(
    entity: Entity, column: str, history: HistoryOf, seconds: float = LASTING_SECONDS
) -> float | None:
    """Return the mean of the recent known readings, or the present one if there is no history."""
    if entity.number(column) is None:
        return None
    seen = [v for v in history(entity.id, column, seconds).values if v is not None]
    return fsum(seen) / len(seen) if seen else entity.number(column)


# ── a training that hangs ──


def hang(host: HostView, device: DeviceView) -> tuple[str, str] | None:
    """Return what a hung job does to a device, as a word and the reason; None where none hangs.

    The driver calls a GPU busy while its rank waits for another one: the kernel of a collective
    runs until the last rank joins.
    """
    for mine, stall in _hanging(host, device):
        stuck = [trainer for trainer in mine if trainer in stall.behind]
        if stuck or not stall.waiting:
            at = place((stuck or mine)[0])
            return "stalled", f"at {at.text}" if at.line else "its trainer makes no step"
        for_whom = f"for {names_of(stall.behind)}" if stall.behind else "for no rank that is known"
        inside = " in a collective" if any(waits_in_collective(t) for t in mine) else ""
        spins = (device.number("utilization_percent") or 0.0) >= WORKING_PERCENT
        return "spinning" if spins else "waits", for_whom + inside
    return None


def hung_since(host: HostView, device: DeviceView) -> float | None:
    """Return when the trainers on a device made their last step, whose job hangs.

    It is on the clock of the samples. None where no job hangs, and where it is unknown.
    """
    for mine, _ in _hanging(host, device):
        ages = [age for t in mine if (age := t.number("step_age_seconds")) is not None]
        if ages and host.sampled_seconds is not None:
            return host.sampled_seconds - min(ages)
    return None


def _hanging(host: HostView, device: DeviceView) -> Iterator[tuple[list[TrainerView], Stall]]:
    """Yield the trainers on a device of each job that hangs, and why it does."""
    here = {a.definition.trainer for a in living(device)}
    for job in host.jobs:
        mine = [t for t in job.trainers if t.id in here and t.gone is None]
        stall = find_stall(job.trainers) if mine else None
        if stall is not None and not stall.busy:
            yield mine, stall


# ── tensor cores that have nothing to do ──


@dataclass(frozen=True, slots=True)
class TensorIdle:
    """The mean readings of a device that works hard, and not in its tensor cores.

    In percent and watts; None where the card does not tell.
    """

    trainer: TrainerView
    tensor: float
    sm: float
    power: float | None
    limit: float | None
    fp32: float | None

    @property
    def text(self) -> str:
        """The same for a narrow column."""
        at = f" at {self.power:.0f} W" if self.power is not None else ""
        return f"likely FP32, mean {percent_text(self.tensor / 100)}{at}"


def _others_compute(host: HostView, device: DeviceView, trainer: TrainerView) -> bool:
    """Tell whether a process other than this trainer and its job may keep the SMs busy.

    One that holds little memory, and whose SMs the driver does not report, is a desktop or a
    monitor.
    """
    job = host.job_of(trainer)
    ranks = {one.id for one in (job.trainers if job is not None else (trainer,))}
    own = {process.id for process in host.processes if process.trainer in ranks}
    for use in device.uses:
        if use.gone is not None or use.process in own:
            continue
        share = use.number("sm_percent")
        if share is None and (use.number("used_bytes") or 0.0) >= OTHERS_BYTES:
            return True
        if share is not None and share >= OTHERS_PERCENT:
            return True
    return False


def tensor_idle(
    host: HostView, device: DeviceView, history: HistoryOf = no_history, shared: bool = False
) -> TensorIdle | None:
    """Return the readings of a device whose training most likely multiplies in plain float32.

    Its SMs work, at a power that only arithmetic draws, and its tensor cores do next to nothing.
    None where that is not so, where the card does not tell, and where it is the memory's bandwidth
    or float64 that keeps it busy. The readings are those of the whole card, so it is None too where
    somebody else computes there, unless asked for a ``shared`` card: then one of its trainings is.
    """
    now = device.number("tensor_active_percent")
    if now is None or now >= TENSOR_IDLE_PERCENT:
        return None
    trainer = next(
        (t for a in living(device) if (t := trainer_of(host, a)) is not None and warmed_up(t)), None
    )
    if trainer is None or hang(host, device) is not None:
        return None
    if not shared and _others_compute(host, device, trainer):
        return None

    def mean(column: str) -> float | None:
        return recent_mean(device, column, history)

    tensor, sm, load = map(
        mean, ("tensor_active_percent", "sm_active_percent", "utilization_percent")
    )
    power, limit = mean("power_watts"), device.number("power_limit_watts")
    dram, fp32, fp64 = map(
        mean, ("dram_active_percent", "fp32_active_percent", "fp64_active_percent")
    )
    if tensor is None or sm is None or load is None:
        return None
    if tensor >= TENSOR_IDLE_PERCENT or min(sm, load) < WORKING_PERCENT:
        return None
    if (dram or 0.0) >= BANDWIDTH_PERCENT or (fp64 or 0.0) >= FP64_PERCENT:
        return None
    if fp32 is not None:
        arithmetic = fp32 >= FP32_PERCENT
    else:
        arithmetic = power is not None and limit is not None and power >= FULL_POWER * limit
    return TensorIdle(trainer, tensor, sm, power, limit, fp32) if arithmetic else None
