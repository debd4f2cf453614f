"""Record allocation history from the start, and measure what it costs.

``GPUSCOPE_HISTORY=N`` (``gpuscope run --history N``) asks for it. It is on from the moment CUDA is
initialised, because most trainings run out of memory in their first steps. Its cost is measured
once steps are steady: some steps with it, as many without it, and then it is switched on again.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Callable, List, Optional

from . import cuda, oom, symbols
from .history import HistorySwitch, NewSteps, cost
from .long_requests import Refusal
from .on_import import debug
from .steps import Steps, quantile

STEPS = 30
WARM_STEPS = 10


def wanted_entries(environment: Any = os.environ) -> int:
    """Return how many entries the user asked for, 0 without.

    With more than :data:`oom.MAX_ENTRIES` a record would take longer than its 500 ms.
    """
    text = environment.get("GPUSCOPE_HISTORY", "")
    return min(int(text), oom.MAX_ENTRIES) if text.isdigit() and len(text) < 10 else 0


class StandingHistory:
    def __init__(self, steps: Steps, history: HistorySwitch, announce: Callable[..., None]) -> None:
        self.entries = wanted_entries()
        self.problem = ""
        self._steps = steps
        self._history = history
        self._announce = announce
        self._stage = "off" if self.entries else "done"
        self._fresh: Optional[NewSteps] = None
        self._skip = 0
        self._with: List[float] = []
        self._without: List[float] = []

    @property
    def on(self) -> int:
        """Return how many entries we are recording now, 0 without."""
        return self._history.entries or 0

    def begin(self) -> None:
        """Switch it on while CUDA is being initialised, in a thread of the trainer.

        Never raises.
        """
        if self._stage == "off":
            # otherwise the out-of-memory record would wait for it
            symbols.load_in_trainers_thread()
            self._begin()

    def _begin(self) -> None:
        if self._stage == "off" and self._switch(True):
            self._stage = "with"
            self._fresh, self._skip = NewSteps(self._steps), WARM_STEPS

    def tick(self) -> None:
        """Measure the cost when it is time; called in the probe's thread, about once a second."""
        if self._stage == "off" and cuda.initialised():
            self._begin()
        if self._stage not in ("with", "without"):
            return
        if (self._stage == "with") != bool(self._history.entries):
            # somebody has asked for another history meanwhile, which takes precedence
            self._stage = "done"
            return
        found = self._fresh.take() if self._fresh is not None else []
        found, self._skip = found[self._skip :], max(0, self._skip - len(found))
        times = self._with if self._stage == "with" else self._without
        times += found
        if len(times) < STEPS:
            return
        if self._stage == "with":
            self._stage = "without" if self._switch(False) else "done"
            self._fresh, self._skip = NewSteps(self._steps), 1
        else:
            self._stage = "done"
            self._switch(True)
            self._tell(*cost(self._without, self._with))

    def _switch(self, on: bool) -> bool:
        try:
            # not is_initialized(), which is still false while CUDA is being initialised
            memory: Any = sys.modules["torch"].cuda.memory
            if on:
                if cuda.backend() == "cudaMallocAsync":
                    raise Refusal("unsupported", "the cudaMallocAsync allocator keeps no history")
                self._history.refuse_if_not_ours(memory)
                self._history.switch_on(memory, self.entries)
            else:
                self._history.switch_off(memory)
        except Exception as error:
            self.problem = str(getattr(error, "reason", error))[:300]
            self._stage = "done"
            self._announce("note", f"No memory history: {self.problem}", {"history": False})
            debug("no memory history", error)
            return False
        return True

    def _tell(self, middle: float, low: float, high: float) -> None:
        without, with_it = (quantile(sorted(times), 0.5) for times in (self._without, self._with))
        text = (
            f"Memory history of {self.entries} entries costs {middle:+.1f} % of a step ({low:+.1f} "
            f"to {high:+.1f} %): {1e3 * with_it:.4g} ms with it, {1e3 * without:.4g} ms without, "
            f"{STEPS} steps or more each."
        )
        data = {
            "history": True,
            "entries": self.entries,
            "baseline_step_seconds": without,
            "step_seconds": with_it,
            "cost_percent": middle,
            "cost_low_percent": low,
            "cost_high_percent": high,
        }
        self._announce("note", text, data)
