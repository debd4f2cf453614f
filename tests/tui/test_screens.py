"""The four tabs say what they should in the situations a user meets.

The data is made up; and the tabs fit every terminal.
"""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from rich.cells import cell_len

from gpuscope.store.view import Link
from gpuscope.tui.app.app import GpuscopeApp
from gpuscope.tui.shell.session import Session
from gpuscope.tui.theme import Tokens
from gpuscope.wire import frames as f
from tests.fakes import views
from tests.recordings import REDACTED
from tests.tui.pilot import at_the_jobs, feed, in_loop, make_app, until
from tests.tui.snapshots import SIZES, check, grid, text

SCENARIOS = {
    "training": views.training,
    "crowd": views.crowd,
    "vacant": views.vacant,
    "cpu": views.cpu_only,
    "hung": views.hung,
}


async def shown(
    frames: list[f.Frame], size: tuple[int, int] = (120, 40), keys: str = "", wanted: str = "live"
) -> str:
    app = make_app(frames)
    async with app.run_test(size=size) as pilot:
        await until(pilot, wanted)
        await pilot.press(*keys)
        await pilot.pause(0.05)
        return text(app)


# ── the first second ──────────────────────────────────────────────────────────────────────────────


@in_loop
async def test_no_gpu_shows_the_real_host_the_reason_and_what_works_here():
    for frames in (views.cpu_only(), views.cpu_only(trains=False)):
        screen = await shown(frames)
        assert "libnvidia-ml.so.1 is not here" in screen
        assert "8 cores" in screen
        assert "20.0 GiB of 32.0 GiB memory available" in screen
        assert "H200" not in screen, "no device is made up"
    for command in ("gpuscope lab", "gpuscope run train.py", "gpuscope replay FILE"):
        assert command in screen, "where nothing trains, what to try"


@in_loop
async def test_a_driver_that_has_not_answered_yet_is_not_said_to_be_missing():
    frames = [
        replace(one, why=[[f.HOST_ID, "nvml", f.NOT_INITIALISED, f.NOT_ANSWERED]])
        if isinstance(one, f.Sample) and any("nvml" in why for why in one.why)
        else one
        for one in views.cpu_only(trains=False)
    ]
    screen = await shown(frames)
    assert "No reading of the GPUs yet" in screen
    assert "No NVIDIA driver" not in screen


@in_loop
async def test_a_black_box_says_why_it_shows_nothing_of_its_host():
    why = "a black box has no data about its host"
    frames = [
        replace(one, h=[[f.HOST_ID]], why=[[f.HOST_ID, "load_1m", f.NOT_SUPPORTED, why]])
        if isinstance(one, f.Sample)
        else one
        for one in views.cpu_only(trains=False)
    ]
    screen = await shown(frames)
    assert screen.count(why) >= 3, "the GPUs, the CPU and the memory of the host"
    assert "No reading of the GPUs yet" not in screen
    assert "no readings" not in screen


@in_loop
async def test_no_trainer_says_what_is_free_and_who_holds_the_rest():
    screen = await shown(views.vacant(), wanted="CUDA_VISIBLE_DEVICES=2 gpuscope run train.py")
    assert "GPU 2-7: 139 GiB each" in screen
    assert "idle held by lin (jupyter)" in screen
    small = await shown(views.vacant(), (80, 24))
    assert "GPU 0, 1: memory held by lin (jupyter), idle for 9 s or more" in small
    assert "in no training yet:  gpuscope run train.py" in small


@in_loop
async def test_a_process_without_a_probe_is_one_line_from_outside():
    screen = await shown(views.training())
    line = next(line for line in screen.splitlines() if "jupyter (lin)" in line)
    assert "21.6 GiB" in line
    assert "since 1 d 1 h" in line
    assert "no probe" in line


@in_loop
async def test_eight_trainers_of_three_users_mine_in_full_others_a_line_each():
    screen = await shown(views.crowd())
    lines = screen.splitlines()
    at = {
        name: next(i for i, line in enumerate(lines) if name in line)
        for name in ("train0.py", "train1.py", " lin ", " max ")
    }
    assert max(at["train0.py"], at["train1.py"]) < min(at[" lin "], at[" max "])
    assert "3 jobs · 186 GiB · 3 with a probe" in lines[at[" lin "]]
    assert "train3.py" not in screen.split("─ Processes")[0]


