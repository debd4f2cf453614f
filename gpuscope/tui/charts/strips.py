"""This module turns styled pieces into painted lines, and finds what changed in them.

:class:`Painted` is the base of every widget that draws itself. It paints a list of strips. When
its data changes it paints again, compares cell by cell, and asks the terminal only for the
spans that differ: at 2 Hz that is what keeps a slow link usable.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

from rich.segment import Segment
from rich.text import Text
from textual.color import Color
from textual.geometry import Region, Size
from textual.strip import Strip

from ...text import styled
from ...text.styled import Line, Piece
from ...text.width import cells as text_cells
from ..cells import visible
from ..terminal.direct_paint import KnowsItsLines
from ..terminal.light_strip import LightStrip
from ..terminal.strip_cells import changed_spans
from ..theme import Tokens
from .legend import legend_lines

if TYPE_CHECKING:
    from ..terminal.direct_paint import Direct

REMEMBERED_LINES = 256
"""How many painted lines are kept, which is more than a large terminal has."""


def strip_of(segments: Iterable[Piece], cells: int, tokens: Tokens, below: str = "") -> Strip:
    """Return one line of exactly ``cells`` cells.

    ``below`` is a spec that all pieces inherit from (a cursor's background).
    """
    return _strip_of(tuple(segments), cells, tokens, below)


@lru_cache(maxsize=REMEMBERED_LINES)
def _strip_of(segments: tuple[Piece, ...], cells: int, tokens: Tokens, below: str) -> Strip:
    """Return the same strip for a line that is painted again, as most lines of a screen are."""
    base = tokens.drawn(below) if below else None
    if tokens.inverts_alarms and any(spec == "bad" for _, spec in segments):
        segments = tuple(part for piece in segments for part in _alarm_alone(piece))
    pieces: list[Segment] = []
    length = 0
    last_text, last_style = "", None
    for text, spec in segments:
        if not text:
            continue
        style = tokens.drawn(spec) if base is None else base + tokens.style(spec)
        if text.isascii() and text.isprintable():
            length += len(text)
        else:
            text = visible(text)
            length += text_cells(text)
        if style is last_style:
            last_text += text
            pieces[-1] = Segment(last_text, style)
        else:
            pieces.append(Segment(text, style))
            last_text, last_style = text, style
    if length > cells:
        return Strip(pieces).adjust_cell_length(cells)
    if length < cells:
        pieces.append(Segment(" " * (cells - length), base or tokens.ground))
    return LightStrip(pieces, cells)


def _alarm_alone(piece: Piece) -> Iterator[Piece]:
    """Yield an alarm apart from the blanks around it, which are not to be inverted."""
    text, spec = piece
    word = text.strip(" ")
    if spec != "bad" or word == text:
        yield piece
        return
    before, _, after = text.partition(word) if word else (text, "", "")
    yield before, "text"
    yield word, spec
    yield after, "text"


def empty_strips(text: str, width: int, height: int, tokens: Tokens) -> list[Strip]:
    """Return what a chart with nothing to draw says, in the middle of its room."""
    lines = styled.wrap([(text, "muted")], max(width - 4, 10))[: max(height, 1)]
    blank = [strip_of((), width, tokens)] * (max(height - len(lines), 0) // 2)
    middle = ([(" " * (max(width - styled.cells(line), 0) // 2), "text"), *line] for line in lines)
    return blank + [strip_of(line, width, tokens) for line in middle]


def text_of(segments: Sequence[Piece], tokens: Tokens) -> Text:
    """Return the same pieces as a text that Textual takes for border titles.

    No markup is read in it.
    """
    return Text.assemble(*((visible(text), tokens.style(spec)) for text, spec in segments))


Key = tuple[Size, tuple[object, ...]]
"""What lines were painted for: a size, and the key of the tokens."""


class Painted(KnowsItsLines):
    """A widget that paints itself.

    Subclasses implement :meth:`paint` and call :meth:`repaint` when data changed. Painting
    happens at once when the widget is on screen, else not before it is shown. It is called only
    from the app's thread.
    """

    ALLOW_SELECT = False
    DEFAULT_CSS = """
    Painted { width: 1fr; height: 1fr; }
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._strips: list[Strip] = []
        # what the strips were painted for; None: paint again
        self._painted: Key | None = None
        self._shown: Tokens | None = None  # styles and glyphs of what was painted
        self._ground = Color(0, 0, 0)
        self._subtitle: Sequence[Piece] = ()
        self._legend: tuple[tuple[str, str, str], ...] = ()
        self._legend_size = Size(0, 0)  # of the content, for which the legend was cut
        self.paints = 0
        """How many times it was painted: for tests and measurements."""

    def paint(self, width: int, height: int, tokens: Tokens) -> list[Strip]:
        """Return all lines of the content area, each ``width`` cells.

        Missing lines at the end are blank.
        """
        raise NotImplementedError

    @property
    def tokens(self) -> Tokens:
        """Return the styles and glyphs of the app's present theme."""
        return Tokens.of(self.app)

    def repaint(self) -> None:
        """Paint again after data changed, and refresh only what differs from before."""
        # asking for the background is dear: who changes it refreshes the widget
        look, key = self._shown, self._painted
        if look is None or key is None or key[0] != self.size or not self.is_mounted:
            self._painted = None  # never drawn, or not in this size: a hidden widget has none
            self.refresh()
            return
        old, new = self._strips, self._fill(key, look)
        regions = [
            Region(x, y, cells, 1)
            for y, (before, after) in enumerate(zip(old, new, strict=True))
            for x, cells in changed_spans(before, after)
        ]
        direct: Direct | None = getattr(self.app, "direct", None)
        if regions and not (direct is not None and direct.take(self, regions)):
            self.refresh(*regions)

    @property
    def picture(self) -> object:
        key = self._painted
        return key if key is not None and key[0] == self.size else None

    @property
    def ground(self) -> Color:
        return self._ground

    def line(self, y: int) -> Strip:
        return self._strips[y]

    def subtitle(self, segments: Sequence[Piece]) -> None:
        """Set the border's subtitle, only when it changes.

        The setter repaints the whole widget.
        """
        segments = tuple(segments)
        if segments != self._subtitle:
            self._subtitle = segments
            self.border_subtitle = text_of(segments, self.tokens)

    legend_elsewhere = ""
    """The text in place of a legend that does not fit, where another panel explains its colours."""

    def legend(self, entries: Sequence[tuple[str, str, str]]) -> None:
        """Show a legend in the border, and where it has no room for all in a line above it.

        Each entry is (glyph, token, label). Where even that is not enough, the last ones are left
        out.
        """
        if (entries := tuple(entries)) != self._legend:
            self._legend = entries
            self._fit_legend()

    def _fit_legend(self) -> None:
        self._legend_size = self.size
        self.subtitle(self._legend_lines(*self.size)[1])

    def _legend_lines(self, width: int, height: int) -> tuple[Line, Line]:
        return legend_lines(self._legend, width - 2, height, self.legend_elsewhere)

    def render_lines(self, crop: Region) -> list[Strip]:
        self._fit()  # once a frame: asking for size and background is dear
        return super().render_lines(crop)

    def render_line(self, y: int) -> Strip:
        if self._painted is None or self._shown is None:
            self._fit()
        assert self._shown is not None
        return (
            self._strips[y] if y < len(self._strips) else strip_of((), self.size.width, self._shown)
        )

    def _fit(self) -> None:
        """Paint again if the size or the background has changed since the last time."""
        # Textual fills in none for lines that a widget draws itself
        _, self._ground = self.background_colors
        self._shown = self.tokens.on(self._ground.rich_color)
        key = (self.size, self._shown.key)
        if key != self._painted:
            self._fill(key, self._shown)

    def _fill(self, key: Key, tokens: Tokens) -> list[Strip]:
        width, height = key[0]
        first = self._legend_lines(width, height)[0] if self._legend else []
        rows = height - bool(first)
        strips = self.paint(width, rows, tokens)[:rows] if width > 0 and rows > 0 else []
        strips += [strip_of((), width, tokens)] * (rows - len(strips))
        if first:
            blank = width - styled.cells(first) - 1
            strips.append(strip_of([(" " * max(blank, 0), "text"), *first], width, tokens))
        self._strips, self._painted = strips, key
        self.paints += 1
        if self._legend and self._legend_size != key[0]:  # told before it had its place
            self.call_later(self._fit_legend)
        return strips

    def on_mount(self) -> None:
        self.app.theme_changed_signal.subscribe(self, self._theme_changed)

    def watch_has_focus(self, has_focus: bool) -> None:
        super().watch_has_focus(has_focus)  # events of focus and blur come before it is so
        if self.can_focus:
            self.repaint()

    def _theme_changed(self, _: object) -> None:
        self._painted = None
        if self._subtitle:
            self.border_subtitle = text_of(self._subtitle, self.tokens)
        self.refresh()


class TimedChart(Painted):
    """A chart; it says what is missing where it has nothing to draw."""

    PATIENT: ClassVar[bool] = True

    def __init__(self, *, empty: str = "no readings yet", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._empty = empty

    def show_empty(self, text: str) -> None:
        """Say this where there is nothing to draw."""
        if text != self._empty:
            self._empty = text
            self.repaint()
