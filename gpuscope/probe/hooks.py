"""Put hooks into the trainer's torch and take them out again.

These are two global optimizer hooks and four wrapped functions. There are no module hooks, because
they break torch.compile. Under tracing the hooks disappear: ``torch.compiler.is_compiling()`` is a
constant there, so a compiled ``optimizer.step`` gets the same graph as without us; its steps are
not seen.
"""

from __future__ import annotations

import functools
import sys
from itertools import repeat, starmap
from threading import get_ident
from time import monotonic, perf_counter, sleep
from types import MethodType
from typing import Any, Callable, Dict, List, Optional

from .closures import TimedClosure
from .loading import Loading
from .on_import import debug
from .passes import Passes
from .split import Split
from .step_frames import in_step, within_its_own_step
from .steps import Steps
from .thread_frames import current_frames

Undo = Callable[[], None]
_NO_ARGUMENTS = repeat(())
QUIET_SECONDS = 10.0
"""How long to wait for a moment in which no optimizer iterates over its hooks. Without such a
moment our hook stays installed, but does nothing.
"""


class Hooks:
    """The hooks of one probe.

    ``on_step(optimizer)`` is called after each optimizer step, ``on_cuda()`` when CUDA is being
    initialised, and ``on_training()`` when backward passes show that this process trains. They run
    in the trainer's threads, and none may raise. ``on_batch(now)`` is called before each batch of a
    DataLoader. Waits and skipped steps are reported to :attr:`steps`, the marks of a measured step
    to :attr:`split`, and batches to :attr:`loading`.
    """

    def __init__(
        self,
        steps: Steps,
        on_step: Callable[[Any], None],
        on_cuda: Callable[[], None],
        split: Optional[Split] = None,
        on_training: Callable[[], None] = lambda: None,
        on_batch: Callable[[float], None] = lambda now: None,
        loading: Optional[Loading] = None,
    ) -> None:
        self.steps = steps
        self.passes = Passes(steps)
        self.on_batch = on_batch
        self.split = split if split is not None else Split()
        self.loading = loading if loading is not None else Loading()
        self.active = True
        self._on_step = on_step
        self._on_cuda = on_cuda
        self._on_training = on_training
        self._undo: Dict[str, Undo] = {}

    def install(self) -> bool:
        """Install the hooks that are missing; True if all are installed.

        If the module of a hook is not loaded, or this torch lacks it, the next call tries again.
        """
        if not self.active:
            return True
        torch: Any = sys.modules.get("torch")
        compiler = _loaded("torch.compiler")
        if compiler is None:
            return False
        compiling = getattr(compiler, "is_compiling", None) or _never
        for name, part in (
            ("optimizer", self._optimizer),
            ("before", self._before),
            ("loader", self._loader),
            ("scaler", self._scaler),
            ("cuda", self._cuda),
            ("backward", self._backward),
        ):
            if name not in self._undo:
                try:
                    undo = part(torch, compiling)
                except Exception:
                    # another version of torch: this reading stays unknown, and the training goes on
                    undo = None
                if undo is not None:
                    self._undo[name] = undo
        return len(self._undo) == 6

    @property
    def installed(self) -> List[str]:
        """Return which hooks are installed: optimizer, before, loader, scaler, cuda, backward."""
        return list(self._undo)

    def after_fork(
        self,
        steps: Steps,
        split: Optional[Split] = None,
        on_batch: Callable[[float], None] = lambda now: None,
        loading: Optional[Loading] = None,
    ) -> None:
        """In a forked child, count into ``steps``, and measure with ``split`` and ``loading``.

        ``on_batch`` is called for its batches.
        """
        self.steps = steps
        self.passes = Passes(steps)
        self.on_batch = on_batch
        self.split = split if split is not None else Split()
        self.loading = loading if loading is not None else Loading()

    def remove(self) -> None:
        """Remove all hooks.

        A function that somebody else has wrapped since then stays inside that wrapper, and only
        passes through.
        """
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
            if not compiling() and self.active and not within_its_own_step(optimizer):
                on_step(optimizer)

        known = getattr(module, "_global_optimizer_post_hooks", ())
        handle = _between_steps(known, lambda: register(gpuscope_step_hook))
        return lambda: _between_steps(known, handle.remove)

    def _before(self, torch: Any, compiling: Callable[[], bool]) -> Optional[Undo]:
        module = _loaded("torch.optim.optimizer")
        register = getattr(module, "register_optimizer_step_pre_hook", None)
        if register is None:
            return None

        def gpuscope_before_step_hook(optimizer: Any, args: Any, kwargs: Any) -> Any:
            if not compiling() and self.active and self.split.open is not None:
                return self.split.optimizer_begins(optimizer, args, kwargs)
            return None

        known = getattr(module, "_global_optimizer_pre_hooks", ())
        handle = _between_steps(known, lambda: register(gpuscope_before_step_hook))
        return lambda: _between_steps(known, handle.remove)

    def _loader(self, torch: Any, compiling: Callable[[], bool]) -> Optional[Undo]:
        cls = getattr(_loaded("torch.utils.data.dataloader"), "_BaseDataLoaderIter", None)
        if cls is None:
            return None

        def bound(original: Any, iterator: Any) -> Any:
            if compiling() or not self.active:
                # torch.compile 2.14 fails at original.__get__
                return MethodType(original, iterator)
            begin, waits, split = perf_counter(), self.steps.loads, self.split
            self.on_batch(begin)
            mark = None if split.open is None else split.load_begins()
            loading = self.loading
            began = loading.begins(iterator, begin)

            def done(batch: Any) -> Any:
                waits.append((get_ident(), begin, perf_counter()))
                if began is not None:
                    loading.ended(began)
                if mark is not None:
                    split.load_ended(mark)
                return batch

            done.__code__ = done_code
            # starmap() calls the original and map() then done, from C. Not iter(original,
            # sentinel): that compares what it gets with the sentinel, in code of the batch's class,
            # 20 us for a tensor and an error for an array.
            return map(done, starmap(MethodType(original, iterator), _NO_ARGUMENTS)).__next__

        # Inside a compiled function that iterates over a loader, torch.compile traces into
        # functions that get a tensor, but not into torch's own.
        (done_code,) = [
            code for code in bound.__code__.co_consts if getattr(code, "co_name", "") == "done"
        ]
        done_code = done_code.replace(co_filename=cls.__next__.__code__.co_filename)
        return replace_method(cls, "__next__", Unseen(cls.__next__, bound))

    def _scaler(self, torch: Any, compiling: Callable[[], bool]) -> Optional[Undo]:
        module = _loaded("torch.amp.grad_scaler") or _loaded("torch.cuda.amp.grad_scaler")
        cls = getattr(module, "GradScaler", None)
        if cls is None or not hasattr(cls, "_maybe_opt_step"):
            return None

        def stepping(original: Any, scaler: Any) -> Any:
            if self.active:
                # the caller is GradScaler.step, which is about to call it
                optimizer = sys._getframe(2).f_locals.get("optimizer")
                # Only torch's own wrapper of step() calls the hook. For any other optimizer the
                # lack of a call proves nothing.
                if getattr(getattr(type(optimizer), "step", None), "hooked", False):
                    self.steps.scaled(optimizer)
            return MethodType(original, scaler)

        def updating(original: Any, scaler: Any) -> Any:
            if self.active:
                self.steps.scaled()
            return MethodType(original, scaler)

        undo_step = replace_method(cls, "_maybe_opt_step", Unseen(cls._maybe_opt_step, stepping))
        undo_update = replace_method(cls, "update", Unseen(cls.update, updating))
        return lambda: (undo_step(), undo_update())[0]

    def _backward(self, torch: Any, compiling: Callable[[], bool]) -> Optional[Undo]:
        """Wrap the function of torch that every backward pass calls.

        It is private, so it may be missing or replaced by others. Then trainings without an
        optimizer of torch are not counted.
        """
        module = _loaded("torch.autograd")
        original = getattr(module, "_engine_run_backward", None)
        if original is None:
            return None if module is None else _nothing

        def begins() -> Any:
            steps, passes = self.steps, self.passes
            wanted = steps.on_backward
            if wanted is not None and get_ident() == steps.thread and not compiling():
                wanted(steps)
            if not self.active or (steps.last is not None and not steps.counted_by) or compiling():
                return None
            try:
                if passes.begins(perf_counter()):
                    self._on_training()
            except Exception as error:
                debug("a backward pass is not counted", error)
            return passes

        def ended(passes: Any) -> None:
            if passes is not None:
                passes.ended()

        ours = TimedClosure(original, begins, ended)
        module._engine_run_backward = ours

        def undo() -> None:
            if module._engine_run_backward is ours:
                module._engine_run_backward = original

        return undo

    def _cuda(self, torch: Any, compiling: Callable[[], bool]) -> Optional[Undo]:
        """Have torch call us from inside its lazy initialisation.

        So we learn about it without touching anything.
        """
        if (
            getattr(torch.version, "cuda", None) is None
            and getattr(torch.version, "hip", None) is None
        ):
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
            cuda._queued_calls[:] = [
                call for call in cuda._queued_calls if call[0] is not gpuscope_cuda_initialised
            ]

        return undo


