"""Define the content of a report: sections as data, which ``page`` draws.

Whoever has something to tell makes a :class:`Section` of these parts and knows nothing of HTML.
Each part names its ``source`` and the time, ``when``, that its figures are of. Values are text
already, in the words and digits that the screens use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from ..doctor.finding import Finding

Tone = Literal["", "ok", "warn", "bad", "muted"]


@dataclass(frozen=True, slots=True)
class BarRow:
    """A row of a waterfall.

    ``share`` of the whole is None where it is unknown; with 95 % confidence it lies between
    ``low`` and ``high``, where these are known. ``token`` is its colour, and ``inside`` marks a
    part of the row above.
    """

    label: str
    value: str
    share: float | None
    token: str = ""
    inside: bool = False
    detail: str = ""
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where the figures of a part were read, and the time that they are of."""

    source: str = ""
    when: str = ""


@dataclass(frozen=True, slots=True)
class Waterfall(Origin):
    """Where bytes or seconds go; ``total`` is what the rows that are not inside others add up to.

    ``detail_head`` names the column of the rows' details.
    """

    title: str
    bars: Sequence[BarRow]
    total: BarRow | None = None
    notes: Sequence[str] = ()
    detail_head: str = ""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a row of a map, from ``begin`` to ``end``, shares of the longest row."""

    begin: float
    end: float
    token: str


@dataclass(frozen=True, slots=True)
class MapRow:
    """A row of a map, which ends at ``end``, a share of the longest row; the rest is free."""

    label: str
    value: str
    end: float
    pieces: Sequence[Piece]
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Map(Origin):
    """A map of what is where: rows on one scale. ``legend`` names each token.

    ``head`` names the columns of labels, values and details.
    """

    title: str
    head: tuple[str, str, str]
    rows: Sequence[MapRow]
    legend: Mapping[str, str]
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure with its name; ``note`` says what it is a part of, or how it is meant."""

    label: str
    value: str
    note: str = ""
    tone: Tone = ""


@dataclass(frozen=True, slots=True)
class Figures(Origin):
    """The figures that matter most, side by side."""

    figures: Sequence[Figure]


@dataclass(frozen=True, slots=True)
class Table(Origin):
    """Rows of text below a heading; the first column names the rows.

    Columns in ``right`` hold numbers. ``tones`` gives rows a colour, by their number. A table that
    is ``folded`` is closed until the reader opens it.
    """

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: Sequence[int] = ()
    notes: Sequence[str] = ()
    tones: Mapping[int, Tone] = field(default_factory=dict)
    folded: bool = False


@dataclass(frozen=True, slots=True)
class Sentences(Origin):
    """Paragraphs of plain text."""

    texts: Sequence[str]
    tone: Tone = ""


@dataclass(frozen=True, slots=True)
class Code(Origin):
    """Lines of a stack, of a program or of commands, as they are."""

    title: str
    lines: Sequence[str]
    folded: bool = False


@dataclass(frozen=True, slots=True)
class Curve:
    """Values over time: for each interval of it the lowest and the highest, None where unknown."""

    token: str
    low: Sequence[float | None]
    high: Sequence[float | None]
    name: str = ""


@dataclass(frozen=True, slots=True)
class Strip:
    """One row of a timeline: curves on one scale from ``bottom`` to ``top``.

    ``ends`` are the two ends of the scale as text, and ``value`` is the figure at the right.
    """

    label: str
    curves: Sequence[Curve]
    bottom: float
    top: float
    ends: tuple[str, str]
    value: str = ""


@dataclass(frozen=True, slots=True)
class TimeMark:
    """A moment on a timeline, ``at`` a share of its length."""

    at: float
    label: str
    tone: Tone = ""


@dataclass(frozen=True, slots=True)
class Timeline(Origin):
    """Strips over one span of time, all of one quantity.

    ``begin`` is a wall-clock time with the zone's offset added (None if only the time since the
    beginning is known), and ``seconds`` the length.
    """

    title: str
    strips: Sequence[Strip]
    seconds: float
    begin: float | None = None
    marks: Sequence[TimeMark] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio with its 95 % interval, None where it is not known; ``text`` says it in digits."""

    label: str
    value: float | None
    low: float | None
    high: float | None
    text: str
    note: str = ""
    tone: Tone = ""


@dataclass(frozen=True, slots=True)
class Intervals(Origin):
    """Several ratios on one scale, with a line at 1."""

    title: str
    rows: Sequence[Ratio]
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Findings(Origin):
    """Findings of the doctor, the most severe first."""

    findings: Sequence[Finding]
    notes: Sequence[str] = ()


Part = Waterfall | Map | Figures | Table | Sentences | Code | Timeline | Intervals | Findings


@dataclass(frozen=True, slots=True)
class Section:
    """One subject: its heading, its answer in a sentence, and the parts that show it."""

    title: str
    parts: Sequence[Part]
    lead: str = ""


@dataclass(frozen=True, slots=True)
class Chapter:
    """The report of one file or source; ``kind`` says what it is.

    ``facts`` are pairs of a name and a value. ``problems`` are sentences on what could not be read.
    """

    title: str
    kind: str
    sections: Sequence[Section]
    facts: Sequence[tuple[str, str]] = ()
    problems: Sequence[str] = ()
