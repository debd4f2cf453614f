"""This screen lists what can be attached to: jobs with their ranks, and processes.

It says what each would need, and what would open more.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical

from ...store.pending_requests import SourceError
from ...text import styled
from ...text.styled import Line
from ..shell.keymap import bindings_of, key_of
from ..widgets.dialog import Dialog
from ..widgets.pane import set_title
from ..widgets.program import program
from ..widgets.table import LiveTable
from ..widgets.text import Lines
from .attach_work import look_around
from .attachable import COLUMNS, AttachableProcesses, Item, ProcessGroup, about, rows

if TYPE_CHECKING:
    from ..shell.session import Session

log = logging.getLogger("gpuscope.tui")
NOTHING = (
    [("No process here uses torch or a GPU.", "muted")],
    [(key_of("elsewhere", "AttachScreen"), "accent"), (" shows another host", "muted")],
)
LEAST_ABOUT = 3


class AttachScreen(Dialog):
    """The list of what can be attached to.

    Keys lead to the question for a rank or for a whole job, and to the one for taking a probe
    out. The cursor begins on process ``pid`` where it is there.
    """

    DEFAULT_CSS = """
    AttachScreen .dialog { width: 112; max-width: 100%; height: auto; max-height: 92%; }
    AttachScreen LiveTable { height: 6; }
    AttachScreen #about { height: auto; margin: 1 0 0 0; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [*bindings_of("AttachScreen")]

    def __init__(self, session: Session, pid: int | None = None) -> None:
        super().__init__()
        self.session = session
        self.found: AttachableProcesses | None = None
        self._pid = pid
        self._placed = pid is None
        self._problem = ""
        self._table = LiveTable(COLUMNS, empty="searching …", id="attachable")
        self._about = Lines(id="about")

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield self._table
            yield self._about

    def on_mount(self) -> None:
        self.set_focus(self._table, scroll_visible=False)  # now: the next key may be there already
        self.action_again()
        self._show()

    def on_screen_resume(self) -> None:
        if self.found is not None:  # back from a question: something may have changed
            self.action_again()

    def on_resize(self) -> None:
        self.call_after_refresh(self._show)

    # ── asking ──

    def action_again(self) -> None:
        """Look again."""
        if self._work is None:
            self.begin(self._look())

    async def _look(self) -> None:
        try:
            self.found, self._problem = await look_around(self.session, self._pid), ""
        except SourceError as error:
            self._problem = error.what
        except Exception as error:  # whatever an agent answers must not end the screen
            log.exception("the list of what can be attached to failed")
            self._problem = repr(error)
        finally:
            self._work = None
        if self.is_open:
            self._show()

    # ── drawing ──

    def _show(self) -> None:
        if not self.is_open:
            return
        host = self.session.host
        set_title(self._table.parent, f"Attach · {host.name if host is not None else '?'}")  # type: ignore[arg-type]
        found = self.found or AttachableProcesses()
        hosts = {item.source.key for group in found.groups for item in group.items}
        if self._problem:
            self._table.show_empty([[("Missing: ", "warn"), (self._problem, "text")]])
        elif self.found is not None:
            self._table.show_empty(NOTHING)
        self._table.show(rows(found.groups, len(hosts) > 1))
        if not self._placed and self.found is not None:
            self._placed = True
            if found.cursor is not None:
                self._table.move_to(found.cursor)
        self._show_about(found)

    def _show_about(self, found: AttachableProcesses) -> None:
        group, item = self.under_cursor()
        cells = max(30, self._about.size.width or self.size.width - 4)
        lines: list[Line] = []
        if group is not None and item is None:
            lines = [
                [
                    ("Job      ", "muted"),
                    (group.items[0].job, "title"),
                    (f", {len(group.items)} ranks seen", "text"),
                ],
                [(f"{key_of('select', 'AttachScreen'):9}", "accent"), (_for_all(group), "text")],
            ]
        elif item is not None:
            lines = list(about(item))
        if found.helpers:
            lines.append(
                [(f"{found.helpers} loader, compile or launcher processes are left out", "faint")]
            )
        lines += [[(note, "faint")] for note in found.notes]
        shown = styled.hang_lines(lines, cells)
        room = int(self.size.height * 0.92) - 3  # frame, margin
        # the list may need less than its half
        most = max(LEAST_ABOUT, room // 2, room - len(self._table.rows) - 1)
        self._about.show(shown[:most])
        tall = max(3, min(len(self._table.rows) + 1, room - min(len(shown), most)))
        if self._table.styles.height is None or self._table.styles.height.value != tall:
            self._table.styles.height = tall
        inside = item is not None and item.has_probe
        keys = [(key_of("select", "AttachScreen"), "open it" if inside else "attach, asks first")]
        keys = keys if group is not None else []
        if item is not None and item.origin == "inject":
            keys.append((key_of("detach", "AttachScreen"), "remove the probe"))
        keys.append((key_of("elsewhere", "AttachScreen"), "another host"))
        self.say_keys([*keys, (key_of("again", "AttachScreen"), "refresh")])

    def under_cursor(self) -> tuple[ProcessGroup | None, Item | None]:
        """The group under the cursor, and the process where it is not a job's own line."""
        key = self._table.cursor_key
        for group in (self.found or AttachableProcesses()).groups:
            if key == f"job {group.key}":
                return group, None
            for item in group.items:
                if item.key == key:
                    return group, item
        return None, None

    def on_live_table_highlighted(self, event: LiveTable.Highlighted) -> None:
        event.stop()
        self._show_about(self.found or AttachableProcesses())

    # ── keys ──

    def on_live_table_selected(self, event: LiveTable.Selected) -> None:
        event.stop()
        group, item = self.under_cursor()
        if group is None:
            return
        items = (item,) if item is not None else group.open
        if item is not None and item.has_probe:
            self._open(item)
        elif not items:
            self.session.notices.say("all its attachable ranks have a probe")
        else:
            of = len(group.items) if item is None else 1
            program(self.app).open("consent", items, of, False, self._open)

    def _open(self, item: Item) -> None:
        """Look at the process itself; the list closes."""
        host = self.session.host_of(item.source.key)
        if host is not None:
            self.dismiss()
            program(self.app).open("pid", host, item.pid)

    def action_elsewhere(self) -> None:
        """Ask for another host: it is shown beside those that are shown."""
        program(self.app).open("connect")

    def action_detach(self) -> None:
        """The question for taking an injected probe out."""
        _, item = self.under_cursor()
        if item is None or not item.has_probe:
            self.tell("no probe to remove is in this row")
            return
        if item.origin != "inject":
            self.session.notices.say(
                f"{item.name}: its probe was loaded by {item.origin}: it stays until the end",
                "warn",
            )
            return
        host = self.session.host
        if host is None or host.key != item.source.key:
            self.session.notices.say(
                f"{item.name} is on {item.host}: {key_of('next_host')} goes there first", "warn"
            )
            return
        program(self.app).open("consent", (item,), 1, True)

    def action_scroll(self, by: int) -> None:
        """Move the cursor of the list."""
        self._table.action_move(by)

    def action_page(self, by: int) -> None:
        """Move the cursor of the list by a page."""
        self._table.action_page(by)


def _for_all(group: ProcessGroup) -> str:
    inside, can = sum(item.has_probe for item in group.items), len(group.open)
    if inside == len(group.items):
        return "all of them have a probe"
    if not can:
        return "none of them can be attached to; the ranks below say why"
    cannot = len(group.items) - inside - can
    rest = f"; {inside} have a probe" * bool(inside) + f"; {cannot} cannot be attached to" * bool(
        cannot
    )
    return f"attach {can} of {len(group.items)}, one at a time{rest}"
