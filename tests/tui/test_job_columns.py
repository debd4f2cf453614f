"""The names of jobs, and why they ended, are not cut where there is room."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuscope.doctor.finding import Finding, Fix
from gpuscope.model.ranks import label_among
from gpuscope.model.step_parts import StepParts
from gpuscope.model.step_time import SPLIT_WORDS
from gpuscope.model.time_ledger import WORDS
from gpuscope.text import styled
from gpuscope.tui.background.finding_history import Case
from gpuscope.tui.overview.job_list import HEADINGS, JobList, columns_in, narrowed
from gpuscope.tui.shared.job_notes import first_steps
from gpuscope.tui.shared.job_rows import JobLine, _parted, job_lines
from gpuscope.tui.shared.step_split import (
    OTHERS,
    all_named,
    split_bar,
    split_pieces,
    tokens_of,
)
from gpuscope.tui.theme import THEMES, UNICODE, Tokens
from gpuscope.wire import frames as f
from tests.fakes import views
from tests.tui.pilot import at_the_jobs, in_loop, make_app, until

CELLS = {
    "gpu": "0, 1",
    "step": "50",
    "pace": "no step",
    "memory": "65.1/66.0 MiB",
    "left": "138 GiB",
}


def line(name: str, **more) -> JobLine:
    return JobLine(
        "k", {"job": (name, "text"), **{k: (v, "text") for k, v in CELLS.items()}}, **more
    )


def test_columns_give_a_long_name_what_their_own_words_do_not_need():
    columns = columns_in(76)
    short = narrowed(columns, [line("a.py")], 74)
    assert short == columns, "nothing moves while the name fits"
    shown = narrowed(columns, [line("stall_train.py ×2")], 74)
    assert 74 - sum(cells + 1 for _, cells, _ in shown) >= len("stall_train.py ×2")
    for name, cells, _ in shown:
        assert cells >= max(len(HEADINGS[name]), len(CELLS.get(name, "")))


class Chosen(JobList):
    """A list of jobs with the keyboard."""

    has_focus = True


class Drawn(JobList):
    """A list of jobs that can be painted outside an app."""

    tokens = Tokens(THEMES[0])


def test_why_a_job_ended_goes_on_in_a_second_line_under_the_cursor_only():
    why = [("killed by SIGKILL at 14:14:20: often the kernel's OOM killer", "bad")]
    ended = line("train.py", span=why, over=True)
    jobs, chosen = JobList(), Chosen()
    for one in (jobs, chosen):
        one.show([ended])
    assert jobs.wanted(76, full=True) == jobs.wanted(76, full=False)
    (below,) = chosen._below(ended, 76, full=True)
    assert styled.plain(below).strip() == "kernel's OOM killer"


def test_where_rows_are_few_a_job_that_is_well_has_one_line_before_another_is_hidden():
    note = [[("wall clock: all of it", "muted")], [("input: 3 %", "muted")]]
    stuck = line("stuck.py", notes=[[("stalled: at a.py:1", "bad")]], kind="bad")
    names = ["a.py", "b.py", "c.py"]
    jobs = Drawn()
    jobs.show([stuck, *(line(name, notes=note) for name in names)])
    for height, below in ((12, 2), (9, 1), (7, 0)):
        drawn = [strip.text for strip in jobs.paint(150, height, Drawn.tokens)]
        assert all(any(name in row for row in drawn) for name in names), height
        assert sum("wall clock" in row for row in drawn) == 3 * bool(below), height
        assert sum("input: 3 %" in row for row in drawn) == 3 * bool(below), height
        assert any("stalled: at a.py:1" in row for row in drawn), height


def test_a_bar_stands_with_its_names_and_the_worst_jobs_have_the_rows_that_are_free():
    parts = StepParts({"forward": 0.6, "backward": 0.4}, WORDS, 1.0, "last 40 s", True)
    lost = [[("loss is nan since step 26–50", "bad")], [("do first: End it. " * 4, "muted")]]
    lines = [
        replace(line(f"{n}.py", notes=lost, split=parts, kind="bad"), key=str(n)) for n in range(5)
    ]
    jobs = Drawn()
    jobs.roomy = True
    jobs.show(lines)
    for height, bars in ((21, 5), (17, 5), (16, 5), (14, 3), (11, 0)):
        drawn = [strip.text.rstrip() for strip in jobs.paint(110, height, Drawn.tokens)]
        with_bar = [row for row in drawn if "━" in row]
        assert all("forward" in row and "backward" in row for row in with_bar), height
        assert len(with_bar) == bars, height
        assert all(f"{n}.py" in " ".join(drawn) for n in range(5)), height
        assert all(drawn[: min(height, 16)]), "no row is empty while a job lacks its own"
        assert drawn[2].strip().startswith("loss is nan"), height


def test_the_job_with_a_problem_is_first_and_what_ended_is_last():
    ended = line("ended.py", notes=[[("killed", "bad")]], over=True)
    lines = [ended, line("well.py"), line("slow.py", kind="warn"), line("idle.py", kind="muted")]
    lines += [line("stuck.py", kind="bad"), line("starved.py", kind="warn")]
    living, over = _parted(lines, {"k": None})
    order = [one.cells["job"][0] for one in (*living, *over)]
    assert order == ["stuck.py", "slow.py", "starved.py", "well.py", "idle.py", "ended.py"]


def test_where_there_is_room_for_one_the_first_job_says_what_to_do_first():
    host = views.host_of(views.crowd())
    keys = [job.key for job in host.jobs if job.trainers][:3]
    slow = Finding(
        pitfall="few-workers",
        cause="live.input_bound",
        title="waits",
        severity="warning",
        confidence="definite",
        evidence=(),
        fixes=(Fix(title="Load in worker processes."),),
    )
    stuck = replace(slow, cause="stall.alone", severity="problem")
    of_all = [Case(n, slow, "live", job=key) for n, key in enumerate(keys)]
    assert list(first_steps(host, of_all, True)) == keys
    assert list(first_steps(host, of_all, True, most=1)) == keys[:1]
    assert first_steps(host, of_all, True, most=0) == {}
    last_stuck = [*of_all[:2], Case(9, stuck, "live", job=keys[2])]
    assert list(first_steps(host, last_stuck, True, most=0)) == keys[2:]
    assert list(first_steps(host, last_stuck, True, most=2)) == [keys[2], keys[0]]


@in_loop
async def test_the_cursor_goes_to_the_ends_of_the_list_of_jobs_and_by_pages():
    frames = views.training(4.0)
    for i in range(9):
        frames += views.trainer(50000 + i, i % 3, 1, "ada", True, f"job-{i}", f"other{i}.py")
    app = make_app(frames)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, "Jobs")
        await at_the_jobs(pilot)
        jobs = app.screen.query_one("#jobs", JobList)
        last = len(jobs._lines) - 1
        assert last >= 9
        for to_end, to_start in (("end", "home"), ("G", "g")):
            await pilot.press(to_end)
            assert jobs._cursor == last
            await pilot.press(to_start)
            assert jobs._cursor == 0
        await pilot.press("pagedown")
        page = jobs._cursor
        assert 1 <= page < last
        await pilot.press("pageup")
        assert jobs._cursor == 0
        assert app.session.notices.current is None


@in_loop
async def test_where_jobs_do_not_fit_what_is_said_of_each_stands_in_one_line_the_worst_first():
    app = make_app(views.training(4.0))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "Jobs")
        jobs = app.screen.query_one("#jobs", JobList)
        notes = ([("calm", "muted")], [("close", "warn")], [("hung", "bad")])
        lines = [replace(line(f"job{at}.py", notes=notes), key=f"{at}") for at in range(6)]
        jobs.show(lines)

        def drawn(height: int) -> list[str]:
            return [strip.text.rstrip() for strip in jobs.paint(110, height, jobs.tokens)]

        whole = drawn(25)
        assert sum(text.strip() == "calm" for text in whole) == 6, "there is room for all"
        folded = drawn(13)
        assert sum("hung · close · calm" in text for text in folded) == 6
        assert [f"job{at}.py" in "".join(folded) for at in range(6)] == [True] * 6


def test_each_colour_of_the_bar_of_a_step_has_its_name_beside_it():
    shares = {"compute": 0.7, "optimizer": 0.12, "communication": 0.09, "input": 0.06, "h2d": 0.03}
    parts = StepParts(shares, SPLIT_WORDS, 0.5, "last 32 steps", False)
    names = "compute 70 % · optimizer 12 % · communication 9 % · input 6 % · copy to GPU 3 %"
    for cells, said in (
        (100, names),
        (60, "compute 70 % · optimizer 12 % · communication 9 % · rest 9 %"),
        (30, "compute 70 % · rest 30 %"),
    ):
        shown = all_named(parts, cells)
        assert styled.plain(split_pieces(shown, cells)) == said
        drawn = split_bar(shown).draw(80, UNICODE)
        assert len({token for _, token in drawn}) == said.count("·") + 1
        assert sum(shown.shares.values()) == pytest.approx(1.0)


@pytest.mark.parametrize("third", ["read", "copy", "collection", "validation"])
def test_the_parts_that_are_named_as_one_have_no_colour_of_another(third: str):
    shares = {"other": 0.6, third: 0.15, OTHERS: 0.25}
    colours = tokens_of(StepParts(shares, WORDS, 0.03, "last 40 s", True))
    assert colours[OTHERS] not in {colours["other"], colours[third]}
    assert colours["other"] == "other"
    assert (colours["other"] == colours[third]) == (third == "validation")


def test_jobs_of_one_name_are_told_apart_by_their_pids():
    def named(*scripts: str) -> list[str]:
        frames: list[f.Frame] = [views.hello(), views.host_def()]
        for number, script in enumerate(scripts):
            frames += views.trainer(500 + number, 0, 1, "ada", True, f"job-{number}", script)
        return [line.cells["job"][0] for line in job_lines(views.host_of(frames))]

    assert named("-c", "train.py", "-c") == [
        "python -c (500)",
        "train.py",
        "python -c (502)",
    ]
    assert named("train.py", "eval.py") == ["train.py", "eval.py"]


def test_a_job_has_the_pid_of_its_first_rank_whichever_of_them_is_the_worst():
    frames: list[f.Frame] = [views.hello(), views.host_def()]
    for job, first in (("a", 500), ("b", 610)):
        for rank in range(2):
            frames += views.trainer(first + rank, rank, 2, "ada", True, job, "late.py")
    host = views.host_of(frames)
    assert [line.cells["job"][0] for line in job_lines(host)] == [
        "late.py ×2 (500)",
        "late.py ×2 (610)",
    ]
    told = {label_among(one, host.trainers) for one in host.trainers}
    assert told == {f"late.py ({pid}) rank {rank}" for pid in (500, 610) for rank in (0, 1)}
