"""This screen shows an allocator snapshot: its map, stacks, sizes, history and differences.

A capped child (``gpuscope.snapshot``) reads the file, and threads wait for it: the screen never
stands still, and leaving kills the child.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical

from ...doctor.finding import Pitfall, Report
from ...report.content import Chapter
from ...snapshot.model import At, DeviceDiff, Diff, DiffRow, SnapshotDevice, StackRow, Summary
from ...snapshot.reader import Reading, SnapshotError, open_snapshot
from ...text import styled
from ...text.styled import Line
from ...text.units import percent_text
from ..charts.moments import MomentChart
from ..shell.keymap import key_of
from ..tasks import Tasks
from ..widgets.full_screen import FullScreen, named_path
from ..widgets.pane import set_title
from ..widgets.program import program
from ..widgets.table import Column, LiveTable, TableRow
from ..widgets.text import Lines
from . import rows as draw
from .answers import Answers
from .courses import LEAST_ROWS, Courses, wanted_rows
from .detail import Detail, Largest, Place
from .files import FILE_COLUMNS, file_row, neighbours
from .first_page import map_lines, what_to_do

TOP = 100
HEAD_ROWS, LEAST_CURE_ROWS = 4, 6
"""Rows of the head, the footer and a border; and those of the findings in a low terminal."""
SEGMENT_ROWS, MOST_SEGMENTS = 3, 8
"""Rows of the list of segments besides them, and that it has in a low terminal."""
BESIDE_CELLS, BESIDE_ROWS = 110, 16
"""From this width and so many rows on the largest stand beside the segments."""
DETAIL_CELLS, DETAIL_ROWS = 150, 10
"""From this width on the chosen row's detail stands beside the list; the rows it needs below it."""
SETTLE_SECONDS = 0.15
"""A moment is asked for once the cursor has stood so long."""


