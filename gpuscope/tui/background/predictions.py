"""This module asks for the predictions that the screens show, each of them once.

A child with torch makes them, from a thread that nobody waits for.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...lab.config import LabConfig
    from ...predict.answer import Answer, Card, Tracer
    from ...predict.child import Tracer as Child
    from ...predict.errors import Estimate

log = logging.getLogger("gpuscope.predict")
SECONDS = 120.0
KEPT = 32
WARM_SECONDS = 45.0
"""How long the child stays after an answer. It holds 0.3 GB, and the next question needs no new
import of torch.
"""


@dataclass(slots=True, eq=False)
class Question:
    """Switches for which a prediction was requested.

    ``answer`` comes with the first trace; its ``what_if`` grows to all fixes where ``fixes`` were
    wanted. ``doing``: what is under way, "" at rest. ``problem``: what, why, next, where there is
    no answer.
    """

    config: LabConfig
    card: Card | None
    fixes: bool = False
    answer: Answer | None = None
    doing: str = "queued"
    problem: tuple[str, ...] = ()
    since: float | None = None
    """When the trace began, in seconds of our own clock; None before."""

    @property
    def done(self) -> bool:
        return not self.doing


@dataclass(slots=True)
class Predictions:
    """The predictions that were asked for.

    ``changed`` is called in the event loop when there is something new to draw; ``tracer``
    replaces the child in tests.
    """

    changed: Callable[[], None]
    tracer: Tracer | None = None
    _known: dict[object, Question] = field(default_factory=dict)
    _queue: list[tuple[Question, bool]] = field(default_factory=list)
    _thread: threading.Thread | None = None
    _child: Child | None = None
    _closed: bool = False
    _more: threading.Condition = field(default_factory=threading.Condition)
    """Holds ``_queue``, ``_thread`` and ``_closed`` together; told when a question comes, and at
    the end.
    """

    def seen(self, config: LabConfig, card: Card | None) -> Question | None:
        """Return what is known by now; nothing is started."""
        return self._known.get(_key(config, card))

    def peak_of(self, config: LabConfig) -> Estimate | None:
        """Peak allocated of these switches on any card; None while it is not known."""
        for one in reversed(self._known.values()):
            if one.answer is not None and _key(one.config, None) == _key(config, None):
                return one.answer.prediction.allocated
        return None

    def want(self, config: LabConfig, card: Card | None, fixes: bool = True) -> Question:
        """Return the prediction for these switches, and begin it where it was not begun.

        It is called in the event loop.
        """
        key = _key(config, card)
        found = self._known.get(key)
        if found is None or (fixes and not found.fixes and found.done):
            while len(self._known) >= KEPT:
                del self._known[next(iter(self._known))]
            answer = found.answer if found is not None else None
            found = self._known[key] = Question(config, card, fixes, answer)
            self._begin(found)
        return found

    def close(self) -> None:
        """The program leaves."""
        with self._more:
            self._closed = True
            self._more.notify()
            child, self._child = self._child, None
        if child is not None:
            child.close()

    # ── the thread ──

    def _begin(self, found: Question) -> None:
        loop = asyncio.get_running_loop()
        with self._more:
            self._queue.append((found, found.fixes))
            self._more.notify()
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._work, args=(loop,), name="predict", daemon=True
                )
                self._thread.start()

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        while True:
            with self._more:
                if not self._closed and not self._queue and self._child is not None:
                    self._more.wait(WARM_SECONDS)
                if not self._queue or self._closed:
                    self._thread = None
                    child, self._child = self._child, None
                    break
                found, fixes = self._queue.pop()  # the newest question first
            try:
                self._answer(found, fixes, loop)
            except Exception as error:  # a fault of ours must not end the screen
                self._tell_failure(found, error)
            found.doing = ""
            self._tell(loop)
        if child is not None:
            child.close()  # torch takes memory; the next question starts another

    def _tell_failure(self, found: Question, error: Exception) -> None:
        """Write a failure into the log and onto the screen.

        Nothing is said while gpuscope is quitting, which ends the child amid an answer.
        """
        if not self._closed:
            log.error("prediction failed", exc_info=error)
            found.problem = (
                "The prediction failed.",
                f"{type(error).__name__}: {error}",
                "gpuscope predict …",
            )

    def _answer(self, found: Question, fixes: bool, loop: asyncio.AbstractEventLoop) -> None:
        from ...predict.answer import REFERENCE, TracedRequest
        from ...predict.from_lab_config import request_of, settings_of
        from ...predict.request import CannotPredict
        from ...predict.whatif import MemoryFix

        config, card = found.config, found.card
        request = request_of(config, (card or REFERENCE).architecture)

        def hear(fix: MemoryFix) -> None:
            if self._closed:
                raise CannotPredict("Closed.", "gpuscope is quitting", "", "closed")
            found.doing = f"what if: {fix.title}"
            self._tell(loop)

        found.doing, found.since = "tracing the model", time.monotonic()
        self._tell(loop)
        try:
            asking = TracedRequest(request, self._tracer(), card, settings_of(config), SECONDS)
            found.answer = asking.answer
            if fixes:
                asking.find_fixes(None, hear)
            asking.finish()
        except CannotPredict as trouble:
            found.problem = tuple(str(word) for word in trouble.args[:3])

    def _tracer(self) -> Tracer:
        if self.tracer is not None:
            return self.tracer
        if self._child is None:
            from ...predict.child import Tracer

            self._child = Tracer()
        child = self._child
        return lambda request: child.trace(request, SECONDS)

    def _tell(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._closed:
            try:
                loop.call_soon_threadsafe(self.changed)
            except RuntimeError:  # the loop is closed: the program has left
                pass


def _key(config: LabConfig, card: Card | None) -> object:
    """Return what decides an answer: not how many steps are made, nor where data comes from."""
    values = config.to_mapping()
    for name in (
        "steps",
        "loader",
        "workers",
        "pin_memory",
        "non_blocking",
        "prefetch",
        "device",
        "validate",
        "empty_cache",
    ):
        values.pop(name, None)
    place = None if card is None else (card.gpu, card.total_bytes, card.architecture)
    return tuple(sorted((name, str(value)) for name, value in values.items())), place
