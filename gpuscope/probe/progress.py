"""Read loss, progress and remaining time.

The training framework's state is read first, then what progress bars show.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any, Deque, Dict, List, Optional, Tuple, Union

from ..wire.frames import NOT_SUPPORTED, Unknown
from ..wire.loss_text import read_not_finite, training_losses
from . import bars
from .framework_readers import TrainingReport
from .framework_state import FrameworkState
from .plain_values import finite

COLUMNS = ("loss", "progress_done", "progress_total", "eta_seconds", "progress_of")
RUN, EPOCH = "run", "epoch"
PACE_SECONDS = 600.0
"""The time span over which the pace of a count is measured. A bar's own rate is of its last steps
only, and with it the remaining time jumps.
"""
MARK_SECONDS, FIRST_SECONDS = 2.0, 3.0
"""The least time between marks of that count, and the least time of watching before a pace is
known.
"""
LOST_STEPS, LOST_SECONDS = 10, 30.0
"""How many steps, or how long, a loss must be NaN or infinite before that counts as lasting.

A step in fp16 may overflow now and then; its grad scaler leaves that step out. Where it leaves all
steps out, only time passes.
"""
_NO_BAR = Unknown(
    NOT_SUPPORTED,
    "the trainer shows no progress bar, and no framework's step counter was found",
)
_NO_LOSS = Unknown(
    NOT_SUPPORTED, "no progress bar of the trainer shows a loss, and no framework's state was found"
)
_NO_TOTAL = Unknown(NOT_SUPPORTED, "the progress bar has no total")
_NOT_YET = Unknown(NOT_SUPPORTED, "the progress bar has not advanced yet")
Value = Union[float, int, str, Unknown]


class ProgressReader:
    """:meth:`read` is for the probe's thread.

    :attr:`state` is looked for by the thread that trains.
    """

    def __init__(self) -> None:
        self.state = FrameworkState()
        self._pace = _Pace()
        self._lost: Optional[Tuple[int, float, str]] = None
        self._finite_at: Optional[int] = None
        self._was_read = False

    def read(self, step_seconds: Optional[float] = None, steps: int = 0) -> Dict[str, Value]:
        """Return a value or an :class:`Unknown` for each of :data:`COLUMNS`; never raises.

        ``steps`` is the number of steps so far, and ``step_seconds`` what a step takes.
        """
        out: Dict[str, Value] = dict.fromkeys(COLUMNS, _NO_BAR)
        out["loss"] = _NO_LOSS
        report: Optional[TrainingReport] = None
        try:
            report = self.state.read(steps)
            if report is not None:
                out["loss"] = report.loss
                if report.done is not None:
                    out.update(self._reported_values(report, step_seconds))
        except Exception as error:  # another version's state, or one that is being replaced
            gone = Unknown(
                NOT_SUPPORTED, f"the framework's state cannot be read: {type(error).__name__}"
            )
            out = dict.fromkeys(COLUMNS, gone)
        try:
            found = bars.read(self.state.bars())
            if isinstance(out["progress_done"], Unknown):
                bar = bars.of_the_run(found, time.time())
                if bar is not None:
                    out.update(self._bar_values(bar))
            if isinstance(out["loss"], Unknown) and " shows loss " not in out["loss"].text:
                shown = _loss_of(found)
                out["loss"] = out["loss"] if shown is None else shown
        except Exception as error:  # another version's bar, or one that is being closed
            gone = Unknown(
                NOT_SUPPORTED, f"the progress bar cannot be read: {type(error).__name__}"
            )
            reported_already = report is not None
            out = {
                name: gone if value in (_NO_BAR, _NO_LOSS) and not reported_already else value
                for name, value in out.items()
            }
        out["loss"] = self._with_beginning(out["loss"], steps)
        return out

    def _with_beginning(self, loss: Value, steps: int) -> Value:
        """Return the loss; of one that stays NaN or infinite, say since which step.

        It is not read at each step: it began after the last finite one that was read.
        """
        first, self._was_read = not self._was_read, True
        if not isinstance(loss, Unknown) or read_not_finite(loss.text) is None:
            self._lost, self._finite_at = None, None if isinstance(loss, Unknown) else steps
            return loss
        now = time.monotonic()
        if self._lost is None:
            words = f"{steps:,}" + (" or earlier" if first else "")
            if self._finite_at is not None and self._finite_at + 1 < steps:
                words = f"{self._finite_at + 1:,}–{words}"
            self._lost = steps, now, words
        step, since, words = self._lost
        if steps - step < LOST_STEPS and now - since < LOST_SECONDS:
            return loss
        return Unknown(loss.code, f"{loss.text} since step {words}")

    def counts(self) -> Tuple[Any, ...]:
        """Return all counts of the framework and of progress bars; never raises.

        They also change during a rollout or an evaluation, in which no optimizer steps.
        """
        try:
            report = self.state.read()
            shown = bars.read(self.state.bars())
        except Exception:  # see read()
            return ()
        return (report.done if report is not None else None, *(bar.done for bar in shown))

    def _reported_values(
        self, report: TrainingReport, step_seconds: Optional[float]
    ) -> Dict[str, Value]:
        done, total = report.done or 0, report.total
        if not total or done > total:
            endless = Unknown(NOT_SUPPORTED, f"{report.source} has no readable end")
            return {
                "progress_done": done,
                "progress_total": endless,
                "eta_seconds": endless,
                "progress_of": RUN,
            }
        rate = self._pace.of((report.source, total), done, time.monotonic())
        if rate is None and report.in_steps and step_seconds:
            rate = 1.0 / step_seconds
        eta: Value = Unknown(
            NOT_SUPPORTED, f"{report.source} has not advanced since it was first read"
        )
        if done >= total:
            eta = 0.0
        elif rate:
            eta = (total - done) / rate
        return {
            "progress_done": done,
            "progress_total": total,
            "eta_seconds": eta,
            "progress_of": RUN,
        }

    def _bar_values(self, bar: bars.Bar) -> Dict[str, Value]:
        if bar.done is None:
            return {}
        out: Dict[str, Value] = {
            "progress_done": bar.done,
            "progress_of": EPOCH if bar.of_epoch else RUN,
        }
        if bar.total is None or bar.total <= 0:
            return {**out, "progress_total": _NO_TOTAL, "eta_seconds": _NO_TOTAL}
        out["progress_total"] = bar.total
        rate = self._pace.of((f"bar {bar.place[0]}", bar.total), bar.done, time.monotonic())
        rate = rate or bar.rate
        out["eta_seconds"] = _NOT_YET if rate is None else max(0.0, (bar.total - bar.done) / rate)
        return out


class _Pace:
    """Measures how fast a count grows, from readings of it."""

    def __init__(self) -> None:
        self._of: Tuple[str, float] = ("", 0)
        self._marks: Deque[Tuple[float, float]] = deque()

    def of(self, what: Tuple[str, float], done: float, now: float) -> Optional[float]:
        """Return the growth per second; None until the count has grown for a while."""
        marks = self._marks
        if what != self._of or (marks and done < marks[-1][1]):
            self._of = what
            marks.clear()
        if not marks or now - marks[-1][0] >= MARK_SECONDS:
            marks.append((now, done))
        while len(marks) > 2 and now - marks[0][0] > PACE_SECONDS:
            marks.popleft()
        seconds, grown = now - marks[0][0], done - marks[0][1]
        return grown / seconds if grown > 0 and seconds >= FIRST_SECONDS else None


def _loss_of(found: List[bars.Bar]) -> Optional[Value]:
    for bar in found:
        for text in reversed(bar.texts) if bar.trains else ():
            losses = training_losses(text[:1024])
            if losses:
                value: Any = finite(float(losses[0]), "the progress bar")
                return value  # type: ignore[no-any-return]
    return None
