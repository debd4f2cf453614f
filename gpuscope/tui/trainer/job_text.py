"""These are the sentences of the job screen: what a job is, and what stands out of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from ...doctor.live_causes import of_ledger
from ...doctor.live_scene import LiveScene
from ...model.device_trainings import tensor_idle
from ...model.growth import trend_of
from ...model.job_ends import NOTHING_SENT, end_of
from ...model.job_state import broken_states, living_members, on_broken
from ...model.late_rank import late_rank
from ...model.lost_loss import lost_loss
from ...model.memory_room import rooms
from ...model.pace import Pace, pace_of
from ...model.ranks import IMBALANCED, fullest, imbalance, name_of
from ...model.reading_age import marked, old_seconds
from ...model.slowdown import of_trainers
from ...model.stalls import find_stall, is_ending, worst_rank
from ...model.step_parts import reported, step_parts
from ...model.step_time import SLOWER, slower_than_before
from ...store.stream import NO_REASON
from ...text.ranges import ranges_text
from ...text.styled import Line
from ...text.units import age_text, bytes_text, duration_text
from ...wire.clean import clean
from ...wire.frames import Unknown
from ..shared.job_notes import (
    end_notes,
    ending_note,
    growth_lines,
    input_lines,
    loss_lines,
    state_lines,
)
from ..shared.step_split import split_pieces

if TYPE_CHECKING:
    from ...store.view import HistoryOf, HostView, JobView, TrainerView


MANY_CELLS, ONE_LINE_CELLS, AROUND_PARTS = 200, 100, 48
"""More than all parts of a step take; from so many cells on they stand in one line, with so many
for the words around them.
"""


def head_of(job: JobView) -> Line:
    """Return what the job is and how fast it goes.

    An example is ``Job train.py · 8 ranks · ada · step 4,012 · median step 901 ms``.
    """
    out: Line = [("Job  ", "bold accent"), (job.title, "title")]
    living = [t for t in job.trainers if t.gone is None]
    facts = [
        f"{len(living)} of {world} ranks"
        if (world := _world(job) or 1) > 1 and world != len(living)
        else ""
    ]
    facts += [f"{len(living)} ranks"] if len(living) > 1 and not facts[0] else []
    facts += [job.user or ""]
    pace = pace_of(job.trainers)
    facts += [f"step {pace.steps_text}" if pace.steps_text else "", pace.text]
    times = slower_than_before(living) if not pace.stopped else None
    if times is not None and abs(times - 1) >= 0.05:
        facts.append(f"{times:.2f}× the step time of an hour ago")
    return [*out, (" · " + " · ".join(fact for fact in facts if fact), "muted")]


def _world(job: JobView) -> int | None:
    return next((t.definition.world_size for t in job.trainers if t.definition.world_size), None)


def standing_out(
    host: HostView,
    job: JobView,
    history: HistoryOf,
    first: Iterable[Line] = (),
    sent: Mapping[int, str] = NOTHING_SENT,
    brief: bool = False,
    cells: int = MANY_CELLS,
    finding: Line | None = None,
) -> Iterable[Line]:
    """Return what stands out of a job in sentences, the worst first.

    With ``brief`` figures that the ranks and the charts show too are left out of a job that is not
    well. One line says so where nothing does: ``finding`` where the Doctor has one, else that the
    job is healthy. ``first`` says what to do about the worst.
    """
    if end_of(job) is not None:
        yield from end_notes(host, job, sent)
        yield from first
        yield from time_lines(host, job.trainers, pace_of(job.trainers), history)
        return
    living = [t for t in job.trainers if t.gone is None]
    pace = pace_of(living)
    broken = broken_states(host, job)
    lines = [line for state in broken for line in state_lines(state)]
    lines += _silent_lines(host, job, history)
    if is_ending(job.trainers):
        lines.append(ending_note(job))
    lines += _wrong(host, job, living, history)
    lines += [] if pace.stopped else list(_uneven(host, living, history))
    lines += _imbalance(living)
    steps = any(t.number("step") for t in living)
    calm = "all ranks at the same step" if len(living) > 1 else "stepping"
    well: Line = [("healthy: ", "text"), (calm, "muted")] if steps else [("no step yet", "muted")]
    if pace.stopped and not lines:
        lines = [[("no step: ", "warn"), (pace.text or "none has ended yet", "text")]]
    yield from lines or [finding or [("● ", "ok"), *well]]
    yield from first
    brief = bool(lines) and (brief or bool(broken))
    if not brief and find_stall(living) is None:
        yield from _headroom(host, living, history)
    yield from time_lines(host, living, pace, history, brief, cells)


def telling_chart(host: HostView, job: JobView, history: HistoryOf) -> str:
    """Return the chart that shows what is wrong with a job, "" where the usual one tells most.

    That is the memory of a job that runs out of it, the load where a GPU is lost, and the loss
    before it was none.
    """
    living = [t for t in job.trainers if t.gone is None]
    if end_of(job) is not None or not living:
        return ""
    if broken_states(host, job):
        return "load"
    found = rooms(host.devices, living, history)
    trend = trend_of(found[0].allocator) if found else None
    if found and (found[0].runs_out is not None or (trend is not None and trend.grows)):
        return "memory"
    lost = lost_loss(host, job, history)
    return "loss" if lost is not None and lost.before else ""


def _silent_lines(host: HostView, job: JobView, history: HistoryOf) -> list[Line]:
    """Say for how long the driver has given no reading of the lost devices of a job."""
    found = on_broken(host, living_members(job)).values()
    lost = [device for device, state, _ in found if state.word == "lost"]
    ages = []
    for device in lost:
        past = history(device.id, "used_bytes", None)
        known = (at for at in range(len(past) - 1, -1, -1) if past.values[at] is not None)
        last = next(known, None)
        if last is not None and host.sampled_seconds is not None:
            ages.append(host.sampled_seconds - past.seconds[last])
    if not ages:
        return []
    text = f"no reading of {'it' if len(lost) == 1 else 'them'} for {age_text(max(ages))}"
    return [[(" " * len("lost: "), "text"), (text, "muted")]]


def time_lines(
    host: HostView,
    living: Sequence[TrainerView],
    pace: Pace,
    history: HistoryOf,
    brief: bool = False,
    cells: int = MANY_CELLS,
) -> Iterable[Line]:
    """Say where the time of a step goes, of which steps and ranks that is, and whether now.

    It is the wall clock, pauses included, where a rank has a ledger; with ``brief`` nothing else.
    The smallest parts are left out where they would not fit into ``cells``.
    """
    parts = step_parts(living, host, history)
    if brief and (parts is None or not parts.of_ledger):
        return
    room = cells - AROUND_PARTS if cells >= ONE_LINE_CELLS else MANY_CELLS
    pieces = split_pieces(parts, room) if parts is not None else []
    if pace.stopped and pace.usual_seconds:
        named = [t for t in living if parts is not None and name_of(t) == parts.rank]
        of, usual = (f" of {parts.rank}" if parts and named else ""), pace_of(named or living)
        before = f"a median step{of} took {duration_text(usual.usual_seconds or 0.0)}"
        own: Line = [(": ", "muted"), *pieces] if parts is not None and not parts.of_ledger else []
        yield [("before: ", "faint"), (before, "muted"), *own]
    if parts is not None and (parts.of_ledger or not pace.stopped):
        if parts.of_ledger:
            place = _slowest_line(host, living, history) if not pace.stopped else ""
            yield [(f"wall clock, {parts.basis}: ", "faint"), *pieces, (place, "muted")]
        else:
            yield [("parts: ", "faint"), *pieces, (f" · of the {parts.basis}", "faint")]
    if parts is not None or pace.stopped:
        return
    reasons = (r for t in living if isinstance(r := t.reading("compute_seconds"), Unknown))
    why = next(reasons, None)
    if why is not None and why.code != NO_REASON.code:  # the chart says that there is none
        yield [("no step breakdown: ", "faint"), (why.text, "faint")]


def _slowest_line(host: HostView, ranks: Sequence[TrainerView], history: HistoryOf) -> str:
    """Return the line of code that costs most by the ledger, "" where none is known."""
    late = late_rank(ranks, history, host) if len(ranks) > 1 else None
    found = reported(ranks, late)
    if found is None:
        return ""
    judged = of_ledger(LiveScene(host, history), found.trainer, found.ledger, late)
    place = judged[0].cause.place if judged else ""
    return f"; most to gain at {clean(place, 160)}" if place else ""


def _wrong(
    host: HostView, job: JobView, living: Sequence[TrainerView], history: HistoryOf
) -> Iterable[Line]:
    stall = find_stall(job.trainers)
    if stall is not None:
        yield [("waiting: ", "muted") if stall.busy else ("stalled: ", "bad"), (stall.text, "text")]
        counts = [(t, n) for t in living if (n := t.number("collectives")) is not None]
        if stall.behind and counts:
            low, high = min(n for _, n in counts), max(n for _, n in counts)
            text = (
                f"{name_of(stall.behind[0])} launched {low:,.0f} collectives, the others up to "
                f"{high:,.0f}"
            )
            yield [("         ", "text"), (text, "muted")]
    yield from loss_lines(host, job, history)
    if stall is None:
        worst, reason = worst_rank(living)
        if worst is not None:
            yield [("worst: ", "muted"), (reason, "text")]
    found = rooms(host.devices, living, history)
    if found and found[0].runs_out is not None:
        yield from growth_lines(host, found[0], len(living))
        return
    trends = ((room, trend_of(room.allocator)) for room in found)
    growing = next(((room, trend) for room, trend in trends if trend and trend.grows), None)
    if growing is not None:
        room, trend = growing
        pace = f"{bytes_text(trend.slope)} per step, over {trend.steps:,.0f} steps"
        text = f"{name_of(room.trainer)} grows by {pace}; too early to tell if or when it runs out"
        yield [("memory: ", "faint"), (text, "muted")]


def _tensor_idle(
    host: HostView, living: Sequence[TrainerView], history: HistoryOf
) -> Iterable[Line]:
    """Say on which GPUs of the job the tensor cores have nothing to do, and why most likely."""
    homes = {a.gpu for t in living for a in t.allocators if a.gone is None}
    idle = {
        device.definition.index: found
        for device in host.devices
        if device.id in homes and (found := tensor_idle(host, device, history)) is not None
    }
    if idle:
        why = next(iter(idle.values())).text
        yield [("tensor cores: ", "warn"), (f"idle on GPU {ranges_text(idle)}, {why}", "text")]


def _headroom(host: HostView, living: Sequence[TrainerView], history: HistoryOf) -> Iterable[Line]:
    """Say which rank has the least memory left, unless it is said already when it runs out."""
    found = rooms(host.devices, living, history)
    if len(found) > 1 and found[0].headroom_bytes is not None and found[0].runs_out is None:
        who = name_of(found[0].trainer)
        left = marked(bytes_text(found[0].headroom_bytes), old_seconds(host, found[0].allocator))
        text = f"{who} has the least headroom: {left}"
        yield [("memory: ", "faint"), (text, "muted")]


def _imbalance(living: Sequence[TrainerView]) -> Iterable[Line]:
    share = imbalance(living)
    if share is not None and share >= IMBALANCED:
        who = name_of(fullest(living))
        text = f"{who} holds {share:.2f}× the mean, and limits the whole job"
        yield [("imbalance: ", "muted"), (text, "text")]


def _uneven(host: HostView, living: Sequence[TrainerView], history: HistoryOf) -> Iterable[Line]:
    yield from input_lines(host, living, history)
    yield from _tensor_idle(host, living, history)
    late = late_rank(living, history, host)
    if late is not None:
        yield [("straggler: ", "warn" if late.warns else "muted"), (late.text, "text")]
    slowdown = of_trainers(living, host, history)
    if slowdown is not None:
        yield [("pace: ", "muted"), (f"{slowdown.text}.", "text")]
    times = slower_than_before(living)
    if slowdown is None and times is not None and times >= SLOWER:
        yield [("pace: ", "muted"), (f"{times:.1f}× slower than an hour ago", "text")]
