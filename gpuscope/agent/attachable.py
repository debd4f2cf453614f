"""List what a viewer can attach to on this host, and what each process would need.

This is the answer to ``inject`` ``list``.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional

from ..attach import attach_options
from ..collect import attachable
from ..wire.clean import limited

MAX_PIDS = 256
MAX_COMMAND_CHARS = 200
"""An answer about 128 processes fits into one line of the wire, whatever their arguments are."""


def listing(pids: object, redact: bool = True) -> Dict[str, Any]:
    """List the processes that can be attached to.

    ``pids`` names processes to list in any case, ``"12,34"``. This only reads, and raises for no
    kind of process.
    """
    # the same words as the probe's own, so that the keys agree
    from ..probe.identity import job_key, place, pod

    known = [
        int(word)
        for word in str(pids or "").split(",")[:MAX_PIDS]
        if word.isdigit() and len(word) < 10
    ]
    found, note = attachable.find(known, redact)
    rows: List[Dict[str, Any]] = []
    trainers = [one.definition.pid for one in found if one.role == attachable.TRAINER]
    for one in found:
        definition, environment = one.definition, one.environment
        rank, local_rank, world_size = place(environment)
        row: Dict[str, Any] = {
            "pid": definition.pid,
            "start": definition.start,
            "user": definition.user,
            "mine": definition.mine,
            "command": definition.command and limited(definition.command, MAX_COMMAND_CHARS),
            "name": definition.name,
            "parent": definition.ppid,
            "torch": one.torch,
            "role": one.role,
            "rank": rank,
            "local_rank": local_rank,
            "world_size": world_size,
            "job": job_key(environment, world_size),
            "sibling_of": one.sibling_of,
            "slurm": _digits(environment.get("SLURM_JOB_ID")),
            "pod": pod(environment),
        }
        if one.role == attachable.TRAINER:
            checked = look(definition.pid, definition.start, redact)
            consent = checked["consent"]
            if isinstance(consent, dict):
                consent["command"] = row["command"]
            row["look"] = {name: checked[name] for name in ("best", "rungs", "consent")}
        elif one.role == attachable.LAUNCHER:
            row["launches"] = attachable.launched(definition.pid, trainers)
        rows.append(row)
    return {"processes": rows, "note": note}


def look(pid: int, start: Optional[int], redact: bool = True) -> Dict[str, object]:
    """Return the ways to attach to one process, and what each needs.

    Another user's arguments are cut to the program's name, here as everywhere.
    """
    seen = attach_options.look(pid, start)
    if redact and seen.uid is not None and seen.user != "yours":
        command = seen.command.split(" ", 1)[0].rsplit("/", 1)[-1]
        seen = attach_options.Ladder(seen.pid, seen.start, seen.uid, seen.user, command, seen.rungs)
    return seen.data()


def _digits(text: Optional[str]) -> Optional[str]:
    return text if text and text.isdigit() and len(text) <= 12 else None
