"""The Device screen shows what GPU-Util hides and what that means.

Also health, topology and zoom; at every size, in cells.
"""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from rich.cells import cell_len

from gpuscope.doctor.finding import Evidence, Finding
from gpuscope.model.device_state import judge
from gpuscope.store.replay import ReplaySource
from gpuscope.store.view import NOT_SENT
from gpuscope.tui.app.app import GpuscopeApp
from gpuscope.tui.background.finding_history import Case
from gpuscope.tui.device import text as words
from gpuscope.tui.device.beside_text import peer_lines
from gpuscope.tui.device.device_screen import WINDOWS, DeviceScreen
from gpuscope.tui.device.inventory_text import inventory_lines, topology_lines
from gpuscope.tui.device.load_text import in_few_words, load_lines, what_it_means
from gpuscope.tui.doctor.cure import case_of, cure_lines
from gpuscope.tui.overview.detail_screen import DetailScreen
from gpuscope.tui.overview.device_rows import device_row
from gpuscope.tui.shared.device_state_text import why_unread
from gpuscope.tui.shell.session import Session
from gpuscope.tui.theme import THEMES, UNICODE, Tokens
from gpuscope.tui.widgets import charted_screen
from gpuscope.wire import frames as f
from tests.fakes import devices, jobs, views
from tests.fakes.asked import AskedSource, gives
from tests.fakes.views import flat
from tests.recordings import REDACTED
from tests.tui.pilot import feed, in_loop, make_app, until
from tests.tui.snapshots import grid, text

TOKENS = Tokens(THEMES[0])


def device_of(frames: list[f.Frame], index: int = 0):
    host = views.host_of(frames)
    return host, host.devices[index]


@pytest.mark.slow
@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60), (40, 12)])
@in_loop
async def test_it_opens_at_every_size_and_no_line_is_too_long(size):
    app = make_app(devices.training())
    async with app.run_test(size=size) as pilot:
        await until(pilot, "node-17", " %")
        app.push_screen(DeviceScreen(app.session, app.session.host.devices[0].key))
        shown = await until(pilot, "GPU-Util", "meaning")
        assert shown.splitlines()[-1].split()[-1] in ("q", "Back")
        for row in grid(app):
            assert sum(cell_len(char) for char, _ in row) == size[0]


@in_loop
async def test_enter_opens_it_and_keys_work():
    app = make_app(devices.training(60.0))
    async with app.run_test(size=(200, 60)) as pilot:
        await until(pilot, "─ GPUs · Enter: GPU 5")
        await pilot.press("home", "enter")
        shown = await until(
            pilot,
            "GPU 0  NVIDIA H200 · Hopper, compute 9.0",
            "NV18 GPU 1-3 · SYS GPU 4-7",
            "18 of 18 links up",
            "26 °C to slowdown",
            "PCIe replays: 0",
            "VBIOS 96.00.A5.00.01",
            "cuda:0",
            "NUMA node 0 · cores 0-23,48-71",
            "Load %, 1 min",
        )
        assert re.search(r"NVLink +out 9\.1", shown)
        assert "Memory over 1 min, GiB" in shown
        for reading in ("power", "temperature, GPU", "clock, SM", "traffic, PCIe in"):
            assert f"│ {reading} " in shown, "all histories have room here"
        assert re.search(r"140┤.*\n", shown), "memory is drawn below all that the GPU has"
        assert "GPU-Util ▇" in shown or "GPU-Util █" in shown, "and the strip of its load"
        screen = app.screen
        assert isinstance(screen, DeviceScreen)
        await pilot.press("minus")
        await until(pilot, "─ Last 5 min")
        for _ in WINDOWS:
            await pilot.press("minus")
        await until(pilot, "─ Last 4 h", "Memory over 4 h, GiB")
        await pilot.press("c")
        await until(pilot, "every history is on the screen already")
        await pilot.press("n")
        await until(pilot, "GPU 1  NVIDIA H200", "NV18 GPU 0, 2, 3")
        await pilot.press("enter")
        await pilot.pause()
        assert isinstance(app.screen, DetailScreen)
        await pilot.press("escape", "escape")
        await until(pilot, "─ GPUs", absent="─ Health")


