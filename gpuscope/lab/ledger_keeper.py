"""Write a run down in the ledger after the viewer that started it has ended.

Otherwise the viewer does it. Its terminal may be closed and its process killed, so the worker
does not count on it. Only the standard library is needed.
"""

from __future__ import annotations

import select
import threading
from collections.abc import Mapping
from typing import Any

KEEP = "--keep"
"""The option of a worker that writes its run down where nobody reads it any more."""


class Keeper:
    """Writes a run down once, where the process at the other end of stdin has ended.

    It does so only where this is ``wanted``: sweeps and searches write their own runs down.
    """

    def __init__(self, wanted: bool) -> None:
        self._wanted, self._kept = wanted, False
        self._lock = threading.Lock()
        if wanted:
            from . import ledger  # now: the viewer removes the folder that this package is in

            self._ledger = ledger

    def keep(self, document: Mapping[str, Any]) -> bool:
        """Return whether nobody reads this run's end, so that it was written down here."""
        if not self._wanted or not nobody_reads():
            return False
        with self._lock:
            if document.get("steps") and not self._kept:
                self._kept = True
                try:
                    self._ledger.RunLedger().add(document)
                except Exception:  # a ledger that is damaged, and nobody to say it to
                    pass
        return True


def nobody_reads() -> bool:
    """Return whether the process that holds the other end of stdin has closed it."""
    poll = select.poll()
    poll.register(0, select.POLLIN)
    return any(found & select.POLLHUP for _, found in poll.poll(0))
