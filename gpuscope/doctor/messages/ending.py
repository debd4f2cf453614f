"""Tell whether a log says that its training ended well, and how far it had come."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from ...text.log_figures import LogFigures, figures
from .prose import is_error_output

LAST_LINES = 10
"""Among how many lines at the end the training says that it is over."""
LOOK_LINES = 300
"""How many lines at the end are searched for complaints, and for a step and a loss."""
_FINISHED = re.compile(
    r"\b(?:done|finished|completed?|exiting normally|all steps|bye)\b(?!\s*[:=]?\s*\d)"
    r"|stopped: `?max_(?:epochs|steps)=\d+`? reached|[\"']train_runtime[\"']:",
    re.I,
)
_PART = re.compile(
    r"\b(?:not|eval\w*|valid\w*|checkpoint\w*|sav\w+|load\w*|download\w*|init\w*|warm\w*|compil\w+|setup"
    r"|epoch|collat\w+|sync\w*|barrier)\b",
    re.I,
)
"""Words of lines that say that only a part of the training is done."""
_BARS = ("%|", "━")
"""Signs of a progress bar. A full one may be that of one epoch, or of loading."""
_COMPLAINT = re.compile(
    r"\b(?:error|exception|abort(?:ed|ing)?|killed|failed|failure|giving up|interrupted|timed? ?out"
    r"|nan)\b(?!\w*\s*[:=]\s*(?:0|no|none|false)\b)",
    re.I,
)


def says_finished(line: str) -> bool:
    """Return whether a line says that the whole training is over."""
    return _FINISHED.search(line) is not None and _PART.search(line) is None


def ended_well(lines: Sequence[str]) -> str:
    """Return in a sentence how far a training came that ended well, nothing where it may not have.

    It must have printed a step or a loss, then that it is over, or its last step; and no error.
    """
    filled = [line for line in lines if line.strip()]
    last = filled[-LOOK_LINES:]
    if any(map(is_error_output, filled)) or any(map(_COMPLAINT.search, last)):
        return ""
    found = figures("\n".join(last))
    if found.loss is not None and not math.isfinite(found.loss):
        return ""
    return _sentence(found) if _is_over(last, found) else ""


def _is_over(last: Sequence[str], found: LogFigures) -> bool:
    """Return whether the last lines say that the training, which has ``found``, is over."""
    if found.step is None and found.loss is None:
        return False
    for line in reversed(last[-LAST_LINES:]):
        if says_finished(line):
            return True
        if any(sign in line for sign in _BARS):
            continue
        step = figures(line)
        if step.step is not None:
            return step.epoch is None and step.step == step.total
    return False


def _sentence(found: LogFigures) -> str:
    of = "" if found.total is None else f" of {found.total:,}"
    step = "" if found.step is None else f"the last step it printed is {found.step:,}{of}"
    loss = "" if found.loss is None else f"the last loss {'' if step else 'it printed is '}"
    number = "" if found.loss is None else f"{found.loss:.4g}"
    return f"It ended well: {', '.join(filter(None, (step, loss + number)))}."
