"""Runs commands of the program in a process of its own, with nobody at the keyboard."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def program(*words: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run ``gpuscope words…`` for at most a minute; ``options`` are those of subprocess.run."""
    usual = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "timeout": 60}
    command = [sys.executable, "-m", "gpuscope", *map(str, words)]
    return subprocess.run(command, **{**usual, "cwd": ROOT, **options})
