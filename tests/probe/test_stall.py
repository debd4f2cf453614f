"""Trainings stand still, and are found to.

They do so in a queue, in a collective of two real ranks, and in pauses that are none.
"""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace

import pytest

from gpuscope.probe import code_place
from gpuscope.probe.stall import STILL_SECONDS, StallWatch, limit_seconds
from gpuscope.probe.steps import Steps
from gpuscope.wire import frames
from tests.fakes.forked_scripts import Scripts
from tests.fakes.probe_client import ROOT, TRAINING, Reader, sockets, trainer, wait_for

pytest.importorskip("torch")


def events(reader: Reader, kind: str) -> list[frames.Event]:
    return [frame for frame in reader.frames if isinstance(frame, frames.Event) and frame.e == kind]


def test_an_instruction_of_no_line_stands_at_that_of_its_function():
    code = compile("x = 1", "/home/ada/train.py", "exec")
    frame = SimpleNamespace(f_code=code, f_lineno=None, f_lasti=0, f_back=None)
    found = code_place.place(frame)
    assert found is not None
    assert found.at == "train.py:1 <module>"
    assert code_place.rows(frame) == [["/home/ada/train.py", 1, "<module>"]]


def test_the_limit_grows_with_the_usual_step_but_not_without_bound():
    limits = [limit_seconds(p95) for p95 in (0.001, 0.4, 2.0, 15.0, 60.0, 600.0)]
    assert limits == sorted(limits)
    assert limits[0] >= 5.0
    assert all(
        limit >= 3 * p95 for limit, p95 in zip(limits[:4], (0.001, 0.4, 2.0, 15.0), strict=True)
    )
    assert limit_seconds(60.0) < 300
    assert limit_seconds(None) >= limit_seconds(15.0)


@pytest.mark.slow
def test_a_wait_for_a_queue_is_told_once_with_the_line_and_its_end():
    code = f"""{TRAINING}
import gpuscope, queue, threading
gpuscope.watch()
box = queue.Queue()
def load():
    return box.get()  # the line
for _ in range(20): step()
threading.Thread(target=lambda: (sys.stdin.readline(), box.put(1)), daemon=True).start()
load()
train()
"""
    with trainer(code, fork=True) as process:
        reader = Reader(wait_for(lambda: sockets(process.pid), 60)[0])
        reader.until(lambda: events(reader, "stall"), 60)
        (stall,) = events(reader, "stall")
        line = code.splitlines().index("    return box.get()  # the line") + 1
        assert stall.data["at"] == f"<string>:{line} load"
        assert stall.data["inner"] != stall.data["at"]
        assert stall.data["thread"] == "the main thread"
        assert stall.data["seconds"] > limit_seconds(0.0)
        assert 0 < stall.data["usual_seconds"] < 5
        assert stall.data["collective"] is None
        assert f"<string>:{line} load" in stall.text
        reader.until(lambda: reader.value("stall_at"))
        assert reader.value("stall_at").startswith(f"<string>:{line} load")
        assert reader.reasons[1, "collectives"][0] == "not_initialised"
        process.stdin.write("\n")
        process.stdin.flush()
        reader.until(lambda: events(reader, "resumed"))
        assert events(reader, "resumed")[0].data["seconds"] > stall.data["seconds"]
        reader.until(lambda: reader.value("stall_at") is None)
        assert len(events(reader, "stall")) == 1
        reader.close()


