"""Measure what the Lab's worker costs a step compared with a hand-written loop.

It prints one line of JSON. Both train the same preset from the same seed on the same samples, in
one process, in blocks: plain lab, lab plain, plain lab, … so that a drift of the machine's speed
cancels. The Lab's blocks run its own loop with everything that it does in a worker: micro-batches
from its source, CUDA events, losses that are kept, and five records a second that are encoded and
written into a pipe; also the probe, read by a client in another process at ``--hz``. The plain
blocks run without the probe. A block is timed by the host's clock, and the device is synchronised
at both ends. The interval is Student's t over the alternations' log-ratios.

    python bench/overhead/lab.py --model gpt --amp bf16 --seconds 60
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

import gpuscope  # noqa: E402
from bench.overhead.probe import CLIENT  # noqa: E402
from gpuscope import probe  # noqa: E402
from gpuscope.lab import machine, metrics, models  # noqa: E402
from gpuscope.lab.config import LabConfig  # noqa: E402
from gpuscope.lab.intervals import paired  # noqa: E402
from gpuscope.lab.parallel import World  # noqa: E402
from gpuscope.lab.run import Run  # noqa: E402
from gpuscope.lab.training import AMP_TYPES, Training  # noqa: E402
from gpuscope.probe import rendezvous  # noqa: E402

BLOCK_SECONDS = 1.5
"""A block contains many reports and some samples of the probe."""
SETTLE_SECONDS = 0.4
"""The start of each block is not counted: the probe's thread starts, its client connects, and the
GPU's clocks rise.
"""


class Plain:
    """The loop that a person would write: no accumulation, no report, no loss kept."""

    def __init__(self, config: LabConfig, device: torch.device):
        name = config.preset(device.type)
        preset = models.MODELS[name]
        task = models.build(name, device, config.seed)
        self.model, self.criterion = task.model, task.criterion
        self.inputs, self.targets = task.pool
        self.batch = config.batch or preset.batch
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=preset.learning_rate)
        self.scaler = torch.amp.GradScaler(device.type) if config.amp == "fp16" else None
        self.autocast = (
            (lambda: torch.autocast(device.type, dtype=AMP_TYPES[config.amp]))
            if config.amp != "off"
            else contextlib.nullcontext
        )
        self.place = 0

    def step(self) -> None:
        if self.place + self.batch > len(self.inputs):
            self.place = 0
        inputs = self.inputs[self.place : self.place + self.batch]
        targets = self.targets[self.place : self.place + self.batch]
        self.place += self.batch
        self.optimizer.zero_grad()
        with self.autocast():
            loss = self.criterion(self.model(inputs), targets)
        if self.scaler is None:
            loss.backward()
            self.optimizer.step()
        else:
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()


class Lab:
    """The worker's own loop."""

    def __init__(self, config: LabConfig, world: World):
        self.pipe = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        self.records = 0
        self.run = Run(config, self.write)
        self.training = Training(config, world)
        self.run.set_up(self.training, [])
        self.run.begin()

    def write(self, record: metrics.Record) -> None:
        assert self.pipe.stdin is not None
        self.pipe.stdin.write(metrics.encode(record))
        self.pipe.stdin.flush()
        self.records += 1

    def close(self) -> None:
        self.run.finish()
        self.training.close()
        self.pipe.communicate()


def seconds_per_step(
    step: Callable[[], None], steps: int, synchronize: Callable[[], None]
) -> float:
    synchronize()
    begin = time.perf_counter()
    for _ in range(steps):
        step()
    synchronize()
    return (time.perf_counter() - begin) / steps


def measure(config: LabConfig, world: World, seconds: float) -> dict[str, object]:
    """Measure all alternations within ``seconds``, at least 3, and return the results."""
    synchronize = torch.cuda.synchronize if world.device.type == "cuda" else lambda: None
    plain, lab = Plain(config, world.device), Lab(config, world)

    def settle(step: Callable[[], None]) -> None:
        until = time.perf_counter() + SETTLE_SECONDS
        while time.perf_counter() < until:
            step()
            synchronize()

    times: dict[str, list[float]] = {"plain": [], "lab": []}
    settle(plain.step)
    settle(lab.run.step)
    steps = max(5, round(BLOCK_SECONDS / seconds_per_step(plain.step, 5, synchronize)))
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times["lab"]) < 3:
        for half in ("plain", "lab") if len(times["lab"]) % 2 == 0 else ("lab", "plain"):
            if half == "lab":
                gpuscope.watch(lab.training.work.model, lab.training.work.optimizer)
                lab.run.resume()
            step = lab.run.step if half == "lab" else plain.step
            settle(step)
            times[half].append(seconds_per_step(step, steps, synchronize))
            probe.detach()
    lab.close()
    ratio = paired(times["plain"], times["lab"])
    share = None if ratio.low is None or ratio.high is None else [ratio.low - 1, ratio.high - 1]
    return {
        "steps_per_block": steps,
        "alternations": len(times["lab"]),
        "records": lab.records,
        "median_step_seconds": {half: statistics.median(values) for half, values in times.items()},
        "overhead_share": ratio.middle - 1,
        "overhead_share_95": share,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="gpt", help="a family or preset of the lab")
    parser.add_argument("--batch", type=int, help="samples in a step; default: the preset's")
    parser.add_argument("--amp", choices=("off", "bf16", "fp16"), default="off")
    parser.add_argument("--tf32", action="store_true")
    parser.add_argument("--seconds", type=float, default=60.0, help="about how long to measure")
    parser.add_argument(
        "--hz", type=float, default=2.0, help="rate the probe's client asks for; 0: no client"
    )
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    args = parser.parse_args()
    cuda = args.device == "cuda" or (args.device == "auto" and torch.cuda.is_available())
    device = torch.device("cuda", 0) if cuda else torch.device("cpu")
    config = LabConfig(
        model=args.model, batch=args.batch, amp=args.amp, tf32=args.tf32, device=device.type
    )
    machine.apply(config)
    client = None
    if args.hz > 0:
        pattern = os.path.join(rendezvous.directory(), f"{os.getpid()}-*.sock")
        client = subprocess.Popen(
            [sys.executable, "-c", CLIENT, pattern, str(args.hz)], stdout=subprocess.PIPE, text=True
        )
    try:
        found = measure(config, World(0, 1, 0, "", device), args.seconds)
    finally:
        samples = 0
        if client is not None:
            client.kill()
            samples = len(client.communicate()[0].splitlines())
    head = {
        "device": machine.device_name(device),
        "torch": str(torch.__version__),
        "preset": config.preset(device.type),
        "batch": args.batch or models.MODELS[config.preset(device.type)].batch,
        "amp": args.amp,
        "tf32": args.tf32,
        "hz": args.hz,
        "samples": samples,
    }
    print(json.dumps({**head, **found}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
