"""A trainer answers when it is asked, and trains on meanwhile.

There are real trainings and real sockets.
"""

from __future__ import annotations

import json
import os
import pickle
import threading
import time

import pytest

from gpuscope.probe import long_requests, quick_requests
from gpuscope.probe.steps import Steps
from gpuscope.wire.codec import decode, encode
from gpuscope.wire.frames import (
    DETACHED,
    Ack,
    Blob,
    Bye,
    Error,
    Event,
    Progress,
    Request,
    Result,
)
from tests.fakes import allocator
from tests.fakes.asking import KEYBOARD, ask, collect, tell
from tests.fakes.probe_client import PLACE_APART, TRAINING, Reader, sockets, trainer, wait_for

torch = pytest.importorskip("torch")

WATCHED = (
    TRAINING + PLACE_APART + "import gpuscope; gpuscope.watch(model=model, optimizer=optimizer)\n"
)
FAKED = "from tests.fakes import allocator\n"
"""A trainer whose CUDA allocator is ours: everything else about it is real."""


@pytest.fixture(scope="module")
def training():
    """One trainer for all tests that leave it as it is."""
    with trainer(WATCHED + KEYBOARD + "train(300)", fork=True) as process:
        yield process, wait_for(lambda: sockets(process.pid), 60, "a socket")[0]


@pytest.fixture
def reader(training):
    made = Reader(training[1])
    made.until(lambda: made.value("step"))
    yield made
    made.close()


def connect(process):
    made = Reader(wait_for(lambda: sockets(process.pid), 60, "a socket")[0])
    made.until(lambda: made.value("step"))
    return made


def step_of(reader):
    """The step of a sample that is still to come."""
    seen = reader.samples
    reader.until(lambda: reader.samples > seen + 1)
    return reader.value("step")


# ── questions ─────────────────────────────────────────────────────────────────────────────────────


def test_stacks_name_threads_and_say_where_each_stands(reader):
    answer, _, _ = ask(reader, "stacks")
    main, other = answer.value["threads"]
    assert (main["name"], main["main"], main["training"]) == ("MainThread", True, True)
    assert (other["name"], other["main"], other["training"]) == ("keyboard", False, False)
    at = [function for _, _, function in main["frames"]].index("train")
    assert [(file, function) for file, _, function in main["frames"][at : at + 2]] == [
        ("<string>", "train"),
        ("<string>", "<module>"),
    ]
    assert main["frames"][-1][2] == "<module>"
    assert all(isinstance(line, int) and line > 0 for _, line, _ in main["frames"])
    assert answer.value["collectives"] == []
    assert answer.value["seconds"] > 0


def test_many_deep_stacks_are_cut_to_what_fits_a_line():
    ready, leave = threading.Semaphore(0), threading.Event()

    def deep(more):
        if more:
            return deep(more - 1)
        ready.release()
        return leave.wait()

    # Every character is six on the wire.
    deep.__code__ = deep.__code__.replace(co_name="ä" * 250, co_filename="ä" * 250)
    threads = [threading.Thread(target=deep, args=(70,), daemon=True) for _ in range(300)]
    try:
        for thread in threads:
            thread.start()
            ready.acquire()
        value = quick_requests.stacks(Steps())
        assert len(encode(Result(1, value))) <= quick_requests.MAX_RESULT_BYTES
        assert (value["cut"], len(value["threads"]), value["threads"][0]["main"]) == (1, 256, True)
        assert {len(thread["frames"]) for thread in value["threads"]} == {1}
    finally:
        leave.set()
        for thread in threads:
            thread.join()


def test_modules_are_counted_between_steps(reader):
    answer, _, seen = ask(reader, "modules")
    assert isinstance(seen[0], Ack)
    rows = answer.value["rows"]
    parameters = (16 * 32 + 32 + 32 * 4 + 4) * 4
    assert rows[0] == [0, "model", "Sequential", parameters, parameters, 2 * parameters + 4 * 4]
    assert [row[:3] for row in rows[1:]] == [[1, "0", "Linear"], [1, "1", "Linear"]]
    assert [sum(column) for column in zip(*(row[3:] for row in rows[1:]), strict=True)] == rows[0][
        3:
    ]
    assert answer.value["source"] == "watch"
    assert answer.value["complete"]


