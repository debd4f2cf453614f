"""Change a trace to one with the loss computed in parts.

With large outputs (a vocabulary) the peak is in the loss. The output of the last layer, its
log-softmax and their gradients each have samples × tokens × classes elements. If the loss is
computed in ``n`` parts, each under checkpoint, only one part of them is live at a time. The
gradient of the last layer's weight is then summed part by part, which needs memory for one more
gradient of that weight. Both changes are made to the trace here.
"""

from __future__ import annotations

from .trace import Owner, PhaseMark, Trace

WORD = "log_softmax"
LEAST_SHARE = 0.05
"""A share of the peak. If the loss takes less, computing it in parts frees too little to matter."""
_MODEL = ("parameter", "buffer", "gradient", "optimizer", "input")


class NotHere(Exception):
    """The trace has no such loss, or it is too small to matter. ``args`` holds the reason."""


def in_chunks(trace: Trace, chunks: int, peak_event: int) -> Trace:
    """Return the trace with the loss in ``chunks`` parts.

    ``peak_event`` is the event of the trace's peak. Raises :class:`NotHere`.
    """
    losses = {number for number, owner in enumerate(trace.owner_table) if WORD in owner.operation}
    whole = max(
        (size for size, owner in zip(trace.sizes, trace.owners, strict=True) if owner in losses),
        default=0,
    )
    if not whole:
        raise NotHere("the trace has no cross-entropy over classes")
    alike = (whole, whole // 2, 2 * whole)  # with autocast the layer's own output is half as large
    model = {number for number, owner in enumerate(trace.owner_table) if owner.category in _MODEL}
    parts = {
        block
        for block, (size, owner) in enumerate(zip(trace.sizes, trace.owners, strict=True))
        if size in alike and owner not in model
    }
    live = trace.live(peak_event + 1)
    peak = sum(trace.sizes[block] for block in live)
    share = sum(trace.sizes[block] for block in live if block in parts) / max(1, peak)
    if share < LEAST_SHARE:
        raise NotHere(f"the loss has {100 * share:.0f} % of the peak")
    sizes = [
        -(-size // chunks) if block in parts else size for block, size in enumerate(trace.sizes)
    ]
    return _with_weight(trace, sizes, parts, losses)


def _with_weight(trace: Trace, sizes: list[int], parts: set[int], losses: set[int]) -> Trace:
    """Add the weight's gradient to each gradient of the output.

    It is one block as large as the largest parameter.
    """
    weight = max(
        (
            size
            for size, owner in zip(trace.sizes, trace.owners, strict=True)
            if trace.owner_table[owner].category == "parameter"
        ),
        default=0,
    )
    table = [*trace.owner_table, Owner("temporary", "", "chunked loss")]
    owners = list(trace.owners)
    events: list[int] = []
    added: dict[int, int] = {}
    moved: list[PhaseMark] = []
    for marks, event in trace.with_marks():
        moved += [PhaseMark(len(events), mark.name) for mark in marks]
        if event is None:
            break
        events.append(event)
        block = event if event >= 0 else ~event
        backward = block in parts and "backward" in trace.owner(block).operation
        if weight and backward and trace.owners[block] in losses:
            if event >= 0:
                sizes.append(weight)
                owners.append(len(table) - 1)
                added[block] = len(sizes) - 1
                events.append(added[block])
            elif block in added:
                events.append(~added.pop(block))
    return Trace(sizes, owners, table, events, moved, trace.streams)
