"""The process screen tells who holds what, with ranks together.

It says what is left out and why, and acts only after a question.
"""

from __future__ import annotations

import dataclasses
import os
import random
import re
import signal
import subprocess

import pytest

from gpuscope.config import Settings
from gpuscope.process.procfs import start_ticks
from gpuscope.text.styled import plain
from gpuscope.tui.app.app import GpuscopeApp
from gpuscope.tui.app.launch import local_source
from gpuscope.tui.background import view_state
from gpuscope.tui.processes import rows
from gpuscope.tui.processes.entries import ProcessEntry, entries
from gpuscope.tui.processes.idle import Idleness
from gpuscope.tui.processes.signal_dialog import rank_lines
from gpuscope.tui.shell.session import Session
from gpuscope.tui.widgets.bars import Bar
from gpuscope.wire import frames as f
from tests.fakes import jobs, views
from tests.fakes.asked import AskedSource, fails, gives
from tests.fakes.views import host_of
from tests.tui.pilot import in_loop, make_app, until
from tests.tui.snapshots import SIZES, text

SIZE = (120, 40)
GIB = views.GIB


def listed(frames: list[f.Frame], **choice: object) -> rows.Listing:
    store = views.store_of(frames)
    host = views.host_in(store)

    def history(entity: int, column: str, seconds: float | None):
        return store.history(host.key, entity, column, seconds)

    return rows.listing(host, history, rows.Choice(**choice), "Slurm job 4711 has SLURM_JOB_GPUS=0")  # type: ignore[arg-type]


def words(row) -> dict[str, str]:
    return {
        key: cell if isinstance(cell, str) else "".join(piece for piece, _ in cell)
        for key, cell in row.cells.items()
        if not isinstance(cell, Bar)
    }


def made(frames: list[f.Frame], **answers) -> tuple[GpuscopeApp, AskedSource]:
    source = AskedSource(frames, **answers)
    return GpuscopeApp(Session(make_source=lambda hz: source)), source


# ── rows ──


def test_ranks_of_one_job_stand_together_under_a_heading_with_their_sum():
    found = listed(views.training(4.0), sort="memory")
    told = [words(row) for row in found.rows]
    at = next(i for i, row in enumerate(told) if row["pid"] == "7 ranks")
    assert told[at]["gpu"] == "0-6"
    assert told[at]["command"] == "job train.py"
    sizes = [float(row["memory"]) for row in told[at + 1 : at + 8]]
    assert float(told[at]["memory"]) == pytest.approx(sum(sizes), abs=0.4)
    assert [row["command"].split(":")[0].strip() for row in told[at + 1 : at + 8]] == [
        f"rank {n}" for n in range(7)
    ]
    assert found.shown == found.all == 8


def test_totals_per_user_mine_first():
    found = listed(views.training(4.0))
    told = "".join(piece for piece, _ in found.totals)
    assert told.startswith("ada: 5")
    assert " GiB in 7 processes" in told
    assert "lin: 21.6 GiB in 1 process" in told
    assert [words(row)["user"] for row in listed(views.training(4.0), mine=True).rows].count(
        "lin"
    ) == 0


def test_the_total_of_processes_that_hold_nothing_that_is_counted_is_no_zero():
    found = listed(views.cpu_only())
    assert found.rows
    told = "".join(piece for piece, _ in found.totals)
    assert re.search(r": \d+ process", told), told
    assert "0 B" not in told


def test_the_state_tells_who_hangs_and_who_waits_and_what_has_no_probe():
    told = {row.key: words(row)["state"] for row in listed(jobs.ranks(stalled=True)).rows[1:]}
    ranks = list(told.values())
    assert ranks[:3] == ["◆ waits 47s in all_reduce"] * 3
    assert ranks[3] == "▲ stalled 47s data.py:88 in __getitem__"
    longer = [words(row)["state"] for row in listed(jobs.ranks(4, 117.0, stalled=True)).rows]
    assert longer[-1] == "▲ stalled 1m 44s data.py:88 in __getitem__"
    heading = listed(jobs.ranks(stalled=True)).rows[0]
    assert words(heading)["state"] == "▲ stalled 47s", "the gravest of its ranks"
    assert words(listed(views.training(4.0)).rows[0])["state"].startswith("◆ input-bound")
    states = [words(row)["state"] for row in listed(views.training(4.0)).rows[1:]]
    assert states.pop(5) == "◆ input-bound 31 % of a step"
    assert states[:6] == ["● step 4,003 median 901 ms"] * 6
    assert states[6] == "no probe"
    assert words(listed(views.vacant(10.0)).rows[0])["state"] == "○ idle"


