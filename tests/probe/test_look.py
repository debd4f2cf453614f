"""A look is taken in the training thread, gives way to others, and leaves nothing behind.

There is no GPU here: what is recorded is what torch's profiler tells of the CPU.
"""

from __future__ import annotations

import gc
import os
import threading
import time
import weakref
from contextlib import contextmanager, suppress

import pytest

from gpuscope.probe import look, look_events, look_trace, profiling
from gpuscope.probe.long_requests import LongRequest, Refusal
from gpuscope.probe.look_trace import Trace
from gpuscope.probe.profiling import Alone
from gpuscope.probe.steps import Steps
from gpuscope.probe.time_ledger import TimeLedger
from gpuscope.wire.frames import Request
from tests.fakes.asking import ask
from tests.fakes.probe_client import PLACE_APART, TRAINING, Reader, sockets, trainer, wait_for
from tests.fakes.program import python

torch = pytest.importorskip("torch")
CPU = {torch.profiler.ProfilerActivity.CPU}


def test_no_profiler_is_searched_for_where_its_class_has_no_more_references_than_before(
    monkeypatch,
):
    """The search keeps the interpreter for 0.1 s among a million objects."""
    searched = []
    referrers = gc.get_referrers
    monkeypatch.setattr(gc, "get_referrers", lambda one: searched.append(one) or referrers(one))
    monkeypatch.setattr(profiling, "_without_any", [])
    gc.collect()  # profilers of other tests
    profiling.note_none()
    profiling.refuse_beside_another(torch)
    assert not searched
    waiting = torch.profiler.schedule(wait=0, warmup=2, active=1)
    warming = torch.profiler.profile(activities=CPU, schedule=waiting)
    warming.start()
    with pytest.raises(Refusal, match="warming up"):
        profiling.refuse_beside_another(torch)
    warming.stop()
    del warming
    gc.collect()
    profiling.refuse_beside_another(torch)
    searched.clear()
    profiling.refuse_beside_another(torch)
    assert not searched


class Training:
    """Steps of this thread, without an optimizer: as many as a test wants."""

    def __init__(self):
        self.steps = Steps()
        self.ledger = TimeLedger(self.steps)
        self.weight = torch.ones(8, 8, requires_grad=True)

    def step(self, count=1):
        for _ in range(count):
            (self.weight @ self.weight).sum().backward()
            self.steps.passed(time.perf_counter(), "backward")

    def until(self, done):
        late = time.monotonic() + 60
        while not done():
            self.step()
            assert time.monotonic() < late


@pytest.fixture
def training():
    made = Training()
    made.step(10)
    return made


def act(seconds=20.0):
    return LongRequest(Request("look", 1, {}, seconds), object(), 0, lambda: None)


def taken(training, trace, asked=None):
    """What :func:`look.take` gives or raises, while this thread trains."""
    box = []

    def run():
        try:
            box.append(look.take(asked or act(), trace, training.steps, training.ledger))
        except BaseException as error:
            box.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    training.until(lambda: not thread.is_alive())
    return box[0]


def test_a_trace_has_the_steps_and_torch_is_as_before(training):
    trace = Trace(torch, CPU, 3)
    collecting = list(gc.callbacks)
    with Alone(trace.stop):
        training.steps.on_step = trace
        training.until(trace.over.is_set)
        trace.leave(training.steps)
    assert len(trace.marks) >= 4
    assert trace.marks == sorted(trace.marks)
    seconds = (trace.marks[-1] - trace.marks[0]) / 1e9
    assert seconds >= look_trace.LEAST_SECONDS or len(trace.marks) > look_trace.MAX_STEPS
    assert any(event.name() == "aten::mm" for event in trace.results.events())
    assert not torch.autograd._profiler_enabled()
    assert (training.steps.on_step, list(gc.callbacks)) == (None, collecting)


