"""Judge which processes share a device, and which resources the host runs short of.

The rules find other programs on the card, ranks on the wrong card, DataParallel, and a model left
on the CPU.
"""

from __future__ import annotations

from ..model.memory_room import headroom
from ..model.ranks import name_of, subject_of
from ..model.stalls import is_stalled
from ..store.view import AllocView, JobView, TrainerView
from ..text.units import GIB, MIB, bytes_text, count_text, duration_text, percent_text
from ..wire.frames import NOT_SUPPORTED, Unknown
from .environment_build import wheels
from .environment_facts import version
from .finding import Confidence, Evidence
from .live_scene import WORDINGS, Findings, LiveScene, free_gpus, living, place, warmed_up

FOREIGN_SHARE, FOREIGN_BYTES = 0.20, 1.5 * GIB
"""A process that holds less is only a CUDA context, a desktop or a monitor."""
TIGHT = 0.10
UNEVEN = 1.15
LEAST_BYTES = 64 * MIB
SHORT_SHARE, SHORT_BYTES = 0.05, 2 * GIB
FULL_LIMIT, FULL_SHM = 0.95, 0.90
FEW_STEPS = 3
"""A model on the CPU is reported after this many steps, which may take a while there."""
SMALL_MODEL, SLOW_STEP = MIB, 0.1
"""A GPU would not help a model with fewer bytes of parameters and faster steps than these."""


def foreign_memory(scene: LiveScene, job: JobView) -> Findings:
    """Yields a finding on memory of the card that other programs hold.

    It is a warning only where the trainer itself has little memory left.
    """
    for trainer in living(job):
        for allocator in trainer.allocators:
            device = scene.device(allocator)
            total = device.definition.total_bytes if device is not None else None
            others = scene.others(device, job) if device is not None else []
            held = sum(amount for _, amount in others)
            if device is None or not total or held < max(FOREIGN_BYTES, FOREIGN_SHARE * total):
                continue
            left = headroom(scene.host.devices, trainer, allocator, scene.history)
            tight = left is not None and left < TIGHT * total
            names = ", ".join(
                f"pid {p.definition.pid} ({p.definition.user or 'unknown user'}, "
                f"{p.definition.name or 'unknown program'}) {bytes_text(amount)}"
                for p, amount in others[:4]
            )
            evidence = [Evidence(f"of {bytes_text(total)}: {names}", "nvml")]
            evidence.append(
                Evidence(
                    f"headroom of {subject_of(trainer)}: {bytes_text(left)}"
                    if left is not None
                    else "the headroom is unknown"
                )
            )
            mine = " ".join(
                str(p.definition.pid) for p in [p for p, _ in others if p.definition.mine][:8]
            )
            yield WORDINGS.finding(
                "live.shared_device",
                {
                    "held": bytes_text(held),
                    "gpu": device.definition.index,
                    "pids": mine or None,
                    **free_gpus(scene),
                },
                severity="warning" if tight else "info",
                where=place(scene, trainer, allocator),
                rank=held / total,
                evidence=tuple(evidence),
            )


def ranks_on_one_device(scene: LiveScene, job: JobView) -> Findings:
    """Yields a finding where several ranks use one card while there are cards enough."""
    ranks = living(job)
    if len(ranks) < 2:
        return
    for device in scene.host.devices:
        sure: Confidence = "definite"
        here = [
            p
            for p in job.processes
            if p.gone is None and any(u.gpu == device.id and u.gone is None for u in p.uses)
        ]
        homes = [t for t in ranks if device in scene.devices(t)[:1]]
        extra = [p for p in here if p.trainer not in {t.id for t in homes}]
        sizes = [u.number("used_bytes") for p in extra for u in p.uses if u.gpu == device.id]
        shown = sum(amount for amount in sizes if amount is not None)
        if len(homes) > 1 and len(scene.host.devices) >= len(ranks):
            names = ", ".join(name_of(t) for t in homes[:8])
            text = (
                f"{names} all train on GPU {device.definition.index}; "
                f"{len(scene.host.devices)} GPUs are here"
            )
            evidence = [Evidence(text, "probe")]
            name, count = "ranks.one_device", len(homes)
        elif extra and len(here) > 1 and len(homes) == 1:
            names = ", ".join(f"pid {p.definition.pid}" for p in extra[:8])
            evidence = [
                Evidence(f"{names} hold {bytes_text(shown)} there and train elsewhere", "nvml")
            ]
            name, count = "ranks.one_device.also", len(extra)
            sure = "likely"  # ranks that exchange GPU tensors through gloo look the same
        else:
            continue
        yield WORDINGS.finding(
            name,
            {"count": count, "gpu": device.definition.index},
            severity="warning",
            confidence=sure,
            evidence=tuple(evidence),
            where=f"GPU {device.definition.index}",
        )


