"""A wide terminal shows more of what is known, and shows nothing twice."""

from __future__ import annotations

import dataclasses

import pytest

from gpuscope.store.replay import ReplaySource
from gpuscope.tui.app.app import GpuscopeApp
from gpuscope.tui.hosts.runs import joined
from gpuscope.tui.hosts.summary import summarise
from gpuscope.tui.shell.session import Session
from gpuscope.tui.trainer.job_charts import BROAD, arrange
from gpuscope.tui.widgets.pane import set_title
from gpuscope.tui.widgets.text import Lines
from gpuscope.wire import frames as f
from tests.fakes import fleet, jobs, views
from tests.fakes.asked import AskedSource, gives
from tests.model.test_lost_loss import telling
from tests.recordings import REDACTED, SHIPPED
from tests.tui.pilot import at_the_jobs, feed, in_loop, make_app, until
from tests.tui.snapshots import text
from tests.tui.test_hosts_pane import SIX, app_of, settled
from tests.tui.test_job_screen import open_the_job

LARGE, USUAL = (200, 60), (120, 40)


def heading(screen: str, first: str) -> list[str]:
    return next(line for line in screen.splitlines() if f" {first} " in line).split()


# ── processes ──


@pytest.mark.slow
@in_loop
async def test_a_wide_list_of_processes_has_the_training_and_says_the_pace_once():
    app = make_app(views.training())
    async with app.run_test(size=LARGE) as pilot:
        await until(pilot, "live")
        await pilot.press("P")
        screen = await until(pilot, "STEP TIME", "INPUT", "LOSS", "PEAK GiB", "tensor cores")
        row = next(line for line in screen.splitlines() if " 48218 " in line)
        assert row.count("901 ms") == 1
        assert " 31 % " in row, "the rank that waits for its data"
        assert "allocated by torch" in screen
        await pilot.resize_terminal(*USUAL)
        small = await until(pilot, "step 4,019 median 901 ms", absent="STEP TIME")
        assert "PEAK GiB" not in small


@pytest.mark.slow
@in_loop
async def test_charts_leave_the_list_of_processes_no_blank_rows():
    app = make_app(views.training())
    async with app.run_test(size=LARGE) as pilot:
        await until(pilot, "live")
        await pilot.press("P")
        screen = await until(pilot, "Process 48213", "GPU power")
        lines = screen.splitlines()
        last = next(at for at, line in enumerate(lines) if " 51120 " in line)
        assert lines[last + 1].startswith("╰")


# ── memory ──


@pytest.mark.slow
@in_loop
async def test_a_wide_memory_tab_says_what_the_allocator_counts_and_what_would_help():
    app = make_app(views.training(), "memory")
    async with app.run_test(size=LARGE) as pilot:
        wanted = ("live blocks", "4,113", "3 allocation retries", "halve the micro-batch")
        screen = await until(pilot, *wanted, "Memory in use by GPU", "FSDP2 over 7 ranks")
        assert "fully_shard(block) for every block" in screen
        for key, table in (("W", "What if"), ("c", "Counter"), ("w", "Where the bytes are")):
            await pilot.press(key)
            await until(pilot, table, "live blocks")
        await pilot.resize_terminal(*USUAL)
        await until(pilot, "Where the bytes are", absent="live blocks")


@in_loop
async def test_gpus_without_a_line_of_their_own_are_shown_as_one_mean():
    app = make_app(fleet.node(1, "tight", 70.0), "memory")
    async with app.run_test(size=LARGE) as pilot:
        await until(pilot, "Memory in use by GPU", "finding:")
        app.main.refresh_all()
        screen = await until(pilot, "Memory in use by GPU", "other GPUs, mean")
        chart = screen.split("Memory in use by GPU")[1].splitlines()
        named = sum("│ GPU " in line[:10] for line in chart)
        other = next(line for line in chart if "other GPUs, mean" in line)
        assert named + int(other.split()[1]) == 8, "all GPUs are there"
        assert "now" in chart[-4] + chart[-3], "and so is the axis"


