"""Return what is known of the time of trainers as a document: what ``gpuscope why --json`` prints.

Reports are made of it too. How to ask a trainer is in ``look`` and ``work``, and what people read
in ``time_report``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum
from typing import Any

from ..doctor.finding import Finding
from ..doctor.live_causes import Judged, fix_of, is_calm
from ..model.late_rank import LateRank
from ..model.look import Look, waited_for
from ..model.pace import PARTS_STEPS
from ..model.slowdown import Slowdown
from ..model.standstill import TIMES_BEFORE, Standstill
from ..model.step_time import words_of
from ..model.time_cause import Cause
from ..model.time_ledger import Row, TimeLedger
from ..model.time_sentence import sentence
from ..model.useful_work import CONVENTION, UsefulWork, shares
from ..text.units import count_text, percent_text
from ..wire.clean import clean

MAX_PLACES = 3
NO_SAMPLES = "there are no samples of its stack that would show pauses and lines of code"
PARTS_BASIS = f"the mean of its last {PARTS_STEPS} steps"


@dataclass(frozen=True)
class TrainerTime:
    """What is known about the time of one trainer.

    ``name`` is its name for people (``train.py, rank 3, pid 4242``), and ``short`` its name in a
    table of ranks. ``again`` is the command that repeats the question, and ``note`` contains
    further remarks.
    """

    name: str
    short: str
    pid: int
    rank: int | None
    job: str | None
    ledger: TimeLedger
    slowdown: Slowdown | None = None
    late: LateRank | None = None
    """The rank of its job that the others wait for, which may be this one."""
    again: str = ""
    note: str = ""
    look: tuple[Look | None, str] | None = None
    """What was seen on its GPU, or None and why nothing was; None where nobody looked."""
    work: tuple[UsefulWork | None, str] | None = None
    """What a step of it computes, or None and why that is not known; None where nobody asked."""
    judged: tuple[Judged, ...] = ()
    """The causes that make it slow, the one whose cure brings most first."""
    readings: tuple[Finding, ...] = ()
    """What the readings of its job's cards show besides; none where a look has shown more."""
    waits_for: tuple[Finding, ...] = ()
    """What to do about the rank that the others wait for: nothing of its own comes before that."""
    settings: tuple[str, ...] = ()
    """Settings for debugging and the like that are on in it."""
    standstill: Standstill | None = None
    """Since when no step has ended, and why; None while steps end."""
    long_steps: tuple[tuple[float | None, float], ...] = ()
    """When steps that are left out of the ledger began, by the wall clock, and their seconds."""
    unshown: str = ""
    """Why no ledger is shown of one that stands still, "" where one is, or none is known."""
    lost: str = ""
    """Since when its loss is NaN or infinite, in words; "" where it is finite or not known."""
    parts: tuple[tuple[str, float], ...] = ()
    """The mean seconds of each part of its last steps, the longest first, if no ledger tells it."""
    median_step_seconds: float | None = None
    """The median of its last steps, without what rare pauses add; None where it is not known."""
    urgent: tuple[Finding, ...] = ()
    """What comes before a faster step: to end a hang, or a loss that is NaN. Each has the fixes for
    now and for the next run that come first."""
    tune: str = ""
    """The command that searches faster settings of it, "" where none can be named."""
    on_gpu: bool = True
    """Whether it uses CUDA."""

    @property
    def sentence(self) -> str:
        """Return what there is to say of it in a sentence, or some where no step ends."""
        if self.lost:
            return f"Its {self.lost}: a faster step is no gain. {self._of_its_time}"
        return self._of_its_time

    @property
    def _of_its_time(self) -> str:
        if self.standstill is None and self.parts:
            (name, seconds), whole = self.parts[0], fsum(seconds for _, seconds in self.parts)
            words = words_of(dict(self.parts))
            share = f"{percent_text(seconds / whole)} of a step is {words[name]}"
            few = count_text(self.ledger.looks, "sample")
            why = f"{few} cannot show pauses and lines of code" if self.ledger.looks else NO_SAMPLES
            return f"{share}, by {PARTS_BASIS}: {why}."
        if self.standstill is None:
            late = self.late
            calm = (
                late is None
                and not self.warns
                and not self.lost
                and is_calm(self.judged, self.ledger)
            )
            gains = late is None or self.is_late
            causes = self.causes
            if self.is_late:  # how it is late is said already
                causes = tuple(one for one in causes if one.usual_share is None)
            own = sentence(self.ledger, causes, False, calm, self._best_reading, gains)
            if late is None:
                return own
            whose = "" if gains else f"Of {self.short} itself: "
            return f"{late.sentence} {whose}{own}" if causes else late.sentence
        below = self._of_the_table if self.parts or self.ledger.rows else self.unshown
        return " ".join(filter(None, (self.standstill.sentences, below)))

    @property
    def _of_the_table(self) -> str:
        if self.ledger.sure:
            return f"{TIMES_BEFORE}."
        if self.parts:
            return f"The times below are {PARTS_BASIS}."
        return f"{count_text(self.ledger.looks, 'sample')} cannot tell where the time went before."

    @property
    def step_seconds(self) -> float | None:
        """Return the seconds of a step, of the same steps as what is shown of its parts."""
        if self.parts:
            return fsum(seconds for _, seconds in self.parts)
        return self.ledger.step_seconds

    @property
    def is_known(self) -> bool:
        """Return whether there is anything to say of its time."""
        return bool(self.ledger.looks or self.parts) or self.standstill is not None

    @property
    def is_late(self) -> bool:
        """Return whether it is the rank that the others wait for."""
        return self.late is not None and self.late.trainer.definition.pid == self.pid

    @property
    def warns(self) -> bool:
        """Return whether something that makes it slow is a warning of the doctor."""
        shown = any(one.severity != "info" for one in self.readings)
        return shown or any(one.warns for one in self.judged)

    @property
    def causes(self) -> tuple[Cause, ...]:
        return tuple(one.cause for one in self.judged)

    @property
    def told_cause(self) -> Judged | None:
        """Return the cause whose gain its sentence tells, None where it tells that of none."""
        tells = self.late is None and self.standstill is None and not self.parts
        return self.judged[0] if tells and self.judged else None

    @property
    def _best_reading(self) -> str:
        """Return the first that the readings show, and its gain; "" where they show nothing."""
        if not self.readings:
            return ""
        one = self.readings[0]
        title = clean(one.title, 200)
        saved = one.effect.saved_share if one.effect is not None else None
        gain = f"; a fix saves at most {percent_text(saved)} of each step" if saved else ""
        return f"{title}{gain}"


