"""Find out where each rank waits, and which ranks wait elsewhere than most."""

from __future__ import annotations

from collections import Counter

from ..finding import Evidence
from .model import Call, Failure, Rank
from .scene import Scene, collective_of, fatal, names, of_failure, own_frame, stands_at, waits


def waiting_places(scene: Scene) -> dict[int, tuple[str, str, Evidence]]:
    """Return the line of its own code, and the collective, in which each rank waited or failed."""
    found = {}
    for number, rank in scene.ranks.items():
        failure = fatal(rank)
        frame = None
        if failure is not None and (failure.means == "effect" or failure.kind == "size"):
            frame = own_frame(failure.frames, innermost_last=True)
        call = unfinished(rank)
        known = call is not None or waits(rank)
        if failure is not None and frame is not None and not (known and came_later(failure)):
            operation = collective_of(failure.frames[::-1])
            found[number] = (frame.place, operation, of_failure(failure, names([number])))
        elif waits(rank):
            place, function, source = stands_at(rank)
            operation = collective_of(rank.stacks[0].frames)
            text = f"{names([number])} waited in {operation} at {place} in {function}"
            found[number] = (place, operation, Evidence(text, source))
        elif call is not None:
            at = f" at {call.place}" if call.place else ""
            text = f"{names([number])} waited in {call.title}{at}"
            found[number] = (
                call.place.partition(" in ")[0],
                call.operation.partition(" ")[0] if call.point_to_point else call.operation,
                Evidence(text, of_recorder(scene, number)),
            )
    return found


def came_later(failure: Failure) -> bool:
    """Return whether an exception was raised after the wait, in the next call that the rank made.

    NCCL's calls only queue work, so that Python goes on until the watchdog ends the connection.
    """
    return "communicator was aborted" in failure.text


def unfinished(rank: Rank) -> Call | None:
    """Return the oldest call of a rank that is not done, by its flight recorder: it waits there."""
    undone = [
        call
        for calls in rank.calls.values()
        if calls and not calls[-1].done
        for call in calls
        if not call.done
    ]
    return min(undone, key=lambda call: call.created or 0.0, default=None)


def waiting_transfers(rank: Rank) -> list[Call]:
    """Return the sends and receives of a rank that are not done, the oldest first."""
    found = [
        call
        for calls in rank.calls.values()
        for call in calls
        if call.point_to_point and not call.done and call.source is not None
    ]
    return sorted(found, key=lambda call: (call.created or 0.0, call.number))


def minority(values: dict[int, str]) -> list[int]:
    """Return the ranks whose value is not the most common one, if one is the most common."""
    ranked = Counter(values.values()).most_common()
    if len(ranked) < 2 or ranked[0][1] == ranked[1][1]:
        return []
    return sorted(number for number, value in values.items() if value != ranked[0][0])


def of_recorder(scene: Scene, number: int) -> str:
    """Return the name of the dump of a rank."""
    return next(
        (one for one in scene.get(number).sources if one in scene.job.flight_names),
        "flight recorder",
    )
