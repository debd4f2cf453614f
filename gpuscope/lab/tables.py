"""Show a sweep as a table: one row for each configuration, every ratio against the first.

It is made as text, Markdown, CSV and JSON. Only the standard library is needed.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..text.clock import DATE_AND_MINUTE, clock_text
from ..text.numbers import number
from ..text.units import brief_duration_text, bytes_text, pace_text
from .compare import Comparison, compare, mean
from .comparison_row import ComparisonRow
from .intervals import ratio_text
from .ledger import Entry
from .matrix import varying
from .measures import BY_KEY, MEASURES
from .sweep import Objection, SweepPlan, cell_key

FORMATS = ("md", "csv", "json")
NOT_IN_TURNS = "no ratios: the runs of a search are not all made in turns"
MAX_LABELS = 6
"""Configurations that a remark names one by one."""


@dataclass(frozen=True, slots=True)
class CellResult:
    """One configuration with its runs.

    ``comparison`` compares it with the first configuration; None for the first, or without runs.
    """

    number: int  # from 1
    label: str
    runs: list[Entry]
    wanted: int
    comparison: Comparison | None

    @property
    def good(self) -> list[Entry]:
        return [entry for entry in self.runs if not entry.failure]

    @property
    def failure(self) -> str:
        """The reason why a run failed, "" where none did."""
        return next((entry.failure for entry in self.runs if entry.failure), "")

    def mean(self, key: str) -> float | None:
        """Return the mean of a measure over its successful runs, as the comparison computes it."""
        values = [BY_KEY[key].take(entry.document) for entry in self.good]
        return mean([value for value in values if value is not None])

    def ratio(self, key: str) -> ComparisonRow | None:
        return self.comparison.row(key) if self.comparison else None


def results(plan: SweepPlan, entries: Sequence[Entry]) -> list[CellResult]:
    """Return the plan's cells in their order, with their runs from the ledger."""
    by_cell: dict[str, list[Entry]] = {}
    for entry in entries:
        by_cell.setdefault(entry.cell, []).append(entry)
    keys = [key for key, _ in plan.searched] or map(cell_key, plan.cells)
    runs = [sorted(by_cell.get(key, []), key=lambda entry: entry.repeat) for key in keys]
    base = [entry for entry in runs[0] if not entry.failure] if runs else []
    rows = []
    for index, (label, mine) in enumerate(zip(plan.labels, runs, strict=True)):
        good = [entry for entry in mine if not entry.failure]
        turns = index and base and good and not plan.searched
        comparison = compare(base, good) if turns else None
        wanted = len(mine) if plan.searched else plan.repeats
        rows.append(CellResult(index + 1, label, mine, wanted, comparison))
    return rows


# ── what a cell of the table says ─────────────────────────────────────────────────────────────────


def figure(key: str, value: float | None) -> str:
    """Return a measure's value with its unit, "–" where it is unknown."""
    if value is None:
        return "–"
    if key.endswith("_bytes"):
        return bytes_text(value)
    if key.endswith("_seconds"):
        return brief_duration_text(value)
    if key.endswith("_percent"):
        return f"{value:.1f} %"
    if key in ("loss", "validation_loss", "efficiency"):
        return f"{value:.4f}"
    return pace_text(value)


def _times(row: ComparisonRow | None) -> str:
    return "–" if row is None else ratio_text(row.ratio, row.low, row.high)


_FIGURES = (
    ("samples/s", "samples_per_second"),
    ("step", "step_seconds"),
    ("p95", "step_p95_seconds"),
    ("warm-up", "warmup_seconds"),
    ("peak", "peak_allocated_bytes"),
    ("reserved", "peak_reserved_bytes"),
    ("tensor", "tensor_active_percent"),
)
_RATIOS = (
    ("samples/s ×", "samples_per_second"),
    ("peak ×", "peak_allocated_bytes"),
    ("loss ×", "loss"),
)
_FIRST = ("#", "configuration", "runs", "samples/s")
_NARROW = ("p95", "reserved", "warm-up", "tensor", "loss ×", "peak ×", "step")
"""Columns that are left out on a narrow terminal, in this order."""


def text_rows(found: Sequence[CellResult], width: int | None = None) -> list[list[str]]:
    """Return head and rows for a person, at most ``width`` characters wide if that is possible.

    Columns in which no row has a value are left out.
    """
    titles = [*_FIRST[:3], *(title for title, _ in (*_FIGURES, *_RATIOS))]
    rows = [titles]
    for cell in found:
        base = cell.number == 1 and bool(cell.good)
        figures = [figure(key, cell.mean(key)) for _, key in _FIGURES]
        ratios = ["1" if base else _times(cell.ratio(key)) for _, key in _RATIOS]
        rows.append(
            [str(cell.number), cell.label, f"{len(cell.good)}/{cell.wanted}", *figures, *ratios]
        )
    keep = [
        i
        for i, title in enumerate(titles)
        if title in _FIRST or any(row[i] not in ("–", "1") for row in rows[1:])
    ]
    for title in _NARROW:
        if width is None or sum(max(len(row[i]) for row in rows) + 2 for i in keep) - 2 <= width:
            break
        keep = [i for i in keep if titles[i] != title]
    return [[row[i] for i in keep] for row in rows]


