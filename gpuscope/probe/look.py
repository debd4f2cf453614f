"""Looks at the device for a few steps, by a CUDA-only trace (:mod:`.look_trace`).

What the trace holds is read and added up in the request's thread, a slice at a time.

The training loses 10 to 25 us with each event, because its host waits while torch puts the trace
together and while it is read. So a look is of fewer steps where a step has many events. How many it
has is known from the look before. In a first look one step is traced alone. If there is no room or
no time for three, one step is the look: two have no interval either. Where steps have many events
and the device waits for the host, launches are left out. Before a first look, CUPTI sets itself up
in this thread (:mod:`.cupti`), which can cost as much as the trace.
"""

from __future__ import annotations

import gc
import sys
import threading
import time
from typing import Any, Dict, List, Optional, Tuple

from . import cuda, cupti
from .blob_file import refuse_without_memory
from .history import count_of
from .long_requests import Answer, LongRequest, Refusal
from .look_calls import ALL_RECORDED, Call, Launches, Span, launches_of
from .look_events import Breath, YoungOnly, events_of
from .look_rows import Activity, HostSpans, Stand, summary
from .look_trace import MAX_STEPS, Trace
from .on_import import debug
from .profiling import Alone, refuse_beside_another, used_device
from .steps import Steps, quantile
from .time_ledger import TimeLedger

LEAST_STEPS = 3
MOST_EVENTS, MOST_OF_HOST, MOST_OF_FIRST = 6000, 3500, 2500
"""The most events of whole steps, unless a single step has more. The second is for a training whose
device waits for the host, which loses all the time that they take; the third for its first look."""
MOST_SECONDS = 0.1
"""A training whose device waits for the host is to lose no more than this by events. How much it
loses by each is known from the look before."""
FEW_EVENTS = 1500
"""Launches are recorded in any case if three steps have no more events than these."""
MOST_BUSY = 0.5
"""Launches that were not recorded may have waited for room in the queue of a device that was busy
for a larger share of the step: then it is not known what the host needs."""
LEAST_USUAL = 4
"""From so few steps on, those since the look before tell how long a step takes without a trace."""
SETTLES, SETTLES_SECONDS = 3.0, 0.1
"""After the search for other profilers, which holds the interpreter, this many times as long passes
before the trace begins: what loaders had ready meanwhile is used up."""
NEEDED_BYTES = 256 << 20
"""Host memory that must be free: for CUPTI's buffers, and some hundred bytes for each event."""
POLL_SECONDS = 0.002
SOON_ENOUGH_SECONDS = 0.3
"""Of longer steps none is waited for but to be traced: who asks has a few seconds."""
STAND_SECONDS, STAND_SHARE = 0.005, 0.01
"""The time between two readings of the training thread's stack; a longer trace needs fewer."""
LONG_STEP = 2.0
"""A step that takes this many times the median, without its wait for a loader, has a pause."""
SPREAD = 0.25
"""If half of the earlier steps differ by more than this share, the cost of the trace is unknown."""
LIKELY = 0.5
"""From so many expected pauses on, it is unknown what a look has cost beside them."""
NO_STEP = "no step ended in time"
NO_CUDA = "the training does not use CUDA"


def serve(act: LongRequest, steps: Steps, ledger: TimeLedger) -> Answer:
    """Serve the request: trace at least ``steps`` steps, from 3 to 50.

    A request without ``steps`` is for three, or for fewer if their events are more than
    :data:`MOST_EVENTS`.

    The value is that of :func:`.look_rows.summary` with ``began`` (seconds since the epoch),
    ``first_step``, ``events``, ``start_seconds`` and ``stop_seconds`` (the training thread stood
    still for them), ``waited_seconds`` (before the stop it waited for a device that worked),
    ``read_seconds`` and ``lost_seconds``: by how much the steps around took longer than before,
    null where that is not known. ``usual_seconds`` is how long a step took before, null likewise,
    ``steady_seconds`` the same without pauses, and ``events_a_step`` are those of a whole step.
    ``overheads`` are ``[name, count, seconds]`` of what CUPTI says that it did itself.
    ``spans`` are ``[what, begin, end]`` of all that was done, in seconds of the monotonic clock.
    Raises :class:`Refusal`.
    """
    wanted = count_of(act.args, "steps", LEAST_STEPS, MAX_STEPS, LEAST_STEPS)
    torch: Any = sys.modules.get("torch")
    if torch is None:
        raise Refusal("unsupported", "torch is not imported in this process yet")
    if not cuda.initialised():
        raise Refusal("unsupported", NO_CUDA)
    refuse_thread(steps)
    refuse_without_memory(NEEDED_BYTES, "a GPU trace")
    activity = torch.profiler.ProfilerActivity.CUDA
    if activity not in torch.profiler.supported_activities():
        raise Refusal("unsupported", "this torch cannot trace CUDA: it was built without CUPTI")
    ordinal = used_device()
    if ordinal is not None:
        torch.cuda.set_device(ordinal)  # an end in this thread is to open no context elsewhere
    trace = Trace(torch, {activity}, wanted, ordinal)
    first = None
    if "steps" not in act.args and ledger.look:
        in_time = _has_time(act, (LEAST_STEPS + 1) * steps.usual_seconds())
        limit(trace, ledger.look, MAX_STEPS if in_time else 1)
    elif "steps" not in act.args:
        first = Trace(torch, {activity}, 1, ordinal)
        first.limit(1, 1)
    try:
        ledger.look = take(act, trace, steps, ledger, first)
    finally:
        ledger.looked_at = steps.total
    return Answer(ledger.look)


