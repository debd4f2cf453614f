"""Make chapters of the ledger of runs: from ``gpuscope lab runs`` and ``lab sweep``."""

from __future__ import annotations

from collections.abc import Sequence

from ..lab.intervals import ratio_text
from ..lab.ledger import Entry, entry_of
from ..lab.measures import MEASURES, loss_by_step, loss_curve
from ..lab.tables import figure, runs_rows
from ..text.numbers import number
from ..text.units import DASH, count_text
from . import documents as read
from .content import (
    Chapter,
    Curve,
    Figure,
    Figures,
    Intervals,
    Part,
    Ratio,
    Section,
    Sentences,
    Strip,
    Table,
    Timeline,
    Tone,
)
from .documents import Document

MAX_RUNS = 400
MAX_CURVES = 12
BUCKETS = 200
BETTER = {one.key: one.better for one in MEASURES} | {"loss": "lower", "efficiency": "higher"}
SHOWN = ("samples_per_second", "step_seconds", "peak_allocated_bytes", "loss")
"""Ratios of a sweep that are drawn; the table of a comparison has all."""


def entry(document: Document) -> Entry:
    """Return a run of ``gpuscope lab runs --json``, which has its document or a part of it."""
    whole = document.get("document")
    return entry_of(
        {**document, **(whole if isinstance(whole, dict) else {})},
        id=int(number(document.get("id")) or 0),
        at=number(document.get("at")) or 0.0,
        source=read.text(document.get("source")),
        label=read.text(document.get("label")),
        group=read.text(document.get("group")),
        environment=read.mapping(document.get("environment")),
    )


def chapter(document: Document, name: str) -> Chapter:
    return of_entries([entry(one) for one in read.rows(document.get("runs"))], name)


def single(document: Document, name: str) -> Chapter:
    """Return the chapter of the document of one run, of ``gpuscope lab --json``."""
    one = entry(document)
    figures = [
        Figure(measure.title, figure(measure.key, value))
        for measure in MEASURES
        if (value := measure.take(one.document)) is not None
    ]
    unknown = [
        (read.text(row.get("path")), read.text(row.get("reason")))
        for row in read.rows(document.get("unknown"))
    ]
    parts: list[Part] = [Figures(figures, source="the run itself")]
    parts += [Sentences([one.failure], "bad")] if one.failure else []
    losses = _losses([one])
    parts += [losses] if losses is not None else []
    if unknown:
        parts.append(Table("What is unknown", ("Figure", "Why"), unknown, folded=True))
    device = one.device_name or one.device or DASH
    facts = [("Device", device), ("torch", one.torch_version or DASH)]
    facts += [("Steps", read.count(document.get("steps")))]
    facts += [("Command", one.config.command())] if one.config is not None else []
    return Chapter(name, "Run of the Lab", [Section("The run", parts)], facts)


def of_entries(entries: Sequence[Entry], name: str) -> Chapter:
    """Return the chapter of runs of the ledger, the newest first."""
    shown = entries[:MAX_RUNS]
    rows = runs_rows(shown)
    failed: dict[int, Tone] = {
        number: "bad" for number, one in enumerate(shown) if one.failure or one.problem
    }
    reasons = [
        (one.name, one.failure or one.problem) for one in shown if one.failure or one.problem
    ]
    notes = [f"{len(entries) - MAX_RUNS} more are left out."] * (len(entries) > MAX_RUNS)
    parts: list[Part] = [
        Table("", rows[0], rows[1:], (4, 5, 6, 7, 8), notes, failed, source="the ledger of runs")
    ]
    if reasons:
        parts.append(Table("What failed", ("Run", "Why"), reasons, folded=len(reasons) > 8))
    count = f"{count_text(len(entries), 'run')}, {len(reasons)} failed."
    sections = [Section("Runs", parts, count)]
    losses = _losses(shown)
    if losses is not None:
        sections.append(Section("Loss", [losses]))
    return Chapter(name, "Ledger of runs", sections)


def _losses(entries: Sequence[Entry]) -> Timeline | None:
    """Return the loss of the newest runs over their own length."""
    curves = [(one, points) for one in entries if (points := loss_by_step(one) or loss_curve(one))]
    curves = curves[:MAX_CURVES]
    if not curves:
        return None
    known = [loss for _, points in curves for _, loss in points]
    low, high = min(known), max(known)
    high = high if high > low else low + 1.0
    most = max(points[-1][0] for _, points in curves)
    strips = []
    for one, points in curves:
        values: list[float | None] = [None] * BUCKETS
        for place, (at, loss) in enumerate(points):
            first = _bucket(at, most)
            after = points[place + 1][0] if place + 1 < len(points) else at
            for place in range(first, max(_bucket(after, most), first + 1)):
                values[place] = loss
        name = f"{one.id or ''} {one.name}".strip()
        ends = figure("loss", low), figure("loss", high)
        curve = Curve("series4", values, values)
        strips.append(Strip(name, [curve], low, high, ends, figure("loss", points[-1][1])))
    note = f"From 0 to {most:,.0f} steps or samples; at the right the last value."
    return Timeline("Loss over steps", strips, 0.0, None, (), [note], source="the runs themselves")


