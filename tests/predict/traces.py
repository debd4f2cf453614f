"""Short traces for tests: sizes are requests, ``~n`` frees block ``n``, as in ``Trace.events``."""

from __future__ import annotations

from gpuscope.predict.trace import Owner, Trace

KIB, MIB = 1 << 10, 1 << 20


def trace_of(*steps: int | str, streams: dict[int, int] | None = None) -> Trace:
    """A number is a request of so many bytes, ``"free 2"`` gives block 2 back."""
    trace = Trace(owner_table=[Owner("activation", "model")], streams=streams or {})
    for step in steps:
        if isinstance(step, str):
            trace.events.append(~int(step.split()[1]))
        else:
            trace.events.append(len(trace.sizes))
            trace.sizes.append(step)
            trace.owners.append(0)
    return trace
