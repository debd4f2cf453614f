"""Read the output of the ranks of a run.

Rank 0's records are passed on, and everything else becomes a log with the rank before each line.
Each rank writes into two named pipes, ``N.out`` and ``N.err``. This process holds both ends of
every pipe open, so that no rank waits for a reader, and the end of a rank does not end the reading.
"""

from __future__ import annotations

import os
import selectors
import sys
import threading
import time
from collections import deque
from typing import BinaryIO

from . import metrics

LAST_LINES = 20
MAX_ERROR_BYTES = 4000
"""Limit for one line of a log; the rest of a longer line is left out."""
TICK_SECONDS = 0.2


class Relay:
    """Reads the pipes of ``processes`` ranks in a thread until :meth:`finish`."""

    def __init__(self, folder: str, processes: int, stream: BinaryIO):
        self.ended: bytes | None = None
        """Rank 0's last record, which is held back until all ranks have ended."""
        self.failures: dict[int, metrics.RunFailure] = {}
        """What each rank has reported about its own end."""
        self.failed_at: dict[int, float] = {}
        self.step = 0
        """The newest step that rank 0 has reported."""
        self._stream = stream
        self._last: dict[int, deque[str]] = {
            rank: deque(maxlen=LAST_LINES) for rank in range(processes)
        }
        self._pipes = selectors.DefaultSelector()
        self._rest: dict[tuple[int, str], bytes] = {}
        for rank in range(processes):
            for name in ("out", "err"):
                path = os.path.join(folder, f"{rank}.{name}")
                os.mkfifo(path, 0o600)
                self._pipes.register(
                    os.open(path, os.O_RDWR | os.O_NONBLOCK), selectors.EVENT_READ, (rank, name)
                )
        self._finished = threading.Event()
        self._thread = threading.Thread(target=self._read, name="lab-relay", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Wait until everything that the ranks have written is read. The ranks must have ended."""
        self._finished.set()
        self._thread.join()

    def write(self, line: bytes) -> None:
        """Write one record to the parent; it is no error if nobody reads."""
        try:
            self._stream.write(line if line.endswith(b"\n") else line + b"\n")
            self._stream.flush()
        except (BrokenPipeError, ValueError):
            pass

    def last_line(self, rank: int) -> str:
        """Return the last line of ``rank`` on stderr, "" if there is none."""
        return self._last[rank][-1] if self._last[rank] else ""

    def _read(self) -> None:
        while True:
            finished = self._finished.is_set()
            ready = self._pipes.select(0 if finished else TICK_SECONDS)
            for key, _ in ready:
                try:
                    data = os.read(key.fd, 1 << 16)
                except BlockingIOError:
                    continue
                rank, name = key.data
                self._take(rank, name, data)
            if finished and not ready:
                break
        for (rank, name), rest in self._rest.items():
            if rest:
                self._line(rank, name, rest)
        for key in list(self._pipes.get_map().values()):
            os.close(key.fd)
        self._pipes.close()

    def _take(self, rank: int, name: str, data: bytes) -> None:
        *lines, rest = (self._rest.get((rank, name), b"") + data).split(b"\n")
        for line in lines:
            self._line(rank, name, line)
        limit = metrics.MAX_LINE_BYTES if name == "out" else MAX_ERROR_BYTES
        self._rest[rank, name] = rest[: limit + 1]

    def _line(self, rank: int, name: str, line: bytes) -> None:
        record = metrics.decode(line) if name == "out" else None
        if record is None:
            text = line[:MAX_ERROR_BYTES].decode(errors="replace").rstrip()
            if text:
                self._last[rank].append(text)
                print(f"[rank {rank}] {text}", file=sys.stderr, flush=True)
        elif isinstance(record, metrics.RunFailure):
            self.failures.setdefault(rank, record)
            self.failed_at.setdefault(rank, time.monotonic())
        elif rank == 0:
            if isinstance(record, metrics.RunEnded):
                self.ended = line
                return
            if isinstance(record, metrics.Step):
                self.step = record.step
            self.write(line)
