"""Test whether trainings really fit under a limit on what their allocator may reserve.

``python3 -m bench.predict.truth_capped ROWS.jsonl --out DIR`` takes trainings that ``truth.py`` has
run, and runs each again under limits around its peak. A share of (reserved + what the process and
the driver hold besides) is the capacity of a card, and what is left of it for torch is the limit.
``DIR/capped.jsonl`` gets a row for each try: ``name``, ``share``, ``limit_bytes``, ``fits``,
``num_alloc_retries``. Between the peaks only a run can tell, because an allocator frees its cache
before it fails, and cuDNN uses another algorithm if a workspace is refused.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import time
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from .truth import BUDGET_GIB, Pool, Running, import_everything
from .truth_table import Config

SHARES = (0.9, 0.95, 0.98, 1.02)


@dataclass
class Try:
    config: Config
    share: float
    limit: int
    attempt: int = 0


def config_of(row: dict[str, Any]) -> Config:
    """Return the training of a row, without its history; its real peak divides the device."""
    names = {field.name for field in fields(Config)} - {"gib", "stacks", "record"}
    given = {key: value for key, value in row.items() if key in names}
    return Config(**given, gib=row["peak_reserved_bytes"] / 2**30 + 1.5, record=False)


def tries(rows: list[dict[str, Any]], shares: tuple[float, ...]) -> list[Try]:
    from .score import outside_bytes

    found = []
    for row in rows:
        outside = outside_bytes(row)
        for share in shares:
            limit = int(share * (row["peak_reserved_bytes"] + outside)) - outside
            if limit > 0:
                found.append(Try(config_of(row), share, limit))
    return found


def run(pool: Pool, waiting: list[Try], parallel: int, found: Path) -> None:
    """Run all of them, several at a time.

    A run that failed for another reason than its own limit is repeated once.
    """
    started: dict[int, Try] = {}
    with found.open("a") as file:
        while (waiting or pool.running) and time.monotonic() < pool.deadline:
            used = sum(run.gib for run in pool.running.values())
            chosen = next(
                (one for one in waiting if used + one.config.gib <= BUDGET_GIB or not pool.running),
                None,
            )
            if chosen is not None and len(pool.running) < parallel:
                waiting.remove(chosen)
                started[pool.start(chosen.config, chosen.attempt, cap_bytes=chosen.limit)] = chosen
            else:
                time.sleep(0.02)
            pids: dict[int, Running] = dict(pool.running)
            for ended, row in pool.wait():
                pid = next(pid for pid, one in pids.items() if one is ended)
                one = started.pop(pid)
                failed = bool(row.get("out_of_memory"))
                if row.get("error") and not failed and not one.attempt:
                    waiting.append(Try(one.config, one.share, one.limit, 1))
                    continue
                fits = None if row.get("error") and not failed else not failed
                kept: dict[str, Any] = {
                    "name": one.config.name.removesuffix("-unrecorded"),
                    "share": one.share,
                    "fits": fits,
                }
                kept |= {
                    "limit_bytes": one.limit,
                    "num_alloc_retries": row.get("num_alloc_retries"),
                }
                kept |= {
                    "peak_reserved_bytes": row.get("peak_reserved_bytes"),
                    "error": str(row["error"] or "")[:300],
                }
                file.write(json.dumps(kept, separators=(",", ":")) + "\n")
                file.flush()
                print(
                    f"{kept['name']:60} × {one.share:4.2f} "
                    f"{'fits' if fits else kept['error'][:90]}",
                    flush=True,
                )
    pool.stop()
    if waiting:
        print(f"{len(waiting)} tries were not made for want of time", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python3 -m bench.predict.truth_capped", description=__doc__
    )
    parser.add_argument(
        "rows", type=Path, nargs="+", help="as truth.py has written them, or the committed table"
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="*")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--shares", type=float, nargs="+", default=list(SHARES))
    parser.add_argument("--parallel", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=200)
    arguments = parser.parse_args()
    begin = time.monotonic()
    # asking for devices must not make a context
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    os.environ.setdefault("OMP_NUM_THREADS", "2")
    from .score import load

    rows = [row for path in arguments.rows for row in load(path)]
    rows = [
        row
        for row in rows
        if fnmatch.fnmatch(row["name"], arguments.only) and not row.get("settings")
    ]
    import_everything()
    pool = Pool(arguments.out, "cuda", begin + arguments.seconds)
    waiting = tries(rows[:: arguments.every], tuple(arguments.shares))
    run(pool, waiting, arguments.parallel, arguments.out / "capped.jsonl")
    print(f"{time.monotonic() - begin:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
