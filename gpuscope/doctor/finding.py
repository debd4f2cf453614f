"""Define the doctor's results: findings with evidence and fixes, and what stayed open.

Every examiner returns these classes and nothing else; ``order`` ranks them and ``report`` prints
them. Texts may contain words from outside. Whoever makes a finding passes them on unchanged, and
the report cleans them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from ..text.styled import Line

Confidence = Literal["definite", "likely", "prior"]
"""How sure a finding is.

``definite``: the evidence leaves no other cause. ``likely``: the evidence speaks for this cause.
``prior``: only the frequency of this cause in such failures speaks for it; such a finding is never
graver than ``info``.
"""

Severity = Literal["problem", "warning", "info"]
SEVERITY_TOKENS = {"problem": "bad", "warning": "warn", "info": "muted"}
"""The colour of each severity, by its token in a theme."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """One line of evidence.

    The text has its numbers with their units. ``source`` says where the evidence was read, for
    example ``log:1204``, ``train.py:88``, ``nvml`` or ``/proc/meminfo``. ``in_ledger`` says that
    the time ledger of its trainer shows the same, so that it is left out beside one.
    """

    text: str
    source: str = ""
    in_ledger: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Fix:
    """One way to fix a pitfall.

    ``code`` replaces ``before``. ``environment`` is the exact variable to set, and ``command`` the
    exact command. ``now`` means that the fix helps without a restart. ``effect`` is its predicted
    gain with a unit, where that can be computed, and ``cost`` is its trade-off. ``causes`` are the
    causes that a fix of the table is for; if it is empty, the fix is for all causes of its pitfall.
    ``framework`` is the package whose own option the fix names, "" for a loop of the user's own.
    ``example`` says that the numbers in its code are not those of the user's script.
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
    framework: str = ""
    example: bool = False

    def signed_code(self) -> list[tuple[str, str]]:
        """Return the lines of the code, each with its sign and a space, as in a diff.

        The sign is "" where the code replaces nothing.
        """
        sign = "+ " if self.before else ""
        return [
            *(("- ", line) for line in self.before.splitlines()),
            *((sign, line) for line in self.code.splitlines()),
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pitfall:
    """One row of the pitfall table.

    ``id`` names its main cure. ``causes`` are the ids of the causes that the row covers; it is
    empty where no examiner reports the pitfall. ``comes_of`` are the ids of causes that are known
    to lead to it, of this row or of others. ``fixes`` are in the order to try them, and ``now``
    says what helps without a restart. ``verify`` is a command that proves the pitfall, ""
    where gpuscope has none. ``sources`` are addresses of documentation, or say in words where a
    fact is from.
    """

    id: str
    title: str
    symptom: str
    causes: tuple[str, ...] = ()
    comes_of: tuple[str, ...] = ()
    fixes: tuple[Fix, ...]
    now: str
    not_when: str
    cost: str
    verify: str = ""
    sources: tuple[str, ...]

    def fixes_for(self, cause: str, framework: str = "") -> tuple[Fix, ...]:
        """Return the fixes of one cause: those that name it, then those for every cause.

        If the row has neither, all of its fixes are returned. Where a ``framework`` runs the loop
        and has options for it, only these are returned.
        """
        own = tuple(fix for fix in self.fixes if framework and fix.framework == framework)
        fixes = own or tuple(fix for fix in self.fixes if not fix.framework)
        named = [fix for fix in fixes if cause in fix.causes]
        general = [fix for fix in fixes if not fix.causes]
        return (*named, *general) or fixes


Bound = Literal["exactly", "about", "at most"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """The predicted gain of fixing a finding.

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

    ``pitfall`` is an id of the table, and ``cause`` is the examiner's own id, such as
    ``oom.fragmentation``. ``effect`` is the gain of the fix. Empty ``fixes`` and ``verify`` mean
    those of the table. ``where`` is a file and line, a rank or a device. ``rank`` orders findings
    that are otherwise equal; the highest comes first. ``past`` marks a finding about a trainer that
    has ended, which comes after everything that is true now. ``pids`` are the processes that it
    concerns, where ``where`` does not name the process. ``job`` is what its job is called, such as
    ``train.py``, "" where it has no name and for what is found elsewhere.
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
    pids: tuple[int, ...] = ()
    job: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Abstained:
    """A pitfall that could be the cause, and what would decide."""

    pitfall: str
    missing: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedTrainer:
    """A trainer that has ended: which, when and how, in a line; ``command`` shows more of it."""

    text: str
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Exhibit:
    """A drawing that belongs to a report, such as the ranks of a dead job over time.

    ``lines`` returns it for a width in columns, and ``document`` is what it shows as JSON.
    """

    lines: Callable[[int], list[Line]] = field(compare=False)
    document: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What one or several examiners found.

    ``problems`` are whole sentences on what could not be checked, and why. ``examined`` names in a
    few words each thing that was examined. ``ended`` lists the newest trainers that ended badly
    before; ``ended_here`` says how many ended here in the last day, and how, "" where none did.
    ``ended_well`` says of a log how far its training came, "" where it did not end well.
    """

    findings: tuple[Finding, ...] = ()
    abstained: tuple[Abstained, ...] = ()
    problems: tuple[str, ...] = ()
    examined: tuple[str, ...] = ()
    ended: tuple[EndedTrainer, ...] = ()
    exhibits: tuple[Exhibit, ...] = ()
    ended_here: str = ""
    ended_well: str = ""

    def __add__(self, other: Report) -> Report:
        """Return both reports as one, in this order."""
        return Report(
            findings=self.findings + other.findings,
            abstained=self.abstained + other.abstained,
            problems=self.problems + other.problems,
            examined=self.examined + other.examined,
            ended=self.ended + other.ended,
            exhibits=self.exhibits + other.exhibits,
            ended_here=self.ended_here or other.ended_here,
            ended_well=" ".join(filter(None, (self.ended_well, other.ended_well))),
        )
