"""Finds out what was recompiled and which guard failed, which the time ledger alone cannot tell.

It reads dynamo's own record (``torch._dynamo.utils``) of the last 64 compilations, if the training
has imported dynamo. It is read only when somebody asks, or when a minute is reported.
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
"""Text that dynamo puts before a reason: the number of the compilation to which the guard belongs.
"""


def recompiles() -> Dict[str, Scalar]:
    """Return how often the most recompiled function was recompiled in the last minutes.

    ``recompiles`` is that number, ``guard`` what had changed the last time, and ``compiled_at`` the
    function and its line. Empty if dynamo is not in use, or its record has another form.
    """
    utils: Any = sys.modules.get("torch._dynamo.utils")
    if utils is None:
        return {}
    try:
        record = list(utils.get_compilation_metrics())
    except Exception:  # half imported, changed during the copy, or another version of torch
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
    """Return when a compilation began, by the wall clock.

    Older versions of torch give it in seconds.
    """
    micros = getattr(one, "start_time_us", None)
    if isinstance(micros, (int, float)):
        return micros * 1e-6
    seconds = getattr(one, "start_time", None)
    return float(seconds) if isinstance(seconds, (int, float)) else 0.0
