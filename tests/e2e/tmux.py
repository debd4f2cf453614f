"""A program in a real terminal: tmux with a socket and a configuration of its own."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

WAIT_SECONDS = 60.0
"""What a healthy program may take to start or to answer on a starved machine; only a test that
fails waits so long.
"""
TMUX = shutil.which("tmux")


def homes(folder: Path) -> dict[str, str]:
    """Return variables for a program that is to find nothing of what its user keeps.

    The cache is that of all tests of a process: the first of them builds the agent's zip.
    """
    own = {f"XDG_{kind}_HOME": str(folder / f"XDG_{kind}_HOME") for kind in ("STATE", "CONFIG")}
    return {**own, "XDG_CACHE_HOME": str(folder.parent / "cache")}


def assigned(variables: Mapping[str, str]) -> str:
    """Return them as words of a shell that assign them."""
    return " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())


class Tmux:
    """One window of ``columns`` × ``rows`` that runs a shell command and stays when it ends."""

    def __init__(self, folder: Path, command: str, columns: int = 100, rows: int = 30) -> None:
        assert TMUX is not None
        self._base = [TMUX, "-S", tempfile.mktemp(".tmux", dir=folder), "-f", os.devnull]
        marked = f"{command}; echo EXIT=$?; sleep 1000"
        self._run("new-session", "-d", "-x", str(columns), "-y", str(rows), "sh", "-c", marked)

    def _run(self, *words: str) -> str:
        done = subprocess.run(
            [*self._base, *words], capture_output=True, text=True, timeout=WAIT_SECONDS
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def text(self) -> str:
        """What stands on the screen."""
        return self._run("capture-pane", "-p")

    def wait(self, pattern: str, absent: str = "") -> str:
        """Poll until ``pattern`` is found and ``absent`` is not."""
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            screen = self.text()
            if re.search(pattern, screen) and not (absent and re.search(absent, screen)):
                return screen
            assert time.monotonic() < deadline, (
                f"{pattern!r} without {absent!r} did not appear in\n{screen}"
            )
            time.sleep(0.1)  # each look starts a process

    def keys(self, *names: str) -> None:
        """Press keys by their tmux names."""
        self._run("send-keys", *names)

    def resize(self, columns: int, rows: int) -> None:
        """Give the window another size."""
        self._run("resize-window", "-x", str(columns), "-y", str(rows))

    def flag(self, name: str) -> str:
        """Return a format of the pane.

        Such are ``alternate_on``, ``mouse_any_flag``, ``cursor_flag``, ``pane_pid``.
        """
        return self._run("display-message", "-p", f"#{{{name}}}").strip()

    def close(self) -> None:
        subprocess.run([*self._base, "kill-server"], capture_output=True, timeout=10)
