"""The screen of one process says what it holds and how busy it is.

It also has what CUDA calls its GPUs, its history, and who has a GPU open.
"""

from __future__ import annotations

import pytest
from rich.cells import cell_len

from gpuscope.tui.app.app import GpuscopeApp
from gpuscope.tui.charts.line import Series
from gpuscope.tui.overview.detail_screen import DetailScreen
from gpuscope.tui.processes import text as words
from gpuscope.tui.processes.idle import BUSY, Idle
from gpuscope.tui.processes.process_series import CPU, RSS, top_of
from gpuscope.tui.shell.session import Session
from gpuscope.tui.trainer.stacks_screen import StacksScreen
from gpuscope.wire import frames as f
from tests.fakes import devices, views
from tests.fakes.asked import AskedSource, fails, gives
from tests.fakes.views import flat
from tests.tui.pilot import in_loop, until
from tests.tui.snapshots import grid

SIZE = (200, 60)
EVIL = "\x1b]52;c;QQ==\x07\u202eevil[red]"


def frames_of(**uses: f.Scalar) -> list[f.Frame]:
    """Training by others, and a notebook (51120) on GPU 2 whose share is told."""
    out = devices.whole(list(views.training(4.0)))
    for frame in out:
        if isinstance(frame, f.Sample):
            for row in frame.u:
                if row[0] == 250:
                    for column, value in uses.items():
                        row[1 + f.USE_COLUMNS.index(column)] = value
    return out


def made(frames: list[f.Frame], **answers) -> tuple[GpuscopeApp, AskedSource]:
    source = AskedSource(frames, **answers)
    return GpuscopeApp(Session(make_source=lambda hz: source)), source


def notebook(frames: list[f.Frame]):
    host = views.host_of(frames)
    return host, next(p for p in host.processes if p.definition.pid == 51120)


def test_its_share_stands_beside_that_of_the_device():
    host, process = notebook(frames_of(sm_percent=7))
    said = flat(words.use_lines(host, process, 120))
    assert said.startswith("GPU 2")
    assert "21.6 GiB" in said
    assert "this process 7 %, whole GPU 8" in said


def test_idle_is_said_only_where_it_is_known():
    host, process = notebook(frames_of(sm_percent=7))
    assert "no: runs kernels" in flat(words.about_lines(host, process, BUSY, 120))
    assert "≥5m: runs no kernels" in flat(words.about_lines(host, process, Idle(300.0, True), 120))
    host, process = notebook(frames_of())
    assert "runs kernels" not in flat(words.about_lines(host, process, BUSY, 120))
    assert "runs kernels" not in flat(words.use_lines(host, process, 120))


def test_what_cuda_calls_the_gpus():
    host, process = notebook(frames_of())
    said = flat(words.order_lines(host, process, {"CUDA_VISIBLE_DEVICES": "3,1"}))
    assert said.splitlines()[0] == "by CUDA_VISIBLE_DEVICES=3,1"
    assert [line.split()[:3] for line in said.splitlines()[1:]] == [
        ["cuda:0", "GPU", "3"],
        ["cuda:1", "GPU", "1"],
    ]
    assert "it sees no GPU" in flat(words.order_lines(host, process, {"CUDA_VISIBLE_DEVICES": ""}))
    trainer = next(p for p in host.processes if p.definition.pid == 48215)
    said = flat(words.order_lines(host, trainer, {"CUDA_VISIBLE_DEVICES": "7"}))
    assert said.splitlines()[0] == "from the probe"
    assert said.splitlines()[1].split()[:3] == ["cuda:2", "GPU", "2"], (
        "what torch sees outweighs the environment"
    )


def test_a_process_is_called_by_its_script():
    host, process = notebook(frames_of())
    assert flat([words.head(host, process)]).split() == ["Process", "51120", "jupyter"]
    trainer = next(p for p in host.processes if p.definition.pid == 48215)
    assert flat([words.head(host, trainer)]).split() == ["Process", "48215", "train.py"]


