"""A reader of a probe's socket, and real trainers in their own processes."""

from __future__ import annotations

import atexit
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpuscope.probe import rendezvous
from gpuscope.wire import codec, frames
from tests.fakes import forking

ROOT = Path(__file__).parent.parent.parent
APART = tempfile.mkdtemp(prefix="gpuscope-test-")
"""Probes here are not found by an agent that happens to run on this machine, and that would be one
client more.
"""
atexit.register(shutil.rmtree, APART, ignore_errors=True)
PLACE_APART = f"from gpuscope.probe import rendezvous; rendezvous.BASE = {APART!r}\n"
"""Code for a child, before its probe starts."""


class Reader:
    """Connect to a probe and keep what it says.

    Kept are definitions by id, and last values and reasons by (id, column).
    """

    def __init__(self, path: str | Path, seconds: float = 10.0) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(seconds)
        self.socket.connect(str(path))
        self.buffer = b""
        self.hello: frames.Hello | None = None
        self.defs: dict[int, frames.Def] = {}
        self.values: dict[tuple[int, str], Any] = {}
        self.reasons: dict[tuple[int, str], tuple[str, str]] = {}
        self.frames: list[Any] = []
        self.samples = 0

    def close(self) -> None:
        self.socket.close()

    def send(self, frame: Any) -> None:
        self.socket.sendall(codec.encode(frame))

    def next(self) -> Any:
        """The next frame, or None at the end of the stream."""
        while b"\n" not in self.buffer:
            try:
                chunk = self.socket.recv(65536)
            except ConnectionResetError:
                chunk = b""
            if not chunk:
                return None
            self.buffer += chunk
        line, _, self.buffer = self.buffer.partition(b"\n")
        frame = codec.decode(line)
        self.frames.append(frame)
        if isinstance(frame, frames.Hello):
            self.hello = frame
        elif isinstance(frame, frames.Def):
            self.defs[frame.id] = frame
        elif isinstance(frame, frames.Sample):
            self.samples += 1
            for table in ("t", "a"):
                for row in getattr(frame, table):
                    for column, value in zip(self.hello.cols[table], row[1:], strict=True):
                        self.values[row[0], column] = value
            for entity, column, code, text in frame.why:
                if code:
                    self.reasons[entity, column] = (code, text)
                else:
                    self.reasons.pop((entity, column), None)
        return frame

    def until(self, good: Callable[[], Any], seconds: float = 20.0) -> Any:
        """Read frames until ``good()`` is true; its value.

        Fails loudly at the deadline or the end of the stream.
        """
        deadline = time.monotonic() + seconds
        while not (value := good()):
            assert time.monotonic() < deadline, (
                f"never happened; values {self.values}, reasons {self.reasons}"
            )
            self.socket.settimeout(max(0.1, deadline - time.monotonic()))
            assert self.next() is not None or good(), "the stream ended"
        return value

    def answer(self, request: frames.Request, seconds: float = 10.0) -> Any:
        self.send(request)
        kinds = (frames.Result, frames.Error)
        return self.until(
            lambda: next(
                (f for f in self.frames if isinstance(f, kinds) and f.id == request.id), None
            ),
            seconds,
        )

    def trainer(self) -> frames.TrainerDef:
        return next(d.trainer for d in self.defs.values() if d.trainer)

    def value(self, column: str, entity: int = 1) -> Any:
        return self.values.get((entity, column))

    def alloc(self, ordinal: int) -> int | None:
        """The id of the allocator of ``ordinal``, None while it is not defined."""
        return next(
            (d.id for d in self.defs.values() if d.alloc and d.alloc.ordinal == ordinal), None
        )


def sockets(pid: int | None = None) -> list[Path]:
    """Sockets of probes now, of one process if asked: at the usual place and at :data:`APART`."""
    name = Path(rendezvous.directory()).name
    pattern = "*.sock" if pid is None else f"{pid}-*.sock"
    return sorted(
        path for base in (rendezvous.BASE, APART) for path in Path(base, name).glob(pattern)
    )


def wait_for(good: Callable[[], Any], seconds: float = 20.0, what: str = "it") -> Any:
    deadline = time.monotonic() + seconds
    while not (value := good()):
        assert time.monotonic() < deadline, f"{what} never happened"
        time.sleep(0.02)
    return value


def lines_of_ours(text: str) -> list[str]:
    """The lines that name gpuscope.

    That the checkout or its environment lies in a folder of that name does not count: a warning of
    torch begins with its path.
    """
    bare = text.replace(sys.prefix, "").replace(str(ROOT), "")
    return [
        line
        for line, rest in zip(text.splitlines(), bare.splitlines(), strict=True)
        if "gpuscope" in rest
    ]


def environment(**more: str | None) -> dict[str, str]:
    """Ours without what would lead a child elsewhere, and with the checkout importable.

    None removes a variable.
    """
    env = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("GPUSCOPE", "PYTHONPATH", "RANK", "WORLD_SIZE"))
    }
    env["PYTHONPATH"] = str(ROOT)
    env["OMP_NUM_THREADS"] = "1"
    # what outlives a trainer that dies here goes with APART
    env["XDG_STATE_HOME"] = os.path.join(APART, "state")
    env["GPUSCOPE_BLACKBOX_DIR"] = os.path.join(APART, "boxes")
    for name, value in more.items():
        env.pop(name, None)
        if value is not None:
            env[name] = value
    return env


@contextmanager
def trainer(
    code: str, *, python: str = sys.executable, fork: bool = False, **more: str | None
) -> Iterator[subprocess.Popen[str]]:
    """A process that runs ``code``; ended with the block.

    Its stdin, stdout and stderr are pipes. With ``fork``, for code that imports torch first of all,
    it is a fork of a process that has done so (``forking.py``).
    """
    process: Any
    if fork:
        process = forking.Forked(code, environment(**more))
    else:
        process = subprocess.Popen(
            [python, "-u", "-c", code],
            env=environment(**more),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


TRAINING = """
import sys, time, torch
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Linear(32, 4))
optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
def step():
    optimizer.zero_grad()
    model(torch.randn(8, 16)).sum().backward()
    optimizer.step()
def train(seconds=60, pause=0.005):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        step()
        time.sleep(pause)
"""
"""A small training to put in front of a child's code."""

STEPS_OF_TWO_SECONDS = 400
"""Of that training with its usual pause, at most: a clock that goes slower where others want the
cores.
"""
