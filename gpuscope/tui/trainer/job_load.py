"""The charts of the job screen that are of its GPUs and processes, not of its steps."""

from __future__ import annotations

from ...model.device_trainings import hung_since
from ...model.ranks import name_of
from ...store.view import HostView, TrainerView
from ...text.units import window_text
from ..charts.line import LineChart, Series, alike_text, one_if_alike
from ..charts.load_strips import Lane, LoadStrips
from ..shell.session import Session
from ..theme import SERIES
from ..widgets.pane import set_title
from .job_series import thin

LOADS = (
    ("GPU", "utilization_percent"),
    ("SM", "sm_active_percent"),
    ("tensor", "tensor_active_percent"),
)
MOST_GPUS, MOST_WITH_PARTS = 8, 2
"""GPUs that have a lane, and how many have one for each of their parts."""


def ranks_of(host: HostView, trainer: TrainerView) -> list[TrainerView]:
    """Return the living ranks of its job on this host, with itself first."""
    job = trainer.definition.job
    others = [t for t in host.trainers if job and t.definition.job == job and t.gone is None]
    return [trainer, *(t for t in others if t.key != trainer.key)]


def draw_load(
    chart: LoadStrips,
    session: Session,
    host: HostView,
    trainer: TrainerView,
    window: float,
    ago: float,
) -> None:
    """Draw how busy the job's GPUs were: a lane each, of a few GPUs for each of their parts."""
    gpus = {a.gpu for t in ranks_of(host, trainer) for a in t.allocators}
    devices = [device for device in host.devices if device.id in gpus][:MOST_GPUS]
    parts = LOADS if len(devices) <= MOST_WITH_PARTS else LOADS[:1]
    lanes = []
    for device in devices:
        name, wasted = f"GPU {device.definition.index}", hung_since(host, device)
        for label, column in parts:
            past = thin(session.history(device.id, column, window))
            first = column == LOADS[0][1]
            if first or any(value is not None for value in past.values):
                lanes.append(Lane(name if first else label, past, first and len(parts) > 1, wasted))
    set_title(chart, f"Utilisation of its GPUs over {window_text(window)}")
    chart.show(lanes, window, host.sampled_seconds, ago)


def draw_cpu(
    chart: LineChart,
    session: Session,
    host: HostView,
    trainer: TrainerView,
    window: float,
    ago: float,
) -> None:
    """Draw how much of a core each rank's process takes."""
    found, ranks = [], ranks_of(host, trainer)
    for one, token in zip(ranks, SERIES, strict=False):
        if one.process is not None:
            past = thin(session.history(one.process, "cpu_percent", window))
            if any(value is not None for value in past.values):
                found.append(Series(name_of(one), token, past.seconds, past.values))
    set_title(chart, f"CPU of its processes over {window_text(window)}, % of a core")
    series = one_if_alike(found, alike_text(len(found), len(ranks))) if len(found) > 1 else found
    chart.show(series, window, 0.0, None, now=host.sampled_seconds, ago=ago)
