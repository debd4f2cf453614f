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
    TrainerView,
    UseView,
)
from ..text.units import bytes_text, duration_text
from ..wire.columns import rewrite_sizes
from ..wire.frames import HIDDEN_BY_CONTAINER, Unknown
from .allocator_settings import grows_segments
from .allocator_split import COLUMNS, POOL_COLUMNS, Counters, Split, categories, split
from .device_state import unowned_on
from .memory_layers import trainer_of

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
class Part:
    """One row.

    ``size`` in bytes, or the reason it is unknown; ``token`` its layer; ``inside`` names the row it
    is a part of, "" for the rows that add up to the total. ``about``: an estimate, or counted at
    another moment. ``free_by`` says how it can be given back, "" if it cannot, and ``now`` whether
    without another run.
    """

    name: str
    token: str
    size: float | Unknown
    inside: str = ""
    free_by: str = ""
    now: bool = False
    about: bool = False

    @property
    def known(self) -> float:
        """Bytes, 0 where unknown: for sums that say what they leave out."""
        return self.size if isinstance(self.size, (int, float)) else 0.0


@dataclass(frozen=True, slots=True)
class Account:
    """The account of a device's bytes.

    ``parts`` add up to ``total``, nvidia-smi's number, as far as all are known; ``beside`` has the
    parts that this number leaves out. ``notes`` say what is not exact, or cannot be known, and why.
    """

    parts: list[Part]
    total: float | Unknown
    beside: list[Part] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


COUNTED = (
    ("parameters", "parameter_bytes", "a smaller dtype or sharding (next run)"),
    ("optimizer state", "optimizer_state_bytes", "an 8-bit or sharded optimizer (next run)"),
    ("gradients", "gradient_bytes", "zero_grad(set_to_none=True) before the peak"),
)
OTHER_MODELS = "other models"
AWAY = (
    "move untrained models to the CPU or a smaller dtype, or compute their output once (next run)"
)
WORKSPACES, REST, LIVE = "cuBLAS workspaces", "activations + temp", "live tensors"
LESS = "a smaller micro-batch, activation checkpointing, fewer kept references"


def inside_torch(trainer: TrainerView | None, allocator: AllocView) -> tuple[list[Part], list[str]]:
    """Return a trainer's own rows on one device, and what is not exact.

    The rows are allocated and cached, with what they are made of.
    """
    allocated, reserved = _size(allocator, "allocated_bytes"), _size(allocator, "reserved_bytes")
    if isinstance(allocated, Unknown) or isinstance(reserved, Unknown):
        why = allocated if isinstance(allocated, Unknown) else reserved
        return [Part("allocated", "allocated", allocated), Part("cached", "cached", why)], []
    columns = [allocator.number(column) for column in COLUMNS]
    if any(value is None for value in columns):
        return _unsplit(trainer, allocator, allocated, reserved)
    notes: list[str] = []
    idle = _pools(allocator, notes)
    reserve, live, active, requested, inactive = (int(value or 0) for value in columns)
    whole = split(Counters(reserve, live, active, requested, inactive, *idle))
    if whole.torn:
        notes.append(
            "the allocator's counters contradict each other: parts were capped at their maximum"
        )
    parts = [Part("allocated", "allocated", whole.live + whole.rounding)]
    parts += _live(allocator, whole.live, notes)
    parts.append(Part("rounding", "allocated", whole.rounding, "allocated", about=whole.error > 0))
    if whole.error:
        notes.append(
            "rounding of blocks awaiting free is not known separately: live tensors may be "
            f"up to {bytes_text(whole.error)} more"
        )
    return parts + _cached(trainer, whole, notes), notes


def _unsplit(
    trainer: TrainerView | None, allocator: AllocView, allocated: float, reserved: float
) -> tuple[list[Part], list[str]]:
    """Return the rows where the allocator keeps no finer figures.

    That is so for the driver's pool, or a torch that lacks a counter.
    """
    notes: list[str] = []
    parts = [Part("allocated", "allocated", allocated), *_live(allocator, int(allocated), notes)]
    parts.append(
        Part(
            "cached", "cached", max(0.0, reserved - allocated), "", "torch.cuda.empty_cache()", True
        )
    )
    backend = trainer.definition.backend if trainer else None
    if backend == "cudaMallocAsync":
        notes.append(
            "cudaMallocAsync: the pool is the driver's; torch cannot see its split, rounding or "
            "fragmentation"
        )
    else:
        missing = next(c for c in COLUMNS if allocator.number(c) is None)
        reason = allocator.reading(missing)
        notes.append(
            f"cached is not split: {reason.text if isinstance(reason, Unknown) else missing}"
        )
    return parts, notes


