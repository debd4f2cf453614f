"""Save and restore torch's process-wide switches.

A process traces several trainings. What one of them has set is reset before the next one. What a
user's module sets once, when it is imported, is set again for each of its trainings.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers

from ..request import Request
from .cuda_answers import Allowed

_cuda, _cudnn = torch.backends.cuda, torch.backends.cudnn
_filling = getattr(torch.utils, "deterministic", None)


def _default_device() -> Any:
    """Return the default device.

    None if the program has set none, for which torch would answer ``cpu``.
    """
    context = getattr(getattr(torch, "_GLOBAL_DEVICE_CONTEXT", None), "device_context", None)
    return None if context is None else context.device


def _set_deterministic(how: tuple[bool, bool]) -> None:
    torch.use_deterministic_algorithms(how[0], warn_only=how[1])


def _set_anomaly(how: tuple[bool, bool]) -> None:
    torch.autograd.set_detect_anomaly(*how)


def _attribute(owner: Any, name: str) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    return lambda: getattr(owner, name), lambda value: setattr(owner, name, value)


_SWITCHES: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "dtype": (torch.get_default_dtype, torch.set_default_dtype),
    # by its present name
    "device": (_default_device, lambda device: torch.set_default_device(device)),
    "gradients": (torch.is_grad_enabled, torch.set_grad_enabled),
    "anomaly": (
        lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        _set_anomaly,
    ),
    "deterministic": (
        lambda: (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        _set_deterministic,
    ),
    "allowed": (lambda: Allowed.share, Allowed.set),
    "products": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    **{
        f"cudnn_{name}": _attribute(_cudnn, name)
        for name in ("enabled", "benchmark", "deterministic", "allow_tf32")
    },
    **(
        {"filling": _attribute(_filling, "fill_uninitialized_memory")}
        if _filling is not None
        else {}
    ),
    **{
        f"{kind}_attention": (
            getattr(_cuda, f"{kind}_sdp_enabled"),
            getattr(_cuda, f"enable_{kind}_sdp"),
        )
        for kind in ("flash", "mem_efficient", "math", "cudnn")
        if hasattr(_cuda, f"enable_{kind}_sdp")
    },
}
"""For each switch by name: the function that reads it, and the one that sets it."""
_imported: dict[str, dict[str, Any]] = {}
"""The switches that importing each module has set."""


def _read() -> dict[str, Any]:
    found = {}
    for name, (get, _) in _SWITCHES.items():
        # if TF32 was set by its newer names, the old ones cannot be read
        with contextlib.suppress(RuntimeError):
            found[name] = get()
    return found


def _write(values: dict[str, Any]) -> None:
    for name, value in values.items():
        _SWITCHES[name][1](value)


@contextlib.contextmanager
def restored_after() -> Iterator[None]:
    """Restore afterwards what is set inside, including hooks of all modules and optimizers."""
    hooks = [
        value
        for owner in (modules, optimizers)
        for name, value in vars(owner).items()
        if name.startswith("_global_") and isinstance(value, dict)
    ]
    with _quietly():
        before, hooked = _read(), [dict(each) for each in hooks]
    try:
        yield
    finally:
        with _quietly():
            _write(before)
        for each, content in zip(hooks, hooked, strict=True):
            each.clear()
            each.update(content)


@contextlib.contextmanager
def imported(module: str) -> Iterator[None]:
    """Keep a user's ``module`` and its settings together while it is looked up.

    Settings that are made when it is imported apply to each of its trainings.
    """
    known = _imported.get(module)
    with _quietly():
        before = _read()
        _write(known or {})
    yield
    if known is None:
        with _quietly():
            _imported[module] = {
                name: value for name, value in _read().items() if value != before.get(name, value)
            }


def set_as(request: Request) -> None:
    """Set the switches as ``request`` asks, until the program changes them."""
    with _quietly():
        _cudnn.benchmark, _cudnn.deterministic = request.cudnn_benchmark, request.deterministic
        if request.tf32 is not None:
            _cudnn.allow_tf32 = request.tf32
            torch.set_float32_matmul_precision("high" if request.tf32 else "highest")


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Use the older names of switches without warnings; they work in all versions."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
