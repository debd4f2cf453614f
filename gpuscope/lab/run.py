"""Make a whole run in this process, and report on the way.

It trains until all steps are done or it is stopped.
"""

from __future__ import annotations

import os
import platform
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import gpuscope

from . import factory, machine, metrics, models, parallel, rules
from .config import LabConfig
from .parallel import World
from .run_statistics import Tally, Window
from .training import Clock, Training, TrainingStopped

PEAK_STEPS = 3
"""A peak is the maximum over this many optimizer steps of a fresh process, and over its first
validation.
"""
VALIDATE_STEPS = 10
"""Steps from one validation to the next."""
MOST_STEPS = 4096
"""Steps in one report at most."""


class TrainingRefused(Exception):
    """This configuration cannot run here. ``args`` are what happened, why, and what to do next."""


@dataclass
class _Pending:
    """A window of steps that the device may not have finished yet."""

    step: int
    losses: Tensor
    event: Any
    marks: list[Any]
    waited: list[float]
    warming_up: bool
    taken: int


class Run:
    """One run. ``report`` gets the records; only rank 0 calls it."""

    def __init__(
        self,
        config: LabConfig,
        report: Callable[[metrics.Record], None],
        stop: threading.Event | None = None,
    ):
        self.config = config
        self.stop = stop or threading.Event()
        self.tally = Tally(config)
        self.world: World | None = None
        self._report = report
        self._training: Training
        self._clock: Clock
        self._losses: list[Tensor] = []
        self._waits: list[float] = []
        self._warm_window = True
        self._pending: _Pending | None = None
        self._buffer: Tensor | None = None

    def train(self) -> None:
        """Make the whole run.

        Raises what torch raises, :class:`TrainingRefused`, ``CannotJoin`` and ``BadFactory``.
        """
        machine.apply(self.config)
        refuse_missing_device(self.config)
        self.world = world = parallel.join(self.config)
        machine.limit_memory(world.device)
        user = factory.find(self.config.factory) if self.config.factory else None
        takes = factory.takes_checkpoint(user) if user else None
        verdicts = rules.check(self.config, machine.facts(self.config, world, takes))
        for verdict in verdicts:
            if verdict.level == "refuse":
                failure = verdict.failure()
                raise TrainingRefused(failure.what, failure.why, failure.next)
        self.set_up(Training(self.config, world, user), [str(verdict) for verdict in verdicts])
        training = self._training
        os.environ["GPUSCOPE_ORIGIN"] = "lab"
        sys.argv[0] = "gpuscope lab"  # what the probe shows as the script
        gpuscope.watch(training.work.model, training.work.optimizer)
        self.begin()
        try:
            while not self._stopping() and not self.tally.complete:
                self.step()
        except TrainingStopped:
            pass
        self.finish()
        training.close()

    def set_up(self, training: Training, warnings: list[str]) -> None:
        """Take a training whose model is on its device, and report what is about to run."""
        self.world, self._training = training.world, training
        found = parallel.gather(machine.devices(self.config, training.world), training.world)
        started = introduction(
            self.config, training, warnings, [device for part in found or [] for device in part]
        )
        self.tally.started = started
        self._say(started)

    def begin(self) -> None:
        """Note that the first step is about to start.

        Memory for building the model and its data does not count for the peaks.
        """
        assert self.tally.started is not None
        device = self._training.device
        if device.type == "cuda":
            torch.cuda.synchronize(device)
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
        self._clock = Clock(device)
        self.tally.begin(self.tally.started, time.perf_counter())

    def resume(self) -> None:
        """Note that something else has used the device, and the next step begins only now."""
        if self._pending is not None:
            self._emit()
        self._clock.gap()

    def step(self) -> None:
        """Make one step of the training, with the reports and validations that belong to it.

        A window of steps is reported when the device has finished it. This is checked only after
        the next step has been launched, so that the device is never idle because of a report.
        """
        training, tally, many = self._training, self.tally, self._many
        before = training.work.waited
        loss = training.step(self.stop.is_set if not many else lambda: False)
        if self.config.empty_cache:
            self._release()
        self._clock.mark()
        self._losses.append(loss)
        if tally.steps < 2:
            tally.same_batch = training.work.same_batch
            tally.convolutions = training.work.convolutions
        if before is not None and training.work.waited is not None:
            self._waits.append(training.work.waited - before)
        if tally.warming_up and training.compilation is not None:
            self._follow_compilation(training)
        if tally.steps == 0 or (tally.warming_up and tally.steps + 1 >= tally.warmup_steps):
            self._synchronize()  # the host's clock measures the warm-up
        was_warming = tally.warming_up
        events = (
            training.compilation.events if training.compilation is not None and was_warming else 0
        )
        due = (
            tally.stepped(training.taken, time.perf_counter(), events)
            or len(self._losses) >= MOST_STEPS
        )
        if tally.steps == 1 and training.compilation is not None:
            training.compilation.first_step_seconds = time.perf_counter() - tally.began
        if self._pending is not None:
            self._emit()
        at_once = tally.steps == 1 or tally.complete or (was_warming and not tally.warming_up)
        if many and not (tally.steps == 1 or tally.complete):
            # Each rank has its own clock, and all report when one of them finds that it is time.
            # Their answer is a step old, so the answer after a report still asks for that report.
            due = parallel.agree(due, training.world, "report") and len(self._losses) > 1
            at_once = False
        if training.taken >= PEAK_STEPS and not tally.has_peaks:
            self._read_peaks()
        if due:
            self._close()
            if at_once or training.device.type == "cpu":
                self._emit()
                self._clock.gap()
        if self.config.validate != "off" and tally.steps % VALIDATE_STEPS == 0:
            self._validate()

    def finish(self) -> None:
        """Report what is still to be sent after the last step: the peaks and the ranks."""
        if self._pending is not None:
            self._emit()
        if self._losses:
            self._close()
            self._emit()
        if not self.tally.has_peaks:
            self._read_peaks()
        training = self._training
        if training.compilation is not None:
            self._follow_compilation(training)
        device = str(training.device)
        found = parallel.gather(self.tally.rank(training.world.rank, device), training.world)
        if found is not None:
            self.tally.ranks(found)

    @property
    def batch(self) -> int | None:
        """Samples in a micro-batch; None before the model's name is resolved."""
        if self.config.batch or self.config.factory:
            return self.config.batch or factory.BATCH
        return (
            models.MODELS[self.config.preset(self.world.device.type)].batch if self.world else None
        )

    @property
    def _many(self) -> bool:
        return self._training.world.size > 1

    def _stopping(self) -> bool:
        return parallel.agree(self.stop.is_set(), self._training.world, "stop")

    def _say(self, record: metrics.Record) -> None:
        if self._training.world.rank == 0:
            self._report(record)

    def _close(self) -> None:
        """End the window of steps and start copying its losses to the host."""
        losses = torch.stack(self._losses).float()
        event = None
        if losses.device.type == "cuda":
            if self._buffer is None:
                self._buffer = torch.empty(MOST_STEPS, pin_memory=True)
            losses = self._buffer[: len(losses)].copy_(losses, non_blocking=True)
            event = torch.cuda.Event()
            event.record()
        training, now = self._training, time.perf_counter()
        marks, warm = self._clock.take(), self._warm_window
        self._pending = _Pending(
            self.tally.steps, losses, event, marks, self._waits, warm, training.taken
        )
        self._losses, self._waits, self._warm_window = [], [], self.tally.warming_up
        self.tally.closed(now)

    def _emit(self) -> None:
        """Wait for the end of the pending window and report it."""
        pending, self._pending = self._pending, None
        assert pending is not None
        if pending.event is not None:
            pending.event.synchronize()
        training = self._training
        losses = parallel.means([float(loss) for loss in pending.losses.tolist()], training.world)
        took = self._clock.seconds(pending.marks)
        scale = training.scale
        if training.compilation is not None:
            self._follow_compilation(training)
        window = Window(
            pending.step, losses, took, pending.waited, pending.warming_up, pending.taken, scale
        )
        self._say(self.tally.report(window))

    def _follow_compilation(self, training: Training) -> None:
        assert training.compilation is not None
        self.tally.compile = training.compilation.summary()

    def _validate(self) -> None:
        """Make a validation between two steps, and note its cost."""
        training = self._training
        if self._pending is not None:
            self._emit()
        cuda = training.device.type == "cuda"
        first = cuda and not self.tally.has_validated
        if first:
            self._read_peaks()
            torch.cuda.reset_peak_memory_stats(training.device)
        self._synchronize()
        begin = time.perf_counter()
        loss = parallel.mean(float(training.validate().detach()), training.world)
        seconds = time.perf_counter() - begin
        if self.config.empty_cache:
            self._release()
        peak = None
        if first:
            peak = torch.cuda.max_memory_allocated(training.device)
            self._read_peaks()
        self.tally.validated(loss, seconds, peak)
        self._clock.gap()

    def _release(self) -> None:
        released = self._training.release()
        if released is not None:
            self.tally.released(*released)

    def _read_peaks(self) -> None:
        device = self._training.device
        if device.type == "cuda":
            self.tally.peaks(
                torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)
            )

    def _synchronize(self) -> None:
        if self._training.device.type == "cuda":
            torch.cuda.synchronize(self._training.device)


