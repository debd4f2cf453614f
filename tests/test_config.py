"""Settings and view state: wrong files are named and survived, never overwritten by accident."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import pytest

from gpuscope import config
from gpuscope.model.alerts_settings import AlertSettings
from gpuscope.model.setting import declared
from gpuscope.tui.background import view_state
from gpuscope.tui.shell.session import LOCAL_CHARTS_SECONDS, REMOTE_CHARTS_SECONDS, USUAL_HZ


def test_no_file_means_defaults_and_silence(tmp_path):
    assert config.load(tmp_path / "none.toml") == (config.Settings(), [])


def test_good_values_are_taken(tmp_path):
    path = tmp_path / "config.toml"
    path.write_text('rate_hz = 5\ntheme = "light"\nmouse = false\ncharts_seconds = 1.5\n')
    settings, problems = config.load(path)
    assert problems == []
    assert (settings.rate_hz, settings.theme, settings.mouse, settings.charts_seconds) == (
        5.0,
        "light",
        False,
        1.5,
    )


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("rate_hz = 50", "a number from 0.1 to 10"),
        ("rate_hz = true", "a number"),
        ('theme = "mauve"', "one of dark, light, colour-blind, ansi"),
        ("theme = []", "one of dark"),
        ('mouse = "yes"', "true or false"),
        ("colour = 1", "no such setting"),
        ("[nested]\na = 1", "no such setting"),
    ],
)
def test_a_wrong_value_is_named_with_file_line_and_key_and_the_rest_counts(tmp_path, line, says):
    path = tmp_path / "config.toml"
    path.write_text(f"# mine\n\nredact = false\n{line}\n")
    settings, problems = config.load(path)
    assert settings == config.Settings(redact=False)
    key = line.strip("[").split("]")[0].split(" ")[0].split("\n")[0]
    assert len(problems) == 1
    assert problems[0].startswith(f"{path}:4: {key}: ")
    assert says in problems[0]


def test_broken_toml_names_its_line_and_stays_as_it_is(tmp_path):
    path = tmp_path / "config.toml"
    path.write_text("rate_hz = 2\ntheme = = 3\n")
    settings, problems = config.load(path)
    assert settings == config.Settings()
    assert str(path) in problems[0]
    assert "line 2" in problems[0]
    assert path.read_text() == "rate_hz = 2\ntheme = = 3\n"


@pytest.mark.parametrize(
    "content", [b"\xff\xfe\x00", b"#" * 70_000], ids=["not utf-8", "too large"]
)
def test_unreadable_files_are_named(tmp_path, content):
    path = tmp_path / "config.toml"
    path.write_bytes(content)
    settings, problems = config.load(path)
    assert settings == config.Settings()
    assert str(path) in problems[0]


@pytest.mark.parametrize("kind", [config.Settings, AlertSettings])
def test_every_value_of_a_setting_has_a_meaning(kind):
    usual = kind()
    for name, setting in declared(kind).items():
        values = [getattr(usual, name), setting.example, *setting.choices]
        values += [True, False] if isinstance(setting.example, bool) else []
        for value in values:
            shown = setting.value_text(tuple(value) if isinstance(value, list) else value)
            assert shown.strip(), (name, value)
            assert shown.strip() != str(value) or setting.choices or name == "on_alert"


def test_what_is_said_of_a_default_by_the_situation_is_what_a_session_does():
    said = declared(config.Settings)
    assert said["rate_hz"].value_text(None) == f"{USUAL_HZ:g} Hz"
    assert said["charts_seconds"].value_text(None) == (
        f"{LOCAL_CHARTS_SECONDS:g} s here, {REMOTE_CHARTS_SECONDS:g} s over ssh"
    )


def test_where_the_files_are(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "c"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "s"))
    assert config.config_path() == tmp_path / "c" / "gpuscope" / "config.toml"
    assert view_state.state_path() == tmp_path / "s" / "gpuscope" / "state.json"


# ── view state ────────────────────────────────────────────────────────────────────────────────────


def test_state_comes_back(tmp_path):
    path = tmp_path / "deep" / "state.json"
    chosen = view_state.ViewState(recent="settings", sort="used", theme="light", rate_hz=5.0)
    assert view_state.save(replace(chosen, mine=True, filter="train"), path) == ""
    assert view_state.load(path) == (chosen, ""), "which rows are shown is of a session alone"
    assert os.listdir(path.parent) == ["state.json"]


@pytest.mark.parametrize("content", ["", "[1]", "nonsense", "[" * 50_000, '"' + "x" * 20_000 + '"'])
def test_a_bad_state_is_ignored_with_a_notice_and_left_alone(tmp_path, content):
    path = tmp_path / "state.json"
    path.write_text(content)
    found, notice = view_state.load(path)
    assert found == view_state.ViewState()
    assert "starting fresh" in notice
    assert path.read_text() == content


def test_values_that_make_no_sense_have_their_defaults(tmp_path):
    path = tmp_path / "state.json"
    path.write_text(
        json.dumps(
            {
                "sort": 3,
                "mine": "yes",
                "rate_hz": 1e9,
                "recent": "x" * 9999,
                "more": 1,
            }
        )
    )
    found, notice = view_state.load(path)
    assert notice == ""
    assert (found.sort, found.mine, found.rate_hz) == ("index", False, 0.0)
    assert len(found.recent) == 200


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "state.json"
    view_state.save(view_state.ViewState(sort="power"), path)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert "No space left" in view_state.save(view_state.ViewState(sort="used"), path)
    assert view_state.load(path)[0].sort == "power"
    assert os.listdir(tmp_path) == ["state.json"]