class SnapshotScreen(FullScreen):
    """The screen of one snapshot, with a view for each question to it.

    Keys choose the view and the device and move through the history; Enter opens a stack.
    """

    DEFAULT_CSS = """
    SnapshotScreen #about { height: auto; max-height: 40%; }
    SnapshotScreen #moments { height: 40%; max-height: 14; display: none; }
    SnapshotScreen #cure { height: auto; }
    SnapshotScreen #map, SnapshotScreen #courses { height: 1fr; }
    SnapshotScreen #page, SnapshotScreen #rows { height: 1fr; }
    SnapshotScreen #largest { width: 45%; height: 100%; }
    SnapshotScreen #lists { width: 1fr; height: 1fr; }
    SnapshotScreen #page.below { layout: vertical; }
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self._reading: Reading | None = None
        self._summary: Summary | None = None
        self._problem = ""
        self._fraction = 0.0
        self._view, self._number = "map", 0
        self._bucket: int | None = None
        self._at: At | None = None
        self._diff: Diff | None = None
        self._files: list[Path] = []
        self._busy = ""
        self._about = Lines(id="about", classes="panel")
        self._chart = MomentChart(id="moments", classes="panel")
        self._rows = LiveTable(
            draw.SEGMENT_COLUMNS, empty="reading", gap=1, id="rows", classes="panel"
        )
        self._cure = Lines(id="cure", classes="panel")
        self._map = Lines(id="map", classes="panel")
        self._answers = Answers()
        self._largest = Largest(path, self._answers, id="largest", classes="panel")
        self._detail = Detail(path, self._answers, id="detail", classes="panel")
        self._courses = Courses(self._answers, id="courses", classes="panel")
        self._lists = Vertical(self._rows, self._courses, self._map, id="lists")
        self._page = Horizontal(self._lists, self._largest, self._detail, id="page")
        self._report = Report()
        self._table: Mapping[str, Pitfall] = {}
        self._tasks = Tasks()
        self._settling: asyncio.TimerHandle | None = None
        self._left = False

    def compose(self) -> ComposeResult:
        self._about.border_title = "Snapshot"
        yield self.head
        self._cure.border_title = "Findings: what to do"
        self._map.border_title = "All segments to one scale"
        self._largest.border_title = "Who holds most"
        self._courses.border_title = "The largest stacks over the trace"
        yield self._about
        yield self._cure
        yield self._chart
        yield self._page
        yield self.foot

    def on_mount(self) -> None:
        self.set_focus(self._rows)  # now: the next key may be there already
        self._tasks.begin(self._open())
        self._ticker = self.set_interval(0.25, self._tick)
        self.call_after_refresh(self._show)

    def on_unmount(self) -> None:
        self._left = True
        self._answers.stop()
        if self._settling is not None:
            self._settling.cancel()
        self._tasks.stop()
        if self._reading is not None:
            self._reading.close()

    def on_resize(self) -> None:
        self.call_after_refresh(self._show)

    # ── reading, in threads ──

    async def _open(self) -> None:
        try:
            await asyncio.to_thread(
                open_snapshot, self.path, None, None, TOP, self._progress, self._keep
            )
            assert self._reading is not None
            self._summary = self._reading.summary
        except SnapshotError as error:
            self._problem = error.what
        self._ticker.stop()
        self._show()
        if self._summary is not None:
            await self._judge()

    async def _judge(self) -> None:
        """Ask the doctor what is wrong in the file, which may replay its history."""
        from ...doctor import postmortem_snapshot, report, table

        assert self._reading is not None
        try:
            found = await asyncio.to_thread(
                postmortem_snapshot.judge, self._reading, self.path.name
            )
            self._table = table.load()
        except (SnapshotError, table.TableError) as error:
            self._report = Report(problems=(f"not judged: {error}",))
        else:
            self._report = report.finish(found, self._table)
        self._show()

    def _keep(self, reading: Reading) -> None:
        self._reading = reading
        if self._left:
            reading.close()

    def _progress(self, fraction: float) -> None:
        self._fraction = fraction

    def _tick(self) -> None:
        if self._summary is None:
            self._show()

    async def _ask_moment(self, device: SnapshotDevice, index: int) -> None:
        if self._reading is None:
            return
        try:
            at = await asyncio.to_thread(self._reading.at, device.device, index, TOP)
            if self._wanted_index() == index:
                self._at, self._busy = at, ""
        except SnapshotError as error:
            self._at, self._busy = None, error.what
        self._show()

    async def _ask_diff(self, other: Path) -> None:
        if self._reading is None:
            return
        self._busy = f"comparing with {other.name}"
        self._show()
        try:
            self._diff = await asyncio.to_thread(self._reading.diff, other, TOP)
            self._busy = ""
        except SnapshotError as error:
            self._busy = error.what
        self._show()

    def chapters(self) -> list[Chapter]:
        from ...report.snapshot import chapter

        return [chapter(self._summary, self._report, self.path.name)] if self._summary else []

    # ── drawing ──

    @property
    def _device(self) -> SnapshotDevice | None:
        devices = self._summary.devices if self._summary is not None else []
        return devices[self._number] if self._number < len(devices) else None

    def _show(self) -> None:
        if not self.is_mounted:
            return
        self.say_head([("Snapshot  ", "bold accent"), *named_path(self.path)])
        cells = max(30, self._about.size.width or 76)
        self._about.show(styled.hang_lines(self._head_lines(), cells))
        device = self._device
        self._chart.display = self._view == "time" and device is not None
        self._show_first_page(device if self._view == "map" else None)
        self.say_own_keys()
        if device is not None:
            self._show_view(device)
            self._show_detail(device)
        elif self._summary is not None or self._problem:
            self._rows.show([])
            self._rows.show_empty("nothing to show")

    def _show_first_page(self, device: SnapshotDevice | None) -> None:
        """Show what to do, the map to scale and who holds most, as far as there is room."""
        wide, high = self.app.size
        glyphs, about = self._cure.tokens.glyphs, self._about.rows + HEAD_ROWS
        cure: list[Line] = []
        if device is not None and self._report.findings:
            room = max(LEAST_CURE_ROWS, (high - about) // 2)
            cure = what_to_do(self._report, self._table, self.path, glyphs, wide - 4, room)
        left = high - about - (len(cure) + 2 if cure else 0)
        beside = device is not None and wide >= BESIDE_CELLS and left >= BESIDE_ROWS
        drawn: list[Line] = []
        segments = 0
        if device is not None and beside:
            own = wide * 45 // 100
            segments = min(len(device.segments) + SEGMENT_ROWS, max(MOST_SEGMENTS, left // 2))
            drawn = map_lines(device, glyphs, wide - own - 4, left - segments - 2)
            self._largest.of(device, self._summary)
        # segments that leave room give it to their map, which is one block otherwise
        self._rows.styles.height = segments if drawn else "1fr"
        legend = draw.map_legend(glyphs) if device is not None and device.segments else ""
        self._rows.border_subtitle = legend
        for panel, lines in ((self._cure, cure), (self._map, drawn)):
            panel.display = bool(lines)
            panel.show(lines)
        self._largest.display = beside

    def _show_detail(self, device: SnapshotDevice) -> None:
        """Show what is known of the chosen row beside the list, or below a short one."""
        wide, high = self.app.size
        view, reading = self._view, self._reading
        listed = view in ("stacks", "sizes", "time") or self._diff_of(device) is not None
        left = high - self._about.rows - HEAD_ROWS - (self._chart.outer_size.height or 0)
        needed = len(self._rows.rows) + SEGMENT_ROWS
        own = min(needed, left // 2)
        beside = wide >= DETAIL_CELLS
        shown = reading is not None and wide >= BESIDE_CELLS and view != "map" and listed
        self._detail.display = shown = shown and (beside or left - own >= DETAIL_ROWS)
        self._page.set_class(shown and not beside, "below")
        self._lists.styles.height = own if shown and not beside else "1fr"
        spare = left - needed - 2 if shown and beside else 0
        courses = view == "stacks" and device.trace is not None and spare >= LEAST_ROWS
        self._courses.display = courses
        strips = wanted_rows(device, spare) if courses else 0
        spare -= strips + 2 if courses else 0
        mapped = spare > 0 and view in ("stacks", "sizes", "diff")
        glyphs = self._map.tokens.glyphs
        if lines := map_lines(device, glyphs, wide // 2 - 4, spare) if mapped else []:
            self._map.display = True  # it says where the free runs are
            self._map.show(lines)
        self._courses.styles.height = strips + 2 if lines else "1fr"
        if courses or lines:
            self._rows.styles.height = needed
        if reading is None or not shown:
            return
        chosen = self._chosen(device, self._rows.cursor_key or "")
        more = not courses and not (view == "sizes" and lines)
        self._detail.of(reading, device, self._summary, chosen, more)
        if courses:
            self._courses.of(reading, device, self._rows.cursor_key or "", strips)

    def on_live_table_highlighted(self, event: LiveTable.Highlighted) -> None:
        event.stop()
        if (device := self._device) is not None and self._detail.display:
            self._show_detail(device)

    def key_states(self) -> Collection[str]:
        states = {self._view}
        if self._device is not None:
            states.add("rows")
        if self._cure.display:
            states.add("finding")
        if self._view == "diff":
            states.add("files" if self._diff is None else "compared")
        if states & {"stacks", "time", "compared"}:
            states.add("stacks")
        if self._summary is not None and len(self._summary.devices) > 1:
            states.add("devices")
        return states

    def _head_lines(self) -> Iterable[Line]:
        if self._problem:
            yield [("Not shown: ", "warn"), (self._problem, "text")]
            return
        if self._summary is None:
            yield [
                ("reading ", "muted"),
                (percent_text(self._fraction), "text"),
                (f"   {key_of('dismiss', 'FullScreen')}: give up", "faint"),
            ]
            return
        tabs: Line = []
        for name, label in draw.VIEWS.items():
            tabs += [
                (label, "bold underline accent" if name == self._view else "muted"),
                ("   ", "text"),
            ]
        yield tabs
        device = self._device
        if device is None:
            yield [("this snapshot has no GPU", "warn")]
        else:
            if len(self._summary.devices) > 1:
                yield [
                    (f"cuda:{device.device}", "title"),
                    (f"  ({self._number + 1} of {len(self._summary.devices)})", "faint"),
                ]
            compared = self._diff_of(device) if self._view == "diff" else None
            yield from draw.headline(device) if compared is None else draw.diff_head(compared)
        if not self._summary.complete:
            yield [("in part: ", "warn"), ("the file was not read to its end", "text")]
        yield from draw.notes(self._summary, device)

    def _show_view(self, device: SnapshotDevice) -> None:
        title, empty = draw.VIEWS[self._view][2:], "nothing"
        if self._view == "diff":
            rows, title, columns = self._diff_rows(device)
            empty = "there is no other snapshot in this folder"
        else:
            columns = draw.COLUMNS[self._view]
            if self._view == "map":
                rows = draw.segment_rows(device)
                title = "Fragmentation: segments and what is in them"
                empty = "no segments: nothing is reserved"
            elif self._view == "stacks":
                rows, title = draw.stack_rows(device.stacks), "Who holds most"
                empty = "nothing is allocated"
            elif self._view == "sizes":
                rows, title = draw.size_rows(device), "Sizes of the blocks"
            else:
                rows, title = self._moment_rows(device)
                empty = self._busy or "asking"
        self._rows.show_columns(columns)
        self._rows.show_empty(empty)
        self._rows.show(rows)
        set_title(self._rows, title)

    def _moment_rows(self, device: SnapshotDevice) -> tuple[list[TableRow], str]:
        curve = draw.curve_of(device)
        if not curve.high:
            self._busy = (
                f"no history was recorded: {key_of('history')} in gpuscope turns it on, "
                "then take another snapshot"
            )
            self._chart.show(curve, 0, self._busy)
            return [], "Over time"
        if self._bucket is None:
            self._bucket = draw.peak_bucket(curve)
            self._want_moment()
        self._chart.show(curve, self._bucket)
        glyphs = self._chart.tokens.glyphs
        always = (f"{glyphs.fill('allocated')} ", "allocated")
        at_times = (f"{glyphs.fill('other')} ", "other")
        self._chart.subtitle(
            [always, ("lower bound  ", "muted"), at_times, ("upper bound", "muted")]
        )
        set_title(
            self._chart,
            f"Allocated over the last {device.trace.entries if device.trace else 0:,} events",
        )
        at = self._at
        if at is None or at.device != device.device:
            return [], "At the moment"
        return draw.stack_rows(at.stacks), draw.moment_title(at, device)

    def _diff_rows(self, device: SnapshotDevice) -> tuple[list[TableRow], str, Sequence[Column]]:
        found = self._diff_of(device)
        if self._diff is None or found is None:
            self._files = self._files or neighbours(self.path)
            rows = [file_row(path) for path in self._files]
            return rows, self._busy or "Compare with an older snapshot", FILE_COLUMNS
        title = f"What grew since {Path(self._diff.before).name}"
        return draw.diff_rows(found), title, draw.DIFF_COLUMNS

    def _diff_of(self, device: SnapshotDevice) -> DeviceDiff | None:
        devices = self._diff.devices if self._diff is not None else []
        return next((found for found in devices if found.device == device.device), None)

    # ── keys ──

    def action_copy(self) -> None:
        """Copy the marked step of the first finding."""
        from ...doctor.steps import marked_step, paste_of, steps_of
        from ..terminal.copying import copy_text

        finding = self._report.findings[0] if self._report.findings else None
        mark = marked_step(finding, True) if finding is not None else None
        if finding is None or mark is None:
            self.tell("not copied: this fix has no command that runs unchanged")
        else:
            copy_text(self.app, self.tell, paste_of(steps_of(finding, True)[mark]) + "\n")

    def action_view(self, name: str) -> None:
        """Another view; while the file is read, the one to begin with."""
        if self._device is not None or self._summary is None:
            self._view, self._busy = name, ""
            self._show()

    def action_next_view(self) -> None:
        """The view after this one."""
        names = list(draw.VIEWS)
        self.action_view(names[(names.index(self._view) + 1) % len(names)])

    def action_device(self) -> None:
        """The next device in the file."""
        if self._summary is not None and len(self._summary.devices) > 1:
            self._number = (self._number + 1) % len(self._summary.devices)
            self._bucket = self._at = None
            self._show()

    def action_files(self) -> None:
        """Choose another file to compare with."""
        self._diff = None
        self._show()

    def action_move(self, by: int) -> None:
        """Move the moment by buckets."""
        device = self._device
        if device is None or self._view != "time" or self._bucket is None:
            return
        count = len(draw.curve_of(device).high)
        self._bucket = max(0, min(count - 1, self._bucket + by))
        self._want_moment()
        self._show()

    def action_peak(self) -> None:
        """Go to the moment with most allocated."""
        if self._view == "time":
            self._bucket = None
            self._show()

    def _wanted_index(self) -> int | None:
        device = self._device
        if device is None or device.trace is None or self._bucket is None:
            return None
        return device.trace.timeline.index[self._bucket]

    def _want_moment(self) -> None:
        if self._settling is not None:
            self._settling.cancel()
        self._settling = asyncio.get_running_loop().call_later(
            SETTLE_SECONDS, self._ask_about_moment
        )

    def _ask_about_moment(self) -> None:
        device, index = self._device, self._wanted_index()
        if device is not None and index is not None and not self._left:
            self._tasks.begin(self._ask_moment(device, index))

    def on_live_table_selected(self, event: LiveTable.Selected) -> None:
        event.stop()
        device = self._device
        if device is None:
            return
        if self._view == "diff" and self._diff is None:
            other = next((path for path in self._files if str(path) == event.key), None)
            if other is not None:
                self._tasks.begin(self._ask_diff(other))
            return
        chosen = self._chosen(device, event.key)
        if isinstance(chosen, Place):
            program(self.app).open("snapshot_stack", chosen.row)

    def _chosen(self, device: SnapshotDevice, key: str) -> Place | str | None:
        """Return the stack in the row ``key`` of the list, or the sizes, which are the key."""
        if self._view == "sizes":
            return key
        stacks, at = device.stacks, None
        rows: Sequence[StackRow | DiffRow] = stacks.rows
        if self._view == "time" and self._at is not None:
            stacks, at, rows = self._at.stacks, self._at.index, self._at.stacks.rows
        elif self._view == "diff":
            found = self._diff_of(device)
            rows = found.rows if found is not None else ()
        number = int(key) if key.isdigit() else len(rows)
        return Place(rows[number], stacks, at) if number < len(rows) else None