@pytest.mark.parametrize("name", ["statistics", "snapshot", "history"])
def test_without_cuda_it_says_so(reader, name):
    answer, _, _ = ask(reader, name, {"device": 0} if name == "statistics" else {})
    reason = "CUDA is not initialised" if torch.version.cuda else "built without CUDA"
    assert (answer.code, reason in answer.reason) == ("unsupported", True), answer


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("profile", {"steps": 0}),
        ("profile", {"steps": 51}),
        ("profile", {"steps": "many"}),
        ("profile", {"steps": True}),
        ("profile", {"steps": None}),
    ],
)
def test_a_senseless_argument_is_refused(reader, name, args):
    answer, _, _ = ask(reader, name, args)
    assert (answer.code, "whole number" in answer.reason) == ("refused", True)


# ── with an allocator ─────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def cuda():
    """Start a trainer with a made-up allocator.

    It has 20k entries while history is on, and then each step takes more than a step more.
    """
    code = (
        WATCHED
        + FAKED
        + KEYBOARD
        + "made = allocator.install(20000, 0.03)\nfrom time import sleep\nold = step\n"
    )
    code += "def step():\n    old(); made.pause(); sleep(0.02)\ntrain(300, 0)"
    with trainer(code, fork=True) as process:
        yield process, wait_for(lambda: sockets(process.pid), 60, "a socket")[0]


@pytest.fixture
def asker(cuda):
    made = Reader(cuda[1])
    made.until(lambda: made.value("step"))
    yield made
    made.close()


def test_statistics_have_torchs_keys_and_the_pinned_pool_apart(asker):
    answer, _, _ = ask(asker, "statistics", {"device": 0})
    assert answer.value["statistics"] == {
        "allocated_bytes.all.allocated": 9000,
        "allocated_bytes.all.current": 3000,
        "allocated_bytes.all.freed": 6000,
        "allocated_bytes.all.peak": 4000,
        "num_ooms": 2,
        "reserved_bytes.all.allocated": 8000,
        "reserved_bytes.all.current": 8000,
        "reserved_bytes.all.freed": 0,
        "reserved_bytes.all.peak": 8000,
        "reserved_bytes_by_private_pools.0_7.all.current": 512,
    }
    assert answer.value["host_statistics"] == {"allocated_bytes.current": 4096, "num_host_alloc": 1}
    assert (answer.value["backend"], answer.value["device"], answer.value["host_reason"]) == (
        "native",
        0,
        "",
    )
    assert answer.value["seconds"] >= 0
    assert ask(asker, "statistics", number=2)[0].value["device"] == 0, "the only one in use"
    for number, device in enumerate((1, -1, "cuda:0", True), 3):
        refused, _, _ = ask(asker, "statistics", {"device": device}, number=number)
        assert refused.code == "refused"


def test_it_remembers_what_was_allocated_after_its_steps(asker):
    value = ask(asker, "growth")[0].value
    ((ordinal, points),) = value["points"]
    assert ordinal == 0
    assert points
    assert {size for _, size in points} == {3000}
    assert [step for step, _ in points] == sorted({step for step, _ in points})


def test_a_snapshot_is_the_pickle_that_torch_would_write(asker):
    answer, blob, seen = ask(asker, "snapshot")
    assert pickle.loads(blob) == allocator.snapshot(20000)
    assert answer.value["bytes"] == len(blob)
    assert (answer.value["entries"], answer.value["history"]) == (20000, False)
    assert answer.value["snapshot_seconds"] > 0
    assert answer.value["pickle_seconds"] > 0
    kinds = [type(frame) for frame in seen]
    assert kinds[0] is Ack
    assert kinds.index(Blob) > kinds.index(Progress) > 0
    assert next(frame for frame in seen if isinstance(frame, Blob)).size == len(blob)
    # torch's own reader of snapshots takes it
    from torch.cuda import _memory_viz

    assert "segments: 1\ntotal_reserved: 2.0MiB" in _memory_viz.segsum(pickle.loads(blob))


