"""Writes the frames of sources to a recording, and makes a recording without a screen."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .. import __version__
from ..wire.frames import Bye, Def, Event, Frame, Hello, Key, Sample
from ..wire.recording import FLUSH_SECONDS, RecordingError, RecordingWriter
from .source import OnLink, Source, Tap

_RECORDED = (Sample, Def, Event, Key, Hello, Bye)
"""The kinds of frames that are kept. Answers to requests and blobs concern one viewer only."""


BEGIN_SECONDS = 60.0
"""How long to wait for the first frame of a far host before a recording of fixed length begins."""


class Recorder:
    """A recording that is being made. Needs a running event loop; :meth:`close` ends it.

    If recording stops early, ``failed`` is set and ``error`` says why, for instance because the
    disk is full. Raises :class:`~gpuscope.wire.recording.RecordingError` if the file cannot be
    made, or exists.
    """

    def __init__(
        self, path: str | Path, redact: bool = False, label: str = "", overwrite: bool = False
    ) -> None:
        self.error = ""
        self.failed = asyncio.Event()
        self._began = time.monotonic()
        self._writer = RecordingWriter(path, redact, label, __version__, overwrite)
        self._taps: list[tuple[Source, Tap]] = []
        self._timer = asyncio.get_running_loop().call_later(FLUSH_SECONDS, self._flush)

    @property
    def path(self) -> Path:
        return self._writer.path

    @property
    def lines(self) -> int:
        """Return how many wire lines were written so far."""
        return self._writer.lines

    @property
    def size_bytes(self) -> int:
        """Return how many bytes were written so far."""
        return self._writer.size_bytes

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def begin_at(self, received_seconds: float) -> None:
        """Let the recording begin with a frame that was received at this moment.

        The time to connect to a far host is not part of the recording.
        """
        if not self._writer.lines:
            self._began = received_seconds

    def attach(self, source: Source) -> None:
        """Record ``source`` from now on, beginning with its current definitions and reasons."""

        def tap(line: bytes, frame: Frame, received_seconds: float) -> None:
            if isinstance(frame, _RECORDED):
                self._keep(source.key, received_seconds - self._began, line)

        for line in source.prelude():
            self._keep(source.key, self.seconds, line)
        source.taps.append(tap)
        self._taps.append((source, tap))

    def close(self) -> None:
        """Stop recording and write the end of the file."""
        self._timer.cancel()
        for source, tap in self._taps:
            if tap in source.taps:
                source.taps.remove(tap)
        self._taps.clear()
        with self._noting():
            self._writer.close()

    def _keep(self, source: str, rx: float, line: bytes) -> None:
        if not self.error:
            with self._noting():
                self._writer.write(source, rx, line)

    @contextmanager
    def _noting(self) -> Iterator[None]:
        try:
            yield
        except RecordingError as error:
            self.error = self.error or str(error)
            self.failed.set()

    def _flush(self) -> None:
        if not self.error:
            with self._noting():
                self._writer.flush()
        self._timer = asyncio.get_running_loop().call_later(FLUSH_SECONDS, self._flush)


@dataclass(frozen=True)
class RecordingSummary:
    """What was recorded. ``error`` says why it ended early, or is ""."""

    path: Path
    lines: int
    seconds: float
    size_bytes: int
    error: str


async def record(
    source: Source,
    path: str | Path,
    seconds: float | None = None,
    redact: bool = False,
    overwrite: bool = False,
    on_link: OnLink | None = None,
) -> RecordingSummary:
    """Record ``source`` for ``seconds`` from its first frame, or until it ends.

    SIGINT, SIGTERM or SIGHUP end it too, and the file is complete then.

    Raises :class:`~gpuscope.wire.recording.RecordingError` if the file cannot be made, or exists.
    """
    recorder = Recorder(path, redact, source.label, overwrite)
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    handled = []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        try:
            loop.add_signal_handler(number, stop.set)
        except (ValueError, RuntimeError, NotImplementedError):
            continue  # not in the main thread: our caller ends us by cancelling
        handled.append(number)
    recorder.attach(source)
    begun = asyncio.Event()

    def first(_: Frame, received_seconds: float) -> None:
        if not begun.is_set():
            recorder.begin_at(received_seconds)
            begun.set()

    running = asyncio.ensure_future(source.run(first, on_link or (lambda link: None)))
    ends = {
        running,
        asyncio.ensure_future(stop.wait()),
        asyncio.ensure_future(recorder.failed.wait()),
    }
    beginning = asyncio.ensure_future(begun.wait())
    try:
        patience = None if seconds is None else seconds + BEGIN_SECONDS
        await asyncio.wait(
            {beginning, *ends}, timeout=patience, return_when=asyncio.FIRST_COMPLETED
        )
        if beginning.done():
            await asyncio.wait(ends, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for number in handled:
            loop.remove_signal_handler(number)
        await source.close()
        beginning.cancel()
        for end in ends:
            end.cancel()
        await asyncio.wait(ends)
        lasted = recorder.seconds
        recorder.close()
    return RecordingSummary(
        recorder.path, recorder.lines, lasted, recorder.size_bytes, recorder.error
    )
