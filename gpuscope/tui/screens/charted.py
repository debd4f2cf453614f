"""What the screens of one GPU and of one process share: panels on the left, histories on the right, how they move."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType

from ..charts.line import LineChart
from .room import Room

if TYPE_CHECKING:
    from ..session import Session

WINDOWS = (60.0, 300.0, 900.0, 3600.0, 4 * 3600.0)
"""Seconds that the charts show; + and - step through them."""
WIDE = 110
SHOW_SECONDS, CHART_SECONDS = 0.5, 2.0
TOKENS = ("series1", "series2", "series3", "series4")


class ChartedScreen(Room):
    """Kept up to date while it is open. On a small terminal the panels stand one below the other and scroll.

    Subclasses compose ``#columns`` with ``#left`` and ``#right``; ``histories`` is how many there are to choose from,
    ``charts`` those that there is room for at most."""

    DEFAULT_CSS = """
    ChartedScreen #columns { height: 1fr; }
    ChartedScreen #left, ChartedScreen #right { width: 1fr; height: 1fr; scrollbar-size-vertical: 1; }
    ChartedScreen .chart { height: 9; }
    ChartedScreen Lines.panel { height: auto; }
    ChartedScreen.-narrow #columns { layout: vertical; overflow-y: auto; scrollbar-size-vertical: 1; }
    ChartedScreen.-narrow #left, ChartedScreen.-narrow #right { width: 1fr; height: auto; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "readings", show=False),
        Binding("plus,equals_sign", "zoom(-1)", show=False),
        Binding("minus", "zoom(1)", show=False),
        Binding("c", "chart(1)", show=False),
        Binding("j,down", "scroll(1)", show=False),
        Binding("k,up", "scroll(-1)", show=False),
    ]

    def __init__(self, session: Session, key: str, histories: int, charts: int) -> None:
        super().__init__()
        self.session = session
        self._key = key
        self._histories = histories
        self._window, self._chart = 0, 0
        self._charts = [LineChart(classes="panel chart") for _ in range(charts)]

    def on_mount(self) -> None:
        self.on_resize()
        self.set_interval(SHOW_SECONDS, self._show)
        self.set_interval(CHART_SECONDS, self._draw)

    def on_resize(self) -> None:
        self.call_after_refresh(self._show)
        self.call_after_refresh(self._draw)

    def _show(self) -> None:
        raise NotImplementedError

    def _draw(self) -> None:
        raise NotImplementedError

    def _visible(self, shown: int, tall: int) -> Sequence[tuple[LineChart, int]]:
        """The first ``shown`` charts, made ``tall`` cells high, each with the number of its history; the rest hide."""
        for position, chart in enumerate(self._charts):
            chart.display = position < shown
            if chart.display:
                chart.styles.height = tall
        return [(chart, (self._chart + n) % self._histories) for n, chart in enumerate(self._charts[:shown])]

    # ── keys ──

    def action_zoom(self, by: int) -> None:
        """A longer or shorter time on the charts."""
        self._window = min(max(self._window + by, 0), len(WINDOWS) - 1)
        self._draw()

    def action_chart(self, by: int) -> None:
        """The next history."""
        self._chart = (self._chart + by) % self._histories
        self._draw()

    def action_scroll(self, by: int) -> None:
        """Move what does not fit."""
        place = self.query_one("#columns" if self.has_class("-narrow") else "#left")
        place.scroll_relative(y=3 * by, animate=False)

    def action_readings(self) -> None:
        """Every reading with its reason, as it came."""
        from .detail import DetailScreen

        self.app.push_screen(DetailScreen(self.session, self._key))
