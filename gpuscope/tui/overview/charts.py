"""The charts of the Overview: a row of two or three, and where there is room another.

plotext costs its import only where a chart of lines has room.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from textual.containers import Horizontal, Vertical

from ...model.device_state import mute
from ...model.ranks import label_among, of_one_job, running
from ...model.step_time import input_columns, input_share
from ...text.units import GIB, duration_text, window_text
from ..charts.axes import loss_axis, nominal
from ..charts.strips import Painted
from ..shared.host_text import why_unknown
from ..shared.job_rows import loss_text
from ..shell.clock_at import clock_at
from ..terminal.soon import once_after_refresh
from ..theme import SERIES
from ..widgets.pane import set_title
from .drawn_trainers import drawn_trainers, tells_loss, worst_first

if TYPE_CHECKING:
    from ...store.view import DeviceView, History, HostView, TrainerView
    from ..charts.line import Series
    from ..shell.session import Session
    from .job_brief import JobBrief

WINDOW_SECONDS = 60.0
AXIS_ROWS = 2
TOKENS = ("series2", "series3", "series4", "series5")
MOST_CURVES = 4
"""Of more GPUs only the one under the cursor has a curve of its own."""
MOST_HIGH_ROWS = 24
"""Of the first row of charts where the job below it has no use for more."""

LANES = {"paces": ("step_seconds", duration_text), "losses": ("loss", loss_text)}
"""What stands in a lane for each of several jobs, for on one axis only the largest would be seen.
"""
FIGURES = ("strips", "few strips", "trends", *LANES)
"""The charts that name the value of now."""
AS_IN_GPUS = "as in GPUs"
"""In place of a legend that does not fit."""
NO_TRAINER = "no trainer with a probe"


def kinds_for(
    host: HostView, rows: int, second: bool, across: int = 2, quiet: bool = False
) -> list[tuple[str, ...]]:
    """Return which charts stand in each row, of which the first has ``rows`` lines inside.

    Several GPUs have a lane each, as long as each lane has a line. What no trainer reports gives
    its place to what the host knows by itself. There are two or three charts ``across``. On a
    ``quiet`` host no GPU works: the host's own load takes the place of theirs.
    """
    living = [trainer for trainer in host.trainers if trainer.gone is None]
    loss = any(tells_loss(host, trainer) for trainer in living)
    waits = any(input_share(trainer) is not None for trainer in living)
    first: tuple[str, ...]
    below: tuple[str, ...]
    load = "strips" if rows > len(host.devices) else "few strips"
    if across > 2:
        first = ("trends",) if quiet or not host.devices else (load, "vram", "trends")
        below = ("brief",) if living and not quiet else ()
    elif not host.devices:
        first, below = ("cpu", "host_memory"), ()
        if living:  # the training first: the host is also named beside the reason for no GPU
            other = "loss" if loss else "input" if waits else "cpu"
            first = ("step", other)
            below = ("host_memory",) if other == "cpu" else ("cpu", "host_memory")
    elif quiet:
        first, below = ("trends",), ()
    else:
        first = (load, "vram", "power", "cpu")
        below = ("step", "loss", "cpu") if loss else ("step", "power", "cpu")
    if len(living) > 1 and not of_one_job(living):
        several = {"step": "paces", "loss": "losses"}
        first, below = (tuple(several.get(one, one) for one in row) for row in (first, below))
    return [first[:across], below[:across]] if second and below else [first[:across]]


def last_ended(host: HostView) -> list[TrainerView]:
    """Return the ranks of the job that ended last, while the host remembers them."""
    gone = [(one.gone.monotonic_seconds, one.id, one) for one in host.trainers if one.gone]
    job = host.job_of(max(gone)[2]) if gone else None
    return list(job.trainers) if job is not None else []


def shows_load(kinds: list[tuple[str, ...]]) -> bool:
    """Return whether the load of every GPU over time is among these charts."""
    return any("strips" in row for row in kinds)


class Charts(Vertical):
    """Rows of charts about one host and the device under the cursor."""

    DEFAULT_CSS = """
    Charts { height: 1fr; }
    Charts > Horizontal { height: 1fr; }
    Charts > Horizontal > * { width: 2fr; height: 1fr; }
    Charts > Horizontal > Trends { width: 3fr; }
    """

    def __init__(self, session: Session, draw: Callable[[], None], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.session = session
        self._draw = draw
        """Draws them all, with what is known by then."""
        self.window = self._span = WINDOW_SECONDS
        self.rows = 0
        """Lines inside the first row."""
        self.first_rows = self.least_rows = 0
        """The usual and the least height of the first row where there are two, 0 for all there is.
        """
        self.job = ""
        """The key of the job that is told more of where there is room."""
        self.order: Sequence[str] = ()
        """The keys of the jobs as a table has them, the worst first."""
        self._kinds: list[tuple[str, ...]] = []
        self._made: dict[str, Any] = {}
        self._drawn: tuple[object, ...] = ()
        self._end: tuple[float | None, float | None] = (None, None)
        """Where the charts end: the moment, and its wall clock where that is not now."""
        self._moment: float | None = None
        """That of the figures."""
        self._height_set: tuple[object, int] = ("1fr", 0)

    def on_mount(self) -> None:
        """Draw what came before the charts were here."""
        once_after_refresh(self, self._draw)

    def give(self, rows: int, second: bool, least: int) -> None:
        """Take ``rows`` inside the first row, which has ``least`` at least above a second one."""
        self.rows = rows
        self.first_rows, self.least_rows = (rows + 2, least) if second else (0, 0)

    def choose(self, kinds: list[tuple[str, ...]]) -> None:
        """Show these charts in these rows."""
        if not self.is_attached:  # also once the program ends: Textual then mounts nothing more
            return
        if kinds == self._kinds:
            self._set_heights()
            return
        self._kinds, self._made, self._drawn = kinds, {}, ()
        self.remove_children()
        for row in kinds:
            for kind in row:
                self._made[kind] = _make(kind, self.session)
            self.mount(Horizontal(*(self._made[kind] for kind in row)))
        once_after_refresh(self, self._draw)  # their sizes are known then

    def _set_heights(self) -> None:
        rows = self.query("Charts > Horizontal")
        wanted: int | str = self.first_rows or "1fr"
        brief = self._made.get("brief")
        if self.first_rows and brief is not None and brief.wanted:  # its texts are whole
            left = min(self.size.height - brief.wanted, MOST_HIGH_ROWS)
            wanted = max(self.least_rows or self.first_rows, left)
        if rows and self._height_set != (wanted, len(rows)):
            self._height_set = (wanted, len(rows))
            rows.first().styles.height = wanted
            once_after_refresh(self, self._draw)

    def show(self, host: HostView, device: DeviceView | None) -> None:
        """Draw what time has brought; over a long time, only what has moved by a column.

        All are drawn at once: beside each other they end at the same moment. Where ``device`` has
        no readings, they are of the next one that has.
        """
        from ..memory.timeline import column_of

        asked, device = device, _with_readings(host, device)
        key = (
            column_of(host.sampled_seconds, self.window),
            clock_at(self.session, host) is None,
            self.window,
            device.key if device is not None else None,
            tuple(self._kinds),
            [chart.size for chart in self._made.values()],
            self.app.theme,
            host.key,
        )
        if self.window > WINDOW_SECONDS and key == self._drawn:
            self.show_figures(host, device)
            return
        self._drawn, self._span, self._moment = key, self._fitted(host), None
        self._end = host.sampled_seconds, clock_at(self.session, host)
        self.show_figures(host, device)
        for kind, chart in self._made.items():
            if kind == "brief":
                chart.show(host, self.job, self._span, clock_at(self.session, host))
                self._set_heights()
            elif kind == "vram" and device is not None:
                self._show_vram(chart, host, device, asked)
            elif kind not in ("vram", *FIGURES):
                self._show_lines(kind, chart, host, device)

    def show_figures(self, host: HostView, device: DeviceView | None) -> None:
        """Draw the charts that name the value of now with each of its samples: so does a table.

        Their courses end where those of the other charts do.
        """
        moment, end = host.sampled_seconds, self._end[0]
        if moment == self._moment or moment is None or end is None or moment < end:
            return
        self._moment, device = moment, _with_readings(host, device)
        for kind, chart in self._made.items():
            if kind == "strips":
                self._show_strips(chart, host)
            elif kind == "few strips" and device is not None:
                self._show_few_strips(chart, host, device)
            elif kind == "trends":
                self._show_trends(chart, host, device)
            elif kind in LANES:
                self._show_lanes(kind, chart, host)

    def show_job(self, host: HostView) -> None:
        """Bring the texts about the job up to date, which are no charts: they come with numbers."""
        if "brief" in self._made:
            clock = clock_at(self.session, host)
            self._made["brief"].show(host, self.job, self._span, clock, curve=False)

    def _fitted(self, host: HostView) -> float:
        """Return the seconds to show: a minute is shorter as long as less is known."""
        from ..shared.windows import shortest_window

        now = host.sampled_seconds
        if self.window > WINDOW_SECONDS or now is None:
            return self.window
        firsts = [
            past.seconds[0]
            for entity, column in (
                (host.id, "cpu_percent"),
                *((device.id, "utilization_percent") for device in host.devices[:1]),
            )
            if len(past := self.session.history(entity, column, WINDOW_SECONDS))
        ]
        known = now - min(firsts, default=now - WINDOW_SECONDS)
        return shortest_window(known, WINDOW_SECONDS)

    @property
    def _over(self) -> str:
        """The end of a title that names the time charts show, where it is not the usual one."""
        return f", {window_text(self._span)}" if self._span > WINDOW_SECONDS else ""

    def _history(self, entity: int, column: str, scale: float = 1.0) -> History:
        past = self.session.history(entity, column, self._span)
        if scale == 1.0:
            return past
        return type(past)(
            past.seconds, tuple(None if v is None else v * scale for v in past.values)
        )

    def _show_strips(self, chart: Any, host: HostView) -> None:
        from ..charts.load_lanes import LOADS, gpu_lanes

        if not host.devices:
            return  # another host came between the layout and this picture
        rows = self.rows - AXIS_ROWS
        parts = max(min(rows // (2 * len(host.devices)), len(LOADS)), 1)
        lanes = gpu_lanes(self.session.history, host, host.devices, self._span, parts)
        set_title(chart, f"GPU utilisation{self._over}")
        chart.show(lanes, self._span, *self._end)

    def _show_few_strips(self, chart: Any, host: HostView, device: DeviceView) -> None:
        """Show the load of the device under the cursor, the mean, and the least of the busy ones.

        There is no line for each. Devices that did nothing in this time are not the least busy.
        """
        from ..charts.chart_series import average, mean_over
        from ..charts.load_lanes import gpu_lanes
        from ..charts.load_strips import Lane

        past = self.session.history
        sound = [one for one in host.devices if mute(one) is None]
        means = {one.id: average(self._history(one.id, "utilization_percent")) for one in sound}
        busy = [one for one in sound if (means[one.id] or 0.0) >= 1]
        least = min(busy, key=lambda one: means[one.id] or 0.0, default=None)
        lanes = []
        for one in (device, *([least] if least is not None and least.id != device.id else ())):
            (lane,) = gpu_lanes(past, host, [one], self._span, 1)
            is_least = least is not None and one.id == least.id
            which = ", lowest mean" if is_least else ""
            lanes.append(replace(lane, label=f"GPU {one.definition.index}{which}"))
        mean = mean_over(past, sound, "utilization_percent", self._span)
        lanes.insert(1, Lane(f"mean of {len(sound)}", mean))
        set_title(chart, f"GPU utilisation{self._over}")
        shown = lanes[: max(chart.size.height - AXIS_ROWS, 1)]
        chart.show(shown, self._span, *self._end)

    def _show_trends(self, chart: Any, host: HostView, device: DeviceView | None) -> None:
        from ..shared.host_trends import (
            ROOMY_TREND_ROWS,
            host_trends,
            more_host_readings,
            trainer_trends,
        )

        living = self._worst_first(host)
        ended = [] if living else last_ended(host)  # how a training went stays to be seen
        past = trainer_trends(self.session, ended, self._span) if ended else ()
        trends = [replace(one, label=f"{one.label}, ended") for one in past]
        rows = chart.size.height - len(trends)
        trends += host_trends(self.session, host, device, living, self._span, rows)
        if chart.size.height >= ROOMY_TREND_ROWS * len(trends):
            trends += more_host_readings(self.session, host, self._span)
        set_title(chart, f"Last {window_text(self._span)}")
        chart.show(trends, self._span, *self._end)

    def _show_lanes(self, kind: str, chart: Any, host: HostView) -> None:
        from ..charts.trends import Trend

        column, say = LANES[kind]
        lanes = [
            Trend(
                label_among(one, running(host.trainers)),
                token,
                self._past_of(one, column),
                say,
                floor=None if kind == "losses" else 0.0,
                step_age=one.number("step_age_seconds"),
            )
            for token, one in zip(TOKENS, self._drawn_trainers(host, column), strict=False)
        ]
        set_title(chart, f"{'Loss' if kind == 'losses' else 'Median step'}{self._over}")
        chart.show(lanes, self._span, *self._end)

    def _past_of(self, trainer: TrainerView, column: str, scale: float = 1.0) -> History:
        """Return readings of a trainer's steps, which end where no step did any more."""
        from ...model.valid_history import while_it_steps

        steps = self._history(trainer.id, "step")
        return while_it_steps(self._history(trainer.id, column, scale), steps, trainer)

    def _show_vram(
        self, chart: Any, host: HostView, device: DeviceView, asked: DeviceView | None
    ) -> None:
        from ..charts.chart_series import device_layers
        from ..shared.device_bar import named_layers

        layers, seconds = device_layers(self.session.history, host, device, self._span)
        total = device.definition.total_bytes
        there, fill = named_layers(host), chart.tokens.glyphs.fill
        absent = [one for one in layers if one.token not in there and any(one.values)]
        chart.legend_elsewhere = f"legend {AS_IN_GPUS}"
        if absent:
            named = ", ".join(f"{fill(one.token)} {one.label}" for one in absent)
            chart.legend_elsewhere = f"{named}, others {AS_IN_GPUS}"
        silent = mute(asked) if asked is not None and asked is not device else None
        why = f" (GPU {asked.definition.index}: {silent.word})" if asked and silent else ""
        chart.show(
            layers,
            seconds,
            self._span,
            float(total) if total else None,
            now=host.sampled_seconds,
            title=f"VRAM of GPU {device.definition.index}{why}{self._over}",
            clock=clock_at(self.session, host),
        )

    def _show_lines(self, kind: str, chart: Any, host: HostView, device: DeviceView | None) -> None:
        series: Sequence[Series] = ()
        title, top = "", None
        if kind == "cpu":
            title, top = f"CPU %, {host.definition.cpu_count or '?'} cores", 100.0
            series = [self._one("all cores", "series1", host.id, "cpu_percent")]
            chart.show_empty(why_unknown(host, "no readings"))
        elif kind == "host_memory":
            title, total = "Host memory in use, GiB", host.definition.memory_total_bytes
            series, top = self._host_memory(host), nominal(total / GIB) if total else None
            chart.show_empty(why_unknown(host, "no readings"))
        elif kind == "power" and device is not None:
            title, top = "Power, W", device.number("power_limit_watts")
            series = self._power(host, device)
        elif kind == "step":
            title = "Median step, ms"
            series = self._of_trainers(host, "step_seconds", 1000.0)
            known = any(trainer.gone is None for trainer in host.trainers)
            chart.show_empty("no step has been timed yet" if known else NO_TRAINER)
        elif kind == "input":
            title, top = "Waiting for data, % of the step", 100.0
            series = self._input(host)
        elif kind == "loss":
            title, series = "Loss", self._of_trainers(host, "loss", 1.0)
        set_title(chart, f"{title}{self._over}")
        low: float | None = 0.0
        if kind == "loss":
            low, top = loss_axis([value for one in series for value in one.values])
        now, clock = host.sampled_seconds, clock_at(self.session, host)
        chart.show(series, self._span, low, top, now=now, clock=clock)

    def _one(self, label: str, token: str, entity: int, column: str, scale: float = 1.0) -> Series:
        from ..charts.line import Series

        past = self._history(entity, column, scale)
        return Series(label, token, past.seconds, past.values)

    def _power(self, host: HostView, device: DeviceView) -> list[Series]:
        """Return the power of each of a few devices, else of the one looked at, and the mean."""
        from ..charts.chart_series import mean_over
        from ..charts.line import Series

        few = len(host.devices) <= MOST_CURVES
        found = [
            self._one(f"GPU {one.definition.index}", token, one.id, "power_watts")
            for one, token in zip(host.devices if few else [device], SERIES, strict=False)
        ]
        if not few:
            sound = [one for one in host.devices if mute(one) is None]
            mean = mean_over(self.session.history, sound, "power_watts", self._span)
            found.append(Series("mean", "other", mean.seconds, mean.values))
        return found

    def _of_trainers(self, host: HostView, column: str, scale: float) -> Sequence[Series]:
        """Return a curve for each rank of the only job."""
        return self._curves(host, column, lambda one: self._past_of(one, column, scale))

    def _input(self, host: HostView) -> Sequence[Series]:
        """Return the share of the step in which each trainer waits for its data."""
        from ...model.valid_history import while_it_steps

        def past_of(trainer: TrainerView) -> History:
            waits, whole = input_columns(trainer)
            wait = self._history(trainer.id, waits)
            parts = [self._history(trainer.id, name) for name in whole]
            wholes = zip(*(part.values for part in parts), strict=True)
            values = [
                100 * min(one / total, 1.0) if one is not None and total > 0 else None
                for one, known in zip(wait.values, wholes, strict=False)
                for total in (sum(value or 0.0 for value in known),)
            ]
            past = replace(wait, values=tuple(values))
            return while_it_steps(past, self._history(trainer.id, "step"), trainer)

        return self._curves(host, "input", past_of, "trainers")

    def _curves(
        self,
        host: HostView,
        column: str,
        past_of: Callable[[TrainerView], History],
        *what: str,
    ) -> Sequence[Series]:
        """Return a curve for each trainer that is drawn and has readings, one if they are alike."""
        from ..charts.line import Series, alike_text, one_if_alike

        found = []
        for token, trainer in zip(TOKENS, self._drawn_trainers(host, column), strict=False):
            past = past_of(trainer)
            if any(value is not None for value in past.values):
                label = label_among(trainer, running(host.trainers))
                found.append(Series(label, token, past.seconds, past.values))
        known = sum(t.gone is None for t in host.trainers)
        return one_if_alike(found, alike_text(len(found), known, *what))

    def _worst_first(self, host: HostView) -> list[TrainerView]:
        return worst_first(host, (self.job, *self.order), len(TOKENS), self._span)

    def _drawn_trainers(self, host: HostView, column: str = "") -> list[TrainerView]:
        return drawn_trainers(self._worst_first(host), len(TOKENS), self._span, column)

    def _host_memory(self, host: HostView) -> list[Series]:
        free = self._one("in use", "series1", host.id, "memory_available_bytes")
        total = host.definition.memory_total_bytes
        values = [None if v is None or not total else (total - v) / GIB for v in free.values]
        return [replace(free, values=values)]


def _with_readings(host: HostView, device: DeviceView | None) -> DeviceView | None:
    """Return the device, or the next that has readings where it has none."""
    if device is None or mute(device) is None:
        return device
    at = next((n for n, one in enumerate(host.devices) if one.key == device.key), 0)
    others = (*host.devices[at:], *host.devices[:at])
    return next((one for one in others if mute(one) is None), device)


def _make(kind: str, session: Session) -> Painted | JobBrief:
    from ..charts.line import LineChart
    from ..charts.load_strips import LoadStrips
    from ..charts.stacked import StackedChart

    if kind == "brief":
        from .job_brief import JobBrief

        return JobBrief(session)
    if kind == "trends" or kind in LANES:
        from ..charts.trends import Trends

        return Trends(classes="panel", empty="no step has been timed yet")
    if kind in ("strips", "few strips"):
        strips = LoadStrips(classes="panel")
        strips.legend_elsewhere = "bar height = load"
        return strips
    if kind == "vram":
        return StackedChart(classes="panel")
    empty = {"step": NO_TRAINER, "loss": "no trainer reports its loss"}
    return LineChart(empty=empty.get(kind, "no readings"), classes="panel")
