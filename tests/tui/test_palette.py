"""The palette finds actions, keys, things, pitfalls and words, and does what is chosen."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuscope.config import Settings
from gpuscope.model.alerts_settings import AlertSettings
from gpuscope.tui.app.palette import Palette
from gpuscope.tui.app.palette_entries import PaletteEntry, matching_entries, score
from gpuscope.tui.app.settings_dialog import SettingsDialog
from gpuscope.tui.app.word_dialog import WordDialog
from gpuscope.tui.doctor.dialogs import ExplainDialog
from gpuscope.tui.shell.actions import ACTIONS
from gpuscope.tui.shell.keymap import key_text
from gpuscope.tui.widgets.table import LiveTable
from tests.fakes import jobs, views
from tests.tui.pilot import at_the_jobs, in_loop, make_app, until
from tests.tui.snapshots import text

NEVER_LISTED = {"palette", "down", "up"}


async def type_in(pilot, words: str) -> None:
    odd = {" ": "space", "@": "at", ":": "colon", "-": "minus", ".": "full_stop", "/": "slash"}
    await pilot.press(*[odd.get(letter, letter) for letter in words])


@in_loop
async def test_every_action_is_listed_once_with_its_key_and_what_is_impossible_comes_last():
    app = make_app(views.training(4.0))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "─ GPUs")
        entries = matching_entries(app, app.main, "")
        named = [entry for entry in entries if not entry.kind and entry.name in BY]
        assert {entry.name for entry in named} == set(BY) - NEVER_LISTED
        for entry in named:
            assert key_text(BY[entry.name].keys[0]) in entry.keys
        reasons = [bool(entry.reason) for entry in entries]
        assert reasons == sorted(reasons)
        assert any(reasons)


@in_loop
async def test_a_gpu_or_pid_that_is_not_there_is_told_with_what_is():
    app = make_app(views.training(4.0))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "─ GPUs")
        await pilot.press("colon")
        await type_in(pilot, "gpu 77")
        await until(pilot, "node-17 has no GPU 77, only GPU 0 to 7")
        await pilot.press("ctrl+u")
        await type_in(pilot, "pid 9")
        await until(pilot, "node-17 has no pid 9 with a probe or on a GPU")
        await type_in(pilot, "x")
        await until(pilot, "nothing is found: try a shorter word")
    app = make_app(views.cpu_only())
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "No GPU here")
        await pilot.press("colon")
        await type_in(pilot, "gpu 5")
        await until(pilot, "no GPU is seen on laptop")


BY = {action.name: action for action in ACTIONS}


@in_loop
async def test_an_entry_takes_one_line_and_the_page_shows_through_dimmed():
    app = make_app(views.training(4.0))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "─ GPUs")
        await pilot.press("colon")
        shown_now = await until(pilot, "jobs, GPUs, load and memory")
        lines = shown_now.splitlines()
        first = next(line for line in lines if "▸ Details" in line)
        assert "everything about GPU 5" in first, "what acts on this row stands first"
        at = next(number for number, line in enumerate(lines) if " jobs, GPUs, load" in line)
        assert " Memory " in lines[at + 1]
        assert " Time " in lines[at + 2]
        assert " Doctor " in lines[at + 3]
        assert "node-17" in lines[0]
        assert app.screen.styles.background.a < 1


@in_loop
@pytest.mark.parametrize(
    ("query", "name"), [("oom", "pitfall reduce-batch-size"), ("slow", "time")]
)
async def test_a_word_for_what_is_wrong_leads_to_its_fix_or_to_the_tab_that_shows_it(query, name):
    app = make_app(views.training(4.0))
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, "─ GPUs")
        await pilot.press("colon")
        await type_in(pilot, query)
        await until(pilot, query, "pitfall")
        assert app.screen.chosen.name == name


@in_loop
async def test_the_entry_for_enter_speaks_of_the_row_under_the_cursor():
    app = make_app(views.crowd())
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "─ GPUs", "with a probe")
        await at_the_jobs(pilot)
        told = []
        for key in ("home", "end"):
            await pilot.press(key)
            entries = matching_entries(app, app.main, "details")
            told += [entry.about for entry in entries if entry.name == "open"]
        assert told[0].startswith("the page of ")
        assert told[1].startswith("processes of ")


@in_loop
async def test_it_carries_an_action_out_and_remembers_it():
    app = make_app(views.training(4.0))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "─ GPUs")
        await pilot.press("colon")
        await type_in(pilot, "memory")
        await pilot.press("enter")
        await until(pilot, "Where the bytes are")
        assert app.main.tab == "memory"
        await pilot.press("colon")
        await until(pilot, "recent")
        assert isinstance(app.screen, Palette)
        assert app.screen.chosen is not None
        assert app.screen.chosen.name == "memory"


@pytest.mark.slow
@in_loop
async def test_an_action_of_another_tab_goes_there_first():
    app = make_app(views.training(4.0))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "─ GPUs")
        await pilot.press("colon")
        await type_in(pilot, "counters")
        await pilot.press("enter")
        await until(pilot, "Memory summary")
        assert app.main.tab == "memory"


@in_loop
async def test_what_is_not_possible_says_why_and_the_palette_stays():
    app = make_app(views.training(4.0))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "─ GPUs")
        await pilot.press("colon")
        await type_in(pilot, "previous host")
        await pilot.press("enter")
        await until(pilot, "Previous host: only one host is connected")
        assert isinstance(app.screen, Palette)


@in_loop
async def test_a_small_terminal_says_in_each_line_why_an_entry_is_not_possible():
    app = make_app(views.training(4.0))
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, "─ GPUs")
        await pilot.press("colon")
        await type_in(pilot, "rec")
        lines = (await until(pilot, "Reconnect")).splitlines()
        reconnect = next(line for line in lines if "Reconnect" in line)
        assert "not now: no host is connected" in reconnect
        assert "▸ Reconnect" not in reconnect, "the cursor is elsewhere: the line itself says why"
        dead = next(line for line in lines if " A dead job" in line)
        assert "which rank failed first" in dead


@in_loop
async def test_things_are_found_by_their_names():
    app = make_app(views.training(4.0))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "─ GPUs")
        assert matching_entries(app, app.main, "gpu 3")[0].title == "GPU 3"
        assert matching_entries(app, app.main, "pid 48214")[0].title == "pid 48214"
        assert matching_entries(app, app.main, "48214")[0].title == "pid 48214"
        assert matching_entries(app, app.main, "train.py")[0].kind == "job"
        await pilot.press("colon")
        await type_in(pilot, "gpu 3")
        await pilot.press("enter")
        await until(pilot, "GPU 3")
        assert type(app.screen).__name__ == "DeviceScreen"


@in_loop
async def test_oom_slow_and_hang_lead_to_the_doctor_a_pitfall_and_a_word():
    app = make_app(jobs.ranks(stalled=True))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "─ GPUs")
        for query in ("oom", "slow", "hang"):
            entries = matching_entries(app, app.main, query)
            assert "doctor" in [entry.name for entry in entries[:6]], query
            assert {"pitfall", "word"} <= {entry.kind for entry in entries}, query
        await pilot.press("colon")
        await type_in(pilot, "batch does not fit")
        await pilot.press("enter")
        await until(pilot, "reduce-batch-size")
        assert isinstance(app.screen, ExplainDialog)


@in_loop
async def test_slow_leads_to_what_says_why_before_the_rate_of_samples():
    app = make_app(jobs.ranks())
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "─ GPUs")
        app.session.why_not = lambda need: ""  # the rate can be changed
        found = matching_entries(app, app.main, "slow")
        titles = [entry.title for entry in found]
        assert titles[:2] == ["Time", "Doctor"]
        assert "gpuscope why" in titles[2:4]
        assert titles.index("Sample less often") > 4
        assert "slower" in [entry.name for entry in matching_entries(app, app.main, "slower")]


@in_loop
async def test_a_word_is_explained():
    app = make_app(views.training(4.0))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "─ GPUs")
        assert matching_entries(app, app.main, "headroom")[0].title == "headroom"
        await pilot.press("colon")
        await type_in(pilot, "headroom")
        await pilot.press("enter")
        await until(pilot, "Related", "More words of Memory")
        assert isinstance(app.screen, WordDialog)


@in_loop
async def test_the_keys_of_a_screen_come_first_and_one_is_carried_out():
    app = make_app(views.training(4.0))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "─ GPUs")
        app.open("processes")
        await until(pilot, "RSS GiB")
        titles = [entry.title for entry in matching_entries(app, app.screen, "")]
        assert titles.index("Slurm job") < titles.index("Overview")
        before = app.session.state.process_tree
        await pilot.press("colon")
        await type_in(pilot, "children below")
        await pilot.press("enter")
        await pilot.pause()
        assert app.session.state.process_tree is not before


@in_loop
async def test_a_theme_is_chosen_by_its_name():
    app = make_app(views.training(4.0))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "─ GPUs")
        await pilot.press("colon")
        await type_in(pilot, "theme light")
        await pilot.press("enter")
        await pilot.pause()
        assert (app.theme, app.session.state.theme) == ("gpuscope-light", "light")


@pytest.mark.slow
@in_loop
async def test_a_picture_and_a_report_are_saved_and_their_paths_said(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    app = make_app(views.training(4.0))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "─ GPUs")
        for words, suffix, holds in (
            ("save a picture", "svg", "node-17"),
            ("report html", "html", "Where the memory is"),
        ):
            await pilot.press("colon")
            await type_in(pilot, words)
            await pilot.press("enter")
            await until(pilot, f".{suffix}", " saved: ")
            (path,) = tmp_path.rglob(f"*.{suffix}")
            saved = Path(path).read_text().replace("&#160;", " ")
            assert holds in saved
            assert "GPUs" in saved
            assert "Palette  " not in saved.partition("</h2>")[0]
            assert path.stat().st_mode & 0o077 == 0


@pytest.mark.slow
@in_loop
async def test_settings_show_the_file_and_change_what_can_be_changed(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    app = make_app(views.training(4.0))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "─ GPUs")
        await pilot.press("colon")
        await type_in(pilot, "settings")
        await pilot.press("enter")
        await until(pilot, "config.toml", "charts_seconds", "temperature_celsius")
        assert isinstance(app.screen, SettingsDialog)
        await pilot.press("t", "u")
        await until(pilot, "light", "mine only")
        assert app.theme == "gpuscope-light"
        assert app.session.state.mine


@pytest.mark.slow
@in_loop
async def test_settings_explain_the_one_under_the_cursor_and_each_where_there_is_room(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    settings = Settings(alerts=AlertSettings(starved=True, temperature_celsius=87.0))
    for size, beside in (((80, 24), False), ((120, 40), True)):
        app = make_app(views.training(4.0), settings=settings)
        async with app.run_test(size=size) as pilot:
            await until(pilot, "─ GPUs")
            app.open("settings")
            await until(pilot, "charts_seconds")
            assert isinstance(app.screen, SettingsDialog)
            assert ("draw with ASCII" in text(app)) is beside
            app.screen.query_one(LiveTable).move_to("starved")
            await until(pilot, "starved: alert when a GPU waits for the input", "true: watched")
            await until(pilot, "(the file)", "true or false", "starved = true below [alerts]")
            app.screen.query_one(LiveTable).move_to("temperature_celsius")
            await until(pilot, "this hot", "87 °C", "20 to 120 °C", "temperature_celsius = 87")
            app.screen.query_one(LiveTable).move_to("gone")
            await until(pilot, "a training or GPU process of mine ends", "(default)")
            await pilot.press("enter")
            await until(pilot, "gpuscope never writes the file: write gone = true there")
            app.screen.query_one(LiveTable).move_to("theme")
            await pilot.press("enter")
            await until(pilot, "now      light  (chosen here)")


def test_every_word_of_a_query_must_be_in_an_entry():
    entry = PaletteEntry(
        "x", "Save a picture (SVG)", "this screen in a file", print, also="screenshot"
    )
    assert score(entry, "save pic") > score(entry, "screen")
    assert score(entry, "screenshot")
    assert not score(entry, "save html")
    assert not score(entry, "ave"), "three letters from the middle of a word are chance"


@in_loop
async def test_a_click_on_an_entry_does_it():
    app = make_app(views.training(4.0))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "─ GPUs")
        await pilot.press("colon")
        await type_in(pilot, "memory")
        await pilot.pause()
        rows = text(app).splitlines()
        y = next(number for number, line in enumerate(rows) if "what every byte of" in line)
        await pilot.click(offset=(20, y))
        await until(pilot, "Where the bytes are")


@in_loop
async def test_what_acts_on_another_tab_stands_below_what_acts_here():
    app = make_app(views.training(4.0))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "─ GPUs")
        for query in ("", "setting", "trainer"):
            possible = [
                entry for entry in matching_entries(app, app.main, query) if not entry.reason
            ]
            away = [entry.elsewhere for entry in possible]
            assert any(away), query
            assert away == sorted(away), query
        assert matching_entries(app, app.main, "counters")[0].name == "counters", (
            "its name finds it"
        )


@in_loop
async def test_enter_is_explained_for_the_tab_that_is_shown():
    app = make_app(views.training(4.0))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "─ GPUs")
        await pilot.press("6", "question_mark")
        shown_now = await until(pilot, "go to the job, GPU, finding")
        assert "ranks side by side" not in shown_now


@pytest.mark.slow
@in_loop
async def test_a_saved_picture_stands_in_the_log_with_its_path(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    app = make_app(views.training(4.0))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "─ GPUs")
        app.save_picture()
        await pilot.press("6")
        await until(pilot, "files 1", "saved", "picture saved")
        (path,) = tmp_path.rglob("*.svg")
        assert app.session.notices.all[-1].path == path
        await pilot.press("enter")
        await pilot.pause()
        current = app.session.notices.current
        assert current is not None
        assert path.name in current.text


@pytest.mark.slow
@in_loop
async def test_an_action_of_a_tab_leaves_the_screens_above_the_tabs():
    app = make_app(views.training(4.0))
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, "─ GPUs")
        await pilot.press("P")
        await pilot.pause()
        await pilot.press("question_mark", "colon")
        await pilot.press(*"memory", "enter")
        await until(pilot, "Where the bytes are", "n N GPU")
        assert app.screen is app.main


@in_loop
async def test_an_action_that_is_being_typed_comes_before_pitfalls_and_words():
    app = make_app(views.training(4.0))
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, "─ GPUs")
        assert matching_entries(app, app.main, "setting")[0].name == "settings"
        assert matching_entries(app, app.main, "save a pic")[0].name == "save picture"


@in_loop
async def test_what_a_newcomer_types_finds_its_thing():
    app = make_app(views.training(4.0))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "─ GPUs")
        for query, title in (
            ("why slow", "Time"),
            ("oom", "Memory"),
            ("kill", "Processes"),
            ("save picture", "Save a picture (SVG)"),
            ("cpu", "Overview"),
            ("export", "Report"),
            ("log", "Log"),
            ("compare", "Lab"),
            ("quit", "Quit"),
            ("dark mode", "Theme"),
            ("how do i search?", "Filter"),
            ("back in time", "Past"),
            ("prometheus", "gpuscope export"),
            ("will it fit", "gpuscope predict"),
            ("docker", "gpuscope attach"),
            ("record", "gpuscope record"),
        ):
            found = [entry.title for entry in matching_entries(app, app.main, query)]
            assert title in found[:3], f"{query}: {found[:5]}"
        [entry] = [e for e in matching_entries(app, app.main, "gpuscope export") if e.kind]
        entry.run()
        await until(pilot, "copied for a shell: gpuscope export")
