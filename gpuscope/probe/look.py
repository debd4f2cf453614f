"""Looks at the device for a few steps: a CUDA-only trace that the training thread starts and ends.

A trace from the probe's own thread would have torch print a warning at its first use, so it is
started where torch was imported: in the training thread, at the end of a step. It is ended there
too, once the device has come by the last whole step; nothing waits for the device. What the trace
holds is read and added up in the request's thread, a slice at a time.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from typing import Any, Dict, List, Optional, Tuple

from . import cuda
from .blob_file import refuse_without_memory
from .history import count_of
from .long_requests import Answer, LongRequest, Refusal
from .look_calls import Span
from .look_events import Breath, events_of
from .look_rows import Host, Stand, summary
from .marks import capturing
from .on_import import debug
from .profiling import Alone, refuse_beside_another, used_device
from .steps import Steps
from .time_ledger import TimeLedger

LEAST_STEPS, MAX_STEPS = 3, 50
LEAST_SECONDS, ENOUGH_SECONDS = 0.03, 0.1
"""How long short steps are traced, because a few of them would say little. The training loses more
with each event, so the shorter time applies if the process itself computed that long, which is what
launches take, or after :data:`ENOUGH_STEPS`. Nothing is lost if the device is a whole step behind.
"""
ENOUGH_STEPS = 10
SETTLES, SETTLES_SECONDS = 3.0, 0.1
"""After the search for other profilers, which holds the interpreter, this many times as long passes
before the trace begins: what loaders had ready meanwhile is used up."""
LONGEST_SECONDS = 20.0
"""After this time the trace ends with the step in progress, however few steps it has."""
LONGEST_WAIT_SECONDS = 2.0
"""How long to wait for one more step: it shows what the trace has cost, and an older torch can end
the trace only there."""
LATE_STEPS = 16
"""How many more steps to wait for a device that is behind the host."""
NEEDED_BYTES = 256 << 20
"""Host memory that must be free: for CUPTI's buffers, and some hundred bytes for each event."""
STAND_SECONDS, STAND_SHARE = 0.005, 0.01
"""The time between two readings of the training thread's stack; a longer trace needs fewer."""
SPREAD = 0.25
"""If half of the earlier steps differ by more than this share, the cost of the trace is unknown."""
NO_CUDA = "no CUDA here: nothing to look at"
QUIET_LEVEL = 99
_LEVEL = "_ZN9libkineto6Logger14severityLevel_E"
_SPEAKS_SINCE = (2, 12)
"""From this torch on the profiler itself writes to stderr at each start and stop."""


def serve(act: LongRequest, steps: Steps, ledger: TimeLedger) -> Answer:
    """Serve the request: trace at least ``steps`` steps, from 3 to 50.

    The value is that of :func:`.look_rows.summary` with ``began`` (seconds since the epoch),
    ``first_step``, ``events``, ``start_seconds`` and ``stop_seconds`` (the training thread stood
    still for them), ``waited_seconds`` (before the stop it waited for a device that worked),
    ``read_seconds`` and ``lost_seconds``: by how much the steps around took longer than before,
    null where that is not known. Raises :class:`Refusal`.
    """
    wanted = count_of(act.args, "steps", LEAST_STEPS, MAX_STEPS, LEAST_STEPS)
    torch: Any = sys.modules.get("torch")
    if torch is None:
        raise Refusal("unsupported", "torch is not imported in this process yet")
    if not cuda.initialised():
        raise Refusal("unsupported", NO_CUDA)
    refuse_thread(steps)
    refuse_without_memory(NEEDED_BYTES, "a look")
    activity = torch.profiler.ProfilerActivity.CUDA
    if activity not in torch.profiler.supported_activities():
        raise Refusal("unsupported", "this torch cannot trace CUDA: it was built without CUPTI")
    ordinal = used_device()
    if ordinal is not None:
        torch.cuda.set_device(ordinal)  # an end in this thread is to open no context elsewhere
    ledger.look = take(act, Trace(torch, {activity}, wanted), steps, ledger)
    return Answer(ledger.look)


