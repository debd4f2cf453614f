"""Tells which part of a first trace is lost where, with CUPTI set up in one way or another.

    python -m bench.look.first [--ways cold enable step kernel] [--launches 1000]

Each way is a process of its own with a loop of small launches, which waits for its host as
:mod:`.cost`'s small trainings do; nothing of gpuscope runs in it. ``cold``: the first trace sets
CUPTI up. ``enable``: another thread enables and disables an activity before, as the probe does.
``step``: it leaves it enabled for a step. ``kernel``: it launches one itself meanwhile, on a stream
of its own. Prints a row a way: what was lost while the other thread worked, and then what each part
of two traces took. No bars.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

WAYS = ("cold", "enable", "step", "kernel")
ROOT = Path(__file__).parents[2]
WARM, BETWEEN = 40, 15


def trial(way: str, launches: int) -> dict[str, Any]:
    """Run in the process of one way; return the milliseconds of each part of the work."""
    import torch

    from gpuscope.probe import cupti

    device = torch.device("cuda")
    x, small = torch.randn(64, 64, device=device), torch.zeros(64, device=device)

    def step() -> float:
        begin = time.perf_counter()
        for _ in range(launches // 4):
            y = torch.relu(x @ x)
            y.add_(1.0)
            small.mul_(1.0)
        torch.cuda.synchronize()
        return time.perf_counter() - begin

    for _ in range(WARM):
        step()
    usual = median(step() for _ in range(WARM))
    found: dict[str, Any] = {"usual": usual}
    if way != "cold":
        worker = threading.Thread(target=_set_up, args=(way, cupti, found))
        begin = time.perf_counter()
        worker.start()
        count = 0
        while worker.is_alive() or count < 3:
            step()
            count += 1
        found["lost meanwhile"] = time.perf_counter() - begin - count * usual
    core = torch._C._autograd
    activities = {torch.profiler.ProfilerActivity.CUDA}
    config = torch.autograd.profiler.profile(
        use_cpu=False, use_device="cuda", use_kineto=True
    ).config()
    for number in (1, 2):
        for _ in range(BETWEEN):
            step()

        def timed(what: str, call: Callable[[], Any], number: int = number) -> Any:
            begin = time.perf_counter()
            value = call()
            found[f"{what} {number}"] = time.perf_counter() - begin
            return value

        timed("prepare", lambda: core._prepare_profiler(config, activities))
        timed("enable", lambda: core._enable_profiler(config, activities))
        for at in (1, 2):
            found[f"step {at} of trace {number}"] = step() - usual
        results = timed("stop", core._disable_profiler)
        found[f"events {number}"] = len(results.events()) / 1e3
        found[f"overheads {number}"] = _overheads(results)
    return {what: round(1e3 * value, 1) if isinstance(value, float) else value
            for what, value in found.items()}  # fmt: skip


def _set_up(way: str, cupti: Any, found: dict[str, Any]) -> None:
    import torch

    library = cupti.loaded()
    stream = torch.cuda.Stream() if way == "kernel" else None
    begin = time.perf_counter()
    library.cuptiActivityEnable(cupti.CONCURRENT_KERNEL)
    found["enable there"] = time.perf_counter() - begin
    if stream is not None:
        with torch.cuda.stream(stream):
            torch.zeros(64, device="cuda").add_(1.0)
        stream.synchronize()
    elif way == "step":
        time.sleep(2 * found["usual"])
    begin = time.perf_counter()
    library.cuptiActivityDisable(cupti.CONCURRENT_KERNEL)
    found["disable there"] = time.perf_counter() - begin


def _overheads(results: Any) -> dict[str, float]:
    """Return the milliseconds of what CUPTI says that it did itself."""
    spent: dict[str, float] = {}
    for event in results.events():
        if "overhead" in str(getattr(event, "activity_type", str)()).lower():
            spent[event.name()] = spent.get(event.name(), 0.0) + event.duration_ns() / 1e6
    return {name: round(ms, 1) for name, ms in spent.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ways", nargs="*", default=WAYS, choices=WAYS)
    parser.add_argument("--launches", type=int, default=1000)
    parser.add_argument("--as-way", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.as_way:
        print(json.dumps(trial(args.as_way, args.launches)))
        return 0
    status = 0
    for way in args.ways:
        words = [sys.executable, "-m", "bench.look.first", "--as-way", way,
                 "--launches", str(args.launches)]  # fmt: skip
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            status = 1
            print(f"{way:8} failed: {done.stderr[-300:]}", flush=True)
            continue
        found = json.loads(done.stdout.splitlines()[-1])
        text = ", ".join(f"{what} {value}" for what, value in found.items())
        print(f"{way:8} ms: {text}", flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
