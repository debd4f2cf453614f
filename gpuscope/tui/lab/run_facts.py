"""The run in progress as facts: what it does now, the most telling first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...text import styled
from ...text.styled import Line, Piece
from ...text.units import (
    age_text,
    ago_text,
    bytes_text,
    count_text,
    duration_text,
    pace_text,
    percent_text,
    sides_text,
)
from ...text.width import cells as text_cells
from ..cells import fit
from ..runs.run import RunView

Fact = tuple[str, str, str]
"""(name, value, token)."""
NAME_CELLS = 11
NO_FIGURE = ("–", "faint")
PEAK_STEPS = 3
"""Steps after which the peak is what a prediction speaks of."""


def facts_of(run: RunView) -> list[Fact]:
    """Return all that is known of a run, in the order of how soon one wants to know it."""
    last, started = run.last, run.started
    out: list[Fact] = []

    def add(name: str, value: str | None, token: str = "text") -> None:
        out.append((name, *NO_FIGURE) if value is None else (name, value, token))

    add(
        "step",
        f"{run.step:,}" + (f"/{run.config.steps:,}" if run.config.steps else "") if last else None,
    )
    add(
        "last loss",
        None if last is None else "not finite" if run.loss is None else f"{run.loss:.4f}",
        "text" if run.loss is not None else "bad",
    )
    rates = run.rates
    if rates.stopped_seconds is not None:
        add("last step", ago_text(rates.stopped_seconds), "warn")
    else:
        pace, step = rates.samples_per_second, rates.step_seconds
        add("samples/s", pace_text(pace) if pace else None)
        add("per step", duration_text(step) if step else None)
    if run.config.compile != "off":
        add("compile", *_compile(run))
    if started is not None:
        add("batch", _batch(run))
        if started.world_size > 1 or run.config.processes:
            add(
                "ranks",
                f"{started.world_size}" + (f" over {started.backend}" if started.backend else ""),
            )
    if last is not None and (last.scale is not None or run.config.amp == "fp16"):
        add(
            "scale",
            None
            if last.scale is None
            else f"{last.scale:,.0f}"
            if last.scale >= 1
            else f"{last.scale:.3g}",
        )
        add("skipped", f"{last.skipped:,}", "warn" if last.skipped else "text")
    if run.config.loader != "synthetic":
        waited = last.input_seconds if last is not None else None
        add("input wait", duration_text(waited) if isinstance(waited, (int, float)) else None)
    if run.config.validate != "off":
        validation = run.validation_loss
        add("val. loss", f"{validation:.4f}" if validation is not None else None)
    if run.device == "cpu":
        out.append(("peak", "not counted on a CPU", "faint"))
    else:
        add("peak", bytes_text(run.peak_bytes) if run.peak_bytes else None)
        if run.predicted is not None:
            out.append(("predicted", *_predicted(run)))
        share = run.tensor_percent
        add("tensor", percent_text(share / 100) if share is not None else None)
    if run.config.empty_cache and (cache := _mapping(run.summary, "cache")):
        released, took = cache.get("released_bytes"), cache.get("seconds")
        if isinstance(released, (int, float)) and isinstance(took, (int, float)):
            add("cache", f"{bytes_text(released)} returned, {duration_text(took)}")
    return out


def _predicted(run: RunView) -> Piece:
    """Return what was predicted, and where the measured peak lies to it."""
    assert run.predicted is not None
    peak = run.predicted
    if peak.lopsided:
        text = f"{bytes_text(peak.bytes)} ({sides_text(peak.error_bytes, peak.less_bytes)})"
    else:
        text = f"{bytes_text(peak.bytes)} ± {percent_text(peak.error_percent / 100)}"
    if not run.peak_bytes or run.step < PEAK_STEPS:
        return text, "text"
    off = 100 * (run.peak_bytes / peak.bytes - 1) if peak.bytes else 0.0
    return (
        f"{text}, it is {off:+.1f} %",
        "text" if peak.low <= run.peak_bytes <= peak.high else "warn",
    )


def _batch(run: RunView) -> str:
    """The effective batch, and what it is made of: ranks × accumulation × micro-batch."""
    assert run.started is not None
    batch, parts = run.started.config.get("batch"), []
    if run.started.world_size > 1:
        parts.append(f"{run.started.world_size}×")
    if run.config.accumulate > 1:
        parts.append(f"{run.config.accumulate}×")
    made = f" = {''.join(parts)}{batch}" if parts and isinstance(batch, int) else ""
    return f"{run.started.samples_per_step:,}{made}"


def _compile(run: RunView) -> tuple[str | None, str]:
    """Return what compiling is at, or what it came to."""
    going = run.compiling_seconds
    if going is not None:
        return f"compiling… {age_text(going)}", "warn"
    if run.last is None:
        return None, "faint"
    compiled = _mapping(run.summary, "compile") or {}
    first = compiled.get("first_step_seconds")
    parts = [f"first step {duration_text(first)}"] if isinstance(first, (int, float)) else []
    counts = (
        (run.last.graphs, "graph"),
        (run.last.graph_breaks, "break"),
        (run.last.recompiles, "recompile"),
    )
    parts += [count_text(n, word) for n, word in counts if n is not None and (n or word == "graph")]
    return ", ".join(
        parts
    ) or run.config.compile, "warn" if run.last.graph_breaks or run.last.recompiles else "text"


def named_events(document: Mapping[str, Any] | None) -> list[Line]:
    """Each graph break and recompile: how often, where, why."""
    compiled = _mapping(document, "compile") or {}
    out: list[Line] = []
    for key, word, place in (
        ("graph_breaks", "break", "where"),
        ("recompiles", "recompile", "function"),
    ):
        rows = compiled.get(key)
        for row in rows if isinstance(rows, list) else []:
            if isinstance(row, Mapping):
                times = f" ×{row.get('count')}" if row.get("count") not in (None, 1) else ""
                out.append(
                    [
                        (f"{word}{times} ", "warn"),
                        (f"{row.get(place) or '?'}: ", "text"),
                        (str(row.get("reason") or "not recorded"), "muted"),
                    ]
                )
    return out


def _mapping(document: Mapping[str, Any] | None, key: str) -> Mapping[str, Any] | None:
    found = (document or {}).get(key)
    return found if isinstance(found, Mapping) else None


def fact_lines(facts: Sequence[Fact], cells: int, columns: int) -> list[Line]:
    """Return facts in order, in ``columns`` columns.

    A value that is longer than its column has a line of its own, or more.
    """
    each = (cells - 2 * (columns - 1)) // columns
    out: list[Line] = []
    held = columns  # facts in the newest line
    for name, value, token in facts:
        if text_cells(value) > each - NAME_CELLS:
            out += styled.hang([(fit(name, NAME_CELLS), "muted")], [(value, token)], cells)
            held = columns
            continue
        if held >= columns:
            out.append([])
            held = 0
        elif held:
            out[-1].append(("  ", "text"))
        out[-1] += [(fit(name, NAME_CELLS), "muted"), (fit(value, each - NAME_CELLS), token)]
        held += 1
    return out
