"""What every measure shares: the lines it prints, the time a claim may take, a training loop, and timing in turn.

| event | fields | meaning |
|---|---|---|
| ``begin`` | claim | its measuring starts; lines up to ``end`` belong to it |
| ``configuration`` | text | what is really measured, where that differs from the claim's own words |
| ``value`` | figure, value | one repeat of one figure; null where it gave none |
| ``note`` | title, value, unit | something else worth showing |
| ``cannot`` | reason | it cannot be tested here |
| ``failed`` | reason | an exception ended it: what was measured before stands; the process ends |
| ``end`` | | all repeats done, or the time used up |

Whatever else prints to stdout goes to stderr. The process ends, with every process of its group, when its stdin does.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO

import torch
from torch import Tensor, nn

from .. import models
from ..config import PRESETS

REPEATS = 8
LEAST_REPEATS = 3
"""As many are made however long they take; the starter's own limit ends what takes far too long."""
WINDOW_SECONDS = {"cuda": 0.25, "cpu": 0.25}
WARM_SECONDS = {"cuda": 0.5, "cpu": 0.1}
"""Before a step is first timed: a GPU that was idle runs at a fraction of its clock."""
AMP_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Cannot(Exception):
    """The claim cannot be tested here; the message says why."""


class Bench:
    """One claim being measured: its device, its repeats, its time, and where its figures go."""

    def __init__(
        self,
        claim: str,
        device: torch.device,
        send: Callable[[dict[str, Any]], None],
        repeats: int = REPEATS,
        seconds: float = 10.0,
        tiny: bool = False,
    ):
        self.claim, self.device, self.tiny = claim, device, tiny
        self.cuda = device.type == "cuda"
        self.most = repeats
        self._send = send
        self._told = False
        self._deadline = time.monotonic() + seconds

    def repeats(self, most: int | None = None, share: float = 1.0) -> Iterator[int]:
        """0, 1, … up to the repeats asked for (at most ``most``), fewer once ``share`` of the claim's time that is left
        now is used up."""
        begun = time.monotonic()
        deadline = begun + share * max(0.0, self._deadline - begun)
        for index in range(self.most if most is None else min(most, self.most)):
            if index >= LEAST_REPEATS and time.monotonic() > deadline:
                return
            yield index

    @contextmanager
    def apart(self) -> Iterator[None]:
        """What happens inside, preparing and compiling, takes nothing of the time for repeats."""
        begun = time.monotonic()
        yield
        self._deadline += time.monotonic() - begun

    def value(self, figure: str, value: float | None) -> None:
        known = value is not None and math.isfinite(value)
        self._send({"event": "value", "figure": figure, "value": value if known else None})

    def note(self, title: str, value: float | str | None, unit: str = "") -> None:
        if isinstance(value, float) and not math.isfinite(value):
            value = None
        self._send({"event": "note", "title": title, "value": value, "unit": unit})

    def configuration(self, text: str) -> None:
        self._send({"event": "configuration", "text": text})

    def preset(self, family: str) -> str:
        """The family's preset for this device; the small one where everything is to be tiny."""
        return PRESETS[family]["cpu" if self.tiny else self.device.type]

    def batch(self, usual: int) -> int:
        return min(usual, 2) if self.tiny else usual

    @property
    def window(self) -> float:
        return 0.02 if self.tiny else WINDOW_SECONDS[self.device.type]

    @property
    def mixed(self) -> str:
        """The type of autocast here: bf16, fp16 on a GPU that has no bf16 arithmetic. Tells once if it is not bf16."""
        if not self.cuda or torch.cuda.get_device_capability(self.device) >= (8, 0):
            return "bf16"
        if not self._told:
            self._told = True
            self.note("autocast", "fp16 with GradScaler: this GPU has no bf16 arithmetic")
        return "fp16"


Measure = Callable[[Bench], None]


