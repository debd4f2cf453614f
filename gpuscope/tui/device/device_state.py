"""A device's state in a glyph, a word and, where it is not well, the reason; and what stands free or idle on a host."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ...collect.clock_events import HARMLESS_CLOCK_EVENTS, clock_event_words
from ...model.memory_layers import living, trainer_of
from ...store.ranks import input_share
from ...store.view import DeviceView, History, HostView, ProcView, TrainerView
from ...text.units import age_text, bytes_text, percent_text
from ...wire.frames import LOST, TIMEOUT, Unknown


NEARLY_FULL = 0.97
STARVED = 0.2
LATELY_SECONDS = 60.0
IDLE_PERCENT = 1.0
FREE_BYTES = 1 << 30
POWER_CAP = 0x4
USUAL = 0.8
"""Of its best clock: an H200 with matrix products at 700 W holds 85 to 98 % of it."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """``kind`` is ok, warn, bad, idle or shared (the name of a glyph); ``reason`` is "" when all is well."""

    kind: str
    word: str
    reason: str = ""

    @property
    def token(self) -> str:
        """The token of its colour."""
        return {"shared": "series4"}.get(self.kind, self.kind)


def judge(host: HostView, device: DeviceView) -> Verdict:
    """The first thing that is wrong with a device, else what it is doing."""
    if device.gone:
        return Verdict("bad", "gone", device.gone.reason)
    silent = _silence(device)
    if silent:
        return silent
    ecc = device.number("ecc_uncorrected_count")
    if ecc:
        return Verdict("bad", "ECC", f"{ecc:.0f} uncorrected memory errors since the last reset")
    used, total = device.number("used_bytes"), device.definition.total_bytes
    full = (
        f"{bytes_text(total - used)} left of {bytes_text(total)}"
        if used is not None and total and used > NEARLY_FULL * total
        else ""
    )
    if full and not _steady(host, device):
        return Verdict("warn", "full", full)
    mask = device.number("clock_event_reasons")
    words = clock_event_words(int(mask)) if mask is not None else ()
    if words and not _capped_as_usual(device, int(mask or 0)):
        clock = device.number("sm_clock_mhz")
        best = device.definition.max_sm_clock_mhz
        at = f": {clock:.0f} of {best} MHz" if clock is not None and best else ""
        return Verdict("warn", "slowed", ", ".join(words) + at)
    starved = _starved(host, device)
    if starved:
        return Verdict("warn", "starved", starved)
    holders = [u for u in device.uses if u.gone is None]
    names = owners(host, device) if len(holders) > 1 else {}
    if len(names) > 1:
        mine = {p.definition.user for p in processes_on(host, device) if p.definition.mine}
        return Verdict("shared", "shared", ", ".join(text for user, text in names.items() if user not in mine))
    load = device.number("utilization_percent")
    if load is not None and load < IDLE_PERCENT:
        empty = not holders and used is not None and used < FREE_BYTES
        return Verdict("idle", "free" if empty else "idle")
    return Verdict("ok", "full", f"steady, {full}") if full else Verdict("ok", "ok")


_CALL_FAILED = re.compile(r"nvml\w+: (.+)")
_CALL_HANGS = re.compile(r"(nvml\w+) has not returned for (.+)")


def in_short(reason: str) -> str:
    """A driver's reason with what matters first, for a narrow column: the name of the call says least."""
    if hangs := _CALL_HANGS.fullmatch(reason):
        return f"for {hangs[2]} in {hangs[1]}"
    failed = _CALL_FAILED.fullmatch(reason)
    return failed[1] if failed else reason


def _capped_as_usual(device: DeviceView, mask: int) -> bool:
    """At its power limit and not far below its best clock: how a busy GPU works, and no fault."""
    clock, best = device.number("sm_clock_mhz"), device.definition.max_sm_clock_mhz
    return (
        mask & ~HARMLESS_CLOCK_EVENTS == POWER_CAP and clock is not None and bool(best) and clock >= USUAL * (best or 0)
    )


def _silence(device: DeviceView) -> Verdict | None:
    for column in ("used_bytes", "utilization_percent"):
        reading = device.reading(column)
        if isinstance(reading, Unknown):
            if reading.code == LOST:
                return Verdict("bad", "lost", reading.text)
            if reading.code == TIMEOUT:
                return Verdict("bad", "hung", reading.text)
            if reading.code == "not_sent" and device.sampled_seconds is None:
                return Verdict("idle", "waiting", reading.text)
    used = device.reading("used_bytes")
    return Verdict("warn", "unknown", used.text) if isinstance(used, Unknown) else None


