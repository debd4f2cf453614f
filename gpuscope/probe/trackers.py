"""Add the probe's numbers to the run that the trainer has open in W&B, TensorBoard or MLflow.

``GPUSCOPE_TRACK=1`` (``gpuscope run --track``) asks for it. The probe's thread makes a report from
the sample that it takes anyway, and a separate thread writes it. A library may wait for a server
for minutes, and neither the trainer nor its viewers must wait with it.
"""

from __future__ import annotations

import atexit
import os
import queue
import sys
import threading
import time
from typing import Any, Dict, List, Optional, Tuple

from ..wire.frames import (
    ALLOCATOR_COLUMNS,
    NOT_SUPPORTED,
    TRAINER_COLUMNS,
    Def,
    Event,
    Sample,
)
from .ledger import CPU
from .on_import import debug
from .sampler import TRAINER_ID, Reasons
from .tracker_libraries import MLflow, TensorBoard, TrackedNumbers, WandB

VARIABLE = "GPUSCOPE_TRACK"
SECONDS = 10.0
"""Seconds between two reports."""
STOP_SECONDS = 1.0
"""How long the end of the trainer waits for a call that is under way, so that the call does not
overlap with what the library does at the end.
"""
FINDINGS = frozenset(("stall", "resumed", "retry", "oom"))
"""Events whose sentence is written together with the numbers."""
_SIZES = ("allocated", "reserved", "peak_allocated")
_COUNTS = ("alloc_retries", "ooms")


def is_wanted() -> bool:
    """Whether the user asks for it."""
    return os.environ.get(VARIABLE) == "1"


class Trackers:
    """All libraries that this trainer may use.

    It has the interface of the server's clients (``due``, ``hz``, :meth:`sample`, :meth:`event`),
    and the probe's thread calls it. Nothing here raises.
    """

    hz = 1.0 / SECONDS

    def __init__(self, tensorboard: Optional[TensorBoard] = None) -> None:
        self.due = time.monotonic() + SECONDS
        self._tensorboard = tensorboard if tensorboard is not None else TensorBoard()
        self._libraries: List[Any] = [WandB(), self._tensorboard, MLflow()]
        self._failed: Dict[str, str] = {}  # by library: the run for which it raised
        self._reports: queue.Queue[Optional[TrackedNumbers]] = queue.Queue(1)
        self._thread: Optional[threading.Thread] = None
        self._stopped = False
        self._last: Tuple[Any, ...] = ()
        self._finding: Optional[str] = None
        # by library: a run and its finding
        self._written: Dict[str, Tuple[str, Optional[str]]] = {}
        self._rank = 0

    def install(self) -> None:
        """Watch for the writers of TensorBoard, which are in no list."""
        try:
            self._tensorboard.install()
        except Exception as error:
            debug("the writers of TensorBoard are not seen", error)

    def stop(self) -> None:
        """End the thread and remove everything.

        Any thread may call this; a second call does nothing.
        """
        self._stopped = True
        self._tensorboard.remove()
        atexit.unregister(self.stop)
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            try:
                self._reports.put_nowait(None)
            except queue.Full:
                pass  # the thread checks this before it writes
            thread.join(STOP_SECONDS)

    def forked(self) -> Trackers:
        """Return trackers for a forked child; the thread and the writers are the parent's."""
        atexit.unregister(self.stop)
        self._tensorboard.forget()
        return Trackers(self._tensorboard)

    # ── the probe's thread ────────────────────────────────────────────────────────────────────────

    def event(self, event: Event, definitions: Dict[int, Def]) -> None:
        """Remember the last finding."""
        if event.e in FINDINGS:
            self._finding = event.text

    def sample(
        self,
        sample: Sample,
        reasons: Reasons,
        definitions: Dict[int, Def],
        shared: Dict[bytes, bytes],
    ) -> None:
        """Give a report to the thread that writes; drop it if that thread is still busy."""
        self.due = time.monotonic() + SECONDS
        try:
            report = report_of(sample, reasons, definitions, self._finding)
            if report is None or self._stopped:
                return
            mark = (report.step, report.values.get("stalled"), report.finding)
            if mark == self._last:
                return
            trainer = definitions[TRAINER_ID].trainer
            self._rank = (trainer.rank if trainer is not None else None) or 0
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="gpuscope-tracker", daemon=True)
                thread.start()
                self._thread = thread
                atexit.register(self.stop)
            self._reports.put_nowait(report)
            self._last = mark
        except queue.Full:
            pass
        except Exception as error:
            debug("not tracked", error)

    # ── the thread that writes ────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        # what the trainer traces of its threads (coverage, a debugger) is not ours
        sys.settrace(None)
        sys.setprofile(None)
        while not self._stopped:
            report = self._reports.get()
            for library in self._libraries:
                if report is None or self._stopped:
                    return
                self._write(library, report)

    def _write(self, library: Any, report: TrackedNumbers) -> None:
        """Write to the run that is open, and never again to one that raised.

        If the trainer has closed the run meanwhile, the exception says only that.
        """
        name, key = library.name, ""
        try:
            found = library.find(self._rank)
            if found is None or self._failed.get(name) == found.key:
                return
            key = found.key
            if self._written.get(name) == (key, report.finding):
                report = report._replace(finding=None)
            library.log(found, report)
            if report.finding is not None:
                self._written[name] = key, report.finding
        except Exception as error:
            if not key or self._is_open(library, key):
                self._failed[name] = key
                debug(f"no longer logged to {name}", error)
                if not key:
                    self._libraries = [other for other in self._libraries if other is not library]

    def _is_open(self, library: Any, key: str) -> bool:
        try:
            found = library.find(self._rank)
        except Exception:
            return True
        return found is not None and found.key == key


def report_of(
    sample: Sample, reasons: Reasons, definitions: Dict[int, Def], finding: Optional[str] = None
) -> Optional[TrackedNumbers]:
    """Return what of a sample is logged.

    None before the first step. Unknown values are left out.
    """
    trainer: Dict[str, Any] = dict(zip(TRAINER_COLUMNS, sample.t[0][1:]))
    if trainer.get("step") is None:
        return None
    values: Dict[str, Any] = {"step_seconds": trainer["step_seconds"]}
    mean, wait = trainer["step_seconds_mean"], trainer["loader_wait_seconds"]
    if mean and wait is not None:
        values["input_share"] = min(1.0, wait / mean)
    if trainer["stall_at"] is not None:
        values["stalled"] = 1
    elif reasons.get((TRAINER_ID, "stall_at"), ("",))[0] != NOT_SUPPORTED:
        values["stalled"] = 0
    gib = 1 << 30
    for row in sample.a:
        about = definitions[int(row[0] or 0)].alloc
        if about is None or about.ordinal == CPU:
            continue
        memory: Dict[str, Any] = dict(zip(ALLOCATOR_COLUMNS, row[1:]))
        for name in _SIZES:
            size = memory[name + "_bytes"]
            values[f"cuda{about.ordinal}/{name}_gib"] = None if size is None else size / gib
        for name in _COUNTS:
            values[f"cuda{about.ordinal}/{name}"] = memory[name]
    numbers = {name: float(value) for name, value in values.items() if value is not None}
    return TrackedNumbers(int(trainer["step"]), numbers, finding)