def test_nothing_of_a_look_is_left_to_the_collector(training):
    """In a forked child it would free CUDA's events, and torch ends a process that cannot."""
    left = []

    def run():
        trace = Trace(torch, CPU, 3)
        left.append(weakref.ref(trace))
        with suppress(Refusal):  # nothing of CUDA was traced
            look.take(act(), trace, training.steps, training.ledger)
        left.append((len(trace.marks) > 1, trace._passed, trace._before))

    thread = threading.Thread(target=run)
    gc.disable()
    try:
        thread.start()
        training.until(lambda: not thread.is_alive())
        assert left[1] == (True, None, None)
        assert left[0]() is None
    finally:
        gc.enable()


def test_the_device_that_is_traced_is_used_and_not_the_current_one(monkeypatch):
    """On the current one this process may have no context, and would get one."""
    current = [0]

    class Event:
        def record(self, stream):
            self.stream = stream

    @contextmanager
    def device(ordinal):
        current.append(ordinal)
        yield
        current.pop()

    monkeypatch.setattr(look_trace.cuda, "initialised", lambda: True)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda ordinal: f"of device {ordinal}")
    monkeypatch.setattr(torch.cuda, "device", device)
    entries = Trace(torch, CPU, 3, 1)._entries
    assert entries.event().stream == "of device 1"
    used = []
    monkeypatch.setattr(entries, "_disable", lambda: current[-1])
    monkeypatch.setattr(entries, "_prepare", lambda *_: used.append(current[-1]))
    monkeypatch.setattr(entries, "_enable", lambda *_: used.append(current[-1]))
    entries.prepare()
    entries.enable()
    assert [*used, entries.disable(), current[-1]] == [1, 1, 1, 0]


class Mark:
    """A CUDA event of a device that comes by it after so many questions."""

    def __init__(self, questions=0, waits=0.0):
        self.questions, self.waits = questions, waits

    def query(self):
        self.questions -= 1
        return self.questions < 0

    def synchronize(self):
        time.sleep(self.waits)


@pytest.mark.parametrize(("behind", "least"), [(0, look_trace.LEAST_SECONDS),
                                               (9, look_trace.ENOUGH_SECONDS)])  # fmt: skip
def test_a_host_that_is_ahead_is_looked_at_for_longer_and_waits_before_the_end(
    training, behind, least, monkeypatch
):
    trace = Trace(torch, CPU, 3)
    monkeypatch.setattr(trace._entries, "event", lambda: Mark(behind, 0.02))
    training.steps.on_step = trace
    with Alone(trace.stop):
        while not trace.over.is_set():
            training.step()
            time.sleep(0.004)
        trace.leave(training.steps)
    assert (trace.marks[-1] - trace.marks[0]) / 1e9 >= least
    if not behind:
        assert len(trace.marks) <= look_trace.ENOUGH_STEPS + 1
    assert trace.waited_seconds >= (0.02 if behind else 0.0)
    assert trace.drained != bool(behind)
    assert trace.stop_seconds > 0


def test_the_interpreter_is_left_to_the_training_for_longer_than_it_was_held():
    breathe = look_events.Breath()
    for _ in range(3):
        begin = time.thread_time()
        while time.thread_time() - begin < 0.004:
            pass
        resting = time.perf_counter()
        breathe()
        assert time.perf_counter() - resting >= 0.004 * look_events.BREATH_SHARE


def test_what_ran_on_no_device_is_no_look(training):
    found = taken(training, Trace(torch, CPU, 3))
    assert isinstance(found, Refusal)
    assert "CUPTI is missing or serves another tool (nsys, ncu, DCGM)" in found.reason
    assert (training.steps.on_step, training.steps.inputs) == (None, None)


def test_a_torch_without_cupti_says_so(training, monkeypatch):
    """As the CPU's torch is: CUDA is there, and the profiler cannot trace it."""
    if torch.profiler.ProfilerActivity.CUDA in torch.profiler.supported_activities():
        pytest.skip("this torch can trace CUDA")
    monkeypatch.setattr(look.cuda, "initialised", lambda: True)
    training.steps.importer = training.steps.thread
    with pytest.raises(Refusal, match="cannot trace CUDA: it was built without CUPTI"):
        look.serve(act(), training.steps, training.ledger)
    assert training.ledger.look is None


