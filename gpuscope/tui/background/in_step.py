"""Show where the time of steps goes as the doctor has seen it, which looks more seldom.

A finding and the table beside it then have one figure, in every frame.
"""

from __future__ import annotations

from dataclasses import replace

from ...store.view import HostView, TrainerView
from ...wire.frames import Reading

PARTS = (
    "step_seconds_mean", "loader_wait_seconds", "input_seconds", "h2d_seconds", "compute_seconds",
    "optimizer_seconds", "communication_seconds", "other_seconds",
)  # fmt: skip
"""The means of which shares of a step are made. They are of many steps, and change slowly."""
SAME_SECONDS = 5.0
"""What was seen longer ago than this is shown as it is now."""


def in_step(host: HostView, looked: HostView | None) -> HostView:
    """Return a picture with the parts of the steps of one that the doctor has looked at before."""
    if looked is None or looked is host or looked.key != host.key:
        return host
    age = (host.sampled_seconds or 0.0) - (looked.sampled_seconds or 0.0)
    if not 0 <= age < SAME_SECONDS:
        return host
    then = {one.id: one for one in looked.trainers if one.gone is None}
    now = {
        one.id: _with_parts_of(then[one.id], one) if one.id in then and one.gone is None else one
        for one in host.trainers
    }
    jobs = tuple(
        replace(job, trainers=tuple(now.get(one.id, one) for one in job.trainers))
        for job in host.jobs
    )
    return replace(host, trainers=tuple(now.values()), jobs=jobs)


def _with_parts_of(then: TrainerView, now: TrainerView) -> TrainerView:
    readings: dict[str, Reading] = dict(now.readings)
    for name in PARTS:
        if name in readings and name in then.readings:
            readings[name] = then.readings[name]
    return replace(now, readings=readings, minutes=then.minutes)
