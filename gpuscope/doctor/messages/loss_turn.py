"""Find where the loss that a log prints stops being a number, and what it did before.

A loss that grows before it is NaN diverged: its steps are too large. One that is NaN at once comes
from a single batch or a single operation. One that is NaN from the start comes from the data, the
loss or the weights. In fp16 each of them may be an overflow.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from statistics import median

from ...text.log_figures import EPOCH_HEADER, LogFigures, figures, first_lost, table_losses
from ...wire.loss_text import NUMBER
from . import figures as figure_rules
from .text import Log
from .votes import Vote

LEAST_FINITE = 3
"""From fewer losses before the turn it cannot be told whether the loss grew."""
LATEST = 2
"""How many of the last finite losses may be the grown ones."""
GROWN_LOSS, GROWN_NORM = 5.0, 10.0
"""How many times its median a loss, or a norm of the gradients, must be to have grown.

A norm varies more from step to step than a loss does.
"""
_MAYBE = re.compile(r"(?<![a-z])(?:nan|inf)(?![a-z\d])")
_NORM = re.compile(rf"grad(?:ient)?[_ ]?norm[\"']?\s?[:=]?\s?({NUMBER})", re.I)
_PART_OF_EPOCH = re.compile(rf"\bepoch[\"']?\s?[:=]?\s?[\"']?({NUMBER})", re.I)
_NOT_OFF = (
    r"(?![\"']?\s?[:=]\s?\{?\s?[\"']?(?:enabled[\"']?\s?[:=]\s?)?(?:false|0\b|none|null|no\b|auto))"
)
_FP16 = re.compile(
    rf"\bfp16\b{_NOT_OFF}|\bfloat16\b|\b16[- ]?(?:bit|mixed|true)\b|\bgradscaler\b"
    r"|\bloss[_ ]scale[\"']?\s?[:=]\s?(?!1(?:\.0*)?\b)\d|gradient overflow|\bhalf precision\b"
)
"""Words of a training in fp16. A loss scale of 1 is printed in bf16 and in float32 too."""


@dataclass(frozen=True, slots=True)
class _Reading:
    """The loss of one line of a log, and the norm of the gradients beside it."""

    index: int
    text: str
    loss: float
    norm: float | None
    place: str


def votes(log: Log) -> Iterator[Vote]:
    """Yield the likely causes of a training loss that turns NaN or infinite in this log."""
    if not _MAYBE.search(log.flat):
        return
    readings = list(_readings(log)) or list(_of_tables(log))
    turn = next((one for one in readings if not math.isfinite(one.loss)), None)
    if turn is None:
        return
    at = readings.index(turn)
    before, after = readings[:at], readings[at + 1 :]
    rule, says = _behaviour(before, turn, after)
    number = log.lines[turn.index][0]
    where = f"{log.source}:{number}"
    kind = "NaN" if math.isnan(turn.loss) else "infinite"
    place = turn.place or f"line {number}"
    if before and rule != "loss.once":
        place = first_lost(before[-1].place, place)
    shown = {"kind": kind, "place": place, **says}
    rank = f"rank {log.ranks[turn.index]}" if log.ranks[turn.index] else ""
    fp16 = _FP16.search(log.flat)
    evidence = ((turn.text, where),)
    if fp16:
        for vote in figure_rules.votes("loss.fp16", evidence, word=fp16[0], **shown):
            yield replace(vote, where=rank)
    for vote in figure_rules.votes(rule, evidence, **shown):
        # Only a growth is evidence beside fp16, whose overflows come at once too.
        weak = fp16 and rule != "loss.diverged"
        yield replace(vote, where=rank, confidence="prior" if weak else vote.confidence)


def _readings(log: Log) -> Iterator[_Reading]:
    """Yield every training loss that the log prints, in its order."""
    headed: int | None = None
    for index, (_, line) in enumerate(log.lines):
        for text in line.split("\r"):
            header = EPOCH_HEADER.match(text)
            if header:
                headed = int(header[1])
            found = figures(text) if "loss" in text.lower() else LogFigures()
            if found.epoch is None and found.total is not None:
                found = found._replace(epoch=headed)
            if found.loss is not None:
                norm = _NORM.search(text)
                yield _Reading(
                    index,
                    _shortened(text),
                    found.loss,
                    float(norm[1]) if norm else None,
                    _place(found, text),
                )


def _of_tables(log: Log) -> Iterator[_Reading]:
    """Yield every loss in a table that the log prints, whose rows do not say what they are."""
    pieces = [(i, text) for i, (_, line) in enumerate(log.lines) for text in line.split("\r")]
    for at, loss, epoch in table_losses([text for _, text in pieces]):
        index, text = pieces[at]
        yield _Reading(index, _shortened(text), loss, None, f"epoch {epoch}")


def _shortened(text: str) -> str:
    text = text.replace("\b", "").strip()  # with which Keras redraws its bar
    return text if len(text) <= 300 else f"{text[:120]} … {text[-170:]}"


def _place(found: LogFigures, text: str) -> str:
    """Return where in the training a line was printed, as far as it says so."""
    if found.step is not None:
        of = "" if found.total is None else f" of {found.total:,}"
        epoch = "" if found.epoch is None else f" in epoch {found.epoch}"
        return f"step {found.step:,}{of}{epoch}"
    part = _PART_OF_EPOCH.search(text)
    return f"epoch {part[1]}" if part else ""


def _behaviour(
    before: list[_Reading], turn: _Reading, after: list[_Reading]
) -> tuple[str, dict[str, str]]:
    """Return the rule for what the loss did around its turn, and the figures that show it."""
    if not before:
        return "loss.from-start", {}
    last = before[-1]
    says = {"last": f"{last.loss:.4g}", "last_place": f" at {last.place}" if last.place else ""}
    if any(math.isfinite(one.loss) for one in after):
        return "loss.once", says
    growth = grown((one.loss for one in before), GROWN_LOSS)
    if growth:
        return "loss.diverged", {**says, "what": "the loss", **growth}
    growth = grown((one.norm for one in before if one.norm is not None), GROWN_NORM)
    if growth:
        return "loss.diverged", {**says, "what": "the norm of the gradients", **growth}
    return ("loss.sudden" if len(before) >= LEAST_FINITE else "loss.turned"), says


def grown(values: Iterable[float], times: float) -> dict[str, str]:
    """Return the usual and the grown value where the last ones are so many times the median."""
    sizes = [abs(value) for value in values]
    if len(sizes) < LEAST_FINITE:
        return {}
    usual, last = median(sizes[:-LATEST]), max(sizes[-LATEST:])
    if last < times * usual or not usual:
        return {}
    return {"usual": f"{usual:.4g}", "grown": f"{last:.4g}"}
