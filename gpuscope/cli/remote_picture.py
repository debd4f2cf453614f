"""The picture of another host in the shape that one of this machine has, so that a verb prints both alike."""

from __future__ import annotations

from dataclasses import fields

from ..agent.picture import DevicePicture, Picture, ProcessPicture
from ..collect.trainers import AllocatorNews, TrainerNews
from ..model.device_state import unowned
from ..store.view import DeviceView, Entity, HostView, ProcView, TrainerView
from ..wire.frames import HIDDEN_BY_CONTAINER, TIMEOUT, AllocDef, GpuDef, HostDef, ProcDef, Reading, TrainerDef, Unknown

HIDDEN = Unknown(
    HIDDEN_BY_CONTAINER,
    "the driver counts processes by the host's pids, which the container there cannot see; start it with --pid=host "
    "(Kubernetes: hostPID: true) to see them",
)


def picture_of(host: HostView) -> Picture:
    """What an agent told of its host, without what has ended."""
    processes = [one for one in host.processes if one.gone is None]
    foreign = [one for one in processes if _is_foreign(one)]
    picture = Picture(
        host.sampled_seconds or 0.0, host.definition, _reasons(host, HostDef), host.readings,
        host.sampled_seconds or 0.0, host.nvml,
    )  # fmt: skip
    by_id = {one.id: one.definition.pid for one in processes}
    picture.devices = [_device(one, by_id) for one in host.devices if one.gone is None]
    picture.processes = {
        one.definition.pid: ProcessPicture(
            one.definition, _reasons(one, ProcDef), one.readings, one.sampled_seconds or 0.0
        )
        for one in processes
        if one not in foreign
    }
    picture.unread = host.unread
    picture.trainers = [_trainer(one, by_id) for one in host.trainers if one.gone is None]
    nobodys = any(not d.processes and unowned(d.readings, ()) for d in picture.devices)
    if foreign or (nobodys and host.definition.container):
        picture.hidden = HIDDEN
    return picture


def _is_foreign(process: ProcView) -> bool:
    reason = process.readings.get("user")
    return isinstance(reason, Unknown) and reason.code == HIDDEN_BY_CONTAINER and process.definition.start is None


def _device(device: DeviceView, pids: dict[int, int]) -> DevicePicture:
    reasons = _reasons(device, GpuDef)
    gap = device.readings.get("processes")
    if isinstance(gap, Unknown):
        reasons["processes"] = gap
    used: list[tuple[int, Reading]] = [
        (pids[use.process], use.reading("used_bytes")) for use in device.uses if use.process in pids
    ]
    late = device.readings.get("used_bytes")
    late = late if isinstance(late, Unknown) and late.code == TIMEOUT else None
    listed = None if isinstance(gap, Unknown) and not used else used
    stamp = device.sampled_seconds or 0.0
    load = {pids[use.process]: use.reading("sm_percent") for use in device.uses if use.process in pids}
    return DevicePicture(device.definition, reasons, device.readings, stamp, late, listed, stamp, load)


def _trainer(trainer: TrainerView, pids: dict[int, int]) -> TrainerNews:
    definition = trainer.definition
    hidden = isinstance(trainer.readings.get("proc"), Unknown)
    pid = None if hidden else pids.get(trainer.process or -1, definition.pid)
    allocators = [
        AllocatorNews(one.id, one.definition, _reasons(one, AllocDef), dict(one.readings), 1)
        for one in trainer.allocators
        if one.gone is None
    ]
    reasons = _reasons(trainer, TrainerDef)
    return TrainerNews(trainer.id, pid, definition.start, definition, reasons, dict(trainer.readings), 1, allocators)


def _reasons(entity: Entity, definition: type[object]) -> dict[str, Unknown]:
    """Why fields of its definition are unknown."""
    names = {field.name for field in fields(definition)}  # type: ignore[arg-type]
    return {name: why for name, why in entity.readings.items() if isinstance(why, Unknown) and name in names}
