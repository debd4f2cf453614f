"""One probe per process: armed by the import hook, started by the first step, by CUDA or by ``watch()``.

The probe is kept in ``sys`` under :data:`GUARD`, not in this module: the installed package and the shipped zip are two
copies of this code, and only one of them may run."""

from __future__ import annotations

import os
import sys
import threading
from time import perf_counter
from typing import Any, List, Optional

from .hooks import Hooks
from .ledger import Ledger
from .on_import import OnImport, debug
from .rendezvous import Refused
from .sampler import Sampler
from .server import Server
from .steps import Steps

GUARD = "_gpuscope_probe"
_at_fork_registered: List[bool] = []


class Probe:
    """``origin`` says how it got here: run, watch, lab, enable, inject. ``problem`` why nobody can see it, if so."""

    def __init__(self, origin: str) -> None:
        self.origin = origin
        self.problem = ""
        self.steps = Steps()
        self.ledger = Ledger()
        self.hooks = Hooks(self.steps, self._on_step, self.start)
        self.server: Optional[Server] = None
        self._finder: Optional[OnImport] = None
        self._lock = threading.Lock()

    def arm(self) -> None:
        """Hang in the hooks, now or when torch is imported."""
        if not self.hooks.install() and "torch" not in sys.modules and self._finder is None:
            self._finder = OnImport("torch", self.hooks.install)
            self._finder.install()

    def watch(self, model: Any, optimizer: Any) -> None:
        """Start, and count the tensors of ``model`` and ``optimizer`` (or of each in a list of them)."""
        for item in _each(model):
            self.ledger.add_model(item)
        for item in _each(optimizer):
            self.ledger.add_optimizer(item)
        self.start()

    def start(self) -> None:
        """Open the socket and start the thread. Never raises; where the place is not safe, stays closed for good."""
        with self._lock:
            if self.server is not None or self.problem:
                return
            try:
                server = Server(Sampler(self.origin, self.steps, self.ledger), self.hooks.install, self.detach)
                server.start()
                self.server = server
            except (Refused, OSError, RuntimeError) as error:
                self.problem = str(error)
                debug("nobody can see this trainer", error)

    def detach(self) -> None:
        """Take everything out: hooks, thread, socket, the mark in ``sys``. Python cannot unregister a fork callback:
        it finds no probe and does nothing."""
        if getattr(sys, GUARD, None) is self:
            delattr(sys, GUARD)
        self.hooks.remove()
        if self._finder is not None:
            self._finder.remove()
        self.problem = "detached"
        server, self.server = self.server, None
        if server is not None:
            server.stop()

    def after_fork(self) -> None:
        """In a forked child: drop what belongs to the parent, stay armed. A child that trains opens its own socket."""
        server, self.server = self.server, None
        self._lock = threading.Lock()
        if server is not None:
            server.abandon()
        self.problem = ""
        self.steps = Steps()
        self.hooks.after_fork(self.steps)
        self.ledger = Ledger()

    def _on_step(self, optimizer: Any) -> None:
        begin = perf_counter()
        try:
            steps = self.steps
            steps.stepped(optimizer, begin)
            if getattr(optimizer, "found_inf", None) is not None:  # set by GradScaler only around a fused step
                steps.scaled_on_device = True
            if self.server is None and not self.problem:
                self.start()
            self.ledger.after_step(optimizer, begin)
            steps.costs.append(perf_counter() - begin)
        except Exception as error:  # an unusual optimizer: its step is worth more than our reading of it
            debug("step not counted", error)


def arm(origin: str) -> None:
    """Arm this process's probe, if it has none. No thread, no socket yet."""
    if getattr(sys, GUARD, None) is None:
        _new(origin)


def watch(model: Any = None, optimizer: Any = None) -> None:
    """See ``gpuscope.watch``."""
    if os.environ.get("GPUSCOPE") == "0":
        return
    probe = getattr(sys, GUARD, None)
    if probe is None:
        probe = _new("lab" if os.environ.get("GPUSCOPE_ORIGIN") == "lab" else "watch")
    probe.watch(model, optimizer)


def detach() -> None:
    """Take the probe out of this process, if there is one. ``watch()`` may start it again."""
    probe = getattr(sys, GUARD, None)
    if probe is not None:
        probe.detach()


def _new(origin: str) -> Probe:
    probe = Probe(origin)
    setattr(sys, GUARD, probe)
    if not _at_fork_registered and hasattr(os, "register_at_fork"):
        _at_fork_registered.append(True)
        os.register_at_fork(after_in_child=_after_fork)
    probe.arm()
    return probe


def _after_fork() -> None:
    probe = getattr(sys, GUARD, None)
    if type(probe) is Probe:  # of this copy of the code: the other copy has its own callback
        try:
            probe.after_fork()
        except Exception as error:
            debug("in a forked child", error)


def _each(value: Any) -> List[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]
