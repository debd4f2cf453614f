"""The charts of the job screen that are of its GPUs and processes, not of its steps."""

from __future__ import annotations

from collections.abc import Sequence

from ...store.view import DeviceView, History, HostView, TrainerView
from ...text.units import ago_text, bytes_text, window_text
from ...text.width import cells as text_cells
from ..charts.chart_series import thin
from ..charts.load_lanes import LOADS, gpu_lanes
from ..charts.load_strips import LoadStrips
from ..charts.trends import Trend, Trends
from ..shared.host_trends import (
    CPU,
    MEMORY,
    ROOMY_TREND_ROWS,
    TEMPERATURE,
    celsius_text,
    host_readings,
    named_trends,
    of_a_core_text,
    power_trends,
    top_of_cores,
    trainer_trends,
)
from ..shell.session import Session
from ..widgets.pane import set_title

AXIS_ROWS = 2
MOST_GPUS, PARTS, MOST_RANKS = 8, 3, 8
"""How many GPUs have lanes, and how many lanes one of several has at most."""


def ranks_of(host: HostView, trainer: TrainerView) -> list[TrainerView]:
    """Return the living ranks of its job on this host, with itself first."""
    job = trainer.definition.job
    others = [t for t in host.trainers if job and t.definition.job == job and t.gone is None]
    return [trainer, *(t for t in others if t.key != trainer.key)]


def since_looked(session: Session, steps: History, now: float | None) -> str:
    """Say since when this viewer reads a trainer whose ``steps`` its probe has of the time before.

    "" where it has seen all of them.
    """
    seen = steps.seen_since
    if seen is None or now is None or not steps.seconds or seen <= steps.seconds[0] or seen > now:
        return ""
    what = "gpuscope started" if session.replay is None else "the recording began"
    return f"since {what}, {ago_text(now - seen)}"


def devices_of(host: HostView, ranks: Sequence[TrainerView]) -> list[DeviceView]:
    """Return the GPUs on which the allocators of these ranks live."""
    gpus = {a.gpu for t in ranks for a in t.allocators}
    return [device for device in host.devices if device.id in gpus]


def parts_of(rows: int, gpus: int) -> int:
    """Return how many lanes each GPU has in so many rows, with a free line between GPUs."""
    most = PARTS if gpus > 1 else len(LOADS)
    return min(max((rows - gpus + 1) // max(gpus, 1), 1), most)


def process_trends(session: Session, ranks: Sequence[TrainerView], window: float) -> list[Trend]:
    """Return the CPU load and the memory of the processes of these ranks."""
    known = [(one, one.process) for one in ranks if one.process is not None][:MOST_RANKS]
    cpu = [thin(session.history(process, "cpu_percent", window)) for _, process in known]
    held = [thin(session.history(process, "rss_bytes", window)) for _, process in known]
    own = [one for one, _ in known]
    return [
        *named_trends("CPU", own, cpu, of_a_core_text, top_of_cores(*cpu), CPU),
        *named_trends("RSS", own, held, bytes_text, token=MEMORY),
    ]


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
    parts = parts_of(rows, len(devices))
    lanes = gpu_lanes(session.history, host, devices, window, parts)
    set_title(chart, f"Utilisation of its GPUs over {window_text(window)}")
    chart.show(lanes, window, host.sampled_seconds, clock)


def draw_trends(
    chart: Trends,
    session: Session,
    host: HostView,
    trainer: TrainerView,
    window: float,
    clock: float | None,
) -> None:
    """Draw in a line each what the ranks, their processes and their GPUs do over time."""
    ranks = ranks_of(host, trainer)
    devices = devices_of(host, ranks)
    hottest = max(devices, key=lambda one: one.number("temperature_celsius") or 0.0, default=None)
    trends = [
        *trainer_trends(session, ranks, window),
        *power_trends(session, devices, None, window, MOST_GPUS),
        *process_trends(session, ranks, window),
    ]
    if hottest is not None:
        past = thin(session.history(hottest.id, "temperature_celsius", window))
        trends.append(
            Trend(
                f"hottest GPU {hottest.definition.index}",
                TEMPERATURE,
                past,
                celsius_text,
                hottest.definition.slowdown_celsius,
            )
        )
    if chart.size.height >= ROOMY_TREND_ROWS * len(trends):
        trends += host_readings(session, host, window)
    title_trends(chart, session, host, trainer, window)
    chart.show(trends, window, host.sampled_seconds, clock)


def title_trends(
    chart: Trends, session: Session, host: HostView, trainer: TrainerView, window: float
) -> None:
    """Give the readings their title, which says since when those are that begin later."""
    steps = session.history(trainer.id, "step", window)
    since = since_looked(session, steps, host.sampled_seconds)
    title = f"Last {window_text(window)}; some {since}" if since else f"Last {window_text(window)}"
    room = (chart.size.width or text_cells(title)) - 2
    set_title(chart, title if text_cells(title) <= room else title.partition(",")[0])
