"""Colours and glyphs are readable in both themes, and in one file only.

They are told apart by colour-blind eyes and without colour.
"""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path

import pytest
from rich.color import Color, ColorSystem
from textual.app import App
from textual.theme import BUILTIN_THEMES, Theme

import gpuscope.tui
from gpuscope.model import step_colours
from gpuscope.tui import theme
from gpuscope.tui.background.view_state import ViewState
from gpuscope.tui.charts import chart_series
from gpuscope.tui.device import device_screen
from gpuscope.tui.memory import tables
from gpuscope.tui.overview import charts as overview_charts
from gpuscope.tui.shared import host_trends
from gpuscope.tui.terminal.filters import plain
from gpuscope.tui.theme import Tokens
from gpuscope.tui.time import rows as time_rows
from tests.fakes import inside
from tests.tui.gallery import Gallery
from tests.tui.pilot import in_loop, make_app, until
from tests.tui.snapshots import grid, run

OURS = [pytest.param(one, id=one.name) for one in theme.THEMES]
Triplet = tuple[float, float, float]


def rgb(colour: Color | str | None) -> Triplet:
    colour = Color.parse(colour) if isinstance(colour, str) else colour
    assert colour is not None
    assert colour.triplet is not None
    red, green, blue = (linear(part / 255) for part in colour.triplet)
    return red, green, blue


def linear(part: float) -> float:
    return part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4


def contrast(one: Triplet, other: Triplet) -> float:
    """WCAG 2.1's ratio of two colours, 1..21."""
    light, dark = sorted(
        (0.2126 * r + 0.7152 * g + 0.0722 * b for r, g, b in (one, other)), reverse=True
    )
    return (light + 0.05) / (dark + 0.05)


def grounds(one: Theme) -> dict[str, Triplet]:
    """Everything that text and graphics may stand on."""
    selected = Tokens(one).style("selected").bgcolor
    return {name: rgb(getattr(one, name)) for name in ("background", "surface", "panel")} | {
        "selected": rgb(selected)
    }


@pytest.mark.parametrize("one", OURS)
def test_text_has_a_contrast_of_4_5_on_every_surface(one: Theme) -> None:
    tokens = Tokens(one)
    for token in theme.TEXTS:
        style = tokens.style(token)
        below = {"own": rgb(style.bgcolor)} if style.bgcolor else grounds(one)
        for name, ground in below.items():
            assert contrast(rgb(style.color), ground) >= 4.5, f"{token} on {name}"


@pytest.mark.parametrize("one", OURS)
def test_graphics_have_a_contrast_of_3_on_every_surface(one: Theme) -> None:
    tokens = Tokens(one)
    for token in (*theme.LAYERS, *theme.SERIES):
        for name, ground in grounds(one).items():
            assert contrast(rgb(tokens.colour(token)), ground) >= 3, f"{token} on {name}"


@pytest.mark.parametrize("one", OURS)
def test_the_least_load_is_seen_on_the_ground_of_a_chart(one: Theme) -> None:
    tokens = Tokens(one)
    steps = [contrast(rgb(tokens.colour(load)), rgb(one.background)) for load in theme.LOADS]
    assert steps[0] >= 2
    assert steps == sorted(steps)


# Viénot, Brettel and Mollon (1999): linear RGB as seen without long-wave (protan) or medium-wave
# (deutan) cones.
_BLIND = {
    "normal": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protan": ((0.11238, 0.88762, 0), (0.11238, 0.88762, 0), (0.00401, -0.00401, 1)),
    "deutan": ((0.29275, 0.70725, 0), (0.29275, 0.70725, 0), (-0.02234, 0.02234, 1)),
}


