"""The readings below a log of few events: those of the job of the chosen event, and of its GPUs.

Beside them stands what its user wants next: the stack of a rank that hangs, or the load of the
GPUs, or of a host without one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...model.stalls import is_stalled
from ...text.units import window_text
from ..charts.load_lanes import gpu_lanes
from ..charts.load_strips import LoadStrips
from ..charts.trends import Trend, Trends
from ..shared.host_trends import (
    ROOMY_TREND_ROWS,
    host_readings,
    host_trends,
    more_host_readings,
    trainer_trends,
)
from ..shared.windows import shortest_window
from ..shell.clock_at import clock_at
from ..trainer.job_load import AXIS_ROWS, MOST_GPUS, devices_of, parts_of, process_trends
from ..widgets.pane import set_title
from ..widgets.text import Lines
from .subject import device_of, job_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...store.view import DeviceView, HostView, TrainerView
    from ..background.log_entry import LogEntry
    from ..shell.session import Session

MOST_SECONDS = 300.0
"""The time that the readings show at most."""
FEW = 4
"""With fewer readings of its own a job has those of the host below them, not beside them."""


class Courses:
    """The panels of the readings; at most one of those beside the others is shown."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.own = Trends(id="log-trends", classes="panel")
        self.stack = Lines(id="log-stack", classes="panel")
        self.load = LoadStrips(id="log-load", classes="panel")
        self.of_host = Trends(id="log-host", classes="panel")
        self.beside = (self.stack, self.load, self.of_host)
        self.hide()

    def hide(self) -> None:
        """Show none of them."""
        for panel in (self.own, *self.beside):
            panel.display = False

    @property
    def has_beside(self) -> bool:
        """Return whether one is shown beside the others."""
        return any(panel.display for panel in self.beside)

    def draw(self, host: HostView, entry: LogEntry | None, beside: bool) -> None:
        """Draw what an event is about, and all trainings where it is about no job that runs.

        ``beside`` says that there is room below what is said of the event.
        """
        session, own = self.session, self.own
        job = job_of(entry, host) if entry is not None else None
        living = [t for t in host.trainers if t.gone is None]
        ranks = [t for t in living if job is not None and t in job.trainers]
        shown = ranks or living
        device = device_of(entry, host) if entry is not None else None
        of_job = devices_of(host, ranks)
        gpus = ([device] if device is not None else of_job) or host.devices
        hung = next(filter(is_stalled, ranks), None) if not session.why_not("stacks") else None
        steps = [*trainer_trends(session, shown, MOST_SECONDS)]
        steps += process_trends(session, shown, MOST_SECONDS)
        self.stack.display = beside and hung is not None
        self.load.display = beside and hung is None and bool(gpus)
        self.of_host.display = beside and hung is None and not gpus and len(steps) >= FEW
        rows = own.size.height
        trends = steps
        if not self.of_host.display:
            most = device or next(iter(of_job), None)
            trends = host_trends(session, host, most, shown, MOST_SECONDS, rows)
            if not gpus:
                trends = [*steps, *host_readings(session, host, MOST_SECONDS)]
            if rows >= ROOMY_TREND_ROWS * len(trends):
                trends += more_host_readings(session, host, MOST_SECONDS)
        around = [*host_readings(session, host, MOST_SECONDS)]
        window = self._window(host, [*trends, *around])
        clock = clock_at(session, host)
        whose = (
            job.title if ranks and job is not None else "The trainings" if living else "The host"
        )
        set_title(own, f"{whose} over {window_text(window)}")
        own.show(trends, window, host.sampled_seconds, clock)
        if self.of_host.display:
            more = [*around, *more_host_readings(session, host, MOST_SECONDS)]
            around = more if self.of_host.size.height >= 2 * len(more) else around
            set_title(self.of_host, f"The host over {window_text(window)}")
            self.of_host.show(around, window, host.sampled_seconds, clock)
        if self.load.display:
            self._draw_load(host, gpus, window, clock)
        if hung is not None and self.stack.display:
            self._show_stack(hung)

    def _window(self, host: HostView, trends: Sequence[Trend]) -> float:
        """Return the shortest time that has all that is known."""
        known = [one.history.seconds[0] for one in trends if one.history.seconds]
        now = host.sampled_seconds or 0.0
        return min(shortest_window(now - min(known, default=now)), MOST_SECONDS)

    def _draw_load(
        self, host: HostView, gpus: Sequence[DeviceView], window: float, clock: float | None
    ) -> None:
        parts = parts_of(self.load.size.height - AXIS_ROWS, len(gpus))
        lanes = gpu_lanes(self.session.history, host, gpus[:MOST_GPUS], window, parts)
        set_title(self.load, f"GPU load over {window_text(window)}")
        self.load.show(lanes, window, host.sampled_seconds, clock)

    def _show_stack(self, hung: TrainerView) -> None:
        from ..trainer.hung_stack import hung_lines, stack_title

        set_title(self.stack, stack_title(hung))
        height, width = self.stack.size.height, self.stack.size.width
        if height:  # else it is laid out at the next look
            self.stack.show(hung_lines(self.session, hung, height, width))
