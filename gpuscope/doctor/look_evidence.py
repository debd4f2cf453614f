"""Say what a look at a device has seen of a cause, as evidence of a finding."""

from __future__ import annotations

from collections.abc import Iterator

from ..model.look import Look, LookRow
from ..model.ranks import name_of
from ..model.time_cause import Cause
from ..model.time_look import SHORT_SECONDS
from ..store.view import TrainerView
from ..text.units import age_text, duration_text, percent_text
from ..wire.clean import clean
from .finding import Evidence
from .live_scene import WORDINGS, LiveScene
from .live_states import FASTER

IDLE_SHARE, FREE_SHARE, FEW_KERNELS = 0.25, 0.5, 1000
"""A batch is small where a quarter of the time waits for launches, kernels are tiny, half of the
memory is free, and a step has fewer kernels than this. With more of them the launches alone take
ten milliseconds, and fewer launches come before a larger batch."""
CURES = {
    "products-plain": "look.products_plain",
    "convolution-plain": "look.products_plain",
    "products-double": "look.products_double",
    "idle-launch": "look.launches",
    "idle-sync": "look.reads",
    "copies-out": "look.copies_out",
    "copies-in": "look.copies_in",
    "idle-copy": "look.copies_in",
    "idle-allocate": "look.allocates",
    "communication": "live.syncs_each_micro_batch",
}
"""The finding whose fix helps, by row of a look."""


def told(scene: LiveScene, trainer: TrainerView, look: Look, row: LookRow) -> Evidence:
    """Return how long a row of a look takes in a step."""
    who = f"{name_of(trainer)}: " if trainer.definition.rank is not None else ""
    ago = look.age_seconds(scene.host.wall_seconds)
    when = f", {age_text(ago)} ago" if ago is not None and ago >= 60 else ""
    return Evidence(
        f"{who}{duration_text(row.seconds / look.steps)} of a step of "
        f"{duration_text(look.step_seconds)} in the {look.steps} traced steps{when}: "
        f"{percent_text(row.share)}",
        "GPU trace",
    )


def of_cause(
    scene: LiveScene, trainer: TrainerView, look: Look, cause: Cause
) -> Iterator[Evidence]:
    """Yield further evidence of a cause, from a look or from the card."""
    row = cause.row
    if cause.name in ("products-plain", "products-double"):
        yield from _tensor_cores(scene, trainer, cause)
        if row is not None and row.kernels:
            name, seconds = row.kernels[0]
            each = duration_text(seconds / look.steps)
            text = f"the longest kernel, {each} a step: {clean(name, 100)}"
            yield Evidence(text, "GPU trace")
    elif cause.name == "launch" and look.kernel_seconds is not None:
        text = (
            f"{look.kernels_a_step:,.0f} kernels a step of {duration_text(look.kernel_seconds)} on "
            f"average; the GPU is busy {percent_text(look.busy_share)} of the time"
        )
        yield Evidence(text, "GPU trace")
        if is_small_batch(scene, trainer, look, cause):
            card = scene.devices(trainer)[0].definition.index
            free = percent_text(_free(scene, trainer) or 0.0)
            text = f"{free} of the memory of GPU {card} is free: a larger batch fits"
            yield Evidence(text, "nvml")
    elif cause.name == "allocate":
        rises = sum(scene.rise(one, "alloc_retries") for one in trainer.allocators if not one.gone)
        if rises:
            text = f"cudaMalloc failed and was retried {rises:.0f} times in the last minute"
            yield Evidence(text, "probe")


def _tensor_cores(scene: LiveScene, trainer: TrainerView, cause: Cause) -> Iterator[Evidence]:
    devices = scene.devices(trainer)
    sheet = FASTER.get(devices[0].definition.compute_capability or "") if devices else None
    if sheet is None:
        return
    tf32, bf16 = sheet
    whole = cause.share / (1 - 1 / bf16)
    saved = percent_text(whole * (1 - 1 / tf32))
    text = (
        f"this GPU computes them {tf32} times as fast in TF32 (saves {saved} at most), "
        f"{bf16} times in bf16"
    )
    yield Evidence(text, "data sheet")


def is_small_batch(scene: LiveScene, trainer: TrainerView, look: Look, cause: Cause) -> bool:
    """Return whether a larger batch would fill the gaps between kernels."""
    each, free = look.kernel_seconds, _free(scene, trainer)
    if each is None or free is None or each >= SHORT_SECONDS or cause.low < IDLE_SHARE:
        return False
    return free >= FREE_SHARE and look.kernels_a_step < FEW_KERNELS


def _free(scene: LiveScene, trainer: TrainerView) -> float | None:
    devices = scene.devices(trainer)
    if not devices:
        return None
    used, total = devices[0].number("used_bytes"), devices[0].definition.total_bytes
    return None if used is None or not total else 1 - used / total


def cure_of(row: str) -> str:
    """Return what to do about a row of a look in a few words, "" where nothing is known."""
    from . import table

    if row not in CURES:
        return ""
    words = WORDINGS.findings[CURES[row]]
    fixes = WORDINGS.fixes(words.fixes, {}) or table.load()[words.pitfall].fixes_for(words.id)
    return fixes[0].title
