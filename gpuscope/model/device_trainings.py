"""Judge what the trainings on a device mean for it.

``device_state`` makes the device's state of this.
"""

from __future__ import annotations

from ..store.view import DeviceView, HostView, TrainerView
from ..text.units import percent_text
from .growth import trend_of
from .memory_layers import living, trainer_of
from .step_time import input_share

STARVED = 0.2
"""A training that waits for its input for so much of a step is held up by it."""
LATELY_SECONDS = 60.0


def is_steady(host: HostView, device: DeviceView) -> bool:
    """Tell whether a full device is known to be well.

    Nothing on it grows, and no allocation had to be tried again lately.

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


def starvation(host: HostView, device: DeviceView) -> str:
    """Return how much of its step the training on a device waits for input, "" unless much."""
    for allocator in living(device):
        trainer = trainer_of(host, allocator)
        share = starving(host, trainer) if trainer else None
        if share is not None:
            return f"input {percent_text(share)} of the step"
    return ""


def starving(host: HostView, trainer: TrainerView) -> float | None:
    """Return the share of a step that a trainer waits for its input.

    None unless that is much and costs time.

    The thread's own waiting proves nothing while the GPU works through what was launched before.
    The doctor judges alike.
    """
    share = input_share(trainer)
    if share is None or share < STARVED:
        return None
    if trainer.definition.cuda and trainer.number("input_seconds") is None:
        homes = {one.gpu for one in trainer.allocators if one.gone is None}
        busy = [
            value for one in host.devices if one.id in homes and (value := _busy(one)) is not None
        ]
        if busy and max(busy) / 100 + share > 1.0 + STARVED / 2:
            return None
    return share


def _busy(device: DeviceView) -> float | None:
    """Return how much of the time a device's SMs work, in percent.

    Where that is unknown, return how much of it any kernel runs.
    """
    sm = device.number("sm_active_percent")
    return device.number("utilization_percent") if sm is None else sm