@pytest.mark.slow
@in_loop
async def test_each_load_has_a_lane_over_the_time_of_the_charts_and_its_mean_is_named():
    app = make_app(devices.training(60.0))
    async with app.run_test(size=(120, 60)) as pilot:
        await until(pilot, "─ GPUs · Enter: GPU 5")
        await pilot.press("home", "enter")
        shown = await until(pilot, "Load %, 1 min", "Memory over 1 min, GiB")
        assert re.search(r"│ GPU-Util [^│]*%", shown)
        assert re.search(r"│ tensor [^│]*%", shown)
        # the memory is stacked by what holds it
        await until(pilot, "Memory over 1 min, GiB", "█ allocated", "█ cached")
        await pilot.press("minus")
        await until(pilot, "Load %, 5 min", "Memory over 5 min, GiB")


@pytest.mark.parametrize(
    ("readings", "meaning"),
    [
        (
            {"utilization_percent": 100, "sm_active_percent": 20.0, "tensor_active_percent": 5.0},
            "only 20 % of the SMs",
        ),
        (
            {"utilization_percent": 40, "sm_active_percent": 35.0, "tensor_active_percent": 5.0},
            "idle 60 % of the time",
        ),
        (
            {"utilization_percent": 99, "sm_active_percent": 88.0, "tensor_active_percent": 27.0},
            "tensor cores 27 %",
        ),
        (
            {"utilization_percent": 99, "sm_active_percent": 90.0, "tensor_active_percent": 3.0},
            "FP32",
        ),
        (
            {
                "utilization_percent": 99,
                "sm_active_percent": 90.0,
                "tensor_active_percent": 9.0,
                "dram_active_percent": 80.0,
            },
            "memory bound",
        ),
        (
            {"utilization_percent": 0, "sm_active_percent": 0.0, "tensor_active_percent": 0.0},
            "nothing runs",
        ),
        ({"utilization_percent": 90, "sm_active_percent": None}, "this GPU does not report"),
    ],
)
def test_what_the_numbers_mean(readings, meaning):
    _, device = device_of(devices.training(**readings))
    assert meaning in what_it_means(device)


@pytest.mark.parametrize(
    ("readings", "said"),
    [
        (
            {"utilization_percent": 100, "sm_active_percent": 20.0, "tensor_active_percent": 5.0},
            "mostly idle SMs",
        ),
        (
            {"utilization_percent": 40, "sm_active_percent": 35.0, "tensor_active_percent": 5.0},
            "partly idle",
        ),
        (
            {"utilization_percent": 100, "sm_active_percent": 88.0, "tensor_active_percent": 27.0},
            "",
        ),
        (
            {"utilization_percent": 99, "sm_active_percent": 90.0, "tensor_active_percent": 3.0},
            "tensor idle",
        ),
        (
            {"utilization_percent": 99, "sm_active_percent": 90.0, "tensor_active_percent": 66.0},
            "",
        ),
        (
            {
                "utilization_percent": 99,
                "sm_active_percent": 90.0,
                "tensor_active_percent": 9.0,
                "dram_active_percent": 80.0,
            },
            "memory bound",
        ),
        ({"utilization_percent": 0, "sm_active_percent": 0.0, "tensor_active_percent": 0.0}, ""),
        ({"utilization_percent": 90, "sm_active_percent": None}, ""),
    ],
)
def test_the_overview_has_words_beside_the_state(readings, said):
    host, device = device_of(devices.training(**readings))
    assert in_few_words(device) == said
    state = flat([device_row(host, device, TOKENS).cells["state"]])
    assert said in state
    alone = flat([device_row(host, device, TOKENS, words=False).cells["state"]])
    assert state in (f"{alone} {said}".rstrip(), f"○ {said}"), "an idle GPU is not ok"


