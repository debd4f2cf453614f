"""This module sends fewer bytes to the terminal for the same picture.

On a slow link they decide how soon a key is answered. Textual 8.2's partial update sends each
changed span from the left edge of its widget and restates every style in full, which undoes
most of what repainting only spans saves. Here only cells are sent that the terminal does not
show yet, and of a style only what differs from the one before. What this file does not
recognise is left to Textual.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from rich.color import ColorSystem
from rich.console import COLOR_SYSTEMS, Console
from rich.style import Style
from textual._compositor import ChopsUpdate, CompositorUpdate, LayoutUpdate
from textual.screen import Screen
from textual.strip import Strip

from .direct_paint import Answer, Direct, ShownApp
from .screen_shadow import Placed, Shadow

_ATTRIBUTES = (
    ("bold", "1"),
    ("dim", "2"),
    ("italic", "3"),
    ("underline", "4"),
    ("blink", "5"),
    ("reverse", "7"),
    ("conceal", "8"),
    ("strike", "9"),
    ("underline2", "21"),
    ("overline", "53"),
)

Look = tuple[str, str, tuple[str, ...]]
"""Foreground, background and attributes, as the codes of an SGR sequence."""
PLAIN: Look = ("39", "49", ())
_NARROW = re.compile("[ -~\u2500-\u259f\u2800-\u28ff]*").fullmatch
_SEEN_ON_BLANKS = frozenset(("4", "5", "7", "9", "21", "53"))


class LeanApp(ShownApp[Answer]):
    """An app whose partial updates take as few bytes as possible."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.shadow = Shadow()
        """What the terminal shows."""
        self.direct = Direct(self, SpansUpdate)
        """The direct way to the terminal, for widgets that paint themselves."""

    def redraw(self) -> None:
        """Send the whole screen again, even what the terminal should show already."""
        self.shadow.forget()
        self.screen.refresh()

    def on_resize(self) -> None:
        self.shadow.forget()  # terminals differ in what they keep

    def _display(self, screen: Screen[Any], renderable: Any) -> None:
        if renderable is None or not self.draws or self._batch_count or not self._running:
            super()._display(screen, renderable)
            return
        self.shadow.fit(*self.size)
        if type(renderable) is SpansUpdate:
            for span in renderable.spans:
                self.shadow.note(*span)
        else:
            spans = spans_of(renderable) if self.console.color_system is not None else None
            if spans is None:
                self.shadow.forget()
            else:
                renderable = SpansUpdate(
                    [change for span in spans for change in self.shadow.changes(*span)]
                )
                if not renderable.spans:
                    self.post_display_hook()
                    return
        super()._display(screen, renderable)
        if self._driver is not None and (question := self.link.mark()):
            self._driver.write(question)


def spans_of(update: Any) -> list[Placed] | None:
    """Return the pieces of lines that an update of Textual's draws, from the top.

    It is None where that is not known, or where it has links.
    """
    spans: list[Placed] = []
    if type(update) is ChopsUpdate:
        for y, first, last in update.spans:
            for end, (x, strip) in zip(update.chop_ends[y], update.chops[y].items(), strict=False):
                if strip is not None and x < last and end > first:
                    left, right = max(first, x), min(last, end)
                    spans.append((left, y, right, strip.crop(left - x, right - x)))
    elif type(update) is LayoutUpdate:
        for y, line in enumerate(update.strips, update.region.y):
            x = update.region.x
            for strip in line:
                spans.append((x, y, x + strip.cell_length, strip))
                x += strip.cell_length
    else:
        return None
    linked = any(style is not None and style.link for *_, strip in spans for _, style, _ in strip)
    return None if linked else spans


class SpansUpdate(CompositorUpdate):
    """An update of pieces of lines without links, each at its place."""

    def __init__(self, spans: list[Placed]) -> None:
        self.spans = spans

    def render_segments(self, console: Console) -> str:
        """Return the sequences that draw them.

        They have absolute positions only, and end in the plain style.
        """
        pen = Pen(COLOR_SYSTEMS[console.color_system or "standard"])
        for x, y, end, strip in self.spans:
            pen.draw(x, y, end, strip)
        return pen.lift()


class Pen:
    """Writes strips: moves only where it must, and says of a style only what is new."""

    def __init__(self, system: ColorSystem) -> None:
        self._system = system
        self._out: list[str] = []
        self._look = PLAIN
        self._at = (-1, -1)  # where the terminal's cursor is known to stand

    def draw(self, x: int, y: int, end: int, strip: Strip) -> None:
        """Write ``strip`` from ``x`` up to ``end``."""
        out, look, system = self._out, self._look, self._system
        if (x, y) != self._at:
            out.append(f"\x1b[{y + 1};{x + 1}H")
        narrow = True
        for text, style, control in strip:
            if control or not text:
                continue
            wanted = look_of(style, system) if style else PLAIN
            if wanted != look and not (text.isspace() and alike_when_blank(look, wanted)):
                out.append(change(look, wanted))
                look = wanted
            out.append(text)
            narrow = narrow and (text.isascii() or _NARROW(text) is not None)
        self._look = look
        # a terminal may see other widths in rare characters than we do: then say where we are
        self._at = (end, y) if narrow else (-1, -1)

    def lift(self) -> str:
        """Return all that was written, which ends in the plain style."""
        if self._look != PLAIN:
            self._out.append("\x1b[0m")
        return "".join(self._out)


@lru_cache(maxsize=4096)
def look_of(style: Style, system: ColorSystem) -> Look:
    """Return the codes of a style in the colours this terminal has."""
    front = style.color.downgrade(system).get_ansi_codes() if style.color else ("39",)
    back = (
        style.bgcolor.downgrade(system).get_ansi_codes(foreground=False)
        if style.bgcolor
        else ("49",)
    )
    return (
        ";".join(front),
        ";".join(back),
        tuple(code for name, code in _ATTRIBUTES if getattr(style, name)),
    )


@lru_cache(maxsize=4096)
def alike_when_blank(one: Look, other: Look) -> bool:
    """Return whether spaces look the same in both styles.

    They do on the same ground, with no line through or under them.
    """
    return one[1] == other[1] and _SEEN_ON_BLANKS.isdisjoint((*one[2], *other[2]))


@lru_cache(maxsize=4096)
def change(old: Look, new: Look) -> str:
    """Return the shortest sequence from one look to another."""
    codes = []
    # an attribute ends: the only way all terminals agree on is to start anew
    if set(old[2]) - set(new[2]):
        codes.append("0")
        old = PLAIN
    codes += [code for code in new[2] if code not in old[2]]
    codes += [code for code, before in zip(new[:2], old[:2], strict=True) if code != before]
    return f"\x1b[{';'.join(codes)}m"
