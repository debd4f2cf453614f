"""Define what is known of a job that has ended: its ranks, what each left, and the verdict.

Readers fill these classes; ``verdict`` judges them, ``ranks_table`` draws them. Texts are from
outside and are cleaned where they are shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from ...snapshot.model import Frame
from ..finding import Abstained, Confidence, Evidence

if TYPE_CHECKING:
    from .find import FoundFile

Means = Literal["cause", "effect", "told", "fact"]
"""What a message says of the rank that wrote it.

``cause``: something went wrong in this rank by itself. ``effect``: another rank failed it, or it
waited for one. ``told``: the launcher or the scheduler made it end. ``fact``: neither.
"""


@dataclass(slots=True)
class Failure:
    """An exception that a rank printed, with those that led to it.

    ``chain`` holds "Type: message" of each exception, the first one that was raised first.
    ``frames`` are those of the exception at ``first`` in the chain, the innermost last.
    ``source`` is its file and line. ``rank`` is the rank that the text itself
    names as the one that raised it. ``fatal`` says that it is known to have ended the process:
    torch's hook for uncaught exceptions wrote it, or torchrun's error file has it.
    """

    chain: list[str]
    stacks: list[list[Frame]]
    source: str
    time: float | None = None
    means: Means = "cause"
    cause: str = ""
    first: int = 0
    kind: str = ""
    fields: dict[str, str] = field(default_factory=dict)
    rank: int | None = None
    fatal: bool = False

    @property
    def text(self) -> str:
        """Return the exception that decides, as "Type: message"."""
        return self.chain[self.first]

    @property
    def frames(self) -> list[Frame]:
        """Return the stack of the exception that decides, the innermost frame last."""
        return self.stacks[self.first] if self.first < len(self.stacks) else []

    @property
    def traceback(self) -> str:
        """Return the exception that decides as Python prints it, without the lines of code."""
        rows = [f'  File "{one.file}", line {one.line}, in {one.function}' for one in self.frames]
        return "\n".join(("Traceback (most recent call last):", *rows, self.text, ""))


@dataclass(slots=True)
class Stack:
    """Where a rank's main thread was, the innermost frame first.

    ``rank`` and ``pid`` are those that the text itself names.
    """

    frames: list[Frame]
    source: str
    what: str
    rank: int | None = None
    pid: int | None = None


@dataclass(slots=True)
class Moment:
    """A message with a known meaning, from a log, the kernel, the launcher or the scheduler.

    ``fields`` are the named parts of the rule's pattern.
    """

    rule: str
    means: Means
    cause: str
    text: str
    source: str
    rank: int | None = None
    time: float | None = None
    host: str = ""
    fields: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Exit:
    """How a process ended, as its launcher saw it. ``code`` is negative for a signal."""

    code: int
    source: str
    pid: int | None = None
    time: float | None = None
    first: bool = False


@dataclass(slots=True)
class Core:
    """What the core file of a process says.

    ``command`` is cut at 80 characters by the kernel. ``place`` is the file in which the process
    was, with its offset there, and ``program`` the file that it runs. ``files`` are all that were
    mapped. ``sender`` is the PID of another process that sent the signal.
    """

    pid: int = 0
    name: str = ""
    command: str = ""
    signal: int = 0
    sender: int | None = None
    place: str = ""
    program: str = ""
    files: list[str] = field(default_factory=list)
    threads: int = 0
    rank: int | None = None
    world: int | None = None
    time: float | None = None
    source: str = ""


@dataclass(slots=True)
class Recorded:
    """Which ranks held up the others before the first of them ended, as a recording shows it.

    ``frame`` is where the first of them was.
    """

    source: str
    behind: list[int]
    waiting: list[int]
    text: str
    frame: Frame | None = None


@dataclass(slots=True)
class Call:
    """One collective of a rank, from its flight recorder.

    Of a send or a receive, ``source`` and ``target`` are its ranks in the job, and ``blocks`` says
    that nothing which its rank gives to the device later begins before it is done.
    """

    group: str
    label: str
    number: int
    operation: str
    shapes: str
    types: str
    done: bool
    created: float | None
    completed: float | None
    timeout: float | None
    place: str
    point_to_point: bool = False
    source: int | None = None
    target: int | None = None
    blocks: bool = False

    @property
    def title(self) -> str:
        """Return ``all_reduce 1201``."""
        return f"{self.operation} {self.number}"

    @property
    def sends(self) -> bool:
        """Return whether this is the sending side of a send and a receive."""
        return self.operation.startswith("send")

    def partner(self, rank: int) -> int | None:
        """Return the rank with which this rank's send or receive is."""
        return self.target if self.source == rank else self.source


