"""Measure what the probe costs a training step: on and off in turn, in one process.

It prints one line of JSON.

On: the probe is armed, and one client in another process reads at ``--hz``. Off: it is detached,
without hooks and thread. The order is off on, on off, off on, … so that a drift of the machine's
speed cancels. Two intervals are computed over the differences of the alternations' medians:
Student's t for their mean, and order statistics for their median, for machines whose clock jumps
sometimes. All differences are printed too.

    python bench/overhead/probe.py --alternations 8 --steps 300

With ``--ledger`` both halves have the probe, and only the one that is "on" keeps the time ledger.
So it measures the cost of the ledger alone.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
import timeit
from collections import deque
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

import gpuscope  # noqa: E402
from bench.quantile import quantile  # noqa: E402
from gpuscope import probe  # noqa: E402
from gpuscope.lab.intervals import t_quantile  # noqa: E402
from gpuscope.probe import rendezvous  # noqa: E402
from gpuscope.probe.core import GUARD  # noqa: E402
from gpuscope.probe.steps import median_interval  # noqa: E402

SETTLE = 20
"""Steps at the start of each half that are not counted, because the thread starts and the client
connects.
"""
WARM_SECONDS = 0.5
"""A warm-up before the batch is fitted, because a GPU that was idle runs at a fraction of its
clock.
"""
LAUNCHED: deque[float] = deque(maxlen=2000)
"""For each of the last steps, the seconds until the host had launched everything."""
CLIENT = """
import json, socket, sys, time, glob
pattern, hz = sys.argv[1], float(sys.argv[2])
at = None
while True:
    for path in glob.glob(pattern):
        with socket.socket(socket.AF_UNIX) as peer:
            try:
                peer.connect(path)
                peer.sendall(json.dumps({"r": "rate", "id": 1, "args": {"hz": hz}}).encode() + b"\\n")
                for line in peer.makefile():
                    frame = json.loads(line)
                    if frame["k"] == "hello":
                        at = frame["cols"]["a"].index("statistics_seconds") + 1
                    elif frame["k"] == "s":
                        print(json.dumps([row[at] for row in frame.get("a", [])]), flush=True)
            except OSError:
                pass
    time.sleep(0.02)
