"""This is the base of the screens of one GPU and of one process.

Panels stand on the left, histories on the right, and both move through time in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...text.styled import Piece
from ..charts.line import LineChart
from ..shell.screen_keys import KEYS
from ..shell.shared_keys import PAUSE, TIME
from .full_screen import FullScreen, absent, footer_keys
from .program import program

if TYPE_CHECKING:
    from ..shell.session import Session

WINDOWS = (60.0, 300.0, 900.0, 3600.0, 4 * 3600.0)
"""Seconds that the charts show; the keys of Zoom step through them."""
WIDE = 110
SHOW_SECONDS, CHART_SECONDS = 0.5, 2.0
CHART_ROWS = 9
"""The least height of a chart beside others, and the height of the only one on a small terminal."""


class ChartedScreen(FullScreen):
    """A screen with panels and charts, kept up to date while it is open.

    On a small terminal the panels stand one below the other and scroll. Subclasses compose
    ``#columns`` with ``#left`` and ``#right``; ``histories`` is how many there are to choose
    from, ``charts`` those that there is room for at most. The charts share what the panels of
    ``#right`` leave: that is the layout's work, which knows how high these panels are in the
    frame that is being made.
    """

    DEFAULT_CSS = """
    ChartedScreen #columns { height: 1fr; }
    ChartedScreen #left, ChartedScreen #right { width: 1fr; height: 1fr; scrollbar-size-vertical: 1; }
    ChartedScreen .chart { height: 1fr; min-height: 6; }
    ChartedScreen Lines.panel { height: auto; }
    ChartedScreen.-narrow #columns { layout: vertical; overflow-y: auto; scrollbar-size-vertical: 1; }
    ChartedScreen.-narrow #left, ChartedScreen.-narrow #right { width: 1fr; height: auto; }
    ChartedScreen.-narrow .chart { height: 9; }
    """  # noqa: E501

    def __init__(self, session: Session, key: str, histories: int, charts: int) -> None:
        super().__init__()
        self.session = session
        self._key = key
        self._histories = histories
        self._window, self._chart = 0, 0
        self._charts = [LineChart(classes="panel chart") for _ in range(charts)]
        self._moment: float | None = None

    def on_mount(self) -> None:
        self._update()  # before the first frame: it has all panels in their place
        self.set_interval(SHOW_SECONDS, self._update)
        self.set_interval(CHART_SECONDS, self._draw)

    def on_resize(self) -> None:
        self.moved()

    @property
    def terminal(self) -> tuple[int, int]:
        """Return the columns and rows to fill, also before this screen is laid out."""
        return self.app.size.width, self.app.size.height

    @property
    def wide(self) -> bool:
        """Return whether there are two columns."""
        return self.terminal[0] >= WIDE

    def moved(self) -> None:
        if self.is_attached:
            self._update()
            self._draw()

    def _update(self) -> None:
        """Bring the panels up to date, and the charts where they are due.

        They are where the picture is not just a little later than the one before.
        """
        if not self.is_attached:
            return
        self.set_class(not self.wide, "-narrow")
        self._show()
        host = self.session.host
        before, self._moment = self._moment, host.sampled_seconds if host is not None else None
        if (
            before is None
            or self._moment is None
            or not 0 <= self._moment - before <= CHART_SECONDS
        ):
            self._draw()
        elif self._moment != before:
            self._draw_figures()

    def _show(self) -> None:
        """Draw the panels."""
        raise NotImplementedError

    def _draw(self) -> None:
        raise NotImplementedError

    def _draw_figures(self) -> None:
        """Draw the charts that name the value of now with each of its samples: so do the panels.

        Their courses end where those of the other charts do.
        """

    def _missing(self, what: str) -> None:
        """Clear the screen, because there is nothing to show at this moment."""
        self.say_head([(f"{what}  ", "bold accent"), (absent(self.session), "muted")], self.session)
        self.say_keys(footer_keys(self.session, (*KEYS["FullScreen"], PAUSE, *TIME)), self.session)
        self.query_one("#columns").display = False

    def _present(self, head: Sequence[Piece]) -> None:
        """Show the panels, with the line at the top and the keys at the bottom."""
        self.query_one("#columns").display = True
        self.say_head(head, self.session)
        self.say_own_keys(self.session)

    def _visible(self, rows: int) -> Sequence[tuple[LineChart, int]]:
        """Return the charts that ``rows`` have room for, each with the number of its history.

        The other charts hide.
        """
        shown = max(1, min(len(self._charts), rows // CHART_ROWS)) if self.wide else 1
        for position, chart in enumerate(self._charts):
            chart.display = position < shown
        return [
            (chart, (self._chart + n) % self._histories)
            for n, chart in enumerate(self._charts[:shown])
        ]

    # ── keys ──

    def action_zoom(self, by: int) -> None:
        """Show a longer or shorter time on the charts."""
        self._window = min(max(self._window + by, 0), len(WINDOWS) - 1)
        self._draw()

    def action_chart(self, by: int) -> None:
        """Show the next history."""
        self._chart = (self._chart + by) % self._histories
        self._draw()

    def action_scroll(self, by: int) -> None:
        """Scroll the panels that do not fit."""
        place = self.query_one("#columns" if self.has_class("-narrow") else "#left")
        place.scroll_relative(y=3 * by, animate=False)

    def action_readings(self) -> None:
        """Open the dialog of all readings."""
        program(self.app).open("readings", self._key)
