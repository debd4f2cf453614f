"""Say what the memory of a device is used for: the rows of the waterfall.

They add up to what nvidia-smi shows.

What is inside torch's reserve comes from one statistics call and is exact
(:mod:`gpuscope.model.allocator_split`). The other rows come from the driver's readings of the card
and of each process, which are taken at other moments. What these leave unexplained is a row of its
own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from ..store.view import (
    NOT_SENT,
    AllocView,
    DeviceView,
    Entity,
    HostView,
    ProcView,
    UseView,
)
from ..text.process_name import short_script
from ..text.units import ago_text, bytes_text, duration_text
from ..wire.frames import HIDDEN_BY_CONTAINER, Unknown
from .allocator_account import AccountRow, inside_torch, size_of
from .device_state import unowned_on
from .memory_layers import trainer_of
from .reading_age import OLD, old_seconds

NAMED_OTHERS = 3
"""Other processes with a row of their own; the rest is summed, if it is more than one."""
SKEW_SECONDS = 0.1
"""Readings of the allocator and of the driver further apart than this are said to be so."""
LEAST_FREEABLE = 64 << 20
CLEARLY = 1.25
"""Another row becomes the advice if it is this many times as large as the former one."""
TOLERATED_BYTES, TOLERATED_SHARE = 8 << 20, 0.005
"""Share of the used memory that needs no row, although no process is known to hold it."""


@dataclass(frozen=True, slots=True)
class Account:
    """The account of a device's bytes.

    ``parts`` add up to ``total``, nvidia-smi's number, as far as all are known; ``beside`` has the
    parts that this number leaves out. ``notes`` say what is not exact, or cannot be known, and why.
    """

    parts: list[AccountRow]
    total: float | Unknown
    beside: list[AccountRow] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


# ── the device around it ──


def account(host: HostView, device: DeviceView, allocator: AllocView | None) -> Account:
    """Return the rows of a device and their total, always in one order.

    They are ordered by kind, because sizes rise and fall within a step. ``allocator`` is that of
    the trainer looked at, None where none has a probe.

    A process's bytes are read after the card's: while they grow, the rows end at the total all the
    same. While the allocator was not read for long, what rests on its last reading is unknown, and
    the driver's number of the process stands in place of its parts.
    """
    used = size_of(device, "used_bytes")
    trainer = trainer_of(host, allocator) if allocator else None
    age = old_seconds(host, allocator)
    parts: list[AccountRow] = []
    notes: list[str] = []
    if allocator is not None:
        parts, notes = (
            inside_torch(trainer, allocator) if age is None else _not_read(allocator, age)
        )
    held = sum(part.known for part in parts if not part.inside)
    room = max(0.0, used - held) if not isinstance(used, Unknown) else float("inf")
    own = next(
        (u for u in device.uses if trainer and u.process == trainer.process and u.gone is None),
        None,
    )
    others = [u for u in device.uses if u.gone is None and u is not own]
    skew = list(_skew(device, own, allocator)) if age is None else []
    if allocator and (own is None or own.number("used_bytes") is None):
        parts += _outside_and_others(host, own, room, notes, age is not None)
        room = 0.0
    else:
        if own is not None and allocator:
            outside = max(0.0, min((own.number("used_bytes") or 0.0) - held, room))
            room -= outside
            parts.append(
                AccountRow("outside torch", "outside", outside, about=bool(skew))
                if age is None
                else AccountRow("the whole process", "unread", outside)
            )
        others_parts, room = _others(host, others, room, notes)
        parts += others_parts
    if not isinstance(used, Unknown) and room > min(TOLERATED_BYTES, used * TOLERATED_SHARE):
        parts.append(_unattributed(host, device, room))
    notes += skew
    driver = device.reading("driver_reserved_bytes")
    reserve = (
        [AccountRow("driver reserve", "driver", driver)] if isinstance(driver, (int, float)) else []
    )
    return Account(parts, used, reserve, notes)


def _not_read(allocator: AllocView, age: float) -> tuple[list[AccountRow], list[str]]:
    """Return the rows that rest on a reading of this ``age``, each with what it was then."""
    when = ago_text(age)
    allocated, reserved = (allocator.number(f"{one}_bytes") for one in ("allocated", "reserved"))
    cached = None if allocated is None or reserved is None else max(reserved - allocated, 0.0)

    def row(name: str, token: str, size: float | None) -> AccountRow:
        then = f"{when}: {bytes_text(size)}" if size is not None else f"not read for {when[:-4]}"
        return AccountRow(name, token, Unknown(OLD, then))

    rows = [
        row("allocated", "allocated", allocated),
        row("cached", "cached", cached),
        row("outside torch", "outside", None),
    ]
    return rows, [f"what torch holds now is not known: its allocator was last read {when}"]


def _outside_and_others(
    host: HostView, own: UseView | None, room: float, notes: list[str], unread: bool = False
) -> list[AccountRow]:
    """Return one row for all that is not torch's.

    It is for where the driver does not say what the trainer's own process holds. Of an ``unread``
    trainer it has torch's part, too.
    """
    why = _why_unknown(host, own)
    one, name = (
        ("this process and others", "this and other processes")
        if unread
        else ("outside torch and other processes", "others and outside torch")
    )
    notes.append(f"{one} are one row: {why.text}")
    token = "unread" if unread else "other"
    return [AccountRow(name, token, room if room != float("inf") else why, about=True)]


def _why_unknown(host: HostView, own: UseView | None) -> Unknown:
    if own is not None:
        held = own.reading("used_bytes")
        return held if isinstance(held, Unknown) else NOT_SENT
    if host.definition.container:
        text = (
            f"in this container ({host.definition.container}) the driver does not list the process"
        )
        return Unknown(HIDDEN_BY_CONTAINER, text)
    return Unknown("not_sent", "the driver has not listed the process yet")


def _others(
    host: HostView, others: list[UseView], room: float, notes: list[str]
) -> tuple[list[AccountRow], float]:
    """Other processes, the largest by name; what is left of ``room``."""
    if not others:
        return [], room
    untold = [use for use in others if use.number("used_bytes") is None]
    listed = sorted(
        ((use.number("used_bytes") or 0.0, use) for use in others if use not in untold), key=_first
    )[::-1]
    if untold:
        why = untold[0].reading("used_bytes")
        text = why.text if isinstance(why, Unknown) else ""
        notes.append(
            f"{len(untold)} of {len(others)} other processes: the memory of each is unknown "
            f"({text})"
        )
        if room == float("inf"):
            return [
                AccountRow(
                    "other processes", "other", why if isinstance(why, Unknown) else NOT_SENT
                )
            ], room
        whole, room = room, 0.0
    else:
        whole = min(sum(size for size, _ in listed), room)
        room -= whole
    parts, left = [], whole
    names = {p.id: p for p in host.processes}
    named = len(listed) if len(listed) <= NAMED_OTHERS + 1 else NAMED_OTHERS
    for size, use in listed[:named]:
        size = min(size, left)
        left -= size
        owner = name_of(host, names.get(use.process))
        parts.append(AccountRow(owner, "other", size, "other processes"))
    if len(listed) > named:
        rest = min(sum(size for size, _ in listed[named:]), left)
        left -= rest
        parts.append(AccountRow(f"{len(listed) - named} more", "other", rest, "other processes"))
    if untold:
        parts.append(
            AccountRow(f"{len(untold)} unknown", "other", left, "other processes", about=True)
        )
    ask = parts[0].name if listed else ""
    outer = AccountRow(
        "other processes",
        "other",
        whole,
        "",
        f"ask whoever runs {ask}" if ask else "",
        True,
        bool(untold),
    )
    return [outer, *_distinct(parts)], room


def _first(pair: tuple[float, UseView]) -> float:
    return pair[0]


def _distinct(parts: list[AccountRow]) -> list[AccountRow]:
    """Two processes of one name are still two rows."""
    seen: dict[str, int] = {}
    out = []
    for part in parts:
        seen[part.name] = count = seen.get(part.name, 0) + 1
        out.append(part if count == 1 else replace(part, name=f"{part.name} #{count}"))
    return out


def name_of(host: HostView, process: ProcView | None) -> str:
    """Describe a process in a few words.

    They are script or program, rank, pid, and the user where it is somebody else's.
    """
    if process is None:
        return "a process"
    d = process.definition
    trainer = next((t for t in host.trainers if t.process == process.id), None)
    name = _program(d.name, d.command)
    if trainer is not None:
        script = short_script(trainer.definition.script) if trainer.definition.script else ""
        rank = trainer.definition.rank
        name = (script or name) + (f" rank {rank}" if rank is not None else "")
    user = f" ({d.user})" if d.user and not d.mine else ""
    return f"{name} {d.pid}{user}"


def _program(name: str | None, command: str | None) -> str:
    """The script of an interpreter's command line, else the program."""
    words = (command or "").split()
    script = next((word for word in words[1:] if word.endswith(".py")), "")
    module = words[words.index("-m") + 1] if "-m" in words[:-1] else ""
    return (script or module or name or (words[0] if words else "process")).rsplit("/", 1)[-1]


