"""Find known error messages in a log or a traceback, and the causes that each can have.

A message can have several causes, so several findings are returned, the likeliest first. A finding
is ``definite`` only where the text itself proves it.
"""

from __future__ import annotations

from collections.abc import Iterable
from os import PathLike
from typing import IO, TYPE_CHECKING

from ..finding import Abstained, Finding, Report

if TYPE_CHECKING:
    from .reading import Excerpt

__all__ = ["THE_SYMPTOM", "examine", "of_symptom", "report"]

SYMPTOM = "symptom"
"""The source that evidence names for the user's own words."""
THE_SYMPTOM = "the symptom"
"""How a report names the user's own words among what was examined."""
ADVISED = ("slow", "memory grows", "hangs", "loss is nan")
"""Words for the commonest failures. Each is known here when it is given alone."""
NO_LOG = (
    "{name}: this does not look like a log: it reads as {kind}, and holds no traceback and no line "
    "of error output, so nothing was checked. Next: gpuscope doctor on what the training printed"
)
NOTHING_KNOWN = (
    "The symptom: these words name no failure that is known here. Next: say what happens "
    f"({', '.join(ADVISED)}) and when, or give the log: gpuscope doctor LOG"
)


def examine(
    source: Iterable[str] | IO[bytes] | IO[str] | str | PathLike[str],
    name: str = "log",
    symptom: str = "",
) -> tuple[tuple[Finding, ...], tuple[Abstained, ...]]:
    """Return the findings of a log, best first, and what could not be decided.

    - ``source``: a path, an open stream, or lines. ``name`` is how evidence calls it
      (``log:1204``).
    - ``symptom``: what the user says about the failure in plain words, alone or together with a
      log.

    A text without any known message gives no findings. Raises OSError where a path cannot be read.
    """
    from . import reading

    return _examine(reading.read(source), name, symptom)


def _examine(
    excerpt: Excerpt, name: str, symptom: str
) -> tuple[tuple[Finding, ...], tuple[Abstained, ...]]:
    """Do what ``examine`` does for a log that was read."""
    from . import reading

    excerpts = (excerpt, name), (reading.read(symptom.splitlines()), SYMPTOM)
    known = [not one.binary and any(text.strip() for _, text in one.lines) for one, _ in excerpts]
    if not any(known):
        return (), ()
    from .judge import judge
    from .text import Log

    log, described = (
        Log(*pair) if is_known else None for pair, is_known in zip(excerpts, known, strict=True)
    )
    return judge(log, described)


def report(
    source: Iterable[str] | IO[bytes] | IO[str] | str | PathLike[str],
    name: str,
    examined: str,
    symptom: str = "",
) -> Report:
    """Return the findings as a report, in which the log is called ``examined``.

    Where neither the log nor the user's words contain anything known, the report says so, because
    silence would look like a clean result. A document or a settings file that holds no output of a
    program is refused: its words about errors are no errors. Of a training that ended well nothing
    is guessed.
    """
    from . import reading
    from .ending import ended_well
    from .prose import kind_of_document

    excerpt = reading.read(source)
    kind = kind_of_document([line for _, line in excerpt.lines], name if name == examined else "")
    if kind:
        return Report(problems=(NO_LOG.format(name=examined, kind=kind),))
    findings, abstained = _examine(excerpt, name, symptom)
    sure = tuple(one for one in findings if one.confidence != "prior")
    well = "" if symptom else ended_well([line for _, line in excerpt.lines])
    if well and not any(one.severity == "problem" for one in sure):
        return Report(findings=sure, examined=(examined,), ended_well=well)
    looked_at = (examined, THE_SYMPTOM) if symptom else (examined,)
    problems = (NOTHING_KNOWN,) if symptom and not findings and not abstained else ()
    return Report(findings=findings, abstained=abstained, examined=looked_at, problems=problems)


def of_symptom(symptom: str) -> Report:
    """Return a report on the user's words alone."""
    findings, abstained = examine((), symptom=symptom)
    if not findings and not abstained:
        return Report(problems=(NOTHING_KNOWN,))
    return Report(findings=findings, abstained=abstained, examined=(THE_SYMPTOM,))
