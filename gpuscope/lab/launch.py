"""Start the Lab's worker and end it.

Torch is not needed here: another Python may have it, and the TUI must not load it.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from ..errors import UserError
from ..process import child
from . import metrics
from .config import LabConfig
from .ledger_keeper import KEEP

PYTHON_VARIABLE = "GPUSCOPE_LAB_PYTHON"
FOLDER_VARIABLE = "GPUSCOPE_LAB_FOLDER"
"""The variable that names a folder which is removed after the worker's end."""
OLDEST_PYTHON = (3, 10)
ASK_SECONDS = 20.0
STOP_SECONDS = 3.0
"""Seconds from SIGTERM to SIGKILL, besides those of the step in progress."""
STEPS_AWAITED, LONGEST_AWAITED = 2.0, 120.0
"""A worker ends after its step. So many steps of the last length are waited for, and so many
seconds at most, because one that is killed writes down nothing of what it has measured.
"""
STOP_RANKS_SECONDS = 10.0
"""The same for a run with several processes. Within this time torchrun's agent tells its ranks to
end, and kills those that do not.
"""
RANK_VARIABLES = (
    "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "WORLD_SIZE", "LOCAL_WORLD_SIZE",
    "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
)  # fmt: skip
"""Variables by which a launcher tells a process its rank. This program may itself be a rank, but
the worker that it starts is not.
"""
_QUESTION = (
    "import importlib.util as u, sys; s = u.find_spec('torch');"
    "print(sys.version_info[0], sys.version_info[1], int(bool(s and s.origin)))"
)

_LEFT: list[asyncio.subprocess.Process] = []
"""Workers that may outlive this process: asyncio kills one that nothing refers to."""

State = Literal["idle", "starting", "running", "stopping", "stopped", "failed"]


class NoTorch(UserError):
    """No Python with torch was found. ``failure`` says where it was looked for and what to do."""

    def __init__(self, failure: metrics.RunFailure):
        super().__init__(failure.what, failure.why, failure.next, "no_torch")
        self.failure = failure


def find_python(environ: Mapping[str, str] = os.environ) -> str:
    """Return the Python that runs the worker. Raises :class:`NoTorch`.

    It is ``$GPUSCOPE_LAB_PYTHON`` if set, else this one if it has torch, else the ``python3``
    of PATH if that has. Others are asked in a child process: this may block for seconds.
    """
    named = environ.get(PYTHON_VARIABLE, "")
    if named:
        problem = _why_not(named)
        if problem:
            raise _no_torch(f"${PYTHON_VARIABLE} is set, and {problem}.")
        return named
    spec = importlib.util.find_spec("torch")
    if spec is not None and spec.origin:
        return sys.executable
    other = shutil.which("python3", path=environ.get("PATH"))
    if other is None:
        raise _no_torch(f"{sys.executable} has none, and there is no python3 in PATH.")
    problem = _why_not(other)
    if problem:
        raise _no_torch(f"{sys.executable} has none, and {problem}.")
    return other


def _why_not(python: str) -> str:
    """Return why ``python`` cannot run the worker, "" if it can."""
    try:
        output = child.ask([python, "-c", _QUESTION], ASK_SECONDS)
    except OSError as error:
        return f"{python} cannot be run ({error.strerror})"
    if output.code is None:
        return f"{python} {output.failure}"
    try:
        major, minor, has_torch = map(int, output.output.split())
    except ValueError:
        return f"{python} did not answer like Python"
    if not has_torch:
        return f"{python} has none"
    if (major, minor) < OLDEST_PYTHON:
        return (
            f"{python} is Python {major}.{minor}: the lab needs "
            f"{OLDEST_PYTHON[0]}.{OLDEST_PYTHON[1]} or newer"
        )
    return ""


def _no_torch(why: str) -> NoTorch:
    return NoTorch(
        metrics.RunFailure(
            "The lab needs a Python with PyTorch, and found none.",
            why,
            f"pip install torch    or    export {PYTHON_VARIABLE}=/path/to/python",
        )
    )


