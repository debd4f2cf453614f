"""List the processes that have a device open, here or elsewhere: ``gpuscope devices --holders``.

This helps to find the owner of memory that no listed process uses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....store.view import HostView
from ....text import width
from ....text.units import DASH
from ....wire.clean import clean
from ....wire.frames import NO_PERMISSION, NOT_INITIALISED, Unknown
from ... import output
from ...local_look import LocalLook

COMMAND_CHARS = 60


def of_this_machine(host: HostView) -> dict[str, Any] | None:
    """Return the holders as an agent of another host does; None if no device has a number."""
    from ....collect.holders import holders_document
    from ....config import load

    minors = [d.definition.minor for d in host.devices if d.definition.minor is not None]
    return holders_document(minors, load()[0].redact) if minors else None


def by_device(look: LocalLook) -> dict[int, dict[str, Any]]:
    """Return the holders by device index.

    Each entry has ``pids``, ``processes`` (pid, user, command), ``hidden_processes``, and ``why``
    the list may be incomplete.
    """
    if not isinstance(look.holders, dict):
        return {}
    listed = look.holders
    why, hidden = listed.get("why"), listed.get("hidden_processes")
    rows = {one.get("minor"): one for one in listed.get("devices") or () if isinstance(one, dict)}
    found = {}
    for device in look.host.devices:
        one = rows.get(device.definition.minor)
        if one is not None:
            processes = [_row(row) for row in one.get("processes") or () if isinstance(row, dict)]
            found[device.definition.index] = {
                "pids": [row["pid"] for row in processes],
                "processes": processes,
                "more": one.get("more") if isinstance(one.get("more"), int) else 0,
                "hidden_processes": hidden if isinstance(hidden, int) else None,
                "why": clean(why) if isinstance(why, str) else "",
            }
    return found


def _row(row: Mapping[str, Any]) -> dict[str, Any]:
    user, command = row.get("user"), row.get("command")
    return {
        "pid": row.get("pid") if isinstance(row.get("pid"), int) else None,
        "user": clean(user) if isinstance(user, str) else None,
        "command": clean(command) if isinstance(command, str) else None,
    }


def unknown(look: LocalLook, path: str, found: Mapping[str, Any] | None) -> list[dict[str, str]]:
    """The rows for what is null in the holders of one device."""
    unknowns = output.Unknowns()
    if found is None:
        no_minor = Unknown(NOT_INITIALISED, "its device file under /dev is unknown")
        unknowns.add(path, look.holders if isinstance(look.holders, Unknown) else no_minor)
        return unknowns.rows
    why = Unknown(NO_PERMISSION, found["why"]) if found["why"] else output.NO_REASON_GIVEN
    if found["hidden_processes"] is None:
        unknowns.add(f"{path}.hidden_processes", why)
    for index, row in enumerate(found["processes"]):
        for name, value in row.items():
            if value is None:
                unknowns.add(f"{path}.processes[{index}].{name}", why)
    return unknowns.rows


def lines(look: LocalLook, found: Mapping[int, Mapping[str, Any]]) -> list[str]:
    """Return a line for each device and process, and at the end why there may be more."""
    out = []
    for index, one in found.items():
        if not one["processes"]:
            out.append(f"GPU {index} is open in no visible process")
        for row in one["processes"]:
            who = f"{row['user'] or 'someone'} pid {row['pid']}"
            out.append(
                f"GPU {index} is open in {who}  {width.cut(row['command'] or DASH, COMMAND_CHARS)}"
            )
        if one["more"]:
            out.append(f"GPU {index} is open in {one['more']} more")
    reasons = dict.fromkeys(one["why"] for one in found.values() if one["why"])
    if isinstance(look.holders, Unknown):
        reasons[clean(look.holders.text)] = None
    out += [f"{DASH} {why}" for why in reasons]
    return ["", *out] if out else []
