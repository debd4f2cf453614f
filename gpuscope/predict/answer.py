"""Compute a prediction: the peaks with their errors, whether it fits, and what would help.

The tracing child runs the model, and the simulated allocator replays its trace. This module
combines their results. The first answer needs one trace. The largest batch and the what-ifs are
computed only on request, and need one or a few more traces.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from ..model.allocator_settings import DEFAULT, AllocatorSettings
from . import errors, largest, measured_kernels, scratch, verdict, whatif
from .allocator import Simulated, Where, simulate
from .chunked import NotHere, in_chunks
from .context_memory import ContextMemory, outside
from .errors import Estimate
from .growing import IRREGULAR, grown
from .largest import Largest
from .prediction import Prediction, allocated_figure, other_reserved_peaks, predict
from .request import CannotPredict, Doubt, Request, Traced, alone
from .trace import Trace
from .verdict import FitVerdict, Replay
from .whatif import LeftOut, MemoryFix

Tracer = Callable[[Request], Traced]
"""A function that traces one request; raises :class:`CannotPredict`."""


@dataclass(frozen=True, slots=True)
class Card:
    """The card that a training should fit on.

    ``name`` is for people; ``gpu`` is the card's name by which the memory outside torch is looked
    up. ``total_bytes`` is what the driver reports. If the card is in this host, ``in_use_bytes`` is
    what other programs hold now, and ``driver_bytes`` what the driver keeps.
    """

    name: str
    gpu: str
    total_bytes: int
    architecture: str
    in_use_bytes: int | None = None
    driver_bytes: int | None = None
    assumed: bool = False
    """True if no card was named; the memory outside torch is then that of another card."""


SURPLUS = 1.08
"""The least memory in which trainings run, divided by the peak that they allocate: the median of
300 trainings on an H200.
"""
TOKENS = 64
"""The longest context is found as a multiple of this, because kernels pad shorter remainders."""
REFERENCE = Card("a GPU", "h200", 143771 << 20, "9.0", assumed=True)
"""The card whose CUDA context is counted if none is named, because it was measured most."""


@dataclass(frozen=True, slots=True)
class CardMemory:
    """A card, with the memory on it that torch's allocator cannot have."""

    card: Card
    outside: ContextMemory

    @property
    def limit_bytes(self) -> int:
        """What torch's allocator may reserve if no other program uses the card."""
        return max(0, self.card.total_bytes - self.outside.all_bytes)


@dataclass(frozen=True, slots=True)
class Tried:
    """A fix and its simulated result. ``verdict`` is None without a card."""

    fix: MemoryFix
    prediction: Prediction
    freed_bytes: int
    """Bytes by which the peak of allocated memory falls."""
    freed_reserved_bytes: int
    verdict: FitVerdict | None
    seconds: float

    def subject_of(self, prediction: Prediction) -> Estimate:
        """Return the total that a fix lowers.

        This is reserved memory if the fix only changes where blocks lie, else allocated memory.
        """
        return prediction.allocated if self.fix.settings is None else prediction.reserved

    @property
    def freed(self) -> int:
        """The bytes by which fixes are ordered.

        Reserved memory for a fix that only moves blocks.
        """
        return self.freed_bytes if self.fix.settings is None else self.freed_reserved_bytes


@dataclass(slots=True)
class Answer:
    """The answer to one request; ``batch`` is the batch that was traced.

    ``verdict`` is None without a card, and what was not asked for (``largest``, ``what_if``…) is
    None as well; ``why_not`` gives the reason by name.
    """

    request: Request
    settings: AllocatorSettings
    room: CardMemory | None
    outside: ContextMemory
    batch: int
    parameters: int
    torch: str
    prediction: Prediction
    modules: dict[str, int]
    outside_modules: dict[tuple[str, str], int]
    """What ``modules`` has under "", by category and operator."""
    peak_at: Where
    operation: str
    """The operator whose block reached the peak of reserved memory; "" if it is not known."""
    module: str
    doubts: list[Doubt]
    setup: list[str] = field(default_factory=list)
    """As :attr:`Traced.setup`."""
    verdict: FitVerdict | None = None
    verdict_now: FitVerdict | None = None
    """The verdict with what other programs hold on the card now subtracted; None if they hold
    nothing, or the card is not in this host.
    """
    largest: Largest | None = None
    largest_context: Largest | None = None
    """In tokens, prompt and answer, with the batch as it was asked for."""
    what_if: list[Tried] | None = None
    left_out: list[LeftOut] = field(default_factory=list)
    why_not: dict[str, tuple[str, str]] = field(default_factory=dict)
    """For each name that is None: code and reason."""
    seconds: float = 0.0


