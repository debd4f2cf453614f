"""Judge what state a job is in: the worst of its ranks and of the devices below them.

A job is no better than the worst device that it runs on. Every screen asks here, so that a job does
not look well where one of its devices is lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..store.view import (
    DeviceView,
    HistoryOf,
    HostView,
    JobView,
    ProcView,
    TrainerView,
    no_history,
)
from ..text.ranges import ranges_text
from .device_state import HANGS, DeviceState, Kind, broken, judge
from .device_trainings import filling
from .job_ends import end_of
from .lost_loss import lost_loss
from .memory_room import alarm
from .ranks import names_of
from .stalls import find_stall


@dataclass(frozen=True, slots=True)
class JobState:
    """The state of a job: how grave it is, in a word, where, and why; "" for what is not to say."""

    kind: Kind
    word: str
    where: str = ""
    reason: str = ""

    @property
    def text(self) -> str:
        """Where and why, in one line."""
        return ": ".join(part for part in (self.where, self.reason) if part)


WELL = JobState("ok", "ok")
Judged = Mapping[int, DeviceState]
"""The states of all devices of a host by the device's id, as ``judge_devices`` gives them."""


def device_ids(entity: TrainerView | ProcView) -> set[int]:
    """Return the ids of the devices that a trainer has allocators on, or that a process uses."""
    if isinstance(entity, TrainerView):
        return {a.gpu for a in entity.allocators if a.gpu is not None and a.gone is None}
    return {use.gpu for use in entity.uses if use.gone is None}


def living_members(job: JobView) -> list[TrainerView | ProcView]:
    """Return the trainers and processes of a job that have not ended."""
    members: list[TrainerView | ProcView] = [*job.trainers, *job.processes]
    return [one for one in members if one.gone is None]


def job_devices(job: JobView) -> set[int]:
    """Return the ids of the devices that the living members of a job use."""
    return set().union(*(device_ids(one) for one in living_members(job)))


def judge_devices(host: HostView, history: HistoryOf = no_history) -> Judged:
    """Return the states of all devices of a host, so that none is judged once for each job."""
    return {device.id: judge(host, device, history) for device in host.devices}


def broken_devices(host: HostView, judged: Judged | None = None) -> dict[int, DeviceState]:
    """Return the states of the devices that no program can rely on, by the device's id."""
    if judged is not None:
        return {device: state for device, state in judged.items() if state.kind == "bad"}
    return {d.id: state for d in host.devices if (state := broken(d)) is not None}


def on_sound_devices(
    host: HostView, trainers: Sequence[TrainerView], judged: Judged | None = None
) -> list[TrainerView]:
    """Return the trainers on no broken device: what the others last reported is not of now."""
    states = broken_devices(host, judged).keys()
    return [trainer for trainer in trainers if not device_ids(trainer) & states]


def broken_below(
    host: HostView, *entities: TrainerView | ProcView | None
) -> tuple[int, DeviceState] | None:
    """Return the index and the state of the first broken device below a process or trainer."""
    below = set().union(*(device_ids(one) for one in entities if one is not None))
    found = ((d.definition.index, broken(d)) for d in host.devices if d.id in below)
    return next(((index, state) for index, state in found if state is not None), None)


def on_broken(
    host: HostView, entities: Iterable[TrainerView | ProcView], judged: Judged | None = None
) -> dict[int, tuple[DeviceView, DeviceState, list[TrainerView]]]:
    """Return the broken devices below some trainers or processes, with the trainers on each."""
    states, devices = broken_devices(host, judged), {d.id: d for d in host.devices}
    found: dict[int, tuple[DeviceView, DeviceState, list[TrainerView]]] = {}
    for entity in entities if states else ():
        for device in sorted(device_ids(entity) & states.keys()):
            entry = found.setdefault(device, (devices[device], states[device], []))
            if isinstance(entity, TrainerView):
                entry[2].append(entity)
    return found


def broken_state(host: HostView, job: JobView, judged: Judged | None = None) -> JobState | None:
    """Return the state of a job that runs on a device which no program can rely on."""
    return next(iter(broken_states(host, job, judged)), None)


