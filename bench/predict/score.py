"""Score the predictions: each row of a table of real runs against its prediction.

``python -m bench.predict.score`` predicts every row of the committed table without a GPU. It prints
the errors of the peaks, whether the error bars hold the truth, and verdicts at capacities around
the true peak, by family and by precision, and the worst rows. Traces are cached by request and by
the source of the tracer, so that only what has changed is traced again.
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from bench.quantile import quantile
from gpuscope.model.allocator_settings import read as read_settings
from gpuscope.predict import answer as answering
from gpuscope.predict.allocator import simulate
from gpuscope.predict.request import CannotPredict, Doubt, Request, Traced
from gpuscope.predict.trace import Owner, PhaseMark, Trace

from . import truth_rows
from .truth_table import BLOCKS

ROOM = Path(answering.__file__).parent
CARD_BYTES = 143771 << 20
CAPACITIES = (0.8, 0.9, 0.95, 0.98, 1.02, 1.05, 1.1, 1.2)


@dataclass
class Scored:
    row: dict[str, Any]
    reason: str = ""
    """The reason if there is no prediction."""
    errors: dict[str, float] = field(default_factory=dict)
    """Errors of allocated, reserved and device memory: predicted − true, as a share of the truth.
    """
    covered: dict[str, bool] = field(default_factory=dict)
    width: dict[str, float] = field(default_factory=dict)
    """Half the width of the whole bar, as a share of the figure."""
    verdicts: list[tuple[float, str, bool]] = field(default_factory=list)
    """The capacity as a share of the true peak, the verdict, and whether the training really fits.
    """
    doubts: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def family(self) -> str:
        return str(self.row["model"]).rpartition(":")[2]


def request_of(row: dict[str, Any]) -> Request:
    names = {found.name for found in fields(Request)}
    given = {key: value for key, value in row.items() if key in names}
    return Request(**{**given, "compile": row.get("compile", "") not in ("", BLOCKS)})


def outside_bytes(row: dict[str, Any]) -> int:
    """Return what the process and the driver really held besides torch's allocator."""
    if "outside_torch_bytes" in row:
        return int(row["outside_torch_bytes"] + row["driver_reserved_bytes"])
    readings = [
        reading
        for reading in row["outside"].values()
        if reading.get("outside_torch_bytes") is not None
    ]
    return max(
        int(reading["outside_torch_bytes"] + reading["driver_reserved_bytes"])
        for reading in readings
    )


def load(path: Path) -> list[dict[str, Any]]:
    """Return the rows of the committed table, or those that ``truth.py`` has written."""
    with path.open() as file:
        if "name" not in json.loads(file.readline()):
            return truth_rows.rows(path)
    found = (json.loads(text) for text in path.read_text().splitlines())
    return [row for row in found if not row.get("error")]


class Traces:
    """Traces by request, cached on disk."""

    def __init__(self, folder: Path, seconds: float):
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._seconds = folder, seconds
        sources = sorted(ROOM.glob("tracing/*.py")) + sorted(
            Path(__file__).parent.glob("families*.py")
        )
        self._version = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
        self.last = 0.0
        self.fresh = 0

    def __call__(self, request: Request) -> Traced:
        from gpuscope.predict.child import trace

        key = hashlib.sha256((json.dumps(asdict(request)) + self._version).encode()).hexdigest()[
            :24
        ]
        path = self._folder / f"{key}.json"
        begin = time.monotonic()
        if path.exists():
            found = json.loads(path.read_text())
            if "failed" in found:
                raise CannotPredict(*found["failed"])
            return _traced(found)
        self.fresh += 1
        try:
            traced = trace(request, self._seconds)
        except CannotPredict as trouble:
            path.write_text(json.dumps({"failed": [*map(str, trouble.args[:3]), trouble.code]}))
            raise
        self.last = time.monotonic() - begin
        path.write_text(json.dumps(asdict(traced)))
        return traced


def _traced(found: dict[str, Any]) -> Traced:
    data = found["trace"]
    trace = Trace(
        data["sizes"],
        data["owners"],
        [Owner(**owner) for owner in data["owner_table"]],
        data["events"],
        [PhaseMark(**mark) for mark in data["marks"]],
        {int(block): stream for block, stream in data["streams"].items()},
    )
    return Traced(
        **{**found, "trace": trace, "doubts": [Doubt(**doubt) for doubt in found["doubts"]]}
    )


