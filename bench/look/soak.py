"""Looks many times into running trainings, and tells whether one came to harm.

    python -m bench.look.soak [--kinds single compiled ddp loader] [--looks 200] [--ranks N]

Beside each training runs the same one without a probe. Harm is: a loss that differs by a bit, a
thread or a descriptor that is left and not opened by the other one too, anything on the outputs, an
end, fewer than nine in ten looks taken. Prints one row a kind; exit code 1 if there was harm.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from gpuscope.wire.frames import Result

from .started import CONNECTION, Training

BETWEEN_SECONDS, SETTLE_SECONDS = 0.05, 3.0
LEAST_TAKEN = 0.9
KINDS = ("single", "compiled", "ddp", "loader")


def soaked(kind: str, looks: int, folder: Path, device: str, ranks: int) -> dict[str, Any]:
    """Look ``looks`` times into a training of a kind; return the row of it."""
    ranks = ranks if kind == "ddp" else 1
    begin = time.monotonic()
    alone = Training(kind, folder, device, watch=False, ranks=ranks)
    looked = Training(kind, folder, device, ranks=ranks)
    refusals: Counter[str] = Counter()
    taken, lost = 0, []
    try:
        alone.connect()
        looked.connect()
        looked.look(1)
        time.sleep(SETTLE_SECONDS)
        before, others_before = looked.left(), alone.left()
        for number in range(2, looks + 2):
            answers = looked.look(number)
            taken += all(isinstance(one, Result) for one in answers)
            for one in answers:
                if isinstance(one, Result):
                    lost.append(one.value["lost_seconds"])
                else:
                    refusals[one.reason] += 1
            time.sleep(BETWEEN_SECONDS)
        left = _settled(looked, alone, before, others_before)
        after = looked.left()
        books = looked.finish()
        others = alone.finish(len(books[0]["losses"]))
    finally:
        alone.end()
        looked.end()
    same = [min(len(a["losses"]), len(b["losses"])) for a, b in zip(books, others, strict=True)]
    differs = [
        next((n for n in range(count) if a["losses"][n] != b["losses"][n]), None)
        for a, b, count in zip(books, others, same, strict=True)
    ]
    known = sorted(one for one in lost if one is not None)
    harm = []
    if any(one is not None for one in differs):
        harm.append(f"losses differ from step {differs} on")
    if any(left):
        harm.append(f"left: {[dict(one) for one in left]}")
    if looked.printed():
        harm.append(f"it printed {looked.printed()[:300]!r}")
    if taken < LEAST_TAKEN * looks:
        harm.append(f"{taken} of {looks} looks were taken: {dict(refusals)}")
    return {
        "kind": kind,
        "ranks": ranks,
        "looks": looks,
        "taken": taken,
        "refused": dict(refusals),
        "steps_compared": same,
        "before": before,
        "after": after,
        "lost_ms_median": round(1e3 * known[len(known) // 2], 1) if known else None,
        "lost_ms_most": round(1e3 * known[-1], 1) if known else None,
        "seconds": round(time.monotonic() - begin, 1),
        "harm": harm,
    }


def _settled(
    looked: Training,
    alone: Training,
    before: list[Counter[str]],
    others_before: list[Counter[str]],
) -> list[Counter[str]]:
    """Return what each rank has more of than before, once it is nothing or seconds have passed.

    What the training without a probe has more of as well is not counted, nor are connections to the
    probe: another gpuscope on this machine may have them.
    """
    until = time.monotonic() + SETTLE_SECONDS
    while True:
        pairs = zip(looked.left(), before, alone.left(), others_before, strict=True)
        found = [(now - was) - (other - was_other) for now, was, other, was_other in pairs]
        for one in found:
            one.pop(CONNECTION, None)
        if not any(found) or time.monotonic() >= until:
            return found
        time.sleep(0.1)


def line_of(row: dict[str, Any]) -> str:
    """Return one line of the table."""
    return (
        f"{row['kind']:10} {row['ranks']} rank(s)  {row['taken']:4} of {row['looks']} looks  "
        f"{row['steps_compared'][0]:7,} losses the same  lost {row['lost_ms_median']} ms median, "
        f"{row['lost_ms_most']} most  {row['seconds']:5.1f} s  "
        f"{'; '.join(row['harm']) or 'no harm'}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kinds", nargs="*", default=KINDS)
    parser.add_argument("--looks", type=int, default=200)
    parser.add_argument("--ranks", type=int, default=1, help="of ddp")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--at-once", action="store_true", help="all kinds at the same time")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []

    def one(kind: str, folder: Path) -> None:
        try:
            row = soaked(kind, args.looks, folder, args.device, args.ranks)
        except (SystemExit, Exception) as error:
            row = {"kind": kind, "harm": [f"{type(error).__name__}: {error}"]}
            print(f"{kind:10} {row['harm'][0]}", flush=True)
        else:
            print(line_of(row), flush=True)
        rows.append(row)

    with tempfile.TemporaryDirectory(prefix="look-", ignore_cleanup_errors=True) as name:
        threads = [threading.Thread(target=one, args=(kind, Path(name))) for kind in args.kinds]
        for thread in threads:
            thread.start()
            if not args.at_once:
                thread.join()
        for thread in threads:
            thread.join()
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))
    return int(any(row["harm"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
