"""Looks at the device for a few steps, by a CUDA-only trace (:mod:`.look_trace`).

What the trace holds is read and added up in the request's thread, a slice at a time.

The training loses 10 to 25 us with each event, because its host waits while torch puts the trace
together and while it is read. So a look is of fewer steps where a step has many events. How many it
has is known from the look before; before the first look one step is traced for it, in which CUPTI
sets itself up as well.
"""

from __future__ import annotations

import gc
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
from .look_trace import LONGEST_WAIT_SECONDS, MAX_STEPS, Trace
from .profiling import Alone, refuse_beside_another, used_device
from .steps import Steps
from .time_ledger import TimeLedger

LEAST_STEPS = 3
MOST_EVENTS = 6000
"""The most events of whole steps, unless a single step has more."""
LEAST_USUAL = 4
"""From so few steps on, those since the look before tell how long a step takes without a trace."""
SETTLES, SETTLES_SECONDS = 3.0, 0.1
"""After the search for other profilers, which holds the interpreter, this many times as long passes
before the trace begins: what loaders had ready meanwhile is used up."""
NEEDED_BYTES = 256 << 20
"""Host memory that must be free: for CUPTI's buffers, and some hundred bytes for each event."""
STAND_SECONDS, STAND_SHARE = 0.005, 0.01
"""The time between two readings of the training thread's stack; a longer trace needs fewer."""
SPREAD = 0.25
"""If half of the earlier steps differ by more than this share, the cost of the trace is unknown."""
NO_CUDA = "no CUDA here: nothing to trace"


def serve(act: LongRequest, steps: Steps, ledger: TimeLedger) -> Answer:
    """Serve the request: trace at least ``steps`` steps, from 3 to 50.

    A request without ``steps`` is for three, or for fewer if their events are more than
    :data:`MOST_EVENTS`.

    The value is that of :func:`.look_rows.summary` with ``began`` (seconds since the epoch),
    ``first_step``, ``events``, ``start_seconds`` and ``stop_seconds`` (the training thread stood
    still for them), ``waited_seconds`` (before the stop it waited for a device that worked),
    ``read_seconds`` and ``lost_seconds``: by how much the steps around took longer than before,
    null where that is not known. ``usual_seconds`` is how long a step took before, null likewise,
    and ``events_a_step`` are those of a whole step. Raises :class:`Refusal`.
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
    trace = Trace(torch, {activity}, wanted)
    known = (ledger.look or {}).get("events_a_step")
    if known and "steps" not in act.args:
        trace.limit(int(MOST_EVENTS / known))
    counting = None if known else Trace(torch, {activity}, 1, counts=True)
    try:
        ledger.look = take(act, trace, steps, ledger, counting)
    finally:
        ledger.looked_at = steps.total
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


def take(
    act: LongRequest,
    trace: Trace,
    steps: Steps,
    ledger: TimeLedger,
    counting: Optional[Trace] = None,
) -> Dict[str, Any]:
    """Record ``trace`` over the next steps, and return what it shows.

    ``counting`` is recorded before, where it is not known how many events a step has.
    """
    stack_samples: List[Stand] = []
    collections: List[Span] = []
    inputs: List[Tuple[float, float]] = []
    began: List[int] = []
    traces = [trace] if counting is None else [counting, trace]

    def on_collection(phase: str, info: Any) -> None:
        if threading.get_ident() == steps.thread:
            if phase == "start":
                began[:] = [time.time_ns()]
            elif began:
                collections.append((began.pop(), time.time_ns()))

    def give_way() -> None:
        for one in traces:
            one.stop()

    def record(one: Trace, samples: List[Stand]) -> None:
        steps.on_step = one
        try:
            _follow(act, one, ledger, samples)
        finally:
            one.leave(steps)
        if alone.wanted.is_set():
            raise Refusal("refused", "the training has started a profiler of its own")
        if one.results is None:
            raise Refusal("failed", one.problem or "no step ended in time")

    act.stage = "looking for other profilers"
    usual = _undisturbed(steps, ledger)
    with Alone(give_way) as alone:
        search_began = time.perf_counter()
        refuse_beside_another(trace.torch)
        act.wait(min(SETTLES * (time.perf_counter() - search_began), SETTLES_SECONDS))
        if counting is not None:
            record(counting, [])
            count = len(counting.results.events())
            if "steps" not in act.args:
                trace.limit(MOST_EVENTS // max(1, count))
            counting.results = None
            act.wait(SETTLES_SECONDS)
        gc.callbacks.append(on_collection)
        steps.inputs = inputs
        try:
            record(trace, stack_samples)
        finally:
            try:
                gc.callbacks.remove(on_collection)
            except ValueError:
                pass
            steps.inputs = None
        if len(trace.marks) < 2 and not trace.problem:
            trace.results = None
            raise Refusal("failed", "no step was completed in time")
    act.stage = "the trace is being read"
    used = time.thread_time()
    shift = trace.shift
    host = Host(
        [(_ns(start, shift), _ns(end, shift)) for start, end in inputs], collections, stack_samples
    )
    marks = trace.marks
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
        raise Refusal("failed", "no complete step was traced: nothing ran on a device")
    value.update(
        began=trace.marks[0] / 1e9,
        first_step=trace.first_step,
        events=count,
        events_a_step=sum(
            marks[0] <= one[1] < marks[-1] for found in (activities, calls) for one in found
        )
        / max(1, len(marks) - 1),
        start_seconds=sum(one.start_seconds for one in traces),
        stop_seconds=sum(one.stop_seconds for one in traces),
        waited_seconds=sum(one.waited_seconds for one in traces),
        read_seconds=time.thread_time() - used,
    )
    value["lost_seconds"] = added_seconds(usual, traces[0].begun, steps, traces[0].first_step)
    value["usual_seconds"] = sum(usual) / len(usual) if usual else None
    return value


def _undisturbed(steps: Steps, ledger: TimeLedger) -> List[float]:
    """Return how long the last steps took, without those that a look before has made longer."""
    since = steps.total - ledger.looked_at
    durations = list(steps.durations)
    if since >= len(durations):
        return durations
    return durations[-since:] if since >= LEAST_USUAL else []


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
