"""This is one run of the Lab as the screen keeps it.

It has what its worker said, and what the host's picture showed beside it.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...lab.config import LabConfig
from ...model.pace import MEDIAN_STEPS, Pace, pace_of
from ...store.view import by_pid
from ...text.numbers import number
from .devices import tensor_shares

if TYPE_CHECKING:
    from ...lab.ledger import Entry
    from ...lab.metrics import RunFailure, Started, Step
    from ...predict.errors import Estimate
    from ...store.view import HostView

KEPT_POINTS = 4000


@dataclass(frozen=True, slots=True)
class Rates:
    """How fast a run is or was, and ``over`` which steps: the same figures wherever it is shown.

    ``samples_per_second`` are by the mean step, ``step_seconds`` is the median one. Both are None
    where they are not known, and while no step ends: ``stopped_seconds`` says for how long.
    """

    samples_per_second: float | None
    step_seconds: float | None
    over: str
    stopped_seconds: float | None = None


@dataclass(slots=True, eq=False)
class RunView:
    """One run of the Lab, in progress or ended.

    ``summary`` is the document of its end; ``entry`` is that document in the ledger, once it is
    there.
    """

    config: LabConfig
    name: str = "now"
    started: Started | None = None
    last: Step | None = None
    """What the worker said last."""
    begun: float = field(default_factory=time.monotonic)
    """When its worker was started, and when it said that the model stands: seconds of our own
    clock.
    """
    ready: float | None = None
    ended: float | None = None
    peak_bytes: float | None = None
    predicted: Estimate | None = None
    """Peak allocated on a GPU; None while it is not known."""
    samples: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT_POINTS))
    losses: deque[float | None] = field(default_factory=lambda: deque(maxlen=KEPT_POINTS))
    paces: deque[float | None] = field(default_factory=lambda: deque(maxlen=KEPT_POINTS))
    pace: Pace | None = None
    """What its probes say of its steps, as on the other screens; None before they are heard."""
    validation_loss: float | None = None
    summary: dict[str, Any] | None = None
    entry: Entry | None = None
    _tensor: dict[str, list[float]] = field(default_factory=dict)
    """Of each device: its readings' sum, their number, and when the last was read."""
    _tensor_why: str = "the steady steps ended before the driver had counted"

    # ── what the worker says ──

    @property
    def device(self) -> str:
        """cpu or cuda; "" before the worker has said."""
        return self.started.device if self.started else ""

    @property
    def preset(self) -> str:
        """What it trains: the preset that the family's name stands for, once that is known."""
        return self.started.preset if self.started else self.config.model

    @property
    def step(self) -> int:
        return self.last.step if self.last else 0

    @property
    def loss(self) -> float | None:
        """That of the last step; of a run that has ended, as the ledger has it."""
        if self.summary is not None:
            return number(self.summary.get("loss_last"))
        return self.losses[-1] if self.losses else None

    @property
    def rates(self) -> Rates:
        """How fast it is, of its last steps; of a run that has ended, as the ledger has it."""
        if self.summary is not None:
            steps = self.summary.get("step_seconds")
            middle = number(steps.get("median")) if isinstance(steps, Mapping) else None
            each = number(self.summary.get("samples_per_second"))
            return Rates(each, middle, "all steady steps")
        if self.pace is not None and self.pace.stopped:
            return Rates(None, None, self.pace.text_with_past, self.pace.age_seconds)
        if self.pace is not None and self.pace.mean_seconds and self.started is not None:
            each = self.started.samples_per_step / self.pace.mean_seconds
            return Rates(each, self.pace.seconds, f"last {MEDIAN_STEPS} steps")
        last = self.last
        return Rates(
            last.samples_per_second if last else None,
            last.step_seconds if last else None,
            "newest steps",
        )

    @property
    def compiling_seconds(self) -> float | None:
        """Return how long its first step has been in the making, where that is compiled.

        It is None otherwise.
        """
        if (
            self.config.compile == "off"
            or self.ready is None
            or self.last is not None
            or self.ended is not None
        ):
            return None
        return time.monotonic() - self.ready

    def begin(self, started: Started) -> None:
        """The model stands on its device."""
        self.started, self.ready = started, time.monotonic()

    def heard(self, step: Step) -> None:
        """A report of the worker."""
        self.last = step
        each = self.started.samples_per_step if self.started else 1
        self.samples.append(float(step.step * each))
        self.losses.append(step.loss)
        self.paces.append(step.samples_per_second if not step.warming_up else None)
        if step.validation_loss is not None:
            self.validation_loss = step.validation_loss

    # ── what the host's picture says ──

    def see(self, host: HostView | None, pid: int | None, own: Collection[int]) -> None:
        """Take what the probe says of its steps and peak, and what the tensor pipes do.

        It is called with each report and for each picture; ``own`` are the pids of this run.
        """
        if host is None or self.started is None or self.ended is not None:
            return
        ranks = [t for t in host.trainers if t.definition.pid == pid or t.definition.pid in own]
        self.pace = pace_of(ranks) if any(t.gone is None for t in ranks) else None
        if self.device != "cuda":
            return
        trainer = by_pid(host.trainers, pid)
        peaks = (
            [p for a in trainer.allocators if (p := a.number("peak_allocated_bytes"))]
            if trainer
            else []
        )
        self.peak_bytes = max(peaks, default=self.peak_bytes)
        if self.last is None or self.last.warming_up:
            return
        readings, why = tensor_shares(host, self.started, own)
        self._tensor_why = why or self._tensor_why
        for uuid, (at, percent) in readings.items():
            kept = self._tensor.get(uuid)
            if kept is None:  # the first one is about the warm-up as well
                self._tensor[uuid] = [0.0, 0.0, at]
            elif at > kept[2]:
                self._tensor[uuid] = [kept[0] + percent, kept[1] + 1, at]

    @property
    def tensor_percent(self) -> float | None:
        """The mean tensor share over its steady steps so far, of all devices it is on.

        It is None where the driver told none.
        """
        means = [total / count for total, count, _ in self._tensor.values() if count]
        return math.fsum(means) / len(means) if means and len(means) == len(self._tensor) else None

    def reported(self, failure: RunFailure | None) -> dict[str, Any]:
        """Return the document of a run whose worker ended without writing one.

        It has what the worker had reported until then, and ``failure``, or that it was killed.
        """
        from ...lab import metrics

        if self.started is None or self.last is None:
            return {}
        ended = failure or metrics.RunFailure(
            "The trainer was killed before it wrote down what it had measured.",
            "it did not end after its step.",
            "",
        )
        curve = [
            [at, loss]
            for at, loss in zip(self.samples, self.losses, strict=True)
            if loss is not None
        ]
        values = {
            "loss_last": self.losses[-1],
            "loss_curve": curve[:: len(curve) // metrics.CURVE_POINTS + 1] or None,
            "peak_allocated_bytes": self.peak_bytes,
            "validation_loss": self.validation_loss,
        }
        reasons = {"": ("not_measured", ended.what)}
        return metrics.document(
            self.config.to_mapping(),
            values,
            reasons,
            steps=self.step,
            started=self.started,
            skipped=self.last.skipped,
            error=ended,
        )

    def finish(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """Return the document with what only the driver knows.

        Where the driver told nothing, it has the reason.
        """
        out = dict(document)
        path = "tensor_active_percent"
        unknown = [
            row
            for row in out.get("unknown") or []
            if isinstance(row, Mapping) and row.get("path") != path
        ]
        share = self.tensor_percent
        out[path] = share
        if share is None:
            why = self._tensor_why if self.device == "cuda" else "a CPU has no tensor cores"
            unknown.append({"path": path, "code": "not_measured", "reason": why})
        out["unknown"] = unknown
        self.summary, self.ended = out, time.monotonic()
        peak = out.get("peak_allocated_bytes")
        self.peak_bytes = peak if isinstance(peak, (int, float)) else self.peak_bytes
        return out
