"""Judge what state a device is in, and give the reason in words.

It is healthy, slowed, full, free, idle, lost or hung.

Every screen, verb and rule asks here, so that no two of them disagree about a GPU. Most functions
take a device's ``readings`` by column, so that the picture of one look can be judged like a device
of the store.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ..collect.clock_events import SLOWED_CLOCK_EVENTS, clock_event_words
from ..collect.unowned import unowned_bytes as unowned_bytes
from ..store.view import (
    NOT_SENT,
    DeviceView,
    HistoryOf,
    HostView,
    ProcView,
    UseView,
    no_history,
)
from ..text.units import bytes_text
from ..wire.frames import (
    DEVICE_COLUMNS,
    DRIVER_ERROR,
    HIDDEN_BY_CONTAINER,
    LOST,
    TIMEOUT,
    GpuDef,
    Reading,
    Unknown,
)
from .device_trainings import filling, hang, is_steady, starvation, tensor_idle
from .memory_room import alarm

Readings = Mapping[str, Reading]
"""A device's last readings by column of ``DEVICE_COLUMNS``."""
Kind = Literal["ok", "idle", "shared", "warn", "bad"]

NEARLY_FULL = 0.95
"""The share of a device's memory from which use is drawn in the colour of a warning."""
FULL = 0.97
"""The share of a device's memory from which its state is "full": the next allocation may fail."""
HANGS = frozenset(("stalled", "spinning", "waits"))
"""States of a device whose job hangs."""
NO_PROGRESS = HANGS | {"input-bound"}
"""States in which the load of a device is no progress, however high it is."""
OF_TRAININGS = NO_PROGRESS | {"tensor idle", "filling"}
"""States of a device that is well itself, and whose training is not."""
IDLE_PERCENT = 1.0
"""Below this utilisation no kernel runs, because NVML reports whole percents."""


@dataclass(frozen=True, slots=True)
class DeviceState:
    """The state of a device.

    ``kind`` says how grave it is, ``word`` what it is, ``reason`` why ("" when there is nothing to
    explain).

    Bad: no program can rely on the device. Warn: it works, and somebody should know.

    ``urgent`` says of a device that works that its training stands still or ends here if nobody
    acts. Screens draw that as grave as a device that is lost.
    """

    kind: Kind
    word: str
    reason: str = ""
    urgent: bool = False


# ── what is wrong, by the readings alone ──


def silence(readings: Readings) -> DeviceState | None:
    """Why the device does not answer, None where it does.

    Lost: NVML says of any reading that the device cannot be reached any more
    (NVML_ERROR_GPU_IS_LOST), which only a reset or a reboot ends. Hung: the driver's call for its
    memory or its load has not returned.
    """
    for reading in readings.values():
        if isinstance(reading, Unknown) and reading.code == LOST:
            return DeviceState("bad", "lost", reading.text)
    for column in ("used_bytes", "utilization_percent"):
        vital = readings.get(column)
        if isinstance(vital, Unknown) and vital.code == TIMEOUT:
            return DeviceState("bad", "hung", vital.text)
    memory = readings.get("used_bytes", NOT_SENT)
    if not isinstance(memory, Unknown):
        return None
    untold = all(isinstance(readings.get(column), Unknown) for column in DEVICE_COLUMNS)
    if memory.code == DRIVER_ERROR and untold:
        return DeviceState("bad", "failed", memory.text)
    return DeviceState("warn", "unknown", memory.text)


def mute(device: DeviceView) -> DeviceState | None:
    """Return the state of a device that gives no readings, None for one that gives some.

    What was read of it before is not of now.
    """
    if device.gone:
        return DeviceState("bad", "gone", device.gone.reason)
    silent = silence(device.readings)
    return silent if silent is not None and silent.kind == "bad" else None


