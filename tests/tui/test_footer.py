"""The last line of every screen: its own keys first, and three keys that are never left out."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from gpuscope.config import Settings
from gpuscope.store.replay import ReplaySource
from gpuscope.text import styled
from gpuscope.tui.app.app import GpuscopeApp
from gpuscope.tui.app.tabs import TABS
from gpuscope.tui.shell.action_availability import why_not
from gpuscope.tui.shell.actions import ACTIONS
from gpuscope.tui.shell.entries import Hint
from gpuscope.tui.shell.footer import (
    ends_beside,
    fitted,
    hint_pieces,
    screen_ends,
    screen_hints,
    tab_ends,
    tab_hints,
)
from gpuscope.tui.shell.keymap import key_text, keys_of, names_in
from gpuscope.tui.shell.screen_keys import KEYS
from gpuscope.tui.shell.session import Session
from gpuscope.tui.widgets.dialog import Dialog
from gpuscope.tui.widgets.full_screen import FullScreen
from tests.fakes import jobs, views
from tests.recordings import REDACTED
from tests.tui import test_trainer_actions
from tests.tui.pilot import in_loop, make_app, until
from tests.tui.snapshots import text
from tests.tui.test_keys import classes

BESIDE = ("fleet", "next_host", "previous_host", "connect_again", "next_fix")
"""Actions that are not about the recording."""
OWN = {
    "overview": ["Enter", "Tab", "P", "a"],
    "memory": ["n N", "w", "W", "m"],
    "time": ["n N", "l", "w", "Enter"],
    "doctor": ["n", "r", "S", "K", "y"],
    "lab": ["r", "x", "← →", "v", "i"],
    "log": ["n N", "Enter", "/"],
    "fleet": ["Enter", "F5", "/", "a"],
}
"""Tab → keys that somebody needs there, which a terminal of 80 columns has room for."""


def anything(action: str) -> str:
    return ""


LONG = [Hint(letter, f"does {letter * 4}", f"do {letter}") for letter in "abcde"]
ENDS = [Hint("?", "Help", action="help"), Hint("q", "Quit", action="quit")]


def line_of(own: list[Hint], ends: list[Hint], width: int) -> str:
    left, right = fitted(own, ends, width)
    pieces = [piece for hint in [*left, *right] for piece in hint_pieces(hint)]
    return styled.plain(pieces)


@pytest.mark.parametrize("tab", TABS)
def test_at_80_columns_a_tab_names_its_own_keys_and_the_three_of_all_screens(tab):
    left, right = fitted(tab_hints(tab, anything), tab_ends(), 80)
    shown = [hint.keys for hint in left]
    assert [keys for keys in OWN[tab] if keys not in shown] == []
    assert [(hint.keys, hint.label) for hint in right] == [
        ("?", "Help"),
        (":", "Palette"),
        ("q", "Quit"),
    ]
    assert sum(styled.cells(hint_pieces(hint)) for hint in [*left, *right]) <= 80


def test_on_the_list_of_jobs_the_overview_names_the_filter_at_80_columns():
    def shown(on_jobs: bool) -> list[str]:
        left, _ = fitted(tab_hints("overview", anything, on_jobs=on_jobs), tab_ends(), 80)
        return [hint.keys for hint in left]

    assert shown(on_jobs=False) == ["Enter", "Tab", "P", "a"]
    assert shown(on_jobs=True) == ["Enter", "Tab", "P", "/"]


@in_loop
async def test_the_keys_of_the_line_follow_the_keyboard_from_list_to_list():
    app = test_trainer_actions.make(views.training(3.0))[0]
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, "train.py")
        app.main.query_one("#devices").focus()
        await until(pilot, "P Processes  a Attach")
        for _ in range(4):
            await pilot.press("tab")
            if app.main.focused.id == "jobs":
                break
        await until(pilot, "P Processes  / Filter")


def test_only_a_tab_with_rows_to_filter_names_the_filter():
    names = {tab: [hint.keys for hint in tab_hints(tab, anything)] for tab in TABS}
    assert [tab for tab, keys in names.items() if "/" not in keys] == ["memory"]


def test_while_a_job_hangs_the_overview_names_the_keys_that_help_right_after_enter():
    left, _ = fitted(tab_hints("overview", anything, hangs=True), tab_ends(), 80)
    assert [hint.keys for hint in left][:3] == ["Enter", "S", "K"]
    assert tab_hints("memory", anything, hangs=True) == tab_hints("memory", anything)


@in_loop
async def test_a_hang_on_the_screen_puts_its_keys_into_the_line():
    app = test_trainer_actions.make(jobs.ranks(stalled=True))[0]
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, "Doctor ▲1", "stalled: ")
        app.main._footer()  # as every second
        await until(pilot, "Enter Details  S Stacks  K Signal")


@pytest.mark.parametrize("name", [n for n in KEYS if n.endswith(("Screen", "Dialog"))])
@pytest.mark.parametrize("width", [40, 80, 200])
def test_every_screen_names_help_palette_and_the_key_that_leaves_at_any_width(name, width):
    keys = keys_of(classes()[name])
    left, right = fitted(screen_hints(keys), screen_ends(keys), width)
    assert [hint.keys for hint in right] == ["?", ":", "q"]
    assert all(hint.action for hint in right)
    assert sum(styled.cells(hint_pieces(hint)) for hint in [*left, *right]) <= width
    assert width < 80 or all(hint.label for hint in [*left, *right]), "no key is without its word"


def test_beside_a_sentence_no_key_is_without_its_word():
    ends = [Hint("?", "Help"), Hint(":", "Palette"), Hint("q", "Quit")]
    assert [hint.label for hint in ends_beside(53, ends, 80)] == ["Help", "Palette", "Quit"]
    assert [hint.label for hint in ends_beside(54, ends, 80)] == ["Help", "Quit"]
    assert [hint.label for hint in ends_beside(65, ends, 80)] == ["Help"]
    assert ends_beside(75, ends, 80) == [], "the end of the sentence may be a path"


def test_an_action_has_one_word_at_any_width_and_those_of_the_right_end_stay_longest():
    whole = sum(styled.cells(hint_pieces(hint)) for hint in [*LONG, *ENDS])
    assert line_of(LONG, ENDS, whole).endswith(" e does eeee  ? Help  q Quit ")
    assert line_of(LONG, ENDS, whole - 1).endswith(" d does dddd  ? Help  q Quit ")
    assert line_of(LONG, ENDS, 55) == " a does aaaa  b does bbbb  c does cccc  ? Help  q Quit "
    assert line_of(LONG, ENDS, 30) == " a does aaaa  ? Help  q Quit "
    assert line_of(LONG, ENDS, 15) == " ? Help  q "
    assert line_of(LONG, ENDS, 10) == " ?  q "


def test_a_trace_of_the_gpu_is_offered_only_where_a_trainer_uses_one():
    host = views.host_of(jobs.ranks())
    source: Any = SimpleNamespace(capabilities=SimpleNamespace(why_not=lambda action: ""))

    def why(cuda: bool) -> str:
        trainers = tuple(
            replace(one, definition=replace(one.definition, cuda=cuda)) for one in host.trainers
        )
        session: Any = SimpleNamespace(
            replay=None, settings=Settings(), host=replace(host, trainers=trainers)
        )
        return why_not(session, "look", source, away=False, heard=True)

    assert why(cuda=True) == ""
    assert why(cuda=False) == "no trainer here uses CUDA yet: there is no GPU to trace"


def test_what_would_only_say_why_not_is_left_out_and_time_leads_where_the_screen_stands_still():
    keys = keys_of(classes()["JobScreen"])
    states = ("ranks", "answering", "living")
    going = [hint.label for hint in screen_hints(keys, states, lambda name: "")]
    assert going[:4] == ["Details", "Stacks", "All ranks", "Snapshot"]
    still = screen_hints(
        keys, states, lambda name: "no probe" if name == "profile" else "", still=True
    )
    assert [(hint.keys, hint.label) for hint in still[:3]] == [
        ("space", "Now"),
        (", .", "10 s"),
        ("{ }", "5 min"),
    ]
    assert sorted(hint.label for hint in still[3:]) == sorted({*going} - {"Profile", "Past"})


# ── on screen ──


@pytest.mark.slow
@in_loop
async def test_full_screens_and_dialogs_keep_host_time_and_the_three_keys():
    """What opens from a key is opened; the help over a tab and over a screen is one of them."""
    app = make_app(jobs.ranks(stalled=True))
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, "─ GPUs")
        clock = re.search(r"\d\d:\d\d:\d\d", text(app).splitlines()[0])
        assert clock is not None
        host = app.session.host
        assert host is not None
        name = host.name[:12]
        pid = host.trainers[0].definition.pid
        device = host.devices[0].key if host.devices else ""
        kinds: list[tuple[str, tuple[object, ...]]] = [
            ("processes", ()),
            ("job", (host.jobs[0].key,)),
            ("device", (device,)) if device else ("processes", ()),
            ("readings", (host.processes[0].key,)),
            ("attach", (pid,)),
            ("settings", ()),
            ("stacks", (host.trainers[0].key,)),
        ]
        for kind, args in kinds:
            app.open(kind, *args)
            await pilot.pause()
            assert app.screen is not app.main, kind
            assert isinstance(app.screen, (FullScreen, Dialog)), kind
            for _ in range(2):  # the second time with the help over it
                lines = text(app).splitlines()
                assert name in lines[0], (kind, lines[0])
                assert clock[0] in lines[0], (kind, lines[0])
                ends = lines[-1].split()
                assert "?" in ends, (kind, lines[-1])
                assert ":" in ends, (kind, lines[-1])
                leaves = "q" if isinstance(app.screen, FullScreen) else "Esc"
                assert leaves in ends, (kind, lines[-1])
                await pilot.press("question_mark")
                await pilot.pause()
            await pilot.press("q")
            await pilot.pause()
            while app.screen is not app.main:
                await pilot.press("q")
                await pilot.pause()


@pytest.mark.slow
@in_loop
async def test_what_a_replay_cannot_do_is_not_offered_and_says_why_when_its_key_is_pressed():
    replay = ReplaySource(REDACTED / "h200x2-ddp.gsr")
    replay.pause()
    replay.seek(60.0)
    app = GpuscopeApp(Session(replay=replay), "overview")
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "REPLAY", "script-1")
        for tab in ("overview", "memory", "time", "doctor", "lab"):
            await app.action_do(tab)
            await pilot.pause()
            offered = text(app).splitlines()[-1]
            for action in ACTIONS:
                reason = app.session.why_not(action.name)
                if not (reason and action.applies(tab)) or action.name in BESIDE:
                    continue
                key = key_text(action.keys[0])
                assert f" {key} {action.label} " not in offered
                await pilot.press(action.keys[0])
                await pilot.pause()
                last = text(app).splitlines()[-1]
                assert f"{action.label}: {reason[:20]}" in last, (tab, action.name, last)
                assert app.screen is app.main
        host = app.session.host
        assert host is not None
        for kind, args in (
            ("processes", ()),
            ("process", (host.processes[0].key,)),
            ("device", (host.devices[0].key,)),
            ("job", (host.jobs[0].key,)),
        ):
            app.open(kind, *args)
            await pilot.pause()
            screen = app.screen
            pressed = 0
            for entry in keys_of(type(screen)):
                reason = app.session.why_not(entry.needs) if entry.needs else ""
                if reason:
                    assert f" {entry.label} " not in text(app).splitlines()[-1]
                    await pilot.press(names_in(entry)[0])
                    await pilot.pause()
                    last = text(app).splitlines()[-1]
                    assert f"{entry.label}: {reason[:20]}" in last, (kind, entry.label, last)
                    assert app.screen is screen
                    pressed += 1
            assert pressed, kind
            await pilot.press("escape")
            await pilot.pause()


def test_only_the_question_that_names_the_process_has_keys_that_send_each_a_letter_of_the_signal():
    senders = {
        (name, names, does)
        for name, keys in KEYS.items()
        for key in keys
        for names, does in key.binds
        if "send" in does
    }
    assert {name for name, _, _ in senders} == {"SignalDialog"}
    for _, key, does in senders:
        signal = does.removeprefix("send('").removesuffix("')")
        assert (key.isupper() and key in signal) or (key, signal) == ("9", "KILL")
        assert not any(key in action.keys and action.name in TABS for action in ACTIONS)
