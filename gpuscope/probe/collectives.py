"""Read this rank's collectives: how many it has launched, and the last ones.

The last ones are known only where c10d's flight recorder is on.

Nothing here communicates or initialises anything. The sequence number of a group is a plain counter
in its backend (``getSequenceNumberForGroup`` of NCCL and Gloo returns a member: no lock, no
device), so it can be read while a collective hangs. The flight recorder is on if
``TORCH_FR_BUFFER_SIZE`` or ``TORCH_NCCL_TRACE_BUFFER_SIZE`` is greater than 0 (recent versions of
torch record 2000 entries by default). Its dump takes the recorder's own lock and asks events
whether they are done, without waiting; it is made only on request. We always ask for JSON, because
the other format is a pickle.
"""

from __future__ import annotations

import json
import sys
from typing import Any, Dict, List, Optional, Tuple, Union

from ..wire.frames import NOT_INITIALISED, NOT_SUPPORTED, Unknown
from .on_import import debug

MAX_GROUPS = 256
LAST_ENTRIES = 16
"""Limit of the entries for each group."""
MAX_DUMP_BYTES = 32 << 20
MAX_TEXT = 128
_NO_MODULE = Unknown(NOT_INITIALISED, "torch.distributed is not in use in this process")
_NO_GROUP = Unknown(NOT_INITIALISED, "no process group is initialised")


def count() -> Union[int, Unknown]:
    """Return how many collectives this rank has launched so far, over all its groups."""
    groups = _groups()
    if isinstance(groups, Unknown):
        return groups
    total, any_known = 0, False
    for group, _ in groups:
        sequence = _sequence(group)
        if sequence is not None:
            total, any_known = total + sequence, True
    return (
        total
        if any_known
        else Unknown(NOT_SUPPORTED, "these process groups do not count their collectives")
    )


def describe() -> List[Dict[str, Any]]:
    """Return a row for each group, then rows of its last collectives, oldest first.

    The latter exist only if a flight recorder is on. The fields are ``group``, ``backend``,
    ``sequence``, ``launched`` (by this rank), ``completed`` (sequence number of the last one that
    is known to be done), ``op``, ``state`` (scheduled, started, completed), ``seconds`` (its
    duration, or the time since its launch), ``size`` (elements of its inputs). Unknown values are
    None.
    """
    groups = _groups()
    if isinstance(groups, Unknown):
        return []
    entries = _recorded([backend for _, backend in groups])
    rows: List[Dict[str, Any]] = []
    for group, backend in groups:
        name = str(getattr(group, "group_name", ""))[:MAX_TEXT]
        label = str(getattr(group, "group_desc", "") or "")[:MAX_TEXT]
        launched = _sequence(group)
        mine = [entry for entry in entries if _group_of(entry) == name]
        completed = _completed(mine)
        common = {
            "group": name,
            "label": label,
            "backend": backend,
            "launched": launched,
            "completed": completed,
        }
        rows.append(
            {
                **common,
                "sequence": launched,
                "op": None,
                "state": None,
                "seconds": None,
                "size": None,
            }
        )
        rows.extend({**common, **_entry(entry)} for entry in mine[-LAST_ENTRIES:])
    return rows


def _completed(entries: List[Dict[str, Any]]) -> Optional[int]:
    """Return the sequence number of the last collective that is done.

    Like ``launched``, it is the sum over a group's backends.
    """
    last: Dict[str, int] = {}
    for entry in entries:
        number = _number(entry, "collective_seq_id")
        if number is not None and _state(entry) == "completed":
            backend = str(entry.get("profiling_name", "")).partition(":")[0]
            last[backend] = max(number, last.get(backend, number))
    return sum(last.values()) if last else None


def _groups() -> Union[List[Tuple[Any, str]], Unknown]:
    module: Any = sys.modules.get("torch.distributed.distributed_c10d")
    if module is None:
        return _NO_MODULE
    try:
        if not module.is_initialized():
            return _NO_GROUP
        known = list(module._world.pg_map.items())[:MAX_GROUPS]
        return [(group, str(names[0])[:MAX_TEXT]) for group, names in known]
    except Exception as error:  # half imported, being torn down, or another torch
        return Unknown(
            NOT_SUPPORTED, f"this torch does not list its process groups: {type(error).__name__}"
        )


