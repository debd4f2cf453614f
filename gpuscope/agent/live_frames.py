"""Make the frames that an agent would send, tick by tick, for a viewer in the same process.

The viewer watches this host only for a moment.
"""

from __future__ import annotations

import time
from typing import Any, List, Optional

from ..wire.frames import Frame, Request
from .as_sent import AgentOptions
from .assembler import Assembler
from .hello import hello
from .oneshot import Look
from .picture import Collector


class LiveFrames(Look):
    """Call :meth:`start`, then :meth:`tick` as often as wanted, then :meth:`stop`.

    ``collector`` replaces the collector in tests.
    """

    def __init__(self, hz: float, probe_hz: float, collector: Optional[Collector] = None) -> None:
        super().__init__(collector or Collector(hz, probe_hz=probe_hz))
        self.hello: Frame = hello(AgentOptions(hz))
        """The frame that comes before all others."""
        self._assembler = Assembler()

    def tick(self) -> List[Frame]:
        """Return the frames that are new."""
        before, sample, after = self._assembler.tick(self._collector.picture(), time.monotonic_ns())
        return [*before, sample, *after]

    def link_of(self, trainer: int) -> Optional[int]:
        """Return the name of the link to the probe of the trainer with this id in the frames."""
        return self._assembler.trainers.get(trainer)

    def ask(self, link: int, request: Request) -> int:
        """Send a request to a probe; ``on_answer`` is called with the answer.

        Return the id that the answer will have, 0 if the probe cannot be asked.
        """
        probes: Any = self._collector.probes
        number: int = probes.request(link, request)[0]
        return number
