"""The probe's socket as other processes meet it: real trainings, real clients."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import threading
import time

import pytest

from gpuscope.probe import clients, rendezvous, server
from gpuscope.probe.ledger import Ledger
from gpuscope.probe.requests import Requests
from gpuscope.probe.sampler import Sampler
from gpuscope.probe.steps import Steps
from gpuscope.wire import codec
from gpuscope.wire.frames import PROTOCOL, Bye, Error, Event, Key, Pong, Request, Result
from tests.fakes.probe_client import (
    PLACE_APART,
    STEPS_OF_TWO_SECONDS,
    TRAINING,
    Reader,
    sockets,
    trainer,
    wait_for,
)

pytest.importorskip("torch")

WATCHED = (
    TRAINING + PLACE_APART + "import gpuscope; gpuscope.watch(model=model, optimizer=optimizer)\n"
)


@pytest.fixture(scope="module")
def training():
    """One trainer for all tests that only look."""
    with trainer(WATCHED + "train(300)", fork=True) as process:
        yield process, wait_for(lambda: sockets(process.pid), 60, "a socket")[0]


@pytest.fixture
def reader(training):
    made = Reader(training[1])
    yield made
    made.close()


def test_a_training_is_seen_within_two_seconds_of_its_first_step():
    with trainer(WATCHED + "print('go', flush=True)\ntrain()", fork=True) as process:
        assert process.stdout.readline() == "go\n"
        reader = Reader(wait_for(lambda: sockets(process.pid), 60, "a socket")[0])
        reader.until(lambda: (reader.value("step") or 0) >= 2)
        assert reader.value("step") <= STEPS_OF_TWO_SECONDS
        reader.close()


def test_hello_and_definitions(reader, training):
    reader.until(lambda: reader.alloc(-1))
    hello, defined = reader.hello, reader.trainer()
    assert (hello.role, hello.v, hello.pid, hello.uid) == (
        "probe",
        PROTOCOL,
        training[0].pid,
        os.getuid(),
    )
    assert set(hello.requests) == {
        "rate",
        "environment",
        "detach",
        "cancel",
        "statistics",
        "modules",
        "stacks",
        "snapshot",
        "history",
        "profile",
        "growth",
        "recent",
        "time",
        "look",
        "work",
    }
    assert (defined.pid, defined.origin, defined.cuda) == (training[0].pid, "watch", False)
    assert f"{defined.pid}-{defined.start}.sock" == training[1].name
    assert defined.torch_version
    assert defined.rank is None


def test_values_and_reasons_complete_each_other(reader):
    entity = reader.until(lambda: reader.alloc(-1))
    # a count that began in the middle of a backward pass knows the last layer's gradients only
    reader.until(
        lambda: (
            reader.value("parameter_bytes", entity)
            and reader.value("gradient_bytes", entity) == reader.value("parameter_bytes", entity)
        ),
        seconds=60,
    )
    reader.until(
        lambda: reader.value("step_seconds") and reader.value("probe_cpu_percent") is not None
    )
    for key, value in reader.values.items():
        assert (value is None) == (key in reader.reasons), key
    assert reader.value("parameter_bytes", entity) == (16 * 32 + 32 + 32 * 4 + 4) * 4
    # exp_avg, exp_avg_sq, and four step counters of float32
    assert (
        reader.value("optimizer_state_bytes", entity)
        == 2 * reader.value("parameter_bytes", entity) + 4 * 4
    )
    assert reader.reasons[entity, "allocated_bytes"][0] == "not_initialised"
    assert 0.004 < reader.value("step_seconds") < 1
    assert 0 <= reader.value("step_age_seconds") < 5
    assert reader.value("probe_cpu_percent") < 20


def rate(reader, hz, identity=1):
    return reader.answer(Request("rate", identity, {"hz": hz}))


def count(reader, seconds):
    before, end = reader.samples, time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        reader.socket.settimeout(left)
        try:
            reader.next()
        except TimeoutError:
            break
    return reader.samples - before


def test_rates_are_each_clients_own_and_limited(training):
    readers = [Reader(training[1]) for _ in range(4)]
    try:
        granted = [rate(r, hz).value["hz"] for r, hz in zip(readers, (10, 5, 2, 0.5), strict=True)]
        assert granted == [10, 5, 2, 0.5]
        assert rate(readers[0], 1000, 2).value["hz"] == 10
        # in 3 s, and later where others want all the cores
        begin, least = time.monotonic(), (15, 8, 3, 0)
        starts = [r.samples for r in readers]
        for r in readers:
            r.socket.setblocking(False)
        while True:
            for r in readers:
                try:
                    r.next()
                except BlockingIOError:
                    pass
            time.sleep(0.01)
            got = [r.samples - start for r, start in zip(readers, starts, strict=True)]
            took = time.monotonic() - begin
            if took > 30 or (
                took > 3 and all(count >= few for count, few in zip(got, least, strict=True))
            ):
                break
        assert took < 30, got
        for count, most in zip(got, (35, 20, 10, 4), strict=True):
            assert count <= most * took / 3, (got, took)
        assert got == sorted(got, reverse=True)
    finally:
        for r in readers:
            r.close()


@pytest.mark.parametrize("hz", [0, -1, "fast", None, True])
def test_a_senseless_rate_is_refused(reader, hz):
    answer = reader.answer(Request("rate", 7, {} if hz is None else {"hz": hz}))
    assert isinstance(answer, Error)
    assert answer.code == "refused"


@pytest.mark.parametrize("name", ["signal", "inject"])
def test_what_the_probe_does_not_serve_is_unsupported(reader, name):
    answer = reader.answer(Request(name, 8))
    assert (answer.code, name in answer.reason) == ("unsupported", True)


def test_environment_is_the_allow_list(training):
    with trainer(
        WATCHED + "train()", fork=True, WANDB_API_KEY="SECRET", MASTER_ADDR="here"
    ) as process:
        reader = Reader(wait_for(lambda: sockets(process.pid), 60)[0])
        answer = reader.answer(Request("environment", 3))
        reader.close()
    assert isinstance(answer, Result)
    assert answer.value["environment"]["MASTER_ADDR"] == "here"
    assert "SECRET" not in json.dumps(answer.value)


def test_garbage_hurts_only_its_sender(reader, training):
    bad = Reader(training[1])
    bad.socket.sendall(b'{"k":"from-the-future","x":1}\n{"k":"ping","t":4.5}\n')
    assert bad.until(lambda: next((f for f in bad.frames if isinstance(f, Pong)), None)).t == 4.5
    bad.socket.sendall(b"nonsense\n" * (clients.BAD_LINES + 1))
    while bad.next() is not None:
        pass
    endless = Reader(training[1])
    with pytest.raises(OSError):  # noqa: PT012
        while True:
            endless.socket.sendall(b"x" * 65536)
    endless.close()
    samples = reader.samples
    reader.until(lambda: reader.samples > samples + 1)


def test_a_slow_client_does_not_hold_up_the_others_and_learns_what_it_missed(training, request):
    slow, quick = Reader(training[1]), Reader(training[1])
    for one in (slow, quick):
        request.addfinalizer(one.close)  # all tests share the training, which serves only so many
    slow.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    rate(slow, 10)
    rate(quick, 10, 2)
    # It asks and asks and never reads: its answers pile up until the kernel takes no more, then
    # samples are dropped.
    for number in range(400):
        slow.send(Request("environment", 100 + number))
    before = quick.samples
    quick.until(lambda: quick.samples >= before + 20, 15)

    def dropped(of):
        return [f.data["n"] for f in of.frames if isinstance(f, Event) and f.e == "dropped"]

    slow.until(lambda: sum(dropped(slow)) > 3)
    assert not dropped(quick)
    for frame in slow.frames:
        if isinstance(frame, Event) and frame.e == "dropped" and not frame.data["events"]:
            number = frame.data["n"]
            assert frame.text.startswith(f"{number} sample{'s' * (number != 1)} dropped: ")


def test_sixteen_watch_and_the_next_is_told(training):
    readers = []
    try:
        for _ in range(server.MAX_CLIENTS):
            readers.append(Reader(training[1]))
            readers[-1].until(lambda: readers[-1].samples)
        late = Reader(training[1])
        assert isinstance(late.next(), Bye)
        assert late.next() is None
        late.close()
    finally:
        for r in readers:
            r.close()
    again = Reader(training[1])
    wait_for(lambda: again.next() is not None)
    again.close()


def test_a_key_frame_repeats_definitions_and_reasons():
    speedy = "from gpuscope.probe import clients; clients.KEY_SECONDS = 0.5\n"
    with trainer(
        TRAINING + PLACE_APART + speedy + "import gpuscope; gpuscope.watch(); train()", fork=True
    ) as process:
        reader = Reader(wait_for(lambda: sockets(process.pid), 60)[0])
        key = reader.until(lambda: next((f for f in reader.frames if isinstance(f, Key)), None))
        reader.reasons.clear()
        told = [reader.next() for _ in range(key.n)]
        assert {d.id for d in told} == set(reader.defs)
        sample = reader.next()
        assert [1, "loss"] in [row[:2] for row in sample.why]
        reader.close()


@pytest.mark.slow
def test_a_removed_socket_comes_back():
    often = "from gpuscope.probe import server; server.CHECK_SECONDS = 0.2; train()"
    with trainer(WATCHED + often, fork=True) as process:
        path = wait_for(lambda: sockets(process.pid), 60)[0]
        old = Reader(path)
        os.unlink(path)
        wait_for(path.exists, 15, "the socket's return")
        new = Reader(path)
        new.until(lambda: new.samples)
        samples = old.samples
        old.until(lambda: old.samples > samples + 1)
        old.close()
        new.close()


def test_an_idle_notebook_only_grows_older():
    code = WATCHED + "train(0.3)\nprint('idle', flush=True)\nsys.stdin.readline()"
    with trainer(code, fork=True) as process:
        process.stdout.readline()
        reader = Reader(sockets(process.pid)[0])
        reader.until(lambda: reader.value("step_age_seconds"))
        step, age = reader.value("step"), reader.value("step_age_seconds")
        reader.until(lambda: reader.value("step_age_seconds") > age + 1)
        assert reader.value("step") == step
        reader.close()


LEFT = """
import os, threading
from tests.fakes.descriptors import open_files
def patches():
    import torch.optim.optimizer as o, torch.utils.data.dataloader as d, torch.amp.grad_scaler as g
    return (list(o._global_optimizer_post_hooks), d._BaseDataLoaderIter.__next__, g.GradScaler._maybe_opt_step,
            list(torch.cuda._queued_calls), list(sys.meta_path), hasattr(sys, "_gpuscope_probe"))