def _between_steps(known: Any, change: Callable[[], Any]) -> Any:
    """Change the global hooks ``known`` while no optimizer iterates over them.

    Otherwise torch would raise RuntimeError ("mutated during iteration") in the training step. With
    at most one hook this cannot happen, because the iterator is at its end when that hook runs.
    With more, we look where every thread is right after we got the interpreter lock: no other
    thread gets it for the next 5 ms.
    """
    if len(known) <= 1:
        return change()
    end = monotonic() + QUIET_SECONDS
    while monotonic() < end and not in_step(sys._getframe()):
        sleep(0.001)
        if not any(in_step(frame) for frame in current_frames().values()):
            return change()
    raise RuntimeError("no time between two optimizer steps")


class Unseen:
    """Takes the place of a method in its class, without showing up in tracebacks.

    ``bound(original, instance)`` returns the function to call, and has ended when the call begins.
    The frame of an ordinary wrapper would appear between the user's line and an error in the user's
    dataset.
    """

    def __init__(self, original: Any, bound: Callable[[Any, Any], Any]) -> None:
        self.original = original
        self._bound = bound

        @functools.wraps(original)
        def unbound(instance: Any, *args: Any, **kwargs: Any) -> Any:
            return bound(original, instance)(*args, **kwargs)

        # for code that takes the method from the class, to wrap it once more
        self._unbound = unbound

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self._unbound
        try:
            return self._bound(self.original, instance)
        except Exception:
            return MethodType(self.original, instance)


def replace_method(cls: Any, name: str, ours: Unseen) -> Undo:
    setattr(cls, name, ours)

    def undo() -> None:
        if cls.__dict__.get(name) is ours:
            setattr(cls, name, ours.original)

    return undo


def _loaded(name: str) -> Any:
    """Return the module if it is imported and fully executed, else None."""
    module = sys.modules.get(name)
    return None if getattr(getattr(module, "__spec__", None), "_initializing", False) else module


def _never() -> bool:
    return False


def _nothing() -> None:
    return None