def rank_to_report(ranks: Sequence[TrainerTime]) -> TrainerTime:
    """Return the rank of a job to report in full: the one that the others wait for.

    That is the late one; else the one for which the others' collectives wait by looks at the GPUs;
    else the slowest.
    """
    still = [one for one in ranks if one.standstill is not None]
    if still:
        held_up_by = (one for one in still if one.standstill and one.standstill.behind)
        return next(held_up_by, still[0])
    waited = waited_rank(ranks)
    found = next((one for one in ranks if one.is_late), None)
    if found is None and waited is not None:
        found = ranks[waited[0]]
    return found or max(ranks, key=lambda one: one.step_seconds or 0.0)


def waited_rank(ranks: Sequence[TrainerTime]) -> tuple[int, float] | None:
    """The place of the rank that the others' collectives wait for, and for how long in a step."""
    looks = {at: one.look[0] for at, one in enumerate(ranks) if one.look and one.look[0]}
    return waited_for({at: seen for at, seen in looks.items() if seen is not None})


# ── the document ──


def document(target: str, ranks: Sequence[TrainerTime]) -> dict[str, Any]:
    """Return what ``--json`` prints. Shares are fractions of 1; seconds are wall-clock time.

    The keys at the top level are those of the named trainer; ``trainers`` has all of them.
    """
    one = rank_to_report(ranks)
    return {
        "target": clean(target, 512),
        **_trainer(one),
        **_late(one.late),
        "trainers": [_trainer(each) for each in ranks],
    }


