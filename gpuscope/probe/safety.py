"""Notice and keep what matters while nobody watches.

This covers stalls, OOM records, the black box, and how the trainer ends.
"""

from __future__ import annotations

import threading
import time
from typing import Any, Callable, Dict, Optional

from ..wire import injected
from ..wire.frames import INTERRUPTED, Hello
from . import collectives, rendezvous
from .blackbox import BlackBox
from .exit_reason import Endings, is_interactive
from .history import HistorySwitch
from .history_from_start import StandingHistory
from .on_import import debug
from .oom import OomRecorder
from .server import Server
from .stall import StallWatch
from .steps import Steps

TICK_SECONDS = 0.9
KEEP_SECONDS = 2.0
"""How long the end of a trainer waits for the copy of its black box, because a home directory may
hang.
"""


MAX_WORDS = 200
"""Limit of the message of an exception that ended the program."""


class Safety:
    """The safety functions for one start of the probe.

    ``announce`` is :meth:`Probe.announce`. ``errand`` hands a call to the probe's thread and
    returns false if there is none. ``counts()`` is :meth:`ProgressReader.counts`.
    """

    def __init__(
        self,
        steps: Steps,
        history: HistorySwitch,
        announce: Callable[..., None],
        errand: Callable[[Callable[[], None]], bool],
        hello: Callable[[float], Hello],
        counts: Callable[[], Any],
    ) -> None:
        self.stall = StallWatch(steps, announce, collectives.count, counts)
        self.history = StandingHistory(steps, history, announce)
        self.oom = OomRecorder(announce, errand, lambda: steps.total, lambda: self.history.on)
        self.box = BlackBox(hello)
        self.endings = Endings(self._exception, self._end)
        self._errand = errand
        self._explain: Callable[[str], None] = lambda why: None
        self._ended: Optional[Dict[str, Any]] = None
        self._next = 0.0

    def install(self, server: Server) -> None:
        """Install everything, after the server has started."""
        server.keepers.append(self.box)
        self._explain = server.explain_end
        # also because the thread already waits, and does not know the box yet
        server.errand(_clear)
        self.endings.install()

    def cuda_initialised(self) -> None:
        """Act in the thread that initialises CUDA. Never raises."""
        self.oom.attach()
        self.history.begin()

    def columns(self) -> Dict[str, Any]:
        """Return columns of the trainer, and do what is due about once a second.

        This is called in the probe's thread.
        """
        now = time.monotonic()
        if now >= self._next:
            self._next = now + TICK_SECONDS
            for part in (self.oom.tick, self.history.tick, self.endings.look):
                try:
                    part()
                except Exception as error:
                    debug("not looked after", error)
        return {"stall_at": self.stall.tick(), "collectives": collectives.count()}

    def remove(self) -> None:
        """Remove everything, because the probe is removed: nothing of this run is kept."""
        self.endings.remove()
        self.oom.remove()
        self.box.remove()

    def abandon(self) -> None:
        """In a forked child, forget what belongs to the parent."""
        self.endings.remove()
        self.oom.remove()
        self.box.abandon()

    def _exception(self, description: Dict[str, Any]) -> None:
        self.oom.uncaught()
        # at a prompt and in a notebook an error ends nothing, so it is no end to write down
        if description["how"] == "exception" and not is_interactive():
            self._mark(description)

    def _end(self, description: Dict[str, Any]) -> None:
        died = description["how"] == "exception" or bool(description.get("code"))
        if died:
            self._explain(_last_words(description))
        full = self.oom.waiting
        self.oom.uncaught()
        if died or full or self._ended is not None:
            self._mark(description if died else self._ended or {**description, "oom": full})
        else:
            self.box.remove()

    def _mark(self, description: Dict[str, Any]) -> None:
        before, self._ended = self._ended, description
        if before is None or before.get("type") != description.get("type"):
            self.box.ended({**description, "time": time.time()})
            if description.get("type") != "KeyboardInterrupt":
                done = threading.Event()
                if self._errand(lambda: self._keep(done)):
                    done.wait(KEEP_SECONDS)
                else:
                    self._keep(done)

    def _keep(self, done: threading.Event) -> None:
        self.box.keep()
        done.set()


def _last_words(description: Dict[str, Any]) -> str:
    """Return in one line what ended the program."""
    kind = str(description.get("type", ""))
    if kind == "KeyboardInterrupt":
        return INTERRUPTED
    if not kind:
        return f"exit code {description.get('code')}"
    message = str(description.get("message", "")).partition("\n")[0][:MAX_WORDS]
    return f"{kind}: {message}" if message else kind


def _clear() -> None:
    """Remove the files that killed injectors have left in our directory."""
    try:
        injected.remove_left(rendezvous.directory())
    except OSError as error:
        debug("what injections left is not removed", error)
