"""``--theme`` reaches every screen: that of each verb with one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from gpuscope.cli.main import main
from gpuscope.tui.app import file_app, launch
from gpuscope.tui.app.app import GpuscopeApp
from gpuscope.tui.app.file_app import FileApp
from gpuscope.tui.background import view_state
from gpuscope.tui.theme import THEME_NAMES

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "argv",
    [
        ["lab", "--theme", "light"],
        ["replay", "--theme", "light", str(ROOT / "demos" / "recordings" / "h200-lab.gsr")],
        ["--theme", "light"],
    ],
    ids=["lab", "replay", "no verb"],
)
def test_each_verb_with_tabs_hands_the_theme_to_them(
    argv: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(launch, "run_app", lambda *_, **given: asked.append(given["theme"]) or 0)
    assert main(argv) == 0
    assert asked == ["light"]


def test_the_tabs_take_the_theme_of_the_option_only_this_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(launch, "why_unusable", lambda *_: "")
    monkeypatch.setattr(launch, "prepare_environment", lambda _: None)
    monkeypatch.setattr(launch.gc, "disable", lambda: None)
    monkeypatch.setattr(launch.gc, "freeze", lambda: None)
    drawn = []
    monkeypatch.setattr(GpuscopeApp, "run", lambda app, **_: drawn.append(app.theme))
    view_state.save(view_state.ViewState(theme="ansi"))
    assert launch.run_app(theme="light") == 0
    assert launch.run_app() == 0
    assert drawn == ["gpuscope-light", THEME_NAMES["ansi"]]


def test_a_theme_that_is_chosen_by_key_is_remembered_whatever_the_option_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(FileApp, "run", lambda app: app.choose_theme("ansi"))
    assert file_app.show_snapshot(tmp_path / "a.pickle", "light") == 0
    assert view_state.load()[0].theme == "ansi"


def test_the_screen_of_a_snapshot_takes_a_theme_only_this_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr("gpuscope.cli.commands.snapshot.verb._on_screen", lambda _: True)
    drawn = []
    monkeypatch.setattr(FileApp, "run", lambda app: drawn.append(app.theme))
    path = tmp_path / "a.pickle.gz"
    shutil.copy(ROOT / "demos" / "snapshots" / "training.pickle.gz", path)
    assert main(["snapshot", str(path), "--theme", "light"]) == 0
    assert file_app.show_snapshot(path) == 0
    assert drawn == ["gpuscope-light", THEME_NAMES["dark"]], "the next screen begins as before"


def test_an_unknown_theme_is_refused_with_the_known_ones(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["lab", "--theme", "purple"])
    assert left.value.code == 64
    assert "colour-blind" in capsys.readouterr().err
