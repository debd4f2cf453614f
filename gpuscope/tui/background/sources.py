"""This module holds several places in one session, and which of them is looked at.

It also knows of a process that somebody came for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from ...store.view import by_key

if TYPE_CHECKING:
    from ...store.source import Source
    from ...store.store import Store
    from ...store.view import HostView, Link, View
    from ...wire.frames import Frame


@runtime_checkable
class Reconnecting(Protocol):
    """A source that can connect at once on request, and run again after it has ended."""

    def hurry(self) -> None: ...


UNSEEN_SECONDS = 2.5
"""How long after its first sample a host may take to report its processes and probes."""


class Hosts:
    """The sources of a session.

    ``wanted`` are (source key, pid) of processes to open once they are seen; the first that is
    seen is opened. When none of them is, ``unseen`` is called with the first, whose host is
    looked at.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        wanted: Sequence[tuple[str, int]] = (),
        unseen: Callable[[int], None] = lambda pid: None,
    ) -> None:
        self.sources = list(sources)
        self.wanted = list(wanted)
        self._unseen = unseen
        self._looked_for: dict[str, float] = {}
        self._again: dict[str, asyncio.Event] = {}
        self._at = 0
        self._begin: Callable[[Source], None] | None = None

    @property
    def running(self) -> bool:
        return self._begin is not None

    def add(self, source: Source) -> None:
        """Listen to one more source from now on, while the others run."""
        assert self._begin is not None
        self.sources.append(source)
        self._begin(source)

    @property
    def source(self) -> Source:
        return self.sources[self._at]

    def step(self, by: int) -> Source:
        """Select the source ``by`` places further on."""
        self._at = (self._at + by) % len(self.sources)
        return self.source

    def look_at(self, key: str) -> Source:
        """Select the source with this key, if there is one."""
        self._at = next(
            (at for at, source in enumerate(self.sources) if source.key == key), self._at
        )
        return self.source

    def why_not_again(self, host: HostView | None) -> str:
        """Return why the selected host cannot be connected again, "" where it can."""
        if not isinstance(self.source, Reconnecting):
            return "it is not a connection to another host"
        return "it is connected" if host is not None and host.link.state == "live" else ""

    def connect_again(self) -> None:
        """Connect to the selected host again, at once."""
        if isinstance(self.source, Reconnecting):
            self.source.hurry()
            self._again.setdefault(self.source.key, asyncio.Event()).set()

    def place(self) -> str:
        """Return which of the hosts is selected, as ``2/3``; "" if there is only one."""
        return f"{self._at + 1}/{len(self.sources)}" if len(self.sources) > 1 else ""

    def host(self, view: View) -> HostView | None:
        """Return the host that is looked at.

        Hosts of a view stand as their sources were added.
        """
        return by_key(view.hosts, self.source.key)

    def sought(self, host_of: Callable[[str], HostView | None]) -> tuple[HostView, int] | None:
        """Return a wanted process once it is seen, and select its host."""
        now = time.monotonic()
        for key, pid in self.wanted:
            host = host_of(key)
            if host is None:
                continue
            if host.sampled_seconds is not None:
                self._looked_for.setdefault(key, now)
            pids = [one.definition.pid for one in host.trainers] + [
                one.definition.pid for one in host.processes
            ]
            if pid in pids:
                self.wanted.clear()
                self.look_at(key)
                return host, pid
        if self.wanted and all(
            now - self._looked_for.get(key, now) > UNSEEN_SECONDS for key, _ in self.wanted
        ):
            key, pid = self.wanted[0]
            self.wanted.clear()
            self.look_at(key)
            self._unseen(pid)
        return None

    async def run(
        self,
        store: Store,
        hear: Callable[[str, Frame, float], None],
        linked: Callable[[str, Link], None],
    ) -> None:
        """Run all sources at once, until each has ended.

        One that fails is no reason for the others to end; one that can be connected anew waits
        for that.
        """
        from ...store.view import Link

        async def one(source: Source) -> None:
            again = self._again.setdefault(source.key, asyncio.Event())
            while True:
                again.clear()
                try:
                    await source.run(
                        lambda frame, seconds: hear(source.key, frame, seconds),
                        lambda link: linked(source.key, link),
                    )
                except Exception as error:
                    # what is shown of it is no longer live, whoever else goes on
                    linked(source.key, Link("ended", f"reading it failed: {error!r}"))
                    if not isinstance(source, Reconnecting):
                        raise
                if not isinstance(source, Reconnecting):
                    return
                await again.wait()

        running: list[asyncio.Task[None]] = []

        def begin(source: Source) -> None:
            store.add_source(source.key, source.label, source.badge)
            running.append(asyncio.create_task(one(source)))

        for source in self.sources:
            begin(source)
        self._begin = begin
        try:
            while waiting := [task for task in running if not task.done()]:
                await asyncio.wait(waiting)
        finally:
            self._begin = None
            for task in running:
                task.cancel()
            if running:
                await asyncio.wait(running)  # each ends its agent, which may take a moment
        for task in running:
            if (failure := task.exception()) is not None:
                raise failure
