"""Trainers through the agent: real sockets of other processes, good and hostile ones."""

from __future__ import annotations

import os
import signal
import socket
import time

import pytest

from gpuscope.collect import probe_sockets, trainers
from gpuscope.probe import rendezvous
from gpuscope.wire import frames
from tests.fakes import agents, probe_process
from tests.fakes.kernel import exits_are_told
from tests.fakes.probe_client import APART, PLACE_APART, trainer
from tests.fakes.waiting import until


@pytest.fixture
def sockets(tmp_path):
    return probe_process.make_directory(tmp_path / "sockets")


def step(viewer, number):
    rows = viewer.rows("t", number)
    return rows[-1]["step"] if rows else 0


def problem(viewer, *words):
    """Waits for a problem of the host that contains these words."""
    return viewer.wait_for(
        frames.Event,
        lambda e: e.e == "problem" and all(w in e.text for w in words),
        f"problem with {words}",
    )


def test_a_trainer_is_seen_with_its_process_and_ends_with_a_reason(sockets):
    with agents.process("--sockets", str(sockets)) as (viewer, _):
        with probe_process.start(sockets) as trainer:
            number, definition = viewer.definition("trainer", lambda t: t.proc is not None)
            assert (definition.pid, definition.rank, definition.world_size) == (trainer.pid, 0, 2)
            assert (definition.job, definition.script) == ("job-1", "train.py")
            # on a busy machine one may come first that /proc has not told about yet
            _, process = viewer.definition("proc", lambda p: p.pid == trainer.pid and p.command)
            assert "probe_process" in process.command
            assert process.start == definition.start
            assert process.mine
            viewer.wait(lambda: step(viewer, number) > 3, "steps")
            assert viewer.reasons(number)["loss"] == ("not_supported", "no progress bar")
            # a column this probe does not have
            assert viewer.reasons(number)["eta_seconds"][0] == "not_supported"
            alloc, where = viewer.definition("alloc", lambda a: a.ordinal == 0)
            assert where.trainer == number
            assert viewer.rows("a", alloc)[-1]["allocated_bytes"] == 2000
            assert viewer.rows("a", alloc)[-1]["reserved_bytes"] == 3000
            samples = [s for s in viewer.all(frames.Sample) if s.a]
            assert all(0 <= dict(s.ago)[alloc] < 60_000 for s in samples), (
                "when it was read is told with each row"
            )
            assert viewer.reasons(viewer.definition("alloc", lambda a: a.ordinal == 1)[0])["gpu"][
                1
            ] == ("the UUID of cuda:1 is unknown here")
            assert viewer.wait_for(frames.Event, lambda e: e.e == "oom").id == alloc
            viewer.wait(
                lambda: [
                    r for r in viewer.rows("p", viewer.definition("proc")[0]) if r["rss_bytes"]
                ],
                "rss",
            )
            before = len(viewer.all(frames.Def))
        gone = viewer.wait_for(frames.Event, lambda e: e.e == "gone" and e.id == number)
        told = exits_are_told()  # else only if it was looked at before it was reaped
        known = "killed by signal 9"
        assert gone.text in ((known,) if told else (known, frames.NO_LAST_WORDS))
        ended = {e.id for e in viewer.all(frames.Event, e="gone")}
        viewer.wait(
            lambda: {e.id for e in viewer.all(frames.Event, e="gone")} >= {number, alloc},
            "gone allocators",
        )
        assert number in ended
        process_id = viewer.definition("proc", lambda p: p.pid == trainer.pid)[0]
        gone = viewer.wait_for(frames.Event, lambda e: e.e == "gone" and e.id == process_id)
        assert gone.text in ((known,) if told else (known, "exited"))
        made = [d.proc for d in viewer.all(frames.Def)[before:] if d.proc is not None]
        assert all(process.start for process in made), "none is made of one that has ended"


@pytest.mark.skipif(not exits_are_told(), reason="the kernel is older than Linux 6.15")
def test_how_a_process_ended_is_known_though_it_ends_during_a_look(sockets, monkeypatch):
    probes, told = trainers.Probes([str(sockets)]), []
    probes.on_exit = lambda pid, start, status: told.append((pid, status))
    with probe_process.start(sockets) as trainer:
        until(lambda: poll(probes)[0], 10.0)
    runs = iter([True])  # at the first question it is still there, and at the next ones not
    monkeypatch.setattr(trainers, "still_runs", lambda *_: next(runs, False))
    until(lambda: poll(probes)[0] == [], 10.0)
    followed = probes.outliving
    assert trainer.pid in {*followed, *(pid for pid, _ in probes.exits)}
    until(lambda: probes.outliving == set(), 10.0)
    assert told == [(trainer.pid, signal.SIGKILL)], "for its black box, once"


