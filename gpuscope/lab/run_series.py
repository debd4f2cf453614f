"""Make runs one after the other, until a signal stops them: what sweeps and searches share."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Protocol

from ..text.units import window_text
from . import metrics
from .config import LabConfig
from .forked import ForkedRun, Forks, can_fork
from .launch import LabRun, NoTorch

Made = tuple[dict[str, Any] | None, metrics.RunFailure | None]
"""The document of a run, or the failure with which no run can succeed; neither if it was stopped.
"""


class Watcher(Protocol):
    """Watches one run from outside, and measures what the worker cannot know."""

    def record(self, record: metrics.Record) -> None:
        """Take a record that the worker has just written."""

    def finish(self, document: dict[str, Any]) -> dict[str, Any]:
        """Return the document of the run, which has ended, completed with these measurements."""


class RunSeries:
    """Makes runs in fresh workers. A signal drops the one in progress, and no more begin.

    With ``fork`` the workers are forked from a process that has imported torch, until
    :meth:`_close` ends that one.
    """

    def __init__(
        self,
        watch: Callable[[], Watcher] | None,
        environment: Mapping[str, str] | None,
        fork: bool = False,
    ) -> None:
        self._watch = watch
        self._environment = dict(environment or {})
        self._forks = Forks(environment) if fork else None
        self._stopped = ""
        self._run: LabRun | None = None
        self._stopping: asyncio.Future[None] | None = None

    def _set(self, name: str, value: str) -> None:
        """Set an environment variable for the runs that follow."""
        self._environment[name] = value
        if self._forks is not None:
            self._forks.set(name, value)

    def stop(self, why: str) -> None:
        """End the run in progress and then the series."""
        self._stopped = self._stopped or why
        if self._run is not None:
            self._stopping = asyncio.ensure_future(self._run.stop())

    def _stop_on_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup wants it ignored
                loop.add_signal_handler(number, self.stop, signal.Signals(number).name)

    async def _make(
        self,
        config: LabConfig,
        take: Callable[[metrics.Record], None],
        limit_seconds: float,
        late: metrics.RunFailure,
        enough: asyncio.Event | None = None,
    ) -> Made:
        """Make one run, which ends by itself, once ``enough`` is set, or at the limit.

        ``take`` gets its records, and ``late`` is the failure of a run that reached the limit.
        """
        watcher = self._watch() if self._watch is not None else None

        def hear(record: metrics.Record) -> None:
            if watcher is not None:
                watcher.record(record)
            take(record)

        run = self._run = self._new_run(config, hear)
        await run.start()
        if self._stopped:  # it came while the worker was being started
            await run.stop()
        ended = asyncio.create_task(run.wait())
        timer = asyncio.create_task((enough or asyncio.Event()).wait())
        try:
            done, _ = await asyncio.wait(
                (ended, timer), timeout=limit_seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if ended not in done:
                await run.stop()
        finally:
            timer.cancel()
            self._run = None
        document = document_of(run, None if done else late)
        if watcher is not None:  # also of a run that is dropped: it may have threads to end
            document = await asyncio.to_thread(watcher.finish, document)
        if self._stopped:
            await run.stop()
            return None, None
        if isinstance(run, ForkedRun) and run.refused and self._forks is not None:
            self._forks.usable = False
            return await self._make(config, take, limit_seconds, late, enough)
        return (None, run.failure) if run.no_torch else (document, None)

    def _new_run(self, config: LabConfig, hear: Callable[[metrics.Record], None]) -> LabRun:
        if self._forks is not None and self._forks.usable and can_fork(config):
            return ForkedRun(config, hear, self._forks)
        return LabRun(config, hear, environment=self._environment)

    async def _prepare(self, config: LabConfig) -> None:
        """Start what a run of ``config`` needs beforehand. Where it fails, the run says why."""
        if self._forks is not None and self._forks.usable and can_fork(config):
            with suppress(NoTorch, OSError):
                await self._forks.process()

    async def _close(self) -> None:
        """End the process that forks, if there is one."""
        if self._forks is not None:
            await self._forks.close()


def stopped_late(kind: str, config: LabConfig, seconds: float, why: str) -> metrics.RunFailure:
    """Return the failure of a run that was stopped at its limit; ``kind`` is what it is called."""
    return metrics.RunFailure(
        f"The {kind} was stopped after {window_text(round(seconds))}.",
        why,
        config.command() + " --headless    shows its progress",
    )


def document_of(run: LabRun, failure: metrics.RunFailure | None = None) -> dict[str, Any]:
    """Return the worker's document, or one that says why there is none.

    ``failure`` is a failure that the worker does not know about.
    """
    failure = failure or run.failure
    if run.summary and (failure is None or run.summary.get("error")):
        return run.summary
    reason = failure.what if failure else "the run was stopped before its first step"
    document = metrics.document(
        run.config.to_mapping(),
        {},
        {"": ("not_initialised", reason)},
        started=run.started,
        error=failure,
    )
    if run.summary:  # it ended in an orderly way, when it was told to
        document = {**document, **run.summary, "error": document["error"]}
    return document
