"""The job screen and the job lines of the overview tell who stands and who runs out.

They tell what a step is made of; at every size.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from rich.cells import cell_len
from textual.pilot import Pilot

from gpuscope.doctor.finding import Finding, Fix
from gpuscope.store.stream import NO_REASON
from gpuscope.store.view import no_history
from gpuscope.text.styled import plain
from gpuscope.tui.background.finding_history import Case
from gpuscope.tui.overview.detail_screen import DetailScreen
from gpuscope.tui.shared.next_step import next_lines
from gpuscope.tui.trainer.job_screen import JobScreen
from gpuscope.tui.trainer.job_text import time_lines
from gpuscope.wire import frames as f
from tests.fakes import jobs, views
from tests.tui.pilot import at_the_jobs, feed, in_loop, make_app, until
from tests.tui.snapshots import SIZES, check, grid, text

STALLED = "rank 3 is stuck at data.py:88 in __getitem__; ranks 0–2 wait in all_reduce"


async def open_the_job(pilot: Pilot[Any]) -> None:
    """Go to the list of jobs once there is one in it, and open it.

    The header says "live" before.
    """
    await until(pilot, "live", "JOB")
    await at_the_jobs(pilot)
    await pilot.press("enter")


async def job_screen(frames: list[f.Frame], size: tuple[int, int], *wanted: str) -> str:
    """The text of the job screen once all of ``wanted`` stand on it."""
    app = make_app(frames)
    async with app.run_test(size=size) as pilot:
        await open_the_job(pilot)
        shown = await until(pilot, "Findings", *wanted)
        assert isinstance(app.screen, JobScreen)
        for row in grid(app):
            assert sum(cell_len(char) for char, _ in row) == size[0]
        return shown


@in_loop
async def test_a_rank_that_the_diagnosis_names_has_a_row_and_no_age_is_at_most_now():
    screen = await job_screen(views.training(), (80, 24), "rank 5 waits for data")
    ranks = screen[screen.index("RANK") :].splitlines()
    assert ranks[1].split()[1:4] == ["▸", "◆", "5"]
    others = next(line for line in ranks if " ×5: 0-2,4,6 " in line)
    assert "901 ms    360 ms    ≤ 56.4/72.2    ≥ 54.6" in others


@in_loop
async def test_ranks_that_are_alike_are_counted_with_those_that_have_no_curve():
    await job_screen(jobs.ranks(7, seconds=20.0), (120, 40), "6 of 7 ranks alike")


# ── the overview ──


@in_loop
async def test_a_stall_is_a_sentence_below_the_job():
    app = make_app(jobs.ranks(stalled=True))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, f"stalled: {STALLED}", "no step", absent="compute 70 %")


@in_loop
async def test_growth_is_told_with_its_arithmetic():
    app = make_app(jobs.ranks(leaks=2))
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await until(pilot, "rank 2 runs out in about 19 steps, ~9 s (GPU 2, pid 48202)")
        assert "3.40 GiB headroom, +184 MiB per step (over" in screen
        assert "Live tensors grow: empty_cache() cannot help." in screen


@in_loop
async def test_a_job_that_got_slower_says_since_when():
    frames = jobs.ranks()
    last = frames[-1]
    assert isinstance(last, f.Sample)
    column = f.TRAINER_COLUMNS.index("step_seconds_hour_ago") + 1
    rows = [[*row[:column], 0.385, *row[column + 1 :]] for row in last.t]
    app = make_app([*frames, replace(last, q=last.q + 1, m=last.m + 500_000_000, t=rows)])
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "pace: 1.3× slower than an hour ago")


@in_loop
async def test_the_job_screen_tells_where_the_wall_clock_goes_and_of_whom():
    out = jobs.ranks()
    trainers = [one for one in out if isinstance(one, f.Def) and one.trainer is not None]
    for one in trainers:
        assert one.trainer is not None
        odd = one.trainer.rank == 2
        data = {
            "m": 1,
            "seconds": 60.0,
            "steps": 100,
            "looks": 300,
            "rows": "checkpoint 40.0 200|forward 20.0 100" if odd else "backward 60.0 300",
            "places": "checkpoint 40.0 train.py:40 save" if odd else "",
        }
        out.append(f.Event(one.id, "time", 2, "", data))
    said = "saving checkpoints 67 % · forward pass 33 %; most to gain at train.py:40 save"
    await job_screen(out, (150, 34), f"wall clock, last 1 min of rank 2: {said}")


@in_loop
async def test_the_split_is_left_out_where_rows_are_scarce():
    app = make_app(jobs.ranks())
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await until(pilot, "train.py ×4")
        assert "step: " not in screen


# ── the screen ──


@in_loop
async def test_the_rank_that_is_behind_stands_first_and_the_others_wait():
    screen = await job_screen(
        jobs.ranks(stalled=True), (150, 30), STALLED, "rank 3 launched 48,288 collectives"
    )
    rows = screen[screen.index("STUCK AT") :].splitlines()[1:5]
    assert "data.py:88 __getitem__" in rows[0]
    ranks = [row.replace("▸", " ").split()[1:3] for row in rows]
    assert ranks == [["▲", "3"], ["◆", "0"], ["◆", "1"], ["◆", "2"]]
    assert all("waits in all_reduce" in row for row in rows[1:])


@in_loop
async def test_the_rank_that_dies_first_stands_first():
    screen = await job_screen(jobs.ranks(leaks=2), (120, 30), "~19 steps", "imbalance: ", "1.26×")
    row = screen[screen.index("RUNS OUT") :].splitlines()[1]
    assert row.split()[2] == "2"


@in_loop
async def test_a_straggler_is_named_by_its_own_work():
    await job_screen(
        jobs.ranks(slow=1),
        (120, 30),
        "straggler: the others wait for rank 1, 145 ms a step (29 %): ",
        "its own work takes 501 ms a step without waits, theirs",
        "356 ms, mostly input (+145 ms)",
    )


@in_loop
async def test_a_calm_job_names_who_has_least_room():
    await job_screen(jobs.ranks(), (120, 30), "rank 3 has the least headroom")


@pytest.mark.parametrize("size", [(80, 24), pytest.param((200, 60), marks=pytest.mark.slow)])
def test_sixty_four_ranks_the_worst_and_the_others_summed_up(size):
    @in_loop
    async def body():
        screen = await job_screen(jobs.ranks(64, 20.0, stalled=True), size, "ranks 0–2, 4–63 wait")
        if size[1] < 60:
            row = next((line for line in screen.splitlines() if " ×63 " in line), screen)
            assert "waits in all_reduce" in row, row
        assert "data.py:88" in screen

    body()


@in_loop
async def test_enter_among_the_jobs_before_there_is_one_opens_no_gpu():
    """Enter among the jobs before there is one opens no GPU.

    The devices are told before the trainers: what has no row yet opens nothing, and no row of the
    other list.
    """
    hello, *rest = jobs.ranks()
    devices = [frame for frame in rest if isinstance(frame, f.Def) and (frame.host or frame.gpu)]
    sample = next(frame for frame in rest if isinstance(frame, f.Sample))
    app = make_app([hello, *devices, replace(sample, p=[], u=[], t=[], a=[])])
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "live", "▸   0  H200", "in no training yet")
        overview = app.screen
        await at_the_jobs(pilot)
        await pilot.press("enter")
        await pilot.pause()
        assert app.screen is overview
        feed(app, *rest)
        await until(pilot, "train.py")
        assert app.screen is overview, "a key that was pressed too early acts later"
        await pilot.press("enter")
        await until(pilot, "Findings")
        assert isinstance(app.screen, JobScreen)


@pytest.mark.slow
@in_loop
async def test_all_ranks_can_be_asked_for():
    app = make_app(jobs.ranks(64, 20.0))
    async with app.run_test(size=(100, 30)) as pilot:
        await open_the_job(pilot)
        await until(pilot, "×63: 0-62")
        await pilot.press("j", "enter")
        await until(pilot, "Findings", absent="×63")
        await pilot.press("a")
        await until(pilot, "×63: 0-62")


@in_loop
async def test_a_single_process_has_the_same_screen():
    app = make_app(views.cpu_only())
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, "gpuscope lab")
        await pilot.press("enter")
        await until(pilot, "Findings", "healthy: stepping", "Its process", "cpu")


@in_loop
async def test_enter_shows_the_readings_of_a_rank_and_escape_leads_back():
    app = make_app(jobs.ranks(stalled=True))
    async with app.run_test(size=(120, 40)) as pilot:
        await open_the_job(pilot)
        await until(pilot, "Findings")
        await pilot.press("enter")
        await until(pilot, "Trainer 48203, rank 3")
        assert isinstance(app.screen, DetailScreen)
        await pilot.press("escape")
        await until(pilot, "Findings")
        await pilot.press("escape")
        await until(pilot, "─ GPUs", absent="Ranks ─")


@in_loop
async def test_it_follows_what_happens():
    frames = jobs.ranks(stalled=True)
    app = make_app(frames[:30])
    async with app.run_test(size=(120, 30)) as pilot:
        await open_the_job(pilot)
        await until(pilot, "Findings", absent="stalled")
        feed(app, *frames[30:])
        await until(pilot, STALLED)
        feed(
            app,
            *(f.Event(i, "gone", int((views.END + 1) * 1e9), "killed") for i in range(300, 304)),
        )
        shown = await until(pilot, ": killed")
        assert shown.count("killed") == 1


@in_loop
async def test_without_a_source_an_act_says_why_not():
    app = make_app(jobs.ranks())
    async with app.run_test(size=(120, 30)) as pilot:
        await open_the_job(pilot)
        await until(pilot, "Findings")
        await pilot.press("s")
        await until(pilot, "Snapshot: no host is connected yet")


@pytest.mark.parametrize("size", SIZES[:2])
def test_pictures_of_the_job_screen(size):
    @in_loop
    async def body():
        app = make_app(jobs.ranks(stalled=True))
        async with app.run_test(size=size) as pilot:
            await open_the_job(pilot)
            await until(pilot, "data.py:88")
            await check(pilot, "job")
            assert "stalled" in text(app)

    body()


@pytest.mark.parametrize(
    ("why", "shown"),
    [
        (NO_REASON, []),
        (f.Unknown("not_cuda", "it needs CUDA"), ["no step breakdown: it needs CUDA"]),
    ],
)
def test_a_breakdown_that_is_not_there_is_a_line_only_where_a_reason_is_known(why, shown):
    rank = SimpleNamespace(reading=lambda column: why, number=lambda column: None, minutes=())
    pace = SimpleNamespace(stopped=False)
    assert [plain(line) for line in time_lines(None, [rank], pace, no_history)] == shown


@pytest.mark.slow
@in_loop
async def test_a_job_that_waits_for_data_is_not_called_healthy():
    shown = await job_screen(jobs.ranks(slow=2), (120, 40), "input: rank 2 waits for data 34 %")
    assert "healthy" not in shown
    shown = await job_screen(jobs.ranks(), (120, 40), "● healthy: all ranks at the same step")
    assert shown.index("healthy") < shown.index("has the least headroom")


@in_loop
async def test_every_way_in_which_its_gpus_are_broken_has_a_line():
    shown = await job_screen(views.hung(), (120, 40), "hung: GPU 3 of rank 3", "lost: GPU 5")
    assert "do first: End the job on it" in shown
    assert "then:     Check the kernel log" in shown


@in_loop
async def test_a_job_that_runs_out_of_memory_shows_what_to_do_and_its_memory_first():
    shown = await job_screen(jobs.ranks(leaks=2), (80, 24), "do first: Save a checkpoint")
    assert "Highest memory of rank 2" in shown
    assert shown.index("~19 steps") < shown.index("×3: 0-1,3"), shown


@in_loop
async def test_a_process_alone_is_no_rank():
    shown = await job_screen(views.cpu_only(), (80, 24), "healthy")
    assert "RANK" not in shown
    assert "all ranks" not in shown


@in_loop
async def test_a_job_with_a_finding_is_not_called_healthy_and_own_code_is_shown_by_its_line():
    out = views.cpu_only()
    data = {"m": 1, "seconds": 60.0, "steps": 100, "looks": 300}
    data |= {"rows": "other 40.0 200|forward 20.0 100", "places": "other 36.0 /x/train.py:72 main"}
    ids = [one.id for one in out if isinstance(one, f.Def) and one.trainer is not None]
    out += [f.Event(one, "time", 2, "", data) for one in ids]
    holds_up = "◆ Other code in the script takes 67 % of the last 1 min"
    shown = await job_screen(out, (150, 40), holds_up, "Look at train.py:72 main: 60 % of the time")
    assert "healthy" not in shown


def test_what_to_do_first_about_a_hang_are_keys_where_the_job_can_be_asked():
    fixes = (Fix(title="Read them", command="gpuscope attach 7", now=True), Fix(title="Find it."))
    finding = Finding(
        pitfall="hang",
        cause="stall.alone",
        title="Hang",
        severity="problem",
        confidence="definite",
        evidence=(),
        fixes=fixes,
    )
    job = SimpleNamespace(key="j")
    case = Case(1, finding, "live", job="j")
    replay = SimpleNamespace(link=SimpleNamespace(state="replay"))

    def first(host, live, can_end=True):
        return [plain(line) for line in next_lines(host, job, [case], live, can_end)][:1]

    assert first(None, True) == ["do first: S shows the stacks of its threads, K ends the job"]
    on_time = ["do first: S shows the stacks of its threads · how: tab 4, Doctor"]
    assert first(None, True, can_end=False) == on_time
    assert first(None, False) == ["do first: Read them"], "the Doctor's first, also without keys"
    assert first(replay, False) == ["do first: Find it · how: tab 4, Doctor"]


@in_loop
async def test_a_lost_gpu_says_since_when_what_to_do_and_shows_its_load_first():
    app = make_app(jobs.lose(jobs.ranks(4), 2))
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, "train.py", "lost")
        await at_the_jobs(pilot)
        await pilot.press("enter")
        screen = await until(pilot, "lost: GPU 2 of rank 2", "do first: End the job on it")
        assert "no reading of it for 30 s" in screen
        assert "then:     Check the kernel log" in screen
        load = next(line for line in screen.splitlines() if line.startswith("│ GPU 2 "))
        assert "┄┄" in load
        assert load.rstrip(" │").endswith("lost")
        assert "least headroom" not in screen
