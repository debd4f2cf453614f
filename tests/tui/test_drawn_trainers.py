"""Which trainers have curves where more run than have room."""

from __future__ import annotations

from gpuscope.tui.overview.drawn_trainers import drawn_trainers, worst_first
from gpuscope.wire import frames as f
from tests.fakes import jobs, views

PER_JOB = 2
JOBS = ("calm", "fine", "waits", "usual", "hangs")


def host(hung_seconds: float):
    """Five jobs of two ranks each, of which one waits for its input and one hangs."""
    out = [views.hello(), views.host_def(), *(views.gpu(at) for at in range(10))]
    sample = f.Sample(1, int(views.END * 1e9), h=[views.host_row()])
    for at in range(len(JOBS) * PER_JOB):
        job = JOBS[at // PER_JOB]
        out += views.trainer(48200 + at, at, PER_JOB, "ada", True, job)
        more = jobs.split(0.5, **({"input": 0.45, "compute": 0.05} if job == "waits" else {}))
        more["step_age_seconds"] = hung_seconds if job == "hangs" else 0.1
        if job == "hangs":
            more |= {"input_seconds": None, "loader_wait_seconds": None}
        sample.t.append(views.trainer_row(at, 100, 0.5, **more))
    return views.host_of([*out, sample])


def names(trainers) -> list[str]:
    return [one.definition.job for one in trainers]


def test_of_many_trainers_those_of_the_worst_jobs_have_curves_and_that_at_the_cursor():
    order = ("fine", "hangs", "waits", "calm", "usual")  # with the cursor on the first
    shown = drawn_trainers(worst_first(host(20.0), order, 4, 60.0), 4, 60.0)
    assert names(shown) == ["fine", "hangs", "waits", "calm"], "one rank of each"


def test_a_job_without_a_step_in_the_time_that_is_shown_takes_no_curve_of_another():
    order = ("hangs", "waits", "calm", "fine", "usual")
    first = worst_first(host(600.0), order, 4, 60.0)
    assert names(drawn_trainers(first, 4, 60.0)) == ["waits", "calm", "fine", "usual"]
    assert names(first)[-2:] == ["hangs", "hangs"]
    waiting = drawn_trainers(first, 4, 60.0, "input")
    assert "waits" in names(waiting)
    assert "hangs" not in names(waiting)


def test_few_trainers_stay_in_their_order():
    few = host(20.0)
    assert worst_first(few, ("hangs",), 10, 60.0) == [*few.trainers]
