"""A headless Chromium that cannot reach anything, and tells what a page wanted."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
QUIET = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-extensions", "--disable-dev-shm-usage",
)  # fmt: skip
OWN = re.compile(r"https?://[\w.-]+\.(?:google|googleapis|gstatic)\.com/|file:|data:|chrome")
"""What a browser asks of its maker by itself, and what is no request to the network."""


class Seen(NamedTuple):
    """What came of a page: its document after its script, the console's lines, the requests."""

    document: str
    console: list[str]
    requests: list[str]


def program() -> str:
    """Return the path of the browser, or skip the test."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip("no Chromium here: apt-get install chromium")
    return found


def browse(page: Path, *options: str) -> Seen:
    """Open a page, with a log of all that the browser asked the network for."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "net.json"
        done = subprocess.run(
            [
                program(), *QUIET, f"--user-data-dir={folder}/user", f"--log-net-log={log}",
                "--host-resolver-rules=MAP * ~NOTFOUND", "--enable-logging=stderr", "--v=0",
                "--virtual-time-budget=3000", *options, "--dump-dom", page.absolute().as_uri(),
            ],
            capture_output=True, text=True, timeout=120, check=True,
        )  # fmt: skip
        wanted = re.findall(r'"url":"([^"]+)"', log.read_text())
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return Seen(done.stdout, console, sorted({one for one in wanted if not OWN.match(one)}))


def pictured(page: Path, picture: Path, width: int, height: int, *options: str) -> None:
    """Draw a page as PNG."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [
                program(), *QUIET, f"--user-data-dir={folder}", "--hide-scrollbars",
                f"--window-size={width},{height}", *options, f"--screenshot={picture}",
                page.absolute().as_uri(),
            ],
            capture_output=True, timeout=120, check=True,
        )  # fmt: skip
