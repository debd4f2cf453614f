"""Tells what looks cost trainings, and how far their rows lie from torch's own profiler.

    python -m bench.look.cost [--kinds gpt-bf16 …] [--looks 6] [--json FILE] [--before FOLDER]

**Cost**: the trainings keep the moments of their steps. What a look costs is by how much the steps
around it took longer than those before and after; the probe says what it did when, so it is known
where that was lost. **Truth**: then ``torch.profiler`` records all of some steps, and each row, in
ms a step over all looks but the first, is compared with what that trace has; idle time with the
step by the clock, before each look, less what ran. Exit code 1 where a bar is missed.

``--before`` looks at each training twice, first with the gpuscope of another folder, which ``git
archive COMMIT gpuscope | tar -x -C FOLDER`` fills.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import mean, median
from typing import Any

from gpuscope.model.look import Look, class_of, read
from gpuscope.wire.frames import Result
from tests.fakes.probe_client import ROOT

from .started import Training

KINDS = ("gpt-bf16", "gpt-fp32", "resnet", "small-layers", "loader-bound", "cells")
COST_BAR_SECONDS = 0.150
TRUTH_BAR = 0.05
"""The share of a step by which a row may differ from torch's own profiler."""
APART_SECONDS = 1.2
BEFORE_SECONDS, AFTER_SECONDS = 0.1, 0.7
"""How long before its request and after its answer the cost of a look is searched for: by then a
device that lagged behind has work in its queue again."""
TRACED_STEPS = 10
STANDING = ("prepare", "enable", "stop")
"""The parts of a look that the training thread does itself, by the probe's names."""
SPANS = {
    "search": "search for profilers",
    "cupti": "CUPTI set up",
    "prepare": "prepare",
    "enable": "enable",
    "record": "steps slowed",
    "stop": "stop",
    "read": "read",
    "around": "around",
}
COLD_KINDS = ("resnet",)
"""Kinds that are measured once more with CUPTI set up by the training thread, for comparison."""


def around(
    moments: Sequence[float], asked: float, answered: float
) -> tuple[list[float], float] | None:
    """Return the ends of the steps around a look, and how long those before and after took."""
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
    return inside, seconds / count


def cost_of(moments: Sequence[float], asked: float, answered: float) -> float | None:
    """Return by how much steps around a look took longer than those a little before and after."""
    found = around(moments, asked, answered)
    if found is None:
        return None
    inside, usual = found
    return inside[-1] - inside[0] - (len(inside) - 1) * usual


def lost_in(
    moments: Sequence[float], asked: float, answered: float, spans: Sequence[Sequence[Any]]
) -> dict[str, float]:
    """Return the cost of a look by what the probe did at that time, in seconds; they add up to it.

    In the spans :data:`STANDING` the training thread stood still: they cost what they last. What
    else a step took longer is shared out to the other spans that it overlaps, and ``around`` is
    what steps lost that overlap none.
    """
    found = around(moments, asked, answered)
    if found is None:
        return {}
    inside, usual = found
    lost: dict[str, float] = {}

    def book(name: str, seconds: float) -> None:
        lost[name] = lost.get(name, 0.0) + seconds

    for begin, end in pairwise(inside):
        left = end - begin - usual
        shares: list[tuple[str, float]] = []
        for name, first, last in spans:
            common = min(last, end) - max(first, begin)
            if common > 0 and name in STANDING:
                book(name, common)
                left -= common
            elif common > 0:
                shares.append((name, common))
        whole = sum(common for _, common in shares)
        for name, common in shares or [("around", 1.0)]:
            book(name, left * common / (whole or 1.0))
    return lost


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


