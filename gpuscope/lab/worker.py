"""The process that trains: ``python -m gpuscope.lab.worker --config JSON``, in any Python that has torch.

Speaks the records of ``metrics.py`` on stdout; everything else that prints goes to stderr. Ends cleanly on SIGTERM and
SIGINT, and with ``--stop-on-eof`` also when whoever holds the other end of its stdin is gone. Exit code 0: all steps
done or stopped on request; 2: an ``error`` record says what happened; 64: the configuration is no configuration.
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from typing import Any, BinaryIO

import torch
from torch import Tensor

import gpuscope

from . import metrics, models
from .config import PRESETS, ConfigError, LabConfig
from .tally import Tally

PEAK_STEPS = 3
"""A peak is the maximum over this many optimizer steps of a fresh process."""
GRACE_SECONDS = 3.0
"""How long a worker whose parent is gone may take to finish its micro-batch."""

AMP_TYPES = {"off": None, "bf16": torch.bfloat16, "fp16": torch.float16}


class Stopped(Exception):
    """The run was asked to end in the middle of a step."""


class Refused(Exception):
    """This configuration cannot run here. ``args``: what, why, next."""


# ── training ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def resolve_device(config: LabConfig) -> torch.device:
    """The device ``config`` asks for; raises :class:`Refused` where there is none."""
    if config.device == "cpu" or (config.device == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if torch.cuda.is_available():
        return torch.device("cuda", 0)
    if torch.version.cuda is None:
        why = f"this torch ({torch.__version__}, {sys.executable}) is built without CUDA."
    else:
        why = f"torch {torch.__version__} (CUDA {torch.version.cuda}) finds no CUDA device: no driver, or all hidden."
    raise Refused("The lab cannot train on cuda here.", why, config.command(device="cpu"))


class Training:
    """A model, its optimizer and one :meth:`step` that does what the toggles say."""

    def __init__(self, config: LabConfig, device: torch.device):
        preset = models.MODELS[config.preset(device.type)]
        self.device = device
        self.batch = config.batch or preset.batch
        self.accumulate = config.accumulate
        self.amp_type = AMP_TYPES[config.amp]
        self.task = models.build(config.preset(device.type), device, config.seed)
        self.optimizer = torch.optim.AdamW(self.task.model.parameters(), lr=preset.learning_rate)
        self.scaler = _grad_scaler(device.type, enabled=config.amp == "fp16")
        self.taken = 0
        self.optimizer.register_step_post_hook(self._count)  # the scaler does not call step() when it skips

    def _count(self, *_: object) -> None:
        self.taken += 1

    def step(self, stopping: Callable[[], bool] = lambda: False) -> Tensor:
        """One optimizer step over ``accumulate`` micro-batches; the mean loss, still on the device.

        Raises :class:`Stopped` between two micro-batches once ``stopping()`` is true."""
        self.optimizer.zero_grad(set_to_none=True)
        total = torch.zeros((), device=self.device)
        for _ in range(self.accumulate):
            if stopping():
                raise Stopped
            inputs, targets = self.task.next_batch(self.batch)
            with torch.autocast(self.device.type, dtype=self.amp_type, enabled=self.amp_type is not None):
                loss = self.task.loss(inputs, targets) / self.accumulate
            self.scaler.scale(loss).backward()
            total += loss.detach()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return total

    @property
    def scale(self) -> float | None:
        """The grad scaler's factor; reading it waits for the device."""
        return float(self.scaler.get_scale()) if self.scaler.is_enabled() else None

    @property
    def parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.task.model.parameters())


def _grad_scaler(device_type: str, enabled: bool) -> Any:
    if hasattr(torch.amp, "GradScaler"):
        return torch.amp.GradScaler(device_type, enabled=enabled)
    # torch before 2.3 scales on CUDA only.
    return torch.cuda.amp.GradScaler(enabled=enabled and device_type == "cuda")


class Clock:
    """Seconds each step took: CUDA events between steps on a GPU, so that nothing waits for a step; the clock on a CPU.

    The pause for a report is no part of any step: :meth:`resume` begins anew after it."""

    def __init__(self, device: torch.device):
        self._cuda = device.type == "cuda"
        self._marks: list[Any] = []

    def mark(self) -> None:
        if self._cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._marks.append(event)
        else:
            self._marks.append(time.perf_counter())

    def resume(self) -> None:
        self._marks.clear()
        self.mark()

    def intervals(self) -> list[float]:
        """Step times since :meth:`resume`. The device must have been synchronised after the last mark."""
        pairs = zip(self._marks[:-1], self._marks[1:], strict=True)
        return [a.elapsed_time(b) / 1000 if self._cuda else b - a for a, b in pairs]


