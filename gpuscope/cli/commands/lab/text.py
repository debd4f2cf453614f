"""Say what a lab run does: a line a second while it trains, a few lines at its end."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ....lab import metrics
from ....text.units import DASH, bytes_text, count_text, duration_text, pace_text, percent_text

PROGRESS_SECONDS = 1.0
NAMED_BREAKS = 5
"""How many graph breaks and recompiles are named; the others are only counted."""


class WorkerProgress:
    """Prints what the worker says on stderr, a line a second."""

    def __init__(self) -> None:
        self._shown = 0.0

    def show(self, record: metrics.Record) -> None:
        if isinstance(record, metrics.Started):
            lines = [introduction(record)]
            lines += [f"Warning: {warning}" for warning in record.warnings]
        elif isinstance(record, metrics.Step) and (
            time.monotonic() - self._shown >= PROGRESS_SECONDS
        ):
            self._shown = time.monotonic()
            lines = [step(record)]
        else:
            return
        print(*lines, sep="\n", file=sys.stderr, flush=True)


def introduction(record: metrics.Started) -> str:
    """Return the first line of a run: what trains where."""
    micro, ranks = record.config["accumulate"], record.world_size
    shape = f"{record.samples_per_step:,} samples per step"
    parts = [f"{micro} micro-batches"] * (micro > 1) + [f"{ranks} ranks"] * (ranks > 1)
    shape += f" in {' on '.join(parts)}" if parts else ""
    millions = record.parameters / 1e6
    size = f"{millions:,.1f} M" if millions >= 0.1 else f"{record.parameters:,}"
    model = f"{record.preset} ({size} parameters)"
    device = f"{record.device} ({record.device_name})"
    together = f", {record.config['parallel']} over {record.backend}" if record.backend else ""
    return (
        f"{model} on {device}, torch {record.torch_version}, amp "
        f"{record.config['amp']}{together}, {shape}"
    )


def step(record: metrics.Step) -> str:
    """Return the line of the newest step."""
    loss = "not finite" if record.loss is None else f"{record.loss:.4f}"
    pace = DASH if record.samples_per_second is None else pace_text(record.samples_per_second)
    parts = [
        f"step {record.step:,}",
        f"loss {loss}",
        f"{pace} samples/s",
        per_step(record.step_seconds),
    ]
    if record.scale is not None:
        parts.append(f"scale {scale_text(record.scale)}")
    if record.skipped:
        parts.append(f"{record.skipped} skipped")
    if record.graph_breaks:
        parts.append(f"{record.graph_breaks} graph breaks")
    if record.recompiles:
        parts.append(f"{record.recompiles} recompiles")
    if record.validation_loss is not None:
        parts.append(f"validation {record.validation_loss:.4f}")
    if record.warming_up:
        parts.append("warming up")
    return "  ".join(parts)


def per_step(seconds: float | None) -> str:
    """Return how long a step takes: ``52.6 ms/step``."""
    return DASH if seconds is None else f"{duration_text(seconds)}/step"


IN_WORDS = {
    "peak_allocated_bytes": "peak memory",
    "peak_reserved_bytes": "peak memory",
    "tensor_active_percent": "tensor pipes",
}
"""What the lines call keys of the document that can be unknown."""


def scale_text(scale: float) -> str:
    """Return the scale of a GradScaler, a power of two, in plain digits."""
    return f"{scale:,.0f}" if scale >= 1 else f"{scale:g}"


def in_words(document: Mapping[str, Any]) -> str:
    """Return the document as a few lines for a person; what is unknown has its reason."""
    steps = count_text(document["steps"], "step")
    lines = [f"{steps} on {document['device']}" + _together(document)]
    if document["loss_first"] is not None and document["loss_last"] is not None:
        lines.append(f"loss          {document['loss_first']:.4f} → {document['loss_last']:.4f}")
    if document.get("validation_loss") is not None:
        lines.append(
            f"validation    {document['validation_loss']:.4f}"
            + _took(document.get("validation_seconds"))
        )
    if document["step_seconds"]:
        lines.append(_steps(document["step_seconds"]))
        lines.append(f"throughput    {pace_text(document['samples_per_second'])} samples/s")
    if document.get("input_seconds") is not None and document["step_seconds"]:
        share = document["input_seconds"] / document["step_seconds"]["median"]
        lines.append(
            f"input         {duration_text(document['input_seconds'])} of a step, "
            f"{percent_text(share)}"
        )
    if document["warmup_seconds"] is not None:
        lines.append(f"warm-up       {duration_text(document['warmup_seconds'])}")
    lines += _compiled(document.get("compile"))
    if document.get("scale") is not None:
        lines.append(
            f"grad scaler   {scale_text(document['scale'])}, "
            f"{document['skipped_steps']} steps skipped"
        )
    if document["peak_allocated_bytes"] is not None:
        allocated, reserved = (
            bytes_text(document[f"peak_{key}_bytes"]) for key in ("allocated", "reserved")
        )
        lines.append(f"peak memory   {allocated} allocated, {reserved} reserved")
    if document.get("cache"):
        released, seconds = document["cache"]["released_bytes"], document["cache"]["seconds"]
        lines.append(
            f"empty_cache   returned {bytes_text(released)} and took {duration_text(seconds)} "
            f"per call"
        )
    if document.get("tensor_active_percent") is not None:
        lines.append(f"tensor pipes  {percent_text(document['tensor_active_percent'] / 100)} busy")
    lines += _ranks(document.get("ranks"))
    unknown: dict[str, str] = {}
    for entry in document["unknown"]:
        key = entry["path"]
        label = IN_WORDS.get(key) or key.removesuffix("_seconds").replace("_", " ")
        unknown.setdefault(label, entry["reason"])
    lines += [f"{label:<13} unknown: {reason}" for label, reason in unknown.items()]
    return "\n".join(lines)


def _together(document: Mapping[str, Any]) -> str:
    text = (
        f", {document['samples_per_step']:,} samples per step"
        if document.get("samples_per_step")
        else ""
    )
    if (document.get("world_size") or 1) > 1:
        text += f" on {document['world_size']} ranks over {document['backend']}"
    return text


def _steps(seconds: Mapping[str, Any]) -> str:
    line = f"step          {duration_text(seconds['median'])} median"
    if seconds.get("low") is not None and seconds.get("high") is not None:
        line += f" (95 %: {duration_text(seconds['low'])} to {duration_text(seconds['high'])})"
    return f"{line}, {duration_text(seconds['p95'])} p95"


def _took(seconds: float | None) -> str:
    return "" if seconds is None else f", {duration_text(seconds)} each"


def _compiled(found: Mapping[str, Any] | None) -> list[str]:
    """Return how torch.compile went: the first step, the graphs, where it broke or began again."""
    if not found:
        return []
    first = found.get("first_step_seconds")
    parts = [] if first is None else [f"first step {duration_text(first)}"]
    graphs = found.get("graphs")
    parts += [] if graphs is None else [count_text(graphs, "graph")]
    lines = []
    for key, word, place in (
        ("graph_breaks", "graph break", "where"),
        ("recompiles", "recompile", "function"),
    ):
        rows: Sequence[Mapping[str, Any]] = found.get(key) or []
        count = sum(row["count"] for row in rows)
        parts.append(count_text(count, word))
        for row in rows[:NAMED_BREAKS]:
            times = f" ×{row['count']}" if row["count"] > 1 else ""
            lines.append(f"              {word}{times} in {row[place]}: {row['reason']}")
        if len(rows) > NAMED_BREAKS:
            lines.append(f"              and {len(rows) - NAMED_BREAKS} more places")
    return [f"compile       {found.get('mode')}: {', '.join(parts)}", *lines]


def _ranks(ranks: Sequence[Mapping[str, Any]] | None) -> list[str]:
    if not ranks or len(ranks) < 2:
        return []
    lines = []
    for rank in ranks:
        line = f"rank {rank['rank']:<9}{rank['device']}, {per_step(rank['step_seconds'])}"
        if rank.get("peak_allocated_bytes") is not None:
            line += f", {bytes_text(rank['peak_allocated_bytes'])} allocated"
        lines.append(line)
    return lines