def _steady(host: HostView, device: DeviceView) -> bool:
    """Whether a full card is known to be well: nothing on it grows, and no allocation had to be tried again lately. As
    the doctor judges it (``doctor.live_memory.full_but_steady``)."""
    allocators = living(device)
    ids, now = {one.id for one in allocators}, host.sampled_seconds or 0.0
    lately = any(m.kind == "retry" and m.id in ids and now - m.seconds < LATELY_SECONDS for m in host.marks)
    known = all(
        one.growth is not None and not one.growth.grows and one.number("alloc_retries") is not None
        for one in allocators
    )  # fmt: skip
    return bool(allocators) and known and not lately


def _starved(host: HostView, device: DeviceView) -> str:
    for allocator in living(device):
        trainer = trainer_of(host, allocator)
        share = starving(host, trainer) if trainer else None
        if share is not None:
            return f"input {percent_text(share)} of the step"
    return ""


def starving(host: HostView, trainer: TrainerView) -> float | None:
    """The share of a step that a trainer waits for its input, where that is much and costs time; None else. The
    thread's own waiting proves nothing while the GPU works through what was launched before: so the doctor judges."""
    share = input_share(trainer)
    if share is None or share < STARVED:
        return None
    if trainer.definition.cuda and trainer.number("input_seconds") is None:
        homes = {one.gpu for one in trainer.allocators if one.gone is None}
        busy = [value for one in host.devices if one.id in homes and (value := _busy(one)) is not None]
        if busy and max(busy) / 100 + share > 1.0 + STARVED / 2:
            return None
    return share


def _busy(device: DeviceView) -> float | None:
    """How much of the time its SMs work, in percent; where that is unknown, how much of it any kernel runs."""
    sm = device.number("sm_active_percent")
    return device.number("utilization_percent") if sm is None else sm


def owners(host: HostView, device: DeviceView) -> dict[str, str]:
    """Who holds memory here: each user with the names of the programs, ``{"lin": "lin (jupyter)"}``."""
    names: dict[str, list[str]] = {}
    for process in processes_on(host, device):
        title = process.definition.name or f"pid {process.definition.pid}"
        names.setdefault(process.definition.user or "someone", []).append(title)
    return {user: f"{user} ({', '.join(dict.fromkeys(programs))})" for user, programs in names.items()}


def processes_on(host: HostView, device: DeviceView) -> list[ProcView]:
    """The living processes that use a device."""
    using = {u.process for u in device.uses if u.gone is None}
    return [p for p in host.processes if p.id in using and p.gone is None]


def ranges(indices: Sequence[int]) -> str:
    """``[0, 1, 2, 5]`` as ``"0-2, 5"``."""
    out: list[list[int]] = []
    for index in sorted(indices):
        if out and index == out[-1][1] + 1:
            out[-1][1] = index
        else:
            out.append([index, index])
    return ", ".join(str(a) if a == b else f"{a}, {b}" if b == a + 1 else f"{a}-{b}" for a, b in out)


def free_devices(host: HostView) -> str:
    """``"GPU 2, 5, 7: 140 GiB each"``, "" when none is free. Devices with like room are named together."""
    rooms: dict[int, list[int]] = {}
    for device in host.devices:
        verdict = judge(host, device)
        free = device.number("free_bytes")
        if verdict.word == "free" and free is not None:
            rooms.setdefault(round(free / (1 << 30)), []).append(device.definition.index)
    parts = [
        f"GPU {ranges(indices)}: {room} GiB{' each' if len(indices) > 1 else ''}"
        for room, indices in sorted(rooms.items(), reverse=True)
    ]
    return " · ".join(parts)


def idle_since(history: History, since: float | None = None) -> str:
    """How long the load has been zero as far as we saw: ``"idle 2 min 05 s"``, with ≥ if it was so from the start.

    Moments at which it was unknown end what we saw. ``since``: what the agent there knows, which came earlier."""
    first = len(history)
    while first and (load := history.values[first - 1]) is not None and load < IDLE_PERCENT:
        first -= 1
    if first == len(history):
        return ""
    more = first == 0 or history.values[first - 1] is None
    began = min(history.seconds[first], since) if more and since else history.seconds[first]
    return f"idle {'≥ ' if more else ''}{age_text(max(history.seconds[-1] - began, 1))}"
