"""Inject the probe into a trainer before the TUI opens on it.

The user is first told what will happen and what it costs, and is asked for consent. On this machine
this process injects the probe. On another host the agent there does it, and is first asked what it
would do.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ....exit_status import ExitStatus
from ....wire.clean import clean
from ... import remote
from ...remote import Target

if TYPE_CHECKING:
    from ....store.view import HostView
    from ...watched_host import WatchedHost

INJECT_SECONDS = 30.0
FIND_SECONDS = 5.0
SECONDS = ("stop_seconds", "callback_seconds", "ready_seconds")

UNCHECKED = ("gone", "failed", "unchecked")
"""Error codes that say nothing about the process itself: the injection could not be tried."""


@dataclass(frozen=True)
class Done:
    """The result of injecting probes.

    ``code`` is the exit code: 0 when a probe listens in every process that was meant; 2 when one
    was refused, is busy, or the user did not agree; 3 when it could not be tried. ``why`` says why
    it did not work; that process was then not touched, or what had been changed in it was undone.
    ``rows`` describe each process that has a probe now: pid, rank, host, method ("probe": it
    already had one), stop, callback and ready seconds.
    """

    code: int
    why: str = ""
    rows: tuple[dict[str, Any], ...] = ()


def into(args: argparse.Namespace, target: Target) -> Done:
    """Make sure that a probe listens in the target process.

    For a launcher, these are all the ranks that it has launched. The user is asked first, unless
    ``args.yes`` is set.
    """
    return _elsewhere(args, target) if target.is_remote else _here(args, target.pid or 0)


def _exit(code: str) -> int:
    return ExitStatus.UNCHECKED if code in UNCHECKED else ExitStatus.PROBLEMS


def _row(
    member: Mapping[str, Any], method: str, data: Mapping[str, Any], host: str = ""
) -> dict[str, Any]:
    seconds = {name: data.get(name) for name in SECONDS}
    rank = member.get("rank")
    return {
        "pid": member["pid"],
        "rank": rank if isinstance(rank, int) else None,
        "host": host or None,
        "method": method,
        **{n: v if isinstance(v, float) else None for n, v in seconds.items()},
    }


def _here(args: argparse.Namespace, pid: int) -> Done:
    from ....attach.inject import CannotInject
    from . import local as attach_local
    from . import ranks as attach_ranks

    launched = None if args.this_pid else attach_ranks.here(pid)
    if launched is not None and not launched.ranks:
        return Done(ExitStatus.UNCHECKED, launched.none_yet())
    members: Sequence[Mapping[str, Any]] = (
        launched.ranks if launched is not None else [{"pid": pid}]
    )
    rows: list[dict[str, Any]] = []
    waiting, consents = [], []
    for member in members:
        ladder = attach_local.look(member["pid"], member.get("start"))
        if ladder.best.name == "probe":
            rows.append(_row(member, "probe", {}))
            continue
        try:
            consents.append(ladder.consent(args.inject))
        except CannotInject as error:
            text = ladder.text() if args.inject == "auto" else f"{error.why}\n{ladder.text()}"
            return Done(_exit(error.code), text)
        waiting.append((member, ladder))
    if not waiting:
        return Done(ExitStatus.OK, rows=tuple(rows))
    facts = [vars(consent) for consent in consents]
    words = (
        launched.question(facts, [member for member, _ in waiting])
        if launched is not None
        else consents[0].text()
    )
    if not agreed(args, words):
        return Done(ExitStatus.PROBLEMS, f"pid {pid} was not touched.")
    for number, (member, ladder) in enumerate(waiting):
        done = attach_local.attach_pid(ladder.pid, args.inject, ladder.start, progress=_say)
        if not done.ok:
            return Done(_exit(done.code), done.text + _before(number, len(waiting)), tuple(rows))
        _say(done.text)
        rows.append(_row(member, done.method, done.data))
    return Done(ExitStatus.OK, rows=tuple(rows))


def _before(number: int, count: int) -> str:
    return f"\nRanks with a probe now: {number} of the {count} that had none." if count > 1 else ""


def _elsewhere(args: argparse.Namespace, target: Target) -> Done:
    from ....store.pending_requests import SourceError
    from ...watched_host import NoLook

    try:
        with remote.Ways(args) as ways:
            return asyncio.run(_ask_there(args, ways, target))
    except NoLook as error:
        return Done(ExitStatus.UNCHECKED, str(error))
    except SourceError as error:
        return Done(_exit(error.code), f"{clean(target.text, 100)}: {clean(error.what, 600)}")


async def _ask_there(args: argparse.Namespace, ways: remote.Ways, target: Target) -> Done:
    from ....agent.oneshot import TRAINERS_SECONDS
    from ...watched_host import HZ, watched
    from . import ranks as attach_ranks

    pid, place = target.pid or 0, clean(target.where, 100)
    async with watched(ways.source(target, HZ)) as there:
        await there.until(
            lambda host, seconds: pid in _pids(host) or seconds >= TRAINERS_SECONDS, FIND_SECONDS
        )
        listening = {one.definition.pid for one in there.host.trainers if one.gone is None}
        if pid in listening:
            return Done(ExitStatus.OK, rows=(_row({"pid": pid}, "probe", {}, place),))
        answer = (await there.source.request("inject", {"method": "list", "pids": ""})).value
        launched = None if args.this_pid else attach_ranks.of(answer, pid)
        if launched is not None and not launched.ranks:
            return Done(ExitStatus.UNCHECKED, launched.none_yet(place))
        if launched is not None:
            members: Sequence[Mapping[str, Any]] = launched.ranks
        else:
            answer = (
                await there.source.request("inject", {"method": "list", "pids": str(pid)})
            ).value
            row = attach_ranks.row_of(answer, pid)
            members = [row] if row is not None else []
            if not members or not isinstance(members[0].get("start"), int):
                why = f"pid {pid} on {place}: no such process there. Next: gpuscope ps {place}"
                return Done(ExitStatus.UNCHECKED, why)
        rows = [
            _row(member, "probe", {}, place) for member in members if member["pid"] in listening
        ]
        waiting = [member for member in members if member["pid"] not in listening]
        facts: list[Mapping[str, Any]] = []
        for member in waiting:
            which: dict[str, Any] = {"pid": member["pid"], "start": member["start"]}
            found = (await there.source.request("inject", {**which, "method": "look"})).value
            if not isinstance(found.get("consent"), dict):
                return Done(ExitStatus.PROBLEMS, f"On {place}:\n{_safe(found.get('lines'))}")
            facts.append(
                {**found["consent"], **({} if args.inject == "auto" else {"method": args.inject})}
            )
        if not waiting:
            return Done(ExitStatus.OK, rows=tuple(rows))
        words = (
            launched.question(facts, waiting, place)
            if launched is not None
            else _question(facts[0])
        )
        if not await asyncio.to_thread(agreed, args, f"On {place}:\n{_safe(words, 160)}"):
            return Done(ExitStatus.PROBLEMS, f"pid {pid} on {place} was not touched.")
        for member, fact in zip(waiting, facts, strict=True):
            rows.append(await _inject_there(args, there, member, fact, place))
        return Done(ExitStatus.OK, rows=tuple(rows))


async def _inject_there(
    args: argparse.Namespace,
    there: WatchedHost,
    member: Mapping[str, Any],
    fact: Mapping[str, Any],
    place: str,
) -> dict[str, Any]:
    from ....store.pending_requests import SourceError
    from .local import audit

    which: dict[str, Any] = {"pid": member["pid"], "start": member["start"]}
    who = (
        f"pid {member['pid']} (start {member['start']}) on {place}: "
        f"{clean(str(fact.get('command', '?')), 300)}"
    )
    audit(f"inject {args.inject} into {who}: asked for")
    try:
        done = (
            await there.source.request("inject", {**which, "method": args.inject}, INJECT_SECONDS)
        ).value
    except SourceError as error:
        audit(f"inject {args.inject} into {who}: {error.code}: {clean(error.what, 300)}")
        raise
    audit(f"inject {args.inject} into {who}: attached")
    _say(f"The probe is in pid {member['pid']} on {place}.")
    return _row(member, clean(str(done.get("method", "?")), 20), done, place)


def _pids(host: HostView) -> set[int]:
    return {one.definition.pid for one in host.trainers} | {
        one.definition.pid for one in host.processes
    }


def _question(facts: Mapping[str, Any]) -> str:
    """Describe what the agent there would do, in the words of an injection here."""
    from ....attach.attach_options import Consent

    names = ("command", "user", "method", "effect", "price", "undo")
    texts = {name: str(facts.get(name, "?")) for name in names}
    pid, start = (
        int(facts[name]) if isinstance(facts.get(name), int) else 0 for name in ("pid", "start")
    )
    return Consent(pid, start, **texts).text()


def _safe(text: object, most: int = 12) -> str:
    """Lines of somebody else's, or a list of them, made harmless."""
    lines = text if isinstance(text, list) else str(text or "").splitlines()
    return "\n".join(clean(str(line), 600) for line in lines[:most])


def agreed(args: argparse.Namespace, words: str) -> bool:
    """Shows what would be done and asks; without a terminal only ``--yes`` agrees."""
    print(words, file=sys.stderr)
    if args.yes:
        return True
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        print("There is no terminal to ask in. Next: the same command with --yes", file=sys.stderr)
        return False
    print("Do it? Type yes: ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() == "yes"


def _say(text: str) -> None:
    print(f"gpuscope attach: {clean(text, 600)}", file=sys.stderr)