def test_of_those_on_no_gpu_the_one_that_is_worst_off_comes_first():
    host, history = views.seen(views.cpu_only())
    entry = entries(host, history, Idleness())[0]
    pids = iter((11, 12, 13))

    def one(**state: object) -> ProcessEntry:
        definition = dataclasses.replace(entry.process.definition, pid=next(pids))
        process = dataclasses.replace(entry.process, definition=definition)
        return dataclasses.replace(entry, process=process, **state)  # type: ignore[arg-type]

    well, waits, hangs = one(), one(starved=0.9), one(stalled="bad")
    order = sorted((well, waits, hangs), key=lambda each: rows._order(each, "gpu"))
    assert order == [hangs, waits, well]
    assert sorted(order, key=lambda each: rows._order(each, "pid")) == [well, waits, hangs]


@pytest.mark.parametrize(
    ("size", "wanted"),
    [
        ((80, 24), ("step time   901 ms", "command     python train.py")),
        pytest.param(
            (120, 40),
            ("state 13.9 GiB · parameters 6.97 GiB", "GPU-Util ", "of 140 GiB"),
            marks=pytest.mark.slow,
        ),
        ((200, 60), ("What it does", "peak        53", "Last 1 min", "What happened to its job")),
    ],
    ids=["80x24", "120x40", "200x60"],
)
@in_loop
async def test_below_the_list_stands_what_is_known_of_the_process_under_the_cursor(size, wanted):
    app = make_app(views.training(60.0))
    async with app.run_test(size=size) as pilot:
        await until(pilot, "train.py")
        await pilot.press("P", "j")
        await until(pilot, "COMMAND", "51120", "Process 48213", *wanted)
        await pilot.press("j")
        await until(pilot, "Process 48214")


@in_loop
async def test_a_list_that_fills_a_small_terminal_keeps_its_rows():
    app = make_app(views.crowd())
    async with app.run_test(size=(80, 20)) as pilot:
        await until(pilot, "train0.py")
        await pilot.press("P")
        await until(pilot, "train7.py", absent="Process 482")


def test_idle_since_is_that_of_the_devices_it_holds():
    found = listed(views.vacant(10.0))
    row = words(next(row for row in found.rows))
    assert row["user"] == "lin"
    assert row["idle"].startswith("≥9s")
    assert words(listed(views.training(4.0)).rows[1])["idle"] == "", (
        "a device that works is not idle"
    )


