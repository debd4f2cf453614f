"""The card of ``gpuscope predict``: by name, by size, or the one that is here."""

from __future__ import annotations

import argparse
import re
from dataclasses import replace
from difflib import get_close_matches

from ....errors import UsageError
from ....lab.toggles import BY_NAME
from ....model.cuda_devices import visible_in_order
from ....predict import gpus
from ....predict.answer import REFERENCE, Card
from ....store.view import DeviceView
from ....text.units import GIB, MIB
from ....wire.clean import clean
from ..lab import devices as lab_devices

_NOTED_BYTES = 256 * MIB
"""Memory in use above which other processes are mentioned; less is the driver's own."""


def card(args: argparse.Namespace) -> Card | None:
    """Return the card that ``--gpu`` and ``--capacity`` name.

    Without them it is the first GPU of this host, or None on a host without a GPU. Raises
    :class:`UsageError`.
    """
    size: int | None = args.capacity
    known = gpus.find_gpu(args.gpu) if args.gpu is not None else None
    # 4090 is the name of a card, 0 is an index, and no host has a GPU 4091.
    is_index = known is None and re.fullmatch(r"[0-9]{1,3}", args.gpu or "") is not None
    if args.gpu is not None and not is_index:
        if known is None:
            near = get_close_matches(args.gpu[:60].lower(), gpus.keys().split(", "), 1, 0.5)
            raise UsageError(
                f"--gpu {clean(args.gpu, 60)}: no such GPU in the table."
                + (f" Did you mean {near[0]}?" if near else ""),
                next=f"--capacity 24GiB for any other; the table has {gpus.keys()}",
            )
        return Card(known.key, known.key, size or known.total_bytes, known.architecture)
    if size is not None and args.gpu is None:
        return replace(REFERENCE, name=f"a GPU of {size / GIB:.4g} GiB", total_bytes=size)
    here = _here()
    if args.gpu is not None:
        found = next((one for one in here if one.definition.index == int(args.gpu)), None)
        if found is None:
            raise UsageError(
                f"--gpu {args.gpu}: this host has no such GPU; for another GPU: --gpu h200"
            )
        return of_device(found, size)
    return of_device(here[0], size) if here else None


def ranks(args: argparse.Namespace, known: int | None = None) -> int | None:
    """Return among how many ranks a model may be divided: ``--nproc``, else the known ones.

    Otherwise they are as many as this host has GPUs; None if it has none.
    """
    given = BY_NAME["nproc"].parse(args.nproc)
    return given if isinstance(given, int) else known or len(_here()) or None


_seen: list[list[DeviceView]] = []


def _here() -> list[DeviceView]:
    """The GPUs that a trainer started here would see; asked once."""
    if not _seen:
        host = lab_devices.look()
        visible = visible_in_order(host.devices)
        _seen.append(list(host.devices) if visible is None else visible)
    return [one for one in _seen[0] if one.definition.total_bytes]


def of_device(device: DeviceView, size: int | None = None) -> Card:
    """Return a GPU that is there as the card of a prediction; ``size`` in place of its own."""
    definition = device.definition
    name = clean(definition.name or "GPU", 60)
    known = gpus.find_gpu(name)
    capability = definition.compute_capability or (
        known.architecture if known else REFERENCE.architecture
    )
    used, driver = device.readings.get("used_bytes"), device.readings.get("driver_reserved_bytes")
    total = size or definition.total_bytes or 0
    return Card(
        f"{name} (GPU {definition.index})",
        name,
        total,
        capability,
        int(used) if isinstance(used, int) and used > _NOTED_BYTES else None,
        int(driver) if isinstance(driver, int) else None,
    )