def remarks(plan: SweepPlan, found: Sequence[CellResult]) -> list[str]:
    """Return the remarks that a reader of the table needs.

    They say what failed, what was refused, where the intervals come from, and when compiling pays
    off.
    """
    lines = [
        f"{cell.number} {cell.label}: failed: {cell.failure}" for cell in found if cell.failure
    ]
    lines += objections(plan)
    if plan.searched:
        lines.append(NOT_IN_TURNS)
    elif len(found) > 1 and not found[0].good:
        lines.append("no ratios: the first row, the baseline, has no successful run")
    bases = dict.fromkeys(
        row.basis for cell in found if (row := cell.ratio("samples_per_second")) and row.basis
    )
    if bases:
        lines.append(f"× are against row 1, [95 % interval] from {', '.join(bases)}")
    for cell in found:
        even = cell.comparison.break_even_step if cell.comparison else None
        if even is not None:
            lines.append(
                f"{cell.number} {cell.label}: makes up for its longer warm-up {even:,} steps "
                "after it"
            )
        scaling = cell.ratio("efficiency")
        if scaling is not None and scaling.ratio is not None:
            lines.append(f"{cell.number} {cell.label}: {scaling.title}: {_times(scaling)}")
    notes: dict[str, list[int]] = {}
    for cell in found:
        for note in cell.comparison.notes if cell.comparison else []:
            if not note.startswith(("interleaved", "single", "95")):
                notes.setdefault(note, []).append(cell.number)
    lines += [f"{', '.join(map(str, numbers))}: {note}" for note, numbers in notes.items()]
    return lines


def objections(plan: SweepPlan) -> list[str]:
    """Return what was refused and warned about before anything ran, each reason once."""
    lines = []
    for title, rows in (("not run", plan.refused), ("warning", plan.warnings)):
        by_reason: dict[tuple[str, str], list[Objection]] = {}
        for row in rows:
            by_reason.setdefault((row.what, row.why), []).append(row)
        for (what, why), alike in by_reason.items():
            labels = [row.label for row in alike if row.label]
            more = f"; and {len(labels) - MAX_LABELS} more" if len(labels) > MAX_LABELS else ""
            which = f" ({'; '.join(labels[:MAX_LABELS])}{more})" if labels else ""
            nearest = (
                f". Nearest: {alike[0].nearest}" if title == "not run" and alike[0].nearest else ""
            )
            lines.append(f"{title}: {what.rstrip('.')}: {why.rstrip('.')}{which}{nearest}")
    return lines


# ── exports ───────────────────────────────────────────────────────────────────────────────────────