def test_a_job_of_slurm_keeps_its_devices_and_says_what_is_not_shown():
    found = listed(views.training(4.0), job_gpus=frozenset({0}))
    assert found.shown == 1
    note = "".join(piece for piece, _ in found.notes[0])
    assert note == "not shown: GPU 1-7 with 7 processes: Slurm job 4711 has SLURM_JOB_GPUS=0"
    assert rows.job_gpus({"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "0,2-3"})[0] == {0, 2, 3}
    assert rows.job_gpus({"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "0", "SLURM_STEP_GPUS": "1"})[
        0
    ] == {1}
    for environment in (
        {},
        {"SLURM_JOB_ID": "7"},
        {"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "a,b"},
        {"SLURM_JOB_ID": 7},
    ):
        kept, why = rows.job_gpus(environment)
        assert kept is None
        assert "SLURM_JOB" in why


def test_container_pod_and_slurm_job_are_named_and_can_be_sought():
    frames = views.training(4.0)
    frames.append(
        f.Def(
            150,
            proc=f.ProcDef(
                51120, 9, views.WALL, "lin", "jupyter", "jupyter", 1, False, "docker 3f2a"
            ),
        )
    )
    assert words(listed(frames, text="51120").rows[0])["where"] == "docker 3f2a"
    assert listed(frames, text="docker").shown == 1
    assert listed(frames, text="gpu 3").shown == 1
    frames.append(
        f.Def(
            150,
            proc=f.ProcDef(
                51120, 9, views.WALL, "lin", "jupyter", "jupyter", 1, False, None, None, "4711"
            ),
        )
    )
    assert words(listed(frames, text="slurm 4711").rows[0])["where"] == "slurm 4711"


def test_an_owner_that_is_hidden_is_unknown_with_its_reason():
    frames = [
        *views.vacant(4.0),
        f.Def(150, proc=f.ProcDef(51120)),
        f.Def(250, use=f.UseDef(150, 10)),
    ]
    why = "process 51120 belongs to another user, and /proc hides those (hidepid)"
    frames.append(
        f.Sample(
            99,
            int(views.END * 1e9) + 1,
            why=[[150, name, f.NO_PERMISSION, why] for name in ("user", "command")],
        )
    )
    found = listed(frames)
    assert words(found.rows[0])["user"] == "–"
    assert "hidepid" in words(found.rows[0])["command"]
    note = "".join(piece for line in found.notes for piece, _ in line)
    assert (
        note == "unknown: owner of 1 of these: belongs to another user, and /proc hides those "
        "(hidepid)"
    )


def test_a_tree_loses_nobody_even_where_parents_form_a_ring():
    frames = views.training(4.0)
    for n, pid in ((13, 48213), (14, 48214), (15, 48215)):
        parent = {48213: 48214, 48214: 48213, 48215: 48213}[pid]
        frames.append(
            f.Def(
                100 + n,
                proc=f.ProcDef(
                    pid, 5000 + n, views.WALL, "ada", "python t", "python", parent, True
                ),
            )
        )
    found = listed(frames, tree=True)
    pids = [words(row)["pid"] for row in found.rows]
    assert len(pids) == len(set(pids)) == 8
    child = words(next(row for row in found.rows if words(row)["pid"] == "48215"))
    assert child["command"].startswith("  ")


@pytest.mark.parametrize("sort", rows.SORTS)
def test_every_order_is_total_and_keeps_all_rows(sort: str):
    found = listed(views.training(4.0), sort=sort)
    assert found.shown == 8
    marked = [
        column.key for column in rows.columns(rows.Choice(sort=sort)) if column.title.endswith("▾")
    ]
    assert marked == (
        [sort] if sort in {column.key for column in rows.columns(rows.Choice())} else []
    )


def test_three_hundred_hostile_processes_make_rows_without_harm():
    random.seed(7)
    evil = ["\x1b]52;c;QQ\x07", "\u202eabc", "a" * 4000, "[red]x[/]", "宽" * 50, "", "\n\n"]
    frames: list[f.Frame] = [views.hello(), views.host_def(), views.gpu(0)]
    sample = f.Sample(
        1, int(views.END * 1e9), h=[views.host_row()], g=[views.device_row(0, 50.0, 10.0)]
    )
    for n in range(300):
        name = random.choice(evil)
        frames.append(
            f.Def(
                1000 + n,
                proc=f.ProcDef(n + 2, n, views.WALL, name, name, name, random.randrange(302)),
            )
        )
        frames.append(f.Def(2000 + n, use=f.UseDef(1000 + n, 10)))
        sample.u.append(views.row("u", 2000 + n, used_bytes=GIB))
    for tree in (False, True):
        assert listed([*frames, sample], tree=tree).shown == 300


# ── the screen ──


@in_loop
async def test_the_screen_opens_sorts_filters_and_remembers(tmp_path):
    app = make_app(views.training(4.0))
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, "live")
        await pilot.press("P")
        await until(pilot, "Processes  8", "job train.py", "lin: 21.6 GiB in 1 process")
        await pilot.press("greater_than_sign")
        await until(pilot, "sorted by memory")
        await pilot.press("slash", *"jupyter", "enter")
        await until(pilot, "1 of 8", "51120", absent="job train.py")
        await pilot.press("T", "u")
        await until(pilot, "mine only", "tree", "no process matches")
        await pilot.press("c", "space", "escape")
        await until(pilot, absent="Show or leave out")
        assert app.session.state.process_hidden
    kept = dataclasses.replace(app.session.state)
    assert view_state.save(kept, tmp_path / "state.json") == ""
    again, _ = view_state.load(tmp_path / "state.json")
    assert (again.process_sort, again.process_tree) == ("memory", True)
    assert again.process_filter == "", "the next session shows all again"
    assert again.process_hidden == kept.process_hidden


@in_loop
async def test_a_signal_asks_first_and_goes_with_the_start_time(tmp_path):
    app, source = made(views.training(4.0), signal=gives({"pid": 51120, "signal": "TERM"}))
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, "live")
        await pilot.press("P", "slash", *"jupyter", "enter")
        await until(pilot, "1 of 8")
        await pilot.press("K")
        await until(
            pilot,
            "Send a signal",
            "pid 51120",
            "not yours: only root may signal it",
            "21.6 GiB of GPU memory",
        )
        assert source.asked == []
        await pilot.press("escape")
        await until(pilot, absent="Send a signal")
        assert source.asked == []
        await pilot.press("f9")
        await until(pilot, "9  KILL  ends it at once", "T  TERM  asks it to end")
        await pilot.press("enter")
        await until(pilot, "Enter sends nothing")
        await pilot.press("K")  # what opened the dialog kills nobody when it is pressed twice
        await pilot.pause()
        assert source.asked == []
        await pilot.press("9")
        await until(pilot, "9 again: send KILL")
        await pilot.press("enter")
        await until(pilot, "Enter sends nothing")
        await pilot.press("9")
        await until(pilot, "9 again: send KILL")
        assert source.asked == []
        await pilot.press("9")
        await until(pilot, "Sent. KILL to pid 51120; no program can refuse it")
    assert source.asked == [("signal", {"pid": 51120, "start": 9, "signal": "KILL"})]
    log = (tmp_path / "gpuscope" / "attach.log").read_text()
    assert "signal KILL to pid 51120 (start 9, lin) on node-17: jupyter: sent" in log


@in_loop
async def test_a_heading_of_several_ranks_takes_no_signal():
    app, source = made(views.training(4.0), signal=gives({}))
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, "live")
        await pilot.press("P")
        await until(pilot, "7 ranks")
        await pilot.press("K")
        await until(pilot, "put the cursor on a rank")
        await pilot.press("j", "K")
        await until(pilot, "Send a signal", "pid 48213")
    assert source.asked == []


@pytest.mark.slow
@in_loop
async def test_the_first_process_and_threads_of_the_kernel_are_never_asked_about():
    init = f.ProcDef(1, 9, views.WALL, "root", "init", "init", 0, True)
    thread = f.ProcDef(77, 9, views.WALL, "root", "[nvidia]", "nvidia", 2, True)
    frames = views.vacant(4.0, named=False)
    for n, one in ((160, init), (161, thread)):
        frames += [f.Def(n, proc=one), f.Def(n + 100, use=f.UseDef(n, n - 150))]
    app, source = made(frames, signal=gives({}))
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, "live")
        await pilot.press("P")
        await until(pilot, "init")
        await pilot.press("K")
        await until(pilot, "pid 1 is the system's first process", absent="Send a signal")
        await pilot.press("j", "K")
        await until(pilot, "pid 77 is a kernel thread", absent="Send a signal")
    assert source.asked == []