@in_loop
async def test_in_a_container_memory_of_nobody_is_told_with_its_reason():
    screen = await shown(views.vacant(container="docker", named=False), wanted="hidden")
    assert (
        "hidden 80.0 GiB on GPU 0, 1 · whose is unknown: a container (docker) sees no processes "
        "outside" in screen
    )
    assert "no process" not in screen.replace("sees no processes outside", "")


@in_loop
async def test_in_a_container_whose_processes_account_for_the_memory_nothing_is_hidden():
    for frames in (views.vacant(container="docker"), views.training(container="docker")):
        assert "hidden" not in await shown(frames)


@in_loop
async def test_memory_that_grows_between_two_lists_of_processes_is_not_hidden():
    frames = views.training(container="docker")
    frames.append(f.Sample(900, int((views.END + 0.5) * 1e9), g=[views.device_row(0, 90.0, 80.0)]))
    assert "hidden" not in await shown(frames, wanted="90.0/140")


def test_hidden_is_what_no_process_accounts_for():
    from gpuscope.model.device_state import unowned_on

    host = views.host_of(views.training())
    for device in host.devices:
        assert unowned_on(device) == 0
        used = device.number("used_bytes")
        assert used is not None
        assert unowned_on(device, used + (200 << 20)) == 0, "a reading taken a moment later"
        assert unowned_on(device, used + (400 << 20)) == pytest.approx(400 << 20, abs=32 << 20)
    untold = f.Sample(999, int((views.END + 1) * 1e9), u=[views.row("u", 213)])
    untold.why.append([213, "used_bytes", f.NO_PERMISSION, "the driver does not say"])
    host = views.host_of([*views.training(), untold])
    assert None in [unowned_on(device) for device in host.devices], (
        "who holds an untold amount may hold it all"
    )


@pytest.mark.slow
@in_loop
async def test_a_recording_from_a_virtual_machine_with_docker_hides_nothing():

    from gpuscope.store.replay import ReplaySource

    replay = ReplaySource(REDACTED / "h200x2-ddp.gsr")
    replay.pause()
    app = GpuscopeApp(Session(replay=replay))
    async with app.run_test(size=(120, 40)) as pilot:
        for seconds in (8, 20, 40, 55):
            replay.seek(seconds)
            screen = await until(pilot, f"00:{seconds:02d}/", "2×H200")
            await pilot.pause(0.1)
            assert "hidden" not in screen + text(app)
        assert "×2" in screen


# ── states ────────────────────────────────────────────────────────────────────────────────────────


@in_loop
async def test_a_hung_and_a_lost_device_show_their_reasons_and_no_old_figures():
    screen = await shown(views.hung(), size=(80, 24), wanted="hung")
    assert "▲ hung for 12 s" in screen
    assert "▲ lost fallen off the bus" in screen
    assert "has not returned" not in screen, "what the row of a device says is not said above it"
    rows = [line for line in screen.splitlines() if "▲" in line and "/140" in line]
    assert len(rows) == 2
    for row in rows:
        assert "–/140" in row
        assert "%" not in row
    assert "69.4/140" in screen, "the other devices go on"


@in_loop
async def test_a_trainer_that_ended_keeps_its_last_state_with_reason_and_time():
    app = make_app(views.ended())
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await until(pilot, "killed by SIGKILL at 14:14:20")
        line = next(line for line in screen.splitlines() if "train0.py" in line)
        assert "killed by SIGKILL at 14:14:20: often the kernel's OOM killer · step 109" in line
        assert screen.count("SIGKILL") == 1


@in_loop
async def test_the_slowest_input_is_named_with_its_rank():
    screen = await shown(views.training())
    assert "rank 5 waits for data 31 % of the last 64 steps" in screen
    assert "◆ input-bound" in screen
    assert "◇ shared lin (jupyter)" in await shown(views.training(), size=(160, 40))


@in_loop
async def test_a_full_a_throttled_and_a_broken_device_say_so():
    frames = views.training(4.0)
    sample = f.Sample(999, int((views.END + 1) * 1e9))
    sample.g = [
        views.device_row(0, 139.0, 95.0),
        views.device_row(1, 60.0, 95.0, clock_event_reasons=0x24, sm_clock_mhz=1560),
        views.device_row(4, 60.0, 95.0, ecc_uncorrected_count=2),
    ]
    screen = await shown([*frames, sample], size=(200, 40))
    assert "◆ full 205 MiB free of 140 GiB" in screen
    assert "◆ throttled thermal slowdown: 1560 of 1980 MHz" in screen
    assert "◆ ECC 2 uncorrected memory errors" in screen


