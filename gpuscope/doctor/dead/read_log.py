"""Read a log into what it says of each rank: its progress, exceptions, stacks and messages."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from ...wire.files import open_regular
from ..messages.ending import says_finished
from . import excerpt, json_lines, read_elastic, rules, tracebacks
from .find import FoundFile
from .lines import LineReader, LogLine, parts_of, time_near
from .model import Moment, Rank
from .read_elastic import Listed

_STEP = re.compile(
    r"\b(?:global[_ ]?step|steps?|iter(?:ation)?s?|batch|update|it)\b[\"']?\s*[=:#\[]?"
    r"\s*(\d{1,12})",
    re.I,
)
_BAR = re.compile(r"\d{1,3}%\|[^|]*\|\s*(\d{1,12})/\d+")
_EPOCH = re.compile(r"\bepochs?\b[\"']?\s*[=:#\[]?\s*(\d{1,9})", re.I)
_WORLD = re.compile(
    r"\b(?:world[_ ]?size|WORLD_SIZE|nranks|num_processes)\b[\"']?\s*[=: ]\s*(\d{1,6})"
    r"|\brank \d+ of (\d{1,6})\b|\bMEMBER: \d+/(\d{1,6})\b"
)
_HOST = re.compile(
    r"\b(?:on|host(?:name)?:?|hostname=|host=|node:?)\s+(?!(?:cuda|gpu|cpu|mps|rank|device|port|step)\W?\d)"
    r"([a-z][a-z0-9-]*\d[\w.-]*)(?=[\s,;)]|$)"
)
_COMPLAINS = ("ERROR", "CRITICAL", "FATAL", "rror:", "abort", "giving up", "nan ", "NaN")
_ERROR = re.compile(r"\b(?:ERROR|CRITICAL|FATAL|exception|error)\b")
FIRST_LINES = 40
LAST = 4
LOOK = 400
"""How many lines at the beginning and at the end of a log are searched for a time."""
MOST_MOMENTS = 60
"""The most messages of one rank that are kept. Of more, those in the middle are dropped."""


@dataclass(slots=True)
class LogPart:
    """What one file says of one rank; ``rank`` and ``local`` are None where nothing names them."""

    found: FoundFile
    about: Rank
    rank: int | None = None
    local: int | None = None


@dataclass(slots=True)
class ReadLog:
    """What one log says: of ranks, and of the job as a whole."""

    parts: list[LogPart] = field(default_factory=list)
    listed: list[Listed] = field(default_factory=list)
    world: int | None = None
    bytes_read: int = 0
    problem: str = ""


def read(found: FoundFile, tail: int) -> ReadLog:
    """Return what a log says. Raises OSError."""
    with open_regular(found.path) as file:
        of_rank = found.rank is not None or found.local is not None
        kept = excerpt.read(file, tail, excerpt.OF_A_RANK if of_rank else excerpt.OF_OTHERS)
    log = ReadLog(bytes_read=kept.bytes_read, problem=kept.problem)
    reader = LineReader(found.modified)
    reader.learn([text for _, text in kept.lines[:FIRST_LINES]])
    lines = [
        line
        for number, text in kept.lines
        for part in parts_of(text)
        for line in json_lines.opened(reader.read(number, part))
    ]
    log.listed, lines = read_elastic.take_list(lines, found.name)
    streams: defaultdict[tuple[int | None, int | None], list[LogLine]] = defaultdict(list)
    _give_tracebacks(lines)
    for line in lines:
        streams[line.rank, line.local].append(line)
    for (rank, local), own in streams.items():
        part = LogPart(found, Rank(-1), rank, local)
        _read_stream(part.about, own, found.name)
        log.parts.append(part)
    for line in lines[:400]:
        match = _WORLD.search(line.text)
        world = int(match[1] or match[2] or match[3]) if match else 0
        if log.world is None and 0 < world <= 1 << 20:
            log.world = world
    return log


def _give_tracebacks(lines: list[LogLine]) -> None:
    """Give a traceback without a rank to that of the line before, if that line says ERROR.

    ``logging.exception`` writes a traceback directly behind its message.
    """
    owner: int | None = None
    framed = False
    for before, line in pairwise(lines):
        if line.rank is not None:
            owner = None
        elif owner is None and before.rank is not None and _ERROR.search(before.text):
            begins = line.text.startswith("Traceback (most")
            owner, framed = (before.rank, False) if begins else (None, False)
        if owner is not None:
            line.rank = owner
            indented = line.text[:1].isspace()
            if framed and not indented:
                owner = None
            framed = framed or indented


def _read_stream(about: Rank, lines: list[LogLine], name: str) -> None:
    """Fill in what the lines of one rank say."""
    about.has_log = True
    about.sources.append(name)
    parsed = tracebacks.read(lines, name)
    about.failures = parsed.failures
    about.stacks = parsed.stacks
    about.pid = parsed.pid
    for failure in about.failures:
        rules.classify(failure)
    about.begin = next((one.time for one in lines[:LOOK] if one.time is not None), None)
    about.last = next((one.time for one in lines[:-LOOK:-1] if one.time is not None), None)
    others = [line for line in lines if line.text.strip() and line.number not in parsed.used]
    about.last_lines = [(one.text.strip(), f"{name}:{one.number}") for one in others[-LAST:]]
    about.last_line = about.last_lines[-1][0] if others else ""
    about.complaints = list(_complaints(others, name))[-LAST:]
    told = list(_moments(others, name))
    if len(told) > MOST_MOMENTS:
        told = told[: MOST_MOMENTS // 2] + told[-MOST_MOMENTS // 2 :]
    about.moments = told
    _read_progress(about, others, name)
    hosts = [line.host for line in lines if line.host]
    about.host = max(set(hosts), key=hosts.count) if hosts else _host_named(lines)
    about.finished = _finished(others, name)


def _host_named(lines: list[LogLine]) -> str:
    """Return the host that a rank names in its first lines, as "ready on node02" does."""
    for line in lines[:FIRST_LINES]:
        match = _HOST.search(line.text)
        if match is not None:
            return match[1]
    return ""


def _complaints(lines: list[LogLine], name: str) -> Iterator[tuple[str, str]]:
    """Yield the lines that name a cause without being an exception, such as "loss is nan"."""
    for index in tracebacks.lines_with(_COMPLAINS, lines):
        text = lines[index].text.strip()
        if rules.of_message(text):
            yield text, f"{name}:{lines[index].number}"


def _moments(lines: list[LogLine], name: str) -> Iterator[Moment]:
    """Yield the messages whose meaning a rule knows."""
    for index in tracebacks.lines_with(rules.needles(), lines):
        line = lines[index]
        found = rules.of_line(line.text)
        if found is None:
            continue
        rule, fields = found
        yield Moment(
            rule.id,
            rule.means,  # type: ignore[arg-type]
            rule.cause,
            line.text.strip(),
            f"{name}:{line.number}",
            rank=_rank_in(fields, line.rank),
            time=time_near(lines, index),
            host=fields.get("host", line.host),
            fields=fields,
        )


def _rank_in(fields: dict[str, str], rank: int | None) -> int | None:
    named = fields.get("rank", "")
    return int(named) if named.isdigit() else rank


def _read_progress(about: Rank, lines: list[LogLine], name: str) -> None:
    """Find the last step that a rank reported, and when."""
    for index in range(len(lines) - 1, -1, -1):
        text = lines[index].text
        match = _STEP.search(text) or _BAR.search(text)
        if match is None:
            continue
        at = time_near(lines, index)
        if about.step is not None:
            if at is not None and about.step_time is not None and about.step_time > at:
                about.step_seconds = about.step_time - at
                return
            continue
        about.step = int(match[1])
        epoch = _EPOCH.search(text)
        about.epoch = int(epoch[1]) if epoch is not None else None
        about.step_time = at
        about.step_source = f"{name}:{lines[index].number}"
        if at is None:
            return


def _finished(lines: list[LogLine], name: str) -> str:
    """Return where the log says that the training is over, if that is among its last words."""
    for line in lines[:-4:-1]:
        if says_finished(line.text) and rules.of_line(line.text) is None:
            return f"{name}:{line.number}"
    return ""
