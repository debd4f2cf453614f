"""The Doctor tab has the worst first with its arithmetic.

It has what helps now, the fix to copy, and the proof in the Lab.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict, replace
from itertools import count, pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from gpuscope.doctor.finding import Abstained, Evidence, Finding, Fix, Report
from gpuscope.doctor.table import load
from gpuscope.model.job_ends import End
from gpuscope.store.replay import ReplaySource
from gpuscope.store.source import AgentSource
from gpuscope.text import styled
from gpuscope.text.units import age_text
from gpuscope.tui.app.app import GpuscopeApp
from gpuscope.tui.background.finding_history import Case, FindingHistory
from gpuscope.tui.background.probe_queries import ProbeAnswer
from gpuscope.tui.doctor.case_times import duration_of_case, since_text
from gpuscope.tui.doctor.dialogs import ExplainDialog
from gpuscope.tui.doctor.filter_text import text_of
from gpuscope.tui.doctor.stack_text import stack_text
from gpuscope.tui.doctor.text import columns, group_cases, row_of, top
from gpuscope.tui.overview.finding_list import worst_lines
from gpuscope.tui.overview.job_brief import what_to_do, worst_elsewhere
from gpuscope.tui.shell.session import Session
from gpuscope.tui.theme import THEMES, UNICODE, Tokens
from gpuscope.tui.widgets.table import lay_out
from gpuscope.wire import frames as f
from tests.fakes import jobs, remembering, views
from tests.recordings import REDACTED
from tests.tui.doctor_home import at_home
from tests.tui.pilot import feed, in_loop, make_app, until
from tests.tui.snapshots import SIZES, check, text


def growing(count: int = 80, each: float = 0.9) -> list[f.Frame]:
    """One trainer on one H200 that keeps ``each`` GiB more after each step."""
    out: list[f.Frame] = [
        views.hello(),
        views.host_def(),
        views.gpu(0),
        *views.trainer(48201, 0, 1, "ada", True, "job-1"),
    ]
    for q, at, _ in views.ticks(count / 2):
        after, step = 30 + each * q, 4000 + q
        sample = f.Sample(q, int(at * 1e9), h=[views.host_row()])
        sample.g.append(views.device_row(0, after + 6, 95.0))
        sample.p.append(views.row("p", 101, cpu_percent=101.0, rss_bytes=9 * views.GIB))
        sample.u.append(views.row("u", 201, used_bytes=int((after + 5.4) * views.GIB)))
        sample.t.append(views.trainer_row(1, step, 0.5, eta_seconds=None))
        kept = {
            "step_allocated_bytes": int(after * views.GIB),
            "step_allocated_step": step,
            "alloc_retries": 0,
        }
        sample.a.append(views.allocator_row(1, after, after + 5, 5.0, **kept))
        out.append(sample)
    return out


def many(count: int) -> tuple[Finding, ...]:
    """Findings of the environment, each of another place and kind."""
    return tuple(
        Finding(
            pitfall="num-workers",
            cause=f"made.up_{n}",
            title=f"finding number {n}",
            severity="warning" if n % 2 else "info",
            confidence="likely",
            evidence=(Evidence(f"{n} of {count}"),),
            where=f"GPU {n}",
            rank=n / 10,
        )
        for n in range(count)
    )


# ── what it says ──────────────────────────────────────────────────────────────────────────────────


@in_loop
async def test_growth_stands_first_with_its_arithmetic_what_helps_now_and_the_fix():
    app = make_app(growing(), "doctor")
    async with app.run_test(size=(120, 50)) as pilot:
        screen = await until(pilot, "runs out of memory in about")
        lines = screen.splitlines()
        assert "4 Doctor ▲1" in lines[1]
        assert "▸ ▲ Rank 0 runs out of memory" in screen
        assert "headroom 33.5 GiB / 922 MiB per step" in screen, "its arithmetic"
        assert "Save a checkpoint, if your script can" in screen
        at = {
            word: next(i for i, line in enumerate(lines) if f"│ {word} " in line)
            for word in ("Now", "Fix", "How sure", "Why", "Skip if")
        }
        assert list(at.values()) == sorted(at.values())
        assert "+ losses.append(loss.item())" in screen
        assert "Skip if" in screen


@in_loop
async def test_growth_is_known_at_once_by_what_the_trainer_remembers(tmp_path):
    """The screen was opened at step 4,000 and has seen four steps."""
    source = AgentSource(
        remembering.agent(tmp_path, growing(4), remembering.leak()), views.SOURCE, "node-17"
    )
    app = GpuscopeApp(Session(source=source), "doctor")
    async with app.run_test(size=(120, 50)) as pilot:
        screen = await until(pilot, "ank 0 grows by", "Why")
        assert "MiB per step" in screen


@pytest.mark.slow
@in_loop
async def test_the_recorded_stall_is_the_worst_with_rank_and_line_and_is_marked_as_replayed():
    replay = ReplaySource(REDACTED / "h200x2-stall.gsr")
    replay.pause()
    replay.seek(replay.duration_seconds)
    app = GpuscopeApp(Session(replay=replay), "doctor")
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await until(pilot, "Hang: rank", "4 Doctor ▲1")
        assert "▸ ▲ Hang: rank 1 is stuck at <path>:31 in __getitem__" in screen
        assert "collectives launched: rank 1: 55, rank 0: 56" in screen
        assert "not in a recording" not in screen
        assert "kill " not in screen, "nothing of it runs any more"
        await pilot.press("r")
        await until(pilot, "Repro: a recording is shown")
        await pilot.press("1")
        screen = await until(pilot, "─ GPUs", "stalled: rank 1 is stuck")
        assert "Hang: rank" not in screen, "the Overview tells it once, with its job"
        replay.seek(5.0)
        await until(pilot, "00:05/", absent="stalled: rank")
        assert "▲" not in text(app).splitlines()[1], "what was of another moment is forgotten"
        await pilot.press("4")
        await until(pilot, "not in a recording")


@in_loop
async def test_nothing_found_says_what_was_examined_and_what_could_not_be_decided():
    app = make_app(views.crowd(), "doctor")
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await until(pilot, "Nothing wrong was found.")
        assert "train0.py (pid 48220)" in screen
        assert "train1.py (pid 48221)" in screen
        assert "Inconclusive, and what would decide it" in screen
        assert "whether memory grows: gpuscope must see 30 steps" in screen
        assert "▲" not in screen.splitlines()[1]
        assert "◆" not in screen.splitlines()[1]


@in_loop
async def test_without_a_gpu_and_before_the_first_reading_it_says_so():
    app = make_app(views.cpu_only(), "doctor")
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, "Nothing wrong was found.", "gpuscope lab (pid 7021)", "of CPU time")
    app = GpuscopeApp(Session(), "doctor")
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, "waiting for the first reading")
        await pilot.press("y", "n", "r", "enter", "j", "k", "ctrl+d")  # nothing of it fails


@in_loop
async def test_trainers_that_have_ended_are_one_row_below_all_that_is_true_now():
    app = make_app(views.training(), "doctor")
    at_home(app)
    watch = app.session.doctor
    watch.environment = Report(findings=many(2), examined=("environment",))

    def left(pid: int, age: float, *found: Finding) -> None:
        more = {
            "pid": pid,
            "ended": time.time() - age,
            "name": f"train.py (pid {pid})",
            "end": asdict(End("failed", "bad", "KeyError: 7")),
            "path": "/tmp/a.box",
        }
        watch._take_report("left", Report(findings=found), more)

    async with app.run_test(size=(140, 40)) as pilot:
        await until(pilot, "finding number 1")
        grave = replace(
            many(1)[0], severity="problem", title="it ran out of memory", where="train.py (pid 7)"
        )
        left(7, 60.0, grave)
        screen = await until(pilot, "○ it ran out of memory")
        assert screen.index("finding number 0") < screen.index("it ran out of memory")
        left(8, 30.0, replace(grave, title="no space left", where="train.py (pid 8)"))
        left(9, 20.0)
        told = "3 jobs ended badly in the last day"
        screen = await until(pilot, f"○ {told}, the last: no space left", f"{told}: all failed")
        assert screen.index("finding number 0") < screen.rindex(f"○ {told}")
        assert "▸ ◆ Rank 5 waits for input" in screen
        await pilot.press("G", "k")
        await until(pilot, f"{told}: all failed", "it ran out of memory", "train.py (pid 7)")
        await pilot.press("enter", "j", "j")
        await until(pilot, "▸ ○ it ran out of memory", "How sure")
        await pilot.press("k", "k", "enter", "j")
        await pilot.press("ctrl+d", "ctrl+d")
        await until(pilot, "Ended with an error", "train.py (pid 9) failed: KeyError: 7")


@in_loop
async def test_a_healthy_machine_says_first_that_what_runs_is_well_and_last_what_ended_earlier():
    app = make_app(views.cpu_only(), "doctor")
    at_home(app)
    watch = app.session.doctor
    for pid in (7, 8):
        died = replace(many(1)[0], severity="problem", title="it died", where=f"a.py (pid {pid})")
        more = {"pid": pid, "ended": time.time() - 3600.0, "name": "a.py"}
        more |= {"end": asdict(End("killed", "bad", how="by SIGKILL")), "path": "/tmp/a.box"}
        watch._take_report("left", Report(findings=(died,)), more)
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await until(pilot, "▸ ● Nothing wrong: gpuscope lab, step", "What was ch")
        assert screen.index("Nothing wrong") < screen.rindex("2 jobs ended badly")


@in_loop
async def test_fifty_findings_scroll_and_the_worst_stands_first():
    app = make_app(views.training(), "doctor")
    at_home(app)
    app.session.doctor.environment = Report(findings=many(50), examined=("environment",))
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await until(pilot, "4 Doctor ◆26", "finding number 49")
        assert "▸ ◆ finding number 49" in screen
        await pilot.press("G")
        await until(pilot, "▸ ○ What was checked")
        await pilot.press("g")
        await until(pilot, "▸ ◆ finding number 49", "49 of 50")
        await pilot.press("slash", *"number 7")
        await until(pilot, "finding number 7", absent="finding number 49")


@in_loop
async def test_the_cursor_goes_to_what_is_graver_and_stays_with_what_is_read_otherwise():
    app = make_app(views.crowd(), "doctor")
    at_home(app)
    watch = app.session.doctor

    async def show(*found: Finding) -> None:
        watch.environment, watch._cases = Report(findings=found), None
        app.main.refresh_all()

    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "Nothing wrong was found.")
        first, second, third = many(5)[0], many(5)[2], many(5)[3]
        await show(first)
        await until(pilot, "▸ ● Nothing wrong: 8 jobs train", "  ○ finding number 0")
        await pilot.press("j")
        await show(first, second)
        await until(pilot, "  ○ finding number 2", "▸ ○ finding number 0")
        await pilot.press("g")
        await show(first, second, third)
        await until(pilot, "▸ ◆ finding number 3")
        await pilot.press("G")
        await show(first, second, third, many(6)[5])
        await until(pilot, "◆ finding number 5", "▸ ○ What was checked")


@in_loop
async def test_the_cursor_is_on_the_worst_that_holds_until_the_user_moves_it():
    app = make_app(views.crowd(), "doctor")
    at_home(app)
    watch = app.session.doctor
    over, hint, grave = (
        Case(number, replace(finding, title=title), "live", past=number == 0)
        for number, (finding, title) in enumerate(
            zip(many(4)[1:], ("it was slow", "a hint", "it hangs"), strict=True)
        )
    )

    async def show(*cases: Case) -> None:
        watch._cases = cases
        app.main.refresh_all()

    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "Nothing wrong was found.")
        await show(replace(over, past=False))
        await until(pilot, "▸ ◆ it was slow")
        await show(over)
        await until(pilot, "▸ ● Nothing wrong", "it was slow")
        await show(hint, over)
        await until(pilot, "▸ ○ a hint")
        await pilot.press("1", "4")
        await show(grave, hint, over)
        await until(pilot, "▸ ◆ it hangs")
        await pilot.press("j")
        await show(grave, hint, over)
        await until(pilot, "▸ ○ a hint", "  ◆ it hangs")


def test_what_is_found_of_the_machine_and_of_a_trainer_on_it_is_told_once():
    found = replace(many(1)[0], severity="warning")
    machine = Case(1, replace(found, title="torch here has no CUDA", where=""), "environment")
    trainer = Case(2, replace(found, title="its torch has no CUDA", where="pid 7"), "live")
    other = Case(3, replace(found, title="another torch, too", where="pid 8"), "live", "job-2")
    assert [line[2][0] for _, line in top([machine, trainer], UNICODE, 5)] == [
        machine.finding.title
    ]
    both = [line[2][0] for _, line in top([trainer, other], UNICODE, 5)]
    assert both == [trainer.finding.title, other.finding.title], "of two trainers both"


def rows_of(*places: str, title: str = "A card is slow") -> list[Any]:
    found = [
        Case(number, replace(many(1)[0], title=title, where=place), "live")
        for number, place in enumerate(places)
    ]
    host = views.host_of(views.vacant())
    return [row_of(group, host, Tokens(THEMES[0]).glyphs) for group in group_cases(found)]


def place_in(row: Any) -> str:
    return styled.plain(row.cells["where"] or [])


def test_a_column_that_is_empty_gives_its_cells_away():
    assert [one.key for one in columns(rows_of(""), 116)] == ["what", "sure", "since"]
    narrow = {one.key: one.width for one in columns(rows_of("rank 1", title="x" * 90), 116)}
    assert narrow["where"] == len("rank 1")
    wide = {one.key: one.width for one in columns(rows_of("w" * 60), 200)}
    assert wide["where"] == 44
    assert "where" not in {one.key for one in columns(rows_of("w" * 60, title="x" * 90), 84)}


def test_a_place_that_is_too_long_ends_with_a_whole_part():
    (row,) = rows_of("rank 1, GPU 1, pid 6037")
    (column,) = (one for one in columns([row], 200) if one.key == "where")
    assert column.whole
    assert styled.plain(styled.cut_whole(row.cells["where"], 17)) == "rank 1, GPU 1"


def test_where_has_the_cells_that_a_title_does_not_fill_with_a_whole_part():
    place, what = "train.py, rank 2, GPU 3, pid 48203", "Hang: rank 3 is stuck at data.py:88"
    rows = rows_of(place, title=f"{what} in __getitem__; {'x' * 80}")
    wide = {one.key: one.width for one in columns(rows, 116)}
    assert wide["where"] == len(place)


def test_a_place_has_only_what_the_title_does_not_name():
    (row,) = rows_of("train.py, rank 3, GPU 3, pid 15", title="Hang: Rank 3 is stuck at train.py:8")
    assert place_in(row) == "train.py, GPU 3, pid 15", "a line of code names no job"
    (row,) = rows_of("rank 1, pid 1", title="rank 12 and pid 1")
    assert place_in(row) == "rank 1"
    (row,) = rows_of("GPU 0, 1", title="Slow on GPU 0, 1")
    assert place_in(row) == "GPU 0, 1"


def test_where_goes_where_the_title_would_lose_a_part_for_it():
    place, what = "train.py, rank 3, GPU 3, pid 48203", "Hang: rank 3 is stuck at data.py:88"
    title = f"{what} in __getitem__; rank 0 waits for it at train.py:69 in main"
    (row,) = rows = rows_of(place, title=title)
    kept = {one.key: one.width for one in columns(rows, 116)}
    assert "where" not in kept
    assert "where" in {one.key for one in columns(rows, 200)}
    assert title in styled.plain(row.cells["what"])


@pytest.mark.parametrize("cells", [72, 112, 192])
def test_where_is_the_last_to_go_where_rows_are_of_several_processes(cells: int):
    """A long row, such as the one of those that ended, takes the place of no job away."""
    rows = rows_of("train.py, pid 17452", title="Other code takes 68 %")
    rows += rows_of("other.py, pid 17681", title="Other code takes 10 %")
    rows += rows_of("", title=f"15 jobs ended badly in the last day, the last: {'x' * 90}")
    rows[0].cells["since"] = rows[1].cells["since"] = "1 min 09 s ago"  # type: ignore[index]
    placed = {column.key: width for column, width in lay_out(columns(rows, cells), cells)}
    assert placed["where"] == len("other.py, pid 17681")
    assert placed["what"] >= 44
    assert ("since" in placed) == (cells > 80)


def test_findings_on_several_gpus_name_all_of_them_in_one_row():
    (row,) = rows_of("GPU 0", "GPU 1", "GPU 2", "GPU 5")
    assert place_in(row) == "GPU 0-2, 5"


def test_a_title_that_names_the_gpu_leaves_no_second_place():
    title = "GPU 2 is lost: no program can use it"
    assert [place_in(row) for row in rows_of("GPU 2", title=title)] == [""]
    (both,) = rows_of("GPU 2", "GPU 4", title=title)
    told = "".join(text for text, _ in both.cells["what"])
    assert (told[2:], place_in(both)) == ("GPU 2, 4 are lost", "")
    (full,) = rows_of("GPU 2", "GPU 4", title="GPU 2 is full: 1.20 GiB left")
    told = "".join(text for text, _ in full.cells["what"])
    assert told[2:] == "GPU 2, 4 are full", "what is left is of the first alone"
    assert [place_in(row) for row in rows_of("GPU 2", title="GPU 20 is hot")] == ["GPU 2"]


@pytest.mark.parametrize("before", [False, True])
def test_a_hang_holds_since_the_last_step(before):
    host = views.store_of(jobs.ranks(stalled=True)).host(views.SOURCE)
    job = host.jobs[0]
    age = max(t.number("step_age_seconds") for t in job.trainers)
    case = Case(
        1,
        replace(many(1)[0], pitfall="hang-alone", where="host"),
        "live",
        job.key,
        host.sampled_seconds - 1.5,
        before,
        host.sampled_seconds,
    )
    assert duration_of_case(case, host) == age_text(age)
    other = replace(case, finding=many(1)[0])
    assert duration_of_case(other, host) == ("≥ 1 s" if before else "1 s")
    cell = duration_of_case(other, host, brief=True)
    assert cell == ("start" if before else "1 s"), "a table tells no least time"
    assert since_text(other, host).startswith(
        "for at least 1 s, since before" if before else "for 1 s, since"
    )


def test_the_filter_finds_a_finding_by_the_name_of_its_job():
    host = views.store_of(jobs.ranks(stalled=True)).host(views.SOURCE)
    job, found = host.jobs[0], replace(many(1)[0], where="rank 3")
    case = Case(1, found, "live", job.key)
    (group,) = group_cases([case, replace(case, number=2)])[:1]
    assert job.title not in f"{found.title} {found.pitfall}"
    assert job.title.casefold() in text_of(group, host)
    assert "rank 3" in text_of(group, host)


def test_only_what_the_first_picture_had_was_already_there():
    host = views.store_of(jobs.ranks(stalled=True)).host(views.SOURCE)
    now = host.sampled_seconds
    for badge, told in (("", "gpuscope started"), ("REPLAY", "the recording begins")):
        course = FindingHistory()
        course.follow([("live", "", many(1)[0])], now - 3)
        shown = since_text(course.cases[0], replace(host, badge=badge))
        assert shown == f"for at least 3 s, since before {told}"


def test_the_stack_of_a_hang_is_that_of_the_thread_that_trains():
    frames = [["/data/train.py", 31 - n, f"f{n}"] for n in range(12)]
    threads = [
        {"name": "watcher", "frames": [["/x.py", 1, "wait"]]},
        {"name": "MainThread", "training": True, "main": True, "frames": frames},
    ]
    lines = [
        "".join(text for text, _ in line) for line in stack_text(ProbeAnswer({"threads": threads}))
    ]
    assert lines[0].split() == ["▸", "f0", "train.py:31", "/data"]
    assert lines[-1] == "4 more frames, S: all threads"
    assert stack_text(ProbeAnswer(problem="it has ended")) == [[("it has ended", "muted")]]


@in_loop
async def test_ranks_that_suffer_alike_are_one_row_and_are_named_below_it():
    app = make_app(views.training(60.0), "doctor")
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "○ 6× Fragmentation makes")
        await pilot.press("j")
        screen = await until(pilot, "Also", "(rank 6, GPU 6, pid 48219)")
        assert screen.count("rank 3, GPU 3, pid 48216") >= 1


@in_loop
async def test_one_that_no_longer_holds_is_greyed_with_its_time(monkeypatch):
    from gpuscope.tui.background import doctor_watch as doctor_watch

    monkeypatch.setattr(doctor_watch, "EVERY_SECONDS", 0.0)
    monkeypatch.setattr(doctor_watch, "SHARE", 1e9)
    app = make_app(views.training(), "doctor")
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "4 Doctor ◆1")
        for second in range(1, 90):
            at = views.END + second
            rows = [views.trainer_row(13 + r, 4100 + second, 0.901) for r in range(7)]
            feed(app, f.Sample(5000 + second, int(at * 1e9), h=[views.host_row()], t=rows))
        await until(pilot, "○ Rank 5 waits", absent="4 Doctor ◆1")
        feed(app, f.Sample(6000, int((views.END + 100) * 1e9), h=[views.host_row()]))
        screen = await until(pilot, "ended 14:1")
        assert "no longer" not in screen.splitlines()[5]


@in_loop
async def test_while_the_screen_is_paused_nothing_is_judged():
    app = make_app(views.crowd(), "doctor")
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "Nothing wrong was found.")
        await pilot.press("space")
        await until(pilot, "PAUSED")
        app.session.doctor._next = 0.0
        feed(app, *growing())
        await pilot.pause(0.1)
        assert "Nothing wrong was found." in text(app)
        assert app.session.found == (0, 0, (), False)


# ── keys ──────────────────────────────────────────────────────────────────────────────────────────


@in_loop
async def test_y_copies_the_marked_fix_and_n_marks_another(tmp_path):
    app = make_app(growing(each=0.3), "doctor")  # there is time to record for a minute
    async with app.run_test(size=(120, 50)) as pilot:
        copied: list[str] = []
        app.copy_to_clipboard = copied.append  # type: ignore[method-assign]
        await until(pilot, "y: copy")
        await pilot.press("y")
        await until(pilot, "copied, and written to ")
        assert copied == ["losses.append(loss.item())\n"]
        (path,) = tmp_path.rglob("*.txt")
        assert path.read_text() == copied[0]
        await pilot.press("n", "y")
        await pilot.pause()
        assert copied[1].startswith("gpuscope snapshot 48201 --history 100000")


@in_loop
async def test_a_line_of_code_that_is_too_long_goes_on_below_itself():
    app = make_app(growing(), "doctor")
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, "runs out of memory")
        app.push_screen(ExplainDialog(load()["num-workers"]))
        screen = await until(pilot, "+ DataLoader(data, batch_size=64, num_workers=8,")
        lines = screen.splitlines()
        at = next(n for n, line in enumerate(lines) if "+ DataLoader(data, batch_size=64" in line)
        assert lines[at + 1].index("persistent_workers=True") == lines[at].index("DataLoader")


@in_loop
async def test_enter_opens_the_whole_explanation_and_escape_leads_back():
    app = make_app(growing(), "doctor")
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, "runs out of memory")
        await pilot.press("enter")
        await until(pilot, "Symptoms", "Fix 1")
        await pilot.press(*["pagedown"] * 6)
        await until(pilot, "Sources")
        await pilot.press("escape")
        await until(pilot, "▸ ▲ Rank 0", absent="Symptoms")
        await pilot.press("ctrl+d")
        await pilot.pause()
        assert app.main.query_one("#finding").scroll_y > 0


def finding(verify: str, pitfall: str = "num-workers") -> Finding:
    return Finding(
        pitfall=pitfall,
        cause="made.up",
        title="made up",
        severity="problem",
        confidence="likely",
        where="GPU 0",
        evidence=(Evidence("for a test"),),
        fixes=(Fix(title="do", code="x = 1"),),
        verify=verify,
        rank=9.0,
    )


async def with_proof(
    pilot: Any, app: GpuscopeApp, verify: str, pitfall: str = "num-workers"
) -> None:
    at_home(app)
    app.session.doctor.environment = Report(findings=(finding(verify, pitfall),))
    app.session.doctor._cases = None
    app.main.refresh_all()
    await until(pilot, "▸ ▲ made up")
    await pilot.press("r")


@pytest.mark.slow
@in_loop
async def test_r_lays_the_proof_ready_in_the_lab_and_starts_nothing():
    app = make_app(views.cpu_only(), "doctor")
    async with app.run_test(size=(120, 40)) as pilot:
        await with_proof(pilot, app, "gpuscope lab pitfall num-workers")
        await until(pilot, "▸ The GPU waits for its input", "Enter With the mistake")
        assert app.session.labs.demo is None
        await pilot.press("escape", "4")
        await with_proof(pilot, app, "gpuscope lab --headless --json --steps 5 --optimizer sgd")
        await until(
            pilot,
            "Demo trainer",
            "set to reproduce it (--optimizer sgd --steps 5)",
        )
        assert (app.session.labs.config.optimizer, app.session.labs.config.steps) == ("sgd", 5)
        assert app.session.labs.state == "idle"
        await pilot.press("4")
        await with_proof(pilot, app, "gpuscope lab --compile default    against    gpuscope lab")
        await until(pilot, "Repeat A and B interleaved", "--compile default")
        await pilot.press("escape", "4")
        await with_proof(pilot, app, "gpuscope lab claims --only amp-memory")
        await until(pilot, "gpuscope lab claims --only amp-memory", "Enter Measure")
        assert app.session.labs.demo is None


@in_loop
async def test_where_the_lab_proves_nothing_r_says_why():
    app = make_app(views.cpu_only(), "doctor")
    async with app.run_test(size=(120, 40)) as pilot:
        await with_proof(pilot, app, "gpuscope devices", "nccl-config")
        shown = await until(pilot, "outside the Lab: gpuscope devices")
        assert "Reproduce" not in shown
        assert app.session.labs.state == "idle"


@in_loop
async def test_a_claim_is_not_measured_on_a_gpu_that_somebody_uses():
    app = make_app(views.vacant(), "doctor")
    async with app.run_test(size=(120, 40)) as pilot:
        await with_proof(pilot, app, "gpuscope lab claims --only amp-memory")
        await until(pilot, "Enter Measure")
        await pilot.press("enter")
        await until(pilot, "not started: ", "GPU 0: pid 51120 (lin)")
        assert app.session.labs.demo is None


@in_loop
async def test_a_command_that_proves_is_run_and_its_output_shown(monkeypatch):
    from gpuscope.tui.doctor import dialogs as doctor_dialogs

    monkeypatch.setattr(doctor_dialogs, "command_of", lambda proof: ["echo", "peak", "halves"])
    app = make_app(views.cpu_only(), "doctor")
    async with app.run_test(size=(120, 40)) as pilot:
        await with_proof(pilot, app, "gpuscope lab claims --only amp-memory")
        await until(pilot, "Enter Measure")
        await pilot.press("enter")
        await until(pilot, "peak halves", "ended, exit code 0")


# ── never late ────────────────────────────────────────────────────────────────────────────────────


def test_it_looks_once_a_second_at_most_and_less_often_where_it_costs_more(monkeypatch):
    from gpuscope.tui.background import doctor_watch as doctor_watch

    now = [1000.0]
    cost = [0.001]
    clock = SimpleNamespace(
        monotonic=lambda: now[0], perf_counter=lambda: now[0], thread_time=lambda: now[0]
    )
    monkeypatch.setattr(doctor_watch, "time", clock)
    watch = doctor_watch.DoctorWatch(lambda: None, lambda: False)
    watch.prepare()
    store = views.store_of(views.training(5.0))
    looked = []

    def judge(*_: object) -> None:
        looked.append(now[0])
        now[0] += cost[0]

    monkeypatch.setattr(watch, "_judge", judge)

    async def run() -> None:
        for tick in range(1200):
            now[0] += 0.05
            cost[0] = 0.001 if tick < 600 else 0.2
            store.apply(
                views.SOURCE,
                f.Sample(tick, int((views.END + tick) * 1e9), h=[views.host_row()]),
                0.0,
            )
            watch.look(store.view().host, lambda *_: views.store_of([]).history("", 0, ""))

    asyncio.run(run())
    early, late = [t for t in looked if t < 1030], [t for t in looked if t > 1035]
    assert 25 <= len(early) <= 31
    assert all(after - before > 9.9 for before, after in pairwise(late)), "0.2 s each: 2 %"


def test_a_rule_that_fails_ends_nothing(monkeypatch):
    from gpuscope.doctor import live
    from gpuscope.tui.background.doctor_watch import DoctorWatch

    watch = DoctorWatch(lambda: None, lambda: False)
    watch.prepare()
    monkeypatch.setattr(live, "examine", lambda *_: 1 / 0)
    host = views.store_of(views.training(5.0)).view().host

    async def run() -> None:
        assert watch.look(host, lambda *_: views.store_of([]).history("", 0, ""))

    asyncio.run(run())
    assert watch.report.problems == (
        "A rule failed (ZeroDivisionError): running trainers were not checked.",
    )


def test_what_was_found_on_one_host_is_not_told_of_another(monkeypatch):
    """Also of a host that has not said anything yet, and of this machine's environment and dead."""
    from dataclasses import replace

    from gpuscope.doctor import live
    from gpuscope.tui.background.doctor_watch import DoctorWatch
    from gpuscope.tui.background.unseen_deaths import DeadTrainer

    here = [True]
    watch = DoctorWatch(lambda: None, lambda: here[0], aside=Quiet())  # type: ignore[arg-type]
    watch.prepare()

    def finding(title: str) -> Finding:
        return Finding(
            pitfall="shm-size",
            cause=title,
            title=title,
            severity="problem",
            confidence="definite",
            evidence=(),
        )

    def examine(host: Any, *_: Any) -> Report:
        return Report(findings=(finding(f"of {host.key}"),))

    monkeypatch.setattr(live, "examine", examine)
    first = views.host_of(views.training(5.0))
    second = replace(first, key="second")
    silent = replace(first, key="silent", sampled_seconds=None)

    def look(host: Any) -> list[str]:
        watch.look(host, lambda *_: views.store_of([]).history("", 0, ""))
        return [case.finding.title for case in watch.cases]

    async def run() -> None:
        full(watch)
        watch._left[7, 0.0] = DeadTrainer(
            7, 0.0, Report(findings=(finding("dead"),)), "a.py", End("failed", "bad")
        )
        assert f"of {first.key}" in look(first)
        assert "dead" in look(first)
        here[0] = False
        assert look(silent) == []
        assert watch.counts() == (0, 0, (), False)
        assert watch.report.examined == ()
        assert look(second) == ["of second"]
        assert look(None) == []
        here[0] = True
        assert {"dead", f"of {first.key}"} <= set(look(first))

    asyncio.run(run())


