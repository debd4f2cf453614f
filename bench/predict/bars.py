"""Fit and check the error bars of :mod:`gpuscope.predict.errors` on real trainings.

``python -m bench.predict.bars ROWS.jsonl --traces FOLDER`` predicts every row. It fits the two
scales on one half of the model families, as the smallest that cover 94 % of its rows, and prints
what share of the other half they cover, by kind of model. With the recorded traces it also prints
how far the predicted least memory of a training (the limit in which its replay just fits) is from
that of the real trace, and how many of them the error of verdicts covers, because verdicts are
based on it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.predict.score import Traces, load, request_of
from bench.quantile import quantile
from gpuscope.model.allocator_settings import AllocatorSettings
from gpuscope.model.allocator_settings import read as read_settings
from gpuscope.predict import errors, largest
from gpuscope.predict.allocator import simulate
from gpuscope.predict.request import CannotPredict, Doubt
from gpuscope.predict.trace import Trace

COVER = 0.94
MIB = 1 << 20


@dataclass
class Row:
    """One training: what was predicted, what the bar is made of, and the truth. Bytes."""

    name: str
    family: str
    allocated: int
    reserved: int
    true_allocated: int
    true_reserved: int
    doubtful: float
    doubts: list[Doubt]
    convolution: float
    least: int = 0
    true_least: int = 0

    def off(self) -> tuple[int, int]:
        return abs(self.allocated - self.true_allocated), abs(self.reserved - self.true_reserved)

    def bars(self) -> tuple[int, int]:
        """Return the bars as the product draws them, each on the side on which the truth lies."""
        pairs = []
        for doubts in (self.doubts, errors.downward(self.doubts)):
            error = errors.allocated_error(self.allocated, self.doubtful, doubts)
            held = errors.reserved_error(
                self.reserved, error, doubts, self.allocated, self.convolution
            )
            pairs.append((error, held))
        above, below = pairs
        return (
            above[0] if self.true_allocated > self.allocated else below[0],
            above[1] if self.true_reserved > self.reserved else below[1],
        )

    def off_least(self) -> int:
        return abs(self.least - self.true_least)

    def demand(self) -> int:
        """Return the error of the least memory, on the side on which the truth lies."""
        doubts = self.doubts if self.true_least > self.least else errors.downward(self.doubts)
        error = errors.allocated_error(self.allocated, self.doubtful, doubts)
        return errors.demand_error(self.allocated, error, self.convolution)


def least_memory(trace: Trace, settings: AllocatorSettings, low: int, high: int) -> int:
    """Return the least limit in which a replay fits, to 0.2 %; ``high`` fits."""
    while high - low > max(2 * MIB, high // 500):
        middle = (low + high) // 2
        if simulate(trace, settings, middle).fits:
            high = middle
        else:
            low = middle
    return high


def measured(
    row: dict[str, Any], traces: Traces, folder: Path | None, cache: dict[str, int]
) -> Row | None:
    settings = read_settings(row.get("settings") or "")
    try:
        traced = traces(request_of(row))
    except CannotPredict:
        return None
    trace = traced.trace
    found = simulate(trace, settings)
    result = Row(
        row["name"],
        str(row["model"]).rpartition(":")[2],
        found.peak_allocated_bytes,
        found.peak_reserved_bytes,
        row["peak_allocated_bytes"],
        row["peak_reserved_bytes"],
        errors.doubtful(trace, found.peak_allocated_at.event),
        traced.doubts,
        errors.convolutions(trace),
    )
    path = folder / f"{row['name']}.xz" if folder else None
    if path is not None and path.exists():
        from bench.predict.recorded import as_trace, read

        if row["name"] not in cache:
            real = as_trace(read(path))
            cache[row["name"]] = least_memory(
                real, settings, result.true_allocated // 2, result.true_reserved
            )
        result.true_least = cache[row["name"]]
        result.least = least_memory(trace, settings, result.allocated // 2, result.reserved)
    return result


def scale_for(rows: Iterable[Row], ratio: Callable[[Row], float]) -> float:
    """Return the smallest factor that covers ``COVER`` of the rows."""
    ratios = [ratio(row) for row in rows]
    return quantile(ratios, COVER) if ratios else 0.0


def line(title: str, rows: list[Row]) -> str:
    if not rows:
        return f"{title:34} none"
    cells = []
    for which in (0, 1):
        held = sum(row.off()[which] <= row.bars()[which] for row in rows) / len(rows)
        width = statistics.median(
            row.bars()[which] / (row.allocated, row.reserved)[which] for row in rows
        )
        cells.append(f"{100 * held:5.1f} % ± {100 * width:5.2f} %")
    return f"{title:34} {len(rows):4}   {cells[0]}   {cells[1]}"


def batches(path: Path, traces: Traces) -> None:
    """Compare the largest batch under a cap with that found by bisection on the GPU.

    Each trial's verdict is compared too.
    """
    for text in path.read_text().splitlines():
        row = json.loads(text)
        if row.get("error") or not row.get("largest_batch"):
            continue
        cap, settings = row["cap_bytes"], read_settings(row.get("settings") or "")

        def trace(batch: int, row: dict[str, Any] = row) -> Trace:
            return traces(replace(request_of(row), batch=batch)).trace

        def fits(
            trace: Trace, more: int, cap: int = cap, settings: AllocatorSettings = settings
        ) -> bool:
            return simulate(trace, settings, allowed_bytes=max(0, cap + more)).fits

        try:
            found = largest.find(trace, fits, 8, lambda trace: (0, 0))
        except CannotPredict as trouble:
            print(f"   {row['model']:50} none: {trouble.args[:2]}")
            continue
        truth = row["largest_batch"]
        near = abs(found.batch - truth) <= max(1, 0.03 * truth)
        trials = [one for one in row["trials"] if one["fits"] is not None]
        # A search that began under another cap has trials under both.
        wrong = sum(
            fits(trace(one["batch"]), one.get("cap_bytes", cap) - cap) != one["fits"]
            for one in trials
        )
        name = (
            f"{row['model'].rpartition(':')[2]} "
            f"{row['amp']}{' checkpoint' if row['checkpoint'] else ''}"
        )
        told = (
            f"{found.batch:4} predicted{' and traced' if found.traced else ''}, {truth:4} on "
            "the GPU"
        )
        print(
            f"   {name:36} {told}  {'ok' if near else 'OFF'}; {wrong} of {len(trials)} trials "
            "judged wrong",
            flush=True,
        )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.predict.bars", description=__doc__)
    parser.add_argument("--batches", type=Path, help="rows of batches found by bisection, instead")
    parser.add_argument("rows", type=Path, nargs="?")
    parser.add_argument("--traces", type=Path, help="folder with the recorded traces")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument(
        "--cache", type=Path, default=Path(tempfile.gettempdir()) / "gpuscope-score"
    )
    arguments = parser.parse_args()
    if arguments.batches:
        batches(arguments.batches, Traces(arguments.cache, 120))
        return 0
    if arguments.rows is None:
        parser.error("it needs ROWS.jsonl, such as tests/data/predict-h200.jsonl, or --batches")
    rows = load(arguments.rows)[:: arguments.every]
    traces = Traces(arguments.cache, 120)
    kept = arguments.cache / "least.json"
    cache: dict[str, int] = json.loads(kept.read_text()) if kept.exists() else {}
    found = [
        one for row in rows if (one := measured(row, traces, arguments.traces, cache)) is not None
    ]
    kept.write_text(json.dumps(cache))
    families = sorted({row.family for row in found})
    halves = [[row for row in found if families.index(row.family) % 2 == half] for half in (0, 1)]
    for half, other in ((0, 1), (1, 0)):
        first = scale_for(halves[half], lambda row: row.off()[0] / max(1, row.bars()[0]))
        second = scale_for(halves[half], lambda row: row.off()[1] / max(1, row.bars()[1]))
        print(
            f"fitted on half {half}: allocated × {first:.2f}, reserved × {second:.2f} of what is "
            "drawn now; the other:"
        )
        for which, scale in ((0, first), (1, second)):
            held = sum(
                row.off()[which] <= scale * row.bars()[which] for row in halves[other]
            ) / len(halves[other])
            print(
                f"   {('allocated', 'reserved')[which]} of half {other} covered in "
                f"{100 * held:.1f} %"
            )
    print("as drawn now:                         rows   allocated covered, ±   reserved covered, ±")
    print(line("all", found))
    for title, chosen in (("with convolutions", True), ("without", False)):
        print(line(title, [row for row in found if (row.convolution > 0) is chosen]))
    for family in families:
        print(line("  " + family, [row for row in found if row.family == family]))
    ratios = sorted((row.least / row.true_least - 1, row.name) for row in found if row.true_least)
    if ratios:
        tried = [row for row in found if row.true_least]
        for title, some in (("with convolutions", True), ("without", False)):
            those = [row for row in tried if (row.convolution > 0) is some]
            if those:
                held = sum(row.off_least() <= row.demand() for row in those) / len(those)
                width = statistics.median(row.demand() / row.least for row in those)
                scale = scale_for(those, lambda row: row.off_least() / row.demand())
                print(
                    f"least memory, {title}: {len(those)} rows, {100 * held:.1f} % within ± "
                    f"{100 * width:.2f} %; {100 * COVER:.0f} % would be within × {scale:.2f} of "
                    "that"
                )
        high = [quantile((100 * abs(off) for off, _ in ratios), part) for part in (0.5, 0.9, 0.95)]
        print("least memory: median {:.2f} %, p90 {:.2f} %, p95 {:.2f} %".format(*high))
        for value, name in [*ratios[:6], *ratios[-6:]]:
            print(f"   {100 * value:+7.2f} % {name}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
