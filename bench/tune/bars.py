"""Measure the bars of ``gpuscope tune`` on one model of the Lab.

python -m bench.tune.bars gpt-small --batch 8 --accumulate 4 --budget 120 --out DIR [--autotune]
    [--cards 0,1,2,3]

1. ``gpuscope tune`` searches, as a user calls it, on the first card. With ``--autotune``
   pytorch-autotune tunes the same training with the same budget, on the last card at the same time.
2. Every combination of the switches runs once: the exhaustive grid. The cards share it.
3. The baseline, what tune found, the best of the grid and what pytorch-autotune chose run in turns,
   each in a process that is started anew. The cards share the rounds. Only these runs are compared:
   the best of many single runs is partly luck.

The ledger is in DIR: the same command continues where it was stopped. A trial of the grid is made
as one of tune is, and the seconds of all cards are added. Both compile into a cache of their own.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench.tune.plan import Plan, grid
from gpuscope.lab import torch_probe
from gpuscope.lab.config import LabConfig
from gpuscope.lab.ledger import Entry, Ledger
from gpuscope.lab.models import MODELS
from gpuscope.lab.tune import judge
from gpuscope.lab.tune.runner import Job, Progress, Runner, window_of
from gpuscope.lab.tune.search import CannotTune

ENOUGH_SHARE, TIME_SHARE = 0.97, 0.25
"""The bar: so much of the speed of the grid's best, in at most so much of the grid's time."""
BEST_OF_GRID = 3
"""So many of the grid's fastest run again: single runs differ by some percent."""


VISIBLE = "CUDA_VISIBLE_DEVICES"
CACHE = "TORCHINDUCTOR_CACHE_DIR"


def run_plan(
    plan: Plan,
    job: Job,
    ledger: Ledger,
    window: float,
    cards: Sequence[str],
    cache: str,
    fork: bool = True,
) -> float:
    """Run all of a plan, one runner a card, and return the seconds of all cards.

    What the ledger has is not run again. Raises ``SystemExit`` if it was stopped.
    """
    ledger.keep_plan(job.group, job.to_mapping())
    runners = [
        Runner(job, ledger, show, window, fork=fork, environment={VISIBLE: card, CACHE: cache})
        for card in cards
    ]

    def stop(why: str) -> None:
        for runner in runners:
            runner.stop(why)

    async def all_cards() -> list[Any]:
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop, number.name)
        return await asyncio.gather(*(runner.follow(plan) for runner in runners))  # type: ignore[arg-type]  # what it reads of a search

    outcomes = asyncio.run(all_cards())
    for outcome in outcomes:
        if outcome.stopped or outcome.failure is not None:
            raise SystemExit(f"stopped: {outcome.stopped or outcome.failure}")
    return sum(runner.spent_seconds for runner in runners)


def show(progress: Progress, entry: Entry | None) -> None:
    """Print a line for each run that has ended."""
    if entry is not None and progress.trial is not None:
        rate = entry.document.get("samples_per_second")
        said = f"{rate:,.1f} samples/s" if isinstance(rate, float) else str(entry.failure)[:80]
        print(f"  {progress.spent_seconds:6.0f} s  {progress.label}: {said}", flush=True)


def tuned(base: LabConfig, budget: float, out: Path, environ: dict[str, str]) -> dict[str, Any]:
    """Return the document of ``gpuscope tune``, which is kept in ``out``."""
    kept = out / "tune.json"
    if not kept.exists():
        words = ["tune", *base.flags(), "--budget", f"{budget:.0f}s", "-o", str(kept)]
        subprocess.run(
            [sys.executable, "-m", "gpuscope", *words], check=False, env={**os.environ, **environ}
        )
    if not kept.exists():
        raise SystemExit("gpuscope tune has found nothing: its words are above")
    document = json.loads(kept.read_text())
    assert isinstance(document, dict)
    return document


def autotuned(
    base: LabConfig, model: str, batch: int, seconds: float, out: Path, environ: dict[str, str]
) -> dict[str, Any]:
    """Return what pytorch-autotune chose, as a configuration of the Lab, and its seconds."""
    kept = out / "autotune.json"
    if not kept.exists():
        words = ["bench.tune.autotune_child", model, str(batch), base.device, f"{seconds:.0f}"]
        done = subprocess.run(
            [sys.executable, "-m", *words],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, **environ},
        )
        if done.returncode:
            return {"error": done.stderr.strip().splitlines()[-1] if done.stderr else "no words"}
        kept.write_text(done.stdout.splitlines()[-1])
    found = json.loads(kept.read_text())
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
    window = args.window or window_of(args.budget)
    cards: list[str] = args.cards.split(",")
    with tempfile.TemporaryDirectory(prefix="gpuscope-bars-") as caches:
        environs = [
            {VISIBLE: card, CACHE: str(Path(caches) / name)}
            for card, name in ((cards[0], "tune"), (cards[-1], "autotune"))
        ]
        with ThreadPoolExecutor(2) as threads:
            other_later = None
            if args.autotune:
                other_later = threads.submit(
                    autotuned, base, preset, batch, args.budget, out, environs[1]
                )
                if len(cards) == 1:
                    other_later.result()
            document = tuned(base, args.budget, out, environs[0])
            other = other_later.result() if other_later is not None else {}
        best = LabConfig.from_mapping(document["best"]["config"])
        print(document["sentence"], flush=True)

        ledger = Ledger()
        configs, refused = grid(base, batch, machine.facts)
        plan = Plan([base, *configs], 1, "the grid")
        print(f"grid: {len(plan.configs)} configurations, {refused} refused by rules", flush=True)
        job = Job("bars-grid", base)
        cache = str(Path(caches) / "grid")
        grid_seconds = run_plan(plan, job, ledger, window, cards, cache)
        entries = plan.entries
        ranked = sorted(plan.configs, key=lambda config: -pace(entries[config]))

        sides = [base, best, *ranked[:BEST_OF_GRID]]
        if "config" in other:
            sides.append(LabConfig.from_mapping(other["config"]))
        turns = Plan(sides, args.rounds, "in turns, in fresh processes", whole_rounds=True)
        words = "\n".join(side.to_json() for side in turns.configs)
        job = Job(f"bars-turns-{hashlib.sha256(words.encode()).hexdigest()[:8]}", base)
        run_plan(turns, job, ledger, window, cards, cache, fork=False)
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
    parser.add_argument("--window", type=float, help="seconds of steps timed in a run (as tune's)")
    parser.add_argument("--cards", default=os.environ.get(VISIBLE) or "0", help="such as 0,1,2")
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
