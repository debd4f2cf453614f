"""Make the frames that an agent would send, tick by tick, for a viewer in the same process.

The viewer watches this host only for a moment.
"""

from __future__ import annotations

import time
from typing import Any, Callable, List, Optional

from ..wire.frames import Frame, Request
from .as_sent import AgentOptions
from .assembler import Assembler
from .hello import hello
from .oneshot import ProbeSearch, is_complete, keep_stdout
from .picture import Collector


class LiveFrames:
    """Call :meth:`start`, then :meth:`tick` as often as wanted, then :meth:`stop`.

    ``collector`` replaces the collector in tests.
    """

    def __init__(self, hz: float, probe_hz: float, collector: Optional[Collector] = None) -> None:
        self._hz = hz
        self._probe_hz = probe_hz
        self._collector = collector
        self._assembler = Assembler()

    def start(self, on_answer: Optional[Callable[..., None]] = None) -> List[Frame]:
        """Start all workers, and return the hello.

        ``on_answer`` is called with the answers of probes (link, frame).
        """
        if self._collector is None:
            keep_stdout()
            self._collector = Collector(self._hz, probe_hz=self._probe_hz)
        self._collector.start(on_answer)
        self._search = ProbeSearch(self._collector)
        return [hello(AgentOptions(self._hz))]

    @property
    def _started(self) -> Collector:
        assert self._collector is not None
        return self._collector

    def tick(self) -> List[Frame]:
        """Return the frames that are new."""
        before, sample, after = self._assembler.tick(self._started.picture(), time.monotonic_ns())
        return [*before, sample, *after]

    @property
    def complete(self) -> bool:
        """Whether everything but the probes has answered."""
        return is_complete(self._started)

    @property
    def searching(self) -> bool:
        """Whether a trainer may still be found."""
        return self._search.pending

    @property
    def connecting(self) -> bool:
        """Whether a probe was found whose trainer has not sent a row yet."""
        probes = self._started.probes
        return probes is not None and probes.connecting

    def link_of(self, trainer: int) -> Optional[int]:
        """Return the name of the link to the probe of the trainer with this id in the frames."""
        return self._assembler.trainers.get(trainer)

    def ask(self, link: int, request: Request) -> int:
        """Send a request to a probe; ``on_answer`` is called with the answer.

        Return the id that the answer will have, 0 if the probe cannot be asked.
        """
        probes: Any = self._started.probes
        number: int = probes.request(link, request)[0]
        return number

    def wait(self, seconds: float) -> None:
        """Wait until something answers for the first time, ``seconds`` at most."""
        self._started.bell.wait(seconds)

    def stop(self) -> None:
        self._started.stop()
