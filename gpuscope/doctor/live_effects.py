"""Predicts what the cures of live findings bring, from the readings of their trainer."""

from __future__ import annotations

from dataclasses import replace

from ..model.memory_room import rooms
from ..store.view import AllocView, JobView
from ..text.units import percent_text
from . import effects
from .finding import Abstained, Effect, Finding
from .live_scene import LiveScene, living, place

_SHARES = {
    "live.copies": "all of the copies",
    "live.communication": "all of the exposed communication",
}
"""Causes whose ``rank`` is the share of a step that they take, and that share in words."""


def with_effect(scene: LiveScene, job: JobView, one: Finding | Abstained) -> Finding | Abstained:
    """Return the finding with the predicted gain of its fix, where readings allow that.

    Any other finding is returned unchanged.
    """
    if not isinstance(one, Finding) or one.effect is not None:
        return one
    if one.cause in _SHARES:
        return effects.of_share(one, one.rank, _SHARES[one.cause])
    if one.cause == "live.skipped_steps":
        return _with_skipped_steps(one)
    return _with_freed_memory(scene, job, one)


def _with_skipped_steps(one: Finding) -> Finding:
    if not 0 < one.rank < 1:
        return one
    share = percent_text(one.rank)
    text = f"saves at most {share} of the steps, which are computed now and then left out"
    return replace(one, effect=Effect(text=text, bound="at most", saved_share=round(one.rank, 4)))


def _with_freed_memory(scene: LiveScene, job: JobView, one: Finding) -> Finding:
    """Returns the finding with what its cure frees of the allocator that it names."""
    for room in rooms(scene.host.devices, job.trainers):
        if one.where in (place(scene, room.trainer, room.allocator), place(scene, room.trainer)):
            return effects.of_memory(one, amounts(scene, job, room.allocator))
    return one


def amounts(scene: LiveScene, job: JobView, allocator: AllocView) -> effects.Amounts:
    """Returns what an allocator held at its peak, and what others hold on its device."""
    reserved, allocated = (
        allocator.number("peak_reserved_bytes"),
        allocator.number("peak_allocated_bytes"),
    )
    idle = allocator.number("private_pool_idle_bytes")
    cached = (
        None
        if reserved is None or allocated is None
        else max(0.0, reserved - allocated - (idle or 0.0))
    )
    device = scene.device(allocator)
    others = sum(size for _, size in scene.others(device, job)) if device is not None else None
    ranks = len(living(job))
    return effects.Amounts(
        free=device.number("free_bytes") if device is not None else None,
        allocated=allocated,
        cached=cached,
        inactive_split=allocator.number("inactive_split_bytes"),
        others=others or None,
        private_idle=idle,
        parameters=allocator.number("parameter_bytes"),
        gradients=allocator.number("gradient_bytes"),
        optimizer=allocator.number("optimizer_state_bytes"),
        ranks=ranks if ranks > 1 else None,
    )
