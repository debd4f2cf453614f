"""Put what the black boxes of running trainers hold before what was seen of them.

A box has the last ten minutes of its trainer, also those in which nobody looked.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from ..wire import codec
from .blackbox import BoxReader
from .decode import decode
from .store import Store
from .view import AllocView, History, TrainerView

KEY = "box"
MAX_BOXES = 64
SLACK = 2.0
"""Seconds between two readings: less is no gap that a box would fill."""


class BoxHistory:
    """The boxes of some trainers; one without a readable box has no past."""

    def __init__(self) -> None:
        self._stores: dict[int, tuple[Store, int]] = {}  # id in the view → where it is in its box
        self._kept: dict[tuple[int, str], History] = {}
        self._read: set[str] = set()

    def unread(self, trainers: Iterable[TrainerView]) -> list[TrainerView]:
        """Return the running trainers whose boxes were not read yet."""
        return [
            one
            for one in trainers
            if one.gone is None and one.key not in self._read and len(self._read) < MAX_BOXES
        ]

    def read(
        self, trainers: Iterable[TrainerView], directory: Path
    ) -> dict[int, tuple[AllocView, AllocView]]:
        """Read the boxes of these trainers.

        Returns the allocators of now and then, by their ids in the view. It takes some
        milliseconds for each.
        """
        pairs: dict[int, tuple[AllocView, AllocView]] = {}
        for trainer in trainers:
            if trainer.key in self._read or len(self._read) >= MAX_BOXES:
                continue
            self._read.add(trainer.key)
            past = box_of(trainer, directory)
            host = past.view().host if past is not None else None
            found = host.trainers if host is not None else ()
            then = next((one for one in found if one.key == trainer.key), None)
            if past is None or then is None:
                continue
            self._stores[trainer.id] = past, then.id
            by_ordinal = {one.definition.ordinal: one for one in then.allocators}
            for allocator in trainer.allocators:
                before = by_ordinal.get(allocator.definition.ordinal)
                if before is not None:
                    self._stores[allocator.id] = past, before.id
                    pairs[allocator.id] = allocator, before
        return pairs

    def before(self, entity: int, column: str, now: History, since: float | None = None) -> History:
        """Return what is in the box since this moment, then what was seen."""
        found = self._stores.get(entity)
        if found is None or (since is not None and now.seconds and now.seconds[0] <= since + SLACK):
            return now
        then = self._kept.get((entity, column))
        if then is None:
            then = self._kept[entity, column] = found[0].history(KEY, found[1], column)
        first = bisect_left(then.seconds, since) if since is not None else 0
        last = bisect_left(then.seconds, now.seconds[0]) if now.seconds else len(then.seconds)
        return replace(
            now,
            seconds=then.seconds[first:last] + now.seconds,
            values=then.values[first:last] + now.values,
        )


def box_of(trainer: TrainerView, directory: Path) -> Store | None:
    """Return what the box of a trainer holds, None where there is none of this user."""
    definition = trainer.definition
    path = directory / f"{definition.pid}-{definition.start}.box"
    try:
        if path.lstat().st_uid != os.geteuid():
            return None
    except OSError:
        return None
    store = Store()
    store.add_source(KEY, "box")
    for line in BoxReader(path).lines():
        try:
            store.apply(KEY, decode(line.line), line.rx)
        except codec.WireError:
            continue
    return store
