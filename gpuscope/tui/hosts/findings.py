"""What is wrong with one host, in full, each beside what to do first about it."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Mapping, Sequence
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
from .summary import Grade, HostSummary, Missing, Word

if TYPE_CHECKING:
    from ...doctor.finding import Finding, Fix
    from .watch import Told

NOTHING_TOLD: Mapping[Word, Told] = MappingProxyType({})
NEEDS = (
    "a login that asks no question: a key in your ssh agent, a host key that you accepted",
    "Python 3.8 or newer there; gpuscope sends its agent along and installs nothing",
)
"""What a host must have to be read."""
APART = 3
"""The blanks between a finding and what to do first, where both have room in one line."""
BELOW = "  "
"""The indent of what stands below a finding."""
Found = tuple[str, Line]
"""The key of a finding, "" for a line that is of none, and a line."""
_FIGURES = re.compile(r"[\d.]+")


def finding_lines(
    one: HostSummary,
    missing: Missing,
    cells: int,
    tokens: Tokens,
    told: Mapping[Word, Told] = NOTHING_TOLD,
) -> list[Found]:
    """Return all that is wrong with a host, which may be nothing.

    ``told`` are the findings behind it. What to do first stands at the right
    of each where there is room, else below it.
    """
    out: list[Found] = []
    if one.state in AWAY:
        out += [("", line) for line in missing_lines(one, missing, cells)]
    titled = [_titled(word, tokens) for word in one.words]
    firsts = [_first_of(told.get(word)) for word in one.words]
    place = _place_of_firsts(titled, firsts, cells)
    for word, line, (how, brief) in zip(one.words, titled, firsts, strict=True):
        key, wide = key_of_word(word, told), styled.cells(line)
        if how and wide + APART <= place:
            out.append((key, [*styled.pad(line, place), *how]))
            continue
        out += [(key, part) for part in styled.hang(line[:1], line[1:], cells)]
        below = how if styled.cells(how) + len(BELOW) <= cells else brief
        label: Line = [(BELOW, "text"), *below[:1]]
        out += [(key, part) for part in styled.hang(label, below[1:], cells) if below]
    return out


def _first_of(told: Told | None) -> tuple[Line, Line]:
    """Return what to do first with the keys to more about it, and without; both may be empty."""
    if told is None or told.first is None:
        return [], []
    label: Piece = ("do first: ", "accent")
    return [label, *step_line(told.first)], [label, *step_line(told.first, False)]


def _place_of_firsts(
    titled: Sequence[Line], firsts: Sequence[tuple[Line, Line]], cells: int
) -> int:
    """Return where first steps begin at the right of as many findings as have room for it.

    It is 0 where none has.
    """
    place = longest = 0
    pairs = zip(map(styled.cells, titled), (styled.cells(how) for how, _ in firsts), strict=True)
    for wide, step in sorted(pairs):
        longest = max(longest, step)
        if wide + APART + longest > cells:
            break
        place = wide + APART
    return place


def key_of_word(word: Word, told: Mapping[Word, Told]) -> str:
    """Return a key that stays while the figures in the words for a finding change.

    It is "" for why a host is away, of which the Doctor has nothing.
    """
    if word.grade in (Grade.UNREACHABLE, Grade.STALE):
        return ""
    known = told.get(word)
    if known is None:
        return f"{word.key} {_FIGURES.sub('', word.text)}"
    return f"{word.key} {known.finding.pitfall} {known.finding.cause}"


def counted(one: HostSummary, told: Mapping[Word, Told], listed: Collection[str]) -> str:
    """Return how many things are wrong with a host, and of how many the keys are ``listed``.

    It is "" where nothing is wrong.
    """
    keys = [key_of_word(word, told) for word in one.words if word.grade < Grade.IDLE]
    shown = sum(key in listed for key in keys)
    return f"{shown} of {len(keys)}" if shown < len(keys) else f"{shown or ''}"


def _titled(word: Word, tokens: Tokens) -> Line:
    glyph, token = mark_of(word.grade, tokens.glyphs)
    return [(f"{glyph} ", token), (word.named, "text")]


def calm_lines(one: HostSummary, tokens: Tokens) -> list[Found]:
    """Return what runs on a host and what is free there, or what it needs to be read."""
    if not one.answered:
        return [("", [("  it needs ", "muted"), (need, "muted")]) for need in NEEDS]
    graver = {"bad": 0, "warn": 1}
    runs = sorted(one.runs(), key=lambda run: graver.get(run.state.kind, 2))
    lines: list[Line] = [job_line(run, tokens.glyphs) for run in runs]
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


def says_the_same(one: Finding, other: Finding) -> bool:
    """Return whether two findings say the same of the same processes, at another moment."""
    alike = (one.pitfall, one.cause) == (other.pitfall, other.cause)
    return alike and (one.where == other.where or not set(one.pids).isdisjoint(other.pids))
