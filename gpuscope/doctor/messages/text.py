"""Normalise logs: remove prefixes, colours and escape sequences, and search without spaces.

Terminals and issue forms wrap lines anywhere, even inside a number. Once every space is removed,
the wrapping does not matter. Patterns are written readably and lose their spaces before they are
compiled.
"""

from __future__ import annotations

import html
import re
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from .reading import Excerpt

ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_TAGS = re.compile(r"</?(?:br|p|pre|code|span|div|b|i|strong|em|font|tt)\b[^>]{0,200}>", re.I)
_PREFIX = re.compile(
    r"""\s*(?:
      \[?rank\s?\d+\]?:\s? | \[default\d+\]:\s? | \[\d+,\d+\]<std(?:err|out)>:\s? | \[\d+\]:\s | \d{1,4}:\s(?=\S|\s{2})
    | \((?=[^()]{0,80}\bpid\s?=\s?\d)[^()]{1,120}\)\s?
    | \[?\d{4}-\d\d-\d\d[T\ ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?,?\s?
    | \[?\d\d:\d\d:\d\d(?:[.,]\d+)?\]?\s(?=\S)
    | (?:ERROR|INFO|WARNING|CRITICAL|DEBUG)\s\d\d-\d\d\s\d\d:\d\d:\d\d\s(?:\[?[\w./-]+:\d+\]\s?)?
    | (?:\[|)(?:ERROR|WARNING|CRITICAL|FATAL)(?:\]|:)\s | >\s(?=\S) | \w[\w.-]{0,30}\s+\|\s(?=\s*\S)
    )""",  # noqa: E501
    re.X,
)
_RANK = re.compile(
    r"\[?rank\s?(\d{1,5})\]?:|\[default(\d{1,5})\]:|\[\d+,(\d{1,5})\]<std|\[Rank (\d{1,5})\]"
)
_SPACE = re.compile(r"\s+")


@dataclass(frozen=True, slots=True)
class Hit:
    """A match: the groups without spaces, and the line where it begins."""

    groups: tuple[str | None, ...]
    line: int
    start: int
    end: int

    def __getitem__(self, index: int) -> str | None:
        return self.groups[index]


class Log:
    """A log to search, without the prefixes of its lines.

    ``flat`` is one string with single spaces between words, ``squeezed`` one without spaces; both
    are in lower case.
    """

    def __init__(self, excerpt: Excerpt, source: str) -> None:
        self.source = source
        self.excerpt = excerpt
        self.lines: list[tuple[int, str]] = []
        self.ranks: list[str] = []
        starts: list[int] = []
        pieces: list[str] = []
        size = 0
        for number, raw in excerpt.lines:
            text, rank = split_prefix(raw)
            squeezed = _SPACE.sub("", text.lower())
            self.lines.append((number, text))
            self.ranks.append(rank)
            starts.append(size)
            pieces.append(squeezed)
            size += len(squeezed)
        self._starts = starts
        self.squeezed = "".join(pieces)
        self.flat = _SPACE.sub(" ", " ".join(text.lower() for _, text in self.lines))

    def has(self, *words: str) -> bool:
        """Return whether one of these literal texts occurs in the log.

        They must be in lower case, and their spaces are ignored.
        """
        return any(_without_spaces(word) in self.squeezed for word in words)

    def first(self, *words: str) -> Hit | None:
        """Return the first of these literal texts that is found."""
        for word in words:
            remove_spaces = _without_spaces(word)
            at = self.squeezed.find(remove_spaces)
            if at >= 0:
                return Hit((remove_spaces,), self._index(at), at, at + len(remove_spaces))
        return None

    def find(self, pattern: str) -> Hit | None:
        """Return the first match of a pattern in lower case; its spaces do not count."""
        match = _compiled(pattern).search(self.squeezed)
        return self._hit(match) if match else None

    def find_all(self, pattern: str, limit: int = 50) -> list[Hit]:
        """Return the first ``limit`` matches of a pattern in lower case."""
        found = []
        for match in _compiled(pattern).finditer(self.squeezed):
            found.append(self._hit(match))
            if len(found) == limit:
                break
        return found

    def words(self, pattern: str) -> re.Match[str] | None:
        """Return a match in the flat text, where words have their borders."""
        return _flat(pattern).search(self.flat)

    def line_with(self, pattern: re.Pattern[str]) -> Hit | None:
        """Return the first line, with its case and spaces, that the pattern matches."""
        for index, (_, text) in enumerate(self.lines):
            match = pattern.search(text)
            if match:
                start = self._starts[index] + len(_SPACE.sub("", text[: match.start()]))
                word = _SPACE.sub("", match[0].lower())
                return Hit((word,), index, start, start + len(word))
        return None

    def where(self, hit: Hit) -> str:
        """Return the file and the line of the hit: ``log:1204``."""
        return f"{self.source}:{self.lines[hit.line][0]}"

    def quote(self, hit: Hit, most: int = 300) -> str:
        """Return the line of the hit, starting at the text of interest.

        If the line was wrapped, the lines that continue it are joined to it.
        """
        text = self.lines[hit.line][1].strip()
        last = self._index(max(hit.end - 1, hit.start))
        for i in range(hit.line + 1, min(last, hit.line + 8) + 1):
            text += " " + self.lines[i][1].strip()
        if len(text) <= most:
            return text
        begin = max(0, text.lower().find(self.squeezed[hit.start : hit.start + 6]) - 20)
        return (
            ("… " if begin else "")
            + text[begin : begin + most]
            + ("…" if begin + most < len(text) else "")
        )

    def rank(self, hit: Hit) -> str:
        """Return ``rank 3`` where the line's prefix names one, else nothing."""
        return f"rank {self.ranks[hit.line]}" if self.ranks[hit.line] else ""

    def around(self, hit: Hit, before: int, after: int) -> Iterable[str]:
        return (text for _, text in self.lines[max(0, hit.line - before) : hit.line + after + 1])

    def _hit(self, match: re.Match[str]) -> Hit:
        return Hit(
            (match[0], *match.groups()), self._index(match.start()), match.start(), match.end()
        )

    def _index(self, at: int) -> int:
        return max(bisect_right(self._starts, at) - 1, 0)


def split_prefix(raw: str) -> tuple[str, str]:
    """Return a line without colours, markup and prefixes, and the rank that a prefix names.

    The rank is empty if no prefix names one.
    """
    text = ANSI.sub("", raw) if "\x1b" in raw else raw
    if "&" in text:
        text = html.unescape(text)
        if "&" in text:
            text = html.unescape(text)
    if "<" in text:
        text = _TAGS.sub(" ", text)
    rank = ""
    for _ in range(4):
        match = _PREFIX.match(text)
        if match is None or not match[0]:
            break
        named = _RANK.search(match[0])
        if named and not rank:
            rank = next((group for group in named.groups() if group), "")
        text = text[match.end() :]
    return text, rank


_OPTIONAL_SPACE = re.compile(r" \??")


def remove_spaces(pattern: str) -> str:
    """Return a pattern without the spaces that make it readable.

    An optional space is removed together with its question mark.
    """
    return _OPTIONAL_SPACE.sub("", pattern)


def _without_spaces(words: str) -> str:
    return words.replace(" ", "")


@lru_cache(maxsize=512)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(remove_spaces(pattern))


@lru_cache(maxsize=512)
def _flat(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)
