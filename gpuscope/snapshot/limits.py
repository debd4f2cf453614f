"""Decide how much memory and time the child may use.

Linux provides the figures; elsewhere there is a default and no limit. Torch's pickles take 8 to 16
times their size as Python objects, compressed ones ten times more.
"""

from __future__ import annotations

import os

from ..process import cgroup, procfs
from ..text.units import GIB, MIB
from ..wire.files import open_regular

FLOOR_BYTES = 192 * MIB
"""The least limit, because the interpreter's libraries alone reserve some tens of MiB."""
FALLBACK_AVAILABLE = 4 * GIB
EXPANSION = 24
EXPANSION_PACKED = 240
_BASE_BYTES = 512 * MIB


def available_bytes() -> int:
    """Return the bytes of memory that this process may still use.

    It is the smaller of the machine's free memory and what its cgroup leaves.
    """
    machine = procfs.available_bytes()
    return min([FALLBACK_AVAILABLE if machine is None else machine, *_cgroup_room()])


def _cgroup_room() -> list[int]:
    """Return how many bytes our cgroup and those above it leave."""
    rooms = []
    for level in cgroup.levels():
        try:
            limit = level.limit()
            if limit is not None:
                rooms.append(max(0, limit - level.used_bytes()))
        except (OSError, ValueError):  # there is no such file at the root
            continue
    return rooms


def default_limit(file_bytes: int, packed: bool) -> int:
    """Return how many bytes of address space a child gets to read a file of this size.

    It is half of the available memory, but no more than such a file can reasonably need, so that a
    hostile one does little harm.
    """
    need = _BASE_BYTES + file_bytes * (EXPANSION_PACKED if packed else EXPANSION)
    return max(FLOOR_BYTES, min(available_bytes() // 2, need))


def default_seconds(file_bytes: int, packed: bool) -> float:
    """Return a generous time limit in seconds to read a file of this size.

    Loading runs at 50 MB/s or more on one slow core.
    """
    return min(30.0 + file_bytes * (10 if packed else 1) / 4e6, 1800.0)


def for_files(*paths: str | os.PathLike[str]) -> tuple[int, float]:
    """Return the memory and time limits for a child that reads each of these files in turn.

    They are the limits of the file that needs most.
    """
    needs = [(_size(path), is_packed(path)) for path in paths]
    return max(default_limit(*need) for need in needs), max(
        default_seconds(*need) for need in needs
    )


def _size(path: str | os.PathLike[str]) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def is_packed(path: str | os.PathLike[str]) -> bool:
    """Whether the file begins as gzip does. False where it cannot be read."""
    try:
        with open_regular(path) as file:
            return file.read(2) == b"\x1f\x8b"
    except OSError:
        return False
