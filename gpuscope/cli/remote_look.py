"""Take one look at another host, for the verbs that print once.

An agent there sends its first readings and ends.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from ..agent.oneshot import TRAINERS_SECONDS
from ..exit_status import ExitStatus
from ..store.pending_requests import SourceError
from ..store.view import Entity, HostView
from ..wire.frames import DRIVER_ERROR, NOT_INITIALISED, TIMEOUT, ProcDef, Unknown
from . import output
from .local_look import LocalLook
from .remote import BadTarget, Target, Ways, one_place
from .watched_host import HZ, NoLook, WatchedHost, watched

E = TypeVar("E", bound=Entity)
LISTED_SECONDS = 0.4
"""Seconds from the first sample until the processes that the driver names have been read, too."""
HOLDERS_SECONDS = 20.0
"""Seconds for reading the open files of all processes there."""
ENVIRONMENT_SECONDS = 5.0


def look(
    args: argparse.Namespace,
    target: Target,
    timeout: float,
    want_trainers: bool,
    want_environments: bool = False,
) -> LocalLook:
    """A look at another host, as one at this machine would be. Raises :class:`NoLook`."""

    async def once(ways: Ways) -> LocalLook:
        async with watched(ways.source(target, HZ)) as there:
            complete = await there.until(
                lambda host, seconds: (
                    all_answered(host)
                    and seconds >= LISTED_SECONDS
                    and (not want_trainers or seconds >= TRAINERS_SECONDS)
                ),
                timeout,
            )
            seen = LocalLook(without_ended(there.host), complete)
            if getattr(args, "holders", False):
                seen.holders = await _holders(there)
            if want_environments:
                seen.environments = await _environments(there, seen.host)
            return seen

    with Ways(args, redact=_redact()) as ways:
        return asyncio.run(once(ways))


def look_at_target(args: argparse.Namespace, verb: str, want_trainers: bool) -> LocalLook | int:
    """Look once at the place that ``args.target`` and ``args.via`` mean.

    If no look is possible, the reason is printed and an exit code is returned. Raises
    :class:`BadTarget`.
    """
    target = one_place(args, args.target)
    if target.pid is not None:
        raise BadTarget(
            f"{args.target}: {verb} looks at a whole host. Next: leave out :{target.pid}"
        )
    if not target.is_remote:
        raise BadTarget(f"{args.target}: not a host. Next: gpuscope {verb}    for this machine")
    try:
        return look(args, target, args.timeout, want_trainers, verb == "devices")
    except NoLook as error:
        return unreached(args, verb, str(error))


def unreached(args: argparse.Namespace, verb: str, why: str) -> int:
    """Says why nothing came, as a document too where one is asked for."""
    if getattr(args, "json", False):
        row = {"device": None, "severity": "unchecked", "reason": why}
        document = {"host": None, "problems": [row], "unknown": []}
        print(output.dump({**document, "exit_code": ExitStatus.UNCHECKED}))
    print(f"gpuscope {verb}: {why}", file=sys.stderr)
    return ExitStatus.UNCHECKED


def without_ended(host: HostView) -> HostView:
    """The host without what has ended, of which one look tells nothing."""

    def living(found: tuple[E, ...]) -> tuple[E, ...]:
        return tuple(one for one in found if one.gone is None)

    return replace(
        host,
        devices=living(host.devices),
        processes=tuple(replace(one, uses=living(one.uses)) for one in living(host.processes)),
        trainers=tuple(
            replace(one, allocators=living(one.allocators)) for one in living(host.trainers)
        ),
    )


async def _holders(there: WatchedHost) -> dict[str, Any] | Unknown:
    """Return which processes have the devices there open."""
    minors = [
        d.definition.minor
        for d in there.host.devices
        if d.gone is None and d.definition.minor is not None
    ]
    if not minors:
        return Unknown(NOT_INITIALISED, "no GPU there reported its number (/dev/nvidiaN)")
    try:
        result = await there.source.request(
            "holders", {"minors": ",".join(map(str, minors))}, HOLDERS_SECONDS
        )
    except SourceError as error:
        return Unknown(DRIVER_ERROR, error.what)
    return result.value


async def _environments(
    there: WatchedHost, host: HostView
) -> dict[int, Mapping[str, str] | Unknown]:
    """Return the allow-listed variables of the processes on the GPUs there."""
    from .cuda_order import processes_on_gpus

    async def one(process: ProcDef) -> Mapping[str, str] | Unknown:
        args = {"pid": process.pid, "start": process.start}
        try:
            result = await there.source.request("environment", args, ENVIRONMENT_SECONDS)
        except SourceError as error:
            return Unknown(DRIVER_ERROR, error.what)
        answers = result.value.get("environment")
        return (
            {str(name): str(value) for name, value in answers.items()}
            if isinstance(answers, dict)
            else {}
        )

    found = [process.definition for process in processes_on_gpus(host)]
    answers = await asyncio.gather(*(one(process) for process in found))
    return {process.pid: environment for process, environment in zip(found, answers, strict=True)}


def all_answered(host: HostView) -> bool:
    """Say whether the driver, every device and every process there have answered.

    A late device is waited for, because on a busy host it answers a moment later.
    """
    if (
        host.nvml is not None
        and host.nvml.code == NOT_INITIALISED
        and not host.nvml.text.startswith("the driver")
    ):
        return False
    if host.nvml is None and not host.devices:
        return False
    sampled = all(one.sampled_seconds is not None for one in (*host.devices, *host.processes))
    telling = (*host.devices, *(use for one in host.devices for use in one.uses))
    waiting = [
        value for one in telling for value in one.readings.values() if isinstance(value, Unknown)
    ]
    ripe = not any(
        value.code == TIMEOUT or value.text == "not asked yet" or "needs two samples" in value.text
        for value in waiting
    )
    return host.sampled_seconds is not None and sampled and ripe


def _redact() -> bool:
    from ..config import load

    return load()[0].redact
