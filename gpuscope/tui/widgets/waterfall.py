"""Where bytes are: one row per part, each with its value and unit, bars from one zero on one scale, a total."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from textual.strip import Strip

from ...wire.frames import Unknown
from ..cells import bytes_text, fit, percent, unknown_text
from ..cells import width as cells
from ..charts.strips import Painted, strip_of
from ..theme import Tokens
from .bars import stacked_bar
from .text import cut


@dataclass(frozen=True, slots=True)
class Part:
    """One row. ``amount`` in bytes, or why it is unknown. ``indent`` above 0 marks a part of the row above it."""

    label: str
    amount: float | Unknown
    token: str
    note: str = ""
    indent: int = 0


class Waterfall(Painted):
    """Parts in the caller's order and their total in the last line. When there is no room for all, the smallest are
    folded into one row that says how many."""

    def __init__(self, *, empty: str = "nothing to account for yet", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._parts: tuple[Part, ...] = ()
        self._total: Part | None = None
        self._scale: float | None = None
        self._empty = empty

    def show(self, parts: Sequence[Part], total: Part | None = None, scale: float | None = None) -> None:
        """``total``: the last line, its bar stacked from the parts without indent. ``scale``: bytes of a full bar
        (the card's capacity); None: the total, or the largest part."""
        shown = (tuple(parts), total, scale)
        if shown != (self._parts, self._total, self._scale):
            self._parts, self._total, self._scale = shown
            self.repaint()

    def paint(self, width: int, height: int, tokens: Tokens) -> list[Strip]:
        if not self._parts and self._total is None:
            return [strip_of([(self._empty, "muted")], width, tokens)]
        last = 0 if self._total is None else 1
        parts = _folded(self._parts, max(height - last, 1))
        rule = last and height >= len(parts) + 2
        everything = [*parts, self._total] if self._total is not None else parts
        scale = self._scale or max((_known(part) for part in everything), default=0.0)
        shape = _Shape.of(everything, width, scale)
        lines = [self._line(part, shape, tokens) for part in parts]
        if rule:
            lines.append(strip_of([("─" * width, "border")], width, tokens))
        if self._total is not None:
            lines.append(self._line(self._total, shape, tokens, whole=True))
        return lines

    def _line(self, part: Part, shape: _Shape, tokens: Tokens, whole: bool = False) -> Strip:
        glyphs = tokens.glyphs
        unknown = isinstance(part.amount, Unknown)
        value = unknown_text(part.amount, shape.value) if isinstance(part.amount, Unknown) else bytes_text(part.amount)
        name, figure = ("title", "title") if whole else ("muted" if part.indent else "text", "text")
        pieces = [
            (fit("  " * part.indent + part.label, shape.label, ellipsis=glyphs.ellipsis), name),
            ("  " + fit(value, shape.value, "right"), "muted" if unknown else figure),
        ]
        if shape.share:
            share = "" if unknown or shape.scale <= 0 else percent(100 * _known(part) / shape.scale)
            pieces.append((fit(share, shape.share, "right"), "muted"))
        if shape.bar:
            pieces.append(("  ", "text"))
            if whole:
                bars = [(other.amount, other.token) for other in self._parts if not other.indent]
                pieces += stacked_bar(bars, shape.scale, shape.bar, glyphs, slim=True)
            else:
                pieces += stacked_bar(
                    [(part.amount, part.token)], shape.scale, shape.bar, replace(glyphs, track=" "), slim=True
                )
        if shape.note:
            pieces.append(("  " + part.note, "muted"))
        return strip_of(cut(pieces, shape.width, glyphs.ellipsis), shape.width, tokens)


@dataclass(frozen=True, slots=True)
class _Shape:
    """Cells of each column, 0 where there is no room for it, and the bytes of a full bar."""

    width: int
    label: int
    value: int
    share: int
    bar: int
    note: int
    scale: float

    @classmethod
    def of(cls, parts: Sequence[Part], width: int, scale: float) -> _Shape:
        label = max(cells(part.label) + 2 * part.indent for part in parts)
        value = 10
        label = min(label, max(width - value - 12, width * 2 // 5, 8))
        note = max(cells(part.note) for part in parts)
        rest = width - label - 2 - value
        share = 6 if rest >= 22 else 0
        rest -= share + 2
        if note and rest >= 24:
            note = min(note, rest * 3 // 5)
            return cls(width, label, value, share, rest - note - 2, note, scale)
        return cls(width, label, value, share, max(rest, 0), 0, scale)


def _known(part: Part) -> float:
    return 0.0 if isinstance(part.amount, Unknown) else max(float(part.amount), 0.0)


def _folded(parts: Sequence[Part], room: int) -> list[Part]:
    """At most ``room`` rows: details go first, smallest first, then the smallest parts become one row. What is unknown
    is folded last: it may be the largest."""
    kept = list(parts)

    def size(part: Part) -> float:
        return float("inf") if isinstance(part.amount, Unknown) else _known(part)

    details = sorted((part for part in kept if part.indent), key=size)
    while len(kept) > room and details:
        kept.remove(details.pop(0))
    if len(kept) <= room:
        return kept
    ranked = sorted(kept, key=size)
    folded = ranked[: len(kept) - room + 1]
    hidden = sum(isinstance(part.amount, Unknown) for part in folded)
    note = f"{hidden} of them unknown" if hidden else ""
    rest = Part(f"{len(folded)} smaller", sum(_known(part) for part in folded), "other", note)
    return [part for part in kept if part not in folded] + [rest]
