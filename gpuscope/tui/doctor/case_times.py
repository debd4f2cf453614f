"""This module says since when a finding holds, and for how long."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ...text.clock import clock_text
from ...text.units import age_text, ago_text, brief_age_text
from ..background.finding_history import Case, what_began

if TYPE_CHECKING:
    from ...store.view import HostView


def duration_of_case(case: Case, host: HostView, brief: bool = False) -> str:
    """Return for how long a finding has held, or until when it did.

    Examples are ``2 min 05 s``, ``just now``, ``ended 10:41:05`` and ``14 min 00 s ago``. Of one
    that held before gpuscope started it is the time since then: ``≥ 2 min 05 s``.
    With ``brief`` it is spelt for a cell: ``2m 05s``, and ``start``: beside what is said of
    the last minutes a few seconds would be taken for all the time it holds.
    """
    text_of = brief_age_text if brief else age_text
    if case.kind == "left" and case.since is not None:
        return f"{text_of(max(1.0, time.time() - case.since))} ago"
    if case.since is None or host.sampled_seconds is None:
        return "start-up"
    if case.past and case.seen is not None:
        return f"ended {clock(case.seen, host)}"
    if case.kind == "end":
        return f"at {clock(case.since, host)}"
    since = last_step(case, host)
    age = host.sampled_seconds - (case.since if since is None else since)
    if case.before and since is None:
        return "start" if brief else f"≥ {text_of(max(1.0, age))}"
    return text_of(age) if age >= 1 else "just now"


def last_step(case: Case, host: HostView) -> float | None:
    """Return when a job that hangs last ended a step, on the host's monotonic clock.

    It is None for other findings, and where no rank says so.
    """
    if case.past or not case.finding.pitfall.startswith("hang-") or host.sampled_seconds is None:
        return None
    ranks = [t for job in host.jobs if job.key == case.job for t in job.trainers if t.gone is None]
    own = [t for t in ranks if t.definition.pid == case.pid] or ranks
    ages = [age for t in own if (age := t.number("step_age_seconds")) is not None]
    return host.sampled_seconds - max(ages) if ages else None


def clock(moment: float, host: HostView) -> str:
    """Return a moment of the host's monotonic clock on its wall clock.

    It is in the time zone of this terminal.
    """
    if host.wall_seconds is None or host.sampled_seconds is None:
        return ago_text((host.sampled_seconds or moment) - moment)
    return clock_text(host.wall_seconds - host.sampled_seconds + moment)


def before_text(case: Case, host: HostView) -> str:
    """Return since when a finding holds, to stand after that word; "" for what has no time."""
    since = last_step(case, host)
    if case.before and since is None:
        return f"before {what_began(host)}"
    if case.since is None or host.sampled_seconds is None:
        return ""
    return f"{clock(since or case.since, host)}, for {duration_of_case(case, host)}"


def since_text(case: Case, host: HostView) -> str:
    """Return for how long a finding has held, and since when by the clock.

    Of one that held at the first look no more is known than that; it is "" for what has no time.
    """
    if case.since is None or host.sampled_seconds is None:
        return ""
    since = last_step(case, host)
    if since is None and case.before:
        return f"for at least {duration_of_case(case, host)[2:]}, since before {what_began(host)}"
    return f"for {duration_of_case(case, host)}, since {clock(since or case.since, host)}"
