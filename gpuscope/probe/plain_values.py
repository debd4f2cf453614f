"""Reads values of other people's objects without running any code of theirs.

Attributes are read from an object's ``__dict__``, so no property is evaluated. A tensor's value is
read only if it is in the host's memory, because reading it from a device would wait until the
device has computed it.
"""

from __future__ import annotations

import math
import sys
from typing import Any, Dict, List, Optional, Union

from ..wire.frames import NOT_SUPPORTED, Unknown
from ..wire.loss_text import NOT_TRAINING, not_finite_text

Value = Union[int, float, Unknown]
ON_DEVICE = "is a tensor on a device: reading it would make the training wait"


def attributes(thing: Any) -> Dict[str, Any]:
    """Return what the object keeps in its own dictionary; empty if it has none."""
    try:
        found = object.__getattribute__(thing, "__dict__")
    except AttributeError:
        return {}
    return found if type(found) is dict else {}


def attribute(thing: Any, *names: str) -> Any:
    """Follow ``names`` from attribute to attribute; None if one is missing."""
    for name in names:
        thing = attributes(thing).get(name)
    return thing


def class_names(thing: Any) -> List[str]:
    """Return ``package.Class`` of a thing's class and of its base classes.

    The package is given without its inner modules.
    """
    names = []
    for cls in type.__dict__["__mro__"].__get__(type(thing)):
        module = cls.__dict__.get("__module__", "")
        if isinstance(module, str):
            names.append(f"{module.partition('.')[0]}.{cls.__name__}")
    return names


def number(value: Any) -> Union[int, float, None]:
    """Return a Python or numpy number, including NaN and infinity; None for anything else."""
    kind = type(value)
    if kind is int or kind is float:
        return value  # type: ignore[no-any-return]
    if kind.__module__ == "numpy" and kind.__name__.startswith(("float", "int", "uint")):
        return float(value)
    return None


def count(value: Any) -> Optional[int]:
    """Return a whole number that is not negative, else None."""
    found = number(value)
    if found is None or not math.isfinite(found) or found < 0 or found != int(found):
        return None
    return int(found)


def scalar(value: Any) -> Union[int, float, str, None]:
    """Return the number that ``value`` is or, as a tensor of one element, holds.

    A text says why it cannot be read.
    """
    found = number(value)
    if found is not None:
        return found
    torch: Any = sys.modules.get("torch")
    if torch is None or type(value) not in (torch.Tensor, torch.nn.Parameter):
        return None
    if value.numel() != 1 or value.is_complex():
        return None
    if value.device.type != "cpu":
        return ON_DEVICE
    return float(value.detach().item())


def finite(value: Union[int, float], source: str) -> Value:
    """Return the number, or, if it is not finite, the reason that says so."""
    if math.isfinite(value):
        return value
    return Unknown(NOT_SUPPORTED, not_finite_text(f"{source} shows loss", value))


def training_loss(values: Dict[Any, Any], source: str) -> Value:
    """Return the training's loss among named values.

    It is the value of that name, or the only value that is called a loss. If several are, none of
    them is the loss; but one that is not a number is reported in any case.
    """
    losses = {
        name: values[name]
        for name in list(values)[:256]
        if isinstance(name, str) and _is_loss(name)
    }
    for name in [
        name for name in losses if name.endswith("_epoch") and f"{name[:-6]}_step" in losses
    ]:
        del losses[name]
    for name in _NAMES:
        if name in losses:
            return _loss(losses[name], name, source)
    read = {name: _loss(value, name, source) for name, value in losses.items()}
    if len(read) == 1:
        return read.popitem()[1]
    for value in read.values():
        if isinstance(value, Unknown) and " shows loss " in value.text:
            return value
    if read:
        return Unknown(
            NOT_SUPPORTED, f"{source} has {' and '.join(sorted(read)[:4])}: no single loss"
        )
    return Unknown(NOT_SUPPORTED, f"{source} has no loss yet")


_NAMES = (
    "loss", "train_loss", "train/loss", "training_loss", "loss_step", "train_loss_step",
    "train/loss_step", "loss/train/total", "total_loss",
)  # fmt: skip


def _is_loss(name: str) -> bool:
    words = name.lower().replace("/", "_").replace(".", "_").replace(" ", "_").split("_")
    return any(word.endswith("loss") for word in words) and not any(
        word in NOT_TRAINING for word in words
    )


def _loss(value: Any, name: str, source: str) -> Value:
    found = scalar(value)
    if isinstance(found, str):
        return Unknown(NOT_SUPPORTED, f"{name} of {source} {found}")
    if found is None:
        return Unknown(NOT_SUPPORTED, f"{name} of {source} is not a number")
    return finite(found, source)
