"""Which GPU is free or full, who holds which, and since when nothing runs on them: for the text of one look."""

from __future__ import annotations

from collections.abc import Iterator

from ..agent.picture import DevicePicture, Picture
from ..model.device_state import DeviceState, full, state_of
from ..text.units import age_text, bytes_text
from ..wire.clean import clean
from ..wire.frames import NOT_INITIALISED, Reading, Unknown

MAX_HOLDERS = 4


def state(device: DevicePicture) -> DeviceState:
    """The state of a device by its own readings and the list of its processes."""
    return state_of(device.definition, device.readings, [size for _, size in device.processes or ()])


def idle_seconds(picture: Picture, device: DevicePicture) -> Reading:
    """For how long at least no kernel ran on it, 0.0 while one does."""
    since = device.readings.get("idle_since_seconds")
    if isinstance(since, (int, float)):
        return round(max(0.0, picture.seconds - since), 1) if since else 0.0
    return since if isinstance(since, Unknown) else Unknown(NOT_INITIALISED, "not told")


def _idle(picture: Picture, device: DevicePicture) -> str:
    """ " · idle ≥ 18 s", "" while a kernel runs or where it is not known."""
    seconds = idle_seconds(picture, device)
    return f" · idle ≥ {age_text(seconds)}" if isinstance(seconds, float) and seconds >= 1 else ""


def lines(picture: Picture) -> Iterator[str]:
    """``free  GPU 2, 5: 139.8 GiB`` and ``held  GPU 0: lin pid 51120 21.6 GiB · idle ≥ 18 s``."""
    rooms: dict[str, list[int]] = {}
    for device in picture.devices:
        free = device.readings.get("free_bytes")
        if isinstance(free, int) and state(device).word == "free":
            rooms.setdefault(bytes_text(free), []).append(device.definition.index)
    for room, indices in rooms.items():
        yield f"free  GPU {', '.join(map(str, indices))}: {room}{' each' if len(indices) > 1 else ''}"
    for device in picture.devices:
        if little := full(device.definition, device.readings):
            yield f"full  GPU {device.definition.index}: {little}"
    for device in picture.devices:
        holders = _holders(picture, device)
        if holders:
            yield f"held  GPU {device.definition.index}: {holders}{_idle(picture, device)}"


def _holders(picture: Picture, device: DevicePicture) -> str:
    parts = []
    for pid, used in (device.processes or [])[:MAX_HOLDERS]:
        known = picture.processes.get(pid) if picture.hidden is None else None
        user = clean(known.definition.user, 32) if known is not None and known.definition.user else "someone's"
        size = f" {bytes_text(used)}" if isinstance(used, int) else ""
        parts.append(f"{user} pid {pid}{size}")
    more = len(device.processes or ()) - MAX_HOLDERS
    return ", ".join(parts) + (f" and {more} more" if more > 0 else "")
