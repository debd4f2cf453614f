"""Judges what a look at the device of a trainer has found: its rows, as causes with their gains.

A look is of a few steps. Its shares become shares of the wall clock by what the time ledger knows
of the pauses between steps, and each has the interval that the look's own steps allow. What a cure
brings at most is its row. Rows never share a moment, and each makes one finding at most, so that
bounds of two of them may be added.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from ..model.look import LEAST_SHARE, Look, LookRow
from ..model.ranks import name_of
from ..model.time_ledger import OUTSIDE, TimeLedger, of_trainer
from ..store.view import DeviceView, JobView, TrainerView
from ..text.units import age_text, duration_text, percent_text
from ..wire.clean import clean
from .finding import Confidence, Evidence, Finding
from .live_pauses import WINDOW_SECONDS, Bar, gain, reaches
from .live_scene import WORDINGS, Findings, LiveScene, living, place
from .live_states import FASTER

ROWS: Mapping[str, tuple[str, Bar, Confidence]] = {
    "products-plain": ("look.products_plain", Bar(LEAST_SHARE, 0.20), "definite"),
    "idle-launch": ("look.launches", Bar(0.10, 0.50), "likely"),
    "idle-sync": ("look.reads", Bar(LEAST_SHARE, 0.20), "definite"),
    "copies-out": ("look.copies_out", Bar(LEAST_SHARE, 0.10), "definite"),
    "copies-in": ("look.copies_in", Bar(LEAST_SHARE, 0.20), "definite"),
    "idle-allocate": ("look.allocates", Bar(LEAST_SHARE, 0.10), "definite"),
}
"""By row of a look: its cause, from which share on it is told, and how sure that is.

Late launches are likely only: a busy processor may be why, and small models have them without any
mistake, so they are a warning where they take half of the time.
"""
SHORT_SECONDS = 20e-6
"""A launch takes the host 5 to 10 µs: a shorter kernel cannot hide the next one, and a shorter copy
is that of a number, which the reading costs, not the copying."""
IDLE_SHARE, FREE_SHARE, FEW_KERNELS = 0.25, 0.5, 1000
"""A batch is small where a quarter of the time waits for launches, kernels are tiny, half of the
memory is free, and a step has fewer kernels than this. With more of them the launches alone take
ten milliseconds, and fewer launches come before a larger batch."""
TENSOR_CORES_SINCE = 8.0
"""Compute capability from which on tensor cores multiply float32 (as TF32) and bf16."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """A trainer with a look at its device.

    ``scale`` makes a share of the look's window one of the wall clock.
    """

    trainer: TrainerView
    look: Look
    age_seconds: float | None
    scale: float
    step_seconds: float | None
    device: DeviceView | None


def rows(scene: LiveScene, job: JobView) -> Findings:
    """Yields a finding for each row of the looks at a job that is worth curing.

    Of several ranks it is told of the one that loses most.
    """
    best: dict[str, Finding] = {}
    for trainer in living(job):
        for one in of_trainer_look(scene, trainer):
            if one.cause not in best or one.rank > best[one.cause].rank:
                best[one.cause] = one
    yield from best.values()


def of_trainer_look(scene: LiveScene, trainer: TrainerView) -> list[Finding]:
    """Return what the last look at a trainer's device is worth telling, what brings most first."""
    look = scene.look(trainer)
    if look is None:
        return []
    age = look.age_seconds(scene.host.wall_seconds)
    ledger = of_trainer(trainer, WINDOW_SECONDS)
    devices = scene.devices(trainer)
    step = ledger.step_seconds if ledger.sure else None
    seen = _Seen(
        trainer, look, age, inside_share(look, ledger), step, devices[0] if devices else None
    )
    found = list(_row_findings(scene, seen))
    return sorted(found, key=lambda one: -one.rank)


def inside_share(look: Look, ledger: TimeLedger) -> float:
    """Return by what to multiply a share of the look to have one of the wall clock.

    The ledger has minutes, and so the pauses between steps that a look of some steps seldom meets.
    """
    if not ledger.sure or look.outside_share >= 1:
        return 1.0
    outside = sum(row.share for row in ledger.rows if row.name in OUTSIDE)
    return min(1.0, (1 - outside) / (1 - look.outside_share))


def _row_findings(scene: LiveScene, seen: _Seen) -> Iterator[Finding]:
    for name, (cause, bar, confidence) in ROWS.items():
        row = _row(seen.look, name)
        if row is None:
            continue
        share, low, high = _shares(seen, row)
        evidence = [_row_evidence(seen, row)]
        what = "all of this time" if name.startswith("idle-") else f"all of {row.words}"
        if name == "products-plain":
            most = _saved_by_tensor_cores(seen)
            if most is None:
                continue
            factor, text = most
            share, low, high = share * factor, low * factor, high * factor
            evidence += text
            evidence += _longest(row, seen.look)
        elif name == "idle-launch":
            evidence += _launches(seen)
            small = _room_for_a_batch(seen, low)
            if small is not None:
                cause, bar = "look.small_batch", Bar(IDLE_SHARE, 1.0)
                what += " for as many samples"
                evidence.append(small)
        elif name == "idle-allocate":
            evidence += _retries(scene, seen.trainer)
        if not reaches(share, low, bar):
            continue
        if row.place:
            text_of_place = f"most of it at {clean(row.place, 160)}"
            evidence.insert(1, Evidence(text=text_of_place, source="stack"))
        yield WORDINGS.finding(
            cause,
            {"share": percent_text(row.share * seen.scale)},
            severity="warning" if share >= bar.warned else "info",
            confidence=confidence,
            evidence=tuple(evidence),
            where=place(scene, seen.trainer),
            rank=share,
            effect=gain(share, (low, high), seen.step_seconds, what),
        )


