"""Judge predictions of DataParallel's first device on two GPUs, declared before.

``python -m bench.predict.dp_cards --out DIR`` predicts, measures and compares. A case is one
process with both GPUs; its figures are those of the first, and each row says what the second
took. What the actions do is said in ``cards.py``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from gpuscope.predict.request import Request

from .cards import Case, Phases, Place, main
from .ddp_cards import train
from .sharded_models import MODELS

DEVICES = 2
DECLARED: tuple[tuple[str, int, dict[str, Any]], ...] = (
    ("parallel", 8, {}),
    ("parallel", 24, {}),
    ("parallel", 24, {"checkpoint": 1}),
    ("latents", 32, {}),
    ("gating", 16, {}),
    ("gating", 16, {"accumulate": 2}),
    ("pictures", 64, {}),
)


def _case(model: str, batch: int, options: dict[str, Any]) -> Case:
    request = Request(
        f"bench.predict.sharded_cards:{model}", batch, sharding="dp", ranks=DEVICES, **options
    )
    name = "-".join(["dp", model, f"b{batch}", *options])
    return Case(name, request, {"model": model, **options}, ranks=1)


CASES = [_case(*row) for row in DECLARED]


def run(case: Case, place: Place, phases: Phases) -> None:
    cuda = place.device.type == "cuda"
    if cuda and torch.cuda.device_count() < DEVICES:
        raise RuntimeError(f"this needs {DEVICES} GPUs")
    options = case.options
    batch = (case.request.batch or 1) if cuda else 2
    phases.begin("build")
    build, loss = MODELS[options["model"]](batch, place.device, bool(options.get("checkpoint")))
    model = build().to(place.device)
    wrapped = nn.DataParallel(model, list(range(DEVICES)) if cuda else None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    phases.end(0, "build")
    train(optimizer, lambda: loss(wrapped), place, phases, accumulate=options.get("accumulate", 1))
    if cuda:
        phases.rows[-1]["second_allocated_bytes"] = torch.cuda.max_memory_allocated(1)


if __name__ == "__main__":
    raise SystemExit(main("dp_cards", CASES, (__doc__ or "").splitlines()[0]))
