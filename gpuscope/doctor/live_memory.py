"""Judges the memory of trainers: whether it grows, is fragmented, or just fills the card."""

from __future__ import annotations

from itertools import pairwise

from ..model.allocator_settings import grows_segments
from ..model.growth import MIN_POINTS, Forecast, GrowthRate, trend_of
from ..model.memory_room import NEAR, MemoryRoom, alarm, ends_before_memory, rooms
from ..model.ranks import subject_of
from ..store.view import AllocView, JobView, TrainerView
from ..text.units import bytes_text, duration_text, signed_bytes_text
from .finding import Evidence, Severity
from .live_scene import WORDINGS, Findings, LiveScene, place

RECORD_SECONDS = 60
"""A record of allocations this long names the line that keeps memory."""
FRAGMENTED = 0.10
"""Memory is fragmented where this share of the card was reserved but never allocated."""
FULL = 0.90
TENSOR_BLOCKS = 3.0
"""The most live blocks that each step leaves where single tensors are kept, not a whole graph.

A list of kept tensors leaves one or two blocks in each step, a kept graph many more.
"""
STEPS_BETWEEN = 3.0
"""A trainer counts as evaluating after this many times its usual step time without a step."""
CLIMB_SHARE, CLIMBS = 0.05, 5
"""The rise without a step, as a share of the card's memory, and the least number of rises in it.

The memory must not fall in between.
"""


def growth(scene: LiveScene, job: JobView) -> Findings:
    """Yields findings where the memory after each step keeps rising.

    Only a snapshot with stacks can tell which line keeps the memory.
    """
    unjudged = 0
    for room in rooms(scene.host.devices, job.trainers, scene.history):
        trend = trend_of(room.allocator)
        if trend is None:
            unjudged += 1
        elif trend.grows:
            yield from _growth_findings(scene, room, trend)
    if unjudged:
        if scene.recorded:
            yield WORDINGS.abstained("growth.recorded")
        else:
            yield WORDINGS.abstained("growth", steps=MIN_POINTS)


def _growth_findings(scene: LiveScene, room: MemoryRoom, trend: GrowthRate) -> Findings:
    trainer, left, ends = room.trainer, room.headroom_bytes, room.runs_out
    grave, eta, ends_first = alarm(room), trainer.number("eta_seconds"), ends_before_memory(room)
    evidence = [_arithmetic(left, ends, trend)]
    evidence.append(
        Evidence(
            "measured right after optimizer.step(), when activations are freed: live tensors "
            "grow. This is not fragmentation, and empty_cache() cannot help",
            "probe",
        )
    )
    blocks = _blocks_per_step(scene, room.allocator, trainer)
    if blocks is not None:
        each = f"each step leaves about {blocks:.1f} more live blocks"
        few = f"one more live block every {1 / blocks:,.0f} steps"
        evidence.append(Evidence(each if blocks >= 0.1 else few, "probe"))
    if ends_first and ends is not None and ends.seconds is not None and eta is not None:
        evidence.append(
            Evidence(
                f"the run ends in about {duration_text(eta)}, before the memory does "
                f"({duration_text(ends.seconds)})"
            )
        )
    if grave is not None:
        name = "live.memory_runs_out"
        severity: Severity = "problem" if grave == "bad" else "warning"
    else:
        name = "live.memory_grows"
        severity = "info"
        if not ends_first:
            evidence.append(
                Evidence(
                    "far from full, and a cache that fills during the first epoch looks the "
                    "same at first"
                )
            )
    where = place(scene, trainer, room.allocator)
    figures = {
        "who": subject_of(trainer, first=name == "live.memory_runs_out"),
        "steps": ends.text if ends is not None else None,
        "slope": bytes_text(trend.slope),
        "pid": trainer.definition.pid,
        "record": RECORD_SECONDS if _can_record(ends) else None,
    }
    kept = blocks is not None and blocks <= TENSOR_BLOCKS
    yield WORDINGS.finding(
        f"{name}.list" if kept else name,
        figures,
        severity=severity,
        confidence="likely",
        evidence=tuple(evidence),
        where=where,
        rank=1.0,
    )
    yield WORDINGS.finding(
        "live.memory_grows_otherwise" if kept else "live.memory_grows_otherwise.list",
        figures,
        evidence=tuple(evidence[:1]),
        where=where,
    )