def refuse_thread(steps: Steps) -> None:
    """Raise :class:`Refusal` where a start in the training thread would make torch print."""
    if steps.thread is None:
        raise Refusal("unsupported", "no step was seen yet: a look begins at the end of one")
    if steps.thread not in (threading.main_thread().ident, steps.importer):
        raise Refusal(
            "refused",
            "the training runs in another thread than the one that imported torch, and there "
            "torch's profiler would print a warning",
        )


def take(act: LongRequest, trace: Trace, steps: Steps, ledger: TimeLedger) -> Dict[str, Any]:
    """Record ``trace`` over the next steps, and return what it shows."""
    stack_samples: List[Stand] = []
    collections: List[Span] = []
    inputs: List[Tuple[float, float]] = []
    began: List[int] = []

    def on_collection(phase: str, info: Any) -> None:
        if threading.get_ident() == steps.thread:
            if phase == "start":
                began[:] = [time.time_ns()]
            elif began:
                collections.append((began.pop(), time.time_ns()))

    act.stage = "looking for other profilers"
    usual = list(steps.durations)
    with Alone(trace.stop) as alone:
        search_began = time.perf_counter()
        refuse_beside_another(trace.torch)
        act.wait(min(SETTLES * (time.perf_counter() - search_began), SETTLES_SECONDS))
        gc.callbacks.append(on_collection)
        steps.inputs, steps.on_step = inputs, trace
        try:
            _follow(act, trace, ledger, stack_samples)
        finally:
            trace.leave(steps)
            try:
                gc.callbacks.remove(on_collection)
            except ValueError:
                pass
            steps.inputs = None
        if alone.wanted.is_set():
            raise Refusal("refused", "the training has started a profiler of its own")
        if trace.results is None:
            raise Refusal("failed", trace.problem or "no step ended in time")
        if len(trace.marks) < 2 and not trace.problem:
            trace.results = None
            raise Refusal("failed", "no whole step ended in time")
    act.stage = "the trace is being read"
    used = time.thread_time()
    first = trace.first_step
    shift = trace.shift
    host = Host(
        [(_ns(start, shift), _ns(end, shift)) for start, end in inputs], collections, stack_samples
    )
    breathe = Breath()
    activities, calls, count = events_of(trace.torch, trace.results, breathe)
    trace.results = None
    if not activities and not calls:
        raise Refusal(
            "failed",
            "the profiler heard nothing of CUDA: nothing ran on the device, or CUPTI is missing or "
            "serves another tool (nsys, ncu, DCGM)",
        )
    value = summary(activities, calls, trace.marks, host, breathe)
    if not value:
        raise Refusal("failed", "the trace has no whole step: nothing ran on a device")
    value.update(
        began=trace.marks[0] / 1e9,
        first_step=first,
        events=count,
        start_seconds=trace.start_seconds,
        stop_seconds=trace.stop_seconds,
        waited_seconds=trace.waited_seconds,
        read_seconds=time.thread_time() - used,
    )
    value["lost_seconds"] = added_seconds(usual, trace.begun, steps, first)
    return value


