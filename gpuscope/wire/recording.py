"""Recordings: wire lines in a gzip file that allows seeking and survives truncation and damage.

The file is a sequence of gzip members. The first one holds the header line. Every hello and every
key frame begins another member, which starts with a copy of the hello, so that reading can begin
there. A line is ``{"@":source,"rx":seconds,"l":{…wire line…}}``. About once a second a check line
``{"crc":…}`` covers the member so far, and everything is flushed. So a truncated file loses about a
second, and in a damaged file nothing is shown that was not verified. The last line of a recording
says whether it was closed properly.

Nothing that is read here is trusted. Sizes are bounded, the reader raises no exception, and its
``problem`` says what is wrong.
"""

from __future__ import annotations

import json
import os
import re
import time
import zlib
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import IO, Any, Dict, Iterator, List, NamedTuple, Optional, Union

from ..errors import UserError, other_format
from . import codec
from .clean import clean
from .files import open_regular
from .frames import Hello, Key
from .recorded_lines import DAMAGED, MAX_UNCHECKED_BYTES, Line, LineBuffer, Stop, until_damage
from .redact import Redactor

VERSION = 1
MAX_TOTAL_BYTES = 8 << 30
"""Limit of the uncompressed size: days of a large host. Reading stops at this limit."""
FLUSH_SECONDS = 1.0
_READ_BYTES = 64 << 10
# The header that zlib writes with default settings: no name, no time, system Unix. It lets members
# be found without unpacking the whole file.
_MEMBER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03"
_GZIP = 31
_OUT_BYTES = 256 << 10
_MAX_MEMBERS = 100_000
_START = re.compile(rb'\{"@":(\d{1,6}),"rx":(\d{1,12}(?:\.\d{1,9})?),"l":\{')


class RecordingError(UserError):
    """A recording that cannot be written. The text says why."""


@dataclass(frozen=True)
class Problem:
    """The reason why reading a recording stopped, ``offset`` bytes into the file.

    ``code`` is unreadable, not_a_recording, other_format, cut, damaged or too_large.
    """

    code: str
    text: str
    offset: int = 0


class Member(NamedTuple):
    """A part of the file where reading can begin.

    It has its offset in the file, and the first line's time and source.
    """

    offset: int
    rx: float
    source: int


# ── writing ───────────────────────────────────────────────────────────────────────────────────────


