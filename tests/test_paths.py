"""The user's folders."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gpuscope import paths

VARIABLES = ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME")


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def folders() -> list[Path]:
    return [
        paths.cache_folder(),
        paths.config_folder(),
        paths.data_folder(),
        paths.state_folder(),
        paths.log_folder(),
    ]


@pytest.mark.parametrize("platform", ["linux", "darwin"])
def test_they_are_where_each_platform_wants_them(monkeypatch, platform):
    module = pytest.importorskip(
        "platformdirs.macos" if platform == "darwin" else "platformdirs.unix"
    )
    dirs = (module.MacOS if platform == "darwin" else module.Unix)("gpuscope")
    monkeypatch.setattr(sys, "platform", platform)
    expected = [
        dirs.user_cache_dir,
        dirs.user_config_dir,
        dirs.user_data_dir,
        dirs.user_state_dir,
        dirs.user_log_dir,
    ]
    assert [str(path) for path in folders()] == expected


def test_what_the_user_names_counts_unless_it_is_relative(monkeypatch, home):
    monkeypatch.setenv("XDG_DATA_HOME", str(home / "mine"))
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert paths.data_folder() == home / "mine" / "gpuscope"
    assert paths.cache_folder() == home / ".cache" / "gpuscope"
