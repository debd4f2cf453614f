"""Say which GPUs a run of the lab takes, and what counts as a job on one.

The rules work on plain values. Who knows the host (the verbs by a look of their own, the screen
by its agent) brings them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from ..text.units import bytes_text

IDLE_BYTES = 64 << 20
"""A process that holds less of a GPU is no job there: a monitor, a context that ends."""
HIDDEN_JOB_BYTES = 1 << 30
"""Memory that no process holds which can be seen is taken for a job from here on. Less may be a
desktop, of which the driver names no process under WSL: that is told elsewhere, and keeps nobody
from training.
"""
DISPLAYS = frozenset(
    ("Xorg", "Xwayland", "gnome-shell", "kwin_x11", "kwin_wayland", "plasmashell", "sway", "weston")
)


@dataclass(frozen=True, slots=True)
class Occupant:
    """A process on a GPU that a run would take.

    None stands for what is not told: ``pid`` of a process that cannot be seen from here,
    ``used_bytes`` where the driver does not say.
    """

    index: int
    pid: int | None
    user: str
    command: str
    used_bytes: float | None

    def __str__(self) -> str:
        held = (
            f"holds {bytes_text(self.used_bytes)}"
            if self.used_bytes is not None
            else "holds memory"
        )
        if self.pid is None:
            return f"{self.command} {held} of GPU {self.index}"
        return f"pid {self.pid} ({self.user}: {self.command}) {held} of GPU {self.index}"


UNSEEN = "a process that cannot be seen from here"


def draws_screen(command: str) -> bool:
    """Say whether a command draws the screen: that is on most desktops' GPUs and no job."""
    words = command.split()
    return bool(words) and os.path.basename(words[0]) in DISPLAYS


def capability(text: str | None) -> tuple[int, int] | None:
    """Return "9.0" as (9, 0); None for what is none."""
    major, _, minor = (text or "").partition(".")
    return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else None


def cores() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
