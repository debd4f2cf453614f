"""A line of the screen that remembers nothing that was made of it.

Each of Textual's strips brings seven caches of what it was cropped, padded and filtered to. They
serve lines that are drawn again and again. Lines that change twice a second are drawn once: for
them the caches are most of their memory, and most of the time that it takes to make one.
"""

from __future__ import annotations

from typing import Any

from rich.segment import Segment
from textual.cache import FIFOCache
from textual.strip import Strip


class _Forgetful(FIFOCache[Any, Any]):
    """A cache that never holds anything, so that all lines can share it."""

    def __setitem__(self, key: object, value: object) -> None:
        pass


_NOTHING = _Forgetful(1)


class LightStrip(Strip):
    """A strip of pieces that take ``cells`` cells in all."""

    __slots__ = ()

    def __init__(self, pieces: list[Segment], cells: int) -> None:
        self._segments, self._cell_length = pieces, cells
        self._divide_cache = self._crop_cache = self._style_cache = self._filter_cache = _NOTHING
        self._line_length_cache = self._crop_extend_cache = self._offsets_cache = _NOTHING
        self._render_cache = self._link_ids = self._cell_count = None
