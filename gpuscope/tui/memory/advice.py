"""This module makes the lines below the waterfall.

They say what kind of process it is, what can be freed, and which figures are not exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...model.allocator_account import REST_OF_PROCESS, AccountRow
from ...model.device_state import mute
from ...model.job_ends import end_text
from ...model.memory_account import Account, largest_freeable
from ...store.view import HostView
from ...text import styled
from ...text.styled import Line
from ...text.units import MIB, bytes_text
from ..shell.keymap import key_of
from .more_text import measured_fixes
from .subjects import Subject

if TYPE_CHECKING:
    from ...doctor.finding import Finding
    from ...model.process_kind import ProcessKind
    from ...predict.trainer_what_if import Freed
    from ..background.finding_history import Case
    from ..theme import Glyphs

TOKENS = {"spill": "bad", "kept": "warn"}
RULED_OUT = {
    "live.memory_grows": "empty_cache",
    "live.evaluation_grows": "empty_cache",
    "live.at_the_edge": "expandable",
}
"""Cause → what the doctor says cannot help: live tensors are not cached, what is not fragmented
needs no other segments.
"""
GROWS = frozenset(("live.memory_grows", "live.evaluation_grows"))
"""Causes where live tensors become ever more: whatever else is freed fills up again."""
MEMORY = frozenset((*RULED_OUT, "live.fragmentation", "live.full"))
"""Causes of the doctor that are about a trainer's memory."""


SEEN_SECONDS = 5.0
"""Readings must cover this time to show how much of the idle memory a step will need again."""
HELD_SECONDS = 5.0
"""A note on two readings stays for so long after what it says was last so: the next two may be
close together, and those after them apart again.
"""


OF_ITS_PROBE = "The parts above are what torch in the trainer still counts."
PLENTY = 0.75
"""With so much of the card free nothing has to be saved."""


@dataclass
class SaidBefore:
    """What was said of one subject by now, so that not every reading brings other words."""

    largest: str = ""
    at_once: str = ""
    notes: dict[str, tuple[float, str]] = field(default_factory=dict)
    """By how a note begins: when it last held, and its words then."""

    def held(self, notes: Sequence[str], now: float) -> list[str]:
        """These notes, and those on two readings that held a short while ago."""
        self.notes = {begin: one for begin, one in self.notes.items() if " apart" in one[1]}
        for note in notes:
            self.notes[note[:16]] = (now, note)
        self.notes = {
            begin: one for begin, one in self.notes.items() if 0 <= now - one[0] <= HELD_SECONDS
        }
        return [note for _, note in self.notes.values()]


def _first_steps(said: Finding, replayed: bool) -> list[Line]:
    """Return what the doctor says to do first about memory, and what after that."""
    from ...doctor.steps import steps_of

    steps = zip(("do first: ", "then: "), steps_of(said, replayed), strict=False)
    return [[(word, "accent"), (step.title, "text")] for word, step in steps]


def _steps(said: Finding, replayed: bool) -> list[Line]:
    """Return what the doctor says to do, a line for each step."""
    from ...doctor.steps import paste_of, steps_of

    lines: list[Line] = []
    for number, fix in enumerate(steps_of(said, replayed)):
        paste = paste_of(fix)
        lines.append(
            [
                (f"{number + 1}. ", "title"),
                (f"{fix.title}{': ' if paste else ''}", "text"),
                (paste, "accent"),
            ]
        )
    return lines


def alarm_of(subject: Subject, glyphs: Glyphs) -> Line:
    """Return what is wrong with a device that gives no readings, for the line of its name."""
    silent = mute(subject.device) if subject.device is not None else None
    return [] if silent is None else [(f"   {glyphs.bad} {silent.word}", "bad")]


def advice(
    host: HostView,
    subject: Subject,
    found: Account,
    finding: ProcessKind | None,
    said: Finding | None = None,
    before: SaidBefore | None = None,
    seen_seconds: float = 0.0,
    first_trainer: str = "",
) -> list[Line]:
    """Return the lines of advice, the most important first; they may be wider than the screen.

    ``said`` is what the doctor has found wrong with this trainer's memory; what it has ruled
    out is not advised. ``before`` keeps what is said here, and ``seen_seconds`` tells over how
    long ``found`` is what was held at most. ``first_trainer`` says when a recording has one.
    """
    before = before or SaidBefore()
    if subject.trainer is not None and subject.trainer.gone:
        return [
            [
                (end_text(subject.trainer.gone), "warn"),
                ("; the last state is shown", "muted"),
            ]
        ]
    if subject.device is None:
        return [*_on_cpu(found), *_notes(found.notes)]
    silent = mute(subject.device)
    if silent is not None:
        return [
            [
                (f"{silent.word}: ", "bad"),
                (silent.reason, "text"),
                (f"   {key_of('doctor')}: why" if said is not None else "", "muted"),
            ],
            *(_steps(said, bool(host.badge)) if said is not None else ()),
            [("", "text"), ("The driver gives no readings of it.", "muted")],
            *([[("", "text"), (OF_ITS_PROBE, "muted")]] if subject.allocator is not None else []),
        ]
    lines = (
        [
            [
                ("finding: ", "bad" if said.severity == "problem" else "warn"),
                (said.title, "text"),
                (f"   {key_of('doctor')}: why and what helps", "muted"),
            ]
        ]
        if said
        else []
    )
    lines += _first_steps(said, bool(host.badge)) if said is not None else []
    lines += _recognised_lines(finding) if finding else []
    if subject.allocator is None:
        run: Line = [
            ("no probe here. Next run: ", "muted"),
            ("gpuscope run train.py", "accent"),
        ]
        lines.append([(f"no probe yet: {first_trainer}", "text")] if first_trainer else run)
    elif not is_growth(said):
        ruled_out = [
            RULED_OUT.get(said.cause, "") if said else "",
            "" if seen_seconds >= SEEN_SECONDS else "empty_cache",
        ]
        plenty = _plenty(subject)
        lines += plenty or _to_free(
            found,
            [cure for cure in ruled_out if cure],
            before,
            next(iter(measured_fixes(host, subject)), None),
        )
    notes = before.held(found.notes, host.sampled_seconds or 0.0)
    if finding is not None and finding.kind == "async":  # the finding already says it
        notes = [note for note in notes if not note.startswith("cudaMallocAsync")]
    return lines + _notes(notes)


