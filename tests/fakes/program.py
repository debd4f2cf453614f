"""Runs commands of the program, or other Python, in a process with nobody at the keyboard."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def python(*words: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run ``python words…``; ``options`` are those of subprocess.run.

    What hangs is ended by the limit that pytest has for its test.
    """
    usual = {} if "input" in options else {"stdin": subprocess.DEVNULL}
    usual |= {"capture_output": True, "text": True, "cwd": ROOT}
    return subprocess.run([sys.executable, *map(str, words)], **{**usual, **options})


def program(*words: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run ``gpuscope words…`` for at most a minute."""
    return python("-m", "gpuscope", *words, **{"timeout": 60, **options})
