"""Read what an hour of a machine costs: one price, or a table of prices by GPU."""

from __future__ import annotations

from pathlib import Path

from ...errors import UsageError
from ...toml import TOMLDecodeError, loads
from ...wire.clean import clean

MOST = 1e6
"""A price that is higher is a mistake."""
CPU = "cpu"
"""The name in a table that stands for a machine without a GPU."""

Price = float | dict[str, float]
"""An hour's price of this machine, or prices by a part of a GPU's name, in lower case."""


def price_of(text: str) -> Price:
    """Read a price, or a TOML file whose lines are ``h200 = 3.5``.

    Raises :class:`UsageError` with what is wrong.
    """
    try:
        return _checked(float(text), "--price")
    except ValueError:
        pass
    shown = clean(text, 200)
    if not Path(text).is_file():
        raise UsageError(f"--price {shown} is neither a number nor a file.")
    try:
        rows = loads(Path(text).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, TOMLDecodeError) as error:
        raise UsageError(f"--price {shown} cannot be read: {clean(str(error), 200)}") from None
    table: dict[str, float] = {}
    for name, value in rows.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UsageError(f"{shown}: {clean(name, 80)} is no price, as in: h200 = 3.5")
        table[name.lower()] = _checked(float(value), f"{shown}: {clean(name, 80)}")
    return table


def an_hour_of(price: Price, gpu: str | None) -> float:
    """Return the price of an hour with a GPU of this name, None for a machine without one.

    Of several rows that are a part of the name the longest counts: ``a100 80gb`` before ``a100``.
    """
    if not isinstance(price, dict):
        return price
    device = gpu.lower() if gpu else CPU
    fitting = [name for name in price if name in device]
    if not fitting:
        raise UsageError(
            f"The table of --price has none of {clean(device, 80)}.",
            f"It has {', '.join(clean(name, 40) for name in price) or 'no row'}.",
            f'add a line to it: "{clean(device, 80)}" = 3.5',
        )
    return price[max(fitting, key=len)]


def _checked(value: float, what: str) -> float:
    if not 0 <= value <= MOST:
        raise UsageError(f"{what}: a price is a number from 0 to {MOST:,.0f}")
    return value
