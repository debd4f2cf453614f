"""Predict how much memory of a card a training uses at its peak.

The answer is three totals and the parts that they consist of, each with its error.

    allocated = parameters + buffers + gradients + optimizer state + activations + temporary + inputs
                + workspaces + unknown
    reserved  = allocated + fragmentation
    device    = reserved + outside torch

Everything is in bytes. The parts of ``allocated`` are the blocks that are live at its peak, by
their purpose. A part's own error comes from its kind alone. Doubts of the tracing child widen only
the totals, because no doubt concerns a single part. The functions of :mod:`.errors` that compute
the errors explain what each consists of.
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from . import errors, scratch
from .allocator import Simulated
from .context_memory import ContextMemory
from .errors import Estimate
from .request import Doubt
from .trace import Trace

LIVE_PARTS: Mapping[str, str] = {
    "parameters": "parameter",
    "buffers": "buffer",
    "optimizer_state": "optimizer",
    "gradients": "gradient",
    "activations": "activation",
    "temporary": "temporary",
    "cache": "cache",
    "inputs": "input",
    "workspaces": "workspace",
    "unknown": "unknown",
}
"""For each category of a trace, the part that its blocks belong to."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """The peak of one training, in bytes: totals first, then their parts."""

    allocated: Estimate
    """The tensors' memory, as ``torch.cuda.max_memory_allocated`` counts it."""
    reserved: Estimate
    """The memory of torch's allocator, as ``torch.cuda.max_memory_reserved`` counts it."""
    device: Estimate
    """The memory of the whole card, if no other program uses it."""
    parameters: Estimate
    buffers: Estimate
    optimizer_state: Estimate
    gradients: Estimate
    activations: Estimate
    """Blocks that autograd keeps for the backward pass."""
    temporary: Estimate
    """Blocks that are allocated and freed within a phase."""
    cache: Estimate
    """Keys and values that generation keeps for the next token."""
    inputs: Estimate
    workspaces: Estimate
    """Blocks that libraries request: cuBLAS, cuDNN."""
    unknown: Estimate
    """Blocks of a recorded trace that does not say what they are for."""
    fragmentation: Estimate
    """Reserved memory beyond allocated memory: pieces between blocks, and cached segments. The two
    peaks may be reached at different moments.
    """
    outside_torch: Estimate
    """The CUDA context with its libraries, and what the driver keeps; see
    :class:`.context_memory.ContextMemory`.
    """

    @property
    def categories(self) -> dict[str, int]:
        """Return the bytes by the trace's category, the largest first, without empty ones.

        They add up to ``allocated``.
        """
        sizes = {category: getattr(self, name).bytes for name, category in LIVE_PARTS.items()}
        return dict(
            sorted(
                ((name, size) for name, size in sizes.items() if size), key=lambda item: -item[1]
            )
        )


def predict(
    found: Simulated,
    trace: Trace,
    doubts: Sequence[Doubt],
    outside: ContextMemory,
    replayed_held: Sequence[int] = (),
) -> Prediction:
    """Return the prediction for ``trace``, whose replay is ``found``.

    ``replayed_held`` holds other peaks of reserved memory: see :func:`other_reserved_peaks`.
    """
    allocated = allocated_figure(found, trace, doubts)
    conv = errors.convolutions(trace)
    left, surer = doubts, allocated
    if trace.frees_instead:
        left = [doubt for doubt in doubts if not doubt.replayed]
        surer = allocated_figure(found, trace, left)
    reserved = _reserved_figure(found.peak_reserved_bytes, surer, left, conv, replayed_held)
    parts = errors.category_errors(trace, found.peak_allocated_at.event)
    return Prediction(
        allocated=allocated,
        reserved=reserved,
        device=_device_figure(reserved, outside),
        fragmentation=_fragmentation_figure(found, conv, replayed_held),
        outside_torch=Estimate(outside.all_bytes, outside.error_bytes),
        **{
            name: Estimate(found.categories.get(category, 0), int(parts.get(category, 0)))
            for name, category in LIVE_PARTS.items()
        },
    )


def allocated_figure(found: Simulated, trace: Trace, doubts: Sequence[Doubt]) -> Estimate:
    """Return the peak of allocated memory.

    An upward doubt counts only for the upper side of its error.
    """
    peak = found.peak_allocated_bytes
    uncertain = errors.doubtful(trace, found.peak_allocated_at.event)
    more = errors.allocated_error(peak, uncertain, doubts)
    less = errors.allocated_error(peak, uncertain, errors.downward(doubts))
    return Estimate(peak, more, less)


def other_reserved_peaks(trace: Trace, replayed: Callable[[Trace], Simulated]) -> list[int]:
    """Return the reserved peaks of what may happen instead.

    Convolutions may take somewhat more scratch memory, or somewhat less, and blocks may be freed at
    other moments.
    """
    others = [*scratch.varied(trace), *map(trace.freed_instead, trace.frees_instead)]
    return [replayed(other).peak_reserved_bytes for other in others]


def _reserved_figure(
    held: int,
    allocated: Estimate,
    doubts: Sequence[Doubt],
    conv: float,
    replayed_held: Sequence[int],
) -> Estimate:
    """Return the peak of reserved memory.

    Each side of its error is based on the same side of the error of allocated memory.
    """
    above, below = _replayed_sides(held, replayed_held)
    certain = errors.downward(doubts)
    more = errors.reserved_error(held, allocated.error_bytes, doubts, allocated.bytes, conv)
    less = errors.reserved_error(held, allocated.lower_error_bytes, certain, allocated.bytes, conv)
    return Estimate(held, more + above, less + below)


def _device_figure(reserved: Estimate, outside: ContextMemory) -> Estimate:
    """Return the peak of the whole card."""
    more, less = (
        errors.device_error(side, outside.error_bytes)
        for side in (reserved.error_bytes, reserved.lower_error_bytes)
    )
    return Estimate(reserved.bytes + outside.all_bytes, more, less)


def _fragmentation_figure(found: Simulated, conv: float, replayed_held: Sequence[int]) -> Estimate:
    """Return what the allocator reserves beyond its blocks."""
    held = found.peak_reserved_bytes
    above, below = _replayed_sides(held, replayed_held)
    error = int(errors.fragmentation_error(held, conv))
    return Estimate(held - found.peak_allocated_bytes, error + above, error + below)


def _replayed_sides(held: int, replayed_held: Sequence[int]) -> tuple[int, int]:
    """Return by how much the other replays reserve more, and less, than ``held``."""
    return max((held, *replayed_held)) - held, held - min((held, *replayed_held))
