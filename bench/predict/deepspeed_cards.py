"""Judge predictions of DeepSpeed's ZeRO on two GPUs, declared before they were measured.

``python -m bench.predict.deepspeed_cards --out DIR`` predicts, measures and compares three models
of ``sharded_models.py`` in stages 1, 2 and 3, and some with other settings. Measuring needs
deepspeed, and none of its compiled operators. What the actions do is said in ``cards.py``.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

import torch

from gpuscope.predict import deepspeed as files
from gpuscope.predict.request import Request

from .cards import Case, Phases, Place, main
from .ddp_cards import STEPS
from .sharded_models import MODELS

RANKS = 2
SMALL = {"reduce_bucket_size": 20_000_000}
DECLARED: tuple[tuple[str, int, str, dict[str, Any]], ...] = (
    ("parallel", 6, "bf16", {"stage": 1, **SMALL}),
    ("parallel", 6, "bf16", {"stage": 2, **SMALL}),
    ("parallel", 6, "bf16", {"stage": 3, **SMALL}),
    ("latents", 16, "bf16", {"stage": 1}),
    ("latents", 16, "bf16", {"stage": 2}),
    ("latents", 16, "bf16", {"stage": 3}),
    ("gating", 16, "bf16", {"stage": 1, "overlap_comm": True, **SMALL}),
    ("gating", 16, "bf16", {"stage": 2, "overlap_comm": True, **SMALL}),
    ("gating", 16, "bf16", {
        "stage": 3, "stage3_max_reuse_distance": 10_000_000,
        "stage3_prefetch_bucket_size": 10_000_000, **SMALL,
    }),
    ("parallel", 4, "off", {"stage": 2, **SMALL}),
)  # fmt: skip
RECORDED = ("zero1-parallel-b6-bf16", "zero3-latents-b16-bf16")
"""The cases whose allocator's history is kept."""


def config(batch: int, kind: str, zero: dict[str, Any]) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": batch,
        "gradient_accumulation_steps": 1,
        "zero_allow_untested_optimizer": True,
        "bf16": {"enabled": kind == "bf16"},
        "zero_optimization": zero,
    }


def _case(model: str, batch: int, kind: str, zero: dict[str, Any]) -> Case:
    told = files.zero(config(batch, kind, zero), RANKS)
    request = Request(
        f"bench.predict.sharded_cards:{model}", batch, deepspeed=told.text(), ranks=RANKS
    )
    name = f"zero{zero['stage']}-{model}-b{batch}-{kind}"
    options = {"model": model, "kind": kind, "zero": zero, "record": name in RECORDED}
    return Case(name, request, options)


CASES = [_case(*row) for row in DECLARED]


def run(case: Case, place: Place, phases: Phases) -> None:
    os.environ |= {
        "RANK": str(place.rank), "LOCAL_RANK": str(place.rank), "WORLD_SIZE": str(place.ranks),
        "DS_ACCELERATOR": place.device.type, "DS_SKIP_CUDA_CHECK": "1",
        "DS_IGNORE_CUDA_DETECTION": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29551",
    }  # fmt: skip
    place.join()
    deepspeed = importlib.import_module("deepspeed")
    options = case.options
    batch = (case.request.batch or 1) if place.device.type == "cuda" else 2
    phases.begin("build")
    build, loss = MODELS[options["model"]](batch, place.device, False)
    model = build()  # on the host: the engine moves it
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-4),
        config=config(batch, options["kind"], options["zero"]),
    )
    phases.end(0, "build")
    kind = torch.bfloat16 if options["kind"] == "bf16" else torch.float32

    def called(x: torch.Tensor) -> Any:
        return engine(x.to(kind) if x.is_floating_point() else x)

    for step in range(1, STEPS + 1):
        phases.begin(f"step {step}")
        phases.begin("forward")
        value = loss(called)
        phases.end(step, "forward")
        phases.begin("backward")
        engine.backward(value)
        phases.end(step, "backward")
        phases.begin("optimizer")
        engine.step()
        phases.end(step, "optimizer")
        del value


if __name__ == "__main__":
    raise SystemExit(main("deepspeed_cards", CASES, (__doc__ or "").splitlines()[0]))
