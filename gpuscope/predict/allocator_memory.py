"""Hold the memory of a device that a simulated allocator has.

These are the segments by address, and their free blocks.
"""

from __future__ import annotations

from collections.abc import Callable

from ..model.allocator_settings import AllocatorSettings
from .allocator_addresses import Addresses
from .allocator_blocks import Shelf

UNLIMITED = 1 << 60


class DeviceMemory:
    """The memory that was requested from the driver.

    Its arguments are those of the ``Engine``, which decides what is requested.

    ``allocator_expandable`` lets segments grow, and ``allocator_release`` frees them.
    """

    def __init__(
        self,
        settings: AllocatorSettings,
        capacity: int | None = None,
        allowed: int | None = None,
        place: Callable[[int, int], int | None] | None = None,
    ) -> None:
        self.settings = settings
        self.capacity = UNLIMITED if capacity is None else capacity
        self.allowed = UNLIMITED if allowed is None else allowed
        self.addresses = Addresses(place)
        self.shelves: dict[tuple[int, bool, object], Shelf] = {}
        self.reserved = self.peak_reserved = self.segments = 0
        self.peak_reserved_at = self.at = -1
        """The event at which the peak was reached, and the present event."""

    def reserve(self, size: int) -> None:
        """Count memory that the driver has given."""
        self.reserved += size
        if self.reserved > self.peak_reserved:
            self.peak_reserved, self.peak_reserved_at = self.reserved, self.at
