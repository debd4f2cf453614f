"""Lists the host names that the user's own configuration of ssh gives to hosts.

They are the patterns of ``Host`` lines without a wildcard. ``Include`` is followed as OpenSSH does
it (ssh_config(5)): without a folder a name is one of ``~/.ssh``, wildcards are expanded, and a
file that is included below ``Host`` or ``Match`` holds only for that host, so it is not looked at.
Nothing is executed, and no connection is made.
"""

from __future__ import annotations

import glob
import os
import pwd
import shlex
from typing import Dict, Iterator, List, Optional, Sequence, Tuple

from .targets import BadTarget, checked_host

MAX_BYTES = 256 * 1024
"""The most bytes that are read of one file."""
MAX_FILES = 64
MAX_DEPTH = 16
"""How deep files may include each other, as in OpenSSH."""
MAX_NAMES = 2000


def aliases(ssh: Sequence[str] = ("ssh",)) -> List[str]:
    """Return the names in the order of the file, each once; none where there is no such file.

    ``ssh`` has the words of the ssh command: with ``-F FILE`` that file is read.
    """
    path = _file_of(ssh)
    found: Dict[str, None] = {}
    if path is None:
        return []
    for name in _names(path, 0, []):
        try:
            found[checked_host(name)] = None
        except BadTarget:
            continue
        if len(found) >= MAX_NAMES:
            break
    return list(found)


def _file_of(ssh: Sequence[str]) -> Optional[str]:
    """Return the configuration that this ssh command reads of the user's, None for none."""
    for at, word in enumerate(ssh):
        if word.startswith("-F"):
            path = word[2:] or next(iter(ssh[at + 1 :]), "")
            return None if path in ("", "none") else path
    return os.path.join(_home(), ".ssh", "config")


def _home() -> str:
    """Return the home that ssh means: that of the account, whatever ``HOME`` says."""
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:  # an account without an entry, as in some containers
        return os.path.expanduser("~")


def _names(path: str, depth: int, read: List[str]) -> Iterator[str]:
    """Yield the names of a file and of those that it includes; ``read`` counts the files."""
    read.append(path)
    if depth > MAX_DEPTH or len(read) > MAX_FILES:
        return
    try:
        if not os.path.isfile(path):  # a pipe would make the reader wait
            return
        with open(path, "rb") as stream:
            text = stream.read(MAX_BYTES).decode("utf-8", "replace")
    except (OSError, ValueError):
        return
    for_all = True
    for line in text.splitlines():
        keyword, words = _split(line)
        if keyword == "host":
            for_all = words == ["*"]
            yield from (word for word in words if not set(word) & set("*?!"))
        elif keyword == "match":
            for_all = [word.lower() for word in words] == ["all"]
        elif keyword == "include" and for_all:
            for word in words:
                for each in _included(word):
                    yield from _names(each, depth + 1, read)


def _included(word: str) -> List[str]:
    home = _home()
    if word.startswith("~/"):
        word = os.path.join(home, word[2:])
    return sorted(glob.glob(os.path.join(home, ".ssh", word)))


def _split(line: str) -> Tuple[str, List[str]]:
    """Return the keyword of a line in lower case, and its words: ``Host a``, ``Host=a``."""
    line = line.strip()
    end = next((at for at, char in enumerate(line) if char.isspace() or char == "="), len(line))
    rest = line[end:].lstrip()
    rest = rest[1:] if rest.startswith("=") else rest
    try:
        words = shlex.split(rest, comments=True)
    except ValueError:  # a quote that is not closed: ssh refuses the line as well
        words = []
    return ("" if line.startswith("#") else line[:end].lower()), words
