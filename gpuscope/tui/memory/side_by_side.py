"""This module says in a line each how full the devices and trainers of a host are.

It stands below the waterfall, which shows one of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...model.device_state import NEARLY_FULL, mute
from ...model.memory_layers import layers
from ...model.memory_room import TIGHT_BYTES, room_of
from ...model.reading_age import old_seconds
from ...store.view import HistoryOf, HostView
from ...text.process_name import short_script
from ...text.styled import Line
from ...text.units import bytes_text
from ..cells import fit
from ..shared.device_bar import BAR_LAYERS
from ..theme import UNICODE, Glyphs
from ..widgets.bars import stacked_bar
from .subjects import Subject

FRAME_ROWS, LEAST, FEW = 3, 2, 4
"""Its border and heading; it is shown for no fewer, and of more not without so many."""
LEAST_BAR = 12
_NAME, _SIZE = 30, 12
_TITLES = ("GPU NOW", "TORCH PEAK", "RESERVED", "HEADROOM")
"""What the driver says that the card has in use, what torch had allocated at most in the last steps
and has reserved now, and what the trainer can still get.

What torch took is left out where there is little room.
"""


def on_devices(everything: Sequence[Subject]) -> list[Subject]:
    """Return those that there is something to say of: torch counts no memory on a CPU."""
    return [one for one in everything if one.device is not None]


def rows_of(everything: Sequence[Subject], room: int) -> int:
    """Return how many rows it takes of so many, 0 where not even a few fit."""
    count = len(on_devices(everything))
    shown = min(count, room - FRAME_ROWS)
    return shown + FRAME_ROWS if count >= LEAST and shown >= min(count, FEW) else 0


def title_of(everything: Sequence[Subject], most: int) -> str:
    """Return the heading, which says where not all have a line."""
    count = len(on_devices(everything))
    return "All GPUs" if count <= most else f"GPUs, {most} of {count}: the least headroom"


def side_by_side(
    host: HostView,
    everything: Sequence[Subject],
    chosen: Subject,
    history: HistoryOf,
    cells: int,
    most: int = 1024,
    glyphs: Glyphs = UNICODE,
) -> list[Line]:
    """Return a heading and a line for each on a device, the chosen one marked.

    Of more than ``most`` it has the chosen one and those with the least headroom. Where there is
    room, a bar says how full each card is and of what.
    """
    wide = cells >= _NAME + _SIZE * len(_TITLES) + 2
    kept = [at for at, title in enumerate(_TITLES) if wide or title != "RESERVED"]
    name = max(12, min(_NAME, cells - _SIZE * len(kept) - 2))
    head = "".join(fit(_TITLES[at], _SIZE, "right") for at in kept)
    bar = cells - name - _SIZE * len(kept) - 4
    lines: list[Line] = [[("  " + fit("", name) + head, "muted")]]
    told = [(one, _sizes(host, one, history)) for one in on_devices(everything)]
    if len(told) > most:
        told.sort(key=lambda each: (each[0].key != chosen.key, _or_endless(each[1][-1])))
        kept_keys = {each[0].key for each in told[:most]}
        order = [one.key for one in everything]
        told = [each for each in told if each[0].key in kept_keys]
        told.sort(key=lambda each: order.index(each[0].key))
    for one, sizes in told:
        left = sizes[-1]
        here = one.key == chosen.key
        silent = mute(one.device) if one.device is not None else None
        first = _size(sizes[0]) if silent is None else fit(silent.word, _SIZE, "right")
        lines.append(
            [
                ("▸ " if here else "  ", "accent"),
                (fit(_name(one), name), "title" if here else "text"),
                (first, "text" if silent is None else "bad"),
                *_of_torch(host, one, [sizes[at] for at in kept[1:-1]]),
                (_size(left), "warn" if left is not None and left < TIGHT_BYTES else "text"),
                *(_bar(host, one, bar, glyphs) if bar >= LEAST_BAR else ()),
            ]
        )
    return lines


def _bar(host: HostView, one: Subject, cells: int, glyphs: Glyphs) -> Line:
    """Return what fills the card, by layer."""
    split = layers(host, one.device) if one.device is not None else None
    total = one.device.definition.total_bytes if one.device is not None else None
    if not split or not total:
        return []
    parts = [(split[name], name) for name in BAR_LAYERS]
    bar = stacked_bar(parts, float(total), cells, glyphs, slim=True, warn_beyond=NEARLY_FULL)
    return [("  ", "text"), *bar]


def _name(one: Subject) -> str:
    name = f"GPU {one.device.definition.index}" if one.device is not None else ""
    if one.trainer is None:
        return name
    d = one.trainer.definition
    who = f"rank {d.rank}" if d.rank is not None else f"pid {d.pid}"
    return f"{name} {who} {short_script(d.script)}"


def _sizes(host: HostView, one: Subject, history: HistoryOf) -> list[float | None]:
    """Return the sizes in the order of the titles."""
    used = one.device.number("used_bytes") if one.device is not None else None
    if one.trainer is None or one.allocator is None:
        free = one.device.number("free_bytes") if one.device is not None else None
        return [used, None, None, free]
    room = room_of(host.devices, one.trainer, one.allocator, history)
    numbers = map(room.fullest.number, ("allocated_bytes", "reserved_bytes"))
    return [used, *numbers, room.headroom_bytes]


def _of_torch(host: HostView, one: Subject, sizes: Sequence[float | None]) -> Line:
    """Return what torch's allocator says, nothing where that was read long ago."""
    old = old_seconds(host, one.allocator) is not None
    return [(_size(None if old else size), "faint" if old else "text") for size in sizes]


def _or_endless(value: float | None) -> float:
    return float("inf") if value is None else value


def _size(value: float | None) -> str:
    return fit("–" if value is None else bytes_text(value), _SIZE, "right")
