"""Send requests to a probe, as an agent does it.

This module also has trainers that take orders while they train.
"""

from __future__ import annotations

import base64
import hashlib
import subprocess
import zlib
from typing import Any

from gpuscope.wire.frames import Blob, Credit, Def, Error, Event, Request, Result
from tests.fakes.probe_client import Reader

KEYBOARD = """
import threading
def listen():
    for line in sys.stdin:
        exec(eval(line), globals())
        print("done", flush=True)
threading.Thread(target=listen, name="keyboard", daemon=True).start()
"""
"""Code for a trainer: a thread that runs what :func:`tell` sends."""


def tell(process: subprocess.Popen[str], code: str) -> list[str]:
    """Have a trainer with a keyboard run ``code`` while it trains; return what it printed."""
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdin.write(repr(code) + "\n")
    process.stdin.flush()
    printed = []
    while (line := process.stdout.readline()) != "done\n":
        assert line, process.stderr.read()
        printed.append(line.rstrip("\n"))
    return printed


def ask(
    reader: Reader,
    name: str,
    args: dict[str, Any] | None = None,
    deadline: float = 30.0,
    number: int = 1,
) -> tuple[Any, bytes, list[Any]]:
    """Return the last answer, the blob that came before it, and all frames of it."""
    reader.send(Request(name, number, args or {}, deadline))
    return collect(reader, number)


def collect(reader: Reader, number: int) -> tuple[Any, bytes, list[Any]]:
    """Return the remaining frames of a request, giving credit for every chunk."""
    chunks: list[bytes] = []
    seen: list[Any] = []
    while True:
        frame = reader.next()
        assert frame is not None, "the stream ended"
        if getattr(frame, "id", None) != number or isinstance(frame, (Event, Def)):
            continue
        seen.append(frame)
        if isinstance(frame, Blob):
            assert frame.n == len(chunks)
            chunks.append(base64.b64decode(frame.data))
            if frame.last:
                assert hashlib.sha256(b"".join(chunks)).hexdigest() == frame.sha256
            else:
                reader.send(Credit(number, 1))
        if isinstance(frame, (Result, Error)):
            return frame, zlib.decompress(b"".join(chunks)) if chunks else b"", seen
