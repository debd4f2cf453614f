"""The table of requests that a viewer may make of this trainer, and who answers them."""

from __future__ import annotations

import threading
from typing import Any, Callable, Dict, Mapping

from ..wire.frames import Error, Frame, Request, Result
from . import cuda, history, identity, look, profiling, quick_requests, snapshots, work
from .gauges import Gauges
from .long_requests import Acts, Answer, Handler, LongRequest, Refusal, busy
from .on_import import debug
from .recent import Recent
from .sampler import ALWAYS
from .steps import Steps

Question = Callable[[Dict[str, Any]], Dict[str, Any]]
_POLL_SECONDS = 0.02


class Requests:
    """Answers the requests to one trainer.

    Only the probe's thread calls its methods; ``wake`` is called when a long request has news.
    """

    def __init__(self, steps: Steps, gauges: Gauges) -> None:
        self.history = history.HistorySwitch(steps)
        self.recent = Recent()
        self.time = gauges.time
        self._allocators = cuda.Allocators()
        self._tree = gauges.tree
        self._one_walk = threading.Lock()
        self._questions: Mapping[str, Question] = {
            "environment": lambda args: {"environment": identity.environment()},
            "statistics": lambda args: quick_requests.statistics(args, self._allocators),
            "stacks": lambda args: quick_requests.stacks(steps),
            "growth": lambda args: quick_requests.growth(gauges.memory),
            "recent": lambda args: self.recent.answer(),
            "time": gauges.time.answer,
        }
        self._handlers: Mapping[str, Handler] = {
            "snapshot": lambda act: snapshots.take(act, self.history.entries),
            "history": self.history.serve,
            "profile": lambda act: profiling.serve(act, steps),
            "look": lambda act: look.serve(act, steps, gauges.time),
            "work": lambda act: work.serve(act, steps),
            "modules": self._modules,
        }
        self.wake: Callable[[], None] = lambda: None
        self.acts = Acts(self._handlers, lambda: self.wake())
        self.names = list(dict.fromkeys((*ALWAYS, *self._questions, *self._handlers)))
        """The names of all requests, for ``hello.requests``."""

    def answer(self, request: Request, client: object, pid: int) -> Frame:
        """Return the immediate answer: the result, an ack, or an error.

        ``pid`` is the client's, 0 if it is unknown.
        """
        if request.r in self._handlers:
            return self.acts.begin(request, client, pid)
        question = self._questions.get(request.r)
        if question is None:
            return Error(request.id, "unsupported", f"this probe does not serve {request.r}")
        running = self.acts.blocking()
        if request.r == "stacks" and running is not None:
            return Error(request.id, "busy", busy(running))
        try:
            return Result(request.id, question(request.args))
        except Refusal as refusal:
            return Error(request.id, refusal.code, refusal.reason)
        except Exception as error:
            debug(f"{request.r} failed", error)
            return Error(request.id, "failed", f"{type(error).__name__}: {str(error)[:300]}")

    def cancel(self, request: Request, client: object) -> Frame:
        """Cancel the request with the argument ``id`` of the same client."""
        if self.acts.cancel(client, request.args.get("id")):
            return Result(request.id, {})
        return Error(request.id, "gone", "no such request is in progress")

    def abandon(self) -> None:
        """In a forked child, drop what belongs to the parent."""
        self.time.close()
        self.acts.abandon()
        profiling.abandon()
        work.abandon()

    def close(self, why: str) -> None:
        """End all running requests, and switch off what they switched on."""
        self.acts.close(why)
        self.history.close()
        self.time.end()

    def _modules(self, act: LongRequest) -> Answer:
        """Serve the request ``modules``; its value is that of :meth:`ModuleTree.poll`.

        The tree is walked a slice at a time, for one client after the other.
        """
        act.stage = "the modules are being counted for another viewer"
        while not self._one_walk.acquire(False):
            act.wait(_POLL_SECONDS)
        try:
            act.stage = "the modules are being counted, a slice after each optimizer step"
            self._tree.request()
            while True:
                found = self._tree.poll()
                if found is not None:
                    break
                act.wait(_POLL_SECONDS)
        finally:
            self._tree.cancel()
            self._one_walk.release()
        if "error" in found:
            raise Refusal("unsupported", str(found["error"]))
        return Answer(found)
