"""Rows of the log: what the source told and what the program itself said, oldest first."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from ...store.view import HostView
from ..shell.notices import Notice
from ..widgets.status import short_script
from ..widgets.table import Cell, Column, TableRow

COLUMNS = (
    Column("time", "TIME", 8),
    Column("kind", "WHAT", 8),
    Column("who", "WHO", 16, flex=1, most=24, priority=1),
    Column("text", "TEXT", 20, flex=5),
)
SHOWN = 500
TOKENS = {
    "gone": "warn",
    "oom": "bad",
    "problem": "bad",
    "gap": "warn",
    "dropped": "warn",
    "attach": "ok",
    "detach": "muted",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the log.

    ``serial`` makes its key stable.
    """

    wall_seconds: float
    kind: str
    who: str
    text: str
    token: str
    serial: str


def entries(
    host: HostView | None,
    notices: Iterable[Notice],
    text: str = "",
    until_seconds: float | None = None,
) -> list[Entry]:
    """Return everything that contains ``text``, oldest first.

    Of the program's own words it has those until ``until_seconds`` of the wall clock.
    """
    out = [
        Entry(
            n.wall_seconds,
            "notice",
            "gpuscope",
            n.text,
            n.severity if n.severity != "ok" else "muted",
            f"n{i}{n.wall_seconds}",
        )
        for i, n in enumerate(notices)
        if until_seconds is None or n.wall_seconds <= until_seconds
    ]
    if host is not None:
        names = _names(host)
        offset = (host.wall_seconds or 0.0) - (host.sampled_seconds or 0.0)
        parts = {a.id for t in host.trainers for a in t.allocators} | {
            u.id for p in host.processes for u in p.uses
        }
        for event in host.events:
            if event.id in parts:  # what it is a part of tells the same
                continue
            who = names.get(event.id, host.name)
            serial = f"e{event.m}/{event.id}/{event.e}"
            out.append(
                Entry(
                    offset + event.m / 1e9,
                    event.e,
                    who,
                    event.text,
                    TOKENS.get(event.e, "muted"),
                    serial,
                )
            )
    unique = {entry.serial: entry for entry in out}
    if text:
        needle = text.casefold()
        unique = {
            k: e for k, e in unique.items() if needle in f"{e.kind} {e.who} {e.text}".casefold()
        }
    return sorted(unique.values(), key=lambda entry: entry.wall_seconds)[-SHOWN:]


def _names(host: HostView) -> dict[int, str]:
    names = {d.id: f"GPU {d.definition.index}" for d in host.devices}
    names |= {p.id: f"{p.definition.name or 'pid'} {p.definition.pid}" for p in host.processes}
    return names | {
        t.id: f"{short_script(t.definition.script)} {t.definition.pid}" for t in host.trainers
    }


def row(entry: Entry) -> TableRow:
    """One line as the table draws it."""
    at = time.strftime("%H:%M:%S", time.localtime(entry.wall_seconds))
    cells: dict[str, Cell] = {
        "time": [(at, "faint")],
        "kind": [(entry.kind, entry.token)],
        "who": [(entry.who, "muted")],
        "text": entry.text,
    }
    return TableRow(entry.serial, cells)
