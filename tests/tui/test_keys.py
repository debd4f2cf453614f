"""One registry has the keys of all screens, dialogs and lists.

Nothing is bound past it, and nothing in it does nothing.
"""

from __future__ import annotations

import ast
import pkgutil
import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest
from textual.app import App
from textual.dom import DOMNode
from textual.widgets import Input

import gpuscope.tui
from gpuscope.store.remote import NOT_ANSWERED
from gpuscope.text import styled
from gpuscope.tui.app.help_screen import HelpScreen
from gpuscope.tui.app.tabs import TABS
from gpuscope.tui.processes.columns_dialog import ColumnDialog
from gpuscope.tui.processes.process_screen import ProcessScreen
from gpuscope.tui.shell.action_availability import LIVE
from gpuscope.tui.shell.actions import ACTIONS, BY_NAME
from gpuscope.tui.shell.keymap import (
    always,
    bindings,
    bindings_of,
    key_of,
    keys_of,
    names_in,
    shown_short,
    shown_whole,
)
from gpuscope.tui.shell.screen_keys import BY_TEXTUAL, KEYS, TITLES
from gpuscope.tui.snapshot.rows import VIEWS
from gpuscope.tui.snapshot.screen import SnapshotScreen
from gpuscope.tui.widgets.table import LiveTable
from tests.fakes import jobs, views
from tests.fakes.cases import each
from tests.fakes.collecting import collector_off
from tests.tui.pilot import in_loop, make_app, until


def below(kind: type) -> Iterator[type]:
    for one in kind.__subclasses__():
        yield one
        yield from below(one)


@cache
def classes() -> dict[str, type]:
    """All screens, widgets and apps of gpuscope, by name."""
    for module in pkgutil.walk_packages(gpuscope.tui.__path__, "gpuscope.tui."):
        import_module(module.name)
    return {one.__name__: one for one in below(DOMNode) if one.__module__.startswith("gpuscope.")}


def test_every_binding_comes_from_the_registry():
    """All classes are walked: each binding that a class adds of its own is one of the registry."""
    tabs = {"MainScreen": bindings(), "GpuscopeApp": always()}
    for name, kind in classes().items():
        own = kind.__dict__.get("BINDINGS")
        if own is not None:
            assert own == tabs.get(name) or own == bindings_of(name), name
    with_bindings = {name for name, kind in classes().items() if "BINDINGS" in kind.__dict__}
    assert set(KEYS) == with_bindings - set(tabs)


def test_what_is_active_on_a_screen_is_known():
    """What is active on a screen is known, with all that a class inherits.

    A binding is of the registry, or one of Textual's that it has words for.
    """
    known = {(key, action) for name in KEYS for key, action in pairs(name)}
    known |= {(key, f"do('{action.name}')") for action in ACTIONS for key in action.keys}
    for name, kind in classes().items():
        theirs = {
            key
            for base in kind.__mro__
            if base.__name__ in BY_TEXTUAL
            for key in textual_keys(base)
        }
        for key, found in kind._merge_bindings().key_to_bindings.items():
            for binding in found:
                assert (key, binding.action) in known or key in theirs or issubclass(kind, App), (
                    name,
                    key,
                )


def test_the_app_itself_adds_nothing_but_leaving_and_the_palette():
    app = make_app(views.training(4.0))
    assert set(app._bindings.key_to_bindings) == {"ctrl+c", "ctrl+q", "ctrl+p"}
    assert {"ctrl+c", "ctrl+q"} <= set(BY_NAME["quit"].keys)
    assert "ctrl+p" in BY_NAME["palette"].keys


def pairs(name: str) -> list[tuple[str, str]]:
    """(Key, action) of a class, each key by itself."""
    return [
        (one, action)
        for key in KEYS[name]
        for names, action in key.binds
        for one in names.split(",")
    ]


def textual_keys(base: type) -> set[str]:
    found = base.__dict__.get("BINDINGS", ())
    return {
        key.strip()
        for one in found
        for key in (one[0] if isinstance(one, tuple) else one.key).split(",")
    }


NAMED = re.compile(
    r"\b(Esc|Escape|Enter|Tab|PgDn|PgUp|Backspace|F\d{1,2})\b|\b[Pp]ress\b|\^[a-z]\b"
)
LETTER = re.compile(
    r"(?:^|[\s·(])[A-Za-z0-9?!/]: [a-z]"  # o: who has it open
    r"|\b[b-zB-HJ-Z] (?:turns|takes|opens|shows|says|goes|asks|restarts|starts|stops|marks"
    r"|copies)\b|: [A-Za-z?!/]$|\bwith [A-Z]$"  # that key acts on the tree: m
)
REGISTRY = {"actions.py", "screen_keys.py", "keymap.py"}


