"""The environment of a process, asked for when somebody looks: variables of an allow-list, never all of them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.containers import VerticalScroll

from ..cells import fit
from ..widgets.dialog import Dialog
from ..widgets.text import Lines, hang

if TYPE_CHECKING:
    from ...store.view import ProcView
    from ..session import Session

ASK_SECONDS = 5.0
NAME_CELLS = 30
MAX_SHOWN = 100


class EnvironmentDialog(Dialog):
    """Asks once."""

    def __init__(self, session: Session, process: ProcView) -> None:
        super().__init__()
        self.session = session
        self._process = process
        self._lines = Lines([[("asking …", "muted")]])
        self._task: asyncio.Task[None] | None = None

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="dialog") as body:
            body.border_title = f"Environment of pid {self._process.definition.pid}"
            body.border_subtitle = "Esc: close"
            yield self._lines

    def on_mount(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._ask())

    def on_unmount(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _ask(self) -> None:
        from ...store.calls import SourceError

        definition = self._process.definition
        if self.session.replay is not None or self.session.hosts is None:
            self._say([[("unknown: ", "warn"), ("a recording keeps no environment", "text")]])
            return
        try:
            args = {"pid": definition.pid, "start": definition.start}
            result = await self.session.hosts.source.request("environment", args, ASK_SECONDS)
        except SourceError as error:
            self._say([[("unknown: ", "warn"), (error.reason, "text")]])
            return
        told, others = result.value.get("environment"), result.value.get("others")
        rows = list(told.items())[:MAX_SHOWN] if isinstance(told, dict) else []
        lines = [[(fit(str(name), NAME_CELLS), "muted"), (f" {value}", "text")] for name, value in rows]
        lines = lines or [[("none of the variables that are shown is set", "muted")]]
        if isinstance(others, int):
            lines += [[], [(f"{others} other variables are not shown: they may hold secrets.", "faint")]]
        lines += [[("As it was started; what it has set since is not here.", "faint")]]
        self._say(lines)

    def _say(self, lines: list[list[tuple[str, str]]]) -> None:
        cells = max(30, self._lines.size.width or 70)
        self._lines.show([piece for line in lines for piece in (hang(line, cells) if line else [line])])
