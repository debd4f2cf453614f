"""What the probe hangs into the trainer's torch, and takes out: one global optimizer hook, three wrapped functions.

No module hook anywhere (they break torch.compile). Under tracing the hooks vanish: ``torch.compiler.is_compiling()`` is
a constant there, so a compiled ``optimizer.step`` gets the same graph as without us; its steps are not seen.
"""

from __future__ import annotations

import functools
import sys
from threading import get_ident
from time import monotonic, perf_counter, sleep
from typing import Any, Callable, Dict, List, Optional, Set

from .steps import Steps

Undo = Callable[[], None]
QUIET_SECONDS = 10.0
"""How long to look for a moment in which no optimizer iterates over its hooks; ours stays in, empty, without one."""


class Hooks:
    """``on_step(optimizer)`` is called after each optimizer step, ``on_cuda()`` once CUDA is being initialised: in the
    trainer's threads, and both must not raise. Waits and skipped steps go to :attr:`steps`."""

    def __init__(self, steps: Steps, on_step: Callable[[Any], None], on_cuda: Callable[[], None]) -> None:
        self.steps = steps
        self.active = True
        self._on_step = on_step
        self._on_cuda = on_cuda
        self._undo: Dict[str, Undo] = {}
        self._waiting: Set[int] = set()  # threads in a loader; of a loader inside a loader only the outer one waits

    def install(self) -> bool:
        """Hang in what is not in yet; True when there is nothing left to do. A part whose module is not loaded, or
        that this torch lacks, is left out and tried again at the next call."""
        if not self.active:
            return True
        torch: Any = sys.modules.get("torch")
        compiler = _loaded("torch.compiler")
        if compiler is None:
            return False
        compiling = getattr(compiler, "is_compiling", None) or _never
        for name, part in (
            ("optimizer", self._optimizer),
            ("loader", self._loader),
            ("scaler", self._scaler),
            ("cuda", self._cuda),
        ):
            if name not in self._undo:
                try:
                    undo = part(torch, compiling)
                except Exception:
                    undo = None  # another torch: this reading stays unknown, the training goes on
                if undo is not None:
                    self._undo[name] = undo
        return len(self._undo) == 4

    @property
    def installed(self) -> List[str]:
        """Which of optimizer, loader, scaler, cuda are in."""
        return list(self._undo)

    def after_fork(self, steps: Steps) -> None:
        """In a forked child: count into ``steps``; what the parent's threads were waiting for does not concern us."""
        self.steps = steps
        self._waiting.clear()

    def remove(self) -> None:
        """Take everything out. A function that somebody else has wrapped since stays in that wrapping, and only passes
        through."""
        self.active = False
        for undo in self._undo.values():
            try:
                undo()
            except Exception:
                pass
        self._undo.clear()

    def _optimizer(self, torch: Any, compiling: Callable[[], bool]) -> Optional[Undo]:
        module = _loaded("torch.optim.optimizer")
        register = getattr(module, "register_optimizer_step_post_hook", None)
        if register is None:
            return None
        on_step = self._on_step

        def gpuscope_step_hook(optimizer: Any, args: Any, kwargs: Any) -> None:
            if not compiling() and self.active:
                on_step(optimizer)

        handle = _between_steps(module, lambda: register(gpuscope_step_hook))
        return lambda: _between_steps(module, handle.remove)

    def _loader(self, torch: Any, compiling: Callable[[], bool]) -> Optional[Undo]:
        cls = getattr(_loaded("torch.utils.data.dataloader"), "_BaseDataLoaderIter", None)
        if cls is None:
            return None
        original = cls.__next__

        @functools.wraps(original)
        def __next__(self_: Any) -> Any:
            if compiling() or not self.active:
                return original(self_)
            thread = get_ident()
            if thread in self._waiting:
                return original(self_)
            self._waiting.add(thread)
            begin = perf_counter()
            try:
                return original(self_)
            finally:
                self._waiting.discard(thread)
                self.steps.waited(perf_counter() - begin)

        return _replace(cls, "__next__", __next__, original)

    def _scaler(self, torch: Any, compiling: Callable[[], bool]) -> Optional[Undo]:
        module = _loaded("torch.amp.grad_scaler") or _loaded("torch.cuda.amp.grad_scaler")
        cls = getattr(module, "GradScaler", None)
        original = getattr(cls, "_maybe_opt_step", None)
        if original is None:
            return None

        @functools.wraps(original)
        def _maybe_opt_step(self_: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            before = self.steps.count_of(optimizer)
            result = original(self_, optimizer, *args, **kwargs)
            # Only torch's own wrapping of step() calls the hook: for any other optimizer "no hook" proves nothing.
            if self.active and getattr(type(optimizer).step, "hooked", False):
                self.steps.scaler_seen = True
                if self.steps.count_of(optimizer) == before:
                    self.steps.skipped += 1
            return result

        return _replace(cls, "_maybe_opt_step", _maybe_opt_step, original)

    def _cuda(self, torch: Any, compiling: Callable[[], bool]) -> Optional[Undo]:
        """torch calls what is queued here from inside its lazy initialisation: we learn of it and touch nothing."""
        if getattr(torch.version, "cuda", None) is None and getattr(torch.version, "hip", None) is None:
            return _nothing
        cuda = _loaded("torch.cuda")
        if cuda is None:
            return None
        on_cuda = self._on_cuda
        if cuda.is_initialized():
            on_cuda()
            return _nothing

        def gpuscope_cuda_initialised() -> None:
            if self.active:
                on_cuda()

        cuda._lazy_call(gpuscope_cuda_initialised)

        def undo() -> None:
            cuda._queued_calls[:] = [call for call in cuda._queued_calls if call[0] is not gpuscope_cuda_initialised]

        return undo


def _between_steps(module: Any, change: Callable[[], Any]) -> Any:
    """``change()`` the global hooks while no optimizer iterates over them: torch would raise RuntimeError ("mutated
    during iteration") into the training step. With at most one hook there this cannot happen, the iterator is at its
    end when that hook runs. Otherwise look where every thread is, right after getting the interpreter lock: nobody else
    gets it for the next 5 ms."""
    if len(getattr(module, "_global_optimizer_post_hooks", ())) <= 1:
        return change()
    end = monotonic() + QUIET_SECONDS
    while monotonic() < end and not _in_step(sys._getframe()):
        sleep(0.001)
        if not any(_in_step(frame) for frame in sys._current_frames().values()):
            return change()
    raise RuntimeError("no moment between two optimizer steps")


def _in_step(frame: Any) -> bool:
    while frame is not None:
        if frame.f_code.co_name == "wrapper" and frame.f_globals.get("__name__") == "torch.optim.optimizer":
            return True
        frame = frame.f_back
    return False


def _replace(cls: Any, name: str, ours: Any, original: Any) -> Undo:
    setattr(cls, name, ours)

    def undo() -> None:
        if getattr(cls, name, None) is ours:
            setattr(cls, name, original)

    return undo


def _loaded(name: str) -> Any:
    """The module if it is imported and executed to its end, else None."""
    module = sys.modules.get(name)
    return None if getattr(getattr(module, "__spec__", None), "_initializing", False) else module


def _never() -> bool:
    return False


def _nothing() -> None:
    return None
