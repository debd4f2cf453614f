"""Read what messages and exceptions of a dead job mean from the folder ``rules``, and apply it.

The files are JSON, as those of the rules for a single log are, and for the same reason: TOML takes
many times as long to parse.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_args

from ...checked_rows import TableError, checked
from .model import Failure, Means

FOLDER = Path(__file__).with_name("rules")
BENIGN = re.compile(
    r"^(?:\w+\.)*(?:KeyError|StopIteration|AttributeError|ImportError|ModuleNotFoundError|queue\.Empty"
    r"|Empty|IndexError|FileNotFoundError|LookupError)\b"
)
"""Exceptions that programs catch as a matter of course: what follows them in a chain decides."""


@dataclass(frozen=True, slots=True)
class RankRule:
    """A pattern and what it says of the rank whose line or exception it fits."""

    id: str
    pattern: str
    means: str
    cause: str = ""
    needles: tuple[str, ...] = ()


@cache
def rules(name: str) -> tuple[tuple[RankRule, re.Pattern[str]], ...]:
    """Return the rules of a file, in their order. Raises :class:`TableError`."""
    path = FOLDER / f"{name}.json"
    try:
        rows = json.loads(path.read_bytes())["rules"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TableError(f"{path.name} cannot be read: {error}") from None
    return tuple(_read(path.name, number, row) for number, row in enumerate(rows, 1))


def _read(file: str, number: int, row: Any) -> tuple[RankRule, re.Pattern[str]]:
    try:
        rule = RankRule(**checked(row, RankRule))
        if rule.means not in get_args(Means):
            raise ValueError(f"means is {rule.means}, not one of {', '.join(get_args(Means))}")
        flags = re.IGNORECASE if file == "exceptions.json" else 0
        return rule, re.compile(rule.pattern, flags)
    except (TypeError, ValueError, re.error) as error:
        raise TableError(f"{file}: rule {number}: {error}") from None


@cache
def needles() -> tuple[str, ...]:
    """Return the words of which each line that a rule may fit holds one."""
    return tuple(dict.fromkeys(one for rule, _ in rules("lines") for one in rule.needles))


def of_line(text: str) -> tuple[RankRule, dict[str, str]] | None:
    """Return the rule that fits a line, with the named parts of its pattern."""
    for rule, pattern in rules("lines"):
        if any(needle in text for needle in rule.needles):
            match = pattern.search(text)
            if match is not None:
                return rule, fields(match)
    return None


def fields(match: re.Match[str]) -> dict[str, str]:
    """Return the named parts that matched; ``pid2`` counts as ``pid``."""
    return {
        name.rstrip("23"): value for name, value in match.groupdict().items() if value is not None
    }


def classify(failure: Failure) -> None:
    """Decide what an exception means, and which one of its chain decides it.

    The first exception decides, because the later ones were raised while it was handled. If no rule
    knows it, a later one with a known cause decides. If programs usually catch it, any later one
    does.
    """
    ruled = [_of_exception(text) for text in failure.chain]
    first = 0
    last = len(ruled) - 1
    while first < last:
        rule = ruled[first][0]
        following = [other for other, _ in ruled[first + 1 :]]
        benign = BENIGN.match(failure.chain[first]) and (rule is None or rule.means == "cause")
        known = any(other is not None and other.means == "cause" for other in following)
        if not benign and not (rule is None and known and not _has_effect(following)):
            break
        first += 1
    rule, found = ruled[first]
    failure.first = first
    failure.means = rule.means if rule is not None else "cause"  # type: ignore[assignment]
    failure.cause = rule.cause if rule is not None else "dead.exception"
    failure.kind = rule.id if rule is not None else ""
    failure.fields = found


def _has_effect(rules_found: Iterable[RankRule | None]) -> bool:
    return any(rule is not None and rule.means == "effect" for rule in rules_found)


def of_message(text: str) -> str:
    """Return the cause that a line without a traceback names, or nothing."""
    rule, _ = _of_exception(text)
    return rule.cause if rule is not None and rule.means == "cause" else ""


def _of_exception(text: str) -> tuple[RankRule | None, dict[str, str]]:
    for rule, pattern in rules("exceptions"):
        match = pattern.search(text)
        if match is not None:
            return rule, fields(match)
    return None, {}
