"""Read dumps of c10d's flight recorder: which collectives each rank launched, and which are done.

A child with limited memory unpickles them and no pickle gets a global (``snapshot.flight_child``).
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from sys import intern
from typing import Any

from ...process.line_child import ChildError, LineChild
from ...snapshot import flight_child, limits
from ...text.units import MIB
from .find import FoundFile
from .model import Call

SECONDS = 60.0
"""Seconds that reading one dump may take."""
COALESCED = "coalesced"
_PAIR = re.compile(r"(?:send|recv) (?P<first>\d{1,6})(?P<arrow>->|<-)(?P<second>\d{1,6})$")
MAX_ANSWER_BYTES = 64 * MIB


@dataclass(slots=True)
class Dump:
    """One dump: the calls of each group in their order.

    ``world`` is the number of ranks of the largest group. ``failure`` says why it could not be
    read.
    """

    found: FoundFile
    rank: int | None = None
    host: str = ""
    calls: dict[str, list[Call]] = field(default_factory=dict)
    world: int = 0
    failure: str = ""


def read_all(files: Sequence[FoundFile]) -> Iterator[Dump]:
    """Yield the dumps in these files; a child that dies at one is replaced for the next."""
    child: LineChild | None = None
    limit, _ = limits.for_files(*(str(one.path) for one in files)) if files else (0, 0.0)
    try:
        for one in files:
            try:
                child = child or _start(limit)
                child.write(json.dumps(os.path.abspath(one.path)).encode() + b"\n")
                answer = json.loads(child.read_line(time.monotonic() + SECONDS))
            except (ChildError, OSError, ValueError) as error:
                if child is not None:
                    child.close()
                    child = None
                yield Dump(one, failure=f"reading it failed: {error}")
                continue
            yield _dump(one, answer)
    finally:
        if child is not None:
            child.close()


def _start(limit: int) -> LineChild:
    script = str(Path(flight_child.__file__))
    return LineChild(
        [sys.executable, "-I", "-S", script, str(limit)],
        env={**os.environ, "MALLOC_ARENA_MAX": "1"},
        max_line_bytes=MAX_ANSWER_BYTES,
    )


def _dump(found: FoundFile, answer: dict[str, Any]) -> Dump:
    if "failure" in answer:
        return Dump(found, failure=str(answer["failure"]))
    dump = Dump(found, rank=answer.get("rank"), host=answer["host"])
    dump.rank = found.rank if dump.rank is None else dump.rank
    dump.world = max((len(ranks) for _, _, ranks in answer["groups"]), default=0)
    members = {name: ranks for name, _, ranks in answer["groups"]}
    for row in answer["rows"]:
        call = _call(row, members)
        if call is None:
            continue
        calls = dump.calls.get(call.group, [])
        if call.operation == COALESCED:
            _end_batch(calls, call, collectives=row[4], transfers=row[5])
        else:
            dump.calls.setdefault(call.group, calls).append(call)
    return dump


def _end_batch(
    calls: list[Call], end: Call, collectives: int | None, transfers: int | None
) -> None:
    """Give the calls of a batch the state of the entry that ends it, as they have none.

    They are the last calls before it, and share the number that the entry has, of collectives or of
    transfers, whichever the batch is of.
    """
    for call in reversed(calls):
        number = transfers if call.point_to_point else collectives
        if call.number != number or call.point_to_point != calls[-1].point_to_point:
            return
        call.done, call.completed = end.done, end.completed


def _call(row: list[Any], members: dict[str, list[int]]) -> Call | None:
    (
        name, label, backend, operation, number, p2p, is_p2p, inputs, outputs, types, done,
        created, completed, timeout, place, blocks,
    ) = row  # fmt: skip
    name, label, backend, operation, inputs, outputs, types, place = map(
        intern, (name, label, backend, operation, inputs, outputs, types, place)
    )  # ranks say the same thousands of times
    is_p2p = is_p2p or operation.startswith(("send ", "recv "))  # older dumps do not mark them
    count = p2p if is_p2p else number
    if count is None or not operation:
        return None
    source, target = _pair(operation, members.get(name) or members.get("") or [])
    return Call(
        group=intern(f"{backend}:{name}") if backend else name,
        label=label or name,
        number=count,
        operation=operation,
        shapes=inputs
        if inputs == outputs
        else intern(f"{inputs or 'nothing'} to {outputs or 'nothing'}"),
        types=types,
        done=bool(done),
        created=created / 1e9 if created else None,
        completed=completed / 1e9 if completed else None,
        timeout=timeout / 1e3 if timeout else None,
        place=place,
        point_to_point=bool(is_p2p),
        source=source,
        target=target,
        blocks=bool(blocks),
    )


def _pair(operation: str, members: list[int]) -> tuple[int | None, int | None]:
    """Return the ranks in the job that send and receive, of ``send 0->1`` or ``recv 1<-0``.

    The dump has their numbers in the group. Without the group's members, they are taken as those in
    the job.
    """
    match = _PAIR.match(operation)
    if match is None:
        return None, None
    first, second = int(match["first"]), int(match["second"])
    if members and max(first, second) < len(members):
        ordered = sorted(members)
        first, second = ordered[first], ordered[second]
    return (first, second) if match["arrow"] == "->" else (second, first)
