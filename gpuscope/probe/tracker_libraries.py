"""Find the run that a trainer has open in a tracking library, and write one report into it.

The libraries are the trainer's own: they are looked up among the modules that it has imported, and
nothing is imported here. No run is ever opened or closed. Everything here may raise, and
``trackers.py`` catches it. All this runs in another thread than the trainer's; each class says why
that is safe.
"""

from __future__ import annotations

import os
import sys
import time
import weakref
from functools import partial
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from .hooks import Unseen, replace_method
from .on_import import OnImport

PREFIX = "gpuscope/"


class TrackedNumbers(NamedTuple):
    """The content of one call: numbers by name, at one step of the trainer."""

    step: int
    values: Dict[str, float]
    finding: Optional[str]
    """The probe's last message about a stall or about memory; None if it was written before."""


class Open(NamedTuple):
    """A run that is open now. ``key`` stays the same as long as the run does."""

    key: str
    run: Any


class WandB:
    """``wandb.run``, if this process has opened it itself.

    Values are logged with ``commit=False``: they join the row that the trainer writes next, and are
    sent with it. A call that commits would end that row, and W&B would drop what the trainer logs
    next for the same step. Values that are logged in this way go through W&B's own thread or lock.
    """

    name = "W&B"

    def __init__(self) -> None:
        self._defined = ""

    def find(self, rank: int) -> Optional[Open]:
        run = getattr(sys.modules.get("wandb"), "run", None)
        if run is None or getattr(run, "_init_pid", None) != os.getpid() or run.disabled:
            return None
        if getattr(run, "_is_finished", False):  # it is being uploaded
            return None
        shared = getattr(run.settings, "mode", "") == "shared" or "WANDB_RUN_ID" in os.environ
        return None if rank and shared else Open(str(run.id), run)

    def log(self, found: Open, report: TrackedNumbers) -> None:
        run = found.run
        if self._defined != found.key:
            run.define_metric(PREFIX + "step", hidden=True)
            run.define_metric(PREFIX + "*", step_metric=PREFIX + "step")
            self._defined = found.key
        values: Dict[str, Any] = {PREFIX + "step": report.step}
        values.update((PREFIX + name, value) for name, value in report.values.items())
        run.log(values, commit=False)
        if report.finding is not None:
            # The row waits for the trainer's next one, and a trainer that is stalled logs none.
            run.summary.update({PREFIX + "finding": report.finding})


class TensorBoard:
    """The first ``SummaryWriter`` of torch or of tensorboardX that is still open.

    There is no list of writers, so their constructor is wrapped. Summaries go to the file object of
    the writer, which has a queue of its own and refuses or ignores them once it is closed. The
    writer itself would open a second file then.
    """

    name = "TensorBoard"
    MODULES = ("torch.utils.tensorboard.writer", "tensorboardX.writer")

    def __init__(self) -> None:
        self._writers: List[Tuple[weakref.ref[Any], str]] = []
        self._undo: List[Any] = []

    def install(self) -> None:
        """Wrap the constructors, now or once they are imported."""
        for module in self.MODULES:
            if module in sys.modules:
                self._wrap(module)
            else:
                finder = OnImport(module, partial(self._wrap, module))
                finder.install()
                self._undo.append(finder.remove)

    def remove(self) -> None:
        for undo in self._undo:
            undo()
        self._undo.clear()

    def _wrap(self, module: str) -> None:
        cls = getattr(sys.modules[module], "SummaryWriter", None)
        if cls is None:
            return

        def constructing(original: Any, writer: Any) -> Any:
            self._writers = [item for item in self._writers if item[0]() is not None]
            self._writers.append((weakref.ref(writer), module.rpartition(".")[0] + ".summary"))
            return original.__get__(writer)

        self._undo.append(replace_method(cls, "__init__", Unseen(cls.__init__, constructing)))

    def forget(self) -> None:
        """In a forked child: forget the writers, whose threads are the parent's."""
        self._writers = []

    def find(self, rank: int) -> Optional[Open]:
        for ref, summaries in self._writers:
            file = getattr(ref(), "file_writer", None)
            if file is not None and (not rank or _alone(str(file.get_logdir()))):
                return Open(str(id(file)), (file, sys.modules[summaries]))
        return None

    def log(self, found: Open, report: TrackedNumbers) -> None:
        file, summaries = found.run
        for name, value in report.values.items():
            file.add_summary(summaries.scalar(PREFIX + name, value), report.step)
        if report.finding is not None:
            file.add_summary(summaries.text(PREFIX + "finding", report.finding), report.step)


class MLflow:
    """The run that ``mlflow.start_run`` has opened last and that has not ended.

    ``mlflow.active_run()`` knows only the runs of its own thread, so MLflow's list of all threads
    is read, and a client of our own logs by the run's id. MLflow 2.17 and older have one list for
    all threads, and no function for it.
    """

    name = "MLflow"

    def find(self, rank: int) -> Optional[Open]:
        fluent: Any = sys.modules.get("mlflow.tracking.fluent")
        if fluent is None or (rank and "MLFLOW_RUN_ID" in os.environ):
            return None
        run = getattr(fluent, "_get_latest_active_run", fluent.active_run)()
        return None if run is None else Open(str(run.info.run_id), run)

    def log(self, found: Open, report: TrackedNumbers) -> None:
        client = sys.modules["mlflow.tracking.client"].MlflowClient()
        entities = sys.modules["mlflow.entities"]
        now = int(time.time() * 1000)
        metrics = [
            entities.Metric(PREFIX + name, value, now, report.step)
            for name, value in report.values.items()
        ]
        tags = (
            [] if report.finding is None else [entities.RunTag("gpuscope.finding", report.finding)]
        )
        client.log_batch(found.key, metrics=metrics, tags=tags)


def _alone(folder: str) -> bool:
    """Whether a folder has only one file of events; ranks that share one would draw one curve."""
    return sum("tfevents" in name for name in os.listdir(folder)) == 1