def limit(trace: Trace, before: Dict[str, Any], most_steps: int = MAX_STEPS) -> None:
    """Have a trace end before its events cost too much; the look ``before`` says what each cost."""
    each = float(before["events_a_step"])  # with those that were left out: half of them are
    few = LEAST_STEPS * each <= FEW_EVENTS
    seconds = (before["stop_seconds"] + before["read_seconds"]) / max(1, before["events"])
    most = min(MOST_OF_HOST, MOST_SECONDS / seconds) if seconds else MOST_OF_HOST
    without = 0 if few else min(most_steps, _steps_of(most, each / 2))
    trace.limit(min(most_steps, _steps_of(MOST_EVENTS, each)), without)


def _steps_of(most: float, events_a_step: float) -> int:
    """Return how many steps have room: one where that is not at least three."""
    room = int(most / max(1, events_a_step))
    return room if room >= LEAST_STEPS else 1


def refuse_thread(steps: Steps) -> None:
    """Raise :class:`Refusal` where a start in the training thread would make torch print."""
    if steps.thread is None:
        raise Refusal("unsupported", "no step was seen yet, and the trace begins at the end of one")
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
    first: Optional[Trace] = None,
) -> Dict[str, Any]:
    """Record ``trace`` over the next steps, and return what it shows.

    ``first`` is of one step, where it is not known how many events one has. It is recorded before,
    and alone where a step has many.
    """
    stack_samples: List[Stand] = []
    collections: List[Span] = []
    inputs: List[Tuple[float, float]] = []
    began: List[int] = []
    spans: List[Tuple[str, float, float]] = []
    traces = [trace] if first is None else [first, trace]
    events: List[Any] = []
    spare: Optional[Trace] = None
    setting_up = threading.Lock()

    def on_collection(phase: str, info: Any) -> None:
        if threading.get_ident() == steps.thread:
            if phase == "start":
                began[:] = [time.time_ns()]
            elif began:
                collections.append((began.pop(), time.time_ns()))

    def give_way() -> None:
        with setting_up:
            for one in traces:
                one.stop()

    def record(one: Trace) -> bool:
        """Return whether a whole step is in it. Raises Refusal."""
        del stack_samples[:], collections[:], inputs[:]
        steps.on_step = one
        try:
            _follow(act, one, ledger, stack_samples)
        finally:
            one.leave(steps)
        spans.extend(one.spans)
        if alone.wanted.is_set():
            raise Refusal("refused", "the training has started a profiler of its own")
        whole = one.results is not None and len(one.marks) > 1
        if not whole and one.problem:
            raise Refusal("failed", one.problem)
        return whole

    act.stage = "looking for other profilers"
    usual, before = _undisturbed(steps, ledger), steps.counted
    waits = list(steps.waits)[-len(usual) :] if usual else []
    steady, paused = steady_seconds(usual, waits), pauses(usual, waits)
    with Alone(give_way) as alone:
        search_began = time.perf_counter()
        refuse_beside_another(trace.torch)
        spans.append(("search", search_began, time.perf_counter()))
        act.wait(min(SETTLES * (time.perf_counter() - search_began), SETTLES_SECONDS))
        if _wants_cupti(steps) and _between_steps(act, trace, steps):
            with setting_up:
                spent = None if alone.wanted.is_set() else cupti.set_up()
            if spent is not None:
                spans.append(("cupti", *spent))
                act.wait(SETTLES_SECONDS)
        gc.callbacks.append(on_collection)
        steps.inputs = inputs
        try:
            if first is not None:
                record(first)
                if first.results is None:
                    raise Refusal("failed", NO_STEP)
                seen = list(stack_samples), list(collections), list(inputs)
                events = first.results.events()
                count = len(events)
                room = _steps_of(MOST_OF_FIRST if first.drained else MOST_EVENTS, count)
                long = (first.marks[-1] - first.marks[0]) / 1e9
                few = room == 1 or not _has_time(act, LEAST_STEPS * long)
                if few and len(first.marks) > 1:
                    traces, trace = [first], first
                else:
                    many = first.without_launches and 2 * LEAST_STEPS * count > FEW_EVENTS
                    trace.limit(room, room if many else 0)
                    events.clear()
                    act.wait(SETTLES_SECONDS)
                    spare = first if len(first.marks) > 1 else None
            if trace is not first and not record(trace):
                trace.results = None
                if spare is None:
                    raise Refusal("failed", NO_STEP)
                # The host stood still for long between steps: there was time for that one alone.
                trace, spare, (stack_samples, collections, inputs) = spare, None, seen
        finally:
            try:
                gc.callbacks.remove(on_collection)
            except ValueError:
                pass
            steps.inputs = None
    act.stage = "the trace is being read"
    used, reading = time.thread_time(), time.perf_counter()
    with YoungOnly():
        breathe = Breath()
        events = events or trace.results.events()
        breathe()
        try:
            value = _read(trace, events, breathe, collections, inputs, stack_samples)
        except Refusal:  # time was over before the device had come by one of the steps
            if spare is None:
                raise
            trace, (stack_samples, collections, inputs) = spare, seen
            value = _read(
                trace, trace.results.events(), breathe, collections, inputs, stack_samples
            )
        if spare is not None:
            spare.results = None
    spans.append(("read", reading, time.perf_counter()))
    value.update(
        began=trace.marks[0] / 1e9,
        first_step=trace.first_step,
        start_seconds=sum(one.start_seconds for one in traces),
        stop_seconds=sum(one.stop_seconds for one in traces),
        waited_seconds=sum(one.waited_seconds for one in traces),
        read_seconds=time.thread_time() - used,
        usual_seconds=sum(usual) / len(usual) if usual else None,
        steady_seconds=steady,
    )
    value["lost_seconds"] = added_seconds(usual, steady, steps, before, paused)
    value["spans"] = [[what, round(begin, 6), round(end, 6)] for what, begin, end in spans]
    return value


