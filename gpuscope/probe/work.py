"""Counts the work of one step: every operator that torch dispatches in it, with its shapes.

A dispatch mode of torch is entered in the training thread at the end of a step and left at the end
of the next one. It calls each operator as it comes and keeps its name, the shapes and the types: no
tensor, no value, nothing that waits for the device. The viewer computes the work from the shapes
(``model/operator_work.py``). Where a mode could change what the training does, nothing is counted:
under ``torch.compile``, in a CUDA graph, below another mode, inside a backward pass.
"""

from __future__ import annotations

import gc
import sys
import threading
import time
from typing import Any, Dict, List, Optional, Tuple

from . import cuda
from .blob_file import refuse_without_memory
from .long_requests import Answer, LongRequest, Refusal, Stopped
from .look import added_seconds
from .look_events import Breath
from .marks import capturing
from .on_import import debug
from .steps import Steps, quantile
from .work_rows import Noted, add_tensors, added_up, bytes_of, plan_of, shapes_of

MAX_OPERATORS = 200_000
"""The most operators of one step; a step with more is not counted."""
NEEDED_BYTES = 128 << 20
LONGEST_SHARE, LONGEST_MORE_SECONDS = 4.0, 1.0
"""A step that takes this many times as long as usual, and a second more, did something else too:
validation, a checkpoint. It is not counted, the next one is.
"""
TRIES = 4
MAX_FRAMES = 64
_POLL_SECONDS = 0.05
TOO_OLD = "torch before 2.9 cannot count a step: higher-order operators would fail in its modes"
COMPILED = "parts of this training are compiled (torch.compile), and a mode would switch that off"
GRAPHS = "the training replays CUDA graphs, and what is in them passes no mode"
REPLICAS = "nn.DataParallel computes in threads of its own, which a mode does not see"

_entered: List[Counter] = []
"""The counters whose dispatch mode is active."""