def _pools(allocator: AllocView, notes: list[str]) -> tuple[int, int]:
    """Return the idle bytes of private pools, and those of them in partly used segments.

    (0, 0) where there are none or where nobody can tell, which is noted.
    """
    idle, part = (allocator.number(column) for column in POOL_COLUMNS)
    if idle is not None:
        return int(idle), int(part or 0)
    held = allocator.number("private_pool_bytes")
    if held:
        notes.append(
            f"private pools (CUDA graphs) hold {bytes_text(held)}; their idle part is not known "
            f"separately; releasable and inactive split include it"
        )
    return 0, 0


def _live(allocator: AllocView, live: int, notes: list[str]) -> list[Part]:
    """What the live tensors are, as far as the probe counted them."""
    sizes = [_size(allocator, column) for _, column, _ in COUNTED]
    if all(isinstance(size, Unknown) for size in sizes):
        why = sizes[0]
        assert isinstance(why, Unknown)
        notes.append(f"live tensors by category: {why.text}")
        return [
            Part(
                LIVE, "allocated", live, "allocated", "fewer kept references, a smaller batch", True
            )
        ]
    workspaces = allocator.number("workspace_bytes") or 0.0
    others = allocator.number("other_model_bytes") or 0.0
    known = [int(size) if not isinstance(size, Unknown) else 0 for size in sizes]
    found = categories(live, known[0], known[2], known[1], int(workspaces), int(others))
    by_category = {
        "parameters": found.parameters,
        "optimizer state": found.optimizer_state,
        "gradients": found.gradients,
    }
    parts = [
        Part(
            name,
            "allocated",
            size if isinstance(size, Unknown) else by_category[name],
            "allocated",
            free_by,
            about=found.cut and name == "gradients",
        )
        for (name, _, free_by), size in zip(COUNTED, sizes, strict=True)
    ]
    if others:
        parts.append(Part(OTHER_MODELS, "allocated", found.other_models, "allocated", AWAY))
        names = allocator.reading("other_models")
        if isinstance(names, str):
            notes.append(
                f"other models, which no optimizer trains: {rewrite_sizes(names, bytes_text)}"
            )
    if any(isinstance(size, Unknown) for size in sizes):
        parts.append(Part("uncategorized", "allocated", found.rest, "allocated", LESS))
    else:
        parts.append(
            Part(REST, "allocated", found.rest, "allocated", LESS, about=found.gradients > 0)
        )
        if found.cut:
            notes.append("gradients were counted after the step; part of them is freed by now")
    if workspaces:
        parts.append(Part(WORKSPACES, "allocated", found.workspaces, "allocated", about=True))
    return parts


def _cached(trainer: TrainerView | None, whole: Split, notes: list[str]) -> list[Part]:
    """What is reserved and not allocated."""
    cached = whole.awaiting + whole.inactive_split + whole.releasable + whole.pool_idle
    expandable = expandable_segments(trainer)
    cure = "expandable_segments:True in the next run"
    if expandable:
        cure = ""
        notes.append(
            "expandable segments: idle pages inside them count as releasable, though only whole "
            "free pages can be returned; inactive split excludes them"
        )
    elif expandable is None and whole.inactive_split == 0 and cached:
        notes.append(
            "this probe does not say whether expandable segments are on: inactive split excludes "
            "them"
        )
    parts = [
        Part("cached", "cached", cached),
        Part(
            "releasable",
            "cached",
            whole.releasable,
            "cached",
            "torch.cuda.empty_cache()",
            True,
            bool(expandable),
        ),
        Part("inactive split", "cached", whole.inactive_split, "cached", cure),
    ]
    if whole.pool_idle:
        cure = "drop CUDA graphs that are no longer replayed: fewer captured shapes"
        parts.append(
            Part("private pools, idle", "cached", whole.pool_idle, "cached", cure, True, True)
        )
    if whole.awaiting:
        parts.append(Part("awaiting free", "cached", whole.awaiting, "cached"))
    return parts


def expandable_segments(trainer: TrainerView | None) -> bool | None:
    """Tell whether the allocator was started with expandable segments.

    None where the probe does not say.
    """
    settings = trainer.definition.allocator_settings if trainer else None
    return None if settings is None else grows_segments(settings)


# ── the device around it ──