# ── training ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def scaler(device: torch.device, enabled: bool = True) -> Any:
    """A GradScaler for ``device``. Raises :class:`Cannot` where this torch has none for it."""
    if hasattr(torch.amp, "GradScaler"):
        return torch.amp.GradScaler(device.type, enabled=enabled)
    if enabled and device.type != "cuda":
        raise Cannot(f"torch {torch.__version__} has no GradScaler for a CPU")
    return torch.cuda.amp.GradScaler(enabled=enabled)


class Loop:
    """A model of the lab, AdamW, and :meth:`step`: a training step as anyone would write it.

    ``change`` gets the model as it was built and returns the one to train; it comes before the optimizer."""

    def __init__(
        self,
        preset: str,
        device: torch.device,
        *,
        batch: int | None = None,
        amp: str = "off",
        accumulate: int = 1,
        half: bool = False,
        seed: int = 0,
        change: Callable[[nn.Module], nn.Module] | None = None,
    ):
        made = models.MODELS[preset]
        self.device, self.batch, self.accumulate = device, batch or made.batch, accumulate
        task = models.build(preset, device, seed)
        self.criterion = task.criterion
        self._pool = task.pool
        self._at = 0
        model: nn.Module = task.model
        if half:
            model = model.half()
            self._pool = tuple(part.half() if part.is_floating_point() else part for part in task.pool)
        self.model = model if change is None else change(model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=made.learning_rate)
        self.amp_type = AMP_TYPES.get(amp)
        self.scaler = scaler(device, enabled=amp == "fp16")

    def next_batch(self) -> tuple[Tensor, Tensor]:
        """The pool's next samples, on the device; from its start again where not enough are left."""
        inputs, targets = self._pool
        if self._at + self.batch > len(inputs):
            self._at = 0
        begin, self._at = self._at, self._at + self.batch
        return inputs[begin : self._at], targets[begin : self._at]

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return self.criterion(self.model(inputs), targets)

    def backward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """One micro-batch: its share of the loss, still on the device."""
        with torch.autocast(self.device.type, dtype=self.amp_type, enabled=self.amp_type is not None):
            loss = self.loss(inputs, targets) / self.accumulate
        self.scaler.scale(loss).backward()
        return loss.detach()

    def update(self) -> None:
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def step(self) -> Tensor:
        """One optimizer step; the mean loss, still on the device."""
        self.optimizer.zero_grad(set_to_none=True)
        total = self.backward(*self.next_batch())
        for _ in range(self.accumulate - 1):
            total = total + self.backward(*self.next_batch())
        self.update()
        return total

    def keep_one_step(self) -> None:
        """Drops all samples but those of one step: the rest of the pool is no part of what training needs."""
        count = self.batch * self.accumulate
        self._pool = tuple(part[:count].clone() for part in self._pool)
        self._at = 0