def test_a_look_that_was_taken_is_told_with_the_time_and_a_failed_one_is_not(training):
    training.ledger.look = {"seconds": 0.1, "steps": 3}
    assert training.ledger.answer({})["look"] == {"seconds": 0.1, "steps": 3}
    assert "look" not in TimeLedger(training.steps).answer({})


def test_a_profiler_that_runs_refuses_the_look(training):
    with torch.profiler.profile(activities=list(CPU)):
        found = taken(training, Trace(torch, CPU, 3))
        training.step()
    assert isinstance(found, Refusal)
    assert "another profiler runs" in found.reason


def test_a_profiler_that_the_training_starts_meanwhile_ends_the_look(training):
    trace = Trace(torch, CPU, 50)
    box = []

    def run():
        with pytest.raises(Refusal, match="a profiler of its own") as refused:
            look.take(act(), trace, training.steps, training.ledger)
        box.append(refused)

    thread = threading.Thread(target=run)
    thread.start()
    training.until(lambda: trace.running)
    with torch.profiler.profile(activities=list(CPU)) as own:
        training.step()
    thread.join()
    assert len(box) == 1
    assert any(event.name == "aten::mm" for event in own.events())


def test_it_waits_for_a_step_and_no_longer_than_it_may(training):
    begin = time.monotonic()
    trace = Trace(torch, CPU, 3)
    with pytest.raises(Refusal, match="no step ended in time"):
        look.take(act(0.4), trace, training.steps, training.ledger)
    assert time.monotonic() - begin < 20
    training.step(3)
    assert not torch.autograd._profiler_enabled()


def test_a_training_that_hangs_during_it_is_not_traced_for_ever(training):
    trace = Trace(torch, CPU, 50)
    box = []

    def run():
        with pytest.raises(Refusal):
            look.take(act(1.0), trace, training.steps, training.ledger)
        box.append(trace.running)

    thread = threading.Thread(target=run)
    thread.start()
    training.until(lambda: trace.running)
    thread.join()  # and not one step more
    assert box == [False]
    assert training.steps.on_step is None
    with torch.profiler.profile(activities=list(CPU)):
        training.step()


def test_another_thread_than_the_importing_one_is_not_looked_at(training):
    steps = training.steps
    look.refuse_thread(steps)
    steps.thread = 1
    with pytest.raises(Refusal, match="another thread than the one that imported torch"):
        look.refuse_thread(steps)
    steps.importer = 1
    look.refuse_thread(steps)
    with pytest.raises(Refusal, match="no step was seen yet"):
        look.refuse_thread(Steps())


def test_a_process_without_cuda_has_nothing_to_look_at():
    watch = "import gpuscope; gpuscope.watch(model=model, optimizer=optimizer)\n"
    with trainer(TRAINING + PLACE_APART + watch + "train(60)", fork=True) as process:
        reader = Reader(wait_for(lambda: sockets(process.pid), 60, "a socket")[0])
        reader.until(lambda: reader.value("step"))
        answer, _, _ = ask(reader, "look", {}, 20.0)
        reader.close()
    assert (answer.code, answer.reason) == ("unsupported", look.NO_CUDA)


@pytest.mark.parametrize(
    ("durations", "seconds", "expected"),
    [([0.1] * 20, 1.5, 0.5), ([0.1] * 20, 0.9, 0.0), ([0.1, 0.3] * 10, 1.5, None),
     ([0.1] * 3, 1.5, None), ([0.1] * 39 + [3.0], 1.5, 0.5),
     ([0.01] + [0.1] * 8, 1.5, 0.5),
     (([0.1] * 9 + [3.0]) * 2, 4.4, None)],  # a checkpoint; a loss that is read at each tenth step
)  # fmt: skip
def test_what_it_cost_is_what_the_steps_took_longer(durations, seconds, expected):
    class Ending:
        """Whose step ends while its end is waited for."""

        moments = iter([(29, 99.0)])

        @property
        def counted(self):
            return next(self.moments, (30, 100.0 + seconds))

    waits = [0.0] * len(durations)
    steady, paused = look.steady_seconds(durations, waits), look.pauses(durations, waits)
    found = look.added_seconds(durations, steady, Ending(), (20, 100.0), paused)
    assert found == (None if expected is None else pytest.approx(expected))


