"""A CUDA-only trace of a few steps, which the training thread starts and ends.

A trace from the probe's own thread would have torch print a warning at its first use, so it is
started where torch was imported: in the training thread, at the end of a step. It is ended there
too. Where the device waits for the host, it had nothing left to do when the trace began and has
nothing left where a step ends, so the trace ends with the last whole step. Else it ends once the
device has come by that step: where the next backward pass begins, or at the end of that step.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import nullcontext
from typing import Any, Dict, List, Optional, Tuple

from . import cuda, cupti
from .long_requests import Refusal
from .marks import capturing
from .on_import import debug
from .steps import Steps

MAX_STEPS = 50
LEAST_SECONDS, ENOUGH_SECONDS = 0.03, 0.05
"""How long short steps are traced, because a few of them would say little. The training loses more
with each event, also where the device is behind: its queue is empty long before the trace has
ended. So the shorter time applies if the process itself computed that long, which is what launches
take, or after :data:`ENOUGH_STEPS`, unless the device is a whole step behind.
"""
ENOUGH_STEPS = 10
LONGEST_SECONDS = 20.0
"""After this time the trace ends with the step in progress, however few steps it has."""
LONGEST_WAIT_SECONDS = 2.0
"""How long to wait for one more step: it shows what the trace has cost, and an older torch can end
the trace only there."""
SOON_SECONDS, POLL_SECONDS = 0.002, 0.0001
"""How long the training thread waits at the end of a step for a device that was not behind at the
start. To go on costs more: each launch of the next step takes the trace 20 us of its time."""
LATE_STEPS = 16
"""How many more steps to wait for a device that is behind the host."""
QUIET_LEVEL = 99
_LEVEL = "_ZN9libkineto6Logger14severityLevel_E"
_BLOCKING = "CUDA_LAUNCH_BLOCKING"
"""Where this is set, how long launches wait is the answer."""
_SPEAKS_SINCE = (2, 12)
"""From this torch on the profiler itself writes to stderr at each start and stop."""


class Trace:
    """A trace that begins and ends in the training thread, called at the end of each step.

    ``activities`` as torch names them; ``wanted`` whole steps at least. ``ordinal`` is the device
    that is traced: the training thread's current one may be another, on which it has no context.
    """

    def __init__(
        self, torch: Any, activities: Any, wanted: int, ordinal: Optional[int] = None
    ) -> None:
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
        self.spans: List[Tuple[str, float, float]] = []
        """What was done when: ``prepare``, ``enable``, ``record``, ``stop``, in seconds of
        ``perf_counter()``."""
        self.thread = (0, 0)
        """What the system and the C library call the training thread."""
        self.drained = False
        """Whether the device had nothing to do at the start, and nothing after the last step."""
        self.without_launches = False
        """Whether the calls that launch kernels are not in the trace."""
        self.problem = ""
        self.over = threading.Event()
        self._wanted, self._most, self._most_without = wanted, MAX_STEPS, 0
        self._activities = activities
        self._entries = _Entries(torch, activities, ordinal)
        self._level = _level(torch)
        self._level_before = 0
        self._lock = threading.Lock()
        self._state = "waits"
        self._passed: Any = None
        self._before: Any = None
        self._computed = 0.0
        self._late = 0
        self._idle_at_start = False

    def limit(self, steps: int, without_launches: int = 0) -> None:
        """Have it end after so many steps, or after one.

        The second number applies where the device waits for the host: then launches can be left
        out. 0 has them recorded there too.
        """
        self._most, self._most_without = max(1, steps), without_launches

    @property
    def running(self) -> bool:
        return self._state == "runs"

    def __call__(self, steps: Steps) -> None:
        """Start or end the trace; called in the training thread at the end of each step."""
        try:
            if self._state == "waits":
                if not self.captures():
                    self._start(steps)
            elif self._state == "runs":
                self._mark()
            elif steps.on_step is self:
                steps.on_step = None
        except Exception as error:
            self._failed(error)
        ends = self._state == "runs" and self._passed is not None
        steps.on_backward = self._backward if ends else None

    def _backward(self, steps: Steps) -> None:
        """End the trace if it has all; called in the training thread before a backward pass.

        The forward pass was launched by then, so that it is known when the last step ended.
        """
        steps.on_backward = None
        try:
            if self._state == "runs" and self._is_over() and not self.captures():
                self._drain()
                self.stop()
        except Exception as error:
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        debug("a look failed", error)
        self.problem = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"
        self.stop()
        self.over.set()

    def _is_over(self) -> bool:
        """Whether the device has come by the last whole step."""
        passed = self._passed  # another thread may end the trace meanwhile
        return passed is True or (passed is not None and bool(passed.query()))

    def _start(self, steps: Steps) -> None:
        with self._lock:
            if self._state != "waits":
                return
            self._state = "starts"
        self.first_step = steps.total
        self.thread = threading.get_native_id(), threading.get_ident()
        behind = self._entries.event()
        if not cupti.is_set_up():
            self._drain()  # CUPTI would do so where it is set up: a device that works loses nothing
        self.begun = begin = time.perf_counter()
        if self._level is not None:
            self._level_before = self._level.value
            self._level.value = QUIET_LEVEL
        try:
            self._entries.prepare()
            if self._level is not None and self._level.value != QUIET_LEVEL:
                self._level_before = self._level.value  # the first use in a process sets its own
                self._level.value = QUIET_LEVEL
            prepared = time.perf_counter()
            self._entries.enable()
            cupti.note_set_up()
        except BaseException:
            self._state = "over"
            self._speak()
            raise
        self._idle_at_start = behind is True or bool(behind.query())
        if self._most_without and self._idle_at_start and not os.environ.get(_BLOCKING):
            self.without_launches = cupti.record_launches(False)
            if self.without_launches:
                self._most = self._most_without
        self.shift = time.time_ns() - time.perf_counter_ns()
        enabled = time.perf_counter()
        self.start_seconds = enabled - begin
        self.spans += [("prepare", begin, prepared), ("enable", prepared, enabled)]
        self.marks.append(time.time_ns())
        self._computed = time.process_time()
        self._state = "runs"

    def _mark(self) -> None:
        now = time.time_ns()
        seconds = (now - self.marks[0]) / 1e9
        if self.captures():
            if self._passed is None:
                self.marks.append(now)
            self._before = None
            return
        if self._passed is None:
            self.marks.append(now)
            if self._enough(seconds) or seconds >= LONGEST_SECONDS:
                self._passed = self._entries.event()
                if self._idle_at_start and self._comes_soon():
                    self.drained = True
                    self.stop()
                elif self.without_launches:
                    self._record_next()
            return
        self._late += 1
        if self._late >= LATE_STEPS or self._is_over():
            self._drain()
            self.stop()

    def _record_next(self) -> None:
        """Have the launches of the next step recorded, by which it is known to be the next.

        Not after another thread has ended the trace: CUPTI would go on without one.
        """
        with self._lock:
            if self._state == "runs":
                cupti.record_launches(True)

    def _enough(self, seconds: float) -> bool:
        """Whether the steps so far are enough for a result."""
        behind = self._behind()
        if len(self.marks) > self._most:
            return True
        if len(self.marks) <= min(self._wanted, self._most) or seconds < LEAST_SECONDS:
            return False
        if seconds >= ENOUGH_SECONDS:
            return True
        computed = time.process_time() - self._computed
        return not behind and (computed >= LEAST_SECONDS or len(self.marks) > ENOUGH_STEPS)

    def _behind(self) -> bool:
        """Whether the device is still busy with the step before the one that ends now."""
        before, self._before = self._before, self._entries.event()
        return before not in (None, True) and not before.query()

    def _comes_soon(self) -> bool:
        """Wait a moment for the device to end the step; return whether it has."""
        begin = now = time.perf_counter()
        while not self._is_over() and now < begin + SOON_SECONDS:
            time.sleep(POLL_SECONDS)
            now = time.perf_counter()
        self.waited_seconds += now - begin
        return self._is_over()

    def _drain(self) -> None:
        """Wait for the device, as what comes next would; it goes on working meanwhile.

        The interpreter is free for other threads, and this wait is timed apart from the end itself.
        """
        event = self._entries.event()
        if event is not True:
            begin = time.perf_counter()
            event.synchronize()
            self.waited_seconds += time.perf_counter() - begin

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
            # A child that is forked later could not free them: torch would end it.
            self._passed = self._before = None
            self._speak()
            end = time.perf_counter()
            self.stop_seconds = end - begin
            self.spans += [("record", self.spans[-1][2], begin), ("stop", begin, end)]
            self.over.set()

    def captures(self) -> bool:
        """Whether this thread captures a graph."""
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
        steps.on_backward = None


class _Entries:
    """The functions of torch that prepare, start and end a trace.

    ``anywhere``: whether another thread than the one that started it may end it.
    """

    def __init__(self, torch: Any, activities: Any, ordinal: Optional[int]) -> None:
        core = torch._C._autograd
        self._torch = torch
        self._ordinal = ordinal
        self._prepare, self._enable = core._prepare_profiler, core._enable_profiler
        self._disable = core._disable_profiler
        self._activities = activities
        if not hasattr(core._KinetoEvent, "start_ns"):
            raise Refusal("unsupported", f"torch {torch.__version__} is too old for a GPU trace")
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
        with self._on_device():
            self._prepare(self._config, self._activities)

    def enable(self) -> None:
        with self._on_device():
            self._enable(self._config, self._activities)

    def disable(self) -> Any:
        with self._on_device():
            return self._disable()

    def event(self) -> Any:
        """Return an event behind all that was launched so far; True: the device is done."""
        if not cuda.initialised():
            return True
        event = self._torch.cuda.Event()
        event.record(self._torch.cuda.current_stream(self._ordinal))
        return event

    def _on_device(self) -> Any:
        """Make the traced device the current one meanwhile: torch synchronizes that one."""
        return nullcontext() if self._ordinal is None else self._torch.cuda.device(self._ordinal)


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
