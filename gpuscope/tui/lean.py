"""Fewer bytes to the terminal for the same picture: on a slow link they decide how soon a key is answered.

Textual 8.2's partial update sends each changed span from the left edge of its widget and restates every style in full,
which undoes most of what repainting only spans saves. Here a span is sent from its first cell, and of a style only what
differs from the one before. What this file does not recognise is left to Textual.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, TypeVar

from rich.color import ColorSystem
from rich.console import COLOR_SYSTEMS, Console
from rich.style import Style
from textual._compositor import ChopsUpdate, CompositorUpdate
from textual.app import App
from textual.screen import Screen

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
"""Foreground, background, attributes, as codes of an SGR sequence."""
PLAIN: Look = ("39", "49", ())
_NARROW = re.compile("[ -~\u2500-\u259f\u2800-\u28ff]*").fullmatch
_SEEN_ON_BLANKS = frozenset(("4", "5", "7", "9", "21", "53"))


Answer = TypeVar("Answer")


class LeanApp(App[Answer]):
    """An app whose partial updates go out lean."""

    def _display(self, screen: Screen[Any], renderable: Any) -> None:
        lean: Any = LeanUpdate(renderable) if type(renderable) is ChopsUpdate else renderable
        super()._display(screen, lean)


class LeanUpdate(CompositorUpdate):
    """The same cells as the update it wraps."""

    def __init__(self, update: ChopsUpdate) -> None:
        self.update = update

    def render_segments(self, console: Console) -> str:
        """The sequences that draw it. Absolute positions only; ends in the plain style."""
        name = console.color_system
        if name is None:
            return self.update.render_segments(console)
        system = COLOR_SYSTEMS[name]
        out: list[str] = []
        look = PLAIN
        for y, first, last in self.update.spans:
            at = -1  # where the terminal's cursor is known to stand in this line
            for end, (x, strip) in zip(self.update.chop_ends[y], self.update.chops[y].items(), strict=False):
                if strip is None or x >= last or end <= first:
                    continue
                left, right = max(first, x), min(last, end)
                if (left, right) != (x, end):
                    strip = strip.crop(left - x, right - x)
                if left != at:
                    out.append(f"\x1b[{y + 1};{left + 1}H")
                narrow = True
                for text, style, control in strip:
                    if control or not text:
                        continue
                    if style is not None and style.link:
                        return self.update.render_segments(console)
                    wanted = look_of(style, system) if style else PLAIN
                    if wanted != look and not (text.isspace() and alike_when_blank(look, wanted)):
                        out.append(change(look, wanted))
                        look = wanted
                    out.append(text)
                    narrow = narrow and _NARROW(text) is not None
                # a terminal may see other widths in rare characters than we do: then say where we are
                at = right if narrow else -1
        if look != PLAIN:
            out.append("\x1b[0m")
        return "".join(out)


@lru_cache(maxsize=4096)
def look_of(style: Style, system: ColorSystem) -> Look:
    """The codes of a style in the colours this terminal has."""
    front = style.color.downgrade(system).get_ansi_codes() if style.color else ("39",)
    back = style.bgcolor.downgrade(system).get_ansi_codes(foreground=False) if style.bgcolor else ("49",)
    return ";".join(front), ";".join(back), tuple(code for name, code in _ATTRIBUTES if getattr(style, name))


@lru_cache(maxsize=4096)
def alike_when_blank(one: Look, other: Look) -> bool:
    """Whether spaces look the same in both: the same ground, and no line through or under them."""
    return one[1] == other[1] and _SEEN_ON_BLANKS.isdisjoint((*one[2], *other[2]))


@lru_cache(maxsize=4096)
def change(old: Look, new: Look) -> str:
    """The shortest sequence from one look to another."""
    codes = []
    if set(old[2]) - set(new[2]):  # an attribute ends: the only way all terminals agree on is to start anew
        codes.append("0")
        old = PLAIN
    codes += [code for code in new[2] if code not in old[2]]
    codes += [code for code, before in zip(new[:2], old[:2], strict=True) if code != before]
    return f"\x1b[{';'.join(codes)}m"
