"""The process that has imported torch and forks a trainer for each run.

``python -m gpuscope.lab.fork_server`` says that it is ready, and reads commands from stdin, one a
line. ``set`` with ``NAME=VALUE`` sets a variable for the trainers that follow. ``run`` with the
JSON of a configuration starts a trainer, which writes its records to stdout; ``end`` sends it
SIGTERM and ``kill`` kills it with all its processes. After its end comes a line of
:func:`end_line`, on stdout and on stderr. When stdin ends, the trainer and this process end too.

Each trainer is a process of its own: what it compiles, allocates or breaks is gone with it. It only
does not import torch again. This process never starts CUDA and has one thread, so that its copies
can use both.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
import traceback
from typing import NoReturn

from ..process.parent import die_with
from . import machine, worker
from .config import LabConfig
from .forked import BAD_FORK, READY, end_line
from .ledger_keeper import Keeper

NVML_CHECK = "PYTORCH_NVML_BASED_CUDA_CHECK"


class ForkServer:
    """Has at most one trainer at a time."""

    def __init__(self) -> None:
        self._child = 0
        self._woken, self._wake = os.pipe()
        for end in (self._woken, self._wake):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self._wake)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> None:
        """Follow commands until stdin ends."""
        text = b""
        while True:
            readable, _, _ = select.select([0, self._woken], [], [])
            if self._woken in readable:
                os.read(self._woken, 4096)
                self._reap()
            if 0 in readable:
                more = os.read(0, 1 << 16)
                if not more:
                    self._end()
                    return
                *lines, text = (text + more).split(b"\n")
                for line in lines:
                    self._follow(line.decode())

    def _follow(self, line: str) -> None:
        word, _, config = line.partition(" ")
        if word == "set":
            name, _, value = config.partition("=")
            os.environ[name] = value
        elif word == "run" and not self._child:
            prepare(LabConfig.from_json(config))
            self._child = os.fork()
            if not self._child:
                self._train(config)
        elif word == "end" and self._child:
            os.kill(self._child, signal.SIGTERM)
        elif word == "kill" and self._child:
            self._kill()

    def _train(self, config: str) -> NoReturn:
        """Train in this copy of the process, and leave it."""
        code = 1
        try:
            server = os.getppid()
            os.setsid()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for end in (self._woken, self._wake):
                os.close(end)
            nothing = os.open(os.devnull, os.O_RDONLY)
            os.dup2(nothing, 0)
            os.close(nothing)
            die_with(server)
            code = train(LabConfig.from_json(config))
            leave_compiler_processes()
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
        worker.leave(code)

    def _reap(self) -> None:
        """Report the end of the trainer, and end what it has left behind."""
        if not self._child:
            return
        pid, status = os.waitpid(self._child, os.WNOHANG)
        if not pid:
            return
        self._kill()
        self._child = 0
        line = end_line(os.waitstatus_to_exitcode(status))
        os.write(2, line)
        os.write(1, line)

    def _end(self) -> None:
        """End the trainer because nobody reads its records any more."""
        if self._child:
            os.kill(self._child, signal.SIGTERM)
            late = time.monotonic() + worker.GRACE_SECONDS
            while time.monotonic() < late and os.waitpid(self._child, os.WNOHANG)[0] == 0:
                time.sleep(0.05)
            self._kill()

    def _kill(self) -> None:
        try:
            os.killpg(self._child, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass


def leave_compiler_processes() -> None:
    """Let the server end the processes that have compiled, as it ends the trainer's whole group.

    torch waits for each of them at the end, unless it has been marked as ended. One that was not
    needed, because the results were in the cache, is still importing torch then, which takes
    seconds.
    """
    module = sys.modules.get("torch._inductor.async_compile")
    for pool in getattr(module, "_pool_set", ()):
        pool.running = False


def prepare(config: LabConfig) -> None:
    """Import what a trainer of ``config`` would import before its first step."""
    if config.compile != "off":
        from .compiling import compiled

        compiled(lambda: None, config.compile, config.fullgraph)  # compiles nothing yet


def train(config: LabConfig) -> int:
    """Train in this process, and return its exit code."""
    import torch

    if config.device == "cuda" and torch.cuda._is_in_bad_fork():
        return BAD_FORK
    os.environ.pop(NVML_CHECK, None)
    machine.prepare(config)
    return worker.work(config, worker.take_stdout(), False, Keeper(False))


def main() -> int:
    machine.prepare(LabConfig())
    # Whether there is a GPU is asked of the driver's management library, which starts no CUDA.
    os.environ[NVML_CHECK] = "1"
    import torch._dynamo  # noqa: F401  # every optimizer imports it in its first step

    from . import run  # noqa: F401

    os.write(1, READY)
    ForkServer().serve()
    return 0


if __name__ == "__main__":
    worker.leave(main())
