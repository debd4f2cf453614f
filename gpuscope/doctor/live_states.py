"""Judge the state of each device: what is wrong with the card, and how its training uses it.

The states come from ``model.device_state``, which every screen uses as well.
"""

from __future__ import annotations

from ..model.device_state import (
    DeviceState,
    broken,
    faults_of,
    processes_on,
    silence,
    slowed,
    troubles,
)
from ..model.device_trainings import TensorIdle, is_steady, tensor_idle
from ..model.growth import trend_of
from ..model.job_state import job_devices
from ..model.memory_layers import living as allocators_on
from ..model.memory_layers import trainer_of
from ..model.memory_room import headroom
from ..model.ranks import subject_of
from ..model.step_parts import passes_of
from ..store.view import DeviceView, JobView, TrainerView
from ..text.units import bytes_text, percent_text
from .finding import Effect, Evidence, Finding
from .live_input import steady_ranks
from .live_scene import WORDINGS, Findings, LiveScene, free_gpus, place

LOST = 4.0
"""The rank of a lost device: above that of what hangs because of it."""
HOLDERS, MOST_PIDS = 3, 16
OF_THE_CARD = frozenset(
    ("device.lost", "environment.ecc", "environment.remap", "environment.throttle")
)
"""Causes that the environment's examination also reports, as of the moment when it was made."""
OF_A_STATE = OF_THE_CARD | {"live.full", "live.tensor_idle"}
"""Causes that the state of a device also reports."""
FASTER = {"9.0": (7, 15)}
"""How much faster than plain float32 the tensor cores multiply in TF32 and in bf16.

The key is the compute capability; the values follow from the data sheet of the H100 and the H200
(67, 495 and 990 TFLOPS).
"""


def device_health(scene: LiveScene, device: DeviceView) -> Findings:
    """Yields a finding on a device that is lost, hangs, has faults or is slowed down."""
    where, gpu = f"GPU {device.definition.index}", device.definition.index
    silent = silence(device.readings)
    if silent is not None:
        if silent.kind == "bad":
            yield WORDINGS.finding(
                "device.lost" if silent.word == "lost" else "device.lost.hung",
                {"gpu": gpu, "pids": _mine_on(scene, device), "others": _others_of(scene, device)},
                evidence=(Evidence(silent.reason, "nvml"),),
                where=where,
                rank=LOST,
            )
        return
    faults = faults_of(device.readings)
    if faults:
        yield WORDINGS.finding(
            "environment.ecc" if any(one.word == "ECC" for one in faults) else "environment.remap",
            {"gpu": gpu},
            severity="problem" if any(one.kind == "bad" for one in faults) else "warning",
            evidence=tuple(Evidence(one.reason, "nvml") for one in faults),
            where=where,
        )
    if slowed(device.readings):
        yield _slowed(scene, device)


def _mine_on(scene: LiveScene, device: DeviceView) -> str | None:
    """Return the processes of mine on a device, for a command; None where there are none."""
    found = processes_on(scene.host, device)
    pids = [one.definition.pid for one in found if one.definition.mine]
    return " ".join(map(str, pids[:MOST_PIDS])) or None


def _others_of(scene: LiveScene, device: DeviceView) -> str | None:
    """Return the devices of a job on this one that a program can rely on.

    None where no job of mine is on it, or no other device of it is left.
    """
    jobs = [job for job in scene.host.jobs if job.mine and device.id in job_devices(job)]
    below = set().union(*(job_devices(job) for job in jobs))
    well = [one for one in scene.host.devices if one.id in below and broken(one) is None]
    return ",".join(str(one.definition.index) for one in well) or None


def _slowed(scene: LiveScene, device: DeviceView) -> Finding:
    state = _trouble(device, "throttled")
    evidence = [Evidence(state.reason if state is not None else "", "nvml")]
    heat, power = device.number("temperature_celsius"), scene.mean(device, "power_watts", 20.0)
    if heat is not None:
        at = f", {power:.0f} W" if power is not None else ""
        evidence.append(Evidence(f"{heat:.0f} °C{at}", "nvml"))
    return WORDINGS.finding(
        "environment.throttle",
        {"gpu": device.definition.index, "why": ", ".join(slowed(device.readings))},
        evidence=tuple(evidence),
        where=f"GPU {device.definition.index}",
    )


def _trouble(device: DeviceView, word: str) -> DeviceState | None:
    found = troubles(device.definition, device.readings)
    return next((one for one in found if one.word == word), None)


