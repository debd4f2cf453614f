"""This module asks once what is remembered of the time before we looked.

Each trainer tells what its probe kept, the agent what the driver sampled of its GPUs. So a screen
that has just been opened knows of a leak that began long before, and its charts do not begin empty.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from ..tasks import Tasks

if TYPE_CHECKING:
    from ...store.source import Source
    from ...store.store import Store
    from ...store.view import HostView, TrainerView
    from ...wire.frames import Result

MAX_ASKED = 512
"""Trainers of all hosts together; the first ones are asked."""
AT_A_TIME = 4
"""Requests under way: a connection takes a limited number, and what the user asks for goes before.
"""
GPU_SECONDS = 10.0
"""How long an agent may take to ask its driver, which needs some 6 ms for a GPU."""


class Remembered:
    """What asks each trainer once what it remembers.

    ``ask(trainer, name)`` asks a trainer's probe once, ``reach`` gives the store and the source
    that is looked at, and ``changed`` is called when a trainer has answered.
    """

    def __init__(
        self,
        ask: Callable[[TrainerView, str], Awaitable[Result]],
        reach: Callable[[], tuple[Store, Source] | None],
        changed: Callable[[], None],
    ) -> None:
        self._ask_probe, self._reach, self._changed = ask, reach, changed
        self._asked: set[str] = set()
        self._hosts: set[str] = set()
        self._tasks = Tasks()
        self._turns = asyncio.Semaphore(AT_A_TIME)

    def look(self, host: HostView) -> None:
        """Ask those of a host that make steps and were not asked yet.

        That is done where the host's source can be asked.
        """
        from ...store.store import PAST_REQUESTS

        reached = self._reach()
        if reached is None or reached[1].key != host.key:
            return
        if host.key not in self._hosts and _all_sampled(host):
            self._hosts.add(host.key)
            if not reached[1].capabilities.why_not("recent"):
                self._tasks.begin(self._ask_agent(*reached))
        names = [name for name in PAST_REQUESTS if not reached[1].capabilities.why_not(name)]
        for trainer in host.trainers if names else ():
            key = f"{host.key} {trainer.key}"
            if key in self._asked or len(self._asked) >= MAX_ASKED or trainer.gone is not None:
                continue
            if not trainer.number("step"):
                continue
            self._asked.add(key)
            on_gpu = any(one.definition.ordinal >= 0 for one in trainer.allocators)
            for name in names:
                if name == "growth" and not on_gpu:
                    continue
                self._tasks.begin(self._ask(name, reached[0], host.key, trainer))

    async def _ask_agent(self, store: Store, source: Source) -> None:
        from ...store.pending_requests import SourceError

        try:
            answer = await source.request("recent", {}, GPU_SECONDS)
        except SourceError:
            return  # charts of GPUs then begin with what is seen
        store.remember_devices(source.key, answer.value)
        self._changed()

    async def _ask(self, name: str, store: Store, key: str, trainer: TrainerView) -> None:
        from ...store.pending_requests import SourceError

        try:
            async with self._turns:
                answer = await self._ask_probe(trainer, name)
        except SourceError:
            return  # it may have ended: what is seen from now on has to do
        store.remember(key, trainer.id, name, answer.value)
        self._changed()

    def close(self) -> None:
        """Nobody waits for an answer any more."""
        self._tasks.stop()


def _all_sampled(host: HostView) -> bool:
    """Tell whether every GPU of a host has had a reading; remembered ones go before the first."""
    return bool(host.devices) and all(one.sampled_seconds is not None for one in host.devices)
