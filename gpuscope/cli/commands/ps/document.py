"""Put the processes and trainers of one host into the document of ``gpuscope ps``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....model.allocator_split import COLUMNS, POOL_COLUMNS, Counters, split
from ....model.device_state import judge, list_gap, silence
from ....model.job_order import worst_first
from ....model.lost_loss import loss_of
from ....model.pace import counts_of
from ....model.ranks import running
from ....model.stalls import find_stall, is_stalled, stands_text
from ....model.step_parts import step_parts
from ....model.step_time import SPLIT
from ....store.view import AllocView, DeviceView, HostView, ProcView, TrainerView, UseView, by_id
from ....wire.clean import clean
from ....wire.frames import (
    ALLOCATOR_COLUMNS,
    HIDDEN_BY_CONTAINER,
    NOT_INITIALISED,
    TRAINER_COLUMNS,
    ProcDef,
    Reading,
    Unknown,
)
from ...output import Unknowns, exit_code, problem
from ..devices.document import process_fields, state_fields

_TRAINER_FIELDS = (
    "rank", "local_rank", "world_size", "job", "script", "torch_version", "python_version",
    "backend", "origin", "allocator_settings", "step_source",
)  # fmt: skip
_SUMMED = (
    "allocated_bytes", "reserved_bytes", "parameter_bytes", "gradient_bytes",
    "optimizer_state_bytes", "other_model_bytes",
)  # fmt: skip
NO_CUDA = Unknown(
    NOT_INITIALISED, "this trainer has not initialised CUDA: torch counts no memory for the CPU"
)
NO_SAMPLE = Unknown(NOT_INITIALISED, "the probe has not sent a sample yet")

UNMAPPED = Unknown(
    NOT_INITIALISED,
    "the probe does not report which GPU this is, or the driver here does not list it",
)
WALL_CLOCK, STEP = "wall clock", "step breakdown"
"""What is divided: all of the time by samples of the thread, or the last steps by marks."""
_ALONE = Unknown(NOT_INITIALISED, "the trainer does not say that it is one of several ranks")
_UNSAID = {
    **dict.fromkeys(_TRAINER_FIELDS, Unknown(NOT_INITIALISED, "the probe does not report it")),
    **dict.fromkeys(("rank", "local_rank", "world_size", "job"), _ALONE),
    "backend": NO_CUDA,
    "allocator_settings": Unknown(
        NOT_INITIALISED, "none was set at the process's start, as far as known"
    ),
}
"""Why a field of a trainer is null if its probe gives no reason."""


def find_problems(host: HostView) -> list[dict[str, Any]]:
    """Return what could not be read: the driver, some of the probes, or the list of a device."""
    unchecked = [reason for reason in (host.nvml, host.unread) if reason is not None]
    problems = [problem(None, "unchecked", reason.text) for reason in unchecked]
    for device in host.devices:
        reason = list_gap(device)
        if (
            reason is not None
            and (not device.uses or _is_late(device))
            and reason.code != HIDDEN_BY_CONTAINER
        ):
            problems.append(problem(device.definition.index, "unchecked", reason.text))
    return problems


def _is_late(device: DeviceView) -> bool:
    """Whether it does not answer at all, so that who was on it before is all that is known."""
    silent = silence(device.readings)
    return silent is not None and silent.kind == "bad"


def document(host: HostView, problems: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the JSON document.

    ``processes`` has the worst job first, its ranks adjacent and in order.
    """
    unknowns = Unknowns()
    if host.nvml is not None:
        unknowns.add("devices", host.nvml)
    for device in host.devices:
        gap = list_gap(device)
        if gap is not None:
            unknowns.add(f"devices[{device.definition.index}].processes", gap)
    if host.hidden is not None:
        unknowns.add("processes", host.hidden)
    trainers = {trainer.process: trainer for trainer in host.trainers if not _is_foreign(trainer)}
    rows = [(process, trainers.get(process.id)) for process in host.processes]
    rows += [(_itself(trainer), trainer) for trainer in host.trainers if _is_foreign(trainer)]
    of_job = {job.key: at for at, job in enumerate(worst_first(host))}
    rows.sort(key=lambda row: _order(row[0].definition, row[1], of_job))
    return {
        "host": clean(host.name),
        "processes": [_process(unknowns, index, *row, host) for index, row in enumerate(rows)],
        "problems": problems,
        "unknown": unknowns.rows,
        "exit_code": exit_code(problems),
    }


