"""Tell which GPU a process calls ``cuda:0``.

CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER are read against NVML's order.

CUDA's documentation says that the variable lists numbers or beginnings of UUIDs, that unset means
all GPUs, and that everything after an entry that is no GPU is hidden too. It does not say how odd
entries are read. For those this module follows torch, whose developers compared their rules with
the driver, and a test compares this module with torch:

- A list that begins with ``GPU-`` holds UUIDs as NVML writes them, upper and lower case apart, and
  no spaces. Any other is a list of numbers: ``1gpu`` is GPU 1, ``+1`` too, and ``gpu-1a`` is no
  GPU.
- An entry that names a GPU again leaves no GPU at all, and so does one that repeats a number which
  no GPU has.
- ``-1``, words and empty entries end the list.

Numbers count in the order of CUDA_DEVICE_ORDER. PCI_BUS_ID is NVML's. FASTEST_FIRST, the default,
puts the fastest first and says nothing of the others, which among like GPUs is seen to be NVML's
order too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..store.view import DeviceView
from ..wire.frames import NOT_SUPPORTED, GpuDef, Unknown

VISIBLE, ORDER = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"
MAX_ENTRIES = 256
_NUMBER = re.compile(r"[+-]?[0-9]+")
_MAX_DIGITS = 18


@dataclass(frozen=True, slots=True)
class Visible:
    """The GPUs that a value of CUDA_VISIBLE_DEVICES shows, as positions in CUDA's order."""

    positions: tuple[int, ...]
    by_number: bool = True
    """Whether the list names GPUs by CUDA's numbers, which may not be NVML's."""
    stopped_at: str | None = None
    """The entry that is no GPU, after which CUDA stops reading; None if there is none."""
    repeated: str | None = None
    """The entry that repeats a GPU, so that CUDA shows none at all; None if there is none."""
    mig: bool = False
    """Whether the list names MIG instances, about which nothing is known here."""


def visible(value: str | None, uuids: Sequence[str]) -> Visible:
    """Return what a process sees that was started with this value, None for unset.

    ``uuids``: of the host's GPUs by number.
    """
    if value is None:
        return Visible(tuple(range(len(uuids))))
    entries = value.split(",")[:MAX_ENTRIES]
    if value.startswith("MIG-"):
        return Visible((), by_number=False, mig=True)
    if value.startswith("GPU-"):
        return _by_uuid(entries, uuids)
    return _by_number([entry.strip() for entry in entries], len(uuids))


def _by_number(entries: Sequence[str], count: int) -> Visible:
    numbers: list[int] = []
    stopped_at = None
    for entry in entries:
        number = _leading_number(entry)
        if number < 0:
            stopped_at = entry
            break
        if number in numbers:
            return Visible((), repeated=entry)
        numbers.append(number)
    missing = next((place for place, number in enumerate(numbers) if number >= count), None)
    if missing is not None:
        return Visible(tuple(numbers[:missing]), stopped_at=entries[missing])
    return Visible(tuple(numbers), by_number=bool(numbers), stopped_at=stopped_at)


def _leading_number(entry: str) -> int:
    """Return the number at the begin of an entry, or -1 if there is none."""
    match = _NUMBER.match(entry)
    if match is None:
        return -1
    return int(match[0]) if len(match[0]) <= _MAX_DIGITS else 10**_MAX_DIGITS


def _by_uuid(entries: Sequence[str], uuids: Sequence[str]) -> Visible:
    listed: list[str] = []
    stopped_at = None
    for entry in entries:
        if entry in listed:
            return Visible((), by_number=False, repeated=entry)
        if not entry.startswith("GPU-"):
            stopped_at = entry
            break
        listed.append(entry)
    found: list[int] = []
    for entry in listed:
        matching = [position for position, uuid in enumerate(uuids) if uuid.startswith(entry)]
        if len(matching) != 1:
            stopped_at = entry
            break
        if matching[0] in found:
            return Visible((), by_number=False, repeated=entry)
        found += matching
    return Visible(tuple(found), by_number=False, stopped_at=stopped_at)


def names_by_number(environment: Mapping[str, str]) -> bool:
    """Whether a process with this environment is given GPUs by CUDA's numbers."""
    return visible(environment.get(VISIBLE), ()).by_number


def order_known(names: Collection[str | None], environment: Mapping[str, str]) -> bool:
    """Tell whether it can be known which devices a process sees.

    By UUID it always can, by number where CUDA's order is NVML's.
    """
    return (
        len(set(names)) <= 1
        or environment.get(ORDER) == "PCI_BUS_ID"
        or not names_by_number(environment)
    )


def visible_devices(
    devices: Sequence[DeviceView], environment: Mapping[str, str] = os.environ
) -> list[DeviceView]:
    """Return the devices of a host that a process with this environment sees.

    They are in CUDA's order as far as that is known. Where :func:`order_known` is false they are
    only candidates.
    """
    here = _living(devices)
    shown = visible(environment.get(VISIBLE), [one.definition.uuid for one in here])
    return [here[position] for position in shown.positions]


def visible_in_order(
    devices: Sequence[DeviceView], environment: Mapping[str, str] = os.environ
) -> list[DeviceView] | None:
    """Return :func:`visible_devices`; None where their order is unknown.

    CUDA numbers GPUs of different kinds by their speed.
    """
    names = [one.definition.name for one in _living(devices)]
    return visible_devices(devices, environment) if order_known(names, environment) else None


def _living(devices: Sequence[DeviceView]) -> list[DeviceView]:
    here = (device for device in devices if device.gone is None)
    return sorted(here, key=lambda device: device.definition.index)


class Ordinal(NamedTuple):
    """The device behind ``cuda:<number>``."""

    number: int
    gpu: GpuDef


def ordinals(environment: Mapping[str, str], gpus: Sequence[GpuDef]) -> list[Ordinal] | Unknown:
    """Return the GPUs that a process with this environment sees, by its own numbers; [] for none.

    ``gpus``: those of its host, as NVML reports them to another process there.
    """
    ranked = sorted(gpus, key=lambda gpu: gpu.index)
    if not order_known([gpu.name for gpu in gpus], environment):
        return Unknown(
            NOT_SUPPORTED,
            f"the GPUs differ, and CUDA numbers the fastest first: only {ORDER}=PCI_BUS_ID makes "
            "its numbers NVML's",
        )
    shown = visible(environment.get(VISIBLE), [gpu.uuid for gpu in ranked])
    if shown.mig:
        return Unknown(NOT_SUPPORTED, f"{VISIBLE} names a MIG instance, not a GPU")
    return [Ordinal(number, ranked[position]) for number, position in enumerate(shown.positions)]