"""  # noqa: E501


def make_step(device: str, target_seconds: float, layers: int = 0) -> Callable[[], float]:
    """Return a training step of about ``target_seconds``.

    Its batch is fitted to the machine once its clocks are up. On a GPU one wide layer lets the GPU
    set the pace; with four, launching their kernels does on many hosts (0: the default).
    :data:`LAUNCHED` collects for how long the host was busy before it waited for the GPU.
    """
    width, layers = (2048, layers or 1) if device == "cuda" else (64, layers or 2)
    layer = torch.nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True, dropout=0.0)
    model = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    sync = torch.cuda.synchronize if device == "cuda" else lambda: None

    def step(batch: torch.Tensor) -> float:
        begin = time.perf_counter()
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        LAUNCHED.append(time.perf_counter() - begin)
        sync()
        return time.perf_counter() - begin

    rows = 1
    while True:
        batch = torch.randn(rows, 64, width, device=device)
        warm = time.perf_counter() + WARM_SECONDS
        while time.perf_counter() < warm:
            step(batch)
        seconds = statistics.median([step(batch) for _ in range(12)])
        if seconds >= 0.9 * target_seconds or rows >= 4096:
            return lambda: step(batch)
        rows = min(4096, max(rows + 1, int(rows * min(4.0, target_seconds / seconds))))


def begin(half: str, ledger: bool) -> None:
    """Install the probe for a half, if that half has one."""
    if half == "on" or ledger:
        gpuscope.watch()
    if half == "off" and ledger:
        getattr(sys, GUARD).gauges.time.due = math.inf


def measure(
    step: Callable[[], float], alternations: int, steps: int, ledger: bool = False
) -> dict[str, object]:
    """Measure both halves of every alternation, and return the results."""
    times: dict[str, list[list[float]]] = {"on": [], "off": []}
    spent: dict[str, list[float]] = {"on": [], "off": []}
    for number in range(alternations):
        for half in ("off", "on") if number % 2 == 0 else ("on", "off"):
            begin(half, ledger)
            for _ in range(SETTLE):
                step()
            before = time.process_time()
            times[half].append([step() for _ in range(steps)])
            spent[half].append((time.process_time() - before) / steps)
            probe.detach()
    medians = {half: [statistics.median(run) for run in runs] for half, runs in times.items()}
    every = {half: [value for run in runs for value in run] for half, runs in times.items()}
    base = statistics.median(every["off"])
    differences = [on - off for on, off in zip(medians["on"], medians["off"], strict=True)]
    tails = [
        quantile(on, 0.99) - quantile(off, 0.99)
        for on, off in zip(times["on"], times["off"], strict=True)
    ]
    return {
        "launch_seconds": statistics.median(LAUNCHED),
        "median_step_seconds": {half: statistics.median(values) for half, values in every.items()},
        "p99_step_seconds": {half: quantile(values, 0.99) for half, values in every.items()},
        "difference_share_of_median": interval(differences, base),
        # of all threads of this process; other programs on the machine hardly change it
        "cpu_difference_share": interval(
            [on - off for on, off in zip(spent["on"], spent["off"], strict=True)],
            statistics.median(spent["off"]),
        ),
        "p99_difference_share_of_p99": interval(tails, quantile(every["off"], 0.99)),
    }


def interval(differences: list[float], base: float) -> dict[str, object]:
    """Return mean and median of the differences as shares of ``base``.

    Each comes with its 95 % interval, and all differences are listed.
    """
    count = len(differences)
    mean = statistics.fmean(differences)
    half = t_quantile(count - 1) * statistics.stdev(differences) / count**0.5
    low, high = median_interval(differences) or (None, None)
    middle = statistics.median(differences)
    return {
        "mean": mean / base,
        "low": (mean - half) / base,
        "high": (mean + half) / base,
        "median": middle / base,
        "median_low": None if low is None else low / base,
        "median_high": None if high is None else high / base,
        "all": [round(difference / base, 6) for difference in differences],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--alternations", type=int, default=8, help="pairs of halves, at least 2")
    parser.add_argument("--steps", type=int, default=300, help="steps counted in each half")
    parser.add_argument(
        "--hz", type=float, default=2.0, help="rate the client asks for; 0: no client"
    )
    parser.add_argument("--step-seconds", type=float, default=0.010)
    parser.add_argument(
        "--layers", type=int, default=0, help="of the model; more of them, each with fewer rows"
    )
    parser.add_argument(
        "--ledger", action="store_true", help="what the time ledger costs, with the probe in both"
    )
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    args = parser.parse_args()
    device = (
        args.device if args.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    )
    step = make_step(device, args.step_seconds, args.layers)
    client = None
    if args.hz > 0:
        pattern = os.path.join(rendezvous.directory(), f"{os.getpid()}-*.sock")
        client = subprocess.Popen(
            [sys.executable, "-c", CLIENT, pattern, str(args.hz)], stdout=subprocess.PIPE, text=True
        )
    try:
        found = measure(step, max(2, args.alternations), args.steps, args.ledger)
    finally:
        samples = []
        if client is not None:
            client.kill()
            samples = [json.loads(line) for line in client.communicate()[0].splitlines()]
    what = (
        torch.cuda.get_device_name()
        if device == "cuda"
        else f"CPU, {torch.get_num_threads()} threads"
    )
    head = {
        "device": what,
        "torch": torch.__version__,
        "alternations": args.alternations,
        "steps": args.steps,
        "of": "time ledger" if args.ledger else "probe",
    }
    calls = [seconds for rows in samples for seconds in rows if seconds is not None]
    # In the probe's thread, after half a second of sleep; and one call right after the other, as
    # with warm caches.
    statistics_call = {"median": statistics.median(calls), "most": max(calls)} if calls else None
    if statistics_call is not None:
        statistics_call["warm_median"] = statistics.median(
            timeit.repeat(lambda: torch._C._cuda_memoryStats(0), number=1, repeat=500)
        )
    print(
        json.dumps(
            {
                **head,
                "hz": args.hz,
                "samples": len(samples),
                "statistics_seconds": statistics_call,
                **found,
            }
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
