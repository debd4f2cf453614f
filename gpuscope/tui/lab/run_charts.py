"""The charts of the Lab: the losses of runs over what they have seen, and the pace of this one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.containers import Vertical

from ...text.numbers import number
from ..runs.runs import run_name
from ..widgets.pane import set_title
from .pair import ComparedRuns, curves, curves_over_time, drawn, not_drawn

if TYPE_CHECKING:
    from ..charts.line import LineChart, Series
    from ..runs.run import RunView

PACE = "Samples/s"
OVER_TIME = "Loss over seconds, at the mean samples/s of each run"
NO_SPEED = "no speed was measured"


class RunCharts:
    """Three charts, made when they are drawn first: plotext costs its import only then."""

    def __init__(self) -> None:
        self.loss: LineChart | None = None
        self.time: LineChart | None = None
        self.pace: LineChart | None = None

    def mount(self, column: Vertical) -> None:
        from ..charts.line import LineChart

        self.loss = LineChart(empty="the loss appears here", id="loss", classes="panel")
        self.time = LineChart(empty=NO_SPEED, id="loss-time", classes="panel")
        self.pace = LineChart(empty="the pace appears here", id="pace", classes="panel")
        self.time.display = self.pace.display = False
        column.mount(self.loss, self.time, self.pace)

    def draw(self, pair: ComparedRuns, current: RunView | None) -> None:
        """Draw the losses of A, B and the run in progress, and how fast that one is."""
        from ..charts.axes import loss_axis, round_end

        if self.loss is None or self.time is None or self.pace is None:
            return
        series, over = curves(pair, current)
        set_title(self.loss, f"Loss over {over}{not_drawn(pair, current)}")
        newest = max((one.seconds[-1] for one in series), default=0.0)
        low, high = loss_axis([value for one in series for value in one.values])
        end = newest if current is None else round_end(newest)
        self.loss.show(series, None, low, high, now=end, x="steps")
        if self.time.display:
            timed = curves_over_time(pair)
            set_title(self.time, f"{OVER_TIME}{not_drawn(pair, None)}")
            low, high = loss_axis([value for one in timed for value in one.values])
            self.time.show(timed, None, low, high, x="steps")
        if self.pace.display and current is not None:
            paces = _paces(pair, current)
            newest = max((one.seconds[-1] for one in paces), default=0.0)
            set_title(self.pace, f"{PACE} over samples{not_drawn(pair, current)}")
            self.pace.show(paces, None, 0.0, None, now=round_end(newest), x="steps")


def has_pace(current: RunView | None) -> bool:
    return current is not None and sum(pace is not None for pace in current.paces) > 1


def _paces(pair: ComparedRuns, current: RunView) -> list[Series]:
    """Return the pace of the run in progress, and the means of A and B over the same samples."""
    from ..charts.line import Series

    known = [(x, y) for x, y in zip(current.samples, current.paces, strict=True) if y is not None]
    if not known:
        return []
    xs = [x for x, _ in known]
    out = [Series("now", "series3", xs, [y for _, y in known])]
    for side, token, entry in drawn(pair, current):
        mean = number(entry.document.get("samples_per_second"))
        if mean is not None and entry is not current.entry:
            name = side if pair.complete else run_name(entry.id)
            out.append(Series(f"mean of {name}", token, [xs[0], xs[-1]], [mean, mean]))
    return out