def hardware_faults(
    ecc_uncorrected: float | None,
    remap_failed: bool | None,
    remap_pending: bool | None,
    pages_pending: bool | None,
) -> list[DeviceState]:
    """Return what is wrong with the memory of a card, the most severe first.

    None means that the driver does not report it.

    The count of uncorrected errors is NVML's volatile one, which begins at 0 each time the driver
    is loaded. Such an error ends the program that meets it. The card goes on working, and the row
    is replaced at the next reset: that is a warning. A row that could not be replaced leaves the
    card with memory that fails: no program can rely on it.
    """
    faults = []
    if remap_failed:
        text = "a bad memory row could not be remapped: have the GPU checked"
        faults.append(DeviceState("bad", "remap failed", text))
    if ecc_uncorrected:
        text = f"{ecc_uncorrected:.0f} uncorrected memory errors (ECC) since the driver was loaded"
        faults.append(DeviceState("warn", "ECC", text))
    if remap_pending:
        text = (
            "a memory row is remapped at the next reset: stop what runs on it, "
            "nvidia-smi --gpu-reset"
        )
        faults.append(DeviceState("warn", "remap due", text))
    if pages_pending:
        text = "a memory page is retired at the next reset: stop what runs on it, then reset it"
        faults.append(DeviceState("warn", "retire due", text))
    return faults


def faults_of(readings: Readings) -> list[DeviceState]:
    """:func:`hardware_faults` by a device's readings."""

    def flag(column: str) -> bool | None:
        value = _number(readings, column)
        return None if value is None else bool(value)

    return hardware_faults(
        _number(readings, "ecc_uncorrected_count"),
        flag("remap_failed"),
        flag("remap_pending"),
        flag("retired_pages_pending"),
    )


def slowed(readings: Readings) -> tuple[str, ...]:
    """Return what holds the clock down that should not, in words.

    That is heat, the power supply, or the board's protection.

    A GPU at its power limit is not slowed: that is how one works that is busy with matrix products.
    """
    mask = _number(readings, "clock_event_reasons")
    return clock_event_words(int(mask) & SLOWED_CLOCK_EVENTS) if mask is not None else ()


def full(definition: GpuDef, readings: Readings) -> str:
    """Say how little memory is left if the device is full, else ""."""
    used, total = _number(readings, "used_bytes"), definition.total_bytes
    if used is None or not total or used <= FULL * total:
        return ""
    free = _number(readings, "free_bytes")
    return (
        f"{bytes_text(max(0.0, total - used) if free is None else free)} free of "
        f"{bytes_text(total)}"
    )


def troubles(definition: GpuDef, readings: Readings) -> Iterator[DeviceState]:
    """Everything that is wrong with a device, the most important first."""
    silent = silence(readings)
    if silent is not None:
        yield silent
        return
    yield from faults_of(readings)
    little = full(definition, readings)
    if little:
        yield DeviceState("warn", "full", little)
    reasons = slowed(readings)
    if reasons:
        clock, best = _number(readings, "sm_clock_mhz"), definition.max_sm_clock_mhz
        at = f": {clock:.0f} of {best} MHz" if clock is not None and best else ""
        yield DeviceState("warn", "throttled", ", ".join(reasons) + at)


# ── who holds it ──


def unowned(readings: Readings, held: Sequence[Reading]) -> float | None:
    """Return the bytes in use that none of the named processes holds.

    0 where they are too few to say so (see ``collect.unowned``). None where it cannot be known.
    ``held``: what each process on the device holds.
    """
    used = _number(readings, "used_bytes")
    sizes = [None if isinstance(size, Unknown) else float(size) for size in held]
    return (
        None
        if used is None
        else unowned_bytes(used, sizes, _number(readings, "driver_reserved_bytes") is not None)
    )


def unaccounted(readings: Readings, held: Sequence[Reading]) -> float | None:
    """The same difference however small it is, and never below 0."""
    used = _number(readings, "used_bytes")
    known = [float(size) for size in held if not isinstance(size, Unknown)]
    return None if used is None or len(known) < len(held) else max(0.0, used - sum(known))


def held_on(device: DeviceView) -> list[Reading]:
    """Return what each living process on a device holds."""
    return [use.reading("used_bytes") for use in device.uses if use.gone is None]


def list_gap(device: DeviceView) -> Unknown | None:
    """Say why the driver's list of the processes on a device is missing or not whole.

    None where it is whole.
    """
    return device.unknown("processes")


def listed_on(device: DeviceView) -> tuple[UseView, ...] | None:
    """Return the users of a device, None if the driver gives no list.

    A list is there, and may be empty, where it only leaves out processes of which the driver tells
    no pid in this container.
    """
    uses, gap = tuple(use for use in device.uses if use.gone is None), list_gap(device)
    return uses if uses or gap is None or gap.code == HIDDEN_BY_CONTAINER else None


def unowned_on(device: DeviceView, used: float | None = None) -> float | None:
    """Return :func:`unowned` of a device of the store. ``used`` replaces its own reading."""
    readings = device.readings if used is None else {**device.readings, "used_bytes": used}
    return unowned(readings, held_on(device))


