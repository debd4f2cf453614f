"""Puts clock event ("throttle") reasons into words: the bits of ``clock_event_reasons``.

Bit values are those of ``nvmlDeviceGetCurrentClocksEventReasons`` (nvml.h, nvmlClocksEventReason*).
Independent of pynvml, so that a viewer can read a remote host's mask.
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
"""Bit → short words."""

HARMLESS_CLOCK_EVENTS = 0x001 | 0x002 | 0x100
"""Bits that say the clock is where somebody wants it: nothing to do, and nothing to gain."""

POWER_CAP = 0x004
"""The board draws what its power limit allows: how a busy GPU works."""

SLOWED_CLOCK_EVENTS = 0x008 | 0x020 | 0x040 | 0x080
"""Bits that say something is wrong with cooling or power: slowdown by the hardware or by heat,
power brake.
"""


def clock_event_words(mask: int, harmless: bool = False) -> Tuple[str, ...]:
    """Return the reasons in ``mask`` that limit the clock, lowest bit first.

    With ``harmless`` they are all reasons. A bit that is not known here counts as limiting and
    is named by its value.
    """
    if not harmless:
        mask &= ~HARMLESS_CLOCK_EVENTS
    bits = []
    while mask > 0:
        bits.append(mask & -mask)
        mask &= mask - 1
    return tuple(CLOCK_EVENT_REASONS.get(bit, f"reason {bit:#x}") for bit in bits)
