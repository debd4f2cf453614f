"""Turn what the probe knows into frames.

These are definitions, one sample per tick, and the reasons for what is missing.
"""

from __future__ import annotations

import math
import os
import sys
import time
from typing import Any, Callable, Dict, List, Optional, Tuple, Union

from .. import __version__
from ..wire.columns import named_sizes
from ..wire.frames import (
    ALLOCATOR_COLUMNS,
    NOT_INITIALISED,
    NOT_SUPPORTED,
    TRAINER_COLUMNS,
    AllocDef,
    Def,
    Hello,
    Row,
    Sample,
    Unknown,
)
from . import cuda, identity
from .gauges import NO_LOADER, NO_STEP, Gauges
from .ledger import CPU, Bytes, Ledger
from .rendezvous import start_ticks
from .steps import Steps, quantile

TRAINER_ID = 1
ALWAYS = ("rate", "environment", "detach", "cancel")
"""What every probe may be asked for."""
REDEFINE_SECONDS = 2.0
BY_OPTIMIZER = "optimizer steps"
CPU_FLOOR_BYTES = 1 << 20
"""Fewer CPU bytes of a CUDA trainer than this (step counters of optimizers) get no row of their
own.
"""
Reasons = Dict[Tuple[int, str], Tuple[str, str]]
_NO_CYCLE = Unknown(NOT_INITIALISED, "needs two optimizer steps")
_NO_SCALER = Unknown(NOT_INITIALISED, "no torch GradScaler has stepped")
_ON_DEVICE = Unknown(
    NOT_SUPPORTED,
    "a fused optimizer decides on the device whether to skip; reading it would synchronise",
)
_COUNTING = Unknown(NOT_INITIALISED, "being counted, a slice after each optimizer step")
_STEPLESS = Unknown(
    NOT_INITIALISED,
    "no optimizer step seen, so the model's tensors are unknown: "
    "gpuscope.watch(model) counts parameters",
)
_NO_OPTIMIZER = Unknown(NOT_INITIALISED, "no optimizer seen")
_NO_OTHERS = Unknown(
    NOT_INITIALISED, "no model other than the trained one was found in the training loop"
)
_COUNTED = (
    "parameter_bytes",
    "gradient_bytes",
    "optimizer_state_bytes",
    "other_model_bytes",
    "other_models",
)
MAX_OTHERS = 8
"""Limit of the other models that are named; all are counted."""
_NOT_MEASURED = Unknown(NOT_INITIALISED, "not measured in this process yet")
_NO_COST = Unknown(NOT_INITIALISED, "not measured yet")


LATE_SECONDS = 0.05
"""A breath that takes so much longer than asked for was ended late by the trainer's own code."""


