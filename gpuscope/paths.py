"""The user's folders: settings, state, data, cache and log.

Each is ``gpuscope`` below what the XDG variables name, else below the platform's own place. It
needs only the standard library, because the agent's launcher and a training environment without any
other package look here too. A folder need not exist.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

NAME = "gpuscope"
_MAC_HOMES = {
    "XDG_CACHE_HOME": "Library/Caches",
    "XDG_CONFIG_HOME": "Library/Application Support",
    "XDG_DATA_HOME": "Library/Application Support",
    "XDG_STATE_HOME": "Library/Application Support",
}
_HOMES = {
    "XDG_CACHE_HOME": ".cache",
    "XDG_CONFIG_HOME": ".config",
    "XDG_DATA_HOME": ".local/share",
    "XDG_STATE_HOME": ".local/state",
}


def config_folder() -> Path:
    """Return where the user writes settings. gpuscope only reads there."""
    return _folder("XDG_CONFIG_HOME")


def state_folder() -> Path:
    """Return the folder for state that should last, but may be deleted without harm."""
    return _folder("XDG_STATE_HOME")


def data_folder() -> Path:
    """Return where results lie that the user may want to keep."""
    return _folder("XDG_DATA_HOME")


def cache_folder() -> Path:
    """Return where things lie that can be made again."""
    return _folder("XDG_CACHE_HOME")


def log_folder() -> Path:
    """Return where gpuscope's own log lies."""
    if sys.platform == "darwin":
        return _home() / "Library" / "Logs" / NAME
    return state_folder() / "log"


def _folder(variable: str) -> Path:
    named = os.environ.get(variable, "")
    if os.path.isabs(named):  # a relative one is to be ignored, says the standard
        return Path(named) / NAME
    return _home() / (_MAC_HOMES if sys.platform == "darwin" else _HOMES)[variable] / NAME


def _home() -> Path:
    """Return the user's home.

    It does not fail where there is none: nothing can be written below ``~`` then.
    """
    return Path(os.path.expanduser("~"))


def new_file(folder: Path, stem: str, suffix: str) -> Path:
    """Return a path in a folder, which is made, where no file is yet. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path, number = folder / f"{stem}.{suffix}", 2
    while path.exists():
        path, number = folder / f"{stem}-{number}.{suffix}", number + 1
    return path


def short_path(path: Path) -> str:
    """Return the path with ``~`` for the home directory."""
    text, home = str(path), str(_home())
    return "~" + text[len(home) :] if text.startswith(home + "/") else text
