"""What is chosen on one tab is where the others open."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuscope.model.pace import seconds_left
from gpuscope.wire import frames as f
from tests.fakes import jobs, views
from tests.tui.pilot import in_loop, make_app, until

SIZE = (120, 40)


def test_a_time_left_rests_on_the_median_step_that_stands_beside_it():
    host = views.host_of(views.training())
    trainer = next(one for one in host.trainers if one.number("eta_seconds"))
    left = trainer.number("progress_total") - trainer.number("progress_done")
    for told, expected in ((1.4, 1.0), (0.7, 1.0), (40.0, 40.0)):
        usual = left * trainer.number("step_seconds")
        readings = {**trainer.readings, "eta_seconds": told * usual}
        found = seconds_left(replace(trainer, readings=readings))
        assert found == pytest.approx(expected * usual), "what counts no steps keeps its own"


@in_loop
async def test_a_gpu_chosen_on_the_overview_is_where_memory_and_time_open():
    app = make_app(views.training())
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, "USED/TOTAL")
        app.main.pane.query_one("#devices").focus()
        chosen = app.main.pane.query_one("#devices")
        await pilot.press("home", "down")
        await pilot.pause()
        assert chosen.cursor_key.startswith("GPU-00000001")
        await pilot.press("2")
        await until(pilot, "GPU 1 H200 · train.py rank 1")
        await pilot.press("n")
        await until(pilot, "GPU 2 H200 · train.py rank 2")
        await pilot.press("3")
        await until(pilot, "train.py rank 2", "Time per step, by rank")
        await pilot.press("n")
        await until(pilot, "train.py rank 3")
        await pilot.press("1")
        await pilot.pause()
        assert chosen.cursor_key.startswith("GPU-00000003"), "the cursor follows"


@in_loop
async def test_with_nothing_chosen_the_rank_that_hangs_is_where_all_tabs_open():
    app = make_app(jobs.ranks(stalled=True))
    async with app.run_test(size=SIZE) as pilot:
        screen = await until(pilot, "stalled:")
        hung = app.main.pane.chosen(app.session.host).definition.rank
        for key in ("2", "3"):
            await pilot.press(key)
            screen = await until(pilot, f"rank {hung} (pid")
        assert app.session.selection.by == "overview", screen


@in_loop
async def test_a_job_whose_page_was_opened_is_where_the_tabs_below_open():
    """As with ``gpuscope attach PID``, where no cursor was moved to it."""
    fine = views.trainer(1009, 0, 1, "ada", True, "run-2", "other.py")
    known = [*jobs.ranks(stalled=True), *fine]
    at = int(views.END * 1e9)
    known.append(f.Sample(99, at, h=[views.host_row()], t=[views.trainer_row(9, 100, 0.5)]))
    app = make_app(known)
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, "stalled:")
        (job,) = [one for one in app.session.host.jobs if one.title == "other.py"]
        app.open("job", job.key)
        await until(pilot, "Job  other.py")
        await pilot.press("escape", "3")
        await until(pilot, "other.py rank 0 (pid 1009)")
