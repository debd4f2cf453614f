"""No key is met with silence: one that means nothing here says where it does something."""

from __future__ import annotations

import pytest

from gpuscope.tui.app.elsewhere import PLACES, elsewhere
from gpuscope.tui.app.tabs import TABS
from gpuscope.tui.shell.actions import ACTIONS, BY_NAME
from gpuscope.tui.shell.keymap import ALWAYS, keys_of, names_in
from gpuscope.tui.shell.notices import Notices, shortened
from gpuscope.tui.shell.screen_keys import KEYS
from tests.fakes import views
from tests.fakes.cases import each
from tests.tui.pilot import in_loop, make_app, until
from tests.tui.snapshots import text
from tests.tui.test_keys import classes

EVERY = sorted(
    {key for action in ACTIONS for key in action.keys}
    | {name for keys in KEYS.values() for key in keys for name in names_in(key)}
)
TOLD_IN_PLACES = {name for place in PLACES for key in KEYS[place] for name in names_in(key)}


@pytest.mark.parametrize("tab", TABS)
def test_each_key_of_the_registry_acts_on_a_tab_or_says_where_it_does(tab):
    here = {key for action in ACTIONS if action.applies(tab) for key in action.keys}
    for key in set(EVERY) - here:
        said = elsewhere(key, tab=tab)
        used = any(key in action.keys for action in ACTIONS) or key in TOLD_IN_PLACES
        assert (") works on " in said) == used, (key, said)
        assert BY_NAME["help"].keys[0] == "question_mark"
        assert used or "? shows" in said


@each("name", [name for name in KEYS if name.endswith(("Screen", "Dialog"))])
def test_each_key_of_the_registry_acts_on_a_screen_or_says_where_it_does(name):
    here = {one for key in keys_of(classes()[name]) for one in names_in(key)}
    for key in set(EVERY) - here:
        said = elsewhere(key, name)
        on_tabs = [action for action in ACTIONS if key in action.keys]
        assert not on_tabs or on_tabs[0].label in said, (key, said)


def test_a_sentence_names_the_key_that_leads_to_the_place():
    assert elsewhere("c", tab="log").startswith("c (Counters) works on Memory (2)")
    assert "T (Tree) works on Processes (P)" in elsewhere("T", tab="overview")
    assert elsewhere("f2", tab="log").startswith("f2 does nothing here")


@in_loop
async def test_every_key_is_answered_on_the_screen():
    """Each key that no action of the tab has shows a sentence in the last line."""
    app = make_app(views.training(4.0))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "─ GPUs")
        here = {key for action in ACTIONS if action.applies("overview") for key in action.keys}
        on_list = {one for key in keys_of(type(app.screen.focused)) for one in names_in(key)}
        for key in sorted(set(EVERY) - here - on_list - set(ALWAYS)):
            app.session.notices.unhint()
            await pilot.press(key)
            await pilot.pause()
            assert elsewhere(key, tab="overview")[:30] in text(app).splitlines()[-1], key


@in_loop
async def test_a_dialog_answers_in_the_last_line_and_the_next_key_acts():
    app = make_app(views.training(4.0))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "─ GPUs")
        await pilot.press("P")
        await until(pilot, "RSS GiB")
        await pilot.press("m")
        await until(pilot, "(Modules) works on Memory (2)")
        await pilot.press("c")
        await until(pilot, "Columns")
        await pilot.press("z")
        await until(pilot, "z (Zoom) works on")


@in_loop
async def test_what_is_said_about_a_key_goes_with_the_next_key():
    app = make_app(views.training(4.0))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "─ GPUs")
        await pilot.press("c")
        await until(pilot, "(Counters) works on Memory (2)")
        assert "Enter Details" in text(app).splitlines()[-1], "a notice leaves keys their room"
        await pilot.press("2")
        await until(pilot, "Where the bytes are", absent="(Counters) works on Memory (2)")
        assert not any("Counters" in notice.text for notice in app.session.notices.all)


def test_a_notice_is_shortened_and_keeps_the_name_of_its_file():
    long = "copied, and written to ~/.local/state/gpuscope/copies/gpuscope-20261123-204024.txt"
    assert shortened(long, 100) == long
    assert shortened(long, 60) == "copied, and written to ~/…/gpuscope-20261123-204024.txt"
    assert shortened(long, 30).endswith("…")
    assert len(shortened(long, 30)) == 30
    assert shortened("a profile is /srv/data/runs/x.json now", 30) == "a profile is /…/x.json now"


@in_loop
async def test_a_long_notice_stands_in_the_last_line_of_a_narrow_terminal():
    app = make_app(views.training(4.0))
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, "─ GPUs")
        app.session.notices.say(
            "copied, and written to /a/very/very/long/folder/of/a/user/on/a/host/gpuscope-1.txt"
        )
        app.main.refresh_frame()
        await until(pilot, "gpuscope-1.txt")
        last = text(app).splitlines()[-1]
        assert "gpuscope-1.txt" in last
        assert last.split()[-3:] == ["?", ":", "q"]
        whole = "report saved: ~/.local/share/gpuscope/reports/gpuscope-20261126-215230.html"
        app.session.notices.say(whole)
        app.main.refresh_frame()
        await until(pilot, whole)


@in_loop
async def test_what_a_key_says_goes_with_the_next_key():
    app = make_app(views.training(4.0))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "─ GPUs")
        await pilot.press("c")
        await until(pilot, "(Counters) works on Memory (2)")
        await pilot.press("j")
        await until(pilot, "Enter Details", absent="(Counters) works on Memory (2)")
        await pilot.press("P", "m")
        await until(pilot, "m (Modules)")
        await pilot.press("j")
        await until(pilot, "Enter Details", absent="m (Modules)")


def test_a_hint_is_not_kept():
    notices = Notices()
    notices.say("kept")
    notices.hint("passing")
    assert notices.current is not None
    assert notices.current.text == "passing"
    notices.unhint()
    assert notices.current is None
    assert [notice.text for notice in notices.all] == ["kept"]
