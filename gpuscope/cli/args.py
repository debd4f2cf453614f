"""Parse the values of options that several verbs share, each between two bounds.

They are sizes, seconds, numbers and whole numbers. Each function returns a converter for argparse's
``type``, and all of them report a value outside the bounds in the same words.
"""

from __future__ import annotations

from argparse import Action, ArgumentTypeError
from collections.abc import Callable
from typing import Any, Protocol

from ..text.units import TIB, bytes_text, parse_duration, parse_size, window_text

MAX_SIZE_BYTES = 1024 * TIB


class Taker(Protocol):
    """A parser, or a group of its options."""

    def add_argument(self, *names: str, **what: Any) -> Action: ...


def option(
    where: Taker, names: str, text: str, parse: Callable[[str], Any] | None = None, **what: Any
) -> Action:
    """Add an option that takes a value: ``-o --output FILE`` are its names and the value's."""
    *flags, value = names.split()
    return where.add_argument(*flags, metavar=value, help=text, type=parse, **what)


def flag(where: Taker, names: str, text: str) -> Action:
    """Add an option that is given or not."""
    return where.add_argument(*names.split(), action="store_true", help=text)


def add_theme(where: Taker) -> None:
    """Add ``--theme``, which verbs with a screen share."""
    from ..config import THEMES

    where.add_argument(
        "--theme",
        choices=THEMES,
        metavar="NAME",
        help=f"colours, only for this run: {', '.join(THEMES[:-1])} or {THEMES[-1]}",
    )


def size_of_at_least(least: int) -> Callable[[str], int]:
    """Return a parser for bytes such as ``24GiB``, ``least`` of them or more."""

    def parse(text: str) -> int:
        try:
            value = parse_size(text)
        except ValueError:
            value = -1
        if not least <= value < MAX_SIZE_BYTES:
            raise ArgumentTypeError(
                f"must be a size such as 24GiB or 500MiB, at least {bytes_text(least)}"
            )
        return value

    return parse


def number_between(least: float, most: float, what: str = "a number") -> Callable[[str], float]:
    """Return a parser for numbers from ``least`` to ``most``.

    ``what`` names the value in the error message.
    """

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not least <= value <= most:
            raise ArgumentTypeError(f"must be {what} from {least:g} to {_figure(most)}")
        return value

    return parse


def _figure(value: float) -> str:
    """Return a bound as people write it: ``0.1``, ``31,536,000``."""
    return f"{value:,.0f}" if value == round(value) else f"{value:g}"


def seconds_between(least: float, most: float) -> Callable[[str], float]:
    """Return a parser for seconds from ``least`` to ``most``."""
    return number_between(least, most, "a number of seconds")


def duration_between(least: float, most: float) -> Callable[[str], float]:
    """Return a parser for durations such as ``90s``, ``10m`` or ``2h``, in seconds."""

    def parse(text: str) -> float:
        try:
            value = parse_duration(text)
        except ValueError:
            value = -1.0
        if not least <= value <= most:
            between = f"from {window_text(least)} to {window_text(most)}"
            raise ArgumentTypeError(f"must be a time such as 90s, 10m or 2h, {between}")
        return value

    return parse


def share_between(least: float, most: float) -> Callable[[str], float]:
    """Return a parser for shares such as ``1%`` or ``0.01``; both bounds are shares."""

    def parse(text: str) -> float:
        plain = text.strip()
        try:
            value = float(plain[:-1]) / 100 if plain.endswith("%") else float(plain)
        except ValueError:
            value = float("nan")
        if not least <= value <= most:
            raise ArgumentTypeError(f"must be a share such as 1%, from {least:.0%} to {most:.0%}")
        return value

    return parse


def whole_between(least: int, most: int) -> Callable[[str], int]:
    """Return a parser for whole numbers from ``least`` to ``most``, of plain digits."""

    def parse(text: str) -> int:
        digits = text.isascii() and text.isdigit() and len(text) <= 15
        if not digits or not least <= int(text) <= most:
            raise ArgumentTypeError(f"must be a whole number from {least} to {most}")
        return int(text)

    return parse


sample_rate = number_between(0.1, 10.0)
"""Samples per second, for the verbs that record or serve them."""
driver_timeout = seconds_between(0.1, 600.0)
"""Seconds that a verb which looks once waits for a driver."""