"""  # noqa: E501


@pytest.mark.parametrize("how", ["request", "call"])
def test_detach_leaves_no_thread_descriptor_hook_or_socket(how):
    code = f"""{TRAINING}{PLACE_APART}{LEFT}
step()
before = open_files(), patches(), threading.active_count()
import gpuscope, gpuscope.probe
gpuscope.watch(model)
step()
assert patches() != before[1]
print("ready", flush=True)
if {how!r} == "call":
    sys.stdin.readline()
    gpuscope.probe.detach()
end = time.monotonic() + 20
while threading.active_count() != before[2] and time.monotonic() < end:
    step(); time.sleep(0.01)
for _ in range(3): step()
print((open_files(), patches(), threading.active_count()) == before, flush=True)
gpuscope.watch(model)
step()
print(hasattr(sys, "_gpuscope_probe"), flush=True)
sys.stdin.readline()
"""
    with trainer(code, fork=True) as process:
        assert process.stdout.readline() == "ready\n", process.stderr.read()
        path = sockets(process.pid)[0]
        reader = Reader(path)
        reader.until(lambda: reader.samples)
        if how == "request":
            assert isinstance(reader.answer(Request("detach", 5)), Result)
        else:
            process.stdin.write("\n")
            process.stdin.flush()
        while reader.next() is not None:
            pass
        assert isinstance(reader.frames[-1], Bye)
        assert process.stdout.readline() == "True\n"
        assert process.stdout.readline() == "True\n", "watch() after detach starts again"
        assert sockets(process.pid) == [path]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ending", "code", "left"),
    [
        ("", 0, 0),
        ("sys.exit(3)", 3, 0),
        ("1/0", 1, 0),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -15, 1),
    ],
)
def test_the_socket_goes_with_the_trainer(ending, code, left):
    whole = WATCHED + f"step(); print('ran', flush=True); sys.stdin.readline()\n{ending}"
    with trainer(whole, fork=bool(ending)) as process:
        process.stdout.readline()
        reader = Reader(sockets(process.pid)[0])
        reader.until(lambda: reader.samples)
        process.communicate("\n", timeout=60)
        while reader.next() is not None:
            pass
        assert process.returncode == code
        # nobody can clean up behind a signal: the agent does
        assert len(sockets(process.pid)) == left
        for path in sockets(process.pid):
            path.unlink()


@pytest.fixture
def made(tmp_path, monkeypatch):
    """Return a server without its thread.

    The tests do what the thread would, at a moment that they choose.
    """
    monkeypatch.setattr(rendezvous, "BASE", str(tmp_path))
    steps = Steps()
    sampler = Sampler("watch", steps, Ledger())
    made = server.Server(sampler, Requests(steps, sampler.gauges), lambda: None, lambda: None)
    made._open()
    yield made
    made._close()


def test_who_has_just_come_gets_a_sample_and_the_last_minutes_however_dear_the_last_sample_was(
    made, monkeypatch
):
    monkeypatch.setattr(server, "COST_SHARE", 1e-9)  # any sample is followed by hours of rest
    ledger = made._requests.time
    ledger._minute(1.0, 0).book("input", "data.py:12 load", 2.0)
    for _ in range(2):
        reader = Reader(made._path)
        for _ in range(3):
            made._turn(time.monotonic())
        while not reader.samples:
            reader.next()
        (told,) = (frame for frame in reader.frames if isinstance(frame, Event))
        assert (told.e, told.data["rows"]) == ("time", "input 2.000 1")
        # before the sample: a verb that looks once has seen enough with that
        assert reader.frames.index(told) < len(reader.frames) - 1
        reader.close()


def test_an_errand_for_a_thread_that_is_just_ending_is_run_by_one_of_the_two(made, monkeypatch):
    class Thread:
        def is_alive(self):
            made._finish()  # right after we are told that it lives
            return True

    monkeypatch.setattr(made, "_thread", Thread())
    ran = []
    if not made.errand(lambda: ran.append("by the thread")):
        ran.append("by who asked")
    assert len(ran) == 1


def test_news_that_finds_the_bell_held_by_another_thread_is_not_left_lying(made, monkeypatch):
    # One thread has woken the probe and still holds the bell when another has news: the probe has
    # been woken for the first news, has read that, and would wait for seconds with the second.
    usual, told = made._write_wake, []

    def write():
        usual()
        if not told:
            told.append(os.read(made._wake[0], 512))
            other = threading.Thread(
                target=made.announce, args=(Event(1, "note", 0, "the second"),)
            )
            other.start()
            other.join()

    monkeypatch.setattr(made, "_write_wake", write)
    made.announce(Event(1, "note", 0, "the first"))
    assert told == [b"."]
    assert select.select([made._wake[0]], [], [], 0)[0], "the probe sleeps on"


@pytest.mark.parametrize(("asked", "detached"), [("rate", []), ("detach", ["all"])])
def test_of_requests_that_come_while_the_trainer_ends_only_detach_removes_the_probe(
    made, monkeypatch, asked, detached
):
    """Who detaches removes the black box too, which must outlive a trainer that died."""
    calls: list[str] = []
    monkeypatch.setattr(made, "_detach", lambda: calls.append("all"))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        client = clients.Client(ours)
        made._clients[ours.fileno()] = client
        theirs.sendall(codec.encode(Request(asked, 1, {"hz": 2.0})))
        monkeypatch.setattr(made, "_thread", threading.current_thread())
        made.stop("the program has ended")
        made._serve(client)
    made._clients.clear()
    assert calls == detached


def test_stopped_and_continued():
    with trainer(WATCHED + "train()", fork=True) as process:
        reader = Reader(wait_for(lambda: sockets(process.pid), 60)[0])
        reader.until(lambda: reader.samples)
        process.send_signal(signal.SIGSTOP)
        assert count(reader, 1.0) <= 2
        process.send_signal(signal.SIGCONT)
        samples = reader.samples
        reader.until(lambda: reader.samples > samples + 1)
        reader.close()


@pytest.mark.parametrize(("box", "most"), [("0", 0), ("1", 3)])
def test_while_nobody_looks_only_the_black_box_is_served_once_a_second_and_nothing_is_walked(
    box, most
):
    code = f"""{WATCHED}