def test_history_is_priced_and_switched_off_again(asker):
    answer, _, seen = ask(asker, "history", {"entries": 5000, "trial_steps": 20})
    value = answer.value
    assert (value["enabled"], value["entries"], value["steps"]) == (False, 5000, 20)
    assert value["cost_low_percent"] <= value["cost_percent"] <= value["cost_high_percent"]
    expected = 100 * (value["step_seconds"] / value["baseline_step_seconds"] - 1)
    assert value["cost_percent"] == pytest.approx(expected)
    assert value["cost_percent"] > 10, "30 ms more on a step of a little over 20 ms"
    assert any(isinstance(frame, Progress) and "without history" in frame.text for frame in seen)
    again, _, _ = ask(asker, "history", {"entries": 0}, number=2)
    assert (again.value["enabled"], again.value["cost_percent"]) == (False, None)


def test_history_is_switched_on_and_a_price_needs_it_off(asker):
    on, _, _ = ask(asker, "history", {"entries": 700})
    assert (on.value["enabled"], on.value["entries"]) == (True, 700)
    taken, _, _ = ask(asker, "snapshot", number=2)
    assert taken.value["history"] is True
    refused, _, _ = ask(asker, "history", {"entries": 700, "trial_steps": 20}, number=3)
    assert (refused.code, "steps without it" in refused.reason) == ("refused", True)
    few, _, _ = ask(asker, "history", {"entries": 700, "trial_steps": 5}, number=4)
    assert (few.code, "20 steps" in few.reason) == ("refused", True)
    off, _, _ = ask(asker, "history", {"entries": 0}, number=5)
    assert (off.value["enabled"], off.value["entries"]) == (False, 0)


def test_a_history_of_the_training_itself_is_left_alone(asker, cuda):
    tell(cuda[0], "torch.cuda.memory._record_memory_history(max_entries=9); made.calls.clear()")
    try:
        for number, args in enumerate(
            ({"entries": 5}, {"entries": 0}, {"entries": 5, "trial_steps": 20}), 1
        ):
            refused, _, _ = ask(asker, "history", args, number=number)
            assert (refused.code, "its own history" in refused.reason) == ("refused", True)
    finally:
        left = tell(
            cuda[0],
            "print(made.calls, made.recording); torch.cuda.memory._record_memory_history(None)",
        )
    assert left == ["[] True"]


def test_detach_switches_our_history_off_and_ends_what_is_under_way():
    code = WATCHED + FAKED + "import select, threading\nmade = allocator.install(10)\n"
    code += "while not select.select([sys.stdin], [], [], 0.3)[0]: step()\n"
    code += "for t in threading.enumerate()[1:]: t.join(10)\n"
    code += "print(made.calls, [t.name for t in threading.enumerate()], flush=True)"
    with trainer(code, fork=True) as process:
        reader, other = connect(process), connect(process)
        ask(reader, "history", {"entries": 5})
        reader.send(Request("profile", 2, {"steps": 50}, 60.0))
        reader.until(lambda: any(isinstance(f, Progress) for f in reader.frames))
        assert isinstance(other.answer(Request("detach", 1)), Result)
        ended = reader.until(
            lambda: next((f for f in reader.frames if isinstance(f, Error) and f.id == 2), None)
        )
        assert (ended.code, ended.reason) == ("cancelled", f"the probe stops: {DETACHED}")
        while reader.next() is not None:
            pass
        assert reader.frames[-1] == Bye(DETACHED)
        out, err = process.communicate("end\n", timeout=30)
        how = {"context": "alloc", "stacks": "python", "max_entries": 5}
        assert out == f"{[('all', how), (None, {})]} ['MainThread']\n", err
        assert process.returncode == 0


def test_a_price_says_why_when_the_training_stands_still(asker, cuda):
    tell(cuda[0], "kept = step\ndef step(): sleep(0.05)")
    try:
        late, _, _ = ask(asker, "history", {"entries": 5, "trial_steps": 20}, deadline=3.0)
    finally:
        tell(cuda[0], "step = kept")
    assert late.code == "unfinished"
    assert "of 20 steps measured without history; the trainer has made no step for" in late.reason


# ── one at a time, given up, gone ─────────────────────────────────────────────────────────────────


