"""This widget shows where bytes are, in a row for each part and a total.

Each row has its value and unit, and a bar from one zero on one scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from textual.strip import Strip

from ...model.reading_age import OLD
from ...text import styled
from ...text.styled import Line
from ...text.units import DASH, bytes_text, percent_text
from ...text.width import cells as text_cells
from ...wire.frames import Unknown
from ..cells import fit, unknown_text
from ..charts.strips import Painted, strip_of
from ..theme import Tokens
from ..widgets.bars import stacked_bar

FRAME_ROWS = 5
"""Of the panel besides its parts: border, rule, total and what it is a part of."""


@dataclass(frozen=True, slots=True)
class Part:
    """One row of the waterfall.

    ``amount`` is in bytes, or says why it is unknown. ``indent`` above 0 marks a part of the
    row above it, ``about`` an amount that is not exact. ``now`` is what it is at this moment,
    where the amount is what it was at most: it is marked on the bar. In place of the bar stands
    the last reading where that is old.
    """

    label: str
    amount: float | Unknown
    token: str
    indent: int = 0
    about: bool = False
    now: float | None = None


class WaterfallChart(Painted):
    """Parts in the caller's order, on one scale whose full bar is their total.

    Below them stand the total and what it is a part of, in words. When there is no room for
    all, the smallest are folded into one row that says how many.
    """

    def __init__(self, *, empty: str = "nothing to account for yet", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._parts: tuple[Part, ...] = ()
        self._total: Part | None = None
        self._foot, self._foot_token = "", "muted"
        self._beside: tuple[Part, ...] = ()
        self._empty = empty

    def show(
        self,
        parts: Sequence[Part],
        total: Part | None = None,
        foot: str = "",
        beside: Sequence[Part] = (),
        foot_token: str = "muted",
    ) -> None:
        """Show these parts on the scale of ``total``, stacked from those without indent.

        Where the total is unknown, the largest part is the scale. ``beside`` is what the total
        leaves out, below it; ``foot`` is a text below that, of the colour ``foot_token``.
        """
        shown = (tuple(parts), total, foot, tuple(beside), foot_token)
        if shown != (self._parts, self._total, self._foot, self._beside, self._foot_token):
            self._parts, self._total, self._foot, self._beside, self._foot_token = shown
            self.repaint()

    def paint(self, width: int, height: int, tokens: Tokens) -> list[Strip]:
        if not self._parts and self._total is None:
            return [strip_of([(self._empty, "muted")], width, tokens)]
        last = 0 if self._total is None else 1
        foot = styled.wrap([(self._foot, self._foot_token)], width) if self._foot else []
        others = (
            self._beside
            if last and height >= len(self._parts) + len(foot) + len(self._beside) + 2
            else ()
        )
        if self._beside and not others:
            words = [f"{part.label} {bytes_text(_known_bytes(part))}" for part in self._beside]
            foot = styled.wrap(
                [(" · ".join([self._foot, *words] if self._foot else words), self._foot_token)],
                width,
            )
        foot = foot if height >= len(foot) + 3 else []
        parts = _fold(self._parts, max(height - last - len(foot), 1))
        rule = last and height >= len(parts) + len(foot) + len(others) + 2
        everything = [*parts, *others, self._total] if self._total is not None else parts
        whole = None if self._total is None else self._total.amount
        known = not isinstance(whole, Unknown) and whole is not None
        scale = float(whole) if known else max((_known_bytes(part) for part in parts), default=0.0)  # type: ignore[arg-type]
        shape = _Shape.of(everything, width, scale, known)
        lines = [self._line(part, shape, tokens) for part in parts]
        if rule:
            lines.append(strip_of([("─" * width, "border")], width, tokens))
        if self._total is not None:
            lines.append(self._line(self._total, shape, tokens, whole=True))
        # what the total leaves out is no share of it
        lines += [self._line(part, replace(shape, share=0, bar=0), tokens) for part in others]
        return lines + [strip_of(line, width, tokens) for line in foot]

    def _line(self, part: Part, shape: _Shape, tokens: Tokens, whole: bool = False) -> Strip:
        glyphs = tokens.glyphs
        unknown = isinstance(part.amount, Unknown)
        then = ""
        if not isinstance(part.amount, Unknown):
            value = bytes_text(part.amount)
        elif part.amount.code == OLD:
            value, then = DASH, f"  ({part.amount.text})"
        else:
            value = unknown_text(part.amount, shape.value)
        value = glyphs.about + value if part.about and not unknown else value
        name, figure = ("title", "title") if whole else ("muted" if part.indent else "text", "text")
        pieces = [
            (fit("  " * part.indent + part.label, shape.label, ellipsis=glyphs.ellipsis), name),
            ("  " + fit(value, shape.value, "right"), "muted" if unknown else figure),
        ]
        if then:  # what it was is no share of what is used now
            pieces.append((then, "faint"))
            return strip_of(styled.cut(pieces, shape.width, glyphs.ellipsis), shape.width, tokens)
        if shape.share:
            share = (
                ""
                if unknown or shape.scale <= 0
                else percent_text(_known_bytes(part) / shape.scale, whole=True)
            )
            pieces.append((fit(share, shape.share, "right"), "muted"))
        if shape.bar:
            pieces.append(("  ", "text"))
            if whole:
                bars = [(other.amount, other.token) for other in self._parts if not other.indent]
                pieces += stacked_bar(
                    bars, None if unknown else shape.scale, shape.bar, glyphs, slim=True
                )
            elif unknown or _known_bytes(part) > 0:
                bar = stacked_bar(
                    [(part.amount, part.token)],
                    shape.scale,
                    shape.bar,
                    glyphs._replace(track=" ", groove=" "),
                    slim=True,
                )
                pieces += bar if part.now is None else _mark_moment(bar, part, shape, glyphs.moment)
        return strip_of(styled.cut(pieces, shape.width, glyphs.ellipsis), shape.width, tokens)


@dataclass(frozen=True, slots=True)
class _Shape:
    """Cells of each column, 0 where there is no room for it, and the bytes of a full bar."""

    width: int
    label: int
    value: int
    share: int
    bar: int
    scale: float

    @classmethod
    def of(cls, parts: Sequence[Part], width: int, scale: float, shares: bool) -> _Shape:
        """Return the shape of a waterfall of this width.

        With ``shares`` the scale is the whole, so that percentages of it have a meaning.
        """
        label = max(text_cells(part.label) + 2 * part.indent for part in parts)
        value = 10
        label = min(label, max(width - value - 12, width * 2 // 5, 8))
        rest = width - label - 2 - value
        share = 6 if shares and rest >= 22 else 0
        return cls(width, label, value, share, max(rest - share - 2, 0), scale)


def _mark_moment(bar: Line, part: Part, shape: _Shape, mark: str) -> Line:
    """The bar of a part with a mark where it would end now, if that is not where it ends."""
    if shape.scale <= 0:
        return bar
    ends, now = (
        round(min(size / shape.scale, 1.0) * shape.bar)
        for size in (_known_bytes(part), part.now or 0.0)
    )
    if now == ends:
        return bar
    place = min(now, shape.bar - 1)
    pieces, at = [], 0
    for text, spec in bar:
        cut_at = place - at
        if 0 <= cut_at < len(text):
            pieces += [(text[:cut_at], spec), (mark, "title"), (text[cut_at + 1 :], spec)]
        else:
            pieces.append((text, spec))
        at += len(text)
    return [piece for piece in pieces if piece[0]]


def _known_bytes(part: Part) -> float:
    return 0.0 if isinstance(part.amount, Unknown) else max(float(part.amount), 0.0)


def _fold(parts: Sequence[Part], room: int) -> list[Part]:
    """Return at most ``room`` rows, of which the last may stand for several.

    Details go first, the smallest of them before the others, then the smallest parts become one
    row. What is unknown is folded last: it may be the largest.
    """
    kept = list(parts)

    def size(part: Part) -> float:
        return float("inf") if isinstance(part.amount, Unknown) else _known_bytes(part)

    details = sorted((part for part in kept if part.indent), key=size)
    while len(kept) > room and details:
        kept.remove(details.pop(0))
    if len(kept) <= room:
        return kept
    ranked = sorted(kept, key=size)
    folded = ranked[: len(kept) - room + 1]
    hidden = sum(isinstance(part.amount, Unknown) for part in folded)
    label = f"{len(folded)} smaller" + (f", {hidden} unknown" if hidden else "")
    rest = Part(label, sum(_known_bytes(part) for part in folded), "other")
    return [part for part in kept if part not in folded] + [rest]
