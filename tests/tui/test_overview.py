"""The Overview shares its room, begins where the worst is, and opens what its titles promise."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.app import App, ComposeResult
from textual.pilot import Pilot

from gpuscope.model.ranks import label_among
from gpuscope.store.replay import ReplaySource
from gpuscope.store.view import History, TrainerView
from gpuscope.text import styled
from gpuscope.text.units import brief_duration_text
from gpuscope.text.width import cells as text_cells
from gpuscope.tui.app.app import GpuscopeApp
from gpuscope.tui.charts.bins import Bins
from gpuscope.tui.charts.legend import legend_of
from gpuscope.tui.charts.load_strips import Lane, LoadStrips, binned, lane_rows
from gpuscope.tui.charts.stacked import StackedChart
from gpuscope.tui.device.device_screen import DeviceScreen
from gpuscope.tui.overview.charts import Charts
from gpuscope.tui.overview.panel_rows import MOST_CHART_ROWS, Needs, share_out, spare_rows
from gpuscope.tui.processes.process_screen import ProcessScreen
from gpuscope.tui.shared.host_text import host_lines
from gpuscope.tui.shared.job_rows import LOSS_CELLS, loss_text
from gpuscope.tui.shell.session import Session
from gpuscope.tui.theme import ASCII, MONOCHROME, UNICODE, Glyphs, Tokens
from gpuscope.tui.trainer.job_screen import JobScreen
from gpuscope.tui.trainer.one_process_screen import OneProcessScreen
from gpuscope.wire import frames as f
from tests.doctor.test_live import one, put
from tests.fakes import jobs, views
from tests.recordings import REDACTED
from tests.tui.pilot import feed, in_loop, make_app, until
from tests.tui.snapshots import grid, run, text
from tests.tui.test_mouse import place_of

LARGE, USUAL = (200, 60), (120, 40)


# ── room ──


@given(
    st.builds(
        Needs,
        jobs=st.integers(1, 60),
        jobs_in_full=st.integers(1, 90),
        devices=st.integers(1, 17),
        findings=st.sampled_from([0, 1, 3, 5]),
        processes=st.integers(0, 80),
        lanes=st.integers(0, 16),
        many_charts=st.booleans(),
    ),
    st.integers(40, 300),
    st.integers(8, 100),
    st.booleans(),
)
def test_panels_never_take_more_rows_than_there_are(
    needs: Needs, width: int, height: int, charts: bool
) -> None:
    given_rows = share_out(needs, width, height, charts)
    room = height - 3 - needs.findings
    lists = given_rows.jobs + given_rows.devices + given_rows.foot
    assert lists <= max(room, given_rows.jobs)
    if given_rows.charts:
        first = given_rows.chart_rows + 2
        assert first >= 7
        assert lists + first <= room
        if given_rows.second:
            assert room - lists - first >= 7, "the second row of charts has room as well"


@given(st.integers(1, 20), st.integers(1, 17), st.sampled_from([0, 1]), st.integers(20, 31))
def test_lines_for_which_there_is_room_take_no_chart_away(
    jobs: int, devices: int, findings: int, height: int
) -> None:
    needs = Needs(jobs, jobs, devices, findings, 9, 0, True)
    spare = spare_rows(height, findings, devices, jobs)
    if spare is None:
        assert not share_out(needs, 80, height, True).charts, "there is none to lose"
        return
    for more, charts in ((spare, True), (spare + 1, False)):
        needs = needs._replace(jobs=jobs + more, jobs_in_full=jobs + more)
        assert share_out(needs, 80, height, True).charts is charts


def test_a_large_terminal_gives_what_charts_do_not_need_to_processes() -> None:
    needs = Needs(8, 8, 9, 0, 40, 8, False)
    large = share_out(needs, 200, 60, True)
    assert large.foot >= 11
    assert large.chart_rows + 2 <= MOST_CHART_ROWS
    assert share_out(needs, 99, 60, True).foot == 0


def test_eight_gpus_on_a_usual_terminal_have_lanes_and_a_foot() -> None:
    given_rows = share_out(Needs(2, 3, 9, 0, 9, 8, True), 120, 40, True)
    assert (given_rows.chart_rows + 2, given_rows.in_full) == (12, True)
    assert given_rows.foot >= 6


def test_beside_eight_gpus_no_job_is_hidden_for_charts_of_a_few_rows() -> None:
    few, many = (Needs(4 * n + 1, 5 * n, 9, 8, 9, 8, True, jobs_folded=2 * n + 1) for n in (3, 6))
    assert share_out(few, 120, 40, True).charts
    given_rows = share_out(many, 120, 40, True)
    assert (given_rows.charts, given_rows.jobs >= 2 * 6 + 1 + 2) == (False, True)
    assert share_out(many, 200, 60, True).charts


@in_loop
async def test_without_their_chart_the_rows_of_several_gpus_draw_the_load():
    async with make_app(jobs.ranks(4)).run_test(size=USUAL) as pilot:
        charted = await until(pilot, "GPU utilisation", "● ok")
        assert "LAST 60 s" not in charted
    async with make_app(jobs.ranks(4)).run_test(size=(120, 20)) as pilot:
        drawn = await until(pilot, "LAST 60 s", "● ok")
        assert "GPU utilisation" not in drawn


def test_rows_that_no_chart_can_use_show_the_host() -> None:
    needs = Needs(2, 3, 9, 0, 9, 8, True)
    assert (share_out(needs, 80, 24, True).charts, share_out(needs, 80, 24, True).foot) == (
        False,
        5,
    )
    assert share_out(needs._replace(has_host=False), 80, 24, True).foot == 0


@in_loop
async def test_the_states_of_eight_gpus_are_whole_on_a_small_terminal():
    app = make_app(views.hung())
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await until(pilot, "hung for 12 s ", "lost fallen off the bus ", "USED GiB")
        heading = next(line for line in screen.splitlines() if "USED GiB" in line)
        assert heading.split()[-2] == "STATE"


# ── what stands where ──


@in_loop
async def test_a_large_terminal_has_lanes_processes_and_the_host():
    app = make_app(views.training())
    async with app.run_test(size=LARGE) as pilot:
        screen = await until(pilot, "Processes", "GPU MEM", "memory", "mean", absent="LAST 60 s")
        lanes = [line for line in screen.splitlines() if line.startswith("│ GPU ")]
        assert [line[2:7] for line in lanes] == [f"GPU {i}" for i in range(8)]
        assert all("%" in line[:100] for line in lanes), "each with its own mean"
        assert "load 8" in screen or "load " in screen
        heading = next(line for line in screen.splitlines() if "USED/TOTAL GiB" in line)
        for column in ("SM", "TENS", "POWER", "STATE"):
            assert f" {column} " in heading
        assert "NVLINK" not in heading, "no device tells its traffic: the column gives its cells"


@in_loop
async def test_a_load_that_no_chart_shows_stands_in_the_rows_of_the_devices():
    app = make_app(views.vacant(60.0))
    async with app.run_test(size=LARGE) as pilot:
        screen = await until(pilot, "LAST 60 s", "What you can do here", "power, GPU 0")
        assert "GPU utilisation" not in screen, "nothing works: a chart of it says nothing"
        assert "CUDA_VISIBLE_DEVICES=2 gpuscope run train.py" in screen
        assert "torchrun --nproc-per-node 6" in screen
        assert screen.count("gpuscope attach 51120") == 1
        assert "used   GPU" not in screen, "the devices' states and the processes say so"
        assert "idle held by lin (jupyter)" in screen
        feed(app, f.Sample(900, int((views.END + 1) * 1e9), g=[views.device_row(2, 30.0, 90.0)]))
        await until(pilot, "GPU utilisation", absent="What you can do here")


@pytest.mark.parametrize("size", [USUAL, (160, 50), LARGE])
@in_loop
async def test_a_machine_without_gpu_and_trainer_says_what_can_be_done_and_shows_nothing_twice(
    size,
):
    app = make_app(_without_trainer(views.cpu_only()))
    async with app.run_test(size=size) as pilot:
        screen = await until(pilot, "What you can do here", "CPU", "ost memory")
        for command in ("attach user@host", "run train.py", "lab", "replay FILE", "doctor FILE"):
            assert screen.count(f"gpuscope {command}") == 1, command
        assert screen.count("of 32.0 GiB") <= 1


@in_loop
async def test_the_steps_of_ranks_that_are_alike_share_a_line_and_of_others_do_not():
    for slow, wanted in ((False, "step, 2 ranks"), (True, "step, rank 1")):
        app = make_app(_two_ranks(slow))
        async with app.run_test(size=LARGE) as pilot:
            await until(pilot, wanted)


@in_loop
async def test_where_not_every_gpu_has_a_line_that_of_the_cursor_the_mean_and_the_least_have_one():
    app = make_app(views.training())
    async with app.run_test(size=(120, 30)) as pilot:
        await until(pilot, "GPU 5, lowest mean", "mean of 8", absent="GPU 2, lowest")
        await pilot.press("down")
        screen = await until(pilot, "▸   6  H200", "GPU 6  ", "mean of 8", "GPU 5, lowest mean")
        assert "Utilisation %" not in screen, "no lines that cross"


@pytest.mark.parametrize(("rows", "named"), [(60, "GPU 7"), (50, "mean of 8"), (44, "GPU 7")])
@in_loop
async def test_beside_many_jobs_the_chart_of_a_wide_terminal_leaves_out_no_gpu_unsaid(rows, named):
    frames = jobs.ranks(8)
    for frame in frames:
        if isinstance(frame, f.Def) and frame.trainer is not None:
            frame.trainer = replace(frame.trainer, job=f"j{frame.id}")
    async with make_app(frames).run_test(size=(200, rows)) as pilot:
        screen = await until(pilot, "GPU utilisation")
        chart = screen.split("─ GPU utilisation")[1]
        lanes = [line[:56] for line in chart.splitlines() if "95 %" in line[:56]]
        assert any(named in lane for lane in lanes)


@pytest.mark.parametrize("size", [USUAL, LARGE])
@in_loop
async def test_two_trainers_without_a_job_are_no_ranks_of_one(size):
    frames = _two_ranks(False)
    for frame in frames:
        if isinstance(frame, f.Def) and frame.trainer is not None:
            frame.trainer.job = frame.trainer.rank = frame.trainer.world_size = None
    app = make_app(frames)
    async with app.run_test(size=size) as pilot:
        screen = await until(pilot, "step, 2 trainers" if size == LARGE else "train.py (48214)")
        assert "2 ranks" not in screen


def _two_ranks(slow: bool) -> list[f.Frame]:
    out: list[f.Frame] = [views.hello(), views.host_def(), *(views.gpu(i) for i in range(2))]
    for rank in range(2):
        out += views.trainer(48213 + rank, rank, 2, "ada", True, "job-a")
    for q, at, s in views.ticks():
        sample = f.Sample(q, int(at * 1e9), h=[views.host_row()])
        sample.g = [views.device_row(i, 60.0, 90.0) for i in range(2)]
        for rank in range(2):
            seconds = 1.5 if slow and rank else 0.9 + rank / 1000
            sample.t.append(views.trainer_row(13 + rank, 100 + int(s), seconds, loss=None))
        out.append(sample)
    return out


def _without_trainer(frames: list[f.Frame]) -> list[f.Frame]:
    return [
        replace(frame, p=[], t=[], a=[]) if isinstance(frame, f.Sample) else frame
        for frame in frames
        if not (isinstance(frame, f.Def) and (frame.proc or frame.trainer or frame.alloc))
    ]


@in_loop
async def test_enter_opens_the_process_that_the_title_names():
    app = make_app(views.training())
    async with app.run_test(size=LARGE) as pilot:
        await until(pilot, "Processes", "GPU MEM")
        while "Processes ·" not in text(app):
            await pilot.press("tab")
            await pilot.pause()
        screen = await until(pilot, "Processes · Enter: pid ")
        pid = screen.split("Enter: pid ")[1].split()[0]
        await pilot.press("enter")
        await until(pilot, f"Process {pid}")
        assert isinstance(app.screen, OneProcessScreen)


@in_loop
async def test_the_large_overview_of_a_host_without_gpu_has_loss_memory_and_processes():
    app = make_app(views.cpu_only())
    async with app.run_test(size=LARGE) as pilot:
        await until(pilot, "CPU, 8 cores", "input wait", "Loss", "host memory", "Processes", "Host")


@in_loop
async def test_beside_a_training_on_the_cpu_one_line_says_why_there_is_no_gpu():
    app = make_app(views.cpu_only())
    async with app.run_test(size=(80, 24)) as pilot:
        shown = await until(pilot, "No GPU here: ", "Median step, ms", "Loss", "8 cores, 26 % busy")
        assert "gpuscope replay" not in shown


@in_loop
async def test_several_trainings_have_a_lane_each_and_no_axis_that_fits_the_slowest_alone():
    frames = views.cpu_only()
    slow = f.TrainerDef(
        7022, 701, None, None, None, None, None, "slow.py", "2.13.0", "3.11.7", None, "s", False
    )
    frames.insert(2, f.Def(322, trainer=slow))
    for sample in (frame for frame in frames if isinstance(frame, f.Sample)):
        sample.t.append([322, *views.trainer_row(0, 10 + sample.q // 8, 4.0)[1:]])
    async with make_app(frames).run_test(size=USUAL) as pilot:
        screen = await until(pilot, "─ Median step ─", "─ Loss ─", absent="Median step, ms")
        lanes = screen.split("─ Median step ─")[1]
        assert re.search(r"slow\.py +.* 4\.00 s", lanes)
        assert re.search(r"gpuscope lab +.* 50\.0 ms", lanes)


@pytest.mark.slow
@in_loop
async def test_a_chart_that_has_nothing_to_show_gives_its_place_to_one_that_has():
    app = make_app(_without_trainer(views.cpu_only()))
    async with app.run_test(size=USUAL) as pilot:
        await until(pilot, "CPU %", "Host memory in use", absent="Median step, ms")
    frames = put(views.training(), "loss", lambda _: None)  # type: ignore[arg-type, return-value]
    app = make_app(frames)
    async with app.run_test(size=LARGE) as pilot:
        await until(pilot, "step, 7 ranks", "power, GPU", absent="Loss")


@in_loop
async def test_the_only_loss_of_many_trainers_is_drawn():
    frames = jobs.ranks(6, 20.0)
    for sample in [frame for frame in frames if isinstance(frame, f.Sample)]:
        sample.g, sample.u = [], []
        for place, values in enumerate(sample.t):
            values[1 + f.TRAINER_COLUMNS.index("loss")] = 2.5 if place == 5 else None
    frames = [one for one in frames if getattr(one, "gpu", None) is None]
    frames = [one for one in frames if getattr(one, "use", None) is None]
    app = make_app(frames)
    async with app.run_test(size=USUAL) as pilot:
        await until(pilot, "Loss ─", "━ rank 5 ", absent="no trainer reports its loss")


@in_loop
async def test_it_begins_at_the_device_that_is_worst_off():
    app = make_app(views.training())
    async with app.run_test(size=USUAL) as pilot:
        await until(pilot, "─ GPUs · Enter: GPU 5", "▸   5  H200", "VRAM of GPU 5")


@in_loop
async def test_a_chart_names_the_layer_that_the_legend_of_the_devices_lacks():
    frames = views.training()
    for sample in [frame for frame in frames if isinstance(frame, f.Sample)][8:36]:
        sample.a = []
    for shown, cells, elsewhere in (
        (frames, 32, "⠢ not read, others as in GPUs"),
        (views.training(), 20, "legend as in GPUs"),
    ):
        async with make_app(shown).run_test(size=USUAL) as pilot:
            await until(pilot, "VRAM of GPU 5", "─ █ allocated █ cached █ outside torch █ other")
            chart = pilot.app.screen.query_one(StackedChart)
            assert styled.plain(chart._legend_lines(cells, 7)[1]) == elsewhere


def test_curves_of_several_jobs_have_short_names_and_all_of_them_stand_in_the_legend() -> None:
    host, _ = views.seen(views.training())

    def trainer(number: int, script: str) -> TrainerView:
        old = host.trainers[0]
        definition = replace(old.definition, script=script, job=f"job{number}", pid=number)
        return replace(old, definition=definition)

    several = [trainer(11, "/a/train.py"), trainer(12, "/a/plain.py"), trainer(13, "/b/train.py")]
    shown = replace(host, trainers=tuple(several))
    labels = [label_among(one, shown.trainers) for one in several]
    assert labels == ["train.py (11)", "plain.py", "train.py (13)"]
    of_a_job = [
        replace(one, definition=replace(one.definition, job="job-r", rank=rank))
        for rank, one in enumerate((several[0], several[2]))
    ]
    beside = replace(host, trainers=(*of_a_job, several[1]))
    ranks = [label_among(one, beside.trainers) for one in beside.trainers]
    assert ranks == ["train.py rank 0", "train.py rank 1", "plain.py"]
    legend = styled.plain(legend_of([("━", "series1", label) for label in labels], 38))
    assert legend.count("━") == 3
    assert "+" not in legend
    alike = [("━", "series1", f"train.py ({pid})") for pid in (17681, 17452, 15871)]
    for cells in range(35, 58):  # what tells them apart stays, also where there is little room
        legend = styled.plain(legend_of(alike, cells))
        assert all(pid in legend for pid in ("17681", "17452", "15871")), legend
        assert text_cells(legend) <= cells


@in_loop
async def test_the_rank_to_look_at_is_among_the_curves_of_a_large_job():
    app = make_app(views.training())
    async with app.run_test(size=LARGE) as pilot:
        await until(pilot, "rank 0", "rank 2", "rank 5", absent="rank 3  ")


@in_loop
async def test_ranks_that_are_alike_are_counted_with_those_that_have_no_curve():
    app = make_app(jobs.ranks(7, seconds=20.0))
    async with app.run_test(size=LARGE) as pilot:
        screen = await until(pilot, "step, 7 ranks", "PEAK/RESERVED", "PEAK EVER")
        assert " 4 ranks alike" not in screen


def test_many_devices_leave_room_for_the_rest() -> None:
    for width, height in (USUAL, LARGE):
        given_rows = share_out(Needs(70, 70, 65, 0, 300, 64, False), width, height, True)
        assert given_rows.devices <= height // 2
        assert given_rows.jobs >= height // 5
        assert given_rows.charts


@in_loop
async def test_the_load_of_a_job_that_hangs_is_hatched_since_its_last_step():
    app = make_app(jobs.ranks(stalled=True))
    async with app.run_test(size=LARGE) as pilot:
        screen = await until(pilot, "no progress", "▲ stalled", "◆ spinning")
        place = next(y for y, line in enumerate(screen.splitlines()) if "GPU 3 ▇" in line)
        lane = "".join(char for char, _ in grid(app)[place][:60]).split("GPU 3 ")[1]
        lane = lane[: lane.rindex(UNICODE.hatch) + 1]
        assert set(lane) == {"▇", UNICODE.hatch}
        assert lane.index(UNICODE.hatch) < len(lane) / 3, "it made no step for 47 s"
        colours = {style.color for char, style in grid(app)[place] if char == UNICODE.hatch}
        assert colours == {Tokens.of(app).colour("faint")}, "what is wrong is said in words"


def test_the_curves_of_a_trainer_that_hangs_end_at_its_last_step():
    host, history = views.seen(jobs.ranks(stalled=True))
    charts = Charts(SimpleNamespace(history=history), lambda: None)  # type: ignore[arg-type]
    now = host.sampled_seconds or 0.0
    for curves in (charts._input(host), charts._of_trainers(host, "step_seconds", 1.0)):
        for curve in curves:
            drawn = [at for at, value in zip(curve.seconds, curve.values, strict=True) if value]
            assert now - 60 < max(drawn) < now - 35, "the last step is 48 s ago"


@in_loop
async def test_what_a_smaller_terminal_loses_goes_and_comes_back():
    app = make_app(views.training())
    async with app.run_test(size=LARGE) as pilot:
        await until(pilot, "Processes", "What happened", " SM ")
        await pilot.resize_terminal(99, 40)
        await until(pilot, "USED/TOTAL", absent="What happened")
        assert "Processes ─" not in text(app)
        await pilot.resize_terminal(*LARGE)
        await until(pilot, "Processes ─", "What happened", " SM ")


# ── lanes ──


@pytest.mark.parametrize("glyphs", [UNICODE, MONOCHROME, ASCII], ids=["unicode", "mono", "ascii"])
def test_a_lane_tells_loads_apart_without_colour(glyphs: Glyphs) -> None:
    (row,) = lane_rows([None, 0.0, 40.0, 100.0, None], 1, glyphs)
    drawn = "".join(part for part, _ in row)
    assert drawn[0] == " "
    assert drawn[-1] == glyphs.unknown
    assert len(set(drawn)) == 5, "before the first, idle, half, full, and a gap"


@given(st.lists(st.one_of(st.none(), st.floats(0, 100)), max_size=60), st.integers(1, 6))
def test_every_row_of_a_lane_is_as_wide_as_its_values(
    values: list[float | None], rows: int
) -> None:
    drawn = lane_rows(values, rows, UNICODE)
    assert [sum(len(part) for part, _ in row) for row in drawn] == [len(values)] * rows


@given(st.floats(0, 100), st.floats(0, 100), st.integers(1, 6))
def test_more_load_is_never_drawn_lower(one: float, other: float, rows: int) -> None:
    def height(value: float) -> int:
        return sum(
            UNICODE.up.index(part) for row in lane_rows([value], rows, UNICODE) for part, _ in row
        )

    low, high = sorted((one, other))
    assert height(low) <= height(high) <= rows * 8 - 1, "neighbouring lanes never touch"


@pytest.mark.parametrize("glyphs", [UNICODE, MONOCHROME, ASCII], ids=["unicode", "mono", "ascii"])
def test_a_load_that_is_no_progress_is_hatched_and_no_alarm(glyphs: Glyphs) -> None:
    upper, lower = lane_rows([95.0, 95.0, 20.0, 0.0], 2, glyphs, wasted=1)
    # what has no room for a hatch is as high as it is
    assert "".join(part for part, _ in lower)[1:3] == glyphs.hatch + glyphs.up[3]
    assert "".join(part for part, _ in upper)[1:] == glyphs.hatch + "  "
    assert {token for _, token in (*upper, *lower)} <= {"load4", "faint", "idle", "text"}


@pytest.mark.parametrize(("size", "rows"), [((60, 14), 3), ((60, 9), 2), ((160, 14), 1)])
def test_lanes_are_low_and_stand_above_an_axis_at_the_bottom(
    size: tuple[int, int], rows: int
) -> None:
    past = History(tuple(map(float, range(61))), (95.0,) * 61)
    drawn: list[str] = []

    async def body(pilot: Pilot[None]) -> None:
        strips = pilot.app.query_one(LoadStrips)
        strips.show([Lane("GPU 0", past), Lane("GPU 1", past)], 60.0, 60.0)
        await pilot.pause()
        drawn.extend(text(pilot.app).splitlines())

    run(OneStrip, body, *size)
    assert sum(any(char in line for char in "▆▇█") for line in drawn) == 2 * rows
    assert drawn[-1].rstrip().endswith("now"), "nothing is below the axis"


@pytest.mark.parametrize("height", [6, 14], ids=["lanes that touch", "lanes apart"])
@pytest.mark.parametrize("ascii_only", [False, True], ids=["unicode", "ascii"])
def test_each_step_of_a_load_has_a_glyph_of_its_own_in_the_legend(
    height: int, ascii_only: bool
) -> None:
    class Plain(OneStrip):
        pass

    Plain.ascii_only = ascii_only  # type: ignore[attr-defined]
    past, drawn = History(tuple(map(float, range(61))), (95.0,) * 61), []

    async def body(pilot: Pilot[None]) -> None:
        strips = pilot.app.query_one(LoadStrips)
        strips.show([Lane(f"GPU {n}", past) for n in range(4)], 60.0, 60.0)
        await pilot.pause()
        _, border = strips._legend_lines(80, height)
        drawn.extend(part for part, token in border if token.startswith("load"))

    run(Plain, body, 80, height)
    assert len({part.strip()[:1] for part in drawn}) == 4, drawn


@pytest.mark.parametrize("width", [60, 100, 180])
def test_the_mean_of_a_lane_is_of_its_readings_however_wide_it_is_drawn(width: int) -> None:
    """The column in which the job begins holds a time before it as well."""
    seconds = tuple(n / 2 for n in range(121))
    values = tuple(0.0 if at < 41.0 else 100.0 if at < 60.0 else 50.0 for at in seconds)
    past, figures = History(seconds, values), []

    async def body(pilot: Pilot[None]) -> None:
        strips = pilot.app.query_one(LoadStrips)
        strips.show([Lane("GPU 0", past, begins=41.0)], 60.0, 60.0)
        await pilot.pause()
        figures.extend(re.findall(r"50 % +ø (\d+)", text(pilot.app)))

    run(OneStrip, body, width, 6)
    assert figures == ["99"]


@pytest.mark.parametrize("cells", [44, 60, 100])
def test_the_most_that_the_cpu_did_is_of_its_readings_however_wide_it_is_drawn(cells: int) -> None:
    host, _ = views.seen(views.training())
    now = host.sampled_seconds or 0.0
    seconds = tuple(now - 70 + n for n in range(71))
    past = History(seconds, tuple(99.0 if n == 5 else 77.0 if n == 40 else 9.0 for n in range(71)))
    (row,) = (
        line
        for line in map(styled.plain, host_lines(host, lambda *_: past, cells, UNICODE))
        if line.startswith("CPU 60 s")
    )
    assert row.endswith(" 77 % at most")


def test_the_columns_of_the_cpu_have_the_peak_that_is_named_also_of_few_seconds() -> None:
    host, _ = views.seen(views.training())
    now = host.sampled_seconds or 0.0
    past = History((now - 2, now - 1, now), (5.0, 100.0, 5.0))
    lines = map(styled.plain, host_lines(host, lambda *_: past, 44, UNICODE))
    row = next(line for line in lines if line.startswith("CPU 60 s"))
    assert row.endswith(" 100 % at most")
    assert UNICODE.up[-1] in row


class OneStrip(App[None]):
    def compose(self) -> ComposeResult:
        yield LoadStrips()


def test_a_lane_holds_a_reading_until_the_next_but_not_over_a_gap() -> None:
    seconds = [*map(float, range(10)), 40.0]
    found = binned(History(tuple(seconds), tuple([50.0] * 11)), Bins(0.0, 0.5, 100), 40.0)
    assert found[1] == 50.0
    assert found[40] is None
    assert found[80] == 50.0


# ── where the keyboard is ──


@in_loop
async def test_the_keyboard_begins_at_the_job_that_stands_still():
    replay = ReplaySource(REDACTED / "h200x2-stall.gsr")
    replay.pause()
    replay.seek(replay.duration_seconds)
    app = GpuscopeApp(Session(replay=replay))
    async with app.run_test(size=USUAL) as pilot:
        screen = await until(pilot, "stalled: rank 1", "Jobs · Enter: ranks")
        cursor = next(line for line in screen.splitlines() if "▸" in line and "script" in line)
        below = screen.splitlines().index(cursor)
        assert "stalled: rank 1" in "".join(screen.splitlines()[below : below + 3])


@pytest.mark.parametrize(
    ("frames", "said", "worst"),
    [
        (jobs.ranks(leaks=2), "memory: ", 2),
        (jobs.ranks(stalled=True), "stalled: rank 3", 3),
    ],
    ids=["runs out", "stuck"],
)
@in_loop
async def test_the_cursor_of_the_devices_and_its_chart_are_at_what_is_wrong_with_the_job(
    frames, said, worst
):
    app = make_app(frames)
    async with app.run_test(size=USUAL) as pilot:
        await until(pilot, said, "Jobs · Enter: ranks", f"▸   {worst} ", f"VRAM of GPU {worst}")


@in_loop
async def test_the_keyboard_begins_at_the_device_that_is_lost():
    app = make_app(views.hung())
    async with app.run_test(size=USUAL) as pilot:
        await until(pilot, "─ GPUs · Enter: GPU 3")
        await pilot.press("enter")
        await until(pilot, "GPU 3 ")
        assert isinstance(app.screen, DeviceScreen)


@in_loop
async def test_the_cursor_goes_to_a_device_that_is_lost_later_unless_a_user_has_chosen_one():
    frames = jobs.lose(jobs.ranks(), 1, after=-1)
    early = frames[: frames.index(next(frame for frame in frames if getattr(frame, "why", None)))]
    for moves, chosen in ((False, 1), (True, 3)):
        app = make_app(early)
        async with app.run_test(size=(120, 40)) as pilot:
            await until(pilot, "─ GPUs · Enter: GPU 0")
            if moves:
                await pilot.press("down", "down", "down")
                await until(pilot, "─ GPUs · Enter: GPU 3")
            feed(app, *frames[len(early) :])
            app.main.refresh_all()
            await until(pilot, "lost fallen off the bus", f"─ GPUs · Enter: GPU {chosen}")


@in_loop
async def test_only_the_panel_with_the_keyboard_has_a_bright_title():
    app = make_app(views.training())
    async with app.run_test(size=USUAL) as pilot:
        screen = await until(pilot, "─ GPUs · Enter: GPU 5", "USED/TOTAL")
        at = {name: place_of(screen, f"─ {name}") for name in ("Jobs", "GPUs")}

        def bold(name: str) -> bool:
            x, y = at[name]
            return bool(grid(app)[y][x + 2][1].bold)

        assert (bold("Jobs"), bold("GPUs")) == (False, True)
        while "Jobs ·" not in text(app):
            await pilot.press("tab")
            await pilot.pause()
        await until(pilot, "Jobs · Enter", absent="─ GPUs ·")
        assert (bold("Jobs"), bold("GPUs")) == (True, False)


def before_a_hang() -> GpuscopeApp:
    """The app on the recorded stall, paused before the hang."""
    replay = ReplaySource(REDACTED / "h200x2-stall.gsr")
    replay.pause()
    replay.seek(20)
    return GpuscopeApp(Session(replay=replay))


@pytest.mark.parametrize("size", [(80, 24), LARGE])
@in_loop
async def test_a_job_that_hangs_later_takes_the_cursor_and_tab_goes_down_from_it(size):
    app = before_a_hang()
    async with app.run_test(size=size) as pilot:
        await until(pilot, "─ GPUs · Enter: GPU 0")
        app.session.seek(55)
        await until(pilot, "stalled: rank 1", "Jobs · Enter: ranks", absent="─ GPUs ·")
        await pilot.press("tab")
        await until(pilot, "─ GPUs · Enter: GPU 1", absent="Jobs ·")
        while "Jobs ·" not in text(app):
            await pilot.press("tab")
            await pilot.pause()
        await pilot.press("enter")
        await until(pilot, absent="Jobs ·")
        assert isinstance(app.screen, JobScreen)


@in_loop
async def test_a_job_that_hangs_does_not_take_the_cursor_from_where_the_user_put_it():
    app = before_a_hang()
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, "─ GPUs · Enter: GPU 0")
        await pilot.press("tab")
        await until(pilot, "Jobs ·")
        await pilot.press("tab")
        await until(pilot, "─ GPUs · Enter: GPU 0")
        app.session.seek(55)
        await until(pilot, "stalled: rank 1", "─ GPUs · Enter: GPU 0", absent="Jobs ·")


def retried() -> list[f.Frame]:
    """A training with a finding that no line of a job tells."""
    frames = one(80, used=137.5)
    put(frames, "alloc_retries", lambda q: q)
    frames.append(f.Event(401, "retry", int(views.END * 1e9), "cudaMalloc was tried again"))
    return frames


@in_loop
async def test_a_finding_can_be_reached_by_tab_and_opens_in_the_doctor():
    app = make_app(retried())
    async with app.run_test(size=USUAL) as pilot:
        await until(pilot, "─ Findings", "USED/TOTAL")
        await pilot.press("tab")
        screen = await until(pilot, "Findings · Enter: the finding")
        assert "waits for input" not in screen, "what a job's line says is not said again"
        line = screen.splitlines()[place_of(screen, "─ Findings")[1] + 1]
        assert "▸" in line
        title = line.split("▸")[1].strip()[2:].split("  ")[0].strip()
        await pilot.press("enter")
        screen = await until(pilot, "What was checked", "WHAT")
        assert app.main.tab == "doctor"
        assert any("▸" in line and title in line for line in screen.splitlines())


@in_loop
async def test_a_click_marks_a_finding_and_another_opens_it():
    app = make_app(retried())
    async with app.run_test(size=USUAL) as pilot:
        screen = await until(pilot, "─ Findings", "USED/TOTAL")
        x, y = place_of(screen, "─ Findings")
        await pilot.click(offset=(x + 6, y + 1))
        await pilot.click(offset=(x + 6, y + 1))
        await until(pilot, "What was checked")
        assert app.main.tab == "doctor"


@in_loop
async def test_enter_on_another_users_jobs_lists_that_users_processes():
    app = make_app(views.crowd())
    async with app.run_test(size=USUAL) as pilot:
        await until(pilot, "USED/TOTAL", " lin ")
        while "Jobs ·" not in text(app):
            await pilot.press("tab")
            await pilot.pause()
        while "processes of lin" not in text(app):
            await pilot.press("down")
            await pilot.pause()
        await pilot.press("enter")
        await until(pilot, "filter: lin")
        assert isinstance(app.screen, ProcessScreen)


# ── nothing that matters is cut ──


@pytest.mark.parametrize("size", [USUAL, LARGE], ids=["120x40", "200x60"])
@in_loop
async def test_the_state_of_a_full_device_is_told_to_its_end(size):
    frames = views.training(4.0)
    sample = f.Sample(999, int((views.END + 1) * 1e9))
    sample.g = [views.device_row(i, 139.0, 95.0) for i in range(8)]
    app = make_app([*frames, sample])
    async with app.run_test(size=size) as pilot:
        screen = await until(pilot, "◆ full")
        rows = [line for line in screen.splitlines() if "◆ full" in line]
        assert len(rows) == 8
        assert all("free of 140 GiB" in row for row in rows)


@given(st.floats(1e-6, 1e6))
def test_durations_and_losses_fit_their_columns(value: float) -> None:
    assert len(brief_duration_text(value)) <= 8
    assert len(loss_text(value)) <= LOSS_CELLS
    assert len(loss_text(-value)) <= LOSS_CELLS


@in_loop
async def test_two_gpus_have_lanes_for_what_works_inside_them_too():
    replay = ReplaySource(REDACTED / "h200x2-ddp.gsr")
    replay.pause()
    replay.seek(60.0)
    app = GpuscopeApp(Session(replay=replay))
    async with app.run_test(size=LARGE) as pilot:
        screen = await until(pilot, "─ GPU utilisation ─", "tensor")
        lanes = [line[2:10].strip() for line in screen.splitlines()]
        at = lanes.index("GPU 1")
        assert "tensor" in lanes[lanes.index("GPU 0") : at]
        assert "tensor" in lanes[at:]


@in_loop
async def test_charts_that_come_while_the_program_ends_do_not_break_its_end():
    app = make_app(jobs.ranks(4))
    async with app.run_test(size=(140, 45)) as pilot:
        await until(pilot, "─ GPUs", "Jobs")
        while not app.screen.query(Charts):  # these come after the lists
            await pilot.pause()
        charts = app.screen.query_one(Charts)
        app.exit()
        charts.choose([("sm", "vram"), ("power", "clock")])
    assert app.return_code == 0


@in_loop
async def test_a_lost_gpu_is_said_of_its_job_in_its_lane_and_of_its_memory():
    app = make_app(jobs.lose(jobs.ranks(), 1))
    async with app.run_test(size=(120, 40)) as pilot:
        shown = await until(pilot, "▲ train.py ×4", "lost: GPU 1 of rank 1", "▸   1 ", "│ GPU 1 ")
        lane = next(row for row in shown.splitlines() if row.startswith("│ GPU 1 "))
        assert "┄┄ lost │" in " ".join(lane.split())
        await pilot.press("2")
        shown = await until(pilot, "rank 1 (pid 48201)   ▲ lost", "The driver gives no readings")
        assert "empty_cache" not in shown


@in_loop
async def test_a_lost_gpu_is_the_first_finding_and_its_neighbour_has_the_chart():
    app = make_app(jobs.lose(jobs.ranks(), 1))
    async with app.run_test(size=LARGE) as pilot:
        shown = await until(pilot, "GPU 1 is lost: no program can use it", "VRAM of GPU 2 (GPU 1: ")
        first = next(row for row in shown.split("Findings")[1].splitlines() if "▲" in row)
        assert "GPU 1 is lost" in first
        assert "VRAM of GPU 1" not in shown


@in_loop
@pytest.mark.parametrize("size", [LARGE, USUAL])
async def test_charts_beside_each_other_end_at_the_same_moment(size):
    app = make_app(views.cpu_only() if size == USUAL else jobs.ranks(4))
    async with app.run_test(size=size) as pilot:
        await until(pilot, "now" if size == USUAL else "Last ", "CPU")
        charts, seen = app.screen.query_one(Charts), set()
        for second in range(1, 9):
            moment = int((views.END + second) * 1e9)
            feed(app, f.Sample(9000 + second, moment, h=[views.host_row(cpu_percent=20.0)]))
            await pilot.pause(0.3)
            drawn = [one for one in charts._made.values() if hasattr(one, "_now")]
            ends = {one._now for one in drawn if one._now}
            assert len(ends) == 1, {type(one).__name__: one._now for one in drawn}
            assert len(drawn) > 1
            seen |= ends
        assert len(seen) > 1, "time went on and the charts were drawn again"


@in_loop
async def test_a_strip_names_the_same_load_as_the_table_with_every_sample():
    """Its course moves less often, and its figure with each of them."""
    app = make_app(jobs.ranks(4))
    async with app.run_test(size=USUAL) as pilot:
        await until(pilot, "GPU utilisation", "95 %")
        for second in range(1, 6):
            load = 10.0 + 7 * second
            sample = f.Sample(9000 + second, int((views.END + second) * 1e9), h=[views.host_row()])
            sample.g = [views.device_row(at, 40.0, load) for at in range(4)]
            feed(app, sample)
            screen = await until(pilot, f" {load:.0f} % ")
            table, strip = (
                next(line for line in screen.splitlines() if mark in line)
                for mark in ("│ ▸   0 ", "│ GPU 0 ")
            )
            assert f" {load:.0f} %" in table
            assert f" {load:.0f} %" in strip, screen
