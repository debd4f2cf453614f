"""The chart of how long a step takes, on several ranks or of one trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...model.ranks import name_of
from ...model.valid_history import while_it_steps
from ..charts.chart_series import thin
from ..charts.line import LineChart, Series, alike_text, one_if_alike
from ..shared.job_series import missing
from ..shared.windows import reach_of, span_of_steps
from ..shell.clock_at import clock_at
from ..theme import SERIES
from ..widgets.pane import set_title
from .job_load import ranks_of

if TYPE_CHECKING:
    from ...store.view import HostView, TrainerView
    from ..shell.session import Session

MOST_RANKS = 6
"""Of so many ranks the pace is drawn: the one under the cursor, and those before the others."""


def draw_pace(
    chart: LineChart,
    session: Session,
    host: HostView,
    trainer: TrainerView,
    window: float,
) -> None:
    """Draw how long a step takes on several ranks, or of one trainer its slowest too."""
    everyone = ranks_of(host, trainer)
    ranks = everyone[:MOST_RANKS]
    wanted = [(t, "step_seconds", name_of(t)) for t in ranks]
    if len(ranks) == 1:
        wanted = [(trainer, "step_seconds", "median"), (trainer, "step_seconds_p95", "p95")]
    series, courses = [], []
    reach = reach_of(trainer, window)
    for token, (one, column, label) in zip(SERIES, wanted, strict=False):
        steps = thin(session.history(one.id, "step", reach))
        history = while_it_steps(thin(session.history(one.id, column, reach)), steps, one)
        values = [None if value is None else value * 1e3 for value in history.values]
        if any(value is not None for value in values):
            series.append(Series(label, token, history.seconds, values))
            courses.append(history)
    seconds, end, over = span_of_steps(trainer, courses, window, host.sampled_seconds or 0.0)
    chart.show_empty(missing(trainer, "step_seconds", "no step has ended yet"))
    what = "Median step by rank" if len(ranks) > 1 else "Step time"
    set_title(chart, f"{what}{over}, ms")
    alike = alike_text(len(series), len(everyone))
    drawn = one_if_alike(series, alike) if len(ranks) > 1 else series
    chart.show(drawn, seconds, 0.0, None, now=end, clock=clock_at(session, host, end))