class Pause:
    """A pause between the parts of a sample, in which the trainer gets the interpreter.

    After one that lasted far longer there are no more: the trainer itself holds the interpreter for
    longer than a whole sample does, and the sample would come seconds late.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __call__(self) -> None:
        if self._seconds:
            begin = time.monotonic()
            time.sleep(self._seconds)
            if time.monotonic() - begin > self._seconds + LATE_SECONDS:
                self._seconds = 0.0


class Sampler:
    """One stream with one set of ids for all clients.

    Only the probe's thread may call :meth:`tick`.
    """

    def __init__(
        self,
        origin: str,
        steps: Steps,
        ledger: Ledger,
        gauges: Optional[Gauges] = None,
        announce: Optional[Callable[..., None]] = None,
        pre_hook: Callable[[], bool] = lambda: True,
        passes: Callable[[], int] = lambda: 0,
    ) -> None:
        """Take the parts whose readings are sampled.

        ``announce(kind, text, data, ordinal)`` is called for events that are noticed while
        sampling. ``pre_hook()`` says whether the hook before optimizer steps is installed, and
        ``passes()`` how many backward passes there were before the first step.
        """
        self.definitions: Dict[int, Def] = {}
        self.ledger = ledger
        self.gauges = gauges if gauges is not None else Gauges(steps, ledger)
        self._announce = announce
        self._pre_hook = pre_hook
        self._passes = passes
        self.also: Optional[Callable[[], Dict[str, Any]]] = None
        """Returns further columns of the trainer; called for every sample."""
        self.no_box: Callable[[], str] = lambda: ""
        """Returns why no black box is kept of this trainer, "" if one is."""
        self._phase: Any = None
        self._retries: Dict[int, int] = {}  # by ordinal
        self._origin = origin
        self._steps = steps
        self._start = start_ticks()
        self._allocators = self.gauges.allocators
        self._rows_of: Dict[int, int] = {}  # ordinal: id
        self._reasons: Reasons = {}
        self._fixed: Reasons = {}  # reasons about definitions, which are the same for all samples
        self._redefined = -REDEFINE_SECONDS
        self._cpu_mark: Optional[Tuple[float, float]] = None
        self._cpu_percent: Optional[float] = None
        self._q = 0

    def hello(self, hz: float) -> Hello:
        return Hello(
            role="probe",
            version=__version__,
            host=os.uname().nodename,
            boot=_boot_id(),
            py=".".join(map(str, sys.version_info[:3])),
            pid=os.getpid(),
            uid=os.geteuid(),
            t=time.time(),
            m=time.monotonic_ns(),
            hz=hz,
            cols={"t": list(TRAINER_COLUMNS), "a": list(ALLOCATOR_COLUMNS)},
            requests=list(ALWAYS),
        )

    def allocator_id(self, ordinal: int) -> Optional[int]:
        """Return the id of the allocator of ``ordinal``, None while it is not defined."""
        return self._rows_of.get(ordinal)

    def tick(self, breathe: Callable[[], None] = lambda: None) -> Tuple[Sample, Reasons]:
        """Return a sample of this moment, without ``why``, and all reasons that hold.

        Definitions are up to date afterwards. ``breathe`` is called between the parts, so that the
        trainer gets the interpreter lock in between.
        """
        initialised = cuda.initialised()
        if self._define(initialised):
            breathe()
        self.gauges.tick(initialised)
        breathe()
        self._reasons = dict(self._fixed)
        self._q += 1
        sample = Sample(q=self._q, m=time.monotonic_ns())
        for ordinal, entity in self._rows_of.items():
            values = self._allocator(ordinal, initialised)
            if values is not None:
                sample.a.append(self._row(entity, ALLOCATOR_COLUMNS, values))
            breathe()
        sample.t.append(self._row(TRAINER_ID, TRAINER_COLUMNS, self._trainer()))
        without_box = self.no_box()
        if without_box:
            self._reasons[TRAINER_ID, "black_box"] = (NOT_SUPPORTED, without_box)
        breathe()
        return sample, self._reasons

    def _define(self, initialised: bool) -> bool:
        """Define what is new; True if the trainer was described again, which takes a while."""
        now = time.monotonic()
        due = now - self._redefined >= REDEFINE_SECONDS or TRAINER_ID not in self.definitions
        if due:
            self._redefined = now
            trainer = identity.describe(self._start, self._origin)
            trainer.cuda = initialised
            if self._steps.last is not None:
                trainer.step_source = self._steps.counted_by or BY_OPTIMIZER
            trainer.framework = self.gauges.progress.state.framework
            trainer.backend = cuda.backend() if initialised else None
            known = self.definitions.get(TRAINER_ID)
            if known is None or known.trainer != trainer:
                self.definitions[TRAINER_ID] = Def(TRAINER_ID, trainer=trainer)
        if initialised:
            for ordinal in self._allocators.ordinals():
                self._define_allocator(ordinal)
        counted = (self.ledger.bytes or {}).get(CPU)
        if (not initialised and self._steps.last is not None) or (
            counted is not None
            and (
                counted.parameters or counted.gradients or counted.optimizer_state > CPU_FLOOR_BYTES
            )
        ):
            self._define_allocator(CPU)
        return due

    def _define_allocator(self, ordinal: int) -> None:
        if ordinal in self._rows_of:
            return
        entity = TRAINER_ID + 1 + len(self._rows_of)
        card = cuda.uuid(ordinal) if ordinal != CPU else None
        if isinstance(card, Unknown):
            self._fixed[entity, "uuid"] = (card.code, card.text)
        self._rows_of[ordinal] = entity
        name = card if isinstance(card, str) else None
        self.definitions[entity] = Def(entity, alloc=AllocDef(TRAINER_ID, ordinal, uuid=name))

    def _trainer(self) -> Dict[str, Any]:
        steps = self._steps
        now = time.perf_counter()
        durations = sorted(steps.durations)
        median = quantile(durations, 0.5) if durations else None
        values: Dict[str, Any] = dict(self.gauges.progress.read(median, steps.total))
        no_step = NO_STEP
        if steps.last is None and self._passes():
            text = (
                f"no optimizer step seen yet, after {self._passes()} backward passes: they may "
                "be accumulated first"
            )
            no_step = Unknown(NOT_INITIALISED, text)
        values["step"] = steps.total if steps.last is not None else no_step
        values["step_age_seconds"] = (
            max(0.0, now - steps.last) if steps.last is not None else no_step
        )
        missing = no_step if steps.last is None else _NO_CYCLE
        values["step_seconds"] = missing if median is None else median
        values["step_seconds_p95"] = quantile(durations, 0.95) if durations else missing
        values["step_seconds_mean"] = sum(durations) / len(durations) if durations else missing
        waits = list(steps.waits)
        if not steps.loader_seen:
            values["loader_wait_seconds"] = NO_LOADER
        else:
            values["loader_wait_seconds"] = sum(waits) / len(waits) if waits else missing
        if steps.scaled_on_device:
            values["skipped_steps"] = _ON_DEVICE
        else:
            values["skipped_steps"] = steps.skipped if steps.scaler_seen else _NO_SCALER
        values["probe_step_seconds"] = _mean(list(steps.costs))
        values.update(self.gauges.trainer(self._pre_hook()))
        self._phase_now(values["phase"])
        if self.also is not None:
            values.update(self.also())
        values["probe_cpu_percent"] = self._own_cpu(now)
        return values

    def _allocator(self, ordinal: int, initialised: bool) -> Optional[Dict[str, Any]]:
        """Return an allocator's row; None if there is no new reading in this tick."""
        values: Dict[str, Any]
        if ordinal == CPU:
            reason = (
                cuda.why_not()
                if not initialised
                else Unknown(NOT_SUPPORTED, "torch keeps no statistics of CPU memory")
            )
            values = dict.fromkeys(cuda.STATISTICS, reason)
        elif not initialised:
            values = dict.fromkeys(cuda.STATISTICS, cuda.why_not())
        else:
            statistics = self._allocators.read(ordinal)
            if statistics is None:
                return None
            values = dict(statistics)
            self._retried(ordinal, values["alloc_retries"])
        values.update(self._categories(ordinal))
        return self.gauges.allocator(ordinal, values)

    def _categories(self, ordinal: int) -> Dict[str, Any]:
        everything = self.ledger.bytes
        counted: Tuple[Any, ...]
        if everything is None:
            reason = _STEPLESS
            if (self._steps.last is not None and not self._steps.counted_by) or self.ledger.watched:
                reason = _COUNTING
            counted = (reason,) * 5
        else:
            found = everything.get(ordinal, Bytes(0, 0, 0))
            state = found.optimizer_state if self.ledger.optimizers() else _NO_OPTIMIZER
            names = self.ledger.other_models.get(ordinal, {})
            others = named_sizes(_largest(names)) if names else _NO_OTHERS
            counted = (found.parameters, found.gradients, state, found.others, others)
        return dict(zip(_COUNTED, counted))

    def _retried(self, ordinal: int, count: Any) -> None:
        """Announce it if cudaMalloc had to be repeated since the last sample."""
        if isinstance(count, Unknown):
            return
        more = count - self._retries.get(ordinal, count)
        self._retries[ordinal] = count
        if more > 0 and self._announce is not None:
            times = "once" if more == 1 else f"{more} times"
            text = (
                f"cuda:{ordinal} was full {times}: cudaMalloc failed, the cache was emptied, and "
                f"it was retried"
            )
            self._announce("retry", text, {"count": more}, ordinal)

    def _phase_now(self, phase: Any) -> None:
        if isinstance(phase, Unknown) or phase == self._phase:
            return
        before, self._phase = self._phase, phase
        if before is not None and self._announce is not None:
            text = (
                "Training continues." if phase == "train" else "The model switched to evaluation."
            )
            self._announce("phase", text, {"phase": phase})

    def _own_cpu(self, now: float) -> Union[float, Unknown]:
        """Return this thread's CPU use in percent of a core, over the last five seconds or more."""
        used = time.thread_time()
        if self._cpu_mark is None:
            self._cpu_mark = (now, used)
        elif now - self._cpu_mark[0] >= (5.0 if self._cpu_percent is not None else 1.0):
            self._cpu_percent = 100.0 * (used - self._cpu_mark[1]) / (now - self._cpu_mark[0])
            self._cpu_mark = (now, used)
        return _NO_COST if self._cpu_percent is None else self._cpu_percent

    def _row(self, entity: int, columns: Tuple[str, ...], values: Dict[str, Any]) -> Row:
        row: Row = [entity]
        for column in columns:
            value = values.get(column, _NOT_MEASURED)
            if isinstance(value, Unknown):
                self._reasons[entity, column] = (value.code, value.text)
                value = None
            elif isinstance(value, float):
                value = float(f"{value:.7g}") if math.isfinite(value) else None
            row.append(value)
        return row


def _largest(sizes: Dict[str, int]) -> List[Tuple[str, int]]:
    """Return the largest named models, and one entry for all others."""
    ordered = sorted(sizes.items(), key=lambda item: -item[1])
    rest = ordered[MAX_OTHERS:]
    return ordered[:MAX_OTHERS] + (
        [(f"{len(rest)} more", sum(size for _, size in rest))] if rest else []
    )


def changes(sent: Reasons, now: Reasons) -> List[List[Union[int, str]]]:
    """Return the why rows that bring a reader from ``sent`` to ``now``.

    An empty code says that a reason no longer holds.
    """
    rows: List[List[Union[int, str]]] = [
        [entity, column, *reason]
        for (entity, column), reason in now.items()
        if sent.get((entity, column)) != reason
    ]
    rows.extend([entity, column, "", ""] for entity, column in sent if (entity, column) not in now)
    return rows


def _mean(values: List[float]) -> Union[float, Unknown]:
    return sum(values) / len(values) if values else NO_STEP


def _boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()[:64]
    except OSError:
        return ""
