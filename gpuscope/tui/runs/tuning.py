"""Runs ``gpuscope tune`` in a child, and keeps what the search has found so far."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...lab.config import LabConfig
from ...text.numbers import number
from .demo import RunningCommand

LONGEST_LINE = 4 << 20
"""The document of a search has some kilobytes for each candidate."""
STOP_SECONDS = 15.0
"""The search ends its trial first."""


class Tuning(RunningCommand):
    """One search for the fastest settings, under way or ended.

    ``document`` is that of ``gpuscope tune --json`` as far as it is known. It is whole once
    ``found`` is true.
    """

    longest_line = LONGEST_LINE
    stop_seconds = STOP_SECONDS

    def __init__(
        self,
        config: LabConfig,
        budget_seconds: float,
        changed: Callable[[], None],
        free_batch: bool = False,
        share_gpus: bool = False,
    ) -> None:
        self.config, self.budget_seconds = config, budget_seconds
        self.free_batch, self.share_gpus = free_batch, share_gpus
        self.document: Mapping[str, Any] = {}
        self.trial: Mapping[str, Any] = {}
        """The run in progress: its label, purpose, number, step and the seconds spent before."""
        self.found = False
        self.began = time.monotonic()
        super().__init__(self._words(), changed)

    def _words(self) -> list[str]:
        words = [sys.executable, "-m", "gpuscope", "tune", "--events"]
        words += self.config.flags(with_model=True)
        words += ["--budget", f"{self.budget_seconds:.0f}s"]
        words += ["--free-batch"] * self.free_batch + ["--share-gpus"] * self.share_gpus
        return words

    def take(self, line: str) -> None:
        event = _event(line)
        if event is None:
            super().take(line)
        elif event["event"] == "trial":
            self.trial = event
        elif isinstance(event.get("document"), dict):
            self.document = event["document"]
            self.found = self.found or event["event"] == "end"

    @property
    def spent_seconds(self) -> float:
        """Seconds of the trials that have ended."""
        return max(number(part.get(key)) or 0.0 for part, key in (
            (self.trial, "spent_seconds"), (self.document, "seconds"),
        ))  # fmt: skip

    @property
    def candidates(self) -> Sequence[Mapping[str, Any]]:
        """What was tried, in that order."""
        rows = self.document.get("candidates")
        return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []

    @property
    def best(self) -> LabConfig | None:
        """The best configuration so far where it is another than the baseline."""
        side = self.document.get("best")
        values = side.get("config") if isinstance(side, dict) else None
        if not self.document.get("changed") or not isinstance(values, dict):
            return None
        return LabConfig.from_mapping(values)

    @property
    def enough_seconds(self) -> float | None:
        """The budget that is expected to suffice for what was left out; None if nothing was."""
        return number(self.document.get("enough_seconds")) if self.found else None

    @property
    def failure(self) -> Sequence[str]:
        """The last lines that it wrote, where it has ended without a result."""
        if self.problem:
            return [self.problem]
        return list(self.output)[-4:] if self.over and not self.found else []


def _event(line: str) -> dict[str, Any] | None:
    if not line.startswith('{"event"'):
        return None
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) and isinstance(found.get("event"), str) else None