def serve(act: LongRequest, steps: Steps) -> Answer:
    """Serve the request: count the operators of one step. It has no arguments.

    The value has ``operators``, rows of ``[name, recomputed, count, bytes read, bytes written,
    type, shapes]`` (bytes of all of them together; ``shapes`` is JSON of the arguments where FLOPs
    may be in it, else ""), ``left_out``: operators that are in no row, ``first_step`` and
    ``began`` (seconds since the epoch) of the step, its ``seconds``, ``usual_seconds`` of the steps
    before, ``cuda`` and ``devices``: where it computed and on how many, ``tf32``: whether products
    and convolutions may use it, ``lost_seconds``. Raises :class:`Refusal`.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None:
        raise Refusal("unsupported", "torch is not imported in this process yet")
    if steps.thread is None:
        raise Refusal("unsupported", "no step was seen yet: counting begins at the end of one")
    refuse_without_memory(NEEDED_BYTES, "counting a step")
    refuse_kinds()
    usual = list(steps.durations)
    usual_seconds = quantile(sorted(usual), 0.5) if usual else 0.0
    counter = Counter(torch, usual_seconds, act.deadline)
    follow(act, counter, steps)
    if counter.problem:
        raise Refusal("refused", counter.problem)
    refuse_compiled()
    act.stage = "what was counted is being added up"
    value = added_up(counter.noted, Breath())
    value.update(
        first_step=counter.first_step,
        began=counter.began,
        seconds=counter.seconds,
        usual_seconds=counter.usual or None,
        cuda=counter.on_cuda,
        devices=len(counter.devices),
        tf32=[
            _allowed(torch, "_get_cublas_allow_tf32", "matmul"),
            _allowed(torch, "_get_cudnn_allow_tf32", "conv"),
        ],
        lost_seconds=added_seconds(
            usual, usual_seconds or None, steps, (counter.first_step, counter.begun)
        ),
    )
    return Answer(value)


def refuse_kinds() -> None:
    """Raise :class:`Refusal` for trainings that a mode would change, or does not see.

    Objects of two classes are looked for through the garbage collector: about 0.1 s for a million
    objects.
    """
    modes = sys.modules.get("torch.utils._python_dispatch")
    mode = getattr(modes, "TorchDispatchMode", None)
    if not hasattr(mode, "supports_higher_order_operators"):
        raise Refusal("unsupported", TOO_OLD)
    refuse_compiled()
    graph = getattr(sys.modules.get("torch.cuda.graphs"), "CUDAGraph", None)
    parallel = getattr(sys.modules.get("torch.nn.parallel"), "DataParallel", None)
    reasons = {graph: GRAPHS, parallel: REPLICAS}
    kinds = [kind for kind in reasons if kind is not None]
    for found in gc.get_referrers(*kinds) if kinds else ():
        if type(found) in kinds:
            raise Refusal("refused", reasons[type(found)])


def refuse_compiled() -> None:
    """Raise :class:`Refusal` where torch.compile was asked for something."""
    frames = sys.modules.get("torch._dynamo.eval_frame")
    if any(
        _holds_any(getattr(frames, name, None))
        for name in ("always_optimize_code_objects", "cached_backends")
    ):
        raise Refusal("refused", COMPILED)


def _holds_any(found: Any) -> bool:
    """Whether a dictionary of dynamo, or a class of its own like one, holds what compiles.

    To switch dynamo off for a function, as optimizers do, counts as a backend that is None.
    """
    entries = getattr(found, "refs", found)
    if not isinstance(entries, dict):
        return found is not None
    return any(value is not None for value in list(entries.values()))


def follow(act: LongRequest, counter: Counter, steps: Steps) -> None:
    """Count the next step that can be counted.

    A mode that is in is taken out by the training thread alone: until then nobody else is served,
    even where nobody waits for the answer any more.
    """
    act.stage = "waiting for the end of a step"
    steps.on_step = counter
    stopped = False
    while not counter.over.wait(_POLL_SECONDS):
        if counter.running:
            act.stage = "the step is being counted"
        try:
            act.check()
        except Stopped:
            stopped = True
            counter.give_up()
    if steps.on_step is counter:
        steps.on_step = None
    if stopped:
        raise Stopped


class Counter:
    """Counts one step, called at the end of each in the training thread.

    ``usual`` is how many seconds a step takes at present, 0 if that is not known. No step is
    begun that would end after the ``deadline`` (monotonic seconds): it would take longer in vain.
    """

    def __init__(self, torch: Any, usual: float, deadline: float = float("inf")) -> None:
        self.usual, self._deadline = usual, deadline
        self.noted: List[Noted] = []
        self.devices: Dict[Any, None] = {}
        self.on_cuda = cuda.initialised()
        self.problem = ""
        self.first_step = 0
        self.began = self.begun = self.seconds = 0.0
        """``begun`` is in ``perf_counter()`` seconds, ``began`` since the epoch."""
        self.over = threading.Event()
        self._torch = torch
        self._lock = threading.Lock()
        self._state = "waits"
        self._tries = 0
        self._thread = 0
        self._counts = False
        self._given_up = False
        self._until = 0.0
        self._in_pass = torch._C._current_graph_task_id
        self._with_gradients = torch.is_grad_enabled
        self._tensor = torch.Tensor
        self._plans: Dict[Any, Tuple[bool, bool, Tuple[int, ...]]] = {}
        self._mode = _mode(torch, self)

    @property
    def running(self) -> bool:
        return self._state == "runs"

    def __call__(self, steps: Steps) -> None:
        """Begin or end the count; called in the training thread at the end of each step."""
        try:
            if self._state == "runs":
                self._end(steps)
            if self._state == "waits":
                self._begin(steps)
        except Exception as error:
            debug("a step is not counted", error)
            self._fail(f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}")

    def give_up(self) -> None:
        """Stop counting, from another thread; an active mode lets everything through."""
        self._given_up, self._counts = True, False
        with self._lock:
            if self._state == "waits":
                self._finish()

    def leave(self, seconds: float) -> None:
        """Remove the mode before the hooks are removed: at the end of the step.

        If this is the training thread, it is removed at once.
        """
        self.give_up()
        if threading.get_ident() == self._thread:
            self._take_out()
            self._finish()
        else:
            self.over.wait(seconds)

    def _take_out(self) -> bool:
        """Remove the mode, in the training thread; False if another mode lies above it."""
        if _top(self._torch) is not self._mode:
            return False
        self._mode.__exit__(None, None, None)
        if self in _entered:
            _entered.remove(self)
        return True

    def _finish(self) -> None:
        self._state = "over"
        self.over.set()

    def _fail(self, why: str) -> None:
        """Stop counting. While the mode is active, only the end of a step removes it."""
        self.problem = self.problem or why
        self._counts = False
        if self._state != "runs":
            self._finish()

    def _begin(self, steps: Steps) -> None:
        torch = self._torch
        if self._in_pass() != -1:
            return self._fail("the optimizer steps inside the backward pass here")
        if torch._C._len_torch_dispatch_stack():
            return self._fail("the training computes under a dispatch mode of its own")
        if cuda.initialised() and capturing(torch):
            return self._fail("a step is being captured into a CUDA graph")
        if time.monotonic() + self.usual > self._deadline:
            return None
        with self._lock:
            if self._state != "waits":
                return None
            self._state = "runs"
        self._tries += 1
        self.noted, self.devices = [], {}
        self.first_step, self._thread = steps.total, threading.get_ident()
        self.began, self.begun = time.time(), time.perf_counter()
        self._until = (
            self.begun + LONGEST_SHARE * self.usual + LONGEST_MORE_SECONDS
            if self.usual
            else float("inf")
        )
        try:
            self._mode.__enter__()
        except BaseException:
            self._state = "over"
            raise
        _entered.append(self)
        self._counts = True
        return None

    def _end(self, steps: Steps) -> None:
        now = time.perf_counter()
        if threading.get_ident() != self._thread:
            self._counts = False
            self.problem = "steps end in more than one thread here"
            return
        self._counts = False
        if not self._take_out():
            self.problem = "the training entered a dispatch mode of its own meanwhile"
            return  # it is taken out at the end of a step that ends outside of that mode
        self.seconds = now - self.begun
        with self._lock:
            if now > self._until and not self.problem and not self._given_up:
                if self._tries < TRIES:
                    self._state = "waits"
                    return
                self.problem = "each step did something else too (validation, a checkpoint?)"
            self._finish()

    # ── of each operator, in whatever thread it is dispatched ──

    def note(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Keep what ``func`` was called with and what it gave; never raises."""
        if not self._counts:
            return
        try:
            self._note(func, args, kwargs, out)
        except Exception as error:
            debug("an operator is not counted", error)
            self._fail(f"{func}: {type(error).__name__}: {str(error)[:200]}")

    def _note(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        plan = self._plans.get(func)
        if plan is None:
            plan = self._plans[func] = plan_of(func)
        moves_nothing, in_full, written = plan
        if moves_nothing:
            return
        if time.perf_counter() > self._until or len(self.noted) >= MAX_OPERATORS:
            self._counts = False
            if len(self.noted) >= MAX_OPERATORS:
                self.problem = f"the step has more than {MAX_OPERATORS} operators"
            return
        found: List[Any] = []
        add_tensors(args, self._tensor, found)
        if kwargs:
            add_tensors([kwargs[name] for name in kwargs if name != "out"], self._tensor, found)
        results: List[Any] = []
        if written:
            add_tensors([args[at] for at in written if at < len(args)], self._tensor, results)
        else:
            add_tensors((out,), self._tensor, results)
        here = [one for one in found if one.is_cuda == self.on_cuda]
        there = [one for one in results if one.is_cuda == self.on_cuda]
        if not here and not there:
            return  # on the other side of the bus
        again = in_full and self._in_pass() != -1 and self._with_gradients() and in_checkpoint()
        first = (here or there)[0]
        shapes = None
        if in_full:
            shapes = (shapes_of(args, self._tensor), shapes_of(kwargs or {}, self._tensor),
                      shapes_of((out,), self._tensor))  # fmt: skip
            self.devices[first.device] = None
        self.noted.append((func, again, shapes, bytes_of(here), bytes_of(there), first.dtype))


def leave(seconds: float) -> None:
    """Remove an active mode within ``seconds``; called before the hooks are removed."""
    for counter in list(_entered):
        counter.leave(seconds)


def abandon() -> None:
    """In a forked child, remove the parent's modes, so that no operator passes through them."""
    while _entered:
        counter = _entered.pop()
        counter.give_up()
        counter._take_out()


def _mode(torch: Any, counter: Counter) -> Any:
    base: Any = sys.modules["torch.utils._python_dispatch"].TorchDispatchMode
    plain = (torch.Tensor.__torch_dispatch__, torch._C._disabled_torch_dispatch_impl)

    class Counting(base):  # type: ignore[misc]
        supports_higher_order_operators = True

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            for kind in types:
                # A subclass of Tensor that dispatches takes itself apart, under this mode again.
                # Torch names plain tensors here, too, where it detaches one.
                if kind.__torch_dispatch__ not in plain:
                    return NotImplemented
            out = func(*args, **kwargs) if kwargs else func(*args)
            counter.note(func, args, kwargs, out)
            return out

        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return False  # else torch wraps the method in a guard that costs more than the method

        @classmethod
        def ignore_compile_internals(cls) -> bool:
            return True

    return Counting()


def _top(torch: Any) -> Any:
    count = torch._C._len_torch_dispatch_stack()
    return torch._C._get_dispatch_stack_at(count - 1) if count else None


def in_checkpoint() -> bool:
    """Whether this thread recomputes what a checkpoint has dropped, inside a backward pass.

    The innermost of two kinds of frames decides: a function of a module about checkpointing, or the
    call of the backward pass.
    """
    frame: Any = sys._getframe(2)
    for _ in range(MAX_FRAMES):
        if frame is None:
            return False
        path = frame.f_code.co_filename
        if frame.f_code.co_name == "_engine_run_backward":
            return False
        file = path.rpartition("/")[2]
        if file in ("checkpoint.py", "checkpointing.py", "checkpoint_activation.py"):
            return True
        frame = frame.f_back
    return False


def _allowed(torch: Any, ask: str, kind: str) -> Optional[bool]:
    """Return whether TF32 may be used, None where torch does not tell.

    The older of its two switches raises an error where the training has set both.
    """
    try:
        return bool(getattr(torch._C, ask)())
    except Exception:
        try:
            return bool(torch._C._get_fp32_precision_getter("cuda", kind) == "tf32")
        except Exception:
            return None
