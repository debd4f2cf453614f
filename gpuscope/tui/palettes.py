"""The colours of the themes: what each token of ``theme.py`` looks like in each of them."""

from __future__ import annotations

from typing import Final

# Each is "foreground" or "attributes foreground on background", in rich's style language. A
# terminal's own sixteen colours are what the ansi-dark and ansi-light themes of Textual promise to
# use. Of these, blue is too dark for words on black in many terminals, and bright black is the
# background of some.
_COLOURS: Final = (
    # token       dark                light               colour-blind        a terminal's own
    ("allocated", "#56b4e9",          "#0a82cb",          "#3c78f0",          "blue"),
    ("cached",    "#2f7de0",          "#1a22c2",          "#8769b4",          "cyan"),
    ("outside",   "#b567b5",          "#7a2a88",          "#b4b496",          "magenta"),
    ("other",     "#cfd8e0",          "#39434d",          "#ffffff",          "white"),
    ("driver",    "#6d7883",          "#788590",          "#7d8896",          "bright_black"),
    ("free",      "#6c7786",          "#7a848f",          "#6c7786",          "bright_black"),
    ("unread",    "#8a95a1",          "#5a6570",          "#8a95a1",          "default"),
    ("ok",        "#2fbf91",          "#00704f",          "#6db6ff",          "green"),
    ("warn",      "#f0e442",          "#7d5a00",          "#ffe100",          "bold yellow"),
    ("bad",       "bold #ff7a45",     "bold #b03f00",     "bold #ff8a4c",     "bold red"),
    ("idle",      "#a3adb8",          "#59636e",          "#9aa3ad",          "dim default"),
    ("accent",    "#56b4e9",          "#005f95",          "#a6d2ff",          "bright_blue"),
    ("text",      "#d9dfe6",          "#1f262e",          "#d9dfe6",          "default"),
    ("muted",     "#a3adb8",          "#4f5964",          "#a3adb8",          "default"),
    ("faint",     "#8a95a1",          "#5a6570",          "#8a95a1",          "dim default"),
    ("border",    "#2f3842",          "#c3cad2",          "#2f3842",          "bright_black"),
    ("title",     "bold #f2f5f8",     "bold #0b0f14",     "bold #f2f5f8",     "bold default"),
    ("selected",  "#f2f5f8 on #1d2d3f", "#0b0f14 on #dbe9f6", "#f2f5f8 on #1d2d3f", "bold"),
    ("series1",   "#56b4e9",          "#0a82cb",          "#3c78f0",          "blue"),
    ("series2",   "#2f7de0",          "#1a22c2",          "#8769b4",          "cyan"),
    ("series3",   "#2fbf91",          "#2a8f66",          "#5a871e",          "green"),
    ("series4",   "#b567b5",          "#7a2a88",          "#b4b496",          "magenta"),
    ("series5",   "#b7e87a",          "#768820",          "#96e15a",          "bright_green"),
    ("series6",   "#4a9a2f",          "#0f4a0a",          "#f0b4ff",          "bright_blue"),
    ("series7",   "#7d6b58",          "#ee22cc",          "#ffffbb",          "bright_magenta"),
    ("series8",   "#b2ff00",          "#4d00ff",          "#b2ff00",          "bright_cyan"),
    ("load1",     "#1f5a4a",          "#78bda4",          "#2f4f78",          "blue"),
    ("load2",     "#237a61",          "#55a88b",          "#42719f",          "cyan"),
    ("load3",     "#299b78",          "#2f9272",          "#5793cf",          "green"),
    ("load4",     "#2fbf91",          "#0c7a56",          "#6db6ff",          "bold green"),
    ("badge",     "bold #0d1117 on #cfd8e0", "bold #ffffff on #4c5661", "bold #0d1117 on #cfd8e0",
                  "bold reverse"),
)  # fmt: skip
DARK_PALETTE, LIGHT_PALETTE, COLOUR_BLIND_PALETTE, ANSI_PALETTE = (
    {row[0]: row[theme] for row in _COLOURS} for theme in (1, 2, 3, 4)
)
ANSI_LIGHT_PALETTE: Final = {**ANSI_PALETTE, "other": "black"}
# Without colours a terminal has its own two, and these attributes.
NO_PALETTE: Final = {
    **dict.fromkeys(DARK_PALETTE, "default"),
    **dict.fromkeys(("faint", "border", "free", "unread"), "dim default"),
    **dict.fromkeys(("title", "accent", "warn", "selected"), "bold default"),
    **dict.fromkeys(("bad", "badge"), "bold reverse default"),
}
DARK_SURFACES: Final = {"background": "#0d1117", "surface": "#11161d", "panel": "#161c24"}
LIGHT_SURFACES: Final = {"background": "#fbfcfd", "surface": "#f4f6f8", "panel": "#eceff3"}
