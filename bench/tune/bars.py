"""Measure the bars of ``gpuscope tune`` on one model of the Lab.

python -m bench.tune.bars gpt-small --batch 8 --accumulate 4 --budget 120 --out DIR [--autotune]

1. ``gpuscope tune`` searches, as a user calls it.
2. Every combination of the switches runs once: the exhaustive grid.
3. The baseline, what tune found, the best of the grid and, with ``--autotune``, what
   pytorch-autotune chose run in turns, each in fresh processes. Only these runs are compared:
   the best of many single runs is partly luck.

The ledger is in DIR: the same command continues where it was stopped. Seconds are those of the
trials, with the start of their processes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.tune.plan import Plan, grid
from gpuscope.lab import torch_probe
from gpuscope.lab.config import LabConfig
from gpuscope.lab.ledger import Entry, Ledger
from gpuscope.lab.models import MODELS
from gpuscope.lab.tune import judge
from gpuscope.lab.tune.runner import Progress, Runner, new_job
from gpuscope.lab.tune.search import CannotTune

ENOUGH_SHARE, TIME_SHARE = 0.97, 0.25
"""The bar: so much of the speed of the grid's best, in at most so much of the grid's time."""
BEST_OF_GRID = 3
"""So many of the grid's fastest run again: single runs differ by some percent."""


class GridRunner(Runner):
    """Runs a plan as the runner of tune runs a search."""

    def run_plan(self, plan: Plan) -> None:
        """Run all of it, but for what the ledger has. Raises ``SystemExit`` if it was stopped."""
        outcome = self.run(plan)  # type: ignore[arg-type]  # what the runner reads of a search
        if outcome.stopped or outcome.failure is not None:
            raise SystemExit(f"stopped: {outcome.stopped or outcome.failure}")


def show(progress: Progress, entry: Entry | None) -> None:
    """Print a line for each run that has ended."""
    if entry is not None and progress.trial is not None:
        rate = entry.document.get("samples_per_second")
        said = f"{rate:,.1f} samples/s" if isinstance(rate, float) else str(entry.failure)[:80]
        print(f"  {progress.spent_seconds:6.0f} s  {progress.label}: {said}", flush=True)


def tuned(base: LabConfig, budget: float, out: Path) -> dict[str, Any]:
    """Return the document of ``gpuscope tune``, which is kept in ``out``."""
    kept = out / "tune.json"
    if not kept.exists():
        words = ["tune", *base.flags(), "--budget", f"{budget:.0f}s", "-o", str(kept)]
        subprocess.run([sys.executable, "-m", "gpuscope", *words], check=False)
    document = json.loads(kept.read_text())
    assert isinstance(document, dict)
    return document


def autotuned(base: LabConfig, model: str, batch: int, seconds: float) -> dict[str, Any]:
    """Return what pytorch-autotune chose, as a configuration of the Lab, and its seconds."""
    words = ["bench.tune.autotune_child", model, str(batch), base.device, f"{seconds:.0f}"]
    done = subprocess.run(
        [sys.executable, "-m", *words], capture_output=True, text=True, check=False
    )
    if done.returncode:
        return {"error": done.stderr.strip().splitlines()[-1] if done.stderr else "no words"}
    found = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(found, dict)
    found["config"] = {**base.to_mapping(), **found["switches"]}
    return found


def pace(entries: Sequence[Entry]) -> float:
    """Return the mean of samples per second; 0 where nothing ran."""
    return judge.figure(entries, "samples_per_second") or 0.0


def against(left: Sequence[Entry], right: Sequence[Entry]) -> dict[str, object] | None:
    """Return how many times as fast ``right`` is as ``left``, by pairs of runs in turns."""
    found = judge.in_turns(left, right)
    return found.to_mapping() if found else None


