"""Fill the fixes for a layer of another size with the message's own numbers and the user's line."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import PurePath

from ..finding import Finding, Fix
from .text import Hit, Log

PRODUCT = "shape.product"
_SHAPES = r"(?:mat1 and mat2 shapes cannot be multiplied|size mismatch.{0,40}?) \((\d+)x(\d+) and (\d+)x(\d+)\)"  # noqa: E501
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib/python\d|^<")
"""The path of code that the user did not write."""


def filled(finding: Finding, log: Log) -> Finding:
    """Return the finding with fixes for this very failure.

    Where the message has no numbers it is returned as it is, and has the fixes of the table.
    """
    found = log.find(_SHAPES) if finding.cause == PRODUCT else None
    if found is None:
        return finding
    given, taken, out = (int(found[group] or 0) for group in (2, 3, 4))
    place = users_line(log, found)
    fixes = []
    if taken > given and taken % given == 0:
        fixes.append(
            Fix(
                title=f"Where {taken:,} = {taken // given:,} × {given:,} is one sample, flatten "
                "everything but the batch dimension before the layer",
                code="x = x.flatten(start_dim=1)",
            )
        )
    what = f"{place}: the input has" if place else "The input has"
    # what multiplies may also be a matmul of two tensors of the user
    layer = "nn.Linear" if log.has("modules/linear.py") else "the layer"
    fixes.append(
        Fix(
            title=f"{what} {_features(given)}, {layer} takes {taken:,}: give it the size of the "
            "input, or let the first input set it with nn.LazyLinear",
            before=f"nn.Linear({taken}, {out})",
            code=f"nn.Linear({given}, {out})",
            cost="nn.LazyLinear needs one forward pass before the optimizer is created",
        )
    )
    before = f"before {place}" if place else "before the failing line"
    fixes.append(Fix(title=f"Print the shape of the input {before}, for example", code=_PRINT))
    return replace(finding, fixes=tuple(fixes), where=finding.where or place)


_PRINT = "print(x.shape, flush=True)"


def _features(count: int) -> str:
    return f"{count:,} feature{'' if count == 1 else 's'}"


def users_line(log: Log, hit: Hit) -> str:
    """Return the innermost line of the user's own code above a message, ``train.py:88``.

    "" where the log has no traceback.
    """
    for _, text in reversed(log.lines[: hit.line]):
        frame = _FRAME.search(text)
        if frame is not None and not _LIBRARY.search(frame[1]):
            return f"{PurePath(frame[1]).name}:{frame[2]}"
    return ""