def test_nobody_waits_long_to_tell_what_a_look_has_cost():
    steps = Steps()
    steps.counted = (30, 115.0)
    begin = time.monotonic()
    assert look.added_seconds([1.4] * 20, 1.4, steps, (20, 100.0)) is None
    assert time.monotonic() - begin < 1.3


def test_the_device_is_waited_for_before_a_trace_sets_cupti_up(training, monkeypatch):
    """CUPTI would do so: that is no pause of a training whose device works meanwhile."""
    monkeypatch.setattr(look_trace.cupti, "_set_up", [])
    for known in (False, True):
        done = []

        class Busy:
            def query(self, done=done):
                return "waited" in done

            def synchronize(self, done=done):
                time.sleep(0.2)
                done.append("waited")

        trace = Trace(torch, CPU, 1)
        trace.limit(1)
        monkeypatch.setattr(trace._entries, "event", Busy)
        prepare = trace._entries.prepare
        monkeypatch.setattr(
            trace._entries, "prepare", lambda done=done, prepare=prepare: done.append(prepare())
        )
        training.steps.on_step = trace
        training.until(trace.over.is_set)
        trace.leave(training.steps)
        assert done[:2] == ([None, "waited"] if known else ["waited", None])
        assert trace.start_seconds < 0.2 <= trace.waited_seconds


QUIET = """
import threading, time, torch
from gpuscope.probe.look_trace import Trace
from gpuscope.probe.steps import Steps
steps = Steps()
for _ in range(3):
    steps.on_step = trace = Trace(torch, {torch.profiler.ProfilerActivity.CPU}, 3)
    while not trace.over.is_set():
        torch.ones(4).sum()
        steps.passed(time.perf_counter(), "backward")
    assert len(trace.results.events()) > 3
level = trace._level.value
assert level < 10, level
"""


@pytest.mark.slow
def test_nothing_is_written_to_the_trainers_outputs():
    env = {key: value for key, value in os.environ.items() if "KINETO" not in key}
    run = python("-W", "ignore", "-c", QUIET, env=env)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


@pytest.mark.parametrize(("room", "alone"), [(10**9, False), (0, True)])
def test_a_first_look_of_many_events_is_the_step_that_was_traced_to_count_them(
    training, room, alone, monkeypatch
):
    monkeypatch.setattr(look, "MOST_OF_FIRST", room)
    read = []
    monkeypatch.setattr(look, "_read", lambda trace, *host: read.append(trace) or {})
    first, trace = Trace(torch, CPU, 1), Trace(torch, CPU, 3)
    first.limit(1)
    box = []
    thread = threading.Thread(
        target=lambda: box.append(look.take(act(), trace, training.steps, training.ledger, first))
    )
    thread.start()
    training.until(lambda: not thread.is_alive())
    assert len(first.marks) == 2
    assert (read, len(trace.marks) > 3) == (([first], False) if alone else ([trace], True))
    assert (first.results is None) != alone
    assert {what for what, _, _ in box[0]["spans"]} == {"search", "prepare", "enable", "record",
                                                        "stop", "read"}  # fmt: skip


@pytest.mark.parametrize("begun", [False, True])
def test_a_training_that_stands_still_after_one_traced_step_is_told_by_that_step(
    training, begun, monkeypatch
):
    """As one that reads its loss at each tenth step, once the device has done all of them."""
    read = []
    monkeypatch.setattr(look, "_read", lambda trace, *seen: read.append((trace, *seen)) or {})
    first, trace = Trace(torch, CPU, 1), Trace(torch, CPU, 3)
    first.limit(1)
    box = []
    thread = threading.Thread(
        target=lambda: box.append(
            look.take(act(3.0), trace, training.steps, training.ledger, first)
        )
    )
    thread.start()
    training.until(lambda: trace.running if begun else first.over.is_set())
    thread.join()  # and not one step more
    assert [one for one, *_ in read] == [first]
    assert len(read[0][1]) > 0
    assert box[0]["began"] == first.marks[0] / 1e9
    assert (len(trace.marks), trace.results) == (int(begun), None)
    assert training.steps.on_step is None
    with torch.profiler.profile(activities=list(CPU)):
        training.step()


