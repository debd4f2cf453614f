"""This dialog shows the settings: their values, what each is for, and the path of the file.

The file is only ever read. What can be changed while the program runs is changed here for the
state that gpuscope remembers; for the rest the line to write into the file is shown.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from textual.app import ComposeResult
from textual.containers import VerticalScroll

from ... import config
from ...model.alerts_settings import AlertSettings
from ...model.setting import Setting, declared, written
from ...paths import short_path
from ...text import styled
from ...text.styled import Line
from ..shell.keymap import key_of
from ..theme import THEME_NAMES
from ..widgets.dialog import Dialog
from ..widgets.program import program
from ..widgets.table import Column, LiveTable, TableRow
from ..widgets.text import Lines

if TYPE_CHECKING:
    from ..shell.session import Session

OWN = "SettingsDialog"
COLUMNS = (
    Column("name", "SETTING", 19),
    Column("value", "NOW", 24, flex=1, most=34),
    Column("does", "WHAT IT DOES", 58, flex=2, most=66, priority=1),
    Column("allowed", "VALUES", 32, flex=1, most=40, priority=2),
)
JOBS = Setting(
    "which jobs and processes are shown",
    False,
    means={True: "mine only", False: "of all users"},
    takes="mine only, of all users",
)
"""It is no setting of the file, because it does not outlast the session."""


class Row(NamedTuple):
    """One setting as it is now; ``keys`` change it here, ``why_not`` says why they do not."""

    name: str
    setting: Setting
    value: str
    source: str
    keys: str = ""
    action: str = ""
    why_not: str = ""
    table: str = ""


class SettingsDialog(Dialog):
    """All settings; keys change the theme, the rate, and whose rows are shown."""

    DEFAULT_CSS = """
    SettingsDialog .dialog { width: 180; height: 36; }
    SettingsDialog #settings-file { height: 1; }
    SettingsDialog LiveTable { height: 1fr; }
    SettingsDialog #settings-about { height: 6; border-top: solid $gs-border; }
    """

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session
        self._file = Lines(id="settings-file")
        self._table = LiveTable(COLUMNS, id="settings")
        self._about = Lines(id="settings-about")

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="dialog") as body:
            body.border_title = "Settings"
            yield self._file
            yield self._table
            yield self._about

    def on_mount(self) -> None:
        self.set_focus(self._table)  # now: the next key may be there already
        self._show()

    def on_resize(self) -> None:
        self.call_after_refresh(self._show)

    def _rows(self) -> Iterable[Row]:
        """Yield what can be changed here, and then what only the file changes."""
        session = self.session
        own, alerts = declared(config.Settings), declared(AlertSettings)
        theme = _short_theme(self.app.theme)
        source = (
            "chosen here"
            if session.state.theme in (theme, self.app.theme)
            else "for this run"
            if theme != session.settings.theme
            else _source(theme, config.Settings().theme)
        )
        yield Row("theme", own["theme"], theme, source, key_of("theme", OWN), "theme")
        rate = own["rate_hz"].value_text(session.wanted_hz)
        chosen = "chosen here" if session.state.rate_hz else _source(session.settings.rate_hz)
        keys = f"{key_of('rate(False)', OWN)} {key_of('rate(True)', OWN)}"
        why_not = session.why_not("rate")
        yield Row("rate_hz", own["rate_hz"], rate, chosen, keys, "faster", why_not)
        mine = session.state.mine
        source = "chosen here" if mine else "default"
        yield Row("jobs", JOBS, JOBS.means[mine], source, key_of("mine", OWN), "mine")
        for table, settings, values, usual in (
            ("", own, session.settings, config.Settings()),
            ("[alerts]", alerts, session.settings.alerts, AlertSettings()),
        ):
            for name, setting in settings.items():
                if name not in ("theme", "rate_hz"):
                    value = getattr(values, name)
                    text, source = setting.value_text(value), _source(value, getattr(usual, name))
                    yield Row(name, setting, text, source, table=table)

    def _show(self) -> None:
        if not self.is_open:
            return
        path = config.config_path()
        there = "" if path.exists() else "not there; "
        read = f"  {there}read at the start only"
        self._file.show([[(short_path(path), "accent"), (read, "muted")]])
        rows = {row.name: row for row in self._rows()}
        self._table.show([_cells(row) for row in rows.values()])
        chosen = rows.get(self._table.cursor_key or "")
        cells = max(30, self._about.size.width)
        about = styled.hang_lines(_about(chosen, short_path(path)) if chosen else (), cells)
        self._about.show(about[: self._about.size.height])

    def on_live_table_highlighted(self, event: LiveTable.Highlighted) -> None:
        event.stop()
        self._show()

    async def on_live_table_selected(self, event: LiveTable.Selected) -> None:
        """Change what can be changed here; the text below says how the others are."""
        event.stop()
        row = next(row for row in self._rows() if row.name == event.key)
        if row.action and not row.why_not:
            await program(self.app).action_do(row.action)
            self._show()
        elif not row.action:
            self.tell(f"gpuscope never writes the file: write {_line(row)} there")

    async def action_theme(self) -> None:
        """Use the next theme."""
        await program(self.app).action_do("theme")
        self._show()

    async def action_rate(self, faster: bool) -> None:
        """Ask for more or fewer samples a second."""
        if not self.session.why_not("rate"):
            await program(self.app).action_do("faster" if faster else "slower")
        self._show()

    async def action_mine(self) -> None:
        """Show only my jobs, or all."""
        await program(self.app).action_do("mine")
        self._show()


def _source(value: object, usual: object = None) -> str:
    return "the file" if value != usual else "default"


def _cells(row: Row) -> TableRow:
    value: Line = [(row.value, "muted" if row.source == "default" else "text")]
    return TableRow(
        row.name,
        {
            "name": row.name,
            "value": [*value, (f"  {row.keys}", "accent")] if row.keys else value,
            "does": [(row.setting.does, "text")],
            "allowed": [(row.setting.allowed, "muted")],
        },
    )


def _about(row: Row, path: str) -> Iterable[Line]:
    """Yield all that is known of the setting under the cursor."""
    yield [(f"{row.name}: ", "title"), (row.setting.does, "text")]
    yield [("now      ", "muted"), (row.value, "text"), (f"  ({row.source})", "muted")]
    yield [("values   ", "muted"), (row.setting.allowed, "text")]
    if row.why_not:
        yield [("change   ", "muted"), (row.why_not, "text")]
    elif row.keys:
        yield [("change   ", "muted"), (row.keys, "accent"), (" here", "text")]
    else:
        where = f" below {row.table}" if row.table else ""
        yield [("change   ", "muted"), (_line(row), "accent"), (f"{where} in {path}", "text")]


def _line(row: Row) -> str:
    """Return an example of the line of the file."""
    return f"{row.name} = {written(row.setting.example)}"


def _short_theme(name: str) -> str:
    return next((short for short, theme in THEME_NAMES.items() if theme == name), name)
