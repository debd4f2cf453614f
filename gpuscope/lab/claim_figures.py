"""What a claim's figures take from the runs of its cells."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from .claims import Claim, Figure, Note
from .ledger import Entry
from .measures import MEASURES, loss_at, loss_curve, number

ONE_GRAPH = "cannot be compiled as one graph"
"""What a run says that ``fullgraph`` has ended (``advice``)."""
Round = Mapping[str, Entry]
"""The runs of one repeat, by the names of their cells."""


def _final_loss(entry: Entry) -> float | None:
    """The mean loss of the last tenth of the steps."""
    losses = [loss for _, loss in loss_curve(entry)]
    last = losses[-max(1, len(losses) // 10) :]
    return sum(last) / len(last) if last else None


def _first_step(entry: Entry) -> float | None:
    return number((entry.document.get("compile") or {}).get("first_step_seconds"))


def _graph_refused(entry: Entry) -> float | None:
    """Whether a graph break was an error; None where the run failed of something else."""
    return (1.0 if ONE_GRAPH in entry.failure else None) if entry.failure else 0.0


OF_A_RUN: dict[str, Callable[[Entry], float | None]] = {
    **{measure.key: lambda entry, take=measure.take: take(entry.document) for measure in MEASURES},  # type: ignore[misc]
    "final_loss": _final_loss,
    "first_step_seconds": _first_step,
    "graph_refused": _graph_refused,
}
"""What ``CELL.MEASURE`` may name, beside ``loss_apart``, which is of two runs."""
UNITS = {measure.key: measure.unit for measure in MEASURES}


def problem(figure: Figure, claim: Claim) -> str:
    """What is wrong with a figure's measures, "" where nothing is."""
    for name in filter(None, (figure.over, figure.under)):
        cell, _, measure = name.partition(".")
        if cell not in claim.cells:
            return f"there is no cell {cell!r}"
        if measure not in OF_A_RUN and not (measure == "loss_apart" and figure.under):
            return f"there is no measure {measure!r}. There are: loss_apart, {', '.join(OF_A_RUN)}"
    return "" if figure.over else "it takes nothing from the cells"


def value_of(figure: Figure, found: Round) -> float | None:
    """The figure of one repeat: the quotient of its two measures, or the one that it names. None where it has none."""
    (cell, _, measure), (other, _, below) = figure.over.partition("."), figure.under.partition(".")
    if measure == "loss_apart":
        return _apart(found[cell], found[other])
    over = _measured(found[cell], measure)
    under = _measured(found[other], below) if other else 1.0
    return over / under if over is not None and under else None


def _measured(entry: Entry, measure: str) -> float | None:
    return None if entry.failure and measure != "graph_refused" else OF_A_RUN[measure](entry)


def _apart(one: Entry, other: Entry) -> float | None:
    """The largest difference of two runs' losses after equal samples, as a share of the loss."""
    beside = loss_curve(other)
    pairs = [(loss, loss_at(beside, samples)) for samples, loss in loss_curve(one)]
    apart = [abs(loss - there) / abs(there) for loss, there in pairs if there]
    return max(apart) if apart and not one.failure and not other.failure else None


def rounds(keys: Mapping[str, str], entries: Sequence[Entry], repeats: int) -> Iterator[Round]:
    """The repeats of which every cell is there. A cell that failed once failed in each: it is not tried again."""
    found = {(entry.cell, entry.repeat): entry for entry in entries}
    failed = {entry.cell: entry for entry in entries if entry.failure}
    for repeat in range(repeats):
        runs = {name: found.get((key, repeat)) or failed.get(key) for name, key in keys.items()}
        if all(runs.values()):
            yield {name: entry for name, entry in runs.items() if entry is not None}


def cells_to_fail(claim: Claim) -> set[str]:
    """The cells of which a figure asks whether they are refused."""
    return {figure.over.partition(".")[0] for figure in claim.figures if figure.over.endswith(".graph_refused")}


def notes(figures: Sequence[Figure], found: Sequence[Round]) -> list[Note]:
    """The measures that the figures were made from, each once: its median."""
    made: dict[str, Note] = {}
    for name in (name for figure in figures for name in (figure.over, figure.under)):
        cell, _, measure = name.partition(".")
        if measure in UNITS:
            known = sorted(value for runs in found if (value := _measured(runs[cell], measure)) is not None)
            if known:
                made[name] = Note(f"{cell}: {measure.replace('_', ' ')}", known[len(known) // 2], UNITS[measure])
    return list(made.values())