def _read(
    trace: Trace,
    events: List[Any],
    breathe: Breath,
    collections: List[Span],
    inputs: List[Tuple[float, float]],
    stack_samples: List[Stand],
) -> Dict[str, Any]:
    """Return what a trace shows, and forget its events."""
    shift = trace.shift
    host = HostSpans(
        [(_ns(start, shift), _ns(end, shift)) for start, end in inputs], collections, stack_samples
    )
    marks = trace.marks
    activities, calls, others = events_of(trace.torch, events, breathe)
    trace.results = None
    if not activities and not calls:
        raise Refusal(
            "failed",
            "the profiler heard nothing of CUDA: nothing ran on the device, or CUPTI is missing or "
            "serves another tool (nsys, ncu, DCGM)",
        )
    more = ALL_RECORDED
    if trace.without_launches:
        more = launches_of(activities, calls, trace.thread, marks[-1] - 1)
        breathe()
    value = summary(activities, calls, marks, host, breathe, trace.drained, more)
    if not value:  # what ran was of one step, where time was over before a device that is behind
        nothing = "no complete step was traced: nothing ran on a device"
        raise Refusal("failed", NO_STEP if activities else nothing)
    if trace.without_launches and (not trace.drained or _busy(value) > MOST_BUSY):
        value["host_step_seconds"] = None
    value.update(
        events=len(activities) + len(calls) + sum(row[1] for row in others),
        overheads=others,
        events_a_step=_within(activities, calls, marks, more) / max(1, len(marks) - 1),
    )
    return value


def _within(activities: List[Activity], calls: List[Call], marks: List[int], more: Launches) -> int:
    """Return how many events lie within the marks, with those that were not recorded."""
    starts = [one[1] for one in activities]
    starts += [one[1] for one in calls]
    starts += more.moments.values()
    return len([one for one in starts if marks[0] <= one < marks[-1]])


def _busy(value: Dict[str, Any]) -> float:
    """Return the share of the window in which something ran."""
    idle = sum(float(row[1]) for row in value["idle"])
    return 1.0 - idle / float(value["seconds"])


