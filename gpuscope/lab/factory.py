"""Train a user's own model, which ``MODULE:FACTORY`` makes.

``FACTORY(batch=…, device=…)`` returns (model, optimizer, forward). ``forward()`` runs one
micro-batch and returns its loss, a scalar. The Lab adds autocast, scaling, accumulation, backward
and step. If the factory has the optional keyword ``checkpoint``, that toggle can be used. Anything
wrong with the factory raises :class:`BadFactory`, which says what, why and what to do; exceptions
in the user's code are named with their line.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import UserError
from ..wire.clean import clean
from ..wire.code_owner import last_own_line

BATCH = 8
"""Samples in a micro-batch where the user gives none."""
TEXT_CHARS = 300
"""Of what an exception says, as much is repeated."""
_HOW = (
    "def FACTORY(batch, device): … return model, optimizer, forward    # forward() runs a "
    "micro-batch, returns its loss"
)


class BadFactory(Exception):
    """A user's factory cannot be used. ``args`` are what happened, why, and what to do next."""


@dataclass(frozen=True)
class Made:
    """The checked result of a factory."""

    model: nn.Module
    optimizer: Any
    forward: Callable[[], Tensor]


def find(name: str) -> Callable[..., Any]:
    """Return the factory that ``MODULE:FACTORY`` names. Raises :class:`BadFactory`.

    It is looked up in the current folder as well.
    """
    module_name, _, attribute = name.partition(":")
    with _current_folder():
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if not lacks_its_module(name, error):
                raise _failed(name, "importing its module", error) from None
            raise BadFactory(
                f"There is no module {module_name}.",
                f"it is neither in {os.getcwd()} nor installed for {sys.executable}.",
                f"cd to the folder with {module_name.split('.')[0]}.py, or export "
                "PYTHONPATH=/that/folder",
            ) from None
        except Exception as error:
            raise _failed(name, "importing its module", error) from None
        except SystemExit as error:
            raise _failed(name, "importing its module", error) from None
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            functions = [key for key, value in vars(module).items() if inspect.isfunction(value)][
                :8
            ]
            has = (
                f"it has the functions {', '.join(functions)}."
                if functions
                else "it has no functions."
            )
            raise BadFactory(
                f"The module {module_name} has no {attribute}.", has, f"in {module_name}: {_HOW}"
            )
        found = getattr(found, part)
    if not callable(found):
        raise BadFactory(
            f"{name} cannot be called.", f"it is of type {type(found).__name__}.", _HOW
        )
    return found  # type: ignore[no-any-return]


def lacks_its_module(name: str, error: BaseException) -> bool:
    """Return whether it is the module of a factory that was not found, not one that it imports."""
    if not isinstance(error, ModuleNotFoundError) or error.name is None:
        return False
    return f"{name.partition(':')[0]}.".startswith(f"{error.name}.")


def takes_checkpoint(factory: Callable[..., Any]) -> bool:
    """Say whether the factory has the keyword ``checkpoint``."""
    try:
        parameters = inspect.signature(factory).parameters
    except (TypeError, ValueError):
        return False
    named = parameters.get("checkpoint")
    return named is not None and named.kind is not inspect.Parameter.POSITIONAL_ONLY


def make(
    name: str, factory: Callable[..., Any], batch: int, device: torch.device, checkpoint: bool
) -> Made:
    """Call the factory and check what it returns.

    Raises :class:`BadFactory`, and torch's error if memory runs out.
    """
    options = {"checkpoint": checkpoint} if takes_checkpoint(factory) else {}
    try:
        with _current_folder():
            made = factory(batch=batch, device=device, **options)
    except (torch.cuda.OutOfMemoryError, MemoryError):
        raise
    except (Exception, SystemExit) as error:
        raise _failed(name, f"{name}(batch={batch}, device={device})", error, batch) from None
    if not (isinstance(made, (tuple, list)) and len(made) == 3):
        size = f" of {len(made)}" if isinstance(made, (tuple, list)) else ""
        raise _wrong(
            name, f"it returned {type(made).__name__}{size}, not (model, optimizer, forward)."
        )
    model, optimizer, forward = made
    if not isinstance(model, nn.Module):
        raise _wrong(name, f"the first value must be a torch.nn.Module, not {_type(model)}.")
    if not all(callable(getattr(optimizer, name, None)) for name in ("step", "zero_grad")):
        why = f"the second value must be an optimizer, not {_type(optimizer)}."
        if isinstance(optimizer, (list, tuple, dict)):
            why += (
                " Return one over all parameters; one that has a loss of its own, as in a GAN, "
                "runs inside forward()."
            )
        raise _wrong(name, why)
    if not callable(forward):
        raise _wrong(name, f"the third value is not callable: {_type(forward)}.")
    return Made(model, optimizer, forward)


def checked(name: str, loss: object) -> Tensor:
    """Return what ``forward()`` returned, if it is a loss that can be differentiated.

    Raises :class:`BadFactory` for anything else.
    """
    if not isinstance(loss, Tensor):
        # a prediction has a class of its own for a number that was read from a tensor
        kind = "a float (loss.item()?)" if isinstance(loss, float) else _type(loss)
        raise _wrong(
            name, f"forward() returned {kind}, not the loss as a tensor.", part="forward()"
        )
    if loss.numel() != 1 or not loss.is_floating_point():
        what = f"a tensor of shape {tuple(loss.shape)} and type {loss.dtype}"
        raise _wrong(
            name,
            f"forward() returned {what}, not a scalar loss: use loss.mean().",
            part="forward()",
        )
    if not loss.requires_grad:
        why = (
            "the loss of forward() has no gradient: it was detached, or computed under "
            "torch.no_grad()."
        )
        raise _wrong(name, why, part="forward()")
    return loss.reshape(())


def _failed(name: str, doing: str, error: BaseException, batch: int = BATCH) -> BadFactory:
    """Return the error for an exception in the user's code.

    It names the exception, and the last line of the user's code in its traceback. A factory of
    gpuscope's own says itself what is wrong.
    """
    if isinstance(error, UserError):
        return BadFactory(
            *(clean(part, TEXT_CHARS) for part in (error.what, error.why, error.next))
        )
    text = " ".join(str(error).split())[:TEXT_CHARS]
    line = last_own_line(error)
    if isinstance(error, SyntaxError) and error.filename:
        line = f"{error.filename}:{error.lineno}"
    at = f" at {line}" if line else ""
    why = f"{type(error).__name__}{': ' + text if text else ''}{at}."
    module, _, attribute = name.partition(":")
    command = (
        f'python -c "import {module}; {module}.{attribute}(batch={batch}, '
        f'device={_default_device()!r})"'
    )
    return BadFactory(f"{name} failed: {doing} raised an exception.", why, command)


def _wrong(name: str, why: str, part: str = "what it returned") -> BadFactory:
    return BadFactory(f"{name} cannot be trained: {part} is not valid.", why, _HOW)


def _type(value: object) -> str:
    return f"a {type(value).__name__}"


def _default_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


@contextmanager
def _current_folder() -> Iterator[None]:
    """Look for modules in the current folder first, as Python does for a script there.

    Afterwards the folder comes last, so that later imports of torch do not find a ``random.py`` of
    the user's.
    """
    folder = os.getcwd()
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        try:
            sys.path.remove(folder)
        except ValueError:
            pass
        if folder not in sys.path:
            sys.path.append(folder)