@pytest.mark.slow
@in_loop
async def test_no_line_is_too_long_at_any_size_and_why_not_is_said():
    app, _ = made(
        frames_of(sm_percent=7),
        environment=fails("refused", "can be read only by its user and root"),
    )
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, "live")
        await pilot.press("P", "slash", *"jupyter", "enter", "enter")
        await until(pilot, "Process 51120", "unknown: can be read only by its user and root")
        for width, height in ((40, 12), (80, 24), (120, 40)):
            await pilot.resize_terminal(width, height)
            await until(pilot, "Process 51120", "jupyter")
            for row in grid(app):
                assert sum(cell_len(char) for char, _ in row) == width


@in_loop
async def test_keys_zoom_charts_and_all_readings():
    told = {"environment": {"CUDA_VISIBLE_DEVICES": "2"}, "others": 3}
    app, source = made(frames_of(sm_percent=7), environment=gives(told))
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, "live")
        await pilot.press("P", "slash", *"jupyter", "enter", "enter")
        await until(
            pilot,
            "GPU memory GiB, 15 s",
            "utilisation %, 15 s",
            "CPU % of one core",
            "RSS GiB",
            "cuda:0",
            "this process 7 %",
        )
        await pilot.press("minus")
        await until(pilot, "utilisation %, 5 min")
        await pilot.press("enter")
        await pilot.pause()
        assert isinstance(app.screen, DetailScreen)
        await pilot.press("escape", "K")
        await until(pilot, "Send a signal", "pid 51120")
        await pilot.press("escape", "escape")
        await until(pilot, "Processes  1 of 8")
    assert source.asked == [("environment", {"pid": 51120, "start": 9})]


# ── who has a GPU open ──


@pytest.mark.slow
@in_loop
async def test_who_has_a_gpu_open_is_asked_for_and_hostile_names_do_no_harm():
    rows = [
        {"pid": 51120, "start": 9, "user": "lin", "command": "jupyter"},
        {"pid": 666, "start": 1, "user": None, "command": EVIL},
    ]
    told = {
        "devices": [{"minor": 2, "processes": rows, "more": 1}],
        "hidden_processes": 3,
        "why": "3 of others",
    }
    nobody = {"devices": [{"minor": 0, "processes": []}], "why": ""}
    app, source = made(frames_of(), holders=gives(told))
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, "live")
        from gpuscope.tui.device.device_screen import DeviceScreen

        app.push_screen(DeviceScreen(app.session, app.session.host.devices[2].key))
        await until(pilot, "GPU 2  NVIDIA H200")
        await pilot.press("o")
        shown = await until(
            pilot,
            "Who has GPU 2 open",
            "reported by the driver",
            "not reported",
            "incomplete: 3 of others",
        )
        assert "and 1 more" in shown
        assert "\x1b" not in shown
        assert "\u202e" not in shown
        assert "[red]" in shown, "markup is text"
        assert source.asked == [("holders", {"minors": "2"})]
        for answer, says in (
            (gives(nobody), "No visible process has /dev/nvidia0 open"),
            (
                fails("timeout", "the agent did not answer in time"),
                "unknown: the agent did not answer in time",
            ),
        ):
            source.answers["holders"] = answer
            app.push_screen(DeviceScreen(app.session, app.session.host.devices[0].key))
            await until(pilot, "GPU 0  NVIDIA H200")
            await pilot.press("o")
            await until(pilot, says)
            await pilot.press("escape", "escape")


