"""Other Pythons of this machine, for the files that run where nothing is installed."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import pytest

MINORS = (8, 9, 10, 11, 12, 13, 14, 15)


@cache
def find(minor: int) -> str | None:
    """Return the path of a python3.MINOR.

    It is on PATH, under a version manager's directory, or built by ``tests/pythons.sh``.
    """
    roots = [Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"]
    for root in roots:
        if not os.access(root, os.R_OK | os.X_OK):
            continue  # not there, or somebody else's
        for candidate in sorted(root.glob(f"3.{minor}.*/bin/python3.{minor}")):
            return str(candidate)
    built = Path(
        os.environ.get("GPUSCOPE_TEST_PYTHONS", Path.home() / ".cache" / "gpuscope-pythons")
    )
    if os.access(built / "bin" / f"python3.{minor}", os.X_OK):  # tests/pythons.sh
        return str(built / "bin" / f"python3.{minor}")
    found = shutil.which(f"python3.{minor}")
    return None if found is None or "shims" in found else found


def find_or_skip(minor: int) -> str:
    found = find(minor)
    if found is None:
        pytest.skip(f"no python3.{minor} on this machine (sh tests/pythons.sh)")
    return found


def starts(inside: Path, minor: int) -> bool:
    """Whether the Python of a virtual environment starts.

    One that was built with another C library is given a launcher for it, which tells Python the
    name that it was called by.
    """
    if not subprocess.run([inside, "-c", "pass"], capture_output=True).returncode:
        return True
    root = (
        Path(os.environ.get("GPUSCOPE_TEST_PYTHONS", Path.home() / ".cache" / "gpuscope-pythons"))
        / "forky"
    )
    libraries = f"{root}/usr/lib/x86_64-linux-gnu:{root}/lib/x86_64-linux-gnu"
    inside.unlink()
    inside.write_text(
        f"#!/bin/sh\nexec {root}/lib64/ld-linux-x86-64.so.2 --argv0 {inside} --library-path "
        f"{libraries} "
        f'{root}/usr/bin/python3.{minor} "$@"\n'
    )
    inside.chmod(0o755)
    return not subprocess.run([inside, "-c", "pass"], capture_output=True).returncode


@cache
def by_plain_path() -> str:
    """Return this environment's Python by a short path of plain characters.

    A remote shell or a script's first line is given nothing else. It goes through a link to the
    environment where its own path is longer or has other characters, such as a blank.
    """
    if re.fullmatch(r"[\w./+-]{1,100}", sys.executable, re.ASCII):
        return sys.executable
    folder = tempfile.mkdtemp(prefix="gpuscope-tests-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    link = Path(folder, "environment")
    link.symlink_to(sys.prefix)
    return str(link / "bin" / Path(sys.executable).name)


@cache
def uv() -> str | None:
    """Return the path of uv.

    It is on PATH, or fetched from the package index into the user's cache; None where it cannot be
    had.
    """
    folder = Path.home() / ".cache" / "gpuscope-uv"
    found = shutil.which("uv") or shutil.which("uv", path=str(folder / "bin"))
    if found is None:
        words = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "-q",
            "--no-input",
            "--retries",
            "0",
            "--timeout",
            "5",
        ]
        try:
            subprocess.run([*words, "--target", folder, "uv"], capture_output=True, timeout=60)
        except (OSError, subprocess.TimeoutExpired):
            return None
        found = shutil.which("uv", path=str(folder / "bin"))
    return found
