"""Find the memory limit that a cgroup sets on this process.

Versions 1 and 2, nested groups, and views from inside and outside of containers are supported. The
kernel kills a process when any level above it is full, so the level with the smallest limit counts.
A limit of "max" (version 2), of the largest page counter (version 1), or above the machine's memory
is no limit.
"""

from __future__ import annotations

import os
from typing import Dict, List, NamedTuple, Optional

from ..wire.frames import NOT_SUPPORTED, Unknown
from .procfs import key_values, read, why

_NO_LIMIT = 1 << 60  # version 1 says PAGE_COUNTER_MAX, 0x7ffffffffffff000
NO_CGROUP = Unknown(NOT_SUPPORTED, "this process is in no memory cgroup")


class Level(NamedTuple):
    """A directory of the hierarchy and the names of its files."""

    path: str
    limit_file: str
    used_file: str
    inactive_key: bytes

    def limit(self) -> Optional[int]:
        """Bytes, or None for no limit. Raises OSError or ValueError."""
        content = read(os.path.join(self.path, self.limit_file), 64).strip()
        if content == b"max":
            return None
        limit = int(content)
        return limit if limit < _NO_LIMIT else None

    def used_bytes(self) -> int:
        """Return the bytes in use without the file cache, which the kernel would drop first.

        ``docker stats`` counts in the same way. Raises OSError or ValueError.
        """
        used = int(read(os.path.join(self.path, self.used_file), 64))
        inactive = key_values(os.path.join(self.path, "memory.stat")).get(self.inactive_key, 0)
        return max(0, used - inactive)


def own_groups(root: str = "/") -> Dict[str, str]:
    """Return this process's group by controller; "" is the one of version 2. {} if unknown."""
    try:
        own = read(os.path.join(root, "proc/self/cgroup")).decode("utf-8", "surrogateescape")
    except OSError:
        return {}
    paths = {}
    for line in own.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for controller in controllers.split(","):
            paths[controller] = path
    return paths


def levels(root: str = "/") -> List[Level]:
    """Return the levels that hold this process, innermost first, [] without a controller."""
    paths = own_groups(root)
    mount = os.path.join(root, "sys/fs/cgroup")
    if "memory" in paths:
        files = ("memory.limit_in_bytes", "memory.usage_in_bytes", b"total_inactive_file")
        return _walk(os.path.join(mount, "memory"), paths["memory"], *files)
    if "" in paths:
        return _walk(mount, paths[""], "memory.max", "memory.current", b"inactive_file")
    return []


def _walk(
    mount: str, path: str, limit_file: str, used_file: str, inactive_key: bytes
) -> List[Level]:
    """Return the groups from the process's directory up to the mount.

    Inside a container the path may be that of the host and lie outside of this mount; then the
    mount itself is the container's level.
    """
    parts = [part for part in path.split("/") if part and part != ".."]
    found = []
    for depth in range(len(parts), -1, -1):
        level = Level(os.path.join(mount, *parts[:depth]), limit_file, used_file, inactive_key)
        if os.path.exists(os.path.join(level.path, used_file)):
            found.append(level)
    return found


class Binding(NamedTuple):
    """The limit that applies to this process.

    ``level`` is None without a memory cgroup. ``limit`` is None where there is no limit, or where
    it is unknown for the reason in ``unknown``.
    """

    level: Optional[Level] = None
    limit: Optional[int] = None
    unknown: Optional[Unknown] = None


def binding_level(root: str = "/", memory_total: Optional[int] = None) -> Binding:
    """Return the level with the smallest limit, and this limit in bytes.

    Where no limit is set, it is the innermost level.
    """
    found = levels(root)
    binding = Binding(found[0] if found else None)
    for level in found:
        try:
            limit = level.limit()
        except FileNotFoundError:  # the root of a whole hierarchy has no such file
            continue
        except (OSError, ValueError) as error:
            binding = binding._replace(unknown=why(error, level.limit_file))
            continue
        if limit is None or (memory_total is not None and limit >= memory_total):
            continue
        if binding.limit is None or limit < binding.limit:
            binding = binding._replace(level=level, limit=limit)
    return binding if binding.limit is None else binding._replace(unknown=None)
