"""Keep what a run of the gym saw on a card, small enough for a test that judges it again.

``python -m bench.time_gym.kept results.json [results.json …] --to FILE.json.gz`` writes the rows of
each training's clock and of the look at its GPU, without the names of kernels, and how long a step
took by the clock outside. :func:`judged` ranks the causes of such a row by the rules of now, so a
change of the rules is measured against the card without one. Nothing is measured here.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gpuscope.model.look import Look, LookRow
from gpuscope.model.time_cause import MANY_RECOMPILES, Cause, Known
from gpuscope.model.time_causes import ranked
from gpuscope.model.time_ledger import Row, TimeLedger

from . import score

CLOCK = ("row", "seconds", "share", "share_low", "share_high")
GPU = ("row", "kind", "seconds", "share", "share_low", "share_high", "count", "place")
ABOUT = ("name", "subject", "cured", "names", "single", "quiet")


def kept(rows: Sequence[score.Row]) -> list[dict[str, Any]]:
    """Return what is kept of the trainings that ran."""
    return [_kept(row) for row in rows if not row["problem"] and score.step_seconds(row)]


def _kept(row: score.Row) -> dict[str, Any]:
    why = row["why"]
    look = why["look"] if why["look"] and not why["look"]["problem"] else None
    return {
        **{name: row[name] for name in ABOUT},
        "step_seconds": score.step_seconds(row),
        "settings": why.get("settings") or [],
        "median_step_seconds": _short(why.get("median_step_seconds")),
        "compiles_again": any(one["row"] == "compile" for one in why["causes"]),
        "clock": {
            **{name: why[name] for name in ("window_seconds", "steps", "looks")},
            "rows": [
                [*(_short(one[name]) for name in CLOCK), *(one["places"][:1] and [
                    one["places"][0]["place"], _short(one["places"][0]["seconds"])])]
                for one in why["rows"]
            ],
        },
        "look": look
        and {
            **{name: _short(look.get(name)) for name in
               ("seconds", "steps", "stood_seconds", "lost_seconds", "held_seconds",
                "paused_seconds", "slowed_seconds", "host_step_seconds")},
            "rows": [[_short(one[name]) for name in GPU] for one in look["rows"]],
        },
    }  # fmt: skip


def _short(value: Any) -> Any:
    return float(f"{value:.5g}") if isinstance(value, float) else value


def judged(row: dict[str, Any]) -> tuple[Cause, ...]:
    """Return the causes of a training that was kept, what brings most first."""
    look = _look(row["look"]) if row["look"] else None
    cost = max(look.lost_seconds or 0.0, look.stood_seconds) if look else 0.0
    facts = {name.replace("-", "_"): 1 for name in row["settings"]}
    facts["recompiles"] = MANY_RECOMPILES if row.get("compiles_again") else 0
    median = row.get("median_step_seconds")
    known = Known(facts=facts, cost_seconds=cost, median_step_seconds=median)
    return ranked(_clock(row["clock"]), look, known)


def _clock(told: dict[str, Any]) -> TimeLedger:
    rows = tuple(
        Row(name, seconds, 0, share, low, high, (tuple(place),) if place else ())
        for name, seconds, share, low, high, *place in told["rows"]
    )
    return TimeLedger(told["window_seconds"], told["steps"], told["looks"], rows)


def _look(told: dict[str, Any]) -> Look:
    rows = tuple(
        LookRow(name, name, kind, seconds, share, count, (), place or "", low, high)
        for name, kind, seconds, share, low, high, count, place in told["rows"]
    )
    stood, lost = told["stood_seconds"], told["lost_seconds"]
    more = (
        told.get("held_seconds"),
        told.get("paused_seconds"),
        told.get("slowed_seconds") or 0.0,
        told.get("host_step_seconds"),
    )
    return Look(
        told["seconds"], told["steps"], rows, 0, 0.0, stood, lost, 0.0, 0.0, None, 0.0, *more
    )


def as_measured(rows: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield kept rows with the causes of now, as :mod:`.score` reads a run."""
    for row in rows:
        each = row["step_seconds"]
        yield {
            **{name: row[name] for name in ABOUT},
            "problem": None,
            "why": {"causes": _causes(row)},
            "steps": [[each * number, number] for number in range(1, int(20 / each) + 20)],
        }


def judged_again(rows: Sequence[score.Row]) -> Iterator[score.Row]:
    """Yield the rows of a run with the causes that the rules of now find in what was seen then."""
    for row in rows:
        if row["problem"] or not score.step_seconds(row):
            yield row
        else:
            yield {**row, "why": {**row["why"], "causes": _causes(_kept(row))}}


def _causes(row: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "row": one.name,
            "severity": "warning" if one.warns else "info",
            "saves_share_at_most": one.share,
            "saves_share_at_most_low": one.low,
            "saves_share_at_most_high": one.high,
        }
        for one in judged(row)
    ]


def read(path: Path) -> list[dict[str, Any]]:
    """Return the trainings of a file that was kept."""
    found: list[dict[str, Any]] = json.loads(gzip.decompress(path.read_bytes()))["trainings"]
    return found


def write(path: Path, rows: Sequence[dict[str, Any]], note: str) -> None:
    text = json.dumps({"note": note, "trainings": rows}, separators=(",", ":"))
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


def main() -> int:
    """0: the file was written."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path, nargs="+")
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--note", default="", help="what is to be known of where it was measured")
    args = parser.parse_args()
    rows = [row for path in args.results for row in json.loads(path.read_text())["rows"]]
    write(args.to, kept(rows), args.note)
    print(f"{args.to}: {len(kept(rows))} of {len(rows)} trainings")
    return 0


if __name__ == "__main__":
    sys.exit(main())