def poll(probes):
    """What the probes have told after a short look."""
    probes.scan(time.monotonic())
    probes.poll(0.05)
    return probes.take()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("endless", ("line that is too long",)),
        ("garbage", ("does not speak gpuscope's protocol",)),
        ("foreign", ("speaks protocol 2, this one 1: bring both to the same version",)),
        ("misnamed", ("not the one it is named for",)),
    ],
)
def test_a_hostile_probe_is_left_alone_with_a_reason_while_others_go_on(sockets, mode, words):
    with (
        probe_process.start(sockets) as good,
        probe_process.start(sockets, mode),
        agents.process("--sockets", str(sockets)) as (viewer, child),
    ):
        event = problem(viewer, *words)
        assert event.id == frames.HOST_ID
        number, _ = viewer.definition("trainer", lambda t: t.pid == good.pid)
        seen = step(viewer, number)
        viewer.wait(lambda: step(viewer, number) > seen + 3, "steps of the good one")
        assert child.poll() is None
        assert {d.trainer.pid for d in viewer.all(frames.Def) if d.trainer} == {good.pid}


@pytest.mark.slow
def test_a_flooding_probe_is_held_back(sockets):
    with (
        probe_process.start(sockets) as good,
        probe_process.start(sockets, "flood") as flood,
        agents.process("--sockets", str(sockets)) as (viewer, _),
    ):
        loud, _ = viewer.definition("trainer", lambda t: t.pid == flood.pid)
        number, _ = viewer.definition("trainer", lambda t: t.pid == good.pid)
        first = step(viewer, number)
        viewer.wait(lambda: step(viewer, number) > first + 10, "steps of the good one")
        viewer.wait(lambda: viewer.rows("h", 0)[-1]["agent_cpu_percent"] is not None, "own cost")
        samples = viewer.all(frames.Sample)
        seconds = (samples[-1].m - samples[0].m) / 1e9
        # What was read of it: the burst of ten seconds at 20 a second, and 20 more each second
        # since.
        assert step(viewer, loud) <= 250 + 25 * seconds


@pytest.mark.slow
def test_what_a_probe_claims_to_be_does_not_count_and_its_entities_are_bounded(sockets):
    with (
        probe_process.start(sockets, "lies") as liar,
        probe_process.start(sockets, "huge") as huge,
        agents.process("--sockets", str(sockets)) as (viewer, _),
    ):
        number, definition = viewer.definition("trainer", lambda t: t.pid == liar.pid)
        assert definition.start != 5
        big, _ = viewer.definition("trainer", lambda t: t.pid == huge.pid)
        viewer.wait(lambda: step(viewer, big) > 2 and step(viewer, number) > 2, "steps")
        assert not [d for d in viewer.all(frames.Def) if d.trainer and d.trainer.pid == 1]
        assert (
            len({d.id for d in viewer.all(frames.Def) if d.alloc and d.alloc.trainer == big}) == 64
        )


def test_a_frozen_trainer_is_told_and_stops_nobody(sockets, monkeypatch):
    monkeypatch.setattr(trainers, "SILENT_SECONDS", 1.0)
    with (
        probe_process.start(sockets) as good,
        probe_process.start(sockets, "freeze") as frozen,
        agents.inside("--hz", "5", directories=[str(sockets)]) as viewer,
    ):
        number, _ = viewer.definition("trainer", lambda t: t.pid == frozen.pid)
        event = viewer.wait_for(frames.Event, lambda e: e.e == "problem" and e.id == number)
        assert "silent" in event.text
        other, _ = viewer.definition("trainer", lambda t: t.pid == good.pid)
        seen = step(viewer, other)
        viewer.wait(lambda: step(viewer, other) > seen + 3, "steps of the good one")
        frozen.send_signal(signal.SIGCONT)
        viewer.wait_for(
            frames.Event, lambda e: e.e == "note" and e.id == number and "again" in e.text
        )


def test_a_probe_that_never_introduces_itself(sockets, monkeypatch):
    from gpuscope.collect import probe_link

    monkeypatch.setattr(probe_link, "HELLO_SECONDS", 0.5)
    with (
        probe_process.start(sockets, "mute") as mute,
        agents.inside(directories=[str(sockets)]) as viewer,
    ):
        problem(viewer, f"pid {mute.pid}", "no answer")


@pytest.mark.parametrize("how", ["open", "symlink", "owner"])
def test_an_unsafe_directory_is_not_searched(tmp_path, how):
    real = probe_process.make_directory(tmp_path / "real", 0o770 if how == "open" else 0o700)
    place = real
    if how == "symlink":
        place = tmp_path / "link"
        place.symlink_to(real)
    if how == "owner":
        if os.getuid() != 0:
            pytest.skip("only root can give a directory away")
        os.chown(real, 12345, -1)
    with probe_process.start(real), agents.process("--sockets", str(place)) as (viewer, _):
        problem(viewer, str(place), "not searched")
        assert not [d for d in viewer.all(frames.Def) if d.trainer]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_a_socket_that_somebody_else_serves_is_left_alone(sockets):
    with probe_process.start(sockets) as server:
        for path in (sockets, probe_process.socket_path(sockets, server.pid)):
            os.chown(path, 12345, -1)
        with probe_sockets.Directory(str(sockets), 12345) as directory:
            (found,) = directory.sockets()
            with pytest.raises(
                probe_sockets.ProbeSocketRefused, match="served by uid 0, not 12345"
            ):
                directory.connect(found)


