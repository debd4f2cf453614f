"""Find the Python files at a path, and read their text, within limits.

Nothing is imported or executed.
"""

from __future__ import annotations

import io
import os
import tokenize
from collections.abc import Iterator

from ...text.units import bytes_text
from ...wire.files import open_regular

MAX_FILE_BYTES = 1 << 20
MAX_FILES = 3000
MAX_TOTAL_BYTES = 64 << 20
MAX_DEPTH = 16
_SKIPPED = {
    "__pycache__", "node_modules", "site-packages", "dist-packages", "build", "dist", "venv", "env",
    "third_party",
}  # fmt: skip


class SourceNotChecked(Exception):
    """A path is not checked. The text is a whole sentence that says which one and why."""


def sources(path: str, refused: list[str]) -> Iterator[tuple[str, str]]:
    """Yield (path, text) of ``path`` itself, or of every Python file below it.

    What cannot be read is added to ``refused``.
    """
    if not os.path.isdir(path):
        try:
            yield path, read(path)
        except SourceNotChecked as error:
            refused.append(str(error))
        return
    files, whole = _find_files(path, refused)
    if not files and whole:
        refused.append(f"{path} was not checked: no Python file in it.")
    total = 0
    for file in files:
        try:
            text = read(file)
        except SourceNotChecked as error:
            refused.append(str(error))
            continue
        total += len(text)
        if total > MAX_TOTAL_BYTES:
            refused.append(
                f"{path} was checked in part: its files hold more than "
                f"{bytes_text(MAX_TOTAL_BYTES)}."
            )
            return
        yield file, text


def _find_files(top: str, refused: list[str]) -> tuple[list[str], bool]:
    """Return the Python files below ``top``, sorted, and whether every folder could be read.

    Symbolic links are not followed.
    """
    found: list[str] = []
    whole = True
    waiting = [(top, 0)]
    while waiting:
        folder, depth = waiting.pop()
        try:
            with os.scandir(folder) as entries:
                inside = sorted(entries, key=lambda entry: entry.name)
        except OSError as error:
            refused.append(f"{folder} was not checked: {error.strerror or error}.")
            whole = False
            continue
        for entry in inside:
            if entry.is_dir(follow_symlinks=False):
                if entry.name in _SKIPPED or entry.name.startswith(".") or depth >= MAX_DEPTH:
                    continue
                waiting.append((entry.path, depth + 1))
            elif entry.name.endswith(".py") and entry.is_file(follow_symlinks=False):
                if len(found) == MAX_FILES:
                    refused.append(
                        f"{top} was checked in part: it holds more than {MAX_FILES:,} Python files."
                    )
                    return sorted(found), whole
                found.append(entry.path)
    return sorted(found), whole


def read(path: str) -> str:
    """Return the text of one file, in the encoding that it declares."""
    try:
        with open_regular(path) as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise SourceNotChecked(f"{path} was not checked: {error.strerror or error}.") from None
    if len(data) > MAX_FILE_BYTES:
        raise SourceNotChecked(
            f"{path} was not checked: it is larger than {bytes_text(MAX_FILE_BYTES)}."
        )
    if b"\0" in data:
        raise SourceNotChecked(f"{path} was not checked: it is binary, not Python source.")
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        text = data.decode(encoding)
    except (SyntaxError, UnicodeDecodeError, LookupError) as error:
        raise SourceNotChecked(
            f"{path} was not checked: its text cannot be decoded ({error})."
        ) from None
    return text.replace("\r\n", "\n").replace("\r", "\n")
