"""Other Pythons of this machine, for the files that run where nothing is installed."""

from __future__ import annotations

import os
import shutil
from functools import cache
from pathlib import Path

MINORS = (8, 9, 10, 11, 12, 13, 14, 15)


@cache
def find(minor: int) -> str | None:
    """The path of a python3.MINOR: on PATH, under a version manager's directory, or built by
    ``tests/pythons.sh``."""
    roots = [Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"]
    for root in roots:
        for candidate in sorted(root.glob(f"3.{minor}.*/bin/python3.{minor}")):
            return str(candidate)
    built = Path(os.environ.get("GPUSCOPE_TEST_PYTHONS", Path.home() / ".cache" / "gpuscope-pythons"))
    if os.access(built / "bin" / f"python3.{minor}", os.X_OK):  # tests/pythons.sh
        return str(built / "bin" / f"python3.{minor}")
    found = shutil.which(f"python3.{minor}")
    return None if found is None or "shims" in found else found
