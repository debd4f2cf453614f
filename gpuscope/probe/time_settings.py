"""Reads settings of the training that make every step slower and are easily left on.

Each is read where torch keeps it, which costs microseconds, and only when somebody asks or when a
minute is reported. What cannot be read is left out.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Dict, Iterable

from ..wire.frames import Scalar
from . import cuda

_OFF = ("", "0")


def settings(optimizers: Iterable[Any]) -> Dict[str, Scalar]:
    """Return those that are on, each as 1.

    ``launch_blocking``: CUDA waits after each launch. ``anomaly_detection``: autograd checks each
    gradient. ``uncached_memory``: each tensor calls cudaMalloc. ``optimizer_on_host``:
    ``optimizers``, weak references, step weights in host memory while CUDA is in use.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return {}
    found: Dict[str, Scalar] = {}
    # torch.compile switches the search on by itself while it traces, but without the checks.
    if _asks(torch, "is_anomaly_enabled") and _asks(torch, "is_anomaly_check_nan_enabled"):
        found["anomaly_detection"] = 1
    if not cuda.initialised():
        return found
    if os.environ.get("CUDA_LAUNCH_BLOCKING", "") not in _OFF:
        found["launch_blocking"] = 1
    if os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING", "") not in _OFF:
        found["uncached_memory"] = 1
    stepped = [one for ref in optimizers if (one := ref()) is not None]
    if stepped and all(_on_host(one) for one in stepped):
        found["optimizer_on_host"] = 1
    return found


def _asks(torch: Any, name: str) -> bool:
    try:
        return bool(getattr(torch, name)())
    except Exception:  # another version of torch
        return False


def _on_host(optimizer: Any) -> bool:
    """Tell whether the first weights of each group are in host memory."""
    try:
        firsts = [group["params"][0] for group in optimizer.param_groups if group["params"]]
        return bool(firsts) and all(one.device.type == "cpu" for one in firsts)
    except Exception:  # not torch's, or changed meanwhile
        return False
