"""The memory of a device as one bar."""

from __future__ import annotations

from ...model.device_state import NEARLY_FULL
from ...model.memory_layers import layers
from ...store.view import DeviceView, HostView
from ...text.styled import Piece
from ...wire.frames import Unknown
from ..theme import UNREAD
from ..widgets.bars import Bar

LAYER_NAMES: tuple[Piece, ...] = (
    ("allocated", "allocated"),
    ("cached", "cached"),
    ("outside torch", "outside"),
    ("not read", UNREAD),
    ("other", "other"),
    ("driver", "driver"),
)
BAR_LAYERS = tuple(token for _, token in LAYER_NAMES)
"""The layers of a bar, from its left end on."""


def memory_bar(host: HostView, device: DeviceView) -> Bar:
    """Return a device's memory by layer on a bar that stands for all of it."""
    split, total = layers(host, device), device.definition.total_bytes
    unknown = Unknown("not_sent", "")
    parts = tuple((split[token], token) for token in BAR_LAYERS) if split else ()
    return Bar(
        parts or ((unknown, "other"),),
        float(total) if total and split else unknown,
        warn_beyond=NEARLY_FULL,
    )


def named_layers(host: HostView) -> frozenset[str]:
    """Return the layers that the legend of a host's bars names.

    What was not read is named while it is in one of them: mostly nothing is.
    """
    unread = any(layers(host, device).get(UNREAD) for device in host.devices)
    return frozenset(token for token in BAR_LAYERS if unread or token != UNREAD)