# ── memory ────────────────────────────────────────────────────────────────────────────────────────


@in_loop
async def test_memory_accounts_for_what_nvidia_smi_shows():
    screen = await shown(views.training(), keys="2kk")
    assert "GPU 3 H200 · train.py rank 3 (pid 48216)" in screen
    for row, amount in (
        ("parameters", "12.0 GiB"),
        ("gradients", "12.0 GiB"),
        ("optimizer state", "24.0 GiB"),
    ):
        assert any(row in line and amount in line for line in screen.splitlines()), row
    total = next(line for line in screen.splitlines() if "used (= nvidia-smi)" in line)
    assert "120 GiB" in total
    assert "biggest saving" in screen


@in_loop
async def test_the_rows_of_the_waterfall_add_up():
    from gpuscope.model.memory_account import account

    host = views.host_of(views.training())
    for device in host.devices:
        found = account(host, device, device.allocators[0] if device.allocators else None)
        parts, total = found.parts, found.total
        assert sum(part.known for part in parts if not part.inside) == pytest.approx(
            total, abs=16 << 20
        )
        for name in {part.inside for part in parts} - {""}:
            whole = next(part for part in parts if part.name == name)
            assert sum(part.known for part in parts if part.inside == name) == pytest.approx(
                whole.known, rel=1e-6
            )


@in_loop
async def test_on_a_cpu_only_what_is_known_is_counted_and_the_rest_has_its_reason():
    screen = await shown(views.cpu_only(), keys="2")
    assert "CPU · gpuscope lab (pid 7021)" in screen
    assert "24.0 MiB" in screen
    assert "torch keeps no allocator statistics" in screen
    assert re.search(r"RSS of the process +1\.40 GiB 100 %", screen)
    assert re.search(r"rest of the process +1\.35 GiB", screen), "its parts add up to it"
    assert "of the host's 32.0 GiB · 20.0 GiB are free" in screen
    assert screen.count("1.40 GiB") == 2, "once as the total, once as the highest"


# ── log ───────────────────────────────────────────────────────────────────────────────────────────


@in_loop
async def test_the_list_with_the_focus_shows_its_cursor_at_once():
    app = make_app(views.cpu_only())
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "▸ gpuscope lab")
        await pilot.press("5")
        await until(pilot, "Demo trainer")
        row = next(row for row in grid(app) if "▸ model" in "".join(char for char, _ in row))
        selected = Tokens.of(app).style("selected").bgcolor
        assert row[5][1].bgcolor == selected
    app = make_app(views.training(4.0))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "▸   5  H200", "◆ train.py ×7")
        await pilot.press("tab", "tab")
        await until(pilot, "▸ ◆ train.py ×7")


@in_loop
async def test_the_log_tells_events_and_notices_and_filters_them():
    app = make_app(views.ended(), "log")
    app.session.notices.say("a notice of ours", "warn")
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await until(pilot, "SIGKILL", "pid 48220")
        rows = [row for row in screen.splitlines() if row.startswith("│")]
        assert not any("a notice of ours" in row for row in rows)
        ends = [row for row in rows if "SIGKILL" in row and "train0.py" in row]
        assert len(ends) == 1, "an end is told once"
        await pilot.press("slash", *"killed", "enter")
        await until(pilot, "SIGKILL", absent="pid 48227")
        await pilot.press("escape")
        await until(pilot, "SIGKILL", "pid 48220")
        await pilot.press("N")
        await until(pilot, "[program] 1", "a notice of ours", absent="SIGKILL")
        await pilot.press("n", "end", "enter")
        assert "killed" in await until(pilot, "Its process", "Findings")


@in_loop
async def test_a_wide_log_tells_the_line_under_the_cursor_in_full_beside_it():
    app = make_app(views.training(), "log")
    async with app.run_test(size=(200, 60)) as pilot:
        await until(pilot, "─ Event ─", "Why      cudaMalloc failed")
        await pilot.press("home")
        await until(pilot, "When     ", "pid 51120")
        await pilot.press("question_mark")
        screen = await until(pilot, "On this row  started jupyter")
        assert "On this row  Sep" not in screen
        await pilot.press("escape", "N")
        nothing = "that of gpuscope run stays in its terminal"
        await until(pilot, "[output] 0", nothing, "What appears here", "XIDs, ECC errors")


