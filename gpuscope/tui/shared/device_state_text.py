"""This module says a device's state as the screens write it.

It has its colour, its reason in short, and what stands free or idle on a host.
"""

from __future__ import annotations

import re

from ...model.device_state import IDLE_PERCENT, DeviceState, Kind, judge
from ...store.stream import NO_REASON
from ...store.view import NOT_SENT, History, HostView
from ...text.ranges import ranges_text
from ...text.units import age_text
from ..theme import Glyphs

__all__ = [
    "free_devices",
    "glyph_of",
    "gravity",
    "idle_since",
    "in_short",
    "in_shortest",
    "token_of",
]


def gravity(state: DeviceState) -> Kind:
    """Return how grave a state is for the trainings on the device.

    The rank that holds up the others is on a device that is well, and is the worst there is to see.
    """
    return "bad" if state.urgent else state.kind


def token_of(state: DeviceState) -> str:
    """Return the token of a state's colour."""
    kind = gravity(state)
    return "accent" if kind == "shared" else kind


def glyph_of(state: DeviceState, glyphs: Glyphs) -> str:
    return str(getattr(glyphs, gravity(state)))


_CALL_FAILED = re.compile(r"nvml\w+: (.+)")
_CALL_HANGS = re.compile(r"(nvml\w+) has not returned for (.+)")
_LINE = re.compile(r"(at \S+:\d+) in .*")
_LEFT = re.compile(r"(.* left) of .*")
_OF_TIME = re.compile(r" of (?:a step|the time)$")
_SUBJECT = re.compile(r"^the (?:device|GPU) has ")
_ENDS = re.compile(r"out of memory in (.+?)(?:, .*)?")


def in_short(reason: str) -> str:
    """Return a driver's reason with what matters first, for a narrow column.

    The name of the call says least, and whose reason it is stands before it.
    """
    if hangs := _CALL_HANGS.fullmatch(reason):
        return f"for {hangs[2]} in {hangs[1]}"
    failed = _CALL_FAILED.fullmatch(reason)
    return _SUBJECT.sub("", failed[1] if failed else reason)


def why_unread(reason: str, replayed: bool = False) -> str:
    """Return why a driver gives no reading: what it said, or for how long it says nothing.

    Of what a recording has no reading of, there will be none either.
    """
    if replayed and reason == NOT_SENT.text:
        return "not recorded"
    if reason == NO_REASON.text:
        return "not read"
    hangs = _CALL_HANGS.fullmatch(reason)
    return f"no answer for {hangs[2]}" if hangs else in_short(reason)


def in_shortest(reason: str) -> str:
    """Return the heart of a reason: how long, for which rank, at which line, how little is left."""
    if hangs := _CALL_HANGS.fullmatch(reason):
        return f"for {hangs[2]}"
    if ends := _ENDS.fullmatch(reason):
        return f"{ends[1]} left"
    short = in_short(reason)
    short = _OF_TIME.sub("", short.removesuffix(" in a collective"))
    return _LEFT.sub(r"\1", _LINE.sub(r"\1", short))


def free_devices(host: HostView) -> str:
    """Return which devices are free, such as ``"GPU 2, 5, 7: 140 GiB each"``, "" when none is.

    Devices with like room are named together.
    """
    rooms: dict[int, list[int]] = {}
    for device in host.devices:
        free = device.number("free_bytes")
        if free is not None and judge(host, device).word == "free":
            rooms.setdefault(round(free / (1 << 30)), []).append(device.definition.index)
    parts = [
        f"GPU {ranges_text(indices)}: {room} GiB{' each' if len(indices) > 1 else ''}"
        for room, indices in sorted(rooms.items(), reverse=True)
    ]
    return " · ".join(parts)


def idle_since(history: History, since: float | None = None) -> str:
    """Return how long the load has been zero as far as we saw, as ``"idle for 2 min 05 s"``.

    "or more" stands behind it if it was so from the start. Moments at which it was unknown end what
    we saw. ``since`` is what the agent there knows, which came earlier.
    """
    first = len(history)
    while first and (load := history.values[first - 1]) is not None and load < IDLE_PERCENT:
        first -= 1
    if first == len(history):
        return ""
    more = first == 0 or history.values[first - 1] is None
    began = min(history.seconds[first], since) if more and since else history.seconds[first]
    age = age_text(max(history.seconds[-1] - began, 1))
    return f"idle for {age}{' or more' if more else ''}"
