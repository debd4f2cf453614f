"""Where a look found the device's time: kernels by class, what nothing hides, and idle by cause.

The probe adds a trace up (``probe/look_rows.py``); here kernels get their class from
``kernels.toml``, and all rows together are the window.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from math import sqrt
from pathlib import Path
from typing import Any, Literal

from .. import checked_rows
from ..checked_rows import checked
from ..text.numbers import amount
from ..text.units import count_text, duration_text
from .ranks import median

FILE = Path(__file__).with_name("kernels.toml")
MAX_ROWS, MAX_KERNELS = 256, 6
LEAST_SHARE = 0.05
"""The least share of the clock of a row that is worth curing."""
OTHER = "other"
OTHER_WORDS = "other kernels"
UNATTRIBUTED = "unattributed"
FEW_STEPS = 3
"""How many steps a look has by default; it has fewer if a step has very many kernels."""
MANY_KERNELS = 1000
"""From this many kernels in a step on, they are the reason if a look has few steps."""
PRICE = (
    "up to about 0.15 s of training time, once (0.05 s for each 1,000 kernels of a step if it has "
    "more than 3,000), and 0.1 s more the first time"
)
Kind = Literal["kernels", "communication", "copies", "idle", "rest"]

IDLE_WORDS: Mapping[str, str] = {
    "input": "idle: waits for input",
    "launch": "idle: slow kernel launches",
    "queue": "idle: gaps between queued kernels",
    "sync": "idle: after a sync such as .item()",
    "copy": "idle: copies that block the host",
    "allocate": "idle: allocating GPU memory",
    "compile": "idle: compiling or loading kernels",
    "collection": "idle: garbage collection",
    "checkpoint": "idle: saving a checkpoint",
    "validation": "idle: validation",
    "logging": "idle: logging",
    "other": "idle: other code in the script",
}
"""The words for each cause. One that is not here is shown as ``not attributed``."""
LEAST_PARTS = 3
T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""Two-sided 95 % points of Student's t, from one degree of freedom on."""


@dataclass(frozen=True, slots=True)
class KernelClass:
    """A row of the table: kernels whose names match one of the patterns."""

    id: str
    words: str
    patterns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LookRow:
    """A row of a look; ``seconds`` is in the whole window, ``count`` kernels or gaps.

    ``kernels`` are names with their seconds, the longest first; ``place`` is the line of code at
    which most of the time of an idle row or of copies went, "" where it is not known. ``share``
    lies between ``low`` and ``high`` with 95 % confidence, as the steps of the look differ; both
    are None if there were too few.
    """

    name: str
    words: str
    kind: Kind
    seconds: float
    share: float
    count: int
    kernels: tuple[tuple[str, float], ...] = ()
    place: str = ""
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Look:
    """What a look has found; ``rows`` add up to ``seconds``, the longest first.

    For ``start_seconds`` and ``stop_seconds`` the training was paused. For ``waited_seconds`` its
    thread waited for a device that worked, which loses nothing. ``lost_seconds`` is by how much the
    steps around took longer, None if that is not known. ``communication`` and ``copies`` are the
    whole seconds, hidden ones included. ``began`` is in seconds since the epoch. For
    ``held_seconds`` the training thread waited in calls of the runtime, None where the answer does
    not say so; ``host_step_seconds`` is what it needs for a step if nothing makes it wait.
    ``paused_seconds`` is what the device executed for checkpoints and validation.

    A trace makes launches slower. Where its steps took longer than those before, by
    ``slowed_seconds`` each, that is taken off the idle rows: the device does the same work with a
    trace and without, so a step is idle for as long as it usually takes less what it runs. Where
    its few steps were shorter than those before without their pauses, the idle rows grow likewise.
    """

    seconds: float
    steps: int
    rows: tuple[LookRow, ...]
    events: int
    start_seconds: float
    stop_seconds: float
    lost_seconds: float | None
    communication: float
    copies: float
    began: float | None = None
    waited_seconds: float = 0.0
    held_seconds: float | None = None
    paused_seconds: float | None = None
    slowed_seconds: float = 0.0
    host_step_seconds: float | None = None

    @property
    def step_seconds(self) -> float:
        return self.seconds / self.steps

    @property
    def busy_share(self) -> float:
        """Of the window: the time in which something ran on the device."""
        return sum(row.share for row in self.rows if row.kind not in ("idle", "rest"))

    @property
    def stood_seconds(self) -> float:
        """For how long the training thread was stopped."""
        return self.start_seconds + self.stop_seconds

    @property
    def kernels_a_step(self) -> float:
        return sum(row.count for row in self.rows if row.kind == "kernels") / self.steps

    @property
    def kernel_seconds(self) -> float | None:
        """What a kernel takes on average, None where none ran."""
        own = sum(row.seconds for row in self.rows if row.kind == "kernels")
        return own / (self.kernels_a_step * self.steps) if self.kernels_a_step else None

    def row(self, name: str) -> LookRow | None:
        return next((row for row in self.rows if row.name == name), None)

    def age_seconds(self, wall_seconds: float | None) -> float | None:
        """How long ago it began, None where that is not known."""
        if self.began is None or wall_seconds is None:
            return None
        return max(0.0, wall_seconds - self.began)