@dataclass(slots=True)
class Rank:
    """Everything that the files say of one rank.

    ``step_seconds`` is the time between the last two lines about steps. ``last_lines`` are the last
    lines that are of no exception, and ``complaints`` those that name a cause, with their sources.
    ``recorded`` is what a recording or a black box says of its last step and its memory, in words,
    and ``gone`` when and how it ended by that.
    """

    number: int
    host: str = ""
    local: int | None = None
    pid: int | None = None
    begin: float | None = None
    last: float | None = None
    step: int | None = None
    epoch: int | None = None
    step_time: float | None = None
    step_source: str = ""
    step_seconds: float | None = None
    finished: str = ""
    last_line: str = ""
    last_lines: list[tuple[str, str]] = field(default_factory=list)
    complaints: list[tuple[str, str]] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    moments: list[Moment] = field(default_factory=list)
    stacks: list[Stack] = field(default_factory=list)
    calls: dict[str, list[Call]] = field(default_factory=dict)
    has_log: bool = False
    has_flight: bool = False
    exit: Exit | None = None
    told: Moment | None = None
    recorded: tuple[str, str] | None = None
    gone: tuple[float, str] | None = None
    sources: list[str] = field(default_factory=list)

    def effects(self) -> Iterator[Failure | Moment]:
        """Yield the rank's exceptions and messages that others caused."""
        yield from (one for one in self.failures if one.means == "effect")
        yield from (one for one in self.moments if one.means == "effect")

    @property
    def waited(self) -> bool:
        """Return whether the rank said that it waited for others, or that others failed it."""
        return next(self.effects(), None) is not None


@dataclass(slots=True)
class Job:
    """Everything found in the files of one job.

    ``moments`` are messages that belong to no known rank. ``world`` is the number of ranks where
    something says it. ``files`` are all that were found, and ``unread`` lists those that could not
    be read, each with its reason.
    """

    name: str
    ranks: dict[int, Rank] = field(default_factory=dict)
    moments: list[Moment] = field(default_factory=list)
    world: int | None = None
    attempts: int = 1
    found: dict[str, int] = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)
    offsets: dict[str, tuple[float, float]] = field(default_factory=dict)
    bytes_read: int = 0
    flight_names: set[str] = field(default_factory=set)
    cores: list[Core] = field(default_factory=list)
    recorded: list[Recorded] = field(default_factory=list)
    files: Sequence[FoundFile] = ()

    def rank(self, number: int) -> Rank:
        """Return the rank with this number, and make it where it is new."""
        return self.ranks.setdefault(number, Rank(number))

    def all_moments(self) -> Iterator[Moment]:
        """Yield every message, those of ranks as well."""
        yield from self.moments
        for rank in self.ranks.values():
            yield from rank.moments


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """A possible first cause, with the ranks that it names and its evidence.

    ``figures`` fill the title of the finding ``cause``. ``weight`` orders suspects.
    ``traceback`` is the exception as Python prints it. ``advice`` are ids of fixes, in place of
    those of the finding's pitfall where these would not fit.
    """

    cause: str
    ranks: tuple[int, ...]
    confidence: Confidence
    weight: float
    evidence: tuple[Evidence, ...]
    figures: dict[str, str] = field(default_factory=dict)
    where: str = ""
    host: str = ""
    time: float | None = None
    traceback: str = ""
    advice: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The suspects, the likeliest first, and what would decide where nothing does."""

    suspects: tuple[Suspect, ...]
    abstained: tuple[Abstained, ...] = ()