def busy_with(reader, number=1):
    """A profile of a training that will not make 50 steps soon."""
    reader.send(Request("profile", number, {"steps": 50}, 60.0))
    reader.until(lambda: any(isinstance(f, Progress) and f.id == number for f in reader.frames))


@pytest.fixture(scope="module")
def slow():
    with trainer(
        WATCHED + FAKED + KEYBOARD + "allocator.install(10)\ntrain(300, 4.0)", fork=True
    ) as process:
        yield process, wait_for(lambda: sockets(process.pid), 60, "a socket")[0]


@pytest.fixture
def slow_training(slow):
    made = Reader(slow[1])
    made.until(lambda: made.value("step"))
    yield slow[0], made
    made.close()


@pytest.fixture
def pair(slow):
    readers = Reader(slow[1]), Reader(slow[1])
    for one in readers:
        one.until(lambda one=one: one.value("step"))
    yield readers
    for one in readers:
        one.close()


def test_a_second_client_is_told_who_keeps_the_trainer_busy(pair):
    first, second = pair
    busy_with(first)
    for number, name in enumerate(("profile", "snapshot", "stacks"), 1):
        answer, _, _ = ask(second, name, number=number)
        assert (answer.code, answer.reason) == ("busy", f"busy with profile for pid {os.getpid()}")
    assert isinstance(ask(second, "modules", number=9)[0], Result), (
        "what is not exclusive is served meanwhile"
    )
    assert ask(second, "cancel", {"id": 1}, number=10)[0].code == "gone", (
        "nobody cancels what another asked for"
    )
    cancelled, _, _ = ask(first, "cancel", {"id": 1}, number=11)
    assert isinstance(cancelled, Result)
    ended = first.until(
        lambda: next((f for f in first.frames if isinstance(f, Error) and f.id == 1), None)
    )
    assert (ended.code, ended.reason) == ("cancelled", "cancelled on request")
    numbers = iter(range(20, 1000))
    wait_for(
        lambda: isinstance(ask(second, "stacks", number=next(numbers))[0], Result),
        what="the next one's turn",
    )


def test_a_client_that_goes_away_gives_up_what_it_asked_for(pair):
    first, second = pair
    busy_with(first)
    first.close()
    numbers = iter(range(1, 1000))
    wait_for(
        lambda: isinstance(ask(second, "stacks", number=next(numbers))[0], Result),
        what="the other's turn",
    )


def test_a_deadline_ends_it_with_what_it_was_at(pair):
    answer, _, _ = ask(pair[0], "modules", deadline=0.0)
    assert (answer.code, answer.reason.startswith("modules was not done within 0 s")) == (
        "unfinished",
        True,
    )


def test_a_forked_child_has_nothing_to_do_with_it():
    # It has neither descriptors nor the profiler: one that records all threads would fill the
    # memory of a worker, 1 kB an operation.
    code = (
        WATCHED
        + """
import os, resource, threading
from tests.fakes.descriptors import open_files
step()
sys.stdin.readline()
child = os.fork()
if not child:
    names = [t.name for t in threading.enumerate()]
    files = open_files()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    one = torch.ones(2)
    for _ in range(100000): one + 1
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as own: one + 1
    print(names, [f for f in files if f.startswith("socket")], grown < 50000, len(own.events()) > 0, flush=True)
    os._exit(0)
train(60, 0.05)
"""  # noqa: E501
    )
    with trainer(code, fork=True) as process:
        reader = connect(process)
        reader.send(Request("profile", 1, {"steps": 20}, 60.0))
        reader.until(lambda: any(isinstance(f, Progress) for f in reader.frames))
        process.stdin.write("go\n")
        process.stdin.flush()
        assert process.stdout.readline() == "['MainThread'] [] True True\n"
        answer, blob, _ = collect(reader, 1)
        assert answer.value["stopped"] == "steps"
        assert trace_of(blob)
        reader.close()


# ── a profile ─────────────────────────────────────────────────────────────────────────────────────


def trace_of(blob):
    return json.loads(blob)["traceEvents"]


