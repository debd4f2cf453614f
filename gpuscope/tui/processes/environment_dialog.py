"""This dialog shows the environment of a process, read when the user opens it.

It has the variables of an allow-list, never all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...text.styled import Line
from ..cells import fit
from ..widgets.question_dialog import AskedOnce

if TYPE_CHECKING:
    from ...store.view import ProcView
    from ..shell.session import Session

ASK_SECONDS = 5.0
NAME_CELLS = 30
MAX_SHOWN = 100


class EnvironmentDialog(AskedOnce):
    def __init__(self, session: Session, process: ProcView) -> None:
        super().__init__(session, f"Environment of pid {process.definition.pid}", "asking …")
        self._process = process

    async def answer(self) -> list[Line]:
        definition = self._process.definition
        args = {"pid": definition.pid, "start": definition.start}
        value = await self.request(
            "environment", args, ASK_SECONDS, "a recording has no environment"
        )
        told, others = value.get("environment"), value.get("others")
        rows = list(told.items())[:MAX_SHOWN] if isinstance(told, dict) else []
        lines: list[Line] = [
            [(fit(str(name), NAME_CELLS), "muted"), (f" {value}", "text")] for name, value in rows
        ]
        lines = lines or [
            [
                (
                    "it has none of the variables that may be shown: of GPUs, torch, its launcher",
                    "muted",
                )
            ]
        ]
        if isinstance(others, int):
            lines += [
                [],
                [(f"{others} other variables are not shown: they may contain secrets.", "faint")],
            ]
        lines += [[("As at its start; later changes are not included.", "faint")]]
        return lines
