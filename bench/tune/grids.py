"""Replay searches of ``gpuscope tune`` on all grids that were recorded, with their noise.

python -m bench.tune.grids [--models MODEL,…] [--shares 0.15,0.24,0.5] [--seeds 30]
python -m bench.tune.grids --pack NAME=DIR…      (writes the runs of these ledgers to --file)

A search has a share of the time of the whole grid. Each of its trials is as fast as the recorded
runs of its configuration are in the mean, times a deviation that a run of one process had from the
mean of its configuration in the recording: one of the configurations whose steps varied alike. So
another seed is another day. A line says, of these days: the share of the speed of the grid's best
that was found, how often that was the bar or more, how often what was proved is truly slower than
the baseline, and how often the interval of the proof did not hold the true ratio.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import random
import shutil
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.tune.plan import grid
from bench.tune.replay import GRID, Recorded, Replay, entries_of, facts, replay
from gpuscope.lab.config import LabConfig
from gpuscope.lab.ledger import Entry, RunLedger, entry_of
from gpuscope.lab.sweep import cell_key
from gpuscope.lab.tune.findings import Found

FILE = Path(__file__).parents[2] / "tests" / "data" / "tune-grids-h200.json.gz"
ENOUGH = 0.97
SHARES = (0.15, 0.24, 0.5)
START_SECONDS = 9.0
"""From the command to the start of the first trial, on the hosts of these grids."""
FIGURES = ("samples_per_second", "samples_per_step", "warmup_seconds", "peak_reserved_bytes")
SECONDS = ("tune_seconds", "trial_seconds", "start_seconds", "end_seconds")


@dataclass(frozen=True, slots=True)
class Kept:
    """The recorded runs of one model, and the configuration from which they began."""

    base: LabConfig
    recorded: Recorded


def load(file: Path = FILE) -> dict[str, Kept]:
    """Return the recorded models by name."""
    data = json.loads(gzip.decompress(file.read_bytes()))
    runs = {name: [_entry(model, row) for row in model["runs"]] for name, model in data.items()}
    known = Recorded([entry for entries in runs.values() for entry in entries])
    return {
        name: Kept(
            LabConfig.from_mapping(model["baseline"]),
            Recorded(runs[name], model["configurations"], known.deviations),
        )
        for name, model in data.items()
    }


def _entry(model: Mapping[str, Any], row: Mapping[str, Any]) -> Entry:
    config = LabConfig.from_mapping({**model["baseline"], **row["config"]})
    seen = itertools.accumulate(row["samples"])
    figures = dict(zip(FIGURES, row["figures"], strict=True))
    document = {
        **figures,
        "config": config.to_mapping(),
        "same_batch": row["same_batch"],
        "convolutions": model["convolutions"],
        "step_seconds": row["steps"],
        "loss_curve": [list(point) for point in zip(seen, row["losses"], strict=True)],
    }
    return entry_of(
        document,
        group=row["group"],
        repeat=row["repeat"],
        environment=dict(zip(SECONDS, row["seconds"], strict=True)),
        cell=cell_key(config),
    )


def pack(folder: Path) -> dict[str, Any]:
    """Return what a replay needs of the runs of a ledger that has a grid."""
    with tempfile.TemporaryDirectory() as copied:  # a ledger of a read-only folder
        ledger = RunLedger(Path(shutil.copy(folder / "ledger.sqlite", copied)))
        entries, plan = entries_of(ledger), ledger.plan(GRID)
    runs = [entry for entry in entries if entry.config and not entry.failure]
    base = next(entry.config for entry in runs if entry.group == GRID)  # on one card it runs first
    base = LabConfig.from_mapping(plan["baseline"]) if plan else base
    assert base is not None
    assert base.batch is not None
    layouts = any(
        entry.config.channels_last for entry in runs if entry.config and entry.group == GRID
    )
    configs, _ = grid(base, base.batch, facts, () if layouts else ("channels_last",))
    return {
        "baseline": _changed(base, LabConfig()),
        "configurations": len({base, *configs}),
        "convolutions": layouts,
        "runs": [_row(entry, base) for entry in sorted(runs, key=_met)],
    }


def _met(entry: Entry) -> int:
    """Return when a search met a run: its own first, those of the grid last."""
    return 2 if entry.group == GRID else int(entry.group.startswith("bars"))


def _row(entry: Entry, base: LabConfig) -> dict[str, Any]:
    assert entry.config is not None
    document = entry.document
    curve = document["loss_curve"]
    steps = document["step_seconds"]
    return {
        "group": entry.group if entry.group.startswith("bars") else "tune",
        "repeat": entry.repeat,
        "config": _changed(entry.config, base),
        "figures": [_short(document.get(key)) for key in FIGURES],
        "seconds": [_short(entry.environment.get(key)) for key in SECONDS],
        "steps": {key: _short(value) for key, value in steps.items()},
        "same_batch": document.get("same_batch"),
        "samples": [now - then for then, now in itertools.pairwise([0, *(at for at, _ in curve)])],
        "losses": [_short(loss) for _, loss in curve],
    }


def _changed(config: LabConfig, base: LabConfig) -> dict[str, Any]:
    was = base.to_mapping()
    return {name: value for name, value in config.to_mapping().items() if value != was[name]}


def _short(value: object) -> object:
    return float(f"{value:.4g}") if isinstance(value, float) else value


@dataclass(frozen=True, slots=True)
class Day:
    """What one search found, and what is true of that."""

    found: Found
    played: Replay
    share: float
    true_ratio: float

    @property
    def missed(self) -> bool:
        """Whether the interval of the proof does not hold the true ratio."""
        speed = self.found.speed
        if speed is None or speed.low is None or speed.high is None:
            return False
        return not speed.low <= self.true_ratio <= speed.high


def day(kept: Kept, share: float, seed: int) -> Day:
    """Search once in a share of the grid's time."""
    recorded = kept.recorded
    budget = share * recorded.grid_seconds
    found, played = replay(
        recorded, kept.base, budget, START_SECONDS, luck=random.Random(f"{seed} {share}")
    )
    rate = recorded.rate(recorded.nearest(found.best))
    return Day(
        found,
        played,
        rate / recorded.rate(recorded.best()),
        rate / recorded.rate(cell_key(kept.base)),
    )


