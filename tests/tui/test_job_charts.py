"""The lower part of the job screen: charts that begin filled, the stack of a rank that hangs."""

from __future__ import annotations

from typing import Any

import pytest

from gpuscope.model.valid_history import while_it_steps
from gpuscope.store.view import History
from gpuscope.tui.app.app import GpuscopeApp
from gpuscope.tui.charts.axes import loss_axis
from gpuscope.tui.shared.job_series import recent_peaks
from gpuscope.tui.shell.session import Session
from gpuscope.tui.trainer.job_charts import BROAD, CALM, HANGS, arrange
from gpuscope.wire import frames as f
from tests.doctor.test_live import put
from tests.fakes import jobs, views
from tests.fakes.asked import AskedSource, fails, gives
from tests.model.test_lost_loss import telling
from tests.tui.pilot import at_the_jobs, feed, in_loop, make_app, until
from tests.tui.snapshots import text

STACK = {
    "seconds": 0.001,
    "collectives": [{"group": "0", "label": "default_pg", "launched": 12, "completed": 11}],
    "threads": [
        {"name": "pin", "main": False, "training": False, "frames": [["/x/pin.py", 3, "wait"]]},
        {
            "name": "MainThread",
            "main": True,
            "training": True,
            "frames": [["/data/train/data.py", 88, "__getitem__"], ["/t/train.py", 9, "main"]],
        },
    ],
}


def asked_app(frames: list[f.Frame], **answers: Any) -> tuple[GpuscopeApp, AskedSource]:
    source = AskedSource(frames, **answers)
    session = Session(source=source)
    session.doctor.prepare()
    return GpuscopeApp(session, "overview"), source


async def open_job(pilot, *wanted: str) -> str:
    await until(pilot, "live", "train.py")
    await at_the_jobs(pilot)
    await pilot.press("enter")
    return await until(pilot, "Findings", *wanted)


@pytest.mark.parametrize(
    ("size", "order", "lines"),
    [
        ((198, 48), BROAD, [["cure", "events"], ["step", "memory"], ["load", "trends"]]),
        ((198, 48), HANGS[:5], [["stack", "step"], ["loss", "memory"], ["events"]]),
        ((158, 48), CALM, [["step", "loss"], ["memory", "pace"], ["events"]]),
        ((118, 28), CALM, [["step", "loss"], ["memory", "pace"]]),
        ((118, 12), HANGS, [["stack", "step"]]),
        ((78, 12), CALM, [["step"]]),
        ((78, 24), HANGS, [["stack"], ["step"]]),
        ((78, 5), CALM, []),
    ],
)
def test_what_matters_most_comes_first_where_there_is_little_room(size, order, lines):
    assert arrange(*size, order) == lines


def test_each_panel_can_be_the_first():
    firsts = [arrange(78, 12, CALM, first)[0][0] for first in range(len(CALM))]
    assert firsts == list(CALM)


def test_a_trainer_that_stands_draws_nothing_on():
    seconds = tuple(float(n) for n in range(200))
    steps = History(seconds, tuple(float(min(n, 100)) for n in range(200)))
    loss = History(seconds, tuple(None if n == 50 else 1.0 for n in range(200)))
    drawn = while_it_steps(loss, steps).values
    assert drawn[50] == 1.0, "what is missing for a moment stays as it was"
    assert drawn[104] == 1.0
    assert set(drawn[110:]) == {None}


def test_a_loss_that_is_unknown_for_long_does_not_go_on_as_its_last_value():
    seconds = tuple(float(n) for n in range(100))
    steps = History(seconds, seconds)
    loss = History(seconds, tuple(1.0 if n <= 50 else None for n in range(100)))
    drawn = while_it_steps(loss, steps).values
    assert set(drawn[:55]) == {1.0}
    assert set(drawn[60:]) == {None}


def test_one_that_is_known_to_stand_draws_nothing_from_its_last_step_on():
    """Also where there are too few readings to see it: of the first one its age is told."""
    rank = views.host_of(jobs.ranks(4, stalled=True)).trainers[0]
    now, age = rank.sampled_seconds, rank.number("step_age_seconds")
    assert now is not None
    assert age is not None
    one = History((now,), (1.0,))
    assert while_it_steps(one, History((now,), (7.0,)), rank).values == (None,)
    assert while_it_steps(one, History((now,), (7.0,))).values == (1.0,), "it may have just begun"
    seconds = tuple(now - 300.0 + n for n in range(301))
    last = 300 - int(age)
    steps = History(seconds, tuple(float(min(n, last)) for n in range(301)))
    drawn = while_it_steps(History(seconds, (1.0,) * 301), steps, rank).values
    assert [value is not None for value in drawn] == [n <= last for n in range(301)]


