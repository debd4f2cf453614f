"""Other Pythons of this machine, for the files that run where nothing is installed."""

from __future__ import annotations

import os
import shutil
from functools import cache
from pathlib import Path

MINORS = (8, 9, 10, 11, 12, 13, 14, 15)


@cache
def find(minor: int) -> str | None:
    """The path of a python3.MINOR: on PATH, or under a version manager's directory."""
    roots = [Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"]
    for root in roots:
        for candidate in sorted(root.glob(f"3.{minor}.*/bin/python3.{minor}")):
            return str(candidate)
    found = shutil.which(f"python3.{minor}")
    return None if found is None or "shims" in found else found
