"""Finds the training loss in a line of a log or in the text of a progress bar.

It also has the sentence by which the probe and the reader of logs tell of a loss that is no number.
"""

from __future__ import annotations

import re
from typing import List, NamedTuple, Optional

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


LASTS = "several times in a row"
"""Follows a loss that is not finite where nobody knows since which step."""
BEFORE_READ = "before the part of its log that was read"
"""Follows "since" where a log is so long that its last finite loss was not found in it."""
_TOLD = re.compile(
    r".{0,160}?(?: shows loss|its log says) ([-+]?(?:nan|inf))"
    rf"(?: since ((?:step|epoch) [\d,]{{1,15}}.{{0,40}}|{BEFORE_READ})|( {LASTS}))?$",
    re.IGNORECASE,
)


class NotFinite(NamedTuple):
    """A training loss that is NaN or infinite, as a reading's reason tells it.

    ``lasts`` says that it stayed so. A single one is no trouble: a step in fp16 may overflow, and
    its grad scaler leaves the step out. ``since`` is "step 812", or :data:`BEFORE_READ`, "" where
    that is not known.
    """

    value: str
    since: str
    lasts: bool


def not_finite_text(source: str, value: float, since: str = "", lasts: bool = False) -> str:
    """Return the sentence that :func:`read_not_finite` reads."""
    number = "nan" if value != value else f"{value:g}"
    how = f" since {since}" if lasts and since else f" {LASTS}" if lasts else ""
    return f"{source} {number}{how}"


def read_not_finite(reason: str) -> Optional[NotFinite]:
    """Return the loss that is not finite of which a reading's reason tells, None for another."""
    found = _TOLD.match(reason)
    if found is None:
        return None
    return NotFinite(found[1].lower(), found[2] or "", bool(found[2] or found[3]))
