"""Keep a trainer's time ledger as its probe reports it, minute by minute.

A minute arrives as an event ``time``, from a probe, a black box or a recording, or in the answer to
the request ``time``. Both contain the moment ``m`` at which it began, so a minute that is reported
twice is kept once, in its last version. ``model.time_ledger`` says what the rows mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MAX_MINUTES = 240
"""Four hours, which take some 200 kB for one trainer."""
MAX_LINES = 64
MAX_M = 1 << 62

FACTS = (
    "recompiles", "guard", "compiled_at", "gradient_syncs",
    "launch_blocking", "anomaly_detection", "uncached_memory", "optimizer_on_host",
    "loader_workers", "loading_cores",
)  # fmt: skip
"""What the newest minute has besides its rows."""

APART, LONG = ("hang", "long"), ("long_steps", "long_m", "long_seconds")
"""What a minute has of steps that take very long: their rows, and how many ended in it."""

Minute = Mapping[str, Any]
"""A minute as in the answer to the request ``time``: see docs/protocol.md."""


class Minutes:
    """The minutes of one trainer, the oldest first."""

    def __init__(self) -> None:
        self._kept: dict[int, Minute] = {}
        self._sorted: tuple[Minute, ...] | None = ()

    def add(self, minute: Minute) -> None:
        """Keep a minute in place of an earlier version; one without a start time is left out."""
        m = minute.get("m")
        if type(m) is not int or not 0 <= m < MAX_M:
            return
        before = self._kept.get(m)
        if before is not None and _seconds(before) > _seconds(minute):
            return
        self._kept[m] = minute
        while len(self._kept) > MAX_MINUTES:
            del self._kept[min(self._kept)]
        self._sorted = None

    @property
    def all(self) -> tuple[Minute, ...]:
        if self._sorted is None:
            self._sorted = tuple(self._kept[m] for m in sorted(self._kept))
        return self._sorted


def of_event(data: Mapping[str, Any]) -> Minute:
    return {
        **{name: data.get(name) for name in ("m", "seconds", "steps", "looks", "even_looks")},
        **{name: data[name] for name in FACTS if name in data},
        "rows": [
            [name, _number(seconds), _number(looks)]
            for name, seconds, looks in _lines(data.get("rows"))
        ],
        "places": [
            [name, place, _number(seconds)] for name, seconds, place in _lines(data.get("places"))
        ],
        **{name: data[name] for name in LONG if name in data},
        **{
            part: [
                [row, _number(seconds), _number(looks), place]
                for row, seconds, looks, place in _lines(data[part], 3)
            ]
            for part in APART
            if part in data
        },
    }


def of_answer(value: Mapping[str, Any]) -> list[Minute]:
    """Return the minutes in a probe's answer to ``time``."""
    minutes = value.get("minutes")
    found = minutes[-MAX_MINUTES:] if isinstance(minutes, list) else ()
    return [minute for minute in found if isinstance(minute, Mapping)]


def _lines(text: Any, spaces: int = 2) -> list[list[str]]:
    lines = text.split("|", MAX_LINES)[:MAX_LINES] if isinstance(text, str) else ()
    return [words for line in lines if len(words := line.split(" ", spaces)) == spaces + 1]


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _seconds(minute: Minute) -> float:
    seconds = minute.get("seconds")
    return seconds if isinstance(seconds, (int, float)) else 0.0
