"""Score the verdicts for real runs under limits.

``python -m bench.predict.score_capped`` takes each try of ``tests/data/predict-h200-capped.jsonl``:
a real run that ``truth_capped.py`` has made under a limit around its peak. It names a card whose
capacity leaves torch that much, and asks for the verdict. A verdict is wrong if it is "fits" for a
run that failed or "does_not_fit" for a run that succeeded.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from gpuscope.model.allocator_settings import read as read_settings
from gpuscope.predict import answer as answering
from gpuscope.predict.request import CannotPredict

from . import truth_rows
from .score import Traces, as_there, load, outside_bytes, request_of

DATA = truth_rows.TABLE.parent
HELD_OUT = DATA / "predict-h200-held-out.jsonl"
BLIND = DATA / "predict-h200-blind.jsonl"
CAPPED = DATA / "predict-h200-capped.jsonl"


def between(row: dict[str, Any], limit: int) -> str:
    """Return where a limit lies.

    If there is room for everything that was reserved, a training fits whatever the allocator does.
    """
    if limit >= row["peak_reserved_bytes"]:
        return "above"
    return "below" if limit < row["peak_allocated_bytes"] else "between"


def verdict(row: dict[str, Any], limit: int, traces: Traces) -> str:
    """Return the verdict for a card on which ``limit`` bytes are left for torch."""
    card = answering.Card("H200", "h200", limit + outside_bytes(row), "9.0")
    tracer = as_there(row, traces)
    asking = answering.TracedRequest(
        request_of(row), tracer, card, read_settings(row.get("settings") or "")
    )
    found = asking.answer.verdict
    assert found is not None
    return found.outcome


def capped(
    tries: list[dict[str, Any]], rows: dict[str, dict[str, Any]], traces: Traces
) -> list[tuple[str, str, bool]]:
    """Return where each limit lies, the verdict, and whether it ran; print the wrong ones."""
    found = []
    for number, one in enumerate(tries):
        row = rows[one["name"]]
        try:
            word = verdict(row, one["limit_bytes"], traces)
        except CannotPredict as trouble:
            print(f"  none: {one['name']} {trouble}")
            continue
        place = between(row, one["limit_bytes"])
        found.append((place, word, one["fits"]))
        if word != "too_close" and (word == "fits") != one["fits"]:
            print(
                f"  wrong: {one['name']:56} × {one['share']:4.2f} ({place}): {word}, it fits: "
                f"{one['fits']}",
                flush=True,
            )
        if number % 50 == 49:
            print(f"  {number + 1} of {len(tries)}", flush=True)
    return found


def report(found: list[tuple[str, str, bool]]) -> None:
    for name, chosen in [
        ("all", found),
        *((p, [f for f in found if f[0] == p]) for p in ("above", "between", "below")),
    ]:
        wrong = sum(word != "too_close" and (word == "fits") != fits for _, word, fits in chosen)
        words = Counter(word for _, word, _ in chosen)
        share = 100 * words["too_close"] / max(1, len(chosen))
        print(
            f"{name:8} {len(chosen):4} tries, {wrong} wrong, {share:5.1f} % too close; "
            f"{dict(words)}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.predict.score_capped", description=__doc__
    )
    parser.add_argument("--only", default="*")
    parser.add_argument(
        "--every", type=int, default=1, help="one training in so many, with all its limits"
    )
    parser.add_argument(
        "--cache", type=Path, default=Path(tempfile.gettempdir()) / "gpuscope-score"
    )
    parser.add_argument("--seconds", type=float, default=120, help="limit for one trace")
    arguments = parser.parse_args()
    rows = {row["name"]: row for path in (truth_rows.TABLE, HELD_OUT, BLIND) for row in load(path)}
    tries = [json.loads(line) for line in CAPPED.read_text().splitlines()]
    names = sorted({one["name"] for one in tries if fnmatch.fnmatch(one["name"], arguments.only)})
    chosen = set(names[:: arguments.every])
    traces = Traces(arguments.cache, arguments.seconds)
    report(capped([one for one in tries if one["name"] in chosen], rows, traces))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
