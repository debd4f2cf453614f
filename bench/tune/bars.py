"""Measure the bars of ``gpuscope tune`` on one model: of the Lab, or MODULE:FACTORY.

python -m bench.tune.bars gpt-small --batch 8 --accumulate 4 --budget 120 --out DIR
    [--steps grid,autotune,tune,again,turns] [--cards 0,1,2,3] [--shard 2/16] [--within autotune]

The steps run in this order:
grid: every combination of the switches runs once. The cards share it; ``--shard`` runs a part.
    The step ``known`` runs none, and only reads what the ledger has of it.
autotune: pytorch-autotune tunes the same training with the same budget, on the last card.
tune: ``gpuscope tune`` searches, as a user calls it, on the first card. ``--within autotune`` gives
    it the very seconds that pytorch-autotune took, from the start of its process to its end;
    ``--within grid`` a share of those of the whole grid.
again: the baseline, what tune found and what pytorch-autotune chose run in turns, each in a process
    that is started anew. With ``--crossed``, since pytorch-autotune changes neither the micro-batch
    nor accumulation, its switches run with those of tune too.
turns: what tune found and the fastest of the grid run in turns, in fresh processes. Only these runs
    are compared: the best of many single runs is partly luck.

The ledger is in DIR: the same command continues where it was stopped, and each step writes what it
has found to DIR/bars.json. A trial of the grid is made as one of tune is, and the seconds of all
cards are added. Both compile into a cache of their own.
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
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.tune.plan import Plan, grid, seconds_of
from gpuscope.lab import torch_probe
from gpuscope.lab.config import LabConfig
from gpuscope.lab.ledger import Entry, RunLedger
from gpuscope.lab.models import MODELS
from gpuscope.lab.tune import judge
from gpuscope.lab.tune.runner import SearchJob, SearchProgress, SearchRunner, window_of
from gpuscope.process.atomic_file import write_text

ENOUGH_SHARE, TIME_SHARE = 0.97, 0.25
"""The bar: so much of the speed of the grid's best, in at most so much of the grid's time."""
WITHIN_SHARE = 0.24
"""The share of the grid's time that tune is given: it must not be more than ``TIME_SHARE``."""
AROUND_SECONDS = 2.0
"""What Python takes before and after the seconds that ``gpuscope tune`` counts."""
BEST_OF_GRID = 2
"""So many of the grid's fastest run again: single runs differ by some percent."""


GRID = "bars-grid"
VISIBLE = "CUDA_VISIBLE_DEVICES"
CACHE = "TORCHINDUCTOR_CACHE_DIR"


def run_plan(
    plan: Plan,
    job: SearchJob,
    ledger: RunLedger,
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
        SearchRunner(
            job, ledger, show, window, fork=fork, environment={VISIBLE: card, CACHE: cache}
        )
        for card in cards
    ]

    def stop(why: str) -> None:
        for runner in runners:
            runner.stop(why)

    async def all_cards() -> list[Any]:
        for one in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(one, stop, one.name)
        return await asyncio.gather(*(runner.follow(plan) for runner in runners))  # type: ignore[arg-type]  # what it reads of a search

    outcomes = asyncio.run(all_cards())
    for outcome in outcomes:
        if outcome.stopped or outcome.failure is not None:
            raise SystemExit(f"stopped: {outcome.stopped or outcome.failure}")
    return sum(runner.spent_seconds for runner in runners)


def show(progress: SearchProgress, entry: Entry | None) -> None:
    """Print a line for each run that has ended."""
    if entry is not None and progress.trial is not None:
        rate = entry.document.get("samples_per_second")
        said = f"{rate:,.1f} samples/s" if isinstance(rate, float) else str(entry.failure)[:80]
        print(f"  {progress.spent_seconds:6.0f} s  {progress.label}: {said}", flush=True)


def tuned(
    args: argparse.Namespace, base: LabConfig, environ: dict[str, str], budget: float
) -> dict[str, Any]:
    """Return the document of ``gpuscope tune``, which is kept."""
    kept = args.out / "tune.json"
    if not kept.exists():
        words = ["tune", *base.flags(True), "--budget", f"{budget:.0f}s", "-o", str(kept)]
        command = [sys.executable, "-m", "gpuscope", *words]
        subprocess.run(command, check=False, env={**os.environ, **environ})
    if not kept.exists():
        raise SystemExit("gpuscope tune has found nothing: its words are above")
    document = json.loads(kept.read_text())
    assert isinstance(document, dict)
    return document


