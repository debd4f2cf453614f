"""Measures two settings in turns, A B B A A B ….

So what changes from run to run, and drifts, meets both alike.
"""

from __future__ import annotations

import logging
import secrets
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from ...lab.config import LabConfig
from ...model.occupants import Occupant

if TYPE_CHECKING:
    from ...lab.launch import LabRun
    from ...lab.ledger import Entry

log = logging.getLogger("gpuscope.lab")
Side = Literal["A", "B"]


class Turn(NamedTuple):
    """One run of the series: whose it is, and in which repeat, from 0."""

    side: Side
    repeat: int


def order(repeats: int) -> list[Turn]:
    """Return the turns A B, B A, A B ….

    Each repeat has both, and begins with the one that the repeat before ended with.
    """
    out = []
    for repeat in range(repeats):
        sides: tuple[Side, Side] = ("A", "B") if repeat % 2 == 0 else ("B", "A")
        out += [Turn(side, repeat) for side in sides]
    return out


class Runner(Protocol):
    """Who starts a run for the series, and writes it down when it has ended."""

    def occupants(self, config: LabConfig) -> list[Occupant]:
        """Return who else is on the devices that a run would take."""

    async def launch(self, config: LabConfig) -> LabRun:
        """Starts a run and returns it."""

    async def filed(self) -> None:
        """Returns when all runs that have ended are written down."""


class Repeats:
    """A series of repeats under way.

    ``state`` is running, done, stopped or failed (``why``). Its runs are one group of the
    ledger, so that they can be compared later too.
    """

    def __init__(self, labs: Runner, a: LabConfig, b: LabConfig, repeats: int, steps: int) -> None:
        self.a, self.b = replace(a, steps=steps), replace(b, steps=steps)
        self.group = f"ab-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
        self.state: Literal["running", "done", "stopped", "failed"] = "running"
        self.why = ""
        self.turns = order(repeats)
        self.at = 0
        """Which of ``turns`` is being measured."""
        self.entries: dict[Side, list[Entry]] = {"A": [], "B": []}
        self._labs = labs

    @property
    def over(self) -> bool:
        return self.state != "running"

    @property
    def mark(self) -> tuple[str, int, str]:
        """Group, repeat and cell of the run that is being measured."""
        turn = self.turns[min(self.at, len(self.turns) - 1)]
        return self.group, turn.repeat, turn.side

    def filed(self, entry: Entry) -> None:
        """A run of the series stands in the ledger."""
        if entry.group == self.group and entry.cell in ("A", "B"):
            self.entries["A" if entry.cell == "A" else "B"].append(entry)

    def stop(self) -> None:
        """Start no further run. The caller ends the present one."""
        if self.state == "running":
            self.state, self.why = "stopped", f"stopped in run {self.at + 1} of {len(self.turns)}"

    async def run(self) -> None:
        """All turns one after the other; a run that fails ends the series."""
        try:
            for at, turn in enumerate(self.turns):
                self.at = at
                if self.state != "running":
                    return
                config = self.a if turn.side == "A" else self.b
                held = self._labs.occupants(config)
                if held:
                    self._fail(str(held[0]))
                    return
                worker = await self._labs.launch(config)
                await worker.wait()
                await self._labs.filed()
                if worker.failure is not None:
                    self._fail(f"{turn.side}: {worker.failure.what}")
                    return
            if self.state == "running":
                self.state = "done"
        except Exception as error:
            log.exception("a series of repeats failed")
            self._fail(repr(error))

    def _fail(self, why: str) -> None:
        if self.state == "running":
            self.state, self.why = "failed", why