def markdown(plan: SweepPlan, found: Sequence[CellResult]) -> str:
    """Return the table of a sweep, and below it the remarks that a reader needs."""
    where = _where(found)
    lines = [f"{_escaped(where)}  "] if where else []
    lines += [f"- {_escaped(line)}" for line in remarks(plan, found)]
    return "\n".join([markdown_table(text_rows(found)), "", *lines]).rstrip() + "\n"


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as a table in Markdown; the first is its head."""
    escaped = [[_escaped(cell) for cell in row] for row in rows]
    lines = [escaped[0], ["---"] * len(rows[0]), *escaped[1:]]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _escaped(text: str) -> str:
    text = text.replace("\n", " ")
    for char in "\\|<>*_`[]":
        text = text.replace(char, "\\" + char)
    return text


def _where(found: Sequence[CellResult]) -> str:
    entry = next((run for cell in found for run in cell.good), None)
    if entry is None:
        return ""
    torch = f", torch {entry.torch_version}" if entry.torch_version else ""
    return f"{entry.device_name or entry.device or 'unknown device'}{torch}"


def as_csv(plan: SweepPlan, found: Sequence[CellResult]) -> str:
    """Return one line for each configuration, for a spreadsheet.

    It has the varying toggles, the mean of each measure, and each ratio with its interval.
    Numbers are plain, units are in the names; an empty field is unknown.
    """
    names = varying(plan.cells)
    keys = [measure.key for measure in MEASURES]
    head = ["cell", "configuration", *names, "runs", "failure", *keys]
    head += [
        f"{key}_{part}"
        for key in (*keys, "loss", "efficiency")
        for part in ("ratio", "low", "high", "basis")
    ]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(head)
    for cell, config in zip(found, plan.cells, strict=True):
        values: list[object] = [
            cell.number,
            cell.label,
            *(_plain(getattr(config, name)) for name in names),
        ]
        values += [len(cell.good), cell.failure, *(cell.mean(key) for key in keys)]
        for key in (*keys, "loss", "efficiency"):
            row = cell.ratio(key)
            values += [row.ratio, row.low, row.high, row.basis] if row else [None] * 4
        writer.writerow([_harmless(value) for value in values])
    return out.getvalue()


def _plain(value: object) -> object:
    if isinstance(value, bool):
        return "on" if value else "off"
    return value


def _harmless(value: object) -> object:
    """Return a value with a quote before it if a spreadsheet would take it for a formula."""
    return (
        "'" + value
        if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r"))
        else value
    )


def as_json(plan: SweepPlan, found: Sequence[CellResult]) -> dict[str, Any]:
    """Return the document of ``lab sweep --json``.

    Unknown is null, with its reason in the runs' documents.
    """
    return {
        "group": plan.group,
        "repeats": plan.repeats,
        "varying": varying(plan.cells),
        "cells": [
            {
                "number": cell.number,
                "label": cell.label,
                "config": config.to_mapping(),
                "runs": [entry.id for entry in cell.runs],
                "failure": cell.failure or None,
                **{measure.key: cell.mean(measure.key) for measure in MEASURES},
                "ratios": comparison_rows(cell.comparison) if cell.comparison else None,
                "break_even_step": cell.comparison.break_even_step if cell.comparison else None,
            }
            for cell, config in zip(found, plan.cells, strict=True)
        ],
        "refused": [{"label": row.label, "what": row.what, "why": row.why} for row in plan.refused],
        "warnings": [
            {"label": row.label, "what": row.what, "why": row.why} for row in plan.warnings
        ],
        "remarks": remarks(plan, found),
        "where": _where(found) or None,
    }


def comparison_rows(comparison: Comparison) -> list[dict[str, Any]]:
    return [
        {
            "key": row.key,
            "title": row.title,
            "unit": row.unit,
            "a": number(row.a),
            "b": number(row.b),
            "ratio": number(row.ratio),
            "low": number(row.low),
            "high": number(row.high),
            "basis": row.basis or None,
            "reason": row.reason or None,
        }
        for row in comparison.rows
    ]


# ── runs ──────────────────────────────────────────────────────────────────────────────────────────


def described(entry: Entry) -> str:
    """Return in a few words what kind of run it is.

    That is its label, else the toggles that are not the default.
    """
    if entry.label:
        return entry.label
    if entry.config is None:
        return "settings unknown"
    steps = {"--steps", str(entry.config.steps)}
    return " ".join(word for word in entry.config.flags() if word not in steps) or "defaults"


def run_mapping(entry: Entry, whole: bool = False) -> dict[str, Any]:
    """Return a run for JSON; with ``whole``, its document and surroundings too."""
    found: dict[str, Any] = {
        "id": entry.id or None,
        "at": entry.at,
        "source": entry.source,
        "label": entry.label,
        "group": entry.group or None,
        "repeat": entry.repeat,
        "device": entry.device,
        "device_name": entry.device_name,
        "torch_version": entry.torch_version,
        "config": entry.config.to_mapping() if entry.config else None,
        "failure": entry.failure or entry.problem or None,
        **{measure.key: measure.take(entry.document) for measure in MEASURES},
    }
    return (
        {**found, "environment": entry.environment, "document": entry.document} if whole else found
    )


def runs_csv(entries: Sequence[Entry]) -> str:
    """Return one line for each run; an empty field is unknown."""
    keys = [
        "id",
        "at",
        "source",
        "label",
        "group",
        "repeat",
        "device",
        "device_name",
        "torch_version",
        "failure",
    ]
    keys += [measure.key for measure in MEASURES]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*keys, "command"])
    for entry in entries:
        values = run_mapping(entry)
        command = entry.config.command() if entry.config else None
        writer.writerow([_harmless(value) for value in (*(values[key] for key in keys), command)])
    return out.getvalue()


def runs_rows(entries: Sequence[Entry]) -> list[list[str]]:
    """Return head and rows for a person."""
    rows = [["id", "when", "run", "device", "steps", "samples/s", "step", "p95", "peak", "sweep"]]
    keys = ("samples_per_second", "step_seconds", "step_p95_seconds", "peak_allocated_bytes")
    for entry in entries:
        steps = entry.document.get("steps")
        figures = [figure(key, BY_KEY[key].take(entry.document)) for key in keys]
        what = described(entry) + (" (failed)" if entry.failure else "")
        row = [str(entry.id or "–"), when(entry), what, entry.device_name or entry.device or "–"]
        rows.append(
            [*row, f"{steps:,}" if isinstance(steps, int) else "–", *figures, entry.group or "–"]
        )
    return rows


def when(entry: Entry) -> str:
    """Return the local date and time of a run."""
    return clock_text(entry.at, DATE_AND_MINUTE)


def runs_markdown(entries: Sequence[Entry]) -> str:
    """Return the table of runs in Markdown."""
    return markdown_table(runs_rows(entries)) + "\n"
