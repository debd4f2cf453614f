"""What is wrong with one host, in full, each beside what to do first about it."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from ...doctor.steps import STACKS
from ...text import styled
from ...text.clock import clock_text
from ...text.styled import Line, Piece
from ...text.units import age_text, count_text
from ..shell.keymap import key_of
from ..theme import Tokens
from .rows import AWAY, LINK_TOKENS, mark_of, next_try
from .runs import job_line
from .summary import HostSummary, Missing, Word

if TYPE_CHECKING:
    from ...doctor.finding import Fix
    from .watch import Told

NOTHING_TOLD: Mapping[str, Told] = MappingProxyType({})
NEEDS = (
    "a login that asks no question: a key in your ssh agent, a host key that you accepted",
    "Python 3.8 or newer there; gpuscope sends its agent along and installs nothing",
)
"""What a host must have to be read."""
APART = 3
"""The blanks between a finding and what to do first, where both have room in one line."""
Found = tuple[str, Line]
"""The key of a finding, "" for a line that is of none, and a line."""
_FIGURES = re.compile(r"[\d.]+")


def finding_lines(
    one: HostSummary,
    missing: Missing,
    cells: int,
    tokens: Tokens,
    told: Mapping[str, Told] = NOTHING_TOLD,
) -> list[Found]:
    """Return all that is wrong with a host, which may be nothing.

    ``told`` are the findings behind it, by the words for them. What to do first stands at the right
    of each where there is room, else below it.
    """
    out: list[Found] = []
    if one.state in AWAY:
        out += [("", line) for line in missing_lines(one, missing, cells)]
    firsts: dict[str, list[Line]] = {
        text: [[("do first: ", "accent"), *step_line(one.first, how)] for how in (True, False)]
        for text, one in told.items()
        if one.first is not None
    }
    titled = [_titled(word, tokens) for word in one.words]
    widest = max(map(styled.cells, titled), default=0)
    longest = max(
        (styled.cells(firsts[word.text][0]) for word in one.words if word.text in firsts), default=0
    )
    beside = widest + APART + longest <= cells
    for word, line in zip(one.words, titled, strict=True):
        key, first = key_of_word(word, told), firsts.get(word.text)
        if beside and first is not None:
            out.append((key, [*styled.pad(line, widest + APART), *first[0]]))
            continue
        out += [(key, part) for part in styled.hang(line[:1], line[1:], cells)]
        if first is not None:
            whole = next((each for each in first if styled.cells(each) + 2 <= cells), first[1])
            out.append((key, [("  ", "text"), *whole]))
    return out


def key_of_word(word: Word, told: Mapping[str, Told]) -> str:
    """Return a key that stays while the figures in the words for a finding change."""
    known = told.get(word.text)
    if known is None:
        return f"{word.key} {_FIGURES.sub('', word.text)}"
    return f"{word.key} {known.finding.pitfall} {known.finding.cause}"


def _titled(word: Word, tokens: Tokens) -> Line:
    glyph, token = mark_of(word.grade, tokens.glyphs)
    return [(f"{glyph} ", token), (word.named, "text")]


def calm_lines(one: HostSummary, tokens: Tokens) -> list[Found]:
    """Return what runs on a host and what is free there, or what it needs to be read."""
    if not one.answered:
        return [("", [("  it needs ", "muted"), (need, "muted")]) for need in NEEDS]
    lines: list[Line] = [job_line(run, tokens.glyphs) for run in one.runs()]
    if not lines:
        lines.append([(f"{tokens.glyphs.idle} ", "idle"), ("nothing runs here", "text")])
    if one.free:
        of = f"{one.free} of {count_text(one.devices, 'GPU')} free"
        lines.append([(f"{tokens.glyphs.idle} ", "ok"), (of, "text")])
    if one.no_gpus:
        lines.append([(f"{tokens.glyphs.idle} ", "idle"), (f"no GPUs: {one.no_gpus}", "muted")])
    return [("", line) for line in lines]


def step_line(fix: Fix, how: bool = True) -> Line:
    """Return a first step in words, with the keys that lead to it from the list of hosts.

    They are left out where nobody wants to know ``how``, but for those that are the step.
    """
    opens: Piece = (key_of("open"), "bold accent")
    if STACKS.fullmatch(fix.command):
        stacks: Piece = (key_of("stacks"), "bold accent")
        ends: Piece = (key_of("signal"), "bold accent")
        shows: Piece = (" shows the stacks of its threads, ", "text")
        return [opens, (", ", "text"), stacks, shows, ends, (" ends the job", "text")]
    words: Piece = (fix.title.rstrip("."), "text")
    keys: Line = [(" · ", "faint"), opens, (f" {key_of('doctor')}: how", "muted")]
    return [words, *keys] if how else [words]


def missing_lines(one: HostSummary, missing: Missing, cells: int) -> list[Line]:
    """Return since when a host is missing, what happens next, and how old its figures are."""
    glyph = LINK_TOKENS[one.state]
    since = clock_text(time.time() - missing.seconds)
    first: Line = [
        (f"{one.state} ", glyph),
        (f"since {since}, for {age_text(max(missing.seconds, 1.0))}", "text"),
    ]
    if one.state == "unreachable":
        first += [(" · ", "faint"), (next_try(missing), "title")]
    first += [(" · ", "faint"), (key_of("connect_again"), "accent"), (": connect now", "muted")]
    if one.answered:
        first.append((" · the figures are from before", "muted"))
    return styled.hang([("  ", "text")], first, cells)