@pytest.mark.parametrize("clock", [1740, 1400])
def test_the_power_cap_of_a_busy_gpu_is_no_fault(clock):
    host, device = device_of(devices.training(clock_event_reasons=4, sm_clock_mhz=clock))
    assert judge(host, device).word == "ok"
    host, device = device_of(devices.training(clock_event_reasons=4 | 0x40, sm_clock_mhz=clock))
    assert judge(host, device).word == "throttled", "heat is one, at any clock"


def test_since_when_a_gpu_is_idle_stands_beside_its_state():
    readings = {"utilization_percent": 0, "used_bytes": 0, "idle_since_seconds": views.END - 7200}
    host, device = device_of(devices.training(**readings), 7)
    assert flat([device_row(host, device, TOKENS).cells["state"]]).endswith("free ≥2h")
    host, device = device_of(devices.training(**{**readings, "idle_since_seconds": None}), 7)
    assert flat([device_row(host, device, TOKENS).cells["state"]]).endswith("free")


def test_health_names_the_code_and_what_to_do():
    _, device = device_of(
        devices.training(last_xid=79, xid_count=2, remap_pending=1, ecc_uncorrected_count=4)
    )
    said = flat(words.health_lines(device, 200))
    assert "XID 79: the GPU has fallen off the bus (2 since gpuscope started)" in said
    assert "reboot" in said
    assert "remapped at the next reset" in said
    assert "4 uncorrected memory errors" in said
    assert "unreported" in said


@pytest.mark.parametrize(("count", "said"), [(1, "1 PCIe packet resent"), (2, "2 PCIe packets ")])
def test_health_counts_one_thing_as_one(count, said):
    _, device = device_of(devices.training(pcie_replay_count=count))
    assert said in flat(words.health_lines(device, 200))


@pytest.mark.parametrize(
    ("joules", "said"), [(0, "0.0 kWh"), (30e3, "<0.1 kWh"), (900e3, "0.2 kWh"), (7.2e9, "2,000.0")]
)
def test_energy_that_was_used_is_never_none(joules, said):
    host, device = device_of(devices.training(energy_joules=joules))
    assert f"{said}" in flat(inventory_lines(host, device, 200))


def test_the_memory_of_the_other_gpus_has_the_colours_of_its_layers():
    host, device = device_of(devices.training(), 1)
    lines = peer_lines(host, device, 200)
    tokens = {token for line in lines for text, token in line if set(text) & set("━╸")}
    drawn = {token.split(" ")[0] for token in tokens} & {"allocated", "cached", "outside", "other"}
    assert drawn >= {"allocated", "other"}, "no colour of its own that another chart uses"


@pytest.mark.parametrize(
    ("count", "last", "said"),
    [
        (0, None, ": 0"),
        (None, None, "unreported:"),
        (2, None, "2 since gpuscope started"),
    ],
)
def test_no_xid_is_told_from_an_xid_that_is_not_known(count, last, said):
    _, device = device_of(devices.training(xid_count=count, last_xid=last))
    lines = ["".join(text for text, _ in line) for line in words.health_lines(device, 200)]
    assert [line for line in lines if said in line and "XID" in line]


@in_loop
async def test_the_first_frame_has_every_panel_and_chart_in_its_place():
    app = make_app(devices.training())
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "live")
        screen = DeviceScreen(app.session, app.session.host.devices[0].key)
        frames: list[str] = []
        display = app._display

        def seen(drawn, renderable):
            display(drawn, renderable)
            if drawn is screen:
                frames.append(text(app))

        app._display = seen
        app.push_screen(screen)
        await until(pilot, "Load", "now ")
        assert frames
        for shown in frames:
            assert shown.splitlines()[-2].rstrip().endswith("╯"), (
                "the last chart ends above the keys"
            )
            assert shown.count("now ") == 3, "all three have their axis"
            assert "GPU-Util" in shown


