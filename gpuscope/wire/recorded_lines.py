"""Takes lines out of a recording's members: unwrapped, bounded and checked.

Lines are held back until a checksum covers them. This module uses only the standard library.
"""

from __future__ import annotations

import json
import re
import zlib
from itertools import takewhile
from typing import Any, Iterator, List, NamedTuple, Optional

from .frames import MAX_LINE_BYTES

MAX_UNCHECKED_BYTES = 4 << 20
"""At most this many bytes are held back; a writer adds a checksum long before."""
DAMAGED = "the recording is damaged here"
_MAX_WRAPPED_BYTES = MAX_LINE_BYTES + 256
_MAX_IDLE_BYTES = 4 << 20
_CHECK = re.compile(rb'\{"crc":(\d{1,10})(,"end":true)?\}')
_WRAPPED = re.compile(rb'\{"@":(\d{1,6}),"rx":(\d{1,12}(?:\.\d{1,9})?),"l":(\{.*\})\}', re.DOTALL)


class Line(NamedTuple):
    """A wire line with the number of its source, and seconds since the recording's start."""

    source: int
    rx: float
    line: bytes


class Stop(Exception):
    """Reading ends here; ``code`` is one of :class:`~gpuscope.wire.recording.Problem`."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


def until_damage(member: Any, data: bytes) -> bytes:
    """Return all data before the damage, unpacked.

    ``decompress`` alone returns nothing for a piece of data that ends in an error.
    """
    out = bytearray()
    try:
        for at in range(len(data)):
            out += member.decompress(data[at : at + 1])
            if len(out) > MAX_UNCHECKED_BYTES:
                break
    except zlib.error:
        pass
    return bytes(out)


class LineBuffer:
    """Cuts one member into lines and holds them back until a checksum covers them.

    The checksum is in a check line, or is the gzip member's own.
    """

    def __init__(self) -> None:
        self.ended = False
        self._partial = b""
        self._held: List[Line] = []
        self._held_bytes = 0
        self._idle_bytes = 0
        self._crc = 0

    def take(self, data: bytes) -> Iterator[Line]:
        *lines, self._partial = (self._partial + data).split(b"\n")
        for line in lines:
            check = _CHECK.fullmatch(line)
            if check is not None:
                if int(check[1]) != self._crc:
                    raise Stop("damaged", DAMAGED)
                yield from self.release()
                self.ended = check[2] is not None
            else:
                self._hold(line)
                if self._held_bytes > MAX_UNCHECKED_BYTES:
                    yield from self.release()
            self._crc = zlib.crc32(b"\n", zlib.crc32(line, self._crc))
        if len(self._partial) > _MAX_WRAPPED_BYTES:
            raise Stop("too_large", f"the recording has a line of more than {MAX_LINE_BYTES} bytes")

    def release(self) -> Iterator[Line]:
        held, self._held, self._held_bytes = self._held, [], 0
        return iter(held)

    def release_unchecked(self) -> Iterator[Line]:
        """Release what no checksum covers, up to the first line that is no JSON.

        A damaged member may unpack to garbage up to its end without an error.
        """
        return takewhile(_is_json, self.release())

    def _hold(self, line: bytes) -> None:
        if len(line) > _MAX_WRAPPED_BYTES:
            raise Stop("too_large", f"the recording has a line of more than {MAX_LINE_BYTES} bytes")
        parsed = _unwrap(line)
        if parsed is not None:
            self._held.append(parsed)
            self._held_bytes += len(line)
            self._idle_bytes = 0
        else:
            self._idle_bytes += max(len(line), 256)
            if self._idle_bytes > _MAX_IDLE_BYTES:
                raise Stop("too_large", "the recording has no frames for too long")


def _is_json(line: Line) -> bool:
    try:
        json.loads(line.line)
    except (ValueError, RecursionError):
        return False
    return True


def _unwrap(line: bytes) -> Optional[Line]:
    match = _WRAPPED.fullmatch(line)
    if match is None:
        return None  # the header line, or no line of ours
    return Line(int(match[1]), float(match[2]), match[3])