@in_loop
async def test_what_is_held_after_each_step_is_a_curve_of_its_own():
    app = make_app(jobs.ranks(leaks=2), "memory")
    async with app.run_test(size=LARGE) as pilot:
        await until(pilot, "Held after each step, GiB", "held after a step", " at step ")


def one_that_hangs() -> list[f.Frame]:
    """Return a training on a CPU whose only process stands in its loader since its 40th step."""
    frames = views.cpu_only(60.0)
    for number, sample in enumerate(one for one in frames if isinstance(one, f.Sample)):
        at = views.PLACES["t"]
        for row in sample.t:
            for column, value in jobs.split(0.05).items():
                row[at[column]] = value
            if number > 40:
                row[at["step"]], row[at["step_age_seconds"]] = 400, (number - 40) / 2
                row[at["stall_at"]] = "/data/train/data.py:88 __getitem__"
    return frames


@in_loop
async def test_an_only_process_that_hangs_has_its_stack_and_its_steps_are_past():
    async with make_app(one_that_hangs()).run_test(size=LARGE) as pilot:
        await until(
            pilot,
            *("stalled:", "Where a step went, last 32 steps", "Stack of the training thread"),
            absent="holds up the others",
        )


@in_loop
async def test_the_panels_of_a_hang_are_as_high_as_its_stack():
    frames = [*([["/t/data.py", at, "inner"] for at in range(1, 8)]), ["/t/t.py", 9, "outermost"]]
    threads = [{"name": "MainThread", "training": True, "main": True, "frames": frames}]
    source = AskedSource(one_that_hangs(), stacks=gives({"threads": threads}))
    async with GpuscopeApp(Session(source=source), "overview").run_test(size=LARGE) as pilot:
        await until(pilot, "Stack of the training thread", "outermost")
        for _ in range(2):  # the next reading places the panels
            pilot.app.main.refresh_all()
            await pilot.pause(0.2)
        rows = text(pilot.app).splitlines()
        last = next(n for n, row in enumerate(rows) if "outermost" in row)
        ends = next(n for n, row in enumerate(rows[last:]) if "╰" in row)
        assert ends <= 6, "the charts above have the rest"


@in_loop
async def test_time_and_memory_open_on_the_training_that_has_come_to_hang_on_a_cpu():
    frames, sound = one_that_hangs(), views.cpu_only(60.0)
    (frame,) = (one for one in sound if isinstance(one, f.Def) and one.trainer is not None)
    trainer = dataclasses.replace(frame.trainer, script="sound.py", pid=7001, start=600, proc=120)
    process = f.ProcDef(7001, 600, views.WALL - 300, "ada", "python sound.py", "python", 1, True)
    frames[2:2] = [f.Def(120, proc=process), f.Def(320, trainer=trainer)]
    at = [n for n, frame in enumerate(frames) if isinstance(frame, f.Sample)]
    for step, n in enumerate(at, 100):
        frames[n].t.append(views.trainer_row(20, 10 * step, 0.05))
    app = make_app(frames[: at[30]])
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "▸ sound.py", "gpuscope lab", absent="stalled")
        feed(app, *frames[at[30] :])
        app.main.refresh_all()
        await until(pilot, "stalled:")
        app.main.refresh_all()
        await pilot.press("3")
        await until(pilot, "(pid 7021)", "stalled")
        await pilot.press("2")
        await until(pilot, "CPU · gpuscope lab (pid 7021)")


def one_gpu() -> list[f.Frame]:
    frames: list[f.Frame] = [views.hello(), views.host_def(), views.gpu(0)]
    frames += views.trainer(48213, 0, 1, "ada", True, "job-a")
    for q, at, _ in views.ticks():
        sample = f.Sample(q, int(at * 1e9), h=[views.host_row()])
        sample.g = [views.device_row(0, 60.0, 90.0)]
        sample.a = [views.allocator_row(13, 40.0, 55.0, 5.0)]
        sample.t = [views.trainer_row(13, 100 + q, 0.5)]
        frames.append(sample)
    return frames