@in_loop
async def test_a_refusal_is_told_in_words():
    app, _ = made(views.training(4.0), signal=fails("refused", "pid 51120 belongs to another user"))
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, "live")
        await pilot.press("P", "slash", *"jupyter", "enter", "K", "T")
        await until(pilot, "Not sent: pid 51120 belongs to another user")


@in_loop
async def test_readonly_acts_on_nobody():
    source = AskedSource(views.training(4.0), signal=gives({}))
    app = GpuscopeApp(Session(make_source=lambda hz: source, settings=Settings(readonly=True)))
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, "live")
        await pilot.press("P")
        await until(pilot, "7 ranks")
        await pilot.press("j", "K")
        await until(pilot, "--readonly")
        assert "Send a signal" not in text(app)
        for action in ("signal", "attach", "snapshot", "profile", "history"):
            assert "--readonly" in app.session.why_not(action)
        await pilot.press("escape", "K", "a", "s")
        await pilot.pause(0.05)
    assert source.asked == []


@in_loop
async def test_the_environment_is_asked_for_when_somebody_looks():
    told = {"environment": {"RANK": "3", "NCCL_DEBUG": "\x1b[31mINFO"}, "others": 41}
    app, source = made(views.training(4.0), environment=gives(told))
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, "live")
        await pilot.press("P", "slash", *"jupyter", "enter", "e")
        shown = await until(
            pilot, "Environment of pid 51120", "RANK", "41 other variables are not shown"
        )
        assert "\x1b" not in shown
    assert source.asked == [("environment", {"pid": 51120, "start": 9})]


@pytest.mark.slow
@in_loop
async def test_my_slurm_job_is_that_of_the_agent_and_its_absence_has_a_reason():
    app, _ = made(
        views.training(4.0),
        environment=gives({"environment": {"SLURM_JOB_ID": "9", "SLURM_JOB_GPUS": "2"}}),
    )
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, "live")
        await pilot.press("P", "J")
        await until(pilot, "2 of 8", "not shown: GPU 0, 1, 3-7", "SLURM_JOB_GPUS=2")
    app, _ = made(views.training(4.0), environment=gives({"environment": {}}))
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, "live")
        await pilot.press("P", "J")
        await until(pilot, "does not run in a Slurm job")


