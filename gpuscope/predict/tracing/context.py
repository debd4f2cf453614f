"""Measure how much of a GPU a training process takes besides its tensors.

A child makes CUDA load its parts in stages.

``python -m gpuscope.predict.tracing.context`` prints one JSON line on stdout after each stage and
then waits for a line on stdin, so that the parent can ask the driver what this process holds. Only
this process uses the device.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from torch.nn import functional


def _say(stage: str, **more: Any) -> bool:
    """Print a stage, and return whether to continue."""
    print(json.dumps({"stage": stage, **more}), flush=True)
    return bool(sys.stdin.readline())


def _reserved() -> int:
    torch.cuda.synchronize()
    return int(torch.cuda.memory_reserved())


def _products() -> None:
    """Make matrix products, forward and backward, in the types that trainings use."""
    for kind in (torch.float32, torch.bfloat16, torch.float16):
        a = torch.randn(512, 512, device="cuda", dtype=kind, requires_grad=True)
        (a @ a).sum().backward()


def _kernels() -> None:
    """Use what models need besides products.

    Convolutions, attention, norms, a loss, an optimizer.
    """
    image = torch.randn(8, 16, 64, 64, device="cuda")
    layer = torch.nn.Sequential(
        torch.nn.Conv2d(16, 32, 3, padding=1), torch.nn.BatchNorm2d(32), torch.nn.ReLU()
    ).cuda()
    for kind in (torch.float32, torch.bfloat16):
        with torch.autocast("cuda", dtype=kind, enabled=kind is not torch.float32):
            layer(image).float().mean().backward()
        q = torch.randn(4, 8, 128, 64, device="cuda", dtype=kind, requires_grad=True)
        functional.scaled_dot_product_attention(q, q, q, is_causal=True).float().sum().backward()
    head = torch.nn.Sequential(
        torch.nn.LayerNorm(256), torch.nn.GELU(), torch.nn.Dropout(), torch.nn.Linear(256, 1000)
    ).cuda()
    optimizer = torch.optim.AdamW([*layer.parameters(), *head.parameters()])
    loss = functional.cross_entropy(
        head(torch.randn(64, 256, device="cuda")), torch.randint(1000, (64,), device="cuda")
    )
    loss.backward()
    optimizer.step()


def main() -> int:
    """Run all stages; 0, or 3 if there is no CUDA device, which is reported as a stage."""
    if not torch.cuda.is_available():
        _say("no_cuda", torch=torch.__version__)
        return 3
    properties = torch.cuda.get_device_properties(0)
    uuid = str(getattr(properties, "uuid", ""))
    if not _say("ready", torch=torch.__version__, gpu=properties.name, uuid=uuid):
        return 0
    torch.zeros(1, device="cuda")
    for stage, work in (("first", None), ("products", _products), ("kernels", _kernels)):
        if work is not None:
            work()
        torch.cuda.empty_cache()
        if not _say(stage, reserved_bytes=_reserved()):
            break
    return 0


if __name__ == "__main__":
    sys.exit(main())
