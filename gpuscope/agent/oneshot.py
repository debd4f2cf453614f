"""Take one look at this host, for the verbs that print once and exit.

The agent's own workers do it in this process, with a time limit.
"""

from __future__ import annotations

import io
import os
import sys
import time
from dataclasses import dataclass
from typing import (
    TYPE_CHECKING,
    Callable,
    Dict,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    TypeVar,
)

from .picture import Collector, Picture

if TYPE_CHECKING:
    from ..collect.nvml import Nvml
    from ..wire.frames import Event

TRAINERS_SECONDS = 1.2
"""How long to wait for the first sample of a probe that is connected, once all probes were searched
for.
"""
_PROBE_HZ = 2.0
_PAUSE_SECONDS = 0.1

T = TypeVar("T")


@dataclass
class OneShot:
    """The result of one look.

    ``picture`` holds the answers. ``complete`` says whether everything answered within the limit.
    What did not answer is Unknown ``timeout`` in the picture, with the call that does not return.
    """

    picture: Picture
    complete: bool


def collect_once(
    timeout: float = 5.0,
    want_trainers: bool = True,
    make_nvml: Optional[Callable[[], Nvml]] = None,
    directories: Optional[Sequence[str]] = None,
) -> OneShot:
    """Ask everything once and wait until all have answered, or ``timeout`` seconds.

    Threads that hang are left behind: they are daemons, and the caller is about to end.
    """
    # Everything is asked once: at this rate no answer counts as late before we have ended.
    collector = Collector(
        1.0 / max(timeout, 1.0), probe_hz=_PROBE_HZ, make_nvml=make_nvml, directories=directories
    )
    look = Look(collector)
    look.start()
    events: Dict[int, List[Tuple[Optional[int], Event]]] = {}

    def take() -> Picture:
        """Take a picture with the events of all those before, each of which has only new ones."""
        picture = collector.picture()
        for report in picture.trainers:
            report.events = events[report.link] = [*events.get(report.link, ()), *report.events]
        return picture

    picture, complete = look.until(
        timeout,
        take,
        lambda _, now, seconds: now.all and not (want_trainers and now.searching),
    )
    look.stop()
    return OneShot(picture, complete)


class Answered(NamedTuple):
    """How much has answered of what was asked for."""

    all: bool
    """The driver, every device, the host and every wanted process have answered, or cannot."""
    searching: bool
    """A trainer whose probe has not answered may still have one.

    That is so until all probes were searched for, however long this takes on a busy machine, and
    for :data:`TRAINERS_SECONDS` longer if a probe was found that has sent nothing yet.
    """
    connecting: bool
    """A probe was found whose trainer has not sent a row yet."""
    asked_for: object
    """The processes that were asked for."""


class Look:
    """The workers of this host while it is looked at, from :meth:`start` until :meth:`stop`."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._searched: Optional[float] = None

    def start(self, on_answer: Optional[Callable[..., None]] = None) -> None:
        """Start all workers. ``on_answer`` is called with the answers of probes (link, frame)."""
        keep_stdout()
        self._began = time.monotonic()
        self._collector.start(on_answer)

    def until(
        self, timeout: float, take: Callable[[], T], enough: Callable[[T, Answered, float], bool]
    ) -> Tuple[T, bool]:
        """Take what is known, again and again, until it is enough or ``timeout`` is over.

        ``enough`` is asked with what was taken, what has answered, and the seconds since the start.
        Return what was taken last, and whether all had answered by then.
        """
        while True:
            # What was taken has all answers only if nothing has changed while it was taken. A probe
            # that answers meanwhile may not be in it, and the process of a trainer that is in it
            # for the first time is asked for only from then on.
            before = self.answered
            taken = take()
            answered, waited = self.answered, time.monotonic() - self._began
            if waited >= timeout or (answered == before and enough(taken, answered, waited)):
                return taken, before.all and answered.all
            if answered == before:
                self._collector.bell.wait(min(timeout - waited, _PAUSE_SECONDS))

    @property
    def answered(self) -> Answered:
        """Return how much has answered until now."""
        workers, probes, now = self._collector, self._collector.probes, time.monotonic()
        assert probes is not None, "they run since the start"
        if self._searched is None and probes.scans:
            self._searched = now
        connecting = probes.connecting
        searching = self._searched is None or (
            connecting and now - self._searched < TRAINERS_SECONDS
        )
        return Answered(_is_complete(workers), searching, connecting, workers.processes.asked_for)

    def stop(self) -> None:
        """Ask nobody any more."""
        self._collector.stop()


def keep_stdout() -> None:
    """Reserve standard output for this program's output, before a driver's library is loaded.

    Such a library may print too, now or when the process ends, which would spoil a document. From
    now on its writes to descriptor 1 go to standard error. This does nothing if ``sys.stdout`` is
    not that descriptor.
    """
    buffer = getattr(sys.stdout, "buffer", None)
    raw = getattr(buffer, "raw", buffer)
    try:
        if type(raw) is not io.FileIO or raw.fileno() != 1:
            return
        sys.stdout.flush()
        kept = os.dup(1)
        try:
            os.dup2(2, 1)
        except OSError:  # standard error is closed
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, 1)
            os.close(nothing)
        # The stream object stays the same for all who hold it; only its descriptor changes.
        io.FileIO.__init__(raw, kept, "w", closefd=False)
    except (OSError, ValueError):
        return


def _is_complete(collector: Collector) -> bool:
    return (
        collector.nvml.settled
        and all(worker.answered or worker.failure is not None for worker in collector.nvml.devices)
        and (collector.nvml.paths is None or collector.nvml.paths.settled)
        and (collector.host.latest is not None or collector.host.failure is not None)
        and (collector.processes.settled or collector.processes.failure is not None)
    )