def as_there(row: dict[str, Any], traces: Traces) -> answering.Tracer:
    """Return ``traces`` with the answers for the host of ``row``.

    The memory outside of torch's allocator depends on torch's version.
    """
    return lambda request: replace(traces(request), torch=row["torch"])


def scored(
    row: dict[str, Any], traces: Traces, verdicts: bool, real: Trace | None = None
) -> Scored:
    """Score the prediction of one row.

    ``real`` is the recorded trace of the row. It decides whether a capacity between the two peaks
    is enough.
    """
    result = Scored(row)
    request, settings = request_of(row), read_settings(row.get("settings") or "")
    card = answering.Card("H200", "h200", CARD_BYTES, "9.0")
    try:
        asking = answering.TracedRequest(request, as_there(row, traces), card, settings)
    except CannotPredict as trouble:
        result.reason = " ".join(map(str, trouble.args[:2]))
        return result
    found = asking.answer.prediction
    outside = outside_bytes(row)
    truth = {
        "allocated": row["peak_allocated_bytes"],
        "reserved": row["peak_reserved_bytes"],
        "device": row["peak_reserved_bytes"] + outside,
    }
    for name, figure in (
        ("allocated", found.allocated),
        ("reserved", found.reserved),
        ("device", found.device),
    ):
        result.errors[name] = figure.bytes / truth[name] - 1
        result.covered[name] = figure.low <= truth[name] <= figure.high
        result.width[name] = (figure.high - figure.low) / 2 / figure.bytes
    result.doubts = [f"{doubt.code} {doubt.operation}" for doubt in asking.answer.doubts]
    result.seconds = traces.last
    for share in CAPACITIES if verdicts else ():
        capacity = int(share * truth["device"])
        fits = _really_fits(capacity - outside, row, real)
        if fits is None:
            continue
        small = answering.Card("H200", "h200", capacity, "9.0")
        judged = answering.TracedRequest(
            request, as_there(row, traces), small, settings
        ).answer.verdict
        assert judged is not None
        result.verdicts.append((share, judged.outcome, fits))
    return result


def _really_fits(limit: int, row: dict[str, Any], real: Trace | None) -> bool | None:
    """Tell whether a training really fits under ``limit``.

    None if only a real run could tell: between the peaks the allocator frees cached memory.
    """
    if limit >= row["peak_reserved_bytes"]:
        return True
    if limit < row["peak_allocated_bytes"]:
        return False
    return (
        None
        if real is None
        else simulate(real, read_settings(row.get("settings") or ""), limit).fits
    )


# ── the report ────────────────────────────────────────────────────────────────────────────────────


def line(name: str, results: list[Scored]) -> str:
    cells = []
    for key in ("allocated", "reserved", "device"):
        values = [abs(result.errors[key]) * 100 for result in results]
        signed = statistics.median(result.errors[key] * 100 for result in results)
        cells.append(
            f"{statistics.median(values):5.2f} {quantile(values, 0.95):6.2f} ({signed:+6.2f})"
        )
    return f"{name:24} {len(results):4}  " + "   ".join(cells)


def report(results: list[Scored], worst: int) -> None:
    good = [result for result in results if not result.reason]
    print(f"{len(good)} of {len(results)} rows have a prediction")
    for result in results:
        if result.reason:
            print(f"  none: {result.row['name']:50} {result.reason[:200]}")
    if not good:
        return
    print(
        "percent:                        allocated median p95       reserved median p95        "
        "device median p95"
    )
    print(line("all", good))
    kinds: dict[str, Callable[[Scored], str]] = {
        "family": lambda result: result.family,
        "amp": lambda result: result.row["amp"],
    }
    for title, kind in kinds.items():
        print(f"by {title}")
        for value in sorted({kind(result) for result in good}):
            print(line(f"  {value}", [result for result in good if kind(result) == value]))
    for checkpoint in (0, 1):
        chosen = [result for result in good if result.row["checkpoint"] == checkpoint]
        if chosen:
            print(line(f"  checkpoint {checkpoint}", chosen))
    _bars(good)
    _verdicts(good)
    print("worst rows, by allocated and by reserved")
    for key in ("allocated", "reserved"):
        for result in sorted(good, key=lambda result: -abs(result.errors[key]))[:worst]:
            row = result.row
            cells = " ".join(f"{name} {100 * error:+7.2f}" for name, error in result.errors.items())
            size = row["peak_allocated_bytes"] / 2**20
            print(f"  {row['name']:52} {cells}  {size:9.1f} MiB  {'; '.join(result.doubts)[:60]}")