class RecordingWriter:
    """Writes a recording. It refuses to overwrite an existing file unless ``overwrite`` is true.

    With ``redact`` users, hosts, paths, commands and script names are replaced (see
    ``wire.redact``). Raises :class:`RecordingError` if the file cannot be written.
    """

    def __init__(
        self,
        path: Union[str, Path],
        redact: bool = False,
        label: str = "",
        version: str = "",
        overwrite: bool = False,
    ) -> None:
        self.path = Path(path)
        self.lines = 0
        self.size_bytes = 0
        self._redactor = Redactor() if redact else None
        self._sources: Dict[str, int] = {}
        self._hellos: Dict[int, Hello] = {}
        self._flushed = time.monotonic()
        self._unchecked = self._crc = 0
        flags = os.O_TRUNC if overwrite else os.O_EXCL
        try:
            # Opened without blocking, because opening a FIFO that nobody reads would wait forever.
            fd = os.open(
                path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK | flags, 0o666
            )
            self._file: IO[bytes] = open(fd, "wb")  # noqa: SIM115
        except FileExistsError:
            name = clean(str(path))
            raise RecordingError(
                f"{name} exists already. Choose another name, or remove it first."
            ) from None
        except OSError as error:
            raise self._failed(error) from None
        self._begin_member()
        header = {
            "k": "recording",
            "v": VERSION,
            "version": version,
            "t": time.time(),
            "redacted": redact,
            "label": "" if redact else label,
        }
        self._write(json.dumps(header).encode("ascii"))
        self._end_member()
        self._begin_member()

    def write(self, source: str, rx: float, line: bytes) -> None:
        """Record one wire line that came from ``source``, ``rx`` seconds after the start.

        ``source`` is a name of any kind and is not written. A line that is no frame, or of a
        kind that a redacted recording does not keep, is left out.
        """
        number = self._sources.setdefault(source, len(self._sources))
        line = line.strip()
        begins = line.startswith((b'{"k":"hello"', b'{"k":"key"'))
        if begins or self._redactor is not None:
            try:
                frame = codec.decode(line)
            except codec.WireError:
                return
            if self._redactor is not None:
                kept = self._redactor.frame(frame)
                if kept is None:
                    return
                frame, line = kept, codec.encode(kept).rstrip()
            if isinstance(frame, Hello):
                self._hellos[number] = frame
                self._next_member()
            elif isinstance(frame, Key) and number in self._hellos:
                self._next_member()
                hello = replace(self._hellos[number], t=frame.t, m=frame.m)
                self._wrap(number, rx, codec.encode(hello).rstrip())
        elif not (line.startswith(b"{") and line.endswith(b"}")) or b"\n" in line:
            return
        self._wrap(number, rx, line)
        self.lines += 1
        if (
            self._unchecked > MAX_UNCHECKED_BYTES // 4
            or time.monotonic() - self._flushed >= FLUSH_SECONDS
        ):
            self.flush()

    def flush(self) -> None:
        """Write everything so far to disk, with a checksum that covers it."""
        if self._unchecked:
            self._write(b'{"crc":%d}' % self._crc, count=False)
            self._unchecked = 0
            self._put(self._member.flush(zlib.Z_SYNC_FLUSH), flush=True)
        self._flushed = time.monotonic()

    def close(self) -> None:
        """Write the end of the recording and close the file."""
        if not self._file.closed:
            try:
                self._write(b'{"crc":%d,"end":true}' % self._crc, count=False)
                self._end_member()
            finally:
                self._close_file()

    def __enter__(self) -> RecordingWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _wrap(self, number: int, rx: float, line: bytes) -> None:
        self._empty = False
        self._write(b'{"@":%d,"rx":%.3f,"l":%b}' % (number, max(rx, 0.0), line))

    def _write(self, line: bytes, count: bool = True) -> None:
        line += b"\n"
        self._crc = zlib.crc32(line, self._crc)
        self._unchecked += len(line) if count else 0
        self._put(self._member.compress(line))

    def _begin_member(self) -> None:
        self._member = zlib.compressobj(6, zlib.DEFLATED, _GZIP)
        self._crc = 0
        self._unchecked = 0
        self._empty = True

    def _end_member(self) -> None:
        self._put(self._member.flush(), flush=True)

    def _next_member(self) -> None:
        if not self._empty:
            self._end_member()
            self._begin_member()

    def _put(self, data: bytes, flush: bool = False) -> None:
        try:
            self.size_bytes += self._file.write(data)
            if flush:
                self._file.flush()
        except OSError as error:
            raise self._failed(error) from None

    def _failed(self, error: OSError) -> RecordingError:
        return RecordingError(f"cannot write {clean(str(self.path))}: {error.strerror}")

    def _close_file(self) -> None:
        try:
            self._file.close()
        except OSError:
            pass  # what could not be written was already reported


# ── reading ───────────────────────────────────────────────────────────────────────────────────────