def _can_record(ends: Forecast | None) -> bool:
    """Return whether allocations can be recorded and written before the memory runs out."""
    return ends is None or ends.seconds is None or ends.seconds >= 1.5 * RECORD_SECONDS


def _arithmetic(left: float | None, ends: Forecast | None, trend: GrowthRate) -> Evidence:
    low, high = bytes_text(trend.low), bytes_text(trend.high)
    between = f" ({low} to {high})" if low != high else ""
    pace = f"{bytes_text(trend.slope)} per step{between}, fitted over {trend.steps:.0f} steps"
    if left is None:
        return Evidence(f"{pace}; the headroom on the GPU is unknown", "probe")
    text = f"headroom {bytes_text(left)} / {pace}"
    return Evidence(f"{text} = {ends.text}" if ends is not None else text, "probe, nvml")


def _blocks_per_step(scene: LiveScene, allocator: AllocView, trainer: TrainerView) -> float | None:
    """Return how many live blocks each step adds; None where that is not clear.

    It compares the minimum of live blocks in the first and in the last third of the observed time,
    because the minimum does not depend on where in a step a sample was taken.
    """
    counts, steps = (
        scene.known(allocator, "allocation_count", None),
        scene.known(trainer, "step", None),
    )
    if len(counts) < 15 or len(steps) < 15 or steps[-1] <= steps[0]:
        return None
    third = len(counts) // 3
    rise = min(counts[-third:]) - min(counts[:third])
    # The centres of the first and the last third are two thirds of the steps apart.
    return 1.5 * rise / (steps[-1] - steps[0]) if rise > 0 else None


def evaluation(scene: LiveScene, job: JobView) -> Findings:
    """Yields a finding where memory climbs while no step is taken.

    This is an evaluation that keeps the graph for a backward pass.
    """
    for room in rooms(scene.host.devices, job.trainers, scene.history):
        allocator, trainer, left = room.allocator, room.trainer, room.headroom_bytes
        device, age = scene.device(allocator), trainer.number("step_age_seconds")
        total = device.definition.total_bytes if device is not None else None
        usual = trainer.number("step_seconds")
        if not total or age is None or usual is None or age < STEPS_BETWEEN * usual:
            continue
        past = scene.history(allocator.id, "allocated_bytes", age)
        seen = [
            (moment, value)
            for moment, value in zip(past.seconds, past.values, strict=True)
            if value is not None
        ]
        sizes = [value for _, value in seen]
        climbs = sum(1 for one, other in pairwise(sizes) if other > one)
        if climbs < CLIMBS or any(other < one for one, other in pairwise(sizes)):
            continue
        rise, took = sizes[-1] - sizes[0], seen[-1][0] - seen[0][0]
        if rise < CLIMB_SHARE * total or took <= 0:
            continue
        ends = left * took / rise if left is not None else None
        phase = trainer.reading("phase")
        evidence = [
            Evidence(
                f"allocated rose from {bytes_text(sizes[0])} to {bytes_text(sizes[-1])} in "
                f"{duration_text(took)}, in {climbs} "
                f"readings, and never fell; the last step was {duration_text(age)} ago",
                "probe",
            )
        ]
        if phase == "eval":
            evidence.append(Evidence("the model is in evaluation mode", "probe"))
        if left is not None and ends is not None:
            evidence.append(
                Evidence(
                    f"{bytes_text(left)} left / {bytes_text(rise / took)} per second = "
                    f"{duration_text(ends)}",
                    "nvml",
                )
            )
        soon = ends is not None and ends <= NEAR * took
        yield WORDINGS.finding(
            "live.evaluation_runs_out" if soon else "live.evaluation_grows",
            {"who": subject_of(trainer), "ends": duration_text(ends) if ends is not None else None},
            severity="problem" if soon else "warning" if phase == "eval" else "info",
            evidence=tuple(evidence),
            where=place(scene, trainer, allocator),
            rank=1.5,
        )


