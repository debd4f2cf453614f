"""A terminal behind a slow link.

It reads what is drawn at a fixed rate, and only then answers questions.
"""

from __future__ import annotations

import os
import select
import time

from bench.terminal import Terminal

CHUNK_SECONDS = 0.02
STATUS_ASKED, STATUS_GIVEN = b"\x1b[5n", b"\x1b[0n"


class SlowTerminal(Terminal):
    """Reads ``bytes_per_second``, in small pieces.

    ``answers``: when it is asked for its status, it answers as terminals do, after it has drawn
    everything before the question. ``arrived`` holds the time at which each piece came.
    """

    def __init__(
        self,
        argv: list[str],
        columns: int,
        rows: int,
        env: dict[str, str],
        bytes_per_second: float,
        answers: bool = True,
    ) -> None:
        self.rate, self.answers = bytes_per_second, answers
        self.arrived: list[tuple[float, bytes]] = []
        self._free = time.perf_counter()
        super().__init__(argv, columns, rows, env)

    def _read(self, timeout: float) -> None:
        now = time.perf_counter()
        if now < self._free:
            time.sleep(min(self._free - now, timeout))
            return
        if not select.select([self.fd], [], [], timeout)[0]:
            self._free = time.perf_counter()
            return
        try:
            data = os.read(self.fd, max(int(self.rate * CHUNK_SECONDS), 1))
        except OSError:
            data = b""
        if not data:
            self.ended = True
        now = time.perf_counter()
        self._free = max(self._free, now - CHUNK_SECONDS) + len(data) / self.rate
        asked = (self.tail[-len(STATUS_ASKED) + 1 :] + data).count(STATUS_ASKED)
        if asked and self.answers:
            os.write(self.fd, STATUS_GIVEN * asked)
        self.bytes_read += len(data)
        self.tail = (self.tail + data)[-(1 << 18) :]
        self.arrived.append((self._free, data))

    def seconds_to_see(self, keys: str, glyph: bytes, timeout: float = 20.0) -> float:
        """Return the seconds from pressing ``keys`` until ``glyph`` has come through the link."""
        self.arrived.clear()
        began = time.perf_counter()
        self.send(keys)
        seen = b""
        at = 0
        while time.perf_counter() - began < timeout:
            self._read(0.05)
            for when, data in self.arrived[at:]:
                seen += data
                if glyph in seen:
                    return max(when - began, 0.0)
            at = len(self.arrived)
        raise TimeoutError(f"{keys!r} showed no {glyph!r}")

    def burst(self, keys: str, gap: float = 0.12, timeout: float = 20.0) -> tuple[float, int]:
        """Return seconds and bytes from pressing ``keys`` until all that follows has come.

        That is when nothing comes for ``gap`` seconds.
        """
        self.arrived.clear()
        began = time.perf_counter()
        self.send(keys)
        while time.perf_counter() - began < timeout:
            self._read(0.02)
            last = self.arrived[-1][0] if self.arrived else None
            if last is not None and time.perf_counter() - last > gap:
                break
        return self.arrived[-1][0] - began, sum(len(data) for _, data in self.arrived)
