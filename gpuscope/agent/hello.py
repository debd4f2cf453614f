"""The first frame, by itself: it is on its way before the rest of the agent is loaded, which takes a far host longer
than all else."""

from __future__ import annotations

import os
import sys
import time
from typing import Any, NoReturn

from .. import __version__
from ..wire import frames
from ..wire.codec import encode

RELAYED = ("snapshot", "history", "profile", "stacks", "statistics", "modules", "growth", "detach", "environment")
"""What a probe may offer; whether this one does, it says itself."""
OFFERED = ("rate", "cancel", "inject", "signal", "holders", *RELAYED)
"""What a viewer finds in ``hello.requests``: also what only some of the trainers can do."""


class Settings:
    """What an agent is told by whoever sent it, as :func:`gpuscope.agent.main.parse` has it from a command line."""

    def __init__(self, hz: float = 2.0, nonce: str = "", no_redact: bool = False) -> None:
        self.hz = hz
        self.nonce = nonce
        self.no_redact = no_redact
        self.no_ping_timeout = False
        self.sockets = None


def hello(args: Any) -> frames.Hello:
    """Who this is. ``args``: rate and nonce."""
    return frames.Hello(
        role="agent",
        version=__version__,
        host=os.uname().nodename,
        boot=_boot_id(),
        py=".".join(map(str, sys.version_info[:3])),
        pid=os.getpid(),
        uid=os.getuid(),
        t=time.time(),
        m=time.monotonic_ns(),
        hz=args.hz,
        cols={table: list(columns) for table, columns in frames.COLUMNS.items()},
        requests=list(OFFERED),
        nonce=args.nonce,
    )


def _boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as stream:
            return stream.read(64).strip()
    except OSError:
        return ""


def main(**told: Any) -> NoReturn:
    """An agent on the standard streams that says hello before it is all there."""
    args = Settings(**told)
    frames_fd = os.dup(1)
    os.dup2(2, 1)  # a stray print of anybody must not break the stream
    rest = memoryview(encode(hello(args)))
    try:
        while rest:
            rest = rest[os.write(frames_fd, rest) :]
    except OSError:
        os._exit(1)  # nobody reads
    from .main import serve

    serve(args, frames_fd, greeted=True)
