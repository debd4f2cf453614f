"""Make waterfalls of the bytes on a device, of the account that the Memory tab shows."""

from __future__ import annotations

from collections.abc import Sequence

from ..model.allocator_account import AccountRow, inside_torch, on_cpu
from ..model.fullest_account import WORTH_SAYING_BYTES, account_at_the_fullest
from ..model.memory_account import Account, largest_freeable
from ..model.memory_layers import of_the_card
from ..model.ranks import name_of
from ..model.reading_age import OLD
from ..store.view import AllocView, DeviceView, HistoryOf, HostView, JobView, TrainerView
from ..text.units import DASH, bytes_text, window_text
from ..wire.frames import Unknown
from .content import BarRow, Table, Waterfall

SOURCE = "torch's allocator through the probe, NVML"
ON_A_CPU = "On a CPU torch has no caching allocator and keeps no statistics."


def waterfall(
    host: HostView,
    trainer: TrainerView | None,
    device: DeviceView | None,
    allocator: AllocView,
    history: HistoryOf,
) -> Waterfall:
    """Return where the bytes of the device of an allocator are."""
    ordinal = allocator.definition.ordinal
    if device is not None:
        found, _, seconds = account_at_the_fullest(host, device, allocator, history)
        title = f"{device_name(device)} (cuda:{ordinal})"
        if seconds >= 1:
            title += f": the fullest moment of {window_text(round(seconds))}"
        notes = [of_the_card(device), *_advice(found), *found.notes]
        return of_account(title, found, "used (= nvidia-smi)", notes)
    if ordinal >= 0:
        parts, notes = inside_torch(trainer, allocator)
        why = "Which GPU this is, and what else uses it, is unknown here."
        return of_account(f"cuda:{ordinal}", _added(parts), "in torch", [*notes, why])
    parts = on_cpu(allocator)
    reasons = [part.size.text for part in parts if isinstance(part.size, Unknown)]
    if len(reasons) == len(parts):
        why = f"Parameters, optimizer state and gradients are unknown: {reasons[0]}."
        return Waterfall("CPU", [], None, [ON_A_CPU, why])
    return of_account("CPU, as far as the probe counts", _added(parts), "known", [ON_A_CPU])


def of_account(title: str, found: Account, whole: str, notes: Sequence[str]) -> Waterfall:
    """Return an account as a waterfall; ``whole`` names its total."""
    known = not isinstance(found.total, Unknown)
    scale = float(found.total) if isinstance(found.total, (int, float)) else 0.0
    scale = scale or max((part.known for part in found.parts), default=0.0)

    def bar(part: AccountRow) -> BarRow:
        if isinstance(part.size, Unknown):
            why = part.size.text
            value = f"{DASH} ({why})" if part.size.code == OLD else f"unknown: {why}"
            return BarRow(part.name, value, None, "", bool(part.inside))
        about = "≈ " if part.about else ""
        share = part.known / scale if scale else None
        value = about + bytes_text(part.size)
        return BarRow(part.name, value, share, part.token, bool(part.inside))

    text = found.total.text if isinstance(found.total, Unknown) else bytes_text(found.total)
    total = BarRow(whole, text, 1.0 if known and scale else None)
    others = [f"{part.name}: {bytes_text(part.known)}" for part in found.beside]
    bars = [bar(part) for part in found.parts]
    return Waterfall(title, bars, total, [*notes, *others], source=SOURCE)


def device_name(device: DeviceView) -> str:
    """Return the index and the model of a device."""
    return f"GPU {device.definition.index} {device.definition.name or ''}".rstrip()


def of_job(host: HostView, job: JobView, history: HistoryOf) -> list[tuple[str, Waterfall]]:
    """Return the waterfalls of the devices that a job uses, the fullest first.

    Each comes with the name of its rank.
    """
    devices = {device.id: device for device in host.devices}
    found: list[tuple[float, str, Waterfall]] = []
    for trainer in job.trainers:
        for allocator in trainer.allocators:
            if trainer.gone is None and allocator.gone is None:
                device = devices.get(allocator.gpu) if allocator.gpu is not None else None
                held = allocator.number("reserved_bytes") or 0.0
                table = waterfall(host, trainer, device, allocator, history)
                found.append((held, name_of(trainer), table))
    found.sort(key=lambda one: -one[0])
    return [(name, table) for _, name, table in found]


def side_by_side(found: Sequence[tuple[str, Waterfall]], title: str, when: str) -> Table | None:
    """Return the rows of several waterfalls as columns of a table, None for a single one."""
    if len(found) < 2:
        return None
    names = dict.fromkeys(bar.label for _, table in found for bar in table.bars if not bar.inside)
    rows = []
    for rank, table in found:
        values = {bar.label: bar.value for bar in table.bars}
        total = table.total.value if table.total is not None else DASH
        device = table.title.partition(": ")[0]
        rows.append([rank, device, *(values.get(name, DASH) for name in names), total])
    head = ("Rank", "Device", *names, "used")
    right = range(2, len(head))
    return Table(title, head, rows, right, source=SOURCE, when=when, folded=len(rows) > 16)


def _added(parts: list[AccountRow]) -> Account:
    return Account(parts, sum(part.known for part in parts if not part.inside))


def _advice(found: Account) -> list[str]:
    largest = largest_freeable(found.parts)
    if largest is None:
        return [f"Nothing of {bytes_text(WORTH_SAYING_BYTES)} or more to free."]
    amount = bytes_text(largest.known)
    return [f"Biggest saving: {largest.name}, {amount}: {largest.free_by}."]
