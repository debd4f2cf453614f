"""This module follows findings over time, so that none of them flickers.

It knows since when each finding holds and which no longer do. Its functions are pure; times are
seconds on the clock of the observed host, so that a replay shows the same durations at any speed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from ...doctor.alike import likeness
from ...doctor.finding import Finding
from ...doctor.order import CONFIDENCES, SEVERITIES, causes_first, pid_of

if TYPE_CHECKING:
    from ...store.view import HostView

Kind = Literal["live", "end", "environment", "left"]
"""``live``: of what runs. ``end``: how a trainer ended that was seen to run. ``environment``: of
this machine. ``left``: what a trainer left behind that ended before, or unseen.
"""
NEW_SECONDS = 3.0
"""Seconds that a new finding must hold before it is shown; a problem is shown at once."""
GONE_SECONDS = 5.0
"""Seconds that a finding stays unchanged after it is no longer found.

Readings near a threshold come and go.
"""
PAST_SECONDS = 180.0
"""Seconds for which a finding that no longer holds is still shown, greyed."""
MOST = 400
FOLDED = "ended"
"""The key of the row into which trainers that have ended are folded."""


def what_began(host: HostView) -> str:
    """Return what began where a finding held already at the first look."""
    return "the recording begins" if host.badge == "REPLAY" else "gpuscope started"


@dataclass(frozen=True, slots=True)
class Case:
    """A finding and its history.

    ``since`` is when it was first found, None where it has no time. ``before`` says that it already
    held at the first look, so it may be older. ``seen`` is when it was last found, and ``past``
    says that it no longer holds.
    """

    number: int
    finding: Finding
    kind: Kind
    job: str = ""
    since: float | None = None
    before: bool = False
    seen: float | None = None
    shown: bool = True
    past: bool = False

    @property
    def pid(self) -> int | None:
        """The process that the finding is about; None where it is about several or none."""
        return pid_of(self.finding)

    @property
    def dead(self) -> bool:
        """Whether it is about a trainer that has ended."""
        return self.kind in ("end", "left")

    def moved(self, seconds: float) -> Case:
        """Return this with times that are later by so much, as another clock has them."""
        since = None if self.since is None else self.since + seconds
        return replace(self, since=since, seen=None if self.seen is None else self.seen + seconds)

    @property
    def grave(self) -> bool:
        """Whether it holds and is a warning or worse."""
        return not self.past and self.finding.severity != "info"


def all_well(cases: Iterable[Case]) -> bool:
    """Return whether nothing is found on what runs now, and nothing grave on this machine.

    How trainers ended that no longer run does not matter.
    """
    return not any(
        not case.past and (case.grave or case.kind == "live") and not case.dead for case in cases
    )


def sort_cases(cases: Iterable[Case]) -> tuple[Case, ...]:
    """Return the worst and surest cases first, each cause before its symptom, then what is over.

    Trainers that have ended come last. Small changes of a figure change no places.
    """
    ranked = sorted(cases, key=_place)
    return tuple(causes_first(ranked, lambda one: None if one.past or one.dead else one.finding))


def _place(case: Case) -> tuple[bool, bool, int, int, float, int]:
    finding = case.finding
    if case.dead:
        return (True, case.past, 0, 0, 0.0, case.number)
    order = SEVERITIES[finding.severity], CONFIDENCES[finding.confidence], -round(finding.rank, 1)
    return (False, case.past, *order, case.number if case.past else 0)


@dataclass(frozen=True, slots=True)
class CaseGroup:
    """Findings that say the same of several ranks or devices: the first stands for all."""

    first: Case
    others: tuple[Case, ...] = ()

    @property
    def key(self) -> str:
        """The key of its row, which stays while its first case does."""
        return FOLDED if self.ended > 1 else str(self.first.number)

    @property
    def ended(self) -> int:
        """The number of ended trainers in this row, 0 for findings on what runs."""
        return len({case.pid for case in (self.first, *self.others)}) if self.first.dead else 0

    def unfolded(self) -> list[CaseGroup]:
        """Return a group for each ended trainer, in order."""
        of_pid: dict[int | None, list[Case]] = {}
        for case in (self.first, *self.others):
            of_pid.setdefault(case.pid, []).append(case)
        return [CaseGroup(first, tuple(rest)) for first, *rest in of_pid.values()]


def group_cases(cases: Sequence[Case]) -> list[CaseGroup]:
    """Return the cases in order, with those together that say the same.

    They are of one job and have the same weight; of devices, they say it in the same words. All
    trainers that have ended are one group where there are several.
    """
    found: dict[tuple[object, ...], list[Case]] = {}
    fold = len({case.pid for case in cases if case.dead}) > 1
    for case in cases:
        alike: tuple[object, ...] = (*likeness(case.finding), case.kind, case.past, case.job)
        found.setdefault((FOLDED,) if fold and case.dead else alike, []).append(case)
    return [CaseGroup(first, tuple(rest)) for first, *rest in found.values()]


def open_counts(cases: Sequence[Case]) -> tuple[int, int]:
    """Return how many problems and how many warnings hold on what lives now.

    Findings that are one row of the list count once, as the list shows them.
    """
    firsts = [group.first for group in group_cases(cases)]
    open_now = [one.finding.severity for one in firsts if one.grave and not one.dead]
    return open_now.count("problem"), open_now.count("warning")


class FindingHistory:
    """The findings of one host, followed over time.

    ``cases`` has those to show, in order.
    """

    def __init__(self) -> None:
        self.cases: tuple[Case, ...] = ()
        self._all: list[Case] = []
        self._number = 0
        self._last: float | None = None

    def clear(self) -> None:
        """Another moment is looked at: nothing is known of before."""
        self._all, self._last, self.cases = [], None, ()

    def follow(self, found: Sequence[tuple[Kind, str, Finding]], now: float) -> None:
        """Take in what was found at ``now``, each finding with its kind and job.

        Time that runs backwards begins anew.
        """
        if self._last is not None and now < self._last:
            self.clear()
        first, self._last = self._last is None, now
        known, taken = list(self._all), set[int]()
        out: list[Case] = []
        for kind, job, finding in found[:MOST]:
            case = _continued_case(known, taken, kind, job, finding)
            if case is None:
                self._number += 1
                at_once = first or finding.severity == "problem" or kind == "end"
                out.append(Case(self._number, finding, kind, job, now, first, now, at_once))
            else:
                taken.add(case.number)
                out.append(_still(case, finding, now))
        out += [
            left
            for case in known
            if case.number not in taken and (left := _case_not_found(case, now)) is not None
        ]
        self._all = out
        self.cases = sort_cases(case for case in out if case.shown)

    @property
    def pending(self) -> list[tuple[Finding, float]]:
        """The findings that are too new to be shown, and in how many seconds they are."""
        now = self._last or 0.0
        return [  # of those that are still found
            (case.finding, max(1.0, NEW_SECONDS - (now - case.since)))
            for case in self._all
            if not case.shown and case.since is not None and case.seen == self._last
        ]


def _continued_case(
    known: Sequence[Case], taken: set[int], kind: Kind, job: str, finding: Finding
) -> Case | None:
    """Return the case that goes on in ``finding``.

    It is at the same place, else of the same job, for another rank may be the worst now; or it
    says the same of the same place, for another cause may be the likelier now.
    """
    free = [case for case in known if case.number not in taken and case.kind == kind]
    alike = [
        c for c in free if (c.finding.pitfall, c.finding.cause) == (finding.pitfall, finding.cause)
    ]
    here = next((case for case in alike if case.finding.where == finding.where), None)
    if here is None:
        words = (finding.title, finding.where)
        here = next(
            (c for c in free if not c.past and (c.finding.title, c.finding.where) == words), None
        )
    if here is not None or not job:
        return here
    moved = [case for case in alike if case.job == job and not case.past]
    return moved[0] if len(moved) == 1 else None


def _still(case: Case, finding: Finding, now: float) -> Case:
    since = case.since if case.since is not None else now
    if case.past:  # it was over: it begins again
        return replace(case, finding=finding, since=now, before=False, seen=now, past=False)
    shown = case.shown or finding.severity == "problem" or now - since >= NEW_SECONDS
    milder = SEVERITIES[finding.severity] > SEVERITIES[case.finding.severity]
    if milder and case.seen is not None and now - case.seen < GONE_SECONDS:
        # As grave as it was a moment ago, until it has been milder for a while; its figures are
        # those of now.
        return replace(case, finding=replace(finding, severity=case.finding.severity), shown=shown)
    return replace(case, finding=finding, seen=now, shown=shown)


def _case_not_found(case: Case, now: float) -> Case | None:
    """Return the case of a finding that was not found now, None once it is forgotten."""
    if case.kind == "end":
        return case
    gone = now - (case.seen if case.seen is not None else now)
    if gone < GONE_SECONDS and not case.past:
        return case
    if not case.shown or gone >= PAST_SECONDS + GONE_SECONDS:
        return None
    return case if case.past else replace(case, past=True)
