"""Record what torch's own allocator does with ``allocator_workloads.py``, on a GPU.

``python3 -m bench.predict.allocator_truth --out FILE`` runs them one after the other and writes one
line of JSON for each: peaks, retries, the request that failed. Nothing is computed; memory is only
requested and freed. Limits are set in two ways: by ``set_per_process_memory_fraction``, and by
another process that holds the rest of the device.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from .allocator_workloads import SETTINGS, Workload, operations, workloads

EXPLICIT = ("expandable_segments:False", "max_non_split_rounding_mb:20", "large_segment_size_mb:20")
"""Settings that torch does not reset by itself when it gets other settings."""
HEADROOM = 0.6, 0.8
"""A share of the peak that is reserved without a limit."""


class Runner:
    def __init__(self) -> None:
        import torch

        self.torch = torch
        torch.cuda.init()
        torch.empty(1, device="cuda")
        self.streams = [torch.cuda.default_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
        self.total = torch.cuda.get_device_properties(0).total_memory
        self.explicit = list(EXPLICIT)
        for one in EXPLICIT:
            try:
                torch.cuda.memory._set_allocator_settings(one)
            except (RuntimeError, ValueError) as error:
                print(f"{one}: {str(error).splitlines()[0]}", flush=True)
                self.explicit.remove(one)

    def run(
        self, work: Workload, settings: str, allowed: int | None = None, fill_to: int | None = None
    ) -> dict[str, Any]:
        """Run a workload. ``fill_to``: leave this many bytes of the device free."""
        torch = self.torch
        row: dict[str, Any] = {
            "workload": work.name,
            "settings": settings,
            "torch": torch.__version__,
        }
        torch.cuda.set_per_process_memory_fraction(1.0)
        gc.collect()
        torch.cuda.empty_cache()
        row["leftover"] = torch.cuda.memory_reserved()
        try:
            explicit = [one for one in self.explicit if one.partition(":")[0] not in settings]
            torch.cuda.memory._set_allocator_settings(",".join([*explicit, settings]).strip(","))
        except (RuntimeError, ValueError) as error:
            return {**row, "error": str(error)[:300]}
        if allowed is not None:
            torch.cuda.set_per_process_memory_fraction(allowed / self.total)
            row["allowed"] = int(allowed / self.total * self.total)
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.reset_accumulated_memory_stats()
        holder = None
        if fill_to is not None:
            holder = subprocess.Popen(
                [sys.executable, "-m", "bench.predict.allocator_truth", "--hold", str(fill_to)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "PYTORCH_CUDA_ALLOC_CONF": ""},
            )
            assert holder.stdout is not None
            holder.stdout.readline()
            row["capacity"] = torch.cuda.mem_get_info()[0]
        retries = torch.cuda.memory_stats()["num_alloc_retries"]
        row["failed"] = self._operate(work)
        stats = torch.cuda.memory_stats()
        row |= {
            "peak_allocated": stats["allocated_bytes.all.peak"],
            "peak_reserved": stats["reserved_bytes.all.peak"],
            "allocated": stats["allocated_bytes.all.current"],
            "reserved": stats["reserved_bytes.all.current"],
            "inactive_split": stats["inactive_split_bytes.all.current"],
            "segments": stats["segment.all.current"],
            "retries": stats["num_alloc_retries"] - retries,
        }
        self.held.clear()
        if holder is not None:
            holder.kill()
            holder.wait()
        return row

    def _operate(self, work: Workload) -> dict[str, Any] | None:
        torch = self.torch
        self.held: dict[int, Any] = {}
        held = self.held
        for count, (kind, block, size, stream) in enumerate(operations(work)):
            if kind == "alloc":
                try:
                    with torch.cuda.stream(self.streams[stream]):
                        held[block] = torch.empty(size, dtype=torch.uint8, device="cuda")
                except torch.OutOfMemoryError as error:
                    return {"operation": count, "message": str(error)[:900]}
            elif kind == "free":
                del held[block]
            else:
                torch.cuda.empty_cache()
        return None


def hold(free: int) -> None:
    """Occupy all of the device except ``free`` bytes, until standard input closes."""
    import torch

    torch.cuda.init()
    kept = []
    for size in (1 << 30, 1 << 26, 1 << 21):
        while torch.cuda.mem_get_info()[0] - size >= free:
            kept.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
    print("held", flush=True)
    sys.stdin.read()


def table(out: Path, deadline: float) -> None:
    """Run without a limit under all settings, then with limits below the first peaks."""
    runner = Runner()
    works = workloads()
    peaks: dict[str, int] = {}
    with out.open("a") as file:

        def keep(row: dict[str, Any]) -> dict[str, Any]:
            file.write(json.dumps(row, separators=(",", ":")) + "\n")
            file.flush()
            if "error" in row:
                print(row, flush=True)
            return row

        for work in works:
            for settings in SETTINGS:
                row = keep(runner.run(work, settings))
                if not settings:
                    peaks[work.name] = row["peak_reserved"]
        print(f"without limits: done, {deadline - time.monotonic():.0f} s left", flush=True)
        for number, work in enumerate(works):
            for settings in SETTINGS:
                if time.monotonic() < deadline - 40:
                    keep(
                        runner.run(
                            work, settings, int(HEADROOM[number % 2] * peaks[work.name]) >> 21 << 21
                        )
                    )
        print(f"with limits: done, {deadline - time.monotonic():.0f} s left", flush=True)
        for work in works[2:8:2]:
            for settings in ("", "expandable_segments:True", "max_split_size_mb:32"):
                if time.monotonic() < deadline:
                    keep(runner.run(work, settings, fill_to=int(0.7 * peaks[work.name])))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--hold", type=int)
    args = parser.parse_args()
    if args.hold is not None:
        hold(args.hold)
    else:
        table(args.out, time.monotonic() + args.seconds)


if __name__ == "__main__":
    main()