def _unattributed(host: HostView, device: DeviceView, room: float) -> AccountRow:
    """Return what is used on the card although no process is known to hold it."""
    if host.definition.container and unowned_on(device):
        return AccountRow("owners hidden by the container", "other", room)
    if device.number("driver_reserved_bytes") is None:
        return AccountRow("driver, unattributed", "driver", room)
    return AccountRow("unattributed", "driver", room)


def _skew(device: DeviceView, own: UseView | None, allocator: AllocView | None) -> Iterable[str]:
    """Say how far apart the readings that are compared were taken.

    It says so only if that is more than the readings' own interval.
    """
    entities: list[Entity] = [device, *(one for one in (own, allocator) if one is not None)]
    moments = [one.sampled_seconds for one in entities if one.sampled_seconds is not None]
    apart = max(moments, default=0.0) - min(moments, default=0.0)
    if allocator is not None and apart > SKEW_SECONDS:
        yield (
            f"outside torch is approximate: torch and the driver were read {duration_text(apart)} "
            "apart"
        )


# ── advice ──


def largest_freeable(
    parts: list[AccountRow], now: bool = False, before: str = ""
) -> AccountRow | None:
    """Return the largest row that can be given back.

    With ``now``, without another run; None when nothing of 64 MiB can.

    ``before`` names the row that was the answer so far. It stays the answer until another is
    clearly larger, so that the advice does not waver between two of about one size.
    """
    candidates = [part for part in parts if part.free_by and (part.now or not now)]
    found = max(
        (part for part in candidates if part.known >= LEAST_FREEABLE),
        key=lambda p: p.known,
        default=None,
    )
    last = next((part for part in candidates if part.name == before), None)
    if (
        last is None
        or last.known < LEAST_FREEABLE / CLEARLY
        or (found and found.known > last.known * CLEARLY)
    ):
        return found
    return last
