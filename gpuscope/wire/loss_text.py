"""Finds the training loss in a line of a log or in the text of a progress bar."""

from __future__ import annotations

import re
from typing import List

NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
NOT_TRAINING = ("val", "valid", "validation", "eval", "evaluation", "test", "dev")
"""Words before a loss, or before a progress bar, which say that it is not the training's."""
_LOSS = re.compile(
    r"(?<![A-Za-z])((?:[A-Za-z]{1,12}[_/ ])?)loss"
    r"(?:/train/total)?[\"']?\s{0,3}[:=]?\s{0,3}[\"']?\s{0,3}"
    rf"({NUMBER}|nan|[-+]?inf)(?![A-Za-z\d])",
    re.IGNORECASE,
)


_NO_GRADIENT = re.compile(r"grad_norm[\"']?\s{0,3}[:=]\s{0,3}[\"']?nan", re.IGNORECASE)
"""Transformers' Trainer leaves losses that are not finite out of the mean that it logs.

With ``logging_nan_inf_filter``, which is on by default, such a loss is logged as 0, but the norm of
its gradient is not filtered.
"""


def training_losses(line: str) -> List[str]:
    """Return the training losses that ``line`` names: numbers, ``nan`` or ``inf``."""
    found = [
        match.group(2)
        for match in _LOSS.finditer(line)
        if match.group(1).rstrip("_/ ").lower() not in NOT_TRAINING
    ]
    if any(_is_zero(loss) for loss in found) and _NO_GRADIENT.search(line):
        return ["nan" if _is_zero(loss) else loss for loss in found]
    return found


def _is_zero(loss: str) -> bool:
    return float(loss) == 0
