"""Show every widget of the terminal interface with numbers that are plainly made up.

It is to look at, and for snapshots.

``python -m tests.tui.gallery`` opens it; ``python -m tests.tui.picture --gallery`` makes pictures
of it.
"""

from __future__ import annotations

import math

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.filter import LineFilter

from gpuscope.text import styled
from gpuscope.text.units import GIB, amount_text, percent_text
from gpuscope.tui import theme
from gpuscope.tui.charts.line import LineChart, Series
from gpuscope.tui.charts.spark import spark
from gpuscope.tui.charts.stack_columns import Layer
from gpuscope.tui.charts.stacked import StackedChart
from gpuscope.tui.memory.waterfall import Part, WaterfallChart
from gpuscope.tui.terminal.filters import Guard, PlainAscii
from gpuscope.tui.terminal.minimal_updates import LeanApp
from gpuscope.tui.widgets.bars import Bar, Meter
from gpuscope.tui.widgets.table import Column, LiveTable, TableRow
from gpuscope.tui.widgets.text import Lines
from gpuscope.wire.frames import Unknown

CAPACITY = 140 * GIB
COLUMNS = (
    Column("index", "#", 2, align="right"),
    Column("name", "MODEL", 9, most=18, flex=1, priority=5),
    Column("utilisation", "UTIL", 4, align="right"),
    Column("load", "", 8, flex=2, most=20, priority=6),
    Column("vram", "VRAM", 14, flex=6),
    Column("used", "USED/TOTAL GiB", 14, align="right"),
    Column("temperature", "TEMP", 5, align="right", priority=2),
    Column("power", "POWER", 8, align="right", priority=3),
    Column("history", "60 s", 12, priority=7),
    Column("state", "STATE", 10),
)


def device_rows() -> list[TableRow]:
    rows = []
    states = ["ok", "ok", "shared", "bad", "ok", "warn", "ok", "idle"]
    words = {
        "ok": ("●", "ok"),
        "shared": ("◇", "shared"),
        "bad": ("▲", "OOM risk"),
        "warn": ("◆", "input-bound"),
        "idle": ("○", "idle"),
    }
    for i in range(8):
        state = states[i]
        allocated = 0 if state == "idle" else (52 + 3 * i) * GIB
        cached = 0 if state == "idle" else (14 + (40 if state == "bad" else 0)) * GIB
        other = 21.6 * GIB if state == "shared" else 0
        driver = 0.6 * GIB
        used = allocated + cached + other + driver
        load: float | Unknown = (
            Unknown("not_supported", "made up")
            if i == 4
            else (0.0 if state == "idle" else 49.0 if state == "warn" else 86.0 + i)
        )
        token = {"shared": "accent"}.get(state, state)
        glyph, word = words[state]
        rows.append(
            TableRow(
                f"gpu-{i}",
                {
                    "index": str(i),
                    "name": [("H200 ", "text"), ("made up", "faint")],
                    "utilisation": [("–", "muted")]
                    if isinstance(load, Unknown)
                    else [
                        (
                            percent_text(load / 100),
                            "idle" if not load else "warn" if load < 60 else "ok",
                        )
                    ],
                    "load": Meter(
                        load, "warn" if not isinstance(load, Unknown) and 0 < load < 60 else "ok"
                    ),
                    "vram": Bar(
                        (
                            (allocated, "allocated"),
                            (cached, "cached"),
                            (other, "other"),
                            (driver, "driver"),
                        ),
                        CAPACITY,
                    ),
                    "used": [
                        (amount_text(used), "warn" if state == "bad" else "text"),
                        ("/140", "faint"),
                    ],
                    "temperature": f"{46 + 3 * i}°C",
                    "power": [(f"{92 + 70 * i}", "text"), ("/700W", "faint")],
                    "history": [
                        (
                            spark([50 + 45 * math.sin(n / 3 + i) for n in range(40)], 12, 100),
                            "series1",
                        )
                    ],
                    "state": [(glyph + " ", token), (word, token)],
                },
            )
        )
    return rows


def seconds_axis(count: int = 121, rate: float = 2.0) -> list[float]:
    return [1000 + n / rate for n in range(count)]


def utilisation() -> list[Series]:
    seconds = seconds_axis()
    square = [
        86.0 + 6 * math.sin(n / 5) if n % 30 < 18 else 42.0 + 3 * math.sin(n) for n in range(121)
    ]
    return [
        Series("GPU 3", "series1", seconds, [93 + 5 * math.sin(n / 6) for n in range(121)]),
        Series("GPU 5, the worst", "series2", seconds, square),
        Series(
            "mean",
            "series3",
            seconds,
            [None if 60 < n < 75 else 78 + 7 * math.sin(n / 17) for n in range(121)],
        ),
    ]