def _bucket(at: float, most: float) -> int:
    return min(int(at / most * BUCKETS), BUCKETS - 1) if most > 0 else 0


# ── a sweep, a comparison ──


def sweep(document: Document, name: str) -> Chapter:
    """Return the chapter of the table of a sweep, of ``gpuscope lab sweep --json``."""
    cells = read.rows(document.get("cells"))
    group = read.text(document.get("group"))
    source = f"runs of {group} in the ledger" if group else "the ledger of runs"
    where = read.text(document.get("where"))
    rows: list[tuple[str, ...]] = []
    tones: dict[int, Tone] = {}
    for place, cell in enumerate(cells):
        failure = read.text(cell.get("failure"))
        keys = ("samples_per_second", "step_seconds", "warmup_seconds", "peak_allocated_bytes")
        figures = [figure(key, number(cell.get(key))) for key in keys]
        runs = cell.get("runs")
        count = str(len(runs)) if isinstance(runs, list) else DASH
        rows.append((read.count(cell.get("number")), read.text(cell.get("label")), count, *figures))
        if failure:
            tones[place] = "bad"
    head = ("#", "Settings", "Runs", "Samples/s", "Step", "Warm-up", "Peak allocated")
    parts: list[Part] = [
        Table("", head, rows, (2, 3, 4, 5, 6), read.texts(document.get("remarks")), tones,
              source=source, when=where)
    ]  # fmt: skip
    for key in SHOWN:
        ratios = [
            (read.text(cell.get("label")), row)
            for cell in cells
            for row in read.rows(cell.get("ratios"))
            if row.get("key") == key
        ]
        if ratios:
            title = f"{read.text(ratios[0][1].get('title'), key)}, against the first row"
            drawn = [_ratio(label, row, key) for label, row in ratios]
            parts.append(Intervals(title, drawn, source=source, when=where))
    return Chapter(name, "Sweep of the Lab", [Section("Settings side by side", parts)])


def comparison(document: Document, name: str) -> Chapter:
    """Return the chapter of ``gpuscope lab runs compare --json``."""
    sections = []
    for one in read.rows(document.get("comparisons")):
        names = [read.text(read.mapping(one.get(side)).get("name"), DASH) for side in ("a", "b")]
        rows = read.rows(one.get("rows"))
        parts: list[Part] = [
            Intervals(
                "B against A",
                [
                    _ratio(read.text(row.get("title")), row, read.text(row.get("key")))
                    for row in rows
                ],
                source="the ledger of runs",
            )
        ]
        figures = [
            (
                read.text(row.get("title")),
                *(figure(read.text(row.get("key")), number(row.get(side))) for side in "ab"),
                read.text(row.get("basis")) or f"unknown: {read.text(row.get('reason'))}",
            )
            for row in rows
        ]
        head = ("Measure", "A", "B", "From")
        parts.append(Table("", head, figures, (1, 2), read.texts(one.get("notes"))))
        differing = [
            (read.text(row.get("name")), read.text(row.get("a")), read.text(row.get("b")))
            for row in read.rows(one.get("differing"))
        ]
        if differing:
            parts.append(Table("What differs", ("Setting", "A", "B"), differing))
        else:
            parts.append(Sentences(["No setting differs, as far as they are known."], "muted"))
        sections.append(Section(f"A: {names[0]}, B: {names[1]}", parts))
    return Chapter(name, "Comparison of runs", sections)


def _ratio(label: str, row: Document, key: str) -> Ratio:
    value, low, high = (number(row.get(name)) for name in ("ratio", "low", "high"))
    if value is None:
        return Ratio(label, None, None, None, DASH, f"unknown: {read.text(row.get('reason'))}")
    tone: Tone = "muted"
    if low is not None and high is not None and (low > 1 or high < 1):
        better = BETTER.get(key, "")
        tone = "muted" if not better else "ok" if (value > 1) == (better == "higher") else "bad"
    text = ratio_text(value, low, high)
    return Ratio(label, value, low, high, text, read.text(row.get("basis")), tone)
