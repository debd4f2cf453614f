"""The cells of a job that only a wide list has."""

from __future__ import annotations

from collections.abc import Sequence

from ...store.view import TrainerView
from ...text.styled import Piece
from ...text.units import brief_duration_text, percent_text, sizes_text
from ..widgets.text import DASH


def wide_cells(trainers: Sequence[TrainerView]) -> dict[str, Piece]:
    """Return the slowest steps and the peak of a job's ranks, and how much of the run is done."""
    slowest = [n for t in trainers if (n := t.number("step_seconds_p95")) is not None]
    done, total = (trainers[0].number(f"progress_{name}") for name in ("done", "total"))
    share: Piece = DASH
    if done is not None and total:
        share = f"{percent_text(done / total, whole=True)} of {total:,.0f}", "muted"
    peaks = [
        n for t in trainers for one in t.allocators if (n := one.number("peak_allocated_bytes"))
    ]
    peak: Piece = (sizes_text(max(peaks)), "muted") if peaks else DASH
    p95: Piece = (brief_duration_text(max(slowest)), "muted") if slowest else DASH
    return {"p95": p95, "done": share, "peak": peak}
