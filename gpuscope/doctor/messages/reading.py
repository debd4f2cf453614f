"""Reduce a log of any size to the lines around those that indicate trouble.

Memory is bounded: the log is read in chunks, a chunk is searched for a few words at the speed of
``bytes.find``, and only the windows around hits, the beginning and the end are kept. A small log is
kept whole.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from os import PathLike
from typing import IO, cast

from ...wire.loss_text import training_losses

CHUNK_BYTES = 4 * 1024 * 1024
WHOLE_BYTES = 512 * 1024
"""A log up to this size in bytes is kept whole."""
HEAD_LINES = 40
TAIL_LINES = 300
BEFORE_LINES = 40
AFTER_LINES = 30
FIRST_WINDOWS = 24
LAST_WINDOWS = 24
LINE_BYTES = 4000
"""A longer line is reduced to its beginning and its end."""
FIGURE_LINES = 512
"""How many lines with a memory figure are kept for the trend, spread evenly over the log."""

CHUNK_FIGURES = 64
"""How many lines with a memory figure are examined in one chunk."""

# Every message that a rule reads contains one of these words; a log that repeats one of them in
# each line is still bounded. The case of letters is that of torch and its libraries, because
# converting a chunk to lower case would double the work.
NEEDLES = tuple(
    word.encode()
    for word in (
        "rror",
        "out of memory",
        "Traceback (most",
        "xception",
        "illed",
        "SIGKILL",
        "sigkill",
        "egmentation fault",
        "access fault",
        "oom",
        "OOM",
        "DataLoader",
        "dataloader",
        "NCCL",
        "_limit",
        "capability",
        "did not receive grad",
        "raph break",
        "would exceed",
        "nan",
        "NaN",
        "ssert",
        "ailed",
        "Warning",
        "exitcode",
        "return code",
        "fatal ",
        "MiB /",
        "too old",
        "Duplicate GPU",
    )
)
# A loss or a norm that is not finite. Both begin with a literal text, which makes the search as
# fast as that for a word.
_NOT_FINITE = (
    re.compile(
        rb"oss[\"']?\s{0,3}[:=]?\s{0,3}[\"']?\s{0,3}(?:[nN][aA][nN]|[-+]?[iI][nN][fF])(?![A-Za-z\d])"
    ),
    re.compile(rb"norm[\"']?\s{0,3}[:=]\s{0,3}[\"']?[nN][aA][nN](?![A-Za-z\d])"),
)
_PRINTED = re.compile(rb"[\r\n]")
LOSSES_BEFORE = 64
"""How many of the lines with a loss before the first one that is not finite are kept."""

MOST_HITS = 1000
"""How many hits of one word are examined in a chunk; more are the program's usual output."""


@dataclass(slots=True)
class Excerpt:
    """The part of a log that is kept.

    - ``lines``: (number from 1, raw text) of each line that is kept. ``cut`` says that other lines
      are missing.
    - ``bytes_read`` counts the whole log. ``binary`` says that it is not text.
    - ``figures``: lines with a memory figure, from the whole log.
    """

    lines: list[tuple[int, str]] = field(default_factory=list)
    bytes_read: int = 0
    binary: bool = False
    cut: bool = False
    figures: list[tuple[int, str]] = field(default_factory=list)


def read(source: Iterable[str] | IO[bytes] | IO[str] | str | PathLike[str]) -> Excerpt:
    """Return an excerpt of a path, an open stream (bytes or text) or lines.

    Raises OSError where a path cannot be read.
    """
    if isinstance(source, (str, PathLike)):
        with open(source, "rb") as stream:
            return _read(_stream_chunks(stream))
    if hasattr(source, "read"):
        return _read(_stream_chunks(cast("IO[bytes]", source)))
    return _read(_line_chunks(source))


