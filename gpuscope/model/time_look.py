"""Say what makes a training slow by a look at its GPU, put together with the clock of its thread.

The clock books what the training thread did. Where it only waited while the GPU computed, nothing
can be won. So where a look has covered the steps, a cure of something inside of them brings the
time for which the GPU was idle because of it. A look is of a few steps, and its trace makes each
launch slower. Both are corrected by the clock, which knows how long a step takes:

- The GPU's work of a step is the same with a trace and without. If the looked-at steps were longer
  than usual, the idle time is scaled to what a usual step has room for.
- If they were shorter, the rest of a usual step lies in pauses that the look has not met, as far
  as rows of the thread explain it, each with what the clock has booked for it at most. What they
  do not explain is more of the same. Where the GPU hardly rested in the looked-at steps, more of
  the same would be more work: then what makes a usual step longer than most is idle too, and the
  rows share it.
- Where the GPU waits for memory to be allocated more than for anything else, a usual step that is
  longer than most is so by this: the driver maps memory and takes it back at once, or takes ten
  times as long.

A queue that has run empty makes the launches after it late. So the upper end of each interval has
the idle time of late launches in it. The estimate itself has it only for a cause that empties the
queue again and again, so that the host never gets ahead. There it has no more than what
``model.time_left`` says that the host's own work leaves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from . import time_left
from .look import Look, LookRow
from .time_cause import (
    BARS,
    LEAST_LOW,
    PAUSES,
    SETTINGS,
    THREAD,
    Cause,
    Known,
    compiles_again,
    is_on,
)
from .time_ledger import Row, TimeLedger

SHORT_SECONDS = 20e-6
"""A launch takes the host 5 to 10 µs: a shorter kernel cannot hide the next one, and a shorter copy
is that of a number, which the reading costs, not the copying."""
SHORT_GAP_SECONDS = 50e-6
"""Shorter gaps on average in other code of the script are those between its launches."""
LONG_GAP_SECONDS = 200e-6
"""Late launches whose gaps are longer on average are not those of one call of Python after the
other: the thread did something that the samples of its stack have missed."""
FULL = 0.9
"""A GPU that is busy for this share of a step has no more to do in the next one."""
LEAST_SHORT = 0.01
FOLLOWS = 0.25
"""Late launches follow from a cause that has this share of their gaps, and of their time."""
MANY_READS = 10
"""Reads in a step; this many are no accident of the few steps of a look."""
MOST_COMPILING = 0.5
"""Where compiling takes more than this, the late launches are those of new kernels."""
LEAST_STEPS = 3
DIFFERS = 0.05
"""A look of one step has no interval. Its GPU may have this share less to do in other steps."""
MOST_COST = 0.5
"""At most this share of the clock is taken off for what looks have cost."""
IDLE: Mapping[str, tuple[str, ...]] = {
    "input": ("idle-input",),
    "compile": ("idle-compile",),
    "checkpoint": ("idle-checkpoint",),
    "validation": ("idle-validation",),
    "logging": ("idle-logging",),
    "collection": ("idle-collection",),
    "other": ("idle-other",),
    "allocate": ("idle-allocate",),
}
"""The rows of a look that are idle because of a cause."""


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of the wall clock with its bounds."""

    share: float = 0.0
    low: float = 0.0
    high: float = 0.0

    def __add__(self, other: _Part) -> _Part:
        return _Part(self.share + other.share, self.low + other.low, self.high + other.high)

    def times(self, factor: float) -> _Part:
        return _Part(self.share * factor, self.low * factor, self.high * factor)

    @property
    def extra(self) -> _Part:
        """Return the part as a possible gain, which raises only the upper bound."""
        return _Part(0.0, 0.0, self.high)


