"""The fleet is on the screen, with real agents and broken ones.

The tests go to one host and back, filter, sort, and see what is stale.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from textual.pilot import Pilot

from gpuscope.config import Settings
from gpuscope.store import source as sources
from gpuscope.store.remote import Gate
from gpuscope.store.view import Link
from gpuscope.text.clock import clock_text
from gpuscope.tui.app.app import GpuscopeApp
from gpuscope.tui.app.help_screen import HelpScreen
from gpuscope.tui.background.sources import Hosts
from gpuscope.tui.charts.load_strips import Lane
from gpuscope.tui.hosts.pane import FleetPane
from gpuscope.tui.hosts.rows import without_domain
from gpuscope.tui.hosts.summary import Grade, Word
from gpuscope.tui.hosts.unread_text import lanes_of_hosts
from gpuscope.tui.shell.session import Session
from gpuscope.tui.theme import Tokens
from gpuscope.wire import frames as f
from tests.fakes import fleet, views
from tests.fakes.cases import each
from tests.store.test_many_hosts import pid_of, remote_source
from tests.tui.pilot import in_loop, make_app, until
from tests.tui.snapshots import check, grid, text

LIVE = Link("live")
SIX = {
    "alpha": ("busy", LIVE),
    "bravo": ("stalled", LIVE),
    "charlie": ("idle", LIVE),
    "delta": ("busy", Link("stale", "no data for 42 s", 42.0)),
    "echo": (
        "",
        Link(
            "ended",
            "echo: permission denied. Next: ssh echo, in a terminal",
        ),
    ),
    "foxtrot": ("free", LIVE),
}


def app_of(
    hosts: dict[str, tuple[str, Link]], start: str = "overview", seconds: float = 5.0
) -> GpuscopeApp:
    """The app over hosts that have said all they will say."""
    made = {
        name: (fleet.node(number, kind, seconds=seconds, name=name) if kind else [], link)
        for number, (name, (kind, link)) in enumerate(hosts.items())
    }
    store, sources_ = fleet.store_of(made)
    session = Session(store)
    session.hosts, session._source = sources_, sources_.source
    session.doctor.prepare()
    return GpuscopeApp(session, start)


def lines_of(app: GpuscopeApp) -> list[str]:
    """The names of the hosts as they stand on the screen."""
    names = [row.key for row in app.main.query_one(FleetPane)._hosts.rows]
    shown = text(app)
    return [name for name in names if name in shown]


async def settled(pilot: Pilot[Any], name: str = "6 hosts") -> str:
    """The fleet, with what the rules find on each host.

    A picture may judge but some of the hosts, and the next one draws it: here no reading brings it.
    """
    await until(pilot, name)
    main = pilot.app.main  # type: ignore[attr-defined]
    fleet = main.query_one(FleetPane)._fleet
    while not all(one.key in fleet._judged for one in fleet.all if one.state == "live"):
        main.refresh_all()
        await pilot.pause()
    main.refresh_all()
    return await until(pilot, name)


@in_loop
async def test_several_hosts_begin_with_all_of_them_the_worst_first():
    app = app_of(SIX)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "6 hosts", "0 Fleet")
        shown = await settled(pilot)
        assert lines_of(app) == ["bravo", "echo", "delta", "charlie", "foxtrot", "alpha"]
        assert "▲ 1 unreachable · ◆ 1 stale · 3 ok" in shown
        assert "40 GPUs" in shown
        assert "free: foxtrot 8× 139 GiB · charlie 5×" in shown
        assert "permission denied" in shown
        assert "Hang: rank 3 is stuck at data.py:88 in __getitem__" in shown, (
            "in full below the table"
        )


@each("size", [(80, 24), (120, 40), (200, 60)])
@in_loop
async def test_the_host_that_hangs_has_its_sentence_and_its_first_step(size):
    app = app_of(SIX)
    async with app.run_test(size=size) as pilot:
        await settled(pilot)
        shown = await until(pilot, "do first: Enter, S shows the stacks of its threads, K ends")
        if size[0] == 200:
            (line,) = (each for each in shown.splitlines() if "do first: " in each)
            assert "▲ train.py: Hang: rank 3 is stuck" in line, "which of its jobs it is"
            return
        box = shown[: shown.index("do first:")].splitlines()[-3:]
        told = " ".join(line.strip("│ ") for line in box)
        assert "▲ train.py: Hang: rank 3 is stuck at data.py:88 in __getitem__; ranks 0–2" in told
        assert "STEP TIME" in shown


FEW = {"alpha": ("busy", LIVE), "bravo": ("stalled", LIVE), "foxtrot": ("lost", LIVE)}


@in_loop
async def test_the_cursor_begins_on_the_worst_host_that_answers():
    app = app_of({"alpha": ("", Link("ended", "alpha: refused")), "bravo": ("busy", LIVE)}, "fleet")
    async with app.run_test(size=(200, 60)) as pilot:
        shown = await settled(pilot, "2 hosts")
        assert lines_of(app) == ["alpha", "bravo"], "that which is away is worse"
        assert "▸ ● bravo" in shown


@in_loop
async def test_the_header_names_the_host_under_the_cursor_from_the_first_frame_on():
    hosts = {"alpha": ("busy", LIVE), "bravo": ("stalled", LIVE)}
    app = app_of(hosts)
    app.session.look_at(app.session.hosts.sources[0].key)
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await settled(pilot, "2 hosts")
        assert "▸ ▲ bravo" in screen
        assert "bravo" in screen.splitlines()[0]


@in_loop
async def test_the_title_says_how_many_hosts_in_which_order_and_how_old_they_are():
    app = app_of({"alpha": ("busy", LIVE), "bravo": ("busy", LIVE)}, "fleet")
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot, "2 hosts")
        fleet_ = app.main.query_one(FleetPane)._fleet
        for age, said in ((0.4, "within 2 s ─"), (3.0, "within 5 s ─")):
            fleet_.oldest_seconds = lambda age=age: age  # type: ignore[method-assign]
            app.main.refresh_all()
            await until(pilot, f"Hosts (2), worst first · last reading of each {said}")
        await pilot.press("slash", *"alp", "enter")
        await until(pilot, "Hosts (1 of 2 with 'alp'), worst first")
        await pilot.press("slash", *"zzz", "enter")
        await until(pilot, "no host contains 'alpzzz'", absent="GPU utilisation")


@in_loop
async def test_a_host_whose_agent_has_read_nothing_yet_is_not_told_to_be_well():
    async with app_of({"alpha": ("busy", LIVE), "bravo": ("", LIVE)}).run_test() as pilot:
        screen = await settled(pilot, "2 hosts")
        assert re.search(r"2 hosts: .*1 connecting", screen)
        assert re.search(r"bravo +connecting", screen)
        assert "idle" not in screen.split("Hosts")[1].split("╰")[0]


@in_loop
async def test_the_cursor_follows_the_worst_host_until_a_user_moves_it():
    app = app_of(dict.fromkeys(("alpha", "bravo", "charlie"), ("busy", LIVE)))

    def lose(name: str, number: int) -> None:
        for frame in fleet.node(number, "lost", seconds=5.0, name=name):
            app.session._hear(name, frame, time.monotonic())
        app.main.refresh_all()

    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("0")
        await until(pilot, "▸ ● alpha")
        lose("bravo", 1)
        await until(pilot, "▸ ▲ bravo", "─ GPUs of bravo")
        await pilot.press("down")
        await until(pilot, "▸ ● alpha")
        lose("charlie", 2)
        await until(pilot, "  ▲ charlie", "▸ ● alpha", "─ GPUs of alpha")


@each("size", [(200, 60), (120, 40)])
@in_loop
async def test_a_host_that_sent_nothing_leaves_room_for_the_gpus_of_the_others(size):
    away = ("", Link("ended", "alpha: refused"))
    app = app_of({"alpha": away, "bravo": ("busy", LIVE), "charlie": ("lost", LIVE)}, "fleet")
    async with app.run_test(size=size) as pilot:
        await settled(pilot, "3 hosts")
        await pilot.press("home", "down")
        shown = await until(pilot, "Wrong on alpha (1)")
        listed = shown.split("─ GPUs of all hosts ─")[1]
        assert re.search(r"bravo +0 .+ \d+ %", listed)
        assert re.search(r" 5 .+ –/140 .+ lost ", listed), "of charlie"
        assert len(re.findall(r"^│ +7 ", listed, re.MULTILINE)) == 2
        assert shown.count("Python 3.8 or newer there") == (size[0] == 200), "beside the GPUs"
        await pilot.press("tab")
        await until(pilot, "this host has no finding to go to")


@in_loop
async def test_many_gpus_of_the_others_are_a_strip_for_each_host_beside_one_that_sent_nothing():
    names = ("bravo", "charlie", "delta", "foxtrot", "golf", "hotel")
    away = ("", Link("ended", "alpha: refused"))
    app = app_of({"alpha": away, **dict.fromkeys(names, ("busy", LIVE))}, "fleet")
    async with app.run_test(size=(200, 60)) as pilot:
        await settled(pilot, "7 hosts")
        await pilot.press("home")
        shown = await until(pilot, "alpha has sent no reading yet")
        strips = shown.split("GPU utilisation of each host, mean of its GPUs")[1]
        assert re.search(r"bravo .+ \d+ %", strips)


def test_of_more_gpus_than_rows_each_host_has_the_mean_of_its_own():
    made = {name: (fleet.node(at, "busy", name=name), LIVE) for at, name in enumerate("ab")}
    store, _ = fleet.store_of(made)
    named = [(host.name, host) for host in store.view().hosts]

    def lanes(rows: int) -> list[Lane]:
        return lanes_of_hosts(named, lambda host: partial(store.history, host.key), 60.0, rows)

    each_gpu, whole = lanes(16), lanes(15)
    assert [lane.label for lane in each_gpu[:9:8]] == ["a  GPU 0", "b  GPU 0"]
    assert [lane.label for lane in whole] == ["a", "b"]
    newest = [lane.history.values[-1] for lane in each_gpu[:8]]
    assert None not in newest
    assert whole[0].history.values[-1] == pytest.approx(fmean(newest))
    assert whole[0].history.seconds[-1] == 0.0, "seconds before the newest sample"
    assert [lane.label for lane in lanes(1)] == ["a"]


@pytest.mark.slow
@in_loop
async def test_a_large_fleet_has_the_recorded_time_the_findings_and_the_jobs_of_a_host():
    app = app_of(FEW, "fleet")
    async with app.run_test(size=(200, 60)) as pilot:
        await settled(pilot, "3 hosts")
        screen = await until(pilot, "More on foxtrot", "why       the device")
        above, brief = screen.split("More on foxtrot")
        assert "do first: End the job on it: it cannot go on without this GPU" in above, "its own"
        assert "why       the device has fallen off the bus" in brief
        await pilot.press("down")
        await until(pilot, "More on bravo", "GPU utilisation", "why       rank 3: last step")
        await pilot.press("down")
        await until(
            pilot,
            "More on alpha",
            "alpha: no trouble",
            "96 cores · ",
            "train.py ×8 · pid 48200-48207",
        )
        await check(pilot, "tab-fleet")


@pytest.mark.slow
@in_loop
async def test_long_charts_are_those_of_the_host_under_the_cursor():
    app = app_of(FEW, "fleet", 150.0)
    async with app.run_test(size=(200, 60)) as pilot:
        await settled(pilot, "3 hosts")
        await until(pilot, "More on foxtrot", "GPU utilisation, 3 min")
        await pilot.press("down")
        await until(pilot, "More on bravo", "│ power, ", absent="│ input wait")
        await pilot.press("down")
        await until(pilot, "More on alpha", "│ power, ", "│ input wait")


@in_loop
async def test_a_strip_of_a_host_names_the_same_load_as_its_table_with_every_sample():
    """The charts are drawn again every few seconds, and their figures with each sample."""
    app = app_of({"alpha": ("busy", LIVE), "foxtrot": ("free", LIVE)}, "fleet")
    async with app.run_test(size=(200, 60)) as pilot:
        await settled(pilot, "2 hosts")
        await pilot.press("down")
        await until(pilot, "GPUs of all hosts", "GPU utilisation", "│ GPU 0 ")
        for second in range(1, 6):
            load, at = 10.0 + 7 * second, views.END - 45 + second
            sample = f.Sample(9000 + second, int(at * 1e9), h=[views.host_row()])
            sample.g = [views.device_row(place, 40.0, load) for place in range(8)]
            app.session._hear("alpha", sample, at)
            screen = await until(pilot, f" {load:.0f} % ")
            lines = re.findall(r"│ (?:GPU 0|alpha +0) .+", screen)
            assert len(lines) == 2
            assert all(f" {load:.0f} %" in line for line in lines), screen


@in_loop
async def test_enter_looks_at_a_host_the_tabs_follow_and_escape_comes_back():
    app = app_of(SIX)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "6 hosts")
        await settled(pilot)
        await pilot.press("j", "j", "j")  # bravo, echo, delta, charlie
        await pilot.press("enter")
        shown = await until(pilot, "jupyter", "─ GPUs", absent="6 hosts")
        assert app.main.tab == "overview"
        assert "charlie 3/6" in shown
        await pilot.press("2")
        await until(pilot, "Where the bytes are")
        assert app.session.host is not None
        assert app.session.host.name == "charlie"
        await pilot.press("escape")
        await until(pilot, "6 hosts")
        assert app.main.query_one(FleetPane)._hosts.cursor_key == "charlie", "where one left"
        await pilot.press("k", "2")
        await until(pilot, "Where the bytes are")
        assert app.session.host is not None
        assert app.session.host.name == "delta", "the tabs are those of the host under the cursor"
        await pilot.press("0")
        await until(pilot, "6 hosts")


@in_loop
async def test_enter_opens_a_finding_in_the_doctor_and_escape_comes_back_to_it():
    app = app_of({"alpha": ("busy", LIVE), "bravo": ("stalled", LIVE)}, "fleet")
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot, "2 hosts")
        await until(pilot, "▸ ▲ bravo", "Wrong on bravo (1) · Tab, Enter: the finding")
        await pilot.press("tab")
        await until(pilot, "Wrong on bravo (1) · Enter: the finding", "▸ ▲ train.py: Hang: rank 3")
        await pilot.press("enter")
        await until(pilot, "▸ ▲ Hang: rank 3 is stuck", "How sure", absent="2 hosts")
        await pilot.press("escape")
        await until(pilot, "▸ ▲ train.py: Hang: rank 3", "─ GPUs of all hosts")
        await pilot.press("tab", "down")
        await until(pilot, "▸ ● alpha")
        await pilot.press("tab")
        await until(pilot, "this host has no finding to go to", "▸ ● alpha")


@in_loop
async def test_a_host_that_was_never_reached_says_why_one_enter_deeper():
    app = app_of(SIX)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "6 hosts")
        await settled(pilot)
        await pilot.press("j", "enter")
        await until(pilot, "permission denied. Next: ssh echo", absent="6 hosts")
        assert app.main.tab == "overview"


@in_loop
async def test_the_header_keeps_the_name_of_a_host_whose_reason_is_too_long():
    app = app_of(SIX)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, "6 hosts")
        await settled(pilot)
        await pilot.press("j")
        shown = await until(pilot, "echo 5/6")
        assert "unreachable: permission denied" in shown.splitlines()[0]
        assert "permission denied · ssh" in shown


@pytest.mark.slow
@in_loop
async def test_the_filter_of_hosts_is_their_own():
    app = app_of(SIX)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "6 hosts")
        await settled(pilot)
        await pilot.press("slash", *"jupyter", "enter")
        await until(pilot, "6 hosts, 1 shown", absent="bravo")
        assert lines_of(app) == ["charlie"]
        assert app.session.state.filter == ""
        await pilot.press("enter")
        await until(pilot, "─ GPUs", absent="6 hosts")
        assert "filter:" not in text(app)
        await pilot.press("escape")
        await until(pilot, "1 shown")
        await pilot.press("escape")
        await until(pilot, "bravo")
        assert app.main.tab == "fleet"


@in_loop
async def test_sorting_and_only_mine():
    app = app_of(SIX)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "6 hosts")
        await settled(pilot)
        await pilot.press("greater_than_sign")
        await until(pilot, "hosts sorted by name")
        assert lines_of(app) == ["alpha", "bravo", "charlie", "delta", "echo", "foxtrot"]
        await pilot.press("greater_than_sign")
        await until(pilot, "hosts sorted most free GPUs first", "Hosts (6), most free GPUs first")
        assert lines_of(app)[:2] == ["foxtrot", "charlie"]
        await pilot.press("less_than_sign", "less_than_sign", "u")
        await until(pilot, "6 hosts, 3 shown", absent="foxtrot 8/8")
        assert lines_of(app) == ["bravo", "delta", "alpha"]


@pytest.mark.parametrize("size", [(60, 16), (200, 60)])
@in_loop
async def test_the_worst_host_comes_first_on_any_terminal(size):
    app = app_of(SIX)
    async with app.run_test(size=size) as pilot:
        await settled(pilot)
        assert lines_of(app)[0] == "bravo"


@in_loop
async def test_one_host_has_no_fleet():
    app = make_app(views.training(4.0))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "─ GPUs")
        await pilot.press("0")
        shown = await until(pilot, "Fleet: only one host is connected")
        assert "0 Fleet" not in shown
        assert app.main.tab == "overview"
        await pilot.press("escape")
        assert app.main.tab == "overview"


@in_loop
async def test_help_and_footer_name_the_keys():
    app = app_of(SIX)
    async with app.run_test(size=(160, 40)) as pilot:
        shown = await until(pilot, "6 hosts", "Enter Details")
        footer = shown.splitlines()[-1]
        assert "> Sort" in footer
        assert "/ Filter" in footer
        assert "Snapshot" not in footer
        await pilot.press("question_mark")
        while not isinstance(app.screen, HelpScreen):
            await pilot.pause()
        told = "\n".join("".join(part for part, _ in line) for line in app.screen.text())
        assert "all hosts, the worst first" in told
        assert "close, clear the filter, or go to all hosts" in told


@in_loop
async def test_hostile_names_command_nothing():
    names = {
        "\x1b]52;c;eA==\x07": ("busy", LIVE),
        "a\u202eb\u200b[link=x]": ("stalled", LIVE),
        "宽" * 80: ("idle", LIVE),
    }
    app = app_of(names)
    async with app.run_test(size=(80, 24)) as pilot:
        shown = await until(pilot, "3 hosts")
        assert not set("\x1b\x07\u202e\u200b") & set(shown)
        inside = [line for line in shown.splitlines() if line.startswith("│")]
        assert all(line.rstrip().endswith("│") for line in inside)


@in_loop
async def test_several_hosts_begin_with_one_sample_a_second_until_somebody_asks_for_more():
    app = app_of(SIX)
    app.session.settings = Settings(rate_hz=5.0)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "6 hosts")
        assert app.session.wanted_hz == 1.0
        app.session.change_rate(True)
        assert app.session.wanted_hz == 2.0
    one = make_app(views.training(2.0), settings=Settings(rate_hz=5.0))
    assert one.session.wanted_hz == 5.0


@in_loop
async def test_two_hosts_of_one_name_are_told_apart():
    made = {key: (fleet.node(1, "busy", 3.0, name="localhost"), LIVE) for key in ("gpu-a", "gpu-b")}
    store, hosts = fleet.store_of(made)
    session = Session(store)
    session.hosts, session._source = hosts, hosts.source
    app = GpuscopeApp(session)
    async with app.run_test(size=(200, 40)) as pilot:
        await until(pilot, "2 hosts", "gpu-a (localhost)", "gpu-b (localhost)")


@pytest.mark.slow
@in_loop
async def test_it_stands_still_while_it_is_paused():
    app = app_of(SIX)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "6 hosts")
        await settled(pilot)
        await pilot.press("space")
        await until(pilot, "PAUSED")
        app.session._hear_link("alpha", Link("stale", "no data for 4 s", 4.0))
        await pilot.pause(0.1)
        await pilot.press("j")
        app.main.refresh_all()
        shown = await until(pilot, "PAUSED")
        assert "3 ok" in shown
        await pilot.press("space")
        await until(pilot, "2 stale", "2 ok")


@pytest.mark.slow
def test_real_agents_one_hung_one_killed_one_shut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sources, "STALE_SECONDS", 0.5)
    monkeypatch.setattr(sources, "BACK_OFF_SECONDS", (0.5, 1.0))
    paths = [
        fleet.write(tmp_path / f"{n}", fleet.node(n, seconds=30.0, hz=5.0, name=f"host-{n}"))
        for n in range(4)
    ]
    agents = [fleet.agent(path, f"h{n}", 5.0) for n, path in enumerate(paths)]
    shut = remote_source("import sys; sys.exit(255)", "shut", Gate())

    async def look() -> None:
        session = Session(make_hosts=lambda hz: Hosts([*agents, shut]))
        app = GpuscopeApp(session)
        async with app.run_test(size=(120, 40)) as pilot:
            await until(pilot, "5 hosts: ▲ 1 unreachable · 4 ok", "denied · no retry")
            os.kill(pid_of(agents[0]), signal.SIGSTOP)
            os.killpg(pid_of(agents[1]), signal.SIGKILL)
            await until(pilot, "◆ 1 stale", "connected, but no data")
            assert any("h0" in notice.text for notice in session.notices.all), "the log has it"
            said = session.notices.current  # of a link that ended before the hosts were on screen
            assert said is None or said.text.startswith("ended: shut"), (
                "the screen says it already, and keeps its keys"
            )
            rows = {row.key: row for row in app.main.query_one(FleetPane)._hosts.rows}
            assert rows["h0"].cells["load"][0][1] == "faint"  # type: ignore[index]
            assert rows["h2"].cells["load"][0][1] == "ok"  # type: ignore[index]
            os.kill(pid_of(agents[0]), signal.SIGCONT)
            await until(pilot, "5 hosts: ▲ 1 unreachable · 4 ok")
            assert app.main.query_one(FleetPane)._fleet.order.grade("h2") is not None
            app.leave()
        for one in agents:
            await one.close()

    asyncio.run(look())


# ── names ──


def hosts_named(names: list[str]) -> GpuscopeApp:
    return app_of(dict.fromkeys(names, ("free", LIVE)))


@in_loop
async def test_the_domain_that_all_hosts_share_is_left_out_of_the_table():
    names = [f"gpu-{n:02d}.cluster.example.org" for n in range(6)]
    app = hosts_named(names)
    async with app.run_test(size=(120, 40)) as pilot:
        shown = await settled(pilot)
        rows = [line for line in shown.splitlines() if line.startswith("│ ")]
        assert all(any(f"○ gpu-{n:02d} " in row for row in rows) for n in range(6)), rows
        assert "LINK" not in shown, "that all are live needs no column"
        assert "free: gpu-00 8× " in shown
        assert "gpu-00.cluster.example.org" in shown, "in full below the table"


@pytest.mark.parametrize("width", [80, 120])
@in_loop
async def test_hosts_whose_long_names_differ_at_the_end_are_told_apart(width):
    names = [f"p5-48xlarge-training-cluster-eu-north-{n:02d}" for n in range(6)]
    app = hosts_named(names)
    async with app.run_test(size=(width, 40)) as pilot:
        shown = await settled(pilot)
        for n in range(6):
            row = next(
                line
                for line in shown.splitlines()
                if line.startswith("│") and f"h-{n:02d} " in line
            )
            assert "p5-48x" in row
            assert "…" in row


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (["a.lab.org", "b.lab.org"], ["a", "b"]),
        (["a.lab.org", "b.other.org"], None),
        (["a.lab.org", "b"], None),
        (["a.lab.org"], None),
        (["10.0.0.1", "10.0.0.2"], None),
        (["10.0.0.1", "11.0.0.1"], None),
    ],
)
def test_only_a_domain_of_all_is_left_out(names, shown):
    assert list(without_domain(names).values()) == (shown or names)


@pytest.mark.slow
@in_loop
async def test_the_devices_of_the_host_under_the_cursor_stand_below_where_rows_are_free():
    app = app_of(SIX)
    async with app.run_test(size=(200, 60)) as pilot:
        await until(pilot, "6 hosts")
        await settled(pilot)
        await until(pilot, "─ GPUs of bravo", "◆ waits for rank 3")
        await pilot.press("end")
        await until(pilot, "─ GPUs of alpha", absent="◆ waits for rank 3")
        await pilot.resize_terminal(120, 18)
        await until(pilot, "6 hosts", absent="─ GPUs of")


@in_loop
async def test_nothing_of_a_host_that_is_not_heard_looks_as_if_it_were_so_now():
    app = app_of(SIX)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "6 hosts")
        await settled(pilot)
        await pilot.press("j", "j")  # bravo, echo, delta
        await until(pilot, "─ GPUs of delta, as last seen")
        await pilot.press("enter")
        shown = await until(pilot, "delta 4/6", "no data for 42 s", absent="6 hosts")
        assert clock_text(app.session.host.wall_seconds) in shown
        assert " now " not in shown, "charts end when it was last heard"
        tokens = Tokens.of(app)
        rows = [row for row in grid(app) if "".join(char for char, _ in row).count(" ok ")]
        assert len(rows) == 8
        green = tokens.colour("ok")
        assert all(style.color != green for row in rows for _, style in row)


@pytest.mark.parametrize("size", [(80, 24), (120, 40)], ids=lambda s: f"{s[0]}x{s[1]}")
@in_loop
async def test_why_a_host_cannot_be_reached_is_told_in_full_in_its_row(size):
    """A host without figures gives their cells to the reason and to what to do."""
    reason = "no gpuscope there. Next: gpuscope deploy juliett"
    app = app_of({**SIX, "juliett": ("", Link("ended", f"juliett: {reason}"))}, "fleet")
    async with app.run_test(size=size) as pilot:
        await until(pilot, "7 hosts")
        shown = await until(pilot, "▲ juliett")
        (row,) = (line for line in shown.splitlines() if "▲ juliett" in line)
        assert "unreachable " in row
        assert "no gpuscope there · gpuscope deploy juliett" in row
        (stale,) = (line for line in shown.splitlines() if "◆ delta" in line)
        assert "stale 4" in stale
        assert "connected, but no data" in stale
        assert ("LINK" in shown) == (size[0] >= 100)


@in_loop
async def test_a_small_terminal_has_the_devices_of_a_host_below_a_few_hosts():
    app = app_of(SIX, "fleet")
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await until(pilot, "6 hosts", "─ GPUs of bravo, 4 of 8", "stalled at data.py:88")
        assert screen.index("alpha") < screen.index("─ GPUs of bravo")


@in_loop
async def test_a_host_where_a_job_has_died_lately_says_so_and_the_totals_count_it():
    calm, died = (
        fleet.node(number, "busy", seconds=5.0, name=name)
        for number, name in enumerate(("calm", "died"))
    )
    last = max(frame.m for frame in died if isinstance(frame, f.Sample))
    ids = [frame.id for frame in died if isinstance(frame, f.Def) and frame.trainer is not None]
    died += [f.Event(one, "gone", last, "exited: ValueError: no labels") for one in ids]
    store, sources_ = fleet.store_of({"calm": (calm, LIVE), "died": (died, LIVE)})
    session = Session(store)
    session.hosts, session._source = sources_, sources_.source
    session.doctor.prepare()
    app = GpuscopeApp(session, "overview")
    async with app.run_test(size=(120, 40)) as pilot:
        # the header is judged in a thread of its own, and comes a little later than the table
        shown = await until(pilot, "2 hosts", "580.82.07  ○ 1 job ended badly since")
        header, row, *_ = (line for line in shown.splitlines() if "died" in line)
        assert ": failed" in header
        assert "1 job ended badly since" in row, "of another host no earlier end is known"
        assert "in the last day" not in shown
        assert lines_of(app) == ["died", "calm"], "what needs a look comes first"
        await pilot.press("j", "enter")
        await until(pilot, "calm", absent="ended badly")


@each("size", [(80, 24), (120, 40), (200, 60)])
@in_loop
async def test_hosts_without_gpus_leave_out_their_columns_and_list_all_that_is_found(size):
    made = {name: fleet.node(at, "free", 5.0, name=name) for at, name in enumerate(("ash", "elm"))}
    for said in made.values():
        said[:] = [one for one in said if not (isinstance(one, f.Def) and one.gpu is not None)]
        for one in said:
            if isinstance(one, f.Sample):
                one.g.clear()
    store, sources_ = fleet.store_of({name: (said, LIVE) for name, said in made.items()})
    session = Session(store)
    session.hosts, session._source = sources_, sources_.source
    session.doctor.prepare()
    app = GpuscopeApp(session, "fleet")
    async with app.run_test(size=size) as pilot:
        await settled(pilot, "2 hosts")
        pane = app.main.query_one(FleetPane)
        why = "which has a reason that takes more cells than one line of a terminal has, " * 2
        texts = [f"trouble {number} of ash, {why}end{number}" for number in range(1, 5)]
        wrong = tuple(Word(Grade.WARNING, text) for text in texts)
        pane._fleet._found["ash"] = pane._fleet._clock(), wrong
        app.main.refresh_all()
        shown = await until(pilot, "end1", "end2", "end3", "end4")
        heading = next(line for line in shown.splitlines() if "STATE▾" in line)
        assert all(name not in heading for name in ("BUSY", "FREE", "UTIL", "TENS", "MEM"))
        assert ("CPU   RAM" in heading) == (size[0] > 80), "before a long reason at 80 cells"


@each("size", [(80, 24), (120, 40), (200, 60)])
@in_loop
async def test_all_that_is_wrong_with_a_host_is_counted_however_little_has_room(size):
    app = app_of({"ash": ("busy", LIVE), "elm": ("busy", LIVE)}, "fleet")
    async with app.run_test(size=size) as pilot:
        await settled(pilot, "2 hosts")
        fleet_ = app.main.query_one(FleetPane)._fleet
        names = "abcdefghijkl"
        wrong = tuple(Word(Grade.WARNING, f"trouble {name} is " + "long " * 6) for name in names)
        fleet_._found["ash"] = fleet_._clock(), wrong
        app.main.refresh_all()
        shown = await until(pilot, "trouble a")
        (row,) = (line for line in shown.splitlines() if "▸" in line and "more" in line)
        begun = sum(f"trouble {name}" in row for name in names)
        assert f"· {len(names) - begun} more" in row
        below = shown.partition(row)[2]
        listed = sum(f"◆ trouble {name}" in below for name in names)
        of = "12" if listed == 12 else f"{listed} of 12"
        assert listed
        assert f"Wrong on ash ({of})" in shown or size[1] < 32, "a title needs a frame"
