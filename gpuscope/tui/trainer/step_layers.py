"""What a chart of a step's time is made of: the rows of the ledger, or what is known without one.

Only one of the two is drawn: the ledger and the probe's marks split a step in different ways.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from ...model.standstill import stands_still
from ...model.step_colours import REST, SPLIT_TOKENS
from ...model.step_time import SPLIT, words_of
from ...model.time_ledger import TimeLedger, minutes_of_steps
from ...model.valid_history import while_it_steps
from ...store.view import History, TrainerView
from ..charts.chart_series import thin
from ..charts.stack_columns import Layer
from ..shared.job_series import nanoseconds, part_of_step
from ..shared.windows import Span, reach_of, span_of_steps
from ..shell.session import Session
from .time_history import layers, tokens_of


class StepLayers(NamedTuple):
    """The layers of a chart with their moments, and in ``what`` their name.

    ``steps`` is the count of steps over time, for marks of steps on the axis.
    """

    what: str
    layers: Sequence[Layer]
    moments: Sequence[float]
    steps: History

    @property
    def known(self) -> bool:
        """Whether there is anything to draw."""
        return any(value is not None for one in self.layers for value in one.values)

    def span(self, trainer: TrainerView, window: float, now: float) -> Span:
        """Return the time to show of a chart over ``window`` seconds."""
        of = self.layers[0].values if self.layers else ()
        return span_of_steps(trainer, [History(tuple(self.moments), tuple(of))], window, now)


def of_ledger(
    session: Session,
    trainer: TrainerView,
    ledger: TimeLedger,
    window: float,
    now: float,
    tokens: Mapping[str, str] | None = None,
) -> StepLayers:
    """Return the rows of the ledger over the last ``window`` seconds of steps, pauses included.

    ``tokens`` are the colours that rows have elsewhere on the page.
    """
    minutes = minutes_of_steps(trainer) if stands_still(trainer) else trainer.minutes
    window = reach_of(trainer, window)
    recent = [m for m in minutes if m["m"] / 1e9 > now - window - 60.0]
    own = tokens_of(ledger)
    if tokens is not None:
        own = {name: tokens.get(name, REST) for name in own}
    stack, moments = layers(recent, own)
    if moments and (trainer.gone is not None or minutes is not trainer.minutes):
        # the last point of a minute speaks for a while, and after its last step there is none
        stack = [replace(one, values=[*one.values, None]) for one in stack]
        moments = [*moments, moments[-1]]
    steps = thin(session.history(trainer.id, "step", window))
    return StepLayers("Time per step", stack, moments, steps)


def measured(session: Session, trainer: TrainerView, window: float) -> StepLayers:
    """Return the parts of a step as the probe times them; where it does not, the step time."""

    window = reach_of(trainer, window)

    def history(column: str) -> History:
        return thin(session.history(trainer.id, column, window))

    parts = {name: history(f"{name}_seconds") for name in SPLIT}
    moments = max((one.seconds for one in parts.values()), key=len, default=())
    steps = history("step")
    parts = {name: while_it_steps(one, steps, trainer) for name, one in parts.items()}
    compute = parts["compute"].values
    words = words_of([name for name, one in parts.items() if any(one.values)])
    found = StepLayers(
        "Step breakdown",
        [
            Layer(SPLIT_TOKENS[name], words[name], values)
            for name, one in parts.items()
            if len(values := part_of_step(one, compute)) == len(moments)
        ],
        moments,
        steps,
    )
    if found.known:
        return found
    # the step is not taken apart: how long it takes is known
    whole = history("step_seconds")
    values = nanoseconds(while_it_steps(whole, steps, trainer))
    return StepLayers("Step time", [Layer("driver", "no breakdown", values)], whole.seconds, steps)
