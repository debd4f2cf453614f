"""The tab about time where there is no ledger: what is measured all the same, over the whole page.

For a job with a probe that is the step time of its ranks and its parts, over time too. For all
others, and for a host on which nothing trains, it is the load of the GPUs and who is on them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...model.odd_parts import odd_parts
from ...model.time_ledger import TimeLedger
from ...store.view import HostView, TrainerView
from ...text import styled
from ...text.styled import Line, Piece
from ...text.units import window_text
from ..charts.stacked import NO_STEPS
from ..shared.host_text import why_unknown
from ..shared.host_trends import power_trends, trainer_trends
from ..shared.windows import window_of, window_of_load
from ..shell.clock_at import clock_at
from ..trainer.job_load import devices_of, since_looked
from ..trainer.step_layers import StepLayers, measured
from ..widgets.pane import set_title, ways_to_a_probe
from ..widgets.table import LiveTable
from .hang_rows import add_hang, with_hang
from .panels import (
    CHART_ROWS,
    FRAME_ROWS,
    HEAD_EDGES,
    MOST_CHART_ROWS,
    TALL,
    TimePanels,
)
from .rows import GPU, split_names, split_rows, with_names
from .without_ledger import (
    STRIP_FRAME,
    basis_text,
    draw_loads,
    lanes_of,
    loads,
    rank_columns,
    rank_rows,
)

PROBE_TITLE = "How to see where the time goes"
LEAST_ASIDE_ROWS = 6
"""Lines of a longer stack that have room at least where it is shown."""
LEAST_CHART_ROWS, HIGH_CHART_ROWS = 10, 18
"""Of the history beside tables that are lower, at least and at most."""


class MeasuredPanels(TimePanels):
    """The panels, and what they show where there is no ledger."""

    _more: Sequence[Line] = ()
    """How to get a probe into a trainer, where none has one."""
    _steps_known = False
    """Whether there is a step time to draw."""
    _explained = False
    """Whether the row under the cursor has more to say than what stands below its details."""
    _browsed: LiveTable | None = None
    """The list in which the user has moved the cursor since a rank was chosen."""

    def _show_measured(
        self,
        host: HostView,
        trainer: TrainerView,
        ranks: Sequence[TrainerView],
        head: Sequence[Line],
        marks: Mapping[str, Piece],
        hang: TimeLedger | None = None,
    ) -> None:
        """Show what the probe times of a job whose wall clock is not divided.

        ``marks`` has the sign of the ranks that stand out, by their key, with its token. ``hang``
        is what is known of the time in which it hangs.
        """
        glyphs = self._clock.tokens.glyphs
        self._clear(kept=(self._clock, self._steps))  # without rows they would lose their cursor
        self._head.show(styled.hang_lines(head, max(40, self._terminal[0] - HEAD_EDGES)))
        parts = add_hang(split_rows(trainer, glyphs), hang, glyphs)
        self._clock.show_columns(with_names(split_names(), with_hang(GPU, hang)))
        set_title(self._clock, basis_text(trainer))
        self._clock.show(parts)
        # one rank whose parts are known has them in the table above already
        rows = (
            rank_rows(host, ranks, marks, odd_parts(ranks)) if len(ranks) > 1 or not parts else []
        )
        self._steps.show_columns(rank_columns(rows))
        self._steps.show(rows)
        set_title(self._steps, "Time per step, by rank" if len(ranks) > 1 else "Its steps")
        self._point_at(self._steps, trainer.key)
        self._devices, self._drawn_ranks = devices_of(host, ranks), ranks
        self._steps_known = trainer.number("step_seconds") is not None
        self._draw_lines(not split_rows(trainer, glyphs))

    def _point_at(self, ranks: LiveTable, key: str) -> None:
        """Put the cursor on the rank that is looked at, unless the user has moved it in the list.

        The list may have the keyboard from the start, while another rank turns out to be the one.
        """
        if self._browsed is not ranks or not ranks.has_focus:
            ranks.move_to(key)

    def on_live_table_highlighted(self, event: LiveTable.Highlighted) -> None:
        event.stop()
        if event.table is self._clock:
            self._show_detail()
        elif event.by_user:
            self._browsed = event.table

    def _show_host(self, host: HostView, head: Sequence[Line]) -> None:
        """Show the load of a host on which no trainer has a probe, and how to get one in."""
        self._clear()
        self._head.show(styled.hang_lines(head, max(40, self._terminal[0] - HEAD_EDGES)))
        used = {u.gpu for job in host.jobs for p in job.processes for u in p.uses}
        roomy = self._terminal[1] >= TALL
        busy = [d for d in host.devices if d.id in used] if not roomy else []
        self._devices = busy or host.devices
        self._steps_known = False
        replay = host.link.state == "replay"
        self._more = [] if replay else ways_to_a_probe()

    def _clear(self, kept: Sequence[LiveTable] = ()) -> None:
        """Empty all panels but for these tables, which get other rows."""
        self._look = None
        self._clock.subtitle(())
        self._more = ()
        self._devices, self._drawn_ranks = (), ()
        for table in (self._clock, self._steps, self._ranks, self._gpu):
            table.show(table.rows if table in kept else [])
        self._findings.show_findings([])

    def _show_detail(self) -> None:
        if self._has_ledger:
            super()._show_detail()
            return
        set_title(self._code, self._aside[0])
        self._code.show(self._aside[1])
        for panel, cells in self._detail_panels():
            if panel.display and not self._more:
                heading, lines = self._about(self._clock, self._clock.cursor_key or "")
                set_title(panel, heading)
                panel.show(styled.hang_lines(lines, cells - HEAD_EDGES))
            elif panel.display:
                set_title(panel, PROBE_TITLE)
                whole = not self._right.display
                panel.show(self._wrapped(self._terminal[0] if whole else cells))

    def _about_rows(self) -> int:
        """Return the rows in which the details of any part of a step are whole."""
        told = [self._about(self._clock, row.key)[1] for row in self._clock.rows]
        cells = self._left_cells() - HEAD_EDGES
        return max((len(styled.hang_lines(lines, cells)) + 2 for lines in told), default=0)

    def _wrapped(self, cells: int) -> list[Line]:
        return styled.hang_lines(self._more, cells - HEAD_EDGES)

    # ── charts ──

    def _draw_measured(self, host: HostView, trainer: TrainerView | None) -> None:
        """Draw the step time and the load over the same time."""
        window = self._zoomed or window_of(self.session, host, trainer)
        clock, now = clock_at(self.session, host), host.sampled_seconds
        if trainer is not None and self._chart.display:
            if self._chart is self._lines:
                self._draw_ranks(window, now, clock)
            else:
                found = measured(self.session, trainer, window)
                self._draw_steps(host, trainer, found, window, now or 0.0)
        self._draw_load(host, window, now, clock)

    def _draw_ranks(self, window: float, now: float | None, clock: float | None) -> None:
        """Draw the step time of the ranks, their wait for input, and the power of their GPUs."""
        odd = odd_parts(self._drawn_ranks)
        ranks = sorted(self._drawn_ranks, key=lambda one: one.key not in odd)
        trends = [
            *trainer_trends(self.session, ranks, window),
            *power_trends(self.session, self._devices, None, window),
        ]
        set_title(self._lines, f"Last {window_text(window)}")
        self._lines.show_empty("no step has ended yet")
        self._lines.show(trends, window, now, clock)

    def _draw_steps(
        self, host: HostView, trainer: TrainerView, found: StepLayers, window: float, now: float
    ) -> None:
        self._layers.legend_elsewhere = "legend as in the table" if self._clock.rows else ""
        self._layers.show_empty("no step has ended yet")
        seconds, end, over = found.span(trainer, window, now)
        title, clock = f"{found.what}{over}", clock_at(self.session, host, end)
        self._layers.show(
            found.layers, found.moments, seconds, None, end, title, steps=found.steps, clock=clock
        )

    def _draw_load(
        self, host: HostView, window: float, now: float | None, clock: float | None
    ) -> None:
        if self._load.display:
            rows, ranks = self._load_rows, self._drawn_ranks
            trainer = self.chosen(host)
            if not self._zoomed:
                window = window_of_load(self.session, host, trainer, window)
            steps = self.session.history(trainer.id, "step", window) if trainer else NO_STEPS
            over = since_looked(self.session, steps, now)
            found = loads(self.session, host, self._devices, ranks, window, rows, over)
            self._load.show_empty(why_unknown(host, "no readings yet"))
            draw_loads(self._load, found, window, now, clock)

    # ── room ──

    def _share_without_ledger(self, room: int, wide: bool) -> None:
        parts = len(self._clock.rows) + FRAME_ROWS if self._clock.rows else 0
        steps = len(self._steps.rows) + FRAME_ROWS if self._steps.rows else 0
        for one in (self._gpu, self._ranks):
            self._place(one, 0)
        if wide:
            self._share_measured(room, parts, steps)
        else:
            self._share_measured_narrow(room, parts, steps)

    def _share_measured(self, room: int, parts: int, steps: int) -> None:
        """Stand the tables beside the chart, and the load and the processes below both."""
        findings = self._lists()[self._findings]
        tables = parts + steps + findings
        most = min(max(room // 3, CHART_ROWS + 1), MOST_CHART_ROWS)
        chart = min(max(tables, LEAST_CHART_ROWS), most) if self._steps_known else 0
        at_left, at_right = ((len(self._wrapped(c)) + 2) for _, c in self._detail_panels())
        if not chart:
            at_left = len(self._wrapped(self._terminal[0])) + 2
        at_left, at_right = (rows if self._more else 0 for rows in (at_left, at_right))
        below_tables = not chart or max(tables + at_left, chart) <= max(tables, chart + at_right)
        body = max(tables + at_left, chart) if below_tables else max(tables, chart + at_right)
        lanes = lanes_of(self._devices, self._drawn_ranks)
        load, processes, events = self._share_below(max(room - body, 0), lanes)
        body = room - load - processes - events
        if not chart and not tables and not self._more:  # nothing stands there
            load, body = load + body, 0
        texts = chart and not self._more
        aside = len(self._aside[1]) if texts else 0
        about = self._about_rows() if parts and texts else 0
        if about and self._explained:
            aside = 0  # it has what the details leave
        elif aside:
            about = 0
        whole = tables + about + (aside + 2 if aside else 0)
        more = len(self._aside[1]) + 2 if about and self._aside[1] else 0
        for wanted in (whole + more, whole):  # whole texts come first
            rest = load + body - max(wanted, HIGH_CHART_ROWS)
            if chart and load and rest >= min(load, lanes + STRIP_FRAME):
                rest = self._fitted_load(rest)
                load, body = rest, body + load - rest
                break
        self._spread(body)
        self._body.display = bool(body)
        self._left.display, self._right.display = bool(tables or below_tables), bool(chart)
        self._left.styles.height = self._right.styles.height = "1fr"
        self._left.styles.width = self._left_cells() if chart else "1fr"
        self._place(self._clock, parts)
        aside, about = self._fitting_texts(body - tables, aside, about, bool(parts and texts))
        fills = steps and not aside and not about and (not below_tables or not self._more)
        self._place(self._steps, "1fr" if fills else steps)
        self._place(self._findings, findings)
        left = about if self._explained else body - tables - aside - 2
        both = min(about, left) if about and aside else 0
        self._place(self._detail, both or ("1fr" if about or (below_tables and self._more) else 0))
        self._place(self._code, "1fr" if aside else 0)
        self._place(self._beside, 0 if below_tables or not self._more else "1fr")
        self._place(self._chart, (min(chart, body) if not below_tables else "1fr") if chart else 0)
        self._place(self._load, load)
        self._place(self._processes, processes)
        self._place(self._events, events)

    def _fitting_texts(self, room: int, aside: int, about: int, parts: bool) -> tuple[int, int]:
        """Return the lines of the panel below the details, and the rows of these, that fit.

        One of them is wanted; the other has room only where that leaves it.
        """
        aside = aside if room >= min(aside, LEAST_ASIDE_ROWS) + 2 else 0
        about = about if room >= about else 0
        known, rows = len(self._aside[1]), self._about_rows() if parts else 0
        if about and not aside and known and room - about >= min(known, LEAST_ASIDE_ROWS) + 2:
            aside = known
        elif aside and not about and rows and room - aside - 2 >= rows:
            about = rows
        return aside, about

    def _share_measured_narrow(self, room: int, parts: int, steps: int) -> None:
        """Stand one table above, and below it the chart, the load or what a key has chosen."""
        for one in (self._beside, self._code, self._processes, self._events):
            self._place(one, 0)
        first = parts or steps
        more = len(self._wrapped(self._terminal[0])) + 2 if self._more and not first else 0
        below = self._below
        if below is None:
            below = self._chart if self._steps_known else self._load
        high = max(room - (first or more), CHART_ROWS)
        if below is self._steps:
            high = max(high, steps)
        self._put_below(below, high, room)
        above = room - high
        self._place(self._clock, above if parts else 0)
        self._place(
            self._steps, high if below is self._steps else above if steps and not parts else 0
        )
        self._place(self._detail, above if more else 0)