def data_parallel(scene: LiveScene, job: JobView) -> Findings:
    """Yield findings on a process that uses several cards but has weights only on the first.

    This is ``nn.DataParallel``, which copies the weights to the other cards in every step.
    """
    for trainer in living(job):
        used = [
            (one, amount)
            for one in trainer.allocators
            if one.definition.ordinal >= 0
            and one.gone is None
            and (amount := _peak_bytes(one)) is not None
            and amount >= LEAST_BYTES
        ]
        weights = {one.definition.ordinal: one.number("parameter_bytes") for one, _ in used}
        if len(used) < 2 or None in weights.values() or not warmed_up(trainer):
            continue
        owners = [ordinal for ordinal, amount in weights.items() if amount]
        if len(owners) != 1:
            continue
        first = owners[0]
        held = {one.definition.ordinal: amount for one, amount in used}
        others = [amount for ordinal, amount in held.items() if ordinal != first]
        text = ", ".join(
            f"cuda:{ordinal} {bytes_text(amount)}" for ordinal, amount in sorted(held.items())
        )
        evidence = (
            Evidence(
                f"parameters on cuda:{first} only ({bytes_text(weights[first] or 0)}), memory "
                f"on {len(used)} GPUs",
                "probe",
            ),
            Evidence(f"peak allocated: {text}", "probe"),
        )
        yield WORDINGS.finding(
            "live.data_parallel", evidence=evidence, where=place(scene, trainer), rank=0.5
        )
        if held[first] > UNEVEN * (sum(held.values()) / len(held)):
            yield WORDINGS.finding(
                "live.data_parallel_imbalance",
                {"first": first, "times": f"{held[first] / max(others):.1f}"},
                evidence=evidence,
                where=place(scene, trainer),
            )


def _peak_bytes(allocator: AllocView) -> float | None:
    """Returns the most bytes that were allocated, or those of now where the peak is unknown."""
    peak = allocator.number("peak_allocated_bytes")
    return allocator.number("allocated_bytes") if peak is None else peak


def on_the_cpu(scene: LiveScene, job: JobView) -> Findings:
    """Yields a finding on a training on the CPU of a machine with GPUs.

    A small model may run there for a good reason. A training that initialised CUDA, or whose steps
    take long, was meant for the GPU. Several whose torch knows no CUDA have one finding, at the
    first of them: what is wrong is the torch.
    """
    if not any(device.gone is None for device in scene.host.devices):
        return
    for trainer in living(job):
        on_cpu, slow = _bytes_on_the_cpu(trainer), _is_slow(trainer)
        if on_cpu is None:
            continue
        step, wants_cuda = trainer.number("step_seconds"), trainer.definition.cuda or slow
        built = trainer.definition.torch_version or ""
        no_cuda = built.endswith("+cpu")
        alike = [t for one in scene.host.jobs for t in living(one) if _bytes_on_the_cpu(t)]
        same = [one.id for one in alike if one.definition.torch_version == built]
        if no_cuda and trainer.id != min(same):  # the oldest: jobs change their order
            continue
        evidence = [
            Evidence(f"{bytes_text(on_cpu)} of parameters on the CPU, none on a GPU", "probe")
        ]
        loads = [
            v for d in scene.host.devices if (v := scene.mean(d, "utilization_percent")) is not None
        ]
        if loads:
            evidence.append(
                Evidence(
                    f"{count_text(len(loads), 'GPU')} here, the busiest {max(loads):.0f} % in use",
                    "nvml",
                )
            )
        cuda = "initialised" if trainer.definition.cuda else "never used"
        pace = f", a step takes {duration_text(step)}" if step is not None else ""
        evidence.append(Evidence(f"CUDA is {cuda} in this process{pace}", "probe"))
        present = [version(d.definition.compute_capability) for d in scene.host.devices]
        served = scene.host.definition.cuda_driver_version
        yield WORDINGS.finding(
            "live.cpu_build" if no_cuda else "live.model_on_cpu",
            {"version": built, "wheels": wheels(served, [one for one in present if one])},
            severity="problem" if no_cuda else "warning" if wants_cuda else "info",
            confidence="definite" if wants_cuda or no_cuda else "likely",
            evidence=tuple(evidence),
            where=place(scene, trainer),
            rank=1.0,
        )