def _sequence(group: Any) -> Optional[int]:
    try:
        return int(group._get_sequence_number_for_group())
    except Exception:
        pass
    # A group of several backends ("cpu:gloo,cuda:nccl") does not answer itself.
    total: Optional[int] = None
    try:
        backends = [group._get_backend(device) for device in group._device_types]
    except Exception:
        return None
    for backend in {id(backend): backend for backend in backends}.values():
        try:
            total = (total or 0) + int(backend._get_sequence_number_for_group())
        except Exception:
            pass
    return total


def _recorded(backends: List[str]) -> List[Dict[str, Any]]:
    """Return the entries of the flight recorders, oldest first.

    It is empty if they are off or this torch has none.

    From torch 2.15 on each backend has its own recorder, and a dump that names none returns Gloo's.
    Before, NCCL's has a function of its own, and all other backends share one.
    """
    c10d: Any = getattr(getattr(sys.modules.get("torch"), "_C", None), "_distributed_c10d", None)
    found: Dict[Any, Dict[str, Any]] = {}
    for name in sorted(
        {part.rpartition(":")[2] for backend in backends for part in backend.split(",")}
    ):
        ways: List[Tuple[str, Dict[str, str]]] = [
            ("_dump_fr_trace_json", {"backend": name}),
            ("_dump_fr_trace_json", {}),
        ]
        if name == "nccl":
            ways.insert(1, ("_dump_nccl_trace_json", {}))
        for function, arguments in ways:
            entries = _dumped(getattr(c10d, function, None), arguments)
            if entries:
                # Two names may lead to one recorder, so each of its entries is counted once.
                found.update(
                    ((_group_of(one), one.get("record_id"), _created(one)), one) for one in entries
                )
                break
    return sorted(found.values(), key=_created)


def _dumped(dump: Any, arguments: Dict[str, str]) -> List[Dict[str, Any]]:
    if dump is None:
        return []
    try:
        text = dump(**arguments)
        found = json.loads(text) if len(text) <= MAX_DUMP_BYTES else {}
        entries = found.get("entries") if isinstance(found, dict) else None
        return [entry for entry in entries or () if isinstance(entry, dict)]
    except TypeError:
        return []  # this torch's recorders cannot be chosen by name
    except Exception as error:
        debug("the flight recorder cannot be read", error)
        return []


def _created(entry: Dict[str, Any]) -> int:
    return _number(entry, "time_created_ns") or 0


def _group_of(entry: Dict[str, Any]) -> str:
    group = entry.get("process_group")
    return str(group[0] if isinstance(group, list) and group else group)[:MAX_TEXT]


def _state(entry: Dict[str, Any]) -> str:
    # Gloo's entries stay "scheduled" and are retired once they are done.
    return "completed" if entry.get("retired") is True else str(entry.get("state", ""))[:MAX_TEXT]


def _entry(entry: Dict[str, Any]) -> Dict[str, Any]:
    return {
        "sequence": _number(entry, "collective_seq_id"),
        "op": str(entry.get("profiling_name", ""))[:MAX_TEXT] or None,
        "state": _state(entry),
        "seconds": _seconds(entry),
        "size": _elements(entry.get("input_sizes")),
    }


def _seconds(entry: Dict[str, Any]) -> Optional[float]:
    """Return its duration if that was timed, else the time until its end was noticed."""
    took = entry.get("duration_ms")
    if isinstance(took, (int, float)) and not isinstance(took, bool) and took >= 0:
        return took / 1e3
    begin, end = _number(entry, "time_created_ns"), _number(entry, "time_discovered_completed_ns")
    return (end - begin) / 1e9 if begin and end and end >= begin else None


def _elements(sizes: Any) -> Optional[int]:
    total = 0
    try:
        for shape in sizes:
            product = 1
            for length in shape:
                product *= int(length)
            total += product
    except (TypeError, ValueError):
        return None
    return total


def _number(entry: Dict[str, Any], name: str) -> Optional[int]:
    value = entry.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
