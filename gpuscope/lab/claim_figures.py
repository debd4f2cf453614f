"""Compute a claim's figures from the runs of its cells."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import median_high
from typing import Any

from ..text.numbers import number
from .claims import ClaimFigure
from .ledger import Entry
from .measures import BY_KEY, loss_at, loss_curve

Runs = Mapping[str, Entry]
"""The runs of one repeat by the names of their cells."""
ONE_GRAPH = "cannot be compiled as one graph"
"""The message of a run in which ``fullgraph`` raised an error (``advice``)."""


def _final_loss(entry: Entry) -> float | None:
    """Return the mean loss of the last tenth of the steps."""
    losses = [loss for _, loss in loss_curve(entry)]
    last = losses[-max(1, len(losses) // 10) :]
    return sum(last) / len(last) if last else None


def _first_step(entry: Entry) -> float | None:
    return number((entry.document.get("compile") or {}).get("first_step_seconds"))


def _graph_refused(entry: Entry) -> float | None:
    """Return 1 where a graph break was an error, 0 where none was, None for another failure."""
    return (1.0 if ONE_GRAPH in entry.failure else None) if entry.failure else 0.0


OF_CLAIMS: dict[str, Callable[[Entry], float | None]] = {
    "final_loss": _final_loss,
    "first_step_seconds": _first_step,
    "graph_refused": _graph_refused,
}
"""The measures that ``CELL.MEASURE`` may name beyond those of all runs.

``loss_apart``, which compares two runs, is separate.
"""


def rounds(keys: Mapping[str, str], entries: Sequence[Entry], repeats: int) -> Iterator[Runs]:
    """Yield each repeat in which all cells are present; ``keys`` are those of the cells.

    A cell that failed once counts as failed in every repeat, because it is not tried again.
    """
    found = {(entry.cell, entry.repeat): entry for entry in entries}
    failed = {entry.cell: entry for entry in entries if entry.failure}
    for repeat in range(repeats):
        runs = {name: found.get((key, repeat)) or failed.get(key) for name, key in keys.items()}
        if None not in runs.values():
            yield runs  # type: ignore[misc]


def failure(
    figures: Iterable[ClaimFigure], keys: Mapping[str, str], entries: Iterable[Entry]
) -> str:
    """Return why a run failed, "" for none. If a figure asks whether its cell fails, it may."""
    names, asked = {key: name for name, key in keys.items()}, {figure.over for figure in figures}
    for entry in entries:
        if entry.failure and f"{names[entry.cell]}.graph_refused" not in asked:
            return f"{entry.label}: {entry.failure}"
    return ""


def value(figure: ClaimFigure, runs: Runs) -> float | None:
    """Return the figure of one repeat: a single measure, or the quotient of two.

    None if the repeat has none.
    """
    (cell, _, measure), (other, _, below) = figure.over.partition("."), figure.under.partition(".")
    if measure == "loss_apart":
        return _largest_loss_difference(runs[cell], runs[other])
    over = _measure_of_run(runs[cell], measure)
    under = _measure_of_run(runs[other], below) if other else 1.0
    return over / under if over is not None and under else None


def _measure_of_run(entry: Entry, measure: str) -> float | None:
    if entry.failure and measure != "graph_refused":
        return None
    known = BY_KEY.get(measure)
    return known.take(entry.document) if known else OF_CLAIMS[measure](entry)


def _largest_loss_difference(one: Entry, other: Entry) -> float | None:
    """Return the largest relative difference of two runs' losses after equal samples."""
    curve = loss_curve(other)
    pairs = [(loss, loss_at(curve, samples)) for samples, loss in loss_curve(one)]
    apart = [abs(loss - there) / abs(there) for loss, there in pairs if there]
    return max(apart) if apart and not one.failure and not other.failure else None


def notes(figures: Iterable[ClaimFigure], repeats: Sequence[Runs]) -> list[dict[str, Any]]:
    """Return the medians of the measures from which the figures were made."""
    made = []
    for name in dict.fromkeys(name for figure in figures for name in (figure.over, figure.under)):
        cell, _, measure = name.partition(".")
        values = [_measure_of_run(runs[cell], measure) for runs in repeats if measure in BY_KEY]
        if known := [value for value in values if value is not None]:
            title = f"{cell}: {measure.replace('_', ' ')}"
            made.append({"title": title, "value": median_high(known), "unit": BY_KEY[measure].unit})
    return made
