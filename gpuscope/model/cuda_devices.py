"""Which GPU a process calls ``cuda:0``: CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER against NVML's order.

By the CUDA programming guide: CUDA_VISIBLE_DEVICES lists numbers or beginnings of UUIDs, unset means all, and what
stands behind one that is not valid is hidden with it. The numbers count in the order of CUDA_DEVICE_ORDER: PCI_BUS_ID
is NVML's; FASTEST_FIRST, the default, puts the fastest first and says nothing of the others, which among like GPUs is
seen to be NVML's order too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..wire.frames import NOT_SUPPORTED, GpuDef, Unknown

VISIBLE, ORDER = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"
MAX_ORDINALS = 256


class Ordinal(NamedTuple):
    """What ``cuda:<number>`` is."""

    number: int
    gpu: GpuDef


def ordinals(environment: Mapping[str, str], gpus: Sequence[GpuDef]) -> list[Ordinal] | Unknown:
    """What a process with this environment sees, by its own numbers; [] where it sees none. ``gpus``: those of its
    host, as NVML tells them to a process beside it."""
    ranked = sorted(gpus, key=lambda gpu: gpu.index)
    visible = environment.get(VISIBLE)
    words = None if visible is None else [word.strip() for word in visible.split(",")][:MAX_ORDINALS]
    by_number = words is None or any(word[:1].isdigit() for word in words)
    if by_number and not _in_nvml_order(environment.get(ORDER), ranked):
        return Unknown(
            NOT_SUPPORTED,
            f"the GPUs differ, and CUDA numbers the fastest first: only {ORDER}=PCI_BUS_ID makes its numbers NVML's",
        )
    if words is None:
        chosen = list(ranked)
    else:
        chosen = []
        for word in words:
            if word.startswith("MIG-"):
                return Unknown(NOT_SUPPORTED, f"{VISIBLE} names an instance of MIG, not a GPU")
            one = _named(word, ranked)
            if one is None:
                break  # and what stands behind it is hidden, too
            chosen.append(one)
        if len({gpu.uuid for gpu in chosen}) < len(chosen):
            return []  # one named twice: CUDA finds no device then
    return [Ordinal(number, gpu) for number, gpu in enumerate(chosen)]


def _in_nvml_order(order: str | None, gpus: Sequence[GpuDef]) -> bool:
    return order == "PCI_BUS_ID" or len({gpu.name for gpu in gpus}) <= 1


def _named(word: str, gpus: Sequence[GpuDef]) -> GpuDef | None:
    if word.isdigit():
        return gpus[int(word)] if len(word) < 6 and int(word) < len(gpus) else None
    found = [gpu for gpu in gpus if len(word) > 4 and gpu.uuid.lower().startswith(word.lower())]
    return found[0] if len(found) == 1 else None
