"""Run the gym of time: every training with its fault, cured or healthy, and ``gpuscope why`` on it.

``python -m bench.time_gym --out DIR`` writes ``results.json`` and ``table.txt`` to DIR, again after
each training, so what was measured is kept when it is stopped. ``python -m bench.time_gym.score
DIR/results.json`` prints the bars. With ``--device cpu`` it only shows that everything runs: there
is nothing to look at on a CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

from .index import Variant, variants
from .measure import Started, measured, scratch, start
from .score import line_of, report


def main() -> int:
    """0: everything was measured; 1: it was stopped, or something did not run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("time-gym"))
    parser.add_argument("--only", default="", help="names, or how they begin, with commas between")
    parser.add_argument(
        "--part", type=_part, default=(1, 1), metavar="N/M", help="every Mth subject"
    )
    parser.add_argument(
        "--variant",
        choices=("both", "faulty", "cured"),
        default="both",
        help="what is healthy is run either way",
    )
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument(
        "--beside", type=int, default=2, help="trainings that import torch meanwhile (default 2)"
    )
    parser.add_argument(
        "--seconds", type=float, default=540.0, help="start no training after so long"
    )
    args = parser.parse_args()
    chosen = [
        one
        for one in variants([*filter(None, args.only.split(","))], args.part)
        if (args.device == "cuda" or not one.subject.gpu)
        and (
            args.variant == "both"
            or not one.subject.names
            or one.faulty == (args.variant == "faulty")
        )
    ]
    if not chosen:
        parser.error(f"no subject's name begins with {args.only}")
    args.out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    rows: list[dict[str, Any]] = []
    stopped = False
    with scratch() as folder:
        waiting: deque[Started] = deque()
        left = deque(chosen)
        until = time.monotonic() + args.seconds
        try:
            while (left or waiting) and time.monotonic() < until:
                _fill(waiting, left, 1 + args.beside, args.device, folder)
                row = measured(waiting[0], folder, waiting[1] if len(waiting) > 1 else None)
                waiting.popleft()
                rows.append(row)
                _write(args.out, rows)
                print(line_of(row), flush=True)
        except KeyboardInterrupt:
            stopped = True
        finally:
            for one in waiting:
                one.end()
    rest = len(chosen) - len(rows)
    if rest:
        print(
            f"{rest} of {len(chosen)} trainings were not measured: the time was up, or somebody "
            "stopped it"
        )
    print("\n".join(report(rows)))
    return int(stopped or rest > 0 or any(row["problem"] for row in rows))


def _fill(
    waiting: deque[Started], left: deque[Variant], most: int, device: str, folder: Path
) -> None:
    while left and len(waiting) < most:
        waiting.append(start(left.popleft(), device, folder))


def _write(out: Path, rows: list[dict[str, Any]]) -> None:
    """Write what there is by now; a reader never sees half of a file."""
    for name, text in (
        ("results.json", json.dumps({"rows": rows}, indent=1)),
        ("table.txt", "\n".join([*map(line_of, rows), "", *report(rows), ""])),
    ):
        part = out / f"{name}.part"
        part.write_text(text)
        os.replace(part, out / name)


def _part(text: str) -> tuple[int, int]:
    number, _, parts = text.partition("/")
    try:
        found = int(number), int(parts)
    except ValueError:
        raise argparse.ArgumentTypeError("a part is N/M, as 1/2") from None
    if not 1 <= found[0] <= found[1]:
        raise argparse.ArgumentTypeError("N of a part is from 1 to M")
    return found


if __name__ == "__main__":
    sys.exit(main())