def test_what_a_recording_has_no_reading_of_is_not_recorded():
    assert why_unread(NOT_SENT.text) == "no reading yet"
    assert why_unread(NOT_SENT.text, replayed=True) == "not recorded"
    assert why_unread("driver said no", replayed=True) == "driver said no"
    _, device = device_of(list(views.training()), 3)
    bare = replace(device, readings={**device.readings, "dram_active_percent": NOT_SENT})
    assert "DRAM: no reading yet" in flat(load_lines(bare, 100, 12, UNICODE))
    assert "DRAM: not recorded" in flat(load_lines(bare, 100, 12, UNICODE, replayed=True))


def test_a_device_that_tells_nothing_says_why():
    host, device = device_of(list(views.hung()), 3)
    said = flat([*words.state_lines(host, device, 200), *load_lines(device, 100, 12, None)])
    assert "nvml" in said or "unknown" in said


def test_memory_that_nobody_holds_is_said():
    taken = 69.7 * views.GIB
    _, device = device_of(devices.training(), 0)
    host, more = device_of(devices.training(used_bytes=int(taken + 400 * (1 << 20))), 0)
    assert "held by no visible process" not in flat(words.process_lines(host, device, 20, 120))
    assert "held by no visible process" in flat(words.process_lines(host, more, 20, 120))


def test_a_link_that_is_down_and_a_blocked_peer_are_seen():
    frames = devices.training()
    for frame in frames:
        if isinstance(frame, f.Def) and frame.gpu is not None:
            frame.gpu.nvlink_states = "1101"
            frame.gpu.topology, frame.gpu.peer_access = "X PHB SYS", "X yes no"
    _, device = device_of(frames)
    said = flat(topology_lines(device))
    assert "3 of 4 links up, down: 2" in said
    assert "PHB GPU 1 · SYS without peer access GPU 2" in said


@pytest.mark.slow
@in_loop
async def test_charts_begin_with_what_the_driver_sampled_and_say_so():
    frames = devices.whole(views.training(20.0))
    first = min(frame.m for frame in frames if isinstance(frame, f.Sample))
    gpu = next(one.gpu for one in frames if isinstance(one, f.Def) and one.gpu)
    told = {"m": [first - n * 10**9 for n in range(20, 0, -1)], "utilization_percent": [44] * 20}
    source = AskedSource(frames, recent=gives({"devices": [[gpu.uuid, told]]}))
    session = Session(source=source)
    app = GpuscopeApp(session, "overview")
    async with app.run_test(size=(200, 60)) as pilot:
        await until(pilot, "─ GPUs · Enter: GPU 5")
        await pilot.press("home", "enter")
        await until(pilot, "(first 20 s: the driver")
        past = session.history(session.host.devices[0].id, "utilization_percent", 60.0)
        assert past.values[:20] == (44.0,) * 20
        await until(pilot, "Memory over 1 min, GiB ")
    agent = [args for name, args in source.asked if name == "recent" and not args]
    assert agent == [{}], "the agent is asked once"


@pytest.mark.slow
@in_loop
async def test_a_lost_device_says_so_once_and_its_load_fills_the_room():
    app = make_app(views.hung())
    async with app.run_test(size=(120, 60)) as pilot:
        await until(pilot, "train.py")
        app.open("device", app.session.host.devices[5].key)
        shown = await until(pilot, "▲ GPU 5 is lost", "─ Load %")
        assert shown.count("fallen off the bus") == 1, "the doctor says it"
        assert "─ Now ─" not in shown, "it has no other state"
        heading = next(line for line in shown.splitlines() if "PID USER" in line)
        assert " UTIL " not in heading.split("PID USER")[1], "of no process the load is known"


