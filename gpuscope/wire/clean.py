"""Makes text from outside safe to show.

Characters that would move the cursor, reorder text, hide it or inject commands are made visible. A
process may name itself ``ESC ]52;…``, and a terminal would obey that. So every string from outside
is cleaned when it enters the viewer, and the arguments of a command when they are printed. This
module uses only the standard library.
"""

from __future__ import annotations

import re
import unicodedata

from .frames import MAX_STRING_CHARS

_CONTROLS = "\x00-\x1f\x7f-\x9f\ud800-\udfff"  # C0, DEL and C1; lone surrogates
# marks, line ends, embeddings and isolates
_REORDERING = "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
# Characters without width that show nothing: soft hyphen, joiners, fillers, invisible operators,
# annotations, tags, reserved ones.
_INVISIBLE = (
    "\u00ad\u034f\u070f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200d\u2060-\u2065\u206a-\u206f\u3164\ufeff\uffa0"
    "\ufff0-\ufffb\U00013430-\U00013455\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e00ff"
    "\U000e01f0-\U000e0fff"
)
_SELECTORS = "\ufe00-\ufe0f\U000e0100-\U000e01ef"
_UNSAFE = re.compile(f"[{_CONTROLS}{_REORDERING}{_INVISIBLE}{_SELECTORS}]")
# Variation selectors are invisible too. They are kept behind characters whose form they select:
# symbols and Chinese characters.
_SYMBOL = re.compile(
    "[#*0-9\u00a9\u00ae\u203c-\u21ff\u2300-\u27bf\u2900-\u2bff\u3030-\u303d\u3297-\u3299\U0001f000-\U0001faff]"
)
_IDEOGRAPH = re.compile("[\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
REPLACEMENT = "\ufffd"
MAX_MARKS = 4
"""Accents and similar marks allowed on one letter. A larger stack of them would cover the lines
above.
"""
_SCRIPTS = (
    "\u0300-\u036f\u0483-\u0489\u0591-\u1cff\u1dc0-\u1dff\u20d0-\u20ff\u2cef-\u2dff\u302a-\u302f\u3099\u309a\ua66f-\uabff"
    "\ud7b0-\ud7ff\ufb1e\ufe00-\ufe2f\U00010000-\U0001efff\U000e0100-\U000e01ef"
)
"""Unicode ranges that contain combining marks. Only text with characters from these ranges is
examined character by character.
"""
_MAYBE_MARKS = re.compile(f"^[{_SCRIPTS}]|[{_SCRIPTS}]{{{MAX_MARKS + 1},}}")


def clean(text: str, limit: int = MAX_STRING_CHARS) -> str:
    """Return ``text`` with everything in it visible, and at most ``limit`` characters long.

    Control characters become ``\\xNN``, invisible and reordering ones U+FFFD, and no letter has
    more than ``MAX_MARKS`` accents. What was cut ends with "…". Clean text comes back as it is.
    """
    text = limited(text, limit)
    if text.isascii() and text.isprintable():
        return text
    safe = _UNSAFE.sub(_visible, text)
    safe = _MAYBE_MARKS.sub(_limit_marks, safe)
    if safe == text:
        return text
    return limited(safe, limit)


def limited(text: str, limit: int) -> str:
    """Return at most ``limit`` characters of a text; the last one is "…" if it was cut."""
    return text if len(text) <= limit else text[: max(limit - 1, 0)] + "…"[:limit]


def clean_lines(text: str) -> str:
    """Clean ``text`` of several lines. Line ends are kept, and no line is cut."""
    return "\n".join(clean(line, 4 * len(line)) for line in text.split("\n"))


def _visible(match: re.Match[str]) -> str:
    char, before = match[0], match.string[max(match.start() - 1, 0) : match.start()]
    if char in "\ufe0e\ufe0f" and _SYMBOL.match(before):
        return char
    if ("\ufe00" <= char <= "\ufe02" or "\U000e0100" <= char <= "\U000e01ef") and _IDEOGRAPH.match(
        before
    ):
        return char
    return f"\\x{ord(char):02x}" if char < "\xa0" else REPLACEMENT


def _limit_marks(match: re.Match[str]) -> str:
    """Return a run of characters in which no letter has more than ``MAX_MARKS`` marks.

    If there are more, one U+FFFD replaces all of them.
    """
    kept: list[str] = []
    marks = 0
    for char in match[0]:
        marks = marks + 1 if _is_mark(char) else 0
        if not kept and marks and not match.start():
            kept.append("\u25cc")  # they would stand on what we print before
        if marks <= MAX_MARKS:
            kept.append(char)
        elif marks == MAX_MARKS + 1:
            kept.append(REPLACEMENT)
    return "".join(kept)


def _is_mark(char: str) -> bool:
    """Whether the character has no width: it is a mark, or a later part of a Korean syllable."""
    return (
        "\u1160" <= char <= "\u11ff"
        or "\ud7b0" <= char <= "\ud7ff"
        or unicodedata.category(char) in ("Mn", "Me")
    )
