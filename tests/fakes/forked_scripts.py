"""Training scripts in forks (``forking.py``), as python or torchrun would start them.

So there are dozens of trainings for the price of one import of torch.
"""

from __future__ import annotations

import itertools
import re
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.fakes.forking import Forked
from tests.fakes.probe_client import environment

CODE = """
import atexit, os, runpy, sys, threading
sys.argv, code = {argv!r}, 0
sys.path[0] = {folder!r}
if {watch!r}:
    import gpuscope
    gpuscope.watch()
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
except SystemExit as ended:
    code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    if code and not isinstance(ended.code, int):
        print(ended.code, file=sys.stderr)
except BaseException:
    sys.excepthook(*sys.exc_info())
    code = 1
threading._shutdown()
atexit._run_exitfuncs()
sys.stdout.flush(), sys.stderr.flush()
os._exit(code)
"""
"""Runs a script as an interpreter does, except that modules are not taken apart at the end: for
torch this would be most of the cost of a short script.
"""


@dataclass(frozen=True)
class Ended:
    """How a script ended.

    It has the exit code of each process (below 0 a signal), what they printed, and the seconds of
    the processor that each process used.
    """

    codes: list[int]
    text: str
    cpu_seconds: Sequence[float] = ()

    def last(self, pattern: str) -> float:
        """Return the number in the last line that contains it."""
        found = re.findall(pattern, self.text)
        assert found, self.text
        return float(found[-1].replace(",", ""))


class Run:
    """One script that was started.

    ``processes`` are its ranks in their order, and all print to ``output``.
    """

    def __init__(self, processes: list[Forked], output: Path) -> None:
        self.processes, self.output = processes, output

    @property
    def text(self) -> str:
        return self.output.read_text(errors="replace")

    def alive(self) -> bool:
        return any(one.poll() is None for one in self.processes)

    def wait(self, seconds: float) -> Ended:
        """Wait until all ranks have ended.

        Raises :class:`AssertionError` if that takes longer, and kills them.
        """
        until = time.monotonic() + seconds
        try:
            codes = [one.wait(max(0.0, until - time.monotonic())) for one in self.processes]
        except subprocess.TimeoutExpired:
            self.end()
            raise AssertionError(f"not done in {seconds:g} s: {self.text[-2000:]}") from None
        return Ended(codes, self.text, [one.cpu_seconds for one in self.processes])

    def end(self) -> None:
        for one in self.processes:
            one.end()


class Scripts:
    """Scripts whose outputs are files in ``folder``.

    ``variables`` are set in the environment of all of them; None removes one.
    """

    def __init__(self, folder: Path, **variables: str | None) -> None:
        self.folder, self.variables = folder, variables
        self._runs: list[Run] = []
        self._numbers = itertools.count(1)  # of files: threads may start two at once

    def start(
        self,
        name: str,
        path: Path,
        words: Sequence[str] = (),
        *,
        nproc: int = 0,
        watch: bool = False,
        cwd: str | Path = "",
        variables: Mapping[str, str] | None = None,
    ) -> Run:
        """Start one process, or ``nproc`` ranks in an environment as torchrun makes it.

        With ``watch`` the probe is in it. May be called from several threads.
        """
        ranks: list[dict[str, str]] = [{}]
        if nproc:
            common = {
                "WORLD_SIZE": str(nproc),
                "LOCAL_WORLD_SIZE": str(nproc),
                "MASTER_ADDR": "127.0.0.1",
            }
            common["MASTER_PORT"] = str(free_port())
            ranks = [
                {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(nproc)
            ]
        run = Run([], self.folder / f"{next(self._numbers)}-{name.replace(' ', '-')}.txt")
        # if it fails before all are started, those that were started are ended too
        self._runs.append(run)
        code = CODE.format(argv=[str(path), *words], folder=str(path.resolve().parent), watch=watch)
        for rank in ranks:
            environ = environment(
                **{"PYTHONUNBUFFERED": None, **self.variables, **(variables or {}), **rank}
            )
            run.processes.append(Forked(code, environ, cwd=cwd, session=True, output=run.output))
        return run

    def end(self) -> None:
        for run in self._runs:
            run.end()


def free_port() -> int:
    """Return a TCP port of this host that is not in use."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
