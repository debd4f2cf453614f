"""A recorded run (``recorded.py``) as a history that the simulated allocator replays."""

from __future__ import annotations

from typing import Any

from bench.predict.recorded import LETTERS, UNIT
from gpuscope.predict.trace import PhaseMark
from gpuscope.snapshot.columns import CODES
from gpuscope.snapshot.history import History

_CODES = {letter: CODES[action] for action, letter in LETTERS.items()}


def history_of(data: dict[str, Any]) -> tuple[History, list[PhaseMark]]:
    """The history, from an empty allocator on; and its marks by entry.

    The segments at its end are not in the file.
    """
    history = History()
    actions, streams = data["actions"], data["streams"]
    marks, waiting = [], list(data["marks"])
    for at, (letter, place, size) in enumerate(
        zip(actions, data["addresses"], data["sizes"], strict=True)
    ):
        while waiting and waiting[0][0] <= at:
            marks.append(PhaseMark(len(history.code), waiting.pop(0)[1]))
        stream = streams.get(str(at), data.get("stream", 0))
        for one in "rc" if letter == "f" else letter:
            history.code.append(_CODES[one])
            history.addr.append(data["base"] + place * UNIT if one not in "os" else 0)
            history.size.append(size)
            history.stream.append(stream)
    marks += [PhaseMark(len(history.code), name) for _, name in waiting]
    return history, marks
