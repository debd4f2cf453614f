"""This module says in which words the filter of the Doctor searches."""

from __future__ import annotations

from ...store.view import HostView, by_key, by_pid
from ..background.finding_history import CaseGroup
from ..shell.selection import on_device
from .text import where_of


def text_of(group: CaseGroup, host: HostView) -> str:
    """Return what the filter searches of a finding: also its places, and the jobs that are there.

    That is the job that it names, that of its process, or those on its GPU.
    """
    finding, cases = group.first.finding, (group.first, *group.others)
    jobs = [job.title for case in cases if (job := by_key(host.jobs, case.job))]
    jobs += [job.title for case in cases if (job := host.job_of(by_pid(host.trainers, case.pid)))]
    places = ", ".join(case.finding.where for case in cases).split(", ")
    on = [d for d in host.devices if f"GPU {d.definition.index}" in places]
    jobs += [job.title for d in on if (job := host.job_of(on_device(host, d)))]
    parts = [finding.title, where_of(group, host), *(case.finding.where for case in cases)]
    return " ".join([*parts, *jobs, finding.pitfall, finding.severity]).casefold()
