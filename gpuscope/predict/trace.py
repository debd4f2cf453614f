"""Hold what training steps request from the caching allocator, in order, with each purpose.

A trace is made by the tracing child (with fake tensors and no GPU) or read from the history in a
snapshot. The simulated allocator replays both. Events are stored in columns and not as objects,
because there are often a few hundred thousand of them. Only the standard library is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

CATEGORIES = (
    "parameter",
    "buffer",
    "gradient",
    "optimizer",
    "activation",
    "temporary",
    "cache",
    "input",
    "workspace",
    "unknown",
)
"""What a block is used for. *activation*: kept by autograd for the backward pass. *temporary*:
allocated and freed within a phase. *cache*: keys and values that generation keeps for the next
token. *workspace*: requested by a library (cuBLAS, cuDNN), not by a tensor. *unknown*: a recorded
trace does not say.
"""


@dataclass(frozen=True, slots=True)
class Owner:
    """The use of a block.

    ``category`` is one of ``CATEGORIES``; ``module`` the qualified name of the innermost module
    that was running ("" outside of all); ``operation`` the operator that made the block, "" where
    it is not known. ``stack`` holds the lines of the user's project that were running then, as
    ``file:line``, the outermost first, if the request asked for them.
    """

    category: str
    module: str = ""
    operation: str = ""
    stack: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PhaseMark:
    """The beginning of a step or a phase, before event ``at``.

    ``name`` is "step 1", "forward", "backward", "optimizer", "end"…
    """

    at: int
    name: str


@dataclass(frozen=True, slots=True)
class Growth:
    """How a generation goes on after ``traced`` tokens: with ``steps`` more.

    ``windows`` says for layers with a window of attention, by their number, for how many more
    tokens their blocks grow. ``regular`` is false if the traced tokens differ in more than sizes,
    so that later ones do not follow from them.
    """

    traced: int
    steps: int
    windows: dict[str, int] = field(default_factory=dict)
    regular: bool = True


@dataclass(slots=True)
class Trace:
    """The requests of a training.

    In ``events``, ``n`` allocates block ``n``, ``~n`` (below 0) frees it.

    A block is allocated once and freed at most once; a block that is never freed stays live.
    ``sizes[n]`` are the requested bytes, before any rounding, 0 or more.
    """

    sizes: list[int] = field(default_factory=list)
    owners: list[int] = field(default_factory=list)
    """For each block, the index of its owner in ``owner_table``."""
    owner_table: list[Owner] = field(default_factory=list)
    events: list[int] = field(default_factory=list)
    marks: list[PhaseMark] = field(default_factory=list)
    """In the order of ``at``."""
    streams: dict[int, int] = field(default_factory=dict)
    """The streams of the blocks that are not on stream 0."""
    growth: Growth | None = None
    """For a generation whose later tokens were not traced; see :mod:`gpuscope.predict.growing`."""
    frees_instead: list[dict[int, int]] = field(default_factory=list)
    """What may happen instead: each time other blocks are freed at other moments, each before the
    event that stands beside its number.
    """

    def owner(self, block: int) -> Owner:
        return self.owner_table[self.owners[block]]

    def live(self, end: int, before: Iterable[int] = ()) -> dict[int, None]:
        """Return the blocks that are live at event ``end``, in the order in which they were made.

        ``before`` holds those that were live before the first event.
        """
        found: dict[int, None] = dict.fromkeys(before)
        for event in self.events[:end]:
            if event >= 0:
                found[event] = None
            else:
                found.pop(~event, None)
        return found

    def freed_instead(self, moments: Mapping[int, int]) -> Trace:
        """Return the trace in which each of these blocks is freed before the event beside it."""
        put: dict[int, list[int]] = {}
        for block, at in moments.items():
            put.setdefault(at, []).append(~block)
        events: list[int] = []
        for at, event in enumerate(self.events):
            events += put.get(at, ())
            if event >= 0 or ~event not in moments:
                events.append(event)
        events += put.get(len(self.events), ())
        return replace(self, events=events, marks=[], frees_instead=[])

    def with_marks(self) -> Iterator[tuple[list[PhaseMark], int | None]]:
        """Yield each event with the marks before it, and at last None with the remaining marks."""
        marks, begin = self.marks, 0
        for at, event in enumerate(self.events):
            end = begin
            while end < len(marks) and marks[end].at <= at:
                end += 1
            yield marks[begin:end], event
            begin = end
        yield marks[begin:], None
