"""All that is known of a run of the Lab, in lines: its settings, its figures, its surroundings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from ...lab.compare import mean
from ...text.clock import DATE_AND_SECOND, clock_text
from ...text.numbers import number
from ...text.styled import Line
from ...text.units import (
    brief_duration_text,
    bytes_text,
    duration_text,
    pace_text,
    percent_text,
)
from ..cells import fit
from ..runs.run import RunView
from ..runs.runs import run_name
from .rows import interval_words
from .run_facts import facts_of, named_events

if TYPE_CHECKING:
    from ...lab.ledger import Entry

NAME_CELLS = 24
FIGURES = (
    "steps", "skipped_steps", "samples_per_step", "samples_per_second", "step_seconds",
    "warmup_seconds", "loss_first", "loss_last", "validation_loss", "peak_allocated_bytes",
    "peak_reserved_bytes", "tensor_active_percent", "input_seconds", "scale", "parameters",
    "world_size", "backend",
)  # fmt: skip
"""Keys of the document, in this order; others are told in their own lines."""


def _fact(name: str, value: str, token: str = "text") -> Line:
    return [(fit(name, NAME_CELLS), "muted"), (value, token)]


def live_lines(run: RunView | None) -> Iterable[Line]:
    """Return what is known of a run in progress."""
    if run is None:
        return
    yield _fact("settings", " ".join(run.config.flags()) or "all at their defaults")
    for name, value, token in facts_of(run):
        yield _fact(name, value, token)
    if run.started is not None:
        yield _fact("device", f"{run.started.device}, {run.started.device_name}")
        yield _fact("torch", run.started.torch_version)
        yield _fact("parameters", f"{run.started.parameters:,}")
        for text in run.started.warnings:
            yield [("◆ ", "warn"), (text, "text")]


REPEAT_COLUMNS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("SAMPLES/S", "samples_per_second", pace_text),
    ("STEP TIME", "step_seconds", brief_duration_text),
    ("PEAK", "peak_allocated_bytes", bytes_text),
    ("LAST LOSS", "loss_last", lambda loss: f"{loss:.4f}"),
)
"""The figures of each of some repeats: a heading, a key of the document, and how it is written."""


def repeat_lines(entries: Sequence[Entry]) -> Iterable[Line]:
    """Return a line for each repeat of a setting, and their mean with its 95 % interval."""
    heads = "".join(fit(head, 11, "right") for head, _, _ in REPEAT_COLUMNS)
    yield [(fit("RUN", 7) + fit("SEED", 6, "right") + heads, "muted")]
    columns: list[list[float]] = [[] for _ in REPEAT_COLUMNS]
    for entry in entries:
        seed = "–" if entry.config is None else str(entry.config.seed)
        text = fit(run_name(entry.id), 7) + fit(seed, 6, "right")
        for known, (_, key, write) in zip(columns, REPEAT_COLUMNS, strict=True):
            value = entry.document.get(key)
            value = number(value.get("median") if isinstance(value, Mapping) else value)
            known += [] if value is None else [value]
            text += fit("–" if value is None else write(value), 11, "right")
        yield [(text, "text")]
    means = [mean(known) for known in columns]
    line: Line = [(fit("mean", 13), "title")]
    within: Line = [(fit("± 95 %", 13), "muted")]
    for known, middle, (_, _, write) in zip(columns, means, REPEAT_COLUMNS, strict=True):
        line.append((fit("–" if middle is None else write(middle), 11, "right"), "title"))
        within.append((fit(interval_words(known) or "–", 11, "right"), "muted"))
    yield line
    yield within
    yield [(f"Below is run {run_name(entries[0].id)} in full.", "faint")]
    yield []


def entry_lines(entry: Entry) -> Iterable[Line]:
    """Return what the ledger keeps of a run."""
    document = entry.document
    if entry.failure:
        error = document.get("error")
        yield [("▲ ", "bad"), (entry.failure, "bad")]
        for key, word in (("why", "Why: "), ("next", "Next: ")):
            if isinstance(error, Mapping) and error.get(key):
                yield [("  ", "text"), (word + str(error[key]), "text")]
    elif entry.cut_short:
        yield [("▲ ", "warn"), (f"It {entry.cut_short}.", "warn")]
    if entry.problem:
        yield [("▲ ", "warn"), (entry.problem, "warn")]
    switches = " ".join(entry.config.flags()) if entry.config is not None else "unknown"
    yield _fact("settings", switches or "all at their defaults")
    yield _fact("when", clock_text(entry.at, DATE_AND_SECOND))
    yield _fact(
        "where", ", ".join(part for part in (entry.device, entry.device_name) if part) or "unknown"
    )
    yield _fact("torch", entry.torch_version or "unknown")
    if entry.group:
        yield _fact("series", f"{entry.group}, repeat {entry.repeat + 1}")
    yield []
    reasons = _reasons(document)
    for key in FIGURES:
        if key in document or key in reasons:
            yield _figure(key, document.get(key), reasons.get(key, "not recorded"))
    yield from named_events(document)
    for text in _texts(document.get("warnings")):
        yield [("◆ ", "warn"), (text, "text")]
    yield []
    for name, value in entry.environment.items():
        yield _fact(name, str(value), "muted")


def _texts(value: object) -> list[str]:
    return [str(one) for one in value] if isinstance(value, list) else []


def _reasons(document: Mapping[str, object]) -> dict[str, str]:
    rows = document.get("unknown")
    return {
        str(row.get("path")): str(row.get("reason") or "not recorded")
        for row in (rows if isinstance(rows, list) else [])
        if isinstance(row, Mapping)
    }


def _figure(key: str, value: object, reason: str) -> Line:
    name = key
    for unit in ("_bytes", "_seconds", "_percent"):
        name = name.removesuffix(unit)
    name = {"step": "step", "samples_per_second": "samples/s"}.get(name, name).replace("_", " ")
    if value is None:
        return _fact(name, reason, "faint")
    return _fact(name, _value(key, value))


def _value(key: str, value: object) -> str:
    if isinstance(value, Mapping):
        parts = [
            f"{name} {duration_text(v)}"
            for name in ("median", "low", "high", "p95")
            if isinstance(v := value.get(name), (int, float))
        ]
        count = value.get("count")
        return ", ".join(parts) + (f" of {count:,} steps" if isinstance(count, int) else "")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if key.endswith("_bytes"):
        return bytes_text(value)
    if key.endswith("_percent"):
        return percent_text(value / 100)
    if key.endswith("_seconds"):
        return duration_text(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"