def refuse_missing_device(config: LabConfig) -> None:
    """Raise :class:`TrainingRefused` where ``config`` asks for CUDA and torch finds none."""
    if config.device != "cuda" or torch.cuda.is_available():
        return
    if torch.version.cuda is None:
        why = f"this torch ({torch.__version__}, {sys.executable}) is built without CUDA."
    else:
        why = (
            f"torch {torch.__version__} (CUDA {torch.version.cuda}) finds no GPU: no "
            "driver, or all hidden."
        )
    raise TrainingRefused("The lab cannot train on cuda here.", why, config.command(device="cpu"))


def introduction(
    config: LabConfig, training: Training, warnings: list[str], devices: list[dict[str, Any]]
) -> metrics.Started:
    """Return what is about to run, and what the user should know about it."""
    device, world = training.device, training.world
    if config.amp == "fp16" and not training.scaler.is_enabled():
        warnings = [
            *warnings,
            f"torch {torch.__version__} has no GradScaler for a CPU: small gradients are lost to "
            "fp16.",
        ]
    return metrics.Started(
        config={**config.to_mapping(), "batch": training.work.batch},
        preset=config.preset(device.type),
        device=device.type,
        device_name=machine.device_name(device),
        torch_version=str(torch.__version__),
        parameters=training.parameters,
        samples_per_step=training.work.batch * config.accumulate * world.size,
        warnings=warnings,
        world_size=world.size,
        backend=world.backend or None,
        devices=devices,
        environment={"python": platform.python_version(), "cuda": torch.version.cuda},
    )
