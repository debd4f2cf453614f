"""This widget lists the worst findings, and leads to them in the Doctor tab."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from textual import events
from textual.binding import BindingType
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from ...text import styled
from ...text.styled import Line
from ..cells import visible_line
from ..charts.strips import strip_of
from ..shell.keymap import bindings_of
from ..theme import Tokens
from ..widgets.program import program
from ..widgets.text import Lines

if TYPE_CHECKING:
    from ...model.ended_jobs import EndedJob
    from ...store.view import HostView
    from ..background.finding_history import Case
    from ..theme import Glyphs


def worst_lines(
    cases: Sequence[Case],
    glyphs: Glyphs,
    rows: int,
    host: HostView | None,
    ended: Sequence[EndedJob] = (),
) -> list[tuple[str, Line]]:
    """Return the worst findings that no line of a job names.

    Where there is one row for them, a lesser one leaves what to do first to the job's.
    """
    from ..doctor.text import top
    from ..shared.job_notes import ON_JOB_LINES

    brief = rows == 1 and worst_is_of_job(cases)
    return top(cases, glyphs, rows, ON_JOB_LINES, None if brief else host, ended)


def worst_is_of_job(cases: Sequence[Case]) -> bool:
    from ..shared.job_notes import ON_JOB_LINES

    worst = next((case for case in cases if case.grave), None)
    return worst is not None and worst.finding.cause in ON_JOB_LINES


async def go_to_finding(widget: Widget, key: str) -> None:
    """Go to the Doctor, with the cursor on this finding."""
    screen = widget.screen
    await program(widget.app).action_do("doctor")
    doctor = screen.query("DoctorPane")
    if doctor:
        doctor.first().choose_row(key)  # type: ignore[attr-defined]


class FindingList(Lines, can_focus=True):
    """A line for each finding, with a cursor while the list has the keyboard."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings_of("FindingList")]

    class Opened(Message):
        """The finding with this key is to be looked at."""

        def __init__(self, key: str) -> None:
            super().__init__()
            self.key = key

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._keys: tuple[str, ...] = ()
        self._cursor = 0

    def show_findings(self, found: Sequence[tuple[str, Line]]) -> None:
        """Replace the lines, each with the key of its finding: its own, then what to do first."""
        key = self.current
        self._keys = tuple(name for name, _ in found)
        first = next((at for at, name in enumerate(self._keys) if name), 0)
        self._cursor = self._keys.index(key) if key and key in self._keys else first
        self.show([line for _, line in found])

    @property
    def keys(self) -> tuple[str, ...]:
        """The key of the finding of each line, "" for a line that is of none."""
        return self._keys

    @property
    def current(self) -> str:
        """The key of the finding under the cursor, "" where there is none."""
        return self._keys[self._cursor] if self._cursor < len(self._keys) else ""

    def move(self, by: int) -> None:
        """Move the cursor, staying inside; a line without a key is of no finding."""
        places = [self._keys.index(key) for key in dict.fromkeys(self._keys) if key]
        if places:
            at = places.index(self._cursor) + by if self._cursor in places else 0
            self._cursor = places[max(0, min(len(places) - 1, at))]
        self.repaint()

    def action_edge(self, direction: int) -> None:
        """Move the cursor to the first (-1) or last (1) finding."""
        self.move(direction * len(self._keys))

    action_page = action_edge  # the list has no more lines than there is room for

    def open(self) -> None:
        """Ask for the finding under the cursor."""
        if self.current:
            self.post_message(self.Opened(self.current))

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)
        if offset is None or not any(self._keys[max(offset.y, 0) :][:1]):
            return
        event.stop()
        place = self._keys.index(self._keys[offset.y])
        here = place == self._cursor
        self._cursor = place
        self.repaint()
        if here:
            self.open()

    def paint(self, width: int, height: int, tokens: Tokens) -> list[Strip]:
        out = []
        for at, line in enumerate(self._lines[:height]):
            here = self.has_focus and at == self._cursor
            mark = tokens.glyphs.cursor if here else " "
            cut = styled.cut_whole(
                visible_line([(f"{mark} ", "accent"), *line]), width, tokens.glyphs.ellipsis
            )
            out.append(strip_of(cut, width, tokens, "selected" if here else ""))
        return out
