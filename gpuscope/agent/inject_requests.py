"""Put the probe into a running trainer on request, and log a line for each attempt.

One request runs at a time on this host. ``args``: ``pid`` and ``start`` (clock ticks since boot, so
that a process which got the same pid later is not touched), and ``method`` (auto, pep768, ptrace).
``method: "look"`` only says what each way of attaching would need. ``method: "list"`` says the same
of every process here that has loaded torch, and of ``pids`` ("12,34"). The code that injects is
loaded with the first request.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from typing import Any, Callable, Dict, Optional, Set

from ..wire import frames
from . import audit

LOOK, LIST = "look", "list"
MAX_WAITING = 64
MARGIN_SECONDS = 2.0
PATIENCE_SECONDS = (1.0, 60.0)
_CODES = {"disabled": "refused", "traced": "busy"}
"""Codes of the injection that differ from those of the wire, with the latter."""


class Injections:
    """Serves requests to inject. Any thread may call ``answer``, which takes a frame to send."""

    def __init__(self, answer: Callable[[Any], None], redact: bool = True) -> None:
        self._answer = answer
        self._redact = redact
        self._queue: queue.Queue[frames.Request] = queue.Queue()
        self._lock = threading.Lock()
        self._pids: Dict[int, int] = {}  # pid → id of the request
        self._cancelled: Set[int] = set()
        self._thread: Optional[threading.Thread] = None

    def request(self, request: frames.Request) -> None:
        pid, start, method = (request.args.get(name) for name in ("pid", "start", "method"))
        if method == LIST:
            threading.Thread(
                target=self._list, args=(request,), name="attachable", daemon=True
            ).start()
            return
        if not audit.is_number(pid) or not audit.is_number(start):
            self._refuse(
                request,
                "refused",
                "inject needs args.pid and args.start: a process and its start time",
            )
            return
        if method not in (LOOK, "auto", "pep768", "ptrace"):
            self._refuse(
                request, "refused", "inject needs args.method: look, auto, pep768 or ptrace"
            )
            return
        with self._lock:
            other = self._pids.get(int(pid))  # type: ignore[arg-type]
            if other is not None or len(self._pids) >= MAX_WAITING:
                what = (
                    f"busy with request {other} (inject) of this viewer"
                    if other is not None
                    else "too many at once"
                )
                self._refuse(request, "busy", what)
                return
            self._pids[int(pid)] = request.id  # type: ignore[arg-type]
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="inject", daemon=True)
                self._thread.start()
        self._answer(frames.Ack(request.id))
        self._queue.put(request)

    def _list(self, request: frames.Request) -> None:
        """List the processes in a separate thread.

        Reading about a process that hangs in the kernel may block.
        """
        try:
            from .attachable import listing

            answer: Any = frames.Result(request.id, listing(request.args.get("pids"), self._redact))
        except Exception as error:
            answer = _failed(request, error)
        self._answer(answer)

    def cancel(self, number: object) -> bool:
        """Cancel the request with this id; False if there is none.

        Its answer follows after everything has been restored.
        """
        with self._lock:
            if number not in self._pids.values() or not isinstance(number, int):
                return False
            self._cancelled.add(number)
            return True

    def _run(self) -> None:
        while True:
            request = self._queue.get()
            pid = int(request.args["pid"])  # type: ignore[arg-type]
            try:
                answer = self._one(request, pid, int(request.args["start"]))  # type: ignore[arg-type]
            except Exception as error:
                answer = _failed(request, error)
            with self._lock:
                self._pids.pop(pid, None)
                self._cancelled.discard(request.id)
            self._answer(answer)

    def _one(self, request: frames.Request, pid: int, start: int) -> Any:
        from ..attach.inject import CannotInject, inject

        if request.args["method"] == LOOK:
            from .attachable import look

            return frames.Result(request.id, look(pid, start, self._redact))
        method = str(request.args["method"])
        least, most = PATIENCE_SECONDS
        patience = min(max(request.deadline - MARGIN_SECONDS, least), most)
        began = time.time()
        try:
            if self._is_cancelled(request.id):
                return frames.Error(request.id, "cancelled", "cancelled by the viewer")
            done = inject(
                pid,
                start,
                method,
                patience,
                progress=lambda text: self._answer(frames.Progress(request.id, None, text)),
                go_on=lambda: not self._is_cancelled(request.id),
            )
        except CannotInject as error:
            _audit(pid, start, method, began, f"{error.code}: {error.why}")
            if self._is_cancelled(request.id):
                return frames.Error(
                    request.id,
                    "cancelled",
                    "cancelled by the viewer; what was left there is withdrawn",
                )
            why = error.why + (f" Next:  {error.next}" if error.next else "")
            return frames.Error(request.id, _CODES.get(error.code, error.code), why)
        _audit(pid, start, done.method, began, "done")
        return frames.Result(
            request.id,
            {
                "method": done.method,
                "stop_seconds": done.stop_seconds,
                "callback_seconds": done.callback_seconds,
                "main_seconds": done.main_seconds,
                "ready_seconds": done.ready_seconds,
            },
        )

    def _is_cancelled(self, number: int) -> bool:
        with self._lock:
            return number in self._cancelled

    def _refuse(self, request: frames.Request, code: str, reason: str) -> None:
        self._answer(frames.Error(request.id, code, reason))


def _failed(request: frames.Request, error: Exception) -> frames.Error:
    text = f"gpuscope failed: {type(error).__name__}: {error}"
    return frames.Error(request.id, "failed", text[:300])


def _audit(pid: int, start: int, method: str, began: float, outcome: str) -> None:
    audit.write_line(
        f"inject pid {pid} start {start} by uid {os.getuid()} ({method})", began, outcome
    )
