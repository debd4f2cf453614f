"""Fill the fixes for a layer of another size with the message's own numbers and the user's line."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import PurePath

from ...text.units import count_text
from ...wire.code_owner import is_own
from ..finding import Finding
from ..wordings import Wordings
from .text import Hit, Log

WORDINGS = Wordings("messages")
PRODUCT = "shape.product"
_SHAPES = (
    r"(?:mat1 and mat2 shapes cannot be multiplied|size mismatch.{0,40}?) "
    r"\((\d+)x(\d+) and (\d+)x(\d+)\)"
)
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


def filled(finding: Finding, log: Log) -> Finding:
    """Return the finding with fixes for this very failure.

    Where the message has no numbers it is returned as it is, and has the fixes of the table.
    """
    found = log.find(_SHAPES) if finding.cause == PRODUCT else None
    if found is None:
        return finding
    given, taken, out = (int(found[group] or 0) for group in (2, 3, 4))
    place = users_line(log, found)
    figures = {
        "given": f"{given:,}",
        "taken": f"{taken:,}",
        "given_code": given,
        "taken_code": taken,
        "out": out,
        "pieces": f"{taken // given:,}" if taken > given > 0 and taken % given == 0 else None,
        "features": count_text(given, "feature"),
        "subject": f"{place}: the input has" if place else "The input has",
        # what multiplies may also be a matmul of two tensors of the user
        "layer": "nn.Linear" if log.has("modules/linear.py") else "the layer",
        "place": place or "the failing line",
    }
    fixes = WORDINGS.fixes(["flatten-samples", "size-of-the-input", "print-the-shape"], figures)
    return replace(finding, fixes=tuple(fixes), where=finding.where or place)


def users_line(log: Log, hit: Hit) -> str:
    """Return the innermost line of the user's own code above a message, ``train.py:88``.

    "" where the log has no traceback.
    """
    for _, text in reversed(log.lines[: hit.line]):
        frame = _FRAME.search(text)
        if frame is not None and is_own(frame[1]) and not frame[1].startswith("<"):
            return f"{PurePath(frame[1]).name}:{frame[2]}"
    return ""