def _is_slow(trainer: TrainerView) -> bool:
    step = trainer.number("step_seconds")
    return step is not None and step >= SLOW_STEP


def _bytes_on_the_cpu(trainer: TrainerView) -> float | None:
    """Returns the parameters of a model on the CPU that a GPU would help, None without one."""
    weights = {one.definition.ordinal: one.number("parameter_bytes") for one in trainer.allocators}
    on_cpu = weights.get(-1)
    on_gpu = [amount for ordinal, amount in weights.items() if ordinal >= 0]
    if (
        not on_cpu
        or any(amount is None or amount > 0 for amount in on_gpu)
        or is_stalled(trainer)
        or (trainer.number("step") or 0) < FEW_STEPS
        or (on_cpu < SMALL_MODEL and not _is_slow(trainer))
    ):
        return None
    return on_cpu


def host_memory(scene: LiveScene) -> Findings:
    """Yields a finding where the host or the cgroup is about to run out of memory."""
    host, definition = scene.host, scene.host.definition
    total, free = definition.memory_total_bytes, host.number("memory_available_bytes")
    limit, used = definition.cgroup_memory_limit_bytes, host.number("cgroup_memory_used_bytes")
    evidence = []
    if total and free is not None and free < min(SHORT_SHARE * total, SHORT_BYTES):
        evidence.append(
            Evidence(
                f"{bytes_text(free)} of the host's {bytes_text(total)} are available",
                "/proc/meminfo",
            )
        )
    if limit and used is not None and used >= FULL_LIMIT * limit:
        text = (
            f"{bytes_text(used)} in use of the {bytes_text(limit)} that the cgroup allows: "
            f"{percent_text(used / limit)}"
        )
        evidence.append(Evidence(text, "cgroup"))
    if not evidence:
        reading = host.reading("memory_available_bytes")
        if isinstance(reading, Unknown) and reading.code not in (
            "not_sent",
            "no_reason",
            NOT_SUPPORTED,
        ):
            yield WORDINGS.abstained("host-memory", why=reading.text)
        return
    largest = sorted(
        ((size_, p) for p in host.processes if p.gone is None and (size_ := p.number("rss_bytes"))),
        key=lambda pair: -pair[0],
    )[:3]
    for amount, process in largest:
        name = process.definition.name or "unknown program"
        evidence.append(
            Evidence(f"pid {process.definition.pid} ({name}) holds {bytes_text(amount)}", "/proc")
        )
    swap = host.number("swap_used_bytes")
    if swap:
        evidence.append(Evidence(f"{bytes_text(swap)} are swapped out", "/proc/meminfo"))
    yield WORDINGS.finding("host.memory_short", evidence=tuple(evidence), where="host", rank=0.8)


def shared_memory(scene: LiveScene) -> Findings:
    """Yields a finding where /dev/shm is full, through which loader workers pass batches."""
    total, used = scene.host.definition.shm_total_bytes, scene.host.number("shm_used_bytes")
    if not total or used is None or used < FULL_SHM * total:
        return
    text = (
        f"{bytes_text(used)} of {bytes_text(total)} in /dev/shm are in use: "
        f"{percent_text(used / total)}"
    )
    yield WORDINGS.finding("host.shm_full", where="host", evidence=(Evidence(text, "/dev/shm"),))
