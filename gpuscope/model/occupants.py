"""Tell whose jobs are on a GPU, so that nobody shares it with them by accident.

The result contains only what the agent saw. What it could not see is unknown, never free.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass

from ..store.view import DeviceView, HostView, ProcView
from ..text.units import bytes_text
from ..wire.clean import clean
from .device_state import listed_on, unowned_on

IDLE_BYTES = 64 << 20
"""A process that holds less memory is no job: it is a monitor, or a context that ends."""
HIDDEN_JOB_BYTES = 1 << 30
"""Memory without a visible holder counts as a job from this size on. Less may be a desktop, of
which the driver names no process under WSL: other places say so, and nobody is kept from training.
"""
DISPLAYS = frozenset(
    ("Xorg", "Xwayland", "gnome-shell", "kwin_x11", "kwin_wayland", "plasmashell", "sway", "weston")
)
UNSEEN = "a process that is not visible here"


@dataclass(frozen=True, slots=True)
class Occupant:
    """A process on a GPU that a run would take.

    None means that it is not known: ``pid`` of a process that is not visible here,
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


def occupants(
    host: HostView, device: DeviceView, own: Collection[int] = (), alone: bool = True
) -> list[Occupant]:
    """Return the jobs on a device: every process that holds memory of it but what draws the screen.

    ``own`` are pids that are no strangers. ``alone`` says that nothing of ours has been on the
    device lately, so that memory in use there without a process is somebody's.
    """
    index, uses = device.definition.index, listed_on(device) or ()
    processes = {process.id: process for process in host.processes}
    found = []
    for use in uses:
        held, process = use.number("used_bytes"), processes.get(use.process)
        if held is not None and held < IDLE_BYTES:
            continue
        if process is None:
            found.append(Occupant(index, None, "?", "an unknown process", held))
        elif host.hidden is not None:
            found.append(Occupant(index, process.definition.pid, "?", UNSEEN, held))
        elif process.definition.pid not in own and not draws_screen(process):
            found.append(_occupant(index, process, held))
    nobodys = unowned_on(device) if alone and not uses else None
    if nobodys is not None and nobodys > HIDDEN_JOB_BYTES:
        found.append(Occupant(index, None, "?", UNSEEN, nobodys))
    return found


def _occupant(index: int, process: ProcView, held: float | None) -> Occupant:
    d = process.definition
    return Occupant(index, d.pid, clean(d.user or "?"), clean(d.command or d.name or "?"), held)


def draws_screen(process: ProcView) -> bool:
    """Tell whether a process draws the screen. Most desktops have one, and it is no job."""
    words = (process.definition.command or process.definition.name or "").split()
    return bool(words) and os.path.basename(words[0]) in DISPLAYS