def first_look(training, seconds, step=None):
    """Take a first look in a training of steps of so many seconds; return it and its traces."""
    first, trace = Trace(torch, CPU, 1), Trace(torch, CPU, 3)
    first.limit(1)
    box = []
    thread = threading.Thread(
        target=lambda: box.append(
            look.take(act(seconds), trace, training.steps, training.ledger, first)
        )
    )
    thread.start()
    while thread.is_alive():
        training.step()
        time.sleep(step or 0.0)
    return box[0], first, trace


def test_no_second_trace_begins_where_three_more_steps_have_no_time(training, monkeypatch):
    monkeypatch.setattr(look, "_read", lambda trace, *seen: {})
    found, first, trace = first_look(training, 2.4, step=0.5)
    assert found["began"] == first.marks[0] / 1e9
    assert (len(first.marks), trace.marks) == (2, [])


def test_a_second_trace_whose_device_came_by_no_step_leaves_the_first_to_tell(
    training, monkeypatch
):
    """Its host had ended some steps, as one that queues ten and then reads its loss."""
    read = []

    def tells(trace, *seen):
        read.append(trace)
        if len(read) == 1:
            raise Refusal("failed", look.NO_STEP)
        return {}

    monkeypatch.setattr(look, "_read", tells)
    found, first, trace = first_look(training, 20.0)
    assert read == [trace, first]
    assert len(trace.marks) > 1
    assert found["began"] == first.marks[0] / 1e9


@pytest.mark.parametrize(("ran", "reason"), [(True, look.NO_STEP), (False, "nothing ran on a")])
def test_a_device_that_came_by_no_step_is_no_device_on_which_nothing_ran(
    training, monkeypatch, ran, reason
):
    trace = Trace(torch, CPU, 1)
    trace.marks = [1_000, 2_000]
    activities = [("sgemm", 1_200, 5_000, 1)] if ran else []
    calls = [("cudaLaunchKernel", 1_100, 1_150, 1, 7)]
    monkeypatch.setattr(look, "events_of", lambda *_: (activities, calls, []))
    with pytest.raises(Refusal, match=reason):
        look._read(trace, [], lambda: None, [], [], [])


@pytest.mark.parametrize(("usual", "most"), [(0.1, 5), (3.0, 1)])
def test_a_look_has_one_step_where_there_is_no_time_for_three(training, monkeypatch, usual, most):
    asked = []
    monkeypatch.setattr(look.cuda, "initialised", lambda: True)
    every = torch.profiler.ProfilerActivity
    monkeypatch.setattr(torch.profiler, "supported_activities", lambda: {every.CPU, every.CUDA})
    monkeypatch.setattr(look, "used_device", lambda: None)
    monkeypatch.setattr(look, "Trace", lambda torch, _, *more: Trace(torch, CPU, *more))
    monkeypatch.setattr(look, "take", lambda act, trace, *_: asked.append(trace._most) or {})
    training.steps.importer = training.steps.thread
    training.ledger.look = {
        "events_a_step": 1200.0, "events": 1200, "stop_seconds": 0.01, "read_seconds": 0.01,
    }  # fmt: skip
    training.steps.durations.extend([usual, usual])
    look.serve(act(7.0), training.steps, training.ledger)
    assert asked == [most]


def test_nobody_waits_long_for_a_step_before_cupti_is_set_up(training):
    began = time.monotonic()
    assert not look._between_steps(act(), Trace(torch, CPU, 3), training.steps)
    assert time.monotonic() - began < 5
    assert training.steps.on_step is None


def test_no_launches_are_recorded_once_another_thread_has_ended_the_trace(training, monkeypatch):
    """CUPTI would go on recording them, and nobody would ever take them out of its buffers."""
    asked = []
    monkeypatch.setattr(
        look_trace.cupti, "record_launches", lambda recorded: asked.append(recorded) or True
    )
    trace = Trace(torch, CPU, 3)
    trace.limit(1, 1)
    monkeypatch.setattr(trace, "_comes_soon", lambda: trace.stop())
    training.steps.on_step = trace
    with Alone(trace.stop):
        training.until(trace.over.is_set)
        trace.leave(training.steps)
    assert asked == [False]
    assert not torch.autograd._profiler_enabled()