def is_idle(readings: Readings) -> bool | None:
    """Tell whether no kernel runs.

    None where the driver does not tell (as for a GPU that is split by MIG).
    """
    load = _number(readings, "utilization_percent")
    return None if load is None else load < IDLE_PERCENT


def state_of(definition: GpuDef, readings: Readings, held: Sequence[Reading]) -> DeviceState:
    """Return the state of a device by its own readings.

    It is the first thing that is wrong, else free, idle or ok.

    Free: nobody is on it, what is in use is nobody's, and no kernel runs as far as the driver
    tells.
    """
    trouble = next(troubles(definition, readings), None)
    return _at_rest(readings, held) if trouble is None else trouble


def state_on(device: DeviceView) -> DeviceState:
    """Return the state of a device where nothing is known of the trainings on it.

    It is :func:`state_of` a device of the store.
    """
    return state_of(device.definition, device.readings, held_on(device))


def _at_rest(readings: Readings, held: Sequence[Reading]) -> DeviceState:
    idle = is_idle(readings)
    if not held and idle is not False and unowned(readings, held) == 0:
        return DeviceState("idle", "free")
    return DeviceState("idle", "idle") if idle else DeviceState("ok", "ok")


# ── with what the host knows of its trainings ──


def judge(host: HostView, device: DeviceView, history: HistoryOf = no_history) -> DeviceState:
    """Return the state of a device as part of its host.

    It is that of :func:`state_of`, and whether its training hangs, runs out of memory soon,
    starves, leaves the tensor cores idle, is steady, or shares the device. By ``history`` what a
    single reading shows is no state.
    """
    if device.gone:
        return DeviceState("bad", "gone", device.gone.reason)
    found = list(troubles(device.definition, device.readings))
    if found and found[0].word == "unknown" and device.sampled_seconds is None:
        return DeviceState("idle", "waiting", found[0].reason)
    steady = [one for one in found if one.word == "full" and is_steady(host, device)]
    for one in found:
        if one.kind == "bad":
            return one
    hung = hang(host, device)
    if hung is not None:
        return DeviceState("warn", *hung, urgent=hung[0] == "stalled")
    room = filling(host, device, history)
    if room is not None and room.runs_out is not None:
        when = ", ".join(filter(None, (room.runs_out.time_text, room.runs_out.steps_text)))
        return DeviceState(
            "warn", "filling", f"out of memory in {when}", urgent=alarm(room) == "bad"
        )
    for one in found:
        if one not in steady:
            return one
    starved = starvation(host, device, history)
    if starved:
        return DeviceState("warn", "input-bound", starved)
    wasted = tensor_idle(host, device, history)
    if wasted is not None:
        return DeviceState("warn", "tensor idle", wasted.text)
    names = owners(host, device)
    if len(names) > 1:
        mine = {p.definition.user for p in processes_on(host, device) if p.definition.mine}
        return DeviceState(
            "shared", "shared", ", ".join(text for user, text in names.items() if user not in mine)
        )
    state = _at_rest(device.readings, held_on(device))
    return (
        DeviceState("ok", "full", f"steady, {steady[0].reason}")
        if steady and state.word == "ok"
        else state
    )


def broken(device: DeviceView) -> DeviceState | None:
    """Return the state of a device that no program can rely on, None for any other.

    It is that of :func:`judge`, which looks at more.
    """
    return mute(device) or next(
        (one for one in troubles(device.definition, device.readings) if one.kind == "bad"), None
    )


def owners(host: HostView, device: DeviceView) -> dict[str, str]:
    """Return who holds memory of a device.

    Each user comes with the names of the programs: ``{"lin": "lin (jupyter)"}``.
    """
    names: dict[str, list[str]] = {}
    for process in processes_on(host, device):
        title = process.definition.name or f"pid {process.definition.pid}"
        names.setdefault(process.definition.user or "someone", []).append(title)
    return {
        user: f"{user} ({', '.join(dict.fromkeys(programs))})" for user, programs in names.items()
    }


def processes_on(host: HostView, device: DeviceView) -> list[ProcView]:
    """The living processes that use a device."""
    using = {u.process for u in device.uses if u.gone is None}
    return [p for p in host.processes if p.id in using and p.gone is None]


def _number(readings: Readings, column: str) -> float | None:
    value = readings.get(column)
    return value if isinstance(value, (int, float)) else None