_MATRICES, _VECTORS = {"mm", "addmm", "bmm", "baddbmm", "_addmm_activation"}, {"mv", "addmv", "dot"}
"""Operators of cuBLAS that multiply two matrices, and those that multiply by vectors."""


def _outside_modules(found: Simulated, trace: Trace) -> dict[tuple[str, str], int]:
    """Return the bytes at the peak that no module owns, by category and operator."""
    sums: dict[tuple[str, str], int] = {}
    for number, size in found.owners.items():
        owner = trace.owner_table[number]
        if not owner.module:
            key = owner.category, owner.operation
            sums[key] = sums.get(key, 0) + size
    return sums


class TracedRequest:
    """The trace of one request and what can be computed from it.

    ``seconds`` is the limit for everything together; what there is no time for is left out, with
    that reason.
    """

    def __init__(
        self,
        request: Request,
        tracer: Tracer,
        card: Card | None,
        settings: AllocatorSettings = DEFAULT,
        seconds: float = 300.0,
        cache: Path | None = None,
    ):
        """Trace the request; without ``card`` there is no verdict.

        ``cache`` is the file of context measurements, if it is not in the user's folder. Raises
        :class:`CannotPredict`.
        """
        self.began = time.monotonic()
        self._ends = self.began + seconds
        self._tracer = tracer
        self._traced: dict[Request, Traced] = {}
        self.request, self.settings = request, settings
        self.traced = self._trace(request)
        if self.traced.fraction is not None:
            self.settings = replace(settings, fraction=self.traced.fraction)
        where = card or REFERENCE
        operations = {owner.operation for owner in self.traced.trace.owner_table}
        self.outside = outside(
            where.gpu,
            where.architecture,
            where.total_bytes,
            self.traced.torch,
            cache,
            products="cublas" in operations,
            cudnn=any("cudnn" in name or "convolution" in name for name in operations),
            matrices=operations.isdisjoint(_VECTORS) or not operations.isdisjoint(_MATRICES),
        )
        if where.driver_bytes is not None:
            self.outside = replace(self.outside, driver_bytes=where.driver_bytes)
        self.room = CardMemory(card, self.outside) if card else None
        self.simulated = self._alone(self.traced.trace, self.settings)
        self.answer = self._first()

    def in_time(self) -> bool:
        return time.monotonic() < self._ends

    def finish(self) -> Answer:
        self.answer.seconds = round(time.monotonic() - self.began, 3)
        return self.answer

    def find_largest(self) -> None:
        """Add the largest batch to the answer, or why it is not known."""

        def trace(batch: int) -> Trace:
            return self._as_traced(replace(self.request, batch=batch)).trace

        self.answer.largest = self._largest("largest_batch", trace, self.answer.batch)

    def find_largest_context(self) -> None:
        """Add the longest context that fits to the answer of a generation, or why it is not known.

        It is a multiple of :data:`TOKENS`, and no more than the model has positions for.
        """
        request = self.request

        def trace(count: int) -> Trace:
            sequence = max(count * TOKENS, request.new + 1)
            return self._as_traced(replace(request, sequence=sequence)).trace

        start = max(1, (request.sequence or TOKENS) // TOKENS)
        positions = self.traced.positions
        most = max(1, positions // TOKENS) if positions else largest.MOST
        found = self._largest("largest_context", trace, min(start, most), most)
        if found is not None:
            batch, low, high = (TOKENS * count for count in (found.batch, found.low, found.high))
            found = replace(found, batch=batch, low=low, high=high)
        self.answer.largest_context = found

    def _largest(
        self, name: str, trace: Callable[[int], Trace], start: int, most: int = largest.MOST
    ) -> Largest | None:
        """Return the largest number for which ``trace`` fits on the card.

        Where it is not known, the answer says why.
        """
        answer, room = self.answer, self.room
        del answer.why_not[name]
        if room is None:
            answer.why_not[name] = ("no_capacity", _NO_CARD)
            return None
        limit, settings, doubts = self._limit(room), self.settings, self.traced.doubts

        def fits(trace: Trace, more: int) -> bool:
            return limit + more > 0 and self._under(grown(trace), settings, limit + more).fits

        def error(trace: Trace) -> tuple[int, int]:
            trace = grown(trace)
            return self._of_demand(
                trace, allocated_figure(simulate(trace, settings), trace, doubts)
            )

        def guess(one: int, first: Trace, other: int, second: Trace) -> int:
            low, high = (
                simulate(grown(trace), settings).peak_allocated_bytes for trace in (first, second)
            )
            slope = (high - low) / (other - one)
            return int(one + (limit / SURPLUS - low) / slope) if slope > 0 else one

        try:
            return largest.find(trace, fits, start, error, self.in_time, guess, most)
        except CannotPredict as trouble:
            answer.why_not[name] = (trouble.code, " ".join(map(str, trouble.args[:2])))
            return None

    def find_fixes(
        self, ranks: int | None = None, hear: Callable[[MemoryFix], None] = lambda _: None
    ) -> None:
        """Simulate each applicable fix and add it to the answer.

        The one that frees most comes first. ``hear`` is called with each fix before it is tried.
        Fixes for which the first trace is sufficient are tried before those that need another
        trace.
        """
        answer = self.answer
        del answer.why_not["what_if"]
        chosen, left = whatif.fixes(self.request, answer.batch, self.settings, ranks)
        place = {fix.key: number for number, fix in enumerate(chosen)}
        reasons: dict[str, str] = {}

        def tell(tried: list[Tried]) -> None:
            """Put the results into new lists, because a screen may be reading the old ones."""
            answer.what_if = sorted(tried, key=lambda one: (-one.freed, place[one.fix.key]))
            more = [
                LeftOut(fix.key, fix.title, reasons[fix.key])
                for fix in chosen
                if fix.key in reasons
            ]
            answer.left_out = [*left, *more]

        tried: list[Tried] = []
        tell(tried)
        for fix in sorted(chosen, key=self._needs_a_trace):
            if not self.in_time():
                reasons[fix.key] = "out of time: use a longer --timeout"
            else:
                hear(fix)
                try:
                    tried.append(self._try(fix))
                except CannotPredict as trouble:
                    reasons[fix.key] = " ".join(map(str, trouble.args[:2]))
                except NotHere as reason:
                    reasons[fix.key] = str(reason)
            tell(tried)

    def _needs_a_trace(self, fix: MemoryFix) -> bool:
        """Whether it must be traced.

        The ranks of a sharded training are derived from one GPU's trace.
        """
        return fix.request is not None and alone(fix.request) not in self._traced

    def _try(self, fix: MemoryFix) -> Tried:
        begin = time.monotonic()
        settings = fix.settings or self.settings
        if fix.request is not None:
            traced = self._trace(fix.request)
            trace, doubts = traced.trace, traced.doubts
        else:
            trace, doubts = self.traced.trace, list(self.traced.doubts)
        if fix.chunks:
            trace = in_chunks(trace, fix.chunks, self.simulated.peak_allocated_at.event)
            doubts = [
                *doubts,
                Doubt("estimated", "chunks were added to the trace by rule", percent=3.0),
            ]
        found = self._alone(trace, settings)
        then, now = self._predict(found, trace, doubts, settings), self.answer.prediction
        judged = (
            self._judge(trace, settings, found, then.allocated, self._limit(self.room))
            if self.room
            else None
        )
        return Tried(
            fix,
            then,
            now.allocated.bytes - then.allocated.bytes,
            now.reserved.bytes - then.reserved.bytes,
            judged,
            round(time.monotonic() - begin, 3),
        )

    def _predict(
        self, found: Simulated, trace: Trace, doubts: Sequence[Doubt], settings: AllocatorSettings
    ) -> Prediction:
        others = other_reserved_peaks(trace, partial(self._alone, settings=settings))
        return predict(found, trace, doubts, self.outside, others)

    def _first(self) -> Answer:
        traced, found = self.traced, self.simulated
        prediction = self._predict(found, traced.trace, traced.doubts, self.settings)
        allocated = prediction.allocated
        operation, module = _who(traced.trace, found.peak_allocated_at.event)
        answer = Answer(
            self.request,
            self.settings,
            self.room,
            self.outside,
            traced.batch,
            traced.parameters,
            traced.torch,
            prediction,
            found.modules,
            _outside_modules(found, traced.trace),
            found.peak_allocated_at,
            operation,
            module,
            traced.doubts,
            setup=traced.setup,
        )
        room = self.room
        if room is None:
            answer.why_not["verdict"] = ("no_capacity", _NO_CARD)
        else:
            answer.verdict = self._judge(
                traced.trace, self.settings, found, allocated, self._limit(room)
            )
            if room.card.in_use_bytes:
                free = max(0, self._limit(room) - room.card.in_use_bytes)
                answer.verdict_now = self._judge(
                    traced.trace, self.settings, found, allocated, free
                )
        answer.why_not.update(_NOT_REQUESTED)
        return answer

    def _limit(self, room: CardMemory) -> int:
        """Return the limit, including the share of the card that the settings allow torch."""
        allowed = self._allowed(room)
        return room.limit_bytes if allowed is None else min(room.limit_bytes, allowed)

    def _allowed(self, room: CardMemory | None) -> int | None:
        """Return what the program or its settings allow torch; None if they do not say."""
        share = self.settings.fraction
        if room is None or share is None:
            return None
        return int(share * (room.card.total_bytes - room.outside.driver_bytes))

    def _alone(self, trace: Trace, settings: AllocatorSettings) -> Simulated:
        """Replay a trace without a limit.

        What torch is allowed counts if it then frees cached memory at a share of it.
        """
        allowed = self._allowed(self.room) if settings.collect_share else None
        if allowed is not None:
            found = simulate(trace, settings, allowed_bytes=allowed)
            if found.fits:
                return found
        return simulate(trace, settings)

    def _under(self, trace: Trace, settings: AllocatorSettings, limit: int) -> Simulated:
        """Replay a trace against a limit; what torch is allowed moves with it."""
        allowed = self._allowed(self.room)
        if allowed is not None and self.room is not None:
            allowed = max(0, allowed + limit - self._limit(self.room))
        return simulate(trace, settings, limit, allowed_bytes=allowed)

    def _judge(
        self,
        trace: Trace,
        settings: AllocatorSettings,
        found: Simulated,
        allocated: Estimate,
        limit: int,
    ) -> FitVerdict:
        def replay(at: int, trace: Trace = trace) -> Replay:
            tried = self._under(trace, settings, max(0, at))
            return Replay(tried.fits, tried.retries)

        error, less = self._of_demand(trace, allocated)
        peaks = found.peak_allocated_bytes, found.peak_reserved_bytes
        bare = scratch.without(trace)
        without_scratch = None if bare is trace else lambda at: replay(at, bare)
        varied = [partial(replay, trace=other) for other in scratch.varied(trace)]
        return verdict.decide(replay, *peaks, limit, error, less, without_scratch, varied)

    def _of_demand(self, trace: Trace, allocated: Estimate) -> tuple[int, int]:
        """Return how many bytes more than its replay a training may need, and how many fewer."""
        conv, outside = errors.convolutions(trace), self.outside.error_bytes
        more, less = (
            errors.device_error(errors.demand_error(allocated.bytes, part, conv), outside)
            for part in (allocated.error_bytes, allocated.lower_error_bytes)
        )
        return more, less

    def _trace(self, request: Request) -> Traced:
        """Return the trace of all tokens, if it is of a generation."""
        found = self._as_traced(request)
        whole = grown(found.trace)
        if whole.growth is None or whole.growth.regular:
            return replace(found, trace=whole)
        return replace(found, doubts=[*found.doubts, IRREGULAR])

    def _as_traced(self, request: Request) -> Traced:
        found = self._traced.get(request)
        if found is None:
            found = self._tracer(request)
            older = measured_kernels.doubts(found.torch, found.trace)
            found = self._traced[request] = replace(found, doubts=[*found.doubts, *older])
            if request.batch is None:  # asked for again by its number
                self._traced[replace(request, batch=found.batch)] = found
        return found


_NO_CARD = "no GPU was given: --gpu NAME or --capacity SIZE"
_NOT_REQUESTED = {
    "largest_batch": ("not_asked", "not asked for: --largest-batch"),
    "largest_context": ("not_asked", "not asked for: --largest-context, with --serve"),
    "what_if": ("not_asked", "not asked for: --what-if"),
}


def _who(trace: Trace, event: int) -> tuple[str, str]:
    """Return the operation and the module of the block that an event allocates."""
    if 0 <= event < len(trace.events) and trace.events[event] >= 0:
        owner = trace.owner(trace.events[event])
        return owner.operation, owner.module
    return "", ""