def full(scene: LiveScene, device: DeviceView) -> Findings:
    """Yields a finding on a device that is full, unless its trainings are known to be steady."""
    state = _trouble(device, "full")
    if state is None or is_steady(scene.host, device):
        return
    index, used = device.definition.index, device.number("used_bytes") or 0.0
    total = device.definition.total_bytes or used
    inside = [
        (trainer, one)
        for one in allocators_on(device)
        if (trainer := trainer_of(scene.host, one)) is not None
    ]
    evidence = [
        Evidence(
            f"used {bytes_text(used)} of {bytes_text(total)}: {percent_text(used / total)}", "nvml"
        )
    ]
    held = _holders(scene, device)
    if held:
        evidence.append(Evidence(f"held by {held}", "nvml"))
    for trainer, one in inside[:HOLDERS]:
        left = headroom(scene.host.devices, trainer, one, scene.history)
        if left is not None:
            text = f"headroom of {subject_of(trainer)}: {bytes_text(left)}"
            evidence.append(Evidence(text, "probe"))
        if trend_of(one) is None:
            text = f"whether the memory of {subject_of(trainer)} is steady is not known yet"
            evidence.append(Evidence(text, "probe"))
    yield WORDINGS.finding(
        "live.full" if inside else "live.full.others",
        {"gpu": index, "left": state.reason, **free_gpus(scene)},
        evidence=tuple(evidence),
        where=place(scene, *inside[0]) if inside else f"GPU {index}",
        rank=used / total,
    )


def _holders(scene: LiveScene, device: DeviceView) -> str:
    sizes = {use.process: use.number("used_bytes") or 0.0 for use in device.uses}
    found = sorted(processes_on(scene.host, device), key=lambda one: -sizes[one.id])
    names = [
        f"pid {one.definition.pid} ({one.definition.user or 'unknown user'}) "
        f"{bytes_text(sizes[one.id])}"
        for one in found[:HOLDERS]
    ]
    more = len(found) - HOLDERS
    return ", ".join([*names, f"{more} more"] if more > 0 else names)


def idle_tensor_cores(scene: LiveScene, job: JobView) -> Findings:
    """Yield a finding where devices work hard but hardly use their tensor cores.

    It is ``likely`` at most: the readings show arithmetic outside of the tensor cores, and most of
    what a training computes is matrix products.
    """
    found: list[tuple[DeviceView, TensorIdle]] = []
    for trainer in steady_ranks(job):
        for device in scene.devices(trainer):
            idle = tensor_idle(scene.host, device, scene.history)
            if idle is not None and idle.trainer is trainer:
                found.append((device, idle))
            elif idle is None and scene.look(trainer) is None:
                yield from _of_shared_card(scene, trainer, device)
    if not found:
        return
    evidence = [_idle_evidence(device, idle) for device, idle in found[:2]]
    if len(found) > 2:
        evidence.append(Evidence(f"and {len(found) - 2} more GPUs likewise", "nvml"))
    if found[0][1].fp32 is None:
        text = (
            "the GPU does not report how busy its float32 units are. High power while the "
            "tensor cores are idle means float32 arithmetic. A profile names the kernels: sgemm "
            "multiplies in float32"
        )
        evidence.append(Evidence(text))
    passes = passes_of([idle.trainer for _, idle in found], scene.history, scene.host)
    compute = passes.share if passes is not None else None
    if passes is not None:
        evidence.append(Evidence(passes.text, "stack" if passes.of_ledger else "probe"))
    indices = ", ".join(str(device.definition.index) for device, _ in found)
    yield WORDINGS.finding(
        "live.tensor_idle",
        {"gpus": indices},
        evidence=tuple(evidence),
        effect=_gain(found[0][0], compute),
        where=place(scene, found[0][1].trainer),
        rank=compute if compute is not None else 0.5,
    )


def _of_shared_card(scene: LiveScene, trainer: TrainerView, device: DeviceView) -> Findings:
    """Yield what would tell whose tensor cores are idle, where several compute on a card."""
    idle = tensor_idle(scene.host, device, scene.history, shared=True)
    if idle is not None:
        yield WORDINGS.abstained(
            "tensor-idle",
            pid=trainer.definition.pid,
            gpu=device.definition.index,
            tensor=percent_text(idle.tensor / 100),
        )


def _idle_evidence(device: DeviceView, idle: TensorIdle) -> Evidence:
    parts = [
        f"SM activity {percent_text(idle.sm / 100)}",
        f"tensor cores active {percent_text(idle.tensor / 100)}",
    ]
    parts += [f"float32 units {percent_text(idle.fp32 / 100)}"] if idle.fp32 is not None else []
    if idle.power is not None:
        most = f" of {idle.limit:.0f}" if idle.limit is not None else ""
        parts.append(f"{idle.power:.0f}{most} W")
    return Evidence(f"GPU {device.definition.index}: {', '.join(parts)}", "nvml")


def _gain(device: DeviceView, compute: float | None) -> Effect | None:
    """Returns the most that the tensor cores can save of a step, by the card's data sheet."""
    faster = FASTER.get(device.definition.compute_capability or "")
    if faster is None or compute is None:
        return None
    tf32, bf16 = faster
    share = compute * (1 - 1 / bf16)
    text = (
        f"saves at most {percent_text(share)} of each step, if forward and backward are all "
        f"matmuls: this GPU computes them {bf16} times as fast in bf16, {tf32} times in TF32"
    )
    return Effect(text=text, bound="at most", saved_share=round(share, 4))
