"""Find the largest batch that fits, from the measured memory of a running training.

The input is the memory that the training certainly holds, and the peaks of its steps.

The law is: peak allocated = fixed + batch × bytes per sample. There is also a floor, which the
optimizer's step needs at any batch. The law is exact if every activation has the batch as a
dimension. On a 124 M GPT at batches of 2 to 32 the residual was below 0.1 MiB. *fixed* was
parameters + optimizer state to 0.1 MiB in fp32, and half the parameters' bytes more under bf16
autocast (the cached casts).

Peaks at two or more batch sizes give the law by least squares. With a single one an assumption is
needed: *fixed* lies between parameters + optimizer state (if the peak is at the beginning of the
backward pass, when there are no gradients yet) and that sum plus all gradients (if the peak is at
its end). Both ends are computed and give the range.

Whether a batch fits depends on what torch reserves, not on what is allocated. Reserved memory is
not affine in the batch: near a limit torch frees cached blocks and tries again, so reserved memory
comes down towards allocated memory. So one end of the range assumes that reserved memory exceeds
allocated memory by half as much again as was measured, and 5 % more, and the other end that it
comes down to allocated memory. For ten models the largest batch was found by trying, under a limit
on an H200. The range held it in all ten, from one batch size and from two (the margins were chosen
on these ten). The best guess was off by 7 % in the median from one batch size, by 5 % from two, and
by 20 % at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

FLAT = 1e-3
"""If two peaks differ by less than this share, both are at the floor.

They then say nothing about the batch.
"""
NOT_AFFINE = 0.01
"""The error of the part that grows with the batch, because another batch size may use other
kernels.
"""
ROUNDING = 1 << 20
"""Bytes by which a peak may be off through rounding alone."""
RETURNED = 0.5
"""The part of reserved memory above allocated memory that the best guess expects torch to free near
the limit. It is half, because neither end of the range is likely.
"""
WORSE, MORE = 1.5, 0.05
"""For the low end of the range: reserved memory above allocated memory, as a factor of the measured
excess and as an additional share.
"""
MOST = 1 << 24


@dataclass(frozen=True, slots=True)
class Law:
    """Peak allocated = ``fixed_bytes`` + batch × ``per_sample_bytes``.

    ``residual_bytes`` is the largest distance of a measured peak from the law. ``assumed`` says why
    the law is assumed and not fitted; "" if it is fitted.
    """

    fixed_bytes: float
    per_sample_bytes: float
    residual_bytes: float
    batches: tuple[int, ...]
    assumed: str = ""

    def at(self, batch: float) -> float:
        """Return the peak of allocated memory in bytes."""
        return self.fixed_bytes + batch * self.per_sample_bytes

    def inverse(self, peak: float) -> int:
        """Return the largest batch whose peak is at most ``peak`` bytes.

        0 if not even one sample fits.
        """
        return max(0, min(MOST, int((peak - self.fixed_bytes) / self.per_sample_bytes)))


@dataclass(frozen=True, slots=True)
class LargestBatch:
    """``batch`` is the best guess; the truth should lie from ``low`` to ``high``.

    If the measurements are not sufficient, all are None, and ``why`` gives the reason.
    """

    batch: int | None
    low: int | None
    high: int | None
    law: Law | None
    residual_bytes: float | None = None
    why: str = ""


def calibrate(
    static_bytes: int | None,
    peaks: Sequence[tuple[int, int]],
    capacity_bytes: int | None,
    *,
    gradient_bytes: int | None = None,
    reserved_bytes: int | None = None,
) -> LargestBatch:
    """Derive the largest batch from measured peaks.

    ``static_bytes``: parameters, buffers and optimizer state, which exist all through the step.
    ``gradient_bytes``: gradients if they are not kept between steps (kept ones belong to
    ``static_bytes``). ``peaks``: batch sizes, and the peak of allocated memory in steps with each.
    ``reserved_bytes``: the peak of reserved memory at the largest of these batches.
    ``capacity_bytes``: what torch may reserve in total, that is the device less what is not
    torch's.
    """
    points = sorted(
        {batch: peak for batch, peak in sorted(peaks) if batch > 0 and peak > 0}.items()
    )
    if not points:
        return LargestBatch(
            None, None, None, None, why="no step with a known batch size was measured"
        )
    laws = _fit_laws(_above_floor(points)) or _assumed(points, static_bytes, gradient_bytes)
    if isinstance(laws, str):
        return LargestBatch(None, None, None, None, why=laws)
    least, law, most = laws
    if capacity_bytes is None:
        return LargestBatch(
            None, None, None, law, law.residual_bytes, "the capacity of the GPU is unknown"
        )
    top_batch, top_peak = points[-1]
    spare = max(0, (reserved_bytes or 0) - top_peak)
    ratio = spare / top_peak
    best = law.inverse(capacity_bytes / (1 + ratio * (1 - RETURNED)))
    low = most.inverse(capacity_bytes / (1 + WORSE * ratio + MORE))
    high = least.inverse(capacity_bytes)
    # the training runs with this batch, whatever the law says
    if top_peak + spare <= capacity_bytes:
        best, low, high = max(best, top_batch), max(low, top_batch), max(high, top_batch)
    return LargestBatch(best, min(low, best), max(high, best), law, law.residual_bytes)


def _above_floor(points: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Drop the smallest batches if the peak does not grow with them.

    At these batches the optimizer's step is the peak.
    """
    kept = list(points)
    while len(kept) > 1 and kept[1][1] - kept[0][1] <= FLAT * kept[1][1]:
        del kept[0]
    return kept


