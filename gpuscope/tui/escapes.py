"""Esc and a key behind it, where both arrive at once: over a slow link, or through a multiplexer.

To a terminal program an escape and a letter that come together are Alt and the letter. Nothing here is bound to Alt,
and who leaves a dialog with Esc and goes on with a key means both: so they are made two keys. What begins with an
escape and ``[`` or ``O`` stays as it is: arrows, function keys, the mouse, answers of the terminal.
"""

from __future__ import annotations

import re

_ESC = "\x1b"
_UNMISTAKABLE = "[27u"
"""Behind an escape: the key Esc, as terminals write it that tell keys from sequences (fixterms, kitty)."""
_SEQUENCE = "[O\x1b"
"""What may follow an escape that is not a key by itself; behind the second of two, the first is one already."""
_KEY = re.compile(rf"{_ESC}(?=[^{re.escape(_SEQUENCE)}])", re.DOTALL)


class Escapes:
    """What the terminal sends, on its way to the parser."""

    def __init__(self) -> None:
        self._open = False
        """An escape came last: the parser waits a moment for what belongs to it."""

    def apart(self, data: str) -> str:
        """``data`` with each escape that is a key written so that it cannot be taken for the beginning of another."""
        if not data:
            return data
        begun, self._open = self._open and data[0] not in _SEQUENCE, data.endswith(_ESC)
        return begun * _UNMISTAKABLE + _KEY.sub(_ESC + _UNMISTAKABLE, data)

    def decided(self) -> None:
        """The parser has waited long enough: the escape was a key."""
        self._open = False