class Clocked:
    """A stall detector over steps and a clock that the test moves.

    The thread stands where the test lets it.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr("gpuscope.probe.stall.time.perf_counter", lambda: self.now)
        self.told: list[tuple[str, str, dict]] = []
        self.steps = Steps()
        self.counted = 0
        self.stall = StallWatch(
            self.steps, lambda *event: self.told.append(event), lambda: 7, lambda: (self.counted,)
        )
        self.gate = threading.Semaphore(0)
        self.at_line = threading.Event()
        self.line = 0
        self.over = False
        self.thread = threading.Thread(target=self._stand, name="trains", daemon=True)
        self.thread.start()
        self.steps.thread = self.thread.ident
        for _ in range(20):
            self.stepped(0.1)

    def _stand(self) -> None:
        while not self.over:
            if self.line % 2:
                self.at_line.set()
                self.gate.acquire()
            else:
                self.at_line.set()
                self.gate.acquire()

    def move(self) -> None:
        """To another line."""
        self.at_line.clear()
        self.line += 1
        self.gate.release()
        assert self.at_line.wait(10)

    def stepped(self, seconds: float) -> None:
        self.now += seconds
        self.steps.last = self.now
        self.steps.durations.append(seconds)

    def run(self, seconds: float, move: bool = False) -> list[object]:
        seen = []
        for _ in range(int(seconds)):
            self.now += 1.0
            if move:
                self.move()
            seen.append(self.stall.tick())
        return seen

    def end(self) -> None:
        self.over = True
        self.gate.release()
        self.thread.join(10)


@pytest.fixture
def clocked(monkeypatch):
    made = Clocked(monkeypatch)
    assert made.at_line.wait(10)
    yield made
    made.end()


def test_a_thread_that_gets_on_elsewhere_is_not_stalled(clocked):
    seen = clocked.run(60, move=True)
    assert not any(isinstance(reading, str) for reading in seen)
    assert clocked.told == []
    assert isinstance(clocked.run(STILL_SECONDS + 2)[-1], str), "and once it stands it is"
    assert [kind for kind, *_ in clocked.told] == ["stall"]


def test_batches_that_still_arrive_are_an_evaluation(clocked):
    for number in range(60):
        clocked.now += 1.0
        clocked.steps.loads.append((1, float(number), float(number)))
        assert not isinstance(clocked.stall.tick(), str)
    assert clocked.told == []


def test_what_the_framework_or_a_bar_counts_on_is_a_rollout(clocked):
    for _ in range(60):
        clocked.now += 1.0
        clocked.counted += 1
        assert not isinstance(clocked.stall.tick(), str)
    assert clocked.told == []
    assert isinstance(clocked.run(STILL_SECONDS + 2)[-1], str), (
        "and once nothing is counted it stands"
    )


@pytest.mark.slow
def test_a_real_bar_that_moves_on_while_nothing_steps_is_no_stall():
    pytest.importorskip("tqdm")
    code = f"""{TRAINING}
import gpuscope, threading, tqdm
gpuscope.watch()
for _ in range(20): step()
pause = threading.Event()
with tqdm.tqdm(total=10**6, disable=False) as bar:
    while True:
        pause.wait(0.05)
        bar.update()
