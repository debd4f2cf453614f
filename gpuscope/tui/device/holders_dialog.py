"""This dialog shows which processes have a GPU open, read when the user asks for it.

It helps to find the owner of memory that no listed process holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...model.device_state import unowned_on
from ...store.pending_requests import SourceError
from ...text.process_name import shown_command
from ...text.styled import Line
from ...text.units import bytes_text
from ..cells import fit
from ..widgets.question_dialog import AskedOnce

if TYPE_CHECKING:
    from ...store.view import DeviceView
    from ..shell.session import Session

ASK_SECONDS = 20.0
MAX_SHOWN = 64


class HoldersDialog(AskedOnce):
    def __init__(self, session: Session, device: DeviceView) -> None:
        title = f"Who has GPU {device.definition.index} open"
        super().__init__(session, title, "reading the open files of all processes …")
        self._device = device

    async def answer(self) -> list[Line]:
        minor = self._device.definition.minor
        if minor is None and self.session.replay is None:
            why = self._device.readings.get("minor")
            text = getattr(why, "text", "") or "its /dev/nvidiaN number is unknown"
            raise SourceError("not_supported", text)
        told = await self.request(
            "holders", {"minors": str(minor)}, ASK_SECONDS, "a recording has no open files"
        )
        return self._holder_lines(int(minor or 0), told)

    def _holder_lines(self, minor: int, value: Mapping[str, Any]) -> list[Line]:
        host = self.session.host
        listed = (
            {p.definition.pid for p in host.processes if p.gone is None and p.uses}
            if host is not None
            else set()
        )
        rest = unowned_on(self._device)
        lines: list[Line] = []
        if rest:
            lines += [
                [
                    (
                        f"{bytes_text(rest)} in use, but by no process that the driver reports "
                        f"here.",
                        "warn",
                    )
                ],
                [],
            ]
        rows = [
            one
            for one in value.get("devices") or ()
            if isinstance(one, dict) and one.get("minor") == minor
        ]
        found = [
            one for row in rows for one in row.get("processes") or () if isinstance(one, dict)
        ][:MAX_SHOWN]
        for one in found:
            pid, user, command = one.get("pid"), one.get("user"), one.get("command")
            known = pid in listed
            lines.append(
                [
                    (f"{pid!s:>8} {fit(str(user or '?'), 10)} ", "text" if known else "title"),
                    (
                        "reported by the driver " if known else "not reported           ",
                        "muted" if known else "warn",
                    ),
                    (shown_command(str(command)) if command else "–", "muted"),
                ]
            )
        more = sum(row["more"] for row in rows if isinstance(row.get("more"), int))
        lines += [[(f"         and {more} more", "muted")]] if more else []
        lines = (
            lines
            if found
            else [*lines, [(f"No visible process has /dev/nvidia{minor} open.", "text")]]
        )
        why = value.get("why")
        if isinstance(why, str) and why:
            lines += [[], [("incomplete: ", "warn"), (why, "text")]]
        return [
            *lines,
            [],
            [
                (
                    "A process that has it open may hold no memory: only the driver's list shows "
                    "how much.",
                    "faint",
                )
            ],
        ]
