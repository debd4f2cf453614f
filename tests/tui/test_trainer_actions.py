"""A trainer is asked from the screen, with effect and price first.

Nothing happens without Enter; there are progress, cancelling, and what came.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpuscope.store.replay import ReplaySource
from gpuscope.tui.app.app import GpuscopeApp
from gpuscope.tui.shared import trainer_actions
from gpuscope.tui.shell import result_files
from gpuscope.tui.shell.action_availability import ONLY_LIVE
from gpuscope.tui.shell.session import Session
from gpuscope.tui.trainer.action_dialog import ActDialog
from gpuscope.wire import frames as f
from tests.fakes import jobs, views
from tests.fakes.asked import Answer, AskedSource, fails, gives, never
from tests.recordings import REDACTED
from tests.snapshot import synthetic
from tests.tui.pilot import at_the_jobs, in_loop, until
from tests.tui.snapshots import text

SIZE = (120, 40)
READY = ("train.py", "● live")
"""What stands on the Overview once a trainer can be asked."""
SNAPSHOT_RESULT = {
    "bytes": 5,
    "entries": 120_000,
    "snapshot_seconds": 0.31,
    "pickle_seconds": 0.034,
    "history": True,
}
TRACE = {
    "traceEvents": [
        {
            "ph": "X",
            "cat": "kernel",
            "name": "gemm",
            "pid": 0,
            "tid": 7,
            "ts": 10,
            "dur": 60,
            "args": {"device": 0},
        },
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 0, "dur": 30},
    ]
}
STACKS = {
    "threads": [
        {
            "name": "loader",
            "ident": 2,
            "main": False,
            "training": False,
            "frames": [["/a/q.py", 3, "get"]],
        },
        {
            "name": "MainThread",
            "ident": 1,
            "main": True,
            "training": True,
            "frames": [["/a/data.py", 88, "__getitem__"]],
        },
    ],
    "collectives": [
        {"group": "0", "label": "default_pg", "op": None, "launched": 7, "completed": 6},
        {
            "group": "0",
            "op": "all_reduce",
            "sequence": 7,
            "state": "started",
            "seconds": 48.0,
            "size": 4096,
        },
    ],
    "seconds": 0.001,
}


@pytest.fixture(autouse=True)
def _data(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


def make(frames: list[f.Frame] | None = None, **answers: Answer) -> tuple[GpuscopeApp, AskedSource]:
    source = AskedSource(frames if frames is not None else jobs.ranks(seconds=6.0), **answers)
    return GpuscopeApp(Session(make_source=lambda hz: source), "overview"), source


# ── asking first ──


@in_loop
async def test_a_snapshot_names_effect_and_price_and_asks_nobody_before_enter():
    app, source = make(snapshot=gives(SNAPSHOT_RESULT, b"12345"))
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, *READY)
        await pilot.press("s")
        screen = await until(pilot, "Take an allocator snapshot", "Enter Take it")
        assert "rank 0, pid 48200, train.py" in screen
        assert "pauses once for about 0.1–1 s" in screen
        assert "only if history was on before" in screen
        await pilot.press("escape")
        await until(pilot, "─ GPUs", absent="Take an allocator snapshot")
        assert source.asked == []


@in_loop
async def test_a_snapshot_is_kept_under_a_name_that_tells_what_it_is():
    app, source = make(snapshot=gives(SNAPSHOT_RESULT, b"12345"))
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, *READY)
        await pilot.press("s", "enter")
        screen = await until(pilot, "path copied")
        assert "310 ms in the allocator, 34.0 ms to write it" in screen
        assert "120,000 events" in screen
        ((name, args),) = source.asked
        assert (name, args) == ("snapshot", {"trainer": 300})
        (path,) = (result_files.data_folder() / "snapshots").iterdir()
        assert path.name.startswith("node-17-train.py-rank0-48200-")
        assert path.suffix == ".pickle"
        assert path.read_bytes() == b"12345"
        assert app.clipboard == str(path)


@in_loop
async def test_a_snapshot_without_history_leads_to_it():
    app, _ = make(snapshot=gives({**SNAPSHOT_RESULT, "history": False}, b"x"))
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, *READY)
        await pilot.press("s", "enter")
        await until(pilot, "history was off, so there are sizes without stacks")
        await pilot.press("h")
        await until(pilot, "Record allocation history", "Measure the overhead")


@in_loop
async def test_history_is_measured_first_and_turned_on_only_after_a_second_enter():
    price = {
        "enabled": False,
        "entries": 100_000,
        "baseline_step_seconds": 0.5,
        "step_seconds": 0.5155,
        "cost_percent": 3.1,
        "cost_low_percent": 1.0,
        "cost_high_percent": 5.2,
        "steps": 20,
    }

    async def answer(args: Any, on_progress: Any, path: Any) -> dict[str, Any]:
        return price if args["trial_steps"] else {**price, "enabled": True, "cost_percent": None}

    app, source = make(history=answer)
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, *READY)
        await pilot.press("H", "enter")
        screen = await until(pilot, "+3.1 % (+1.0 to +5.2) per step")
        assert "500 ms a step without, 516 ms with it" in screen
        assert "it is off again now" in screen
        assert "Enter Turn it on" in screen
        assert [args["trial_steps"] for _, args in source.asked] == [20]
        await pilot.press("enter")
        await until(pilot, "the last 100,000 allocations are recorded")
        assert [args["trial_steps"] for _, args in source.asked] == [20, 0]


@pytest.mark.slow
@in_loop
async def test_history_that_is_declined_stays_off():
    app, source = make(history=gives({"cost_percent": 19.0, "steps": 20}))
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, *READY)
        await pilot.press("H", "enter")
        await until(pilot, "+19.0 % per step")
        await pilot.press("escape")
        await until(pilot, "─ GPUs", absent="Record allocation history")
        assert len(source.asked) == 1


# ── progress and reasons ──


@in_loop
async def test_progress_is_shown_and_escape_cancels_at_the_other_end():
    app, source = make(profile=never(0.4, "2 of 5 steps recorded"))
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, *READY)
        await pilot.press("p", "enter")
        await until(pilot, "40 %  2 of 5 steps recorded", "Esc Cancel")
        await pilot.press("escape")
        await until(pilot, "Cancelled: no answer")
        assert source.cancelled == ["profile"]
        assert isinstance(app.screen, ActDialog)
        assert not list((result_files.data_folder() / "profiles").iterdir())
        await pilot.press("escape")
        await until(pilot, "─ GPUs", absent="Profile some steps")


@pytest.mark.parametrize(
    ("code", "reason", "wanted"),
    [
        ("busy", "busy with snapshot for pid 7", "Busy: busy with snapshot for pid 7"),
        pytest.param(
            "unsupported",
            "another profiler runs",
            "Not possible here: another profiler runs",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "timeout",
            "no answer within 10 s",
            "No answer in time: no answer within 10 s",
            marks=pytest.mark.slow,
        ),
        pytest.param("gone", "it ended", "No answer: it ended", marks=pytest.mark.slow),
        ("surprise", "a new code", "It failed: a new code"),
    ],
)
def test_errors_are_said_in_words_and_may_be_tried_again(code, reason, wanted):
    @in_loop
    async def body():
        app, source = make(profile=fails(code, reason))
        async with app.run_test(size=SIZE) as pilot:
            await until(pilot, *READY)
            await pilot.press("p", "enter")
            await until(pilot, wanted, "Enter Ask again")
            await pilot.press("enter")
            await until(pilot, wanted, "Enter Ask again")
            assert len(source.asked) == 2

    body()


@in_loop
async def test_leaving_the_program_cancels_what_runs():
    app, source = make(profile=never())
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, *READY)
        await pilot.press("p", "enter")
        await until(pilot, "Esc Cancel")
        assert isinstance(app.screen, ActDialog)
        work = app.screen._work
        await pilot.press("ctrl+c")
        await pilot.pause()
    assert app.return_value == 0
    assert source.cancelled == ["profile"]
    assert work.cancelled() or work.exception() is None, "there is nothing to draw on any more"


@in_loop
async def test_where_there_is_no_cuda_it_says_so_and_asks_nobody():
    app, source = make(views.cpu_only(6.0), snapshot=gives({}))
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, "gpuscope lab", "● live")
        await pilot.press("s")
        await until(pilot, "Not possible: pid 7021 does not use CUDA yet")
        await pilot.press("enter")
        await pilot.pause()
        assert source.asked == []


@in_loop
async def test_a_replay_cannot_be_asked(tmp_path):
    app = GpuscopeApp(Session(replay=ReplaySource(REDACTED / "h200x2-ddp.gsr")), "overview")
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, "REPLAY")
        await pilot.press("s")
        await pilot.pause()
        assert "Snapshot: only a live trainer answers this" in text(app).splitlines()[-1]
        for name in ("snapshot", "profile", "stacks", "history"):
            assert app.session.why_not(name) == ONLY_LIVE


@in_loop
async def test_a_stalled_trainer_is_not_silently_profiled():
    app, _ = make(jobs.ranks(stalled=True))
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, "stalled: rank 3 is stuck at data.py:88")
        await pilot.press("p")
        await until(pilot, "no step for 47 s; a profile would wait for one")


# ── steps, trainers ──


@pytest.mark.slow
@in_loop
async def test_the_number_of_steps_and_the_trainer_can_be_chosen():
    app, source = make(
        profile=gives({"steps": 10, "seconds": 1.0, "bytes": 3}, json.dumps(TRACE).encode())
    )
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, *READY)
        await pilot.press("p")
        await until(pilot, "Steps    5, about 2.50 s at its usual step time")
        await pilot.press("right", "tab", "tab")
        await until(pilot, "Steps    10, about", "rank 2, pid 48202")
        await pilot.press("enter")
        await until(pilot, "10 in 1.00 s", "path copied")
        assert source.asked == [("profile", {"trainer": 302, "steps": 10})]
        await pilot.press("enter")
        screen = await until(pilot, "GPU 0", "On the GPUs, by self time")
        assert "gemm" in screen
        await pilot.press("c")
        await until(pilot, "On the CPU, by self time", "aten::mm")
        await pilot.press("greater_than_sign")
        await until(pilot, "On the CPU, by total time")
        await pilot.press("q")
        await until(pilot, "─ GPUs", absent="What it did")


@in_loop
async def test_a_trace_that_is_none_is_refused_in_the_profile_screen():
    app, _ = make(profile=gives({"steps": 5}, b"not a trace"))
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, *READY)
        await pilot.press("p", "enter")
        await until(pilot, "path copied")
        await pilot.press("enter")
        await until(pilot, "Not shown: this is not a Chrome trace")


@in_loop
async def test_a_snapshot_opens_in_its_screen(tmp_path):
    content = synthetic.dumped(synthetic.training(400))
    app, _ = make(snapshot=gives({**SNAPSHOT_RESULT, "bytes": len(content)}, content))
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, *READY)
        await pilot.press("s", "enter")
        await until(pilot, "path copied")
        await pilot.press("enter")
        await until(pilot, "Fragmentation: segments", "reserved")


# ── stacks ──


@in_loop
async def test_stacks_come_without_a_question_the_training_thread_first():
    app, source = make(stacks=gives(STACKS))
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, *READY)
        await pilot.press("S")
        screen = await until(pilot, "Stacks of rank 0, pid 48200", "data.py:88")
        assert screen.index("MainThread") < screen.index("loader")
        assert "all_reduce #7 in group 0  started for 48.0 s, 4.00 KiB" in screen
        assert "default_pg: 7 launched, 6 completed" in screen
        await pilot.press("right")
        await until(pilot, "Stacks of rank 1, pid 48201")
        await pilot.press("r")
        await pilot.pause()
        assert [args["trainer"] for _, args in source.asked] == [300, 301, 301]


@in_loop
async def test_stacks_that_fail_say_why():
    app, _ = make(stacks=fails("busy", "busy with profile for pid 12"))
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, *READY)
        await pilot.press("i")
        await until(pilot, "Busy: busy with profile for pid 12")


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"threads": 3},
        {"threads": [3, {}, {"frames": [1, [], ["f"], [1, 2, 3]]}]},
        {"collectives": [{}, 3]},
        {
            "threads": [{"name": "\x1b]52;c;A\x07", "frames": [["/x\x1b[2J", "no", "f"]]}],
            "seconds": "long",
        },
    ],
)
def test_any_answer_to_stacks_is_drawn(value):
    @in_loop
    async def body():
        app, _ = make(stacks=gives(value))
        async with app.run_test(size=SIZE) as pilot:
            await until(pilot, *READY)
            await pilot.press("S")
            await until(pilot, "innermost frame first")
            assert "\x1b" not in text(app)

    body()


@pytest.mark.parametrize(
    "value", [{}, {"bytes": "many", "entries": [], "history": 3}, {"cost_percent": True}]
)
def test_any_result_is_drawn(value):
    for lines in (*trainer_actions.CAME.values(), trainer_actions.history_on):
        for line in lines(value):
            assert all(isinstance(part, str) for piece in line for part in piece)


def test_names_of_files_hold_nothing_that_a_shell_or_a_file_system_minds(tmp_path):
    host = views.host_of(jobs.ranks(seconds=6.0))
    path = result_files.file_for("profile", "../../e vil\n", host.trainers[0], tmp_path)
    assert path.parent == tmp_path / "profiles"
    assert path.name.startswith("e_vil-train.py-rank0-48200-")
    path.write_text("x")
    assert result_files.file_for("profile", "../../e vil\n", host.trainers[0], tmp_path) != path


# ── a trainer that has ended ──


KEYS_ON_A_TRAINER = {
    "s": "Snapshot", "p": "Profile", "S": "Stacks", "H": "History", "K": "Signal"
}  # fmt: skip


def one_dead_one_alive() -> list[f.Frame]:
    """A job whose only rank was killed, beside another user's program that lives on."""
    frames = jobs.ranks(2, seconds=6.0)
    for frame in frames:
        if isinstance(frame, f.Def) and frame.trainer is not None:
            frame.trainer.job, frame.trainer.world_size = f"job-{frame.trainer.rank}", 1
    end = int((views.END + 1) * 1e9)
    return [*frames, *(f.Event(one, "gone", end, "killed by signal 9") for one in (100, 300))]


