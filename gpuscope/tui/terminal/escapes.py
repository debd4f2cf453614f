"""This module takes Esc and a key behind it apart where both arrive at once.

They do over a slow link, or through a multiplexer. To a terminal program an escape and a letter
that come together are Alt and the letter. Nothing here is bound to Alt, and who leaves a dialog
with Esc and goes on with a key means both: so they are made two keys. What begins with an
escape and ``[`` or ``O`` stays as it is: arrows, function keys, the mouse, answers of the
terminal.

Of pasted text the escapes are dropped (coloured output, copied in a multiplexer): the parser
would give out what follows one as keys, and text must not press ``q``.
"""

from __future__ import annotations

import re

_ESC = "\x1b"
_UNMISTAKABLE = "[27u"
"""Behind an escape: the key Esc, as terminals write it that tell keys from sequences (fixterms,
kitty).
"""
_SEQUENCE = "[O\x1b"
"""What may follow an escape that is not a key by itself; behind the second of two, the first is one
already.
"""
_KEY = re.compile(rf"{_ESC}(?=[^{re.escape(_SEQUENCE)}])", re.DOTALL)

_PASTE, _PASTE_END = _ESC + "[200~", _ESC + "[201~"
_NO_KEY_YET = 3
"""From this length on, the beginning of a sequence is not a key, even if its end never comes."""


class Escapes:
    """What the terminal sends, on its way to the parser."""

    def __init__(self) -> None:
        self._open = False
        """Whether an escape came last: the parser then waits for the rest of a sequence."""
        self._pasting = False
        self._held = ""
        """The first half of the mark of pasted text, while the other half has not arrived."""

    def apart(self, data: str) -> str:
        """Return ``data`` with each escape that is a key written apart.

        Such an escape cannot be taken for the beginning of another; pasted text has none left.
        The answer may be "" of half a mark.
        """
        data, self._held, ready = self._held + data, "", ""
        while data:
            mark, least = (_PASTE_END, 1) if self._pasting else (_PASTE, _NO_KEY_YET)
            text, met, data = data.partition(mark)
            half = (
                0
                if met
                else next(
                    (n for n in range(len(mark) - 1, least - 1, -1) if text.endswith(mark[:n])), 0
                )
            )
            text, self._held = text[: len(text) - half], text[len(text) - half :]
            ready += (text.replace(_ESC, "") if self._pasting else self._typed(text)) + met
            if met:
                self._pasting, self._open = not self._pasting, False
        return ready

    def _typed(self, data: str) -> str:
        if not data:
            return data
        begun, self._open = self._open and data[0] not in _SEQUENCE, data.endswith(_ESC)
        return begun * _UNMISTAKABLE + _KEY.sub(_ESC + _UNMISTAKABLE, data)

    def decided(self) -> None:
        """Note that the parser has waited long enough, so that the escape was a key."""
        self._open = False
