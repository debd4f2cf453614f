"""This module says what to do first about a job, in the words of the Doctor's worst finding."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ...model.job_state import device_ids, living_members
from ...text.styled import Line
from ..doctor.text import KILL, STACKS, is_for_what_runs, marked_fix
from ..shell.keymap import key_of

if TYPE_CHECKING:
    from ...store.view import HostView, JobView
    from ..doctor.finding_history import Case


def next_lines(host: HostView, job: JobView, cases: Sequence[Case], live: bool) -> Iterable[Line]:
    """Return what to do first, and after it where a job has to end; nothing where all is well.

    ``live`` says that the job can still be asked: a recording has no stacks to read.
    """
    case = next((one for one in cases if one.grave and _is_of(one, host, job)), None)
    if case is None:
        return
    fixes = case.finding.fixes
    hangs = any(STACKS.fullmatch(fix.command) for fix in fixes)
    if hangs and live:
        yield [
            ("do first: ", "accent"),
            (key_of("act('stacks')", "JobScreen"), "bold accent"),
            (" shows the stacks of its threads, ", "text"),
            (key_of("signal", "JobScreen"), "bold accent"),
            (" ends the job", "text"),
        ]
        return
    past = host is not None and host.link.state == "replay"
    usable = [fix for fix in fixes if not (past and is_for_what_runs(fix))]
    ending = next((fix for fix in usable if fix.now and fix.command.startswith(KILL)), None)
    if ending is not None:
        key = key_of("signal", "JobScreen")
        how = f" · {key}: end it, asks first" if live else f": {ending.command}"
        yield [("do first: ", "accent"), (ending.title.rstrip("."), "text"), (how, "muted")]
    others = [fix for fix in usable if not STACKS.fullmatch(fix.command)]
    if not others:
        return
    marked = None if hangs else marked_fix(case, 0, past)
    words = next((fix for fix in others if not fix.code), others[0])
    fix = words if marked is None else fixes[marked]
    yield [
        ("do first: " if ending is None else "then:     ", "accent"),
        (fix.title.rstrip("."), "text"),
        (f" · how: tab {key_of('doctor')}, Doctor", "muted"),
    ]


def _is_of(case: Case, host: HostView, job: JobView) -> bool:
    """Return whether a finding is about this job, or about a device below it."""
    if case.job:
        return case.job == job.key
    below = set().union(*map(device_ids, living_members(job)))
    return any(
        device.id in below and case.finding.where == f"GPU {device.definition.index}"
        for device in host.devices
    )