@cache
def classes() -> dict[str, KernelClass]:
    """All classes by their id, in the order in which they are tried. Raises TableError."""
    return checked_rows.load(FILE, "class", _class)


def _class(row: Any) -> KernelClass:
    found = KernelClass(**checked(row, KernelClass))
    for pattern in found.patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"{pattern!r} is no pattern: {error}") from None
    return found


@cache
def _patterns() -> tuple[tuple[str, re.Pattern[str]], ...]:
    return tuple(
        (one.id, re.compile("|".join(one.patterns), re.IGNORECASE)) for one in classes().values()
    )


@lru_cache(maxsize=4096)
def class_of(name: str) -> str:
    """Return the id of the class of a kernel, ``other`` where the table does not know it."""
    return next((kind for kind, pattern in _patterns() if pattern.search(name)), OTHER)


def words_of(name: str) -> str:
    """Return what a row of a look is called."""
    if name in classes():
        return classes()[name].words
    cause = name.removeprefix("idle-")
    if cause != name and cause in IDLE_WORDS:
        return IDLE_WORDS[cause]
    return "not attributed" if name == UNATTRIBUTED else OTHER_WORDS


def read(answer: Mapping[str, Any]) -> Look | None:
    """Return what a probe's answer to ``look`` says, None where it holds no whole step.

    What a probe sends is not trusted: rows that are no numbers are left out.
    """
    seconds, steps = amount(answer.get("seconds")), int(amount(answer.get("steps")) or 0)
    if not seconds or not steps:
        return None
    spent: dict[str, float] = {}
    counts: dict[str, int] = {}
    names: dict[str, list[tuple[str, float]]] = {}
    parts = _Parts(answer.get("parts"))
    by_class: dict[str, list[Sequence[float] | None]] = {}
    for number, row in enumerate(_rows(answer.get("kernels"), 4)):
        own, kind = amount(row[3]) or 0.0, class_of(str(row[0]))
        spent[kind] = spent.get(kind, 0.0) + own
        counts[kind] = counts.get(kind, 0) + int(amount(row[1]) or 0)
        names.setdefault(kind, []).append((str(row[0])[:512], own))
        by_class.setdefault(kind, []).append(parts.kernel(number))
    for row in _rows([["", *_list(answer.get("left_out"))]], 5):
        spent[OTHER] = spent.get(OTHER, 0.0) + (amount(row[4]) or 0.0)
        counts[OTHER] = counts.get(OTHER, 0) + int(amount(row[2]) or 0)
        by_class.setdefault(OTHER, []).append(parts.left_out)
    places = _copied_at(answer.get("copied_at"))
    traced, busy = seconds, sum(spent.values())
    usual = amount(answer.get("usual_seconds"))
    steady = amount(answer.get("steady_seconds")) or 0.0
    if usual and usual * steps < traced:
        seconds = max(usual * steps, min(busy, traced))
    elif steady * steps > traced and traced - busy >= LEAST_SHARE * traced:
        seconds = steady * steps
    left = (seconds - busy) / (traced - busy) if traced > busy else 1.0
    rows = [
        LookRow(
            kind,
            words_of(kind),
            _kind(kind),
            took,
            took / seconds,
            counts[kind],
            tuple(sorted(names.get(kind, ()), key=lambda item: -item[1])[:MAX_KERNELS]),
            places.get(kind, ""),
            *parts.interval(by_class[kind], took / seconds),
        )
        for kind, took in spent.items()
        if counts[kind]
    ]
    rest = seconds - sum(row.seconds for row in rows)
    for number, row in enumerate(_rows(answer.get("idle"), 5)):
        took, cause = left * (amount(row[1]) or 0.0), str(row[0])
        if cause in IDLE_WORDS and took:
            rest -= took
            between = parts.interval([parts.idle(number)], took / seconds)
            rows.append(
                LookRow(f"idle-{cause}", words_of(f"idle-{cause}"), "idle", took, took / seconds,
                        int(amount(row[2]) or 0), (), str(row[3])[:512], *between)
            )  # fmt: skip
    if rest > 1e-6 * seconds:
        rows.append(LookRow(UNATTRIBUTED, words_of(UNATTRIBUTED), "rest", rest, rest / seconds, 0))
    return Look(
        seconds,
        steps,
        tuple(sorted(rows, key=lambda row: -row.seconds)),
        int(amount(answer.get("events")) or 0),
        amount(answer.get("start_seconds")) or 0.0,
        amount(answer.get("stop_seconds")) or 0.0,
        amount(answer.get("lost_seconds")),
        _first(answer.get("communication")),
        _first(answer.get("copies")),
        amount(answer.get("began")),
        amount(answer.get("waited_seconds")) or 0.0,
        amount(answer.get("held_seconds")),
        _paused(answer.get("paused")),
        max(0.0, traced - seconds) / steps,
        amount(answer.get("host_step_seconds")),
    )


