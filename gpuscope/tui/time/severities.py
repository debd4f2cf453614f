"""How grave the doctor takes what makes a training slow, so that this tab takes it alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from ...model.stalls import stalled_ranks
from ...text.styled import Line, Piece
from ..doctor.text import SEVERITY_TOKENS, glyph_of
from ..shell.keymap import key_of
from ..theme import Glyphs
from .text import OF_RANKS

if TYPE_CHECKING:
    from ...doctor.finding import Severity
    from ...doctor.live_causes import Judged
    from ...model.late_rank import LateRank
    from ...store.view import JobView
    from ..background.finding_history import Case

ORDER = ("info", "warning", "problem")
ALSO: Mapping[str, tuple[str, ...]] = {
    "live.input_bound": ("ranks.slow_input",),
    "look.copies_in": ("live.copies",),
}
"""Cause of a row of the clock → causes by which the doctor tells the same of a whole job."""


def severities(cases: Iterable[Case]) -> dict[str, Severity]:
    """Return how grave each cause is that holds now."""
    found: dict[str, Severity] = {}
    for case in cases:
        if not case.past:
            cause, severity = case.finding.cause, case.finding.severity
            found[cause] = _worst(severity, found.get(cause, "info"))
    return found


def of_rows(judged: Iterable[Judged], found: Mapping[str, Severity]) -> dict[str, Severity]:
    """Return the rows of the clock that a cure would shorten, each with how grave it is.

    What the doctor does not tell, as it is too little or not sure yet, is worth no warning here.
    """
    out: dict[str, Severity] = {}
    for one in judged:
        if one.cause.clock is not None:
            names = (one.finding.cause, *ALSO.get(one.finding.cause, ()))
            told = (found.get(name, "info") for name in names)
            out[one.cause.clock.name] = _worst(*told, out.get(one.cause.clock.name, "info"))
    return out


def most_to_gain(cases: Iterable[Case], glyphs: Glyphs) -> Line:
    """Return the worst that the doctor found about time, in a line; empty where it found nothing.

    Its title names the ranks or devices that it is about: it is shown for each rank of the job. A
    hang is no slowness.
    """
    for case in cases:
        finding = case.finding
        if case.grave and not case.dead and not finding.cause.startswith("stall."):
            token = SEVERITY_TOKENS[finding.severity]
            how = f" · how: tab {key_of('doctor')}, Doctor"
            sign = f"{glyph_of(finding.severity, glyphs)} "
            return [(sign, token), (finding.title, "title"), (how, "muted")]
    return []


def marks_line(marked: Iterable[Severity], glyphs: Glyphs) -> Line:
    """Return what the marks of the rows mean, nothing without a mark."""
    here = set(marked)
    out: Line = []
    for one in reversed(ORDER):
        if one in here:
            words = "could be shorter" if one == "info" else "see Doctor"
            out += [(f" {glyph_of(one, glyphs)}", SEVERITY_TOKENS[one]), (f" {words} ", "faint")]
    return out


def rank_marks(
    job: JobView | None, worst: str, severity: Severity, glyphs: Glyphs
) -> dict[str, Piece]:
    """Return the signs of the ranks that stand out, each with its token, by the rank's key.

    While the job hangs these are the ranks that hold it up and those that wait, as on all screens;
    else the ``worst``, marked as the doctor does.
    """
    stalled = stalled_ranks(job) if job is not None else {}
    if stalled:
        return {key: (getattr(glyphs, kind), kind) for key, kind in stalled.items()}
    if not worst or severity == "info":  # it differs, and nobody waits for it
        return {}
    return {worst: (glyph_of(severity, glyphs), SEVERITY_TOKENS[severity])}


def worst_of(severity: Severity, late: LateRank | None) -> Severity:
    """Return how grave it is that the others wait for a rank, before the doctor has said so too."""
    return _worst(severity, "warning" if late is not None and late.warns else "info")


def of_ranks(found: Mapping[str, Severity]) -> Severity:
    """Return how grave it is that the others wait for a rank."""
    return _worst("info", *(found[cause] for cause in OF_RANKS & found.keys()))


def _worst(*severities: Severity) -> Severity:
    return max(severities, key=ORDER.index)
