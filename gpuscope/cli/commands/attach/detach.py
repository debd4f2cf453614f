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
    from ....store.source import Source
    from ....store.store import Store
    from ....store.view import TrainerView
    from ...one_trainer import WatchedHost

LIST: dict[str, Any] = {"method": "list", "pids": ""}
FIND_SECONDS, GONE_SECONDS, FIRST_SECONDS = 2.5, 10.0, 60.0


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
    from . import ranks as attach_ranks
    from .inject import agreed

    source, store, running = there.source, there.store, there.running
    pid, place = target.pid or 0, clean(target.where, 100) or "this machine"
    trainer = await _find(store, running, pid)
    host = store.view().host
    if host is None or host.sampled_seconds is None:
        why = host.link.text if host is not None else ""
        return (
            ExitStatus.UNCHECKED,
            f"{place}: its agent sent nothing. {clean(why, 300)}".strip(),
        )
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
        code, why = await _take_out(one, store, source, place)
        if code != ExitStatus.OK:
            return code, why
    return ExitStatus.OK, ""


async def _take_out(
    trainer: TrainerView, store: Store, source: Source, place: str
) -> tuple[int, str]:
    from ....store.pending_requests import SourceError
    from .local import audit

    pid = trainer.definition.pid or 0
    who = f"pid {pid} (start {trainer.definition.start}) on {place}"
    try:
        await source.request("detach", {"trainer": store.wire_id(source.key, trainer.id)})
    except SourceError as error:
        audit(f"detach {who}: {error.code}: {clean(error.what, 300)}")
        return ExitStatus.PROBLEMS, f"pid {pid}: {clean(error.what, 300)}"
    until = time.monotonic() + GONE_SECONDS
    while _trainer(store, pid) is not None and time.monotonic() < until:
        await asyncio.sleep(0.05)
    done = _trainer(store, pid) is None
    audit(f"detach {who}: {'the probe is removed' if done else 'the probe is still connected'}")
    if not done:
        why = f"its probe agreed to stop, but is still connected after {GONE_SECONDS:.0f} s"
        return ExitStatus.UNCHECKED, f"pid {pid}: {why}."
    print(
        f"gpuscope attach: the probe is removed from pid {pid}; the process continues.",
        file=sys.stderr,
    )
    return ExitStatus.OK, ""


async def _find(store: Store, running: asyncio.Task[None], pid: int) -> TrainerView | None:
    """Return the trainer as soon as its probe is seen.

    The result is None if that takes more than some seconds after the first sample.
    """
    until, first = time.monotonic() + FIRST_SECONDS, True
    while time.monotonic() < until and not running.done():
        trainer, host = _trainer(store, pid), store.view().host
        sampled = host is not None and host.sampled_seconds is not None
        if trainer is not None and sampled:  # a trainer may be known before the first sample
            return trainer
        if sampled and first:
            until, first = time.monotonic() + FIND_SECONDS, False
        if host is not None and host.link.failed:
            return None
        await asyncio.sleep(0.02)
    return None


def _trainer(store: Store, pid: int) -> TrainerView | None:
    host = store.view().host
    found = (
        (t for t in host.trainers if t.definition.pid == pid and t.gone is None)
        if host is not None
        else ()
    )
    return next(iter(found), None)
