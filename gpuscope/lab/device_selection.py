"""Choose which of the visible GPUs a run of the Lab uses, and read what the rules need to know."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

from .config import LabConfig

Device = TypeVar("Device")


def devices_for_run(config: LabConfig, seen: Sequence[Device]) -> list[Device]:
    """Return those of the visible devices that a run with these switches uses.

    It uses the first one, or as many as it has processes.
    """
    return list(seen[:1] if config.parallel == "none" else seen[: config.nproc])


def capability(text: str | None) -> tuple[int, int] | None:
    """Return "9.0" as (9, 0); None for text of another form."""
    major, _, minor = (text or "").partition(".")
    return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else None


def cores() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