@pytest.mark.slow
@in_loop
async def test_with_ascii_in_the_config_nothing_else_is_drawn():
    app = make_app(views.training(4.0), settings=Settings(ascii=True, theme="colour-blind"))
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, "live")
        await pilot.press("P")
        await until(pilot, "Processes")
        assert app.theme == "gpuscope-colour-blind"
        filters = app.get_line_filters()
        from rich.segment import Segment
        from textual.color import Color

        drawn = [Segment("▸ ≥1h06 ─╮│ … × 宽")]
        for one in filters:
            drawn = one.apply(drawn, Color(0, 0, 0))
        assert "".join(segment.text for segment in drawn).isascii()


@pytest.mark.slow
@in_loop
async def test_a_real_process_ends_by_a_real_agent():
    """From the dialog through the agent to the process and back."""
    child = subprocess.Popen(["sleep", "60"])
    try:
        session = Session(make_source=lambda hz: local_source(hz, Settings()))
        app = GpuscopeApp(session)
        async with app.run_test(size=SIZE) as pilot:
            await until(pilot, "live")
            from gpuscope.store.view import ProcView

            definition = f.ProcDef(
                child.pid,
                start_ticks(child.pid),
                None,
                "me",
                "sleep 60",
                "sleep",
                os.getpid(),
                True,
            )
            app.open("signal", ProcView(1, "x", {}, None, None, definition, (), None))
            await until(pilot, "Send a signal")
            await pilot.press("T")
            await until(pilot, f"Sent. TERM to pid {child.pid}; how it reacts is up to the program")
        session.close()
        assert child.wait(5) == -signal.SIGTERM
    finally:
        child.kill()
        child.wait()


@pytest.mark.parametrize("size", SIZES[:2])
@in_loop
async def test_who_hangs_is_told_before_idle_times_and_owners(size):
    app = make_app(jobs.ranks(stalled=True))
    async with app.run_test(size=size) as pilot:
        await until(pilot, "train.py")
        await pilot.press("P")
        await until(pilot, "sorted by", "▲ stalled 47s", "◆ waits 47s")


def test_a_rank_that_waits_outside_of_a_collective_waits_all_the_same():
    frames = jobs.ranks(stalled=True)
    column = 1 + f.TRAINER_COLUMNS.index("stall_at")
    for frame in frames:
        for row in frame.t if isinstance(frame, f.Sample) else ():
            if isinstance(row[column], str) and "all_reduce" in row[column]:
                row[column] = "train.py:62 main"
    states = [words(row)["state"] for row in listed(frames).rows[1:]]
    assert states[:3] == ["◆ waits 47s at train.py:62 in main"] * 3
    assert states[3].startswith("▲ stalled 47s")


def test_a_signal_to_a_rank_says_what_it_means_for_the_others():
    host = host_of(views.training())
    said = {
        p.definition.pid: " ".join(plain(line) for line in rank_lines(host, p))
        for p in host.processes
    }
    assert "rank 3 of 7 of train.py" in said[48216]
    assert "the other 6 ranks wait for it" in said[48216]
    assert said[51120] == ""


@in_loop
async def test_the_row_of_a_stalled_job_shows_the_rank_that_keeps_the_others():
    app = make_app(jobs.ranks(stalled=True))
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, "live", "train.py")
        await pilot.press("P")
        await until(pilot, "▸  4 ranks", "Process 48203")


def test_a_wide_list_shows_where_a_rank_hangs_to_its_end():
    state = "▲ stalled 3m 47s preprocess_shards.py:1034 in __getitem__"
    line = [rows.TableRow("1", {"state": [(state, "bad")], "command": [("train.py", "text")]})]

    def cells_of_the_state(room: int) -> int:
        return next(c.width for c in rows.columns(rows.Choice(), line, room) if c.key == "state")

    assert cells_of_the_state(196) >= len(state)
    assert cells_of_the_state(116) == 40, "a narrower list needs its cells for the command"


@in_loop
async def test_what_a_trainer_is_asked_goes_to_the_rank_that_is_shown():
    source = AskedSource(jobs.ranks(stalled=True), stacks=gives({}), snapshot=gives({}))
    app = GpuscopeApp(Session(make_source=lambda hz: source))
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, "live", "train.py")
        await pilot.press("P")
        await until(pilot, "▸  4 ranks", "Process 48203")
        await pilot.press("S")
        await until(pilot, "Stacks of rank 3, pid 48203")
        await pilot.press("escape")
        await until(pilot, "Process 48203")
        await pilot.press("s")
        await until(pilot, "Enter Take it", "rank 3")
