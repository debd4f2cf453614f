"""Shared parts of the requests that act on a process of this host.

These are the check of its numbers, and the line in the agent's log.
"""

from __future__ import annotations

import sys
import time


def is_number(value: object) -> bool:
    """Say whether a value may be a process number or the clock ticks at which a process started."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 63


def write_line(what: str, began: float, outcome: str) -> None:
    """Write a request and its outcome to the agent's log, its standard error."""
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(began))
    try:
        sys.stderr.write(f"gpuscope: {at} {what}: {outcome}\n")
        sys.stderr.flush()
    except OSError:
        pass