def layers() -> tuple[list[Layer], list[float]]:
    seconds = seconds_axis()
    allocated = [None if 50 < n < 56 else (75 + 18 * math.sin(n / 8)) * GIB for n in range(121)]
    return [
        Layer("allocated", "allocated", allocated),
        Layer("cached", "cached", [(118 - 75 - 14 * math.sin(n / 8)) * GIB for n in range(121)]),
        Layer("outside", "outside torch", [2.4 * GIB] * 121),
        Layer("other", "other processes", [(9.0 if n % 25 < 9 else 0.0) * GIB for n in range(121)]),
        Layer("driver", "driver", [0.6 * GIB] * 121),
    ], seconds


def parts() -> tuple[list[Part], Part, str]:
    return (
        [
            Part("optimizer state", 34.0 * GIB, "allocated"),
            Part("cached, not in use", 38.1 * GIB, "cached"),
            Part("parameters", 17.0 * GIB, "allocated"),
            Part("activations", 19.5 * GIB, "allocated"),
            Part("attention.py:88", 11.0 * GIB, "allocated", indent=1),
            Part("mlp.py:41", 7.9 * GIB, "allocated", indent=1),
            Part("gradients", 8.5 * GIB, "allocated"),
            Part("outside torch", 2.4 * GIB, "outside"),
            Part("driver", 0.6 * GIB, "driver"),
            Part("other processes", Unknown("hidden_by_container", "made up"), "other"),
        ],
        Part("in use", 120.1 * GIB, "text"),
        "86 % of the card's 140 GiB · free 19.9 GiB",
    )


class Gallery(LeanApp[None]):
    """All widgets on one screen."""

    CSS = """
    Screen { background: $background; }
    LiveTable, LineChart, StackedChart, WaterfallChart, #notes {
        border: round $gs-border; border-title-color: $gs-title; border-title-style: bold;
        border-subtitle-align: right; padding: 0 1;
    }
    LiveTable:focus { border: round $gs-accent; }
    #status { background: $panel; height: 1; }
    #devices { height: 11; }
    #notes { height: 1fr; }
    """
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, theme_name: str = theme.DARK, ascii_only: bool = False) -> None:
        super().__init__()
        theme.register(self)
        self.ascii_only = ascii_only
        self.theme = theme_name

    def get_line_filters(self) -> list[LineFilter]:
        return [*super().get_line_filters(), PlainAscii() if self.ascii_only else Guard()]

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return theme.css_variables(self.current_theme)

    def compose(self) -> ComposeResult:
        yield Lines(id="status")
        yield LiveTable(COLUMNS, id="devices")
        with Horizontal():
            yield LineChart(id="line")
            yield StackedChart(id="stacked")
        with Horizontal():
            yield WaterfallChart(id="waterfall")
            with Vertical():
                yield Lines(id="notes")
                yield LiveTable(
                    (Column("a", "EMPTY", 8),),
                    empty="no trainer here yet: gpuscope run train.py",
                )

    def on_mount(self) -> None:
        titles = {
            "devices": "GPUs · made up",
            "line": "Utilisation %",
            "stacked": "VRAM of GPU 3 · GiB",
            "waterfall": "Where GPU 3's memory is",
            "notes": "Texts",
        }
        for name, title in titles.items():
            self.query_one(f"#{name}").border_title = title
        self.call_after_refresh(self.fill)

    def fill(self) -> None:
        left = [
            (" gpuscope ", "bold accent"),
            ("  node-17  ", "title"),
            ("8×H200", "text"),
            ("  driver 580.82  CUDA 13.0", "muted"),
        ]
        status = self.query_one("#status", Lines)
        status.show(
            [styled.spread(left, [("2 Hz · self 0.9 % · 09:41:07 ", "muted")], self.size.width)]
        )
        self.query_one("#devices", LiveTable).show(device_rows())
        self.query_one("#line", LineChart).show(utilisation(), 60, 0, 100)
        stacked, seconds = layers()
        self.query_one("#stacked", StackedChart).show(stacked, seconds, 60, CAPACITY)
        self.query_one("#waterfall", WaterfallChart).show(*parts())
        self.query_one("#notes", Lines).show(
            [
                [
                    ("▲ ", "bad"),
                    ("Rank 3 runs out of memory in about 19 steps", "text"),
                    (" (14–26)", "muted"),
                ],
                [("◆ ", "warn"), ("GPU 5 waits for data 31 % of the step", "text")],
                [
                    ("● ", "ok"),
                    ("bf16 autocast is on", "text"),
                    (" · 深層学習 🙂 e\u0301tude", "muted"),
                ],
                [
                    ("○ ", "idle"),
                    ("idle since 2 min", "muted"),
                    ("   " + spark([1, 2, 3, None, 5, 8, 13, 8, 5], 12), "series3"),
                ],
                [
                    ("accent ", "accent"),
                    ("faint ", "faint"),
                    ("muted ", "muted"),
                    ("title", "title"),
                    (" selected ", "selected"),
                    (" REPLAY ", "badge"),
                ],
                [(f"{token} ", token) for token in theme.SERIES],
                [("hostile \x1b]52;c;AAAA\x1b\\ \u202egnirts", "text")],
            ]
        )


if __name__ == "__main__":
    Gallery().run()
