"""This module attaches from the screen: it asks the agents, one rank after the other.

Each writes a line into the log of what was done. The module knows no widget. It works through
the sources of the session, so that a far host is as good as this one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...cli.commands.attach.ranks import launched_by, row_of
from ...model.job_ends import is_out_of_sight
from ...store.pending_requests import SourceError
from ...text.numbers import amount
from ...text.units import duration_text
from .attachable import AttachableProcesses, Item, group_items, items_of

if TYPE_CHECKING:
    from ...store.source import Source
    from ...store.view import TrainerView
    from ...wire.frames import Progress
    from ..shell.session import Session

LIST_SECONDS, INJECT_SECONDS, SEEN_SECONDS = 10.0, 30.0, 10.0
WATCHED_SECONDS = 0.3
"""How long a rank is watched after it was attached, before the next one is: a process that dies of
it dies at once.
"""


async def look_around(session: Session, pid: int | None = None) -> AttachableProcesses:
    """Return what can be attached to on the host that is looked at.

    Process ``pid`` is among it whatever it is, or what it has launched; where a job has ranks
    elsewhere, the other hosts are asked too. Raises :class:`SourceError` where the host looked
    at does not answer.
    """
    sources = list(session.hosts.sources) if session.hosts is not None else []
    shown = session.hosts.source if session.hosts is not None else None
    if shown is None:
        raise SourceError("gone", "not connected yet")
    items, helpers, notes = await _ask(session, shown)
    pids: tuple[int, ...] = ()
    if pid is not None:
        pids, more, note = await _ask_for(session, shown, pid, items)
        items += more
        notes += note
    if len(sources) > 1 and any((item.world_size or 1) > _together(items, item) for item in items):
        others = [source for source in sources if source is not shown]
        for source, answer in zip(
            others,
            await asyncio.gather(*(_ask(session, s) for s in others), return_exceptions=True),
            strict=True,
        ):
            if isinstance(answer, BaseException):
                notes.append(f"{source.label}: {answer}")
            else:
                jobs = {item.job for item in items if item.job}
                items += [item for item in answer[0] if item.job in jobs]
    return AttachableProcesses(group_items(items), helpers, tuple(notes), pids)


def _together(items: Sequence[Item], one: Item) -> int:
    return sum(item.job == one.job for item in items) if one.job else 1


async def _ask(session: Session, source: Source) -> tuple[list[Item], int, list[str]]:
    host = session.host_of(source.key)
    if host is None:
        raise SourceError("gone", "nothing known about it yet")
    known = {p.definition.pid for p in host.processes if p.gone is None}
    known |= {t.definition.pid for t in host.trainers if t.gone is None}
    answer = await _list(source, sorted(known)[:256])
    return items_of(answer, session.host_of(source.key) or host, source)


async def _ask_for(
    session: Session, source: Source, pid: int, items: Sequence[Item]
) -> tuple[tuple[int, ...], list[Item], list[str]]:
    """Return the pids that are meant by ``pid``, it as an item, and what to say of it.

    The pids are its own, or those of the ranks that it has launched. The item is there where it
    is not among ``items``.
    """
    host = session.host_of(source.key)
    if any(item.pid == pid for item in items) or host is None:
        return (pid,), [], []
    row = row_of(await _list(source, []), pid)
    ranks = launched_by(row) & {item.pid for item in items}
    if ranks:
        return tuple(sorted(ranks)), [], [f"pid {pid} is a launcher; its ranks are meant"]
    row = row or row_of(await _list(source, [pid]), pid)
    if row is None or not isinstance(row.get("start"), int):
        return (), [], [f"pid {pid} is not there"]
    return (
        (pid,),
        items_of({"processes": [{**row, "role": "trainer"}]}, host, source, alone=True)[0],
        [],
    )


async def _list(source: Source, pids: Sequence[int]) -> Mapping[str, Any]:
    args = {"method": "list", "pids": ",".join(map(str, pids))}
    return (await source.request("inject", args, LIST_SECONDS)).value


# ── doing it ──


@dataclass(slots=True)
class AttachReport:
    """What became of each item.

    Rows are (item, "ok" or a code, words); ``left`` are the items that were not tried any more.
    """

    rows: list[tuple[Item, str, str]] = field(default_factory=list)
    left: tuple[Item, ...] = ()

    @property
    def ok(self) -> bool:
        return bool(self.rows) and all(code == "ok" for _, code, _ in self.rows) and not self.left


async def attach_all(
    session: Session, items: Sequence[Item], say: Callable[[int, str], None], report: AttachReport
) -> None:
    """Attach to one item after the other, and write into ``report`` what became of each.

    The first that is refused, busy or harmed ends it. ``say`` gets the number of the rank that
    is under way and words. Cancelled, it puts back what is half done, and what is done stays.
    """
    for number, item in enumerate(items):
        report.left = tuple(items[number + 1 :])
        say(number, "waiting for its next safe point")
        try:
            value = await _attach(item, lambda text, number=number: say(number, text))  # type: ignore[misc]
        except SourceError as error:
            report.rows.append((item, error.code, error.what))
            _log(session, item, "inject", f"not attached: {error.code}: {error.what}", "warn")
            return
        except asyncio.CancelledError:
            report.rows.append((item, "cancelled", "cancelled; everything left there was removed"))
            _log(session, item, "inject", "cancelled", "warn")
            raise
        words = _came(value)
        say(number, "attached; waiting for its first reading")
        try:
            seen = await _until(
                lambda item=item: trainer_of(session, item) is not None,  # type: ignore[misc]
                SEEN_SECONDS,
            )
            await asyncio.sleep(WATCHED_SECONDS)
        except asyncio.CancelledError:
            report.rows.append((item, "ok", words))
            _log(session, item, "inject", words, "ok")
            raise
        harmed = [
            done for done, _, _ in [*report.rows, (item, "", "")] if _has_ended(session, done)
        ]
        if harmed:
            report.rows.append((item, "gone", f"{harmed[0].name} has ended since"))
            _log(session, item, "inject", f"{words}; {harmed[0].name} has ended since", "bad")
            return
        words += "" if seen else f"; no reading within {SEEN_SECONDS:.0f} s"
        report.rows.append((item, "ok", words))
        _log(session, item, "inject", words, "ok")


async def _attach(item: Item, say: Callable[[str], None]) -> Mapping[str, Any]:
    from ...cli.commands.attach.local import audit

    method = (item.consent or {}).get("method", "auto")
    audit(_line(item, f"inject {method}", "asked for"))

    def hear(progress: Progress) -> None:
        say(progress.text)

    args = {"pid": item.pid, "start": item.start, "method": method}
    return (await item.source.request("inject", args, INJECT_SECONDS, hear)).value


async def detach(session: Session, item: Item) -> str:
    """Take the probe out, and return in words what became of it.

    Raises :class:`SourceError`.
    """
    trainer = trainer_of(session, item)
    if trainer is None:
        raise SourceError("gone", f"no probe of pid {item.pid} is connected")
    try:
        await session.asker.ask(trainer, "detach", {}, 10.0)
    except SourceError as error:
        _log(session, item, "detach", f"{error.code}: {error.what}", "warn")
        raise
    gone = await _until(lambda: trainer_of(session, item) is None, SEEN_SECONDS)
    words = (
        "the probe is removed; the process continues"
        if gone
        else "the probe agreed to stop, but is still connected"
    )
    _log(session, item, "detach", words, "ok" if gone else "warn")
    return words


def trainer_of(session: Session, item: Item) -> TrainerView | None:
    """Return the living trainer in this process, once its probe has said who it is."""
    host = session.host_of(item.source.key)
    found = (
        (t for t in host.trainers if t.definition.pid == item.pid and t.gone is None)
        if host is not None
        else ()
    )
    return next(iter(found), None)


def _has_ended(session: Session, item: Item) -> bool:
    """Return whether the process itself is gone, as far as the agent tells."""
    host = session.host_of(item.source.key)
    for process in host.processes if host is not None else ():
        if process.definition.pid == item.pid and process.definition.start == item.start:
            return process.gone is not None and not is_out_of_sight(process.gone)
    return False


async def _until(true: Callable[[], bool], seconds: float) -> bool:
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while not true():
        if loop.time() > end:
            return False
        await asyncio.sleep(0.05)
    return True


def _came(value: Mapping[str, Any]) -> str:
    """Return what an injection's result says, as far as it says numbers."""
    stop, ready = amount(value.get("stop_seconds")), amount(value.get("ready_seconds"))
    words = [f"attached ({str(value.get('method', '?'))[:12]})"]
    if stop is not None:
        words.append(f"main thread paused {duration_text(stop)}")
    if ready is not None:
        words.append(f"listening after {duration_text(ready)}")
    return ", ".join(words)


def _line(item: Item, act: str, outcome: str) -> str:
    """host, pid, start, whose, command, what was done, and what became of it."""
    who = f"pid {item.pid} (start {item.start}, {item.user or '?'}) on {item.host}"
    return f"{act} {who}: {item.command or '?'}: {outcome}"


def _log(session: Session, item: Item, act: str, outcome: str, severity: Any) -> None:
    """Into the Log tab, and into the file of this user that outlives the session."""
    from ...cli.commands.attach.local import audit

    session.notices.say(f"{act} {item.name} on {item.host}: {outcome}", severity, kind="probe")
    audit(_line(item, f"{act} {(item.consent or {}).get('method', '')}".strip(), outcome))
