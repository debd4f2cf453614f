"""Find since when a device works for its job, so that a mean leaves out the time before.

While a training imports, loads and compiles, its GPU is idle: over that time as well, a mean says
that a busy GPU is half idle.
"""

from __future__ import annotations

from ..store.view import DeviceView, HistoryOf, HostView, TrainerView
from .memory_layers import living, trainer_of

LEAST_BEFORE_SECONDS = 2.0
"""A window that begins as much earlier at least has a time before the job."""


def first_step(trainer: TrainerView, history: HistoryOf, seconds: float | None) -> float | None:
    """Return when a trainer was first known to have ended a step, within the last ``seconds``."""
    steps = history(trainer.id, "step", seconds)
    known = zip(steps.seconds, steps.values, strict=True)
    return next((moment for moment, step in known if step), None)


def job_begins(
    host: HostView, device: DeviceView, history: HistoryOf, seconds: float
) -> float | None:
    """Return when the job of a device ended its first step, None where that was before the window.

    Where no training there has ended a step, it is when a process first held memory there.
    """
    trainers = [t for a in living(device) if (t := trainer_of(host, a)) is not None]
    begins = [at for t in trainers if (at := first_step(t, history, seconds)) is not None]
    if not begins:
        uses = (history(one.id, "used_bytes", seconds) for one in device.uses if one.gone is None)
        begins = [past.seconds[0] for past in uses if past.seconds]
    known = history(device.id, "utilization_percent", seconds).seconds
    begin = min(begins, default=None)
    if begin is None or not known or begin - known[0] < LEAST_BEFORE_SECONDS:
        return None
    return begin
