"""Text that fits: widths in terminal cells, numbers with their units, and the last guard before the terminal.

Widths are those a terminal uses (CJK and emoji take two cells, combining marks none), so columns stay straight.
Every public function returns text that is safe to print.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Literal

from rich.cells import cell_len

from ..text.units import GIB as GIB
from ..text.units import KIB as KIB
from ..text.units import MIB as MIB
from ..text.width import ELLIPSIS, cut, pad
from ..text.width import cells as text_cells

if TYPE_CHECKING:
    from ..wire.frames import Unknown

Align = Literal["left", "right", "centre"]


# C0, DEL, C1, bidi marks and overrides, zero-width and joiner characters, line and paragraph separators, variation
# selectors, tags, lone surrogates: none of these may reach a terminal, the first because they command it, the others
# because they reorder text or make its width unpredictable.
_UNSAFE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e01ef\ud800-\udfff]"
)
_COMBINING: Final = "[\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20f0\ufe20-\ufe2f]"
_PILE: Final = re.compile(f"({_COMBINING}{{3}}){_COMBINING}+")
_DROPPED: Final = frozenset("\xad\u200b\u200c\u200d\u2060\ufeff") | {chr(c) for c in range(0xFE00, 0xFE10)}


def visible(text: str) -> str:
    """``text`` with nothing in it that a terminal obeys: controls become their pictures (␛), a tab a space,
    direction overrides U+FFFD; invisible joiners are dropped, piles of combining marks cut to three.

    U+FFFD also stands for characters that Textual, which lays the screen out, takes for wider or narrower than we do:
    only newer Unicode tables know them. Terminals disagree on them as well, and columns would not stay straight.
    """
    if text.isascii() and text.isprintable():
        return text
    return _made_visible(text) if len(text) <= 256 else _made_visible.__wrapped__(text)


@lru_cache(maxsize=2048)
def _made_visible(text: str) -> str:
    """Cached: borders and bars come again with every line drawn."""
    text = _PILE.sub(_first_three, _UNSAFE.sub(_picture, text))
    if cell_len(text) == text_cells(text):
        return text
    return "".join(char if cell_len(char) == text_cells(char) else "\ufffd" * max(text_cells(char), 1) for char in text)


def _first_three(match: re.Match[str]) -> str:
    return match[1]


def _picture(match: re.Match[str]) -> str:
    char = match[0]
    code = ord(char)
    if char == "\t":
        return " "
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "␡"
    return "" if char in _DROPPED else "\ufffd"


def fit(text: str, cells: int, align: Align = "left", ellipsis: str = ELLIPSIS) -> str:
    """``text`` made safe, cut with an ellipsis or padded with spaces to exactly ``cells`` cells."""
    return pad(cut(visible(text), cells, ellipsis), cells, align)


# ── numbers with units ────────────────────────────────────────────────────────────────────────────────────────────────


def gib(count: float) -> str:
    """Bytes as GiB without the unit, for columns that name it: ``"69.7"``, ``"0.04"``, ``"1024"``."""
    value = count / GIB
    if not math.isfinite(value):
        return "–"
    if abs(value) >= 1000:
        return f"{value:.0f}"
    return f"{value:.2f}" if 0 < abs(value) < 0.095 else f"{value:.1f}"


def bytes_text(count: float) -> str:
    """Bytes with a unit: GiB, below 0.1 GiB MiB, below 0.1 MiB KiB, then B."""
    if not math.isfinite(count):
        return "–"
    size = abs(count)
    if size >= 1024 * GIB:
        return f"{count / (1024 * GIB):.2f} TiB"
    if size >= 0.1 * GIB:
        return f"{count / GIB:.1f} GiB"
    if size >= 0.1 * MIB:
        return f"{count / MIB:.0f} MiB" if size >= 10 * MIB else f"{count / MIB:.1f} MiB"
    if size >= KIB:
        return f"{count / KIB:.0f} KiB"
    return f"{count:.0f} B"


def sides_text(more: float, less: float) -> str:
    """How many bytes more and how many less a figure may be, in one unit: ``"+9.1 −0.4 GiB"``."""
    size, unit = (GIB, "GiB") if more >= GIB / 10 else (MIB, "MiB")
    up, down = (f"{side / size:.{1 if side >= size / 10 else 2}f}" for side in (more, less))
    return f"+{up} −{down} {unit}"


def seconds_text(seconds: float) -> str:
    """A measured duration, three digits: ``"312 µs"``, ``"52.6 ms"``, ``"1.84 s"``, ``"2 min 05 s"``."""
    if not math.isfinite(seconds):
        return "–"
    size = abs(seconds)
    if size >= 60:
        return age_text(seconds)
    if size >= 1:
        return f"{_three(seconds)} s"
    if size >= 1e-3:
        return f"{_three(seconds * 1e3)} ms"
    return f"{_three(seconds * 1e6)} µs" if size else "0 s"


def _three(value: float) -> str:
    size = abs(value)
    return f"{value:.0f}" if size >= 99.95 else f"{value:.1f}" if size >= 9.995 else f"{value:.2f}"


def age_text(seconds: float) -> str:
    """How long ago, or how long still: ``"now"``, ``"8 s"``, ``"2 min 05 s"``, ``"3 h 20 min"``, ``"5 d 2 h"``."""
    if not math.isfinite(seconds):
        return "–"
    sign, whole = ("-", int(-seconds)) if seconds < 0 else ("", int(seconds))
    if whole == 0:
        return "now"
    if whole < 60:
        return f"{sign}{whole} s"
    if whole < 3600:
        return f"{sign}{whole // 60} min {whole % 60:02d} s"
    if whole < 86400:
        return f"{sign}{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{sign}{whole // 86400} d {whole % 86400 // 3600} h"


def percent(value: float, digits: int = 0) -> str:
    """``"95%"``. Never rounds up to 100 or down to 0 what is not."""
    if not math.isfinite(value):
        return "–"
    text = f"{value:.{digits}f}"
    if value < 100 and float(text) >= 100:
        text = f"{100 - 10**-digits:.{digits}f}"
    if value > 0 and float(text) == 0:
        return f"<{10**-digits:.{digits}f}%"
    return f"{text}%"


def unknown_text(unknown: Unknown, cells: int | None = None) -> str:
    """A dash and the short reason where there is room for it: ``"– no permission"``, else ``"–"``."""
    text = f"– {unknown.code.replace('_', ' ')}"
    return visible(text) if cells is None or text_cells(text) <= cells else "–"
