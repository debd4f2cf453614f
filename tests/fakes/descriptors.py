"""List what the descriptors of this process lead to, for trainers that look at themselves."""

import os
from contextlib import suppress


def open_files() -> set:
    """Return the targets of /proc/self/fd.

    A descriptor that another thread closes meanwhile is left out.
    """
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            found.add(os.readlink(f"/proc/self/fd/{number}"))
    return found
