"""Add checkpointing to a model that has no switch for it.

Its repeated blocks are wrapped, as the model's author would do it.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint

from ..request import CannotPredict


def repeated(model: nn.Module) -> list[nn.Module]:
    """Return a model's layers.

    They are the modules of one kind in its containers that hold most of the parameters together.
    """
    kinds: dict[type, list[nn.Module]] = {}
    for module in model.modules():
        if isinstance(module, (nn.ModuleList, nn.Sequential)):
            for child in module.children():
                if type(child) not in (nn.Sequential, nn.ModuleList) and any(
                    True for _ in child.children()
                ):
                    kinds.setdefault(type(child), []).append(child)
    rows = [row for row in kinds.values() if len(row) > 1]
    best = max(rows, key=_numbers, default=[])
    inner = {id(part) for block in best for part in block.modules() if part is not block}
    return [block for block in best if id(block) not in inner]


def _numbers(row: list[nn.Module]) -> int:
    return sum(parameter.numel() for block in row for parameter in block.parameters())


def wrap(model: nn.Module, every: int) -> None:
    """Recompute the blocks in the backward pass: all of them (1), or all but one in ``every``."""
    blocks = repeated(model)
    if not blocks:
        raise CannotPredict(
            "The model cannot be checkpointed from outside.",
            "It has no list of similar blocks in a ModuleList or Sequential.",
            "give the factory a keyword: checkpoint: bool",
            "not_applicable",
        )
    for number, block in enumerate(blocks):
        if every == 1 or number % every:
            block.forward = _again(block.forward)


def _again(forward: Any) -> Any:
    def recomputed(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)

    return recomputed
