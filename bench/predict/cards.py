"""Run declared cases on real GPUs, each in fresh processes, beside their predictions.

A script of cases (``ddp_cards``, ``fsdp_cards``, ``serve_cards``) declares :data:`CASES`, each with
the request that is predicted, and ``run(case, place, phases)``, which does the real work. It takes
the actions ``predict``, ``measure`` and ``score``, by default all three:

``python -m bench.predict.ddp_cards --out DIR``

``predict`` writes ``DIR/SCRIPT.predicted.jsonl`` and needs no GPU. ``measure`` writes
``DIR/SCRIPT.measured.jsonl`` and the allocator's histories of rank 0. ``score`` compares the two.
What is finished is kept when the time is over. With ``--device cpu`` cases run over gloo and without
figures, which shows that they run.
"""  # noqa: E501

from __future__ import annotations

import argparse
import fnmatch
import importlib
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.quantile import quantile
from gpuscope.predict.request import CannotPredict, Request
from gpuscope.predict.trace import Trace

CASE_SECONDS, CPU_SECONDS, TRACE_SECONDS = 100.0, 300.0, 400.0
ACTIONS = ("predict", "measure", "score")
GRANULE = 512
MIB = 1 << 20
MAX_ENTRIES = 500_000
Figures = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """One case: its name, the request that is predicted, and what ``run`` needs besides."""

    name: str
    request: Request
    options: dict[str, Any] = field(default_factory=dict)
    ranks: int = 2
    about: str = ""
    """What the request cannot say of the case."""


@dataclass(frozen=True)
class Place:
    """Where one rank of a case runs."""

    rank: int
    ranks: int
    device: Any
    store: str

    def join(self) -> None:
        """Start the process group of the case."""
        import torch

        kind = "nccl" if self.device.type == "cuda" else "gloo"
        torch.distributed.init_process_group(
            kind, init_method=f"file://{self.store}", rank=self.rank, world_size=self.ranks
        )


class Phases:
    """The peaks of a rank's allocator in each phase, and its history."""

    def __init__(self, device: Any):
        self.on = device.type == "cuda"
        self.rows: list[Figures] = []
        self._device = device
        self._marks: list[tuple[int, str]] = []

    def record(self) -> None:
        import torch

        if self.on:
            torch.cuda.memory._record_memory_history(
                enabled="all", context="alloc", stacks="all", max_entries=MAX_ENTRIES
            )

    def begin(self, name: str) -> None:
        """Forget the peaks so far. The next ones are those of the phase ``name``."""
        import torch

        if self.on:
            count = torch.cuda.memory_stats(self._device)
            number = count["allocation.all.allocated"] + count["allocation.all.freed"]
            self._marks.append((number, name))
            torch.cuda.reset_peak_memory_stats(self._device)

    def end(self, step: int, name: str) -> None:
        import torch

        row: Figures = {"step": step, "phase": name}
        if self.on:
            of = torch.cuda
            row |= {
                "peak_allocated_bytes": of.max_memory_allocated(self._device),
                "peak_reserved_bytes": of.max_memory_reserved(self._device),
                "allocated_bytes": of.memory_allocated(self._device),
                "reserved_bytes": of.memory_reserved(self._device),
            }
        self.rows.append(row)

    def figures(self) -> Figures:
        import torch

        found: Figures = {"torch": str(torch.__version__), "phases": self.rows}
        if self.on and self.rows:
            for name in ("peak_allocated_bytes", "peak_reserved_bytes"):
                found[name] = max(row[name] for row in self.rows if row["step"])
            found["device_name"] = torch.cuda.get_device_name(self._device)
            found["retries"] = torch.cuda.memory_stats(self._device)["num_alloc_retries"]
        return found

    def keep_history(self, path: Path) -> None:
        import torch

        from . import recorded

        if not self.on:
            return
        snapshot = torch.cuda.memory._snapshot()
        entries = snapshot["device_traces"][self._device.index]
        if not entries:
            return
        data = recorded.compact(entries, self._marks, snapshot.get("allocator_settings"))
        path.parent.mkdir(parents=True, exist_ok=True)
        recorded.write(path, data)


