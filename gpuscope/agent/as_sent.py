"""Start an agent that was sent to another host.

It sends its first frame before the rest of the agent is loaded, because on a distant host loading
takes longer than everything else.
"""

from __future__ import annotations

import os
from typing import Any, NoReturn

from ..wire.codec import encode
from .hello import hello


class AgentOptions:
    """The agent's command-line options. Parsed by :func:`gpuscope.agent.main.parse`."""

    def __init__(self, hz: float = 2.0, nonce: str = "", no_redact: bool = False) -> None:
        self.hz = hz
        self.nonce = nonce
        self.no_redact = no_redact
        self.no_ping_timeout = False
        self.sockets = None


def main(**options: Any) -> NoReturn:
    """An agent on the standard streams that sends its hello before it is fully loaded."""
    args = AgentOptions(**options)
    frames_fd = os.dup(1)
    os.dup2(2, 1)  # a stray print of any module must not break the stream
    rest = memoryview(encode(hello(args)))
    try:
        while rest:
            rest = rest[os.write(frames_fd, rest) :]
    except OSError:
        os._exit(1)  # nobody reads
    from .main import serve

    serve(args, frames_fd, greeted=True)