@in_loop
async def test_a_wide_overview_has_what_the_memory_is_made_of_beside_a_loss():
    app = make_app(one_gpu())
    async with app.run_test(size=LARGE) as pilot:
        await until(pilot, "Loss 4", "Memory of the training", "optimizer state 10.0 GiB")


@in_loop
async def test_the_curve_of_a_loss_that_turned_nan_stays_and_says_so():
    async with make_app(telling("nan")).run_test(size=(200, 80)) as pilot:
        await until(pilot, "─ Loss nan ─", "loss is nan since step 4,026")


@in_loop
async def test_the_only_gpu_has_no_chart_that_repeats_the_timeline():
    app = make_app(one_gpu(), "memory")
    async with app.run_test(size=LARGE) as pilot:
        screen = await until(pilot, "─ Live blocks ─")
        assert "Memory in use by GPU" not in screen


# ── the doctor ──


@in_loop
async def test_a_finding_names_its_box_and_the_trainer_it_is_about_has_its_courses_below():
    app = make_app(jobs.ranks(stalled=True), "doctor")
    async with app.run_test(size=LARGE) as pilot:
        title = (
            "─ Hang: rank 3 is stuck at data.py:88 in __getitem__; ranks 0–2 wait in all_reduce ─"
        )
        screen = await until(pilot, title, "Rank 3 over 1 min", "none for 47 s")
        assert screen.count("hang-in-loader") == 1, "the name of the pitfall stands with it only"


def test_a_title_reads_no_markup() -> None:
    panel = Lines()
    set_title(panel, "targets[0] of [bold]x")
    assert panel._border_title.plain == "targets[0] of [bold]x"


# ── a job ──


def test_a_wide_job_has_its_texts_in_a_line_and_up_to_three_charts_in_a_row() -> None:
    lines = arrange(200, 45, ("stack", *BROAD, "events"))
    assert lines == [["stack", "cure", "events"], ["step", "memory", "load"], ["trends"]]
    on_a_cpu = arrange(200, 45, ("stack", "step", "memory", "trends", "cure", "events"))
    assert on_a_cpu == [["stack", "cure", "events"], ["step", "memory", "trends"]]
    assert arrange(120, 45, ("step", "loss", "memory", "pace", "events"))[0] == ["step", "loss"]
    few = arrange(200, 45, ("memory", "load", "trends", "events"))
    assert few == [["memory", "load", "trends"], ["events"]]


def test_a_memory_that_says_little_stands_small_beside_the_texts_of_a_job() -> None:
    cured = arrange(200, 45, ("step", "trends", "cure", "held", "events"))
    assert cured == [["cure", "held", "events"], ["step", "trends"]]
    calm = arrange(200, 45, ("step", "load", "trends", "held", "events"))
    assert calm == [["step", "load", "trends"], ["held", "events"]]
    narrower = arrange(130, 45, ("step", "pace", "held", "events"))
    assert narrower == [["step", "pace"], ["held", "events"]]
    hangs = arrange(130, 45, ("stack", "step", "pace", "events"))
    assert hangs == [["stack", "events"], ["step", "pace"]]