@pytest.mark.parametrize(
    ("left_out", "count", "expected"),
    [
        (True, 700, [False, False]),
        (True, 100, [False]),  # so few that their launches cost nothing and tell more
        (True, 900, [False]),  # so many that the first step is the look
        (False, 700, [False]),  # this CUPTI cannot
    ],
)
def test_launches_are_left_out_of_several_steps_too_where_they_are_many(
    training, left_out, count, expected, monkeypatch
):
    class Recorded:
        def events(self):
            return [None] * count

    asked = []
    monkeypatch.setattr(
        look_trace.cupti, "record_launches", lambda recorded: asked.append(recorded) or left_out
    )
    monkeypatch.setattr(look, "_read", lambda trace, events, *host: {"read": trace})
    first, trace = Trace(torch, CPU, 1), Trace(torch, CPU, 3)
    first.limit(1, 1)
    for one in (first, trace):
        ends = one._entries.disable
        monkeypatch.setattr(one._entries, "disable", lambda ends=ends: ends() and Recorded())
    box = []
    thread = threading.Thread(
        target=lambda: box.append(look.take(act(), trace, training.steps, training.ledger, first))
    )
    thread.start()
    training.until(lambda: not thread.is_alive())
    assert asked == expected
    assert box[0]["read"] is (first if count == 900 else trace)
    assert first.without_launches == left_out
    assert trace.without_launches == (asked == [False, False])


@pytest.mark.parametrize(
    ("each", "events", "seconds", "steps", "without"),
    [
        (110, 440, 0.01, look.MAX_STEPS, 0),
        (1400, 2100, 0.05, 4, 5),
        (1900, 950, 0.02, 3, 3),
        (2700, 1350, 0.03, 1, 1),  # two steps have no interval
        (1400, 2100, 0.12, 4, 1),  # a slow host
    ],
)
def test_a_look_is_of_the_steps_whose_events_cost_little_by_the_look_before(
    each, events, seconds, steps, without
):
    trace = Trace(torch, CPU, 3)
    before = {"events_a_step": each, "events": events, "stop_seconds": 0.6 * seconds,
              "read_seconds": 0.4 * seconds}  # fmt: skip
    look.limit(trace, before)
    assert (trace._most, trace._most_without) == (steps, without)


def test_cupti_is_set_up_once_between_steps_and_not_by_the_training_thread(training, monkeypatch):
    called = []
    monkeypatch.setattr(look.cuda, "initialised", lambda: True)
    monkeypatch.setattr(look.cupti, "is_set_up", lambda: bool(called))
    monkeypatch.setattr(
        look.cupti, "set_up", lambda: called.append(threading.get_ident()) or (1.0, 2.0)
    )
    monkeypatch.setattr(look, "_read", lambda *_: {})
    monkeypatch.setattr(Trace, "captures", lambda trace: False)
    for number in range(2):
        trace = Trace(torch, CPU, 3)
        monkeypatch.setattr(trace._entries, "event", lambda: True)
        found = taken(training, trace)
        assert isinstance(found, dict), repr(found)
        assert training.steps.on_step is None
        assert (["cupti", 1.0, 2.0] in found["spans"]) == (number == 0)
    assert len(called) == 1
    assert called[0] != threading.get_ident()


def test_a_device_that_is_done_at_both_ends_has_its_trace_end_with_the_step(training):
    trace = Trace(torch, CPU, 3)
    trace.limit(3)
    training.steps.on_step = trace
    with Alone(trace.stop):
        training.until(trace.over.is_set)
        trace.leave(training.steps)
    assert (trace.drained, len(trace.marks), training.steps.on_backward) == (True, 4, None)


