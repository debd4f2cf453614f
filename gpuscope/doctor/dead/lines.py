"""Take a log's lines apart: the rank and the host that a prefix names, the time, the message."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone

from ..messages.text import ANSI

_RANK = re.compile(
    r"""^\s*(?:
      \[?\(?(?:global[ _]?)?rank[ :=_]?(?P<rank>\d{1,5})(?:/\d{1,5})?[\])]?:?(?=\s|\[|$)
    | \[(?!rank)(?P<role>[a-zA-Z]{2,20})(?P<local>\d{1,5})\]:
    | \[\d+,(?P<mpi>\d{1,5})\]<std(?:err|out)>:?
    | \[?(?P<bare>\d{1,5})\]?:(?=\s|$)
    )\s?""",
    re.X | re.I,
)
_LOGGED_RANK = re.compile(
    r"^\S{0,30}\s?[\[(]?\d\d:\d\d:\d\d\S{0,10}\s.{0,40}?[\[(]rank[ :=_]?(?P<rank>\d{1,5})[\])]",
    re.I,
)
"""A rank in brackets behind the time, as programs write it that log with a format of their own."""
_TEE = re.compile(r"\[[a-z]{2,20}\d{1,5}\]:|\s*\d{1,5}: ")
_BAR = ("%|", "it/s", "s/it")
_BEHIND_A_BAR = re.compile(
    r"(?<=\])(?=\[[a-z]{4,20}\d{1,5}\]:)|(?<=\S)(?=Traceback \(most recent call last\):)"
)
"""Where the words of another process begin in the line that a progress bar has left open."""
_HOST = re.compile(
    r"^\s*\[?(?P<host>[A-Za-z][\w.-]{0,60}\d|[a-z][\w-]{0,40}-[\w-]{1,40})\]?(?::\s|\s*\|\s)"
)
_TIMES = re.compile(
    r"""(?P<iso>\d{4}-\d\d-\d\d[T\ _]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?\s?(?P<zone>Z|[+-]\d\d:?\d\d)?)
    | (?:^|[\s\[\]:(])[EWIF](?P<month>\d{1,2})(?P<day>\d\d)\s(?P<clock>\d\d:\d\d:\d\d(?:\.\d{1,9})?)
    | (?P<name>Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)\s{1,2}(?P<date>\d{1,2})\s
      (?P<hour>\d\d:\d\d:\d\d)(?:\s(?P<year>\d{4}))?
    | (?:^|[\s\[])(?P<first>\d\d)/(?P<second>\d\d)(?:/(?P<years>\d{4}))?\s
      (?P<short>\d\d:\d\d:\d\d(?:[.,]\d{1,6})?)
    | (?P<slash>\d{4}/\d\d/\d\d\s\d\d:\d\d:\d\d)
    | (?:^|[\s\[])(?P<only>\d\d:\d\d:\d\d(?:[.,]\d{1,6})?)(?=[\s\]|])
    """,
    re.X,
)
_MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
FIRST_LINES = 50
LOOK_BACK = 60
"""How many lines before a line are searched for its time."""
TIME_CHARS = 120
"""How many characters at the beginning of a line are searched for a time."""
_ANYWHERE = re.compile(r" (?:AT|at) \d{4}-\d\d-\d\dT")


def parts_of(text: str) -> list[str]:
    """Return a line, or two where the line of a progress bar goes on with other words."""
    if not any(word in text for word in _BAR):
        return [text]
    return [part for part in _BEHIND_A_BAR.split(text) if part]


class LogLine:
    """A line without its colours and prefixes.

    ``rank`` is the rank in the job and ``local`` the one on its host, as torchrun's prefixes name
    it. ``hooked`` says that the line begins as torch's hook for uncaught exceptions writes it.
    ``time`` is in seconds since 1970; a time without a zone is taken as this machine's. It is
    read when it is asked for, because of most lines nobody asks.
    """

    __slots__ = ("_reader", "_time", "hooked", "host", "local", "number", "rank", "text")

    def __init__(self, number: int, text: str, reader: LineReader | None = None) -> None:
        self.number = number
        self.text = text
        self.rank: int | None = None
        self.local: int | None = None
        self.host = ""
        self.hooked = False
        self._reader = reader
        self._time: float | None = None

    @property
    def time(self) -> float | None:
        """When the line was written, where it says so."""
        if self._reader is not None:
            self._time, self._reader = self._reader.time_in(self.text), None
        return self._time


def time_near(lines: Sequence[LogLine], index: int) -> float | None:
    """Return the time of a line, or of the nearest line before it that has one."""
    for line in lines[index::-1][:LOOK_BACK]:
        if line.time is not None:
            return line.time
    return None


class LineReader:
    """Takes lines apart, and remembers the date for times that have none.

    ``modified`` is when the file was last written, for times without a year. ``numbers_are_ranks``
    says whether a bare number before a colon is a rank, as ``srun --label`` writes it; ``learn``
    finds this out from some lines.
    """

    def __init__(self, modified: float) -> None:
        at = datetime.fromtimestamp(modified)
        self._year = at.year
        self._today = (at.month, at.day)
        self._day: tuple[int, int, int] | None = None
        self.numbers_are_ranks = False

    def learn(self, lines: list[str]) -> None:
        """Find out from the first lines whether every line begins with a number and a colon."""
        full = [line for line in lines if line.strip()]
        labelled = sum(bool(re.match(r"\s*(?:\d{1,5}:\s|\[\d{1,5}\]:\s)", line)) for line in full)
        self.numbers_are_ranks = bool(full) and labelled >= 0.8 * len(full)

    def read(self, number: int, raw: str) -> LogLine:
        """Return the line taken apart."""
        text = ANSI.sub("", raw) if "\x1b" in raw else raw
        if "\r" in text:
            first, _, last = text.rstrip("\r").rpartition("\r")
            prefix = _TEE.match(first)  # which stands only before the first of several bars
            text = (prefix[0] if prefix else "") + last
        line = LogLine(number, text, self)
        for _ in range(3):
            if not self._strip_prefix(line):
                break
        if line.rank is None and "ank" in line.text[:TIME_CHARS]:
            match = _LOGGED_RANK.match(line.text)
            line.rank = int(match["rank"]) if match is not None else None
        if self._day is None and number < FIRST_LINES:
            self.time_in(line.text)
        return line

    def _strip_prefix(self, line: LogLine) -> bool:
        match = _RANK.match(line.text)
        if match is not None and (match["bare"] is None or self.numbers_are_ranks):
            if match["local"] is not None:
                line.local = int(match["local"])
            elif line.rank is None or match["rank"] is not None:
                line.rank = int(match["rank"] or match["mpi"] or match["bare"])
                line.hooked = match[0].lstrip().startswith("[rank")
            line.text = line.text[match.end() :]
            return True
        match = _HOST.match(line.text)
        if match is not None and not line.host and ".py" not in match["host"]:
            line.host = match["host"]
            line.text = line.text[match.end() :]
            return True
        return False

    def time_in(self, text: str) -> float | None:
        """Return the time that a line's text names, or None."""
        match = _TIMES.search(text[:TIME_CHARS])
        if match is None:
            found = _ANYWHERE.search(text)
            match = _TIMES.search(text, found.start()) if found else None
        if match is None:
            return None
        try:
            return self._seconds(match)
        except (ValueError, OverflowError):
            return None

    def _seconds(self, match: re.Match[str]) -> float | None:
        if match["iso"] is not None:
            text = match["iso"].strip().replace("_", "T", 1).replace(" ", "T", 1).replace(",", ".")
            return self._moment(text.strip(), match["zone"])
        if match["short"] is not None:
            return self._of_numbers(match)
        if match["slash"] is not None:
            return self._moment(match["slash"].replace("/", "-").replace(" ", "T"), None)
        if match["month"] is not None:
            day = f"{self._year:04}-{int(match['month']):02}-{match['day']}"
            return self._moment(f"{day}T{match['clock']}", None)
        if match["name"] is not None:
            month = _MONTHS.index(match["name"]) + 1
            year = int(match["year"] or self._year)
            return self._moment(
                f"{year:04}-{month:02}-{int(match['date']):02}T{match['hour']}", None
            )
        if self._day is None:
            return None
        year, month, date = self._day
        clock = match["only"].replace(",", ".")
        return self._moment(f"{year:04}-{month:02}-{date:02}T{clock}", None)

    def _of_numbers(self, match: re.Match[str]) -> float:
        """Return the time of ``26/11 15:12:44``.

        The day comes first, unless only the other order gives a date or the file's own.
        """
        date, month = int(match["first"]), int(match["second"])
        if month > 12 or (date <= 12 and (date, month) == self._today):
            date, month = month, date
        year = int(match["years"] or self._year)
        clock = match["short"].replace(",", ".")
        return self._moment(f"{year:04}-{month:02}-{date:02}T{clock}", None)

    def _moment(self, text: str, zone: str | None) -> float:
        if zone:
            text = text.removesuffix(zone).strip()
        whole, _, fraction = text.partition(".")
        day, _, clock = whole.partition("T")
        year, month, date = (int(part) for part in day.split("-"))
        hour, minute, second = (int(part) for part in clock.split(":"))
        self._day = (year, month, date)
        at = datetime(year, month, date, hour, minute, second, tzinfo=_zone(zone))
        return at.timestamp() + (float(f"0.{fraction}") if fraction else 0.0)


def _zone(text: str | None) -> timezone | None:
    """Return the zone that a time names; None is this machine's."""
    if not text:
        return None
    if text == "Z":
        return timezone.utc
    digits = text[1:].replace(":", "")
    minutes = int(digits[:2]) * 60 + int(digits[2:])
    return timezone(timedelta(minutes=minutes if text[0] == "+" else -minutes))
