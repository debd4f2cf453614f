"""Tab 2: where every byte of one device is, how that changed, and the allocator's own counters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical

from ...store.view import AllocView, DeviceView, Entity, HostView, TrainerView
from ..accounting import CATEGORIES, Part, by_size, device_parts, largest_freeable, living, torch_parts, trainer_of
from ..cells import bytes_text, percent
from ..session import Session
from ..widgets import waterfall
from ..widgets.counters import COLUMNS as COUNTER_COLUMNS
from ..widgets.counters import counter_rows
from ..widgets.status import short_model, short_script
from ..widgets.table import LiveTable
from ..widgets.text import Lines, wrap
from ..widgets.waterfall import Waterfall
from .pane import Pane

if TYPE_CHECKING:
    from ..charts.stacked import StackedChart

WINDOW_SECONDS = 60.0
WIDE = 100
TALL = 20
CHART_ROWS = 7
FRAME_ROWS = 5
"""Of the waterfall besides its parts: border, rule, total and what it is a part of."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What is looked at: a device, the memory of a trainer on it, or a trainer's memory on the CPU."""

    device: DeviceView | None
    allocator: AllocView | None
    trainer: TrainerView | None

    @property
    def key(self) -> str:
        """Stable while device and trainer live."""
        return f"{self.device.key if self.device else ''}/{self.allocator.key if self.allocator else ''}"

    @property
    def entity(self) -> Entity | None:
        """What Enter opens."""
        return self.trainer or self.device

    @property
    def title(self) -> str:
        """In words."""
        where = (
            f"GPU {self.device.definition.index} {short_model(self.device.definition.name)}" if self.device else "CPU"
        )
        if self.trainer is None:
            return where
        d = self.trainer.definition
        rank = f" rank {d.rank}" if d.rank is not None else ""
        return f"{where} · {short_script(d.script)}{rank} (pid {d.pid})"


def subjects(host: HostView, text: str = "") -> list[Subject]:
    """Everything that can be looked at: each device with each trainer on it, then trainers on the CPU; the last state
    of one that ended there as long as there is nothing else."""
    out: list[Subject] = []
    for device in host.devices:
        out += [Subject(device, a, trainer_of(host, a)) for a in living(device)] or [Subject(device, None, None)]
    unmapped = [Subject(None, a, trainer) for trainer in host.trainers for a in trainer.allocators if a.gpu is None]
    out += [s for s in unmapped if s.trainer and s.trainer.gone is None]
    out = out or unmapped[-1:]
    return [s for s in out if text.casefold() in s.title.casefold()] if text else out