def summary(days: Sequence[Day]) -> str:
    """Return the figures of many days in a line."""
    shares = sorted(one.share for one in days)
    held = sum(share >= ENOUGH for share in shares)
    proved = [one for one in days if one.found.speed is not None]
    return (
        f"{statistics.median(shares):6.1%} {shares[len(shares) // 10]:6.1%} {shares[0]:6.1%}  "
        f"{held:3} of {len(days)}  {sum(one.true_ratio < 1 for one in proved):6}  "
        f"{sum(one.missed for one in proved):4} of {len(proved):3}  "
        f"{max(one.played.seconds for one in days):6.0f}"
    )


def main() -> None:
    """Print a line for each model and share, or pack the ledgers that are given."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", type=lambda text: text.split(","))
    parser.add_argument("--shares", default=",".join(map(str, SHARES)))
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--pack", nargs="+", metavar="NAME=DIR")
    parser.add_argument("--file", type=Path, default=FILE)
    args = parser.parse_args()
    if args.pack:
        known = json.loads(gzip.decompress(args.file.read_bytes())) if args.file.exists() else {}
        for name, folder in (one.split("=", 1) for one in args.pack):
            known[name] = pack(Path(folder))
        text = json.dumps(known, separators=(",", ":"))
        args.file.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
        return
    print("model      share  budget  median    10 %  least  held 97 %  slower  missed      longest")
    for name, kept in load(args.file).items():
        if args.models and name not in args.models:
            continue
        for share in map(float, args.shares.split(",")):
            days = [day(kept, share, seed) for seed in range(args.seeds)]
            budget = share * kept.recorded.grid_seconds
            print(f"{name:10} {share:5.0%} {budget:6.0f}s {summary(days)}", flush=True)


if __name__ == "__main__":
    main()
