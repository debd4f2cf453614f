"""Take one look at this host, for the verbs that print once and exit.

The agent's own workers do it in this process, with a time limit.
"""

from __future__ import annotations

import io
import os
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Callable, Optional, Sequence

from .picture import Collector, Picture

if TYPE_CHECKING:
    from ..collect.nvml import Nvml

TRAINERS_SECONDS = 1.2
"""How long to wait for the first sample of a probe that is connected, once all probes were searched
for.
"""
_PROBE_HZ = 2.0


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
    keep_stdout()
    began = time.monotonic()
    # Everything is asked once: at this rate no answer counts as late before we have ended.
    collector = Collector(
        1.0 / max(timeout, 1.0), probe_hz=_PROBE_HZ, make_nvml=make_nvml, directories=directories
    )
    collector.start()
    search = ProbeSearch(collector)
    while True:
        picture = collector.picture()
        complete = is_complete(collector)
        waited = time.monotonic() - began
        if waited >= timeout or (complete and not (want_trainers and search.pending)):
            picture = collector.picture()  # answers that came between that one and the check
            collector.stop()
            return OneShot(picture, complete)
        collector.bell.wait(min(timeout - waited, 0.1))


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


class ProbeSearch:
    """The search for probes by a collector that has started."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._ended: Optional[float] = None

    @property
    def pending(self) -> bool:
        """Tell whether a trainer whose probe has not answered may still have one.

        That is so until all probes were searched for, however long this takes on a busy machine,
        and for :data:`TRAINERS_SECONDS` longer if a probe was found that has sent nothing yet.
        """
        probes = self._collector.probes
        if probes is None:
            return False
        if self._ended is None:
            if not probes.scans:
                return True
            self._ended = time.monotonic()
        return probes.connecting and time.monotonic() - self._ended < TRAINERS_SECONDS


def is_complete(collector: Collector) -> bool:
    """Whether the driver, every device, the host and every wanted process have answered, or cannot."""  # noqa: E501
    return (
        collector.nvml.settled
        and all(worker.answered or worker.failure is not None for worker in collector.nvml.devices)
        and (collector.nvml.paths is None or collector.nvml.paths.settled)
        and (collector.host.latest is not None or collector.host.failure is not None)
        and (collector.processes.settled or collector.processes.failure is not None)
    )