@in_loop
async def test_a_wide_page_of_a_gpu_that_was_lost_before_has_what_the_others_do():
    frames = views.training(20.0)
    for frame in frames:
        if isinstance(frame, f.Sample):
            frame.g = [row for row in frame.g if row[0] != 15]
            frame.why.append([15, "used_bytes", f.LOST, "the device has fallen off the bus"])
    app = make_app(frames)
    async with app.run_test(size=(200, 60)) as pilot:
        await until(pilot, "train.py")
        app.open("device", app.session.host.devices[5].key)
        shown = await until(pilot, "─ Load of the other GPUs %, ", "─ Power of the other GPUs, ")
        assert "no readings yet" not in shown
        lanes = shown.split("─ Load of the other GPUs %, ")[1]
        assert "│ GPU 4 " in lanes
        assert "│ GPU 5 " not in lanes, "of which nothing is known"
        told = shown.index("─ What happened here")
        left = [line[1:65].strip(" │") for line in shown[told:].splitlines()]
        assert left.count("") < len(left) / 2, "the power stands below what happened"
        assert "power, GPU 7" in shown
        app.screen.action_device(1)
        await until(pilot, "GPU 6", "─ Memory over ", absent="the other GPUs %")


@in_loop
async def test_the_device_of_a_rank_that_hangs_shows_no_green_load():
    app = make_app(jobs.ranks(stalled=True))
    async with app.run_test(size=(120, 60)) as pilot:
        await until(pilot, "train.py")
        app.open("device", app.session.host.devices[3].key)
        shown = await until(pilot, "▲ stalled", "░ no progress")
        place = next(y for y, line in enumerate(shown.splitlines()) if "GPU-Util ▇" in line)
        lane = [(char, style.color) for char, style in grid(app)[place][60:] if char in "▇░"]
        assert lane[-1] == ("░", Tokens.of(app).colour("faint"))


@in_loop
async def test_a_hung_device_says_first_what_to_do_who_is_hit_and_how_it_is_called():
    app = make_app(views.hung())
    async with app.run_test(size=(80, 24)) as pilot:
        copied: list[str] = []
        app.copy_to_clipboard = copied.append  # type: ignore[method-assign]
        await until(pilot, "train.py", "Doctor ▲2")
        app.open("device", app.session.host.devices[3].key)
        shown = await until(pilot, "Findings: what to do")
        top = shown.splitlines()[1:18]
        for number, told in enumerate((
            "▲ GPU 3 does not answer: no program can use it",
            "before gpuscope started · nvmlDeviceGetUtilizationRates",
            "train.py: rank 3 of 7 (pid 48216); 6 more ranks of the job here",
            "1 End the job on it",
            "  kill 48216   K: end it, asks first",
            "2 Check the kernel log.",
            "  sudo dmesg | grep -iE 'nvrm|xid'",
            " y: copy",
            "CUDA_VISIBLE_DEVICES=0,1,2,4,6",
            "sudo nvidia-smi --gpu-reset -i 3",
            "gpu-health: The GPU reports hardware faults   d: all of it",
        )):  # fmt: skip
            assert any(told in line for line in top), (number, told)
        await pilot.press("y")
        assert copied[0].endswith("CUDA_VISIBLE_DEVICES=0,1,2,4,6\n"), "as in the Doctor"
        await pilot.press("d")
        await until(
            pilot, "▸ ▲ GPU 3 does not answer", "─ GPU 3 does not answer: no program can use it ─"
        )


@in_loop
async def test_the_device_of_a_waiting_rank_names_the_rank_that_hangs():
    app = make_app(jobs.ranks(stalled=True))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "train.py", "Doctor ▲1")
        app.open("device", app.session.host.devices[0].key)
        shown = await until(pilot, "Findings: what to do", "spinning for rank 3")
        assert "rank 3 (pid 48203) is stuck, ranks 0–2 wait for it" in shown
        assert "S: the stacks of pid 48203   K: end it, asks first" in shown
        assert "hang-in-loader: The training waits for data that never arrives" in shown