probe = sys._gpuscope_probe
calls = []
sampler = probe.server._sampler
tick = sampler.tick
sampler.tick = lambda *args: calls.append(1) or tick(*args)
train(1.5)
print(len(calls), probe.ledger.bytes, probe.steps.total > 10, flush=True)
"""
    with trainer(code, fork=True, GPUSCOPE_BLACKBOX=box) as process:
        ticks, counted, stepped = process.stdout.readline().split()
        assert (counted, stepped) == ("None", "True"), process.stderr.read()
        assert int(ticks) <= most


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "words"),
    [
        ("raise RuntimeError('a shard is damaged')", "RuntimeError: a shard is damaged"),
        ("raise KeyboardInterrupt", "interrupted with Ctrl-C (KeyboardInterrupt)"),
        ("pass", "the program has ended"),
    ],
)
def test_the_last_word_says_what_ended_the_program(end, words):
    code = f"{WATCHED}step()\nprint('ready', flush=True)\nsys.stdin.readline()\n{end}\n"
    with trainer(code, fork=True) as process:
        assert process.stdout.readline() == "ready\n"
        reader = Reader(wait_for(lambda: sockets(process.pid), 60, "a socket")[0])
        reader.until(lambda: reader.samples)
        process.stdin.write("\n")
        process.stdin.flush()
        while reader.next() is not None:
            pass
        assert isinstance(reader.frames[-1], Bye)
        assert reader.frames[-1].why == words