def autotuned(
    args: argparse.Namespace, base: LabConfig, model: str, batch: int, environ: dict[str, str]
) -> dict[str, Any]:
    """Return what pytorch-autotune chose, as a configuration of the Lab, and its seconds.

    ``process_seconds`` has the import of torch and the model too, as tune's seconds have.
    """
    kept = args.out / "autotune.json"
    if not kept.exists():
        words = ["bench.tune.autotune_child", model, str(batch), base.device, f"{args.budget:.0f}"]
        command = [sys.executable, "-m", *words]
        began = time.monotonic()
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env={**os.environ, **environ}
        )
        if done.returncode:
            return {"error": done.stderr.strip().splitlines()[-1] if done.stderr else "no words"}
        answer = json.loads(done.stdout.splitlines()[-1])
        answer["process_seconds"] = time.monotonic() - began
        kept.write_text(json.dumps(answer))
    found = json.loads(kept.read_text())
    assert isinstance(found, dict)
    chosen = {name: found.get(name) for name in ("switches", "seconds", "process_seconds")}
    return {**chosen, "config": {**base.to_mapping(), **found["switches"]}}


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


class Bars:
    """The steps for one model, and what they have found: ``found`` is bars.json."""

    def __init__(self, args: argparse.Namespace, caches: Path) -> None:
        self.args, self.out, self.caches = args, args.out, caches
        self.cards: list[str] = args.cards.split(",")
        self.window = args.window or window_of(args.budget)
        given = {"model": args.model, "device": args.device, "batch": args.batch,
                 "accumulate": args.accumulate}  # fmt: skip
        self.base = LabConfig.from_mapping(given)
        self.preset = self.base.preset(args.device)
        self.batch = args.batch or (MODELS[self.preset].batch if self.preset in MODELS else 8)
        self.ledger = RunLedger()
        self.found: dict[str, Any] = {}
        self.keep(model=self.preset, device=args.device, baseline=self.base.to_mapping())

    def keep(self, **values: object) -> None:
        """Write down what a step has found. Parts of a grid are processes of their own."""
        path = self.out / "bars.json"
        self.found = json.loads(path.read_text()) if path.exists() else {}
        self.found |= values
        write_text(path, json.dumps(self.found, indent=2) + "\n")

    def environ(self, card: str, cache: str) -> dict[str, str]:
        return {VISIBLE: card, CACHE: str(self.caches / cache)}

    def config(self, side: str) -> LabConfig | None:
        """Return what a side has chosen: ``tune`` or ``autotune``; None if that did not run."""
        config = self.found.get(side, {}).get("config")
        return LabConfig.from_mapping(config) if config else None

    def in_turns(self, name: str, sides: Sequence[LabConfig], cache: str) -> Plan:
        """Run these configurations in turns, in fresh processes."""
        plan = Plan(sides, self.args.rounds, "in turns, in fresh processes", whole_rounds=True)
        words = "\n".join(side.to_json() for side in plan.configs)
        group = f"bars-{name}-{hashlib.sha256(words.encode()).hexdigest()[:8]}"
        folder = str(self.caches / cache)
        run_plan(
            plan, SearchJob(group, self.base), self.ledger, self.window, self.cards, folder, False
        )
        return plan

    # ── the steps ─────────────────────────────────────────────────────────────────────────────────

    def tune(self) -> None:
        """Let gpuscope tune search."""
        budget = self.budget()
        self.window = self.args.window or window_of(budget)
        began = time.monotonic()
        document = tuned(self.args, self.base, self.environ(self.cards[0], "tune"), budget)
        print(document["sentence"], flush=True)
        names = ("sentence", "seconds", "stopped", "runs")
        chosen = {name: document[name] for name in names}
        took = {"budget": budget, "process_seconds": time.monotonic() - began}
        if "tune" in self.found:  # from an earlier call, with the same document
            took = {name: self.found["tune"].get(name) for name in took}
        trials = [entry for entry in self.ledger.entries(limit=None) if entry.source == "tune"]
        self.keep(
            tune={**chosen, **took, "config": document["best"]["config"]},
            out_of_memory=out_of_memory(trials),
        )

    def budget(self) -> float:
        """Return the seconds that tune is given."""
        within, grid = self.args.within, self.found.get("grid")
        if within == "autotune":
            seconds = self.found.get("autotune", {}).get("process_seconds")
            return float(seconds - AROUND_SECONDS if seconds else self.args.budget)
        if within == "grid" and grid and grid["done"]:
            return float(WITHIN_SHARE * whole_grid(grid))
        return float(self.args.budget)

    def autotune(self) -> None:
        """Let pytorch-autotune tune, once."""
        if "autotune" not in self.found and self.preset in MODELS:
            environ = self.environ(self.cards[-1], "autotune")
            self.keep(autotune=autotuned(self.args, self.base, self.preset, self.batch, environ))

    def again(self) -> None:
        """Run the baseline and what was chosen again."""
        best, theirs = self.config("tune"), self.config("autotune")
        if best is None or (best == self.base and theirs is None):
            return
        sides = {"tune": best}
        if theirs is not None:
            sides["autotune"] = theirs
        if theirs is not None and self.args.crossed:
            size = {"batch": best.batch, "accumulate": best.accumulate}
            crossed = LabConfig.from_mapping({**theirs.to_mapping(), **size})
            sides["autotune_with_our_batch"] = crossed
        turns = self.in_turns("again", [self.base, *sides.values()], "tune").entries
        found = {name: against(turns[self.base], turns[side]) for name, side in sides.items()}
        for name, side in sides.items():
            if name != "tune":
                found[f"tune_of_{name}"] = against(turns[side], turns[best])
        self.keep(again=found)

    def grid(self) -> None:
        """Run the grid, or a part of it."""
        configs, refused = self._grid()
        part, parts = map(int, self.args.shard.split("/"))
        mine = configs[len(configs) * (part - 1) // parts : len(configs) * part // parts]
        print(f"grid: {len(mine)} of {len(configs)} configurations, {refused} refused", flush=True)
        if mine:
            job, cache = SearchJob(GRID, self.base), str(self.caches / "grid")
            plan = Plan(mine, 1, "the grid")
            run_plan(plan, job, self.ledger, self.window, self.cards, cache)
        self.known(configs, refused)

    def known(self, configs: list[LabConfig] | None = None, refused: int = 0) -> None:
        """Write down what the ledger has of the grid."""
        if configs is None:
            configs, refused = self._grid()
        entries = self.ledger.entries(limit=None, group=GRID)
        runs = {entry.config: entry for entry in sorted(entries, key=lambda entry: entry.id)}
        done = {config: runs[config] for config in configs if config in runs}
        ranked = sorted(done, key=lambda config: -pace([done[config]]))
        self.keep(
            grid={
                "configurations": len(configs),
                "done": len(done),
                "refused": refused,
                "seconds": sum(map(seconds_of, done.values())),
                "fastest": [config.to_mapping() for config in ranked[:BEST_OF_GRID]],
            }
        )

    def _grid(self) -> tuple[list[LabConfig], int]:
        machine = torch_probe.ask(sys.executable)
        configs, refused = grid(self.base, self.batch, machine.facts, self.args.without)
        return list(dict.fromkeys([self.base, *configs])), refused

    def turns(self) -> None:
        """Compare what tune found with the best of the grid, or of the part that is known."""
        grid, best = self.found.get("grid", {}), self.config("tune")
        if best is None or not grid or not grid["done"]:
            return
        fastest = [LabConfig.from_mapping(config) for config in grid["fastest"]]
        turns = self.in_turns("turns", [best, *fastest], "tune").entries
        top = max(fastest, key=lambda config: pace(turns[config]))
        self.keep(
            turns={
                "best_of_the_grid": top.to_mapping(),
                "tune_of_it": against(turns[top], turns[best]),
                "time_of_the_grid": self.found["tune"]["seconds"] / whole_grid(grid),
            }
        )


def whole_grid(grid: Mapping[str, Any]) -> float:
    """Return the seconds of a whole grid; where a part has run, as many for each of the others."""
    return float(grid["seconds"] * grid["configurations"] / grid["done"])


STEPS = ("grid", "known", "autotune", "tune", "again", "turns")


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
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--within", choices=("autotune", "grid"), help="tune's budget")
    parser.add_argument("--crossed", action="store_true")
    parser.add_argument(
        "--steps", type=lambda text: text.split(","), default="grid,tune,again,turns"
    )
    parser.add_argument(
        "--without",
        type=lambda text: text.split(","),
        default=[],
        metavar="SWITCH,…",
        help="leave these out of the grid: they do nothing to this model",
    )
    parser.add_argument("--shard", default="1/1", metavar="PART/PARTS", help="a part of the grid")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    os.environ["GPUSCOPE_LEDGER"] = str(args.out / "ledger.sqlite")
    with tempfile.TemporaryDirectory(prefix="gpuscope-bars-") as caches:
        bars = Bars(args, Path(caches))
        for step in (step for step in STEPS if step in args.steps):
            getattr(bars, step)()
    print(json.dumps(bars.found, indent=2))
    return int(any(missed(bars.found)))


def missed(found: Mapping[str, Any]) -> list[str]:
    """Return which bars are missed, of those that were measured."""
    rows = []
    again, turns = found.get("again", {}), found.get("turns", {})
    if (ours := again.get("tune")) and ours["ratio"] < 1:
        rows.append("slower than the baseline when measured again")
    if found.get("out_of_memory"):
        rows.append("out of memory")
    if (share := turns.get("tune_of_it")) and share["ratio"] < ENOUGH_SHARE:
        rows.append(f"{share['ratio']:.1%} of the best of the grid")
    if turns and turns["time_of_the_grid"] > TIME_SHARE:
        rows.append(f"{turns['time_of_the_grid']:.1%} of the grid's time")
    if (share := again.get("tune_of_autotune")) and share["ratio"] < 1:
        rows.append(f"{share['ratio']:.1%} of the speed that pytorch-autotune found")
    return rows


if __name__ == "__main__":
    sys.exit(main())