def is_growth(said: Finding | None) -> bool:
    """Tell whether the doctor found that live tensors grow, against which no saving helps."""
    return said is not None and said.cause in GROWS


def _plenty(subject: Subject) -> list[Line]:
    """Return that there is no need to save where most of the card is free."""
    device = subject.device
    total = device.definition.total_bytes if device is not None else None
    free = device.number("free_bytes") if device is not None else None
    if not total or free is None or free < PLENTY * total:
        return []
    return [[("plenty of room: ", "muted"), (f"{bytes_text(free)} are free", "ok")]]


def _recognised_lines(finding: ProcessKind) -> list[Line]:
    lines: list[Line] = [[("seen: ", "muted"), (finding.says, TOKENS.get(finding.kind, "text"))]]
    lines.append([("why: ", "muted"), (finding.ground, "muted")])
    if finding.advice:
        lines.append([("try: ", "muted"), (finding.advice, "accent")])
    return lines


def _to_free(
    found: Account, ruled_out: list[str], before: SaidBefore, fix: Freed | None
) -> list[Line]:
    """Return what would free most, by the next run and at once.

    ``fix`` is the one for the next run that frees most: how much of the live tensors' rows can be
    saved, it says better than their sizes.
    """
    parts = [part for part in found.parts if not any(cure in part.free_by for cure in ruled_out)]
    if fix is not None:
        parts = [part for part in parts if part.inside != "allocated" or part.now]
        parts.append(AccountRow(fix.title, "", fix.middle, "", fix.change))
    largest = largest_freeable(parts, before=before.largest)
    before.largest = largest.name if largest is not None else ""
    if largest is None:
        return [[("No saving of 64 MiB or more.", "muted")]]
    more: Line = []
    if fix is not None and largest.name == fix.title:
        error = f" ±{bytes_text(fix.error)}" if fix.error >= MIB else ""
        more = [(error, "muted")]
    size = f"{largest.name}, {bytes_text(largest.known)}"
    lines: list[Line] = [
        [("biggest saving: ", "muted"), (size, "text"), *more],
        [("how: ", "muted"), (largest.free_by, "accent")],
    ]
    at_once = None if largest.now else largest_freeable(parts, now=True, before=before.at_once)
    before.at_once = at_once.name if at_once is not None else ""
    if at_once is not None:
        lines.append(
            [
                ("right now: ", "muted"),
                (f"{at_once.name}, {bytes_text(at_once.known)}: ", "text"),
                (at_once.free_by, "accent"),
            ]
        )
    return lines


def _notes(notes: Sequence[str]) -> list[Line]:
    return [[("· ", "faint"), (note, "faint")] for note in notes]


def _on_cpu(found: Account) -> list[Line]:
    what = (
        "activations, Python and libraries are in the rest of the process."
        if any(part.name == REST_OF_PROCESS for part in found.parts)
        else "allocated, cached and outside torch are unknown."
    )
    return [[(f"On a CPU torch keeps no allocator statistics: {what}", "muted")]]


LEAST_ROWS = 2


def fit_lines(lines: Sequence[Line], width: int, rows: int) -> list[Line]:
    """Return as many whole lines, broken to ``width``, as ``rows`` have room for.

    The first ``LEAST_ROWS`` are returned in any case.
    """
    out: list[Line] = []
    for number, line in enumerate(lines):
        broken = styled.hang_lines([line], width)
        if number >= LEAST_ROWS and len(out) + len(broken) > rows:
            break
        out += broken
    return out


def worst_of(subject: Subject, cases: Sequence[Case]) -> Finding | None:
    """Return the worst that the doctor has found in the memory of this trainer.

    Of a device that gives no readings it is what is wrong with the device.
    """
    if subject.device is not None and mute(subject.device) is not None:
        where = f"GPU {subject.device.definition.index}"
        return next(
            (one.finding for one in cases if one.grave and one.finding.where == where), None
        )
    if subject.trainer is None:
        return None
    pid = subject.trainer.definition.pid
    own = (case for case in cases if case.grave and case.kind == "live" and case.pid == pid)
    return next((case.finding for case in own if case.finding.cause in MEMORY), None)
