"""This module says what to do first about a job, in the words of the Doctor's worst finding."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ...doctor.finding import SEVERITY_TOKENS
from ...doctor.steps import KILL, STACKS, steps_of
from ...model.job_state import device_ids, living_members
from ...text.styled import Line
from ..shell.keymap import key_of
from ..theme import Glyphs

if TYPE_CHECKING:
    from ...store.view import HostView, JobView
    from ..background.finding_history import Case


def next_lines(
    host: HostView, job: JobView, cases: Sequence[Case], live: bool, can_end: bool = True
) -> Iterable[Line]:
    """Return what to do first, and after it where a job has to end; nothing where all is well.

    The first step is the Doctor's. ``live`` says that the job can still be asked, ``can_end``
    that the page has the key that ends it.
    """
    case = case_of_job(host, job, cases)
    if case is None:
        return
    hangs = any(STACKS.fullmatch(fix.command) for fix in case.finding.fixes)
    if hangs and live:
        end: Line = [(", ", "text"), (key_of("signal", "JobScreen"), "bold accent")]
        how: Line = [(f" · how: tab {key_of('doctor')}, Doctor", "muted")]
        yield [
            ("do first: ", "accent"),
            (key_of("act('stacks')", "JobScreen"), "bold accent"),
            (" shows the stacks of its threads", "text"),
            *([*end, (" ends the job", "text")] if can_end else how),
        ]
        return
    steps = steps_of(case.finding, host is not None and host.link.state == "replay")
    key = key_of("signal", "JobScreen")
    for word, fix in zip(("do first: ", "then:     "), steps, strict=False):
        said = ""
        if fix.command.startswith(KILL) and (can_end or not live):
            said = f" · {key}: end it, asks first" if live else f": {fix.command}"
        elif fix.command.startswith(KILL) or fix is steps[min(1, len(steps) - 1)]:
            said = f" · how: tab {key_of('doctor')}, Doctor"
        yield [(word, "accent"), (fix.title.rstrip("."), "text"), (said, "muted")]


def first_step(
    host: HostView, job: JobView | None, cases: Sequence[Case], live: bool
) -> list[Line]:
    """Return what to do first about a job that stands still, or whose loss is NaN.

    It is a line for a page without the key that ends a job.
    """
    grave = [case for case in cases if case.finding.cause.startswith(("stall.", "loss."))]
    return list(next_lines(host, job, grave, live, False))[:1] if job is not None else []


def case_of_job(host: HostView, job: JobView, cases: Sequence[Case]) -> Case | None:
    """Return the gravest finding about a job, None where all is well."""
    return next((one for one in cases if one.grave and _is_of(one, host, job)), None)


def finding_line(case: Case | None, glyphs: Glyphs) -> Line:
    """Return a finding in a line with the sign of its severity; nothing without one."""
    if case is None:
        return []
    found = case.finding
    sign = glyphs.bad if found.severity == "problem" else glyphs.warn
    return [(f"{sign} ", SEVERITY_TOKENS[found.severity]), (found.title, "text")]


def _is_of(case: Case, host: HostView, job: JobView) -> bool:
    """Return whether a finding is about this job, or about a device below it."""
    if case.job:
        return case.job == job.key
    below = set().union(*map(device_ids, living_members(job)))
    return any(
        device.id in below and case.finding.where == f"GPU {device.definition.index}"
        for device in host.devices
    )
