"""Made-up streams of trainers with a time ledger.

Nothing here is measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuscope.store.store import Store
from gpuscope.wire import frames as f
from tests.fakes import jobs, views

SHARES = {
    "backward": 0.38,
    "forward": 0.21,
    "checkpoint": 0.14,
    "input": 0.12,
    "optimizer": 0.07,
    "read": 0.03,
    "communication": 0.02,
    "other": 0.015,
    "logging": 0.01,
    "collection": 0.003,
    "unattributed": 0.002,
}
PLACES = {
    "backward": "torch/autograd/graph.py:865 _engine_run_backward",
    "forward": "/data/train/model.py:58 forward",
    "checkpoint": "/data/train/train.py:91 save",
    "input": "/data/train/data.py:31 __getitem__",
    "read": "/data/train/train.py:77 log_loss",
}
LOOKS = 290


def minute(entity: int, number: int, count: int = 10, steps: int = 64, **more: float) -> f.Event:
    """Return minute ``number`` of ``count`` before the end; ``more`` holds shares of some rows."""
    shares = {**SHARES, **more}
    whole = sum(shares.values())
    shares = {name: share / whole for name, share in shares.items() if share}
    began = views.END - 60.0 * (count - number)
    rows = "|".join(f"{n} {60 * s:.3f} {round(LOOKS * s)}" for n, s in shares.items())
    places = "|".join(f"{n} {60 * shares[n]:.2f} {p}" for n, p in PLACES.items() if n in shares)
    data: dict[str, Any] = {
        "m": int(began * 1e9), "seconds": 60.0, "steps": steps, "looks": LOOKS,
        "rows": rows, "places": places,
    }  # fmt: skip
    return f.Event(entity, "time", int((began + 60) * 1e9), "", data)


def rows_of(shares: Mapping[str, float], steps: int, looks: int = 300) -> dict[str, Any]:
    """A minute as a probe tells it: ``shares`` of it went into rows, the rest into forward."""
    whole = {**shares, "forward": 1 - sum(shares.values())}
    rows = [[name, 60 * share, round(looks * share)] for name, share in whole.items()]
    return {"m": 1_000_000_000, "seconds": 60.0, "steps": steps, "looks": looks, "rows": rows}


def one_trainer(
    minute: Mapping[str, Any],
    step_seconds: float,
    load: float = 97.0,
    used: float = 60.0,
    card: str = "",
    cuda: bool = True,
    look: Mapping[str, Any] | None = None,
    framework: str | None = None,
    **row: f.Scalar,
) -> Store:
    """Half a minute of one trainer on one GPU, or beside it, with a minute of its ledger."""
    gpu = views.gpu(0)
    if card and gpu.gpu is not None:
        gpu.gpu.compute_capability = card
    known = [gpu, *views.trainer(48201, 0, 1, "ada", True, "job-1")]
    if not cuda:
        known = [one for one in known if one.alloc is None]
    for one in known:
        if one.trainer is not None:
            one.trainer.framework = framework
            one.trainer.cuda = one.trainer.cuda and cuda
    said: list[f.Frame] = [views.hello(), views.host_def(), *known]
    for q, at, _ in views.ticks(30.0):
        sample = f.Sample(q, int(at * 1e9), h=[views.host_row()])
        sample.g = [views.device_row(0, used, load)]
        sample.t = [views.trainer_row(1, 4000 + q, step_seconds, **row)]
        sample.a = [views.allocator_row(1, 40.0, 59.0, 5.0)]
        said.append(sample)
    store = views.store_of(said)
    trainer = views.host_in(store).trainers[0].id
    store.remember(views.SOURCE, trainer, "time", {"minutes": [dict(minute)]})
    if look is not None:
        store.remember(views.SOURCE, trainer, "look", look)
    return store


def of_ranks(count: int = 4, minutes: int = 10, slow: int | None = 2) -> list[f.Frame]:
    """Return a job of ``count`` ranks with ten minutes; rank ``slow`` loads its input slowly.

    From the sixth minute on checkpoints are saved.
    """
    out = jobs.ranks(count, 10.0)
    ids = [one.id for one in out if isinstance(one, f.Def) and one.trainer is not None]
    for rank, entity in enumerate(ids):
        for number in range(minutes):
            more = {"checkpoint": 0.0 if number < 5 else 0.25}
            if rank == slow:
                more |= {"input": 0.32, "communication": 0.0, "backward": 0.3}
            elif slow is not None:
                more |= {"communication": 0.25}
            out.append(minute(entity, number, minutes, 64 - 2 * number, **more))
    return out


LOOK: dict[str, Any] = {
    "seconds": 0.188,
    "steps": 8,
    "kernels": [
        ["sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n", 512, 0.05, 0.05],
        ["flash_fwd_kernel", 96, 0.012, 0.012],
        ["void at::native::vectorized_elementwise_kernel<4>", 1900, 0.019, 0.019],
        ["ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 96, 0.03, 0.009],
    ],
    "idle": [
        ["launch", 0.052, 2210, "/data/train/model.py:58 forward", 0.02],
        ["input", 0.031, 8, "/data/train/data.py:31 __getitem__", 0.03],
        ["sync", 0.009, 8, "/data/train/train.py:77 log_loss", 0.004],
    ],
    "communication": [0.03, 0.009],
    "copies": [0.001, 0.0],
    "events": 9500,
    "start_seconds": 0.001,
    "stop_seconds": 0.042,
    "lost_seconds": 0.09,
}
"""An answer to the request ``look``."""

_SQUARE = '{"t":[4096,4096],"d":"bfloat16"}'
_PRODUCT = f'{{"args":[{_SQUARE},{_SQUARE}],"kwargs":{{}},"out":[]}}'
WORK: dict[str, Any] = {
    "operators": [
        ["aten::mm", 0, 480, 480 * 2 * 2**25, 480 * 2**25, "bfloat16", _PRODUCT],
        ["aten::mm", 1, 96, 96 * 2 * 2**25, 96 * 2**25, "bfloat16", _PRODUCT],
        ["aten::_foreach_addcdiv_", 0, 4, 6 * 10**9, 2 * 10**9, "float32", ""],
        ["aten::native_layer_norm", 0, 48, 8 * 10**9, 8 * 10**9, "bfloat16", ""],
        ["aten::_fft_c2c", 0, 2, 10**8, 10**8, "complex64", ""],
    ],
    "left_out": 0,
    "tf32": [False, True],
    "cuda": True,
    "devices": 1,
    "first_step": 812,
    "began": 0.0,
    "seconds": 0.9,
    "usual_seconds": 0.8,
    "lost_seconds": 0.12,
}
"""An answer to the request ``work``."""