def key_words(source: str) -> Iterator[tuple[int, str]]:
    """(Line, text) of the strings in a file that name a key, but those that say what something is."""  # noqa: E501
    tree = ast.parse(source)
    docstrings = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in docstrings
        ):
            if NAMED.search(node.value) or LETTER.search(node.value):
                yield node.lineno, node.value
        elif isinstance(node, ast.Tuple) and len(node.elts) == 2:  # a piece in the style of keys
            text, style = (
                one.value if isinstance(one, ast.Constant) else None for one in node.elts
            )
            in_their_style = isinstance(text, str) and isinstance(style, str) and "accent" in style
            if in_their_style and re.fullmatch(r"[A-Za-z?!/<>]|[←→↑↓][←→↑↓ ]*", text.strip()):
                yield node.lineno, text


@pytest.mark.slow
@collector_off()
def test_no_text_names_a_key_by_itself():
    """No text names a key by itself.

    It takes the key from the registry by ``key_of``: a key that is changed there is changed in
    every text.
    """
    files = [
        path for path in Path(gpuscope.tui.__path__[0]).rglob("*.py") if path.name not in REGISTRY
    ]
    assert len(files) > 100
    found = [
        f"{path.name}:{line}: {text}"
        for path in files
        for line, text in key_words(path.read_text())
    ]
    assert found == []


@pytest.mark.parametrize(
    "text",
    [
        '"Esc: close"',
        'f"{x} · o: who has it open"',
        '("y", "bold accent")',
        '"^d: more"',
        '("← →", "accent")',
        '"that key acts on the tree: m"',
        '"d takes it out"',
        '"or choose it with P"',
        '"Press any of them"',
    ],
)
def test_a_key_in_a_text_is_found(text):
    assert list(key_words(f"shown = {text}"))


def test_a_text_that_names_a_key_that_does_nothing_is_an_error():
    assert key_of("attach") == "a"
    assert key_of("detach", "AttachScreen") == "d"
    assert key_of("send('TERM')", "SignalDialog") == "T"
    with pytest.raises(KeyError):
        key_of("detach")
    with pytest.raises(KeyError):
        key_of("attach", "AttachScreen")


def test_the_advice_after_a_question_of_ssh_names_the_key_that_asks_again():
    """What connects stands below the screens and cannot read the registry."""
    assert key_of("connect_again") in NOT_ANSWERED


@each("name", KEYS)
def test_a_key_means_one_thing_on_a_screen(name):
    """But for states of a screen that exclude each other."""
    taken: set[tuple[str, str]] = set()
    for key in KEYS[name]:
        for one in names_in(key):
            assert not taken & {(one, ""), (one, key.when)}, one
            assert key.when or not any(one == other for other, _ in taken), one
            taken.add((one, key.when))


@each("name", KEYS)
def test_an_entry_has_its_action_and_words(name):
    kind = classes()[name]
    places = [entry.footer for entry in keys_of(kind) if entry.footer and not entry.when]
    assert len(places) == len(set(places)), "two keys for one place in the footer"
    for key in KEYS[name]:
        assert key.label, key
        assert key.help, key
        assert not key.needs or key.needs in (*BY_NAME, LIVE)
        for names, action in key.binds:
            method = f"action_{action.partition('(')[0]}"
            if not key.via:
                assert hasattr(kind, method), (name, action)
            elif key.via == "Input":
                own = {one for bound in Input.BINDINGS for one in bound.key.split(",")}  # type: ignore[union-attr]
                assert set(names.split(",")) <= own
            else:
                listed = {one for entry in KEYS[key.via] for one in names_in(entry)}
                assert set(names.split(",")) <= listed, (name, names)


def test_states_are_those_that_a_screen_can_be_in(tmp_path):
    named = {key.when for key in KEYS["SnapshotScreen"] if key.when}
    assert named <= {*VIEWS, "files", "compared", "devices", "finding", "rows"}
    screen = SnapshotScreen(tmp_path / "none.pickle")
    screen._view = "diff"
    assert "files" in screen.key_states()
    assert "compared" not in screen.key_states()


def test_lists_on_the_tabs_share_keys_with_actions_only_where_they_mean_the_same():
    moving = {key for name in ("down", "up", "open") for key in BY_NAME[name].keys}
    for tab in TABS:
        on_tab = {key for action in ACTIONS if action.applies(tab) for key in action.keys}
        listed = "CaseTable" if tab == "doctor" else "LiveTable"
        assert on_tab & {key for entry in KEYS[listed] for key in names_in(entry)} <= moving


def test_titles_are_of_classes_that_have_keys():
    assert set(TITLES) <= {*KEYS, *BY_TEXTUAL}


def test_a_nearer_class_takes_a_key_from_those_it_derives_from():
    page = [key for key in keys_of(ColumnDialog) if "pagedown" in names_in(key)]
    assert [names_in(key) for key in page] == [["pagedown"]], "space shows a column there"
    assert shown_short(page[0]) == "PgDn"


