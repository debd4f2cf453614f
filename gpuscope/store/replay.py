"""Let a recording stand in for the agent.

The recorded lines go through the same decoder, at the intervals at which they were received.

A file may hold several sources. Each is a :class:`ReplaySource` of its own, and all share one
:class:`ReplayClock`, so that pause, speed and seek act on all of them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from ..wire.clean import clean
from ..wire.codec import WireError
from ..wire.frames import REQUESTS, Frame, Result, Scalar
from ..wire.recorded_lines import Line
from ..wire.recording import Member, RecordingReader
from .blackbox import BoxReader
from .decode import decode
from .past_file import Reader, frames_in, reader_of
from .pending_requests import OnProgress, SourceError
from .source import OnLink, Sink, Tap
from .view import RECORDING_ENDS, Capabilities, Link

BADGE = "REPLAY"
NOT_LIVE = "this is a recording: there is no process to ask"
MIN_SPEED, MAX_SPEED = 0.1, 100.0
LEAD_SECONDS = 60.0
"""When seeking, this much before the moment is read too, because charts show it."""
_NUMBER = 0  # number of the source in the file: a recorder has only one
_LINES_PER_TURN = 64
_TRAINER = b'"trainer"'
# bytes that are unpacked to find the last time: one member, unless the file was packed again
_DURATION_BYTES = 256 << 20


class ReplayClock:
    """The position of a replay, in seconds since the start of the recording.

    A change wakes all who wait for the clock.
    """

    def __init__(self, duration: float) -> None:
        self.duration = duration
        self.speed = 1.0
        self.paused = False
        self.generation = 0
        """Increases with every seek."""
        self._position = 0.0
        self._since: float | None = None  # None until it is started
        self._changed = asyncio.Event()

    @property
    def position(self) -> float:
        if self.paused or self._since is None:
            return self._position
        return min(self._position + (time.monotonic() - self._since) * self.speed, self.duration)

    def start(self) -> None:
        """Start the clock; a second call changes nothing."""
        self._since = time.monotonic() if self._since is None else self._since

    def pause(self) -> None:
        self._set(paused=True)

    def resume(self) -> None:
        self._set(paused=False)

    def set_speed(self, factor: float) -> None:
        """Play at this multiple of the recorded speed, from ``MIN_SPEED`` to ``MAX_SPEED``."""
        self._set(speed=min(max(factor, MIN_SPEED), MAX_SPEED))

    def seek(self, seconds: float) -> None:
        """Go to a moment, also backwards. Moments beyond the ends mean the ends."""
        self.generation += 1
        self._set(position=min(max(seconds, 0.0), self.duration))

    def _set(
        self, position: float | None = None, speed: float | None = None, paused: bool | None = None
    ) -> None:
        self._position = self.position if position is None else position
        self._since = None if self._since is None else time.monotonic()
        self.speed = self.speed if speed is None else speed
        self.paused = self.paused if paused is None else paused
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait_until(self, seconds: float, generation: int) -> bool:
        """Wait until the replay reaches ``seconds``.

        Return False if a seek went elsewhere meanwhile.
        """
        while self.generation == generation and self.position < min(seconds, self.duration):
            left = None if self.paused else (seconds - self.position) / self.speed
            await self.wait_for_change(left)
        return self.generation == generation

    async def wait_for_change(self, timeout: float | None = None) -> None:
        try:
            await asyncio.wait_for(self._changed.wait(), timeout)
        except (asyncio.TimeoutError, TimeoutError):
            pass


class ReplaySource:
    """One source of a recording. It serves no requests except to move in time."""

    badge = BADGE

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.key = f"replay:{self.path.name}:{_NUMBER}"
        self.label = clean(self.path.name, 80)
        self.taps: list[Tap] = []
        self._reader = reader_of(path)
        self._members = self._reader.index()
        self.clock = ReplayClock(_duration(self._reader, path, self._members))
        self.lead_seconds = LEAD_SECONDS
        self.ended = False
        """Whether the last line was delivered."""
        self.first_trainer_seconds: float | None = None
        """Where the first trainer is told of, None while that is not known, and where none is."""
        self._closing = asyncio.Event()

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(dict.fromkeys(REQUESTS, NOT_LIVE))

    @property
    def problem(self) -> str:
        """Return what is wrong with the file; "" if nothing was found so far."""
        return self._reader.problem.text if self._reader.problem else ""

    @property
    def position_seconds(self) -> float:
        """Return the seconds since the start of the recording."""
        return self.clock.position

    @property
    def duration_seconds(self) -> float:
        return self.clock.duration

    @property
    def paused(self) -> bool:
        return self.clock.paused

    @property
    def speed(self) -> float:
        return self.clock.speed

    @property
    def fast(self) -> bool:
        """Whether it plays faster than its time has passed."""
        return self.speed > 1 and not self.paused

    def pause(self) -> None:
        self.clock.pause()

    def resume(self) -> None:
        self.clock.resume()

    def toggle_pause(self) -> None:
        if self.paused:
            self.resume()
        else:
            self.pause()

    def set_speed(self, factor: float) -> None:
        self.clock.set_speed(factor)

    def seek(self, seconds: float) -> None:
        """Start again at a key frame and go from there to ``seconds`` at once.

        The key frame lies at least ``lead_seconds`` earlier.
        """
        self.clock.seek(seconds)

    def seek_by(self, seconds: float) -> None:
        """Go so far from where it is; a step forward that ends before any trainer goes to one."""
        here, first = self.position_seconds, self.first_trainer_seconds
        wanted = here + seconds
        self.seek(
            max(wanted, first) if first is not None and seconds > 0 and here < first else wanted
        )

    def show_before(self, seconds: float) -> None:
        """From now on include this much before a sought moment, and read what is missing."""
        longer = seconds > self.lead_seconds
        self.lead_seconds = max(seconds, LEAD_SECONDS)
        if longer:
            self.seek(self.position_seconds)

    async def run(self, sink: Sink, on_link: OnLink) -> None:
        """Play until :meth:`close`. At the end of the file it waits for a seek."""
        if not self._reader.header:
            on_link(Link("ended", self.problem))
            return
        self.clock.start()
        closing = asyncio.create_task(self._closing.wait())
        playing = asyncio.create_task(self._play_on(sink, on_link))
        finding = asyncio.create_task(self._find_first_trainer())
        try:
            await asyncio.wait({closing, playing}, return_when=asyncio.FIRST_COMPLETED)
            if playing.done():
                playing.result()
        finally:
            for task in (closing, playing, finding):
                task.cancel()
        on_link(Link("ended", "closed"))

    async def _play_on(self, sink: Sink, on_link: OnLink) -> None:
        while True:
            generation = self.clock.generation
            self.ended = False
            on_link(Link("replay", ""))
            await self._play(generation, sink)
            if self.clock.generation == generation:
                self.ended = True
                on_link(Link("replay", self.problem or RECORDING_ENDS))
                while self.clock.generation == generation:
                    await self.clock.wait_for_change()

    async def _play(self, generation: int, sink: Sink) -> None:
        start = self._member_before(self.clock.position - self.lead_seconds)
        for count, line in enumerate(self._reader.lines(start)):
            if count % _LINES_PER_TURN == 0:
                await asyncio.sleep(0)
            if line.source != _NUMBER:
                continue
            if not await self.clock.wait_until(line.rx, generation):
                return
            self._deliver(line, sink)

    def frames(self) -> Iterator[tuple[float, Frame]]:
        """Read the whole recording once more: the place of each frame in it, and the frame."""
        for line, frame in frames_in(reader_of(self.path).lines()):
            if line.source == _NUMBER:
                yield line.rx, frame

    async def _find_first_trainer(self) -> None:
        """Find where the first trainer is told of; only a line that may is decoded."""
        for count, line in enumerate(reader_of(self.path).lines()):
            if count % _LINES_PER_TURN == 0:
                await asyncio.sleep(0)
            if line.source != _NUMBER or _TRAINER not in line.line:
                continue
            if any(getattr(frame, "trainer", None) for _, frame in frames_in([line])):
                self.first_trainer_seconds = line.rx
                return

    def _deliver(self, line: Line, sink: Sink) -> None:
        try:
            frame = decode(line.line)
        except WireError:
            return
        now = time.monotonic()
        sink(frame, now)
        for tap in self.taps:
            tap(line.line, frame, now)

    def _member_before(self, position: float) -> int:
        """Return where to begin reading for ``position``.

        It is the last place before it that has all definitions of this source.
        """
        before = [
            member.offset
            for member in self._members
            if member.source == _NUMBER and member.rx <= position
        ]
        return before[-1] if before else 0

    async def request(
        self,
        name: str,
        args: Mapping[str, Scalar],
        deadline: float = 10.0,
        on_progress: OnProgress | None = None,
        blob_to: Path | None = None,
        max_bytes: int = 0,
    ) -> Result:
        raise SourceError("unsupported", f"{name}: {NOT_LIVE}")

    def prelude(self) -> list[bytes]:
        return []

    async def close(self) -> None:
        self._closing.set()


def _duration(reader: Reader, path: str | Path, members: list[Member]) -> float:
    last = 0.0
    bounded = reader if isinstance(reader, BoxReader) else RecordingReader(path, _DURATION_BYTES)
    for line in bounded.lines(members[-1].offset if members else 0):
        last = max(last, line.rx)
    return max([last, *(member.rx for member in members)])
