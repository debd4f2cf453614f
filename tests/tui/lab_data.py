"""Documents of lab runs that are plainly made up: test data for the lab's screens, not measured."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from gpuscope.lab.config import LabConfig
from gpuscope.lab.ledger import Entry, RunLedger
from gpuscope.lab.metrics import Started, Step


def started(config: LabConfig, device: str = "cpu", batch: int = 8, **more: Any) -> Started:
    values = {**config.to_mapping(), "batch": config.batch or batch}
    name = "a CPU" if device == "cpu" else "NVIDIA H200"
    each = values["batch"] * config.accumulate * more.get("world_size", 1)
    return Started(values, config.preset(device), device, name, "2.13.0", 3_600_000, each, **more)


def document(
    config: LabConfig,
    pace: float,
    *,
    device: str = "cpu",
    steps: int = 100,
    peak: float | None = None,
    **more: Any,
) -> dict[str, Any]:
    """A run that ended well. ``pace`` in samples/s; ``peak`` in bytes."""
    begun = started(config, device)
    each = begun.samples_per_step
    step = each / pace
    curve = [[n * each, 1.2 + 5.0 * math.exp(-n * each / 300)] for n in range(1, steps + 1)]
    unknown = (
        []
        if peak
        else [
            {"path": "peak_allocated_bytes", "code": "not_supported", "reason": "no allocator here"}
        ]
    )
    return {
        "config": begun.config,
        "device": device,
        "device_name": begun.device_name,
        "preset": begun.preset,
        "torch_version": "2.13.0",
        "parameters": 3_600_000,
        "world_size": 1,
        "backend": None,
        "samples_per_step": each,
        "steps": steps,
        "skipped_steps": 0,
        "loss_first": curve[0][1],
        "loss_last": curve[-1][1],
        "loss_curve": curve,
        "samples_per_second": pace,
        "warmup_seconds": 0.4,
        "input_seconds": 0.0002,
        "validation_loss": None,
        "step_seconds": {
            "median": step,
            "p95": step * 1.2,
            "low": step * 0.98,
            "high": step * 1.02,
            "count": steps,
        },
        "peak_allocated_bytes": peak,
        "peak_reserved_bytes": peak,
        "tensor_active_percent": None,
        "compile": None,
        "warnings": [],
        "unknown": unknown,
        "error": None,
        **more,
    }


def step(number: int, loss: float = 2.0, pace: float = 100.0, **more: Any) -> Step:
    return Step(number, loss, pace, 0.02, **more)


def ledger(path: Path, *documents: dict[str, Any], **more: Any) -> list[Entry]:
    """These documents in a ledger at ``path``, oldest first; their environment is nobody's."""
    book = RunLedger(path)
    return [
        book.add(one, environment={"host": "node-17", "system": "Linux"}, **more)
        for one in documents
    ]