def _late(late: LateRank | None) -> dict[str, Any]:
    """Return the rank that the others wait for: by the samples, and by the parts of its steps."""
    if late is None:
        return {"odd_rank": None, "straggler": None}
    who = {"rank": late.trainer.definition.rank, "pid": late.trainer.definition.pid}
    odd, slow = late.odd, late.slow
    by_samples = odd and {
        **who,
        "row": odd.row.name,
        "share": odd.row.share,
        "usual_share": odd.usual_share,
        "step_seconds": odd.seconds,
        "usual_step_seconds": odd.usual_seconds,
    }
    return {
        "odd_rank": by_samples,
        "straggler": {
            **who,
            "sentence": late.sentence,
            "severity": "warning" if late.warns else "info",
            "since": late.wall,
            "late_seconds": late.seconds,
            "saves_share_at_most": late.share if late.paced is None else None,
            "saves_share_at_most_low": late.low if late.paced is None else None,
            "saves_share_at_most_high": late.high if late.paced is None else None,
            "own_step_seconds": slow.own_seconds if slow is not None else None,
            "usual_own_step_seconds": slow.usual_seconds if slow is not None else None,
        },
    }


def _trainer(one: TrainerTime) -> dict[str, Any]:
    ledger, slowdown = one.ledger, one.slowdown
    whole, words = fsum(seconds for _, seconds in one.parts) or 1.0, words_of(dict(one.parts))
    return {
        "name": clean(one.name, 200),
        "pid": one.pid,
        "rank": one.rank,
        "job": clean(one.job, 200) if one.job is not None else None,
        "window_seconds": round(ledger.seconds, 6),
        "steps": ledger.steps,
        "step_seconds": ledger.step_seconds,
        "median_step_seconds": one.median_step_seconds,
        "looks": ledger.looks,
        "enough_looks": ledger.sure,
        "sentence": one.sentence,
        "loss_not_finite": one.lost or None,
        "rows": [_row_document(row) for row in ledger.rows],
        "parts": [
            {"part": words[name], "seconds": seconds, "share": seconds / whole}
            for name, seconds in one.parts
        ],
        "left_out": [{"since": since, "seconds": seconds} for since, seconds in one.long_steps],
        "causes": _causes(one.judged, one.again, ledger.step_seconds),
        "readings": [_finding(each, one.again) for each in (*one.waits_for, *one.readings)],
        "slower": None
        if slowdown is None
        else {
            "since": slowdown.wall,
            "step_seconds_before": slowdown.change.before,
            "step_seconds_after": slowdown.change.after,
            "changed_then": [clean(then, 200) for then in slowdown.then],
        },
        "note": one.note,
        "settings": list(one.settings),
        "tune": clean(one.tune, 512) or None,
        "look": look_document(*one.look) if one.look is not None else None,
        "useful_work": _work(*one.work, ledger.step_seconds) if one.work is not None else None,
    }


def _row_document(row: Row) -> dict[str, Any]:
    return {
        "row": row.name,
        "seconds": round(row.seconds, 6),
        "share": row.share,
        "share_low": row.low,
        "share_high": row.high,
        "places": [
            {"place": clean(place, 512), "seconds": round(seconds, 6)}
            for place, seconds in row.places[:MAX_PLACES]
        ],
    }


