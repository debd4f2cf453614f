"""These are the lines of a trainer's stacks: its collectives, and where its threads stand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...text.numbers import amount
from ...text.styled import Line, Piece
from ...text.units import bytes_text, duration_text

MAX_THREADS, MAX_COLLECTIVES = 64, 32


def stack_lines(value: Mapping[str, Any], most: int | None) -> Iterable[Line]:
    """Return the answer in lines, with ``most`` frames for each thread.

    Collectives under way come first, then the threads, the training one before the others.
    """
    if collectives := list(collective_lines(value)):
        yield from collectives
        yield []
    yield from thread_lines(value, most)
    seconds = value.get("seconds")
    took = f"taken in {duration_text(seconds)}" if isinstance(seconds, (int, float)) else "taken"
    yield [(f"{took}; innermost frame first", "faint")]


def collective_lines(value: Mapping[str, Any]) -> Iterable[Line]:
    """Return how many collectives each group has launched, and those that wait."""
    collectives = [c for c in _list(value, "collectives") if isinstance(c, dict)]
    groups = [c for c in collectives if c.get("op") is None]
    waiting = [c for c in collectives if c.get("op") is not None and c.get("state") != "completed"]
    if groups or waiting:
        yield [("Collectives", "title")]
    for one in groups[:MAX_COLLECTIVES]:
        launched, done = one.get("launched"), one.get("completed")
        name = f"{one.get('label') or one.get('group', '?')}"
        yield [(f"  {name}: ", "text"), (f"{launched} launched, {done} completed", "muted")]
    for one in waiting[:MAX_COLLECTIVES]:
        yield list(_collective(one))


def thread_lines(value: Mapping[str, Any], most: int | None) -> Iterable[Line]:
    """Return where the threads stand, the training one first and with all its frames."""
    threads = [t for t in _list(value, "threads") if isinstance(t, dict)][:MAX_THREADS]
    threads.sort(key=lambda t: (not t.get("training"), not t.get("main")))
    for number, thread in enumerate(threads):
        marks = [word for word in ("training", "main") if thread.get(word) is True]
        yield [
            (f"{thread.get('name', 'thread')}", "title"),
            (f"  {', '.join(marks)}" if marks else "", "accent"),
        ]
        frames = [
            f for f in _list(thread, "frames") if isinstance(f, (list, tuple)) and len(f) >= 3
        ]
        shown = frames if most is None or number == 0 else frames[:most]
        for depth, frame in enumerate(shown):
            yield list(frame_pieces(frame, depth == 0))
        if len(shown) < len(frames):
            yield [(f"  {len(frames) - len(shown)} more", "faint")]
        if not frames:
            yield [("  no Python frames", "faint")]
        yield []


def _list(value: Mapping[str, Any], key: str) -> list[Any]:
    found = value.get(key)
    return found if isinstance(found, list) else []


def frame_pieces(frame: Sequence[object], marked: bool) -> Iterable[Piece]:
    """Yield one frame of a stack: its function, its line and its folder."""
    file, line, function = str(frame[0]), frame[1], str(frame[2])
    folder, _, name = file.rpartition("/")
    folder = folder.rpartition("site-packages/")[2]
    yield ("▸ " if marked else "  ", "accent")
    yield (f"{function}  ", "text" if marked else "muted")
    yield (f"{name}:{line}", "title" if marked else "text")
    yield (f"  {folder}" if folder else "", "faint")


def _collective(one: Mapping[str, Any]) -> Iterable[Piece]:
    yield (f"  {one.get('op', 'collective')} ", "text")
    yield (f"#{one.get('sequence', '?')} in group {one.get('group', '?')}  ", "muted")
    yield (f"{one.get('state', '')}", "warn")
    seconds, size = amount(one.get("seconds")), amount(one.get("size"))
    if seconds is not None:
        yield (f" for {duration_text(seconds)}", "muted")
    if size is not None:
        yield (f", {bytes_text(size)}", "muted")
