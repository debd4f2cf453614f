"""Asking the probe of a trainer, from a screen: once, or again and again while somebody looks.

A screen says with every drawing what it wants to know (:meth:`Asker.latest`) and gets at once what
came last, with its age and what is wrong. Nothing is asked that nobody looks at, nothing twice at
the same time, and nothing in a replay.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...store.pending_requests import OnProgress
    from ...store.source import Source
    from ...store.store import Store
    from ...store.view import HostView, TrainerView
    from ...wire.frames import Result, Scalar
    from .remembered import Remembered

log = logging.getLogger("gpuscope.tui")

NOT_RECORDED = "not recorded: a recording keeps samples and events, not answers to questions"
AGAIN_SECONDS = {"unsupported": 30.0, "gone": 2.0}
"""After an error of this code the next try waits so long, or as long as between answers where that
is longer.
"""
FAILED_AGAIN_SECONDS = 5.0
MAX_KEPT = 64
"""Answers kept, over all trainers and questions; the one asked longest ago goes first."""


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """What is known of a question now.

    ``value`` is the result of the last good answer, None before the first; ``before`` is the
    one before it, taken ``between_seconds`` earlier. ``problem`` says in words why there is
    none, or why there is no newer one, with the ``code`` of the error; it is "" while all is
    well. ``asked`` says that an answer is under way.
    """

    value: Mapping[str, Any] | None = None
    age_seconds: float | None = None
    before: Mapping[str, Any] | None = None
    between_seconds: float | None = None
    problem: str = ""
    code: str = ""
    asked: bool = False


class _Question:
    """One question to one trainer: its answers and the task that waits for the next."""

    __slots__ = ("answer", "came", "task", "tried", "wait_seconds", "wanted")

    def __init__(self) -> None:
        self.answer = ProbeAnswer()
        self.came: float | None = None
        self.tried: float | None = None  # when the last try ended
        self.wait_seconds = 0.0
        self.wanted = 0.0
        self.task: asyncio.Task[None] | None = None


class Asker:
    """Asks the probes of trainers, on the event loop of the store and the source.

    ``reach`` gives both, None while there is no source; ``changed`` is called when an answer
    came.
    """

    def __init__(
        self, reach: Callable[[], tuple[Store, Source] | None], changed: Callable[[], None]
    ) -> None:
        self._reach, self._changed = reach, changed
        self._remembered: Remembered | None = None
        self._questions: dict[tuple[str, str, tuple[tuple[str, Scalar], ...]], _Question] = {}

    async def ask(
        self,
        trainer: TrainerView,
        name: str,
        args: Mapping[str, Scalar] | None = None,
        deadline: float = 10.0,
        on_progress: OnProgress | None = None,
        blob_to: Path | None = None,
        max_bytes: int | None = None,
    ) -> Result:
        """Ask once and wait for the result.

        ``args`` come without the trainer; a blob that belongs to the answer is written to
        ``blob_to``. Raises :class:`~gpuscope.store.pending_requests.SourceError`.
        """
        from ...store.pending_requests import SourceError

        reached = self._reach()
        if reached is None:
            raise SourceError("gone", f"{name}: not connected yet")
        if trainer.gone is not None:
            raise SourceError("gone", f"{name}: pid {trainer.definition.pid} has ended")
        store, source = reached
        number = store.wire_id(source.key, trainer.id)
        if number is None:
            raise SourceError(
                "gone", f"{name}: the agent does not know pid {trainer.definition.pid} now"
            )
        more: dict[str, Any] = {}
        if on_progress is not None:
            more["on_progress"] = on_progress
        if blob_to is not None:
            more["blob_to"] = blob_to
        if max_bytes is not None:
            more["max_bytes"] = max_bytes
        return await source.request(name, {**(args or {}), "trainer": number}, deadline, **more)

    def latest(
        self,
        trainer: TrainerView,
        name: str,
        args: Mapping[str, Scalar] | None = None,
        every_seconds: float = 2.0,
    ) -> ProbeAnswer:
        """Return what came last, at once, and ask again once that is ``every_seconds`` old.

        It asks in the background. It is called with every drawing of what shows the answer, and
        not while the screen is frozen.
        """
        reached = self._reach()
        if reached is not None and reached[1].badge:
            return ProbeAnswer(problem=NOT_RECORDED, code="unsupported")
        key = self._key(trainer, name, args)
        question = self._questions.get(key)
        now = time.monotonic()
        if question is None:
            self._make_room()
            question = self._questions[key] = _Question()
        question.wanted = now
        due = question.tried is None or now - question.tried >= max(
            every_seconds, question.wait_seconds
        )
        if question.task is None and due and reached is not None and trainer.gone is None:
            asking = self._ask_for(question, trainer, name, args)
            question.task = asyncio.get_running_loop().create_task(asking)
        return self._as_of(question, now, trainer)

    def keep(self, trainer: TrainerView, name: str, value: Mapping[str, Any]) -> None:
        """Keep an answer that somebody else has waited for.

        A look is kept with its trainer, in the store; others are kept here, for :meth:`seen`.
        """
        reached = self._reach()
        if name != "look":
            key = self._key(trainer, name, None)
            if key not in self._questions:
                self._make_room()
                self._questions[key] = _Question()
            question = self._questions[key]
            question.answer = ProbeAnswer(value, None, question.answer.value)
            question.came = question.wanted = time.monotonic()
        elif reached is not None:
            store, source = reached
            store.remember(source.key, trainer.id, name, value)
        self._changed()

    def seen(
        self, trainer: TrainerView, name: str, args: Mapping[str, Scalar] | None = None
    ) -> ProbeAnswer:
        """Return what came last, without asking: for a screen that is frozen."""
        question = self._questions.get(self._key(trainer, name, args))
        return (
            ProbeAnswer() if question is None else self._as_of(question, time.monotonic(), trainer)
        )

    def _key(
        self, trainer: TrainerView, name: str, args: Mapping[str, Scalar] | None
    ) -> tuple[str, str, tuple[tuple[str, Scalar], ...]]:
        """Return the key of a question to a trainer on the host that is looked at.

        The host is a part of it: pids of several hosts may agree.
        """
        reached = self._reach()
        place = reached[1].key if reached is not None else ""
        return f"{place} {trainer.key}", name, tuple(sorted((args or {}).items()))

    def look_back(self, host: HostView) -> None:
        """Let the trainers of a host tell, once each, what their memory was before.

        So a screen that was just opened knows what came earlier.
        """
        if self._remembered is None:
            from .remembered import Remembered

            self._remembered = Remembered(self.ask, self._reach, self._changed)
        self._remembered.look(host)

    def close(self) -> None:
        """Nobody waits for an answer any more."""
        if self._remembered is not None:
            self._remembered.close()
        for question in self._questions.values():
            if question.task is not None:
                question.task.cancel()

    def _as_of(self, question: _Question, now: float, trainer: TrainerView) -> ProbeAnswer:
        from dataclasses import replace

        age = None if question.came is None else now - question.came
        answer = replace(question.answer, age_seconds=age, asked=question.task is not None)
        if trainer.gone is not None:
            return replace(
                answer, problem=f"pid {trainer.definition.pid} has ended", code="gone", asked=False
            )
        return answer

    async def _ask_for(
        self,
        question: _Question,
        trainer: TrainerView,
        name: str,
        args: Mapping[str, Scalar] | None,
    ) -> None:
        from ...store.pending_requests import SourceError

        before = question.answer
        try:
            result = await self.ask(trainer, name, args)
            now = time.monotonic()
            between = None if question.came is None else now - question.came
            question.answer = ProbeAnswer(result.value, None, before.value, between)
            question.came, question.wait_seconds = now, 0.0
        except SourceError as error:
            question.wait_seconds = AGAIN_SECONDS.get(error.code, FAILED_AGAIN_SECONDS)
            question.answer = _failed(before, error.what, error.code)
        except Exception as error:  # a source that breaks its promise must not end the screen
            log.exception("asking %s failed", name)
            question.wait_seconds = FAILED_AGAIN_SECONDS
            question.answer = _failed(before, f"{name}: {error!r}", "failed")
        finally:
            question.tried, question.task = time.monotonic(), None
        self._changed()

    def _make_room(self) -> None:
        while len(self._questions) >= MAX_KEPT:
            oldest = min(self._questions, key=lambda key: self._questions[key].wanted)
            if (task := self._questions.pop(oldest).task) is not None:
                task.cancel()


def _failed(before: ProbeAnswer, problem: str, code: str) -> ProbeAnswer:
    return ProbeAnswer(before.value, None, before.before, before.between_seconds, problem, code)
