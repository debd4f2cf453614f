"""Read how a model is fine-tuned: by which adapters, on base weights of which layout.

Only the standard library is needed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..errors import UsageError

LAYOUTS = ("nf4", "nf4-double", "int8")
"""The layouts of base weights: four bits with one or two levels of scales, or eight bits, as
bitsandbytes stores them.
"""
EVERY = "all"
_FORM = "r=16, or with more: r=16,dropout=0.05,targets=q_proj+v_proj"


@dataclass(frozen=True, slots=True)
class Lora:
    """Low-rank adapters of rank ``rank`` next to the layers whose names end with a target.

    ``targets`` is (``all``,) for every linear layer but the output layer.
    """

    rank: int
    dropout: float = 0.0
    targets: tuple[str, ...] = (EVERY,)


def parse_lora(text: str) -> Lora:
    """Read ``r=16,dropout=0.05,targets=q_proj+v_proj``. Raises :class:`UsageError`."""
    values: dict[str, str] = {}
    for part in text.split(","):
        name, equals, value = part.strip().partition("=")
        if not equals or name in values or name not in ("r", "alpha", "dropout", "targets"):
            raise UsageError(f"--lora cannot be {text[:60]!r}. It takes {_FORM}")
        values[name] = value.strip()
    rank, dropout = values.get("r", ""), values.get("dropout", "0")
    if not rank.isdigit() or not 1 <= int(rank) <= 4096:
        raise UsageError(f"--lora needs a rank from 1 to 4,096: {_FORM}")
    if not re.fullmatch(r"0?\.\d+|0", dropout):
        raise UsageError(f"--lora: dropout is a share from 0 to below 1, such as 0.05: {_FORM}")
    targets = tuple(one for one in values.get("targets", EVERY).split("+") if one)
    if not targets or not all(re.fullmatch(r"[\w.]+", one) for one in targets):
        raise UsageError(f"--lora: targets are names of layers with + between them: {_FORM}")
    return Lora(int(rank), float(dropout), targets)
