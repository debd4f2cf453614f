"""This widget lists the jobs, each in one line with its pace and its memory.

A second line follows where there is something to say.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

from textual import events
from textual.binding import BindingType
from textual.geometry import Size
from textual.message import Message
from textual.strip import Strip

from ...model.fullest import PEAK_BASIS
from ...model.pace import MEDIAN_STEPS
from ...text import styled
from ...text.styled import Line, Piece
from ...text.width import cells as text_cells
from ..cells import fit, fit_job
from ..charts.strips import Painted, strip_of
from ..shell.keymap import bindings_of
from ..terminal.natural_height import height_changed
from ..theme import Tokens
from ..widgets.scroll_mark import THUMB, thumb
from ..widgets.text import DASH

if TYPE_CHECKING:
    from ...store.view import HostView
    from ..shared.job_rows import JobLine

HEADINGS = {
    "job": "JOB",
    "gpu": "GPU",
    "step": "STEP",
    "pace": "STEP TIME",
    "age": "STEP AGE",
    "eta": "ETA",
    "loss": "LOSS",
    "input": "INPUT",
    "memory": "PEAK/RESERVED",
    "left": "HEADROOM",
    "p95": "P95",
    "done": "DONE",
    "peak": "PEAK EVER",
}

COLUMNS: tuple[tuple[str, int, int], ...] = (
    ("gpu", 8, 60),
    ("step", 9, 0),
    ("pace", 10, 0),
    ("p95", 9, 150),
    ("age", 9, 90),
    ("eta", 12, 100),
    ("loss", 8, 70),
    ("input", 6, 80),
    ("memory", 18, 0),
    ("left", 10, 0),
    ("peak", 10, 150),
    ("done", 16, 150),
)
"""Column, cells, and the width of the panel from which it is shown."""
GIVING = ("gpu", "memory", "step", "pace", "left")
"""Columns that give what they do not need to a name that would be cut, in this order."""
WIDE_ONLY = ("p95", "done", "peak")
"""Columns that a narrower panel does without, also below the job."""
MIN_TITLE, MOST_TITLE = 14, 44
SPAN_TITLE, SIGN_CELLS = 18, 2
SPLIT_BAR, LEAST_BAR = 36, 8
NOTE_INDENT = 4
ALARMS = ("warn", "bad")
"""Kinds of a job's state that have a sign before its name."""


@lru_cache(maxsize=8)
def columns_in(width: int, empty: frozenset[str] = frozenset()) -> tuple[tuple[str, int, int], ...]:
    """Return the columns that have room.

    Those of ``empty`` say nothing in any row: their cells go to others.
    """
    room = width + sum(cells + 1 for name, cells, _ in COLUMNS if name in empty)
    shown = [column for column in COLUMNS if column[0] not in empty and room >= column[2]]
    while shown and width - sum(cells + 1 for _, cells, _ in shown) < MIN_TITLE:
        shown.pop(max(range(len(shown)), key=lambda i: shown[i][2]))
    return tuple(shown)


def narrowed(
    shown: Sequence[tuple[str, int, int]], lines: Sequence[JobLine], room: int
) -> tuple[tuple[str, int, int], ...]:
    """Return the columns in ``room`` cells, narrower where the longest name needs their cells."""
    rows = [line for line in lines if not line.span]
    named = (text_cells(line.cells["job"][0]) for line in rows)
    missing = max(named, default=0) + SIGN_CELLS - room + sum(cells + 1 for _, cells, _ in shown)
    out = list(shown)
    for name in GIVING:
        at = next((i for i, one in enumerate(out) if one[0] == name), None)
        if at is None or missing <= 0:
            continue
        cells = out[at][1]
        known = [text_cells(line.cells[name][0]) for line in rows if name in line.cells]
        spare = cells - max([text_cells(HEADINGS[name]) + 1, *known])  # apart from the one before
        given = max(0, min(spare, missing))
        out[at], missing = (name, cells - given, out[at][2]), missing - given
    return tuple(out)


