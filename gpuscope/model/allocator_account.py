"""Say what torch's allocator uses a device's memory for: the inner rows of the waterfall.

They come from one statistics call and are exact (:mod:`gpuscope.model.allocator_split`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ..store.view import NOT_SENT, AllocView, DeviceView, TrainerView
from ..text.units import bytes_text
from ..wire.columns import rewrite_sizes
from ..wire.frames import NOT_SUPPORTED, Unknown
from .allocator_settings import grows_segments
from .allocator_split import COLUMNS, POOL_COLUMNS, Counters, Split, categories, split


@dataclass(frozen=True, slots=True)
class AccountRow:
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


REST_OF_PROCESS = "rest of the process"
"""On a CPU: the resident memory in which the probe has found no tensor of the training."""
NOT_ALL_RESIDENT = Unknown(NOT_SUPPORTED, "not all tensors are in its RSS")
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


def inside_torch(
    trainer: TrainerView | None, allocator: AllocView
) -> tuple[list[AccountRow], list[str]]:
    """Return a trainer's own rows on one device, and what is not exact.

    The rows are allocated and cached, with what they are made of.
    """
    allocated, reserved = (
        size_of(allocator, "allocated_bytes"),
        size_of(allocator, "reserved_bytes"),
    )
    if isinstance(allocated, Unknown) or isinstance(reserved, Unknown):
        why = allocated if isinstance(allocated, Unknown) else reserved
        return [
            AccountRow("allocated", "allocated", allocated),
            AccountRow("cached", "cached", why),
        ], []
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
    parts = [AccountRow("allocated", "allocated", whole.live + whole.rounding)]
    parts += _live(allocator, whole.live, notes)
    parts.append(
        AccountRow("rounding", "allocated", whole.rounding, "allocated", about=whole.error > 0)
    )
    if whole.error:
        notes.append(
            f"live tensors may hold up to {bytes_text(whole.error)} more: some blocks are "
            "waiting to be freed"
        )
    return parts + _cached(trainer, whole, notes), notes


def _unsplit(
    trainer: TrainerView | None, allocator: AllocView, allocated: float, reserved: float
) -> tuple[list[AccountRow], list[str]]:
    """Return the rows where the allocator keeps no finer figures.

    That is so for the driver's pool, or a torch that lacks a counter.
    """
    notes: list[str] = []
    parts = [
        AccountRow("allocated", "allocated", allocated),
        *_live(allocator, int(allocated), notes),
    ]
    parts.append(
        AccountRow(
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


def _live(allocator: AllocView, live: int, notes: list[str]) -> list[AccountRow]:
    """Return the rows of the live tensors, as far as the probe counted them."""
    sizes = [size_of(allocator, column) for _, column, _ in COUNTED]
    if all(isinstance(size, Unknown) for size in sizes):
        why = sizes[0]
        assert isinstance(why, Unknown)
        notes.append(f"live tensors are not divided by category: {why.text}")
        return [
            AccountRow(
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
        AccountRow(
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
        parts.append(AccountRow(OTHER_MODELS, "allocated", found.other_models, "allocated", AWAY))
        names = allocator.reading("other_models")
        if isinstance(names, str):
            notes.append(
                f"other models, which no optimizer trains: {rewrite_sizes(names, bytes_text)}"
            )
    if any(isinstance(size, Unknown) for size in sizes):
        parts.append(AccountRow("uncategorized", "allocated", found.rest, "allocated", LESS))
    else:
        parts.append(
            AccountRow(REST, "allocated", found.rest, "allocated", LESS, about=found.gradients > 0)
        )
        if found.cut:
            notes.append("gradients were counted after the step; part of them is freed by now")
    if workspaces:
        parts.append(AccountRow(WORKSPACES, "allocated", found.workspaces, "allocated", about=True))
    return parts


def _cached(trainer: TrainerView | None, whole: Split, notes: list[str]) -> list[AccountRow]:
    """Return the rows of what is reserved and not allocated."""
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
        AccountRow("cached", "cached", cached),
        AccountRow(
            "releasable",
            "cached",
            whole.releasable,
            "cached",
            "torch.cuda.empty_cache()",
            True,
            bool(expandable),
        ),
        AccountRow("inactive split", "cached", whole.inactive_split, "cached", cure),
    ]
    if whole.pool_idle:
        cure = "drop CUDA graphs that are no longer replayed: fewer captured shapes"
        parts.append(
            AccountRow("private pools, idle", "cached", whole.pool_idle, "cached", cure, True, True)
        )
    if whole.awaiting:
        parts.append(AccountRow("awaiting free", "cached", whole.awaiting, "cached"))
    return parts


def expandable_segments(trainer: TrainerView | None) -> bool | None:
    """Tell whether the allocator was started with expandable segments.

    None where the probe does not say.
    """
    settings = trainer.definition.allocator_settings if trainer else None
    return None if settings is None else grows_segments(settings)


def on_cpu(allocator: AllocView, rss_bytes: float | None = None) -> list[AccountRow]:
    """Return what the probe counted, because torch has no caching allocator for the CPU.

    Of a process whose resident memory is known, the rest of that has a row as well, once all that
    the probe counts is known. The rest is unknown where the tensors alone are more than that.
    """
    tokens = ("allocated", "series6", "cached")
    rows = [
        AccountRow(n, token, size_of(allocator, c))
        for (n, c, _), token in zip(COUNTED, tokens, strict=True)
    ]
    if rss_bytes is not None and not any(isinstance(row.size, Unknown) for row in rows):
        rest = rss_bytes - sum(row.known for row in rows)
        size = rest if rest >= 0 else NOT_ALL_RESIDENT
        rows.append(AccountRow(REST_OF_PROCESS, "driver", size))
    return rows


def size_of(entity: AllocView | DeviceView, column: str) -> float | Unknown:
    """Return a reading in bytes, or why it is unknown."""
    reading = entity.reading(column)
    return NOT_SENT if isinstance(reading, str) else reading


class PeakSizes(NamedTuple):
    """What is known in bytes of a trainer's peak since its start, for what fixes would free.

    ``workspaces`` are those of cuBLAS, 0 where there are none.
    """

    peak: int | None
    parameters: int | None
    gradients: int | None
    optimizer: int | None
    workspaces: int


NO_SIZES = PeakSizes(None, None, None, None, 0)


def peak_sizes(allocator: AllocView) -> PeakSizes:
    """Return the sizes that the probe has measured on one device."""

    def size(name: str) -> int | None:
        value = allocator.number(f"{name}_bytes")
        return None if value is None else int(value)

    return PeakSizes(
        size("peak_allocated"),
        size("parameter"),
        size("gradient"),
        size("optimizer_state"),
        size("workspace") or 0,
    )
