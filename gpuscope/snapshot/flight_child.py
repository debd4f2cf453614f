"""The child process that reads dumps of c10d's flight recorder, one after the other, with limits.

The dumps are pickles or JSON. A request is a line with a path as JSON. An answer is a line of JSON,
either with ``failure`` or with what a post-mortem needs of the dump: its entries as rows, and its
groups. It is started by path, as ``child.py`` is, and like there no pickle gets a global.
"""

from __future__ import annotations

import gzip
import json
import resource
import sys
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    import gpuscope.snapshot  # noqa: F401

    del sys.path[0]  # otherwise files beside the package could shadow the standard library

from gpuscope.snapshot.unpickle import Unreadable, load
from gpuscope.wire.code_owner import is_own
from gpuscope.wire.files import open_regular

MOST_ENTRIES = 20_000
"""The most entries that are read of a dump, the last ones."""
MOST_JSON_BYTES = 256 << 20
MOST_GROUPS = 1024
MOST_MEMBERS = 1 << 17


class NoDump(Exception):
    """The file holds no dump of a flight recorder. The text says what it holds instead."""


def read(path: str) -> dict[str, Any]:
    """Return the dump in a file, reduced. Raises NoDump, Unreadable, OSError or MemoryError."""
    with open_regular(path) as file:
        head = file.read(2)
    root = _json(path, head == b"\x1f\x8b") if head[:1] != b"\x80" else None
    if root is None:
        loaded = load(path, lambda share: None, lambda: None)
        if loaded.problem:
            raise NoDump(f"its pickle is incomplete ({loaded.text or loaded.problem})")
        root = loaded.root
    if not isinstance(root, dict) or not {"entries", "pg_config", "pg_status"} & set(root):
        raise NoDump("it is no dump of a flight recorder")
    return reduce(root)


def _json(path: str, packed: bool) -> Any:
    opener: Any = gzip.open if packed else open_regular
    with opener(path) as file:
        text = file.read(MOST_JSON_BYTES + 1)
    if text[:1] == b"\x80":
        return None
    if len(text) > MOST_JSON_BYTES:
        raise NoDump("its JSON is larger than 256 MiB")
    try:
        return json.loads(text)
    except ValueError as error:
        raise NoDump(f"its JSON is incomplete or damaged ({error})") from None


def reduce(root: dict[str, Any]) -> dict[str, Any]:
    """Return what a post-mortem needs of a dump, as values that JSON can hold."""
    entries = root.get("entries")
    rows = [
        _row(entry)
        for entry in (entries if isinstance(entries, list) else [])[-MOST_ENTRIES:]
        if isinstance(entry, dict)
    ]
    return {
        "rank": root.get("rank") if isinstance(root.get("rank"), int) else None,
        "host": str(root.get("host_name") or root.get("hostname") or "")[:256],
        "groups": _groups(root.get("pg_config")),
        "rows": rows,
    }


def _groups(config: Any) -> list[list[Any]]:
    """Return name, description and ranks of each group."""
    found = []
    for key, value in list(config.items())[:MOST_GROUPS] if isinstance(config, dict) else ():
        if isinstance(value, dict):
            ranks = value.get("ranks")
            if isinstance(ranks, str):
                words = [one.strip()[:9] for one in ranks.strip("[] ").split(",")]
                ranks = [int(one) for one in words if one.isdecimal()]
            ranks = ranks if isinstance(ranks, (list, tuple)) else []
            members = [one for one in ranks[:MOST_MEMBERS] if type(one) is int]
            found.append([str(key)[:256], str(value.get("desc", ""))[:256], members])
    return found


def _row(entry: dict[str, Any]) -> list[Any]:
    """Return an entry as a row, which ``doctor/dead/read_flight.py`` takes apart again."""
    group = entry.get("process_group")
    name, label = (
        (str(group[0])[:256], str(group[1])[:256])
        if isinstance(group, (list, tuple)) and len(group) > 1
        else (str(group)[:256], "")
    )
    state = str(entry.get("state", ""))[:32]
    backend, _, operation = str(entry.get("profiling_name", ""))[:256].rpartition(":")
    return [
        name,
        label,
        backend,
        operation,
        _number(entry.get("collective_seq_id")),
        _number(entry.get("p2p_seq_id")),
        1 if entry.get("is_p2p") else 0,
        _shapes(entry.get("input_sizes")),
        _shapes(entry.get("output_sizes")),
        _types(entry.get("input_dtypes")) or _types(entry.get("output_dtypes")),
        # Gloo's entries stay "scheduled", and are retired once they are done.
        1 if state == "completed" or (backend == "gloo" and entry.get("retired") is True) else 0,
        _number(entry.get("time_created_ns")),
        _number(entry.get("time_discovered_completed_ns")),
        _number(entry.get("timeout_ms")),
        _place(entry.get("frames")),
        1 if _blocks(entry.get("frames")) else 0,
    ]


def _number(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    return int(value) if isinstance(value, str) and value.lstrip("-").isdigit() else None


def _shapes(sizes: Any) -> str:
    if not isinstance(sizes, (list, tuple)):
        return ""
    return " ".join(
        "x".join(map(str, one)) if one else "scalar"
        for one in sizes[:16]
        if isinstance(one, (list, tuple))
    )[:200]


def _types(types: Any) -> str:
    if not isinstance(types, (list, tuple)):
        return ""
    return " ".join(sorted({str(one) for one in types[:64]}))[:100]


def _place(frames: Any) -> str:
    """Return the innermost line of the user's own code, as ``train.py:88 in step``."""
    for frame in frames if isinstance(frames, (list, tuple)) else ():
        if not isinstance(frame, dict):
            continue
        file = str(frame.get("filename", ""))
        if is_own(file):
            name = file.rpartition("/")[2][:200]
            return f"{name}:{frame.get('line')} in {str(frame.get('name', ''))[:100]}"
    return ""


def _blocks(frames: Any) -> bool:
    """Return whether ``send`` or ``recv`` made the call, and not ``isend`` or ``irecv`` alone."""
    return any(
        frame.get("name") in ("send", "recv")
        and str(frame.get("filename", "")).endswith("distributed_c10d.py")
        for frame in (frames if isinstance(frames, (list, tuple)) else ())[:8]
        if isinstance(frame, dict)
    )


def main(limit: int) -> None:
    if limit:
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for line in sys.stdin.buffer:
        try:
            answer: dict[str, Any] = read(json.loads(line))
        except (NoDump, Unreadable) as error:
            answer = {"failure": str(error)[:500]}
        except MemoryError:
            answer = {"failure": "reading it takes more memory than the limit allows"}
        except RecursionError:
            answer = {"failure": "it is nested deeper than any dump"}
        except OSError as error:
            answer = {"failure": f"it cannot be read ({error.strerror or error})"}
        sys.stdout.buffer.write(json.dumps(answer, separators=(",", ":")).encode() + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]))