def test_a_profile_shows_what_the_training_thread_did(reader, training):
    answer, blob, _ = ask(reader, "profile", {"steps": 3}, 60.0)
    value = answer.value
    assert (value["stopped"], value["cuda"], value["bytes"]) == ("steps", False, len(blob))
    assert 3 <= value["steps"] < 50
    assert value["seconds"] > 0
    assert min(value["start_seconds"], value["stop_seconds"], value["export_seconds"]) >= 0
    events = trace_of(blob)
    assert {e["tid"] for e in events if e["name"] == "aten::addmm"} == {training[0].pid}
    # Two of them a forward: all steps that were counted are in it.
    assert sum(e["name"] == "aten::addmm" for e in events) >= 2 * value["steps"]
    assert any(e["name"].startswith("Optimizer.step#AdamW") for e in events)
    again, blob, _ = ask(reader, "profile", {"steps": 1}, 60.0, number=2)
    assert isinstance(again, Result)
    assert step_of(reader) > 5


@pytest.mark.slow
def test_a_profile_of_something_that_does_not_step_ends_by_time(pair):
    answer, blob, _ = ask(pair[0], "profile", {"steps": 40}, deadline=6.0)
    assert answer.value["stopped"] == "timeout"
    assert answer.value["steps"] < 5
    assert trace_of(blob)


PROFILER = "from torch.profiler import profile, schedule, ProfilerActivity\n"
PROFILER += "def own(**more): return profile(activities=[ProfilerActivity.CPU], **more)\n"


def test_no_profile_beside_another_profiler(reader, training):
    # Two at once end the process (a segmentation fault), so this is about more than good manners.
    tell(training[0], PROFILER + "first = own(); first.start(); torch.randn(3) + 1")
    running, _, _ = ask(reader, "profile", {"steps": 1})
    assert (running.code, "another profiler runs" in running.reason) == ("refused", True)
    tell(
        training[0],
        "first.stop(); second = own(schedule=schedule(wait=0, warmup=3, active=1)); second.start()",
    )
    warming, _, _ = ask(reader, "profile", {"steps": 1}, number=2)
    assert (warming.code, "warming up" in warming.reason) == ("refused", True)
    ending = (
        "for _ in range(4): second.step()\nsecond.stop(); print(len(first.events()) > 0); "
        "del second"
    )
    assert tell(training[0], ending) == ["True"]
    free, blob, _ = ask(reader, "profile", {"steps": 1}, number=3)
    assert isinstance(free, Result), free
    assert trace_of(blob)
    assert step_of(reader)


def test_a_profiler_that_the_training_starts_meanwhile_has_precedence(slow_training):
    process, reader = slow_training
    tell(
        process,
        PROFILER + "import torch.autograd.profiler as module; before = module._enable_profiler",
    )
    reader.send(Request("profile", 1, {"steps": 50}, 60.0))
    reader.until(lambda: any(isinstance(f, Progress) for f in reader.frames))
    mine = "with own() as mine: torch.nn.Linear(2, 3)(torch.randn(4, 2))\n"
    assert (
        tell(process, 3 * (mine + "print('aten::addmm' in {e.name for e in mine.events()})\n"))
        == ["True"] * 3
    )
    result, blob, _ = collect(reader, 1)
    assert result.value["stopped"] == "other_profiler"
    assert trace_of(blob)
    # What was put in the way is out again: torch's own function is back.
    assert tell(process, "print(module._enable_profiler is before)") == ["True"]
    assert process.poll() is None


@pytest.mark.slow
def test_a_compiled_training_is_not_compiled_anew():
    code = (
        WATCHED
        + KEYBOARD
        + "model = torch.compile(model, backend='eager')\nstep(); step(); train(300)"
    )
    count = (
        "from torch._dynamo.utils import counters; print(counters['stats']['unique_graphs'], "
        "dict(counters['frames']))"
    )
    with trainer(code, fork=True) as process:
        reader = connect(process)
        before = tell(process, count)
        answer, blob, _ = ask(reader, "profile", {"steps": 5})
        assert answer.value["stopped"] == "steps"
        assert any(event["name"] == "aten::addmm" for event in trace_of(blob))
        assert step_of(reader)
        assert tell(process, count) == before
        assert before != ["0 {}"]
        reader.close()


# ── events ────────────────────────────────────────────────────────────────────────────────────────