def out_of_memory(entries: Sequence[Entry]) -> int:
    """Count the runs that failed for want of memory."""
    return sum("memory" in entry.failure.lower() for entry in entries if entry.failure)


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Run all parts, and return the figures."""
    out: Path = args.out
    out.mkdir(parents=True, exist_ok=True)
    os.environ["GPUSCOPE_LEDGER"] = str(out / "ledger.sqlite")
    machine = torch_probe.ask(sys.executable)
    given = {"model": args.model, "device": args.device, "batch": args.batch,
             "accumulate": args.accumulate}  # fmt: skip
    base = LabConfig.from_mapping(given)
    preset = base.preset(args.device)
    batch = base.batch or MODELS[preset].batch
    document = tuned(base, args.budget, out)
    best = LabConfig.from_mapping(document["best"]["config"])

    ledger = Ledger()
    configs, refused = grid(base, batch, machine.facts)
    plan = Plan([base, *configs], 1, "the grid")
    runner = GridRunner(
        new_job(ledger, base, {"bars": "grid"}, anew=False), ledger, show, args.window
    )
    print(f"grid: {len(plan.configs)} configurations, {refused} refused by rules", flush=True)
    runner.run_plan(plan)
    grid_seconds = runner.spent_seconds
    ranked = sorted(plan.configs, key=lambda config: -pace(plan.entries[config]))

    other = autotuned(base, preset, batch, args.budget) if args.autotune else {}
    sides = [base, best, *ranked[:BEST_OF_GRID]]
    if "config" in other:
        sides.append(LabConfig.from_mapping(other["config"]))
    turns = Plan(sides, args.rounds, "in turns, in fresh processes")
    options = {"bars": "turns", "sides": [side.to_mapping() for side in turns.configs]}
    GridRunner(new_job(ledger, base, options, anew=False), ledger, show, args.window).run_plan(
        turns
    )
    top = max(ranked[:BEST_OF_GRID], key=lambda config: pace(turns.entries[config]))
    everything = ledger.entries(limit=None)
    return {
        "model": preset,
        "device": args.device,
        "baseline": base.to_mapping(),
        "tune": {
            "sentence": document["sentence"],
            "config": best.to_mapping(),
            "seconds": document["seconds"],
            "times_the_baseline": against(turns.entries[base], turns.entries[best]),
        },
        "grid": {
            "configurations": len(plan.configs),
            "refused": refused,
            "seconds": grid_seconds,
            "best": top.to_mapping(),
            "times_the_baseline": against(turns.entries[base], turns.entries[top]),
        },
        "tune_of_the_best": against(turns.entries[top], turns.entries[best]),
        "tune_seconds_of_the_grid": document["seconds"] / grid_seconds,
        "autotune": _beside(other, turns, base, best),
        "out_of_memory": out_of_memory([e for e in everything if e.source == "tune"]),
    }


def _beside(
    other: Mapping[str, Any], turns: Plan, base: LabConfig, best: LabConfig
) -> dict[str, Any] | None:
    if not other or "error" in other:
        return dict(other) or None
    theirs = turns.entries[LabConfig.from_mapping(other["config"])]
    return {
        "switches": other["switches"],
        "seconds": other["seconds"],
        "times_the_baseline": against(turns.entries[base], theirs),
        "tune_of_it": against(theirs, turns.entries[best]),
    }


def main() -> int:
    """Print and keep the figures; 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--device", default="cuda", choices=("cpu", "cuda"))
    parser.add_argument("--batch", type=int)
    parser.add_argument("--accumulate", type=int, default=4)
    parser.add_argument("--budget", type=float, default=120.0, help="seconds")
    parser.add_argument("--window", type=float, default=2.0, help="seconds of steps timed in a run")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--autotune", action="store_true")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    try:
        found = measure(args)
    except CannotTune as error:
        print(error, file=sys.stderr)
        return 2
    (args.out / "bars.json").write_text(json.dumps(found, indent=2) + "\n")
    print(json.dumps(found, indent=2))
    share, spent = found["tune_of_the_best"], found["tune_seconds_of_the_grid"]
    good = share is not None and share["ratio"] >= ENOUGH_SHARE and spent <= TIME_SHARE
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
