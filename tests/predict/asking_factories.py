"""Programs that ask CUDA and the accelerator what real trainers ask.

They ask while they are built and in each step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Made = tuple[Any, Any, Callable[[], Any]]


def everything(batch: int, device: Any) -> Made:
    cuda = torch.cuda
    assert cuda.is_available()
    assert cuda.device_count() == 1
    free, total = cuda.mem_get_info()
    properties = cuda.get_device_properties(device)
    assert 0 < free <= total == properties.total_memory
    assert properties.major >= 7
    cuda.set_per_process_memory_fraction(0.9)
    cuda.manual_seed_all(3)
    model = nn.Linear(64, 64).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    side, begin, end = cuda.Stream(), cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)

    def forward() -> Any:
        begin.record()
        cuda.nvtx.range_push("step")
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            x = torch.randn(batch, 64, device=device)
        cuda.current_stream().wait_stream(side)
        loss = model(x).square().mean()
        cuda.nvtx.range_pop()
        end.record()
        cuda.synchronize()
        assert begin.elapsed_time(end) >= 0
        assert cuda.memory_stats()["num_alloc_retries"] == 0
        assert isinstance(cuda.memory_summary(), str)
        assert cuda.memory_allocated() > 0
        assert not cuda.is_current_stream_capturing()
        return loss

    return model, optimizer, forward


def accelerated(batch: int, device: Any) -> Made:
    """Chooses its device itself, as programs for any vendor do."""
    here = (
        torch.accelerator.current_accelerator()
        if torch.accelerator.is_available()
        else torch.device("cpu")
    )
    model = nn.Linear(64, 64, device=here)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def forward() -> Any:
        torch.accelerator.synchronize()
        return model(torch.randn(batch, 64, device=here)).sum()

    return model, optimizer, forward
