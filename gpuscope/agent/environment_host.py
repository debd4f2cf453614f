"""Read the host's facts for ``gpuscope doctor``: /proc, /sys, cgroup, limits.

Nothing here calls a driver.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from typing import TypeVar

from ..collect import container
from ..process import cgroup
from ..process.procfs import key_values, read
from ..wire.environment import Host, Xid
from .picture import Picture

_T = TypeVar("_T")
_MOST_ENTRIES = 512
_KERNEL_LOG_RECORDS = 50_000
_NVIDIA = b"0x10de"
_UNLIMITED = resource.RLIM_INFINITY


def host(picture: Picture, root: str = "/") -> tuple[Host, dict[str, str]]:
    """Return the facts of the host, and why a fact is None.

    ``picture`` holds the readings of the agent's workers.
    """
    definition, readings = picture.host, picture.host_readings
    why = {name: reason.text for name, reason in picture.host_reasons.items()}

    def reading(name: str) -> int | None:
        value = readings.get(name)
        if isinstance(value, int):
            return value
        text = getattr(value, "text", "")
        if text:
            why[name] = text
        return None

    kills, source = _oom_kills(root)
    pids_limit, pids_used = _pids(root)
    files, files_hard = _limit(resource.RLIMIT_NOFILE)
    return Host(
        kernel=definition.kernel,
        cpu_count=definition.cpu_count,
        allowed_cpus=frozenset(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else None,
        memory_total_bytes=definition.memory_total_bytes,
        memory_available_bytes=reading("memory_available_bytes"),
        swap_total_bytes=_quietly(
            lambda: key_values(os.path.join(root, "proc/meminfo"), b":")[b"SwapTotal"] * 1024
        ),
        swap_used_bytes=reading("swap_used_bytes"),
        memory_stall_percent=_quietly(lambda: _stall(root)),
        shm_total_bytes=definition.shm_total_bytes,
        shm_used_bytes=reading("shm_used_bytes"),
        cgroup_limit_bytes=definition.cgroup_memory_limit_bytes,
        cgroup_used_bytes=reading("cgroup_memory_used_bytes"),
        oom_kills=kills,
        oom_kills_source=source,
        pids_limit=pids_limit,
        pids_used=pids_used,
        open_files=files,
        open_files_hard=files_hard,
        locked_bytes=_limit(resource.RLIMIT_MEMLOCK)[0],
        processes=_limit(resource.RLIMIT_NPROC)[0],
        root=os.geteuid() == 0,
        infiniband=_listed(os.path.join(root, "sys/class/infiniband")) or (),
        interfaces=_listed(os.path.join(root, "sys/class/net")),
        container=definition.container,
        own_pid_namespace=container.own_pid_namespace(root),
        pids_hidden=None if picture.hidden is None else picture.hidden.text,
        nvidia_pci=_nvidia_pci(root),
        nvidia_nodes=tuple(
            f"/dev/{name}"
            for name in _listed(os.path.join(root, "dev")) or ()
            if name.startswith("nvidia") and name[6:].isdigit()
        ),
    ), why


def _quietly(ask: Callable[[], _T]) -> _T | None:
    """Return the result, or None if the host has no such file or another format."""
    try:
        return ask()
    except (OSError, ValueError, KeyError, IndexError):
        return None


def _limit(which: int) -> tuple[int, int]:
    """Return soft and hard limit, -1 for none."""
    soft, hard = resource.getrlimit(which)
    return (-1 if soft == _UNLIMITED else soft), (-1 if hard == _UNLIMITED else hard)


def _stall(root: str) -> float:
    for line in read(os.path.join(root, "proc/pressure/memory"), 4096).splitlines():
        words = line.split()
        if words[:1] == [b"full"]:
            return next(float(word[6:]) for word in words if word.startswith(b"avg60="))
    raise ValueError("no such line")


def _listed(path: str) -> tuple[str, ...] | None:
    """Return the names in a directory, sorted and limited in number; None if it cannot be read."""
    try:
        with os.scandir(path) as entries:
            found = [entry.name for _, entry in zip(range(_MOST_ENTRIES), entries)]
    except OSError:
        return None
    return tuple(sorted(found))


def _nvidia_pci(root: str) -> tuple[str, ...] | None:
    """List NVIDIA's display controllers (class 0x03…) on the PCI bus.

    Those handed to virtual machines are left out. None where the bus is not shown.
    """
    base = os.path.join(root, "sys/bus/pci/devices")
    listed = _listed(base)
    if listed is None:
        return None
    found = []
    for name in listed:
        vendor = _quietly(lambda name=name: read(os.path.join(base, name, "vendor"), 16))  # type: ignore[misc]
        if vendor is not None and vendor.strip() == _NVIDIA:
            kind = _quietly(lambda name=name: read(os.path.join(base, name, "class"), 16))  # type: ignore[misc]
            driver = _quietly(lambda name=name: os.readlink(os.path.join(base, name, "driver")))  # type: ignore[misc]
            if (
                kind is not None
                and kind.startswith(b"0x03")
                and os.path.basename(driver or "") != "vfio-pci"
            ):
                found.append(f"an NVIDIA display controller at PCI {name}")
    return tuple(found)


def _oom_kills(root: str) -> tuple[int | None, str]:
    """Return how often the kernel killed a process in our cgroup, and the file that says so.

    Version 2 counts in memory.events, version 1 in memory.oom_control.
    """
    for level in cgroup.levels(root):
        for name in ("memory.events", "memory.oom_control"):
            path = os.path.join(level.path, name)
            kills = _quietly(lambda path=path: key_values(path).get(b"oom_kill"))  # type: ignore[misc]
            if kills is not None:
                return kills, name
        break  # the levels above also count other users' processes
    return None, ""


def _pids(root: str) -> tuple[int | None, int | None]:
    """Return the limit and the use of the cgroup that counts processes.

    (None, None) if there is no such cgroup or no limit.
    """
    for base in _pids_directories(root):
        limit = _quietly(lambda base=base: int(read(os.path.join(base, "pids.max"), 32)))  # type: ignore[misc]
        used = _quietly(lambda base=base: int(read(os.path.join(base, "pids.current"), 32)))  # type: ignore[misc]
        if limit is not None and used is not None:
            return limit, used
    return None, None


def _pids_directories(root: str) -> list[str]:
    groups, found = cgroup.own_groups(root), []
    for controller in ("pids", ""):
        path = groups.get(controller)
        if path is not None and ".." not in path.split("/"):
            mount = os.path.join(root, "sys/fs/cgroup", controller)
            found += [os.path.join(mount, path.lstrip("/")), mount]
    return found


# ── the kernel's log ──────────────────────────────────────────────────────────────────────────────


def kernel_records(path: str = "/dev/kmsg") -> Iterator[bytes]:
    """Return the records in the kernel's log, the oldest first, limited in number.

    Raises OSError if the log cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        for _ in range(_KERNEL_LOG_RECORDS):
            try:
                record = os.read(descriptor, 8192)
            except BlockingIOError:
                break
            except BrokenPipeError:  # overwritten while we read it: go on with the next one
                continue
            if not record:
                break
            yield record
    finally:
        os.close(descriptor)


def xids(path: str = "/dev/kmsg") -> tuple[tuple[Xid, ...] | None, str]:
    """Count the driver's XID errors since boot, or return None and why not.

    It looks as far back as the kernel's log goes.
    """
    import re

    pattern = re.compile(rb"NVRM: Xid \(PCI:([0-9a-fA-F:.]{4,20})\): (\d{1,4})")
    counts: dict[tuple[str, int], int] = {}
    try:
        for record in kernel_records(path):
            for match in pattern.finditer(record):
                key = (match[1].decode("ascii").lower(), int(match[2]))
                counts[key] = counts.get(key, 0) + 1
    except OSError as error:
        return None, f"{path}: {os.strerror(error.errno or 0)}"
    return tuple(Xid(pci, number, count) for (pci, number), count in sorted(counts.items())), ""
