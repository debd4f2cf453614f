"""Every claim with its figures, thresholds and configurations: read from ``claims.toml`` beside this file, checked."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from .. import toml
from . import claim_figures
from .claims import Claim, Figure
from .config import ConfigError

FILE = Path(__file__).with_name("claims.toml")
_KINDS: dict[str, Any] = {"str": str, "bool": bool, "int": int, "float | None": (int, float), "tuple[str, ...]": list}
"""What TOML gives for each type of field; for all others a table."""


class ClaimTableError(Exception):
    """The table is not as it should be. The text says in which file, row and key."""


def load(file: Path = FILE) -> tuple[Claim, ...]:
    """All claims in the order of the file. Raises :class:`ClaimTableError`."""
    try:
        rows = toml.loads(file.read_text(encoding="utf-8"))["claim"]
    except (OSError, UnicodeDecodeError, toml.TOMLDecodeError, KeyError) as error:
        raise ClaimTableError(f"{file.name} cannot be read: {error}") from None
    claims: dict[str, Claim] = {}
    for number, row in enumerate(rows, 1):
        name = row.get("id", f"row {number}") if isinstance(row, dict) else f"row {number}"
        try:
            claim = _claim(row)
        except (TypeError, ValueError) as error:
            raise ClaimTableError(f"{file.name}: {name}: {error}") from None
        if claim.id in claims:
            raise ClaimTableError(f"{file.name}: there are two of {claim.id}")
        claims[claim.id] = claim
    return tuple(claims.values())


def _claim(row: Any) -> Claim:
    figures = row.pop("figure", None) if isinstance(row, dict) else None
    if not isinstance(figures, list) or not figures:
        raise ValueError("figure: there is none")
    claim = Claim(**_checked(row, Claim), figures=tuple(Figure(**_checked(one, Figure)) for one in figures))
    if bool(claim.cells) == bool(claim.loop):
        raise ValueError("cells, loop: it needs one of them")
    for device in ("cpu", "cuda"):
        if not claim.configuration(device) and not (device == "cpu" and claim.cannot_cpu) and not claim.only:
            raise ValueError(f"{device}: what is measured there is not said")
    for figure in claim.figures:
        wrong = claim_figures.problem(figure, claim) if claim.cells else ""
        if wrong:
            raise ValueError(f"figure {figure.key}: over, under: {wrong}")
    for device in ("cpu", "cuda"):
        try:
            claim.configs(device, 8)
        except ConfigError as error:
            raise ValueError(f"cells: {error}") from None
    return claim


def _checked(row: Any, kind: type) -> dict[str, Any]:
    """The values of a TOML table. Raises :class:`ValueError` for a key that is no field and a value of another type."""
    if not isinstance(row, dict):
        raise ValueError(f"{row!r} is no table")
    known = {field.name: str(field.type) for field in fields(kind)}
    for key, value in row.items():
        if key not in known:
            raise ValueError(f"no such key: {key}. There are: {', '.join(known)}")
        wanted = _KINDS.get(known[key], str if known[key].startswith("Literal") else dict)
        if (
            not isinstance(value, wanted)
            or (isinstance(value, bool) and wanted is not bool)
            or (value == "" and key != "unit")
        ):
            raise ValueError(f"{key} cannot be {value!r}")
    return {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}


CLAIMS = load()
BY_ID = {claim.id: claim for claim in CLAIMS}
