"""This is the one place where colours and glyphs are decided.

It has the tokens, our themes, and what NO_COLOR and ASCII get instead.

Widgets name a *token* ("allocated", "warn", "muted"), never a colour. A style spec is a small
sentence around tokens: ``"muted"``, ``"bold text"``, ``"allocated on cached"`` (foreground of
the first, on the colour of the second).

The hues are Okabe and Ito's (2008) set for colour-blind readers, lightened or darkened until
text reaches a contrast of 4.5 and graphics 3 (WCAG 2.1) on every surface of its theme. Colour
never stands alone: a state has a glyph and a word, and without colour each layer of VRAM has its
own glyph.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from copy import copy
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rich.color import Color as RichColor
from rich.style import Style
from textual.theme import Theme

from ..text import signs
from .palettes import (
    ANSI_LIGHT_PALETTE,
    ANSI_PALETTE,
    COLOUR_BLIND_PALETTE,
    DARK_PALETTE,
    DARK_SURFACES,
    LIGHT_PALETTE,
    LIGHT_SURFACES,
    NO_PALETTE,
)

if TYPE_CHECKING:
    from textual.app import App

_ATTRIBUTES: Final = frozenset(("bold", "dim", "italic", "underline", "reverse", "strike", "not"))
LAYERS: Final = ("allocated", "cached", "outside", "other", "driver", "free")
"""The layers of a card's memory, bottom to top: torch's live tensors, torch's cache (reserved -
allocated), what the process holds outside torch, other processes, the driver's reserve, free.
"""
GREYS: Final = ("driver", "idle")
"""What several small parts of something are drawn in together: the first that none of them has."""
UNREAD: Final = "unread"
"""The layer of what nobody has read: a sparse texture in every look, as a fill is an amount."""
SERIES: Final = ("series1", "series4", "series3", "series2", "series5", "series6")
"""The curves of a chart, in the order in which they are used: the first ones differ the most."""
RARE: Final = ("series7", "series8")
"""What is seldom more than a thin layer, and no curve beside six others."""
STATES: Final = ("ok", "warn", "bad", "idle")
TEXTS: Final = ("text", "muted", "faint", "title", "accent", *STATES, "badge", "selected")
"""Tokens that colour text: contrast at least 4.5 on every surface."""
LOADS: Final = ("load1", "load2", "load3", "load4")
"""A load by quarters, from little to much. Their height says the same, so that none of them needs a
contrast of its own.
"""
TOKENS: Final = (*LAYERS, UNREAD, *TEXTS, "border", *SERIES, *RARE, *LOADS)

DARK: Final = "gpuscope-dark"
LIGHT: Final = "gpuscope-light"
COLOUR_BLIND: Final = "gpuscope-colour-blind"
"""Dark, and every state, and every part of a chart, far from every other for protan and deutan eyes
(CIE 1976: at least 28, in the other themes at least 12); it gives up that green means well.
"""

THEME_NAMES: Final = {
    "dark": DARK,
    "light": LIGHT,
    "colour-blind": COLOUR_BLIND,
    "ansi": "ansi-dark",
}
"""Names in the settings and on every screen → names that Textual has for the themes."""


FRAMES: Final = frozenset(
    colour.triplet or colour.number
    for colour in (
        RichColor.parse(palette["border"])
        for palette in (ANSI_PALETTE, COLOUR_BLIND_PALETTE, DARK_PALETTE, LIGHT_PALETTE)
    )
)
"""The colours of what only divides the screen, as the colour itself or its number of sixteen."""


def grey_beside(tokens: Collection[str]) -> str:
    """Return the colour of parts that are drawn as one, beside all that have a colour themselves.

    It is never that of one of them: what is joined is no more of it than it is of another.
    """
    return next((token for token in GREYS if token not in tokens), GREYS[-1])


def next_theme(now: str) -> str:
    """Return the name, in the settings, of the theme after the one that Textual calls ``now``."""
    names, themes = list(THEME_NAMES), list(THEME_NAMES.values())
    return names[(themes.index(now) + 1) % len(names) if now in themes else 0]


def palette(theme: Theme) -> dict[str, str]:
    """Return the style of each token in rich's language, for any theme.

    The theme is one of ours, one of Textual's others (by darkness), or the sixteen colours.
    """
    if theme.ansi:
        return ANSI_PALETTE if theme.dark else ANSI_LIGHT_PALETTE
    if theme.name == COLOUR_BLIND:
        return COLOUR_BLIND_PALETTE
    return DARK_PALETTE if theme.dark else LIGHT_PALETTE


def css_variables(theme: Theme) -> dict[str, str]:
    """Return each token's colour as a CSS variable ``$gs-TOKEN``.

    ``selected`` and ``badge`` have their background. An app returns these from
    ``get_theme_variable_defaults`` so that its stylesheets work under every theme.
    """
    return {
        f"gs-{token}": f"ansi_{colour}" if theme.ansi else colour
        for token, colour in ((token, _colour(spec)) for token, spec in palette(theme).items())
    }


def _colour(spec: str) -> str:
    """Return the colour of a style in rich's language.

    It is the one after ``on``, else the last word that is no attribute.
    """
    last = spec.rsplit(" ", 1)[-1]
    return "default" if last in _ATTRIBUTES else last


def _theme(name: str, dark: bool, colours: dict[str, str], surfaces: dict[str, str]) -> Theme:
    plain = {token: _colour(spec) for token, spec in colours.items()}
    text = plain["text"]
    return Theme(
        name=name,
        dark=dark,
        primary=plain["accent"],
        secondary=plain["muted"],
        warning=plain["warn"],
        error=plain["bad"],
        success=plain["ok"],
        accent=plain["accent"],
        foreground=text,
        background=surfaces["background"],
        surface=surfaces["surface"],
        panel=surfaces["panel"],
        variables={
            "border": plain["accent"],
            "border-blurred": plain["border"],
            "block-cursor-background": plain["selected"],
            "block-cursor-foreground": plain["title"],
            "block-cursor-text-style": "none",
            "footer-background": surfaces["panel"],
            "footer-key-foreground": plain["accent"],
            "scrollbar": plain["border"],
            "scrollbar-background": surfaces["background"],
            **{f"gs-{token}": colour for token, colour in plain.items()},
        },
    )


def _parse(colours: dict[str, str]) -> dict[str, Style]:
    return {token: Style.parse(spec) for token, spec in colours.items()}


THEMES: Final = (
    _theme(DARK, True, DARK_PALETTE, DARK_SURFACES),
    _theme(LIGHT, False, LIGHT_PALETTE, LIGHT_SURFACES),
    _theme(COLOUR_BLIND, True, COLOUR_BLIND_PALETTE, DARK_SURFACES),
)

# ── glyphs ────────────────────────────────────────────────────────────────────────────────────────


class Glyphs(NamedTuple):
    """What bars, lines and states are drawn with.

    ``across`` and ``up`` go from empty to full in eighths.
    """

    across: str = " ▏▎▍▌▋▊▉█"
    up: str = " ▁▂▃▄▅▆▇█"
    track: str = "▁"  # the unused rest of a bar
    bar: str = "━"  # a slim bar, its end in the middle of a cell, and its unused rest
    half: str = "╸"
    idling: str = "╍"  # a slim bar of a load that is no progress
    tight: str = "╋"  # what of a slim bar lies beyond the limit of a warning
    groove: str = "─"
    high: str = "▔"  # the same at the upper edge of a cell
    upper: str = "▀"  # the upper half of a cell, where a stack stands on its axis
    unknown: str = "┄"  # a reading that is not there
    dash: str = "–"
    ellipsis: str = "…"
    cursor: str = "▸"
    ok: str = "●"
    warn: str = signs.WARN
    bad: str = signs.BAD
    idle: str = signs.INFO
    shared: str = "◇"
    oom: str = "▲"
    spared: str = "△"  # an OOM that the training survived
    retry: str = "↻"
    stall: str = "■"
    phase: str = "│"
    begin: str = "▸"
    step: str = "╵"
    moment: str = "│"  # on a bar of what was most: what it is now
    dashes: str = "╌"  # a line across a chart
    hatch: str = "░"  # a load that is no progress
    sparse: str = "⠢"  # what nobody has read
    about: str = "≈"
    opened: str = "▾"
    closed: str = "▸"
    eighths: bool = True
    """Parts of a cell can be drawn."""
    patterns: Mapping[str, str] = MappingProxyType({})
    """Where layers are not told apart by colour: the glyph of each. A cell then belongs to one
    layer as a whole.
    """
    lines: tuple[tuple[str, str], ...] = (("braille", "━"),)
    """How line 1, 2 … of a chart is drawn (plotext's marker) and shown in the legend, repeated from
    the start.
    """

    def fill(self, token: str) -> str:
        """Return the glyph that fills a cell with ``token``."""
        if token == UNREAD:
            return self.sparse
        return self.patterns.get(token, self.across[-1])

    def line(self, number: int) -> tuple[str, str]:
        """Marker and legend glyph of line ``number``, from 0."""
        return self.lines[number % len(self.lines)]


UNICODE: Final = Glyphs()
MONOCHROME: Final = Glyphs(
    track="·",
    groove="·",
    tight="!",
    stall="□",  # a filled square disappears in the reverse video of an alarm
    dashes="━",  # across patterns a broken line would be one more of them
    patterns={  # calm ones, that differ by weight
        "allocated": "█",
        "cached": "▒",
        "outside": "░",
        "other": "⠶",
        "driver": "╳",
        "idle": "┼",
        "series3": "▓",
        "series5": "⠿",
        "series6": "╱",
        "series7": "≡",
        "series8": "╲",
        "warn": "!",
        "free": "·",
    },
    lines=(
        ("braille", "⣀⣀"),
        ("○", "○○"),
        ("━", "━━"),
        ("×", "××"),
        ("+", "++"),
        ("=", "=="),
    ),
)
ASCII: Final = Glyphs(
    across="    -####",
    up=" ..--==##",
    track=".",
    bar="=",
    half="-",
    groove="-",
    high="=",
    upper="-",
    tight="!",
    unknown="~",  # a "?" stands for a character that a terminal cannot show
    dash="-",
    ellipsis="~",
    cursor=">",
    ok="o",
    warn="*",
    bad="!",
    idle="-",
    shared="+",
    oom="!",
    spared="^",
    retry="r",
    stall="#",
    phase="|",
    begin=">",
    step="'",
    moment="|",
    dashes="-",
    hatch=":",
    sparse=",",
    idling=":",
    about="~",
    opened="-",
    closed="+",
    eighths=False,
    patterns={
        "allocated": "#",
        "cached": "=",
        "outside": "%",
        "other": "+",
        "driver": "x",
        "idle": "-",
        "series3": "o",
        "series5": "/",
        "series6": ":",
        "series7": "*",
        "series8": "@",
        "warn": "!",
        "free": ".",
    },
    lines=(("*", "*"), ("+", "+"), ("o", "o"), ("x", "x"), ("=", "="), ("%", "%")),
)

# ── tokens ────────────────────────────────────────────────────────────────────────────────────────


class Tokens:
    """The styles and glyphs of one look: theme, colour or not, Unicode or not.

    They are immutable and cached; compare them by ``key``.
    """

    def __init__(self, theme: Theme, *, monochrome: bool = False, ascii_only: bool = False) -> None:
        self.key: tuple[object, ...] = (theme.name, monochrome, ascii_only)
        self.ground: Style | None = None
        self.inverts_alarms = monochrome
        self.glyphs = ASCII if ascii_only else MONOCHROME if monochrome else UNICODE
        self._styles = _parse(NO_PALETTE if monochrome else palette(theme))
        self._specs: dict[str, Style] = {}
        self._drawn: dict[str, Style] = {}
        self._on: dict[RichColor, Tokens] = {}

    @classmethod
    def of(cls, app: App[Any]) -> Tokens:
        """Return the tokens for what ``app`` shows now.

        ``app.ascii_only`` (optional attribute) asks for plain ASCII.
        """
        look = (app.theme, app.no_color, bool(getattr(app, "ascii_only", False)))
        found = _of.get(look)
        if found is None:
            theme = app.current_theme  # dear: Textual puts all its themes together for it
            found = _of[look] = _tokens(theme.name, theme.dark, theme.ansi, *look[1:])
        return found

    def on(self, ground: RichColor) -> Tokens:
        """The same look on a background: what :meth:`drawn` gives has it."""
        found = self._on.get(ground)
        if found is None:
            found = self._on[ground] = copy(self)
            found.key = (*self.key, ground)
            found.ground = Style(bgcolor=ground)
            found._drawn, found._specs = {}, {}
        return found

    def drawn(self, spec: str) -> Style:
        """Return the style of a spec as it goes to the terminal.

        It is on the background of this look, unless the spec names one.
        """
        found = self._drawn.get(spec)
        if found is None:
            style = self.style(spec)
            found = self._drawn[spec] = style if self.ground is None else self.ground + style
        return found

    def style(self, spec: str) -> Style:
        """Return the rich style of a spec: attributes, a token, ``on`` a token.

        Attributes are bold, dim, italic, underline and reverse. Raises KeyError for a token
        that does not exist: a misspelt token is a bug, not a colour.
        """
        found = self._specs.get(spec)
        if found is None:
            found = self._specs[spec] = self._parse(spec)
        return found

    def _parse(self, spec: str) -> Style:
        front, _, back = spec.partition(" on ")
        style = Style()
        for word in front.split():
            style += Style.parse(word) if word in _ATTRIBUTES else self._styles[word]
        if back:
            below = self._styles[back]
            style += Style(bgcolor=below.bgcolor or below.color)
        return style

    def colour(self, token: str) -> RichColor | None:
        """Return the colour of a token; None where a look has none."""
        return self._styles[token].color


_of: dict[tuple[str, bool, bool], Tokens] = {}
"""By the name of a theme, and whether there are colours and more than ASCII."""


@lru_cache(maxsize=16)
def _tokens(name: str, dark: bool, ansi: bool, monochrome: bool, ascii_only: bool) -> Tokens:
    # Only what decides the palette is part of the key: a theme object cannot be hashed.
    return Tokens(
        Theme(name=name, primary="#000000", dark=dark, ansi=ansi),
        monochrome=monochrome,
        ascii_only=ascii_only,
    )


def register(app: App[Any]) -> None:
    """Make our themes known to ``app``.

    It still chooses one: ``app.theme = DARK``.
    """
    for theme in THEMES:
        app.register_theme(theme)
