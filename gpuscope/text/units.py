"""Format bytes, rates, durations, ages and shares as text, and parse sizes from text.

The rules hold on every screen and in every report:

- Bytes have three significant digits and one unit, in powers of 1024: ``486 MiB``, ``2.68 GiB``.
- A column that names its unit in the heading leaves it out of the cells and has two decimals at
  most: ``0.04``, ``2.68``, ``140``.
- A time has one spelling in sentences and one in the cells of a table. Sentences, titles and the
  lines of a panel spell the units as the SI does: ``8 s``, ``2 min 05 s``, ``3 h 20 min``,
  ``5 d 2 h``. A cell has room for eight characters: ``8 s``, ``2m 05s``, ``3h 20m``, ``5d 2h``.
  The functions for cells begin with ``brief_``.
- A measured duration has three significant digits below a minute (``52.6 ms``); an age is in whole
  seconds. Above a minute both have two units.
- A narrow list shows ages in one unit and four cells: ``8s``, ``2m``, ``3h``, ``5d``.
- A value that is not a finite number is shown as a dash.
"""

from __future__ import annotations

import math
import re
from typing import Optional

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30
TIB = 1 << 40

DASH = "–"

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_SIZE = re.compile(r"\s*(\d{1,15}(?:\.\d{1,6})?)\s*([kmgtp]?)(?:i?b)?\s*")
_SHIFTS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40, "p": 50}
_MAX_AGE_DAYS = 999_999


def bytes_text(count: Optional[float], unknown: str = DASH) -> str:
    """Return bytes with the unit that suits them: ``2.68 GiB``, ``512 B``, ``0 B``.

    They have three significant digits. Only 1000 to 1023 of a unit have four: ``1010 MiB`` is
    easier to read than ``0.986 GiB``. ``unknown`` is returned for None and for a number that is not
    finite.
    """
    if count is None or not math.isfinite(count):
        return unknown
    sign, amount = ("-" if count < 0 else ""), abs(float(count))
    if round(amount) < KIB:
        return f"{'-' if count < 0 and round(amount) else ''}{amount:.0f} B"
    unit = 0
    # From 1023.5 on the number would be rounded up to 1024 of this unit.
    while amount >= 1023.5 and unit < len(_UNITS) - 1:
        amount /= 1024
        unit += 1
    return f"{sign}{three_digits(amount)} {_UNITS[unit]}"


def signed_bytes_text(count: float) -> str:
    """Return a difference in bytes with its sign: ``+2.68 GiB``, ``-486 MiB``, ``0 B``."""
    return ("+" if count > 0 else "") + bytes_text(count)


def rate_text(bytes_per_second: float) -> str:
    """Return a rate in bytes: ``1.20 GiB/s``."""
    text = bytes_text(bytes_per_second)
    return text if text == DASH else f"{text}/s"


def amount_text(count: float, unit: int = GIB) -> str:
    """Return bytes as a number whose unit the reader sees elsewhere: ``0.04``, ``69.7``, ``1024``.

    It has three significant digits, but two decimals at most, so that a column of these stays
    narrow. An amount above zero is never shown as 0.
    """
    value = count / unit
    if not math.isfinite(value):
        return DASH
    if 0 < abs(value) < 0.005:
        return "<0.01" if value > 0 else ">-0.01"
    return three_digits(value) if value else "0"


def sizes_text(*sizes: Optional[float]) -> str:
    """Return sizes in one unit, with a slash between them: ``3.78/7.40 GiB``, ``65.1/68.0 MiB``.

    The unit is MiB where GiB would leave only one digit of all of them.
    """
    small = 0 < max((size or 0.0 for size in sizes), default=0.0) < GIB / 10
    unit, name = (MIB, "MiB") if small else (GIB, "GiB")
    return f"{amounts_text(*sizes, unit=unit)} {name}"