def has_ranks(host: HostView, key: str) -> bool:
    """Return whether a row is a job with a probe in it, which has a page of its ranks."""
    return any(job.key == key and job.trainers for job in host.jobs)


class JobList(Painted, can_focus=True):
    """The lines of jobs, with a cursor while the list has the keyboard.

    An empty list shows the text given to :meth:`show`.
    """

    DEFAULT_CSS = "JobList { height: auto; }"
    BINDINGS: ClassVar[list[BindingType]] = [*bindings_of("JobList")]

    class Moved(Message):
        """The user has put the cursor on a job."""

    def __init__(self, **kwargs: str) -> None:
        super().__init__(**kwargs)
        self._lines: tuple[JobLine, ...] = ()
        self._extra: tuple[tuple[Piece, ...], ...] = ()
        self._above: tuple[tuple[Piece, ...], ...] = ()
        self._cursor = 0
        self._offset = 0
        self._fixed, self._inner = 1, 76
        self._moved = False
        """Whether somebody has chosen a line."""
        self._empty: frozenset[str] = frozenset()
        """Columns with nothing in any row."""
        self._shown_ended = False
        """Whether each job that ended has a line of its own below the one for all of them."""
        self.roomy = False
        """Whether there is room for what a step is made of below each job."""
        self._in_full = self._folded = self._only_wrong = False
        self._twice: frozenset[str] = frozenset()
        """Jobs that have a second line below them where the others have one."""

    def show(
        self,
        lines: Sequence[JobLine],
        extra: Sequence[Sequence[Piece]] = (),
        above: Sequence[Sequence[Piece]] = (),
    ) -> None:
        """Replace the lines of jobs and the free lines around them.

        ``extra`` are free lines below the jobs and scroll with them; ``above`` stand before
        them and stay.
        """
        at = next((i for i, line in enumerate(lines) if line.folds), len(lines))
        if not self._shown_ended:
            lines = lines[: at + 1]
        free = tuple(tuple(line) for line in extra), tuple(tuple(line) for line in above)
        if (tuple(lines), *free) == (self._lines, self._extra, self._above):
            self._lines = tuple(lines)  # the entities behind them are new
            return
        before = self.wanted(self._width)
        key = self.current.key if self.current else None
        self._lines, (self._extra, self._above) = tuple(lines), free
        self._name_bases(lines)
        self._empty = frozenset(
            name
            for name, _, _ in COLUMNS
            if name != "gpu"
            and all(line.span or line.cells.get(name, DASH) == DASH for line in lines)
        )
        keys = self.keys
        if self._moved:  # else it stays at the first, whatever comes before those that were there
            self._cursor = (
                keys.index(key) if key in keys else min(self._cursor, max(0, len(keys) - 1))
            )
        if self.wanted(self._width) != before:
            height_changed(self)
        self.repaint()

    def _name_bases(self, lines: Sequence[JobLine]) -> None:
        """Say on the border of which steps the figures are, where any line has them."""
        bases = {
            "pace": f"step time: median of {MEDIAN_STEPS} steps",
            "memory": f"peak {PEAK_BASIS}",
        }
        told = [
            text
            for name, text in bases.items()
            if any(line.cells.get(name, DASH) != DASH for line in lines if not line.span)
        ]
        self.subtitle([(" · ".join(told), "faint")] if told else ())

    @property
    def keys(self) -> list[str]:
        """The keys of the jobs in their order, the worst first."""
        return [line.key for line in self._lines]

    @property
    def current(self) -> JobLine | None:
        """The line under the cursor."""
        return self._lines[self._cursor] if self._cursor < len(self._lines) else None

    def move(self, by: int) -> None:
        """Move the cursor, staying inside."""
        if self._lines:
            self._moved = True
            self._cursor = max(0, min(len(self._lines) - 1, self._cursor + by))
            self.post_message(self.Moved())
            self.repaint()

    def action_page(self, direction: int) -> None:
        """Move the cursor by as many jobs as have room beside the one it is on."""
        room, by = self.size.height - self._fixed, 0
        ahead = self._lines[self._cursor :] if direction > 0 else self._lines[self._cursor :: -1]
        for line in ahead:
            room -= 1 + len(self._below(line, self._inner))
            if room < 0:
                break
            by += 1
        self.move(direction * max(by - 1, 1))

    def action_edge(self, direction: int) -> None:
        """Move the cursor to the first (-1) or last (1) job."""
        self.move(direction * len(self._lines))

    def worst(self) -> int | None:
        """Return the place of the first job that stands still, None where none does."""
        for index, line in enumerate(self._lines):
            if line.over or line.broken:  # what is lost is chosen in the list of devices
                continue
            if any(token == "bad" for note in line.notes for _, token in note):
                return index
        return None

    @property
    def alarmed(self) -> bool:
        """Whether a job stands still, runs out of memory or has lost a device."""
        return any(line.kind == "bad" and not line.over for line in self._lines)

    @property
    def shows_ended(self) -> bool:
        return self._shown_ended

    def toggle_ended(self) -> None:
        """List each job that ended, or fold them; the next :meth:`show` does it."""
        self._shown_ended = not self._shown_ended

    def place_of(self, key: str | None) -> int | None:
        """Return the place of the line with this key, None where there is none."""
        return next((i for i, line in enumerate(self._lines) if line.key == key), None)

    def is_on(self, index: int) -> bool:
        return self._cursor == index

    def choose(self, index: int) -> None:
        """Put the cursor on this line; it stays with its job."""
        self._cursor, self._moved = index, True
        self.repaint()

    @property
    def _width(self) -> int:
        return self.size.width or 76

    def wanted(self, width: int, full: bool | None = None) -> int:
        """Return how many lines the list would fill where each has ``width`` cells.

        With ``full`` every note is told to its end, with False each is cut to one line; None
        means as it is told now.
        """
        own = sum(1 + len(self._below(line, width, full)) for line in self._lines)
        return bool(self._lines) + own + len(self._extra) + len(self._above)

    def wanted_folded(self, width: int) -> int:
        """Return how many lines the list would fill with at most one below each job."""
        return sum(min(1 + len(self._below(line, width, False)), 2) for line in self._lines) + 1

    def tell_in_full(self, full: bool) -> None:
        """Whether a note longer than a line goes on in the next, or is cut."""
        if full != self._in_full:
            self._in_full = full
            self.repaint()

    def _below(self, line: JobLine, width: int, full: bool | None = None) -> list[Line]:
        """Return the lines below a job: what its row has no column for, then its notes."""
        kept = columns_in(width, self._empty)
        hidden = [one[0] for one in COLUMNS if one not in kept and one[0] not in WIDE_ONLY]
        facts = [
            (name, line.cells[name])
            for name in hidden
            if name in line.cells and line.cells[name] != DASH
        ]
        below: list[Line] = [list(note) for note in line.notes]
        here = self.has_focus and line is self.current  # what is looked at is told to its end
        told_whole = self._in_full or here
        if told_whole if full is None else full:
            below = styled.hang_lines(below, width - NOTE_INDENT)
        if line.over and line.span:
            return self._rest_of(line, width) if here else []
        folded = self._folded and full is None and not here
        if folded and self._only_wrong and line.kind not in ALARMS:
            return []
        split = self._split(line, width) if self.roomy else []
        if folded:  # a bar says nothing without the names behind it, so it has a line or none
            told = self._in_one_line(below)
            notes = [*told, *(split if not told or line.key in self._twice else [])]
        else:  # what is wrong comes first
            notes = [*below, *split] if line.kind in ALARMS else [*split, *below]
        if not facts or line.span or line.over:
            return notes
        pieces: Line = []
        for name, (text, token) in facts:
            pieces += [
                ("  " if pieces else "", "text"),
                (f"{HEADINGS[name].lower()} ", "faint"),
                (text, token),
            ]
        return self._in_one_line([*below, pieces]) if folded else [pieces, *notes]

    @staticmethod
    def _in_one_line(notes: Sequence[Line]) -> list[Line]:
        """Return what is said of a job in one line, the worst of it first."""

        def place(note: Iterable[Piece]) -> int:
            tokens = {token for _, token in note}
            return next((at for at, kind in enumerate(("bad", "warn")) if kind in tokens), 2)

        return [styled.join(sorted(notes, key=place), " · ", "faint")] if notes else []

    def _rest_of(self, line: JobLine, width: int) -> list[Line]:
        """Return a second line of why a job ended, where its own has no room for all of it."""
        begins, cells = self._span_room(line, width)
        if styled.cells(line.span) <= cells:
            return []
        rest = styled.join(styled.wrap(line.span, cells)[1:], " ")
        return [[(" " * (begins - NOTE_INDENT), "text"), *styled.cut(rest, cells)]]

    def _span_room(self, line: JobLine, width: int) -> tuple[int, int]:
        """Return where the text beside an ended job begins, and how many cells it has."""
        if line.folds:
            begins = 2 + text_cells(line.cells["job"][0])
            return begins, max(20, width - begins)
        title = max(self._columns(width)[1], SPAN_TITLE)
        where = max(8, text_cells(line.cells.get("gpu", ("", ""))[0]))
        begins = 2 + title + 1 + where + 2
        return begins, max(20, width - begins)

    def _split(self, line: JobLine, width: int) -> list[Line]:
        """Return what a step is made of: a bar, and the shares in words."""
        from ..shared.step_split import OTHERS, all_named, split_bar, split_pieces

        if line.split is None:
            return []
        glyphs = self.tokens.glyphs
        what = "wall clock" if line.split.of_ledger else "step breakdown"
        head = f"{what}, {line.split.basis}: "
        room = width - NOTE_INDENT - len(head) - 2
        parts = all_named(line.split, room - LEAST_BAR, glyphs)
        if OTHERS in parts.shares:  # names say more than what they are shares of
            room, head = room + len(what) + 2, f"{line.split.basis}: "
            parts = all_named(line.split, room - LEAST_BAR, glyphs)
        named = split_pieces(parts, room - LEAST_BAR, glyphs)
        most = min(SPLIT_BAR, max(LEAST_BAR, (width - 60) // 3))
        spare = max(LEAST_BAR, room - styled.cells(named))
        bar = split_bar(parts).draw(min(most, spare), glyphs)
        return [[(head, "faint"), *bar, ("  ", "text"), *named]]

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return max(1, self.wanted(width))

    def paint(self, width: int, height: int, tokens: Tokens) -> list[Strip]:
        self._folded = self.wanted(width, full=False) > height  # fewer lines before a job is hidden
        spare = height - self.wanted_folded(width)
        self._only_wrong = self._folded and spare < 0
        folded = self._lines if self._folded and spare > 0 else ()
        more = [one.key for one in folded if len(self._below(one, width, False)) > 1]
        self._twice = frozenset(more[:spare])
        room = max(1, height - 3) if self._lines else height  # a job and its heading stay in sight
        above = self._above[:room]
        room = height - len(above) - (1 if self._lines and height > 1 else 0)
        rows, at = self._rows(width, tokens)
        inner = width if len(rows) <= room or room < 1 else width - 2
        if inner < width:  # a mark of how much there is beside what is seen
            rows, at = self._rows(inner, tokens)
        head = [
            strip_of([("  ", "text"), *styled.cut(line, width - 2)], width, tokens)
            for line in above
        ]
        self._fixed, self._inner = len(head) + 1, inner
        if self._lines and height > 1:
            head.append(strip_of(self._heading(*self._columns(inner)), width, tokens))
        self._offset = max(0, min(self._offset, len(rows) - room))
        if at < self._offset:
            self._offset = at
        elif at >= self._offset + room:
            self._offset = at - room + 1
        visible = rows[self._offset : self._offset + room]
        strips = []
        for place, (pieces, chosen) in enumerate(visible):
            if inner < width:
                bar = thumb(place, room, len(rows), self._offset)
                pieces = [
                    *styled.pad(pieces, inner + 1),
                    (bar, "muted" if bar == THUMB else "border"),
                ]
            strips.append(strip_of(pieces, width, tokens, "selected" if chosen else ""))
        return head + strips

    def _columns(self, width: int) -> tuple[Sequence[tuple[str, int, int]], int]:
        """Return the columns there is room for, and the cells of a job's title."""
        shown = narrowed(columns_in(width, self._empty), self._lines, width - 2)
        title = min(MOST_TITLE, width - 2 - sum(cells + 1 for _, cells, _ in shown))
        if all(line.span for line in self._lines):  # no column stands below a title
            longest = max(
                (text_cells(line.cells["job"][0]) for line in self._lines if not line.folds),
                default=0,
            )
            title = min(title, max(SPAN_TITLE, longest + SIGN_CELLS))
        return shown, title

    def _rows(self, width: int, tokens: Tokens) -> tuple[list[tuple[Line, bool]], int]:
        """Return all lines that scroll, and the place of the cursor.

        Each line comes with whether the cursor is on it.
        """
        rows: list[tuple[Line, bool]] = []
        shown, title = self._columns(width)
        at = 0
        for index, line in enumerate(self._lines):
            chosen = self.has_focus and index == self._cursor
            if index == self._cursor:
                at = len(rows)
            whole = bool(line.over and self._below(line, width))
            rows.append((self._row(line, shown, title, width, chosen, tokens, whole), chosen))
            indent = (" " * NOTE_INDENT, "text")
            rows += [
                ([indent, *styled.cut(note, width - NOTE_INDENT)], False)
                for note in self._below(line, width)
            ]
        rows += [([("  ", "text"), *styled.cut(line, width - 2)], False) for line in self._extra]
        return rows, at

    @staticmethod
    def _heading(shown: Sequence[tuple[str, int, int]], title: int) -> Line:
        out = [(fit("  " + HEADINGS["job"], title + 2), "muted")]
        return out + [
            (" " + fit(HEADINGS[name], cells, "right"), "muted") for name, cells, _ in shown
        ]

    @staticmethod
    def _row(
        line: JobLine,
        shown: Sequence[tuple[str, int, int]],
        title: int,
        room: int,
        chosen: bool,
        tokens: Tokens,
        goes_on: bool = False,
    ) -> Line:
        text, token = line.cells["job"]
        cursor = tokens.glyphs.cursor if chosen else " "
        sign: Line = []
        if line.kind in ALARMS and not line.over:
            sign = [(f"{getattr(tokens.glyphs, line.kind)} ", line.kind)]
        cells = (max(title, SPAN_TITLE) if line.span else title) - styled.cells(sign)
        out = [(f"{cursor} ", "accent"), *sign, (fit_job(text, cells), token)]
        if line.folds:
            out = [(f"{cursor} ", "accent"), (text, token)]
            left = max(0, room - styled.cells(out))
            return [
                *out,
                *(styled.wrap(line.span, left)[0] if goes_on else styled.cut(line.span, left)),
            ]
        if line.span:
            where, where_token = line.cells.get("gpu", ("", "text"))
            out.append((" " + fit(where, 8, "right") + "  ", where_token))
            left = max(0, room - sum(text_cells(t) for t, _ in out))
            fits = styled.wrap(line.span, left)[0] if goes_on else styled.cut(line.span, left)
            return [*out, *fits]
        for name, cells, _ in shown:
            text, token = line.cells.get(name, ("", "text"))
            out.append((" " + fit(text, cells, "right"), token))
        return out

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        event.stop()
        self.move(1)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        event.stop()
        self.move(-1)

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)  # without the border
        if offset is None or offset.y < self._fixed:
            return
        y = offset.y - self._fixed + self._offset
        for index, line in enumerate(self._lines):
            y -= 1 + len(self._below(line, self._inner))
            if y < 0:
                self._cursor, self._moved = index, True
                self.post_message(self.Moved())
                self.repaint()
                return
