"""Which GPU is free, and who holds the others: for the text of one look."""

from __future__ import annotations

from collections.abc import Iterator

from ..agent.picture import DevicePicture, Picture
from ..wire.clean import clean
from .plain import GIB

EMPTY_BYTES, IDLE_PERCENT = 1 << 30, 1.0
MAX_HOLDERS = 4


def is_free(device: DevicePicture) -> bool:
    """Nobody is on it and nothing runs on it, as far as the driver tells."""
    used, load = device.readings.get("used_bytes"), device.readings.get("utilization_percent")
    empty = isinstance(used, int) and used < EMPTY_BYTES and not device.processes
    return empty and (not isinstance(load, (int, float)) or load < IDLE_PERCENT) and device.late is None


def lines(picture: Picture) -> Iterator[str]:
    """``free  GPU 2, 5: 139.8 GiB`` and ``held  GPU 0: lin pid 51120 21.6 GiB``."""
    rooms: dict[str, list[int]] = {}
    for device in picture.devices:
        free = device.readings.get("free_bytes")
        if is_free(device) and isinstance(free, int):
            rooms.setdefault(f"{free / GIB:.1f} GiB", []).append(device.definition.index)
    for room, indices in rooms.items():
        yield f"free  GPU {', '.join(map(str, indices))}: {room}{' each' if len(indices) > 1 else ''}"
    for device in picture.devices:
        holders = _holders(picture, device)
        if holders:
            yield f"held  GPU {device.definition.index}: {holders}"


def _holders(picture: Picture, device: DevicePicture) -> str:
    parts = []
    for pid, used in (device.processes or [])[:MAX_HOLDERS]:
        known = picture.processes.get(pid) if picture.hidden is None else None
        user = clean(known.definition.user, 32) if known is not None and known.definition.user else "someone's"
        size = f" {used / GIB:.1f} GiB" if isinstance(used, int) else ""
        parts.append(f"{user} pid {pid}{size}")
    more = len(device.processes or ()) - MAX_HOLDERS
    return ", ".join(parts) + (f" and {more} more" if more > 0 else "")