@pytest.mark.slow
def test_a_trainer_that_takes_its_time_to_end_is_reported_as_ended():
    # The probe says good-bye first, the process is gone later: a CUDA context takes seconds to go.
    code = PLACE_APART + "import atexit, time; atexit.register(time.sleep, 1.5)\n"
    code += "import gpuscope, sys; gpuscope.watch(); print('on', flush=True); input()"
    place = os.path.join(APART, os.path.basename(rendezvous.directory()))
    with trainer(code) as process, agents.process("--sockets", place) as (viewer, _):
        assert process.stdout.readline() == "on\n"
        number, _ = viewer.definition("trainer", lambda t: t.pid == process.pid)
        viewer.wait(lambda: viewer.rows("t", number), "row")
        process.stdin.write("end\n")
        process.stdin.flush()
        gone = viewer.wait_for(frames.Event, lambda e: e.e == "gone" and e.id == number)
        assert gone.text == "exited: the program has ended"
        assert process.wait(10) == 0


def test_a_probe_that_was_taken_out_leaves_a_process_that_is_followed_to_its_end(
    sockets, monkeypatch
):
    monkeypatch.setattr(trainers, "EXIT_SECONDS", 0.3)
    with (
        probe_process.start(sockets, "leaves") as process,
        agents.inside(directories=[str(sockets)]) as viewer,
    ):
        number, _ = viewer.definition("trainer")
        gone = viewer.wait_for(frames.Event, lambda e: e.e == "gone" and e.id == number)
        assert gone.text == f"the probe is gone ({frames.DETACHED}); the process continues"
        assert process.poll() is None
        around, _ = viewer.definition("proc", lambda p: p.pid == process.pid)
        assert not [e for e in viewer.all(frames.Event, e="gone") if e.id == around]
        process.kill()
        gone = viewer.wait_for(frames.Event, lambda e: e.e == "gone" and e.id == around)
        assert gone.text == "killed by signal 9", "what outlives its probe is followed to its end"


@pytest.mark.parametrize("whose", ["999999-12345.sock", "alive"])
def test_a_socket_where_nobody_listens_is_removed(sockets, whose):
    """Its process was killed, or has become another program (exec keeps pid and start time)."""
    dead = probe_process.socket_path(sockets, os.getpid()) if whose == "alive" else sockets / whose
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(dead))
    with agents.process("--sockets", str(sockets)) as (viewer, _):
        viewer.wait(lambda: not dead.exists(), "removal")
        assert not viewer.all(frames.Event, e="problem")


def test_a_trainer_that_comes_later_and_comes_back_is_found(sockets):
    with agents.process("--sockets", str(sockets)) as (viewer, _):
        viewer.wait_for(frames.Sample)
        numbers = []
        for _ in range(2):
            with probe_process.start(sockets) as trainer:
                number, _ = viewer.definition("trainer", lambda t, pid=trainer.pid: t.pid == pid)
                numbers.append(number)
            viewer.wait_for(frames.Event, lambda e, n=number: e.e == "gone" and e.id == n)
        assert numbers[0] != numbers[1]


def test_requests_reach_the_probe_and_its_answers_come_back(sockets):
    with (
        probe_process.start(sockets),
        agents.process("--hz", "5", "--sockets", str(sockets)) as (viewer, _),
    ):
        number, _ = viewer.definition("trainer")
        viewer.wait(lambda: viewer.rows("t", number), "row")

        def ask(name, number_of_request, **args):
            viewer.send(frames.Request(name, number_of_request, {"trainer": number, **args}))

        ask("environment", 70, deep=True)
        value = viewer.wait_for(frames.Result, lambda r: r.id == 70).value
        # it was asked for our rate, and got the arguments
        assert value == {"hz": 5.0, "args": {"deep": True}}
        ask("profile", 71)
        assert viewer.wait_for(frames.Error, lambda e: e.id == 71).code == "unsupported"
        ask("snapshot", 72)
        assert viewer.wait_for(frames.Progress).id == 72
        ask("snapshot", 73)
        busy = viewer.wait_for(frames.Error, lambda e: e.id == 73)
        assert (busy.code, "72" in busy.reason) == ("busy", True)
        viewer.send(frames.Request("cancel", 74, {"id": 72}))
        assert viewer.wait_for(frames.Error, lambda e: e.id == 72).code == "cancelled"
        assert viewer.wait_for(frames.Result, lambda r: r.id == 74)
        viewer.send(frames.Request("snapshot", 75, {"trainer": number}, deadline=0.2))
        late = viewer.wait_for(frames.Error, lambda e: e.id == 75)
        assert late.code == "timeout"


@pytest.mark.slow
def test_a_request_whose_trainer_dies_is_answered(sockets):
    with agents.process("--sockets", str(sockets)) as (viewer, _):
        with probe_process.start(sockets):
            number, _ = viewer.definition("trainer")
            viewer.wait(lambda: viewer.rows("t", number), "row")
            viewer.send(frames.Request("snapshot", 9, {"trainer": number}))
            viewer.wait_for(frames.Ack)
        assert viewer.wait_for(frames.Error, lambda e: e.id == 9).code == "gone"
