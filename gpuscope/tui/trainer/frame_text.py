"""This module says one frame of a stack as the screens write it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...text.styled import Piece


def frame_pieces(frame: Sequence[object], first: bool) -> Iterable[Piece]:
    """Yield one frame of a stack: its function and its line; ``first`` marks the innermost."""
    file, line, function = str(frame[0]), frame[1], str(frame[2])
    folder, _, name = file.rpartition("/")
    folder = folder.rpartition("site-packages/")[2]
    yield ("▸ " if first else "  ", "accent")
    yield (f"{function}  ", "text" if first else "muted")
    yield (f"{name}:{line}", "title" if first else "text")
    yield (f"  {folder}" if folder else "", "faint")