def test_events_reach_everybody_from_any_thread_and_are_bounded(training):
    process, path = training
    readers = [Reader(path), Reader(path)]
    for reader in readers:
        reader.until(lambda r=reader: r.value("step"))
    tell(
        process,
        "from gpuscope.wire.frames import Event\nprobe = sys._gpuscope_probe\n"
        "def say(n): probe.server.announce(Event(1, 'note', time.monotonic_ns(), f'number {n}', "
        "{'n': n}))\n"
        "for n in range(3): threading.Thread(target=say, args=(n,)).start()",
    )

    def notes(reader):
        return [f for f in reader.frames if isinstance(f, Event) and f.e == "note"]

    for reader in readers:
        reader.until(lambda r=reader: len(notes(r)) == 3)
        assert {(e.id, e.text, e.data["n"]) for e in notes(reader)} == {
            (1, f"number {n}", n) for n in range(3)
        }
    # A storm that nobody reads: it holds up nobody, and costs neither memory nor the connection.
    tell(process, "for n in range(3, 20000): say(n)")

    def known(reader):
        """How many events came, or are said to be lost; that is said with a sample."""
        lost = [
            f.data["events"] for f in reader.frames if isinstance(f, Event) and f.e == "dropped"
        ]
        return len(notes(reader)) + sum(lost)

    for reader in readers:
        deadline = time.monotonic() + 60
        while known(reader) < 18000:
            assert time.monotonic() < deadline, "what was lost is told"
            assert step_of(reader)
    tell(process, "say(-2)")
    for reader in readers:
        reader.until(lambda r=reader: notes(r)[-1].data["n"] == -2)
        reader.close()


def test_nothing_is_acted_on_without_a_thread(monkeypatch):
    def none(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(long_requests.threading.Thread, "start", none)
    made = long_requests.Acts({"snapshot": lambda act: long_requests.Answer({})}, lambda: None)
    answer = made.begin(Request("snapshot", 4), None, 7)
    assert (answer.code, answer.reason) == (
        "failed",
        "cannot start a thread: can't start new thread",
    )
    assert not made.busy


def test_an_answer_is_not_lost_where_the_probe_tidies_up_right_before_it(monkeypatch):
    # The act's thread is done, and is about to say how it ended: just then the probe's thread looks
    # what is over.
    usual, client, go_on = long_requests.LongRequest.end, object(), threading.Event()

    def modules(act):
        go_on.wait(60)
        return long_requests.Answer({"parameters": 7})

    def end(self, last):
        if self.done:
            made.expire(time.monotonic())
        return usual(self, last)

    monkeypatch.setattr(long_requests.LongRequest, "end", end)
    made = long_requests.Acts({"modules": modules}, lambda: None)
    assert isinstance(made.begin(Request("modules", 4, deadline=60.0), client, 7), Ack)
    (act,) = made.of(client)
    go_on.set()
    act.thread.join()
    assert made.of(client) == [act]
    assert decode(act.next_line()) == Result(4, {"parameters": 7})
    made.expire(time.monotonic())
    assert made.of(client) == []


@pytest.mark.slow
def test_samples_keep_their_pace_beside_a_large_blob(asker, cuda):
    noise = (
        "import random\nnoise = random.Random(3).randbytes(20 << 20)\n"
        "usual = torch.cuda.memory._snapshot\n"
    )
    noise += (
        "torch.cuda.memory._snapshot = lambda: {'segments': [], 'device_traces': [[]], "
        "'noise': noise}"
    )
    tell(cuda[0], noise)
    try:
        before, begin = asker.samples, time.monotonic()
        answer, blob, _ = ask(asker, "snapshot", deadline=60.0)
        seconds = time.monotonic() - begin
        assert isinstance(answer, Result)
        assert len(blob) > 20 << 20
        # Two a second were asked for. Scheduling on a busy machine may cost some, a blocked probe
        # all of them.
        assert asker.samples - before >= 2 * seconds * 0.6 - 2
        assert not [f for f in asker.frames if isinstance(f, Event) and f.e == "dropped"]
    finally:
        tell(cuda[0], "torch.cuda.memory._snapshot = usual")
