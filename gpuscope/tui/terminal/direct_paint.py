"""This module sends what a widget has painted to the terminal, past Textual's compositor.

The compositor puts together all widgets of the lines that a span touches before it cuts the
span out of them: a good part of the processor time of a screen on which numbers change. Our
widgets know their lines; where nothing lies above them, the span can be sent as it is. What is
not as simple as that is left to the compositor, which draws the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

from textual.app import App
from textual.color import Color
from textual.geometry import Offset, Region
from textual.strip import Strip
from textual.widget import Widget

from .light_strip import LightStrip
from .soon import soon
from .strip_cells import cut_out
from .terminal_rate import LEAST_BYTES, TerminalLink

if TYPE_CHECKING:
    from textual.timer import Timer

    from .screen_shadow import Placed

Answer = TypeVar("Answer")

BYTES_A_CELL = 4.0
"""Roughly how many bytes a cell of a chart takes, including its colours."""
ENOUGH_CELLS = LEAST_BYTES / BYTES_A_CELL / 2
"""With room for so many cells a chart that has to be drawn at once goes, however large it is."""
LABEL_CELLS = 4
"""Where the labels of an axis are, at the left of a chart."""
AGAIN_SECONDS = 0.25
"""How long until the link is checked for room again, if nothing reports room earlier."""


class ShownApp(App[Answer]):
    """An app that knows whether a terminal shows it, and how fast that takes what is drawn."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.link = TerminalLink()

    @property
    def draws(self) -> bool:
        """Return whether a terminal shows what is drawn, as a whole screen."""
        return not self.is_headless and not self.is_inline


class KnowsItsLines(Widget):
    """A widget whose lines can be asked for, one by one."""

    PATIENT: ClassVar[bool] = False
    """Whether it may be drawn later than others where the link is slow."""

    @property
    def picture(self) -> object:
        """What its lines were painted for.

        It is None where they are not of its size and look any more.
        """
        raise NotImplementedError

    @property
    def ground(self) -> Color:
        """The background that the lines were painted for."""
        raise NotImplementedError

    def line(self, y: int) -> Strip:
        """Return a line of the content as it was painted."""
        raise NotImplementedError


class Changed(NamedTuple):
    """Regions of a widget that wait to be drawn.

    They mean something in this picture of it only: painted for another size, it may have fewer
    lines.
    """

    picture: object
    offset: Offset
    """The offset of the content in the widget."""
    regions: list[Region]


