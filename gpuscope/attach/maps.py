"""Finds which files a process has mapped, and opens the file behind a mapping.

The path of a mapping may name a different file for us: a container has its own root, the kernel
reports paths without a chroot, and an upgrade replaces a file that a process still runs. So the
opened file is compared with the process's memory.
"""

from __future__ import annotations

import os
import re
from typing import BinaryIO, Dict, Iterator, List, NamedTuple, Optional

from ..wire.files import open_regular_descriptor
from .elf import BadElf, Elf

MAX_MAPS_BYTES = 32 << 20
COMPARED_BYTES = 4096
_PYTHON = re.compile(r"/(?:libpython3[^/]*\.so[^/]*|python(?:3(?:\.\d+)?t?)?)$")
"""Names of libpython, or of a Python that was started through the dynamic loader."""


class Mapping(NamedTuple):
    """One line of /proc/PID/maps."""

    start: int
    end: int
    rights: str
    offset: int
    inode: int
    path: str


class Image(NamedTuple):
    """An ELF file in a process. ``bias`` is added to its own addresses."""

    path: str
    bias: int
    elf: Elf


class FileReplaced(Exception):
    """The file that the process runs is no longer on disk. The text is its path."""


def mappings(pid: int) -> List[Mapping]:
    """Return the mappings of a process. Raises OSError: EPERM if this process may not look."""
    with open(f"/proc/{pid}/maps", "rb") as stream:
        text = stream.read(MAX_MAPS_BYTES).decode("utf-8", "surrogateescape")
    found = []
    for line in text.splitlines():
        parts = line.split(None, 5)
        if len(parts) < 5:
            continue
        start, _, end = parts[0].partition("-")
        path = parts[5] if len(parts) > 5 else ""
        found.append(
            Mapping(int(start, 16), int(end, 16), parts[1], int(parts[2], 16), int(parts[4]), path)
        )
    return found


def memory(pid: int, address: int, size: int) -> bytes:
    """Return bytes of another process's memory. Raises OSError."""
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as stream:
        stream.seek(address)
        data = stream.read(size)
    if len(data) != size:
        raise OSError(5, "part of it is not mapped")
    return data


def python_images(pid: int, found: List[Mapping]) -> Iterator[Image]:
    """Return the program itself, and libpython if that is a separate file.

    Raises :class:`FileReplaced` and OSError.
    """
    executable = _executable_inode(pid)
    first: Dict[str, Mapping] = {}
    for one in found:
        if one.offset == 0 and one.inode and one.path.startswith("/"):
            first.setdefault(one.path, one)
    for path, one in first.items():
        is_program = one.inode == executable
        if is_program or _PYTHON.search(path.replace(" (deleted)", "")):
            elf = _open(pid, one, is_program)
            yield Image(path, one.start - elf.base(), elf)


def _open(pid: int, one: Mapping, is_program: bool) -> Elf:
    """Open the file behind a mapping. Raises :class:`FileReplaced` and OSError.

    It is the same file if its first page equals the one in memory.
    """
    loaded = memory(pid, one.start, min(COMPARED_BYTES, one.end - one.start))
    places = [
        f"/proc/{pid}/root{one.path}",
        one.path,
        f"/proc/{pid}/map_files/{one.start:x}-{one.end:x}",
    ]
    for place in [*([f"/proc/{pid}/exe"] if is_program else []), *places]:
        stream: Optional[BinaryIO] = None
        try:
            stream = open(open_regular_descriptor(place, os.O_RDONLY), "rb")  # noqa: SIM115
            if os.fstat(stream.fileno()).st_size >= 64 and stream.read(len(loaded)) == loaded:
                return Elf(stream)
        except (OSError, BadElf) as error:
            if isinstance(error, BadElf) and is_program:
                raise
        if stream is not None:
            stream.close()
    raise FileReplaced(one.path)


def _executable_inode(pid: int) -> int:
    try:
        return os.stat(f"/proc/{pid}/exe").st_ino
    except OSError:
        return -1
