"""The GPU and the trainer that a session looks at.

What is chosen on one tab is where the others open. Only where nothing was chosen does a tab begin
with what is worst there, and the tabs that are opened after it follow.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ...store.view import DeviceView, HostView, TrainerView, by_id, by_key

USER = "user"


@dataclass(slots=True)
class Selection:
    """What is looked at, by the keys of the device and of the trainer on it."""

    device: str | None = None
    trainer: str | None = None
    by: str = ""
    """Who chose it: the user, the tab that began with it, or "" where a cursor only rests there."""

    def choose(self, device: str | None, trainer: str | None = None) -> None:
        """The user has chosen a device, or a trainer on it."""
        self.device, self.trainer, self.by = device, trainer, USER

    def propose(self, tab: str, device: str | None, trainer: str | None = None) -> None:
        """A tab begins with what is worst there, where neither user nor another tab was before."""
        if self.by in ("", tab):
            self.device, self.trainer, self.by = device, trainer, tab

    def cursor_on(self, device: str | None, by_user: bool) -> None:
        """A cursor stands on a device, because the user put it there or the list begins there."""
        if by_user:
            self.choose(device)
        elif not self.by:
            self.device = device

    def leads(self, tab: str) -> bool:
        """Return whether this tab is to open on what is selected."""
        return self.by not in ("", tab)

    def trainer_of(self, host: HostView, among: Iterable[TrainerView]) -> TrainerView | None:
        """Return the trainer that is selected, or one of these on the selected device."""
        running = list(among)
        found = by_key(running, self.trainer)
        if found is not None or self.trainer is not None:
            return found
        device = by_key(host.devices, self.device)
        return next((t for t in running if device and device_of(host, t) is device), None)


def device_of(host: HostView, trainer: TrainerView | None) -> DeviceView | None:
    """Return the first device on which a trainer has memory."""
    ids = [a.gpu for a in trainer.allocators if a.gone is None] if trainer is not None else []
    return next((d for one in ids if (d := by_id(host.devices, one)) is not None), None)


def on_device(host: HostView, device: DeviceView | None) -> TrainerView | None:
    """Return a trainer on a device, mine before others'."""
    here = {a.definition.trainer for a in device.allocators if a.gone is None} if device else set()
    mine = {p.id for p in host.processes if p.definition.mine}
    trainers = [t for t in host.trainers if t.id in here and t.gone is None]
    return min(trainers, key=lambda t: t.process not in mine, default=None)


def keys_of(host: HostView, trainer: TrainerView | None) -> tuple[str | None, str | None]:
    """Return the keys of a trainer's device and of the trainer."""
    device = device_of(host, trainer)
    return device.key if device else None, trainer.key if trainer else None
