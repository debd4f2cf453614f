"""How an agent starts that was sent to another host.

Its first frame is on its way before the rest of the agent is loaded, which takes a far host longer
than all else.
"""

from __future__ import annotations

import os
from typing import Any, NoReturn

from ..wire.codec import encode
from .hello import hello


class Settings:
    """What whoever sent an agent told it on its command line.

    Parsed by :func:`gpuscope.agent.main.parse`.
    """

    def __init__(self, hz: float = 2.0, nonce: str = "", no_redact: bool = False) -> None:
        self.hz = hz
        self.nonce = nonce
        self.no_redact = no_redact
        self.no_ping_timeout = False
        self.sockets = None


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