def _fit_laws(points: list[tuple[int, int]]) -> tuple[Law, Law, Law] | None:
    """Return the law by least squares, and the flattest and the steepest one.

    The latter two pass through the largest point and are the extremes that the points allow.
    """
    if len(points) < 2:
        return None
    count = len(points)
    middle = sum(batch for batch, _ in points) / count
    level = sum(peak for _, peak in points) / count
    spread = sum((batch - middle) ** 2 for batch, _ in points)
    slope = sum((batch - middle) * (peak - level) for batch, peak in points) / spread
    if slope <= 0:
        return None
    fixed = level - slope * middle
    residual = max(abs(fixed + slope * batch - peak) for batch, peak in points)
    batches = tuple(batch for batch, _ in points)
    law = Law(fixed, slope, residual, batches)
    first, last = batches[0], batches[-1]
    doubt = (residual + ROUNDING) / (last - first) + NOT_AFFINE * slope
    top = law.at(last)
    flat = max(slope - doubt, slope / 4)
    return (
        _through(last, top - residual, flat, law),
        law,
        _through(last, top + residual, slope + doubt, law),
    )


def _through(batch: int, peak: float, slope: float, law: Law) -> Law:
    return Law(peak - slope * batch, slope, law.residual_bytes, law.batches, law.assumed)


def _assumed(
    points: list[tuple[int, int]], static_bytes: int | None, gradient_bytes: int | None
) -> tuple[Law, Law, Law] | str:
    batch, peak = points[-1]
    if static_bytes is None:
        return (
            "one batch size was seen, and the bytes of parameters and optimizer state are unknown"
        )
    gradients = gradient_bytes or 0
    if len(points) > 1:
        return (
            "the peak did not grow with the batch: the peak is in the optimizer step, so larger "
            "batches cost nothing yet"
        )
    if peak - static_bytes < batch * 512:
        return "the peak is not above parameters and optimizer state: no step was measured"
    assumed = (
        f"one batch size was seen ({batch}): everything at the peak except parameters and "
        f"optimizer state is assumed to grow with the batch; that may include gradients"
    )
    steep = (peak - static_bytes) / batch
    law = Law(static_bytes, steep, 0.0, (batch,), assumed)
    growing = max(peak - static_bytes - gradients, (peak - static_bytes) / 4)
    steepest = steep * (1 + NOT_AFFINE)
    return (
        _through(batch, peak, growing / batch * (1 - NOT_AFFINE), law),
        law,
        _through(batch, peak, steepest, law),
    )
