"""``gpuscope wait``: real processes, and made-up pictures for what no CPU machine has.

An exit code for each end.
"""

from __future__ import annotations

import argparse
import subprocess

import pytest

from gpuscope.cli import main as cli
from gpuscope.cli.commands import wait
from gpuscope.cli.main import perform
from gpuscope.exit_status import ExitStatus
from gpuscope.wire import frames as f
from tests.fakes import views
from tests.fakes.asked import AskedSource
from tests.fakes.waiting import alive, until


def parsed(*words: str) -> argparse.Namespace:
    parser = cli.Parser(prog="gpuscope wait")
    wait.add_arguments(parser)
    return parser.parse_args(list(words))


def waited(frames: list[f.Frame], *words: str) -> int:
    return perform(
        lambda args: wait.run(args, lambda hz: AskedSource(frames)), parsed(*words), "gpuscope wait"
    )


# ── a process of this machine ──


def test_it_returns_when_a_real_process_ends(capsys, monkeypatch):
    child = subprocess.Popen(["sleep", "60"])
    looks = 0

    class Local(wait._Local):
        @property
        def ended(self) -> bool:
            nonlocal looks
            looks += 1
            if looks == 3:  # it is being waited for
                child.kill()
                until(lambda: not alive(child.pid), 20)
            return super().ended

    monkeypatch.setattr(wait, "_Local", Local)
    try:
        assert cli.main(["wait", str(child.pid), "--timeout", "60"]) == 0
    finally:
        child.kill()
        child.wait()
    assert looks == 3
    assert f"pid {child.pid} has ended" in capsys.readouterr().err


def test_the_time_is_up_while_it_runs_on(capsys):
    child = subprocess.Popen(["sleep", "60"])
    try:
        assert cli.main(["wait", str(child.pid), "--timeout", "0.5"]) == 124
        assert child.poll() is None
    finally:
        child.kill()
        child.wait()
    assert f"gave up after 500 ms: pid {child.pid} is still running" in capsys.readouterr().err


def of_ten_minutes(pid: int, after: float) -> list[f.Frame]:
    """Steps of 0.5 s for five minutes, and of ``after`` seconds for five more."""
    frames = own_trainer(pid)[:-1]  # the history follows
    for n in range(300):
        moment = int((views.END - 600 + 2 * n) * 1e9)
        row = views.trainer_row(13, 10 * n, 0.5 if n < 150 else after)
        frames.append(f.Sample(n, moment, h=[views.host_row()], t=[row]))
    return frames


def test_a_training_that_became_slower_is_told_so_when_the_time_is_up(child, capsys):
    assert waited(of_ten_minutes(child.pid, 0.8), str(child.pid), "--timeout", "0.5") == 124
    said = capsys.readouterr().err
    assert f"pid {child.pid} is still running. Steps take 1.60 times as long since " in said
    assert "(500 ms → 800 ms)" in said


def test_it_returns_when_steps_become_slower_where_that_is_asked_for(child, capsys):
    slower = [str(child.pid), "--timeout", "30", "--slower"]
    assert waited(of_ten_minutes(child.pid, 0.8), *slower) == ExitStatus.SLOWER == 12
    said = capsys.readouterr().err
    assert f"pid {child.pid}: steps take 1.60 times as long since " in said
    slower[2] = "0.5"
    assert waited(of_ten_minutes(child.pid, 0.52), *slower) == ExitStatus.TIMED_OUT


def test_a_process_that_is_not_there_cannot_be_watched(capsys):
    assert cli.main(["wait", "4194301"]) == 3
    assert "there is no process 4194301 here" in capsys.readouterr().err


def own_trainer(pid: int, **trainer: f.Scalar) -> list[f.Frame]:
    frames: list[f.Frame] = [views.hello(), views.host_def(), views.gpu(0)]
    for definition in views.trainer(48213, 0, 1, "ada", True, "job-a"):
        if definition.proc is not None:
            definition.proc.pid = pid
        if definition.trainer is not None:
            definition.trainer.pid = pid
        frames.append(definition)
    sample = f.Sample(
        1, int(views.END * 1e9), h=[views.host_row()], g=[views.device_row(0, 60.0, 90.0)]
    )
    sample.t.append(views.trainer_row(13, 100, 0.5, **trainer))
    return [*frames, sample]


@pytest.fixture
def child():
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def test_a_stall_returns_its_own_code(child, capsys):
    frames = own_trainer(child.pid, step_age_seconds=500.0, stall_at="train.py:88 load")
    assert waited(frames, str(child.pid)) == ExitStatus.STALLED == 10
    said = capsys.readouterr().err
    assert "no step for 8 min 20 s, stuck at train.py:88 in load" in said
    assert f"pid {child.pid} (train.py) has stalled" in said
    assert said.endswith(f"\nNext: gpuscope doctor {child.pid}    says what to do\n")


@pytest.mark.parametrize("shown", ["nan", "inf"])
def test_a_loss_that_is_lost_returns_its_own_code(child, capsys, shown):
    frames = own_trainer(child.pid, loss=None)
    assert isinstance(frames[-1], f.Sample)
    frames[-1].why.append(
        [313, "loss", f.NOT_SUPPORTED, f"the progress bar shows loss {shown} since step 812"]
    )
    assert waited(frames, str(child.pid)) == ExitStatus.NOT_FINITE == 11
    said = capsys.readouterr().err
    assert f"the loss of pid {child.pid} (train.py) is {shown} since step 812." in said
    assert f"Next: gpuscope doctor {child.pid} " in said


