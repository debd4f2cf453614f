"""A live source that answers requests from a script, for tests of what asks a trainer.

Test data, not measured.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from gpuscope.store.pending_requests import OnProgress, SourceError
from gpuscope.store.source import OnLink, Sink, Tap
from gpuscope.store.store import PAST_REQUESTS
from gpuscope.store.view import Capabilities, Link
from gpuscope.wire import frames as f
from tests.fakes import views

Answer = Callable[
    [Mapping[str, f.Scalar], OnProgress | None, Path | None], Awaitable[dict[str, Any]]
]


class AskedSource:
    """A source with ``answers`` by request; a request without an answer is unsupported.

    ``asked`` keeps (name, args) of every request. Requests that a screen makes by itself are
    offered only if there is an answer.
    """

    badge = ""
    key = views.SOURCE
    label = "test"

    def __init__(self, frames: list[f.Frame], **answers: Answer) -> None:
        self.taps: list[Tap] = []
        self.answers = answers
        self.asked: list[tuple[str, dict[str, f.Scalar]]] = []
        self.cancelled: list[str] = []
        self._frames = frames
        self._closed = asyncio.Event()

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            {name: "" for name in f.REQUESTS if name not in PAST_REQUESTS or name in self.answers}
        )

    async def run(self, sink: Sink, on_link: OnLink) -> None:
        for frame in self._frames:
            sink(frame, getattr(frame, "m", 0) / 1e9)
        on_link(Link("live"))
        await self._closed.wait()

    async def request(
        self,
        name: str,
        args: Mapping[str, f.Scalar],
        deadline: float = 10.0,
        on_progress: OnProgress | None = None,
        blob_to: Path | None = None,
        max_bytes: int = 0,
    ) -> f.Result:
        self.asked.append((name, dict(args)))
        if name not in self.answers:
            raise SourceError("unsupported", f"this test does not answer {name}")
        try:
            return f.Result(1, await self.answers[name](args, on_progress, blob_to))
        except asyncio.CancelledError:
            self.cancelled.append(name)
            raise

    def prelude(self) -> list[bytes]:
        return []

    async def close(self) -> None:
        self._closed.set()


def fails(code: str, reason: str) -> Answer:
    async def answer(
        args: Mapping[str, f.Scalar], on_progress: OnProgress | None, path: Path | None
    ) -> dict[str, Any]:
        raise SourceError(code, reason)

    return answer


def gives(value: dict[str, Any], blob: bytes = b"") -> Answer:
    """Return a result, and the content of the file that belongs to it."""

    async def answer(
        args: Mapping[str, f.Scalar], on_progress: OnProgress | None, path: Path | None
    ) -> dict[str, Any]:
        if path is not None:
            path.write_bytes(blob)
        return value

    return answer


def never(fraction: float | None = None, text: str = "") -> Answer:
    """Return progress, and then nothing until it is cancelled."""

    async def answer(
        args: Mapping[str, f.Scalar], on_progress: OnProgress | None, path: Path | None
    ) -> dict[str, Any]:
        if on_progress is not None:
            on_progress(f.Progress(1, fraction, text))
        await asyncio.Event().wait()
        raise AssertionError

    return answer
