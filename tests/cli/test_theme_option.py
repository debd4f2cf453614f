"""``--theme`` reaches every screen: that of each verb with one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from gpuscope.cli.main import main
from gpuscope.tui.app import file_app, launch
from gpuscope.tui.app.file_app import FileApp
from gpuscope.tui.background import view_state

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


def test_the_screen_of_a_snapshot_takes_a_theme_and_remembers_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr("gpuscope.cli.commands.snapshot.verb._on_screen", lambda _: True)
    drawn = []
    monkeypatch.setattr(FileApp, "run", lambda app: drawn.append(app.theme))
    path = tmp_path / "a.pickle.gz"
    shutil.copy(ROOT / "demos" / "snapshots" / "training.pickle.gz", path)
    assert main(["snapshot", str(path), "--theme", "light"]) == 0
    assert view_state.load()[0].theme == "light"
    assert file_app.show_snapshot(path) == 0
    assert drawn == ["gpuscope-light"] * 2, "the next screen begins with it"


def test_an_unknown_theme_is_refused_with_the_known_ones(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["lab", "--theme", "purple"])
    assert left.value.code == 64
    assert "colour-blind" in capsys.readouterr().err
