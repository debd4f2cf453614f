"""List on request which processes have a GPU open, by their descriptors of /dev/nvidiaN.

This explains used memory that no process in the driver's list holds: a process in another
container, or one that cannot end, still has the device open. The search reads one directory per
process, which takes some ten milliseconds on a busy host, so it is never done in a loop.
"""

from __future__ import annotations

import os
from typing import Any, Collection, Dict, List, NamedTuple, Tuple

MAX_DESCRIPTORS = 65536
"""The number of descriptors of one process that are examined."""
MAX_PROCESSES, MAX_COMMAND_CHARS = 64, 400
"""How many processes are listed per device, and how many characters of each command."""
_PREFIX = "/dev/nvidia"
_HIDING = ("hidepid=2", "hidepid=4", "hidepid=invisible", "hidepid=ptraceable")


class Holders(NamedTuple):
    """The processes that have GPUs open, and what could not be examined.

    ``by_minor`` has the pids for each device. ``hidden`` counts processes whose descriptors cannot
    be read. ``failed`` says why no process could be examined, "" where some could.
    """

    by_minor: Dict[int, Tuple[int, ...]]
    hidden: int
    failed: str = ""


def holders(minors: Collection[int], proc: str = "/proc") -> Holders:
    """Return the processes that have ``/dev/nvidia<minor>`` open, for each of ``minors``.

    It never raises for processes that end meanwhile or that cannot be read.
    """
    wanted = {f"{_PREFIX}{minor}": minor for minor in minors}
    found: Dict[int, List[int]] = {minor: [] for minor in minors}
    hidden = 0
    try:
        names = [name for name in os.listdir(proc) if name.isdigit()]
    except OSError as error:
        return Holders({}, 0, f"{proc} cannot be listed: {(error.strerror or 'error').lower()}")
    for name in sorted(names, key=int):
        folder = f"{proc}/{name}/fd"
        try:
            with os.scandir(folder) as entries:
                links = [entry.name for _, entry in zip(range(MAX_DESCRIPTORS), entries)]
        except PermissionError:
            hidden += 1
            continue
        except OSError:
            continue  # the process has ended
        for minor in {wanted.get(_target(f"{folder}/{link}"), -1) for link in links} - {-1}:
            found[minor].append(int(name))
    return Holders({minor: tuple(pids) for minor, pids in found.items()}, hidden)


def holders_document(
    minors: Collection[int], redact: bool = True, proc: str = "/proc"
) -> Dict[str, Any]:
    """Return the holders of devices as a JSON document.

    It has ``devices`` with ``minor`` and ``processes`` (pid, start, user, command; None where these
    cannot be read), ``hidden_processes``, and ``why`` the list may be incomplete, "" where it is
    complete.
    """
    from .processes import describe

    seen = holders(minors, proc)
    devices = []
    for minor, everybody in seen.by_minor.items():
        # This process holds the device only to read it.
        pids = [pid for pid in everybody if pid != os.getpid()]
        rows = []
        for pid in pids[:MAX_PROCESSES]:
            described = describe(pid, redact)
            if described is None:
                continue  # it has ended since
            one = described[0]
            command = one.command[:MAX_COMMAND_CHARS] if one.command is not None else None
            rows.append({"pid": pid, "start": one.start, "user": one.user, "command": command})
        devices.append(
            {"minor": minor, "processes": rows, "more": max(0, len(pids) - MAX_PROCESSES)}
        )
    return {"devices": devices, "hidden_processes": seen.hidden, "why": why_not_all(seen)}


def why_not_all(seen: Holders) -> str:
    """Say which processes could not be examined, and who can do it; "" if all were."""
    from .container import pid_namespace_note

    if seen.failed:
        return seen.failed
    parts = []
    if seen.hidden:
        many = "1 process" if seen.hidden == 1 else f"{seen.hidden} processes"
        parts.append(
            f"the open files of {many} of other users cannot be read here (/proc/PID/fd); root "
            f"can read them"
        )
    if others_are_hidden():
        parts.append("/proc hides other users' processes here (hidepid); root sees them")
    if pid_namespace_note() is not None:
        parts.append("processes outside this container are hidden; look on its host")
    return "; ".join(parts)


def others_are_hidden(root: str = "/") -> bool:
    """Say whether /proc hides other users' processes from this user altogether.

    It may be mounted like this (hidepid) for everybody but root.
    """
    if os.geteuid() == 0:
        return False
    try:
        with open(
            os.path.join(root, "proc/self/mountinfo"), encoding="utf-8", errors="replace"
        ) as lines:
            mounts = [line.split(" ") for line in lines]
    except OSError:
        return False
    options = next(
        (words[-1].strip() for words in mounts[::-1] if len(words) > 4 and words[4] == "/proc"), ""
    )
    return any(option in _HIDING for option in options.split(","))


def _target(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