def measured(
    kind: str, looks: int, folder: Path, device: str, cold: bool = False, tree: Path = ROOT
) -> dict[str, Any]:
    """Run a training of a kind, look at it, and return its row."""
    training = Training(kind, folder, device, cold=cold, tree=tree)
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
    lost = [lost_in(moments, asked, answered, value["spans"])
            for _, asked, answered, value in found]  # fmt: skip
    return row | {
        "cold": cold,
        "before": tree != ROOT,
        "lost_ms": [{name: round(1e3 * one, 1) for name, one in row.items()} for row in lost],
        "costs_ms": [None if one is None else 1e3 * one for one in costs],
        "first_cost_ms": [None if one is None else 1e3 * one for one in first_cost],
        "cost_ms": [1e3 * one for one in usual_costs],
        "looks": [
            {
                key: value[key]
                for key in ("steps", "seconds", "events", "start_seconds", "stop_seconds",
                            "waited_seconds", "read_seconds", "lost_seconds", "usual_seconds",
                            "steady_seconds", "spans", "overheads", "calls")
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
        f"{row['kind'] + '<' * row['before']:13} step {row['step_ms']:7.2f} ms  "
        f"{row['kernels_a_step']:6.0f} kernels  "
        f"{median([one['events'] for one in looks]):7.0f} events of "
        f"{median([one['steps'] for one in looks]):3.0f} steps  start {usually('start_seconds')} "
        f"waited {usually('waited_seconds')} stop {usually('stop_seconds')} "
        f"read {usually('read_seconds')} slowed {row['slowed_ms']:.1f} "
        f"lost as told {usually('lost_seconds')}  cost {spent}, "
        f"first look {first} ms"
    ]
    known_costs = [(cost, n) for n, cost in enumerate(row["costs_ms"]) if cost is not None]
    if row["costs_ms"] and row["costs_ms"][0] is not None:
        out.append(where(row, 0, "first look"))
    if later := [one for one in known_costs if one[1]]:
        out.append(where(row, max(later)[1], "dearest look"))
        out.append(where(row, sorted(later)[len(later) // 2][1], "median look"))
    out += [
        f"    {name:18} look {a:8.3f} ms  trace {b:8.3f} ms  "
        f"{100 * (a - b) / row['step_ms']:+5.1f} % of the step"
        for name, (a, b) in row["rows"].items()
        if max(a, b) >= 0.005 * row["step_ms"]
    ]
    return [*out, f"    farthest row: {row['worst']:.1%} of the step"]


def where(row: Mapping[str, Any], number: int, what: str) -> str:
    """Return a line about where the time of a look was lost, and what the runtime says of it."""
    look, lost = row["looks"][number], row["lost_ms"][number]
    parts = ", ".join(f"{words} {lost[name]:.0f}" for name, words in SPANS.items() if name in lost)
    launches = [(n, s) for name, n, s in look["calls"] if "Launch" in name]
    count = sum(n for n, _ in launches)
    each = 1e6 * sum(s for _, s in launches) / count if count else 0.0
    own = ", ".join(f"{name} {n}x {1e3 * s:.0f}" for name, n, s in look["overheads"][:4])
    return (
        f"    {what:13}{row['costs_ms'][number]:6.0f} ms: {parts}; {look['events']} events, "
        f"{each:.0f} us a launch; CUPTI says: {own or 'nothing'}"
    )


def bars_of(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a table of the bars beside what was measured."""
    out = [f"{'bar':44}" + "".join(
        f"{row['kind'] + '*' * row.get('cold', False) + '<' * row.get('before', False):>14}"
        for row in rows)]  # fmt: skip
    picks: list[tuple[str, Callable[[Mapping[str, Any]], float | None]]] = [
        ("first look <= 150 ms", lambda row: next(iter(row.get("first_cost_ms", ())), None)),
        ("later looks, median <= 150 ms",
         lambda row: median(row["cost_ms"]) if row.get("cost_ms") else None),
        ("later looks, most <= 150 ms", lambda row: max(row.get("cost_ms", ()), default=None)),
        ("farthest row <= 5 % of the step",
         lambda row: 100 * row["worst"] if "worst" in row else None),
    ]  # fmt: skip
    for words, pick in picks:
        found = [pick(row) for row in rows]
        out.append(f"{words:44}" + "".join(f"{'?' if one is None else f'{one:.1f}':>14}"
                                           for one in found))  # fmt: skip
    return [
        *out,
        "*: CUPTI set up by the training thread, <: by the other gpuscope, for comparison",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kinds", nargs="*", default=KINDS)
    parser.add_argument("--looks", type=int, default=6)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--cold", action="store_true", help="compare with CUPTI not set up before")
    parser.add_argument("--before", type=Path, help="a folder with another gpuscope, to compare")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    args = parser.parse_args()
    rows = []
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="look-", ignore_cleanup_errors=True) as name:
        trees = [args.before.resolve(), ROOT] if args.before else [ROOT]
        wanted = [(kind, args.looks, False, tree) for kind in args.kinds for tree in trees]
        wanted += [(kind, 1, True, ROOT) for kind in args.kinds if kind in COLD_KINDS and args.cold]
        for number, (kind, looks, cold, tree) in enumerate(wanted):
            folder = Path(name, str(number))
            folder.mkdir()
            try:
                row = measured(kind, looks, folder, args.device, cold, tree)
            except KeyboardInterrupt:  # out of time: what is known is printed
                break
            except (SystemExit, Exception) as error:
                row = {"kind": kind, "problems": [f"{type(error).__name__}: {error}"],
                       "printed": "", "before": tree != ROOT}  # fmt: skip
            rows.append(row)
            print("\n".join(lines_of(row)), flush=True)
            if args.json:
                args.json.write_text(json.dumps(rows, indent=1))
    print("\n".join(bars_of(rows)))
    rows = [row for row in rows if not row.get("cold") and not row.get("before")]
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
    print(f"rows: farthest {max(worst, default=1.0):.1%} of the step (bar {TRUTH_BAR:.0%}); not: "
          f"{', '.join(far) or 'none'}")  # fmt: skip
    return int(bool(late or far))


if __name__ == "__main__":
    sys.exit(main())
