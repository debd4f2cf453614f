"""Keep of a log of any size its beginning, its end, and the lines around what looks like trouble.

A job leaves hundreds of logs, and most of each says that all is well. A log is read once, in
chunks, at the speed at which bytes are searched.
"""

from __future__ import annotations

import gzip
import lzma
import zlib
from collections import deque
from collections.abc import Sequence
from typing import IO, Any

from ..file_kinds import GZIP, XZ
from ..messages.reading import decoded

CHUNK_BYTES = 4 << 20
HEAD_BYTES = 24 << 10
LEAST_TAIL_BYTES, MOST_TAIL_BYTES = 64 << 10, 1 << 20
ALL_TAILS_BYTES = 16 << 20
"""The ends of all logs of a job are together at most so large."""
BEFORE_BYTES, AFTER_BYTES = 2 << 10, 12 << 10
"""How much is kept before and after a sign of trouble."""
FIRST_WINDOWS, LAST_WINDOWS = 16, 48
OF_A_RANK = (b"Traceback (most", b"Watchdog caught", b"Fatal Python")
"""What is searched in the part of a rank's log that is neither its beginning nor its end."""
OF_OTHERS = (
    *OF_A_RANK,
    b"exitcode",
    b"out of memory",
    b"(SIG",
    b"slurmstepd",
    b"Xid",
)
"""What is searched in logs of launchers, schedulers and kernels, and in those of several ranks."""
MOST_HITS = 64
"""How many hits of one needle are kept of one chunk, the first half and the last half of them."""


class LogExcerpt:
    """The kept lines of a log, each with its number from 1, and the size of the whole log.

    ``problem`` says why reading ended early.
    """

    def __init__(self) -> None:
        self.lines: list[tuple[int, str]] = []
        self.bytes_read = 0
        self.problem = ""


def tail_bytes(logs: int) -> int:
    """Return how much of the end of each log is kept if a job has this many logs."""
    return max(LEAST_TAIL_BYTES, min(MOST_TAIL_BYTES, ALL_TAILS_BYTES // max(logs, 1)))


def read(stream: IO[bytes], tail: int, needles: Sequence[bytes] = OF_OTHERS) -> LogExcerpt:
    """Return the excerpt of an open log, which may be packed by gzip or xz.

    ``tail`` is how many bytes of its end are kept.
    """
    excerpt = LogExcerpt()
    source: Any = stream
    begin = stream.read(6)
    stream.seek(0)
    if begin.startswith(GZIP):
        source = gzip.GzipFile(fileobj=stream)
    elif begin == XZ:
        source = lzma.open(stream)  # noqa: SIM115, which is of the stream of the caller
    kept = _Kept(tail, needles)
    rest = b""
    while True:
        try:
            piece = source.read(CHUNK_BYTES)
        except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
            excerpt.problem = str(error)
            break
        if not piece:
            break
        excerpt.bytes_read += len(piece)
        end = piece.rfind(b"\n") + 1
        if not end and len(rest) < 2 * CHUNK_BYTES:
            rest += piece
            continue
        kept.add(rest + piece[:end] if rest else piece[:end] if end else piece)
        rest = piece[end:] if end else b""
    if rest:
        kept.add(rest)
    excerpt.lines = [(number, decoded(line)) for number, line in kept.lines()]
    return excerpt


class _Kept:
    """Collects the windows of a log while its chunks go by."""

    def __init__(self, tail: int, needles: Sequence[bytes]) -> None:
        self._tail = tail
        self._needles = needles
        self._first: list[tuple[int, bytes]] = []
        self._last: deque[tuple[int, bytes]] = deque(maxlen=LAST_WINDOWS)
        self._end: tuple[int, bytes] = (1, b"")
        self._number = 1

    def add(self, data: bytes) -> None:
        if self._number == 1 and not self._first:
            end = data.rfind(b"\n", 0, HEAD_BYTES) + 1 or min(len(data), HEAD_BYTES)
            self._first.append((1, data[:end]))
        begin = max(0, len(data) - self._tail)
        if begin:  # what is in the last part is kept as the end, or searched with the next chunk
            self._search(data)
            begin = data.find(b"\n", begin) + 1
            self._number += data.count(b"\n", 0, begin)
            self._end = (self._number, data[begin:])
        else:
            number, before = self._end
            joined = before + data
            if len(joined) > 2 * self._tail:
                cut = joined.find(b"\n", len(joined) - self._tail) + 1
                number, joined = number + joined.count(b"\n", 0, cut), joined[cut:]
            self._end = (number, joined)
        self._number += data.count(b"\n", begin)

    def _search(self, data: bytes) -> None:
        hits: set[int] = set()
        for needle in self._needles:
            found: list[int] = []
            at = data.find(needle)
            while at >= 0 and len(found) < MOST_HITS:
                found.append(at)
                at = data.find(needle, at + AFTER_BYTES)
            if at >= 0:
                found = found[: MOST_HITS // 2]
                at = data.rfind(needle)
                while at >= 0 and len(found) < MOST_HITS:
                    found.append(at)
                    at = data.rfind(needle, 0, max(at - AFTER_BYTES, 0))
            hits.update(found)
        done = -1
        line, counted = self._number, 0
        for at in sorted(hits):
            if at < done:
                continue
            begin = max(data.rfind(b"\n", 0, max(at - BEFORE_BYTES, 0)) + 1, counted)
            done = min(at + AFTER_BYTES, len(data))
            end = data.find(b"\n", done) + 1 or len(data)
            line, counted = line + data.count(b"\n", counted, begin), begin
            window = (line, data[begin:end])
            if len(self._first) <= FIRST_WINDOWS:
                self._first.append(window)
            else:
                self._last.append(window)

    def lines(self) -> list[tuple[int, bytes]]:
        """Return the kept lines in their order, each once."""
        numbered: dict[int, bytes] = {}
        for first, data in [*self._first, *self._last, self._end]:
            pieces = data.split(b"\n")
            if pieces and not pieces[-1]:
                pieces.pop()
            numbered.update((first + i, piece) for i, piece in enumerate(pieces))
        return sorted(numbered.items())
