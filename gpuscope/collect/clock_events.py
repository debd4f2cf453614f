"""Translate clock event ("throttle") reasons: the bits of ``clock_event_reasons``.

The bit values are those of ``nvmlDeviceGetCurrentClocksEventReasons`` (nvml.h,
nvmlClocksEventReason*). This module does not need pynvml, so that a viewer can read a remote host's
mask.
"""

from __future__ import annotations

from typing import Dict, Tuple

CLOCK_EVENT_REASONS: Dict[int, str] = {
    0x001: "idle",
    0x002: "applications clocks",
    0x004: "power cap",
    0x008: "hardware slowdown",
    0x010: "sync boost",
    0x020: "thermal slowdown",
    0x040: "hardware thermal slowdown",
    0x080: "power brake",
    0x100: "display clock",
    0x200: "board limit",
    0x400: "reliability limit",
}
"""Bit → short description."""

HARMLESS_CLOCK_EVENTS = 0x001 | 0x002 | 0x100
"""Bits that say that the clock is limited on purpose, so nothing is wrong."""

POWER_CAP = 0x004
"""The board draws as much as its power limit allows, which is normal for a busy GPU."""

SLOWED_CLOCK_EVENTS = 0x008 | 0x020 | 0x040 | 0x080
"""Bits that indicate a fault in cooling or power.

They are hardware slowdown, thermal slowdown and power brake.
"""


def clock_event_words(mask: int, harmless: bool = False) -> Tuple[str, ...]:
    """Return the reasons in ``mask`` that limit the clock, lowest bit first.

    With ``harmless``, all reasons are returned. An unknown bit counts as limiting and is named by
    its value.
    """
    if not harmless:
        mask &= ~HARMLESS_CLOCK_EVENTS
    bits = []
    while mask > 0:
        bits.append(mask & -mask)
        mask &= mask - 1
    return tuple(CLOCK_EVENT_REASONS.get(bit, f"reason {bit:#x}") for bit in bits)