class MemoryPane(Pane, can_focus=True):
    """The waterfall at the left; timeline and counters at the right, below it where the terminal is narrow."""

    DEFAULT_CSS = """
    MemoryPane #subject { height: 1; padding: 0 2; }
    MemoryPane #memory-body, MemoryPane #waterfall, MemoryPane #timeline { height: 1fr; }
    MemoryPane #left, MemoryPane #right { width: 1fr; }
    MemoryPane #advice { padding: 0 2; }
    MemoryPane #counters { height: 14; }
    MemoryPane.narrow #counters { height: 1fr; }
    MemoryPane.narrow #memory-body { layout: vertical; }
    MemoryPane #left, MemoryPane #right { height: 1fr; }
    """

    def __init__(self, session: Session, **kwargs: str) -> None:
        super().__init__(session, **kwargs)
        self._subject = Lines([[("waiting for the first reading", "muted")]], id="subject")
        self._waterfall = Waterfall(id="waterfall", classes="panel")
        self._advice = Lines(id="advice")
        self._right = Vertical(id="right")
        self._table = LiveTable(COUNTER_COLUMNS, empty="no counters", cursor=False, id="counters", classes="panel")
        self._chart: StackedChart | None = None
        self._chosen = ""
        self._counters = False
        self._terminal = (120, 40)
        self._wanted = 0

    def compose(self) -> ComposeResult:
        self._waterfall.border_title = "Where the bytes are"
        self._table.border_title = "Allocator counters"
        self._table.display = False
        yield self._subject
        with Horizontal(id="memory-body"):
            with Vertical(id="left"):
                yield self._waterfall
                yield self._advice
            with self._right:
                yield self._table

    # ── numbers ──

    def _current(self, host: HostView) -> tuple[list[Subject], int]:
        """All subjects and the place of the chosen one: as chosen here, else the device highlighted on the Overview."""
        everything = subjects(host, self.session.state.filter)
        for place, subject in enumerate(everything):
            if subject.key == self._chosen:
                return everything, place
        wanted = self.session.device_key
        return everything, next((i for i, s in enumerate(everything) if s.device and s.device.key == wanted), 0)

    def show(self, host: HostView | None) -> None:
        everything, place = self._current(host) if host else ([], 0)
        if host is None or not everything:
            text = "no device and no trainer to account for" if host else "waiting for the first reading"
            self._subject.show([[(text, "muted")]])
            self._waterfall.show([])
            self._advice.show([])
            return
        subject = everything[place]
        hint = f"   {place + 1} of {len(everything)}, j/k: next" if len(everything) > 1 else ""
        self._subject.show([[(subject.title, "title"), (hint, "faint")]])
        if subject.device is not None:
            parts, total = device_parts(host, subject.device, subject.allocator)
            last = waterfall.Part("used, as nvidia-smi", total, "text")
            foot = self._of_the_card(subject.device)
        else:
            assert subject.allocator is not None
            parts = self._on_cpu(subject.allocator)
            last = waterfall.Part("known", sum(p.known for p in parts), "text")
            foot = "torch counts no other memory on a CPU"
        self._waterfall.show([_row(p) for p in by_size(parts)], last, foot)
        columns = self._terminal[0]
        width = max(30, (columns if columns < WIDE else columns // 2) - 4)
        advice = [piece for line in self._advise(host, subject, parts) for piece in wrap(line, width)]
        self._advice.show(advice)
        wanted = len(parts) + len(advice) + FRAME_ROWS
        if wanted != self._wanted:
            self._wanted = wanted
            self._share_out()
        if self._counters:
            self._table.show_empty("no probe here: nothing counts")
            self._table.show(counter_rows(subject.allocator) if subject.allocator is not None else [])

    @staticmethod
    def _of_the_card(device: DeviceView) -> str:
        """What the total is a part of."""
        used, total = device.number("used_bytes"), device.definition.total_bytes
        free, driver = device.number("free_bytes"), device.number("driver_reserved_bytes")
        notes = []
        if used is not None and total:
            notes.append(f"{percent(100 * used / total)} of the card's {bytes_text(total)}")
        notes += [f"free {bytes_text(free)}"] if free is not None else []
        notes += [f"driver reserve {bytes_text(driver)}"] if driver is not None else []
        return " · ".join(notes)

    @staticmethod
    def _on_cpu(allocator: AllocView) -> list[Part]:
        """Only what the probe counted: torch has no caching allocator for the CPU."""
        known = [p for p in torch_parts(allocator) if p.inside == "allocated"][: len(CATEGORIES)]
        return [Part(p.name, token, p.size) for p, token in zip(known, ("allocated", "cached", "outside"), strict=True)]

    def _advise(self, host: HostView, subject: Subject, parts: list[Part]) -> list[list[tuple[str, str]]]:
        if subject.trainer is not None and subject.trainer.gone:
            return [[("ended: ", "warn"), (f"{subject.trainer.gone.reason}; the last state is shown", "muted")]]
        if subject.device is None:
            process = next((p for p in host.processes if subject.trainer and p.id == subject.trainer.process), None)
            rss = process.number("rss_bytes") if process else None
            resident = f" The process holds {bytes_text(rss)} in all (resident)." if rss is not None else ""
            return [
                [("On a CPU torch keeps no allocator statistics:", "muted")],
                [(f"allocated, cached, outside torch are unknown.{resident}", "muted")],
            ]
        if subject.allocator is None:
            return [[("inside: no probe here. Next run: ", "muted"), ("gpuscope run python train.py", "accent")]]
        largest = largest_freeable(parts)
        if largest is None:
            return [[("Nothing of 64 MiB or more to free.", "muted")]]
        return [
            [("largest to free: ", "muted"), (f"{largest.name}, {bytes_text(largest.known)}", "text")],
            [("how: ", "muted"), (largest.free_by, "accent")],
        ]

    # ── charts ──

    def show_charts(self, host: HostView) -> None:
        from ..charts.stacked import StackedChart
        from ..histories import allocator_layers, device_layers

        everything, place = self._current(host)
        if not everything or not self._right.is_mounted or not self._right.display:
            return
        subject = everything[place]
        if self._chart is None:
            self._chart = StackedChart(id="timeline", classes="panel")
            self._right.mount(self._chart, before=self._table)
            self._share_out()
        if subject.device is not None:
            layers, seconds = device_layers(self.session, host, subject.device, WINDOW_SECONDS)
            capacity = subject.device.definition.total_bytes
        else:
            assert subject.allocator is not None
            layers, seconds = allocator_layers(self.session, subject.allocator, WINDOW_SECONDS)
            capacity = None
        top = float(capacity) if capacity else None
        self._chart.show(layers, seconds, WINDOW_SECONDS, top, now=host.sampled_seconds, title="Timeline")

    # ── room and keys ──

    def fit_to(self, width: int, height: int) -> None:
        self._terminal = (width, height)
        self._share_out()

    def _share_out(self) -> None:
        """Wide: waterfall, timeline and counters. Narrow: the timeline below where the waterfall leaves room, the
        counters instead of both."""
        width, height = self._terminal
        if not self._right.is_mounted:
            return  # still starting, or leaving already
        wide, left = width >= WIDE, self.query_one("#left")
        below = not wide and not self._counters and height >= TALL and height - 4 - self._wanted >= CHART_ROWS
        self.set_class(not wide, "narrow")
        self._right.display = wide or self._counters or below
        left.display = wide or not self._counters
        left.styles.height = self._wanted if below else None
        self._table.display = self._counters
        if self._chart is not None:
            self._chart.display = wide or below

    def take_focus(self) -> None:
        self.focus(scroll_visible=False)

    def _move(self, by: int) -> None:
        host = self.session.host
        if host is None:
            return
        everything, place = self._current(host)
        if everything:
            self._chosen = everything[max(0, min(len(everything) - 1, place + by))].key
            self.show(host)
            self.show_charts(host)

    def do_down(self) -> None:
        """The next subject."""
        self._move(1)

    def do_up(self) -> None:
        """The previous subject."""
        self._move(-1)

    def do_counters(self) -> None:
        """Show or hide the allocator's counters."""
        self._counters = not self._counters
        self._share_out()
        self.show(self.session.host)

    def do_open(self) -> None:
        """Every reading of the trainer, or of the device when no trainer is on it."""
        from .detail import DetailScreen

        host = self.session.host
        everything, place = self._current(host) if host else ([], 0)
        entity = everything[place].entity if everything else None
        if entity is not None:
            self.app.push_screen(DetailScreen(self.session, entity.key))


def _row(part: Part) -> waterfall.Part:
    return waterfall.Part(part.name, part.size, part.token, 1 if part.inside else 0)
