"""A program that sets torch's switches.

It sets some once, when it is imported, and others while its model is built.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Made = tuple[Any, Any, Callable[[], Any]]
WIDTH = 64
torch.set_default_dtype(torch.float64)
torch.cuda.set_per_process_memory_fraction(0.75)


def plain(batch: int, device: Any) -> Made:
    model = nn.Linear(WIDTH, WIDTH, device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, optimizer, lambda: model(torch.randn(batch, WIDTH, device=device)).square().mean()


def switching(batch: int, device: Any) -> Made:
    """Leaves nothing as it was, not even for who comes after it."""
    torch.set_default_dtype(torch.bfloat16)
    torch.set_default_device("cuda")
    assert torch.cuda.get_per_process_memory_fraction() == 0.75
    torch.cuda.set_per_process_memory_fraction(0.5)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.autograd.set_detect_anomaly(True)
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cudnn.benchmark = torch.backends.cudnn.deterministic = True
    if hasattr(torch.backends.cudnn, "conv"):
        torch.backends.cudnn.conv.fp32_precision = "ieee"
    nn.modules.module.register_module_forward_hook(lambda module, inputs, out: out.double())
    torch.set_grad_enabled(False)
    model = nn.Linear(WIDTH, WIDTH)

    def forward() -> Any:
        torch.set_grad_enabled(True)
        return model(torch.randn(batch, WIDTH)).square().mean()

    return model, torch.optim.SGD(model.parameters(), lr=0.1), forward
