"""Read exceptions and stacks from the lines of one rank."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ...snapshot.model import Frame
from .lines import LogLine, time_near
from .model import Failure, Stack

_BEGIN = re.compile(
    r"^(?P<indent>\s*)(?:traceback\s*:\s*)?(?:Original )?Traceback \(most recent call last\):"
)
_FRAME = re.compile(
    r'^\s*File "(?P<file>[^"]{1,400})", line (?P<line>\d{1,9}),? in (?P<function>.{1,200}?)\s*$'
)
_FRAME_PLACE = re.compile(r'^\s*File "(?P<file>[^"]{1,400})", line (?P<line>\d{1,9})\s*$')
_RAISED = re.compile(r"^(?P<type>(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*)(?:: ?(?P<message>.*))?$")
_LINK = re.compile(
    r"^\s*(?:During handling of the above exception, another exception occurred"
    r"|The above exception was the direct cause of the following exception)"
)
_WHAT = re.compile(r"^\s*what\(\):\s+(?P<message>.+)")
_THROWN = re.compile(r"terminate called after throwing an instance of '(?P<type>[^']{1,120})'")
_NEW_LINE = re.compile(
    r"^(?:\[?\d{4}-\d\d-\d\d|\[?[EWIF]\d{3,4} \d\d:|Traceback \(|\s*Original Traceback|\[rank\d)"
)
_RANK = re.compile(r"^-- Process (\d+) terminated with the following error|\(RANK (\d+)\)\s*$")
"""How torch.multiprocessing and torch.distributed.checkpoint name the rank that raised an error."""
_THREAD = re.compile(r"^(?:Current thread|Thread) 0x[0-9a-fA-F]+.*\(most recent call first\)")
_FAULT = re.compile(r"^\s*(?P<what>Fatal Python error: .{1,200}|Timeout \(\d+:\d\d:\d\d[^)]*\)!)")
_SPY_THREAD = re.compile(
    r'^Thread (?:0x)?[0-9a-fA-F]+ \((?P<state>[\w+ ]+)\)(?:: "(?P<name>[^"]*)")?'
)
_SPY_FRAME = re.compile(
    r"^\s{2,}(?P<function>.{1,200}?) \((?P<file>[^()]{1,400}?):(?P<line>\d+)\)\s*$"
)
_SPY_HEAD = re.compile(r"^\s*Process (?P<pid>\d+): (?P<command>.{1,300})")
_WATCHDOG_FRAME = re.compile(
    r"^#\d{1,3} (?P<function>.{1,200}?) from (?P<file>/?[^:]{1,400}):(?P<line>\d{1,9})\s*$"
)
_DEBUG_RANK = re.compile(r"^=== Rank (?P<rank>\d+): (?P<address>\S+) ===")
_START = (
    "raceback (most",
    "most recent call first",
    "=== Rank",
    "terminate called",
    "Fatal Python error",
    "Timeout (",
    "Process ",
    "Thread ",
    "#0 ",
)
"""What the first line of an exception or of a stack contains."""
WATCHDOG = "NCCL's watchdog"
"""What a stack is called that NCCL's watchdog prints: of the call that timed out, as it began."""
MESSAGE_LINES = 12
"""A message of more lines is cut."""
MOST_FAILURES, MOST_STACKS = 40, 16


@dataclass(slots=True)
class Parsed:
    """What the lines of one rank hold. ``used`` are the numbers of the lines that belong to it."""

    failures: list[Failure] = field(default_factory=list)
    stacks: list[Stack] = field(default_factory=list)
    used: set[int] = field(default_factory=set)
    pid: int | None = None