class LabRun:
    """Starts one worker at a time, and keeps what is known about it.

    ``state`` goes idle → starting → running → (stopping →) stopped or failed. ``failure`` says why
    it failed, and ``summary`` is the document of the last run that ended. Nothing that a worker
    does raises an exception here.
    """

    def __init__(
        self,
        config: LabConfig,
        on_record: Callable[[metrics.Record], None] | None = None,
        on_state: Callable[[LabRun], None] | None = None,
        environment: Mapping[str, str] | None = None,
        keep: bool = False,
    ):
        """Prepare a run; nothing is started yet. Callbacks come in the event loop.

        ``environment`` holds variables that the worker is started with, in addition to this
        process's own. With ``keep`` the worker writes its run down in the ledger where this
        process has ended before.
        """
        self.config = config
        self.state: State = "idle"
        self.failure: metrics.RunFailure | None = None
        self.summary: dict[str, Any] | None = None
        self.started: metrics.Started | None = None
        self.no_torch = False
        """Whether it failed because no Python here has torch."""
        self.stderr: deque[str] = deque(maxlen=50)
        """The last lines that the worker wrote to stderr, for a log."""
        self.lines_printed = 0
        """The number of lines that workers have written there, including earlier ones."""
        self._on_record, self._on_state = on_record, on_state
        self._environment = dict(environment or {})
        self._keeps = keep
        self._left = False
        self._step_seconds = 0.0
        """How long the newest step took, 0 before the first."""
        self._process: asyncio.subprocess.Process | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._following: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()

    @property
    def pid(self) -> int | None:
        """The worker's pid while there is one."""
        return self._process.pid if self._process and self._process.returncode is None else None

    async def start(self) -> None:
        """Start a worker with ``config`` unless one runs.

        Return once the process exists, or ``state`` is failed.
        """
        async with self._lock:
            if self.pid is None:
                await self._launch()

    async def stop(self) -> None:
        """Ask the worker to end after its step, and return when it has ended.

        It is killed where that takes much longer than a step.
        """
        async with self._lock:
            await self._end()

    def kill(self) -> None:
        """End a worker at once that was asked to end."""
        if self.state == "stopping" and self.pid is not None:
            self._kill_group()

    @property
    def stop_seconds(self) -> float:
        """Seconds that a worker gets to end."""
        step = min(STEPS_AWAITED * self._step_seconds, LONGEST_AWAITED)
        return (STOP_RANKS_SECONDS if self.config.processes else STOP_SECONDS) + step

    async def restart(self, config: LabConfig) -> None:
        """End the worker if there is one, and start one with ``config``."""
        async with self._lock:
            await self._end()
            self.config = config
            await self._launch()

    async def wait(self) -> None:
        """Wait until the worker has ended and its last record is delivered."""
        if self._following is not None:
            await asyncio.shield(self._following)

    def let_go(self) -> None:
        """Tell the worker to end, and wait for nothing, because this program quits at once.

        One that writes its run down is left to it: the end of its stdin alone says that nobody
        reads what it reports, and it ends soon.
        """
        if self._process and self._process.returncode is None:
            self._left = self._keeps
            if self._left:
                _LEFT.append(self._process)
            else:
                self._process.terminate()
            assert self._process.stdin is not None
            self._process.stdin.close()

    async def _launch(self) -> None:
        self.failure = self.summary = self.started = None
        self.no_torch, self._step_seconds = False, 0.0
        self.stderr.clear()
        self._become("starting")
        try:
            self._process = await self._open()
        except NoTorch as error:
            self.failure, self.no_torch = error.failure, True
            self._become("failed")
        except OSError as error:
            self.failure = metrics.RunFailure(
                "The lab's worker could not be started.", str(error), "df -h /tmp; ulimit -u"
            )
            self._become("failed")
        else:
            self._following = asyncio.create_task(self._follow(self._process))

    async def _open(self) -> asyncio.subprocess.Process:
        """Start the process of the worker."""
        python = await asyncio.to_thread(find_python)
        self._folder = only_this_package()
        words = command(python, self.config, self._keeps)
        return await open_worker(words, self._folder.name, self._environment)

    async def _end(self) -> None:
        if self._process is None or self._following is None or self._following.done():
            return
        if self.pid is not None:
            self._become("stopping")
            self._signal(signal.SIGTERM)
        done, _ = await asyncio.wait([self._following], timeout=self.stop_seconds)
        if not done:
            self._kill_group()
        await asyncio.shield(self._following)

    def _signal(self, number: int) -> None:
        assert self._process is not None
        try:
            self._process.send_signal(number)
        except ProcessLookupError:
            pass

    def _kill_group(self) -> None:
        """Kill the worker and every process that it started.

        Its loader processes are in its process group, and its ranks die with it.
        """
        assert self._process is not None
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass

    async def _follow(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        errors = asyncio.create_task(self._keep(process.stderr))
        status: int | None = None
        try:
            while status is None and (line := await self._next(process.stdout)):
                status = self._ended_with(line)
                record = metrics.decode(line)
                if record is not None:
                    self._take(record)
            await errors
            status = await process.wait() if status is None else status
        finally:
            errors.cancel()
            self._release()
        self._finished(child.how_it_ended(status))

    def _ended_with(self, line: bytes) -> int | None:
        """Return the status with which the run has ended, where a line of output says it."""
        return None

    def _release(self) -> None:
        """End what the run has left behind."""
        if not self._left:
            self._kill_group()
        if self._folder is not None:
            self._folder.cleanup()

    def _finished(self, how: str) -> None:
        """Note that the worker has ended, and why it failed where it has not said so itself."""
        if self.failure is None and self.summary is None and self.state != "stopping":
            self.failure = metrics.RunFailure(
                f"The lab's worker ended with {how}.",
                self.stderr[-1] if self.stderr else "it wrote nothing to stderr.",
                self.config.command() + " --headless",
            )
        self._become("failed" if self.failure else "stopped")

    async def _keep(self, stream: asyncio.StreamReader) -> None:
        while (line := await self._next(stream)) and self._ended_with(line) is None:
            self.lines_printed += 1
            self.stderr.append(line.decode(errors="replace").rstrip()[:1000])

    async def _next(self, stream: asyncio.StreamReader) -> bytes:
        """Return the next line, b"" at the end; a line beyond the limit is left out.

        Processes of a worker that was killed may hold its output open; they are ended.
        """
        while True:
            try:
                return await asyncio.wait_for(stream.readline(), timeout=1.0)
            except ValueError:
                continue
            except asyncio.TimeoutError:
                if self.pid is None:
                    self._kill_group()

    def _take(self, record: metrics.Record) -> None:
        if isinstance(record, metrics.Started):
            self.started = record
            if self.state == "starting":
                self._become("running")
        elif isinstance(record, metrics.Step):
            self._step_seconds = record.step_seconds or self._step_seconds
        elif isinstance(record, metrics.RunEnded):
            self.summary = record.summary
        elif isinstance(record, metrics.RunFailure):
            self.failure = record
            self.summary = record.summary or None
        if self._on_record:
            self._on_record(record)

    def _become(self, state: State) -> None:
        self.state = state
        if self._on_state:
            self._on_state(self)


def command(python: str, config: LabConfig, keep: bool = False) -> list[str]:
    """Return the worker's argument list."""
    words = ["--stop-on-eof", *([KEEP] if keep else []), "--config", config.to_json()]
    return [python, "-m", "gpuscope.lab.worker", *words]


async def open_worker(
    words: Sequence[str], path: str, variables: Mapping[str, str]
) -> asyncio.subprocess.Process:
    """Start a process of the Lab with this package from ``path``, and with more variables."""
    return await asyncio.create_subprocess_exec(
        *words,
        env={**environment(path), **variables},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        limit=metrics.MAX_LINE_BYTES,
        start_new_session=True,  # the terminal's Ctrl-C is for us; we end the worker
    )


def environment(path: str) -> dict[str, str]:
    """Return the worker's environment.

    ``path`` is put before the user's own PYTHONPATH, and variables of a rank are removed.
    """
    environ = {
        name: value
        for name, value in os.environ.items()
        if name not in RANK_VARIABLES and not name.startswith("TORCHELASTIC_")
    }
    environ[FOLDER_VARIABLE] = path
    theirs = environ.get("PYTHONPATH")
    environ["PYTHONPATH"] = os.pathsep.join([path, theirs]) if theirs else path
    environ["PYTHONSAFEPATH"] = "1"  # do not import a torch/ or random.py from the current folder
    return environ


def only_this_package() -> tempfile.TemporaryDirectory[str]:
    """Make a new folder with this package and nothing else in it.

    If our own site-packages were in the path of another Python, our versions of all libraries would
    take precedence over its own.
    """
    folder = tempfile.TemporaryDirectory(prefix="gpuscope-lab-", ignore_cleanup_errors=True)
    os.symlink(Path(__file__).resolve().parent.parent, os.path.join(folder.name, "gpuscope"))
    return folder


def run_blocking(config: LabConfig, on_record: Callable[[metrics.Record], None]) -> LabRun:
    """Run a worker to its end, without an event loop.

    SIGINT and SIGTERM stop it in an orderly way, with its summary.
    """

    async def whole() -> LabRun:
        run = LabRun(config, on_record)
        loop = asyncio.get_running_loop()
        stops: set[asyncio.Task[None]] = set()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, lambda: stops.add(asyncio.create_task(run.stop())))
        await run.start()
        await run.wait()
        await asyncio.gather(*stops)
        return run

    return asyncio.run(whole())
