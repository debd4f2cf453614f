"""This is the ledger as the screen sees it.

Threads read and write what is written down, so that nothing waits for it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from ...lab.ledger import Entry, RunLedger

log = logging.getLogger("gpuscope.lab")
T = TypeVar("T")
SHOWN = 200
"""The newest entries that are read."""


async def in_own_thread(work: Callable[[], T]) -> T:
    """Do ``work()`` in a thread of its own that nobody waits for at the end of the program.

    A ledger that somebody holds, or that lies on a disk which hangs, must not keep the user
    from leaving. Raises what ``work`` raises.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(value: T | None, error: BaseException | None) -> None:
        if future.cancelled():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(value)  # type: ignore[arg-type]  # of work() where there is no error

    def run() -> None:
        value, error = None, None
        try:
            value = work()
        except BaseException as caught:
            error = caught
        try:
            loop.call_soon_threadsafe(settle, value, error)
        except RuntimeError:  # the loop is closed: the program has left
            pass

    threading.Thread(target=run, name="lab-ledger", daemon=True).start()
    return await future


class Book:
    """The runs that are written down.

    ``entries`` come newest first, None before the first reading. ``problem`` says why there are
    none, or why the last run is kept only until the end of this session, as (what, why, next).
    ``changed`` is called when something is new.
    """

    def __init__(self, changed: Callable[[], None]) -> None:
        self.entries: tuple[Entry, ...] | None = None
        self.problem: tuple[str, str, str] | None = None
        self._changed = changed
        self._ledger: RunLedger | None = None
        self._kept: list[Entry] = []  # what could not be written: of this session only
        self._reading: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Begin to read what is written down now, unless that is under way.

        Sweeps may have added to it.
        """
        if self._reading is None:
            self._reading = asyncio.get_running_loop().create_task(self.read())

    async def read(self) -> None:
        """Read what is written down now."""
        try:
            ledger = self._get()
            found = await in_own_thread(lambda: ledger.entries(limit=SHOWN))
            self.problem = None
        except Exception as error:
            found = []
            self._trouble(error)
        self._reading = None
        last = max((entry.id for entry in found), default=0)
        # added while the reading went on
        newer = [entry for entry in self.entries or () if entry.id > last]
        self.entries = (*newer, *reversed(self._kept), *found)[:SHOWN]
        self._changed()

    async def add(
        self, document: Mapping[str, Any], *, group: str = "", repeat: int = 0, cell: str = ""
    ) -> Entry:
        """Write a run down.

        Where that fails it is kept in memory, with a number below 0, and :attr:`problem` says
        why.
        """
        from ...lab.ledger import entry_of

        try:
            ledger = self._get()
            entry = await in_own_thread(
                lambda: ledger.add(document, source="lab", group=group, repeat=repeat, cell=cell)
            )
        except Exception as error:
            self._trouble(error)
            return self.keep(entry_of(document, group=group, repeat=repeat, cell=cell))
        self._put(entry)
        return entry

    def keep(self, entry: Entry) -> Entry:
        """Show an entry until the end of this session only: it gets a number below 0."""
        kept = replace(entry, id=-1 - len(self._kept))
        self._kept.append(kept)
        self._put(kept)
        return kept

    def _put(self, entry: Entry) -> None:
        # Others may have been added meanwhile; those of other programs come with the next reading.
        others = [one for one in self.entries or () if one.id != entry.id]
        self.entries = (entry, *others)[:SHOWN]
        self._changed()

    def get(self, key: int) -> Entry | None:
        """Return an entry that has been read."""
        return next((entry for entry in self.entries or () if entry.id == key), None)

    def _get(self) -> RunLedger:
        if self._ledger is None:
            from ...lab.ledger import RunLedger

            self._ledger = RunLedger()
        return self._ledger

    def _trouble(self, error: Exception) -> None:
        from ...lab.ledger import LedgerError

        if isinstance(error, LedgerError):
            self.problem = (error.what, error.why, error.next)
        else:
            log.error("the ledger failed", exc_info=error)
            self.problem = ("The ledger cannot be read.", repr(error), "gpuscope lab runs")
