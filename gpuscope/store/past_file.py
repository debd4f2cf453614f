"""Read a recording or a black box at once, for those who judge what is over.

Lines that are no frames are passed over, and readers raise for no file: what is wrong with it is in
``reader.problem``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from ..wire.codec import WireError
from ..wire.frames import Frame
from ..wire.recorded_lines import Line
from ..wire.recording import RecordingReader
from .blackbox import BoxReader, is_box
from .decode import decode
from .store import Store

Reader = RecordingReader | BoxReader
MAX_LINES = 400_000
"""The most lines that are read of the last part of a file."""
MAX_SOURCES = 64
LAST_SECONDS = 900.0
"""Only this last part of a file is read to judge it, because older trouble no longer matters."""


def reader_of(path: str | Path) -> Reader:
    """Return the reader for the kind of this file."""
    return BoxReader(path) if is_box(path) else RecordingReader(path)


def last_lines(reader: Reader, seconds: float = LAST_SECONDS) -> Iterator[Line]:
    """Return the lines of about the last seconds, from where all definitions are repeated."""
    members = reader.index()
    last = max((member.rx for member in members), default=0.0)
    offsets = [member.offset for member in members if member.rx <= last - seconds]
    return islice(reader.lines(offsets[-1] if offsets else 0), MAX_LINES)


def frames_in(lines: Iterable[Line]) -> Iterator[tuple[Line, Frame]]:
    """Yield the lines that are frames."""
    for line in lines:
        try:
            yield line, decode(line.line)
        except WireError:
            continue


def store_of(lines: Iterable[Line], name: str) -> Store:
    """Return what the lines tell, each source under its number; ``name`` is that of the file."""
    store, known = Store(), set[int]()
    for line, frame in frames_in(lines):
        if line.source not in known and len(known) < MAX_SOURCES:
            known.add(line.source)
            store.add_source(str(line.source), name)
        if line.source in known:
            store.apply(str(line.source), frame, line.rx)
    return store
