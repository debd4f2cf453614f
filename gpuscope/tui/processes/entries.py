"""This module gathers what is known of each process for its row, and says what it does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...model.device_state import DeviceState
from ...model.device_trainings import filling, warned_starving
from ...model.job_state import broken_below, broken_devices
from ...model.lost_loss import LostLoss, loss_of
from ...model.memory_room import MemoryRoom
from ...model.pace import counts_of
from ...model.ranks import running
from ...model.stalls import stalled_ranks
from ...store.view import DeviceView, HistoryOf, HostView, ProcView, TrainerView, UseView
from ...text.styled import Line, Piece
from ..shared.job_rows import loss_piece
from ..theme import Glyphs
from .idle import Idle, Idleness
from .state_text import state_words


@dataclass(frozen=True, slots=True)
class ProcessEntry:
    """A process with what its row needs."""

    process: ProcView
    uses: tuple[UseView, ...]
    devices: tuple[DeviceView, ...]
    trainer: TrainerView | None
    sm: float | None
    idle: Idle
    memory: float | None
    stalled: str = ""
    """How grave it is that its job hangs, "" where it does not."""
    broken: tuple[int, DeviceState] | None = None
    """The index and the state of a device of its own that no program can rely on."""
    ends: MemoryRoom | None = None
    """Its memory, where that runs out soon."""
    starved: float = 0.0
    """The share of a step that it waits for input, where the doctor warns of it."""
    lost: LostLoss | None = None
    """Its loss, where that stays NaN or infinite."""
    loss: Piece | None = None
    """The loss that the trainer in it tells."""
    step: float | None = None
    """The step of its rank, at the moment of all ranks where they step together."""

    @property
    def job(self) -> str | None:
        """The key of its job, where it is a rank of one."""
        return self.trainer.definition.job if self.trainer is not None else None


def entries(host: HostView, history: HistoryOf, idleness: Idleness) -> list[ProcessEntry]:
    """Return every process that holds a part of a device or has a probe in it."""
    devices = {device.id: device for device in host.devices}
    trainers = {trainer.id: trainer for trainer in host.trainers if trainer.gone is None}
    idle = {device.id: idleness.of_device(device, history) for device in host.devices}
    stalls = {rank: kind for job in host.jobs for rank, kind in stalled_ranks(job).items()}
    lost = broken_devices(host)
    rooms = [room for one in host.devices if (room := filling(host, one, history)) is not None]
    steps = {
        rank: step for job in host.jobs for rank, step in counts_of(running(job.trainers)).items()
    }
    ends = {room.trainer.id: room for room in rooms}
    out = []
    for process in host.processes:
        if process.gone is not None:
            continue
        uses = tuple(use for use in process.uses if use.gone is None and use.gpu in devices)
        trainer = trainers.get(process.trainer) if process.trainer is not None else None
        if not uses and trainer is None:
            continue
        own = tuple(devices[use.gpu] for use in uses)
        sizes = [use.number("used_bytes") for use in uses]
        since = idleness.of_process(process, uses, idle, history, host.wall_seconds)
        memory = (
            sum(size for size in sizes if size is not None) if uses and None not in sizes else None
        )
        stalled = stalls.get(trainer.key, "") if trainer is not None else ""
        broken = broken_below(host, process, trainer) if lost else None
        room = ends.get(trainer.id) if trainer is not None else None
        share = warned_starving(host, trainer, history) if trainer is not None else 0.0
        told = loss_piece(host, [trainer]) if trainer is not None else None
        gone = loss_of(host, trainer or process, history)
        step = steps.get(trainer.key) if trainer is not None else None
        facts = (trainer, _sm(uses), since, memory, stalled, broken, room, share, gone, told, step)
        out.append(ProcessEntry(process, uses, own, *facts))
    return out


def _sm(uses: Sequence[UseView]) -> float | None:
    known = [share for use in uses if (share := use.number("sm_percent")) is not None]
    return max(known) if known else None


def state_of(entry: ProcessEntry, glyphs: Glyphs, paced: bool = False) -> Line:
    """Return what it does; not how long its step takes where a column says so."""
    e = entry
    return state_words(
        e.process, e.uses, e.trainer, e.idle, glyphs, e.stalled, e.broken, paced, e.ends, e.starved,
        e.lost, e.step,
    )  # fmt: skip
