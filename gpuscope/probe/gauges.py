"""Measure inside the steps: their parts, memory at a fixed point, the model behind them.

The trainer's thread calls only :meth:`Gauges.after_step`; the probe's thread reads the results.
"""

from __future__ import annotations

import sys
import time
from typing import Any, Dict, List, Tuple, Union

from ..wire.frames import NOT_INITIALISED, NOT_SUPPORTED, Scalar, Unknown
from . import cuda, time_causes
from .ddp_exposed_comm import Exposed
from .ledger import CPU, Ledger, slice_seconds
from .loading import Loading
from .model_finder import Finder
from .modules import ModuleTree, unwrapped
from .progress import ProgressReader
from .segments import Segments
from .split import Split
from .steps import Steps
from .time_ledger import TimeLedger
from .time_settings import settings

WATCHED_SECONDS, UNWATCHED_SECONDS = 0.5, 1.0
"""Seconds between two readings of the memory right after a step."""
YOUNG_SECONDS, YOUNG_READINGS = 0.25, 120
"""The first readings are closer together, so that somebody who asks after ten seconds gets an
answer. One reading takes some 10 µs.
"""
MAX_POINTS = 512
Value = Union[int, float, str, Unknown]
NO_LOADER = Unknown(NOT_INITIALISED, "the thread that trains has not iterated a torch DataLoader")
_MIXED = Unknown(NOT_SUPPORTED, "without a DataLoader, input cannot be told apart from compute")
_NO_MEASURED = Unknown(NOT_INITIALISED, "no step has been measured yet")
NO_STEP = Unknown(
    NOT_INITIALISED, "no optimizer step seen yet (one inside torch.compile cannot be seen)"
)
_NO_PRE_HOOK = Unknown(NOT_SUPPORTED, "this torch has no hook before optimizer steps")
_NO_COPY = Unknown(NOT_SUPPORTED, "the parameters are on the CPU: nothing is copied to a device")
_COPIES = Unknown(
    NOT_SUPPORTED,
    "part of compute: timing Tensor.to would change what torch.compile sees; a profile separates "
    "them",
)
_NO_MODEL = Unknown(NOT_INITIALISED, "the model is unknown: gpuscope.watch(model) names it")
_NO_STEP_MEMORY = Unknown(NOT_INITIALISED, "read right after an optimizer step")
SPLIT_COLUMNS = (
    "input_seconds", "h2d_seconds", "compute_seconds", "optimizer_seconds", "communication_seconds",
    "other_seconds",
)  # fmt: skip