@pytest.mark.parametrize(
    "reason",
    ["no progress bar of the trainer shows a loss", "the progress bar shows loss nan"],
    ids=["unknown", "NaN only once so far"],
)
def test_a_loss_that_is_not_lost_for_good_is_no_reason(child, reason):
    frames = own_trainer(child.pid, loss=None)
    assert isinstance(frames[-1], f.Sample)
    frames[-1].why.append([313, "loss", f.NOT_SUPPORTED, reason])
    assert waited(frames, str(child.pid), "--timeout", "0.5") == 124


# ── room ──


def growing(free: list[float]) -> list[f.Frame]:
    """GPU 0 and 1 of 139.8 GiB; GPU 1 has so much free, second by second."""
    frames: list[f.Frame] = [views.hello(), views.host_def(), views.gpu(0), views.gpu(1)]
    frames.append(
        f.Def(150, proc=f.ProcDef(51120, 9, views.WALL, "lin", "jupyter", "jupyter", 1, False))
    )
    frames.append(f.Def(250, use=f.UseDef(150, 10)))
    for n, room in enumerate(free):
        at = views.END + n
        full = views.device_row(0, 130.0, 0.0)
        frames.append(
            f.Sample(
                n + 1,
                int(at * 1e9),
                h=[views.host_row()],
                g=[full, views.device_row(1, 139.8 - 0.6 - room, 0.0)],
            )
        )
    return frames


def judged(frames: list[f.Frame], size: float, count: int = 1) -> wait.WaitResult | None:
    store, room, verdict = (
        views.store_of(frames[:6]),
        wait.FreeDevicesWait(int(size * views.GIB), count),
        None,
    )
    for frame in frames[6:]:
        store.apply(views.SOURCE, frame, 0.0)
        host = views.host_in(store)
        verdict = verdict or room(host, 1.0)
    return verdict


def test_room_must_be_there_for_a_while():
    assert judged(growing([10.0, 60.0, 10.0, 60.0, 10.0, 60.0]), 40) is None
    found = judged(growing([10.0, 60.0, 60.0, 60.0, 60.0]), 40)
    assert found is not None
    assert (found.code, found.out) == (0, "1")
    assert "GPU 1 (60.0 GiB)" in found.text


def test_what_is_still_missing_tells_short_room_from_lasting_room_and_from_none():
    room = wait.FreeDevicesWait(40 * int(views.GIB), 2)
    store = views.store_of(growing([60.0])[:6])
    for frame in growing([60.0])[6:]:
        store.apply(views.SOURCE, frame, 0.0)
    host = store.view().host
    assert room(host, 0.0) is None
    assert "GPU 1 has room, but for less than 3 s" in room.still
    assert "GPU 0" in room.still
    assert "held by" in room.still or "free" in room.still
    room._since = {device.key: -100.0 for device in host.devices}
    assert room(host, 100.0) is None
    assert "GPU 1 has room" in room.still
    assert "less than" not in room.still


def test_several_gpus_and_what_can_never_be():
    assert judged(growing([60.0] * 5), 40, 2) is None
    both = judged(growing([60.0] * 5), 5, 2)
    assert both is not None
    assert both.out == "0,1"
    assert "with lin pid 51120" in both.text
    never = judged(growing([60.0] * 5), 500)
    assert never is not None
    assert (never.code, "at all" in never.text) == (3, True)
    few = judged(growing([60.0] * 5), 5, 3)
    assert few is not None
    assert few.code == 3


def test_the_time_is_up_and_the_holder_is_named(capsys):
    assert waited(growing([10.0] * 5), "--free", "40GiB", "--timeout", "0.5") == 124
    assert "GPU 0 9.20 GiB free, held by lin pid 51120" in capsys.readouterr().err


def test_the_index_is_all_that_a_script_reads(capsys, monkeypatch):
    monkeypatch.setattr(wait, "STEADY_SECONDS", 0.0)
    assert waited(growing([60.0] * 5), "--free", "40GB", "--quiet", "--timeout", "5") == 0
    told = capsys.readouterr()
    assert (told.out, told.err) == ("1\n", "")


def test_no_gpu_is_told_with_the_reason(capsys, monkeypatch):
    monkeypatch.setattr(wait, "SEEN_SECONDS", 0.3)
    assert waited(views.cpu_only(2.0), "--free", "1GiB") == 3
    assert "libnvidia-ml.so.1 is not here" in capsys.readouterr().err


@pytest.mark.parametrize("size", ["", "40", "40 apples", "-4", "0", "nan", "1e9GiB", "9" * 30])
def test_a_size_that_is_none_is_usage(size):
    with pytest.raises(SystemExit) as error:
        parsed("--free", size)
    assert error.value.code == 64


@pytest.mark.parametrize(
    ("text", "size"),
    [("40GiB", 40 << 30), ("40 GB", 40 << 30), ("500MiB", 500 << 20), ("2g", 2 << 30)],
)
def test_sizes(text, size):
    assert parsed("--free", text).free == size


@pytest.mark.parametrize(
    "words", [[], ["12", "--free", "1GiB"], ["abc"], ["h:3", "--free", "1GiB"]]
)
def test_what_makes_no_sense_is_usage(words, capsys):
    assert perform(wait.run, parsed(*words), "gpuscope wait") == 64
    assert "gpuscope wait:" in capsys.readouterr().err
