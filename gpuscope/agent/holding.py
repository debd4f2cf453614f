"""Answer ``holders``: list the processes that have this host's devices open.

It explains memory that belongs to no visible process.
"""

from __future__ import annotations

from typing import Union

from ..wire import frames

MAX_MINORS = 64


def answer(request: frames.Request, redact: bool = True) -> Union[frames.Result, frames.Error]:
    """Answer for ``args.minors`` of /dev/nvidiaN, "0,1,2".

    It reads /proc/*/fd, which may take time.
    """
    minors = request.args.get("minors")
    parts = minors.split(",") if isinstance(minors, str) else []
    if (
        not parts
        or len(parts) > MAX_MINORS
        or not all(part.isdigit() and len(part) < 5 for part in parts)
    ):
        return frames.Error(
            request.id, "refused", "holders needs args.minors: numbers of /dev/nvidiaN, such as 0,1"
        )
    from ..collect.holders import holders_document as held

    return frames.Result(request.id, held(sorted({int(part) for part in parts}), redact))
