"""Watch a host for a verb, and ask the probes of its trainers."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import UserError

if TYPE_CHECKING:
    from ..store.source import Source
    from ..store.store import Store
    from ..store.view import HostView, TrainerView

T = TypeVar("T")
HZ = 2.0
LOOK_SECONDS = 0.02
"""Seconds between two looks at what has come."""
FIRST_SECONDS = 60.0
"""Seconds for everything before the first sample.

This includes the connection, ssh's questions, and an agent on a busy host.
"""
SAMPLE_SECONDS = 20.0
"""Seconds from the agent's hello to its first reading, on a host that is very busy."""


@dataclass(frozen=True)
class ProbedTrainer:
    """A trainer with a probe; ``number`` is its name in requests to ``source``."""

    source: Source
    store: Store
    trainer: TrainerView
    number: int


class NoLook(UserError):
    """A host sent nothing."""


@dataclass(frozen=True)
class WatchedHost:
    """A host that is watched; ``running`` ends with the connection."""

    source: Source
    store: Store
    running: asyncio.Task[None]

    @property
    def host(self) -> HostView:
        """The host as it is now; its link says whether it is connected."""
        host = self.store.host(self.source.key)
        assert host is not None
        return host

    def reach(self, trainer: TrainerView) -> ProbedTrainer:
        """Return a living trainer of this host, with its name in requests."""
        number = self.store.wire_id(self.source.key, trainer.id)
        assert number is not None
        return ProbedTrainer(self.source, self.store, trainer, number)

    async def lacks_process(self, pid: int) -> bool:
        """Return whether the agent of another host answers that no process there has this pid."""
        from ..store.pending_requests import SourceError

        try:
            listed = await self.source.request("inject", {"method": "list", "pids": str(pid)})
        except SourceError:
            return False
        rows = listed.value.get("processes")
        return isinstance(rows, list) and all(row.get("pid") != pid for row in rows)

    async def until(self, enough: Callable[[HostView, float], bool], seconds: float) -> bool:
        """Wait until a view is complete enough, ``seconds`` since the first sample at most.

        ``enough`` is called with the host and the seconds since its first sample. Raises
        :class:`NoLook` when no view arrives.
        """
        began = time.monotonic()
        first: float | None = None
        live: float | None = None
        while True:
            now, host = time.monotonic(), self.host
            if host.sampled_seconds is not None or host.readings:
                first = now if first is None else first
                if enough(host, now - first):
                    return True
                if now - first >= seconds:
                    return False
            if self.running.done() or host.link.failed:
                if first is not None:
                    return False
                raise NoLook(_sentence(host.link.reason or "the connection ended"))
            live = (now if live is None else live) if host.link.state != "connecting" else None
            if first is None and now - began > FIRST_SECONDS:
                raise NoLook(f"No answer came within {FIRST_SECONDS:.0f} s.")
            if first is None and live is not None and now - live > SAMPLE_SECONDS:
                raise NoLook(
                    f"An agent answered, but no reading came within {SAMPLE_SECONDS:.0f} s."
                )
            await asyncio.sleep(LOOK_SECONDS)


def _sentence(text: str) -> str:
    return text if text.endswith((".", "?")) else f"{text}."


@contextlib.asynccontextmanager
async def watched(source: Source) -> AsyncIterator[WatchedHost]:
    """Take in what a source sends, and close it at the end."""
    from ..store.store import Store

    store = Store()
    store.add_source(source.key, source.label)
    running = asyncio.create_task(
        source.run(
            lambda frame, at: store.apply(source.key, frame, at),
            lambda link: store.set_link(source.key, link),
        )
    )
    try:
        yield WatchedHost(source, store, running)
    finally:
        await source.close()
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


async def answer_of(
    one: ProbedTrainer, request: str, deadline_seconds: float, unfinished: str = ""
) -> tuple[Mapping[str, Any] | None, str]:
    """Return a trainer's answer to a request, or None and why there is none.

    ``unfinished`` says better than the probe why that could not finish in time.
    """
    from ..store.pending_requests import SourceError
    from ..wire.clean import clean

    why_not = one.source.capabilities.why_not(request)
    if why_not:
        return None, why_not
    try:
        answer = await one.source.request(request, {"trainer": one.number}, deadline_seconds)
    except SourceError as error:
        if error.code == "unfinished" and unfinished:
            return None, unfinished
        return None, clean(error.what, 300)
    return answer.value, ""


async def of_each(
    ranks: Mapping[int, ProbedTrainer], take: Callable[[ProbedTrainer], Awaitable[T]]
) -> dict[int, T]:
    """Return what ``take`` gives for each rank, all asked at the same moment."""
    taken = await asyncio.gather(*(take(one) for one in ranks.values()))
    return dict(zip(ranks, taken, strict=True))
