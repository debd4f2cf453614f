"""Remove an injected probe from a trainer: ``gpuscope attach PID --detach``.

The trainer may run here or on another host.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from typing import TYPE_CHECKING, Any

from ....exit_status import ExitStatus
from ....wire.clean import clean
from ...remote import Target

if TYPE_CHECKING:
    from ....store.view import HostView, TrainerView
    from ...watched_host import WatchedHost

LIST: dict[str, Any] = {"method": "list", "pids": ""}
FIND_SECONDS, GONE_SECONDS = 2.5, 10.0


def out_of(args: argparse.Namespace, target: Target) -> tuple[int, str]:
    """(exit code, why not); (0, "") when the probe is out. Asks first, unless ``args.yes``."""
    return asyncio.run(_detach(args, target))


async def _detach(args: argparse.Namespace, target: Target) -> tuple[int, str]:
    from contextlib import ExitStack

    from ...one_trainer import host_at

    with ExitStack() as stack:
        async with host_at(args, target, stack) as there:
            return await _ask(args, target, there)


async def _ask(args: argparse.Namespace, target: Target, there: WatchedHost) -> tuple[int, str]:
    from ...watched_host import NoLook
    from . import ranks as attach_ranks
    from .inject import agreed

    source = there.source
    pid, place = target.pid or 0, clean(target.where, 100) or "this machine"
    try:
        await there.until(lambda host, seconds: _trainer(host, pid) is not None, FIND_SECONDS)
    except NoLook:
        text = f"{place}: its agent sent nothing. {clean(there.host.link.text, 300)}"
        return ExitStatus.UNCHECKED, text.strip()
    host = there.host
    trainer = _trainer(host, pid)
    if trainer is not None:
        chosen = [trainer]
    else:
        launched = (
            None
            if args.this_pid
            else attach_ranks.of((await source.request("inject", LIST)).value, pid)
        )
        ranks = {row["pid"] for row in launched.ranks} if launched is not None else set()
        chosen = [one for one in host.trainers if one.gone is None and one.definition.pid in ranks]
        if not chosen:
            also = ", nor has any of its ranks" if launched is not None else ""
            return (
                ExitStatus.UNCHECKED,
                f"pid {pid} on {place} has no listening probe{also}. Next: gpuscope ps",
            )
    stays = next((one.definition for one in chosen if one.definition.origin != "inject"), None)
    if stays is not None:
        why = (
            f"the probe of pid {stays.pid} was loaded by {stays.origin or 'its start'}: it stays "
            "until the process ends."
        )
        return ExitStatus.PROBLEMS, why
    names = [
        f"pid {one.definition.pid} ({clean(one.definition.script or '?', 200)})" for one in chosen
    ]
    question = (
        f"Remove gpuscope's probe from {', '.join(names)} on {place}?\n"
        "Effect: removes its thread, file descriptors and patches; the training continues. Its "
        "code stays loaded, unused."
    )
    if not await asyncio.to_thread(agreed, args, question):
        return ExitStatus.PROBLEMS, f"pid {pid} was not touched."
    for one in chosen:
        code, why = await _take_out(one, there, place)
        if code != ExitStatus.OK:
            return code, why
    return ExitStatus.OK, ""


async def _take_out(trainer: TrainerView, there: WatchedHost, place: str) -> tuple[int, str]:
    from ....store.pending_requests import SourceError
    from .local import audit

    pid = trainer.definition.pid or 0
    who = f"pid {pid} (start {trainer.definition.start}) on {place}"
    try:
        await there.source.request("detach", {"trainer": there.reach(trainer).number})
    except SourceError as error:
        audit(f"detach {who}: {error.code}: {clean(error.what, 300)}")
        return ExitStatus.PROBLEMS, f"pid {pid}: {clean(error.what, 300)}"
    until = time.monotonic() + GONE_SECONDS
    while _trainer(there.host, pid) is not None and time.monotonic() < until:
        await asyncio.sleep(0.05)
    done = _trainer(there.host, pid) is None
    audit(f"detach {who}: {'the probe is removed' if done else 'the probe is still connected'}")
    if not done:
        why = f"its probe agreed to stop, but is still connected after {GONE_SECONDS:.0f} s"
        return ExitStatus.UNCHECKED, f"pid {pid}: {why}."
    print(
        f"gpuscope attach: the probe is removed from pid {pid}; the process continues.",
        file=sys.stderr,
    )
    return ExitStatus.OK, ""


def _trainer(host: HostView, pid: int) -> TrainerView | None:
    found = (one for one in host.trainers if one.definition.pid == pid and one.gone is None)
    return next(found, None)
