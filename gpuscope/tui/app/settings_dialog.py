"""This dialog shows the settings: their values, where each is from, and the path of the file.

The file is only ever read. What can be changed while the program runs is changed here for the
state that gpuscope remembers; for the rest the line to write into the file is shown.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from ... import config
from ...model.alerts_settings import AlertSettings
from ...paths import short_path
from ...text.styled import Line
from ..shell.keymap import key_of
from ..theme import THEME_NAMES
from ..widgets.program import program
from ..widgets.text_dialog import TextDialog

if TYPE_CHECKING:
    from ..shell.session import Session

LABEL_CELLS = 21
OWN = "SettingsDialog"


class SettingsDialog(TextDialog):
    """All settings; keys change the theme, the rate, and whose rows are shown."""

    def __init__(self, session: Session) -> None:
        super().__init__("Settings")
        self.session = session

    def text(self) -> Iterable[Line]:
        session, path = self.session, config.config_path()
        there = "" if path.exists() else "  not there: all defaults"
        yield [(f"{'file':{LABEL_CELLS}}", "muted"), (short_path(path), "accent"), (there, "muted")]
        yield [(" " * LABEL_CELLS, "muted"), ("gpuscope reads it and never writes it", "muted")]
        yield []
        yield [("Changed here", "title")]
        theme = _short_theme(self.app.theme)
        own = "  chosen here" if session.state.theme in (theme, self.app.theme) else ""
        yield self._row("theme", theme, own, key_of("theme", OWN))
        hz = session.wanted_hz
        chosen = "  chosen here" if session.state.rate_hz else ""
        keys = f"{key_of('rate(False)', OWN)} {key_of('rate(True)', OWN)}"
        why_not = session.why_not("rate")
        unit = "sample" if hz == 1 else "samples"
        note = f"  {why_not}" if why_not else f" {unit} a second{chosen}"
        yield self._row("rate_hz", f"{hz:g}", note, keys)
        mine = "mine only" if session.state.mine else "of all users"
        yield self._row("jobs", mine, "", key_of("mine", OWN))
        yield []
        yield [("From the file, read at the start", "title")]
        defaults = config.Settings()
        for field in fields(config.Settings):
            if field.name not in ("theme", "rate_hz", "alerts"):
                value = getattr(session.settings, field.name)
                changed = value != getattr(defaults, field.name)
                yield self._row(field.name, _value(value), "" if changed else "  default")
        yield []
        yield [("[alerts]", "title")]
        alerts: Any = session.settings.alerts
        none = AlertSettings()
        for field in fields(AlertSettings):
            value = getattr(alerts, field.name)
            changed = value != getattr(none, field.name)
            yield self._row(
                field.name, _value(value, "not watched"), "" if changed else "  default"
            )

    def _row(self, name: str, value: str, note: str, keys: str = "") -> Line:
        line: Line = [(f"{name:{LABEL_CELLS}}", "muted"), (value, "text"), (note, "faint")]
        return (
            [*line, ("   ", "text"), (keys, "accent"), (" changes it", "muted")] if keys else line
        )

    async def action_theme(self) -> None:
        """Use the next theme."""
        await program(self.app).action_do("theme")
        self.redraw()

    async def action_rate(self, faster: bool) -> None:
        """Ask for more or fewer samples a second."""
        if not self.session.why_not("rate"):
            await program(self.app).action_do("faster" if faster else "slower")
        self.redraw()

    async def action_mine(self) -> None:
        """Show only my jobs, or all."""
        await program(self.app).action_do("mine")
        self.redraw()


def _short_theme(name: str) -> str:
    return next((short for short, theme in THEME_NAMES.items() if theme == name), name)


def _value(value: object, unset: str = "by the situation") -> str:
    """Return a value as the file has it, ``unset`` where it has none."""
    if value is None:
        return unset
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (tuple, list)):
        return " ".join(map(str, value)) or "none"
    return str(value)