def test_one_that_stood_before_it_was_looked_at_draws_nothing_before_its_next_step():
    """How long it had stood already is not known of its first reading."""
    seconds = tuple(float(n) for n in range(60))
    stands = while_it_steps(History(seconds, (1.0,) * 60), History(seconds, (7.0,) * 60))
    assert set(stands.values) == {None}
    again = History(seconds, tuple(float(max(n, 30)) for n in range(60)))
    drawn = while_it_steps(History(seconds, (1.0,) * 60), again).values
    assert (set(drawn[:31]), set(drawn[31:])) == ({None}, {1.0})
    steps = History(seconds, tuple(float((n + 3) // 4) for n in range(60)))
    assert None not in while_it_steps(History(seconds, (1.0,) * 60), steps).values, "a step ran"


def test_slow_steps_are_no_stand():
    seconds = tuple(float(n) for n in range(400))
    steps = History(seconds, tuple(float(n // 60) for n in range(400)))
    drawn = while_it_steps(History(seconds, (1.0,) * 400), steps).values
    assert None not in drawn[130:]


def test_the_highest_memory_does_not_jump_with_the_moment_of_a_step():
    history = History(tuple(float(n) for n in range(6)), (1.0, 9.0, 2.0, None, 3.0, 3.0))
    assert recent_peaks(history, 2.0) == [1.0, 9.0, 9.0, None, 3.0, 3.0]


def test_a_loss_that_hardly_moves_is_no_mountain():
    low, high = loss_axis([2.0, 2.000001, None])
    assert low is not None
    assert high is not None
    assert high - low > 0.05
    assert loss_axis([2.0, 2.0, None]) == (0.0, 2.5), "what does not change needs no close look"
    assert loss_axis([2.0, 1.0]) == loss_axis([]) == loss_axis([None]) == (None, None)


@in_loop
async def test_a_rank_that_hangs_is_asked_for_its_stack_and_one_that_steps_is_not():
    app, source = asked_app(jobs.ranks(stalled=True), stacks=gives(STACK))
    async with app.run_test(size=(160, 50)) as pilot:
        screen = await open_job(pilot, "Stack of rank 3", "default_pg", "12 launched")
        assert screen.index("__getitem__  data.py:88") < screen.index("default_pg")
        assert "pin.py" not in screen, "other threads are for the key that shows all"
    assert {name for name, _ in source.asked} == {"stacks"}
    calm, quiet = asked_app(jobs.ranks(), stacks=gives(STACK))
    async with calm.run_test(size=(160, 50)) as pilot:
        await open_job(pilot, "step, 4 ranks", "loss", "Step breakdown")
    assert quiet.asked == []


@pytest.mark.slow
@in_loop
async def test_where_no_stack_comes_the_line_of_the_probe_and_the_reason_stand():
    app, _ = asked_app(jobs.ranks(stalled=True), stacks=fails("busy", "busy with profile"))
    async with app.run_test(size=(160, 50)) as pilot:
        await open_job(pilot, "your line: /data/train/data.py:88", "no stack: busy with profile")


@in_loop
async def test_charts_begin_with_what_the_trainer_remembers():
    frames = jobs.ranks(2, 20.0)
    first = min(frame.m for frame in frames if isinstance(frame, f.Sample))
    moments = [first - (300 - 2 * n) * 10**9 for n in range(150)]
    parts = {f"{name}_seconds": [0.1] * 150 for name in ("input", "compute")}
    told = {
        "trainer": {
            "m": moments,
            "step": [*range(150)],
            "loss": [5.0 - n / 100 for n in range(150)],
            **parts,
        },
        "allocators": [],
    }
    app, source = asked_app(frames, recent=gives(told))
    async with app.run_test(size=(150, 50)) as pilot:
        await open_job(pilot, "over 10 min", "5┤", "█" * 30)
    assert [name for name, _ in source.asked] == ["recent"] * 3, "once for each rank, and the agent"


@in_loop
@pytest.mark.parametrize("at_log", [False, True])
async def test_a_loss_that_turned_nan_is_the_first_chart_and_ends_there(at_log):
    app = make_app(telling("nan", at_log))
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await open_job(pilot, "Loss nan over")
        course = screen.split("Loss nan over")[1].splitlines()
        braille = [
            max((at for at, c in enumerate(row) if c > "\u2800"), default=0) for row in course
        ]
        assert 10 < max(braille) < 60, "it does not go on to now"


@pytest.mark.parametrize(("rows", "said"), [(60, "loss = loss_fn("), (48, "… 1 more")])
@in_loop
async def test_the_fixes_of_a_wide_page_are_whole_or_say_how_many_lines_are_missing(rows, said):
    app = make_app(telling("nan"))
    async with app.run_test(size=(200, rows)) as pilot:
        shown = await open_job(pilot, "Findings: what to do", "4 Keep what overflows", said)
        assert ("… 1 more" in shown) == (said == "… 1 more")


@in_loop
async def test_what_is_missing_has_its_reason():
    frames = views.cpu_only()
    app = make_app(frames)
    async with app.run_test(size=(160, 50)) as pilot:
        await until(pilot, "gpuscope lab")
        await pilot.press("enter")
        await until(pilot, "Findings", "Loss", "Memory of the process", "input wait")


@pytest.mark.slow
@in_loop
async def test_a_chart_can_come_first_and_show_another_time():
    app = make_app(jobs.ranks())
    async with app.run_test(size=(80, 26)) as pilot:
        await open_job(pilot, "Step breakdown of rank")
        await pilot.press("c")
        await until(pilot, "Loss 2", absent="Step breakdown of rank")
        await pilot.press("minus")
        await until(pilot, "over 2 min")
        await pilot.press("plus", "plus")
        await until(pilot, "over 30 s")


@in_loop
async def test_charts_show_no_more_time_than_is_known():
    app = make_app(jobs.ranks(2, 12.0))
    async with app.run_test(size=(160, 50)) as pilot:
        await open_job(pilot, "Step breakdown of rank 0 over 15 s")


@in_loop
async def test_the_charts_are_of_the_rank_under_the_cursor():
    app = make_app(jobs.ranks())
    async with app.run_test(size=(160, 50)) as pilot:
        await open_job(pilot, "Step breakdown of rank 0")
        await pilot.press("j")
        await until(pilot, "Step breakdown of rank 1")


@pytest.mark.slow
@in_loop
async def test_where_a_rank_is_stuck_is_not_cut_while_columns_can_give_way():
    app = make_app(jobs.ranks(stalled=True))
    async with app.run_test(size=(80, 40)) as pilot:
        shown = await open_job(pilot, "Stack of rank 3")
        assert "data.py:88 __getitem__" in shown[shown.index("STUCK AT") :].splitlines()[1]
    app = make_app(jobs.ranks(stalled=True))
    async with app.run_test(size=(120, 40)) as pilot:
        shown = await open_job(pilot, "Stack of rank 3")
        rows = shown[shown.index("STUCK AT") :].splitlines()[2:5]
        assert all("waits in all_reduce distributed_c10d.py:2810" in row for row in rows)


@pytest.mark.slow
@in_loop
async def test_when_it_goes_on_the_stack_gives_way_to_what_happened():
    frames = jobs.ranks(stalled=True)
    app = make_app(frames)
    async with app.run_test(size=(200, 60)) as pilot:
        await open_job(pilot, "Stack of rank 3")
        last = max(frame.m for frame in frames if isinstance(frame, f.Sample))
        calm = [one for one in jobs.ranks() if isinstance(one, f.Sample)][-1]
        calm.m, calm.q = last + 10**9, 10**6
        feed(app, f.Event(303, "resumed", last + 1, "Steps go on after 47 s."), calm)
        await until(pilot, "What happened", "Steps go on after 47 s", absent="Stack of")
        assert "resumed" in text(app)


@pytest.mark.slow
@in_loop
async def test_a_job_without_a_loss_has_no_panel_for_it():
    for stalled, wanted in ((False, "What happened"), (True, "Stack of rank 3")):
        frames = put(jobs.ranks(stalled=stalled), "loss", lambda _: None)  # type: ignore[arg-type, return-value]
        app = make_app(frames)
        async with app.run_test(size=(200, 60)) as pilot:
            panels = ("Step breakdown", "Highest memory", "STEP TIME, 1 min")
            shown = await open_job(pilot, wanted, *panels)
            assert "Loss" not in shown
