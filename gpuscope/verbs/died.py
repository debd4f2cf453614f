"""What trainers of this user left behind here when they died with nobody watching: a line for `gpuscope ps`."""

from __future__ import annotations

import os
import shlex
import time
from pathlib import Path

from ..probe import blackbox, rendezvous

RECENT_SECONDS = 86400.0


def boxes(directory: str | Path | None = None) -> list[tuple[float, Path]]:
    """The black boxes of the last day whose trainers are gone, as (wall clock of the last write, path), the newest
    first. Never raises."""
    place = Path(directory or os.environ.get("GPUSCOPE_BLACKBOX_DIR") or rendezvous.directory())
    found: list[tuple[float, Path]] = []
    try:
        for path in place.glob("*.box"):
            match = blackbox.NAME.fullmatch(path.name)
            seen = path.lstat()
            mine = match is not None and seen.st_uid == os.geteuid() and not blackbox.runs(int(match[1]), int(match[2]))
            if mine and time.time() - seen.st_mtime < RECENT_SECONDS:
                found.append((seen.st_mtime, path))
    except OSError:
        return []
    return sorted(found, reverse=True)


def line(directory: str | Path | None = None) -> str:
    """Names the newest black box of the last day and how to play it; "" where there is none. Never raises."""
    found = boxes(directory)
    if not found:
        return ""
    count = f"{len(found)} trainers of yours" if len(found) > 1 else "A trainer of yours"
    newest = shlex.quote(str(found[0][1]))
    return f"{count} died here in the last day. The last minutes of the newest:  gpuscope replay {newest}"