def _room_for_a_batch(seen: _Seen, low: float) -> Evidence | None:
    """Return why a larger batch would fill the gaps between kernels, None where it might not."""
    each, device = seen.look.kernel_seconds, seen.device
    if each is None or device is None or each >= SHORT_SECONDS or low < IDLE_SHARE:
        return None
    used, total = device.number("used_bytes"), device.definition.total_bytes
    if used is None or not total or 1 - used / total < FREE_SHARE:
        return None
    if seen.look.kernels_a_step >= FEW_KERNELS:
        return None
    free = percent_text(1 - used / total)
    return Evidence(
        text=f"{free} of the memory of GPU {device.definition.index} is free: a larger batch fits",
        source="nvml",
    )


def _row(look: Look, name: str) -> LookRow | None:
    """Return a row of a look with the other time that its cure wins as well.

    Idle time in which copies hold the host belongs to the direction that copies longer. Copies of
    single numbers, with that time, belong to the reads.
    """
    out, into, held = look.row("copies-out"), look.row("copies-in"), look.row("idle-copy")
    reads = out if out is not None and _is_of_numbers(out) else None
    out_longer = out is not None and (into is None or out.seconds >= into.seconds)
    parts: list[LookRow | None] = [look.row(name)]
    if name == "idle-sync":
        parts += [reads, held if reads is not None and out_longer else None]
    elif name == "copies-out":
        parts = [out, held if out_longer else None] if reads is None else []
    elif name == "copies-in":
        parts = [into, held if not out_longer else None]
        parts = [] if into is None or _is_of_numbers(into) else parts
    found = [row for row in parts if row is not None]
    if len(found) < 2:
        return found[0] if found else None
    lows, highs = [row.low for row in found], [row.high for row in found]
    return replace(
        found[0],
        seconds=sum(row.seconds for row in found),
        share=sum(row.share for row in found),
        place=next((row.place for row in found if row.place), ""),
        low=None if None in lows else sum(low or 0.0 for low in lows),
        high=None if None in highs else min(1.0, sum(high or 0.0 for high in highs)),
    )


def _is_of_numbers(row: LookRow) -> bool:
    return row.seconds < SHORT_SECONDS * row.count


def _shares(seen: _Seen, row: LookRow) -> tuple[float, float, float]:
    """Return the share of the wall clock, and its bounds; without bounds they are the share."""
    low = row.share if row.low is None else row.low
    high = row.share if row.high is None else row.high
    return row.share * seen.scale, low * seen.scale, high * seen.scale


def _row_evidence(seen: _Seen, row: LookRow) -> Evidence:
    look = seen.look
    rank = seen.trainer.definition.rank
    who = f"{name_of(seen.trainer)}: " if rank is not None else ""
    ago = seen.age_seconds
    when = f", {age_text(ago)} ago" if ago is not None and ago >= 60 else ""
    return Evidence(
        text=f"{who}{duration_text(row.seconds / look.steps)} of a step of "
        f"{duration_text(look.step_seconds)} in the {look.steps} steps that were looked at{when}: "
        f"{percent_text(row.share)}",
        source="look",
    )


def _longest(row: LookRow, look: Look) -> list[Evidence]:
    if not row.kernels:
        return []
    name, seconds = row.kernels[0]
    text = f"the longest kernel, {duration_text(seconds / look.steps)} a step: {clean(name, 100)}"
    return [Evidence(text=text, source="look")]


def _launches(seen: _Seen) -> list[Evidence]:
    look = seen.look
    each = look.kernel_seconds
    if each is None:
        return []
    text = (
        f"{look.kernels_a_step:,.0f} kernels a step of {duration_text(each)} on average; the GPU "
        f"is busy {percent_text(look.busy_share)} of the time"
    )
    return [Evidence(text=text, source="look")]


def _retries(scene: LiveScene, trainer: TrainerView) -> list[Evidence]:
    rises = sum(scene.rise(one, "alloc_retries") for one in trainer.allocators if one.gone is None)
    if not rises:
        return []
    text = f"cudaMalloc failed and was tried again {rises:.0f} times in the last minute"
    return [Evidence(text=text, source="probe")]


def _saved_by_tensor_cores(seen: _Seen) -> tuple[float, list[Evidence]] | None:
    """Return what share of the products can be saved at most, and why; None on an older card."""
    known = seen.device.definition.compute_capability if seen.device is not None else None
    try:
        if known and float(known) < TENSOR_CORES_SINCE:
            return None
    except ValueError:
        known = None
    faster = FASTER.get(known or "")
    if faster is None:
        return 1.0, []
    tf32, bf16 = faster
    row = seen.look.row("products-plain")
    share = row.share * seen.scale if row is not None else 0.0
    saved = percent_text(share * (1 - 1 / tf32))
    text = (
        f"this card multiplies {tf32} times as fast in TF32 (saves {saved} at most), "
        f"{bf16} times in bf16"
    )
    return 1 - 1 / bf16, [Evidence(text=text, source="data sheet")]


def cure_of(row: str) -> str:
    """Return what to do about a row of a look in a few words, "" where nothing is known."""
    from . import table

    name = {"idle-copy": "copies-in"}.get(row, row)
    if name == "communication":
        words = WORDINGS.findings["live.syncs_each_micro_batch"]
    elif name in ROWS:
        words = WORDINGS.findings[ROWS[name][0]]
    else:
        return ""
    fixes = WORDINGS.fixes(words.fixes, {}) or table.load()[words.pitfall].fixes_for(words.id)
    return fixes[0].title
