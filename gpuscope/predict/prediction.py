"""Predict what a training takes of a card at its peak.

The answer is three totals and the parts that they are made of, each with its error.

    allocated = parameters + buffers + gradients + optimizer state + activations + temporary + inputs
                + workspaces + not told
    reserved  = allocated + fragmentation
    device    = reserved + outside torch

Everything is in bytes. The parts of ``allocated`` are whose blocks are live when it peaks. A part's
own error comes from its kind alone; what the tracing child doubts widens the totals, as no doubt is
about one part. How each error is made up is told by the function of :mod:`.errors` that computes
it.
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..model.allocator_settings import Settings
from . import errors, scratch
from .allocator import Simulated, simulate
from .context_memory import Outside
from .errors import Figure
from .request import Doubt
from .trace import Trace

LIVE_PARTS: Mapping[str, str] = {
    "parameters": "parameter",
    "buffers": "buffer",
    "optimizer_state": "optimizer",
    "gradients": "gradient",
    "activations": "activation",
    "temporary": "temporary",
    "inputs": "input",
    "workspaces": "workspace",
    "not_told": "unknown",
}
"""The part that the blocks of a trace's category belong to."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """The peak of one training, in bytes: totals first, then their parts."""

    allocated: Figure
    """By tensors, as ``torch.cuda.max_memory_allocated`` counts."""
    reserved: Figure
    """By torch's allocator, as ``torch.cuda.max_memory_reserved`` counts."""
    device: Figure
    """Of the whole card, alone on it."""
    parameters: Figure
    buffers: Figure
    optimizer_state: Figure
    gradients: Figure
    activations: Figure
    """What autograd keeps for the backward pass."""
    temporary: Figure
    """Blocks that are made and freed within a phase."""
    inputs: Figure
    workspaces: Figure
    """What libraries ask for: cuBLAS, cuDNN."""
    not_told: Figure
    """Blocks of a recorded trace that does not say whose they are."""
    fragmentation: Figure
    """Reserved beyond what is allocated: pieces between blocks and cached segments. The two peaks
    may be reached at different moments.
    """
    outside_torch: Figure
    """The CUDA context with its libraries, and what the driver keeps; see
    :class:`.context_memory.Outside`.
    """

    @property
    def categories(self) -> dict[str, int]:
        """Bytes by the trace's category, the largest first, without what is empty.

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
    outside: Outside,
    replayed_held: Sequence[int] = (),
) -> Prediction:
    """The prediction for ``trace``, of which ``found`` is the replay.

    ``replayed_held``: what else it may reserve, as :func:`held_with_other_scratch` says.
    """
    allocated = allocated_figure(found, trace, doubts)
    conv = errors.convolutions(trace)
    reserved = _reserved_figure(found.peak_reserved_bytes, allocated, doubts, conv, replayed_held)
    parts = errors.category_errors(trace, found.peak_allocated_at.event)
    return Prediction(
        allocated=allocated,
        reserved=reserved,
        device=_device_figure(reserved, outside),
        fragmentation=_fragmentation_figure(found, conv, replayed_held),
        outside_torch=Figure(outside.all_bytes, outside.error_bytes),
        **{
            name: Figure(found.categories.get(category, 0), int(parts.get(category, 0)))
            for name, category in LIVE_PARTS.items()
        },
    )


def allocated_figure(found: Simulated, trace: Trace, doubts: Sequence[Doubt]) -> Figure:
    """The peak that is allocated. An upward doubt is in the upper side of the error only."""
    peak = found.peak_allocated_bytes
    uncertain = errors.doubtful(trace, found.peak_allocated_at.event)
    more = errors.allocated_error(peak, uncertain, doubts)
    less = errors.allocated_error(peak, uncertain, errors.downward(doubts))
    return Figure(peak, more, less)


def held_with_other_scratch(trace: Trace, settings: Settings) -> list[int]:
    """Return the reserved peaks with other amounts of scratch memory for convolutions.

    One is with somewhat more of it, one with less.
    """
    return [simulate(other, settings).peak_reserved_bytes for other in scratch.varied(trace)]


def _reserved_figure(
    held: int, allocated: Figure, doubts: Sequence[Doubt], conv: float, replayed_held: Sequence[int]
) -> Figure:
    """Return the reserved peak.

    Each side of its error rests on the same side of the allocated one.
    """
    above, below = _replayed_sides(held, replayed_held)
    certain = errors.downward(doubts)
    more = errors.reserved_error(held, allocated.error_bytes, doubts, allocated.bytes, conv)
    less = errors.reserved_error(held, allocated.lower_error_bytes, certain, allocated.bytes, conv)
    return Figure(held, more + above, less + below)


def _device_figure(reserved: Figure, outside: Outside) -> Figure:
    """The whole card's peak."""
    more, less = (
        errors.device_error(side, outside.error_bytes)
        for side in (reserved.error_bytes, reserved.lower_error_bytes)
    )
    return Figure(reserved.bytes + outside.all_bytes, more, less)


def _fragmentation_figure(found: Simulated, conv: float, replayed_held: Sequence[int]) -> Figure:
    """What the allocator reserves beyond its blocks."""
    held = found.peak_reserved_bytes
    above, below = _replayed_sides(held, replayed_held)
    error = int(errors.fragmentation_error(held, conv))
    return Figure(held - found.peak_allocated_bytes, error + above, error + below)


def _replayed_sides(held: int, replayed_held: Sequence[int]) -> tuple[int, int]:
    """By how much the other replays reserve more, and less, than ``held``."""
    return max((held, *replayed_held)) - held, held - min((held, *replayed_held))