def amounts_text(*sizes: Optional[float], unit: int = GIB) -> str:
    """Return sizes whose unit the reader sees elsewhere, with a slash between them."""
    return "/".join(amount_text(size, unit) if size is not None else DASH for size in sizes)


def sides_text(more: float, less: float) -> str:
    """Return a two-sided error of a figure in one unit, such as ``+9.10 -0.40 GiB``.

    The sides are how many bytes more and how many bytes less the figure may be.
    """
    unit, name = (GIB, "GiB") if more >= GIB / 10 else (MIB, "MiB")
    return f"+{amount_text(more, unit)} -{amount_text(less, unit)} {name}"


def three_digits(value: float) -> str:
    """Return a number with three significant digits.

    A number below 1 has two decimals; one above 999 keeps all its digits.
    """
    size = abs(value)
    return f"{value:.0f}" if size >= 99.95 else f"{value:.1f}" if size >= 9.995 else f"{value:.2f}"


def duration_text(seconds: float) -> str:
    """Return a measured duration: ``312 µs``, ``52.6 ms``, ``2 min 05 s``, ``3 h 20 min``."""
    if not math.isfinite(seconds):
        return DASH
    size = abs(seconds)
    if size >= 59.95:
        return _two_units(seconds)
    if size >= 0.9995:
        return f"{three_digits(seconds)} s"
    if size >= 0.9995e-3:
        return f"{three_digits(seconds * 1e3)} ms"
    return f"{three_digits(seconds * 1e6)} µs" if size else "0 s"


def brief_duration_text(seconds: float) -> str:
    """Return a measured duration for a cell: ``52.6 ms``, ``2m 05s``, ``3h 20m``."""
    return _in_a_cell(duration_text(seconds))


def age_text(seconds: float) -> str:
    """Return how long ago something was: ``now``, ``8 s``, ``2 min 05 s``, ``5 d 2 h``.

    A moment in the future, which clocks that differ can produce, is ``now``.
    """
    if not math.isfinite(seconds):
        return DASH
    whole = max(int(seconds), 0)
    return _two_units(whole) if whole >= 60 else f"{whole} s" if whole else "now"


def ago_text(seconds: float) -> str:
    """Return how long ago something was, as ``8 s ago``, or ``just now``."""
    age = age_text(seconds)
    return "just now" if age == "now" else f"{age} ago"


def brief_age_text(seconds: float) -> str:
    """Return how long ago something was, for a cell: ``now``, ``8 s``, ``2m 05s``, ``5d 2h``."""
    return _in_a_cell(age_text(seconds))


def window_text(seconds: float) -> str:
    """Return the length of a window or a limit: ``30 s``, ``5 min``, ``12 h``.

    One that is not round has two units, as any duration has: ``4 min 30 s``.
    """
    seconds = round(seconds) if seconds >= 60 else seconds
    if seconds >= 60:
        unit, name = (3600, "h") if seconds >= 3600 else (60, "min")
        return age_text(seconds) if seconds % unit else f"{seconds / unit:g} {name}"
    return f"{seconds:g} s" if seconds >= 1 and 2 * seconds % 1 == 0 else duration_text(seconds)


