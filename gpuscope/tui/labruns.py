"""The lab's trainer as the screens see it: the switches being edited, the run in progress, the runs of this session."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..lab.config import TOGGLES, LabConfig, Toggle, Value

if TYPE_CHECKING:
    from ..lab.launch import LabRun
    from ..lab.metrics import Record

log = logging.getLogger("gpuscope.lab")

KEPT_POINTS = 4000
KEPT_RUNS = 26
BATCHES = (None, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
ACCUMULATES = (1, 2, 4, 8, 16)
FAMILIES = ("mlp", "conv", "gpt")


def choices(toggle: Toggle, now: Value) -> tuple[Value, ...]:
    """The values a key walks through; any other value is set on the command line."""
    if toggle.choices:
        options: tuple[Value, ...] = FAMILIES if toggle.name == "model" else toggle.choices
    elif toggle.name == "batch":
        options = BATCHES
    elif toggle.name == "accumulate":
        options = ACCUMULATES
    else:
        options = (0, 1, 2, 3)
    return options if now in options else (now, *options)


@dataclass(slots=True)
class Run:
    """One run: how it was set, what it said last, its loss over steps, and the summary once it has ended."""

    letter: str
    config: LabConfig
    device: str = ""
    step: int = 0
    step_seconds: float | None = None
    samples_per_second: float | None = None
    peak_bytes: float | None = None
    warming_up: bool = True
    skipped: int = 0
    steps: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT_POINTS))
    losses: deque[float | None] = field(default_factory=lambda: deque(maxlen=KEPT_POINTS))
    summary: dict[str, Any] | None = None

    @property
    def loss(self) -> float | None:
        """The newest one."""
        return self.losses[-1] if self.losses else None


class LabRuns:
    """Starts, stops and remembers. ``changed`` is called when there is something new to draw."""

    def __init__(self, config: LabConfig | None, changed: Callable[[], None]) -> None:
        self.config = config or LabConfig()
        self.runs: deque[Run] = deque(maxlen=KEPT_RUNS)
        self._changed = changed
        self._worker: LabRun | None = None
        self._count = 0
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def state(self) -> str:
        """idle, starting, running, stopping, stopped or failed."""
        return self._worker.state if self._worker else "idle"

    @property
    def pid(self) -> int | None:
        """The worker's pid while there is one."""
        return self._worker.pid if self._worker else None

    @property
    def current(self) -> Run | None:
        """The newest run."""
        return self.runs[-1] if self.runs else None

    @property
    def failure(self) -> tuple[str, ...]:
        """What happened, why, what next, when the run has failed."""
        failure = self._worker.failure if self._worker else None
        return (failure.what, f"Why: {failure.why}", f"Next: {failure.next}") if failure else ()

    @property
    def dirty(self) -> bool:
        """Whether the switches differ from those of the run in progress."""
        return bool(self.current and self.state in ("starting", "running") and self.current.config != self.config)

    def turn(self, toggle: Toggle, by: int) -> None:
        """The next or previous value of a switch. It acts at the next start."""
        now = getattr(self.config, toggle.name)
        options = choices(toggle, now)
        self.config = self.config.changed(toggle.name, options[(options.index(now) + by) % len(options)])
        self._changed()

    def start(self) -> None:
        """Start, or restart with the switches as they are."""
        from ..lab.launch import LabRun

        if self.state in ("starting", "stopping") or self._tasks:
            return
        if self._worker is None:
            self._worker = LabRun(self.config, self._record, self._became)
        self._later(self._worker.restart(self.config))

    def _became(self, worker: LabRun) -> None:
        """A run begins when its worker does: until then what comes is of the one before, its summary above all."""
        if worker.state == "starting":
            self.runs.append(Run(_letter(self._count), worker.config))
            self._count += 1
        self._changed()

    def stop(self) -> None:
        """Ask the trainer to end."""
        if self._worker and self.state in ("starting", "running"):
            self._later(self._worker.stop())

    def let_go(self) -> None:
        """The program leaves: the trainer ends by itself."""
        if self._worker:
            self._worker.let_go()

    def _later(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception():
            log.error("the lab failed", exc_info=task.exception())

    def _record(self, record: Record) -> None:
        from ..lab.metrics import Ended, Started, Step

        run = self.current
        if run is None:
            return
        if isinstance(record, Started):
            run.device = record.device
        elif isinstance(record, Step):
            run.step, run.step_seconds, run.samples_per_second = (
                record.step,
                record.step_seconds,
                record.samples_per_second,
            )
            run.warming_up, run.skipped = record.warming_up, record.skipped
            run.steps.append(float(record.step))
            run.losses.append(record.loss)
        elif isinstance(record, Ended):
            run.summary = record.summary
            peak = record.summary.get("peak_allocated_bytes")
            run.peak_bytes = peak if isinstance(peak, (int, float)) else run.peak_bytes
        self._changed()


def _letter(count: int) -> str:
    return chr(ord("A") + count) if count < 26 else f"{chr(ord('A') + count % 26)}{count // 26}"


def differing(runs: list[Run]) -> list[Toggle]:
    """The toggles in which these runs are not all alike, in the order of the table."""
    return [t for t in TOGGLES if len({getattr(run.config, t.name) for run in runs}) > 1]