class Quiet:
    running = False

    def start(self, *_: Any) -> None: ...

    def close(self) -> None: ...


# ── looks ─────────────────────────────────────────────────────────────────────────────────────────


def full(watch: Any) -> None:
    """What a session knows besides what runs."""
    watch.environment = Report(
        abstained=(
            Abstained(pitfall="shm-size", missing="whether loader workers share memory: start one"),
        ),
        problems=(
            "The kernel's log could not be read (no permission): XID errors are unknown. Try: "
            "sudo dmesg",
        ),
        examined=("environment", "8 GPUs", "driver 580.82.07", "torch 2.13.0+cu130"),
    )


@pytest.mark.parametrize("size", SIZES, ids=lambda s: f"{s[0]}x{s[1]}")
@pytest.mark.parametrize("name", ["finding", "nothing"])
@in_loop
async def test_the_tab_looks_as_it_did(name, size, monkeypatch):
    from gpuscope.tui.background import doctor_watch as doctor_watch

    ticks = count()
    clock = SimpleNamespace(
        monotonic=time.monotonic,
        perf_counter=time.perf_counter,
        thread_time=lambda: next(ticks) * 0.0013,
        time=time.time,
    )
    monkeypatch.setattr(doctor_watch, "time", clock)
    app = make_app(growing() if name == "finding" else views.vacant(), "doctor")
    app.session.cpu_percent = lambda: 0.9  # type: ignore[method-assign]
    at_home(app)
    full(app.session.doctor)
    async with app.run_test(size=size) as pilot:
        await until(
            pilot, "runs out of memory" if name == "finding" else "Nothing wrong was found."
        )
        await check(pilot, f"tab-doctor-{name}")