def look_document(look: Look | None, problem: str) -> dict[str, Any]:
    """Return what ``--json`` prints of a look. Shares are of 1; seconds are wall clock."""
    if look is None:
        return {"problem": problem}
    return {
        "problem": None,
        "seconds": round(look.seconds, 9),
        "steps": look.steps,
        "busy_share": look.busy_share,
        "rows": [
            {
                "row": row.name,
                "kind": row.kind,
                "seconds": round(row.seconds, 9),
                "share": row.share,
                "share_low": row.low,
                "share_high": row.high,
                "count": row.count,
                "place": clean(row.place, 512) or None,
                "kernels": [
                    {"name": clean(name, 512), "seconds": round(seconds, 9)}
                    for name, seconds in row.kernels
                ],
            }
            for row in look.rows
        ],
        "events": look.events,
        "stood_seconds": look.stood_seconds,
        "waited_seconds": look.waited_seconds,
        "held_seconds": look.held_seconds,
        "host_step_seconds": look.host_step_seconds,
        "paused_seconds": look.paused_seconds,
        "lost_seconds": look.lost_seconds,
        "slowed_seconds": look.slowed_seconds,
    }


def known_pair(one: Finding) -> str:
    """Return the command that shows a pitfall with and without its fix, "" where there is none."""
    from ..doctor import table

    return one.verify or table.load()[one.pitfall].verify


def proof(one: Finding, again: str) -> list[str]:
    """Return how to see the gain of a fix: a known pair with and without it, and this training."""
    known = known_pair(one)
    after = f"{again}    again with the fix: steps are shorter"
    return [known, after] if known else [after]


def _causes(
    judged: Sequence[Judged], again: str, step_seconds: float | None
) -> list[dict[str, Any]]:
    """Return what ``--json`` prints of causes, what brings most first."""
    return [
        {
            "row": cause.name,
            **_finding(one, again),
            "saves_share_at_most": cause.saves,
            "saves_share_at_most_low": min(cause.low, cause.cured_share),
            "saves_share_at_most_high": min(cause.high, cause.cured_share),
            "step_seconds_at_least": step_seconds * (1 - cause.saves) if step_seconds else None,
            "place": clean(cause.place, 512) or None,
        }
        for cause, one in ((each.cause, each.finding) for each in judged)
    ]


def _finding(one: Finding, again: str) -> dict[str, Any]:
    """Return what ``--json`` prints of what makes a training slow, however it is known."""
    fix = fix_of(one)
    return {
        "pitfall": one.pitfall,
        "cause": one.cause,
        "title": clean(one.title, 200),
        "severity": one.severity,
        "evidence": [clean(part.text, 600) for part in one.evidence],
        "advice": fix.title if fix is not None else None,
        "proof": proof(one, again),
    }


def _work(work: UsefulWork | None, problem: str, step_seconds: float | None) -> dict[str, Any]:
    """Return what ``--json`` prints of the work of a step, with its derivation.

    FLOPs are of one step, a multiplication and an addition being two; utilizations are of 1.
    """
    if work is None:
        return {"problem": problem}
    card = work.card
    step = step_seconds or 0.0
    return {
        "problem": work.problem or None,
        "step_seconds": step_seconds,
        "floor_seconds": work.floor_seconds,
        "mfu": work.mfu(step),
        "hfu": work.hfu(step),
        "convention": f"{CONVENTION}: model FLOPs / (step seconds * dense peak of the type in use)",
        "model_flops": work.model_flops,
        "hardware_flops": work.hardware_flops,
        "recomputed_flops": work.recomputed_flops,
        "complete": work.complete,
        "unknown": [{"operator": name, "count": count} for name, count in work.unknown],
        "left_out": work.left_out,
        "type": work.type or None,
        "peak_flops_per_second": work.peak,
        "card": None
        if card is None
        else {
            "name": card.id,
            "bandwidth_bytes_per_second": card.bandwidth * 1e9,
            "source": card.source,
        },
        "rows": [
            {
                "class": row.kind,
                "type": row.type or None,
                "count": row.count,
                "model_flops": row.model_flops,
                "hardware_flops": row.hardware_flops,
                "bytes": row.bytes,
                "peak_flops_per_second": row.peak,
                "floor_seconds": row.floor_seconds,
                "floor_share": share,
            }
            for row, share in shares(work)
        ],
        "counted_seconds": work.counted_seconds,
        "lost_seconds": work.lost_seconds,
    }