class Direct:
    """What changed until all widgets of a picture have painted, sent in one write."""

    def __init__(self, app: ShownApp[Any], update: Callable[[list[Placed]], Any]) -> None:
        self._app, self._update = app, update
        self._waiting: dict[KnowsItsLines, Changed] = {}
        self.sends = 0
        """How often something was drawn, for tests."""
        self._asked = False
        self._timer: Timer | None = None
        self._charts = 0
        self._map: object = None
        self._free: dict[Widget, Region] = {}

    def take(self, widget: KnowsItsLines, regions: Iterable[Region]) -> bool:
        """Return whether these regions of the widget's content will be drawn.

        Where not, the widget has to refresh them itself.
        """
        if not self._simple(widget):
            return False
        picture, changed = widget.picture, self._waiting.get(widget)
        if changed is None:
            changed = self._waiting[widget] = Changed(picture, widget.content_offset, [])
        elif changed.picture != picture:  # all of it is drawn when their turn comes
            return False
        top = changed.offset.y
        widget._styles_cache._dirty_lines.update([top + region.y for region in regions])
        changed.regions.extend(regions)
        if not self._asked:
            self._asked = True
            soon(self._app, self.send)
        return True

    def _simple(self, widget: KnowsItsLines) -> bool:
        app, screen = self._app, self._app.screen
        if not app.draws or app.console.color_system is None:
            return False
        waits = screen._layout_required or widget._layout_required or widget._repaint_required
        return not waits and widget not in screen._dirty_widgets and widget in self._uncovered()

    def _uncovered(self) -> dict[Widget, Region]:
        """Return the widgets that nothing covers, each with its region."""
        placed = self._app.screen._compositor.visible_widgets
        if placed is not self._map:
            above: list[Region] = []
            self._map, self._free = placed, {}
            # the front first: children before their parents
            for widget, (region, clip) in placed.items():
                clear = not any(region.overlaps(other) for other in above)
                if clear and clip.contains_region(region) and not widget.children:
                    self._free[widget] = region
                above.append(region)
        return self._free

    def send(self) -> None:
        """Draw what waits, as it is now, numbers before charts.

        What the link has no room for waits on.
        """
        self._asked = False
        waiting, self._waiting = self._waiting, {}
        urgent: list[Placed] = []
        patient: list[tuple[KnowsItsLines, Changed]] = []
        simple: dict[KnowsItsLines, Changed] = {}
        for widget, changed in waiting.items():
            if not widget.is_attached:
                continue
            if changed.picture != widget.picture:
                widget.refresh()
                continue
            if not self._simple(widget):
                widget.refresh(*changed.regions)
                continue
            simple[widget] = changed
            if widget.PATIENT:
                patient.append((widget, changed))
            else:
                urgent += self._spans(widget, changed.offset, _distinct(changed.regions))
        link = self._app.link
        if urgent and link.room() <= 0:
            self._waiting = simple
        else:
            self._draw(urgent)
            before, room = link.total, link.room() / BYTES_A_CELL
            spans: list[Placed] = []
            for widget, changed in patient:
                kept = []
                for regions in _inseparable(_distinct(changed.regions)):
                    cells = sum(region.width for region in regions)
                    fits = room > min(cells, ENOUGH_CELLS)
                    room -= cells
                    if fits:
                        spans += self._spans(widget, changed.offset, regions)
                    else:
                        kept += regions
                if kept:
                    self._waiting[widget] = changed._replace(regions=kept)
            self._draw(spans)
            self._charts += link.total - before
            if patient and not self._waiting:
                link.charts_took(self._charts)
                self._charts = 0
        if self._waiting:
            link.wait(self._again)
            if self._timer is None:
                self._timer = self._app.set_timer(AGAIN_SECONDS, self._again_later)

    def _again_later(self) -> None:
        self._timer = None
        self._again()

    def _again(self) -> None:
        if self._waiting and not self._asked:
            self._asked = True
            soon(self._app, self.send)

    def _draw(self, spans: list[Placed]) -> None:
        if spans:
            self.sends += 1
            spans.sort(key=lambda span: (span[1], span[0]))
            self._app._display(self._app.screen, self._update(spans))

    def _spans(
        self, widget: KnowsItsLines, offset: Offset, regions: list[Region]
    ) -> Iterable[Placed]:
        left, top = self._free[widget].offset + offset
        filters, background = widget.get_line_filters(), widget.ground
        for x, y, cells, _ in regions:
            pieces = cut_out(widget.line(y), x, x + cells)
            for one in filters:
                pieces = one.apply(pieces, background)
            yield left + x, top + y, left + x + cells, LightStrip(pieces, cells)


def _inseparable(regions: list[Region]) -> Iterable[list[Region]]:
    """Return regions of a chart in groups, of which each is drawn at once.

    Those of an axis that changes are one: its upper half with new labels above the old lower half
    would say what is not so.
    """
    axis = sum(region.x < LABEL_CELLS for region in regions) > 1
    return [regions] if axis else ([region] for region in regions)


def _distinct(regions: list[Region]) -> list[Region]:
    """Return the same cells without repetitions."""
    found: list[Region] = []
    for region in sorted(regions, key=lambda region: (region.y, region.x)):
        if found and found[-1].y == region.y and found[-1].right >= region.x:
            last = found.pop()
            region = Region(last.x, last.y, max(last.right, region.right) - last.x, 1)
        found.append(region)
    return found