class StepMemory:
    """Allocated bytes at one fixed point of the step: right after the primary optimizer's step.

    One device is read at a time, in turn if there are several. Earlier readings are kept, and
    thinned out more and more.
    """

    def __init__(self, allocators: cuda.Allocators) -> None:
        self.latest: Dict[int, Tuple[int, int]] = {}  # ordinal: (bytes, step)
        self._allocators = allocators
        # ordinal: (step, bytes), the oldest first
        self.points: Dict[int, List[Tuple[int, int]]] = {}
        self._next = 0.0
        self._turn = 0

    def after_step(self, total: int, now: float, wanted: bool) -> None:
        if now < self._next:
            return
        usual = WATCHED_SECONDS if wanted else UNWATCHED_SECONDS
        self._next = now + (YOUNG_SECONDS if self._turn < YOUNG_READINGS else usual)
        if not cuda.initialised():
            return
        ordinals = self._allocators.ordinals()
        if ordinals:
            self._turn += 1
            ordinal = ordinals[self._turn % len(ordinals)]
            found = self._allocators.allocated(ordinal)
            if found is not None:
                self.latest[ordinal] = (found, total)
                kept = self.points.get(ordinal, [])
                if len(kept) >= MAX_POINTS:
                    kept = kept[: MAX_POINTS // 2 : 2] + kept[MAX_POINTS // 2 :]
                # a new list, because the probe's thread may be reading the old one
                self.points[ordinal] = [*kept, (total, found)]

    def of(self, ordinal: int) -> Dict[str, Value]:
        if ordinal == CPU:
            missing = Unknown(NOT_SUPPORTED, "torch keeps no statistics of CPU memory")
            return {"step_allocated_bytes": missing, "step_allocated_step": missing}
        found = self.latest.get(ordinal)
        if found is None:
            return {"step_allocated_bytes": _NO_STEP_MEMORY, "step_allocated_step": _NO_STEP_MEMORY}
        return {"step_allocated_bytes": found[0], "step_allocated_step": found[1]}


class Gauges:
    def __init__(self, steps: Steps, ledger: Ledger) -> None:
        self.split = Split(self._phase)
        self.time = TimeLedger(steps, self._phase)
        self.allocators = cuda.Allocators()
        self.memory = StepMemory(self.allocators)
        self.finder = Finder()
        self.exposed = Exposed()
        self.loading = Loading()
        self.time.facts = self._facts
        self.segments = Segments()
        self.progress = ProgressReader()
        self.tree = ModuleTree(ledger, lambda: self.finder.searching and not ledger.models())
        self._steps = steps
        self._ledger = ledger
        # in how many of the watched models a DistributedDataParallel was looked for
        self._looked_at = 0

    def after_step(self, optimizer: Any, primary: bool, now: float) -> None:
        """Measure in the thread that has just stepped ``optimizer``, at ``now`` (perf_counter).

        ``primary`` says that the step counted. It may raise only for an optimizer unlike torch's.
        """
        steps, wanted = self._steps, self._ledger.wanted
        durations = steps.durations
        self.split.optimizer_ended(
            optimizer, primary, steps.total, durations[-1] if durations else 0.0, wanted
        )
        if self.time.wants_path:
            self.time.remember_path(sys._getframe(1))
        if primary:
            self.memory.after_step(steps.total, now, wanted)
        if not wanted:
            return
        self.segments.after_step()
        self.progress.state.look(now, True, steps.total)
        if self.tree.wanted:
            self.tree.after_step(slice_seconds(steps.usual_seconds()))
        self._models(optimizer)
        if primary:
            self.exposed.after_step(self.finder.parallel, steps.total, now, durations)

    def _facts(self) -> Dict[str, Scalar]:
        syncs = self.exposed.syncs
        return {
            **time_causes.recompiles(),
            **settings(self._ledger.optimizers()),
            **self.loading.facts(),
            **({} if syncs is None else {"gradient_syncs": syncs}),
        }

    def before_batch(self, now: float) -> None:
        """Look at the framework's state, in the thread that is about to load a batch.

        This is needed for frameworks whose optimizers are not torch's, because their steps are not
        seen.
        """
        if self._ledger.wanted:
            self.progress.state.look(now, False, self._steps.total)

    def trainer(self, pre_hook: bool) -> Dict[str, Value]:
        """Return the columns of the trainer.

        ``pre_hook`` says whether the hook before optimizer steps is installed.
        """
        now = time.perf_counter()
        return {
            **self._split(pre_hook),
            "quick_own_seconds": self.exposed.own(now),
            "step_seconds_hour_ago": self._steps.minutes.hour_ago(now),
            "phase": self.phase(),
        }

    def allocator(self, ordinal: int, values: Dict[str, Any]) -> Dict[str, Any]:
        """Add to ``values`` of the statistics what only the steps and the segments show."""
        values.update(self.memory.of(ordinal))
        if ordinal == CPU:
            reason = values["allocated_bytes"]
            values.update(dict.fromkeys(("step_allocated_bytes", "step_allocated_step"), reason))
            found: Dict[str, Any] = dict.fromkeys(
                ("private_pool_idle_bytes", "private_pool_inactive_split_bytes", "workspace_bytes"),
                reason,
            )
        else:
            found = dict(self.segments.of(ordinal))
        pools = found.pop("private_pool_bytes", None)
        if isinstance(values.get("private_pool_bytes"), Unknown) and pools is not None:
            values["private_pool_bytes"] = pools
        values.update(found)
        return values

    def tick(self, initialised: bool) -> None:
        """Prepare a sample, in the probe's thread."""
        self.loading.tick(time.perf_counter())
        last = self._steps.last
        age = time.perf_counter() - last if last is not None else None
        if age is None or self._steps.counted_by:
            self._ledger.without_steps(time.perf_counter())
        if not initialised:
            return
        ordinals = self.allocators.ordinals()
        for ordinal in ordinals:
            if ordinal not in self._ledger.apart_sizes:
                self._ledger.apart_sizes[ordinal] = self.segments.sizes(ordinal)
        if self._ledger.wanted:
            self.segments.tick(ordinals, age, self._ledger.kept_apart)

    def phase(self) -> Value:
        """Return ``train`` or ``eval``, as the model says.

        The innermost model is asked, because a framework may restore only that one.
        """
        self.split.look_at_phase()
        return self._phase() or _NO_MODEL

    def _phase(self) -> str:
        for ref in self._ledger.models():
            training = getattr(unwrapped(ref()), "training", None)
            if isinstance(training, bool):
                return "train" if training else "eval"
        return ""

    def _models(self, optimizer: Any) -> None:
        ledger, finder = self._ledger, self.finder
        models = ledger.models() if ledger.watched else []
        if self._looked_at != len(models):
            self._looked_at = len(models)
            for ref in models:
                finder.look_at(ref())
        found = finder.after_step(optimizer)
        if found is not None:
            ledger.add_found(found)
        while finder.others:
            name, other = finder.others.pop(0)
            model = other()
            if model is not None:
                kind = type(unwrapped(model)).__name__
                ledger.add_other(model, f"{name} ({kind})" if name not in ("self", kind) else kind)

    def _split(self, pre_hook: bool) -> Dict[str, Value]:
        split = self.split
        means = split.means()
        if self._steps.counted_by:
            text = (
                f"steps are counted by {self._steps.counted_by}. The step breakdown needs torch's "
                f"optimizer steps"
            )
            return dict.fromkeys(SPLIT_COLUMNS, Unknown(NOT_SUPPORTED, text))
        if means is None:
            reason = _NO_MEASURED if self._steps.last is not None else NO_STEP
            if reason is _NO_MEASURED and split.spoiled:
                reason = Unknown(NOT_INITIALISED, f"no step has been measured yet: {split.spoiled}")
            if not pre_hook and "torch" in sys.modules:
                reason = _NO_PRE_HOOK
            elif split.problem:
                reason = Unknown(NOT_SUPPORTED, split.problem)
            return dict.fromkeys(SPLIT_COLUMNS, reason)
        on_device = split.ordinal is not None
        exposed = self.exposed.reading()
        waiting = 0.0
        if not isinstance(exposed, Unknown):
            exposed = waiting = min(exposed, means.compute)  # it lies within backward
        seen = self._steps.loader_seen
        return {
            "input_seconds": means.input if seen else NO_LOADER,
            "h2d_seconds": _COPIES if on_device else _NO_COPY,
            "compute_seconds": means.compute - waiting,
            "optimizer_seconds": means.optimizer,
            "communication_seconds": exposed,
            "other_seconds": means.other if seen else _MIXED,
        }
