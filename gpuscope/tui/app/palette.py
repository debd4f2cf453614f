"""The palette: one line to type into, and a line for each thing that it finds.

It searches actions and keys, devices, jobs, processes and hosts, pitfalls and the glossary.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input

from ...text import styled
from ...text.styled import Line
from ...text.width import cells
from ..shell.footer import screen_hints
from ..shell.keymap import keys_of
from ..theme import Glyphs
from ..widgets.dialog import ClosesOnce
from ..widgets.key_line import KeyLine
from ..widgets.program import program
from ..widgets.table import Column, LiveTable, TableRow
from ..widgets.text import Lines
from .palette_entries import PaletteEntry, matching_entries, remember

if TYPE_CHECKING:
    from ...store.view import HostView

WIDE = 100
LEAST_CELLS, MOST_SHARE = 16, 0.46
"""How wide the names of the entries may be: cells, and a share of the terminal."""
PLACEHOLDER = "an action, gpu 3, pid 612, a word such as oom, or user@host"
NOTHING = "nothing is found: try a shorter word, pid 612, or user@host"
_NUMBERED = re.compile(r"\s*(gpu|pid)\s*(\d{1,9})\s*", re.IGNORECASE)
LEAST_ROWS, MOST_ROWS, AROUND_ROWS = 4, 24, 9
"""Rows of the list, and those of the palette and the margins that are not the list."""
ABOUT_ROWS = 2
LEAST_ABOUT_CELLS = 26
"""Of what an entry does, or why it is not possible now, beside its title."""
FEW_WORDS = ("", "here", "recent")
"""Kinds that say less than what an entry does."""
WIDTHS = ("title", "keys", "kind")


class Palette(ClosesOnce, ModalScreen[None]):
    """The list of everything that can be done or looked at, over the dimmed page."""

    DEFAULT_CSS = """
    Palette { align: center top; }
    Palette .dialog {
        width: 110; max-width: 96%; height: auto; margin: 2 0 0 0; padding: 0 1;
        border: round $gs-accent; background: $surface;
        border-title-color: $gs-title;
    }
    Palette Input, Palette Input:focus { border: none; height: 1; padding: 0; background: $panel; }
    Palette LiveTable { height: 12; margin: 1 0 0 0; }
    Palette #about { height: 2; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._input = Input(placeholder=PLACEHOLDER, max_length=200, select_on_focus=False)
        self._table = LiveTable((), empty=NOTHING, header=False, lit=True)
        self._table.can_focus = False  # its keys act here, and letters are for the line above
        self._about = Lines(id="about")
        self._entries: dict[str, PaletteEntry] = {}

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as body:
            body.border_title = "Palette"
            yield self._input
            yield self._table
            yield self._about
        foot = KeyLine()
        foot.show(screen_hints(keys_of(type(self))), ())
        yield foot

    def on_mount(self) -> None:
        self.set_focus(self._input, scroll_visible=False)
        self._fit()
        self._search()

    def on_resize(self) -> None:
        self._fit()
        self.call_after_refresh(self._tell)

    def _fit(self) -> None:
        """Give the list the same height whatever it has, so that nothing jumps while one types."""
        rows = max(LEAST_ROWS, min(MOST_ROWS, self.app.size.height - AROUND_ROWS))
        self._table.styles.height = rows

    # ── finding ──

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        self._search()

    def _search(self) -> None:
        app = self.app
        stack = app.screen_stack
        below = stack[stack.index(self) - 1] if self in stack else stack[-1]
        entries = matching_entries(app, below, self._input.value)
        self._entries = {str(number): entry for number, entry in enumerate(entries)}
        host = program(app).session.host
        self._table.show_empty(nothing_found(self._input.value, host))
        columns = _columns(entries, self.app.size.width)
        one = all(column.key != "about" for column in columns)
        self._table.show_columns(columns)
        self._table.show([_row(key, entry, one) for key, entry in self._entries.items()])
        self._table.action_edge(-1)
        self._tell()

    @property
    def chosen(self) -> PaletteEntry | None:
        """The entry under the cursor."""
        return self._entries.get(self._table.cursor_key or "")

    def _tell(self) -> None:
        """Say all of the entry under the cursor: the list may have cut it."""
        entry = self.chosen
        if entry is None:
            self._about.show([])
            return
        pieces = [(f"{entry.title}  ", "title")]
        if entry.reason:
            pieces += [("not now: ", "warn"), (entry.reason, "text")]
        else:
            pieces.append((entry.about, "muted"))
        room = max(20, self._about.size.width or self.app.size.width - 8)
        glyphs = self._about.tokens.glyphs
        lines = styled.wrap(pieces, room)
        self._about.show(styled.first_rows(lines, ABOUT_ROWS, room, glyphs.ellipsis))

    # ── keys ──

    def on_live_table_highlighted(self, event: LiveTable.Highlighted) -> None:
        event.stop()
        self._tell()

    def on_live_table_selected(self, event: LiveTable.Selected) -> None:
        event.stop()
        self.action_choose()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.action_choose()

    def action_choose(self) -> None:
        """Do what the entry under the cursor says, or say why not."""
        entry = self.chosen
        if entry is None:
            return
        if entry.reason:
            self.tell(f"{entry.title}: {entry.reason}")
            return
        remember(program(self.app).session, entry)
        self.dismiss()
        entry.run()

    def action_move(self, by: int) -> None:
        """Go to the next entry, or the one before."""
        self._table.action_move(by)

    def action_page(self, by: int) -> None:
        """Go on by what is visible."""
        self._table.action_page(by)