def read(lines: Sequence[LogLine], name: str) -> Parsed:
    """Return the exceptions and stacks in these lines, which evidence calls ``name``."""
    found = Parsed()
    i = 0
    link: Failure | None = None
    debug_rank: int | None = None
    fault = ""
    starts = lines_with(_START, lines)
    while True:
        begin = next((start for start in starts if start >= i), None)
        if begin is None:
            return found
        if begin > i:
            link = None
        i = begin
        line = lines[i]
        text = line.text
        if "raceback (most" in text and _BEGIN.match(text):
            i, failure = _failure(lines, i, name, found.used)
            if failure is not None:
                failure.time = failure.time or time_near(lines, i - 1)
                failure.rank = _rank_named(lines, begin)
                failure.fatal = line.rank is not None and line.hooked
                if link is not None:
                    link.chain += failure.chain
                    link.stacks += failure.stacks
                elif len(found.failures) < MOST_FAILURES:
                    found.failures.append(failure)
                else:
                    found.failures[MOST_FAILURES // 2 :] = [
                        *found.failures[MOST_FAILURES // 2 + 1 :],
                        failure,
                    ]
            i, linked = _skip_link(lines, i, found.used)
            link = (link or failure) if linked else None
            continue
        if "most recent call first" in text and _THREAD.match(text):
            current = text.startswith("Current")
            i, stack = _stack(lines, i, name, _FRAME, fault or "faulthandler", found.used)
            _add_stack(found, stack, debug_rank, current)
            continue
        if text.startswith("=== Rank"):
            match = _DEBUG_RANK.match(text)
            debug_rank = int(match["rank"]) if match else debug_rank
        elif "terminate called" in text and (match := _THROWN.search(text)):
            what = lines[i + 1].text if i + 1 < len(lines) else ""
            message = _WHAT.match(what)
            chain = [f"{match['type']}: {message['message'] if message else ''}"]
            found.failures.append(
                Failure(chain, [[]], f"{name}:{line.number}", time_near(lines, i))
            )
            found.used.update((line.number, line.number + 1))
        elif match := _FAULT.match(text):
            fault = match["what"]
        elif text.startswith("Process ") and (match := _SPY_HEAD.match(text)):
            found.pid = int(match["pid"])
        elif text.startswith("Thread ") and (match := _SPY_THREAD.match(text)):
            what = f"py-spy, {match['state']}"
            i, stack = _stack(lines, i, name, _SPY_FRAME, what, found.used)
            if match["name"] in ("MainThread", None) or not found.stacks:
                _add_stack(found, stack, debug_rank, match["name"] == "MainThread")
            continue
        elif text.startswith("#0 ") and _WATCHDOG_FRAME.match(text):
            i, stack = _stack(lines, i, name, _WATCHDOG_FRAME, WATCHDOG, found.used)
            _add_stack(found, stack, debug_rank, blocks(stack))
            continue
        i += 1


def blocks(stack: Stack) -> bool:
    """Return whether the call on top of a watchdog's stack holds the device until it is done.

    A single ``isend`` or ``irecv``, or a batch of them, does not.
    """
    functions = [frame.function for frame in stack.frames[:3]]
    return functions[0] not in ("isend", "irecv") or bool({"send", "recv"} & set(functions))


def _rank_named(lines: Sequence[LogLine], begin: int) -> int | None:
    """Return the rank that the first line of a traceback, or the one before it, names."""
    for line in lines[max(begin - 1, 0) : begin + 1]:
        match = _RANK.search(line.text)
        if match is not None:
            return int(match[1] or match[2])
    return None


def lines_with(words: Iterable[str], lines: Sequence[LogLine]) -> Iterator[int]:
    """Yield the index of each line that holds one of these words, in order.

    All lines are searched as one text, word by word, which takes a tenth of the time.
    """
    text = "\n".join([line.text for line in lines])
    starts: set[int] = set()
    for word in words:
        at = text.find(word)
        while at >= 0:
            starts.add(text.rfind("\n", 0, at) + 1)
            end = text.find("\n", at)
            at = text.find(word, end) if end >= 0 else -1
    index = counted = 0
    for start in sorted(starts):
        index += text.count("\n", counted, start)
        counted = start
        yield index


def _add_stack(found: Parsed, stack: Stack, rank: int | None, first: bool) -> None:
    """Add a stack; that of the main thread or of the thread that crashed goes first."""
    if not stack.frames or len(found.stacks) >= MOST_STACKS:
        return
    stack.rank, stack.pid = rank, found.pid
    if first and rank is None and found.stacks and found.pid == found.stacks[0].pid:
        found.stacks.insert(0, stack)
    else:
        found.stacks.append(stack)


def _failure(
    lines: Sequence[LogLine], i: int, name: str, used: set[int]
) -> tuple[int, Failure | None]:
    """Return where a traceback ends, and the exception that it shows."""
    begin = _BEGIN.match(lines[i].text)
    indent = len(begin["indent"]) if begin else 0
    source = f"{name}:{lines[i].number}"
    at = lines[i].time
    used.add(lines[i].number)
    frames: list[Frame] = []
    i += 1
    while i < len(lines):
        text = lines[i].text
        match = _FRAME.match(text)
        place = None if match else _FRAME_PLACE.match(text)
        if match:
            frames.append(Frame(match["file"], int(match["line"]), match["function"]))
        elif place:  # of a syntax error
            frames.append(Frame(place["file"], int(place["line"]), ""))
        elif text.strip() and len(text) - len(text.lstrip()) <= indent:
            break
        used.add(lines[i].number)
        i += 1
    if i >= len(lines):
        return i, None
    raised = _RAISED.match(lines[i].text.strip())
    if raised is None:
        return i, None
    used.add(lines[i].number)
    message = [lines[i].text.strip()]
    i += 1
    while i < len(lines) and len(message) < MESSAGE_LINES:
        text = lines[i].text
        if not text.strip() or _NEW_LINE.match(text) or _LINK.match(text) or lines[i].time:
            break
        if "most recent call first" in text:
            break
        used.add(lines[i].number)
        message.append(text.strip())
        i += 1
    whole = " ".join(message)
    failure = Failure([whole[:2000]], [frames], source, at)
    if i < len(lines) and lines[i].text.lstrip().startswith("Original Traceback"):
        i, inner = _failure(lines, i, name, used)
        if inner is not None:  # of a loader's worker: the exception there is the one that matters
            failure.chain, failure.stacks = inner.chain + failure.chain, [*inner.stacks, frames]
    return i, failure


def _skip_link(lines: Sequence[LogLine], i: int, used: set[int]) -> tuple[int, bool]:
    """Return whether another exception of the same chain follows, and where its traceback is."""
    at, linked = i, False
    while at < len(lines) and at < i + 4:
        text = lines[at].text
        if _LINK.match(text):
            linked = True
            used.add(lines[at].number)
        elif text.strip():
            break
        at += 1
    return (at, True) if linked else (i, False)


def _stack(
    lines: Sequence[LogLine], i: int, name: str, frame: re.Pattern[str], what: str, used: set[int]
) -> tuple[int, Stack]:
    """Return the stack whose head, or first frame, is line ``i``, and the line behind it.

    ``frame`` matches its lines, with ``file``, ``line`` and ``function``.
    """
    source = f"{name}:{lines[i].number}"
    used.add(lines[i].number)
    frames = []
    i += frame.match(lines[i].text) is None
    while i < len(lines):
        match = frame.match(lines[i].text)
        if match is None:
            break
        frames.append(Frame(match["file"], int(match["line"]), match["function"]))
        used.add(lines[i].number)
        i += 1
    return i, Stack(frames, source, what)