def account(host: HostView, device: DeviceView, allocator: AllocView | None) -> Account:
    """Return the rows of a device and their total, always in one order.

    They are ordered by kind, because sizes rise and fall within a step. ``allocator`` is that of
    the trainer looked at, None where none has a probe.

    A process's bytes are read after the card's: while they grow, the rows end at the total all the
    same.
    """
    used = _size(device, "used_bytes")
    trainer = trainer_of(host, allocator) if allocator else None
    parts, notes = inside_torch(trainer, allocator) if allocator else ([], [])
    held = sum(part.known for part in parts if not part.inside)
    room = max(0.0, used - held) if not isinstance(used, Unknown) else float("inf")
    own = next(
        (u for u in device.uses if trainer and u.process == trainer.process and u.gone is None),
        None,
    )
    others = [u for u in device.uses if u.gone is None and u is not own]
    if allocator and (own is None or own.number("used_bytes") is None):
        parts += _outside_and_others(host, own, room, notes)
        room = 0.0
    else:
        if own is not None and allocator:
            outside = max(0.0, min((own.number("used_bytes") or 0.0) - held, room))
            room -= outside
            parts.append(Part("outside torch", "outside", outside))
        others_parts, room = _others(host, others, room, notes)
        parts += others_parts
    if not isinstance(used, Unknown) and room > min(TOLERATED_BYTES, used * TOLERATED_SHARE):
        parts.append(_nobodys(host, device, room))
    notes += _skew(device, own, allocator)
    driver = device.reading("driver_reserved_bytes")
    reserve = [Part("driver reserve", "driver", driver)] if isinstance(driver, (int, float)) else []
    return Account(parts, used, reserve, notes)


def _outside_and_others(
    host: HostView, own: UseView | None, room: float, notes: list[str]
) -> list[Part]:
    """Return one row for all that is not torch's.

    It is for where the driver does not say what the trainer's own process holds.
    """
    why = _why_unknown(host, own)
    notes.append(f"outside torch and other processes are one row: {why.text}")
    return [
        Part("others and outside torch", "other", room if room != float("inf") else why, about=True)
    ]


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
) -> tuple[list[Part], float]:
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
                Part("other processes", "other", why if isinstance(why, Unknown) else NOT_SENT)
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
        parts.append(Part(owner, "other", size, "other processes"))
    if len(listed) > named:
        rest = min(sum(size for size, _ in listed[named:]), left)
        left -= rest
        parts.append(Part(f"{len(listed) - named} more", "other", rest, "other processes"))
    if untold:
        parts.append(Part(f"{len(untold)} unknown", "other", left, "other processes", about=True))
    ask = parts[0].name if listed else ""
    outer = Part(
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


def _distinct(parts: list[Part]) -> list[Part]:
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
        script = (trainer.definition.script or "").rsplit("/", 1)[-1]
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


def _nobodys(host: HostView, device: DeviceView, room: float) -> Part:
    """Return what is used on the card although no process is known to hold it."""
    if host.definition.container and unowned_on(device):
        return Part("owners hidden by the container", "other", room)
    if device.number("driver_reserved_bytes") is None:
        return Part("driver, unattributed", "driver", room)
    return Part("unattributed", "driver", room)


def _skew(device: DeviceView, own: UseView | None, allocator: AllocView | None) -> Iterable[str]:
    """Say how far apart the readings that are compared were taken.

    It says so only if that is more than the readings' own interval.
    """
    entities: list[Entity] = [device, *(one for one in (own, allocator) if one is not None)]
    moments = [one.sampled_seconds for one in entities if one.sampled_seconds is not None]
    apart = max(moments, default=0.0) - min(moments, default=0.0)
    if allocator is not None and apart > SKEW_SECONDS:
        yield (
            f"rows outside torch are approximate: allocator and driver were read "
            f"{duration_text(apart)} apart"
        )


def on_cpu(allocator: AllocView) -> list[Part]:
    """Return only what the probe counted, because torch has no caching allocator for the CPU."""
    tokens = ("allocated", "outside", "cached")
    return [
        Part(n, token, _size(allocator, c))
        for (n, c, _), token in zip(COUNTED, tokens, strict=True)
    ]


# ── advice ──


def largest_freeable(parts: list[Part], now: bool = False, before: str = "") -> Part | None:
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


def _size(entity: AllocView | DeviceView, column: str) -> float | Unknown:
    reading = entity.reading(column)
    return NOT_SENT if isinstance(reading, str) else reading
