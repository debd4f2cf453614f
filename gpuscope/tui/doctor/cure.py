"""This module writes a finding in a few rows, for the screen of the device that it is about.

It says what happened, since when, who is affected, what to do, and the pitfall's name. All of it
is the doctor's: the Doctor tab has the rest.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ...doctor.report import fix_sentences
from ...model.device_state import HANGS, DeviceState
from ...model.job_ends import end_of
from ...model.job_state import device_ids, job_devices, living_members
from ...model.ranks import names_of
from ...model.stalls import find_stall
from ...store.view import DeviceView, HostView, JobView, TrainerView
from ...text import styled
from ...text.styled import Line, Piece
from ...text.units import count_text
from ..shell.keymap import key_of
from .case_times import last_step, since_text
from .finding_history import Case
from .text import (
    KILL,
    LABEL,
    SEVERITY_TOKENS,
    STACKS,
    glyph_of,
    is_for_what_runs,
    paste_of,
    with_label,
)

if TYPE_CHECKING:
    from ...doctor.finding import Finding, Fix, Pitfall
    from ..theme import Glyphs

SCREEN = "DeviceScreen"
"""The class of the screen whose keys the lines name."""
ALREADY = "before gpuscope started"


def case_of(
    cases: Sequence[Case], host: HostView, device: DeviceView, state: DeviceState
) -> Case | None:
    """Return the gravest finding on a device or on the training there, None where there is none.

    A device that waits for a rank elsewhere is explained by what keeps that rank.
    """
    index = device.definition.index
    named = re.compile(rf"\bGPU {index}\b")
    jobs = {job.key for job in host.jobs if device.id in job_devices(job)}
    for case in cases:
        finding = case.finding
        if not case.grave or case.dead:
            continue
        if named.search(finding.where) or named.search(finding.title):
            return case
        if state.word in HANGS and case.job in jobs and finding.pitfall.startswith("hang-"):
            return case
    return None


def steps_of(finding: Finding, replayed: bool) -> list[Fix]:
    """Return what to do in order: first what helps now, then what is for the next run.

    In a replay nothing can be asked of what ran.
    """
    fixes = [fix for fix in finding.fixes if not (replayed and is_for_what_runs(fix))]
    return sorted(fixes, key=lambda fix: not fix.now)


def copied_step(finding: Finding, replayed: bool) -> int | None:
    """Return the number of the step that the key for copying takes: the first that can be."""
    steps = steps_of(finding, replayed)
    return next((at for at, fix in enumerate(steps) if paste_of(fix)), None)


def cure_lines(
    case: Case,
    host: HostView,
    device: DeviceView,
    row: Pitfall | None,
    glyphs: Glyphs,
    cells: int,
    brief: bool,
) -> list[Line]:
    """Return the finding in lines of at most ``cells`` cells.

    ``brief`` leaves out the trade-offs, where rows are few.
    """
    finding = case.finding
    token = SEVERITY_TOKENS[finding.severity]
    out = styled.hang(
        [(f"{glyph_of(finding.severity, glyphs)} ", token)], [(finding.title, "title")], cells
    )
    why = next(iter(finding.evidence), None)
    known = not case.before or last_step(case, host) is not None
    since = [since_text(case, host) if known else ALREADY, why.text if why is not None else ""]
    out += with_label("since", [(" · ".join(filter(None, since)), "text")], cells)
    affected = " · ".join(affected_texts(host, device))
    out += with_label(
        "affects", [(affected or "no process", "text" if affected else "muted")], cells
    )
    out += _steps(finding, row, bool(host.badge), cells, brief)
    name: Line = [(finding.pitfall, "title"), (f": {row.title}" if row is not None else "", "text")]
    name += [("   ", "text"), (key_of("doctor", SCREEN), "bold accent"), (": all of it", "muted")]
    return out + with_label("pitfall", name, cells)


def _steps(
    finding: Finding, row: Pitfall | None, replayed: bool, cells: int, brief: bool
) -> Iterator[Line]:
    steps, copied = steps_of(finding, replayed), copied_step(finding, replayed)
    gain = finding.effect is None
    told = ""
    if row is not None and not any(fix.now for fix in steps):
        yield from with_label("back then" if replayed else "now", [(row.now, "text")], cells)
    for number, fix in enumerate(steps):
        when = "now" if fix.now else "then"
        text = fix.title.rstrip(".") + "." if brief else fix_sentences(fix, gain)
        head: Line = [
            (f"{'' if when == told else when:<{LABEL}}", "accent"),
            (f"{number + 1} ", "title"),
        ]
        told = when
        more = _paste(fix)
        if number == copied:
            more += [("   ", "text"), (key_of("copy", SCREEN), "bold accent"), (": copy", "muted")]
        whole: Line = [(text, "text"), *([("  ", "text"), *more] if more else [])]
        if styled.cells(head) + styled.cells(whole) <= cells or not more:
            yield from styled.hang(head, whole, cells)
            continue
        yield from styled.hang(head, [(text, "text")], cells)
        yield from styled.hang([(" " * (LABEL + 4), "text")], more, cells)


def _paste(fix: Fix) -> Line:
    """Return the key that carries out a fix, else what is to be pasted."""
    if STACKS.fullmatch(fix.command):
        return [
            (key_of("stacks", SCREEN), "bold accent"),
            (": its stacks  ", "muted"),
            *_end_key(),
        ]
    parts = [" ; ".join(fix.code.strip("\n").splitlines()), fix.environment, fix.command]
    pasted: Line = [(part, "accent") for part in parts if part]
    if fix.command.startswith(KILL):
        pasted += [("   ", "text"), *_end_key()]
    return pasted


def _end_key() -> list[Piece]:
    return [(key_of("signal", SCREEN), "bold accent"), (": end it, asks first", "muted")]


def affected_texts(host: HostView, device: DeviceView) -> Iterator[str]:
    """Yield who is hit by what is wrong with a device: each job with its ranks, each program."""
    for job in host.jobs:
        if end_of(job) is None and device.id in job_devices(job):
            yield _of_job(job, device)


def _of_job(job: JobView, device: DeviceView) -> str:
    members = living_members(job)
    here = [one for one in members if device.id in device_ids(one)]
    pids = ", ".join(dict.fromkeys(f"{one.definition.pid}" for one in here[:3]))
    ranks = [one for one in members if isinstance(one, TrainerView)]
    stall = find_stall(job.trainers)
    if stall is not None and stall.behind and stall.waiting:
        behind = ", ".join(f"{one.definition.pid}" for one in stall.behind[:3])
        stuck = "is stuck" if len(stall.behind) == 1 else "are stuck"
        names = f"{names_of(stall.behind)} (pid {behind}) {stuck}"
        wait = "waits" if len(stall.waiting) == 1 else "wait"
        return f"{job.title}: {names}, {names_of(stall.waiting)} {wait} for it"
    own = [one for one in here if isinstance(one, TrainerView)]
    if len(ranks) < 2 or not own:
        return f"{job.title} (pid {pids})"
    rest = len(ranks) - len(own)
    others = f"; {count_text(rest, 'more rank')} of the job here" if rest else ""
    return f"{job.title}: {names_of(own)} of {len(ranks)} (pid {pids}){others}"
