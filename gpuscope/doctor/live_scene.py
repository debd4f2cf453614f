"""Hold what the live rules share: a host's view, the history of its readings, and the wordings.

A reading that is unknown stays None: a rule that needs it abstains and says what would decide the
question.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean

from ..model.device_state import judge
from ..model.first_step import first_step
from ..model.look import Look
from ..model.look import read as read_look
from ..model.step_time import MIN_STEPS, warmed_up
from ..store.view import (
    AllocView,
    DeviceView,
    Entity,
    HistoryOf,
    HostView,
    JobView,
    ProcView,
    TrainerView,
    by_id,
    no_history,
)
from ..text.ranges import ranges_text
from .finding import Abstained, Finding
from .wordings import Wordings

__all__ = [
    "MIN_STEPS", "WORDINGS", "Findings", "LiveScene", "free_gpus", "living", "place", "warmed_up",
]  # fmt: skip

Findings = Iterator[Finding | Abstained]
RECENT_SECONDS = 60.0
LOOK_SECONDS = 3600.0
"""A training seldom changes within an hour; each finding says how old the look is."""
WORDINGS = Wordings("live")


@dataclass(frozen=True, slots=True)
class LiveScene:
    """Holds a host at one moment and the history of its readings."""

    host: HostView
    history: HistoryOf = no_history

    @property
    def recorded(self) -> bool:
        """Whether this is a moment of a recording: looking again later shows nothing more."""
        return bool(self.host.badge)

    def known(
        self, entity: Entity, column: str, seconds: float | None = RECENT_SECONDS
    ) -> list[float]:
        """Returns the known readings of the last ``seconds``, the oldest first.

        Without a history, the result is the current reading alone.
        """
        values = [
            value for value in self.history(entity.id, column, seconds).values if value is not None
        ]
        now = entity.number(column)
        return values or ([] if now is None else [now])

    def mean(self, entity: Entity, column: str, seconds: float = RECENT_SECONDS) -> float | None:
        """Returns the mean of the known readings, None where there are none."""
        values = self.known(entity, column, seconds)
        return fmean(values) if values else None

    def mean_of_job(self, trainer: TrainerView, device: DeviceView, column: str) -> float | None:
        """Returns the mean of a device's recent readings since its trainer's first step.

        Before it, the device waits for imports and compilers: that says nothing of its work.
        """
        began, now = first_step(trainer, self.history, RECENT_SECONDS), self.host.sampled_seconds
        if began is None or now is None:
            return self.mean(device, column)
        return self.mean(device, column, min(max(now - began, 0.0), RECENT_SECONDS))

    def rise(self, entity: Entity, column: str) -> float:
        """Return by how much a counter has recently grown."""
        values = self.known(entity, column, RECENT_SECONDS)
        return max(0.0, values[-1] - values[0]) if len(values) > 1 else 0.0

    def look(self, trainer: TrainerView) -> Look | None:
        """Returns what the last look at a trainer's device has found, None where none is recent.

        A trainer that does not use CUDA has no device that could have been looked at.
        """
        if not trainer.definition.cuda:
            return None
        look = read_look(trainer.look) if trainer.look is not None else None
        age = look.age_seconds(self.host.wall_seconds) if look is not None else None
        return None if age is not None and age > LOOK_SECONDS else look

    def device(self, allocator: AllocView) -> DeviceView | None:
        """Returns the device of an allocator, None for the CPU's or where it is unknown."""
        device = by_id(self.host.devices, allocator.gpu)
        return device if device is not None and device.gone is None else None

    def devices(self, trainer: TrainerView) -> list[DeviceView]:
        """Returns the devices on which a trainer's allocators live."""
        found = [
            self.device(allocator) for allocator in trainer.allocators if allocator.gone is None
        ]
        return [one for one in found if one is not None]

    def others(self, device: DeviceView, job: JobView) -> list[tuple[ProcView, float]]:
        """Returns the living processes of other jobs on a device, with their bytes there.

        Processes whose memory is unknown are left out.
        """
        own = {process.id for process in job.processes}
        out = []
        for use in device.uses:
            process = by_id(self.host.processes, use.process)
            size = use.number("used_bytes")
            if (
                process is not None
                and process.gone is None
                and process.id not in own
                and use.gone is None
                and size is not None
            ):
                out.append((process, size))
        return sorted(out, key=lambda pair: -pair[1])


def living(job: JobView) -> list[TrainerView]:
    """Returns the ranks of a job that still run."""
    return [trainer for trainer in job.trainers if trainer.gone is None]


def place(scene: LiveScene, trainer: TrainerView, allocator: AllocView | None = None) -> str:
    """Returns where a finding is, such as ``rank 3, GPU 3, pid 48216``."""
    definition = trainer.definition
    chosen = [scene.device(allocator)] if allocator is not None else scene.devices(trainer)
    names = [f"rank {definition.rank}"] if definition.rank is not None else []
    names += [f"GPU {one.definition.index}" for one in chosen if one is not None][:4]
    return ", ".join([*names, f"pid {definition.pid}"])


def free_gpus(scene: LiveScene) -> dict[str, str | None]:
    """Returns the figures of a fix that takes a free GPU, and of one for where there is none."""
    free = [
        one.definition.index
        for one in scene.host.devices
        if one.gone is None and judge(scene.host, one).word == "free"
    ]
    return {
        "free": ranges_text(free) if free else None,
        "first_free": str(free[0]) if free else None,
        "full": None if free else "",
    }
