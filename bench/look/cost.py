"""Tells what looks cost trainings, and how far their rows lie from torch's own profiler.

    python -m bench.look.cost [--kinds gpt-bf16 …] [--looks 6] [--json FILE]

**Cost**: the trainings keep the moments of their steps. What a look costs is by how much the steps
around it took longer than those before and after. **Truth**: then ``torch.profiler`` records all of
some steps, and each row, in ms a step over all looks but the first, is compared with what that
trace has; idle time with the step by the clock, before each look, less what ran. Exit code 1 where
a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

from gpuscope.model.look import Look, class_of, read
from gpuscope.wire.frames import Result

from .started import Training

KINDS = ("gpt-bf16", "gpt-fp32", "resnet", "small-layers", "loader-bound", "cells")
COST_BAR_SECONDS = 0.150
TRUTH_BAR = 0.05
"""Of a step: so near each row is."""
APART_SECONDS = 1.2
BEFORE_SECONDS, AFTER_SECONDS = 0.1, 0.7
"""The cost of a look is sought from so long before it was asked for to so long after its answer:
a device that lay behind has work in its queue again by then."""
TRACED_STEPS = 10


def cost_of(moments: Sequence[float], asked: float, answered: float) -> float | None:
    """Return by how much steps around a look took longer than those a little before and after."""
    begin, end = asked - BEFORE_SECONDS, answered + AFTER_SECONDS - 0.3
    spans = [(begin - APART_SECONDS + 0.4, begin), (end, end + 0.5)]
    inside = [one for one in moments if begin <= one <= end]
    seconds, count = 0.0, 0
    for first, last in spans:
        found = [one for one in moments if first <= one <= last]
        if len(found) > 1:
            seconds += found[-1] - found[0]
            count += len(found) - 1
    if len(inside) < 3 or count < 3:
        return None
    return inside[-1] - inside[0] - (len(inside) - 1) * seconds / count


def usual_seconds(moments: Sequence[float], ends: Sequence[float]) -> float:
    """Return how long a step took right before these moments, none of them in or after a look."""
    seconds, count = 0.0, 0
    for end in ends:
        found = [one for one in moments if end - APART_SECONDS + 0.4 < one < end]
        if len(found) > 1:
            seconds += found[-1] - found[0]
            count += len(found) - 1
    return seconds / count


def own_seconds(ran: Sequence[Sequence[Any]]) -> dict[str, float]:
    """Return the time of each class of kernels in which nothing before it ran, in seconds.

    A moment belongs to a kernel that computes before communication, and to that before a copy.
    """
    order = {"communication": 1}
    found: dict[str, float] = {}
    edges = []
    for name, start, end in ran:
        kind = class_of(name)
        level = 2 if kind.startswith("copies-") else order.get(kind, 0)
        edges.append((start, 1, level, start, kind))
        edges.append((end, 0, level, start, kind))
    edges.sort()
    running: list[tuple[int, int, str]] = []
    last = 0
    for moment, begins, level, start, kind in edges:
        if running:
            owner = min(running)[2]
            found[owner] = found.get(owner, 0.0) + (moment - last) / 1e9
        if begins:
            running.append((level, start, kind))
        else:
            running.remove((level, start, kind))
        last = moment
    return found


def compared(
    looks: Sequence[Look], trace: Mapping[str, Any], usual: float
) -> dict[str, tuple[float, float]]:
    """Return by row the seconds a step, of the looks and of the trace."""
    steps = trace["steps"]
    truth = {name: seconds / steps for name, seconds in own_seconds(trace["ran"]).items()}
    truth["idle"] = max(0.0, usual - sum(truth.values()))
    found: dict[str, float] = {}
    for look in looks:
        for row in look.rows:
            name = "idle" if row.kind in ("idle", "rest") else row.name
            found[name] = found.get(name, 0.0) + row.seconds / look.steps / len(looks)
    return {name: (found.get(name, 0.0), truth.get(name, 0.0)) for name in sorted({*found, *truth})}


def measured(kind: str, looks: int, folder: Path, device: str) -> dict[str, Any]:
    """Run a training of a kind, look at it, and return its row."""
    training = Training(kind, folder, device)
    taken: list[tuple[float, float, Mapping[str, Any]]] = []
    problems = []
    try:
        training.connect()
        time.sleep(2.0)
        for number in range(1, looks + 2):
            asked = time.monotonic()
            answer = training.look(number)[0]
            answered = time.monotonic()
            if isinstance(answer, Result):
                taken.append((asked, answered, answer.value))
            else:
                problems.append(answer.reason)
            time.sleep(APART_SECONDS)
        traced_at = time.monotonic()
        trace = training.trace(TRACED_STEPS)
        moments = training.finish()[0]["moments"]
    finally:
        training.end()
    row: dict[str, Any] = {"kind": kind, "problems": problems, "printed": training.printed()}
    found = [(read(value), asked, answered, value) for asked, answered, value in taken]
    costs = [cost_of(moments, asked, answered) for _, asked, answered, _ in found]
    usual = usual_seconds(moments, [*(asked for asked, _, _ in taken[1:]), traced_at])
    first_cost, usual_costs = costs[:1], [one for one in costs[1:] if one is not None]
    seen = [look for look, *_ in found[1:] or found if look is not None]
    if seen:
        rows = compared(seen, trace, usual)
        row |= {
            "step_ms": 1e3 * usual,
            "look_step_ms": 1e3 * mean(look.step_seconds for look in seen),
            "slowed_ms": 1e3 * mean(look.slowed_seconds for look in seen),
            "kernels_a_step": seen[-1].kernels_a_step,
            "rows": {name: [1e3 * a, 1e3 * b] for name, (a, b) in rows.items()},
            "worst": max(abs(a - b) / usual for a, b in rows.values()),
        }
    return row | {
        "first_cost_ms": [None if one is None else 1e3 * one for one in first_cost],
        "cost_ms": [1e3 * one for one in usual_costs],
        "looks": [
            {
                key: value[key]
                for key in ("steps", "seconds", "events", "start_seconds", "stop_seconds",
                            "waited_seconds", "read_seconds", "lost_seconds")
            }
            for _, _, value in taken
        ],
    }  # fmt: skip


def lines_of(row: Mapping[str, Any]) -> list[str]:
    """Return what is printed of a training."""
    if "step_ms" not in row:
        return [f"{row['kind']:13} no look: {row['problems']} {row['printed'][-300:]}"]
    looks, costs = row["looks"][1:] or row["looks"], row["cost_ms"]

    def usually(key: str) -> str:
        known = [one[key] for one in looks if one[key] is not None]
        return f"{1e3 * median(known):6.1f}" if known else "     ?"

    first = next((f"{one:.1f}" for one in row["first_cost_ms"] if one is not None), "?")
    spent = f"{median(costs):6.1f} ms median {max(costs):6.1f} most" if costs else "? ms"
    out = [
        f"{row['kind']:13} step {row['step_ms']:7.2f} ms  {row['kernels_a_step']:6.0f} kernels  "
        f"{median([one['events'] for one in looks]):7.0f} events of "
        f"{median([one['steps'] for one in looks]):3.0f} steps  start {usually('start_seconds')} "
        f"waited {usually('waited_seconds')} stop {usually('stop_seconds')} "
        f"read {usually('read_seconds')} slowed {row['slowed_ms']:.1f} "
        f"lost as told {usually('lost_seconds')}  cost {spent}, "
        f"first look {first} ms"
    ]
    out += [
        f"    {name:18} look {a:8.3f} ms  trace {b:8.3f} ms  "
        f"{100 * (a - b) / row['step_ms']:+5.1f} % of the step"
        for name, (a, b) in row["rows"].items()
        if max(a, b) >= 0.005 * row["step_ms"]
    ]
    return [*out, f"    farthest row: {row['worst']:.1%} of the step"]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kinds", nargs="*", default=KINDS)
    parser.add_argument("--looks", type=int, default=6)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="look-", ignore_cleanup_errors=True) as name:
        for kind in args.kinds:
            try:
                row = measured(kind, args.looks, Path(name), args.device)
            except (SystemExit, Exception) as error:
                row = {"kind": kind, "problems": [f"{type(error).__name__}: {error}"],
                       "printed": ""}  # fmt: skip
            rows.append(row)
            print("\n".join(lines_of(row)), flush=True)
            if args.json:
                args.json.write_text(json.dumps(rows, indent=1))
    costs = [one for row in rows for one in row.get("cost_ms", ())]
    worst = [row.get("worst", 1.0) for row in rows]
    late = [row["kind"] for row in rows if row.get("cost_ms")
            and median(row["cost_ms"]) > 1e3 * COST_BAR_SECONDS]  # fmt: skip
    far = [row["kind"] for row in rows if row.get("worst", 1.0) > TRUTH_BAR]
    if costs:
        print(
            f"cost of a look: median {median(costs):.0f} ms, most {max(costs):.0f} ms "
            f"(bar {1e3 * COST_BAR_SECONDS:.0f}); not: {', '.join(late) or 'none'}"
        )
    print(f"rows: farthest {max(worst):.1%} of the step (bar {TRUTH_BAR:.0%}); not: "
          f"{', '.join(far) or 'none'}")  # fmt: skip
    return int(bool(late or far))


if __name__ == "__main__":
    sys.exit(main())