# ── sizes ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("scenario", "size"),
    [
        ("crowd", (40, 10)),
        ("crowd", (200, 60)),
        ("hung", (40, 10)),
        *(
            pytest.param(*one, marks=pytest.mark.slow)
            for one in (
                *((name, (40, 10)) for name in ("training", "vacant", "cpu")),
                ("crowd", (60, 16)),
                ("crowd", (80, 24)),
            )
        ),
    ],
    ids=str,
)
@in_loop
async def test_nothing_is_wider_or_higher_than_the_terminal(scenario, size):
    app = make_app(SCENARIOS[scenario]())
    async with app.run_test(size=size) as pilot:
        for tab in "1235":
            await pilot.press(tab)
            await pilot.pause(0.02)
            lines = text(app).splitlines()
            assert len(lines) == size[1]
            assert max(cell_len(line) for line in lines) <= size[0]
            assert app.screen.max_scroll_x == 0
            assert app.screen.max_scroll_y == 0
            assert "gpuscope" in lines[0]
            assert lines[-1].split()[-1] in ("q", "Quit")


@in_loop
async def test_sixteen_devices_fit_a_small_terminal():
    frames: list[f.Frame] = [views.hello(), views.host_def(), *(views.gpu(i) for i in range(16))]
    for q, at, _ in views.ticks(3.0):
        frames.append(
            f.Sample(q, int(at * 1e9), g=[views.device_row(i, 10.0 + i, 50.0) for i in range(16)])
        )
    for size in ((80, 24), (80, 19)):
        screen = await shown(frames, size=size, wanted="16×H200")
        rows = [line for line in screen.splitlines() if "● ok" in line and "/140" in line]
        assert len(rows) >= 15, screen


@pytest.mark.slow
@in_loop
async def test_charts_give_way_to_lists_and_take_what_they_leave():
    assert "GPU utilisation" in await shown(
        views.training(), size=(120, 40), wanted="GPU utilisation"
    )
    assert "GPU utilisation" in await shown(
        views.training(), size=(80, 40), wanted="GPU utilisation"
    )
    assert "GPU utilisation" not in await shown(views.training(), size=(120, 24))
    assert "GPU utilisation" not in await shown(views.training(), size=(70, 40))
    assert "Loss" in await shown(views.cpu_only(), size=(80, 24), wanted="Loss")


@pytest.mark.slow
@in_loop
async def test_on_a_narrow_terminal_the_timeline_stands_below_where_there_is_room():
    assert "Timeline, GiB" in await shown(
        views.cpu_only(), size=(80, 24), keys="2", wanted="No GPU here"
    )
    screen = await shown(views.training(), size=(80, 24), keys="2")
    assert "Timeline, GiB" not in screen
    assert "optimizer state" in screen
    assert "Timeline, GiB" in await shown(views.training(), size=(80, 40), keys="2")


@in_loop
async def test_a_lost_device_is_named_above_any_number_of_jobs():
    frames = views.hung()
    for i in range(12):
        frames += views.trainer(48213 + 20 + i, i % 3, 1, "ada", True, f"job-{i}", f"other{i}.py")
    frames[2:2] = [views.gpu(i) for i in range(8, 24)]  # more than the table shows at once
    screen = await shown(frames, size=(80, 40), wanted="hung")
    assert "GPU 5 lost: the device has fallen off the bus" in screen


@in_loop
async def test_jobs_that_ended_are_one_line_that_enter_opens():
    frames = views.crowd()
    for i in (120, 121):
        frames += [
            f.Event(i + n, "gone", int((views.END + i) * 1e9), "killed by signal 9")
            for n in (0, 100, 200, 300)
        ]
    app = make_app(frames)
    async with app.run_test(size=(80, 24)) as pilot:
        folded = "2 ended while watched, the last just now: 2 killed by SIGKILL"
        screen = await until(pilot, folded, absent="train0.py")
        assert screen.index("lin") < screen.index(folded), "what runs comes first"
        await at_the_jobs(pilot)
        await pilot.press("end")
        await until(pilot, f"▸ {folded}", "Enter: list each")
        await pilot.press("enter")
        screen = await until(pilot, "Enter: fold them", "train1.py", "train0.py")
        for name in ("train1.py", "train0.py"):
            line = next(line for line in screen.splitlines() if name in line)
            assert "killed by SIGKILL" in line
        assert screen.index("train1.py") < screen.index("train0.py")
        await pilot.press("enter")
        await until(pilot, f"▸ {folded}", absent="train0.py")


