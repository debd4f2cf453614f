"""Getting into a trainer before the TUI opens on it: the question, with effect and price, and the answer.

Here it is done by this process; elsewhere by the agent that is sent there, which is asked first what it would do."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..cli import EXIT_OK, EXIT_UNCHECKED
from ..wire.clean import clean
from . import remote
from .plain import EXIT_PROBLEMS
from .remote import Target

if TYPE_CHECKING:
    from ..store.view import HostView

INJECT_SECONDS = 30.0
FIND_SECONDS = 5.0


UNCHECKED = ("gone", "failed", "unchecked")
"""Codes of an injection that say nothing of the process itself: it could not be tried."""


def into(args: argparse.Namespace, target: Target) -> tuple[int, str]:
    """Makes sure that a probe listens in the process of a target; asks first, unless ``args.yes``.

    (exit code, why not): 0 with "" when one listens; 2 when it was refused, is busy, or nobody agreed; 3 when it could
    not be tried. The process was not touched then, or what was left there is withdrawn."""
    return _elsewhere(args, target) if target.is_remote else _here(args, target.pid or 0)


def _exit(code: str) -> int:
    return EXIT_UNCHECKED if code in UNCHECKED else EXIT_PROBLEMS


def _here(args: argparse.Namespace, pid: int) -> tuple[int, str]:
    from ..attach.inject import CannotInject
    from . import attach_local

    ladder = attach_local.look(pid)
    if ladder.best.name == "probe":
        return EXIT_OK, ""
    try:
        words = ladder.consent(args.inject).text()
    except CannotInject as error:
        return _exit(error.code), ladder.text() if args.inject == "auto" else f"{error.why}\n{ladder.text()}"
    if not agreed(args, words):
        return EXIT_PROBLEMS, f"pid {pid} was left alone."
    done = attach_local.attach_pid(pid, args.inject, ladder.start, progress=_say)
    if done.ok:
        _say(done.text)
    return (EXIT_OK, "") if done.ok else (_exit(done.code), done.text)


def _elsewhere(args: argparse.Namespace, target: Target) -> tuple[int, str]:
    from ..store.calls import SourceError
    from .remote_look import NoLook

    try:
        with remote.Ways(args) as ways:
            return asyncio.run(_ask_there(args, ways, target))
    except NoLook as error:
        return EXIT_UNCHECKED, str(error)
    except SourceError as error:
        return _exit(error.code), f"{clean(target.text, 100)}: {clean(error.reason, 600)}"


async def _ask_there(args: argparse.Namespace, ways: remote.Ways, target: Target) -> tuple[int, str]:
    from ..store.calls import SourceError
    from .remote_look import watching

    pid, place = target.pid or 0, clean(target.where, 100)
    async with watching(ways, target) as watched:
        await watched.until(lambda host, _: pid in _pids(host), FIND_SECONDS)
        host = watched.host
        if any(one.definition.pid == pid and one.gone is None for one in host.trainers):
            return EXIT_OK, ""
        told = (await watched.source.request("inject", {"method": "list", "pids": str(pid)})).value
        rows = [row for row in told.get("processes") or () if isinstance(row, dict) and row.get("pid") == pid]
        start = rows[0].get("start") if rows else None
        if not isinstance(start, int):
            return EXIT_UNCHECKED, f"pid {pid} on {place}: no such process there. Next: gpuscope ps {place}"
        which: dict[str, Any] = {"pid": pid, "start": start}
        found = (await watched.source.request("inject", {**which, "method": "look"})).value
        facts = found.get("consent")
        if not isinstance(facts, dict):
            return EXIT_PROBLEMS, f"On {place}:\n{_safe(found.get('text'))}"
        lines = _safe(_question(facts, args.inject))
        if not await asyncio.to_thread(agreed, args, f"On {place}:\n{lines}"):
            return EXIT_PROBLEMS, f"pid {pid} on {place} was left alone."
        from .attach_local import audit

        who = f"pid {pid} (start {start}) on {place}: {clean(str(facts.get('command', '?')), 300)}"
        audit(f"inject {args.inject} into {who}: asked for")
        try:
            await watched.source.request("inject", {**which, "method": args.inject}, INJECT_SECONDS)
        except SourceError as error:
            audit(f"inject {args.inject} into {who}: {error.code}: {clean(error.reason, 300)}")
            raise
        audit(f"inject {args.inject} into {who}: attached")
        _say(f"The probe is in pid {pid} on {place}.")
        return EXIT_OK, ""


def _pids(host: HostView) -> set[int]:
    return {one.definition.pid for one in host.trainers} | {one.definition.pid for one in host.processes}


def _question(facts: Mapping[str, Any], method: str) -> str:
    """What the agent there would do, in the words of an injection here."""
    from ..attach.ladder import Consent

    names = ("command", "user", "method", "effect", "price", "undo")
    texts = {name: str(facts.get(name, "?")) for name in names}
    if method != "auto":
        texts["method"] = method
    pid, start = (int(facts[name]) if isinstance(facts.get(name), int) else 0 for name in ("pid", "start"))
    return Consent(pid, start, **texts).text()


def _safe(text: object) -> str:
    """Lines of somebody else's, made harmless."""
    return "\n".join(clean(line, 300) for line in str(text or "").splitlines()[:12])


def agreed(args: argparse.Namespace, words: str) -> bool:
    """Shows what would be done and asks; without a terminal only ``--yes`` agrees."""
    print(words, file=sys.stderr)
    if args.yes:
        return True
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        print("Nobody can be asked here. Next: the same with --yes", file=sys.stderr)
        return False
    print("Do it? Type yes: ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() == "yes"


def _say(text: str) -> None:
    print(f"gpuscope attach: {clean(text, 600)}", file=sys.stderr)
