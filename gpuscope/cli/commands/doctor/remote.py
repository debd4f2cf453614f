"""Examine another host: ``gpuscope doctor user@host[:PID]``.

This covers its environment and its trainers, which an agent there watches for some two seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from ....doctor.finding import Report
from ....store.pending_requests import SourceError
from ....store.view import HostView, TrainerView
from ....text.units import window_text
from ....wire.clean import clean
from ... import remote
from ...remote import BadTarget, Target
from . import remote_environment

if TYPE_CHECKING:
    from ...watched_host import WatchedHost

WATCH_SECONDS = 2.2
"""Seconds to watch, as for trainers here: enough for a mean, and to see a counter rise."""
PROBE_HZ = 5.0
_OF_A_PROCESS = re.compile(r"(gpuscope (?:attach|doctor|snapshot|why) )([1-9][0-9]*)\b")
"""The commands of findings that are about one process."""
MAX_REQUESTS = 60
"""How many trainers of one host are asked for their history.

A connection allows 64 requests at a time, and the request for the environment may be one of them.
"""


def examine(text: str | None, args: argparse.Namespace, timeout: float) -> Report:
    """Judge the environment and every trainer of a target.

    If the target names one process, only that one is judged.
    """
    try:
        found = remote.places(args, [text] if text is not None else [])
    except BadTarget as error:
        ended = _ended_job(text, args)
        return Report(problems=(str(error),)) if ended is None else ended
    report = Report()
    with remote.Ways(args) as ways:
        for target in found:
            report += asyncio.run(_one(ways, target, timeout, args))
    return report


def _ended_job(text: str | None, args: argparse.Namespace) -> Report | None:
    """Return the verdict on a Slurm job that no longer runs; None for any other target."""
    from ....attach.targets import SLURM, parse
    from .left_elsewhere import examine_slurm

    if text is None or not text.startswith("slurm:"):
        return None
    target = parse(text)
    if target.kind != SLURM or target.pid is not None:
        return None
    found = examine_slurm(target, args)
    return found if found.examined else None


async def _one(
    ways: remote.Ways, target: Target, timeout: float, args: argparse.Namespace
) -> Report:
    from ...remote_look import all_answered
    from ...watched_host import NoLook, watched

    place = clean(target.where, 100)
    try:
        async with watched(ways.source(target, PROBE_HZ)) as there:
            await there.until(lambda host, seconds: True, timeout)
            environment = None
            if target.pid is None:
                name = clean(there.host.name, 100) or place
                environment = asyncio.create_task(
                    remote_environment.examine(there.source, name, bool(args.torch), timeout)
                )
            try:
                complete = await there.until(
                    lambda host, seconds: all_answered(host) and seconds >= _enough_seconds(host),
                    max(timeout, WATCH_SECONDS),
                )
                await _ask_what_was(there, timeout)
                problem = await _no_such_trainer(there, target)
                report = _report(there, target, complete, timeout, problem, args)
                return report if environment is None else await environment + report
            finally:
                if environment is not None:
                    environment.cancel()
    except (BadTarget, NoLook) as error:
        return Report(problems=(str(error),))
    except Exception as error:
        return Report(
            problems=(
                f"{place}: the check failed ({type(error).__name__}: {clean(str(error), 300)}).",
            )
        )


async def _ask_what_was(there: WatchedHost, timeout: float) -> None:
    """Ask the trainers there for the history that their probes remember.

    Growth of memory can then be judged at once.
    """
    from ....store.store import PAST_REQUESTS

    async def one(trainer: TrainerView) -> None:
        number = there.store.wire_id(there.source.key, trainer.id)
        if number is None:
            return
        for name in PAST_REQUESTS:
            with suppress(SourceError):  # the trainer may end meanwhile
                answer = await there.source.request(name, {"trainer": number}, timeout)
                there.store.remember(there.source.key, trainer.id, name, answer.value)

    living = [trainer for trainer in there.host.trainers if trainer.gone is None]
    await asyncio.gather(*(one(trainer) for trainer in living[:MAX_REQUESTS]))


async def _no_such_trainer(there: WatchedHost, target: Target) -> str:
    """Return why the process of a target is not judged, "" where it is, or where none is named."""
    pids = [one.definition.pid for one in there.host.trainers if one.gone is None]
    if target.pid is None or target.pid in pids:
        return ""
    name = clean(there.host.name, 100)
    listed = f"Trainers with a probe there: {', '.join(map(str, pids[:16])) or 'none'}."
    if await there.lacks_process(target.pid):
        return (
            f"No process has pid {target.pid} on {name}. {listed} Next: gpuscope ps "
            f"{clean(target.where, 100)}"
        )
    return (
        f"There is no probe in pid {target.pid} on {name}: what is inside is unknown, and it was "
        f"not touched. {listed} Next: gpuscope attach {clean(target.text, 100)}"
    )


def _enough_seconds(host: HostView) -> float:
    from ....agent.oneshot import TRAINERS_SECONDS

    return WATCH_SECONDS if any(one.gone is None for one in host.trainers) else TRAINERS_SECONDS


def _report(
    there: WatchedHost,
    target: Target,
    complete: bool,
    timeout: float,
    problem: str,
    args: argparse.Namespace,
) -> Report:
    from ....doctor import live

    host = there.host
    name = clean(host.name, 100)
    late = (
        ()
        if complete
        else (
            f"Not everything on {name} answered within {window_text(timeout)}: the missing parts "
            "were not checked.",
        )
    )
    trainers = [one for one in host.trainers if one.gone is None]
    if not trainers and not problem:
        return Report(
            examined=(f"trainers on {name} (none has a probe)",), problems=late
        ) + live.examine(host)
    history = partial(there.store.history, there.source.key)
    found = live.examine(host, history, None if target.pid is None else {target.pid})
    return _as_called_from_here(found, partial(remote.words_for, args, target)) + Report(
        problems=tuple(filter(None, (problem, *late)))
    )


def _as_called_from_here(report: Report, words_for: Callable[[int], str]) -> Report:
    """Return a report whose commands name the processes there as they are named from here."""

    def called(text: str) -> str:
        return _OF_A_PROCESS.sub(lambda one: one[1] + words_for(int(one[2])), text)

    findings = tuple(
        replace(
            one,
            verify=called(one.verify),
            fixes=tuple(replace(fix, command=called(fix.command)) for fix in one.fixes),
        )
        for one in report.findings
    )
    return replace(report, findings=findings)
