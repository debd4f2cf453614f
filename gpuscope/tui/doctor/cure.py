"""This module writes a finding in a few rows, for the screen of the device that it is about.

It says what happened, since when, who is affected, what to do, and the pitfall's name. All of it
is the doctor's: the Doctor tab has the rest.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ...doctor.steps import marked_step, now_of, steps_of
from ...model.device_state import HANGS, DeviceState
from ...model.job_ends import end_of
from ...model.job_state import device_ids, job_devices, living_members
from ...model.ranks import names_of
from ...model.stalls import find_stall
from ...store.view import DeviceView, HostView, JobView, TrainerView
from ...text import styled
from ...text.styled import Line
from ...text.units import count_text
from ..background.finding_history import Case
from ..shell.keymap import key_of
from .case_times import before_text
from .text import SEVERITY_TOKENS, fix_lines, glyph_of, pitfall_name, with_label

if TYPE_CHECKING:
    from ...doctor.finding import Finding, Pitfall
    from ..theme import Glyphs

_GPUS = re.compile(r"\bGPU (\d{1,4}(?:-\d{1,4})?(?:, \d{1,4}(?:-\d{1,4})?)*)\b")
SCREEN = "DeviceScreen"
"""The class of the screen whose keys the lines name."""


def case_of(
    cases: Sequence[Case], host: HostView, device: DeviceView, state: DeviceState
) -> Case | None:
    """Return the gravest finding on a device or on the training there, None where there is none.

    A device that waits for a rank elsewhere is explained by what keeps that rank.
    """
    index = device.definition.index
    jobs = {job.key for job in host.jobs if device.id in job_devices(job)}
    for case in cases:
        finding = case.finding
        if not case.grave or case.dead:
            continue
        if index in {*_gpus_in(finding.where), *_gpus_in(finding.title)}:
            return case
        if state.word in HANGS and case.job in jobs and finding.pitfall.startswith("hang-"):
            return case
    return None


def _gpus_in(text: str) -> Iterator[int]:
    """Yield the GPUs that a text names, also those of ``GPU 0-2, 5``."""
    for found in _GPUS.finditer(text):
        for part in found[1].split(", "):
            first, _, last = part.partition("-")
            yield from range(int(first), int(last or first) + 1)


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
    told = [one.text for one in finding.evidence]
    here = f"GPU {device.definition.index}: "
    why = next((text for text in told if text.startswith(here)), next(iter(told), ""))
    since = [before_text(case, host), why]
    out += with_label("since", [(" · ".join(filter(None, since)), "text")], cells)
    affected = " · ".join(affected_texts(host, device))
    out += with_label(
        "affects", [(affected or "no process", "text" if affected else "muted")], cells
    )
    out += steps_lines(finding, row, bool(host.badge), cells, brief, SCREEN)
    name = pitfall_name(finding.pitfall, row, key_of("doctor", SCREEN))
    return out + with_label("pitfall", name, cells)


def steps_lines(
    finding: Finding,
    row: Pitfall | None,
    replayed: bool,
    cells: int,
    brief: bool = False,
    screen: str = "",
    most: int | None = None,
) -> Iterator[Line]:
    """Yield what to do about a finding, in order, with the keys of ``screen`` that do it.

    With ``most`` it is no more than the first steps.
    """
    steps, copied = steps_of(finding, replayed), marked_step(finding, replayed)
    gain = finding.effect is None
    told = ""
    for number, fix in enumerate(steps[:most]):
        when = "now" if fix.now else "then" if steps[0].now else "fix"
        shown = replace(fix, title=f"{number + 1} {fix.title}" if most != 1 else fix.title)
        if brief:
            shown = replace(shown, cost="", effect="")
        others = 0 if screen and number == copied else None
        yield from fix_lines("" if when == told else when, shown, others, gain, cells, screen)
        told = when
    if row is not None and not replayed and most is None and not any(fix.now for fix in steps):
        yield from with_label("now", [(now_of(finding, row), "text")], cells)


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
