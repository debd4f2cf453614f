"""Which GPUs a run of the lab takes, and what counts as a job on one: the rules, on plain values. Who knows the host
(the verbs by a look of their own, the screen by its agent) brings the values."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence

from ..text.units import GIB

VISIBLE, ORDER = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"
IDLE_BYTES = 64 << 20
"""A process that holds less of a GPU is no job there: a monitor, a context that ends."""
HIDDEN_BYTES = GIB
"""In use on a GPU without a process that could be seen: below that it may be the driver itself."""
DISPLAYS = frozenset(("Xorg", "Xwayland", "gnome-shell", "kwin_x11", "kwin_wayland", "plasmashell", "sway", "weston"))


def visible(uuids: Sequence[str], environ: Mapping[str, str]) -> list[int]:
    """The positions of the GPUs that a worker sees, in CUDA's order: ``$CUDA_VISIBLE_DEVICES`` by number or UUID up to
    the first word that names none; without it all. ``uuids``: of the host's GPUs by index."""
    chosen = environ.get(VISIBLE)
    if chosen is None:
        return list(range(len(uuids)))
    found: list[int] = []
    for word in (part.strip() for part in chosen.split(",")):
        matching = [int(word)] if word.isdigit() and int(word) < len(uuids) else []
        if word.startswith("GPU-") and len(word) > len("GPU-"):
            matching = [position for position, uuid in enumerate(uuids) if uuid.startswith(word)]
        if len(matching) != 1 or matching[0] in found:
            break
        found += matching
    return found


def order_known(names: Collection[str | None], environ: Mapping[str, str]) -> bool:
    """Whether CUDA's numbers are the driver's: it numbers GPUs of different kinds by their speed unless told."""
    words = environ.get(VISIBLE, "0").split(",")
    by_number = any(word.strip().isdigit() for word in words)
    return len(set(names)) <= 1 or environ.get(ORDER) == "PCI_BUS_ID" or not by_number


def draws_screen(command: str) -> bool:
    """Whether a command draws the screen: that is on most desktops' GPUs and no job."""
    words = command.split()
    return bool(words) and os.path.basename(words[0]) in DISPLAYS


def capability(text: str | None) -> tuple[int, int] | None:
    """ "9.0" as (9, 0); None for what is none."""
    major, _, minor = (text or "").partition(".")
    return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else None


def cores() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
