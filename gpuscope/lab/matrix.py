"""Make a sweep's configurations from ``--vary`` words or a TOML file.

Every combination is there once, in a fixed order. Only the standard library is needed.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..text.units import bytes_text
from ..wire.files import open_regular
from .config import ConfigError, LabConfig
from .toggles import BY_NAME, TOGGLES, Value, short_repr

MAX_CELLS = 1000
MAX_FILE_BYTES = 64 * 1024
MAX_REPEATS = 1000
UNSET = "unset"
"""The word for leaving a toggle out, if that has a meaning (``foreach=on,off,unset``)."""

Vary = dict[str, list[Value]]


@dataclass(frozen=True, slots=True)
class Matrix:
    """The configurations in their order; ``repeats`` is None where the file does not say."""

    cells: list[LabConfig]
    repeats: int | None = None


def vary_of(words: Sequence[str]) -> Vary:
    """Parse words such as ``amp=off,bf16`` into toggles and their values.

    Raises :class:`ConfigError`.
    """
    found: Vary = {}
    for word in words:
        name, equals, values = word.partition("=")
        if not equals:
            raise ConfigError(
                f"--vary {short_repr(word)} has no values. Write it as --vary amp=off,bf16."
            )
        name, parsed = _values(name, values.split(","))
        found[name] = [
            *found.get(name, []),
            *(value for value in parsed if value not in found.get(name, [])),
        ]
    return found


def _values(name: str, values: Sequence[object]) -> tuple[str, list[Value]]:
    """Return the toggle's name and its parsed values, each once."""
    plain = name.strip().removeprefix("--").replace("-", "_")
    toggle = BY_NAME.get(plain)
    if toggle is None:
        raise ConfigError(
            f"There is no lab setting {short_repr(name)} to vary. Settings: "
            f"{', '.join(t.name for t in TOGGLES)}."
        )
    parsed: list[Value] = []
    for value in values:
        word = value.strip() if isinstance(value, str) else value
        if word == UNSET and not toggle.unset:
            raise ConfigError(f"{toggle.flag} cannot be {UNSET}: it takes {toggle.takes}.")
        item = toggle.parse(None if word == UNSET else word)
        if item not in parsed:
            parsed.append(item)
    if not parsed:
        raise ConfigError(
            f"--vary {short_repr(name)} has no values. {toggle.flag} takes {toggle.takes}."
        )
    return plain, parsed


def combinations(base: LabConfig, vary: Mapping[str, Sequence[Value]]) -> list[LabConfig]:
    """Return every combination. Raises :class:`ConfigError` for too many.

    The toggle named last changes fastest.
    """
    count = 1
    for values in vary.values():
        count *= len(values)
    _not_too_many(count)
    mapping = base.to_mapping()
    rows = itertools.product(*vary.values())
    return [
        LabConfig.from_mapping({**mapping, **dict(zip(vary, row, strict=True))}) for row in rows
    ]


def read_file(path: Path, base: LabConfig) -> Matrix:
    """Return the matrix of a TOML file. Raises :class:`ConfigError`.

    ``[base]`` sets toggles of all, ``[vary]`` lists values to combine, each ``[[cell]]`` is one
    configuration by itself; ``repeats = N``. What the command line sets is ``base``.
    """
    from .. import toml

    try:
        with open_regular(path) as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            f"The matrix {short_repr(str(path))} cannot be read: {error.strerror}."
        ) from None
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(
            f"The matrix {short_repr(str(path))} is larger than {bytes_text(MAX_FILE_BYTES)}."
        )
    try:
        table = toml.loads(data.decode("utf-8"))
    except (toml.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"The matrix {short_repr(str(path))} is not TOML: {error}.") from None
    return _matrix(table, base)


_KEYS = ("base", "vary", "cell", "repeats")


def _matrix(table: Mapping[str, Any], base: LabConfig) -> Matrix:
    unknown = sorted(set(table) - set(_KEYS))
    if unknown:
        raise ConfigError(
            f"A matrix has no key {short_repr(unknown[0])}. "
            "It has: [base], [vary], [[cell]], repeats."
        )
    repeats = table.get("repeats")
    if repeats is not None and (isinstance(repeats, bool) or not isinstance(repeats, int)):
        raise ConfigError(f"repeats cannot be {short_repr(repeats)}. It takes a whole number.")
    common = _toggles(table.get("base", {}), "[base]")
    start = LabConfig.from_mapping({**base.to_mapping(), **common})
    named = table.get("vary", {})
    if not isinstance(named, dict):
        raise ConfigError("[vary] must be a table of settings and lists of values.")
    vary: Vary = {}
    for name, values in named.items():
        plain, parsed = _values(name, values if isinstance(values, list) else [values])
        vary[plain] = parsed
    cells = combinations(start, vary) if vary else []
    alone = table.get("cell", [])
    if not isinstance(alone, list):
        raise ConfigError("Cells are written as [[cell]], each with its settings.")
    _not_too_many(len(cells) + len(alone))
    cells += [
        LabConfig.from_mapping({**start.to_mapping(), **_toggles(cell, "[[cell]]")})
        for cell in alone
    ]
    return Matrix(once(cells), repeats)


def _toggles(table: object, where: str) -> dict[str, object]:
    if not isinstance(table, dict):
        raise ConfigError(f"{where} must be a table of settings.")
    return {
        str(name).replace("-", "_"): None if value == UNSET else value
        for name, value in table.items()
    }


def once(cells: Sequence[LabConfig]) -> list[LabConfig]:
    """Return each configuration once, where it comes first."""
    return list(dict.fromkeys(cells))


def _not_too_many(count: int) -> None:
    if count > MAX_CELLS:
        raise ConfigError(
            f"{count:,} combinations are more than a sweep allows ({MAX_CELLS:,}). Vary fewer "
            "toggles."
        )


def varying(cells: Sequence[LabConfig]) -> list[str]:
    """Return the toggles in which the cells are not all alike, in their order."""
    return [name for name in BY_NAME if len({getattr(cell, name) for cell in cells}) > 1]


def label(cell: LabConfig, names: Sequence[str]) -> str:
    """Return what distinguishes this cell from the others: ``amp=bf16 batch=16``."""
    words = {name: getattr(cell, name) for name in names}
    texts = {
        name: UNSET if value is None else BY_NAME[name].text(value) for name, value in words.items()
    }
    return " ".join(f"{name}={text}" for name, text in texts.items()) or "(defaults)"


def interleaved(cells: int, repeats: int) -> list[tuple[int, int]]:
    """Return (repeat, cell) in the order of running: A B C, C B A, A B C and so on.

    So a slow drift (a card that gets warm) affects all cells alike, and the same repeat of two
    cells is run as close together as possible.
    """
    order = range(cells)
    return [
        (repeat, cell)
        for repeat in range(repeats)
        for cell in (reversed(order) if repeat % 2 else order)
    ]
