"""This widget has the Lab's switches, one compact line each under the name of its group.

The cursor is always in sight.
"""

from __future__ import annotations

from typing import Any

from textual import events
from textual.message import Message
from textual.strip import Strip

from ...lab.config import LabConfig
from ...lab.toggles import Toggle
from ...text import styled
from ...text.styled import Line, Piece
from ...text.width import cells as text_cells
from ..cells import fit
from ..charts.strips import Painted, strip_of
from ..runs.choices import SWITCHES, DeviceChoice, does_nothing, value_text
from ..theme import Tokens
from ..widgets.scroll_mark import THUMB, thumb

DEFAULTS = LabConfig()
HEADINGS = {"cudnn": "cuDNN", "model": "training"}
"""Names of groups that are no good headings: the first switch of the group model is the model."""
TAIL = 3
"""Cells behind a value: the arrow of the line under the cursor, and the mark of one that waits."""


def _lines() -> tuple[str | Toggle, ...]:
    out: list[str | Toggle] = []
    for group in dict.fromkeys(toggle.group for toggle in SWITCHES):
        out += [group, *(toggle for toggle in SWITCHES if toggle.group == group)]
    return tuple(out)


LINES = _lines()
"""The lines of the panel from top to bottom: a group's name (text), then its switches."""
WITHOUT_HEADINGS = [at for at, line in enumerate(LINES) if isinstance(line, Toggle)]
HEADED_ROWS = 20
"""In fewer rows the switches take those of the groups' names."""


def _places(rows: int) -> list[int]:
    """Return the places in ``LINES`` of the lines that a panel of so many rows has."""
    return WITHOUT_HEADINGS if rows < HEADED_ROWS else list(range(len(LINES)))


class Switches(Painted, can_focus=True):
    """A line for each switch.

    Keys, a click on its value, or one on the arrow before it change the switch under the
    cursor; the wheel moves the cursor. Bold is not the default. Faint, with ``·``, does nothing
    here. ``*`` waits for a restart.
    """

    class Turned(Message):
        """A switch was clicked: ``by`` is 1 or -1."""

        def __init__(self, toggle: Toggle, by: int) -> None:
            super().__init__()
            self.toggle, self.by = toggle, by

    class Moved(Message):
        """The cursor stands on another switch."""

    def __init__(self, config: LabConfig, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._config = config
        self._in_run: LabConfig | None = None
        self._device = DeviceChoice()
        self._nothing: dict[str, str] = {}
        self._cursor = 1
        self._top = 0

    @property
    def current(self) -> Toggle:
        """The toggle under the cursor."""
        line = LINES[self._cursor]
        assert isinstance(line, Toggle)
        return line

    def show(self, config: LabConfig, running: LabConfig | None, device: DeviceChoice) -> None:
        """Show the switches.

        ``running`` is how the run in progress was set: what differs from it waits for a
        restart.
        """
        if (config, running, device) != (self._config, self._in_run, self._device):
            self._config, self._in_run, self._device = config, running, device
            self._nothing = does_nothing(config, device)
            self.subtitle([("· no effect here", "faint")] if self._nothing else ())
            self.repaint()

    def move(self, by: int) -> None:
        """Move the cursor by switches, staying inside."""
        at = WITHOUT_HEADINGS.index(self._cursor) + by
        self._go(WITHOUT_HEADINGS[max(0, min(len(WITHOUT_HEADINGS) - 1, at))])

    def _go(self, line: int) -> None:
        if line != self._cursor:
            self._cursor = line
            self.repaint()
            self.post_message(self.Moved())

    # ── painting ──

    def _follow(self, places: list[int], height: int) -> None:
        """Keep the cursor in the window, and no blank lines below the last switch.

        The name of its group is in the window where the switch is the group's first.
        """
        cursor = first = places.index(self._cursor)
        if cursor and isinstance(LINES[places[cursor - 1]], str):
            first -= 1
        self._top = min(max(self._top, cursor - height + 1), first)
        self._top = max(0, min(self._top, len(places) - height))

    def paint(self, width: int, height: int, tokens: Tokens) -> list[Strip]:
        places = _places(height)
        self._follow(places, height)
        overflow = len(places) > height
        inner = width - 2 if overflow else width
        out = []
        for y, place in enumerate(places[self._top : self._top + height]):
            line, here = LINES[place], place == self._cursor
            pieces = (
                self._heading(line, inner)
                if isinstance(line, str)
                else self._line(line, here, inner, tokens)
            )
            if overflow:
                pieces = [*styled.pad(pieces, inner + 1), self._thumb(y, height, len(places))]
            out.append(
                strip_of(pieces, width, tokens, "selected" if here and self.has_focus else "")
            )
        return out

    @staticmethod
    def _heading(group: str, cells: int) -> Line:
        name = HEADINGS.get(group, group)
        return [(f"{name} ", "faint"), ("─" * max(0, cells - len(name) - 1), "border")]

    def _line(self, toggle: Toggle, here: bool, cells: int, tokens: Tokens) -> Line:
        value = getattr(self._config, toggle.name)
        idle = toggle.name in self._nothing
        waits = self._in_run is not None and getattr(self._in_run, toggle.name) != value
        name = toggle.name.replace("_", " ")
        text = fit(
            value_text(toggle, self._config, self._device), self._room(name, cells), "right"
        ).lstrip(" ")
        gap = cells - 2 - text_cells(name) - text_cells(text) - TAIL
        arrows = here and gap > 2
        changed = value != getattr(DEFAULTS, toggle.name)
        return [
            (f"{tokens.glyphs.cursor} " if here else "  ", "accent" if self.has_focus else "muted"),
            (name, "faint" if idle else "text" if here else "muted"),
            (" " * (gap - 2) + "◂ " if arrows else " " * gap, "accent"),
            (text, "faint" if idle else "title" if changed else "text" if here else "muted"),
            (" ▸" if arrows else "  ", "accent"),
            ("*", "warn") if waits else ("·" if idle else " ", "faint"),
        ]

    @staticmethod
    def _room(name: str, cells: int) -> int:
        """Cells a value may take behind its name."""
        return max(3, cells - 2 - text_cells(name) - TAIL - 1)

    def _thumb(self, y: int, height: int, of: int) -> Piece:
        bar = thumb(y, height, of, self._top)
        return bar, "muted" if bar == THUMB else "border"

    # ── mouse ──

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)
        places = _places(self.size.height)
        if offset is None or not 0 <= self._top + offset.y < len(places):
            return
        place = places[self._top + offset.y]
        line = LINES[place]
        if not isinstance(line, Toggle):
            return
        event.stop()
        self._go(place)
        cells = self.size.width - (2 if len(places) > self.size.height else 0)
        text = value_text(line, self._config, self._device)
        # the arrow before the value
        first = cells - TAIL - min(text_cells(text), self._room(line.name, cells)) - 2
        if offset.x >= first:
            self.post_message(self.Turned(line, 1 if line.yes_no or offset.x >= first + 2 else -1))

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        event.stop()
        self.move(1)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        event.stop()
        self.move(-1)
