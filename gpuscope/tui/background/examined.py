"""Apply the live rules to one picture of a host."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from ...doctor.finding import Finding, Report
from ...doctor.order import pid_of
from .finding_history import Kind

if TYPE_CHECKING:
    from ...doctor.finding import Pitfall
    from ...store.view import HistoryOf, HostView

log = logging.getLogger("gpuscope.doctor")


def examined(
    host: HostView, history: HistoryOf, table: Mapping[str, Pitfall]
) -> tuple[Report, list[tuple[Kind, str, Finding]] | None]:
    """Return the report, and each finding with its kind and the key of its job.

    The findings are None where a rule has failed: a rule that fails must not end the screen.
    """
    from ...doctor import live, postmortem_end, report

    try:
        runs = report.finish(live.examine(host, history), table)
        ends = report.finish(postmortem_end.examine(host, host.jobs), table)
    except Exception as error:
        log.exception("a rule failed")
        why = f"A rule failed ({type(error).__name__}): running trainers were not checked."
        return Report(problems=(why,)), None
    jobs = {pid: job.key for job in host.jobs for pid in live.pids_of(job)}
    kinds: tuple[tuple[Kind, Report], ...] = (("live", runs), ("end", ends))
    found = [
        (kind, jobs.get(pid_of(one) or 0, ""), one)
        for kind, findings in kinds
        for one in findings.findings
    ]
    both = replace(
        runs, abstained=runs.abstained + ends.abstained, problems=runs.problems + ends.problems
    )
    return both, found
