"""Keep the allocator's history of a real run in a compact file.

The simulated allocator and the tracer are judged on such files.

A file is JSON, compressed with xz or gzip by its suffix:

``actions``
    one letter an event, in order: ``a`` alloc, ``f`` a free that completed at once, ``r`` free requested, ``c`` free
    completed, ``S`` segment alloc, ``F`` segment free, ``m`` map, ``u`` unmap, ``o`` out of memory, ``s`` snapshot
``addresses``
    of each event, in units of 512 bytes above ``base``
``sizes``
    bytes as requested for ``a`` and ``o``, as taken from the driver for ``S F m u``, else 0
``streams``
    {place of the event: stream} where it is not 0
``marks``
    [place, name]: the step or phase that begins before that event
``labels``, ``label_table``
    of each ``a`` the place of its label: operators and functions, innermost first (only where stacks were recorded)
``live``
    what was allocated at the end, in bytes; ``settings``: the allocator's, as torch names them
"""  # noqa: E501

from __future__ import annotations

import gzip
import json
import lzma
from functools import cache
from pathlib import Path
from typing import Any

from gpuscope.predict.trace import Owner, PhaseMark, Trace

UNIT = 512
LETTERS = {
    "alloc": "a",
    "free_requested": "r",
    "free_completed": "c",
    "segment_alloc": "S",
    "segment_free": "F",
    "segment_map": "m",
    "segment_unmap": "u",
    "oom": "o",
    "snapshot": "s",
}
SIZED = "aoSFmu"
INTERESTING = (
    "at::_ops::",
    "at::native::",
    "at::cuda::",
    "torch::autograd::generated::",
    "cudnn",
    "cublas",
    "pytorch_",
)
CPP_DEPTH, PYTHON_DEPTH = 6, 3


def compact(
    entries: list[dict[str, Any]], marks: list[tuple[int, str]], settings: object
) -> dict[str, Any]:
    """Return the compact form of a history.

    ``entries`` as in a snapshot's ``device_traces``; ``marks`` as (how many allocs and free
    requests came before, name), in order.
    """
    actions: list[str] = []
    addresses: list[int] = []
    sizes: list[int] = []
    streams: list[int] = []
    labels: list[int] = []
    table: dict[str, int] = {}
    placed: list[tuple[int, str]] = []
    pending, counted, live = list(marks), 0, 0
    held: dict[int, int] = {}
    taken = [
        entry["addr"] for entry in entries if entry["action"] in ("segment_alloc", "segment_map")
    ]
    base = min(taken, default=0) // UNIT * UNIT
    for entry in entries:
        action, address, size = entry["action"], int(entry.get("addr", 0)), int(entry["size"])
        letter = LETTERS.get(action)
        if letter is None:
            continue
        if letter in "ar":
            while pending and pending[0][0] <= counted:
                placed.append((len(actions), pending.pop(0)[1]))
            counted += 1
        if letter == "a":
            held[address] = size
            live += size
        elif letter == "r":
            live -= held.pop(address, 0)
        place = 0 if letter in "os" else (address - base) // UNIT
        if letter == "c" and actions and actions[-1] == "r" and addresses[-1] == place:
            actions[-1] = "f"
            continue
        actions.append(letter)
        addresses.append(place)
        sizes.append(size if letter in SIZED else 0)
        streams.append(int(entry.get("stream", 0)))
        if letter == "a" and entry.get("frames"):
            labels.append(table.setdefault(label(entry["frames"]), len(table)))
    placed += [(len(actions), name) for _, name in pending]
    return {
        "format": 1,
        "base": base,
        "streams": {str(at): stream for at, stream in enumerate(streams) if stream},
        "settings": settings,
        "marks": placed,
        "live": live,
        "actions": "".join(actions),
        "addresses": addresses,
        "sizes": sizes,
        **({"labels": labels, "label_table": list(table)} if table else {}),
    }


def label(frames: list[dict[str, Any]]) -> str:
    """Name what was asking for memory.

    The form is ``operator < function < … | file:line function < …``, C++ then Python.
    """
    inner: list[str] = []
    python: list[str] = []
    for frame in frames:
        name, file = str(frame.get("name", "")), str(frame.get("filename", ""))
        if file.endswith(".py"):
            if len(python) < PYTHON_DEPTH:
                python.append(f"{'/'.join(file.split('/')[-2:])}:{frame.get('line', 0)} {name}")
        elif len(inner) < CPP_DEPTH:
            short = _without_arguments(name)
            if short.startswith("at::_ops::"):
                short = short.removesuffix("::call").removesuffix("::redispatch")
            if short.startswith(INTERESTING) and (not inner or inner[-1] != short):
                inner.append(short)
    return " < ".join(inner) + " | " + " < ".join(python)


@cache
def _without_arguments(name: str) -> str:
    """``at::native::f<int>(…)`` as ``at::native::f``."""
    kept: list[str] = []
    depth = 0
    for character in name.replace("(anonymous namespace)", "{anonymous}"):
        if character in "(<":
            depth += 1
        elif character in ")>":
            depth -= 1
        elif not depth:
            kept.append(character)
    words = "".join(kept).split()
    return next((word for word in words if "::" in word), words[0] if words else "")


def write(path: Path, data: dict[str, Any]) -> int:
    """Write the file, and return its size in bytes."""
    text = json.dumps(data, separators=(",", ":")).encode()
    if path.suffix == ".gz":
        packed = gzip.compress(text, 9, mtime=0)
    else:
        packed = lzma.compress(text, preset=6)
    path.write_bytes(packed)
    return len(packed)


def read(path: Path) -> dict[str, Any]:
    packed = path.read_bytes()
    found: dict[str, Any] = json.loads(
        gzip.decompress(packed) if path.suffix == ".gz" else lzma.decompress(packed)
    )
    return found


def as_trace(data: dict[str, Any]) -> Trace:
    """Return the requests of the recording, for a replay: allocations and free requests.

    Blocks whose purpose is not known have the owner "unknown", with the label as the operation.
    """
    trace = Trace(owner_table=[Owner("unknown")])
    table = {"": 0}
    held: dict[int, int] = {}
    marks = list(data["marks"])
    labels = iter(data.get("labels", ()))
    names = data.get("label_table", ())
    for place, letter in enumerate(data["actions"]):
        while marks and marks[0][0] <= place:
            trace.marks.append(PhaseMark(len(trace.events), marks.pop(0)[1]))
        address = data["addresses"][place]
        if letter == "a":
            block = len(trace.sizes)
            name = names[next(labels)] if names else ""
            if name not in table:
                table[name] = len(trace.owner_table)
                trace.owner_table.append(Owner("unknown", "", name))
            trace.sizes.append(data["sizes"][place])
            trace.owners.append(table[name])
            trace.events.append(block)
            held[address] = block
            stream = data["streams"].get(str(place))
            if stream is not None:
                trace.streams[block] = stream
        elif letter in "fr" and address in held:
            trace.events.append(~held.pop(address))
    trace.marks += [PhaseMark(len(trace.events), name) for _, name in marks]
    return trace