def _wants_cupti(steps: Steps) -> bool:
    return (
        cuda.initialised()
        and not cupti.is_set_up()
        and steps.usual_seconds() <= SOON_ENOUGH_SECONDS
    )


def _between_steps(act: LongRequest, trace: Trace, steps: Steps) -> bool:
    """Wait for the end of a step; return whether one has ended in time, with no graph captured."""
    ended: List[bool] = []

    def note(steps: Steps) -> None:
        steps.on_step = None
        try:
            ended.append(not trace.captures())
        except Exception as error:
            debug("CUPTI is set up by the trace itself", error)
            ended.append(False)

    act.stage = "waiting for the end of a step"
    until = time.monotonic() + min(0.5 * act.seconds, SOON_ENOUGH_SECONDS)
    steps.on_step = note
    try:
        while not ended and time.monotonic() < until:
            act.wait(POLL_SECONDS)
    finally:
        steps.on_step = None
    return bool(ended) and ended[0]


def _undisturbed(steps: Steps, ledger: TimeLedger) -> List[float]:
    """Return how long the last steps took, without those that a look before has made longer."""
    since = steps.total - ledger.looked_at
    durations = list(steps.durations)
    if since >= len(durations):
        return durations
    return durations[-since:] if since >= LEAST_USUAL else []


def steady_seconds(durations: List[float], waits: List[float]) -> Optional[float]:
    """Return how long a step takes on average if nothing but a loader makes it pause.

    Waits for a loader come in bursts, so their mean is taken. The rest of a step is the mean of
    those steps that are no longer than usual. None where it is not known.
    """
    if len(durations) < LEAST_USUAL or len(waits) != len(durations):
        return None
    rests, longest = _rests(durations, waits)
    steady = [rest for rest in rests if rest <= longest]
    return sum(waits) / len(waits) + sum(steady) / len(steady)


def pauses(durations: List[float], waits: List[float]) -> float:
    """Return the share of these steps that have a pause, which a steady step has not."""
    if not durations or len(waits) != len(durations):
        return 0.0
    rests, longest = _rests(durations, waits)
    return len([rest for rest in rests if rest > longest]) / len(rests)


def _rests(durations: List[float], waits: List[float]) -> Tuple[List[float], float]:
    """Return what steps took without waits for a loader, and what one without a pause may take."""
    rests = [max(0.0, whole - wait) for whole, wait in zip(durations, waits)]
    return rests, LONG_STEP * quantile(sorted(rests), 0.5)


def added_seconds(
    usual: List[float],
    steady: Optional[float],
    steps: Steps,
    before: Optional[Tuple[int, float]],
    paused: float = 0.0,
) -> Optional[float]:
    """Return by how much the steps since ``before`` took longer than ``steady`` seconds each.

    ``before`` is a number of steps and when the last of them ended. ``paused`` is the share of
    steps with a pause of their own, such as each tenth, which reads the loss and waits for all ten.
    None where a pause is likely among the steps since, where the ``usual`` steps differ too much,
    or are too few, to tell, and where the end of the step in progress is too long to wait for.
    """
    counted = steps.counted
    if len(usual) < 8 or steady is None or counted is None or before is None:
        return None
    step, ordered = steady, sorted(usual)
    if ordered[3 * len(ordered) // 4] - ordered[len(ordered) // 4] > SPREAD * step:
        return None
    step = max(step, ordered[len(ordered) // 4])  # some are short, as the second of a training
    until = time.monotonic() + 2 * min(step, SOON_ENOUGH_SECONDS)
    while steps.counted == counted and time.monotonic() < until:
        time.sleep(min(0.01, step / 2))  # for the end of the step in which it was read
    if steps.counted is None or steps.counted == counted:
        return None
    total, end = steps.counted
    if paused * (total - before[0]) >= LIKELY:
        return None
    return max(0.0, end - before[1] - (total - before[0]) * step)


def _recorded_until(act: LongRequest) -> float:
    """Return when a trace has to end at the latest, so that it is read in time."""
    return act.deadline - 0.25 * act.seconds


def _has_time(act: LongRequest, seconds: float) -> bool:
    return time.monotonic() + seconds <= _recorded_until(act)


def _follow(act: LongRequest, trace: Trace, ledger: TimeLedger, stack_samples: List[Stand]) -> None:
    """Note what the training thread executes, again and again, until the trace is over."""
    act.stage = "waiting for the end of a step"
    last, begun = 0, 0
    pause = STAND_SECONDS
    until = _recorded_until(act)
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
