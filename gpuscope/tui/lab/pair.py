"""Chooses which two runs are compared.

They are those that were marked, else the newest two that ended as they should and trained the same
model on the same device with another setting. The first run of this session goes before older ones.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ...lab.compare import kind_of, model_of
from ...text.numbers import number
from ..runs.runs import run_name, sides

if TYPE_CHECKING:
    from ...lab.compare import Comparison
    from ...lab.config import LabConfig
    from ...lab.ledger import Entry
    from ..charts.line import Series
    from ..runs.run import RunView
    from ..runs.runs import LabRuns

    Kind = tuple[str, str, LabConfig] | None
    """Model, device and other settings of a run; None where they are not known."""
    Drawn = tuple[str, str, Entry]
    """A run in a chart: the letter of its side, its colour, and the run."""

log = logging.getLogger("gpuscope.lab")


class ComparedRuns:
    """The two runs that are compared.

    ``a`` and ``b`` are the newest entry of each side, None where there is none: then
    :attr:`lacking` says why.
    """

    def __init__(self) -> None:
        self.a: Entry | None = None
        self.b: Entry | None = None
        self.problem = ""
        """Why these two could not be compared."""
        self.lacking = _lacking(None, (), {})
        """What a comparison lacks, in a sentence; "" where there are two runs."""
        self._marked: dict[str, int] = {}
        self._first: int | None = None
        self._series = ""
        self._entries: Sequence[Entry] = ()
        self._chosen: tuple[int | None, str] = (None, "")
        self._made: tuple[object, Comparison | None] = (None, None)

    @property
    def complete(self) -> bool:
        """Whether there are two."""
        return self.a is not None and self.b is not None

    def mark(self, side: str, entry: int) -> None:
        """Let side ``a`` or ``b`` be this run from now on.

        Marked again, the side is chosen by itself again.
        """
        if self._marked.get(side) == entry:
            del self._marked[side]
        else:
            self._marked[side] = entry
        self._choose()

    def follow(
        self, entries: Sequence[Entry], newest: Entry | None, runs: LabRuns | None = None
    ) -> None:
        """Take in ``newest``, the last run of this session that was written down.

        A series of repeats is marked as it begins.
        """
        if newest is not None and self._first is None:
            self._first = newest.id
        series = runs.repeats if runs is not None else None
        if series is not None and series.group != self._series and all(series.entries.values()):
            self._series = series.group
            self._marked = {"a": series.entries["A"][0].id, "b": series.entries["B"][0].id}
        if entries is not self._entries or self._chosen != (self._first, self._series):
            self._entries, self._chosen = entries, (self._first, self._series)
            self._choose()

    def _choose(self) -> None:
        found = {entry.id: entry for entry in self._entries}
        self.a, self.b = found.get(self._marked.get("a", 0)), found.get(self._marked.get("b", 0))
        whole = [entry for entry in self._entries if not entry.cut_short]
        whole.sort(key=lambda entry: entry.id != self._first)  # the first of this session leads
        self.lacking = ""
        if self.a is not None and self.b is not None:
            return
        kinds = {entry.id: kind_of(entry) for entry in self._entries}
        marked = self.a or self.b
        for one in [marked] if marked else (e for e in self._entries if not e.cut_short):
            other = self._partner(one, whole, kinds)
            if other is not None:
                self.a, self.b = (one, other) if one is self.a else (other, one)
                return
        self.lacking = _lacking(marked, whole, kinds)
        if marked is None:  # its loss is drawn alone
            self.b = next((e for e in self._entries if not e.cut_short), None)

    def _partner(
        self, one: Entry, whole: Sequence[Entry], kinds: Mapping[int, Kind]
    ) -> Entry | None:
        """Return the first run that differs from this one in a setting and in nothing else.

        With a run whose settings are not known, such as a recording, any other run is compared:
        who has marked it wants to see it.
        """
        kind = kinds[one.id]
        for other in whole:
            of_other = kinds[other.id]
            if kind is None:
                if one.id in self._marked.values() and not self._same(other, one):
                    return other
            elif of_other is not None and of_other[:2] == kind[:2] and of_other[2] != kind[2]:
                if self._same(other, one):  # a repeat, which differs in its seed
                    continue
                return other
        return None

    def _same(self, one: Entry, other: Entry) -> bool:
        """Return whether both are the same side: the same run, or repeats of one setting."""
        return one.id == other.id or one in sides(self._entries, other)

    def title(self) -> str:
        """Return the title of the comparison, as ``A #12 → B #14 ×5``."""
        if self.a is None or self.b is None:
            return "A/B"
        found = self.comparison()
        paired = found.paired if found is not None else 0
        sides = [f"{side} {self.name(one, paired)}" for side, one in (("A", self.a), ("B", self.b))]
        if found is not None and found.apart:
            sides.append(f"not comparable: {found.apart}")
        return " · ".join(sides)

    def name(self, entry: Entry, used: int = 0) -> str:
        """Return a run by its number, its repeats counted.

        ``used`` says of how many of them the figures are, where not of all: the list of runs has
        the means of all of them.
        """
        alike = sides(self._entries, entry)
        newest = alike[-1] if len(alike) > 1 else entry
        if 0 < used < len(alike):
            return f"{run_name(newest.id)}, {used} of {len(alike)} repeats"
        return run_name(newest.id) + (f" ×{len(alike)}" if len(alike) > 1 else "")

    def comparison(self) -> Comparison | None:
        """Return A against B, None where there are no two, or with :attr:`problem`.

        It is made again only when something is new.
        """
        if self.a is None or self.b is None:
            return None
        left, right = sides(self._entries, self.a), sides(self._entries, self.b)
        key = (tuple(e.id for e in left), tuple(e.id for e in right))
        if self._made[0] != key:
            from ...lab.compare import compare

            self.problem = ""
            try:
                self._made = (key, compare(left, right))
            except Exception as error:  # a document may come from anywhere
                log.exception("two runs cannot be compared")
                self.problem, self._made = f"these two cannot be compared: {error!r}", (key, None)
        return self._made[1]

    def configs(self, runs: LabRuns) -> tuple[LabConfig | None, LabConfig | None]:
        """Return the settings to measure in turns.

        They are A's, and B's where it is marked, else the switches as they are.
        """
        first = self.a or self.b  # the only run there is stands for A
        a = first.config if first is not None else None
        if self.complete and ("b" in self._marked or runs.config == a):
            return a, self.b.config if self.b is not None else None
        return a, runs.config