class Sums:
    """The rows of a look as shares of a usual step, and what the clock has in addition."""

    def __init__(self, ledger: TimeLedger, look: Look, known: Known) -> None:
        self.ledger, self.look, self.known = ledger, look, known
        self.rows = {row.name: row for row in look.rows}
        self.thread = {row.name: row for row in ledger.rows}
        self._after_reads = self._is_after_reads()
        self._short = self._between_launches()
        looked = look.step_seconds
        self.usual = usual = self._usual_step() or looked
        busy = look.busy_share * looked
        self._busy = min(1.0, busy / usual)
        """The share of a usual step for which the GPU works."""
        longer, rows = max(0.0, 1 - looked / usual), self._in_pauses()
        full = look.busy_share >= FULL and rows >= FOLLOWS * longer
        self.missed = min(longer, rows)
        if full:
            self.missed = max(self.missed, time_left.stalls(known.median_step_seconds, usual, look))
        """The share of a usual step in pauses that the look has not met."""
        self._more = max(1.0, self.missed / rows) if rows else 1.0
        """How many times as long as the clock has booked its pauses must have been."""
        self.longer = longer - self.missed
        """The share by which a usual step is longer for no known reason; it may have more work."""
        if looked > usual:
            self._per_row = looked / max(usual, busy)
            room = max(0.0, usual - busy) / max(looked - busy, 1e-9)
            self._idle_factor = self._per_row * min(1.0, room)
        else:
            self._per_row = self._idle_factor = 1 - self.missed
        self.idle = max(0.0, 1 - busy / usual - self.longer)
        """The share of a usual step for which the GPU is idle."""
        self._slow, self._slow_part = self._long_gaps()

    def _in_pauses(self) -> float:
        """Return the share of the thread's time in rows that may be pauses of its GPU."""
        names = [name for name in (*THREAD, *PAUSES, "copy") if not self._launches_in(name)]
        return sum(self.thread[name].share for name in names if name in self.thread)

    def _launches_in(self, name: str) -> bool:
        """Return whether what a row of the thread does is to launch."""
        idle = IDLE.get(name, ())
        return any(row in self._short for row in idle) or (name == "other" and self._after_reads)

    def _usual_step(self) -> float | None:
        """Return how long a step takes by the clock, without what looks have cost."""
        ledger = self.ledger
        if ledger.steps < LEAST_STEPS or not ledger.seconds:
            return None
        cost = min(self.known.cost_seconds, MOST_COST * ledger.seconds)
        return (ledger.seconds - cost) / ledger.steps

    def _part(self, name: str, factor: float) -> _Part:
        row = self.rows.get(name)
        if row is None:
            return _Part()
        low = row.share if row.low is None else row.low
        high = row.share if row.high is None else row.high
        return _Part(row.share, low, high).times(factor)

    def _idle(self, *names: str) -> _Part:
        return self._sum(self._part(name, self._idle_factor) for name in names)

    def _ran(self, *names: str) -> _Part:
        return self._sum(self._part(name, self._per_row) for name in names)

    @staticmethod
    def _sum(parts: Iterable[_Part]) -> _Part:
        total = _Part()
        for part in parts:
            total += part
        return total

    def _between_launches(self) -> tuple[str, ...]:
        """Return the idle rows whose gaps are so short that they lie between launches.

        So they do in other code that launches kernels itself, and where a library asks the driver
        about a kernel before it launches it, which looks like loading it.
        """
        names = ("idle-compile",) if self._after_reads else ("idle-other", "idle-compile")
        rows = [self.rows[name] for name in names if name in self.rows]
        return tuple(row.name for row in rows if _is_short(row))

    def _is_after_reads(self) -> bool:
        """Return whether the short gaps of other code are the way from a read to the next launch.

        That is where reads are many, as where tensors are indexed by masks: the line has no call
        that tells that it reads.
        """
        other, sync = self.rows.get("idle-other"), self.rows.get("idle-sync")
        if other is None or sync is None or not _is_short(other):
            return False
        return self._reads_often() and sync.count >= FOLLOWS * other.count

    def _reads_often(self) -> bool:
        sync = self.rows.get("idle-sync")
        return sync is not None and sync.count >= MANY_READS * self.look.steps

    def causes(self) -> Iterator[Cause]:
        """Yield all causes, however small."""
        found = [*self._of_the_thread(), *self._of_the_look()]
        owner, part = self._owner(found)
        launches = self._launches()
        settings = [name for name in SETTINGS if is_on(self.known, name)]
        for name in settings[:1]:
            yield self._setting(name, launches)
        on_host = is_on(self.known, "optimizer-on-host")
        if on_host:
            yield self._optimizer_on_host()
        for one in found:
            if one.name == "read" and (settings or on_host):
                continue
            if on_host and one.name in ("copies-in", "copies-out", "other"):
                continue
            if "uncached-memory" in settings and one.name == "allocate":
                continue
            yield self._with_late(one, launches, part if one.name == owner else 0.0)
        if not owner and not settings and not on_host:
            yield launches

    def _with_late(self, one: Cause, launches: Cause, part: float) -> Cause:
        """Return a cause with that part of the late launches which follows from it."""
        if one.name in ("products-plain", "products-double", "validation"):
            return one
        late, high = part * launches.share, max(one.share, one.high + launches.share)
        if one.name == "read":
            late = self._late_after_reads(one, launches, part)
            if part or self._reads_often():
                high = max(high, self._most_idle() - self.missed)
        elif self.look.steps == 1 and one.clock is not None and self.ledger.sure:
            high = max(high, min(one.clock.high, self._most_idle()))
        most, highest = 1.0, 1.0
        if one.name == "allocate":
            most, highest = 1 - self._busy, self._most_idle()
        share = min(most, one.share + late)
        return replace(one, share=share, low=min(share, one.low + part * launches.low),
                       high=min(highest, max(share, high)), late=late)  # fmt: skip

    def _most_idle(self) -> float:
        """Return the largest share of a usual step for which the GPU may be idle."""
        return 1 - self._busy * (1 - DIFFERS if self.look.steps == 1 else 1)

    def _late_after_reads(self, reads: Cause, launches: Cause, part: float) -> float:
        """Return the late launches that a cure of the reads wins.

        Where launches come late because of reads, it wins all that host and GPU do not need.
        """
        reading = self.thread.get("read")
        booked = reading.share if reading is not None and self.ledger.sure else 0.0
        left = time_left.without_reads(self.look, self.usual, booked)
        if left is not None and part:
            others = self._idle("idle-copy", "idle-allocate").share
            return max(0.0, 1 - left - others - reads.share)
        if left is None:
            left = time_left.without_waits(self.look, self.usual)
        late = part * launches.share
        return late if left is None else min(late, max(0.0, 1 - left - reads.share))

    def _owner(self, found: Iterable[Cause]) -> tuple[str, float]:
        """Return the cause after which launches come late again and again, "" where none does.

        With it, which part of them: as many as the cause has gaps.
        """
        launch = self.rows.get("idle-launch")
        if launch is None:
            return "", 0.0
        if any(one.name == "compile" and one.share > MOST_COMPILING for one in found):
            return "compile", 1.0  # first launches of new kernels
        slow = [launch, *(self.rows[name] for name in self._short)]
        late = sum(one.count for one in slow), sum(one.seconds for one in slow)
        best, part, most = "", 0.0, 0.0
        for name, rows in (
            ("read", ("idle-sync", "idle-other") if self._after_reads else ("idle-sync",)),
            ("logging", ("idle-logging", "idle-sync")),
            ("allocate", ("idle-allocate",)),
            ("copies-in", ("idle-copy",)),
        ):
            seen = [self.rows[row] for row in rows if row in self.rows]
            if rows[0] not in self.rows:
                continue
            count, seconds = sum(one.count for one in seen), sum(one.seconds for one in seen)
            if count >= FOLLOWS * late[0] and seconds >= FOLLOWS * late[1] and seconds > most:
                best, part, most = name, min(1.0, count / max(1, late[0])), seconds
        return best, part

    # ── one by one ──

    def _long_gaps(self) -> tuple[str, _Part]:
        """Return the row of the thread to which late launches with long gaps belong, "" if none.

        It is the one that the clock has most of, where it is a cause without them, and it gets no
        more than the clock has for it.
        """
        launch = self.rows.get("idle-launch")
        rows = [
            self.thread[name]
            for name in ("input", "logging", "other")
            if name in self.thread and not self._launches_in(name)
        ]
        if launch is None or launch.seconds < LONG_GAP_SECONDS * launch.count or not rows:
            return "", _Part()
        row = max(rows, key=lambda one: one.share)
        inside = self._inside(row.name).share
        seen = inside + self._missed(row, inside, self._free(row.name)).share
        if seen < BARS[row.name].told:
            return "", _Part()
        part, most = self._idle("idle-launch"), row.share - seen
        return row.name, part.times(max(0.0, min(1.0, most / part.share)) if part.share else 0.0)

    def _of_the_thread(self) -> Iterator[Cause]:
        compiling, collecting = self._inside("compile"), self._inside("collection")
        for name in (*THREAD, *PAUSES):
            clock = self.thread.get(name)
            row = next((self.rows[one] for one in IDLE.get(name, ()) if one in self.rows), None)
            if clock is None and row is None:
                continue
            if name == "collection" and compiling.share > collecting.share:
                continue  # the compiler creates the objects that are collected
            if self._launches_in(name):
                continue
            part = self._inside(name)
            if name == "compile" and compiling.share > collecting.share:
                part += collecting
            if name == "logging":
                part += self._logged()
            if name == self._slow:
                part += self._slow_part
            if name == "compile" and row is None and not compiles_again(self.known):
                continue  # the first compilation, in the minutes before
            if name in PAUSES and clock is not None and (self.ledger.sure or clock.timed):
                share = self._paused(clock)
                part = _Part(share, min(clock.low, share), max(clock.high, part.high, share))
            elif clock is not None:
                slow = self._slow_part.share if name == self._slow else 0.0
                part += self._missed(clock, part.share - slow, self._free(name))
            place = (row.place if row is not None else "") or (
                clock.places[0][0] if clock is not None and clock.places else ""
            )
            by = "both" if clock is not None and row is not None else "clock" if clock else "look"
            yield Cause(name, part.share, part.low, part.high, place, clock, row, by=by)

    def _paused(self, clock: Row) -> float:
        """Return the share of a pause: what the median says of all, shared out by the clock."""
        if clock.timed or clock.share < BARS[clock.name].told:
            return clock.share
        rows = [self.thread[name] for name in PAUSES if name in self.thread]
        timed = sum(row.share for row in rows if row.timed)
        booked = sum(row.share for row in rows if not row.timed)
        together = time_left.pauses(self.known.median_step_seconds, self.usual, self.look)
        if together is None or together - timed < time_left.COUNTS * booked:
            return clock.share
        return (together - timed) * clock.share / booked

    def _inside(self, name: str) -> _Part:
        return self._idle(*IDLE.get(name, ()))

    def _missed(self, clock: Row, inside: float = 0.0, free: float = 0.0) -> _Part:
        """Return what a row of the thread may take of the pauses that the look has not met.

        It is no more than the clock has for the row beyond what the look has seen. ``free`` is the
        most idle time that it may have, inside and outside of the look's steps.
        """
        if not self.ledger.sure:
            return _Part()
        most = max(self.missed, free - inside)
        share = min(self._more * clock.share, clock.high)
        shares = (share, clock.low, clock.high)
        return _Part(*(min(most, max(0.0, share - inside)) for share in shares))

    def _free(self, name: str) -> float:
        """Return for how long the GPU was idle, less what is for sure for other reasons.

        Its work is the same in all steps, so a usual step tells its idle time better than the
        few steps of the look do. Rows in which the thread launches nothing may have it.
        """
        if name not in ("input", "compile", "logging"):
            return 0.0
        idle = [row.name for row in self.look.rows if row.kind == "idle"]
        others = self._idle(*(row for row in idle if row not in IDLE[name]))
        paused = sum(self.thread[one].low for one in PAUSES if one in self.thread)
        return max(0.0, self.idle - others.low - paused)

    def _logged(self) -> _Part:
        """Return the reads that logging does, by its share of the thread."""
        clock = self.thread.get("logging")
        reading = self.thread.get("read")
        if clock is None or (reading is not None and reading.share > clock.share):
            return _Part()
        return self._idle("idle-sync")

    def _of_the_look(self) -> Iterator[Cause]:
        rows, out, into = self.rows, self.rows.get("copies-out"), self.rows.get("copies-in")
        numbers = out is not None and _is_of_numbers(out)
        out_longer = out is not None and (into is None or out.seconds >= into.seconds)
        held = self._idle("idle-copy")
        reading = rows.get("idle-sync") or (out if numbers else None)
        if reading is not None and not self._logged().share:
            part = self._idle("idle-sync", *(("idle-other",) if self._after_reads else ()))
            if self._reads_often():
                part = _Part(part.share, max(part.low, LEAST_LOW * part.share), part.high)
            if numbers:
                part += self._ran("copies-out") + (held if out_longer else _Part())
            yield self._cause("read", part, reading, "read")
        if out is not None and not numbers:
            part = self._ran("copies-out") + (held if out_longer else _Part())
            yield self._cause("copies-out", part, out, "read")
        if into is not None and not _is_of_numbers(into):
            part = self._ran("copies-in") + (held if not out_longer else _Part())
            yield self._cause("copies-in", part, into, "copy")
        allocate = rows.get("idle-allocate")
        if allocate is not None:
            part = self._with_stalls(self._idle("idle-allocate"), allocate)
            yield self._cause("allocate", part, allocate, "release")
        yield from self._products()

    def _with_stalls(self, part: _Part, row: LookRow) -> _Part:
        """Return a part with the steps that are far longer than most, if the GPU waits most for it.

        See the module.
        """
        idle = [one.seconds for one in self.look.rows if one.kind == "idle"]
        share = 0.0
        if self.known.median_step_seconds is not None:
            share = time_left.stalls(self.known.median_step_seconds, self.usual, self.look)
            share = max(0.0, share - self.missed)
        if row.seconds < max(idle) or row.share < BARS["allocate"].told or not share:
            return part
        return part.times(1 - share) + _Part(share, 0.0, share)

    def _cause(self, name: str, part: _Part, row: LookRow, clock: str) -> Cause:
        """Return a cause with what other code of the script does at its line."""
        other, thread = self.rows.get("idle-other"), self.thread.get(clock)
        if other is not None and other.seconds < row.seconds and "idle-other" not in self._short:
            part += self._idle("idle-other") if row.place and row.place == other.place else _Part()
        if thread is not None and row.place and row.place in dict(thread.places[:1]):
            part += self._missed(thread)
        part += _Part(high=self.missed)
        return Cause(name, part.share, part.low, part.high, row.place, thread, row)

    def _products(self) -> Iterator[Cause]:
        """Yield products and convolutions that tensor cores would make faster."""
        if self.known.faster is None:
            return
        saved = 1 - 1 / self.known.faster
        plain, slow = self.rows.get("products-plain"), self.rows.get("convolution-plain")
        part = self._ran("products-plain", "convolution-plain")
        rest = self.rows.get("convolution")
        if slow is not None and rest is not None and slow.seconds >= FOLLOWS * rest.seconds:
            part += self._ran("convolution").extra  # the layouts and sums that they need
        row = max((one for one in (plain, slow) if one), key=lambda one: one.seconds, default=None)
        if row is not None:
            part = part.times(saved)
            yield Cause("products-plain", part.share, part.low, part.high, row.place, row=row)
        double = self.rows.get("products-double")
        if double is not None:
            part = self._ran("products-double").times(saved)
            yield Cause(
                "products-double", part.share, part.low, part.high, double.place, row=double
            )

    def _launches(self) -> Cause:
        """Return the late launches, with the short kernels that one long kernel could replace."""
        part = self._idle("idle-launch", *self._short)
        short = [
            row.name
            for row in self.look.rows
            if row.kind == "kernels" and row.count and row.seconds < SHORT_SECONDS * row.count
        ]
        part += self._ran(*short).extra + _Part(high=self.missed + self.longer)
        row = self.rows.get("idle-launch")
        most = 1 - sum(self.thread[one].share for one in PAUSES if one in self.thread)
        share = min(part.share - self._slow_part.share, most)
        return Cause("launch", share, min(part.low, share), min(1.0, part.high), row=row)

    def _setting(self, name: str, launches: Cause) -> Cause:
        """Return a debugging setting: it makes every launch late, or waits after it."""
        waits = self._idle("idle-sync", "idle-queue", "idle-copy", "idle-allocate")
        share = min(1.0, launches.share + waits.share)
        left = None
        if name == "launch-blocking":  # the others have work of their own, which goes too
            left = time_left.without_waits(self.look, self.usual)
        share = share if left is None else min(share, 1 - left)
        return Cause(
            name,
            share,
            min(share, launches.low + waits.low),
            min(1.0, launches.high + waits.high + self.missed),
            row=launches.row,
        )

    def _optimizer_on_host(self) -> Cause:
        part = self._idle("idle-sync", "idle-copy", "idle-other", "idle-launch")
        part += self._ran("copies-out", "copies-in")
        row = max(
            (self.rows[name] for name in ("idle-sync", "copies-out", "copies-in", "idle-copy")
             if name in self.rows),
            key=lambda one: one.seconds, default=None,
        )  # fmt: skip
        high = min(1.0, part.high + self.missed)
        place = row.place if row is not None else ""
        return Cause("optimizer-on-host", min(1.0, part.share), part.low, high, place, row=row)


def _is_short(row: LookRow) -> bool:
    """Return whether the gaps of a row are short, and take some time together."""
    return row.seconds < SHORT_GAP_SECONDS * row.count and row.share >= LEAST_SHORT


def _is_of_numbers(row: LookRow) -> bool:
    return row.seconds < SHORT_SECONDS * row.count
