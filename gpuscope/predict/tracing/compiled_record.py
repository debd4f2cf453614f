"""Find the fake tensors' modes that record a trace, and stop them for a while."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch.utils import _python_dispatch as torch_dispatch


@contextlib.contextmanager
def unrecorded() -> Iterator[None]:
    """Record nothing: neither what compilation makes, nor results inside of kernels."""
    modes = recording()
    before = [mode.muted for mode in modes]
    for mode in modes:
        mode.muted = True
    try:
        yield
    finally:
        for mode, was in zip(modes, before, strict=True):
            mode.muted = was


def recording() -> list[Any]:
    """Return the mode of the fake tensors, in a list."""
    modes = torch_dispatch._get_current_dispatch_mode_stack()
    return [mode for mode in modes if hasattr(mode, "muted")]