@pytest.mark.parametrize(
    ("named", "pages"),
    [("GPU 0, 1", [0, 1]), ("GPU 0-2", [0, 1, 2]), ("GPU 0, 2-3", [0, 2, 3]), ("GPU 13", [])],
)
def test_a_finding_on_several_gpus_stands_on_the_page_of_each_with_its_figure(named, pages):
    host = views.host_of(jobs.ranks())
    finding = Finding(
        pitfall="tensor-cores-idle",
        cause="live.tensor_idle",
        title=f"Tensor cores idle on {named}: matmuls likely in FP32",
        severity="warning",
        confidence="likely",
        evidence=tuple(Evidence(f"GPU {n}: SM activity 9{n} %") for n in pages),
        where=f"rank 0, GPU {pages[0]}, pid 48200" if pages else "",
    )
    case = Case(1, finding, "live")
    found = [
        device for device in host.devices if case_of([case], host, device, judge(host, device))
    ]
    assert [device.definition.index for device in found] == pages
    for device in found:
        said = flat(cure_lines(case, host, device, None, UNICODE, 100, False))
        assert f"GPU {device.definition.index}: SM activity" in said


@in_loop
async def test_a_healthy_device_has_its_training_and_its_peers_where_there_is_room():
    app = make_app(jobs.ranks())
    async with app.run_test(size=(200, 60)) as pilot:
        await until(pilot, "train.py")
        app.open("device", app.session.host.devices[1].key)
        shown = await until(pilot, "The training here", "Compared with the other GPUs")
        assert "Findings: what to do" not in shown
        assert "compute 70 % · optimizer 12 % · communication 9 %" in " ".join(shown.split())
        peers = [line for line in shown.splitlines() if "622 W  70 °C  ● ok" in line]
        assert len(peers) == 4
        assert [("▸ 1 " in line) for line in peers] == [False, True, False, False]


@pytest.mark.slow
@in_loop
async def test_in_a_recording_the_cure_names_no_key_for_what_ran_then():
    replay = ReplaySource(REDACTED / "h200x2-stall.gsr")
    replay.pause()
    replay.seek(70.0)
    app = GpuscopeApp(Session(replay=replay))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "Doctor ▲1")
        app.open("device", app.session.host.devices[1].key)
        shown = await until(pilot, "Findings: what to do", "fix       1 Find out what that")
        assert "rank 1 (pid 781) is stuck, rank 0 waits for it" in shown
        assert "S: the stacks" not in shown
        assert "back then" not in shown
        assert "kill " not in shown


@pytest.mark.slow
@in_loop
async def test_a_small_terminal_has_the_last_minute_beside_each_gauge():
    app = make_app(views.training())
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, "live", "train.py")
        await pilot.press("home", "enter")
        screen = await until(pilot, "GPU 0", "over the last minute", "unreported:")
        gauge = next(line for line in screen.splitlines() if "│ tensor" in line)
        assert "━─" in gauge
        assert "▄▄▄" in gauge, "a half of the time"


@pytest.mark.parametrize("size", [(120, 40), (200, 60)])
@in_loop
async def test_a_chart_names_the_same_value_as_the_panel_beside_it(size, monkeypatch):
    monkeypatch.setattr(charted_screen, "CHART_SECONDS", 600.0)  # no course is due in this test
    frames = devices.training(8.0)
    last = [frame for frame in frames if isinstance(frame, f.Sample)][-1]
    later = replace(last, q=last.q + 1, m=last.m + 10**9, g=[list(row) for row in last.g])
    news = {"dram_active_percent": 42.0, "power_watts": 612.0, "utilization_percent": 91.0}
    for row in later.g:
        for column, value in news.items():
            row[1 + f.DEVICE_COLUMNS.index(column)] = value
    app = make_app(frames)
    async with app.run_test(size=size) as pilot:
        await until(pilot, "─ GPUs")
        app.push_screen(DeviceScreen(app.session, app.session.host.devices[0].key))
        await until(pilot, "SM active", "Load %")
        feed(app, later)
        shown = await until(pilot, "42 % bandwidth in use")
        figures = re.findall(r"[│ ] (?:DRAM|GPU-Util) .*?(\d+) %", shown)
        assert [figures.count(one) for one in ("42", "91")] == [2, 2], shown
        if size[0] >= 160:
            assert re.search(r"│ power  .*612 W of 700 W", shown)
            assert re.search(r"│ power  [^│]* 612 W  [^│]*W –", shown)
