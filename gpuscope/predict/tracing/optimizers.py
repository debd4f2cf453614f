"""Make optimizers and grad scalers choose as on CUDA.

An optimizer of another kind can take the place of the factory's own.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from ..request import CannotPredict, Request
from .replaced import Replaced

MOMENTUM = 0.9
"""The momentum of SGD if it replaces another optimizer, as in the Lab."""


@contextlib.contextmanager
def as_on_cuda() -> Iterator[None]:
    """Make torch choose for a device as it does on CUDA.

    By default this means lists of tensors (foreach), and that graph capture and grad scaling are
    possible; torch's choices depend on the device's name.
    """
    from torch.optim import optimizer
    from torch.utils import _foreach_utils

    replaced = Replaced()
    change = replaced.change

    def with_cpu(name: str) -> None:
        for owner in (optimizer, _foreach_utils, *_modules()):
            plain = getattr(owner, name, None)
            if plain is not None:
                change(owner, name, lambda *_, plain=plain, **__: [*plain(), "cpu"])

    with_cpu("_get_foreach_kernels_supported_devices")
    with_cpu("_get_capturable_supported_devices")
    for owner in (optimizer, _foreach_utils):
        types = getattr(owner, "_foreach_supported_types", None)
        if types is not None and FakeTensor not in types:
            types.append(FakeTensor)
    for owner in (
        getattr(torch.amp, "grad_scaler", None),
        torch.cuda.amp.common,
        torch.cuda.amp.grad_scaler,
    ):
        change(owner, "amp_definitely_not_available", lambda: False)
    _stepped.clear()
    seen = optimizer.register_optimizer_step_post_hook(lambda stepped, *_: _stepped.add(stepped))
    try:
        yield
    finally:
        seen.remove()
        replaced.restore()


_stepped: weakref.WeakSet[Any] = weakref.WeakSet()
"""Optimizers that have made a step in this training, wherever a program keeps them: inside a
wrapper of its own, in its forward pass, in hooks of the backward pass.
"""


def _modules() -> list[Any]:
    """Return torch's optimizers, each with its own names for the functions that it imports."""
    others = ("torch.optim.optimizer", "torch.optim._multi_tensor")
    return [
        module
        for name, module in list(sys.modules.items())
        if name.startswith("torch.optim.") and name not in others
    ]


def make(kind: str, parameters: Any, rate: float, **options: Any) -> Any:
    """Return a new optimizer of torch by its name in lower case; sgd has momentum."""
    found = {
        name.lower(): value for name, value in vars(torch.optim).items() if inspect.isclass(value)
    }
    chosen: Any = found.get(kind.lower())
    if chosen is None or not issubclass(chosen, torch.optim.Optimizer):
        names = sorted(
            name for name, value in found.items() if issubclass(value, torch.optim.Optimizer)
        )
        raise CannotPredict(
            f"There is no optimizer {kind!r}.",
            f"torch.optim has: {', '.join(names)}.",
            "choose one of these",
        )
    takes = inspect.signature(chosen).parameters
    options = {
        name: value for name, value in options.items() if value is not None and name in takes
    }
    if chosen is torch.optim.SGD:
        options["momentum"] = MOMENTUM
    return chosen(parameters, lr=rate, **options)


def default(request: Request, parameters: Any, rate: float) -> Any:
    """Return the optimizer that ``request`` names for a model that brings none, else AdamW."""
    kind = request.optimizer or "adamw"
    return make(kind, parameters, rate, foreach=request.foreach, fused=request.fused)


def chosen(optimizer: Any, request: Request) -> Any:
    """Return the factory's optimizer, with the changes that ``request`` asks for."""
    _complain(optimizer, request)
    groups = getattr(optimizer, "param_groups", None)
    if groups is None:
        if request.optimizer is None and request.foreach is None and request.fused is None:
            return optimizer
        raise CannotPredict(
            "The optimizer cannot be changed.",
            f"a {type(optimizer).__name__} has no param_groups.",
            "leave it as it is",
        )
    kind = type(optimizer).__name__.lower()
    wanted = request.optimizer or kind
    same = request.optimizer is None or (
        wanted.lower() == kind and (kind != "sgd" or groups[0].get("momentum"))
    )
    if not same:
        kept = [{"params": group["params"], "lr": group.get("lr", 1e-3)} for group in groups]
        return make(wanted, kept, 1e-3, foreach=request.foreach, fused=request.fused)
    if request.foreach is None and request.fused is None:
        return optimizer
    for group in groups:
        for name in ("foreach", "fused"):
            value = getattr(request, name)
            if name not in group and value is not None:
                raise CannotPredict(
                    f"{type(optimizer).__name__} has no {name} implementation.",
                    "it has no such option.",
                    "leave it out",
                )
            if value is not None:
                group[name] = value
        if request.foreach is None and request.fused:
            group["foreach"] = False  # torch refuses both
        if request.fused is None and request.foreach is not None:
            group["fused"] = None
    if request.fused:
        optimizer._step_supports_amp_scaling = True
    return optimizer


def _complain(optimizer: Any, request: Request) -> None:
    """Raise :class:`CannotPredict` if the training loop cannot step with it."""
    name = type(optimizer).__name__
    try:
        needed = inspect.signature(optimizer.step).parameters.get("closure")
    except (TypeError, ValueError):
        needed = None
    if (
        request.optimizer is None
        and needed is not None
        and needed.default is inspect.Parameter.empty
    ):
        raise CannotPredict(
            f"{name} cannot be predicted.",
            "its step() runs forward and backward passes itself, through a closure; the training "
            "loop here has none.",
            "give another one: --optimizer adamw",
            "not_applicable",
        )
    if request.amp == "fp16" and not hasattr(optimizer, "param_groups"):
        raise CannotPredict(
            "fp16 needs a grad scaler, which cannot work with this optimizer.",
            f"a {name} has no param_groups, in which the scaler looks for gradients.",
            "give it its optimizers' groups: param_groups = [*a.param_groups, *b.param_groups]; "
            "or --amp bf16",
            "not_applicable",
        )


def scaler(enabled: bool) -> Any:
    """Return a grad scaler whose gradients never overflow: a skipped step needs less memory."""
    kind = torch.amp.GradScaler if hasattr(torch.amp, "GradScaler") else None

    class Scaler(kind or torch.cuda.amp.GradScaler):  # type: ignore[misc]
        def _maybe_opt_step(
            self, optimizer: Any, optimizer_state: Any, *args: Any, **kwargs: Any
        ) -> Any:
            return optimizer.step(*args, **kwargs)

    return Scaler("cuda", enabled=enabled) if kind else Scaler(enabled=enabled)


def states(optimizer: Any) -> Iterator[torch.Tensor]:
    """Return all tensors that an optimizer keeps, and those of all others that have made a step."""
    seen: set[int] = set()

    def walk(value: Any) -> Iterator[torch.Tensor]:
        if isinstance(value, torch.Tensor):
            if id(value) not in seen:
                seen.add(id(value))
                yield value
        elif isinstance(value, dict):
            for part in list(value.values()):
                yield from walk(part)
        elif isinstance(value, (list, tuple)):
            for part in value:
                yield from walk(part)

    yield from walk(getattr(optimizer, "state", {}))
    for other in list(_stepped):
        yield from walk(other.state)
