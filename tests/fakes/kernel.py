"""What the kernel of this machine can do."""

from __future__ import annotations

import os
import re


def exits_are_told() -> bool:
    """Return whether a pidfd tells the exit code of a process that its parent has reaped."""
    found = re.match(r"(\d+)\.(\d+)", os.uname().release)
    return found is not None and (int(found[1]), int(found[2])) >= (6, 15)
