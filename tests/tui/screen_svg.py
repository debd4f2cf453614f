"""Draw terminal screens as one SVG, still or moving.

Bars, charts and lines are drawn as shapes, so that they have no seams and look alike whatever font
the reader has. Text is fitted to its cells. One picture may have several scenes that take turns.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

from rich.color import Color
from rich.style import Style
from rich.terminal_theme import TerminalTheme

Cell = tuple[str, Style]
Grid = Sequence[Sequence[Cell]]
Rect = tuple[float, float, float, float]

WIDE, HIGH, FONT = 8.4, 18.0, 14
EDGE, TITLE = 10.0, 30.0
FAMILY = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"
GROUND, TEXT, FRAME, CAPTION, MARK = "#0d1117", "#d9dfe6", "#30363d", "#f2f5f8", "#ff7a45"
THEME = TerminalTheme((13, 17, 23), (217, 223, 230), [(13, 17, 23)] * 8)

LOWER, LEFT = "▁▂▃▄▅▆▇█", "▏▎▍▌▋▊▉█"
# For each line character, the arms that leave the middle of its cell: left, right, up, down.
ARMS = {
    "─": "lr", "│": "ud", "┌": "rd", "╭": "rd", "┐": "ld", "╮": "ld", "└": "ru", "╰": "ru",
    "┘": "lu", "╯": "lu", "├": "rud", "┤": "lud", "┬": "lrd", "┴": "lru", "┼": "lrud",
    "╶": "r", "╴": "l", "╵": "u", "╷": "d",
}  # fmt: skip
DOTS = ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (0, 3), (1, 3))
"""Column and row of each bit of a Braille character."""


@dataclass
class Scene:
    """One screen with what is written above it and how long it is shown."""

    caption: str
    grid: Grid
    seconds: float = 4.0
    mark: str = ""
    """A regular expression for the words that a frame is drawn around, "" for none."""


@dataclass
class Drawing:
    """What has been drawn of one screen, by colour."""

    shapes: dict[str, list[Rect]] = field(default_factory=lambda: defaultdict(list))
    grounds: dict[str, list[Rect]] = field(default_factory=lambda: defaultdict(list))
    texts: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))


def grid_of_text(printed: str, width: int) -> Grid:
    """The cells of what a command printed, its lines broken where the terminal ends."""
    rows: list[list[Cell]] = []
    for line in printed.splitlines():
        cells = [(char, Style(bold=line.startswith("$ "))) for char in line]
        rows += [cells[at : at + width] for at in range(0, len(cells), width)] or [[]]
    return rows


def svg(scenes: Sequence[Scene], width: int) -> str:
    """The picture of these scenes, which take turns where there are several."""
    height = max(len(scene.grid) for scene in scenes)
    across, down = width * WIDE + 2 * EDGE, height * HIGH + TITLE + EDGE
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_n(across)} {_n(down)}"'
        f' font-family="{FAMILY}" font-size="{FONT}">',
        _styles(scenes),
        f'<rect x=".5" y=".5" width="{_n(across - 1)}" height="{_n(down - 1)}" rx="8"'
        f' fill="{GROUND}" stroke="{FRAME}"/>',
    ]
    for number, scene in enumerate(scenes):
        parts.append(f'<g class="s s{number}">' if len(scenes) > 1 else "<g>")
        parts.append(
            f'<text x="{_n(across / 2)}" y="20" text-anchor="middle" font-weight="bold"'
            f' fill="{CAPTION}">{escape(scene.caption)}</text>'
        )
        parts.append(f'<g transform="translate({_n(EDGE)} {_n(TITLE)})">')
        parts.extend(_screen(scene))
        parts.append("</g></g>")
    return "\n".join([*parts, "</svg>", ""])


def _styles(scenes: Sequence[Scene]) -> str:
    """The rules by which scenes take turns; who wants no motion sees the first one."""
    rules = ["text{white-space:pre}"]
    if len(scenes) > 1:
        whole, begun = sum(one.seconds for one in scenes), 0.0
        rules.append(f".s{{visibility:hidden;animation:{_n(whole)}s step-end infinite}}")
        for number, one in enumerate(scenes):
            start, end = 100 * begun / whole, 100 * (begun + one.seconds) / whole
            begun += one.seconds
            steps = "" if number == 0 else "0%{visibility:hidden}"
            steps += f"{_n(start)}%{{visibility:visible}}"
            steps += "" if number == len(scenes) - 1 else f"{_n(end)}%{{visibility:hidden}}"
            rules.append(f"@keyframes k{number}{{{steps}}}.s{number}{{animation-name:k{number}}}")
        rules.append(
            "@media (prefers-reduced-motion:reduce){.s{animation:none}.s0{visibility:visible}}"
        )
    return f"<style>{''.join(rules)}</style>"


def _screen(scene: Scene) -> Iterable[str]:
    drawing = Drawing()
    for y, row in enumerate(scene.grid):
        _row(drawing, row, y)
    for colour, rects in drawing.grounds.items():
        yield f'<path fill="{colour}" d="{_path(rects)}"/>'
    for colour, rects in drawing.shapes.items():
        yield f'<path fill="{colour}" d="{_path(_joined(rects))}"/>'
    for attributes, texts in drawing.texts.items():
        yield f"<g {attributes}>{''.join(texts)}</g>"
    if scene.mark:
        yield _frame(scene)


def _row(drawing: Drawing, row: Sequence[Cell], y: int) -> None:
    x = 0
    while x < len(row):
        char, style = row[x]
        fore, back = colours(style)
        end = x + 1
        while end < len(row) and row[end][1] == style:
            end += 1
        if back != GROUND:
            drawing.grounds[back].append((x * WIDE, y * HIGH, (end - x) * WIDE, HIGH))
        run = [char for char, _ in row[x:end]]
        words = ""
        for at, char in enumerate(run):
            shapes = shapes_of(char)
            for left, top, wide, high in shapes or ():
                rect = ((x + at + left) * WIDE, (y + top) * HIGH, wide * WIDE, high * HIGH)
                drawing.shapes[fore].append(rect)
            words += char if shapes is None else " " * (char != "")
        _write(drawing, words, x, y, fore, style)
        x = end


def _write(drawing: Drawing, words: str, x: int, y: int, fore: str, style: Style) -> None:
    """Pieces of text between wide gaps, each fitted to the cells it takes."""
    attributes = f'fill="{fore}"' + (' font-weight="bold"' if style.bold else "")
    attributes += ' text-decoration="underline"' if style.underline else ""
    begin = 0
    for piece in words.split("  "):
        shown = piece.strip()
        if shown:
            start = x + begin + len(piece) - len(piece.lstrip())
            drawing.texts[attributes].append(
                f'<text x="{_n(start * WIDE)}" y="{_n(y * HIGH + 13)}"'
                f' textLength="{_n(len(shown) * WIDE)}">{escape(shown)}</text>'
            )
        begin += len(piece) + 2


def shapes_of(char: str) -> list[Rect] | None:
    """The rectangles of a character in a cell of 1 × 1, or None where it is to be written."""
    if char in LOWER and char:
        part = (LOWER.index(char) + 1) / 8
        return [(0, 1 - part, 1, part)]
    if char in LEFT and char:
        return [(0, 0, (LEFT.index(char) + 1) / 8, 1)]
    if char in ("▀", "▔"):
        return [(0, 0, 1, 0.5 if char == "▀" else 1 / 8)]
    if char == "▐":
        return [(0.5, 0, 0.5, 1)]
    if char in ARMS:
        thin, flat = 1 / WIDE, 1 / HIGH
        middle = (1 - thin) / 2, (1 - flat) / 2
        arm = {
            "l": (0, middle[1], 0.5, flat),
            "r": (middle[0], middle[1], 1 - middle[0], flat),
            "u": (middle[0], 0, thin, 0.5),
            "d": (middle[0], middle[1], thin, 1 - middle[1]),
        }
        return [arm[one] for one in ARMS[char]]
    if "\u2800" <= char <= "\u28ff":
        bits = ord(char) - 0x2800
        return [
            (0.5 * column + 0.13, 0.25 * row + 0.07, 0.24, 0.11)
            for bit, (column, row) in enumerate(DOTS)
            if bits >> bit & 1
        ]
    return [] if not char.strip() else None


def colours(style: Style) -> tuple[str, str]:
    """The colour of the writing and of the ground behind it."""
    fore = _hex(style.color, TEXT, True)
    back = _hex(style.bgcolor, GROUND, False)
    return (back, fore) if style.reverse else (fore, back)


def _hex(colour: Color | None, otherwise: str, foreground: bool) -> str:
    if colour is None or colour.is_default:
        return otherwise
    return colour.get_truecolor(THEME, foreground).hex


def _joined(rects: Sequence[Rect]) -> list[Rect]:
    """Those that touch side by side, and then those that touch one above the other, as one."""
    for near, size, other in ((0, 2, (1, 3)), (1, 3, (0, 2))):
        joined: list[list[float]] = []
        for rect in sorted(rects, key=lambda one: (*(round(one[i], 3) for i in other), one[near])):
            last = joined[-1] if joined else None
            if (
                last is not None
                and all(abs(last[i] - rect[i]) < 0.01 for i in other)
                and rect[near] - 0.01 <= last[near] + last[size]
            ):
                last[size] = max(last[size], rect[near] + rect[size] - last[near])
            else:
                joined.append(list(rect))
        rects = [(one[0], one[1], one[2], one[3]) for one in joined]
    return list(rects)


def _path(rects: Iterable[Rect]) -> str:
    return "".join(
        f"M{_n(x)} {_n(y)}h{_n(wide)}v{_n(high)}h{_n(-wide)}z" for x, y, wide, high in rects
    )


def _frame(scene: Scene) -> str:
    """A frame around the words that the scene is about."""
    for y, row in enumerate(scene.grid):
        found = re.search(scene.mark, "".join(char or " " for char, _ in row))
        if found:
            return (
                f'<rect x="{_n(found.start() * WIDE - 4)}" y="{_n(y * HIGH - 1)}" rx="5"'
                f' width="{_n(len(found[0]) * WIDE + 8)}" height="{_n(HIGH + 2)}"'
                f' fill="none" stroke="{MARK}" stroke-width="2"/>'
            )
    raise ValueError(f"“{scene.mark}” does not stand on the screen “{scene.caption}”")


def _n(value: float) -> str:
    """A number in as few characters as its tenth part of a pixel needs."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text in ("", "-0") else text.replace("0.", ".", 1) if text[0] == "0" else text
