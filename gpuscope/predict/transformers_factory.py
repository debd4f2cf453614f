"""Make the model of a transformers configuration, as a factory that the Lab trains.

The factory takes the configuration from environment variables, which the worker inherits: a
factory's name is all that the Lab's switches hold.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import nn

from .request import CONFIG, SEQUENCE, TASK, Request
from .tracing import transformers_models

RATE = 1e-4


def make(
    batch: int,
    device: torch.device,
    checkpoint: bool = False,
    environ: Mapping[str, str] = os.environ,
) -> tuple[nn.Module, torch.optim.Optimizer, Callable[[], torch.Tensor]]:
    """Return (model, optimizer, loss of a micro-batch), the micro-batch made at random once.

    Raises :class:`~gpuscope.predict.request.CannotPredict`.
    """
    path, sequence = environ.get(CONFIG, ""), environ.get(SEQUENCE, "")
    request = Request(
        f"hf:{path}",
        batch=batch,
        task=environ.get(TASK) or None,
        sequence=int(sequence) if sequence.isdigit() else None,
    )
    model, loss, _ = transformers_models.make(request, Path(path), torch.device(device))
    if checkpoint:
        model.gradient_checkpointing_enable()
    return model, torch.optim.AdamW(model.parameters(), lr=RATE), loss