def lab(colour: Triplet) -> Triplet:
    red, green, blue = colour
    xyz = (
        (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.9505,
        0.2126 * red + 0.7152 * green + 0.0722 * blue,
        (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.089,
    )
    x, y, z = (part ** (1 / 3) if part > 0.008856 else 7.787 * part + 16 / 116 for part in xyz)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def distance(one: Triplet, other: Triplet, eyes: str) -> float:
    """CIE 1976 difference of two colours as these eyes see them; about 2 can just be seen."""
    seen = []
    for colour in (one, other):
        parts = [sum(f * c for f, c in zip(row, colour, strict=True)) for row in _BLIND[eyes]]
        seen.append(lab((parts[0], parts[1], parts[2])))
    return sum((a - b) ** 2 for a, b in zip(*seen, strict=True)) ** 0.5


CHARTS = {
    "memory": (*theme.LAYERS[:-1], "warn"),
    "the clock of a training": (*step_colours.TOKENS.values(), step_colours.REST),
    "a look at the GPU": tuple(time_rows.LOOK_TOKENS.values()),
    "a step of a job": tuple(step_colours.SPLIT_TOKENS.values()),
    "curves": theme.SERIES,
    "curves of the Overview": (*overview_charts.TOKENS, "other"),
    "memory by module": tuple(token for _, token in tables.TOKENS),
    "memory of a process": (*(token for _, token, _ in chart_series.COUNTED), "driver"),
    "readings over time": host_trends.KINDS,
    "readings of a GPU": tuple(dict.fromkeys(one.token for one in device_screen.CHARTS[2:])),
    "the Lab": ("series1", "series3", "series4"),
}
"""The tokens that stand together in one chart."""
HUES = {
    chart: tuple(part for part in parts if part != theme.UNREAD) for chart, parts in CHARTS.items()
}
"""Those that differ in colour: what is not known is a texture in every look."""
LEAST_APART = {theme.COLOUR_BLIND: 28, theme.LIGHT: 20}


@pytest.mark.parametrize("eyes", _BLIND)
@pytest.mark.parametrize("one", OURS)
def test_all_that_stands_in_one_chart_differs_for_all_eyes(one: Theme, eyes: str) -> None:
    tokens, least = Tokens(one), LEAST_APART.get(one.name, 12)
    for chart, parts in HUES.items():
        assert len(set(parts)) == len(parts), f"a colour stands twice in {chart}"
        for first, second in combinations(parts, 2):
            gap = distance(rgb(tokens.colour(first)), rgb(tokens.colour(second)), eyes)
            assert gap >= least, f"{first} and {second} in {chart}: {gap:.1f}"


@pytest.mark.parametrize("one", OURS)
def test_with_256_colours_all_that_stands_in_one_chart_still_differs(one: Theme) -> None:
    tokens = Tokens(one)
    for chart, parts in HUES.items():
        colours = [tokens.colour(part).downgrade(ColorSystem.EIGHT_BIT) for part in parts]
        for first, second in combinations(colours, 2):
            pair = [Color.from_triplet(colour.get_truecolor()) for colour in (first, second)]
            gap = distance(rgb(pair[0]), rgb(pair[1]), "normal")
            assert gap >= 12, f"{chart}: {first.number} and {second.number}"


@pytest.mark.parametrize("name", ["ansi-dark", "ansi-light"])
def test_with_sixteen_colours_no_chart_has_one_of_them_twice(name: str) -> None:
    styles = theme.palette(BUILTIN_THEMES[name])
    for chart, parts in HUES.items():
        drawn = [styles[part] for part in parts]
        assert len(set(drawn)) == len(drawn), f"{chart}: {drawn}"


@pytest.mark.parametrize("glyphs", [theme.MONOCHROME, theme.ASCII], ids=["monochrome", "ascii"])
def test_without_colour_no_stacked_chart_has_a_pattern_twice(glyphs: theme.Glyphs) -> None:
    for chart, parts in CHARTS.items():
        if not set(parts) & {"series1", "series2", "series4"}:  # those are lines, or have one each
            fills = [glyphs.fill(part) for part in parts]
            assert len(set(fills)) == len(fills), f"{chart}: {fills}"


@pytest.mark.parametrize("eyes", _BLIND)
def test_in_the_colour_blind_theme_every_state_is_far_from_every_other(eyes: str) -> None:
    tokens = Tokens(next(one for one in theme.THEMES if one.name == theme.COLOUR_BLIND))
    for first, second in combinations(theme.STATES, 2):
        gap = distance(rgb(tokens.colour(first)), rgb(tokens.colour(second)), eyes)
        assert gap >= 28, f"{first} and {second}: {gap:.1f}"


@pytest.mark.parametrize("glyphs", [theme.MONOCHROME, theme.ASCII], ids=["monochrome", "ascii"])
def test_without_colour_every_layer_has_its_own_glyph(glyphs: theme.Glyphs) -> None:
    assert len({glyphs.fill(layer) for layer in theme.LAYERS}) == len(theme.LAYERS)
    assert len({glyphs.line(n) for n in range(6)}) == 6
    assert len({glyphs.ok, glyphs.warn, glyphs.bad, glyphs.idle, glyphs.shared}) == 5


def test_ascii_glyphs_are_ascii() -> None:
    glyphs = theme.ASCII
    texts = [
        getattr(glyphs, name) for name in glyphs._fields if isinstance(getattr(glyphs, name), str)
    ]
    drawn = [*texts, *glyphs.patterns.values(), *(m + g for m, g in glyphs.lines)]
    assert all(text.isascii() for text in drawn)
    assert not any("?" in text for text in drawn), "that is a character which cannot be shown"


@pytest.mark.parametrize("glyphs", [theme.UNICODE, theme.MONOCHROME], ids=["colour", "monochrome"])
def test_each_glyph_that_a_text_may_keep_has_a_likeness_in_ascii(glyphs: theme.Glyphs) -> None:
    texts = [one for name in glyphs._fields if isinstance(one := getattr(glyphs, name), str)]
    assert "?" not in plain("".join([*texts, *glyphs.patterns.values()]))


@pytest.mark.parametrize("sign", "■▶×≈≠≡✓✖ø±µ…–·")
def test_a_sign_within_a_text_has_a_likeness_in_ascii(sign: str) -> None:
    assert plain(sign) != "?"


def test_every_theme_has_every_token() -> None:
    for one in [*theme.THEMES, *BUILTIN_THEMES.values()]:
        tokens = Tokens(one)
        for token in theme.TOKENS:
            tokens.style(token)
        assert set(theme.css_variables(one)) == {f"gs-{token}" for token in theme.TOKENS}


def test_specs() -> None:
    tokens = Tokens(theme.THEMES[0])
    style = tokens.style("bold allocated on cached")
    assert style.bold
    assert style.color == tokens.colour("allocated")
    assert style.bgcolor == tokens.colour("cached")
    assert tokens.style("text on selected").bgcolor == tokens.style("selected").bgcolor
    with pytest.raises(KeyError):
        tokens.style("alocated")


def test_tokens_are_made_once_for_a_look_and_follow_the_theme() -> None:
    async def body(pilot: object) -> None:
        app: App[None] = pilot.app  # type: ignore[attr-defined]
        dark = Tokens.of(app)
        assert Tokens.of(app) is dark
        app.theme = theme.LIGHT
        await pilot.pause()  # type: ignore[attr-defined]
        assert Tokens.of(app).key != dark.key
        shown = {style.color for row in grid(app) for _, style in row if style.color}
        assert Tokens.of(app).colour("allocated") in shown
        assert dark.colour("allocated") not in shown

    run(Gallery, body, 120, 40)


@pytest.mark.parametrize("name", ["nord", "ansi-dark", "ansi-light", "textual-light"])
def test_the_widgets_work_under_themes_that_are_not_ours(name: str) -> None:
    async def body(pilot: object) -> None:
        app: App[None] = pilot.app  # type: ignore[attr-defined]
        text = "\n".join("".join(char for char, _ in row) for row in grid(app))
        assert "optimizer state" in text

    run(lambda: Gallery(name), body, 120, 40)


def test_no_colour_is_written_anywhere_else() -> None:
    room = Path(gpuscope.tui.__file__).parent
    colour = re.compile(r"#[0-9a-fA-F]{6}\b|#[0-9a-fA-F]{3}\b(?!\w)|\brgba?\(|\bhsla?\(|\bansi_\w+")
    found = [
        f"{path.relative_to(room)}: {match[0]}"
        for path in [*room.rglob("*.py"), *room.rglob("*.tcss")]
        if path.name not in ("palettes.py", "theme.py")
        for match in colour.finditer(path.read_text(encoding="utf-8"))
        if not re.fullmatch(r"#\d{3}", match[0])
    ]
    assert not found


def test_without_colour_no_alarm_is_a_square_that_reverse_video_hides():
    assert theme.MONOCHROME.stall not in "■█" + theme.MONOCHROME.bad


def test_without_colour_what_is_wrong_is_not_dimmer_than_the_text_around_it():
    tokens = Tokens(theme.THEMES[0], monochrome=True)
    assert tokens.style("bad").color == tokens.style("warn").color == tokens.style("title").color
    assert tokens.style("bad").bold
    assert tokens.style("bad").reverse, "an alarm is the first thing that is seen"
    assert not tokens.style("warn").reverse


@pytest.mark.parametrize("name", theme.THEME_NAMES)
@in_loop
async def test_no_color_leaves_every_theme_the_two_colours_of_the_terminal(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    own = {None, Color.default()}
    app = make_app(inside.crowded(60.0), state=ViewState(theme=name))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "train.py", "Host")
        assert app.theme == theme.THEME_NAMES[name]
        cells = [cell for row in grid(app) for cell in row]
        assert {style.color for _, style in cells} <= own
        assert {style.bgcolor for _, style in cells} <= own
        frames = [style for char, style in cells if char == "╮"]
        assert any(style.dim for style in frames), "those without the keyboard stay behind"
        assert not all(style.dim for style in frames)
        await pilot.press("slash")
        await until(pilot, "Drop it")
        typing = [style for row in grid(app)[-2:] for _, style in row]
        assert sum(bool(style.reverse) for style in typing) == 1, "the place that one types at"
        await pilot.press("escape", "t")
        await until(pilot, "NO_COLOR hides its colours")
