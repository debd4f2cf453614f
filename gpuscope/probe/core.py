"""Hold the one probe of a process.

It is armed by the import hook. What starts it is the first step of an optimizer of torch, a few
backward passes without one (``passes.py``), CUDA, ``watch()`` or an attach. A process that imports
torch for something else (a launcher, a worker that loads data) gets no thread and no socket, and
neither does one that only runs inference on a CPU: nothing tells it from these without a hook in
its modules or a thread in all of them.

The probe is kept in ``sys`` under :data:`GUARD`, not in this module, because the installed package
and the zip that is sent are two copies of this code, and only one of them may run.
"""

from __future__ import annotations

import os
import sys
import threading
from time import monotonic, monotonic_ns, perf_counter
from typing import Any, Callable, Dict, List, Optional

from ..wire.frames import UNWATCHED, Event, Scalar
from . import cuda, profiling, trackers, work, yama
from .gauges import Gauges
from .hooks import Hooks
from .ledger import Ledger
from .long_requests import CLOSE_SECONDS
from .on_import import OnImport, debug
from .rendezvous import RendezvousError
from .requests import Requests
from .safety import Safety
from .sampler import TRAINER_ID, Sampler
from .server import Server
from .steps import Steps

GUARD = "_gpuscope_probe"
_at_fork_registered: List[bool] = []
_of_the_parent: List[Any] = []
"""In a forked child, what the parent's probe had. It is never freed there, because it may hold
events of CUDA: a child cannot use CUDA, and torch ends a process that cannot destroy an event.
"""


class Probe:
    """The probe. ``origin`` says how it was started: run, watch, lab, enable, inject.

    ``problem`` says why nobody can see it, if so. With ``allow_attach`` any process of this user
    may trace this one once the probe has started (``yama.py``).
    """

    def __init__(self, origin: str, allow_attach: bool = False) -> None:
        self.origin = origin
        self.allow_attach = allow_attach
        self.problem = ""
        self.idle_seconds: Optional[float] = None
        """The probe removes itself after this many seconds without a client; None: it stays."""
        self.farewell: Callable[[], None] = lambda: None
        self._watched_at = monotonic()
        self.steps = Steps(goes_on=origin == "inject")
        if origin in ("run", "enable"):
            self.steps.importer = threading.get_ident()
            profiling.note_none()
        self.ledger = Ledger()
        self.gauges = Gauges(self.steps, self.ledger)
        self.hooks = Hooks(
            self.steps,
            self._on_step,
            self._on_cuda,
            self.gauges.split,
            self.start,
            self.gauges.before_batch,
            self.gauges.loading,
        )
        self.server: Optional[Server] = None
        self.sampler: Optional[Sampler] = None
        self.safety: Optional[Safety] = None
        self.trackers = trackers.Trackers() if trackers.is_wanted() else None
        self._finder: Optional[OnImport] = None
        self._lock = threading.Lock()

    def arm(self) -> None:
        """Install the hooks, now or when torch is imported."""
        if self.trackers is not None:
            self.trackers.install()
        if not self.hooks.install() and "torch" not in sys.modules and self._finder is None:
            self._finder = OnImport("torch", self.hooks.install)
            self._finder.install()

    def watch(self, model: Any, optimizer: Any) -> None:
        """Start, and count the tensors of ``model`` and ``optimizer``.

        Each may be a list.
        """
        for item in _each(model):
            self.ledger.add_model(item)
        for item in _each(optimizer):
            self.ledger.add_optimizer(item)
        self.start()

    def start(self) -> None:
        """Open the socket and start the thread.

        Never raises. If the directory is not safe, the probe stays off.
        """
        with self._lock:
            if self.server is not None or self.problem:
                return
            if self.allow_attach:
                yama.allow(True)
            try:
                self.sampler = Sampler(
                    self.origin,
                    self.steps,
                    self.ledger,
                    self.gauges,
                    self.announce,
                    lambda: "before" in self.hooks.installed,
                    lambda: self.hooks.passes.count,
                )
                self.gauges.time.announce = self.announce
                requests = Requests(self.steps, self.gauges)
                server = Server(self.sampler, requests, self._look_after, self.detach)
                counts = self.gauges.progress.counts
                safety = Safety(
                    self.steps,
                    requests.history,
                    self.announce,
                    server.errand,
                    self.sampler.hello,
                    counts,
                )
                self.sampler.also = safety.columns
                self.sampler.no_box = lambda: safety.box.problem
                if self.trackers is not None:
                    server.keepers.append(self.trackers)
                server.start()
                self.server, self.safety = server, safety
                safety.install(server)
                if cuda.initialised():
                    safety.cuda_initialised()
                if self.origin == "watch":
                    profiling.note_none(search=True)  # now, rather than while it trains
            except (RendezvousError, OSError, RuntimeError) as error:
                self.problem = str(error)
                debug("nobody can see this trainer", error)

    def announce(
        self,
        e: str,
        text: str = "",
        data: Optional[Dict[str, Scalar]] = None,
        ordinal: Optional[int] = None,
    ) -> None:
        """Send an event (``wire.frames.Event``) of kind ``e`` to all clients.

        It concerns this trainer, or its allocator of ``ordinal`` once that is defined. ``text`` is
        a sentence for people. Any thread of the trainer may call this; it never blocks and never
        raises.
        """
        try:
            server = self.server
            if server is None:
                return
            entity = (
                None
                if ordinal is None or self.sampler is None
                else self.sampler.allocator_id(ordinal)
            )
            server.announce(Event(entity or TRAINER_ID, e, monotonic_ns(), text, dict(data or {})))
        except Exception as error:
            debug(f"event {e} is lost", error)

    def detach(self) -> None:
        """Remove everything: hooks, thread, socket, the entry in ``sys``.

        Python cannot unregister a fork callback; it then finds no probe and does nothing.
        """
        if getattr(sys, GUARD, None) is self:
            delattr(sys, GUARD)
        work.leave(CLOSE_SECONDS)  # by the hook at the end of the step
        self.hooks.remove()
        self.gauges.exposed.restore(self.gauges.finder.parallel)
        if self._finder is not None:
            self._finder.remove()
        self.problem = "detached"
        if self.allow_attach:
            yama.allow(False)
        server, self.server = self.server, None
        safety, self.safety = self.safety, None
        if safety is not None:
            safety.remove()
        if server is not None:
            server.stop()
        if self.trackers is not None:
            self.trackers.stop()
        self.farewell()

    def after_fork(self) -> None:
        """In a forked child, drop what belongs to the parent, and stay armed.

        A child that trains opens its own socket.
        """
        hooks = self.hooks
        measured = self.steps, self.ledger, self.gauges, hooks.passes, hooks.split, hooks.loading
        _of_the_parent.append((measured, self.server, self.safety))
        server, self.server = self.server, None
        safety, self.safety = self.safety, None
        self._lock = threading.Lock()
        if safety is not None:
            safety.abandon()
        if server is not None:
            server.abandon()
        if self.trackers is not None:
            self.trackers = self.trackers.forked()
        self.problem = ""
        self.steps = Steps()
        self.ledger = Ledger()
        self.gauges = Gauges(self.steps, self.ledger)
        gauges = self.gauges
        self.hooks.after_fork(self.steps, gauges.split, gauges.before_batch, gauges.loading)

    def _look_after(self) -> None:
        """Check every few seconds, in the probe's thread, whether to stay."""
        self.hooks.install()
        server, now = self.server, monotonic()
        if server is None or server.watched:
            self._watched_at = now
        elif self.idle_seconds is not None and now - self._watched_at > self.idle_seconds:
            server.stop(UNWATCHED)
            self.detach()

    def _on_cuda(self) -> None:
        """Start, in the thread that initialises CUDA."""
        self.start()
        try:
            if self.safety is not None:
                self.safety.cuda_initialised()
        except Exception as error:
            debug("OOMs are not observed", error)

    def _on_step(self, optimizer: Any) -> None:
        begin = perf_counter()
        try:
            steps = self.steps
            before = steps.total
            steps.stepped(optimizer, begin)
            primary = steps.total != before
            self.gauges.after_step(optimizer, primary, begin)
            # GradScaler sets this only around a fused step
            if getattr(optimizer, "found_inf", None) is not None:
                steps.scaled_on_device = True
            if self.server is None and not self.problem:
                self.start()
            self.ledger.after_step(optimizer, begin, primary, steps.usual_seconds())
            if self.safety is not None and self.safety.oom.waiting:
                self.safety.oom.stepped(optimizer)
            steps.costs.append(perf_counter() - begin)
        except Exception as error:
            # an unusual optimizer: its step matters more than our reading of it
            debug("step not counted", error)


