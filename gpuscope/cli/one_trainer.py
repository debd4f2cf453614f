"""Reach the trainer that a verb is about, here or elsewhere, or say why there is none."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UserError
from ..process.procfs import read, status_values, words_of
from . import remote
from .watched_host import HZ, WatchedHost, watched

if TYPE_CHECKING:
    from ..config import Settings
    from ..store.source import Source
    from ..store.view import HostView, TrainerView

FIND_SECONDS = 8.0
"""Seconds that the agent may take to find the probe; it looks for sockets twice a second."""


async def source_at(
    args: argparse.Namespace,
    place: remote.Target | None,
    stack: contextlib.ExitStack,
    hz: float,
    settings: Settings,
) -> Source:
    """Return the agent of another host, or of this machine without a place.

    ``stack`` keeps the connection to another host open.
    """
    if place is not None:
        return stack.enter_context(remote.Ways(args, redact=settings.redact)).source(place, hz)
    from ..tui.app.launch import local_source

    return await asyncio.to_thread(local_source, hz, settings)


@contextlib.asynccontextmanager
async def host_at(
    args: argparse.Namespace, place: remote.Target, stack: contextlib.ExitStack
) -> AsyncIterator[WatchedHost]:
    """Watch the host of a place."""
    from ..config import load

    source = await source_at(args, place if place.is_remote else None, stack, HZ, load()[0])
    async with watched(source) as there:
        yield there


def check_exists(place: remote.Target, error: type[UserError]) -> None:
    """Raise ``error`` if it is known that no process here has the pid of a place."""
    if place.pid is None or place.is_remote or sys.platform != "linux":
        return
    if not Path(f"/proc/{place.pid}").exists():
        from .dead_trainers import nothing_has

        said, following = nothing_has(place.pid)
        raise error(f"{said}.\nNext: {following}")


def refusal(code: str, reason: str, pid: int) -> str:
    """Return why a probe did not answer, and what to do next."""
    stuck = f"Is it stopped, or stuck in C code? Its stacks: gpuscope    (S on pid {pid})"
    hint = {
        "busy": "One such request at a time: try again when it is done.",
        "unfinished": stuck,
        "timeout": stuck,
        "gone": "Next: gpuscope ps    lists the trainers",
    }.get(code, "The training was not touched.")
    return f"{reason}.\n{hint}".replace("..\n", ".\n")


async def not_found(
    there: WatchedHost, place: remote.Target, verb: str, lacks_it: bool | None = None
) -> str:
    """Return why there is no trainer with the pid of a place, and what to do next.

    ``lacks_it``: whether another host has no such process, None where it has not been asked yet.
    """
    host, pid = there.host, place.pid or 0
    if not place.is_remote:
        return _not_found_here(host, pid, verb)
    if host.sampled_seconds is None:
        why = host.link.reason
        return f"the host sent nothing{': ' + why if why else ''}"
    if lacks_it is None:
        lacks_it = await there.lacks_process(pid)
    return _not_found_there(host, place, lacks_it)


def _not_found_there(host: HostView, place: remote.Target, lacks_it: bool) -> str:
    there = [f"  {t.definition.pid}    ({_rank(t)})" for t in host.trainers if t.gone is None][:16]
    lines = [
        f"no process has pid {place.pid} on {host.name}."
        if lacks_it
        else f"there is no probe in pid {place.pid} on {host.name}. It was not touched.",
        "Trainers with a probe there:" if there else "No trainer there has a probe.",
        *there,
    ]
    if lacks_it:
        return "\n".join([*lines, f"Next: gpuscope ps {place.where}    lists its processes"])
    now = f"gpuscope attach {place.text} --inject    (asks first, and shows the overhead)"
    return "\n".join([*lines, f"Now: {now}", "Next run, there: gpuscope run train.py"])


def _not_found_here(host: HostView, pid: int, verb: str) -> str:
    if not Path(f"/proc/{pid}").exists():
        return f"pid {pid} has ended.\nNext: gpuscope ps    lists the trainers"
    leader = _leader(pid)
    if leader not in (0, pid):
        return f"{pid} is a thread of process {leader}.\nNext: gpuscope {verb} {leader}"
    if host.sampled_seconds is None:
        why = f": {host.link.text}" if host.link.text else ""
        return f"the agent on this machine does not answer{why}.\nTry: gpuscope ps"
    from ..process.procfs import descends

    below = [
        t
        for t in host.trainers
        if t.gone is None and t.definition.pid != pid and descends(t.definition.pid, pid)
    ]
    if below:
        names = [f"  gpuscope {verb} {t.definition.pid}    ({_rank(t)})" for t in below[:16]]
        one = "a trainer" if len(below) == 1 else f"{len(below)} trainers"
        return "\n".join([f"pid {pid} is not a trainer, but it started {one}. Choose one:", *names])
    if has_socket(pid):
        return (
            f"the probe in pid {pid} has not answered within {FIND_SECONDS:g} s: its training "
            "holds the GIL for long, is stopped, or is stuck in C code.\n"
            f"Next: gpuscope {verb} {pid}    again; gpuscope ps    says whether it uses its GPU"
        )
    if is_started_with_us(pid):
        return "\n".join(not_started_yet(pid, verb))
    if (stranger := out_of_reach(pid, verb)) is not None:
        return "\n".join(stranger)
    return (
        f"there is no probe in {_named(pid)}. It was not touched.\n"
        "Only a probe inside the process can see this.\n"
        f"Now: gpuscope attach {pid} --inject    (asks first, and shows the overhead)\n"
        "Next run: gpuscope run train.py    or, in the script, import gpuscope; "
        "gpuscope.watch()"
    )


def out_of_reach(pid: int, verb: str) -> tuple[str, str] | None:
    """Return why the probe of a process can never answer us, and what to do next.

    The process belongs to another user, or runs no Python; None where neither is so.
    """
    owner = _another_user(pid)
    if owner:
        return (
            f"pid {pid} belongs to {owner}: its probe, if it has one, answers only that user.",
            f"Next, as {owner}: gpuscope {verb} {pid}",
        )
    if _without_python(pid):
        return (
            f"{_named(pid)} runs no Python, so it is no training of torch.",
            "Next: gpuscope ps    lists the trainers",
        )
    return None


def _named(pid: int) -> str:
    command = _command(pid)
    return f"pid {pid}{f' ({command})' if command else ''}"


def _without_python(pid: int) -> bool:
    """Return whether it is known that a process runs neither Python nor torch."""
    from ..attach import maps

    try:
        paths = {one.path for one in maps.mappings(pid)}
    except OSError:
        return False
    return bool(paths) and not any(word in path for word in ("python", "torch") for path in paths)


def not_started_yet(pid: int, verb: str) -> tuple[str, str]:
    """Return why a probe of ``gpuscope run`` does not listen yet, and what to do next.

    Nothing in a process that only imports torch, or that answers on a CPU, starts its probe
    (``probe/core.py``). Attaching does, at once.
    """
    return (
        f"pid {pid} was started with gpuscope run, and its probe has not started yet: it does so "
        "when CUDA is initialised, with the first step of an optimizer of torch, or after a few "
        "backward passes if the optimizer is not torch's. Inference on a CPU does not start it.",
        f"Next: gpuscope {verb} {pid}    again, once it trains; or "
        f"gpuscope attach {pid} --inject    to start the probe at once",
    )


def has_socket(pid: int) -> bool:
    """Return whether a probe in this process listens here, though it may answer late."""
    return pid in pids_with_socket()


def pids_with_socket() -> set[int]:
    """Return the processes in which probes listen here, or did before they were killed."""
    from ..probe import rendezvous

    names = (path.name.partition("-")[0] for path in Path(rendezvous.directory()).glob("*-*.sock"))
    return {int(name) for name in names if name.isdecimal()}


def is_started_with_us(pid: int) -> bool:
    """Whether its PYTHONPATH begins with the hook of ``gpuscope run``."""
    try:
        variables = words_of(pid, "environ", limit=1 << 20)
    except OSError:
        return False
    paths = next((one for one in variables if one.startswith("PYTHONPATH=")), "=")
    first = paths.partition("=")[2].partition(":")[0]
    return os.path.basename(first).startswith("hook-")


def _another_user(pid: int) -> str:
    """The name of the user whose process it is, "" where it is ours or we may ask anybody's."""
    import pwd

    try:
        owner = os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return ""
    if os.geteuid() in (0, owner):
        return ""
    try:
        return pwd.getpwuid(owner).pw_name
    except KeyError:
        return f"user {owner}"


def _rank(trainer: TrainerView) -> str:
    from ..model.ranks import name_of
    from ..text.process_name import short_script

    return f"{name_of(trainer)}, {short_script(trainer.definition.script)}"


def _leader(pid: int) -> int:
    """Return the pid of the process to which a thread id belongs.

    For a process it is the same number; 0 means that it could not be read.
    """
    try:
        return status_values(read(f"/proc/{pid}/status"), b"Tgid")[0]
    except (OSError, ValueError, IndexError):
        return 0


def _command(pid: int) -> str:
    from ..wire.clean import clean

    try:
        return clean(" ".join(word for word in words_of(pid)[:3] if word))[:80]
    except OSError:
        return ""
