"""The tabs: where the class of each is, and what the first frame shows of it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..shell.session import Session
    from ..widgets.pane import Pane

TABS = {
    "fleet": ("hosts", "FleetPane"),
    "overview": ("overview", "OverviewPane"),
    "memory": ("memory", "MemoryPane"),
    "time": ("time", "TimePane"),
    "doctor": ("doctor", "DoctorPane"),
    "lab": ("lab", "LabPane"),
    "log": ("log", "LogPane"),
}
"""Tab → its folder, and the class in ``pane.py`` there; imported at the first visit."""
REPLAYED_LAB = ("lab.replay_pane", "ReplayLabPane")
"""The module and the class of the Lab's tab in a replay."""
PANELS = {
    "fleet": ("Hosts",),
    "overview": ("Jobs", "GPUs"),
    "memory": ("Where the bytes are",),
    "time": ("Where the time goes",),
    "doctor": ("Findings",),
    "lab": ("Lab",),
    "log": ("Log",),
}
"""What the first frame shows of a tab."""


def make_pane(session: Session, tab: str) -> Pane:
    """Return the pane of a tab, as new."""
    folder, name = TABS[tab]
    module, name = REPLAYED_LAB if tab == "lab" and session.replay else (f"{folder}.pane", name)
    made: Pane = getattr(import_module(f"gpuscope.tui.{module}"), name)(session, id=tab)
    return made
