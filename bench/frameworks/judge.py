"""Compare a probe's samples with the notes of a training script.

There is one cell of the matrix for each thing.
"""

from __future__ import annotations

import bisect
import itertools
import math
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from gpuscope.wire.loss_text import read_not_finite

GOOD, WRONG, UNKNOWN, NOT_ASKED = "✓", "✗", "–", "·"
SETTLED = 0.4
"""Samples of the first part of a training are not judged: what is looked for is not found yet."""
BYTES = ("parameter_bytes", "gradient_bytes", "optimizer_state_bytes")
SPLIT = ("input_seconds", "compute_seconds", "optimizer_seconds")


@dataclass
class Sample:
    """What the probe said at ``m``, monotonic nanoseconds.

    None with a reason where it did not know.
    """

    m: int
    values: dict[str, Any]
    reasons: dict[str, str]
    allocator: dict[str, Any]


class Notes:
    """What the script said of itself, by time."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows
        self._by: dict[str, tuple[list[int], list[Any]]] = {}
        for row in rows:
            for name, value in row.items():
                times, values = self._by.setdefault(name, ([], []))
                times.append(row["m"])
                values.append(value)

    def last(self, name: str) -> Any:
        return self._by[name][1][-1] if name in self._by else None

    def at(self, name: str, m: int) -> Any:
        """What held at ``m``; None before the first note."""
        times, values = self._by.get(name, ([], []))
        index = bisect.bisect_right(times, m)
        return values[index - 1] if index else None

    def around(self, name: str, m: int, before: int = 2, after: int = 1) -> list[Any]:
        """Return the notes before ``m`` and after it.

        A sample is not taken at the same instant as a note.
        """
        times, values = self._by.get(name, ([], []))
        index = bisect.bisect_right(times, m)
        return values[max(0, index - before) : index + after]

    @property
    def end(self) -> int:
        return max((row["m"] for row in self.rows if "step" in row or "done" in row), default=0)


@dataclass
class Verdict:
    """The cells of one training, and in words what was not right."""

    cells: dict[str, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)

    def say(self, column: str, cell: str, remark: str = "") -> None:
        self.cells[column] = cell
        if remark:
            self.remarks.append(f"{column}: {remark}")


COLUMNS = ("step", "s/step", "split", "loss", "nan", "progress", "ETA", "phase", "bytes")


def judge(notes: Notes, samples: list[Sample], attached: bool = False) -> Verdict:
    verdict = Verdict()
    begin = next((row["m"] for row in notes.rows if "step" in row or "done" in row), 0)
    from_there = begin + SETTLED * (notes.end - begin)
    judged = [one for one in samples if from_there <= one.m <= notes.end]
    if not judged:
        for column in COLUMNS:
            verdict.say(column, UNKNOWN)
        verdict.remarks = ["no probe was seen while it trained"]
        return verdict
    parts: dict[str, Callable[[], Answer]] = {
        "step": lambda: _step(notes, judged, attached),
        "s/step": lambda: _pace(notes, judged),
        "split": lambda: _split(notes, judged),
        "loss": lambda: _loss(notes, judged),
        "nan": lambda: _nan(notes, judged),
        "progress": lambda: _progress(notes, judged),
        "ETA": lambda: _eta(notes, judged),
        "phase": lambda: _phase(notes, judged),
        "bytes": lambda: _bytes(notes, judged),
    }
    for column, part in parts.items():
        verdict.say(column, *part())
    return verdict


Answer = tuple[str, str]


def _missing(judged: list[Sample], *columns: str) -> Answer | None:
    """The reason where most samples do not know one of ``columns``."""
    for column in columns:
        without = [one for one in judged if one.values.get(column) is None]
        if len(without) > len(judged) / 2:
            return UNKNOWN, without[-1].reasons.get(column, "no reason given")
    return None


def _most(
    judged: Iterable[Sample], good: Callable[[Sample], bool | None], share: float = 0.75
) -> tuple[bool, str]:
    told = [found for one in judged if (found := good(one)) is not None]
    return sum(told) >= share * len(told), f"{sum(told)} of {len(told)} samples"


def _step(notes: Notes, judged: list[Sample], attached: bool) -> Answer:
    missing = _missing(judged, "step")
    if missing:
        return missing
    apart = [
        one.values["step"] - (notes.at("step", one.m) or 0)
        for one in judged
        if one.values["step"] is not None
    ]
    shift = statistics.median(apart) if attached else 0
    worst = max(abs(value - shift) for value in apart)
    return (
        (GOOD, "")
        if worst <= 2
        else (WRONG, f"up to {worst:.0f} steps beside the script's own count")
    )


def _pace(notes: Notes, judged: list[Sample]) -> Answer:
    missing = _missing(judged, "step_seconds")
    if missing:
        return missing
    counted = [row for row in notes.rows if "step" in row]
    times = [b["m"] for a, b in itertools.pairwise(counted) if a["step"] != b["step"]]
    true = statistics.median(b - a for a, b in itertools.pairwise(times[-65:])) / 1e9
    found = judged[-1].values["step_seconds"]
    good = found is not None and abs(found - true) <= 0.15 * true
    return (
        (GOOD, "") if good else (WRONG, f"{found} s, where the script's own median is {true:.4f}")
    )


def _split(notes: Notes, judged: list[Sample]) -> Answer:
    missing = _missing(judged, *SPLIT[1:])
    if missing:
        return missing
    last = judged[-1].values
    spent = {name: last[name] or 0.0 for name in SPLIT}
    step = last["step_seconds"] or sum(spent.values())
    shown = ", ".join(f"{name[:-8]} {value * 1e3:.1f}" for name, value in spent.items())
    expect = dict(notes.last("expect") or {})
    if notes.last("no_sleeps"):
        expect = {}
    wrong = []
    if expect and spent["compute_seconds"] < 0.8 * expect["compute"]:
        wrong.append(f"forward alone takes {expect['compute'] * 1e3:.0f} ms")
    asked = expect and not notes.last("no_input") and last["input_seconds"] is not None
    if asked and not 0.6 * expect["input"] <= spent["input_seconds"] <= max(
        10 * expect["input"], 0.5 * step
    ):
        wrong.append(f"a batch takes {expect['input'] * 1e3:.0f} ms to load")
    if spent["optimizer_seconds"] > 0.4 * step:
        wrong.append("the optimizer is tiny")
    waits = notes.last("waits")
    if waits is not None and not (last.get("communication_seconds") or 0.0) >= 0.5 * waits:
        wrong.append(
            f"the other rank is waited for {waits * 1e3:.0f} ms: communication "
            f"{(last.get('communication_seconds') or 0.0) * 1e3:.1f}"
        )
    return (WRONG, f"{shown} ms of {step * 1e3:.1f}; {'; '.join(wrong)}") if wrong else (GOOD, "")


def _loss(notes: Notes, judged: list[Sample]) -> Answer:
    if notes.last("no_loss"):
        shown = [one.values["loss"] for one in judged if one.values.get("loss") is not None]
        if shown:
            return WRONG, f"{shown[-1]} is shown, and there are {notes.last('no_loss')}"
        return GOOD, f"unknown, for there are {notes.last('no_loss')}"
    clean = [
        one for one in judged if all(math.isfinite(v) for v in notes.around("loss", one.m, 24, 2))
    ]
    if not clean:
        return UNKNOWN, "its loss was never a number"
    missing = _missing(clean, "loss")
    if missing:
        return missing

    def like(one: Sample) -> bool | None:
        loss = one.values["loss"]
        if loss is None:
            return None
        near = notes.around("loss", one.m, 24, 2)
        return any(abs(loss - true) <= 0.006 * max(abs(true), 1e-3) for true in near)

    good, told = _most(clean, like)
    return (GOOD, "") if good else (WRONG, f"as the script's in {told}")


def _nan(notes: Notes, judged: list[Sample]) -> Answer:
    if notes.last("unpoisoned") or notes.last("no_loss"):
        return NOT_ASKED, ""
    lost = [
        row["m"]
        for row in notes.rows
        if isinstance(row.get("loss"), float) and not math.isfinite(row["loss"])
    ]
    after = [one for one in judged if lost and one.m > lost[0] + 1e9] or judged[-2:]
    if any(read_not_finite(one.reasons.get("loss", "")) for one in after):
        return GOOD, ""
    return WRONG if after[-1].values.get("loss") is not None else UNKNOWN, after[-1].reasons.get(
        "loss", "a number"
    )


def _progress(notes: Notes, judged: list[Sample]) -> Answer:
    missing = _missing(judged, "progress_done", "progress_total")
    if missing:
        return missing
    total = notes.last("total")
    shown = {(one.values["progress_total"], one.values.get("progress_of")) for one in judged}
    if all(of == "epoch" for _, of in shown):
        return "epoch", "its bar is the epoch's, and is marked so"

    def like(one: Sample) -> bool:
        near = [value for value in notes.around("done", one.m, 3, 3) if value is not None]
        done = one.values["progress_done"]
        return (
            one.values["progress_total"] == total
            and done is not None
            and any(abs(done - n) <= max(1, 0.02 * total) for n in near)
        )

    good, told = _most(judged, like)
    last = judged[-1].values
    return (
        (GOOD, "")
        if good
        else (
            WRONG,
            f"as the script's in {told}; {last['progress_done']} of {last['progress_total']}, "
            f"true {total}",
        )
    )


def _eta(notes: Notes, judged: list[Sample]) -> Answer:
    missing = _missing(judged, "eta_seconds")
    if missing:
        return missing
    if all(one.values.get("progress_of") == "epoch" for one in judged):
        return "epoch", ""
    middle = [one for one in judged if one.values["eta_seconds"] is not None][
        : max(1, len(judged) // 2)
    ]
    errors = [one.values["eta_seconds"] - (notes.end - one.m) / 1e9 for one in middle]
    left = [(notes.end - one.m) / 1e9 for one in middle]
    error, rest = statistics.median(errors), statistics.median(left)
    if abs(error) <= max(0.5 * rest, 5.0):
        return GOOD, ""
    return WRONG, f"{error:+.0f} s, where {rest:.0f} s were left"


def _phase(notes: Notes, judged: list[Sample]) -> Answer:
    missing = _missing(judged, "phase")
    if missing:
        return missing
    if notes.last("phase_unknown"):
        return NOT_ASKED, ""
    margin = int(0.4e9)

    def like(one: Sample) -> bool | None:
        near = {notes.at("phase", one.m + shift) for shift in (-margin, 0, margin)}
        return None if len(near) > 1 else one.values["phase"] in near

    good, told = _most(judged, like)
    return (
        (GOOD, "")
        if good
        else (WRONG, f"as the script's in {told}; last: {judged[-1].values['phase']}")
    )


def _bytes(notes: Notes, judged: list[Sample]) -> Answer:
    true = notes.last("bytes")
    last = judged[-1].allocator
    if true is None:
        return UNKNOWN, "the script did not count"
    if all(last.get(name) is None for name in BYTES):
        return UNKNOWN, last.get("why", "no row of an allocator")
    # Gradients may be freed right after the step; what was counted is the state at some step's end.
    wrong = [
        f"{name[:-6].replace('_', ' ')} {last.get(name)}, true {true[name]}"
        for name in BYTES
        if last.get(name) != true[name] and not (name == "gradient_bytes" and last.get(name) == 0)
    ]
    others = true["other_model_bytes"]
    if others and last.get("other_model_bytes") != others:
        wrong.append(f"other models {last.get('other_model_bytes')}, true {others}")
    return (WRONG, "; ".join(wrong)) if wrong else (GOOD, "")
