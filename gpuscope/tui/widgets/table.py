"""This is a table for live rows, which repaints only the spans that have changed.

The cursor stays on its row when the order changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias

from textual import events
from textual.binding import BindingType
from textual.message import Message
from textual.strip import Strip

from ...text import styled
from ...text.styled import Line, Piece
from ...text.width import cells as text_cells
from ..cells import Align, fit, visible_line
from ..charts.strips import Painted, strip_of
from ..shell.keymap import bindings_of
from ..theme import Glyphs, Tokens
from .scroll_mark import THUMB, thumb


class WidthCell(Protocol):
    """A cell that is drawn once the width of its column is known.

    ``bars.Bar`` and ``bars.Meter`` are such cells.
    """

    def draw(self, width: int, glyphs: Glyphs) -> Line: ...


Cell: TypeAlias = "str | Sequence[Piece] | WidthCell"


class Column(NamedTuple):
    """One column of a table and how wide it may be.

    ``width`` is fixed, or the least when ``flex`` is above 0; what is left is shared by
    ``flex``, up to ``most``. When columns do not fit, those with the highest ``priority`` go
    first; 0 never goes.
    """

    key: str
    title: str
    width: int
    flex: int = 0
    most: int | None = None
    align: Align = "left"
    priority: int = 0
    whole: bool = False
    """Whether a text that is too long ends with its last whole part, not in the middle of it."""


class TableRow(NamedTuple):
    """One row of a table.

    ``key`` is stable and unique; ``style`` is the spec of plain string cells. The cell of the
    column ``spans`` begins where the empty cells to its left begin: a row that has no figures gives
    their room to the reason.
    """

    key: str
    cells: Mapping[str, Cell] = MappingProxyType({})
    style: str = "text"
    spans: str = ""


Placed = tuple[Column, int]
"""A column and the width it got."""

GAP, HEADINGS_APART = 2, 2
GUTTER = 2
MORE = "\n"
"""Ends the key of the second line of a row."""


def gaps_of(columns: Sequence[Column], gap: int = GAP) -> list[int]:
    """Return the blanks before each of the columns.

    They are more than ``gap`` where two headings would run into each other: words of one heading
    are one blank apart as well.
    """
    out = [0] * min(len(columns), 1)
    for one, other in pairwise(columns):
        ends = one.align == "right" or text_cells(one.title) >= one.width
        begins = other.align == "left" or text_cells(other.title) >= other.width
        blank = one.title[-1:].strip() == "" or other.title[:1].strip() == ""
        out.append(max(gap, HEADINGS_APART) if ends and begins and not blank else gap)
    return out


def lay_out(columns: Sequence[Column], width: int, gap: int = GAP) -> list[Placed]:
    """The columns that fit into ``width`` cells and the width of each, in their order."""
    kept = list(columns)

    def least() -> int:
        return sum(column.width for column in kept) + sum(gaps_of(kept, gap))

    while least() > width:
        droppable = [column for column in kept if column.priority > 0]
        if not droppable:
            break
        kept.remove(max(droppable, key=lambda column: (column.priority, columns.index(column))))
    widths = {column.key: column.width for column in kept}
    spare = max(width - least(), 0)
    growing = [column for column in kept if column.flex > 0]
    if least() > width and growing:  # else the frame cuts the last column without saying so
        widest = max(growing, key=lambda column: column.width)
        widths[widest.key] = max(widest.width - (least() - width), 1)
    while spare > 0 and growing:
        unit = sum(column.flex for column in growing)
        full = []
        for column in growing:
            share = spare * column.flex // unit
            room = share if column.most is None else min(share, column.most - widths[column.key])
            widths[column.key] += room
            if room < share:
                full.append(column)
        spare = max(width - sum(widths.values()) - sum(gaps_of(kept, gap)), 0)
        if not full:
            break
        growing = [column for column in growing if column not in full]
    if spare and growing:
        widths[growing[-1].key] += spare
    return [(column, widths[column.key]) for column in kept]


class LiveTable(Painted, can_focus=True):
    """Rows of cells under a header, with a cursor that marks one row.

    Enter, or a click on the marked row, sends :class:`Selected`.
    """

    BINDINGS: ClassVar[list[BindingType]] = [*bindings_of("LiveTable")]

    class Highlighted(Message):
        """The cursor stands on another row, or on none (``key`` is None)."""

        def __init__(self, table: LiveTable, key: str | None, by_user: bool = False) -> None:
            super().__init__()
            self.table = table
            self.key = key
            self.by_user = by_user

        @property
        def control(self) -> LiveTable:
            return self.table

    class Selected(Message):
        """Enter, or a click on the row under the cursor."""

        def __init__(self, table: LiveTable, key: str) -> None:
            super().__init__()
            self.table = table
            self.key = key

        @property
        def control(self) -> LiveTable:
            return self.table

    class HeaderClicked(Message):
        """A click on the heading of a column."""

        def __init__(self, table: LiveTable, column: str) -> None:
            super().__init__()
            self.table = table
            self.column = column

        @property
        def control(self) -> LiveTable:
            return self.table

    def __init__(
        self,
        columns: Sequence[Column],
        *,
        empty: str | Sequence[Sequence[Piece]] = "nothing here",
        header: bool = True,
        cursor: bool = True,
        gap: int = GAP,
        lit: bool = False,
        wraps: str = "",
        **kwargs: Any,
    ) -> None:
        """Begin without rows; ``lit`` marks the cursor's row also without the keyboard.

        A long text of the column ``wraps`` goes on in a second line where lines are free.
        """
        super().__init__(**kwargs)
        self._columns = tuple(columns)
        self._rows: tuple[TableRow, ...] = ()
        self._index: dict[str, int] = {}
        self._empty = empty
        self._header_wanted = header
        self._gap = gap
        self._cursor_shown = cursor
        self._lit = lit
        self._wraps = wraps
        self._keys: list[str] = []
        """The key of the row in each line that was drawn."""
        self._cursor_key: str | None = None
        self._top = 0
        self._placed: tuple[tuple[object, ...], list[Placed]] = ((), [])
        self._gaps: list[int] = []
        """The blanks before each of the placed columns."""
        self._heading: Strip | None = None
        self._line_cache: dict[str, tuple[tuple[object, ...], Strip]] = {}
        self._cell_cache: dict[str, dict[str, tuple[Cell, str, Line]]] = {}
        """Of each row on screen, by column: the cell, the row's style, and what was drawn for them.
        """
        self.can_focus = cursor

    # ── data ──────────────────────────────────────────────────────────────────────────────────────

    @property
    def _bright(self) -> bool:
        return self.has_focus or self._lit

    @property
    def rows(self) -> tuple[TableRow, ...]:
        """What is shown, in order."""
        return self._rows

    @property
    def cursor_key(self) -> str | None:
        """The key of the row under the cursor; None when there is no row."""
        return self._cursor_key

    def show(self, rows: Sequence[TableRow]) -> None:
        """Replace the rows; the cursor stays on its key.

        When that key is gone, the cursor goes to the row now in its place. Raises ValueError
        when two rows have one key.
        """
        rows = tuple(rows)
        index = {row.key: at for at, row in enumerate(rows)}
        if len(index) != len(rows):
            raise ValueError("two rows of a table have the same key")
        at = self._index.get(self._cursor_key, 0) if self._cursor_key is not None else 0
        self._rows, self._index = rows, index
        if self._cursor_key not in index:
            self._place(rows[min(at, len(rows) - 1)].key if rows else None)
        self._follow()
        self.repaint()

    @property
    def on_screen(self) -> tuple[TableRow, ...]:
        """The rows that are in the window."""
        return self._rows[self._top : self._top + self._page_rows()]

    def width_of(self, column: str) -> int:
        """Cells that a column has as it was last drawn, 0 where it is not shown."""
        return next((cells for placed, cells in self._placed[1] if placed.key == column), 0)

    def show_columns(self, columns: Sequence[Column]) -> None:
        """Replace the columns (another sort mark, another set)."""
        if tuple(columns) != self._columns:
            self._columns = tuple(columns)
            self.repaint()

    def show_empty(self, empty: str | Sequence[Sequence[Piece]]) -> None:
        """Replace what stands where rows would, when there are none."""
        if empty != self._empty:
            self._empty = empty
            self.repaint()

    def move_to(self, key: str, by_user: bool = False) -> None:
        """Put the cursor on a row; a key that is not there is ignored."""
        if key in self._index and key != self._cursor_key:
            self._place(key, by_user)
            self._follow()
            self.repaint()

    def _place(self, key: str | None, by_user: bool = False) -> None:
        if key != self._cursor_key:
            self._cursor_key = key
            if self.is_attached:
                self.post_message(self.Highlighted(self, key, by_user))

    @property
    def _header(self) -> bool:
        return self._header_wanted and any(column.title for column in self._columns)

    # ── scrolling ─────────────────────────────────────────────────────────────────────────────────

    def _page_rows(self) -> int:
        return max(self.size.height - int(self._header), 1)

    def _follow(self) -> None:
        """Keep the cursor inside the window, and no blank rows below the last one."""
        page = self._page_rows()
        if self._cursor_shown and self._cursor_key is not None:
            at = self._index[self._cursor_key]
            self._top = min(max(self._top, at - page + 1), at)
        self._top = max(min(self._top, len(self._rows) - page), 0)

    def action_move(self, by: int) -> None:
        """Move the cursor by rows."""
        if not self._rows:
            return
        if not self._cursor_shown:
            self._scroll_by(by)
            return
        at = self._index[self._cursor_key] if self._cursor_key is not None else 0
        self.move_to(self._rows[min(max(at + by, 0), len(self._rows) - 1)].key, by_user=True)

    def action_page(self, direction: int) -> None:
        """Move the cursor by a screenful."""
        self.action_move(direction * max(self._page_rows() - 1, 1))

    def action_edge(self, direction: int) -> None:
        """Move the cursor to the first (-1) or last (1) row."""
        self.action_move(direction * len(self._rows))

    def action_select(self) -> None:
        """Open the row under the cursor."""
        if self._cursor_shown and self._cursor_key is not None:
            self.post_message(self.Selected(self, self._cursor_key))

    def _scroll_by(self, by: int) -> None:
        top = max(min(self._top + by, len(self._rows) - self._page_rows()), 0)
        if top != self._top:
            self._top = top
            self.repaint()

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        event.stop()
        self.action_move(3)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        event.stop()
        self.action_move(-3)

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)
        if offset is None:
            return
        if offset.y < int(self._header):
            event.stop()
            self._click_heading(offset.x)
            return
        if not self._cursor_shown:
            return
        at = offset.y - int(self._header)
        if at >= len(self._keys):
            return
        event.stop()
        key = self._keys[at]
        if key == self._cursor_key:
            self.action_select()
        else:
            self.move_to(key, by_user=True)

    def _click_heading(self, x: int) -> None:
        left = GUTTER if self._cursor_shown else 0
        for (column, cells), gap in zip(self._placed[1], self._gaps, strict=True):
            left += gap
            if left <= x < left + cells:
                self.post_message(self.HeaderClicked(self, column.key))
            left += cells

    def on_resize(self) -> None:
        self._follow()
        self.repaint()

    # ── painting ──────────────────────────────────────────────────────────────────────────────────

    def paint(self, width: int, height: int, tokens: Tokens) -> list[Strip]:
        lines: list[Strip] = []
        page = max(height - int(self._header), 0)
        overflow = len(self._rows) > page > 0
        inner = width - (2 if overflow else 0)
        gutter = GUTTER if self._cursor_shown else 0
        shape = (self._columns, inner, gutter, tokens.key)
        if self._placed[0] != shape:
            self._placed = (shape, lay_out(self._columns, inner - gutter, self._gap))
            self._gaps = gaps_of([column for column, _ in self._placed[1]], self._gap)
            self._heading = None
            self._line_cache.clear()
            self._cell_cache.clear()
        if self._header:
            if self._heading is None:
                self._heading = strip_of(self._header_line(gutter, tokens), width, tokens)
            lines.append(self._heading)
        if not self._rows:
            return lines + self._empty_lines(width, page, gutter, tokens)
        shown = self._in_lines(self._rows[self._top : self._top + page], page)
        self._keys = [row.key.removesuffix(MORE) for row in shown]
        fresh: dict[str, tuple[tuple[object, ...], Strip]] = {}
        for at, row in enumerate(shown):
            here = self._cursor_shown and self._keys[at] == self._cursor_key
            bar = thumb(at, page, len(self._rows), self._top) if overflow else ""
            key = (row, here, here and self._bright, bar)
            cached = self._line_cache.get(row.key)
            if cached is not None and cached[0] == key:
                strip = cached[1]
            else:
                strip = self._row_line(row, here, inner, width, gutter, bar, tokens)
            fresh[row.key] = (key, strip)
            lines.append(strip)
        self._line_cache = fresh
        self._cell_cache = {key: drawn for key, drawn in self._cell_cache.items() if key in fresh}
        return lines

    def _in_lines(self, rows: Sequence[TableRow], page: int) -> list[TableRow]:
        """Return the rows of the lines, a second one for what is long while lines are free."""
        out, free = [], page - len(rows)
        for row in rows:
            first, *rest = self._wrapped(row) if free > 0 else ([],)
            if rest:
                free -= 1
                blank = {name: [(" ", "text")] for name, value in row.cells.items() if value}
                more = [piece for line in rest for piece in ((" ", "text"), *line)][1:]
                out.append(row._replace(cells={**row.cells, self._wraps: first}))
                row = TableRow(row.key + MORE, {**blank, self._wraps: more}, row.style, row.spans)
            out.append(row)
        return out

    def _wrapped(self, row: TableRow) -> list[Line]:
        """Return the lines of the cell that may be long, one where its column is not shown."""
        cell = row.cells.get(self._wraps)
        spanned = self._spanned(row) if isinstance(cell, list) else ()
        cells = next((c for column, c, _ in spanned if column.key == self._wraps), 0)
        return styled.wrap(cell, cells) if cells else [[]]  # type: ignore[arg-type]

    def longer_rows(self) -> int:
        """Return how many rows would have a second line, in the columns as they were last drawn."""
        drawn = bool(self._placed[1])
        return sum(len(self._wrapped(row)) > 1 for row in self._rows) if drawn else 0

    def _header_line(self, gutter: int, tokens: Tokens) -> Line:
        pieces = [(" " * gutter, "muted")]
        for (column, cells), gap in zip(self._placed[1], self._gaps, strict=True):
            pieces.append((" " * gap, "muted"))
            pieces.append((fit(column.title, cells, column.align, tokens.glyphs.ellipsis), "muted"))
        return pieces

    def _row_line(
        self,
        row: TableRow,
        here: bool,
        inner: int,
        width: int,
        gutter: int,
        bar: str,
        tokens: Tokens,
    ) -> Strip:
        glyphs = tokens.glyphs
        mark = glyphs.cursor if here and not row.key.endswith(MORE) else ""
        pieces: Line = (
            [(mark.ljust(gutter), "accent" if here and self._bright else "muted")] if gutter else []
        )
        known = self._cell_cache.setdefault(row.key, {})
        for column, cells, gap in self._spanned(row):
            pieces.append((" " * gap, "text"))
            cell = row.cells.get(column.key, "")
            before = known.get(column.key)
            if before is None or before[0] != cell or before[1] != row.style:
                before = cell, row.style, self._cell(cell, row.style, column, cells, glyphs)
                known[column.key] = before
            pieces.extend(before[2])
        if bar:
            pieces = styled.pad(pieces, inner + 1)
            pieces.append((bar, "muted" if bar == THUMB else "border"))
        return strip_of(pieces, width, tokens, "selected" if here and self._bright else "")

    def _spanned(self, row: TableRow) -> list[tuple[Column, int, int]]:
        """Return the columns as this row uses them, with the cells that it gives to one of them.

        Each comes with its width and the blanks before it.
        """
        placed, gaps = self._placed[1], self._gaps
        each = [(column, cells, gap) for (column, cells), gap in zip(placed, gaps, strict=True)]
        last = next((at for at, one in enumerate(placed) if one[0].key == row.spans), 0)
        first = last
        while first and not row.cells.get(placed[first - 1][0].key):
            first -= 1
        wide = sum(cells for _, cells in placed[first : last + 1]) + sum(gaps[first + 1 : last + 1])
        return [*each[:first], (placed[last][0], wide, gaps[first]), *each[last + 1 :]]

    def _cell(self, cell: Cell, style: str, column: Column, cells: int, glyphs: Glyphs) -> Line:
        if isinstance(cell, str):
            return [(fit(cell, cells, column.align, glyphs.ellipsis), style)]
        drawn: Sequence[Piece] = (
            cell if isinstance(cell, (list, tuple)) else cell.draw(cells, glyphs)  # type: ignore[union-attr]
        )
        cut = styled.cut_whole if column.whole else styled.cut
        return styled.pad(
            cut(visible_line(drawn), cells, glyphs.ellipsis), cells, column.align, style
        )

    def _empty_lines(self, width: int, page: int, gutter: int, tokens: Tokens) -> list[Strip]:
        lines: Sequence[Sequence[Piece]] = (
            [[(self._empty, "muted")]] if isinstance(self._empty, str) else self._empty
        )
        indent = [(" " * gutter, "text")]
        wrapped = [part for line in lines for part in styled.wrap(line, width - gutter) or [[]]]
        return [
            strip_of(
                [*indent, *styled.cut(line, width - gutter, tokens.glyphs.ellipsis)], width, tokens
            )
            for line in wrapped[:page]
        ]
