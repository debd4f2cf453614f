"""Determine which lines of the user's project are running when a block is allocated."""

from __future__ import annotations

import os
import sys
from types import FrameType

from ...wire.code_owner import OUR_FOLDER, is_own

MOST_LINES = 24
"""How many lines of one stack are recorded; of a deeper stack, the innermost ones."""


class ProjectFiles:
    """Knows the files of one project: those below ``folder``, without installed packages."""

    def __init__(self, folder: str) -> None:
        self._folder = os.path.join(os.path.realpath(folder), "")
        self._names: dict[str, str] = {}
        self._known: dict[tuple[tuple[str, int], ...], tuple[str, ...]] = {}

    def running(self) -> tuple[str, ...]:
        """Return the running lines of the project as ``file:line``, the outermost first.

        The names are relative to the project's folder.
        """
        found: list[tuple[str, int]] = []
        frame: FrameType | None = sys._getframe(1)
        names = self._names
        while frame is not None and len(found) < MOST_LINES:
            file = frame.f_code.co_filename
            name = names.get(file)
            if name is None:
                name = names[file] = self._name(file)
            if name:
                found.append((name, frame.f_lineno))
            frame = frame.f_back
        key = tuple(found)
        lines = self._known.get(key)
        if lines is None:
            lines = self._known[key] = tuple(f"{name}:{line}" for name, line in reversed(found))
        return lines

    def _name(self, file: str) -> str:
        """Return a file's name within the project, "" for a file that is not part of it."""
        path = os.path.realpath(file)
        if (
            file.startswith((OUR_FOLDER, "<"))
            or not path.startswith(self._folder)
            or not is_own(path)
        ):
            return ""
        return path[len(self._folder) :]
