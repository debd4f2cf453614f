"""Keep what all sources have said.

It provides one immutable :class:`~gpuscope.store.view.View`, and history.

Only one thread (the viewer's event loop) may write to it and read it; the views that it returns may
be used anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..wire.frames import Frame, Hello
from .history import EMPTY
from .picture import Picture
from .stream import Stream
from .view import History, HostView, Link, View

PAST_REQUESTS = ("growth", "recent", "time")
"""The requests by which a trainer is asked about the minutes before the viewer was opened.

They ask for its memory after each step, for its readings, and for where its time went.
"""
MAX_HISTORY_CELLS = 6_000_000
"""Limit of the numbers in all histories, 8 bytes each. Beyond it the oldest are dropped."""


class Store:
    """The sources by key, in the order in which they were added."""

    def __init__(self) -> None:
        self._streams: dict[str, Stream] = {}
        self._pictures: dict[str, Picture] = {}
        self._hosts: dict[str, HostView] = {}
        self._version = 0
        self._view = View(0, ())

    def add_source(self, key: str, label: str, badge: str = "") -> None:
        """Add a source: its host is in the view at once, as "connecting".

        A key that is already known is left unchanged.
        """
        if key in self._streams:
            return
        self._streams[key] = Stream(key, 0)
        self._pictures[key] = Picture(key, label, badge)
        for stream in self._streams.values():
            stream.history_cells = MAX_HISTORY_CELLS // len(self._streams)
        self._changed(key)

    def set_link(self, key: str, link: Link) -> None:
        """Set the state of a source's connection."""
        picture = self._pictures[key]
        if picture.link != link:
            picture.link = link
            self._changed(key)

    def apply(self, key: str, frame: Frame, received_seconds: float) -> None:
        """Take in a decoded frame of a source.

        ``received_seconds`` is on the viewer's monotonic clock.

        Raises ``KeyError`` for a source that was not added. No content of a frame raises anything.
        """
        stream = self._streams[key]
        stream.apply(frame, received_seconds)
        if isinstance(frame, Hello):
            self._tell_apart(frame.host)
        if stream.changed:
            stream.changed = False
            self._changed(key)

    def _tell_apart(self, name: str) -> None:
        """Have the hosts that call themselves alike named with the keys of their sources."""
        alike = [key for key, one in self._streams.items() if one.hello and one.hello.host == name]
        for key in alike if name and len(alike) > 1 else ():
            if not self._pictures[key].shares_name:
                self._pictures[key].shares_name = True
                self._changed(key)

    def remember(
        self, key: str, trainer_id: int, request: str, value: Mapping[str, object]
    ) -> None:
        """Take in what a trainer answered to one of :data:`PAST_REQUESTS`, or to ``look``.

        ``trainer_id`` is as in the view. After ``growth``, the
        :attr:`~gpuscope.store.view.AllocView.step_points` of its allocators hold also what its
        memory was after steps that nobody here saw. After ``recent``, the histories of the
        trainer, of its process and of its allocators begin with what nobody here saw. After
        ``time``, its :attr:`~gpuscope.store.view.TrainerView.minutes` hold what the probe booked,
        and its ``look`` the last look at its device, as after ``look``.
        """
        stream = self._streams.get(key)
        if stream is None:
            return
        take = {
            "growth": stream.remember_growth,
            "recent": stream.remember_recent,
            "time": stream.remember_time,
            "look": stream.remember_look,
        }
        take[request](trainer_id, value)
        if stream.changed:
            stream.changed = False
            self._changed(key)

    def remember_devices(self, key: str, value: Mapping[str, object]) -> None:
        """Take in an agent's answer to the request ``recent``.

        The histories of its GPUs then begin with what the driver itself sampled before.
        """
        stream = self._streams.get(key)
        if stream is not None:
            stream.remember_devices(value)

    def received_seconds(self, key: str) -> float | None:
        """Return when the last frame of a source came, on the viewer's monotonic clock.

        None before the first.
        """
        return self._streams[key].last_received

    def view(self) -> View:
        """Return everything as it is now: the same object as long as nothing has changed."""
        if self._view.version != self._version:
            for key, stream in self._streams.items():
                if key not in self._hosts:
                    self._hosts[key] = self._pictures[key].draw(stream)
            self._view = View(self._version, tuple(self._hosts[key] for key in self._streams))
        return self._view

    @property
    def sources(self) -> tuple[str, ...]:
        """Return the keys of the sources, in the order in which they were added."""
        return tuple(self._streams)

    def link(self, key: str) -> Link:
        """Return the state of a source's connection. Raises ``KeyError`` for an unknown source."""
        return self._pictures[key].link

    def host(self, key: str) -> HostView | None:
        """Return one host as it is now, without looking at the others.

        None for a source that was not added.
        """
        if key not in self._hosts and key in self._streams:
            self._hosts[key] = self._pictures[key].draw(self._streams[key])
        return self._hosts.get(key)

    def history(
        self, key: str, entity_id: int, column: str, window_seconds: float | None = None
    ) -> History:
        """Return a column of an entity over time; empty if there is none.

        ``entity_id`` is the id in the view.
        """
        stream = self._streams.get(key)
        return EMPTY if stream is None else stream.history(entity_id, column, window_seconds)

    def host_at(self, key: str, seconds: float) -> HostView | None:
        """Return a host as it was at ``seconds`` of its monotonic clock.

        None if nothing is known about that time.
        """
        from .host_at import host_at

        host, stream = self.host(key), self._streams.get(key)
        oldest = stream.oldest_seconds if stream is not None else None
        if host is None or stream is None or oldest is None or seconds < oldest:
            return None
        return host_at(host, seconds, stream.then)

    def oldest_seconds(self, key: str) -> float | None:
        """Return the oldest moment about which anything is known, on the host's monotonic clock."""
        stream = self._streams.get(key)
        return None if stream is None else stream.oldest_seconds

    def wire_id(self, key: str, entity_id: int) -> int | None:
        """Return the id by which the agent of this source knows an entity of the view.

        Requests need it. None when the agent does not know the entity.
        """
        stream = self._streams.get(key)
        return None if stream is None else stream.wire_id(entity_id)

    def _changed(self, key: str) -> None:
        self._hosts.pop(key, None)
        self._version += 1
