"""Tells what was compiled again and for which guard: the time ledger alone cannot.

It is dynamo's own record (``torch._dynamo.utils``), which keeps the last 64 compilations. It is
read where the training has imported dynamo, and only when somebody asks or a minute is told.
"""

from __future__ import annotations

import re
import sys
import time
from typing import Any, Dict, List, Tuple

from ..wire.frames import Scalar

WINDOW_SECONDS = 300.0
MAX_CHARS = 160
_NUMBER = re.compile(r"^\d+/\d+: ")
"""What dynamo puts before a reason: of which compilation the guard is."""


def recompiles() -> Dict[str, Scalar]:
    """Return how often the function that was compiled again most was, in the last minutes.

    ``recompiles`` is the number, ``guard`` what had changed the last time, ``compiled_at`` the
    function and its line. Nothing where dynamo is not in use, or its record is unlike ours.
    """
    utils: Any = sys.modules.get("torch._dynamo.utils")
    if utils is None:
        return {}
    try:
        record = list(utils.get_compilation_metrics())
    except Exception:  # half imported, changed while it was copied, or another torch
        return {}
    since = time.time() - WINDOW_SECONDS
    found: Dict[Tuple[str, int, str], List[str]] = {}
    for one in record:
        reason = getattr(one, "recompile_reason", None)
        if isinstance(reason, str) and reason and _began(one) >= since:
            place = (
                str(getattr(one, "co_filename", "")),
                int(getattr(one, "co_firstlineno", 0) or 0),
                str(getattr(one, "co_name", "")),
            )
            found.setdefault(place, []).append(reason)
    if not found:
        return {}
    (path, line, name), reasons = max(found.items(), key=lambda item: len(item[1]))
    guard = _NUMBER.sub("", reasons[-1].split("\n", 1)[0])
    return {
        "recompiles": len(reasons),
        "guard": guard[:MAX_CHARS],
        "compiled_at": f"{path}:{line} {name}"[-MAX_CHARS:],
    }


def _began(one: Any) -> float:
    """Return when a compilation began, by the wall clock: older torch tells it in seconds."""
    micros = getattr(one, "start_time_us", None)
    if isinstance(micros, (int, float)):
        return micros * 1e-6
    seconds = getattr(one, "start_time", None)
    return float(seconds) if isinstance(seconds, (int, float)) else 0.0
