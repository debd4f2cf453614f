"""This dialog shows every reading of a device, a trainer or a process.

Where a reading is missing, it gives the reason. It is what Enter opens from a list.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ...collect.clock_events import clock_event_words
from ...model.device_state import judge
from ...model.job_ends import end_text
from ...store.view import (
    DeviceView,
    Entity,
    HistoryOf,
    HostView,
    ProcView,
    TrainerView,
    no_history,
)
from ...text import styled
from ...text.clock import DATE_AND_SECOND, clock_text
from ...text.styled import Line
from ...text.units import bytes_text, duration_text, percent_text
from ...wire.frames import Reading, Unknown
from ..cells import fit
from ..charts.strips import text_of
from ..memory.timeline import WINDOWS
from ..shared.device_state_text import token_of
from ..shell.entries import Hint
from ..shell.keymap import keys_of
from ..shell.session import Session
from ..widgets.full_screen import absent, footer_keys, not_now
from ..widgets.program import program
from ..widgets.text_dialog import TextDialog
from .sparklines import course_lines

NAME_CELLS = 30
OURS = ("start", "proc", "gpu", "trainer")
"""Of a definition: numbers that mean something to the wire only."""
CLOCKS = ("idle_since_seconds",)
"""Readings that are moments on the host's clock: shown as ages elsewhere."""
MOMENTS = ("start_time",)
"""Seconds since the epoch."""
NAMES = {
    "log_step": "step, from its log",
    "log_total": "total steps, from its log",
    "log_loss": "loss, from its log",
    "log_epoch": "epoch of this step, from its log",
    "log_age_seconds": "age of its log's last line",
    "idle_seconds": "idle for, at least",
    "step_seconds": "seconds per step, median",
    "step_seconds_p95": "seconds per step, p95",
    "step_seconds_mean": "seconds per step, mean",
    "step_seconds_hour_ago": "seconds per step, an hour ago",
}
COUNTS = (
    "step",
    "collectives",
    "progress_done",
    "progress_total",
    "skipped_steps",
    "log_step",
    "log_total",
    "log_epoch",
)
"""Whole numbers that count; others are identifiers."""
UNITS = ("_bytes", "_percent", "_watts", "_celsius", "_mhz", "_seconds")


class DetailScreen(TextDialog):
    """A dialog of all readings of one entity, kept up to date while it is open.

    Enter closes it, as it has opened it.
    """

    def __init__(self, session: Session, key: str) -> None:
        super().__init__()
        self.session = session
        self._key = key
        self._window = WINDOWS[1]
        self._title = "Readings"
        self._framed: object = None

    def on_mount(self) -> None:
        self.set_interval(1.0, self.redraw)

    def wrapped(self) -> list[Line]:
        host = self.session.host
        entity = find(host, self._key) if host else None
        if host is None or entity is None:
            return [[(absent(self.session), "muted")]]
        self._title = title_of(entity)
        lines = styled.hang_lines(detail_lines(host, entity, self.session.history), self.cells)
        glyphs = self.lines.tokens.glyphs
        return [*lines, *course_lines(self.session, entity, self.cells, self._window, glyphs)]

    def redraw(self) -> None:
        super().redraw()
        if self.is_open:
            self._frame()

    def _frame(self) -> None:
        """What it is and of which moment, and the keys that lead to another."""
        tokens = self.lines.tokens
        state = not_now(self.session)
        drawn = [(self._title, "title"), *([(" ", "text")] if state else []), *state]
        if drawn != self._framed:
            self._framed = drawn
            self.body.border_title = text_of(drawn, tokens)
        self._show_keys()

    def own_keys(self) -> list[Hint]:
        return footer_keys(self.session, keys_of(type(self)))

    async def action_look(self, name: str) -> None:
        """Stop, go on or move in time by this action of the registry."""
        await program(self.app).action_do(name)
        self.redraw()

    def action_zoom(self, by: int) -> None:
        """The courses below over a longer or shorter time."""
        self._window = WINDOWS[min(max(WINDOWS.index(self._window) + by, 0), len(WINDOWS) - 1)]
        self.redraw()


