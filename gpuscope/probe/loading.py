"""Measures how many cores the loading of batches needs: whether it computes, or waits itself.

A loader that waits for a disk or a network needs next to no core, and more workers help it even
where all cores are busy. One that computes needs a core for each worker.

A thread that wants to compute on a busy host waits for a core. The kernel counts that time, and it
is left out here: what counts is what loading needs of a core where one is free. So a busy host does
not make a loader that computes look idle, nor one that often wakes up look busy.
"""

from __future__ import annotations

import weakref
from collections import deque
from threading import get_native_id
from time import perf_counter, process_time
from typing import Any, Deque, Dict, Optional, Tuple

from ..wire.frames import Scalar

EVERY_SECONDS = 0.2
"""At most so often a batch that is loaded in the training's own process is measured, which takes
some 30 µs."""
KEPT = 300
WORKERS_SECONDS = 4.0
"""So far apart the workers are read, in the probe's thread."""
MAX_WORKERS = 64
Began = Tuple[float, float, float]
Spent = Tuple[float, float]
"""Seconds on a core, and in the queue for one."""


class Loading:
    """What is known of the loader that was used last."""

    def __init__(self) -> None:
        self.workers: Optional[int] = None
        """Its ``num_workers``; None before the first batch."""
        self._iterator: Any = _nothing
        self._pids: Tuple[int, ...] = ()
        self._due = 0.0
        self._loads: Deque[Tuple[float, Spent]] = deque(maxlen=KEPT)
        """How long batches took to load in this process, and what of it was spent how."""
        self._read_at = 0.0
        self._spent: Dict[int, Spent] = {}
        """The same of each worker since its start."""
        self._of_workers: Optional[float] = None

    def begins(self, iterator: Any, now: float) -> Optional[Began]:
        """Note that a batch is about to be loaded; the result is for :meth:`ended`, if any."""
        if self._iterator() is not iterator:
            self._other(iterator)
        if self.workers != 0 or now < self._due:
            return None
        self._due = now + EVERY_SECONDS
        queued = _queued(f"self/task/{get_native_id()}") or 0.0
        return perf_counter(), process_time(), queued

    def ended(self, began: Began) -> None:
        """Note that the batch is there.

        The queue is read before the clocks, and after them here: so no time in it is missed. It may
        contain some that is outside of the load; more than the load did not compute is left out.
        """
        begin, computed, queued = began
        took, computed = perf_counter() - begin, process_time() - computed
        waited = max(0.0, (_queued(f"self/task/{get_native_id()}") or 0.0) - queued)
        self._loads.append((took, (computed, min(waited, max(0.0, took - computed)))))

    def tick(self, now: float) -> None:
        """Read the workers, in the probe's thread, at ``now`` (perf_counter)."""
        pids = self._pids
        if not pids or now - self._read_at < WORKERS_SECONDS:
            return
        # The clock is read anew: on a busy host this thread may have waited for a core since now.
        read_at = perf_counter()
        elapsed, self._read_at = read_at - self._read_at, read_at
        before, self._spent = self._spent, {}
        found = []
        for pid in pids:
            spent = _schedule(str(pid))
            if spent is not None:
                self._spent[pid] = spent
                if pid in before:
                    then = before[pid]
                    found.append(_cores(elapsed, spent[0] - then[0], spent[1] - then[1]))
        if found:
            self._of_workers = sum(found) / len(found)

    def facts(self) -> Dict[str, Scalar]:
        """Return ``loader_workers``, and ``loading_cores``: the cores that one of them needs.

        Without workers it is what the training's own process needs while it loads. Each is left out
        where it is not known.
        """
        if self.workers is None:
            return {}
        found: Dict[str, Scalar] = {"loader_workers": self.workers}
        cores, loads = self._of_workers, list(self._loads)
        if not self.workers:
            seconds = sum(took for took, _ in loads)
            computed, queued = (sum(spent[part] for _, spent in loads) for part in (0, 1))
            cores = _cores(seconds, computed, queued) if loads else None
        if cores is not None:
            found["loading_cores"] = round(cores, 3)
        return found

    def _other(self, iterator: Any) -> None:
        self._iterator = weakref.ref(iterator)
        number = getattr(iterator, "_num_workers", None)
        workers = getattr(iterator, "_workers", None) or ()
        if number != self.workers:
            self._loads.clear()
            self._of_workers = None
        self.workers = number if isinstance(number, int) else None
        pids = [getattr(one, "pid", None) for one in workers[:MAX_WORKERS]]
        self._pids = tuple(pid for pid in pids if isinstance(pid, int))


def _nothing() -> None:
    return None


def _cores(seconds: float, computed: float, queued: float) -> float:
    """Return how many cores were needed, of the time in which none was waited for."""
    return max(0.0, computed) / max(seconds - queued, 0.05 * seconds, 1e-6)


def _queued(task: str) -> Optional[float]:
    spent = _schedule(task)
    return None if spent is None else spent[1]


def _schedule(task: str) -> Optional[Spent]:
    """Return the seconds on a core and in the queue for one; None where the kernel keeps none."""
    try:
        with open(f"/proc/{task}/schedstat", "rb", buffering=0) as file:
            computed, queued = file.read(128).split()[:2]
        return int(computed) / 1e9, int(queued) / 1e9
    except (OSError, ValueError):
        return None
