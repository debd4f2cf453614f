"""Starts an agent on a host where nothing is installed, by sending it through the pipe.

The command on the other side is a one-line loader without quotes, backslashes or exclamation marks,
so that any login shell passes it on unchanged. It reads one line from standard input, the stage.
The stage reads the zip, checks it, keeps it in memory and runs the agent from there. No file is
created there, no port is opened, and the agent ends when the pipe is closed::

    stdin:   STAGE \\n  {"bytes", "sha256", "nonce", "args"} \\n  ZIP  requests …
    stdout:  whatever a login prints  \\n \\x1e gpuscope NONCE \\n  frames …
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from dataclasses import dataclass
from functools import lru_cache
from typing import Tuple

from .agent_source import zip_to_send

OLDEST = (3, 8)
LOADER = "import os;exec(bytes().join(iter(lambda:os.read(0,1)or os._exit(75),bytes([10]))))"
"""Reads byte by byte up to the first newline, so that nothing after it is consumed.

At the end of the pipe it exits.
"""
PYTHONS = (
    "python3", "/usr/bin/python3", "/usr/local/bin/python3", "$CONDA_PREFIX/bin/python3",
    "/opt/conda/bin/python3", "$HOME/miniconda3/bin/python3", "$HOME/.local/bin/python3",
)  # fmt: skip
NO_PYTHON, OLD_PYTHON, DAMAGED = 72, 76, 74
"""Exit codes of the command: there is no Python, it is too old, or the zip is incomplete."""
_PYTHON_PATH = re.compile(r"[A-Za-z0-9_.~/][A-Za-z0-9_.~/+-]{0,500}")


class BadPython(ValueError):
    """A path that is not passed to a remote shell."""


@dataclass(frozen=True)
class Preamble:
    """The words and the code that start one agent.

    ``data`` is written to standard input first. Frames begin after the line ``marker``.
    """

    data: bytes
    marker: bytes


def preamble(hz: float, redact: bool = True) -> Preamble:
    """Return the preamble of one agent process, with a nonce that no login banner can guess."""
    nonce = secrets.token_hex(16)
    archive, digest = _archive()
    args = {"hz": hz, "nonce": nonce, "no_redact": not redact}
    header = json.dumps({"bytes": len(archive), "sha256": digest, "nonce": nonce, "args": args})
    return Preamble(
        _stage_line() + header.encode() + b"\n" + archive, b"\x1egpuscope %s\n" % nonce.encode()
    )


def script(python: str = "") -> str:
    """Return what ``sh -c`` runs there to find a Python and start the loader in it.

    It takes the first Python in a usual place, else the Python of a process that runs there. If
    ``python`` is given, it takes that one and no other. Raises :class:`BadPython`.
    """
    if python:
        if not _PYTHON_PATH.fullmatch(python):
            raise BadPython(
                f"--remote-python {python[:100]!r}: only letters, digits and ._~/+- are allowed"
            )
        return f'exec {python} -I -S -u -c "{LOADER}"'
    candidates = " ".join(f'"{one}"' for one in PYTHONS)
    return (
        "t() { command -v "
        f'"$1" >/dev/null 2>&1 && exec "$1" -I -S -u -c "{LOADER}"; }}; '
        f"for p in {candidates}; do t "
        '"$p"; done; '
        'for e in /proc/[0-9]*/exe; do case "$(readlink "$e" 2>/dev/null)" in */python3*) t '
        '"$(readlink "$e")";; esac; '
        f"done; echo gpuscope: no python3 found >&2; exit {NO_PYTHON}"
    )


def command(python: str = "") -> Tuple[str, ...]:
    """Return the command as a list of words, to start it without a shell.

    Raises :class:`BadPython`.
    """
    return ("sh", "-c", script(python))


def prepare() -> None:
    """Build what all preambles share, once. This is too slow for an event loop."""
    _archive()
    _stage_line()


@lru_cache(maxsize=1)
def _archive() -> Tuple[bytes, str]:
    archive = zip_to_send()
    return archive, hashlib.sha256(archive).hexdigest()


@lru_cache(maxsize=1)
def _stage_line() -> bytes:
    source = _STAGE % {
        "oldest": OLDEST,
        "old": OLD_PYTHON,
        "damaged": DAMAGED,
        "names": [f"python3.{minor}" for minor in range(15, OLDEST[1] - 1, -1)],
    }
    return b"stage=%s;exec(stage)\n" % repr(source).encode("ascii")


# This runs on whatever Python 3 is there, so it uses old syntax. It leaves nothing in the agent
# except an entry in sys.path.
_STAGE = """\
import os, sys
def stop(code, text):
    os.write(2, ("gpuscope: " + text + chr(10)).encode("utf-8", "replace"))
    os._exit(code)
if sys.version_info < %(oldest)r:
    places = os.environ.get("PATH", "/usr/bin:/bin").split(":") + ["/usr/bin", "/usr/local/bin", "/opt/conda/bin"]
    for name in %(names)r:
        for place in places:
            other = os.path.join(place, name)
            if place.startswith("/") and os.access(other, os.X_OK) and not os.path.isdir(other):
                try:
                    os.execv(other, [other, "-I", "-S", "-u", "-c", "stage=" + repr(stage) + ";exec(stage)"])
                except OSError:
                    pass
    stop(%(old)d, "python3 there is %%d.%%d.%%d, and 3.8 or newer is needed" %% sys.version_info[:3])
def take(size):
    parts = []
    while size:
        part = os.read(0, min(size, 65536))
        if not part:
            stop(%(damaged)d, "the connection ended while the agent was being sent")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
line = b""
while not line.endswith(b"\\n"):
    line += take(1)
import json
head = json.loads(line.decode("ascii"))
zip = take(head["bytes"])
import zlib
try:
    from _sha256 import sha256
except ImportError:
    try:
        from _sha2 import sha256
    except ImportError:
        from hashlib import sha256
if sha256(zip).hexdigest() != head["sha256"]:
    stop(%(damaged)d, "what arrived is not what was sent")
zip = zlib.decompress(zip)
def memory():
    try:
        return os.memfd_create("gpuscope", 1)
    except (AttributeError, OSError):
        pass
    for place in ("/dev/shm", os.environ.get("TMPDIR", "/tmp"), "/tmp"):
        try:
            return os.open(place, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except (AttributeError, OSError):
            pass
    stop(%(damaged)d, "neither a file in memory nor one without a name can be made there")
held = memory()
rest = memoryview(zip)
while rest:
    rest = rest[os.write(held, rest):]
os.write(1, ("\\n\\x1egpuscope " + head["nonce"] + "\\n").encode("ascii"))
sys.path.insert(0, "/proc/self/fd/%%d" %% held)
sys.argv = ["gpuscope-agent"]
__import__("gpuscope.agent.as_sent", fromlist=["main"]).main(**head["args"])
"""  # noqa: E501