def added_seconds(usual: List[float], begun: float, steps: Steps, first: int) -> Optional[float]:
    """Return by how much the steps since ``begun`` took longer than those before.

    None where the steps before differ too much, or are too few, to tell.
    """
    from statistics import median

    counted = steps.counted
    if len(usual) < 8 or counted is None:
        return None
    step, ordered = median(usual), sorted(usual)
    if ordered[3 * len(ordered) // 4] - ordered[len(ordered) // 4] > SPREAD * step:
        return None
    until = time.monotonic() + min(2 * step, LONGEST_WAIT_SECONDS)
    while steps.counted == counted and time.monotonic() < until:
        time.sleep(min(0.01, step / 2))  # for the end of the step in which it was read
    total, end = steps.counted or counted
    return max(0.0, end - begun - (total - first) * step)


class Trace:
    """A trace that begins and ends in the training thread, called at the end of each step.

    ``activities`` as torch names them; ``wanted`` whole steps at least.
    """

    used = False
    """Whether this process was traced before."""

    def __init__(self, torch: Any, activities: Any, wanted: int) -> None:
        self.torch = torch
        self.results: Any = None
        self.marks: List[int] = []
        """Moments of the steps that are whole, in nanoseconds since the epoch."""
        self.begun = 0.0
        """``perf_counter()`` right before the start."""
        self.first_step = 0
        self.shift = 0
        """What to add to ``perf_counter()`` nanoseconds to get those since the epoch."""
        self.start_seconds = self.stop_seconds = self.waited_seconds = 0.0
        self.problem = ""
        self.over = threading.Event()
        self._wanted = wanted
        self._activities = activities
        self._entries = _Entries(torch, activities)
        self._level = _level(torch)
        self._level_before = 0
        self._lock = threading.Lock()
        self._state = "waits"
        self._passed: Any = None
        self._before: Any = None
        self._computed = 0.0
        self._late = 0

    @property
    def running(self) -> bool:
        return self._state == "runs"

    def __call__(self, steps: Steps) -> None:
        """Start or end the trace; called in the training thread at the end of each step."""
        try:
            if self._state == "waits":
                if not self._captures():
                    self._start(steps)
            elif self._state == "runs":
                self._mark()
            elif steps.on_step is self:
                steps.on_step = None
        except Exception as error:
            debug("a look failed", error)
            self.problem = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"
            self.stop()
            self.over.set()

    def _start(self, steps: Steps) -> None:
        with self._lock:
            if self._state != "waits":
                return
            self._state = "starts"
        self.first_step = steps.total
        self.begun = begin = time.perf_counter()
        if self._level is not None:
            self._level_before = self._level.value
            self._level.value = QUIET_LEVEL
        try:
            self._entries.prepare()
            if self._level is not None and self._level.value != QUIET_LEVEL:
                self._level_before = self._level.value  # the first use in a process sets its own
                self._level.value = QUIET_LEVEL
            self._entries.enable()
        except BaseException:
            self._state = "over"
            self._speak()
            raise
        self.shift = time.time_ns() - time.perf_counter_ns()
        self.start_seconds = time.perf_counter() - begin
        self.marks.append(time.time_ns())
        self._computed = time.process_time()
        self._state = "runs"

    def _mark(self) -> None:
        now = time.time_ns()
        if not Trace.used:  # CUPTI still sets itself up in the first step that it sees
            Trace.used = True
            self.marks[:] = [now]
            self._computed = time.process_time()
            return
        seconds = (now - self.marks[0]) / 1e9
        if self._captures():
            if self._passed is None:
                self.marks.append(now)
            self._before = None
            return
        if self._passed is None:
            self.marks.append(now)
            if self._enough(seconds) or seconds >= LONGEST_SECONDS:
                self._passed = self._entries.event()
            return
        self._late += 1
        if self._late >= LATE_STEPS or self._passed is True or self._passed.query():
            self._drain()
            self.stop()

    def _enough(self, seconds: float) -> bool:
        """Whether the steps so far are enough for a result."""
        behind = self._behind()
        if len(self.marks) <= self._wanted or seconds < LEAST_SECONDS:
            return False
        if seconds >= ENOUGH_SECONDS:
            return True
        computed = time.process_time() - self._computed
        return not behind and (computed >= LEAST_SECONDS or len(self.marks) > ENOUGH_STEPS)

    def _behind(self) -> bool:
        """Whether the device is still busy with the step before the one that ends now."""
        before, self._before = self._before, self._entries.event()
        return before not in (None, True) and not before.query()

    def _drain(self) -> None:
        """Wait for the device, as ending the trace would; it goes on working meanwhile.

        The interpreter is free for other threads, and this wait is timed apart from the end itself.
        """
        event = self._entries.event()
        if event is not True:
            begin = time.perf_counter()
            event.synchronize()
            self.waited_seconds = time.perf_counter() - begin

    def stop(self) -> None:
        """End the trace in whatever state it is.

        Any thread may call this; the second call does nothing.
        """
        with self._lock:
            if self._state == "waits":
                self._state = "over"
                self.over.set()
            if self._state != "runs":
                return
            self._state = "ends"
        begin = time.perf_counter()
        try:
            self.results = self._entries.disable()
        finally:
            self._state = "over"
            self._speak()
            self.stop_seconds = time.perf_counter() - begin
            self.over.set()

    def _captures(self) -> bool:
        return cuda.initialised() and capturing(self.torch)

    def _speak(self) -> None:
        if self._level is not None and self._level.value == QUIET_LEVEL:
            self._level.value = self._level_before

    def leave(self, steps: Steps) -> None:
        """End the trace because nobody waits for it any more.

        An older torch can end it only in the training thread, at the end of the next step.
        """
        if self._state == "waits" or self._entries.anywhere:
            self.stop()
        elif self._state in ("starts", "runs"):
            self._passed, self._late = True, LATE_STEPS
            self.over.wait(LONGEST_WAIT_SECONDS)
            return
        if steps.on_step is self:
            steps.on_step = None


class _Entries:
    """The functions of torch that prepare, start and end a trace.

    ``anywhere``: whether another thread than the one that started it may end it.
    """

    def __init__(self, torch: Any, activities: Any) -> None:
        core = torch._C._autograd
        self._torch = torch
        self._prepare, self._enable = core._prepare_profiler, core._enable_profiler
        self._disable = core._disable_profiler
        self._activities = activities
        if not hasattr(core._KinetoEvent, "start_ns"):
            raise Refusal("unsupported", f"torch {torch.__version__} is too old for a look")
        self.anywhere = True
        config = getattr(torch._C._profiler, "_ExperimentalConfig", None)
        more: Dict[str, Any] = {}
        try:
            more["experimental_config"] = config(profile_all_threads=True)  # type: ignore[misc]
        except TypeError:
            self.anywhere = False
        profile = torch.autograd.profiler.profile(
            use_cpu=torch.profiler.ProfilerActivity.CPU in activities,
            use_device="cuda" if torch.profiler.ProfilerActivity.CUDA in activities else None,
            use_kineto=True,
            **more,
        )
        try:
            self._config = profile.config(create_trace_id=True)
        except TypeError:
            self._config = profile.config()

    def prepare(self) -> None:
        self._prepare(self._config, self._activities)

    def enable(self) -> None:
        self._enable(self._config, self._activities)

    def disable(self) -> Any:
        return self._disable()

    def event(self) -> Any:
        """Return an event behind all that was launched so far; True: the device is done."""
        if not cuda.initialised():
            return True
        event = self._torch.cuda.Event()
        event.record()
        return event


def _level(torch: Any) -> Any:
    """Return the profiler's log level, by which it decides what it writes to stderr.

    Raises :class:`Refusal` where the profiler would write and cannot be kept from it.
    """
    # Only now: a process that is injected into would keep libffi for a look that nobody asks for.
    import ctypes

    path = os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cpu.so")
    try:
        library = ctypes.CDLL(path, mode=getattr(os, "RTLD_NOLOAD", 0) | os.RTLD_NOW)
        return ctypes.c_int.in_dll(library, _LEVEL)
    except (OSError, ValueError) as error:
        debug("the profiler's messages cannot be kept back", error)
    numbers = tuple(int(part) for part in torch.__version__.split(".")[:2] if part.isdigit())
    if numbers < _SPEAKS_SINCE:
        return None
    raise Refusal(
        "unsupported", f"the profiler of torch {torch.__version__} would print in this training"
    )


def _follow(act: LongRequest, trace: Trace, ledger: TimeLedger, stack_samples: List[Stand]) -> None:
    """Note what the training thread executes, again and again, until the trace is over."""
    act.stage = "waiting for the end of a step"
    last, begun = 0, 0
    pause = STAND_SECONDS
    until = act.deadline - 0.25 * act.seconds
    while not trace.over.wait(pause):
        act.check()
        if time.monotonic() >= until:
            return
        if not trace.running:
            continue
        act.stage = "the trace is being recorded"
        found, now = ledger.stand(), time.time_ns()
        begun = begun or now
        if last and found is not None:
            stack_samples.append(Stand(last, now, found.row, found.place))
        last = now
        pause = max(STAND_SECONDS, STAND_SHARE * (now - begun) / 1e9)


def _ns(seconds: float, shift: int) -> int:
    return int(seconds * 1e9) + shift
