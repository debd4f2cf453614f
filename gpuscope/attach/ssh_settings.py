"""Asks ssh which jump host is on the way to a host, and where a master connection is.

The answer comes from the user's own configuration of ssh. ``ssh -G`` prints it without connecting.
It runs only what ssh itself would run (``Match exec``).
"""

from __future__ import annotations

from typing import Dict, Sequence

from ..process import child
from .targets import SLURM, SSH, BadTarget, Target, checked_host

LOOK_SECONDS = 5.0
MAX_BYTES = 256 * 1024


def look(host: str, ssh: Sequence[str] = ("ssh",)) -> Dict[str, str]:
    """Return the keywords of ssh's configuration for a host, in lower case, with their values.

    They are empty if ssh does not tell. Raises :class:`BadTarget`.
    """
    words = [*ssh, "-G", "--", checked_host(host)]
    try:
        output = child.ask(words, LOOK_SECONDS, max_bytes=MAX_BYTES)
    except OSError:
        return {}
    if output.failure:
        return {}
    found: Dict[str, str] = {}
    for line in output.output.decode("utf-8", "replace").splitlines():
        name, _, value = line.partition(" ")
        found.setdefault(name.lower(), value.strip())
    return found


def jump_of(target: Target, ssh: Sequence[str] = ("ssh",)) -> str:
    """Return the first jump host on the way to a target, "" if there is none.

    It is also "" if that is not known.
    """
    if target.kind not in (SSH, SLURM) or not target.host or target.via:
        return ""
    try:
        found = look(target.host, ssh)
    except BadTarget:
        return ""
    jump = found.get("proxyjump", "none").partition(",")[0]
    return "" if jump == "none" else jump