@in_loop
async def test_a_small_terminal_has_what_to_do_about_a_training_before_its_chart():
    app, _ = made(frames_of(sm_percent=7))
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, "live", "train.py")
        await pilot.press("P", "j", "enter")
        wanted = ("◆ Rank 5 waits for input 31 %", "fix       1 Load", "torch now")
        screen = await until(pilot, "Process 48213", *wanted, "GPU memory GiB, 15 s")
        assert "4,003 of 20,000 · 4 h left · loss 2.000" in screen
        assert "CUDA device numbers" not in screen, "the line of the GPU has them"
        await pilot.press("j", "j")
        screen = await until(pilot, "━ GPU 0")
        assert "━ GPU 0" in screen.splitlines()[-2], "the chart ends where the page does"


@in_loop
async def test_a_large_terminal_has_of_a_training_what_the_page_of_its_job_has():
    threads = [{"name": "MainThread", "training": True, "frames": [["/t/train.py", 31, "step"]]}]
    app, _ = made(frames_of(sm_percent=7), stacks=gives({"threads": threads}))
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, "live", "train.py")
        await pilot.press("P", "j", "enter")
        wanted = ("Findings: what to do", "Stack of rank 0, now", "Loss 2.000 of rank 0 over 15 s")
        screen = await until(pilot, "Process 48213  train.py", *wanted)
        does = screen.split("─ Process ─")[0]
        assert "◆ Rank 5 waits for input 31 %" in does, "the gravest finding about its job"
        for label in ("median step ", "GPU memory ", "tensor cores ", "RSS "):
            assert label in screen.split("─ Last 15 s ─")[1], "in a strip each"
        assert "RSS GiB" not in screen, "what is steady has no chart of its own"
        await pilot.press("S")
        await until(pilot, "train.py:31")
        assert isinstance(app.screen, StacksScreen)
        await pilot.press("escape", "minus")
        await until(pilot, "Process 48213", "Loss 2.000 of rank 0 over 30 s")
        await pilot.press("question_mark")
        shown = await until(pilot, "A process", "of all its threads", "leads to the tabs, where ?")
        assert "jobs, GPUs, load and memory" not in shown, "no key that does nothing here"


@in_loop
async def test_what_to_do_and_the_stack_come_before_what_is_steady():
    threads = [{"name": "MainThread", "training": True, "frames": [["/t/train.py", 31, "step"]]}]
    app, _ = made(frames_of(sm_percent=7), stacks=gives({"threads": threads}))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "live", "train.py")
        await pilot.press("P", "j", "enter")
        wanted = ("─ Findings: what to do ─", "Stack of rank 0, now", "train.py:31")
        screen = await until(pilot, "◆ Rank 5 waits for input 31 %", *wanted, "─ Last 15 s ─")
        assert "RSS GiB" not in screen, "what is steady has a strip"


@in_loop
async def test_a_host_without_gpus_has_the_stack_in_the_place_of_what_is_said_of_gpus():
    bare = [
        frame
        for frame in frames_of()
        if not (isinstance(frame, f.Def) and (frame.gpu or frame.use))
    ]
    for frame in bare:
        if isinstance(frame, f.Sample):
            frame.g, frame.u = [], []
    threads = [{"name": "MainThread", "training": True, "frames": [["/t/train.py", 31, "step"]]}]
    app, _ = made(bare, stacks=gives({"threads": threads}))
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, "live", "train.py")
        await pilot.press("P", "j", "enter")
        for size in ((80, 24), (120, 40)):
            await pilot.resize_terminal(*size)
            screen = await until(pilot, "Process 48213", "Stack of rank 0, now", "train.py:31")
            assert "On the GPUs" not in screen
            assert "CUDA device numbers" not in screen


def test_the_axis_of_a_cpu_load_ends_at_one_core_as_long_as_it_is_no_more():
    def of(*values: float | None) -> list[Series]:
        return [Series("CPU", "series1", [*range(len(values))], values)]

    assert top_of(CPU, of(3.0, None, 4.0)) == 100.0, "4 % of a core is no full chart"
    assert top_of(CPU, of(3.0, 240.0)) is None, "several cores: the values decide"
    assert top_of(RSS, of(3.0)) is None
