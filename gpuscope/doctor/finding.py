"""Define what the doctor says.

That is findings with their evidence and fixes, and what could not be decided or not be looked at.

Every examiner returns these and nothing else; ``order`` ranks them, ``report`` prints them. Texts
may hold words from outside: whoever makes a finding passes them through ``Evidence`` and the like
as they are, the report cleans them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Confidence = Literal["definite", "likely", "prior"]
"""``definite``: the evidence leaves no other cause. ``likely``: it speaks for this one. ``prior``:
only how often it is the cause of such a failure; such a finding is never more than ``info``.
"""

Severity = Literal["problem", "warning", "info"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One line of evidence.

    Numbers stand in the text, with their unit; ``source`` says where it was read: ``log:1204``,
    ``train.py:88``, ``nvml``, ``/proc/meminfo``.
    """

    text: str
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fix:
    """One way out.

    ``code`` replaces ``before``; ``environment`` is the exact line to set, ``command`` the exact
    command. ``now``: it helps without a restart. ``effect``: what it is predicted to bring, with
    its unit, where that can be computed; ``cost``: what it takes. ``causes``: of a fix in the
    table, those that it is for; none: all.
    """

    title: str
    code: str = ""
    before: str = ""
    environment: str = ""
    command: str = ""
    now: bool = False
    effect: str = ""
    cost: str = ""
    causes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pitfall:
    """One row.

    ``id`` is its main cure; ``causes`` are the ids of the causes that it answers, none where no
    examiner names it; ``fixes`` stand in the order to try them; ``now`` says what helps without a
    restart; ``verify`` is a command that proves it, "" where no command here does; ``sources`` are
    addresses of documentation or say in words where a fact is from.
    """

    id: str
    title: str
    symptom: str
    causes: tuple[str, ...] = ()
    fixes: tuple[Fix, ...]
    now: str
    not_when: str
    cost: str
    verify: str = ""
    sources: tuple[str, ...]

    def fixes_for(self, cause: str) -> tuple[Fix, ...]:
        """The fixes of one cause: those that name it, then those that are for every cause.

        All of them where the row has neither.
        """
        named = [fix for fix in self.fixes if cause in fix.causes]
        general = [fix for fix in self.fixes if not fix.causes]
        return (*named, *general) or self.fixes


Bound = Literal["exactly", "about", "at most"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What the cure of a finding is predicted to bring.

    It is computed from this finding's own numbers and nothing else. ``text`` has the arithmetic;
    ``freed_bytes`` of device memory and ``saved_share`` of a step's time (0 to 1) are the figure,
    where it is one of these, and ``bound`` says what kind of figure it is. With 95 % confidence
    the share lies between ``saved_share_low`` and ``saved_share_high``, where that is known.
    """

    text: str
    bound: Bound = "at most"
    freed_bytes: int | None = None
    saved_share: float | None = None
    saved_share_low: float | None = None
    saved_share_high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A cause that the evidence names.

    ``pitfall`` is an id of the table, ``cause`` the examiner's own id (``oom.fragmentation``).
    ``effect``: of its cure. No ``fixes`` and no ``verify`` mean those of the table. ``where`` is a
    file and line, a rank or a device; ``rank`` orders findings that are otherwise equal, the
    highest first. ``past``: it is about a trainer that has ended, so it comes after everything that
    is true now.
    """

    pitfall: str
    cause: str
    title: str
    severity: Severity
    confidence: Confidence
    evidence: tuple[Evidence, ...]
    fixes: tuple[Fix, ...] = ()
    verify: str = ""
    where: str = ""
    rank: float = 0.0
    effect: Effect | None = None
    past: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Abstained:
    """A pitfall that could be the cause, and what would decide."""

    pitfall: str
    missing: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A trainer that has ended: which, when and how, in a line; ``command`` shows more of it."""

    text: str
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What one or several examiners found.

    ``problems``: what could not be checked, and why, as whole sentences; ``examined``: what was
    looked at and what it is, in a few words each; ``ended``: trainers that died before.
    """

    findings: tuple[Finding, ...] = ()
    abstained: tuple[Abstained, ...] = ()
    problems: tuple[str, ...] = ()
    examined: tuple[str, ...] = ()
    ended: tuple[Ended, ...] = ()

    def __add__(self, other: Report) -> Report:
        """Both together, in this order."""
        return Report(
            findings=self.findings + other.findings,
            abstained=self.abstained + other.abstained,
            problems=self.problems + other.problems,
            examined=self.examined + other.examined,
            ended=self.ended + other.ended,
        )
