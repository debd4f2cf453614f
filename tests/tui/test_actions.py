"""One registry drives keys, footer, help and palette.

Nothing in it is out of reach, and nothing is reachable past it.
"""

from __future__ import annotations

from importlib import import_module

import pytest

from gpuscope.tui.app.app import GpuscopeApp
from gpuscope.tui.app.help_screen import SECONDS, HelpScreen
from gpuscope.tui.app.main_screen import MainScreen
from gpuscope.tui.app.palette import Palette
from gpuscope.tui.app.tabs import TABS
from gpuscope.tui.shell.actions import ACTIONS, handler_of
from gpuscope.tui.shell.entries import GROUPS
from gpuscope.tui.shell.footer import PAIRS, tab_ends, tab_hints
from gpuscope.tui.shell.keymap import always, bindings, key_text
from tests.fakes import views
from tests.tui.pilot import in_loop, until
from tests.tui.pilot import make_app as pilot_app
from tests.tui.snapshots import text


def make_app() -> GpuscopeApp:
    return pilot_app(views.training(4.0))


def test_names_and_places_are_in_order():
    assert len({a.name for a in ACTIONS}) == len(ACTIONS)
    assert {a.group for a in ACTIONS} == set(GROUPS)
    assert {tab for a in ACTIONS for tab in a.where} <= set(TABS)
    assert set(TABS) <= {a.name for a in ACTIONS}


def test_a_key_means_one_thing_on_a_tab():
    for tab in TABS:
        taken: dict[str, str] = {}
        for action in ACTIONS:
            for key in action.keys if action.applies(tab) else ():
                other = taken.setdefault(key, action.name)
                # A switch of the lab and the seeking of a replay share the arrows: a replay has no
                # lab.
                assert other == action.name or {other[:3], action.name[:3]} == {"lab", "rep"}, (
                    tab,
                    key,
                )


def test_every_action_has_its_key():
    bound = {(b.key, b.action) for b in [*bindings(), *always()]}
    assert bound == {(key, f"do('{a.name}')") for a in ACTIONS for key in a.keys}


def test_every_action_has_somebody_who_carries_it_out():
    panes = {
        tab: getattr(import_module(f"gpuscope.tui.{folder}.pane"), name)
        for tab, (folder, name) in TABS.items()
    }
    for action in ACTIONS:
        for tab in action.where or TABS:
            if action.name not in TABS:
                places = (panes[tab], MainScreen, GpuscopeApp)
                assert handler_of(action.name, *places) is not None, (tab, action.name)


@pytest.mark.parametrize(
    ("key", "name"),
    [("slash", "/"), ("ctrl+p", "^p"), ("j", "j"), ("full_stop", "."), ("escape", "Esc")],
)
def test_keys_are_shown_as_people_write_them(key, name):
    assert key_text(key) == name


@in_loop
async def test_every_action_is_in_the_help():
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("question_mark")
        await pilot.pause()
        assert isinstance(app.screen, HelpScreen)
        found = " ".join("".join(text for text, _ in line).strip() for line in app.screen.text())
        for action in ACTIONS:
            why_not = app.session.why_not(action.name)
            here = action.applies("overview")
            if action.name not in SECONDS:
                pair = PAIRS.get(action.name)
                does = pair[2] if pair else action.help_on("overview")
                assert (why_not if why_not and here else does) in found
            assert key_text(action.keys[0]) in found
        assert "not here" not in found
        await pilot.press("q")
        await pilot.pause()
        assert isinstance(app.screen, MainScreen), "q inside a dialog closes the dialog"


@in_loop
async def test_the_footer_shows_what_can_be_done_here_and_now():
    app = make_app()
    async with app.run_test(size=(160, 40)) as pilot:
        await pilot.pause()
        footer = text(app).splitlines()[-1]
        shown_here = [a for a in ACTIONS if a.footer and a.applies("overview") and not a.needs]
        for action in shown_here:
            assert any(
                f"{hint.keys} {hint.label}" in footer and action.name in hint.action
                for hint in [*tab_hints("overview", app.session.why_not), *tab_ends()]
            ), action.name
        assert "Counters" not in footer
        await pilot.press("2")
        await pilot.pause()
        assert "c Counters" in text(app).splitlines()[-1]


@in_loop
async def test_what_cannot_be_done_says_why():
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("left_square_bracket")
        await pilot.pause()
        assert "Sample less often: no host is connected yet" in text(app).splitlines()[-1]


@in_loop
async def test_what_is_closed_twice_closes_nothing_else():
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "─ GPUs")
        await pilot.press("P")
        await until(pilot, "RSS GiB")
        processes = app.screen
        await pilot.press("c")
        columns = app.screen
        assert columns is not processes
        for screen, below in ((columns, processes), (processes, app.main)):
            screen.dismiss()
            screen.dismiss()  # the second of two clicks that came together
            await pilot.pause()
            assert app.screen is below
        await pilot.press("colon")
        palette = app.screen
        assert isinstance(palette, Palette)
        palette.dismiss()
        palette.dismiss()
        await pilot.pause()
        assert app.screen is app.main
