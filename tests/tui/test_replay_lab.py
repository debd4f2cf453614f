"""In a replay the Lab's tab shows nothing of this machine, and says where a Lab is."""

from __future__ import annotations

from pathlib import Path

from gpuscope.lab.config import LabConfig
from gpuscope.lab.ledger import PATH_VARIABLE
from gpuscope.store.replay import ReplaySource
from gpuscope.tui.app.app import GpuscopeApp
from gpuscope.tui.app.palette_entries import of_actions
from gpuscope.tui.shell.action_availability import NO_LAB
from gpuscope.tui.shell.actions import ACTIONS
from gpuscope.tui.shell.session import Session
from tests.recordings import REDACTED, SHIPPED
from tests.tui import lab_data
from tests.tui.pilot import in_loop, until
from tests.tui.snapshots import text

OWN_WORDS = ("mlp-tiny", "Demo trainer", "SAMPLES/S")
"""What the Lab of this machine shows with the runs of :func:`replayed`."""

LAB_ACTIONS = [action for action in ACTIONS if action.name.startswith("lab_")]


def replayed(monkeypatch, tmp_path, recording: Path, seconds: float = 20.0) -> GpuscopeApp:
    """Return a replay on a machine whose Lab has two finished runs."""
    path = tmp_path / "l.sqlite"
    monkeypatch.setenv(PATH_VARIABLE, str(path))
    configs = LabConfig(model="mlp-tiny"), LabConfig(model="mlp-tiny", amp="bf16")
    lab_data.ledger(path, *(lab_data.document(config, 100.0) for config in configs))
    replay = ReplaySource(recording)
    replay.seek(seconds)
    replay.pause()
    return GpuscopeApp(Session(replay=replay))


@in_loop
async def test_a_replay_shows_no_run_of_this_machine_on_any_tab(monkeypatch, tmp_path):
    app = replayed(monkeypatch, tmp_path, REDACTED / "h200x2-ddp.gsr")
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "─ GPUs")
        for key, wanted in (
            ("2", "Where the bytes are"),
            ("3", "Time"),
            ("4", "Findings"),
            ("5", "A replay has no Lab."),
            ("6", "WHAT"),
            ("5", "gpuscope --lab "),
        ):
            await pilot.press(key)
            screen = await until(pilot, wanted, "REPLAY")
            assert not [word for word in OWN_WORDS if word in screen], key
        assert "no run of a Lab" in screen
        assert "h200x2-ddp.gsr" in screen, "how a stored run is compared with it"
        assert app.session._labs is None, "the stored runs are not even read"


@in_loop
async def test_the_runs_of_a_lab_that_were_recorded_are_told(monkeypatch, tmp_path):
    app = replayed(monkeypatch, tmp_path, SHIPPED / "h200-lab.gsr", 60.0)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("5")
        screen = await until(pilot, "1 run of the Lab in this recording", "No run can be started")
        assert "gpt · amp bf16" in screen, "its settings, from the command of its worker"
        assert " of 1,800 · median step " in screen
        assert "loss " in screen
        assert "no run of a Lab" not in screen
        assert not [word for word in OWN_WORDS if word in screen]


@in_loop
async def test_keys_help_and_palette_agree_that_a_replay_has_no_lab(monkeypatch, tmp_path):
    app = replayed(monkeypatch, tmp_path, REDACTED / "h200x2-ddp.gsr")
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("5")
        await until(pilot, "A replay has no Lab.")
        for action in LAB_ACTIONS:
            await app.action_do(action.name)
            await until(pilot, f"{action.label}: {NO_LAB}")
            assert app.screen is app.main, action.name
        await pilot.press("y")
        line = (await until(pilot, "Pause", absent=NO_LAB)).splitlines()[-1]
        labels = {action.label for action in ACTIONS if action.where == ("lab",)}
        assert not labels & set(line.split())
        for word in ("Details", "Next list", "Filter"):
            assert word not in line
        entries = {entry.name: entry.reason for entry in of_actions(app)}
        assert {entries[action.name] for action in LAB_ACTIONS} == {NO_LAB}
        await pilot.press("question_mark")
        await until(pilot, "Help: keys", "Screens")
        assert "On Lab" not in text(app)
        assert "On this row" not in text(app)


@in_loop
async def test_a_fix_is_not_put_into_the_lab_of_a_replay(monkeypatch, tmp_path):
    app = replayed(monkeypatch, tmp_path, REDACTED / "h200x2-ddp.gsr")
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("2")
        await until(pilot, "Where the bytes are")
        await pilot.press("r")
        await until(pilot, f"Try fix: {NO_LAB}")
        assert app.main.tab == "memory"
