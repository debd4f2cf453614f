"""A child process examines what the live view does not contain.

This is the environment, and what dead trainers left behind. The child is started once the screen is
shown, runs at a low priority, and ends with the session. The viewer itself loads neither pynvml nor
torch.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...doctor.finding import Abstained, Effect, Evidence, Finding, Fix, Report
from ...process.async_child import Child
from ...text.units import MIB

SCRIPT = Path(__file__).resolve().parents[2] / "cli/commands/doctor/background_checks.py"
LIMIT_SECONDS = 60.0
MAX_BYTES = 4 * MIB
_NEXT = "Try: gpuscope doctor"


def report_of(document: Mapping[str, Any]) -> Report:
    """Return the report that ``doctor.report.document`` turned into a document.

    Raises TypeError, KeyError or ValueError for any other document.
    """
    return Report(
        findings=tuple(_finding(one) for one in document["findings"]),
        abstained=tuple(Abstained(**one) for one in document["abstained"]),
        problems=tuple(str(one["reason"]) for one in document["problems"]),
        examined=tuple(map(str, document["examined"])),
    )


def _finding(found: Mapping[str, Any]) -> Finding:
    values = _without_none(found)
    values["evidence"] = tuple(Evidence(**_without_none(one)) for one in found["evidence"])
    values["fixes"] = tuple(Fix(**_without_none(one)) for one in found["fixes"])
    if found.get("effect") is not None:
        values["effect"] = Effect(**found["effect"])
    return Finding(**values)


def _without_none(found: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in found.items() if value is not None}


class Aside:
    """One child at a time that runs the checks.

    ``heard`` is called with each part as it arrives: its name, its report, and its other fields. If
    the child failed, the part is ``problem`` and its report says why.
    """

    def __init__(
        self,
        heard: Callable[[str, Report, Mapping[str, Any]], None],
        argv: Sequence[str] | None = None,
    ) -> None:
        self._argv = list(argv) if argv is not None else [sys.executable, str(SCRIPT)]
        self._heard = heard
        self._task: asyncio.Task[None] | None = None
        self._child: Child | None = None

    @property
    def running(self) -> bool:
        """Whether a child is at work."""
        return self._task is not None and not self._task.done()

    def start(self, parts: Sequence[str], after_seconds: float = 0.0) -> None:
        """Let a child examine ``parts``; nothing happens while one is at work."""
        if not self.running:
            self._task = asyncio.get_running_loop().create_task(self._run(parts, after_seconds))

    async def _run(self, parts: Sequence[str], after_seconds: float) -> None:
        await asyncio.sleep(after_seconds)
        why = ""
        try:
            why = await asyncio.wait_for(self._listen(parts), LIMIT_SECONDS)
        except (asyncio.TimeoutError, TimeoutError):
            why = f"it has not ended within {LIMIT_SECONDS:.0f} s"
        except OSError as error:
            why = f"it cannot be started: {error.strerror or error}"
        finally:
            self._kill()
        if why:
            what = " and ".join(
                {"environment": "the environment", "left": "trainers that ended here"}.get(p, p)
                for p in parts
            )
            text = f"{what[:1].upper()}{what[1:]}: not checked, {why}. {_NEXT}"
            self._heard("problem", Report(problems=(text,)), {})

    async def _listen(self, parts: Sequence[str]) -> str:
        """Hear what the child says, and return why it did not say all, "" when it did."""
        self._child = child = await Child.spawn([*self._argv, *parts], max_line_bytes=MAX_BYTES)
        total = 0
        while True:
            try:
                line = await child.lines.readline()
            except ValueError:  # longer than a line may be
                return "its answer is too long"
            total += len(line)
            if total > MAX_BYTES:
                return "its answer is too long"
            if not line:
                await child.stop()
                return (
                    f"it ended with {child.how_it_ended}"
                    if child.how_it_ended
                    else "it closed its output"
                )
            try:
                message = json.loads(line)
                if message["part"] == "end":
                    return ""
                self._heard(str(message["part"]), report_of(message["report"]), message)
            except (ValueError, TypeError, KeyError) as error:
                return f"its answer is malformed ({type(error).__name__})"

    def close(self) -> None:
        """End the child without waiting for it."""
        if self._task is not None:
            self._task.cancel()
        self._kill()

    def _kill(self) -> None:
        if self._child is not None:
            self._child.kill()
