"""This dialog derives the floor of a step and its utilization from its operators, by class."""

from __future__ import annotations

from collections.abc import Iterable

from ...model.useful_work import (
    CONVENTION,
    UsefulWork,
    WorkRow,
    cost,
    flops_text,
    shares,
    unknown_text,
)
from ...text.styled import Line
from ...text.units import DASH, brief_duration_text, bytes_text, duration_text, percent_text
from ..widgets.program import program
from ..widgets.text_dialog import TextDialog

NAME_CELLS = 28


class WorkDialog(TextDialog):
    """The work of a step as it was counted, with the step time of now."""

    def __init__(self, key: str, work: UsefulWork, step_seconds: float | None) -> None:
        super().__init__("Useful work of a step")
        self._key = key
        self._told = tuple(derivation(work, step_seconds))

    def text(self) -> Iterable[Line]:
        return self._told

    def action_again(self) -> None:
        """Ask whether to count another step."""
        from ..shared.trainer_actions import ACTS

        app = program(self.app)
        self.dismiss()
        app.open("act", ACTS["work"], self._key)


def derivation(work: UsefulWork, step_seconds: float | None) -> Iterable[Line]:
    """Return where FLOPs, floor and utilization come from."""
    least = "" if work.complete else "at least "
    yield [("Model    ", "muted"), (f"{least}{flops_text(work.model_flops)} a step", "title")]
    again = ""
    if work.recomputed_flops:
        again = f", {flops_text(work.recomputed_flops)} of them computed again by checkpoints"
    yield [("Hardware ", "muted"), (f"{least}{flops_text(work.hardware_flops)}{again}", "text")]
    mfu = work.mfu(step_seconds or 0.0)
    card, peak, floor = work.card, work.peak, work.floor_seconds
    if mfu is not None and card is not None and peak is not None:
        steps = duration_text(step_seconds or 0.0)
        how = f"model FLOPs / ({steps} × {peak / 1e12:g} TFLOPS), the {CONVENTION} convention"
        yield [
            ("MFU      ", "muted"),
            (f"{least}{percent_text(mfu)}", "title"),
            (f": {how}", "text"),
        ]
        hfu = work.hfu(step_seconds or 0.0) or 0.0
        yield [("HFU      ", "muted"), (f"{least}{percent_text(hfu)}, of hardware FLOPs", "text")]
    else:
        why = work.problem or "the step time is not known"
        yield [("MFU      ", "muted"), (f"not known: {why}", "warn")]
    if floor is not None:
        sum_of = "for each operator the longer of FLOPs / peak and bytes / bandwidth, added up"
        yield [("Floor    ", "muted"), (f"{duration_text(floor)}: {sum_of}", "text")]
    if card is not None:
        rate = f"{card.bandwidth:g}"  # as on the data sheet: powers of 1000
        source = f"{card.id}, {rate} GB/s; dense peaks of the {card.source}"
        yield [("GPU      ", "muted"), (source, "text")]
    yield []
    head = f"{'OPERATORS':{NAME_CELLS}}{'FLOP':>11}{'BYTES':>11}{'FLOOR':>9}{'SHARE':>7}"
    yield [(head, "muted")]
    for row, share in shares(work):
        yield from _row(row, share)
    yield []
    if not work.complete:
        yield [(unknown_text(work), "warn")]
    fused = (
        "Operators that are fused, or find their input in a cache, can be faster than the floor."
    )
    yield [(fused, "faint")]
    yield [("Price    ", "muted"), (cost(work), "faint")]


def _row(row: WorkRow, share: float | None) -> Iterable[Line]:
    flops = flops_text(row.hardware_flops) if row.hardware_flops else DASH
    flops = "unknown" if row.kind == "unknown" else flops
    floor = brief_duration_text(row.floor_seconds) if row.floor_seconds is not None else DASH
    part = percent_text(share) if share is not None else DASH
    yield [
        (f"{row.words:{NAME_CELLS}}", "text"),
        (f"{flops:>11}{bytes_text(row.bytes):>11}{floor:>9}{part:>7}", "text"),
    ]
    if row.peak is not None:
        yield [(f"  {row.count:,} calls, peak {row.peak / 1e12:g} TFLOPS", "faint")]