def _is_foreign(trainer: TrainerView) -> bool:
    """Whether it runs in another pid namespace, so that its process here is not known."""
    return isinstance(trainer.readings.get("proc"), Unknown)


def _itself(trainer: TrainerView) -> ProcView:
    """The process of such a trainer, as far as it says so itself."""
    definition = ProcDef(trainer.definition.pid, trainer.definition.start)
    return ProcView(0, trainer.key, {}, None, None, definition, (), trainer.id)


def _order(
    process: ProcDef, trainer: TrainerView | None, of_job: Mapping[str, int]
) -> tuple[Any, ...]:
    """Return the sort key of a process.

    Trainers come first, by the place of their job in ``of_job``, with the ranks in order. Then come
    other processes, the user's own before others'.
    """
    own = None if trainer is None else of_job.get(trainer.definition.job or trainer.key)
    place = len(of_job) if own is None else own
    rank = (
        trainer.definition.rank
        if trainer is not None and trainer.definition.rank is not None
        else -1
    )
    return trainer is None, place, rank, not process.mine, process.user or "", process.pid


def _process(
    unknowns: Unknowns, index: int, process: ProcView, trainer: TrainerView | None, host: HostView
) -> dict[str, Any]:
    path, definition = f"processes[{index}]", process.definition
    lost = loss_of(host, trainer or process)
    return {
        "pid": definition.pid,
        **process_fields(unknowns, path, process),
        "mine": definition.mine,
        # For these fields, ``loss_not_finite`` and ``trainer`` null means that there is none.
        **{name: _cleaned(getattr(definition, name)) for name in ("container", "pod", "slurm_job")},
        "devices": [
            {
                "uuid": clean(device.definition.uuid),
                "index": device.definition.index,
                "state": state_fields(judge(host, device)),
                **{
                    column: unknowns.value(
                        f"{path}.devices[{position}].{column}", use.reading(column)
                    )
                    for column in ("used_bytes", "sm_percent")
                },
            }
            for position, (device, use) in enumerate(_uses(process, host))
        ],
        "loss_not_finite": lost.text if lost is not None else None,
        "trainer": None
        if trainer is None
        else _trainer(unknowns, f"{path}.trainer", trainer, host),
    }


def _uses(process: ProcView, host: HostView) -> list[tuple[DeviceView, UseView]]:
    """The devices that it is on, in their order."""
    return [
        (device, use) for device in host.devices for use in process.uses if use.gpu == device.id
    ]


def _cleaned(value: Any) -> Any:
    return clean(value) if isinstance(value, str) else value


def _trainer(unknowns: Unknowns, path: str, trainer: TrainerView, host: HostView) -> dict[str, Any]:
    on_gpu = [allocator for allocator in trainer.allocators if allocator.definition.ordinal >= 0]
    sampled = trainer.sampled_seconds is not None
    readings = trainer.readings if sampled else dict.fromkeys(TRAINER_COLUMNS, NO_SAMPLE)
    job = host.job_of(trainer)
    if sampled and job is not None and trainer.key in (steps := counts_of(running(job.trainers))):
        readings = {**readings, "step": steps[trainer.key]}  # of one moment in all its ranks
    return {
        **unknowns.fields(
            path, trainer.definition, _TRAINER_FIELDS, {**_UNSAID, **trainer.readings}
        ),
        **unknowns.columns(path, readings, {name: name for name in TRAINER_COLUMNS}),
        "measured_step_seconds": unknowns.value(
            f"{path}.measured_step_seconds", _measured_step(readings)
        ),
        **{name: unknowns.value(f"{path}.{name}", _sum(trainer, on_gpu, name)) for name in _SUMMED},
        "stands": unknowns.value(f"{path}.stands", _stands(trainer, host, readings)),
        "where_time_goes": _where_time_goes(unknowns, f"{path}.where_time_goes", trainer, host),
        "allocators": [
            _allocator(unknowns, f"{path}.allocators[{position}]", allocator, host)
            for position, allocator in enumerate(on_gpu)
        ],
    }