# ── a run ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Run:
    """Trains until all steps are done or :attr:`stop` is set, and reports on the way."""

    def __init__(self, config: LabConfig, report: Callable[[metrics.Record], None]):
        self.config = config
        self.stop = threading.Event()
        self.tally = Tally(config)
        self._report = report

    def train(self) -> None:
        """The whole run. Raises what torch raises, and :class:`Refused`."""
        device = resolve_device(self.config)
        training = Training(self.config, device)
        started = introduction(self.config, training)
        self._report(started)
        os.environ["GPUSCOPE_ORIGIN"] = "lab"
        sys.argv[0] = "gpuscope lab"  # what the probe shows as the script
        gpuscope.watch(training.task.model, training.optimizer)
        clock = Clock(device)
        self.tally.begin(started, time.perf_counter())
        clock.resume()
        try:
            while not self.stop.is_set() and not self.tally.complete:
                self._step(training, clock)
        except Stopped:
            pass
        if not self.tally.has_peaks:
            self._read_peaks(device)

    def _step(self, training: Training, clock: Clock) -> None:
        loss = training.step(self.stop.is_set)
        clock.mark()
        due = self.tally.stepped(training.taken, time.perf_counter())
        if training.taken >= PEAK_STEPS and not self.tally.has_peaks:
            self._read_peaks(training.device)
        if due or self.stop.is_set():
            value = float(loss)  # waits for the device
            now = time.perf_counter()
            self._report(self.tally.report(value, clock.intervals(), training.scale, now))
            self.tally.resume(time.perf_counter())
            clock.resume()

    def _read_peaks(self, device: torch.device) -> None:
        if device.type == "cuda":
            self.tally.peaks(torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device))


def introduction(config: LabConfig, training: Training) -> metrics.Started:
    """What is about to run, and what a user should know about it."""
    device = training.device
    cuda = device.type == "cuda"
    warnings = list(config.warnings(device.type))
    if config.amp == "fp16" and not training.scaler.is_enabled():
        warnings.append(f"torch {torch.__version__} has no GradScaler for a CPU: small gradients are lost to fp16.")
    if cuda and config.amp == "bf16" and torch.cuda.get_device_capability(device) < (8, 0):
        warnings.append("This GPU has no bf16 arithmetic: it is emulated and slow; fp16 is the fast one here.")
    return metrics.Started(
        config={**config.to_mapping(), "batch": training.batch},
        preset=config.preset(device.type),
        device=device.type,
        device_name=torch.cuda.get_device_name(device) if cuda else _cpu_name(),
        torch_version=str(torch.__version__),
        parameters=training.parameters,
        samples_per_step=training.batch * training.accumulate,
        warnings=warnings,
    )


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    except OSError:
        name = ""
    return name or platform.machine() or "CPU"


# ── failures ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def explain(error: Exception, config: LabConfig, tally: Tally) -> metrics.Failure:
    """An exception of :meth:`Run.train` in words: what happened, why, what to run next."""
    if isinstance(error, Refused):
        return metrics.Failure(*error.args)
    text = " ".join(str(error).split())[:300] or type(error).__name__
    when = f"at step {tally.steps + 1}" if tally.started else "before the first step"
    if isinstance(error, (torch.cuda.OutOfMemoryError, MemoryError)) or "can't allocate memory" in text:
        return metrics.Failure(f"The lab ran out of memory {when}.", text, _smaller(config, tally))
    return metrics.Failure(
        f"The lab's training ended {when} with {type(error).__name__}.", text, config.command(steps=10) + " --headless"
    )


def _smaller(config: LabConfig, tally: Tally) -> str:
    """The nearest combination that needs less memory: half the micro-batch, twice the accumulation."""
    family = config.model.split("-")[0]
    on = tally.started.device if tally.started else resolve_device(config).type
    batch = config.batch or models.MODELS[config.preset(on)].batch
    if batch > 1 and config.accumulate <= 2048:
        return config.command(batch=batch // 2, accumulate=config.accumulate * 2)
    if config.amp == "off":
        return config.command(amp="bf16")
    return config.command(model=PRESETS[family]["cpu"])


# ── the process ───────────────────────────────────────────────────────────────────────────────────────────────────────


def take_stdout() -> BinaryIO:
    """The stream of records. Whatever else prints to stdout from now on goes to stderr: a record stays a line."""
    sys.stdout.flush()
    stream = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return stream


def end_with_parent(stop: threading.Event) -> None:
    """Runs in a thread: stdin ends when the process that started this one is gone, however it went."""
    try:
        while os.read(0, 4096):
            pass
    except OSError:
        pass
    stop.set()
    time.sleep(GRACE_SECONDS)
    os._exit(0)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m gpuscope.lab.worker", description="The lab's trainer.")
    parser.add_argument(
        "--config", default="{}", metavar="JSON", help="toggles by name; what is left out has its default"
    )
    parser.add_argument("--stop-on-eof", action="store_true", help="stop when stdin ends")
    arguments = parser.parse_args(argv)
    stream = take_stdout()
    try:
        config = LabConfig.from_json(arguments.config)
    except ConfigError as error:
        stream.write(metrics.encode(metrics.Failure("The lab cannot run this.", str(error), "gpuscope lab --help")))
        stream.close()
        return 64

    def report(record: metrics.Record) -> None:
        try:
            stream.write(metrics.encode(record))
            stream.flush()
        except BrokenPipeError:
            run.stop.set()

    run = Run(config, report)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: run.stop.set())
    if arguments.stop_on_eof:
        threading.Thread(target=end_with_parent, args=(run.stop,), name="lab-parent", daemon=True).start()
    try:
        run.train()
    except Exception as error:
        if not isinstance(error, Refused):
            traceback.print_exc()
        failure = explain(error, config, run.tally)
        report(replace(failure, summary=run.tally.document(failure)))
        return 2
    report(metrics.Ended(run.tally.document()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