@pytest.mark.parametrize(
    ("durations", "waits", "expected"),
    [
        ([0.02, 0.002] * 8, [0.018, 0.0] * 8, 0.011),  # a loader's bursts
        ([0.02] * 9 + [2.0], [0.0] * 10, 0.02),  # a checkpoint
        ([0.02] * 3, [0.0] * 3, None),
    ],
)
def test_a_steady_step_has_its_mean_wait_and_no_pause(durations, waits, expected):
    found = look.steady_seconds(durations, waits)
    assert found == (None if expected is None else pytest.approx(expected))


def test_reading_a_trace_collects_no_old_garbage_and_keeps_what_the_training_sets():
    before = gc.get_threshold()
    try:
        with look_events.YoungOnly():
            assert gc.get_threshold() == (before[0], look_events.NEVER, look_events.NEVER)
        assert gc.get_threshold() == before
        with look_events.YoungOnly():
            gc.set_threshold(5000, 20, 20)
        assert gc.get_threshold() == (5000, 20, 20)
    finally:
        gc.set_threshold(*before)


@pytest.mark.parametrize(("most", "wanted"), [(2, 2), (0, 1)])
def test_a_trace_has_no_more_steps_than_it_is_limited_to(training, most, wanted):
    trace = Trace(torch, CPU, 3)
    trace.limit(most)
    training.steps.on_step = trace
    with Alone(trace.stop):
        training.until(trace.over.is_set)
        trace.leave(training.steps)
    assert len(trace.marks) == wanted + 1


def test_a_trace_ends_before_the_next_backward_pass_if_the_device_is_done(training, monkeypatch):
    trace = Trace(torch, CPU, 3)
    trace.limit(3)
    # Behind at the start, and with the last step soon after its end.
    marks = iter([Mark(9**9)] + [Mark(0)] * 3 + [Mark(0)])
    monkeypatch.setattr(trace._entries, "event", lambda: next(marks, Mark(0)))
    training.steps.on_step = trace
    with Alone(trace.stop):
        training.until(lambda: training.steps.on_backward is not None)
        assert trace.running
        marks = len(trace.marks)
        training.steps.on_backward(training.steps)
        assert trace.over.is_set()
        trace.leave(training.steps)
    assert len(trace.marks) == marks == 4
    assert training.steps.on_backward is None
    assert not torch.autograd._profiler_enabled()


@pytest.mark.parametrize(
    ("without", "idle", "blocking", "drains", "expected"),
    [
        (1, True, None, True, [False]),
        (3, True, None, True, [False]),
        (1, True, None, False, [False, True]),
        (1, False, None, True, []),
        (0, True, None, True, []),
        (1, True, "1", True, []),
    ],
)
def test_launches_are_left_out_of_steps_whose_device_waits_for_the_host(
    training, monkeypatch, without, idle, blocking, drains, expected
):
    """Where the device lags behind after all, those of the next step are recorded again."""
    asked = []
    monkeypatch.setattr(
        look_trace.cupti, "record_launches", lambda recorded: asked.append(recorded) or True
    )
    monkeypatch.delenv("CUDA_LAUNCH_BLOCKING", raising=False)
    if blocking:
        monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", blocking)
    trace = Trace(torch, CPU, 3)
    trace.limit(4, without)
    first = Mark(0 if idle else 9**9)
    marks = iter([first])
    later = 0 if drains else 9**9
    monkeypatch.setattr(trace._entries, "event", lambda: next(marks, None) or Mark(later))
    training.steps.on_step = trace
    with Alone(trace.stop):
        training.until(lambda: trace.over.is_set() or len(asked) == 2)
        trace.leave(training.steps)
    assert asked == expected
    assert trace.without_launches == bool(expected)
    if drains and idle:
        assert len(trace.marks) == (without if expected else 4) + 1
    assert trace.thread == (threading.get_native_id(), threading.get_ident())


def test_steps_that_a_look_has_made_longer_do_not_count_as_usual(training):
    steps, ledger = training.steps, training.ledger
    assert look._undisturbed(steps, ledger) == list(steps.durations)
    ledger.looked_at = steps.total
    training.step(3)
    assert look._undisturbed(steps, ledger) == []
    training.step(2)
    assert look._undisturbed(steps, ledger) == list(steps.durations)[-5:]
