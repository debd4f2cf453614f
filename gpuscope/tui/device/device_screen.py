"""This screen shows everything about one GPU.

That is what it does and what that means, its history, its health, who is on it, and what it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NamedTuple

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll

from ...model.device_state import judge
from ...text.units import GIB, window_text
from ..charts.line import Series
from ..shell.keymap import bindings_of
from ..widgets.charted_screen import TOKENS, WINDOWS, ChartedScreen
from ..widgets.pane import set_title
from ..widgets.program import program
from ..widgets.text import Lines
from . import text as words
from .inventory_text import inventory_lines
from .load_text import load_lines

if TYPE_CHECKING:
    from ...store.view import DeviceView, History, HostView
    from ..shell.session import Session

TALL = 32


class Chart(NamedTuple):
    """Columns of one chart, with the top of its axis and its unit."""

    title: str
    columns: tuple[tuple[str, str], ...]
    top: float | None
    unit: str
    scale: float = 1.0


CHARTS = (
    Chart(
        "Load %",
        (
            ("GPU-Util", "utilization_percent"),
            ("SM", "sm_active_percent"),
            ("tensor", "tensor_active_percent"),
            ("DRAM", "dram_active_percent"),
        ),
        100.0,
        " %",
    ),
    Chart("Memory GiB", (("used", "used_bytes"),), None, "", 1 / GIB),
    Chart(
        "Power W, temperature °C",
        (("power", "power_watts"), ("temp.", "temperature_celsius")),
        None,
        "",
    ),
    Chart("Clock MHz", (("SM", "sm_clock_mhz"), ("memory", "memory_clock_mhz")), None, ""),
    Chart(
        "Traffic MB/s",
        (
            ("NVLink out", "nvlink_tx_bytes_per_second"),
            ("NVLink in", "nvlink_rx_bytes_per_second"),
            ("PCIe out", "pcie_tx_bytes_per_second"),
            ("PCIe in", "pcie_rx_bytes_per_second"),
        ),
        None,
        "",
        1e-6,
    ),
)


class DeviceScreen(ChartedScreen):
    BINDINGS: ClassVar[list[BindingType]] = [*bindings_of("DeviceScreen")]

    def __init__(self, session: Session, key: str) -> None:
        super().__init__(session, key, histories=len(CHARTS), charts=3)
        self._load, self._state = Lines(classes="panel"), Lines(classes="panel")
        self._health, self._users = Lines(classes="panel"), Lines(classes="panel")
        self._facts = Lines(classes="panel")

    def compose(self) -> ComposeResult:
        for panel, title in (
            (self._load, "Load"),
            (self._state, "Now"),
            (self._health, "Health"),
            (self._users, "Processes"),
            (self._facts, "Identity"),
        ):
            panel.border_title = title
        yield self.head
        with Horizontal(id="columns"):
            with VerticalScroll(id="left", can_focus=False):
                yield self._load
                yield self._state
                yield self._health
                yield self._facts
            with Vertical(id="right"):
                yield self._users
                yield from self._charts
        yield self.foot

    def _found(self) -> tuple[HostView | None, DeviceView | None]:
        host = self.session.host
        return host, next(
            (d for d in host.devices if d.key == self._key), None
        ) if host is not None else None

    def _show(self) -> None:
        width, height = self.terminal
        host, device = self._found()
        if host is None or device is None:
            self._missing("GPU")
            return
        self._present(words.head(host, device))
        cells = max(30, (width // 2 if self.wide else width) - 5)
        glyphs = self._load.tokens.glyphs
        small = height < TALL
        state = judge(host, device, self.session.history)
        self._load.show(load_lines(device, cells, 6 if small else 12, glyphs, state))
        set_title(self._state, "Then" if self.session.standing_text() else "Now")
        self._state.show(words.state_lines(host, device, cells, self.session.history))
        self._health.show(words.health_lines(device, cells))
        self._users.show(
            words.process_lines(host, device, 4 if small else max(4, height // 6), cells)
        )
        self._facts.show(inventory_lines(host, device, cells))

    def _draw(self) -> None:
        host, device = self._found()
        if not self.is_attached or host is None or device is None:
            return
        window = WINDOWS[self._window]
        for chart, number in self._visible(self.terminal[1] - 2 - (self._users.rows + 2)):
            what = CHARTS[number]
            series, told = [], 0.0
            for token, (label, column) in zip(TOKENS, what.columns, strict=False):
                past = self.session.history(device.id, column, window)
                values = [None if v is None else v * what.scale for v in past.values]
                if any(v is not None for v in values):
                    series.append(Series(label, token, past.seconds, values))
                    told = max(told, _told_seconds(past))
            source = f"; first {told:.0f} s from the driver's samples" if told >= 1 else ""
            set_title(chart, f"{what.title}, {window_text(window)}{source}")
            chart.show(
                series,
                window,
                0.0,
                what.top,
                what.unit,
                now=host.sampled_seconds,
                ago=self.session.ago_seconds,
            )

    # ── keys ──

    def action_device(self, by: int) -> None:
        """The next GPU of the host."""
        host, device = self._found()
        if host is None or not host.devices:
            return
        at = host.devices.index(device) if device is not None else 0
        self._key = host.devices[(at + by) % len(host.devices)].key
        self.session.device_key = self._key
        self.moved()

    def action_holders(self) -> None:
        """Who has the device open, by the open files of all processes."""
        _, device = self._found()
        if device is not None:
            program(self.app).open("holders", device)


def _told_seconds(past: History) -> float:
    """Return how many seconds of a history lie before anybody looked here."""
    known = (at for at, v in zip(past.seconds, past.values, strict=True) if v is not None)
    first = next(known, None)
    return 0.0 if first is None or past.seen_since is None else max(past.seen_since - first, 0.0)