def _measured_step(readings: Mapping[str, Reading]) -> Reading:
    """Return the mean step time, which is the sum of the parts.

    ``step_seconds`` cannot be used, because it is a median over other steps.
    """
    if isinstance(why := readings.get("compute_seconds", NO_SAMPLE), Unknown):
        return why
    parts = [readings.get(f"{part}_seconds") for part in SPLIT]
    return round(sum(value for value in parts if isinstance(value, (int, float))), 9)


def _stands(trainer: TrainerView, host: HostView, readings: Mapping[str, Reading]) -> Reading:
    """Return at what a trainer that hangs stands, or for whom it waits; else why nothing does."""
    job, told = host.job_of(trainer), ""
    if is_stalled(trainer):
        told = stands_text(trainer, find_stall(job.trainers) if job is not None else None)
    return told or readings.get("stall_at", NO_SAMPLE)


def _where_time_goes(
    unknowns: Unknowns, path: str, trainer: TrainerView, host: HostView
) -> dict[str, Any] | None:
    """Return what a step is made of, as all surfaces divide it; None where nothing is known."""
    parts = step_parts([trainer], host)
    if parts is None:
        why = trainer.readings.get("compute_seconds", NO_SAMPLE)
        unknowns.add(path, why if isinstance(why, Unknown) else NO_SAMPLE)
        return None
    return {
        "of": WALL_CLOCK if parts.of_ledger else STEP,
        "basis": parts.basis,
        "step_seconds": parts.seconds,
        "rows": [
            {"row": parts.words[name], "share": round(share, 6)}
            for name, share in parts.shares.items()
        ],
    }


def _sum(trainer: TrainerView, on_gpu: list[AllocView], column: str) -> Reading:
    """Return the sum of a column over all devices of the trainer.

    If the trainer uses no device, it is the value for the CPU. The sum is unknown when a part of it
    is.
    """
    if not trainer.allocators:
        return NO_SAMPLE if trainer.sampled_seconds is None else NO_CUDA
    total = 0
    for allocator in on_gpu or trainer.allocators:
        value = allocator.readings.get(column, NO_SAMPLE)
        if not isinstance(value, int):
            return value if isinstance(value, Unknown) else NO_SAMPLE
        total += value
    return total


def _allocator(
    unknowns: Unknowns, path: str, allocator: AllocView, host: HostView
) -> dict[str, Any]:
    definition, why = allocator.definition, allocator.unknown("uuid")
    device = by_id(host.devices, allocator.gpu)
    sampled = allocator.sampled_seconds is not None
    readings = allocator.readings if sampled else dict.fromkeys(ALLOCATOR_COLUMNS, NO_SAMPLE)
    return {
        "ordinal": definition.ordinal,
        "uuid": unknowns.value(f"{path}.uuid", definition.uuid, UNMAPPED if why is None else why),
        "index": unknowns.value(
            f"{path}.index", UNMAPPED if device is None else device.definition.index
        ),
        **unknowns.columns(path, readings, {name: name for name in ALLOCATOR_COLUMNS}),
        "split": _split(unknowns, f"{path}.split", readings),
    }


def _split(unknowns: Unknowns, path: str, readings: Mapping[str, Reading]) -> dict[str, Any] | None:
    """Return the parts of ``reserved_bytes``; all but ``error_bytes`` add up to it."""
    values = [readings.get(column, NO_SAMPLE) for column in COLUMNS]
    counts = [value for value in values if isinstance(value, int)]
    if len(counts) < len(values):
        why = next(value for value in values if not isinstance(value, int))
        unknowns.value(path, why if isinstance(why, Unknown) else NO_SAMPLE)
        return None
    pools = [
        value if isinstance(value := readings.get(column), int) else 0 for column in POOL_COLUMNS
    ]
    whole = split(Counters(*counts, *pools))
    return {
        "live_bytes": whole.live,
        "rounding_bytes": whole.rounding,
        "awaiting_free_bytes": whole.awaiting,
        "inactive_split_bytes": whole.inactive_split,
        "releasable_bytes": whole.releasable,
        "private_pool_idle_bytes": whole.pool_idle,
        "error_bytes": whole.error,
    }


# ── text ──────────────────────────────────────────────────────────────────────────────────────────
