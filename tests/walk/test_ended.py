"""A training that is killed while its job screen is open."""

from __future__ import annotations

from gpuscope.wire import frames as f
from tests.fakes import jobs, views
from tests.tui.pilot import at_the_jobs, feed, in_loop, make_app, until


@in_loop
async def test_the_screen_of_a_job_that_ended_says_when_and_why_not_that_nothing_is(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    app = make_app(jobs.ranks())
    async with app.run_test(size=(120, 30)) as pilot:
        await until(pilot, "live", "train.py")
        await at_the_jobs(pilot)
        await pilot.press("enter")
        await until(pilot, "Findings")
        feed(
            app,
            *(
                f.Event(i, "gone", int((views.END + 1) * 1e9), "killed by signal 9")
                for i in range(300, 304)
            ),
        )
        shown = await until(pilot, "OOM killer · step", absent="made no step")
        assert "killed by SIGKILL at 14:14:21: often the kernel's OOM killer · step 4,119" in shown
        assert "nothing:" not in shown
