"""Keep what a run has measured so far.

This decides when a report is due and which figures are steady, and makes the document at the end.
torch is not needed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..probe.steps import median_interval
from . import metrics
from .config import LabConfig

WARMUP_STEPS = 5
"""The first steps are not counted for the speed, because kernels are loaded and workspaces and
optimizer state are allocated in them. In a shorter run it is half of the steps.
"""
SETTLED_STEPS = 3
"""With torch.compile, warm-up also lasts until this many steps in a row have compiled nothing."""
REMEMBERED_STEPS = 10_000
"""Medians and the 95th percentile cover at most this many last steps, because a run may have no
end.
"""

NO_ALLOCATOR = (
    "not_supported",
    "torch counts no memory on a CPU: it has no caching allocator there",
)
DIVERGED = ("not_finite", "the loss is not a finite number: the training has diverged")
FEEDS_ITSELF = ("not_supported", "your factory's forward() loads its own batches")
NOT_HERE = ("not_measured", "only the driver reports it, and the worker does not query the driver")


@dataclass(frozen=True, slots=True)
class Window:
    """The steps between two reports.

    It holds the newest step, and for each step its loss, its seconds and its seconds of input.
    ``took`` does not include what lies between two steps; ``waited`` is empty if input cannot be
    measured.
    """

    step: int
    losses: Sequence[float]
    took: Sequence[float]
    waited: Sequence[float]
    warming_up: bool
    taken: int
    """The number of steps so far that the optimizer made; the grad scaler skipped the others."""
    scale: float | None = None


class LossCurve:
    """Losses by step, evenly spaced, at most ``metrics.CURVE_POINTS``.

    When it is full, every second point is removed.
    """

    def __init__(self) -> None:
        self._stride = 1
        self._points: list[tuple[int, float]] = []
        self._last: tuple[int, float] | None = None

    def add(self, step: int, loss: float) -> None:
        self._last = (step, loss)
        if (step - 1) % self._stride:
            return
        self._points.append((step, loss))
        if len(self._points) >= metrics.CURVE_POINTS:
            self._stride *= 2
            self._points = [point for point in self._points if not (point[0] - 1) % self._stride]

    def points(self, samples_per_step: int) -> list[list[float]]:
        """Return ``[samples, loss]`` of each point.

        The samples are those seen when the loss was computed, including those of its own step.
        """
        points = self._points + (
            [self._last] if self._last and self._last not in self._points[-1:] else []
        )
        return [[step * samples_per_step, loss] for step, loss in points]


class Tally:
    """Counts steps and keeps their times.

    All times are seconds of one monotonic clock, given by the caller.
    """

    def __init__(self, config: LabConfig):
        self.config = config
        self.started: metrics.Started | None = None
        self.steps = 0
        self.taken = 0
        self.warming_up = True
        """Whether the next step to be counted is one of the warm-up."""
        self.warmup_steps = (
            WARMUP_STEPS if config.steps is None else min(WARMUP_STEPS, max(1, config.steps // 2))
        )
        self.compile: dict[str, Any] | None = None
        """The document's ``compile``, kept up to date by the caller."""
        self.same_batch: bool | None = None
        self.convolutions: bool | None = None
        """Whether a factory's model gets the same batch each time, told by the caller."""
        self.began = self._reported = 0.0
        self._events, self._unsettled = 0, 0
        self._steady: deque[float] = deque(maxlen=REMEMBERED_STEPS)
        self._waited: deque[float] = deque(maxlen=REMEMBERED_STEPS)
        self._curve = LossCurve()
        self._validations: deque[float] = deque(maxlen=REMEMBERED_STEPS)
        self._released: deque[int] = deque(maxlen=REMEMBERED_STEPS)
        self._releasing: deque[float] = deque(maxlen=REMEMBERED_STEPS)
        self._values: dict[str, Any] = {}
        self._reasons: dict[str, tuple[str, str]] = {"tensor_active_percent": NOT_HERE}

    def begin(self, started: metrics.Started, now: float) -> None:
        """Note that the first step is about to start."""
        self.started = started
        self.began = self._reported = now
        if self.config.factory:
            self._reasons["input_seconds"] = FEEDS_ITSELF
        if self.config.validate != "off":
            self._reasons["validation_loss"] = (
                "not_measured",
                "the run ended before its first validation",
            )
        if started.device == "cpu":
            self._reasons.update(
                peak_allocated_bytes=NO_ALLOCATOR, peak_reserved_bytes=NO_ALLOCATOR
            )
            if self.config.validate != "off":
                self._reasons["validation_peak_allocated_bytes"] = NO_ALLOCATOR
            if self.config.empty_cache:
                self._reasons["cache"] = NO_ALLOCATOR

    @property
    def complete(self) -> bool:
        return self.config.steps is not None and self.steps >= self.config.steps

    @property
    def loss(self) -> float | None:
        """The newest loss that was reported.

        None before the first, and if it was not finite.
        """
        return self._values.get("loss_last")

    @property
    def diverged(self) -> bool:
        """Whether the newest loss that was reported is not a finite number."""
        return "loss_last" in self._values and self.loss is None

    def stepped(self, taken: int, now: float, events: int = 0) -> bool:
        """Count one more step, and return whether a report is due.

        ``taken`` is the number of steps so far that the optimizer made, ``events`` what
        torch.compile has made so far. The warm-up ends with this step if :attr:`warming_up` becomes
        false.
        """
        self.steps += 1
        self.taken = taken
        if events != self._events:
            self._events, self._unsettled = events, self.steps
        ended = False
        if self.warming_up:
            quiet = self.config.compile == "off" or self.steps - self._unsettled >= SETTLED_STEPS
            ended = self.steps >= self.warmup_steps and quiet
            if ended:
                self.warming_up = False
                self._values["warmup_seconds"] = now - self.began
        return (
            self.steps == 1 or ended or self.complete or now - self._reported >= 1 / metrics.RATE_HZ
        )

    def closed(self, now: float) -> None:
        """Note that the steps up to this one are about to be reported.

        The next report is due an interval later.
        """
        self._reported = now

    def report(self, window: Window) -> metrics.Step:
        """Return the record of the newest step of ``window``."""
        assert self.started is not None
        loss = metrics.finite(window.losses[-1])
        first = window.step - len(window.losses) + 1
        if first == 1:
            self._set("loss_first", metrics.finite(window.losses[0]))
        self._set("loss_last", loss)
        for step, value in enumerate(window.losses, first):
            if metrics.finite(value) is not None:
                self._curve.add(step, value)
        if not window.warming_up:
            self._steady.extend(window.took)
            self._waited.extend(window.waited)
        seconds = sum(window.took)
        if window.scale is not None:
            self._values["scale"] = window.scale
        return metrics.Step(
            window.step,
            loss,
            len(window.took) * self.started.samples_per_step / seconds if seconds > 0 else None,
            metrics.percentile(window.took, 50),
            window.scale,
            window.step - window.taken,
            window.warming_up,
            metrics.percentile(window.waited, 50) if window.waited else None,
            self._values.get("validation_loss"),
            *self._compiled(),
        )

    def _compiled(self) -> tuple[int | None, int | None, int | None]:
        if self.compile is None:
            return None, None, None
        breaks, again = (
            sum(row["count"] for row in self.compile[key]) for key in ("graph_breaks", "recompiles")
        )
        return self.compile["graphs"], breaks, again

    def peaks(self, allocated_bytes: int, reserved_bytes: int) -> None:
        """Take the peaks so far; of two values the larger one is kept."""
        for key, value in (
            ("peak_allocated_bytes", allocated_bytes),
            ("peak_reserved_bytes", reserved_bytes),
        ):
            self._values[key] = max(value, self._values.get(key, 0))

    @property
    def has_peaks(self) -> bool:
        return "peak_allocated_bytes" in self._values

    @property
    def has_validated(self) -> bool:
        return bool(self._validations)

    def validated(self, loss: float, seconds: float, peak_allocated_bytes: int | None) -> None:
        """Note that one validation is done; its ``seconds`` do not count for any step."""
        self._set("validation_loss", metrics.finite(loss))
        self._validations.append(seconds)
        if peak_allocated_bytes is not None:
            self._values.setdefault("validation_peak_allocated_bytes", peak_allocated_bytes)

    def released(self, count: int, seconds: float) -> None:
        """Note that ``empty_cache()`` gave ``count`` bytes back and took ``seconds``."""
        self._released.append(count)
        self._releasing.append(seconds)

    def rank(self, rank: int, device: str) -> dict[str, Any]:
        """Return this process's line in the document's ``ranks``."""
        return {
            "rank": rank,
            "device": device,
            "step_seconds": metrics.percentile(self._steady, 50) if self._steady else None,
            "peak_allocated_bytes": self._values.get("peak_allocated_bytes"),
            "peak_reserved_bytes": self._values.get("peak_reserved_bytes"),
        }

    def ranks(self, found: list[dict[str, Any]]) -> None:
        """Take the lines of all ranks."""
        self._values["ranks"] = found

    def document(self, error: metrics.RunFailure | None = None) -> dict[str, Any]:
        """Return the run's document with what is known now."""
        values, reasons = dict(self._values), dict(self._reasons)
        if error:
            reasons[""] = ("not_measured", error.what)
        if self.compile is not None:
            values["compile"] = self.compile
        if self._steady and self.started:
            values["samples_per_second"] = (
                len(self._steady) * self.started.samples_per_step / sum(self._steady)
            )
            low, high = median_interval(self._steady) or (None, None)
            values["step_seconds"] = {
                "median": metrics.percentile(self._steady, 50),
                "p95": metrics.percentile(self._steady, 95),
                "low": low,
                "high": high,
                "count": len(self._steady),
            }
        elif self.steps:
            why = f"only warm-up steps: {self.steps}"
            if self.config.compile != "off" and self.steps >= self.warmup_steps:
                why += ": torch.compile was still compiling"
            reasons.update(
                samples_per_second=("not_measured", why), step_seconds=("not_measured", why)
            )
            reasons.setdefault("warmup_seconds", ("not_measured", why))
            reasons.setdefault("input_seconds", ("not_measured", why))
        values["same_batch"] = self.same_batch
        values["convolutions"] = self.convolutions
        if self._waited:
            values["input_seconds"] = metrics.percentile(self._waited, 50)
        if self.started:
            values["loss_curve"] = self._curve.points(self.started.samples_per_step) or None
        if self._validations:
            values["validation_seconds"] = metrics.percentile(self._validations, 50)
        if self._released:
            values["cache"] = {
                "released_bytes": int(metrics.percentile(self._released, 50)),
                "seconds": metrics.percentile(self._releasing, 50),
            }
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
