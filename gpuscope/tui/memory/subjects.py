"""This module lists what the Memory tab can look at.

That is a device with a trainer's memory on it, or a trainer's memory on the CPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...model.memory_layers import living, trainer_of
from ...store.view import AllocView, DeviceView, HostView, ProcView, TrainerView, by_id
from ...text.process_name import short_script
from ...text.styled import Line
from ..shell.keymap import key_of
from ..widgets.pane import WAITING, ways_to_a_probe
from ..widgets.status import short_model

if TYPE_CHECKING:
    from ...model.process_kind import ProcessKind
    from ...store.view import HistoryOf, UseView

COURSE_SECONDS = 600.0
"""Of a process's memory: it is recognised by how that changes."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What is looked at.

    It is a device, the memory of a trainer on it, or a trainer's memory on the CPU.
    """

    device: DeviceView | None
    allocator: AllocView | None
    trainer: TrainerView | None

    @property
    def key(self) -> str:
        """Stable while device and trainer live."""
        return "/".join(one.key if one else "" for one in (self.device, self.allocator))

    @property
    def title(self) -> str:
        """What is looked at, in words."""
        where = (
            f"GPU {self.device.definition.index} {short_model(self.device.definition.name)}"
            if self.device
            else "CPU"
        )
        if self.trainer is None:
            return where
        d = self.trainer.definition
        rank = f" rank {d.rank}" if d.rank is not None else ""
        return f"{where} · {short_script(d.script)}{rank} (pid {d.pid})"


def subjects(host: HostView, text: str = "") -> list[Subject]:
    """Return everything that can be looked at.

    Each device comes with each trainer on it, then come trainers on the CPU. A trainer that has
    ended stays with its last state as long as there is nothing else.
    """
    out: list[Subject] = []
    for device in host.devices:
        out += [Subject(device, a, trainer_of(host, a)) for a in living(device)] or [
            Subject(device, None, None)
        ]
    unmapped = [
        Subject(None, a, trainer)
        for trainer in host.trainers
        for a in trainer.allocators
        if a.gpu is None
    ]
    out += [s for s in unmapped if s.trainer and s.trainer.gone is None]
    out = out or unmapped[-1:]
    return [s for s in out if text.casefold() in s.title.casefold()] if text else out


def page_of(host: HostView, subject: Subject) -> tuple[str, str]:
    """Return the kind and the key of the page about a subject.

    It is the page of its device, or of its job where the training uses none.
    """
    if subject.device is not None:
        return "device", subject.device.key
    trainer = subject.trainer
    assert trainer is not None
    jobs = [job for job in host.jobs if any(one.key == trainer.key for one in job.trainers)]
    return ("job", jobs[0].key) if jobs else ("readings", trainer.key)


def process_of(host: HostView, subject: Subject) -> ProcView | None:
    """The process looked at: the trainer's, or on a device without one the largest user."""
    if subject.trainer is not None:
        return by_id(host.processes, subject.trainer.process)
    if subject.device is None:
        return None
    uses = [u for u in subject.device.uses if u.gone is None and u.number("used_bytes") is not None]
    largest = max(uses, key=lambda use: use.number("used_bytes") or 0.0, default=None)
    return by_id(host.processes, largest.process) if largest is not None else None


def kind_of(host: HostView, subject: Subject, history: HistoryOf) -> ProcessKind | None:
    """Return what kind of process is looked at by its last minutes, None where there is none."""
    from ...model.process_kind import recognise

    process, device = process_of(host, subject), subject.device
    held: AllocView | UseView | None = subject.allocator
    column = "allocated_bytes" if held is not None else "used_bytes"
    if held is None and device is not None and process is not None:
        held = next((use for use in device.uses if use.process == process.id), None)
    if held is None:
        return None
    past = history(held.id, column, COURSE_SECONDS)
    return recognise(host, device, subject.trainer, subject.allocator, process, past)


def nothing_lines(host: HostView | None, filtered: str) -> list[Line]:
    """Return what the tab says where it has nothing to show."""
    if host is None:
        return [[(WAITING, "muted")]]
    if filtered:
        text = f"no GPU and no trainer contains {filtered!r}   {key_of('back')}: all"
        return [[(text, "muted")]]
    if host.badge:
        return [[("No GPU and no trainer with a probe is in this recording.", "text")]]
    return [
        [("No GPU and no trainer with a probe is here: there is no memory to show.", "text")],
        [("A probe shows the memory of a training:", "muted")],
        *ways_to_a_probe(),
    ]
