"""Make runs in trainers that are forked from one process which has imported torch.

Importing torch takes seconds, and a search makes dozens of runs. Only the standard library is
needed here.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Callable, Mapping

from . import metrics
from .config import LabConfig
from .launch import LabRun, find_python, only_this_package, open_worker

BAD_FORK = 75
"""The exit code of a trainer that cannot use CUDA, because importing torch has started it."""
_ENDED = "trainer_ended"
READY = b"ready\n"
"""The first line of the process that forks: it has imported torch."""


def end_line(code: int) -> bytes:
    """Return the line that says with which exit code a trainer has ended."""
    return json.dumps({"kind": _ENDED, "code": code}).encode() + b"\n"


def ended_with(line: bytes) -> int | None:
    """Return the exit code of a line of :func:`end_line`; None for any other line."""
    if _ENDED.encode() not in line:
        return None
    try:
        value = json.loads(line)
        return int(value["code"]) if value["kind"] == _ENDED else None
    except (ValueError, KeyError, TypeError):
        return None


def can_fork(config: LabConfig) -> bool:
    """Say whether a forked trainer measures the same as one that starts anew.

    The allocator's settings are read with torch, and several processes have a launcher.
    """
    return not config.expandable_segments and not config.processes


class Forks:
    """The process that forks. It is started for the first run, and again where it has died."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self.usable = True
        """Whether trainers can be forked here; otherwise each must be started by itself."""
        self._environment = dict(environment or {})
        self._process: asyncio.subprocess.Process | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    async def process(self) -> asyncio.subprocess.Process:
        """Return it, ready for a run.

        Raises :class:`~gpuscope.lab.launch.NoTorch` and ``OSError``.
        """
        if self._process is None or self._process.returncode is not None:
            await self.close()
            python = await asyncio.to_thread(find_python)
            self._folder = only_this_package()
            words = [python, "-m", "gpuscope.lab.fork_server"]
            self._process = await open_worker(words, self._folder.name, self._environment)
            assert self._process.stdout is not None
            await self._process.stdout.readline()  # READY, or nothing where it has failed
        return self._process

    def set(self, name: str, value: str) -> None:
        """Set an environment variable for the trainers that follow."""
        self._environment[name] = value
        self.tell(f"set {name}={value}")

    def tell(self, words: str) -> None:
        """Send the process a command, if there is one that reads it."""
        stdin = self._process.stdin if self._process is not None else None
        if stdin is not None and not stdin.is_closing():
            stdin.write(words.encode() + b"\n")

    async def close(self) -> None:
        """End it, and wait for its end."""
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None
            process.stdin.close()
            await process.wait()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


class ForkedRun(LabRun):
    """A run in a trainer that :class:`Forks` has forked. ``refused`` says that it cannot be."""

    def __init__(
        self, config: LabConfig, on_record: Callable[[metrics.Record], None], forks: Forks
    ):
        super().__init__(config, on_record)
        self.refused = False
        self._forks = forks

    async def _open(self) -> asyncio.subprocess.Process:
        process = await self._forks.process()
        self._forks.tell(f"run {self.config.to_json()}")
        return process

    def _signal(self, number: int) -> None:
        self._forks.tell("end")

    def _kill_group(self) -> None:
        self._forks.tell("kill")

    def _ended_with(self, line: bytes) -> int | None:
        status = ended_with(line)
        self.refused = self.refused or status == BAD_FORK
        return status

    def _release(self) -> None:
        """Leave everything to the process that forks, which makes the next run too."""