def _lacking(marked: Entry | None, whole: Sequence[Entry], kinds: Mapping[int, Kind]) -> str:
    """Return what there is too little of to compare two runs, in a sentence."""
    if marked is not None:
        return (
            f"Run {run_name(marked.id)} is marked, but no finished run of the same model on the "
            "same device differs from it in a setting."
        )
    told = "Two finished runs that differ in a setting are compared here"
    if len(whole) < 2:
        return f"{told}; so far there is {'one' if whole else 'none'}."
    known = {kind for entry in whole if (kind := kinds[entry.id]) is not None}
    if len(known) == 1:
        return f"{told}; the {len(whole)} finished runs so far all have the same settings."
    return f"{told}, of one model on one device; no two of the {len(whole)} so far are such runs."


def drawn(pair: ComparedRuns, current: RunView | None) -> list[Drawn]:
    """Return A and B, those of them that may share an axis.

    Figures of two models say nothing of each other, so what trains another model than the run in
    progress, or without one than A, is left out.
    """
    chosen = [
        (side, token, entry)
        for side, token, entry in (("A", "series1", pair.a), ("B", "series4", pair.b))
        if entry
    ]
    models = [model_of(entry) for _, _, entry in chosen]
    started = current.started if current is not None else None
    wanted = started.preset if started is not None else next(iter(models), None)
    return [
        one
        for one, model in zip(chosen, models, strict=True)
        if wanted is None or model is None or model == wanted
    ]


def not_drawn(pair: ComparedRuns, current: RunView | None) -> str:
    """Return which of A and B are left out and why, for a title; "" where none is."""
    there = {side for side, _, _ in drawn(pair, current)}
    sides = [s for s, entry in (("A", pair.a), ("B", pair.b)) if entry and s not in there]
    if not sides:
        return ""
    if not pair.complete:  # its row has no letter
        return " · the run before trained another model"
    verb = "trains" if len(sides) == 1 else "train"
    return f" · {' and '.join(sides)} {verb} another model"


def curves(pair: ComparedRuns, current: RunView | None) -> tuple[list[Series], str]:
    """Return the losses of A, B and the run in progress, and what they are drawn over.

    That is samples, so that equal amounts of data stand below each other, or steps where a run
    (a recording) does not know its samples.
    """
    from ...lab.measures import loss_by_step, loss_curve
    from ..charts.line import Series

    out, chosen = [], drawn(pair, current)
    over = (
        "samples"
        if all(loss_curve(entry) or not loss_by_step(entry) for _, _, entry in chosen)
        else "steps"
    )
    read = loss_curve if over == "samples" else loss_by_step
    if current is not None and len(current.samples) > 1:
        each = current.started.samples_per_step if current.started and over == "steps" else 1
        out.append(
            Series("now", "series3", [x / each for x in current.samples], list(current.losses))
        )
    equal = len(chosen) == 2 and read(chosen[0][2]) == read(chosen[1][2])
    for side, token, entry in chosen[:1] if equal else chosen:
        points = read(entry)
        # the rows have letters only where there are two to compare
        name = f"{side} {run_name(entry.id)}" if pair.complete else run_name(entry.id)
        if points:
            out.append(
                Series(
                    "A = B" if equal else name,
                    token,
                    [x for x, _ in points],
                    [y for _, y in points],
                )
            )
    return out, over


def curves_over_time(pair: ComparedRuns) -> list[Series]:
    """Return the losses of A and B over the seconds that their samples took at their mean speed.

    So the faster training is ahead, which equal amounts of data do not show.
    """
    from ...lab.measures import loss_curve
    from ..charts.line import Series

    out = []
    for side, token, entry in drawn(pair, None):
        speed = number(entry.document.get("samples_per_second"))
        if not speed or not (points := loss_curve(entry)):
            continue
        name = f"{side} {run_name(entry.id)}" if pair.complete else run_name(entry.id)
        out.append(Series(name, token, [x / speed for x, _ in points], [y for _, y in points]))
    return out