def find(host: HostView, key: str) -> Entity | None:
    everything: Iterable[Entity] = (*host.devices, *host.trainers, *host.processes)
    return next((entity for entity in everything if entity.key == key), None)


def title_of(entity: Entity) -> str:
    """Return what the dialog is called."""
    if isinstance(entity, DeviceView):
        return f"GPU {entity.definition.index}"
    if isinstance(entity, TrainerView):
        rank = f", rank {entity.definition.rank}" if entity.definition.rank is not None else ""
        return f"Trainer {entity.definition.pid}{rank}"
    return f"Process {entity.definition.pid}" if isinstance(entity, ProcView) else "Readings"


def detail_lines(host: HostView, entity: Entity, history: HistoryOf = no_history) -> Iterable[Line]:
    """Definition, state, readings; a trainer's allocators and a device's users below."""
    if entity.gone:
        yield [(end_text(entity.gone), "warn")]
    if isinstance(entity, DeviceView):
        verdict = judge(host, entity, history)
        yield _fact(
            "state",
            f"{verdict.word}{': ' if verdict.reason else ''}{verdict.reason}",
            token_of(verdict),
        )
    definition = getattr(entity, "definition", None)
    for name in (n for n in getattr(definition, "__dataclass_fields__", ()) if n not in OURS):
        value = getattr(definition, name)
        if value is None:
            why = entity.readings.get(name)
            yield _fact(name, why.text if isinstance(why, Unknown) else "–", "faint")
        else:
            yield _fact(name, value_text(name, value))
    yield []
    yield from _readings(entity.readings)
    if isinstance(entity, TrainerView):
        for allocator in entity.allocators:
            where = (
                "the CPU"
                if allocator.definition.ordinal < 0
                else f"cuda:{allocator.definition.ordinal}"
            )
            yield []
            yield [(f"Memory on {where}", "title")]
            yield from _readings(allocator.readings)
    if isinstance(entity, DeviceView):
        yield from _users(host, entity)


def _users(host: HostView, device: DeviceView) -> Iterable[Line]:
    yield []
    yield [("Processes", "title")]
    processes = {p.id: p for p in host.processes}
    living = [u for u in device.uses if u.gone is None and u.process in processes]
    for use in living:
        d = processes[use.process].definition
        reading = use.reading("used_bytes")
        size = reading.text if isinstance(reading, Unknown) else bytes_text(float(reading))
        yield [
            (f"{d.pid:>8}  {fit(d.user or '?', 12)} {fit(size, 12, 'right')}  ", "text"),
            (d.command or d.name or "", "muted"),
        ]
    if not living:
        yield [("  none reported by the driver", "muted")]


def _readings(readings: Mapping[str, Reading]) -> Iterable[Line]:
    for name, reading in readings.items():
        if name in CLOCKS:
            continue
        if isinstance(reading, Unknown):
            yield _fact(name, f"unknown: {reading.text}", "faint")
        else:
            yield _fact(name, value_text(name, reading))


def _fact(name: str, value: str, token: str = "text") -> Line:
    title = NAMES.get(name, name)
    for unit in UNITS:
        title = title.removesuffix(unit)
    return [(fit(title.replace("_", " "), NAME_CELLS), "muted"), (value, token)]


def value_text(name: str, value: object) -> str:
    """Return a value with the unit its name tells."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return (
            {True: "yes", False: "no"}.get(value, str(value))
            if isinstance(value, bool)
            else str(value)
        )
    if name.endswith("_bytes"):
        return bytes_text(value)
    if name in MOMENTS:
        return clock_text(value, DATE_AND_SECOND)
    if name == "clock_event_reasons":
        return ", ".join(clock_event_words(int(value), harmless=True)) or "none"
    if name == "performance_state":
        return f"P{value:.0f}"
    if name.endswith("_percent"):
        return percent_text(value / 100)
    if "_seconds" in name:
        return duration_text(value)
    for unit, text in (("_watts", " W"), ("_celsius", " °C"), ("_mhz", " MHz")):
        if name.endswith(unit):
            return f"{value:.0f}{text}"
    counts = name in COUNTS or name.endswith("_count")
    return f"{value:,.6g}" if isinstance(value, float) else f"{value:,}" if counts else str(value)