def _stream_chunks(stream: IO[bytes] | IO[str]) -> Iterator[bytes]:
    rest = b""
    while piece := stream.read(CHUNK_BYTES):
        data = piece if isinstance(piece, bytes) else piece.encode("utf-8", "replace")
        end = data.rfind(b"\n") + 1
        if not end and len(rest) + len(data) < 2 * CHUNK_BYTES:
            rest += data
            continue
        yield rest + data[:end] if end else rest + data
        rest = data[end:] if end else b""
    if rest:
        yield rest


def _line_chunks(lines: Iterable[str]) -> Iterator[bytes]:
    kept: list[bytes] = []
    size = 0
    for line in lines:
        data = line.rstrip("\r\n").encode("utf-8", "replace") + b"\n"
        kept.append(data)
        size += len(data)
        if size >= CHUNK_BYTES:
            yield b"".join(kept)
            kept, size = [], 0
    if kept:
        yield b"".join(kept)


class _Windows:
    """Keeps the first and the last windows around hits, and counts those between them."""

    def __init__(self) -> None:
        self.first: list[tuple[int, list[bytes]]] = []
        self.last: deque[tuple[int, list[bytes]]] = deque(maxlen=LAST_WINDOWS)
        self.dropped = 0

    def add(self, number: int, lines: list[bytes]) -> None:
        if len(self.first) < FIRST_WINDOWS:
            self.first.append((number, lines))
            return
        self.dropped += len(self.last) == LAST_WINDOWS
        self.last.append((number, lines))


class _Figures:
    """Keeps at most ``FIGURE_LINES`` lines: every 2^k-th one of all that came."""

    def __init__(self) -> None:
        self.kept: list[tuple[int, bytes]] = []
        self.every, self.seen = 1, 0

    def add(self, number: int, line: bytes) -> None:
        if self.seen % self.every == 0:
            if len(self.kept) == FIGURE_LINES:
                self.kept, self.every = self.kept[::2], self.every * 2
            self.kept.append((number, line[:400]))
        self.seen += 1


def _read(chunks: Iterator[bytes]) -> Excerpt:
    found = Excerpt()
    start: list[bytes] = []
    for chunk in chunks:
        start.append(chunk)
        found.bytes_read += len(chunk)
        if found.bytes_read > WHOLE_BYTES:
            break
    head = b"".join(start)
    found.binary = _is_binary(head[:65536])
    if found.binary:
        return found
    if found.bytes_read <= WHOLE_BYTES:
        found.lines = [(i, decoded(line)) for i, line in enumerate(head.split(b"\n"), 1)]
        return found
    windows, figures, tail = _Windows(), _Figures(), b""
    turned = False
    numbered: dict[int, bytes] = {}
    number = 1
    for data in chain((head,), chunks):
        if number > 1:
            found.bytes_read += len(data)
        else:
            for i, line in enumerate(data.split(b"\n", HEAD_LINES)[:HEAD_LINES], 1):
                numbered[i] = line
        _search(data, number, windows, figures)
        if not turned:
            at = _first_not_finite(data)
            turned = at >= 0
            if turned:
                numbered.update(_losses_before(data, at, number))
        number += data.count(b"\n")
        tail = (tail + data)[-256 * 1024 :] if len(data) < 256 * 1024 else data[-256 * 1024 :]
    found.cut = True
    for first, lines in [*windows.first, *windows.last]:
        numbered.update((first + i, line) for i, line in enumerate(lines))
    last = tail.rstrip(b"\n").split(b"\n")[1:][-TAIL_LINES:]
    end = number - (1 if tail.endswith(b"\n") else 0)
    numbered.update((end - len(last) + 1 + i, line) for i, line in enumerate(last))
    found.lines = [(i, decoded(line)) for i, line in sorted(numbered.items())]
    found.figures = [(i, decoded(line)) for i, line in figures.kept]
    return found