@in_loop
async def test_help_on_a_screen_begins_with_its_keys():
    app = make_app(jobs.ranks(stalled=True))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "─ GPUs")
        app.open("processes")
        await until(pilot, "COMMAND")
        assert isinstance(app.screen, ProcessScreen)
        await pilot.press("question_mark")
        await pilot.pause()
        assert isinstance(app.screen, HelpScreen)
        lines = ["".join(text for text, _ in line) for line in app.screen.text()]
        assert lines[0] == "Processes"
        upto = lines.index("In the list")
        for key in KEYS["ProcessScreen"]:
            if key.needs and app.session.why_not(key.needs):
                continue
            assert any(shown_whole(key) in line and key.help in line for line in lines[:upto]), key
        assert any("PgDn PgUp  Page" in line for line in lines[upto : upto + 4])
        await pilot.press("question_mark")
        await pilot.pause()
        assert isinstance(app.screen, ProcessScreen)


def test_a_key_means_the_same_everywhere():
    """Zoom has the same keys everywhere, N goes back where n goes on, labels look alike."""
    entries = [key for keys in KEYS.values() for key in keys]
    zooms = [key for key in entries if key.label == "Zoom"]
    assert len(zooms) >= 3
    out, back = BY_NAME["zoom"], BY_NAME["zoom_back"]
    for key in zooms:
        assert [names.split(",") for names, _ in key.binds] == [list(out.keys), list(back.keys)]
    for screen, keys in KEYS.items():
        for key in keys:
            names = {names.split(",")[0]: action for names, action in key.binds}
            assert "b" not in names or len(key.binds) == 1, f"{screen}: n and N go through rows"
            assert ("n" in names) == ("N" in names) or len(key.binds) == 1, screen
            hidden = [name for name in key.hidden if name not in names_in(key)]
            assert not hidden, f"{screen}: {hidden} are no keys of {key.label}"
            assert not set(key.hidden) & set(names), "the first key of each is named"
    assert not any(one.label[:1].islower() for one in (*entries, *ACTIONS))


@in_loop
async def test_help_names_the_signs_that_are_on_the_screen_and_no_other():
    app = make_app(views.training(4.0))
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await until(pilot, "─ GPUs", "○ free")
        await pilot.press("question_mark")
        shown = await until(pilot, "Signs on this screen")
        signs = ("○", "idle, free or over"), ("◇", "shared by several"), ("●", "ok: working")
        for sign, meaning in signs:
            assert (sign in screen) == (meaning in shown), sign


@in_loop
async def test_help_says_what_a_hang_and_lines_that_cover_each_other_are_marked_with():
    app = make_app(views.training(4.0))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "─ GPUs")
        await pilot.press("question_mark")
        await until(pilot, "Signs on this screen")
        page = app.screen
        assert isinstance(page, HelpScreen)
        told = [styled.plain(line).split(maxsplit=1) for line in page._signs("▲ GPU 0 ≈  ━ GPU 1")]
        assert [sign for sign, _ in told] == ["▲", "≈"]
        assert "as in a hang" in told[0][1]
        assert "one covers the other" in told[1][1]
        assert [styled.plain(line)[2] for line in page._signs("━ GPU 1 ▲")] == ["▲"]


@in_loop
async def test_help_on_a_tab_begins_with_the_keys_of_its_list_that_no_action_has():
    app = make_app(views.training(4.0))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "─ GPUs")
        assert isinstance(app.screen.focused, LiveTable)
        await pilot.press("question_mark")
        await pilot.pause()
        assert isinstance(app.screen, HelpScreen)
        lines = ["".join(text for text, _ in line) for line in app.screen.text()]
        assert lines[0].startswith("On this row  GPU 5 H200")
        assert "Details" in lines[1]
        order = [lines.index(title) for title in ("On Overview", "In the list", "Screens")]
        order += [lines.index(title) for title in ("Not possible now", "On other tabs", "States")]
        assert order == sorted(order)
        assert "PgDn PgUp" in lines[order[1] + 1]
        explained = [line.split(maxsplit=1) for line in lines[lines.index("In a bar") + 1 :][:3]]
        assert explained[0] == ["╋", "memory beyond 95 % of the GPU"]
        assert [sign for sign, _ in explained[1:]] == ["╍", "┄"]
        # what can be done here stands on one page
        shown = await until(pilot, "On this row", absent="more lines")
        assert "Not possible now" not in shown
        await pilot.press("v")
        await until(pilot, "Not possible now", "words, glyphs", absent="On this row")
        await pilot.press("v")
        await until(pilot, "On this row", absent="Not possible now")
        impossible = lines[order[3] : order[4]]
        assert any("Host" in line and "only one host is connected" in line for line in impossible)


@pytest.mark.slow
@in_loop
async def test_a_wide_help_has_two_columns():
    for width, two in ((99, False), (100, True), (200, True)):
        async with make_app(views.training(4.0)).run_test(size=(width, 60)) as pilot:
            await until(pilot, "─ GPUs")
            await pilot.press("question_mark")
            shown = await until(pilot, "On this row")
            line = next(line for line in shown.splitlines() if "On this row" in line)
            beside = line.partition("On this row")[2].partition("│")[0].strip()
            assert bool(beside.replace("GPU 5 H200", "").strip()) == two, line
