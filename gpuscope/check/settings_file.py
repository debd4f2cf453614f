"""Find and read the file that lists the trainings to check.

What the file means is known to :mod:`.settings`, which loads much more.
"""

from __future__ import annotations

from pathlib import Path

from ..errors import UsageError
from ..wire.clean import clean

OWN_FILE, SHARED_FILE = "gpuscope.toml", "pyproject.toml"
MAX_FILE_BYTES = 1 << 20


def find(folder: Path) -> Path | None:
    """Return the file with the table, from ``folder`` upwards to the top of its repository."""
    for place in (folder, *folder.parents):
        if (place / OWN_FILE).is_file():
            return place / OWN_FILE
        shared = place / SHARED_FILE
        if shared.is_file() and table_of(SHARED_FILE) in text_of(shared):
            return shared
        if (place / ".git").exists():
            break
    return None


def table_of(name: str) -> str:
    """Return the name of the table of checked trainings in a file of this name."""
    return "check" if name != SHARED_FILE else "tool.gpuscope.check"


def text_of(file: Path) -> str:
    """Return the text of a file. Raises :class:`UsageError`."""
    try:
        with file.open("rb") as opened:
            data = opened.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise UsageError(f"{clean(str(file))} is larger than a configuration may be.")
        return data.decode("utf-8")
    except OSError as error:
        raise UsageError(f"{clean(str(file))} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{clean(str(file))} cannot be read: it is not UTF-8") from None
