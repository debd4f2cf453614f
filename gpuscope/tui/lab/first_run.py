"""What the Lab shows before its first run, and the prediction that it asks for."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ...text.styled import Line
from .empty_states import no_run

if TYPE_CHECKING:
    from ...lab.config import LabConfig
    from ...store.view import HostView
    from ..background.predictions import Question
    from ..shell.session import Session
    from ..theme import Glyphs

SETTLED_SECONDS = 1.5
"""A prediction is requested once the switches have been still for so long: it starts a child with
torch, which a walk through the values of a switch must not do at each step.
"""
AT_FIRST, UNSETTLED = "predicted in a moment", "predicted once you stop changing settings"


class FirstRun:
    """Asks for the prediction of the switches that are set, while there is no run."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._config: LabConfig | None = None
        self._since = 0.0
        self._touched = False
        """Whether a switch was changed since the page was first shown."""

    def lines(
        self, host: HostView | None, chosen: str, glyphs: Glyphs, cells: int, rows: int
    ) -> list[Line]:
        """Return what stands in the empty list of runs; ``chosen`` is a switch's name."""
        runs = self.session.labs
        if reason := self.session.why_not("lab_run"):
            return [[(f"Not possible now: {reason}.", "text")]]
        question = self._question(host)
        return no_run(runs.device.kind == "cpu", question, chosen, glyphs, cells, rows)

    def _question(self, host: HostView | None) -> Question | None:
        """Return the prediction for the switches, which is begun once they are still."""
        from ..background.predictions import Question
        from ..memory.what_if import card_of

        runs, predictions = self.session.labs, self.session.predictions
        if host is None or runs.device.kind != "cuda" or runs.refusal is not None or runs.busy:
            return None
        card = card_of(host, None)
        found = predictions.seen(runs.config, card)
        if found is not None:
            return found
        now = time.monotonic()
        if self._config != runs.config:
            self._touched = self._config is not None
            self._config, self._since = runs.config, now
        if now - self._since < SETTLED_SECONDS:
            doing = UNSETTLED if self._touched else AT_FIRST
            return Question(runs.config, card, doing=doing)
        return predictions.want(runs.config, card, fixes=False)