def nothing_found(asked: str, host: HostView | None) -> str:
    """Return why a search found nothing, and what there is to find instead."""
    numbered = _NUMBERED.fullmatch(asked)
    if numbered is None or host is None:
        return NOTHING
    number = int(numbered[2])
    if numbered[1].lower() == "pid":
        return f"{host.name} has no pid {number} with a probe or on a GPU"
    seen = [one.definition.index for one in host.devices]
    if not seen:
        return f"no GPU is seen on {host.name}"
    there = f"GPU {seen[0]}" if len(seen) == 1 else f"GPU {min(seen)} to {max(seen)}"
    return f"{host.name} has no GPU {number}, only {there}"


@dataclass(frozen=True, slots=True)
class TitleAndAbout:
    """The title of an entry and what it does in one cell.

    What it does is cut, and left out where hardly a word of it has room: all of it stands below the
    list for the entry under the cursor. The reason why an entry is not possible now always begins
    in its line: without it the entry would look as if it did nothing.
    """

    title: str
    about: str
    possible: bool

    def draw(self, room: int, glyphs: Glyphs) -> Line:
        title: Line = [(self.title, "text" if self.possible else "faint")]
        whole: Line = [*title, (f"  {self.about}", "muted" if self.possible else "faint")]
        if styled.cells(whole) <= room:
            return whole
        if self.possible and styled.cells(title) + LEAST_ABOUT_CELLS > room:
            return styled.cut(title, room, glyphs.ellipsis)
        named = styled.cut(title, max(room - LEAST_ABOUT_CELLS, room // 2), glyphs.ellipsis)
        return styled.cut([*named, *whole[1:]], room, glyphs.ellipsis)


def _columns(entries: Sequence[PaletteEntry], terminal: int) -> tuple[Column, ...]:
    """Return columns as wide as what stands in them; one that is empty takes no place.

    On a narrow terminal what an entry does needs the place of its kind more, and where titles are
    long it has no column of its own.
    """
    most = int(MOST_SHARE * terminal)
    wide = {name: max((cells(getattr(e, name)) for e in entries), default=0) for name in WIDTHS}
    title = max(LEAST_CELLS, min(most, wide["title"]))
    one = terminal < WIDE and wide["title"] > most
    columns = [Column("title", "", title, flex=1 if one else 0)]
    if wide["keys"]:
        columns.append(Column("keys", "", wide["keys"], priority=2))
    if not one:
        columns.append(Column("about", "", 12, flex=1, priority=1, whole=True))
    if wide["kind"] and (terminal >= WIDE or any(e.kind not in FEW_WORDS for e in entries)):
        columns.append(Column("kind", "", wide["kind"], priority=3))
    return tuple(columns)


def _row(key: str, entry: PaletteEntry, one: bool) -> TableRow:
    """Return the row of an entry; with ``one`` its title and what it does share a cell."""
    possible = not entry.reason
    about = entry.about if possible else f"not now: {entry.reason}"
    title = [(entry.title, "text" if possible else "faint")]
    return TableRow(
        key,
        {
            "title": TitleAndAbout(entry.title, about, possible) if one else title,
            "keys": [(entry.keys, "faint" if entry.reason else "accent")],
            "about": [(about, "faint" if entry.reason else "muted")],
            "kind": [(entry.kind, "faint")],
        },
    )
