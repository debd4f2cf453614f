"""Who has a GPU open, asked for when somebody looks: for memory that no process holds which can be seen."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from textual.app import ComposeResult
from textual.containers import VerticalScroll

from ..cells import bytes_text, fit
from ..device_words import UNOWNED_BYTES, unaccounted
from ..widgets.dialog import Dialog
from ..widgets.text import Lines, hang

if TYPE_CHECKING:
    from ...store.view import DeviceView
    from ..session import Session

ASK_SECONDS = 20.0
MAX_SHOWN = 64
Line = list[tuple[str, str]]


class HoldersDialog(Dialog):
    """Asks once."""

    def __init__(self, session: Session, device: DeviceView) -> None:
        super().__init__()
        self.session = session
        self._device = device
        self._lines = Lines([[("reading the open files of all processes …", "muted")]])
        self._task: asyncio.Task[None] | None = None

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="dialog") as body:
            body.border_title = f"Who has GPU {self._device.definition.index} open"
            body.border_subtitle = "Esc: close"
            yield self._lines

    def on_mount(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._ask())

    def on_unmount(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _ask(self) -> None:
        from ...store.calls import SourceError

        minor = self._device.definition.minor
        if self.session.replay is not None or self.session.hosts is None:
            self._fail("a recording keeps no open files")
        elif minor is None:
            why = self._device.readings.get("minor")
            self._fail(getattr(why, "text", "") or "the number of its /dev/nvidiaN is not known")
        else:
            try:
                result = await self.session.hosts.source.request("holders", {"minors": str(minor)}, ASK_SECONDS)
            except SourceError as error:
                self._fail(error.reason)
            else:
                self._say(self._told(minor, result.value))

    def _told(self, minor: int, value: Mapping[str, Any]) -> list[Line]:
        host = self.session.host
        listed = {p.definition.pid for p in host.processes if p.gone is None and p.uses} if host is not None else set()
        rest = unaccounted(self._device)
        lines: list[Line] = []
        if rest is not None and rest > UNOWNED_BYTES:
            lines += [[(f"{bytes_text(rest)} in use that no process holds which the driver names here.", "warn")], []]
        rows = [one for one in value.get("devices") or () if isinstance(one, dict) and one.get("minor") == minor]
        found = [one for row in rows for one in row.get("processes") or () if isinstance(one, dict)][:MAX_SHOWN]
        for one in found:
            pid, user, command = one.get("pid"), one.get("user"), one.get("command")
            known = pid in listed
            lines.append(
                [
                    (f"{pid!s:>8} {fit(str(user or '?'), 10)} ", "text" if known else "title"),
                    ("named by the driver  " if known else "not named by it      ", "muted" if known else "warn"),
                    (str(command or "–"), "muted"),
                ]
            )
        more = sum(row["more"] for row in rows if isinstance(row.get("more"), int))
        lines += [[(f"         and {more} more", "muted")]] if more else []
        lines = lines if found else [*lines, [(f"Nobody that can be seen has /dev/nvidia{minor} open.", "text")]]
        why = value.get("why")
        if isinstance(why, str) and why:
            lines += [[], [("not all: ", "warn"), (why, "text")]]
        return [
            *lines,
            [],
            [("Who has it open may hold memory, or none: the driver tells only those it names.", "faint")],
        ]

    def _fail(self, why: str) -> None:
        self._say([[("unknown: ", "warn"), (why, "text")]])

    def _say(self, lines: list[Line]) -> None:
        cells = max(30, self._lines.size.width or 70)
        self._lines.show([piece for line in lines for piece in (hang(line, cells) if line else [line])])