def release() -> None:
    """Gives back what dropped models held."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def peak_allocated(make: Callable[[], Loop], device: torch.device, steps: int = 3) -> int:
    """The highest allocated bytes while a new loop takes ``steps`` steps. This process is ours, so the allocator starts
    from nothing but the model: peaks are reset and the cache is emptied."""
    release()
    loop = make()
    loop.keep_one_step()
    release()
    torch.cuda.reset_peak_memory_stats(device)
    for _ in range(steps):
        loop.step()
    torch.cuda.synchronize(device)
    return int(torch.cuda.max_memory_allocated(device))


# ── timing ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def window(step: Callable[[], object], steps: int, device: torch.device) -> float:
    """Seconds a step takes, over ``steps`` of them; the device is waited for before and after."""
    wait_for(device)
    begin = time.perf_counter()
    for _ in range(steps):
        step()
    wait_for(device)
    return (time.perf_counter() - begin) / steps


def fitted(step: Callable[[], object], device: torch.device, seconds: float, warm: float) -> int:
    """How many steps take about ``seconds``, 1 to 1,000; found once the device is warm, which two steps and ``warm``
    seconds make it."""
    window(step, 2, device)
    ends = time.perf_counter() + warm
    took = window(step, 1, device)
    while time.perf_counter() < ends:
        took = window(step, 1, device)
    return max(1, min(1000, round(seconds / max(took, 1e-9))))


Side = tuple[Callable[[], object], torch.device]


def in_turn(
    bench: Bench, sides: Mapping[str, Side], seconds: float | None = None, share: float = 1.0
) -> Iterator[dict[str, float]]:
    """For each repeat, the seconds a step takes on every side: one window of ``seconds`` each, right after each other,
    in an order that turns round with every repeat. A drift of the machine's speed cancels in their ratios. ``share`` as
    in :meth:`Bench.repeats`."""
    steps = {}
    for name, (step, device) in sides.items():
        warm = 0.0 if bench.tiny else WARM_SECONDS[device.type]
        steps[name] = fitted(step, device, bench.window if seconds is None else seconds, warm)
    for index in bench.repeats(share=share):
        names = list(sides) if index % 2 == 0 else list(sides)[::-1]
        yield {name: window(sides[name][0], steps[name], sides[name][1]) for name in names}


# ── the process ───────────────────────────────────────────────────────────────────────────────────────────────────────


def take_stdout() -> BinaryIO:
    """The stream of events. Whatever else prints to stdout from now on goes to stderr: an event stays a line."""
    sys.stdout.flush()
    stream = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return stream


def sender(stream: BinaryIO) -> Callable[[dict[str, Any]], None]:
    def send(event: dict[str, Any]) -> None:
        stream.write(json.dumps(event, allow_nan=False).encode() + b"\n")
        stream.flush()

    return send


def end_with_parent() -> None:
    """Runs in a thread: stdin ends when whoever started this process is gone; then its whole group goes too."""
    try:
        while os.read(0, 4096):
            pass
    except OSError:
        pass
    if os.getpgid(0) == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def parser() -> argparse.ArgumentParser:
    arguments = argparse.ArgumentParser(description="Measures claims; prints a JSON object a line.")
    arguments.add_argument("--claims", required=True, metavar="ID,…", help="what to measure, in this order")
    arguments.add_argument("--device", choices=("cpu", "cuda"), required=True)
    arguments.add_argument("--repeats", type=int, default=REPEATS)
    arguments.add_argument("--seconds", default="{}", metavar="JSON", help="claim → how long its repeats may take")
    arguments.add_argument("--tiny", action="store_true", help="small models, short windows: to see that it works")
    arguments.add_argument("--stop-on-eof", action="store_true", help="end when stdin ends")
    return arguments


def measure_all(
    measures: Mapping[str, Measure],
    arguments: argparse.Namespace,
    device: torch.device,
    send: Callable[[dict[str, Any]], None],
) -> int:
    """Every claim asked for in turn. After an exception the process is not used any more: exit code 1."""
    seconds = json.loads(arguments.seconds)
    for claim in arguments.claims.split(","):
        send({"event": "begin", "claim": claim})
        bench = Bench(claim, device, send, arguments.repeats, float(seconds.get(claim, 10.0)), arguments.tiny)
        try:
            measures[claim](bench)
        except Cannot as reason:
            send({"event": "cannot", "reason": str(reason)})
        except Exception as error:
            traceback.print_exc()
            text = " ".join(str(error).split())[:300]
            send({"event": "failed", "reason": f"{type(error).__name__}: {text}" if text else type(error).__name__})
            return 1
        send({"event": "end"})
        release()
    return 0


def main(measures: Mapping[str, Measure]) -> int:
    """The program of a topic whose claims need one process. Exit code 0, 1 after a claim that failed."""
    arguments = parser().parse_args()
    send = sender(take_stdout())
    if arguments.stop_on_eof:
        threading.Thread(target=end_with_parent, name="parent", daemon=True).start()
    device = torch.device("cuda", 0) if arguments.device == "cuda" else torch.device("cpu")
    return measure_all(measures, arguments, device, send)
