"""Read what torchrun left: its error files, and the list of failed ranks at the end of its log."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ...wire.files import open_regular
from . import tracebacks
from .find import FoundFile
from .lines import LogLine
from .model import Failure

MOST_BYTES = 4 << 20
_ITEM = re.compile(r"^\s*\[\d+\]:\s*$")
_FIELD = re.compile(
    r"^\s*(?P<name>time|host|rank|exitcode|error_file|traceback)\s*: ?(?P<value>.*)$"
)
_RANK = re.compile(r"(\d+) \(local_rank: (\d+)\)")
_CODE = re.compile(r"(-?\d+) \(pid: (\d+)\)")
_END = re.compile(r"^\s*[=-]{20,}\s*$")
_ROOT = "Root Cause (first observed failure)"


@dataclass(slots=True)
class Listed:
    """A failed rank as torchrun lists it. ``first`` marks the failure that it saw first.

    ``time`` is by the clock of its host, without a zone.
    """

    rank: int
    local: int
    host: str
    pid: int
    code: int
    time: float | None
    source: str
    error_file: str = ""
    first: bool = False
    failure: Failure | None = None


def read_error_file(found: FoundFile) -> Failure | None:
    """Return the exception in an error file. Raises OSError, or ValueError for another file."""
    with open_regular(found.path) as file:
        document: Any = json.loads(file.read(MOST_BYTES))
    message = document.get("message")
    if not isinstance(message, dict):
        return None if message is None else Failure([str(message)[:2000]], [[]], found.name)
    extra = message.get("extraInfo")
    extra = extra if isinstance(extra, dict) else {}
    stack = str(extra.get("py_callstack", ""))
    at = str(extra.get("timestamp", ""))
    lines = [LogLine(n, text) for n, text in enumerate(stack.split("\n"), 1)]
    failures = tracebacks.read(lines, found.name).failures
    failure = failures[0] if failures else Failure([str(message.get("message"))[:2000]], [[]], "")
    failure.source = found.name
    failure.fatal = True
    failure.time = float(at) if at.replace(".", "", 1).isdigit() else None
    return failure


def take_list(lines: Sequence[LogLine], name: str) -> tuple[list[Listed], list[LogLine]]:
    """Return the failed ranks that torchrun lists, and the lines that are not of that list."""
    if not any(line.text.startswith(("Failures:", _ROOT)) for line in lines):
        return [], list(lines)
    listed: list[Listed] = []
    rest: list[LogLine] = []
    i = 0
    root = False
    inside = False
    while i < len(lines):
        text = lines[i].text
        if text.startswith(("Failures:", _ROOT)):
            inside, root = True, text.startswith(_ROOT)
            i += 1
            continue
        if not inside or not _ITEM.match(text):
            if _END.match(text) or "<NO_OTHER_FAILURES>" in text:
                i += 1
                continue
            inside = inside and not text.strip()
            rest.append(lines[i])
            i += 1
            continue
        i, item = _item(lines, i, name, root)
        if item is not None:
            listed.append(item)
    return listed, rest


def _item(lines: Sequence[LogLine], i: int, name: str, root: bool) -> tuple[int, Listed | None]:
    source = f"{name}:{lines[i].number}"
    values: dict[str, str] = {}
    body: list[LogLine] = []
    i += 1
    while i < len(lines) and not _ITEM.match(lines[i].text) and not _END.match(lines[i].text):
        match = _FIELD.match(lines[i].text)
        if match and "traceback" not in values:
            values[match["name"]] = match["value"].strip()
            if match["name"] == "traceback":
                body.append(LogLine(lines[i].number, "  " + match["value"]))
        else:
            body.append(lines[i])
        i += 1
    rank, code = _RANK.search(values.get("rank", "")), _CODE.search(values.get("exitcode", ""))
    if rank is None or code is None:
        return i, None
    body = [LogLine(one.number, one.text[2:]) for one in body]
    failures = tracebacks.read(body, name).failures
    at: float | None
    try:
        at = datetime.strptime(values.get("time", ""), "%Y-%m-%d_%H:%M:%S").timestamp()
    except ValueError:
        at = None
    failure = failures[0] if failures else None
    if failure is not None:
        failure.time = failure.time or at
    return i, Listed(
        rank=int(rank[1]),
        local=int(rank[2]),
        host=values.get("host", ""),
        pid=int(code[2]),
        code=int(code[1]),
        time=at,
        source=source,
        error_file=values.get("error_file", ""),
        first=root,
        failure=failure,
    )