"""
    with trainer(code, fork=True) as process:
        reader = Reader(wait_for(lambda: sockets(process.pid), 60)[0])
        overdue = limit_seconds(0.0) + STILL_SECONDS + 2
        reader.until(lambda: (reader.value("step_age_seconds") or 0) > overdue, 60)
        assert events(reader, "stall") == []
        assert "is doing something else" in reader.reasons[1, "stall_at"][1]
        reader.close()


def test_a_pause_that_once_ended_by_itself_is_normal_until_it_takes_twice_as_long(clocked):
    clocked.run(40)
    clocked.stepped(1.0)
    clocked.run(1)
    assert [kind for kind, *_ in clocked.told] == ["stall", "resumed"]
    clocked.steps.durations.clear()
    for _ in range(20):
        clocked.stepped(0.1)
    clocked.run(60)
    assert [kind for kind, *_ in clocked.told] == ["stall", "resumed"]
    clocked.run(40)
    assert [kind for kind, *_ in clocked.told] == ["stall", "resumed", "stall"]


def test_a_thread_that_has_ended_is_no_stall(clocked):
    clocked.end()
    assert not any(isinstance(reading, str) for reading in clocked.run(60))
    assert clocked.told == []


def test_no_stall_before_the_first_step():
    told: list[object] = []
    stall = StallWatch(Steps(), lambda *event: told.append(event), lambda: 0)
    assert not isinstance(stall.tick(), str)
    assert told == []


def test_the_users_line_comes_before_torchs_and_the_standard_librarys():
    import torch

    found = []

    class Data(torch.utils.data.Dataset):
        def __len__(self):
            return 1

        def __getitem__(self, index):
            found.append(code_place.place(sys._getframe()))
            return index

    def looks():
        found.append(code_place.place(next(frame for frame in [sys._getframe()])))
        return sorted([1], key=lambda _: threading.Event().wait(0) or 0)

    list(torch.utils.data.DataLoader(Data()))
    looks()
    assert found[0].at.startswith("test_stall.py:")
    assert found[0].at.endswith(" __getitem__")
    assert found[0].inner == ""
    assert found[0].own
    assert [
        code_place.kind(path)
        for path in (threading.__file__, torch.__file__, pytest.__file__, __file__)
    ] == [
        "stdlib",
        "torch",
        "package",
        "own",
    ]


@pytest.mark.slow
def test_of_two_ranks_the_sleeping_one_is_named_with_its_line_and_the_other_with_its_collective(
    tmp_path,
):
    """``demos/stall_train.py``: rank 1 sleeps in its data set, rank 0 waits in backward."""
    script = ROOT / "demos/stall_train.py"
    lines = script.read_text().splitlines()

    def number(text: str) -> int:
        return next(index for index, line in enumerate(lines, 1) if text in line)

    scripts = Scripts(tmp_path, TORCH_FR_BUFFER_SIZE="50")
    readers = {}
    try:
        job = scripts.start(
            "stall", script, ["--after", "30", "--seconds", "600"], nproc=2, watch=True
        )
        ranks = [one.pid for one in job.processes]
        wait_for(lambda: all(map(sockets, ranks)), 90, "two probes")
        for reader in [Reader(sockets(pid)[0]) for pid in ranks]:
            reader.until(
                lambda reader=reader: reader.value("stall_at") and events(reader, "stall"), 60
            )
            readers[reader.trainer().rank] = reader
        waiting, sleeping = readers[0], readers[1]
        (stall,) = events(sleeping, "stall")
        assert (
            stall.data["at"] == f"stall_train.py:{number('time.sleep(self.seconds)')} __getitem__"
        )
        assert sleeping.value("stall_at").startswith(stall.data["at"])
        (stall,) = events(waiting, "stall")
        assert stall.data["at"] == f"stall_train.py:{number('loss.backward()')} main"
        assert "_engine_run_backward" in stall.data["inner"]
        assert waiting.value("step") == sleeping.value("step") == 30
        # The gradients fit into one bucket: one all-reduce a step, and rank 0 has launched that
        # of step 31.
        assert waiting.value("collectives") == sleeping.value("collectives") + 1
        assert stall.data["collective"] == waiting.value("collectives")
        stacks = waiting.answer(frames.Request("stacks", 5))
        group, *entries = stacks.value["collectives"]
        assert group["backend"] == "gloo"
        assert group["launched"] == waiting.value("collectives")
        assert [entry["sequence"] for entry in entries] == sorted(
            entry["sequence"] for entry in entries
        )
        assert entries[-1]["sequence"] == group["launched"]
        assert entries[-1]["state"] != "completed"
        assert entries[-2]["state"] == "completed"
        assert group["completed"] == group["launched"] - 1
        assert "all_reduce" in entries[-1]["op"]
        assert entries[-1]["size"] == 64 * 64 + 64 + 64 * 10 + 10
        training = next(thread for thread in stacks.value["threads"] if thread["training"])
        assert training["main"]
        assert any(frame[2] == "main" for frame in training["frames"])
    finally:
        for reader in readers.values():
            reader.close()
        scripts.end()