def arm(origin: str, allow_attach: bool = False) -> None:
    """Arm this process's probe, if it has none. This starts no thread and opens no socket yet."""
    if getattr(sys, GUARD, None) is None:
        _new(origin, allow_attach)


def watch(model: Any = None, optimizer: Any = None) -> None:
    """See ``gpuscope.watch``."""
    if os.environ.get("GPUSCOPE") == "0":
        return
    probe = getattr(sys, GUARD, None)
    if probe is None:
        probe = _new("lab" if os.environ.get("GPUSCOPE_ORIGIN") == "lab" else "watch")
    probe.watch(model, optimizer)


def count_now(seconds: float) -> None:
    """Count this process's tensors now: a notebook asks when no further step follows."""
    probe = getattr(sys, GUARD, None)
    if type(probe) is Probe:
        probe.ledger.count_now(seconds)


def detach() -> None:
    """Take the probe out of this process, if there is one. ``watch()`` may start it again."""
    probe = getattr(sys, GUARD, None)
    if probe is not None:
        probe.detach()


def _new(origin: str, allow_attach: bool = False) -> Probe:
    probe = Probe(origin, allow_attach)
    setattr(sys, GUARD, probe)
    if not _at_fork_registered:
        _at_fork_registered.append(True)
        os.register_at_fork(after_in_child=_after_fork)
    probe.arm()
    return probe


def _after_fork() -> None:
    probe = getattr(sys, GUARD, None)
    if type(probe) is Probe:  # of this copy of the code; the other copy has its own callback
        try:
            probe.after_fork()
        except Exception as error:
            debug("in a forked child", error)


def _each(value: Any) -> List[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]