def _bars(results: list[Scored]) -> None:
    """Print how often the error bars hold the truth and how wide they are.

    This is printed for all rows, by family, and with the rows outside of their bars.
    """
    keys = ("allocated", "reserved", "device")
    print(f"{'error bars: share that hold the truth, median ±':55}   " + "             ".join(keys))

    def line_of(name: str, chosen: list[Scored]) -> str:
        cells = []
        for key in keys:
            held = 100 * sum(result.covered[key] for result in chosen) / len(chosen)
            width = 100 * statistics.median(result.width[key] for result in chosen)
            cells.append(f"{held:5.1f} % ± {width:5.2f} %")
        return f"{name:50} {len(chosen):4}   {'   '.join(cells)}"

    print(line_of("all", results))
    for family in sorted({result.family for result in results}):
        print(line_of(f"  {family}", [result for result in results if result.family == family]))
    for result in results:
        missed = [
            f"{key} {100 * result.errors[key]:+.2f} %" for key in keys if not result.covered[key]
        ]
        if missed:
            print(f"  outside: {result.row['name']:52} {', '.join(missed)}")


def _verdicts(results: list[Scored]) -> None:
    rows = [(share, word, fits) for result in results for share, word, fits in result.verdicts]
    if not rows:
        return
    wrong = [item for item in rows if (item[1] == "fits") != item[2] and item[1] != "too_close"]
    close = sum(word == "too_close" for _, word, _ in rows)
    print(f"verdicts: {len(rows)}, wrong {len(wrong)}, too_close {100 * close / len(rows):.1f} %")
    for result in results:
        for share, word, fits in result.verdicts:
            if word != "too_close" and (word == "fits") != fits:
                really = "it fits" if fits else "it does not"
                print(f"  wrong: {result.row['name']:52} at {share:4.2f}: {word}, {really}")
    for share in CAPACITIES:
        here = [item for item in rows if item[0] == share]
        bad = sum((word == "fits") != fits and word != "too_close" for _, word, fits in here)
        near = sum(word == "too_close" for _, word, _ in here)
        print(f"  at {share:4.2f} × the true peak: {len(here):4}, wrong {bad}, too_close {near}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.predict.score", description=__doc__)
    parser.add_argument("rows", type=Path, nargs="*", default=[truth_rows.TABLE])
    parser.add_argument(
        "--skipped", action="store_true", help="also rows whose grad scaler skipped steps"
    )
    parser.add_argument("--only", default="*")
    parser.add_argument("--every", type=int, default=1, help="one row in so many")
    parser.add_argument(
        "--traces",
        type=Path,
        help="folder with the recorded traces, for verdicts between the peaks",
    )
    parser.add_argument("--verdicts", action="store_true")
    parser.add_argument("--worst", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=120, help="limit for one trace")
    parser.add_argument(
        "--cache", type=Path, default=Path(tempfile.gettempdir()) / "gpuscope-score"
    )
    parser.add_argument("--json", type=Path, help="writes each row's errors there")
    arguments = parser.parse_args()
    rows = [row for path in arguments.rows for row in load(path)]
    skipped = [row["name"] for row in rows if row["skipped_steps"] and not arguments.skipped]
    print(f"left out, because their grad scaler skipped steps: {', '.join(skipped) or 'none'}")
    rows = [
        row
        for row in rows
        if fnmatch.fnmatch(row["name"], arguments.only) and row["name"] not in skipped
    ]
    traces = Traces(arguments.cache, arguments.seconds)
    results = []
    for number, row in enumerate(rows[:: arguments.every]):
        real = None
        if arguments.traces and arguments.verdicts:
            from .recorded import as_trace, read

            path = arguments.traces / f"{row['name']}.xz"
            real = as_trace(read(path)) if path.exists() else None
        results.append(scored(row, traces, arguments.verdicts, real))
        if sys.stderr.isatty() or number % 20 == 0:
            print(
                f"{number + 1} of {len(rows[:: arguments.every])}, {traces.fresh} traced",
                file=sys.stderr,
                flush=True,
            )
    report(results, arguments.worst)
    if arguments.json:
        kept = [{**asdict(result), "row": result.row["name"]} for result in results]
        arguments.json.write_text("\n".join(json.dumps(one) for one in kept))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