@in_loop
async def test_without_colour_signs_and_words_tell_all(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    app = make_app(growing(), "doctor")
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await until(pilot, "▲ Rank 0 runs out", "likely · problem")
        assert "▲1" in screen.splitlines()[1]


@in_loop
async def test_hostile_words_of_a_trainer_reach_no_terminal():
    evil = "x\x1b]52;c;QQ==\x07\u202etrain.py"
    frames = views.crowd()
    frames.append(
        f.Def(
            320,
            trainer=f.TrainerDef(
                48220, 5020, 120, 0, 0, 1, "job-0", evil, "2.13.0", "3.11", None, "run", True
            ),
        )
    )
    app = make_app(frames, "doctor")
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await until(pilot, "Nothing wrong was found.", "pid 48220")
        assert not set("\x1b\x07\u202e") & set(screen)


def test_where_there_is_one_row_a_lesser_finding_leaves_what_to_do_to_the_jobs():
    one = replace(many(2)[1], fixes=(Fix(title="Do this."),))
    waits = Case(1, replace(one, cause="live.input_bound", title="waits"), "live", job="a")
    other = Case(2, replace(one, cause="live.other_code", title="other code"), "live", job="b")

    def said(cases: list[Case], rows: int) -> list[str]:
        host = views.host_of(views.vacant())
        return [styled.plain(line) for _, line in worst_lines(cases, UNICODE, rows, host)]

    assert len(said([other], 1)) == 2, "alone it says what to do first"
    assert len(said([waits, other], 1)) == 1
    assert "other code" in said([waits, other], 1)[0]
    assert len(said([other, waits], 1)) == 2, "it is the worst"
    assert len(said([waits, other], 3)) == 2
    third = replace(
        other, number=3, job="c", finding=replace(other.finding, job="nan.py", where="pid 7")
    )
    assert said([other, third], 1)[-1].endswith("Doctor · 1 more finding")
    assert said([waits, third], 1)[0].endswith("nan.py, pid 7"), "the script, as people know it"


@in_loop
async def test_a_larger_terminal_shows_no_less_of_the_list_than_a_smaller_one():
    told: dict[int, str] = {}
    for size in ((120, 40), (200, 60)):
        source = ReplaySource(REDACTED / "h200x2-stall.gsr")
        source.pause()
        source.seek(77.0)
        app = GpuscopeApp(Session(replay=source), "doctor")
        async with app.run_test(size=size) as pilot:
            screen = await until(pilot, "Hang: rank 1 is stuck at", "What was checked")
            lines = screen.splitlines()
            head = next(at for at, line in enumerate(lines) if "WHAT" in line)
            told[size[0]] = "\n".join(lines[head : head + 2])
    for column in ("WHERE", "SINCE", " 27 s"):
        assert column in told[120]
        assert column in told[200]
    assert "CONFIDENCE" in told[200]
    assert "script-2, rank 1, GPU 1, pid 781, <path>:31" in told[200]
    assert "rank 0 waits for it at <path>:62 in main" in told[200]


def test_what_to_do_beside_a_job_begins_with_what_is_worse_on_its_host():
    host = views.host_of(views.vacant())
    fixes = (Fix(title="Do this first."), Fix(title="Then do that."))
    base = replace(many(2)[1], severity="warning", fixes=fixes)
    mine = Case(1, replace(base, title="the job waits"), "live", job="a")
    bad = replace(base, severity="problem")
    lost = Case(2, replace(bad, pitfall="xid-errors", title="GPU 5 is lost"), "live")
    build = Case(3, replace(bad, pitfall="cuda-build", title="no CUDA"), "environment")
    again = Case(4, replace(build.finding, title="no CUDA in the training"), "live", job="b")

    def said(own: Case, *cases: Case) -> str:
        worse = worst_elsewhere(host, own, cases)
        return views.flat(what_to_do(host, own, worse, load(), UNICODE, 60))

    shown = said(mine, lost, build, again, mine)
    order = (
        "▲ GPU 5 is lost",
        "Do this first.",
        "▲ no CUDA\n",
        "◆ the job waits",
        "2 Then do that.",
    )
    places = [shown.index(text) for text in order]
    assert places == sorted(places)
    assert "no CUDA in the training" not in shown, "it has one cure, which is told once"
    assert shown.count("Then do that.") == 1, "of what is worse it tells only the first step"
    assert "the job waits" not in said(mine, mine), "its row above says it"
    worst = Case(5, replace(bad, title="the job hangs"), "live", job="a")
    assert "GPU 5" not in said(worst, lost, worst), "it is as grave, and under the cursor"