@in_loop
async def test_a_reason_in_a_narrow_column_begins_with_what_matters():
    from gpuscope.tui.shared.device_state_text import in_short, why_unread

    assert why_unread("nvmlDeviceGetPowerUsage has not returned for 12 s") == "no answer for 12 s"
    assert why_unread("nvmlDeviceGetMemoryInfo_v2: the GPU is lost") == "the GPU is lost"
    assert in_short("nvmlDeviceGetMemoryInfo_v2: the GPU is lost") == "the GPU is lost"
    assert (
        in_short("nvmlDeviceGetPowerUsage has not returned for 12 s")
        == "for 12 s in nvmlDeviceGetPowerUsage"
    )
    assert in_short("31 % of a step") == "31 % of a step"
    assert "▲ hung for 12 s in" in await shown(views.hung(), size=(120, 40), wanted="hung")


@in_loop
async def test_a_terminal_that_grows_gets_its_charts():
    app = make_app(views.training())
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, "train.py", absent="GPU utilisation")
        await pilot.resize_terminal(140, 50)
        await until(pilot, "GPU utilisation", "VRAM of GPU 5")
        await pilot.resize_terminal(80, 18)
        await until(pilot, "train.py", absent="GPU utilisation")


@in_loop
async def test_wide_and_hostile_names_stay_in_their_cells_and_send_nothing():
    evil = "深層学習\x1b]52;c;QQ==\x07🙂\u202egnp.eliftxt\x9b31m"
    frames = views.training(3.0)
    frames.append(f.Def(150, proc=f.ProcDef(51120, 9, views.WALL, evil, evil, evil, 1, False)))
    app = make_app(frames)
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await until(pilot, "深層学習")
        while not all(line.strip() for line in screen.splitlines()[2:-1]):
            await pilot.pause()  # not all panels are there yet
            screen = text(app)
        for char in "\x1b\x07\x9b\u202e":
            assert char not in screen
        borders = {line.rstrip()[-1] for line in screen.splitlines()[2:-1]}
        assert borders <= set("╮│╯"), "the right border is straight"
        assert all(cell_len(line) <= 120 for line in screen.splitlines())


# ── looks ─────────────────────────────────────────────────────────────────────────────────────────


def snapshot_app(frames: list[f.Frame], start: str, badge: str = "") -> GpuscopeApp:
    store = views.store_of(frames, badge)
    if badge:
        store.set_link(views.SOURCE, Link("replay"))
    session = Session(store)
    session.cpu_percent = lambda: 0.9  # type: ignore[method-assign]
    session.doctor.prepare()
    return GpuscopeApp(session, start)


@pytest.mark.parametrize("size", SIZES, ids=lambda s: f"{s[0]}x{s[1]}")
@pytest.mark.parametrize("tab", ["overview", "memory", "lab", "log"])
@in_loop
async def test_tabs_look_as_they_did(tab, size):
    app = snapshot_app(views.training(60.0), tab)
    async with app.run_test(size=size) as pilot:
        await until(pilot, "train.py" if tab != "lab" else "No run yet.")
        await check(pilot, f"tab-{tab}")


@pytest.mark.parametrize("size", SIZES, ids=lambda s: f"{s[0]}x{s[1]}")
@in_loop
async def test_a_host_without_gpu_looks_as_it_did(size):
    app = snapshot_app(views.cpu_only(60.0), "overview")
    async with app.run_test(size=size) as pilot:
        await until(pilot, "No GPU here")
        await check(pilot, "no-gpu")


@in_loop
async def test_what_arrives_while_a_tab_is_hidden_is_there_when_it_is_shown():
    app = make_app(views.training())
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "train.py")
        await pilot.press("6")
        await until(pilot, "WHAT")
        overview = app.main._panes["overview"]
        drawn = [widget.paints for widget in overview.query("JobList, LiveTable")]
        sample = f.Sample(900, int((views.END + 1) * 1e9), g=[views.device_row(0, 33.3, 12.0)])
        feed(app, sample)
        await pilot.pause(0.1)
        assert [widget.paints for widget in overview.query("JobList, LiveTable")] == drawn, (
            "a hidden tab draws nothing"
        )
        await pilot.press("1")
        await until(pilot, "33.3/140")