# ── measuring ─────────────────────────────────────────────────────────────────────────────────────


def _rank(script: str, name: str, rank: int, cuda: bool, answers: str, store: str) -> None:
    """Run one rank of a case in a process of its own, and write down its figures."""
    log = os.open(f"{answers}/{name}.{rank}.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    row: Figures = {"name": name, "rank": rank, "error": None}
    begin = time.monotonic()
    phases = None
    try:
        import torch

        torch.set_num_threads(2)
        module = importlib.import_module(f"bench.predict.{script}")
        case = next(case for case in module.CASES if case.name == name)
        device = torch.device("cuda", rank) if cuda else torch.device("cpu")
        if cuda:
            torch.cuda.set_device(device)
        phases = Phases(device)
        if case.options.get("record") and rank == 0:
            phases.record()
        module.run(case, Place(rank, case.ranks, device, store), phases)
    except Exception as error:
        row["error"] = f"{type(error).__name__}: {error}"[:600]
        traceback.print_exc()
    row["seconds"] = round(time.monotonic() - begin, 2)
    if phases is not None:
        row |= phases.figures()
        if rank == 0 and not row["error"]:
            try:
                phases.keep_history(Path(answers).parent / "histories" / f"{script}.{name}.xz")
            except Exception as error:
                row["history_error"] = f"{type(error).__name__}: {error}"[:300]
    part = Path(answers, f"{name}.{rank}.part")
    part.write_text(json.dumps(row))
    part.rename(part.with_suffix(".json"))
    sys.stdout.flush()
    os._exit(1 if row["error"] else 0)  # a group whose other rank has failed cannot be left


@dataclass
class _Running:
    case: Case
    processes: list[Any]
    ends: float
    folder: tempfile.TemporaryDirectory[str]

    def over(self) -> bool:
        codes = [process.exitcode for process in self.processes]
        if all(code is not None for code in codes):
            return True
        if any(codes):  # the others wait for it
            self.ends = min(self.ends, time.monotonic() + 5)
        if time.monotonic() < self.ends:
            return False
        for process in self.processes:
            process.kill()
            process.join()
        return True

    def row(self, answers: Path) -> Figures:
        rows = []
        for rank, process in enumerate(self.processes):
            path = answers / f"{self.case.name}.{rank}.json"
            if path.exists():
                rows.append(json.loads(path.read_text()))
            else:
                log = answers / f"{self.case.name}.{rank}.txt"
                tail = log.read_text(errors="replace")[-600:] if log.exists() else ""
                text = f"ended with status {process.exitcode} and without figures: {tail}"
                rows.append({"name": self.case.name, "rank": rank, "error": text})
        self.folder.cleanup()
        error = next((row["error"] for row in rows if row["error"]), None)
        others = [row.get("peak_allocated_bytes") for row in rows[1:]]
        return {**rows[0], "error": error, "others_allocated_bytes": others}


def measure(script: str, cases: Sequence[Case], out: Path, options: argparse.Namespace) -> None:
    """Run each case once, several at a time, until all are done or the time is over."""
    import torch

    cuda = options.device == "cuda"
    cards = torch.cuda.device_count() if cuda else 99
    answers = out / f"{script}-answers"
    answers.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.distributed", f"bench.predict.{script}"])
    waiting = [case for case in cases if case.ranks <= cards]
    running: list[_Running] = []
    with (out / f"{script}.measured.jsonl").open("a") as file:
        while (waiting or running) and time.monotonic() < options.deadline:
            if waiting and len(running) < options.parallel:
                running.append(_started(script, waiting.pop(0), cuda, answers, context))
            time.sleep(0.05)
            for one in list(running):
                if one.over():
                    running.remove(one)
                    row = one.row(answers)
                    file.write(json.dumps(row, separators=(",", ":")) + "\n")
                    file.flush()
                    _tell(row)
    for one in running:
        for process in one.processes:
            process.kill()
    if waiting or running:
        print(f"{len(waiting) + len(running)} cases were not run for want of time", flush=True)


def _started(script: str, case: Case, cuda: bool, answers: Path, context: Any) -> _Running:
    for old in answers.glob(f"{case.name}.[0-9].json"):
        old.unlink()
    folder = tempfile.TemporaryDirectory()
    processes = [
        context.Process(
            target=_rank,
            args=(script, case.name, rank, cuda, str(answers), f"{folder.name}/store"),
        )
        for rank in range(case.ranks)
    ]
    for process in processes:
        process.start()
    ends = time.monotonic() + (CASE_SECONDS if cuda else CPU_SECONDS)
    return _Running(case, processes, ends, folder)


def _tell(row: Figures) -> None:
    figures = [
        f"{row[name] / MIB:9.1f}"
        for name in ("peak_allocated_bytes", "peak_reserved_bytes")
        if name in row
    ]
    text = str(row["error"])[:200] if row["error"] else ""
    print(f"{row['name']:34} {' '.join(figures)} {row.get('seconds')} s {text}", flush=True)


# ── predicting ────────────────────────────────────────────────────────────────────────────────────


def predicted(name: str, request: Request, seconds: float = TRACE_SECONDS) -> Figures:
    """Return the prediction of one request, or why there is none."""
    from gpuscope.predict import answer, child
    from gpuscope.predict.allocator import simulate

    begin = time.monotonic()
    row: Figures = {"name": name, "request": asdict(request), "error": None}
    try:
        asking = answer.TracedRequest(
            request, lambda asked: child.trace(asked, seconds), answer.REFERENCE, seconds=seconds
        )
    except CannotPredict as trouble:
        return row | {"error": " ".join(map(str, trouble.args[:2]))[:600]}
    found = asking.answer.prediction
    for key, figure in (("allocated", found.allocated), ("reserved", found.reserved)):
        row[key] = {"bytes": figure.bytes, "low": figure.low, "high": figure.high}
    trace = asking.traced.trace
    outcomes = [asking.simulated, *map(simulate, map(trace.freed_instead, trace.frees_instead))]
    row["outcomes"] = {
        "allocated": [one.peak_allocated_bytes for one in outcomes],
        "reserved": [one.peak_reserved_bytes for one in outcomes],
    }
    row["phases"] = phase_peaks(trace)
    row["doubts"] = [asdict(doubt) for doubt in asking.answer.doubts]
    row["torch"] = asking.answer.torch
    row["seconds"] = round(time.monotonic() - begin, 2)
    return row


def phase_peaks(trace: Trace) -> list[tuple[str, int]]:
    """Return the name and the peak of allocated memory of each phase of a trace."""
    marks = list(trace.marks)
    found: list[tuple[str, int]] = []
    live = 0
    for at, event in enumerate(trace.events):
        while marks and marks[0].at <= at:
            found.append((marks.pop(0).name, live))
        size = -(-trace.sizes[event if event >= 0 else ~event] // GRANULE) * GRANULE
        live += size if event >= 0 else -size
        if found:
            found[-1] = (found[-1][0], max(found[-1][1], live))
    return found


def predict(cases: Sequence[Case], path: Path, parallel: int, deadline: float) -> None:
    """Predict the cases, several at a time, and write a line for each."""

    def one(case: Case) -> Figures:
        left = deadline - time.monotonic()
        if left < 1:
            return {"name": case.name, "error": "not predicted for want of time"}
        return predicted(case.name, case.request, min(left, TRACE_SECONDS))

    with path.open("a") as file, ThreadPoolExecutor(parallel) as pool:
        for row in pool.map(one, cases):
            file.write(json.dumps(row, separators=(",", ":")) + "\n")
            file.flush()
            _tell_predicted(row)


def _tell_predicted(row: Figures) -> None:
    if row["error"]:
        print(f"{row['name']:34} no prediction: {row['error'][:200]}", flush=True)
        return
    cells = " ".join(f"{row[key]['bytes'] / MIB:9.1f}" for key in ("allocated", "reserved"))
    print(f"{row['name']:34} {cells} {row['seconds']} s, predicted", flush=True)


# ── comparing ─────────────────────────────────────────────────────────────────────────────────────


def score(measured: Path, forecast: Path) -> None:
    """Print the error of each case, and the summary over all that have both figures.

    The second summary compares each case with that of its predicted outcomes which is the nearest.
    """
    known = {row["name"]: row for row in _rows(forecast)}
    errors: dict[str, list[float]] = {"allocated": [], "reserved": []}
    held: dict[str, list[bool]] = {"allocated": [], "reserved": []}
    nearest: dict[str, list[float]] = {"allocated": [], "reserved": []}
    print(f"{'case':34} {'allocated':>10} {'error':>8}  {'reserved':>10} {'error':>8}")
    for row in _rows(measured):
        there = known.get(row["name"])
        if row.get("error") or there is None or there["error"] or "peak_allocated_bytes" not in row:
            why = row.get("error") or (there or {}).get("error") or "no figure"
            print(f"{row['name']:34} {str(why)[:120]}")
            continue
        cells = []
        for key in errors:
            truth, figure = row[f"peak_{key}_bytes"], there[key]
            errors[key].append(100 * (figure["bytes"] / truth - 1))
            held[key].append(figure["low"] <= truth <= figure["high"])
            outcomes = there.get("outcomes", {}).get(key, [figure["bytes"]])
            nearest[key].append(min(100 * abs(size / truth - 1) for size in outcomes))
            mark = " " if held[key][-1] else "!"
            cells.append(f"{truth / MIB:10.1f} {errors[key][-1]:+7.2f}%{mark}")
        print(f"{row['name']:34} {' '.join(cells)}")
    for key, values in errors.items():
        if values:
            print(f"{key}: {_summary(values)}, the error holds {sum(held[key])} of {len(values)}")
    for key, values in nearest.items():
        if values:
            print(
                f"{key}, beside the nearest outcome: {_summary(values)}, most {max(values):.2f} %"
            )


def _summary(values: Sequence[float]) -> str:
    """Return the number of errors in percent, their median and their 95th percentile."""
    sizes = sorted(abs(value) for value in values)
    high = quantile(sizes, 0.95)
    return f"n = {len(sizes)}, median {statistics.median(sizes):.2f} %, p95 {high:.2f} %"


def _rows(path: Path) -> list[Figures]:
    """Return the rows of a file, each name's last."""
    if not path.exists():
        return []
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return list({row["name"]: row for row in rows}.values())


def main(script: str, cases: Sequence[Case], about: str) -> int:
    """Be the command line of a script of cases."""
    parser = argparse.ArgumentParser(prog=f"python -m bench.predict.{script}", description=about)
    parser.add_argument("action", nargs="*", help=f"of {', '.join(ACTIONS)}; all by default")
    parser.add_argument("--out", type=Path, default=Path("out"), help="a folder")
    parser.add_argument("--only", default="*", help="names of cases, as patterns with commas")
    parser.add_argument("--parallel", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=500, help="for measure, and for predict")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    options = parser.parse_args()
    actions = options.action or list(ACTIONS)
    if unknown := set(actions) - set(ACTIONS):
        parser.error(f"there is no action {', '.join(sorted(unknown))}")
    options.out.mkdir(parents=True, exist_ok=True)
    patterns = options.only.split(",")
    chosen = [case for case in cases if any(fnmatch.fnmatch(case.name, one) for one in patterns)]
    forecast = options.out / f"{script}.predicted.jsonl"
    if "predict" in actions:
        predict(chosen, forecast, options.parallel, time.monotonic() + options.seconds)
    missing = 0
    if "measure" in actions:
        missing = _cards_missing(options.device, min(case.ranks for case in chosen))
        if not missing:
            options.deadline = time.monotonic() + options.seconds
            measure(script, chosen, options.out, options)
    if "score" in actions and not missing:
        score(options.out / f"{script}.measured.jsonl", forecast)
    return missing


def _cards_missing(device: str, needed: int) -> int:
    """Return 3, and say what is missing, where there are too few GPUs."""
    import torch

    found = torch.cuda.device_count() if device == "cuda" else needed
    if found >= needed:
        return 0
    print(
        f"Nothing was measured: this needs {needed} GPUs, and torch sees {found}.", file=sys.stderr
    )
    return 3
