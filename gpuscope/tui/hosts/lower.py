"""The charts of the host under the cursor, and beside them more on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from textual.app import ComposeResult
from textual.containers import Horizontal

from ...store.view import HistoryOf, HostView
from ...text.styled import Line
from ..shared.windows import shortest_window
from ..shell.session import Session
from ..widgets.pane import set_title
from ..widgets.text import Lines

if TYPE_CHECKING:
    from ..overview.charts import Charts

CHART_SECONDS = 4.0
"""The least time between two drawings of the charts."""
MOST_SECONDS = 600.0
"""These charts show what is recorded, up to this time."""
ABREAST = 3
"""The most charts side by side."""


class HostCharts(Horizontal):
    """Charts of one host over its recorded time, which ``more`` lines may stand beside."""

    DEFAULT_CSS = """
    HostCharts #fleet-charts { width: 2fr; }
    HostCharts #fleet-brief { width: 1fr; height: 1fr; }
    """

    def __init__(
        self,
        session: Session,
        history_of: Callable[[HostView], HistoryOf],
        more: Callable[[HostView, int, int], list[Line]],
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._session, self._history_of, self._more = session, history_of, more
        self._brief = Lines(classes="panel", id="fleet-brief")
        self._charts: Charts | None = None
        self._rows, self._tells = 0, False
        self._drawn: tuple[str, int, int] | None = None

    def compose(self) -> ComposeResult:
        yield self._brief

    def draw(self, host: HostView, rows: int, tells: bool) -> None:
        """Draw charts of ``rows`` with their frame; where it ``tells`` more, beside the lines."""
        from ..overview.charts import Charts, kinds_for

        self._rows, self._tells = rows, tells
        if self._charts is None:
            self._charts = Charts(self._session, self.draw_again, id="fleet-charts")
            self.mount(self._charts, before=self._brief)
        self.tell(host)
        due = (host.key, int((host.sampled_seconds or 0.0) / CHART_SECONDS), rows)
        if due == self._drawn and self._charts.is_attached:
            self.show_figures(host)
            return
        self._drawn = due if self._charts.is_attached else None
        self._charts.rows = rows - 2
        self._charts.window = self.window(host)
        kinds = kinds_for(host, rows - 2, False, ABREAST)
        if tells:  # it takes the place of the memory of one device: all have theirs above
            kinds = [tuple(kind for kind in row if kind != "vram") for row in kinds]
        self._charts.choose(kinds)
        self._charts.show(host, host.devices[0] if host.devices else None)

    def draw_again(self) -> None:
        """Draw the charts, whose size or host is another."""
        self._drawn = None
        if self._rows and self.display and (host := self._session.host) is not None:
            self.draw(host, self._rows, self._tells)

    def show_figures(self, host: HostView) -> None:
        """Draw the charts again that name the value of now."""
        drawn, charts = self._drawn, self._charts
        if charts is None or not charts.is_attached or not self.display or drawn is None:
            return
        if drawn[0] == host.key:  # else the charts are of another host, and end on its clock
            charts.show_figures(host, host.devices[0] if host.devices else None)

    def tell(self, host: HostView) -> None:
        """Show the lines at the right of the charts."""
        self._brief.display = self._tells
        set_title(self._brief, f"More on {host.name}")
        cells, rows = self._brief.content_size
        if cells and self._tells:
            self._brief.show(self._more(host, cells, rows))

    def window(self, host: HostView) -> float:
        """Return the time of the charts: what is recorded of a host, as far as it can be read."""
        from ..overview.charts import WINDOW_SECONDS

        now = host.sampled_seconds or 0.0
        entity = host.devices[0].id if host.devices else host.id
        column = "utilization_percent" if host.devices else "cpu_percent"
        past = self._history_of(host)(entity, column, MOST_SECONDS)
        known = now - past.seconds[0] if past.seconds else 0.0
        return max(WINDOW_SECONDS, shortest_window(known, MOST_SECONDS))
