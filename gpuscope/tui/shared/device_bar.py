"""The memory of a device as one bar."""

from __future__ import annotations

from ...model.device_state import NEARLY_FULL
from ...model.memory_layers import layers
from ...store.view import DeviceView, HostView
from ...text.styled import Piece
from ...wire.frames import Unknown
from ..widgets.bars import Bar

LAYER_NAMES: tuple[Piece, ...] = (
    ("allocated", "allocated"),
    ("cached", "cached"),
    ("outside torch", "outside"),
    ("other", "other"),
    ("driver", "driver"),
)


def memory_bar(host: HostView, device: DeviceView) -> Bar:
    """Return a device's memory by layer on a bar that stands for all of it."""
    split, total = layers(host, device), device.definition.total_bytes
    unknown = Unknown("not_sent", "")
    parts = tuple((split[token], token) for _, token in LAYER_NAMES) if split else ()
    return Bar(
        parts or ((unknown, "other"),),
        float(total) if total and split else unknown,
        warn_beyond=NEARLY_FULL,
    )
