"""Record allocation history on request, and measure its cost in this training.

The cost is the difference between a step with it and a step without it.
"""

from __future__ import annotations

import math
import time
from typing import Any, Dict, List, Optional, Tuple

from . import blob_file, snapshots
from .long_requests import Answer, LongRequest, Refusal
from .on_import import debug
from .steps import CONFIDENCE, Steps, median_interval, quantile

MAX_ENTRIES = 5_000_000
TRIAL_ENTRIES = 100_000
MIN_STEPS = 20
MAX_STEPS = 1000
_POLL_SECONDS = 0.02


class HistorySwitch:
    """Switch torch's history on and off, and remember what was switched.

    A history that somebody else has switched on is left alone; ours is switched off at the end.
    ``entries`` is the length of ours, None while it is off.
    """

    def __init__(self, steps: Steps) -> None:
        self.entries: Optional[int] = None
        self._steps = steps

    def serve(self, act: LongRequest) -> Answer:
        """Serve the request: ``entries`` (0 switches off) and ``trial_steps`` (0: no trial).

        :func:`_value` describes the result.
        """
        memory = snapshots.cuda_memory()
        entries = count_of(act.args, "entries", 0, MAX_ENTRIES, TRIAL_ENTRIES)
        trial = count_of(act.args, "trial_steps", 0, MAX_STEPS, 0)
        self.refuse_if_not_ours(memory)
        if trial:
            if trial < MIN_STEPS:
                raise Refusal(
                    "refused",
                    f"measuring the overhead needs {MIN_STEPS} steps or more: "
                    f"trial_steps was {trial}",
                )
            return self._trial(act, memory, entries or TRIAL_ENTRIES, trial)
        if entries:
            self.switch_on(memory, entries)
        elif self.entries is not None:
            self.switch_off(memory)
        return Answer(_value(self.entries))

    def close(self) -> None:
        """Switch our history off. Never raises."""
        if self.entries is not None:
            try:
                self.switch_off(snapshots.cuda_memory())
            except Exception as error:
                debug("history cannot be switched off", error)

    def refuse_if_not_ours(self, memory: Any) -> None:
        """Raise :class:`Refusal` if somebody else is recording.

        Switching it on or off would change what they record.
        """
        on = snapshots.recording()
        # a torch that does not tell: if somebody records, there are entries
        if on is None and self.entries is None:
            on = any(len(trace) > 1 for trace in memory._snapshot().get("device_traces", ()))
        if on is False:
            self.entries = None  # the training has switched ours off
        if on and self.entries is None:
            raise Refusal(
                "refused",
                "the training records its own history: gpuscope leaves it on, and a snapshot "
                "contains it",
            )

    def switch_on(self, memory: Any, entries: int) -> None:
        """Switch it on. Raises :class:`Refusal` if the host's memory is too small for this."""
        blob_file.refuse_without_memory(
            entries * snapshots.ENTRY_BYTES, f"a history of {entries} entries"
        )
        # Only Python stacks, only of allocations: in eager GPT-small on an H200 this costs half as
        # much as "all" with C++ frames.
        memory._record_memory_history(
            enabled="all", context="alloc", stacks="python", max_entries=entries
        )
        self.entries = entries

    def switch_off(self, memory: Any) -> None:
        memory._record_memory_history(enabled=None)
        self.entries = None

    def _trial(self, act: LongRequest, memory: Any, entries: int, wanted: int) -> Answer:
        before = self.entries
        if before is not None:
            raise Refusal(
                "refused",
                f"a history of {before} entries is on: measuring the overhead needs steps "
                f"without it (entries 0)",
            )
        without = self._measure(act, wanted, "without history", 0.0)
        self.switch_on(memory, entries)
        try:
            with_it = self._measure(act, wanted, "with history", 0.5)
        finally:
            self.switch_off(memory)
        return Answer(_value(None, entries, without, with_it))

    def _measure(self, act: LongRequest, wanted: int, what: str, done: float) -> List[float]:
        """Return the durations of ``wanted`` steps, beginning with the second from now.

        The next one began under other conditions.
        """
        durations: List[float] = []
        fresh = NewSteps(self._steps)
        skip, reported, last = 1, 0.0, time.monotonic()
        while len(durations) < wanted:
            act.wait(_POLL_SECONDS)
            found = fresh.take()
            durations += found[skip:]
            skip = max(0, skip - len(found))
            now = time.monotonic()
            last = now if found else last
            act.stage = f"{min(len(durations), wanted)} of {wanted} steps measured {what}"
            if now - last > 1.0:
                act.stage += f"; the trainer has made no step for {now - last:.0f} s"
            if now - reported > 0.5:
                reported = now
                act.progress(done + 0.5 * min(1.0, len(durations) / wanted), act.stage)
        return durations[:wanted]


class NewSteps:
    """Collects the durations of steps that end from now on."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._seen = steps.total

    def take(self) -> List[float]:
        """Return the step durations since the last call.

        If there were more than the probe remembers, the older ones are lost.
        """
        total = self._steps.total
        durations = list(self._steps.durations)
        fresh = min(total - self._seen, len(durations))
        self._seen = total
        return durations[-fresh:] if fresh > 0 else []


def cost(without: List[float], with_it: List[float]) -> Tuple[float, float, float]:
    """What the median step costs more, in percent, and the interval that holds it with 95 %.

    Each median's interval holds with √0.95, so that both do with 0.95; the quotient of their ends
    is then an interval of the quotient (a wide one, on the safe side). Steps are taken as
    independent of each other.
    """
    off, on = sorted(without), sorted(with_it)
    each = math.sqrt(CONFIDENCE)
    # of MIN_STEPS values there always is one
    off_low, off_high = median_interval(off, each)  # type: ignore[misc]
    on_low, on_high = median_interval(on, each)  # type: ignore[misc]
    middle = quantile(on, 0.5) / quantile(off, 0.5)
    return tuple(100.0 * (share - 1.0) for share in (middle, on_low / off_high, on_high / off_low))  # type: ignore[return-value]


def count_of(args: Dict[str, Any], name: str, low: int, high: int, default: int) -> int:
    """Return a whole number from a request's arguments. Raises :class:`Refusal`."""
    value = args.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise Refusal("refused", f"{name} must be a whole number from {low} to {high}")
    return value


def _value(
    on: Optional[int],
    entries: int = 0,
    without: Optional[List[float]] = None,
    with_it: Optional[List[float]] = None,
) -> Dict[str, Any]:
    """Return the state of the history and the result of a trial.

    ``enabled`` and ``entries`` describe the present state (after a trial: off, and the entries that
    were tried). ``baseline_step_seconds`` and ``step_seconds`` are medians, ``cost_percent`` comes
    with its 95 % interval, and ``steps`` counts the steps of each; all are null without a trial.
    """
    value: Dict[str, Any] = {"enabled": on is not None, "entries": entries or on or 0, "steps": 0}
    names = (
        "baseline_step_seconds",
        "step_seconds",
        "cost_percent",
        "cost_low_percent",
        "cost_high_percent",
    )
    value.update(dict.fromkeys(names))
    if without and with_it:
        figures = (
            quantile(sorted(without), 0.5),
            quantile(sorted(with_it), 0.5),
            *cost(without, with_it),
        )
        value.update(zip(names, figures), steps=len(with_it))
    return value
