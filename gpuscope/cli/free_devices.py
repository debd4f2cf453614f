"""Say which GPUs are free or full, and which processes hold them.

The text of a single look also says since when nothing runs on them.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..model.device_state import OF_TRAININGS, full, judge, listed_on, state_on
from ..store.view import DeviceView, HostView
from ..text.units import age_text, bytes_text
from ..wire.clean import clean
from ..wire.frames import NOT_INITIALISED, Reading, Unknown

MAX_HOLDERS = 4


def idle_seconds(host: HostView, device: DeviceView) -> Reading:
    """Return the least time for which no kernel has run on it, 0.0 while one does."""
    since = device.readings.get("idle_since_seconds")
    if isinstance(since, (int, float)):
        now = device.sampled_seconds if host.sampled_seconds is None else host.sampled_seconds
        return round(max(0.0, (now or 0.0) - since), 1) if since else 0.0
    return since if isinstance(since, Unknown) else Unknown(NOT_INITIALISED, "not reported")


def _idle(host: HostView, device: DeviceView) -> str:
    """ " · idle ≥ 18 s", "" while a kernel runs or where it is not known."""
    seconds = idle_seconds(host, device)
    return f" · idle ≥ {age_text(seconds)}" if isinstance(seconds, float) and seconds >= 1 else ""


def lines(host: HostView) -> Iterator[str]:
    """``free  GPU 2, 5: 139.8 GiB`` and ``used  GPU 0: lin pid 51120 21.6 GiB · idle ≥ 18 s``."""
    rooms: dict[str, list[int]] = {}
    for device in host.devices:
        free = device.readings.get("free_bytes")
        if isinstance(free, int) and state_on(device).word == "free":
            rooms.setdefault(bytes_text(free), []).append(device.definition.index)
    for room, indices in rooms.items():
        yield (
            f"free  GPU {', '.join(map(str, indices))}: {room}{' each' if len(indices) > 1 else ''}"
        )
    for device in host.devices:
        if little := full(device.definition, device.readings):
            yield f"full  GPU {device.definition.index}: {little}"
    for device in host.devices:
        state = judge(host, device)
        if state.word in OF_TRAININGS:
            yield f"{state.word}  GPU {device.definition.index}: {clean(state.reason)}"
    for device in host.devices:
        holders = _holders(host, device)
        if holders:
            yield f"used  GPU {device.definition.index}: {holders}{_idle(host, device)}"


def _holders(host: HostView, device: DeviceView) -> str:
    processes = {process.id: process.definition for process in host.processes}
    uses = listed_on(device) or ()
    parts = []
    for use in uses[:MAX_HOLDERS]:
        owner, used = processes[use.process], use.number("used_bytes")
        user = clean(owner.user, 32) if owner.user else "someone's"
        size = f" {bytes_text(used)}" if used is not None else ""
        parts.append(f"{user} pid {owner.pid}{size}")
    more = len(uses) - MAX_HOLDERS
    return ", ".join(parts) + (f" and {more} more" if more > 0 else "")
