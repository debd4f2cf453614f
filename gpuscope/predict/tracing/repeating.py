"""Copy a step that would be the same as the previous one, instead of tracing it again."""

from __future__ import annotations

from collections import Counter, defaultdict

from ..trace import PhaseMark
from .recorder import Recorder


def repeat_last_step(recorder: Recorder, first_event: int, first_mark: int, number: int) -> bool:
    """Append the events since ``first_event`` once more, as step ``number``.

    Return False and change nothing, unless that step left blocks of exactly the sizes and owners
    that it found at its start. Then each block that it found and freed has a counterpart that the
    next step finds and frees.
    """
    trace = recorder.trace
    events, sizes, owners = trace.events, trace.sizes, trace.owners
    before = trace.live(first_event)
    step = events[first_event:]
    made, freed = [event for event in step if event >= 0], {~event for event in step if event < 0}
    lost = sorted(block for block in before if block in freed)
    kept = [block for block in made if block not in freed]
    key = {block: (sizes[block], owners[block]) for block in (*lost, *kept)}
    if Counter(key[block] for block in lost) != Counter(key[block] for block in kept):
        return False
    successors = defaultdict(list)
    for block in kept:
        successors[key[block]].append(block)
    renamed = {block: successors[key[block]].pop(0) for block in lost}
    start = len(events)
    for event in step:
        if event >= 0:
            renamed[event] = block = len(sizes)
            sizes.append(sizes[event])
            owners.append(owners[event])
            events.append(block)
            if event in trace.streams:
                trace.streams[block] = trace.streams[event]
            recorder.same_as(block, event)
        else:
            events.append(~renamed[~event])
    for mark in trace.marks[first_mark:]:
        name = f"step {number}" if mark.name.startswith("step ") else mark.name
        recorder.mark_at(PhaseMark(mark.at - first_event + start, name))
    return True