def pressure(scene: LiveScene, job: JobView) -> Findings:
    """Yield a finding where cudaMalloc failed and was retried after the cache was emptied.

    If much memory was reserved but never allocated, the cause is fragmentation. Otherwise the job
    is too large for the card.
    """
    for room in rooms(scene.host.devices, job.trainers):
        allocator, trainer = room.allocator, room.trainer
        device = scene.device(allocator)
        total = device.definition.total_bytes if device is not None else None
        retries = allocator.number("alloc_retries")
        if not retries or not total or trainer.definition.backend == "cudaMallocAsync":
            continue
        lately = scene.rise(allocator, "alloc_retries")
        evidence = [_retries_evidence(retries, lately)]
        where = place(scene, trainer, allocator)
        gap = _never_allocated_bytes(allocator)
        if gap is None:
            yield WORDINGS.abstained("fragmentation")
        elif gap >= FRAGMENTED * total and not grows_segments(
            trainer.definition.allocator_settings or ""
        ):
            evidence.append(
                Evidence(
                    "reserved at its peak "
                    f"{bytes_text(allocator.number('peak_reserved_bytes') or 0)}, allocated "
                    f"{bytes_text(allocator.number('peak_allocated_bytes') or 0)}: "
                    f"{bytes_text(gap)} of the GPU's {bytes_text(total)} "
                    f"could not be used",
                    "probe",
                )
            )
            split = allocator.number("inactive_split_bytes")
            if split is not None:
                evidence.append(Evidence(f"inactive split now: {bytes_text(split)}", "probe"))
            yield WORDINGS.finding(
                "live.fragmentation",
                {"gap": bytes_text(gap), "who": subject_of(trainer)},
                where=where,
                severity="warning" if lately else "info",
                evidence=tuple(evidence),
            )
        elif lately:
            yield WORDINGS.finding(
                "live.at_the_edge",
                {"who": subject_of(trainer, first=True)},
                where=where,
                evidence=(
                    *evidence,
                    Evidence(
                        f"reserved beyond the peak of what was allocated: "
                        f"{bytes_text(gap)}, {100 * gap / total:.0f} % of the GPU, so it is not "
                        "fragmentation",
                        "probe",
                    ),
                ),
            )


def _retries_evidence(retries: float, lately: float) -> Evidence:
    text = f"cudaMalloc failed and was retried {retries:.0f} times since the start"
    text += (
        f", {lately:.0f} times in the last minute; each waits for the GPU"
        if lately
        else ", but not recently"
    )
    return Evidence(text, "probe")


def _never_allocated_bytes(allocator: AllocView) -> float | None:
    """Return the peak of reserved bytes minus the peak of allocated bytes.

    The private pools of CUDA graphs are not counted.
    """
    reserved, allocated = (
        allocator.number("peak_reserved_bytes"),
        allocator.number("peak_allocated_bytes"),
    )
    if reserved is None or allocated is None:
        return None
    return max(0.0, reserved - allocated - (allocator.number("private_pool_idle_bytes") or 0.0))


def full_but_steady(scene: LiveScene, job: JobView) -> Findings:
    """Yields a finding that a nearly full card is no fault while nothing grows or fails."""
    for room in rooms(scene.host.devices, job.trainers):
        allocator, trainer, device = room.allocator, room.trainer, scene.device(room.allocator)
        trend, retries = trend_of(allocator), allocator.number("alloc_retries")
        used = device.number("used_bytes") if device is not None else None
        total = device.definition.total_bytes if device is not None else None
        if not used or not total or used < FULL * total or trend is None or trend.grows:
            continue
        if retries is None or scene.rise(allocator, "alloc_retries"):
            continue
        peak = allocator.number("peak_allocated_bytes")
        evidence = [
            Evidence(f"used {bytes_text(used)} of {bytes_text(total)}", "nvml"),
            Evidence(
                f"memory after a step is level over {trend.steps:.0f} steps "
                f"({signed_bytes_text(trend.slope)} each)",
                "probe",
            ),
            Evidence("no cudaMalloc was retried recently", "probe"),
        ]
        if peak is not None:
            evidence.append(Evidence(f"the largest ever allocated: {bytes_text(peak)}", "probe"))
        yield WORDINGS.finding(
            "live.full_but_steady",
            {"share": f"{100 * used / total:.0f} %"},
            evidence=tuple(evidence),
            where=place(scene, trainer, allocator),
        )