class RecordingReader:
    """Reads a recording, and never raises because of what is in the file.

    Iteration ends where something is wrong, and ``problem`` then says what; it is None after the
    regular end. ``header`` is empty if the file is not a recording that can be read.
    """

    def __init__(self, path: Union[str, Path], max_total_bytes: int = MAX_TOTAL_BYTES) -> None:
        self.path = Path(path)
        self.problem: Optional[Problem] = None
        self.header: Dict[str, Any] = {}
        self._max_total_bytes = max_total_bytes
        try:
            with self._open() as file:
                self._read_header(file)
        except OSError as error:
            self.problem = self._unreadable(error)

    def _open(self) -> IO[bytes]:
        return open_regular(self.path)

    def _unreadable(self, error: OSError) -> Problem:
        return Problem("unreadable", f"cannot read {clean(str(self.path))}: {error.strerror}")

    def _read_header(self, file: IO[bytes]) -> None:
        try:
            text = zlib.decompressobj(_GZIP).decompress(file.read(_READ_BYTES), _READ_BYTES)
            line, newline, _ = text.partition(b"\n")
            header = json.loads(line) if newline else None
        except (zlib.error, ValueError, RecursionError):
            header = None
        if (
            not isinstance(header, dict)
            or header.get("k") != "recording"
            or type(header.get("v")) is not int
        ):
            what = (
                "is not a gpuscope recording, or its start is missing. `gpuscope record "
                "FILE` makes one."
            )
            self.problem = Problem("not_a_recording", f"{clean(str(self.path))} {what}")
        elif header["v"] != VERSION:
            other = other_format(str(self.path), header["v"], VERSION, header.get("version"))
            self.problem = Problem(other.code, clean(other.sentence))
        else:
            self.header = {
                key: clean(value) if isinstance(value, str) else value
                for key, value in header.items()
            }

    def __iter__(self) -> Iterator[Line]:
        return self.lines()

    def lines(self, offset: int = 0) -> Iterator[Line]:
        """Yield the lines from the member at offset ``start`` on (0: all).

        They are verified, except for the last second of a file that was cut.
        """
        if not self.header:
            return
        self.problem = None
        try:
            with self._open() as file:
                file.seek(offset)
                yield from self._lines(file)
        except OSError as error:
            self.problem = self._unreadable(error)

    def _lines(self, file: IO[bytes]) -> Iterator[Line]:
        member, buffer = zlib.decompressobj(_GZIP), LineBuffer()
        data, total = b"", 0
        try:
            while True:
                if not data:
                    data = file.read(_READ_BYTES)
                    if not data:
                        break
                if member.eof:
                    member, buffer = zlib.decompressobj(_GZIP), LineBuffer()
                before = member.copy()
                try:
                    out = member.decompress(data, _OUT_BYTES)
                except zlib.error:
                    yield from buffer.take(until_damage(before, data))
                    raise Stop("damaged", DAMAGED) from None
                total += len(out)
                if total > self._max_total_bytes:
                    raise Stop(
                        "too_large", f"it unpacks to more than {self._max_total_bytes} bytes"
                    )
                yield from buffer.take(out)
                data = member.unused_data if member.eof else member.unconsumed_tail
                if member.eof:
                    yield from buffer.release()
        except Stop as stop:
            if stop.code == "too_large":
                yield from buffer.release_unchecked()
            self.problem = Problem(
                stop.code, f"{stop}. Everything before is shown.", file.tell() - len(data)
            )
            return
        yield from buffer.release_unchecked()
        if not (member.eof and buffer.ended):
            text = "the recording is truncated or was never closed. What is there is shown."
            self.problem = Problem("cut", text, file.tell())

    def index(self) -> List[Member]:
        """Return the places where reading can begin, in order, without unpacking the file."""
        members: List[Member] = []
        if not self.header:
            return members
        try:
            with self._open() as file:
                for offset in islice(_find(file, _MEMBER), _MAX_MEMBERS):
                    member = _member_at(file, offset)
                    if member is not None:
                        members.append(member)
        except OSError as error:
            self.problem = self._unreadable(error)
        return members


def _find(file: IO[bytes], needle: bytes) -> Iterator[int]:
    position, tail = 0, b""
    while True:
        file.seek(position)
        data = file.read(1 << 20)
        if not data:
            return
        text, base = tail + data, position - len(tail)
        at = text.find(needle)
        while at >= 0:
            yield base + at
            at = text.find(needle, at + 1)
        position += len(data)
        tail = text[-(len(needle) - 1) :]


def _member_at(file: IO[bytes], offset: int) -> Optional[Member]:
    file.seek(offset)
    try:
        match = _START.match(zlib.decompressobj(_GZIP).decompress(file.read(4096), 256))
    except zlib.error:
        return None
    return Member(offset, float(match[2]), int(match[1])) if match else None