def _two_units(seconds: float) -> str:
    sign, whole = ("-" if seconds < 0 else ""), round(abs(seconds))
    if whole < 3600:
        return f"{sign}{whole // 60} min {whole % 60:02d} s"
    if whole < 86400:
        return f"{sign}{whole // 3600} h {whole % 3600 // 60:02d} min"
    days = min(whole // 86400, _MAX_AGE_DAYS)
    return f"{sign}{days} d" + (f" {whole % 86400 // 3600} h" if days < 100 else "")


def _in_a_cell(text: str) -> str:
    """Return ``2m 05s`` for ``2 min 05 s``; a time below a minute stays as it is."""
    return re.sub(r" (d|h|m)(?:in)?\b|(?<= \d\d) (s)", r"\1\2", text)


def left_text(seconds: float) -> str:
    """Return a time left, no finer than such an estimate is: ``12 h``, ``5 h 10 min``, ``4 min``.

    It is rounded by a twelfth at most.
    """
    for least, size in ((36000, 3600), (3600, 600), (600, 60), (60, 10)):
        if math.isfinite(seconds) and seconds >= least:
            seconds = round(seconds / size) * size
            break
    return age_text(seconds).removesuffix(" 00 s").removesuffix(" 00 min")


def brief_left_text(seconds: float) -> str:
    """Return a time left for a cell: ``12h``, ``5h 10m``, ``4m``, ``50 s``."""
    return _in_a_cell(left_text(seconds))


def short_age_text(seconds: float) -> str:
    """Return how long ago something was in one unit: ``8s``, ``2m``, ``3h``, ``5d``.

    It takes four cells up to 999 days.
    """
    if not math.isfinite(seconds):
        return DASH
    whole = max(int(seconds), 0)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m"), (1, "s")):
        if whole >= size:
            return f"{min(whole // size, _MAX_AGE_DAYS)}{unit}"
    return "now"


def pace_text(per_second: float) -> str:
    """Return how many samples a second a training takes, without the unit: ``0.42``, ``1,204``."""
    return f"{per_second:,.0f}" if abs(per_second) >= 99.95 else f"{per_second:.3g}"


def count_text(count: int, thing: str) -> str:
    """Return how many things there are: ``1 run``, ``1,204 runs``, ``2 processes``."""
    plural = thing + ("es" if thing.endswith("s") else "s")
    return f"{count:,} {thing if count == 1 else plural}"


ROUND_SECONDS = (
    *(0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 20, 30),
    *(60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400),
)
"""The steps between the times on an axis; longer ones are whole days."""


def round_seconds(least: float) -> float:
    """Return the shortest round time that is not shorter than ``least``."""
    days = 86400.0 * math.ceil(least / 86400)
    return next((one for one in ROUND_SECONDS if one >= 0.999 * least), days)


def error_text(percent: float) -> str:
    """Return the size of an error in percent with one decimal; a small one is not called zero."""
    return f"{percent:.1f} %" if percent >= 0.05 else "<0.1 %"


def percent_text(share: float, whole: bool = False) -> str:
    """Return a share of 1 in percent: ``42 %``, small ones as ``1.4 %``.

    Only a share of exactly 1 is shown as 100 %, and only exactly 0 as 0 %. With ``whole`` there are
    no decimals, for columns of five cells: ``<1 %``, ``42 %``, ``99 %``, ``100 %``.
    """
    if not math.isfinite(share):
        return DASH
    value = 100 * share
    if whole:
        return "<1 %" if 0 < value < 0.5 else f"{99 if 99 < value < 100 else value:.0f} %"
    if 0 < value < 0.05:
        return "<0.1 %"
    if 99 < value < 100:
        return f"{min(value, 99.9):.1f} %"
    return f"{value:.1f} %" if 0 < value < 2 else f"{value:.0f} %"


def parse_size(text: str) -> int:
    """Return the bytes that a person means by ``80GiB``, ``80 GB`` or ``500m``.

    Every unit is read as a power of 1024 however it is spelled, because vendors call a card of 80
    GiB "80 GB" and because gpuscope prints powers of 1024. A bare number is in bytes. Raises
    ValueError for any other text.
    """
    found = _SIZE.fullmatch(text.lower()) if text.isascii() else None
    if found is None:
        raise ValueError(f"not a size: {text!r}")
    return int(float(found.group(1)) * (1 << _SHIFTS[found.group(2)]))


_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*")


def parse_duration(text: str) -> float:
    """Return the seconds of ``90``, ``90s``, ``10m``, ``2h`` or ``1.5d``.

    Raises ValueError for anything else.
    """
    found = _DURATION.fullmatch(text.lower())
    if found is None or found[2] not in _SECONDS:
        raise ValueError(f"not a duration: {text[:40]!r}")
    return float(found[1]) * _SECONDS[found[2]]
