"""Let pytorch-autotune tune a model of the Lab, and print what it has chosen as JSON.

python -m bench.tune.autotune_child MODEL BATCH DEVICE SECONDS

It gets the model, a batch, the loss and the optimizer of the Lab's training. It changes neither
the batch nor how gradients are accumulated, so only its precision, compile mode, memory format and
fused optimizer are read.
"""

from __future__ import annotations

import json
import sys
import time

import torch

from gpuscope.lab import models

PRECISION: dict[str, dict[str, object]] = {
    "fp32_default": {},
    "tf32": {"tf32": True},
    "amp_bf16": {"amp": "bf16"},
    "amp_fp16": {"amp": "fp16"},
}
"""The names that it has for precisions, and the Lab's switches for each."""


def main(model: str, batch: int, device: str, seconds: float) -> None:
    """Tune, and print the switches with the seconds that it took."""
    from pytorch_autotune import autotune  # type: ignore[import-not-found]  # not in our environment

    task = models.build(model, torch.device(device), 0)
    inputs, targets = (part[:batch] for part in task.pool)
    began = time.monotonic()
    result = autotune(
        task.model,
        (inputs, targets),
        loss_fn=task.criterion,
        lr=models.MODELS[model].learning_rate,
        budget=int(seconds),
        device=device,
        cache=False,
        verbose=False,
    )
    took = time.monotonic() - began
    chosen = result.config
    switches = {
        **PRECISION[chosen.precision],
        "compile": chosen.compile,
        "channels_last": chosen.channels_last,
        "fused": True if chosen.fused_opt else None,
    }
    print(json.dumps({"seconds": took, "switches": switches, "report": result.report.to_dict()}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], float(sys.argv[4]))
