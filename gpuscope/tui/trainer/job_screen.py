"""This screen looks at a job closely, with its ranks side by side.

It says who is behind, who works longest, and who runs out of memory first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType

from ...model.growth import trend_of
from ...model.memory_room import MemoryRoom, rooms
from ...model.ranks import IMBALANCED, imbalance, name_of
from ...model.stalls import find_stall, is_overdue, place, waits_in_collective, worst_rank
from ...model.step_time import SLOWER, measured_step, shares_of, slower_than_before, split_of
from ...model.stragglers import straggler
from ...text import styled
from ...text.styled import Line, Piece
from ...text.units import age_text, amount_text, bytes_text, duration_text
from ...wire.frames import Unknown
from ..overview.job_rows import (
    SPLIT_TOKENS,
    end_notes,
    end_of,
    end_word,
    growth_lines,
    split_pieces,
    step_age_text,
)
from ..shell.keymap import bindings_of, key_of, keys_of
from ..widgets.bars import Bar
from ..widgets.full_screen import Room, absent, footer_keys
from ..widgets.pane import set_title
from ..widgets.program import program
from ..widgets.table import Cell, Column, LiveTable, TableRow
from ..widgets.text import Lines
from .trainer_actions import open_act

if TYPE_CHECKING:
    from ...store.view import HistoryOf, HostView, JobView, TrainerView
    from ..shell.session import Session

COLUMNS = (
    Column("rank", "RANK", 5, align="right"),
    Column("gpu", "GPU", 4, align="right", priority=4),
    Column("pid", "PID", 8, align="right", priority=8),
    Column("step", "STEP", 9, align="right"),
    Column("pace", "STEP TIME", 9, align="right"),
    Column("age", "STEP AGE", 8, align="right"),
    Column("collectives", "COLLECT.", 9, align="right", priority=4),
    Column("memory", "ALLOC/RES. GiB", 14, align="right", priority=1),
    Column("left", "HEADROOM", 8, align="right"),
    Column("ends", "RUNS OUT", 11, align="right", priority=3),
    Column("split", "STEP BREAKDOWN", 14, flex=2, most=60, priority=6),
    Column("at", "STUCK AT", 14, flex=3, most=60, priority=2),
)
OPTIONAL = ("ends", "split", "at", "collectives", "memory", "left")
"""Columns that are left out where no rank has anything to say in them."""
NOTHING: Sequence[Piece] = [("–", "faint")]
OTHERS = "others"


class JobScreen(Room):
    """The ranks of a job, kept up to date while it is open.

    The cursor chooses a rank, whose readings a key opens; other keys ask that rank.
    """

    DEFAULT_CSS = """
    JobScreen #notes { height: auto; max-height: 50%; }
    JobScreen #ranks { height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [*bindings_of("JobScreen")]

    def __init__(self, session: Session, key: str) -> None:
        super().__init__()
        self.session = session
        self._key = key
        self._all = False
        self._notes = Lines(id="notes", classes="panel")
        self._ranks = LiveTable(
            COLUMNS, empty="no rank is running", gap=1, id="ranks", classes="panel"
        )

    def compose(self) -> ComposeResult:
        self._notes.border_title, self._ranks.border_title = "Diagnosis", "Ranks"
        yield self.head
        yield self._notes
        yield self._ranks
        yield self.foot

    def on_mount(self) -> None:
        self.set_focus(self._ranks)
        self.call_after_refresh(self._show)
        self.set_interval(0.5, self._show)

    def on_resize(self) -> None:
        self.call_after_refresh(self._show)

    def moved(self) -> None:
        self._show()

    def _show(self) -> None:
        if not self.is_mounted:
            return
        host = self.session.host
        job = next((j for j in host.jobs if j.key == self._key), None) if host is not None else None
        notice = self.session.notices.current
        if notice is not None and notice.severity != "ok":
            self.foot.show([[(f" {notice.text}", notice.severity)]])
        else:
            self.say_keys(footer_keys(self.session, keys_of(type(self))))
        if host is None or job is None:
            self.say_head([("Job  ", "bold accent"), (absent(self.session), "muted")], self.session)
            self._notes.show([])
            self._ranks.show([])
            return
        self.say_head(head_of(job), self.session)
        cells = max(30, self._notes.size.width or 76)
        stacks = not self.session.why_not("stacks")
        notes = styled.hang_lines(standing_out(host, job, stacks, self.session.history), cells)
        self._notes.show(notes)
        # the lines at the top and at the bottom; panels have frames, the table a header
        height = self.size.height - 2
        room = None if self._all else max(3, height - min(len(notes) + 2, height // 2) - 3)
        rows = rank_rows(host, job, room, self.session.history)
        empty = {
            name for name in OPTIONAL if all(row.cells.get(name) in (NOTHING, None) for row in rows)
        }
        self._ranks.show_columns([column for column in COLUMNS if column.key not in empty])
        self._ranks.show(rows)
        set_title(self._ranks, "Ranks" if len(job.trainers) > 1 else "Its process")
        legend: Line = []
        for name, token in SPLIT_TOKENS.items():
            legend += [(f"{self._glyph(token)} ", token), (f"{name}  ", "muted")]
        self._ranks.subtitle(
            legend if any(split_of(t) for t in job.trainers) and self.size.width >= 100 else ()
        )

    def _glyph(self, token: str) -> str:
        return self._ranks.tokens.glyphs.fill(token)

    def action_all(self) -> None:
        """All ranks, or the worst and the others as one line."""
        self._all = not self._all
        self._show()

    def _chosen(self) -> TrainerView | None:
        host, key = self.session.host, self._ranks.cursor_key
        if host is None:
            return None
        found = next((t for t in host.trainers if t.key == key), None)
        job = next((j for j in host.jobs if j.key == self._key), None)
        return found or (job.trainers[0] if job is not None and job.trainers else None)

    def action_act(self, name: str) -> None:
        """Ask the rank under the cursor."""
        reason = self.session.why_not(name)
        if reason:
            self.session.notices.say(f"{name}: {reason}", "warn")
            self._show()
        else:
            open_act(program(self.app), name, self._chosen())

    def on_live_table_selected(self, event: LiveTable.Selected) -> None:
        event.stop()
        if event.key != OTHERS:
            program(self.app).open("readings", event.key)


def head_of(job: JobView) -> Line:
    """Return what the job is and how fast it goes.

    An example is ``Job train.py · 8 ranks · ada · step 4,012 · 0.901 s a step``.
    """
    out: Line = [("Job  ", "bold accent"), (job.title, "title")]
    living = [t for t in job.trainers if t.gone is None]
    facts = [
        f"{len(living)} of {world} ranks" if (world := _world(job)) and world != len(living) else ""
    ]
    facts += [f"{len(living)} ranks"] if len(living) > 1 and not facts[0] else []
    facts += [job.user or ""]
    steps = [n for t in living if (n := t.number("step")) is not None]
    facts += [f"step {min(steps):,.0f}"] if steps else []
    paces = [n for t in living if (n := t.number("step_seconds")) is not None]
    facts += [f"{duration_text(max(paces))} per step"] if paces else []
    times = slower_than_before(living)
    if times is not None and abs(times - 1) >= 0.05:
        facts.append(f"{times:.2f}× the step time of an hour ago")
    return [*out, (" · " + " · ".join(fact for fact in facts if fact), "muted")]


def _world(job: JobView) -> int | None:
    return next((t.definition.world_size for t in job.trainers if t.definition.world_size), None)


def standing_out(host: HostView, job: JobView, stacks: bool, history: HistoryOf) -> Iterable[Line]:
    """Return what stands out of a job in sentences, the worst first.

    One line says so where nothing does. ``stacks`` says that a rank can be asked for them.
    """
    if over := end_of(job):
        yield from end_notes(over)
        return
    living = [t for t in job.trainers if t.gone is None]
    lines = list(_wrong(host, living, stacks, history)) + list(_uneven(living, history))
    steps = any(t.number("step") for t in living)
    calm = "all ranks in step" if len(living) > 1 else "stepping"
    well: Line = [("healthy: ", "text"), (calm, "muted")] if steps else [("no step yet", "muted")]
    yield from lines or [[("● ", "ok"), *well]]
    step = measured_step(living)
    if step is not None:
        yield [
            (f"mean step {duration_text(step)}: ", "faint"),
            *split_pieces(shares_of(living), 200),
        ]
    else:
        why = next(
            (r for t in living if isinstance(r := t.reading("compute_seconds"), Unknown)), None
        )
        if why is not None:
            yield [("step: ", "faint"), (f"no breakdown: {why.text}", "faint")]


def _wrong(
    host: HostView, living: Sequence[TrainerView], stacks: bool, history: HistoryOf
) -> Iterable[Line]:
    stall = find_stall(living)
    if stall is not None:
        yield [("waiting: ", "warn") if stall.busy else ("stalled: ", "bad"), (stall.text, "text")]
        counts = [(t, n) for t in living if (n := t.number("collectives")) is not None]
        if stall.behind and counts:
            low, high = min(n for _, n in counts), max(n for _, n in counts)
            text = (
                f"{name_of(stall.behind[0])} launched {low:,.0f} collectives, the others up to "
                f"{high:,.0f}"
            )
            yield [("         ", "text"), (text, "muted")]
        if stacks:
            yield [
                ("         ", "text"),
                (key_of("act('stacks')", "JobScreen"), "accent"),
                (" on a rank: the stacks of all its threads", "muted"),
            ]
    else:
        worst, reason = worst_rank(living)
        if worst is not None:
            yield [("worst: ", "warn"), (reason, "text")]
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
    if len(found) > 1 and found[0].headroom_bytes is not None:
        text = (
            f"{name_of(found[0].trainer)} has the least headroom: "
            f"{bytes_text(found[0].headroom_bytes)}"
        )
        yield [("memory: ", "faint"), (text, "muted")]


def _uneven(living: Sequence[TrainerView], history: HistoryOf) -> Iterable[Line]:
    slow = straggler(living, history)
    if slow is not None:
        yield [("straggler: ", "warn"), (slow.text, "text")]
    share = imbalance(living)
    if share is not None and share >= IMBALANCED:
        text = (
            f"the fullest rank has {share:.2f}× the mean allocated: it sets the limit for the "
            "whole job"
        )
        yield [("imbalance: ", "warn"), (text, "text")]
    times = slower_than_before(living)
    if times is not None and times >= SLOWER:
        yield [("pace: ", "warn"), (f"{times:.1f}× slower than an hour ago", "text")]


# ── rows ──


def rank_rows(host: HostView, job: JobView, most: int | None, history: HistoryOf) -> list[TableRow]:
    """Return a row for each rank, the worst first.

    Where there are more than ``most``, the last row sums up the others.
    """
    living = [t for t in job.trainers if t.gone is None] or list(job.trainers)
    stall = find_stall(living)
    behind = {t.key for t in stall.behind} if stall is not None else set()
    found = straggler(living, history)
    slow = found.trainer if found is not None else None
    worst, _ = worst_rank(living)
    by_trainer: dict[str, MemoryRoom] = {}
    for room in rooms(host.devices, living, history):
        by_trainer.setdefault(room.trainer.key, room)
    order = list(by_trainer)

    def badness(trainer: TrainerView) -> tuple[bool, bool, bool, bool, int]:
        room = by_trainer.get(trainer.key)
        return (
            trainer.key not in behind,
            room is None or room.runs_out is None,
            trainer is not slow,
            worst is None or trainer.key != worst.key,
            trainer.definition.rank or 0,
        )

    ranked = sorted(living, key=badness)
    shown = ranked if most is None or len(ranked) <= most else ranked[: most - 1]
    first = order[0] if order and len(living) > 1 else ""
    rows = [
        _rank_row(host, t, by_trainer.get(t.key), t.key in behind, t is slow, t.key == first)
        for t in shown
    ]
    rest = ranked[len(shown) :]
    return [*rows, _others_row(rest)] if rest else rows


def _rank_row(
    host: HostView,
    trainer: TrainerView,
    room: MemoryRoom | None,
    behind: bool,
    slow: bool,
    first: bool,
) -> TableRow:
    rank = trainer.definition.rank
    age = trainer.number("step_age_seconds")
    device = next(
        (d for d in host.devices if room is not None and d.id == room.allocator.gpu), None
    )
    bad = "bad" if behind else "warn" if slow else "text"
    cells: dict[str, Cell] = {
        "rank": [(str(rank) if rank is not None else "–", bad)],
        "gpu": str(device.definition.index)
        if device is not None
        else "cpu"
        if not trainer.definition.cuda
        else "–",
        "pid": [(str(trainer.definition.pid), "muted")],
        "step": _number(trainer, "step", bad),
        "pace": _seconds(trainer, "step_seconds"),
        "age": [
            (
                step_age_text(age) if age is not None else "–",
                "bad" if is_overdue(trainer) else "muted",
            )
        ],
        "collectives": _number(trainer, "collectives", bad),
        "split": Bar(
            tuple((seconds, SPLIT_TOKENS[name]) for name, seconds in split.items()),
            sum(split.values()),
        )
        if (split := split_of(trainer))
        else NOTHING,
        "at": _at(trainer),
    }
    if room is not None:
        allocated, reserved = (
            room.allocator.number("allocated_bytes"),
            room.allocator.number("reserved_bytes"),
        )
        held, cached = (
            amount_text(size) if size is not None else "–" for size in (allocated, reserved)
        )
        cells["memory"] = f"{held}/{cached}"
        left = room.headroom_bytes
        cells["left"] = [
            (amount_text(left) if left is not None else "–", "warn" if first else "text")
        ]
        ends = room.runs_out
        cells["ends"] = [(f"~{ends.steps:,.0f} steps", "bad")] if ends is not None else NOTHING
    return TableRow(trainer.key, cells)


def _at(trainer: TrainerView) -> Sequence[Piece]:
    where, function = place(trainer)
    if trainer.gone is not None:
        return [(f"{end_word(trainer.gone)}: {trainer.gone.reason}", "warn")]
    if where and waits_in_collective(trainer):
        return [(f"waits in {function} ", "text"), (where, "muted")]
    if where:
        return [(where, "title"), (f" {function}", "muted")]
    phase = trainer.reading("phase")
    return [(phase, "muted")] if isinstance(phase, str) and phase != "train" else NOTHING


def _number(trainer: TrainerView, column: str, token: str) -> Sequence[Piece]:
    value = trainer.number(column)
    return [(f"{value:,.0f}", token)] if value is not None else NOTHING


def _seconds(trainer: TrainerView, column: str) -> Sequence[Piece]:
    value = trainer.number(column)
    return [(duration_text(value), "text")] if value is not None else NOTHING


def _others_row(rest: Sequence[TrainerView]) -> TableRow:
    """Return the ranks that have no row of their own, summed up."""
    steps = [n for t in rest if (n := t.number("step")) is not None]
    paces = [n for t in rest if (n := t.number("step_seconds")) is not None]
    ages = [n for t in rest if (n := t.number("step_age_seconds")) is not None]
    held = [n for t in rest for a in t.allocators if (n := a.number("allocated_bytes")) is not None]
    shares = shares_of(rest)
    cells: dict[str, Cell] = {
        "rank": [(f"+{len(rest)}", "muted")],
        "step": [(f"≥ {min(steps):,.0f}", "muted")] if steps else "",
        "pace": [(f"≤ {duration_text(max(paces))}", "muted")] if paces else "",
        "age": [(f"≤ {age_text(max(ages))}", "muted")] if ages else "",
        "memory": [(f"Σ {amount_text(sum(held))}", "muted")] if held else "",
        "split": Bar(tuple((share, SPLIT_TOKENS[name]) for name, share in shares.items()), 1.0)
        if shares
        else "",
        "at": [(f"{key_of('all', 'JobScreen')}: all ranks", "faint")]
        if any(place(t)[0] for t in rest)
        else "",
    }
    return TableRow(OTHERS, cells)
