"""The panels that only a wide Memory tab has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...store.view import Entity, HostView
from ...text.styled import Line
from ...text.units import GIB, bytes_text, window_text
from ..charts.trends import Trends, wanted_rows
from ..shared.host_trends import MEMORY, host_readings, more_host_readings
from ..shared.process_trends import process_trends
from ..shell.clock_at import clock_at
from ..shell.keymap import key_of
from ..shell.session import Session
from ..theme import SERIES
from ..widgets.pane import set_title
from ..widgets.text import Lines
from .subjects import Subject, process_of
from .timeline import shown_seconds

if TYPE_CHECKING:
    from ...store.step_points import Point
    from ..charts.line import LineChart, Series
    from ..charts.stacked import StackedChart
    from ..charts.trends import Trend
    from .module_tree import Tree
    from .timeline import Timeline

LEAST_ROWS, FRAME, AXIS_ROWS = 5, 2, 2
SECONDS, CHART_SECONDS = 1.0, 4.0
"""How often the counts and the chart are updated."""
CHART_ROWS, HOST_ROWS, EVENT_ROWS, HIGH_CHART_ROWS = 8, 12, 8, 21
"""With its frame: a chart is no lower. With both frames: the texts about a host and its events.
Lines of these events, where a chart is above them. With its frame: the chart of a host is no
higher.
"""
LEAST_MODULE_ROWS, MOST_MODULE_ROWS, ROOMY_MODULE_ROWS, MODULES_SECONDS = 4, 13, 24, 600.0
"""Lines of the largest modules, on a GPU and on a CPU, where less else is known; and how often a
trainer is asked for them: a walk takes time.
"""
TITLE_CELLS = 52
"""From so many cells on the title says what the sizes of fixes rest on."""
LEAST_GPU_LINES = 2
"""Of the courses of all GPUs: the fewest with which some are shown as the mean of several."""
LEAST_POINTS = 20
"""The fewest steps of which a curve is drawn."""


class More:
    """What the allocator counts, below the waterfall; what fixes would free, below the timeline.

    Where there are rows left, a chart of what is held after each step, or of all GPUs.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.counts = Lines(id="counts", classes="panel")
        self.fixes = Lines(id="fixes", classes="panel")
        self.modules = Lines(id="largest", classes="panel")
        self.host, self.events = Lines(classes="panel"), Lines(classes="panel")
        """Of a training on a CPU: the memory of its host, and what happened to it."""
        self.events.styles.height = "1fr"
        self.course = Trends(id="memory-course", classes="panel")
        """What else the process does, below a timeline that needs no more rows."""
        self.below_waterfall = (self.counts, self.modules, self.host, self.events)
        self._hide_panels()
        self._trees: tuple[object, Tree | None] = (None, None)
        self._chart: LineChart | None = None
        self._by_gpu: Trends | None = None
        self._charted = False
        """Whether there is room for the chart."""
        self._lines = 0
        """The lines of that chart above its axis."""
        self._of_gpus = False
        """Whether it shows the memory of all GPUs, or the load of a host without one."""
        self._high = False
        """Whether there is room for more than the highest chart of a host."""
        self._counted: tuple[object, list[Line]] = (None, [])
        self._drawn: object = None

    def show(
        self,
        host: HostView,
        subject: Subject,
        sides: tuple[int, int],
        rows: int,
        view: str,
        grows: bool,
    ) -> bool:
        """Fill what there is room for; return whether anything stands below the waterfall.

        ``sides`` are the cells of a line below the waterfall and beside it. ``rows`` are left
        below the waterfall, 0 where the terminal is not wide. Fixes are beside
        the waterfall only, and modules not beside the ``view`` of all of them. Where memory
        ``grows`` by what the doctor found, no fix is shown: each of them only puts off the end.
        """
        self._charted = False
        if rows < LEAST_ROWS:
            self.hide()
            return False
        from .more_text import fix_lines, larger_lines

        cells, beside = sides
        counts = self._counts(host, subject, cells)[: rows - FRAME]
        self.counts.display = bool(counts)
        if counts:
            set_title(self.counts, "Allocator and process" if subject.device else "Process")
            self.counts.show(counts)
            rows -= len(counts) + FRAME
        on_cpu = subject.device is None
        below = rows - FRAME - CHART_ROWS
        if on_cpu and below - HOST_ROWS >= LEAST_MODULE_ROWS:  # else the modules say more
            below = rows - FRAME - HOST_ROWS
        modules = self._module_lines(subject, below, cells) if view != "modules" else []
        self.modules.display = bool(modules)
        if modules:
            set_title(self.modules, f"Largest modules · {key_of('modules')}: all")
            self.modules.show(modules)
            self.modules.styles.height = len(modules) + FRAME
            rows -= len(modules) + FRAME
        more = subject.allocator is not None or len(host.devices) > 1
        self._charted = rows >= CHART_ROWS and more and not on_cpu
        self._lines = rows - FRAME - AXIS_ROWS
        self.host.display = on_cpu and rows >= HOST_ROWS
        self.events.display = on_cpu and rows >= LEAST_ROWS
        if self.events.display:
            self._charted = self._tell_of_host(host, subject, rows, cells)
        self.counts.styles.height = (
            len(counts) + FRAME if self._charted or self.events.display else "1fr"
        )
        self._display_charts()
        told = not grows and view == "waterfall"
        fixes = fix_lines(host, subject, beside) if told else []
        room = larger_lines(host, subject, self.session.history, beside) if told else []
        self.fixes.display = bool(fixes or room)
        if fixes or room:
            what = "What would free memory" if fixes else "Room for a larger micro-batch"
            measured = ", from what was measured" if beside >= TITLE_CELLS else ""
            set_title(self.fixes, what + measured)
            shown = [*fixes, [], *room] if fixes and room else fixes or room
            self.fixes.show(shown)
            self.fixes.styles.height = len(shown) + FRAME
        return bool(counts) or self._charted

    def _tell_of_host(self, host: HostView, subject: Subject, rows: int, cells: int) -> bool:
        """Say how full the host is and what happened; return whether a chart has room as well."""
        from ..shared.event_rows import event_lines
        from ..shared.host_text import host_lines

        glyphs = self.host.tokens.glyphs
        lines = host_lines(host, self.session.history, cells, glyphs) if self.host.display else []
        set_title(self.host, "Host")
        self.host.show(lines)
        self.host.styles.height = len(lines) + FRAME
        job = host.job_of(subject.trainer)
        past = self.session.frozen_view.past(host.key) is not None or self.session.replay
        until = host.wall_seconds if past else None
        known = self.session.happened.on(host)
        events = known.of_job(job.key, until) if job is not None else []
        set_title(self.events, "What happened")
        left = rows - len(lines) - (2 if lines else 1) * FRAME
        told = event_lines(events, glyphs, left, cells, host.wall_seconds)
        charted = bool(lines) and left - min(len(told), EVENT_ROWS) >= CHART_ROWS
        told = told[:EVENT_ROWS] if charted else told
        self.events.show(told)
        self._high = left - len(told) > HIGH_CHART_ROWS
        self.events.styles.height = len(told) + FRAME if charted and not self._high else "1fr"
        return charted

    def _counts(self, host: HostView, subject: Subject, cells: int) -> list[Line]:
        """Return the lines about allocator and process, which are made anew once a second."""
        from .more_text import count_lines

        glyphs, past = self.counts.tokens.glyphs, self.session.history
        due = (subject.key, int((host.sampled_seconds or 0.0) / SECONDS), cells, glyphs)
        if due != self._counted[0]:
            self._counted = due, count_lines(host, subject, past, cells, glyphs)
        return self._counted[1]

    def _module_lines(self, subject: Subject, rows: int, cells: int) -> list[Line]:
        """Return the largest modules, for which the trainer is asked seldom; none without them."""
        if rows < LEAST_MODULE_ROWS or subject.trainer is None or subject.allocator is None:
            return []
        from .largest_modules import module_lines
        from .module_tree import tree_of

        asker = self.session.asker
        if self.session.paused_seconds is not None:
            answer = asker.seen(subject.trainer, "modules", {})
        else:
            answer = asker.latest(subject.trainer, "modules", {}, MODULES_SECONDS)
        if answer.value is None:
            return []
        if self._trees[0] is not answer.value:
            self._trees = answer.value, tree_of(answer.value)
        tree = self._trees[1]
        glyphs = self.modules.tokens.glyphs
        most = MOST_MODULE_ROWS if subject.device is not None else ROOMY_MODULE_ROWS
        return module_lines(tree, min(rows, most), cells, glyphs) if tree else []

    def hide(self) -> None:
        """Show none of it: the terminal is narrow, or a table is looked at."""
        self._hide_panels()
        self._charted = False
        self._display_charts()

    def _hide_panels(self) -> None:
        for panel in (*self.below_waterfall, self.fixes, self.course):
            panel.display = False

    def share_right(
        self, chart: StackedChart, rows: int, host: HostView, subject: Subject, line: Timeline
    ) -> None:
        """Give a timeline that hardly moves what it can use of ``rows``, and others the rest."""
        process, free = process_of(host, subject), 0
        trends: list[Trend] = []
        if chart.wanted and self.counts.display and process is not None:
            free = rows - chart.wanted - FRAME - (self.fixes.rows + FRAME) * self.fixes.display
            history = self.session.history
            trends = process_trends(host, process, line.window_seconds, history)
            if subject.device is None:  # the timeline is the course of its resident memory
                trends = [one for one in trends if one.token != MEMORY]
        shown = bool(trends) and free >= len(trends) + FRAME + AXIS_ROWS
        over = max(0, free - wanted_rows(trends) - FRAME)  # which would only part the courses
        chart.styles.height = chart.wanted + FRAME + over if shown else "1fr"
        self.course.display = shown
        if shown:
            set_title(self.course, f"The process over {window_text(line.window_seconds)}")
            now, clock = host.sampled_seconds, clock_at(self.session, host)
            self.course.show(trends, line.window_seconds, now, clock)

    # ── the chart ──

    def _display_charts(self) -> None:
        """Show one of the two where there is room: what it shows decides which."""
        if self._chart is not None:
            self._chart.display = self._charted and not self._of_gpus
        if self._by_gpu is not None:
            self._by_gpu.display = self._charted and self._of_gpus

    def show_chart(self, host: HostView, subject: Subject, window: float) -> None:
        """Draw what is held after each step; without steps what says more than the timeline."""
        if not self._charted or not self.counts.is_attached or self.counts.parent is None:
            return
        if self._chart is None:
            from ..charts.line import LineChart

            self._chart = LineChart(id="more-chart", classes="panel")
            self._by_gpu = Trends(id="more-trends", classes="panel")
            after = self.modules
            self.counts.parent.mount(self._chart, self._by_gpu, after=after)  # type: ignore[attr-defined]
        points = subject.allocator.step_points if subject.allocator is not None else None
        steps = [*points.old, *points.recent] if points is not None else []
        by_step = len(steps) >= LEAST_POINTS
        several = subject.device is None or len(host.devices) > 1
        self._of_gpus = not by_step and several
        self._display_charts()
        moment = int((host.sampled_seconds or 0.0) / CHART_SECONDS)
        drawn = (
            subject.key,
            moment,
            clock_at(self.session, host) is None,
            window,
            self._chart.size,
            self._by_gpu.size if self._by_gpu is not None else None,
            self._lines,
        )
        if drawn == self._drawn:
            return
        self._drawn = drawn
        if by_step:
            set_title(self._chart, "Held after each step, GiB")
            self._chart.show([_held(steps)], None, 0.0, x="steps")
            return
        over = f", {window_text(window)}" if window > 60 else ""
        whose, column = (subject.device, "used_bytes") if subject.device else (host, "cpu_percent")
        window = shown_seconds(self.session, host, whose, column, window)
        now, clock = host.sampled_seconds, clock_at(self.session, host)
        if subject.device is None and self._by_gpu is not None:
            self._by_gpu.styles.height = HIGH_CHART_ROWS if self._high else "1fr"
            set_title(self._by_gpu, f"The host over {window_text(window)}")
            readings = list(host_readings(self.session, host, window))
            more = [*readings, *more_host_readings(self.session, host, window)]
            known = [one for one in more if any(v is not None for v in one.history.values)]
            fits = wanted_rows(known) <= self._by_gpu.size.height
            self._by_gpu.show(known if fits else readings, window, now, clock)
            return
        if self._of_gpus and self._by_gpu is not None:
            self._by_gpu.styles.height = "1fr"
            set_title(self._by_gpu, f"Memory in use by GPU{over}")
            each = self._of_each_gpu(host, subject, window)
            self._by_gpu.show(self._fitted(each, host, subject, window), window, now, clock)
            return
        title, series = self._over_time(subject, window)
        set_title(self._chart, title + over)
        self._chart.show(series, window, 0.0, now=now, clock=clock)

    def _of_each_gpu(self, host: HostView, subject: Subject, window: float) -> list[Trend]:
        """Return the course of each GPU's memory, on a scale of its own."""
        from ..charts.trends import Trend

        return [
            Trend(
                f"GPU {one.definition.index}",
                "idle",  # each has a line with its name, and every hue means something here
                self.session.history(one.id, "used_bytes", window),
                bytes_text,
                floor=None,
            )
            for one in host.devices
            if one.gone is None
        ]

    def _fitted(
        self, each: list[Trend], host: HostView, subject: Subject, window: float
    ) -> list[Trend]:
        """Return as many as there are lines: the chosen GPU, the fullest, the mean of the rest."""
        lines = self._lines
        if len(each) <= lines or lines < LEAST_GPU_LINES:
            return each
        from ..charts.chart_series import mean_over
        from ..charts.trends import Trend

        devices = [one for one in host.devices if one.gone is None]
        fullest = sorted(
            range(len(devices)),
            key=lambda at: (
                devices[at] is not subject.device,
                -(devices[at].number("used_bytes") or 0.0),
            ),
        )
        kept = sorted(fullest[: lines - 1])
        rest = [devices[at] for at in sorted(fullest[lines - 1 :])]
        mean = mean_over(self.session.history, rest, "used_bytes", window)
        name = f"{len(rest)} other GPUs, mean"
        return [*(each[at] for at in kept), Trend(name, "idle", mean, bytes_text, floor=None)]

    def _over_time(self, subject: Subject, window: float) -> tuple[str, Sequence[Series]]:
        """Return a title and one curve, of the allocator."""
        if subject.allocator is None:
            return "Live blocks", []
        blocks = self._one("live blocks", subject.allocator, "allocation_count", window)
        return "Live blocks", [blocks]

    def _one(self, label: str, entity: Entity, column: str, window: float) -> Series:
        from ..charts.line import Series

        past = self.session.history(entity.id, column, window)
        return Series(label, SERIES[0], past.seconds, past.values)


def _held(steps: Sequence[Point]) -> Series:
    from ..charts.line import Series

    numbers, sizes = [step for step, _ in steps], [size / GIB for _, size in steps]
    return Series("allocated after the step", SERIES[0], numbers, sizes)