class _Parts:
    """The parts of the window that an answer contains, row by row."""

    def __init__(self, value: Any) -> None:
        value = _list(value)
        whole = value if len(value) == 4 else [[], [], [], []]
        self.lengths = self._numbers(whole[0]) or ()
        self._kernels, self._idle = _list(whole[1]), _list(whole[3])
        self.left_out = self._numbers(whole[2])

    def kernel(self, number: int) -> Sequence[float] | None:
        return self._numbers(self._kernels[number]) if number < len(self._kernels) else None

    def idle(self, number: int) -> Sequence[float] | None:
        return self._numbers(self._idle[number]) if number < len(self._idle) else None

    def interval(
        self, rows: Sequence[Sequence[float] | None], share: float
    ) -> tuple[float | None, float | None]:
        """Return the bounds of a share that rows have together, with 95 % confidence.

        They are as far from it, in proportion, as those of the rows in the parts as they were.

        Batch means: the parts are taken as independent readings of one ratio, time of the row over
        time. Its variance is that of the ratio estimator (Cochran, Sampling Techniques, 1977), and
        Student's t allows for their small number.
        """
        count = len(self.lengths)
        whole = sum(self.lengths)
        if not LEAST_PARTS <= count <= len(T95) + 1 or whole <= 0:
            return None, None
        own = [0.0] * count
        for row in rows:
            if row is None or len(row) != count:
                return None, None
            own = [a + b for a, b in zip(own, row, strict=True)]
        ratio = sum(own) / whole
        left = [value - ratio * length for value, length in zip(own, self.lengths, strict=True)]
        error = sqrt(sum(one * one for one in left) * count / (count - 1)) / whole
        half = T95[count - 2] * error * (share / ratio if ratio > 0 else 1.0)
        return max(0.0, share - half), min(1.0, share + half)

    @staticmethod
    def _numbers(row: Any) -> tuple[float, ...] | None:
        found = [amount(value) for value in _list(row)]
        numbers = tuple(value for value in found if value is not None)
        return numbers if len(numbers) == len(found) else None


def _paused(value: Any) -> float | None:
    """Return for how long what was launched in pauses ran, None where it is not said."""
    if not isinstance(value, list):
        return None
    return sum(amount(row[1]) or 0.0 for row in _rows(value, 2))


def _copied_at(value: Any) -> dict[str, str]:
    """Return by class of copies the line of code that most of them are at."""
    found: dict[str, str] = {}
    for name, place, _ in _rows(value, 3):
        if isinstance(place, str) and place:
            found.setdefault(class_of(name), place[:512])
    return found


def waited_for(looks: Mapping[int, Look]) -> tuple[int, float] | None:
    """Return the rank that the others wait for, and for how long in each step; None without one.

    ``looks`` are of ranks of one job, taken at the same moment. A collective's kernel runs from the
    moment its rank is there until the last one is: the rank whose kernels run least is the last.
    """
    spent = {rank: look.communication / look.steps for rank, look in looks.items()}
    if len(spent) < 2:
        return None
    last = min(spent, key=lambda rank: spent[rank])
    waits = median(seconds for rank, seconds in spent.items() if rank != last) - spent[last]
    step = looks[last].step_seconds
    return (last, waits) if waits >= LEAST_SHARE * step else None


def cost(look: Look) -> str:
    """Say what a look has cost the training."""
    pause = f"the training paused for {duration_text(look.stood_seconds)}"
    if look.lost_seconds is None:
        return f"During the GPU trace {pause}; how much its steps lost in all is unknown."
    lost = duration_text(max(look.lost_seconds, look.stood_seconds))
    return f"The GPU trace cost {lost} of training time: {pause}."


def notes(look: Look) -> list[str]:
    """Say why a look is of few steps, and what was taken off its idle time."""
    found = []
    if look.steps < FEW_STEPS:
        many = look.kernels_a_step >= MANY_KERNELS
        found.append(
            f"Only {count_text(look.steps, 'step')} traced"
            + (f", as each of the {look.kernels_a_step:,.0f} kernels costs time" if many else "")
            + ": the shares have no interval."
        )
    if look.slowed_seconds >= LEAST_SHARE * look.step_seconds:
        found.append(
            f"The trace made each step {duration_text(look.slowed_seconds)} longer; "
            "this is subtracted from the idle time."
        )
    return found


def _kind(name: str) -> Kind:
    if name == "communication":
        return "communication"
    return "copies" if name.startswith("copies-") else "kernels"


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _first(value: Any) -> float:
    return amount(next(iter(_list(value)), None)) or 0.0


def _rows(rows: Any, width: int) -> Iterable[list[Any]]:
    for row in _list(rows)[:MAX_ROWS]:
        if isinstance(row, list) and len(row) == width and isinstance(row[0], str):
            yield row