def broken_states(host: HostView, job: JobView, judged: Judged | None = None) -> list[JobState]:
    """Return a state for each way in which devices of a job are broken, the first device first."""
    found = on_broken(host, living_members(job), judged).values()
    by_word: dict[str, list[tuple[DeviceView, DeviceState, list[TrainerView]]]] = {}
    for entry in sorted(found, key=lambda one: one[0].definition.index):
        by_word.setdefault(entry[1].word, []).append(entry)
    return [_broken_alike(word, same, job) for word, same in by_word.items()]


def _broken_alike(
    word: str, same: Sequence[tuple[DeviceView, DeviceState, list[TrainerView]]], job: JobView
) -> JobState:
    where = f"GPU {ranges_text(device.definition.index for device, _, _ in same)}"
    ranks = [trainer for _, _, trainers in same for trainer in trainers]
    named = [trainer for trainer in ranks if trainer.definition.rank is not None]
    of = f" of {names_of(named)}" if named and len(job.trainers) > 1 else ""
    return JobState("bad", word, f"{where}{of}", same[0][1].reason)


def job_state(
    host: HostView, job: JobView, history: HistoryOf = no_history, judged: Judged | None = None
) -> JobState:
    """Return the state of a job: broken, stalled, its loss NaN, or its worst device's warning.

    What hangs comes before a loss that is NaN: it does not even make steps.

    ``judged``: the states of all devices of the host, where these are known already.
    """
    if end_of(job) is not None:
        return JobState("idle", "ended")
    lost = broken_state(host, job, judged)
    if lost is not None:
        return lost
    stall = find_stall(job.trainers)
    if stall is not None and not stall.busy:
        return JobState("bad", "stalled", reason=stall.text)
    loss = lost_loss(host, job, history)
    if loss is not None:
        return JobState("bad", loss.word, loss.rank, loss.brief)
    if stall is not None:
        return WELL
    return _worst_device(judged_devices(host, job, history, judged))


def worst_of_jobs(host: HostView, history: HistoryOf = no_history) -> Kind:
    """Tell how the jobs of a host are, without those warnings of devices that only cost time.

    Bad: a job is broken, is stalled, has a loss of NaN, or is about to run out of memory. Warn: it
    will run out.
    """
    running = [job for job in host.jobs if end_of(job) is None]
    if broken_devices(host) and any(broken_state(host, job) is not None for job in running):
        return "bad"
    stalls = (find_stall(job.trainers) for job in running)
    if any(stall is not None and not stall.busy for stall in stalls):
        return "bad"
    if any(lost_loss(host, job) is not None for job in running):
        return "bad"
    below = set().union(*(job_devices(job) for job in running))
    rooms = [filling(host, device, history) for device in host.devices if device.id in below]
    grave = {alarm(room) for room in rooms if room is not None}
    return "bad" if "bad" in grave else "warn" if grave else "ok"


def judged_devices(
    host: HostView, job: JobView, history: HistoryOf = no_history, judged: Judged | None = None
) -> Mapping[int, DeviceState]:
    """Return the states of the devices below a job, by the index of the device."""
    below = job_devices(job)
    return {
        d.definition.index: judge(host, d, history) if judged is None else judged[d.id]
        for d in host.devices
        if d.id in below
    }


def _worst_device(states: Mapping[int, DeviceState]) -> JobState:
    """Return the warning that is urgent, else the one that most devices of a job share."""
    warned: dict[str, list[int]] = {}
    for index, state in states.items():
        if state.kind == "warn" and state.word not in HANGS:
            warned.setdefault(state.word, []).append(index)
    if not warned:
        return WELL
    word, indices = max(
        warned.items(),
        key=lambda entry: (
            any(states[index].urgent for index in entry[1]),
            entry[0] == "filling",
            len(entry[1]),
        ),
    )
    first = next((index for index in indices if states[index].urgent), indices[0])
    kind: Kind = "bad" if states[first].urgent else "warn"
    return JobState(kind, word, f"GPU {ranges_text(indices)}", states[first].reason)
