"""Say that a file is not there which the user names, in the same words for every verb."""

from __future__ import annotations

import os
from pathlib import Path

from .errors import UserError
from .exit_status import ExitStatus
from .wire.clean import clean

_SUFFIXES = (".py", ".gsr", ".box", ".pickle", ".pkl", ".json", ".log", ".txt", ".gz")
"""Endings by which a word that is no path otherwise is meant as a file."""


MOST_NAMES, MOST_CELLS = 2000, 100
"""So many names of a folder are compared, by so many of their letters."""


class MissingFile(UserError):
    """A file that the user names is not there. Every verb says so in the same words.

    In a folder that lets this user not in, it may be there: then that is said.
    """

    def __init__(self, path: str) -> None:
        folder = os.path.dirname(path)
        if closed := _closed_folder(path):
            why = f"you have no permission to enter the folder {clean(closed)}"
            then = "repeat this as the owner of that folder, or ask for a copy of the file"
            super().__init__(f"{clean(path)} cannot be read", why, then, "unreadable")
            return
        why = f"there is no folder {clean(folder)}" if folder and not os.path.isdir(folder) else ""
        near = _near(path)
        then = f"check the path: {clean(near)} is there" if near else "check the path"
        super().__init__(f"there is no file {clean(path)}", why, then, "missing")


def _near(path: str) -> str:
    """Return the file of the same folder and kind that is spelled most like it, "" for none."""
    from difflib import get_close_matches

    folder, name = os.path.split(path)
    try:
        names = os.listdir(folder or ".")[:MOST_NAMES]
    except OSError:
        return ""
    alike = [one for one in names if os.path.splitext(one)[1] == os.path.splitext(name)[1]]
    found = get_close_matches(name[:MOST_CELLS], alike, 1, 0.75)
    return os.path.join(folder, found[0]) if found else ""


class MissingScript(MissingFile):
    """The same where the file was to be started: nothing was, and the command line is wrong."""

    exit_status = ExitStatus.USAGE


def _closed_folder(path: str) -> str:
    """Return the first folder of a path that this user may not enter, "" if there is none."""
    folders = list(map(str, Path(path).absolute().parents))[::-1]
    return next((one for one in folders if os.path.isdir(one) and not os.access(one, os.X_OK)), "")


def is_missing_file(word: str) -> bool:
    """Return whether a word of the command line is meant as a file, and there is none."""
    meant = os.sep in word or word.endswith(_SUFFIXES)
    return meant and "://" not in word and not os.path.lexists(word)
