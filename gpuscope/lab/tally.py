"""What a run has measured so far: when a report is due, the steady figures, the document at the end. No torch here."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from . import metrics
from .config import LabConfig

WARMUP_STEPS = 5
"""Steps that no pace counts: kernels are loaded, workspaces and optimizer state made. Half of a shorter run."""
REMEMBERED_STEPS = 10_000
"""Median and 95th percentile are of this many last steps at most: a run until stopped has no end."""

NO_ALLOCATOR = ("not_supported", "torch counts no memory on a CPU: it has no caching allocator there")
DIVERGED = ("not_finite", "the loss is not a finite number: the training has diverged")


class Tally:
    """Counts steps and keeps their times. All times are seconds of one monotonic clock, given by the caller."""

    def __init__(self, config: LabConfig):
        self.config = config
        self.started: metrics.Started | None = None
        self.steps = 0
        self.taken = 0
        """Steps that the optimizer took: the others were skipped by the grad scaler."""
        self.warmup_steps = WARMUP_STEPS if config.steps is None else min(WARMUP_STEPS, max(1, config.steps // 2))
        self._began = self._window = 0.0
        self._unreported = 0
        self._steady: deque[float] = deque(maxlen=REMEMBERED_STEPS)
        self._steady_steps, self._steady_seconds = 0, 0.0
        self._values: dict[str, Any] = {}
        self._reasons: dict[str, tuple[str, str]] = {}

    def begin(self, started: metrics.Started, now: float) -> None:
        """The first step is about to start."""
        self.started = started
        self._began = self._window = now
        if started.device == "cpu":
            self._reasons.update(peak_allocated_bytes=NO_ALLOCATOR, peak_reserved_bytes=NO_ALLOCATOR)

    @property
    def complete(self) -> bool:
        return self.config.steps is not None and self.steps >= self.config.steps

    def stepped(self, taken: int, now: float) -> bool:
        """One more step is done, ``taken`` of all so far by the optimizer; whether a report is due."""
        self.steps += 1
        self.taken = taken
        self._unreported += 1
        return self.steps in (1, self.warmup_steps) or self.complete or now - self._window >= 1 / metrics.RATE_HZ

    def report(self, loss: float, took: Sequence[float], scale: float | None, now: float) -> metrics.Step:
        """The record of the newest step. ``took``: seconds of each step since the last report, at least one; the device
        has finished them at ``now``. Call :meth:`resume` before the next step."""
        assert self.started is not None
        value = metrics.finite(loss)
        if self.steps == 1:
            self._set("loss_first", value)
        self._set("loss_last", value)
        warming_up = self.steps <= self.warmup_steps
        if self.steps == self.warmup_steps:
            self._values["warmup_seconds"] = now - self._began
        if not warming_up:
            self._steady.extend(took)
            self._steady_steps += self._unreported
            self._steady_seconds += now - self._window
        pace = self._unreported * self.started.samples_per_step / (now - self._window)
        middle = metrics.percentile(took, 50)
        return metrics.Step(self.steps, value, pace, middle, scale, self.steps - self.taken, warming_up)

    def resume(self, now: float) -> None:
        """The next step starts now: what a report costs is no part of it."""
        self._window = now
        self._unreported = 0

    def peaks(self, allocated_bytes: int, reserved_bytes: int) -> None:
        self._values.update(peak_allocated_bytes=allocated_bytes, peak_reserved_bytes=reserved_bytes)

    @property
    def has_peaks(self) -> bool:
        return "peak_allocated_bytes" in self._values

    def document(self, error: metrics.Failure | None = None) -> dict[str, Any]:
        """The run's document with what is known now."""
        values, reasons = dict(self._values), dict(self._reasons)
        if error:
            reasons[""] = ("not_measured", error.what)
        if self._steady and self.started:
            values["samples_per_second"] = self._steady_steps * self.started.samples_per_step / self._steady_seconds
            values["step_seconds"] = {
                "median": metrics.percentile(self._steady, 50),
                "p95": metrics.percentile(self._steady, 95),
            }
        elif self.steps:
            short = ("not_measured", f"there were only warm-up steps, {self.steps} of them")
            reasons.update(samples_per_second=short, step_seconds=short)
        return metrics.document(
            self.config.to_mapping(),
            values,
            reasons,
            steps=self.steps,
            started=self.started,
            skipped=self.steps - self.taken,
            error=error,
        )

    def _set(self, key: str, loss: float | None) -> None:
        self._values[key] = loss
        if loss is None:
            self._reasons[key] = DIVERGED
