"""Name the variables that make torch keep its last collectives, and dump them at a timeout.

Before torch 2.9 two of them have another name. Newer ones know it and warn that it is old.
"""

from __future__ import annotations

from typing import NamedTuple, Optional, Tuple

RENAMED_IN = (2, 9)


class FlightSetting(NamedTuple):
    """A variable, its name before torch 2.9 or "", and its value; ``{}`` is a folder."""

    name: str
    older: str
    value: str

    def named(self, version: Optional[Tuple[int, int]]) -> str:
        """Return the name that this version of torch knows; the older one for an unknown one."""
        old = self.older and (version is None or version < RENAMED_IN)
        return self.older if old else self.name


SETTINGS = (
    FlightSetting("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE", "2000"),
    FlightSetting("TORCH_NCCL_DUMP_ON_TIMEOUT", "", "1"),
    FlightSetting(
        "TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "{}/nccl_trace_rank_"
    ),
)


def assignments(version: Optional[Tuple[int, int]]) -> str:
    """Return all of them as a shell takes them, as this version of torch calls them."""
    return " ".join(f"{one.named(version)}={one.value.replace('{}', 'LOGS')}" for one in SETTINGS)


def sentence() -> str:
    """Return what to set, with the older names, as a part of a sentence."""
    older = " and ".join(one.older for one in SETTINGS if one.older)
    since = ".".join(map(str, RENAMED_IN))
    return f"export {assignments(RENAMED_IN)} (before torch {since}: {older})"
