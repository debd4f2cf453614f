"""Tab 2: where every byte of one device is, how that changed, and the allocator's own counters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical

from ...store.view import AllocView, DeviceView, Entity, HostView, TrainerView
from ..accounting import CATEGORIES, Part, by_size, device_parts, largest_freeable, living, torch_parts, trainer_of
from ..cells import bytes_text
from ..session import Session
from ..widgets import waterfall
from ..widgets.counters import COLUMNS as COUNTER_COLUMNS
from ..widgets.counters import counter_rows
from ..widgets.status import short_model, short_script
from ..widgets.table import LiveTable
from ..widgets.text import Lines, wrap
from ..widgets.waterfall import Waterfall
from .pane import Pane, set_title

if TYPE_CHECKING:
    from ..charts.stacked import StackedChart

WINDOW_SECONDS = 60.0
WIDE = 100
TALL = 20


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
    """Everything that can be looked at: each device with each trainer on it, then trainers on the CPU."""
    out: list[Subject] = []
    for device in host.devices:
        allocators = living(device) or device.allocators
        out += [Subject(device, a, trainer_of(host, a)) for a in allocators] or [Subject(device, None, None)]
    mapped = {a.id for d in host.devices for a in d.allocators}
    for trainer in host.trainers:
        out += [Subject(None, a, trainer) for a in trainer.allocators if a.id not in mapped]
    return [s for s in out if text.casefold() in s.title.casefold()] if text else out


class MemoryPane(Pane, can_focus=True):
    """The waterfall at the left; timeline and counters at the right, below it where the terminal is narrow."""

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
        self._wide = True
        self._tall = True

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
            capacity = subject.device.definition.total_bytes
            last = waterfall.Part("used, as nvidia-smi", total, "text", self._total_note(subject.device))
        else:
            assert subject.allocator is not None
            parts, capacity = self._on_cpu(subject.allocator), None
            known = sum(p.known for p in parts)
            last = waterfall.Part("known", known, "text", "torch counts no other memory on a CPU")
        self._waterfall.show([_row(p) for p in by_size(parts)], last, float(capacity) if capacity else None)
        width = max(30, (self._advice.size.width or 50) - 1)
        self._advice.show([piece for line in self._advise(host, subject, parts) for piece in wrap(line, width)])
        if self._counters and subject.allocator is not None:
            self._table.show(counter_rows(subject.allocator))

    @staticmethod
    def _total_note(device: DeviceView) -> str:
        free, driver = device.number("free_bytes"), device.number("driver_reserved_bytes")
        notes = [f"free {bytes_text(free)}"] if free is not None else []
        notes += [f"driver reserve {bytes_text(driver)}"] if driver is not None else []
        return ", ".join(notes)

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
        from ..histories import allocator_layers, device_layers, scaled

        everything, place = self._current(host)
        if not everything or not self._right.display:
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
        layers, unit = scaled(layers) if capacity is None else (layers, "GiB")
        set_title(self._chart, f"Timeline, {unit}")
        self._chart.show(
            layers, seconds, WINDOW_SECONDS, float(capacity) if capacity else None, now=host.sampled_seconds
        )

    # ── room and keys ──

    def fit_to(self, width: int, height: int) -> None:
        self._wide, self._tall = width >= WIDE, height >= TALL
        self._share_out()

    def _share_out(self) -> None:
        """Narrow: one of waterfall and counters; wide: both, and the timeline."""
        self.set_class(not self._wide, "narrow")
        self._right.display = self._wide or self._counters
        self.query_one("#left").display = self._wide or not self._counters
        self._table.display = self._counters
        if self._chart is not None:
            self._chart.display = self._wide

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
    return waterfall.Part(part.name, part.size, part.token, "", 1 if part.inside else 0)