def on_a_cpu(*rss: float) -> tuple[list[f.Frame], dict[str, object]]:
    """Return a training of 20 s whose memory was so, and its steps of the 5 minutes before."""
    frames = views.cpu_only(20.0)
    samples = [one for one in frames if isinstance(one, f.Sample)]
    for number, sample in enumerate(samples):
        held = int(rss[number * len(rss) // len(samples)])
        sample.p = [views.row("p", 121, cpu_percent=90.0, rss_bytes=held)]
    first = min(one.m for one in samples)
    moments = [first - (300 - 2 * n) * 10**9 for n in range(150)]
    steps = {"m": moments, "step": [*range(150)], "step_seconds": [0.2] * 150}
    return frames, {"trainer": steps, "allocators": []}


@in_loop
async def test_a_steady_or_young_memory_of_a_process_leaves_its_rows_and_says_since_when_it_is():
    frames, recent = on_a_cpu(views.GIB)
    source = AskedSource(frames, recent=gives(recent))
    async with GpuscopeApp(Session(source=source), "overview").run_test(size=LARGE) as pilot:
        await open_the_job(pilot)
        screen = await until(pilot, "over 10 min", "some since gpuscope started, ")
        rows = screen.splitlines()
        begins = next(n for n, row in enumerate(rows) if "─ Memory of the process " in row)
        assert "since gpuscope started, " in rows[begins]
        assert begins >= len(rows) - 12, "it has few rows"
        for wanted in ("RSS ", "input wait "):
            assert wanted in screen, "a line says it"


@in_loop
async def test_a_memory_of_a_process_that_changes_has_a_chart_of_its_own():
    frames, _ = on_a_cpu(views.GIB, 2 * views.GIB, 3 * views.GIB)
    async with make_app(frames).run_test(size=LARGE) as pilot:
        await open_the_job(pilot)
        screen = await until(pilot, "Memory of the process over 30 s")
        rows = screen.splitlines()
        begins = next(n for n, row in enumerate(rows) if "─ Memory of the process " in row)
        assert "─ Last 30 s ─" in rows[begins], "beside the others, and as high"
        assert "since gpuscope started" not in screen


@in_loop
async def test_a_wide_job_has_the_load_of_its_gpus_and_every_reading_of_its_ranks():
    app = make_app(jobs.ranks())
    async with app.run_test(size=LARGE) as pilot:
        await open_the_job(pilot)
        screen = await until(pilot, "Utilisation of its GPUs", "CPU, 4 ranks")
        assert "STEP TIME, 1 min" in screen
        assert "GPU MEMORY" in screen
        columns = heading(screen, "RANK")
        for column in ("P95", "INPUT", "LOSS", "UTIL", "POWER", "CPU"):
            assert column in columns
        await pilot.resize_terminal(*USUAL)
        small = await until(pilot, "RANK", absent="Utilisation of its GPUs")
        assert "P95" not in heading(small, "RANK")


@pytest.mark.slow
@in_loop
async def test_the_row_of_a_rank_that_hangs_shows_when_its_steps_ended():
    app = make_app(jobs.ranks(stalled=True))
    async with app.run_test(size=LARGE) as pilot:
        await open_the_job(pilot)
        screen = await until(pilot, "STEP TIME, 1 min", "STUCK AT", "Utilisation of its GPUs")
        row = next(line for line in screen.splitlines() if " 48203 " in line)
        assert "─┄┄┄" in row, "steps, and since then none"
        assert "Median step by rank" not in screen, "the rows have it"


@in_loop
async def test_a_recording_of_a_wide_job_gives_no_room_to_a_stack_that_it_does_not_have():
    replay = ReplaySource(REDACTED / "h200x2-stall.gsr")
    replay.pause()
    replay.seek(70.0)
    app = GpuscopeApp(Session(replay=replay))
    async with app.run_test(size=LARGE) as pilot:
        overview = await until(pilot, "REPLAY", "stalled:", "Where a step went, ", "Findings: why")
        assert "Stack of" not in overview
        assert "collectives launched: rank 1: 55, rank 0: 56" in overview
        await at_the_jobs(pilot)
        await pilot.press("enter")
        screen = await until(pilot, "STUCK AT", "Utilisation of its GPUs", "no progress")
        assert "Stack of" not in screen
        await pilot.resize_terminal(120, 40)
        screen = await until(pilot, "STUCK AT", absent="Utilisation of its GPUs")
        assert "no stack" not in screen
        assert "Median step by rank" in screen


# ── the log ──


@in_loop
async def test_a_wide_log_shows_all_of_a_few_events_and_the_rest_has_what_they_leave():
    app = make_app(views.hung(), "log")
    async with app.run_test(size=LARGE) as pilot:
        screen = await until(pilot, "Events over time", "Also of this GPU", "host memory")
        listed = screen.split("Events over time")[0]
        for event in ("pid 51120", "attached", "hung", "lost", "bus"):
            assert event in listed
        assert "┃" not in listed, "nothing to scroll"
        assert "▲ GPU 5 is lost: no program can use it" in screen
        now = screen.split("Other open findings")[1]
        assert "▲ GPU 3 does not answer: no program can use it" in now
        assert "no job has ended since gpuscope started" in now


@in_loop
async def test_a_wide_log_compares_the_readings_before_an_event_with_those_after_it():
    replay = ReplaySource(REDACTED / "h200x2-stall.gsr")
    replay.pause()
    replay.seek(30.0)
    app = GpuscopeApp(Session(replay=replay), "log")
    async with app.run_test(size=LARGE) as pilot:
        await until(pilot, "REPLAY", "script-1")
        replay.seek(57.0)
        await until(pilot, "problem found", absent="30 s before")
        replay.seek(76.0)
        screen = await until(pilot, "problem found", "30 s before", "step time, rank 0")
        row = next(line for line in screen.splitlines() if "step time, rank 0" in line)
        before, after = row.split("rank 0")[1].split("│")[0].rsplit(maxsplit=1)
        assert before.strip().endswith("ms"), "it stepped"
        assert after == "none", "and hangs since"
        assert "GPU 0 utilisation" in screen
        await pilot.resize_terminal(*USUAL)
        await until(pilot, "Events over time", absent="30 s before")


@in_loop
async def test_a_wide_log_has_the_load_of_the_gpus_of_an_event_below_what_the_doctor_says():
    replay = ReplaySource(REDACTED / "h200x2-stall.gsr")
    replay.pause()
    replay.seek(76.0)
    app = GpuscopeApp(Session(replay=replay), "log")
    async with app.run_test(size=LARGE) as pilot:
        screen = await until(pilot, "problem found", "GPU load over 2 min", "no progress")
        below = screen.split("The Doctor now")[1].split("GPU load over")[1]
        for lane in ("GPU 0 ", "tensor ", "GPU 1 "):
            assert lane in below
        await pilot.resize_terminal(*USUAL)
        await until(pilot, "Events over time", absent="GPU load over")


@in_loop
async def test_a_wide_log_has_the_stack_of_the_rank_that_hangs_below_what_the_doctor_says():
    threads = [{"name": "MainThread", "training": True, "frames": [["/t/data.py", 88, "read"]]}]
    source = AskedSource(one_that_hangs(), stacks=gives({"threads": threads}))
    async with GpuscopeApp(Session(source=source), "log").run_test(size=LARGE) as pilot:
        screen = await until(
            pilot, "Events over time", "Stack of the training thread", "data.py:88"
        )
        right = screen.split("The Doctor now")[1].split("Stack of the training thread")[1]
        assert "read  data.py:88" in right
        assert "The host over" not in screen, "that stands below the readings of the training"


@in_loop
async def test_a_wide_log_without_a_gpu_has_the_host_beside_its_trainings():
    frames, _ = on_a_cpu(views.GIB)
    async with make_app(frames, "log").run_test(size=LARGE) as pilot:
        screen = await until(pilot, "over 30 s", "The host over 30 s", "load average")
        left, right = zip(*(row.partition("││")[::2] for row in screen.splitlines()), strict=True)
        assert any("RSS " in row for row in left)
        assert not any("load average" in row for row in left), "it stands once"
        assert any("host memory" in row for row in right)


@in_loop
async def test_a_wide_log_says_how_jobs_ended_with_their_last_loss():
    app = make_app(views.ended(), "log")
    async with app.run_test(size=LARGE) as pilot:
        screen = await until(pilot, "How jobs ended", "killed train0.py: by SIGKILL")
        ends = screen.split("How jobs ended")[1]
        assert "step 109" in ends
        assert "5.046 · after 2 h 01 min" in ends


# ── the fleet ──


def test_ranks_of_one_job_on_two_hosts_are_one_line() -> None:
    def host_of(name: str, number: int):
        host = views.host_of(fleet.node(number, "busy", seconds=3.0, name=name))
        return summarise(host)

    one, other = host_of("alpha", 0), host_of("bravo", 1)
    assert len(joined([("alpha", one.runs()), ("bravo", other.runs())])) == 2, "two jobs"
    same = tuple(run._replace(key="job-x") for run in one.runs())
    (job,) = joined([("alpha", same), ("bravo", same)])
    assert [name for name, _ in job.parts] == ["alpha", "bravo"]


@pytest.mark.slow
@pytest.mark.parametrize("size", [(160, 60), LARGE])
@in_loop
async def test_a_wide_fleet_has_the_jobs_of_all_hosts_and_charts_of_one(size):
    app = app_of(SIX)
    async with app.run_test(size=size) as pilot:
        await settled(pilot)
        screen = await until(pilot, "HOSTS", "─ GPUs of bravo", "GPU utilisation")
        rows = [line for line in screen.splitlines() if "stalled" in line and "bravo" in line]
        assert rows, "the job that hangs says so"
        trains = next(line for line in screen.splitlines() if "● trains" in line)
        assert "alpha" in trains
        await pilot.press("end")
        await until(pilot, "─ GPUs of alpha")
        await pilot.resize_terminal(*USUAL)
        await until(pilot, "─ GPUs of", absent="GPU utilisation")


@pytest.mark.slow
@in_loop
async def test_a_host_that_becomes_quiet_while_looked_at_waits_a_minute_before_it_says_so():
    app = make_app(views.vacant(60.0))
    async with app.run_test(size=LARGE) as pilot:
        await until(pilot, "What you can do here")
        busy = [views.device_row(2, 30.0, 90.0)]
        feed(app, f.Sample(900, int((views.END + 1) * 1e9), g=busy))
        await until(pilot, "GPU utilisation", absent="What you can do here")
        for second, wanted in ((50, "GPU utilisation"), (70, "What you can do here")):
            idle = [views.device_row(i, 0.0, 0.0) for i in range(8)]
            moment = int((views.END + second) * 1e9)
            feed(app, f.Sample(900 + second, moment, h=[views.host_row()], g=idle))
            await until(pilot, wanted)
            assert ("What you can do" in text(app)) == (second > 60)


@in_loop
async def test_a_host_without_readings_has_what_it_needs_in_place_of_empty_boxes():
    app = app_of(SIX)
    async with app.run_test(size=LARGE) as pilot:
        await settled(pilot)
        await pilot.press("j")
        wanted = ("echo: no reading yet", "Python 3.8", "Wrong on the other hosts")
        screen = await until(pilot, *wanted, absent="─ GPUs of")
        assert "no readings yet" not in screen, "no chart of nothing"
        assert "Hang: rank 3 is stuck" in screen.split("Wrong on the other hosts")[1]
        await pilot.press("k")
        await until(pilot, "─ GPUs of bravo", "GPU utilisation", absent="echo: no reading yet")


# ── the time ──


@in_loop
async def test_a_wide_time_tab_says_of_an_undivided_clock_what_the_process_does_and_holds():
    replay = ReplaySource(REDACTED / "h200-lab.gsr")
    replay.pause()
    replay.seek(80.0)
    app = GpuscopeApp(Session(replay=replay), "time")
    async with app.run_test(size=LARGE) as pilot:
        screen = await until(pilot, "Its steps", "Process 471", "since the start")
        assert "of 20,000" in screen
        assert "activations + temp" in screen
        await pilot.resize_terminal(80, 24)
        await until(pilot, "Its steps", absent="Process 471")


@pytest.mark.slow
@in_loop
async def test_a_wide_time_tab_has_the_process_below_a_part_of_a_step_and_of_a_hang_both_texts():
    replay = ReplaySource(SHIPPED / "h200-lab.gsr")
    replay.pause()
    replay.seek(74.0)
    async with GpuscopeApp(Session(replay=replay), "time").run_test(size=LARGE) as pilot:
        screen = await until(pilot, "─ Compute ─", "─ Process 10630 ─", "The mean of the last 32")
        own = screen.split("─ Process 10630 ─")[1]
        for line in ("torch now ", "peak ", "command ", "host "):
            assert f"│ {line}" in own, "it is whole"
        await pilot.resize_terminal(*USUAL)
        await until(pilot, "─ Step breakdown over", absent="─ Process 10630 ─")
    threads = [{"name": "MainThread", "training": True, "frames": [["/t/data.py", 88, "read"]]}]
    source = AskedSource(one_that_hangs(), stacks=gives({"threads": threads}))
    async with GpuscopeApp(Session(source=source), "time").run_test(size=LARGE) as pilot:
        await until(pilot, "─ Compute ─", "─ Stack of the training thread ─", "read  data.py:88")


@in_loop
async def test_how_the_last_training_went_stays_to_be_seen_after_it_ended():
    replay = ReplaySource(REDACTED.parent / "slow-input-cpu.gsr")
    replay.pause()
    replay.seek(73.0)
    app = GpuscopeApp(Session(replay=replay))
    async with app.run_test(size=LARGE) as pilot:
        screen = await until(pilot, "ended at 21:16:57", "step, ended", "input wait, ended")
        assert "load average, 1 min" in screen
        assert "swap in use" not in screen, "none was"
        row = next(line for line in screen.splitlines() if "input wait, ended" in line)
        assert "┄" in row, "and since then nothing"
        replay.seek(60.0)
        await until(pilot, "input wait", absent="input wait, ended")


# ── the job below the charts of the Overview ──


def box(screen: str, title: str) -> list[str]:
    """Return the lines inside the frame with this title, which has a lower edge."""
    rows = screen.splitlines()
    top = next((n for n, row in enumerate(rows) if f"─ {title} ─" in row), None)
    if top is None:
        return []
    left = rows[top].index(f"╭─ {title} ─")
    below = [row[left : left + 1] for row in rows[top + 1 :]]
    assert "╰" in below, title
    height = below.index("╰")
    assert set(below[:height]) <= {"│"}, title
    return [row[left + 1 :].partition("│")[0] for row in rows[top + 1 : top + 1 + height]]


@pytest.mark.slow
@in_loop
async def test_the_texts_of_a_job_in_brief_have_whole_frames_with_something_in_them():
    app = make_app(jobs.ranks(stalled=True))
    async with app.run_test(size=LARGE) as pilot:
        shown = 0
        for height in range(60, 40, -2):
            await pilot.resize_terminal(200, height)
            screen = await until(pilot, "Jobs", "step time: median")
            await pilot.pause(0.3)
            screen = text(app)
            for title in ("Findings: what to do", "What happened"):
                inside = box(screen, title)
                shown += bool(inside)
                assert not inside or "".join(inside).strip(), (title, height)
        assert shown > 5


@in_loop
async def test_ranks_with_nothing_below_them_leave_the_width_to_what_to_do():
    source = ReplaySource(REDACTED / "h200x2-ddp.gsr")
    source.pause()
    source.seek(60.0)
    app = GpuscopeApp(Session(replay=source))
    async with app.run_test(size=LARGE) as pilot:
        wanted = (": ranks ─", "Findings: what to do", "What happened")
        lines = (await until(pilot, *wanted, "weights stay float32.")).splitlines()
        ranks = next(at for at, line in enumerate(lines) if ": ranks ─" in line)
        below = next(at for at, line in enumerate(lines) if "Findings: what to do" in line)
        assert below == ranks + 5, "two ranks, their headings and the frame"
        assert "What happened" in lines[below], "side by side"
        assert "1 Compute forward and loss in bf16; weights stay float32." in lines[below + 1]


@in_loop
async def test_the_ranks_of_a_job_are_of_the_same_moment_as_its_processes():
    source = ReplaySource(REDACTED / "h200x2-ddp.gsr")
    source.pause()
    source.seek(60.0)
    app = GpuscopeApp(Session(replay=source))
    async with app.run_test(size=LARGE) as pilot:
        await until(pilot, ": ranks ─", "weights stay float32.")
        app.main.pane.show_charts = lambda host: None  # they come less often than numbers
        for moment, step in ((61.0, 615), (61.5, 620)):
            source.seek(moment)
            screen = await until(pilot, f"● step {step} median")
            row = next(line for line in screen.splitlines() if line.startswith("│     0    0 "))
            assert f" {step} " in row, "the same step among the ranks"