def _search(data: bytes, number: int, windows: _Windows, figures: _Figures) -> None:
    """Add the windows of one chunk, whose first line has this ``number``."""
    hits: set[int] = set()
    for needle in NEEDLES:
        at, count = data.find(needle), 0
        found = []
        while at >= 0 and count < MOST_HITS:
            found.append(data.rfind(b"\n", 0, at) + 1)
            end = data.find(b"\n", at)
            if end < 0:
                break
            at, count = data.find(needle, end), count + 1
        if count < MOST_HITS:
            hits.update(found)
        else:
            hits.update(found[:8])
    line, counted = number, 0
    done = -1
    for at in sorted(hits):
        if at < done:
            continue
        begin = _go_back(data, at, BEFORE_LINES)
        end = _go_forth(data, at, AFTER_LINES)
        line += (
            data.count(b"\n", counted, begin)
            if begin >= counted
            else -data.count(b"\n", begin, counted)
        )
        counted = begin
        windows.add(line, data[begin:end].split(b"\n"))
        done = _go_forth(data, at, AFTER_LINES // 2)
    at, line, counted = data.find(b"mem"), number, 0
    while at >= 0:
        begin = data.rfind(b"\n", 0, at) + 1
        end = data.find(b"\n", at)
        end = len(data) if end < 0 else end
        line += data.count(b"\n", counted, begin)
        counted = begin
        figures.add(line, data[begin:end])
        at = data.find(b"mem", max(end, begin + len(data) // CHUNK_FIGURES))


def _first_not_finite(data: bytes) -> int:
    """Return where the first training loss is that is NaN or infinite, -1 where none is."""
    first = -1
    for pattern in _NOT_FINITE:
        for count, match in enumerate(pattern.finditer(data)):
            if count == MOST_HITS or 0 <= first < match.start():
                break
            at = match.start()
            begin = max(data.rfind(b"\n", 0, at), data.rfind(b"\r", 0, at)) + 1
            end = _PRINTED.search(data, match.end())
            line = data[max(begin, at - LINE_BYTES) : end.start() if end else len(data)]
            losses = training_losses(line[:LINE_BYTES].decode("utf-8", "replace"))
            if any(not math.isfinite(float(loss)) for loss in losses):
                first = at
                break
    return first


def _losses_before(data: bytes, at: int, number: int) -> Iterator[tuple[int, bytes]]:
    """Yield the lines with a loss up to and with the one at ``at``, and their numbers."""
    for _ in range(LOSSES_BEFORE + 1):
        begin = data.rfind(b"\n", 0, at) + 1
        yield number + data.count(b"\n", 0, begin), data[begin : _go_forth(data, begin, 1)]
        at = data.rfind(b"oss", 0, begin)
        if at < 0:
            return


def _go_back(data: bytes, at: int, lines: int) -> int:
    """Return where the line begins that is this many lines before ``at``."""
    for _ in range(lines):
        if at <= 0:
            return 0
        at = data.rfind(b"\n", 0, at - 1) + 1
    return at


def _go_forth(data: bytes, at: int, lines: int) -> int:
    """Return where the line ends that is this many lines after ``at``."""
    for _ in range(lines):
        end = data.find(b"\n", at)
        if end < 0:
            return len(data)
        at = end + 1
    return max(at - 1, 0)


def decoded(line: bytes) -> str:
    """Return a line as text; a very long one keeps its beginning and its end.

    A progress bar is one line for a whole epoch: of that, also the place is kept where the loss
    turns NaN.
    """
    if len(line) > LINE_BYTES:
        half = LINE_BYTES // 2
        at = _first_not_finite(line[half:-half]) if b"\r" in line else -1
        turn = b"" if at < 0 else line[max(at, half) : half + at + half // 2] + b"\r ... \r"
        line = line[:half] + (b"\r ... \r" if turn else b" ... ") + turn + line[-half:]
    return line.rstrip(b"\r").decode("utf-8", "replace")


def _is_binary(data: bytes) -> bool:
    """Return whether the data contains a zero byte or many bytes that no text contains.

    UTF-16 counts as binary.
    """
    if b"\0" in data:
        return True
    odd = len(data) - len(
        data.translate(None, bytes(i for i in range(32) if i not in (7, 8, 9, 10, 12, 13, 27)))
    )
    return odd > len(data) // 20 and odd > 8
