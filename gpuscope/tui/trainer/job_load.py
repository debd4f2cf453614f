"""The charts of the job screen that are of its GPUs and processes, not of its steps."""

from __future__ import annotations

from collections.abc import Sequence

from ...model.ranks import name_of
from ...store.view import DeviceView, HostView, TrainerView
from ...text.units import window_text
from ..charts.chart_series import thin
from ..charts.line import LineChart, Series, alike_text, one_if_alike
from ..charts.load_lanes import gpu_lanes
from ..charts.load_strips import LoadStrips
from ..shell.session import Session
from ..theme import SERIES
from ..widgets.pane import set_title

MOST_GPUS, PARTS = 8, 3
"""How many GPUs have lanes, and how many lanes one of them has at most."""


def ranks_of(host: HostView, trainer: TrainerView) -> list[TrainerView]:
    """Return the living ranks of its job on this host, with itself first."""
    job = trainer.definition.job
    others = [t for t in host.trainers if job and t.definition.job == job and t.gone is None]
    return [trainer, *(t for t in others if t.key != trainer.key)]


def devices_of(host: HostView, ranks: Sequence[TrainerView]) -> list[DeviceView]:
    """Return the GPUs on which the allocators of these ranks live."""
    gpus = {a.gpu for t in ranks for a in t.allocators}
    return [device for device in host.devices if device.id in gpus]


def draw_load(
    chart: LoadStrips,
    session: Session,
    host: HostView,
    trainer: TrainerView,
    window: float,
    clock: float | None,
    rows: int,
) -> None:
    """Draw how busy the job's GPUs were: a lane each, where ``rows`` suffice for each part."""
    devices = devices_of(host, ranks_of(host, trainer))[:MOST_GPUS]
    apart = len(devices) - 1
    parts = min(max((rows - apart) // max(len(devices), 1), 1), PARTS)
    lanes = gpu_lanes(session, host, devices, window, parts)
    set_title(chart, f"Utilisation of its GPUs over {window_text(window)}")
    chart.show(lanes, window, host.sampled_seconds, clock)


def draw_cpu(
    chart: LineChart,
    session: Session,
    host: HostView,
    trainer: TrainerView,
    window: float,
    clock: float | None,
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
    chart.show(series, window, 0.0, None, now=host.sampled_seconds, clock=clock)