@in_loop
async def test_no_key_on_the_line_of_jobs_that_ended_acts_on_one_that_lives():
    frames = jobs.ranks(3, seconds=6.0)
    for frame in frames:
        if isinstance(frame, f.Def) and frame.trainer is not None:
            frame.trainer.job, frame.trainer.world_size = f"job-{frame.trainer.rank}", 1
    end = int((views.END + 1) * 1e9)
    ends = [f.Event(one, "gone", end, f.NO_LAST_WORDS) for one in (100, 101, 300, 301)]
    app, source = make([*frames, *ends], snapshot=gives({}), stacks=gives({}), profile=gives({}))
    async with app.run_test(size=SIZE) as pilot:
        how = "2 ended without an error message"
        await until(pilot, f"2 ended while watched, the last just now: {how}")
        await at_the_jobs(pilot)
        await pilot.press("end")
        for key, label in KEYS_ON_A_TRAINER.items():
            if key != "H":
                await pilot.press(key)
                await until(pilot, f"{label}: pid 4820", "has ended")
                assert len(app.screen_stack) == 1
        assert source.asked == []


@in_loop
async def test_no_key_on_a_job_that_ended_acts_on_another_that_lives():
    everything = dict.fromkeys(("snapshot", "profile", "history", "stacks"), gives({}))
    app, source = make(one_dead_one_alive(), **everything)
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, "killed")
        await at_the_jobs(pilot)
        await pilot.press("end", "down", "down", "down")
        assert app.main.pane.chosen(app.session.host).gone is not None  # type: ignore[attr-defined]
        for place in ("the list", "its page"):
            for key, label in KEYS_ON_A_TRAINER.items():
                if (place, key) == ("the list", "H"):
                    continue  # a key of the page only
                await pilot.press(key)
                await until(pilot, f"{label}: pid 48200 has ended")
                assert len(app.screen_stack) == (1 if place == "the list" else 2), (place, key)
            await pilot.press("enter")
            shown = await until(pilot, "Its process")
        footer = shown.splitlines()[-1]
        assert not any(word in footer for word in ("Stacks", "Snapshot", "Profile", "Signal"))
        assert source.asked == []
