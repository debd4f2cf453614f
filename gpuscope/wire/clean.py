"""Makes text from outside safe to show: what would move the cursor, reorder, hide or inject becomes visible.

A process may call itself ``ESC ]52;…`` and a terminal would obey: every string is cleaned where it enters the viewer.
Stdlib only.
"""

from __future__ import annotations

import re

from .frames import MAX_STRING_CHARS

# C0, DEL and C1 control; Arabic letter mark, Mongolian vowel separator, zero-width and direction marks, line and
# paragraph separators, bidi embeddings and isolates, invisible operators; byte order mark, interlinear annotation; lone
# surrogates; invisible tag characters.
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    "\U000e0000-\U000e007f]"
)
REPLACEMENT = "\ufffd"


def clean(text: str, limit: int = MAX_STRING_CHARS) -> str:
    """``text`` with control characters as ``\\xNN``, invisible and reordering ones as U+FFFD, and at most ``limit``
    characters; what was cut ends with "…". Clean text comes back as it is."""
    if len(text) > limit:
        text = text[: max(limit - 1, 0)] + "…"[:limit]
    if text.isascii() and text.isprintable():
        return text
    if _UNSAFE.search(text) is None:
        return text
    text = _UNSAFE.sub(_visible, text)
    return text if len(text) <= limit else text[: max(limit - 1, 0)] + "…"[:limit]


def _visible(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0xA0 else REPLACEMENT
