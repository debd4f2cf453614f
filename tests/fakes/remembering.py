"""A child that stands in for an agent, with trainers that remember their memory.

It says what a test wrote down.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from gpuscope.wire import frames as f
from gpuscope.wire.codec import encode
from tests.fakes.child_agent import START

SCRIPT = """
import json
said, points = sys.argv[1:]
os.write(1, open(said, "rb").read())
for request in asked():
    if isinstance(request, Ping):
        say(Pong(request.t))
    elif request.r == "growth":
        say(Result(request.id, {"points": json.loads(points), "trainer": request.args["trainer"]}))
    elif request.r != "cancel":
        say(Result(request.id, {}))
"""


def agent(folder: Path, said: Sequence[f.Frame], points: list[list[object]]) -> list[str]:
    """The command of one whose trainers answer the request ``growth`` with ``points``."""
    for frame in said:
        if isinstance(frame, f.Hello):
            frame.requests = ["rate", "growth"]
    (folder / "said").write_bytes(b"".join(map(encode, said)))
    return [sys.executable, "-c", START + SCRIPT, str(folder / "said"), json.dumps(points)]


def leak(before: int = 4000, count: int = 60) -> list[list[object]]:
    """Return what a trainer remembers whose first device leaks.

    It has kept 0.45 GiB more after each of ``count`` steps.
    """
    return [
        [
            0,
            [
                [before - count + n, int((30 - 0.45 * (count - n)) * (1 << 30))]
                for n in range(count)
            ],
        ]
    ]
