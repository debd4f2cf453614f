"""Measure what DistributedDataParallel takes on two GPUs, beside the prediction.

``python -m bench.predict.ddp_cards`` trains a small transformer in two processes over NCCL: in
float32 and bf16, with each of DDP's options, once without waiting between steps and once with a
pause after each step. It prints the peak of allocated memory in each phase of rank 0 and the
predicted one. The pause shows whether NCCL still keeps DDP's first bucket in the second step: its
watchdog thread looks ten times a second.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS, PAUSE_SECONDS = 3, 0.5
WIDTH, TOKENS, WORDS, LAYERS = 768, 256, 32000, 12
MIB = 1 << 20
CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "views": {"gradient_as_bucket_view": True},
    "static": {"static_graph": True},
    "unused": {"find_unused_parameters": True},
    "hooked": {"hook": True},
}
_case = ""


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 12, 4 * WIDTH, 0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.words(tokens)))


def make(batch: int, device: Any, case: str) -> Any:
    options = dict(CASES[case])
    hooked = options.pop("hook", False)
    index = getattr(device, "index", None) or 0
    model = DistributedDataParallel(Net().to(device), device_ids=[index], **options)
    if hooked:
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        model.register_comm_hook(None, default_hooks.bf16_compress_hook)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def loss() -> torch.Tensor:
        tokens = torch.randint(WORDS, (batch, TOKENS), device=device)
        return nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())

    return model, optimizer, loss


def factory(batch: int, device: Any) -> Any:
    """Make the case that is predicted."""
    torch.distributed.init_process_group("nccl")
    return make(batch, device, _case)


def _rank(rank: int, store: str, amp: bool, batch: int, case: str, pause: bool) -> None:
    torch.cuda.set_device(rank)
    torch.distributed.init_process_group(
        "nccl", init_method=f"file://{store}", rank=rank, world_size=2
    )
    _, optimizer, loss = make(batch, torch.device("cuda", rank), case)
    found = []

    def phase() -> None:
        found.append(torch.cuda.max_memory_allocated())
        torch.cuda.reset_peak_memory_stats()

    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=amp):
            value = loss()
        phase()
        value.backward()
        phase()
        optimizer.step()
        phase()
        if pause:
            torch.cuda.synchronize()
            time.sleep(PAUSE_SECONDS)
    if rank == 0:
        cells = " ".join(f"{size / MIB:8.1f}" for size in found)
        print(f"  {'paused' if pause else 'on':9} {max(found) / MIB:9.1f} | {cells}", flush=True)
    torch.distributed.destroy_process_group()


def _predicted(amp: bool, batch: int, case: str) -> None:
    global _case
    from gpuscope.predict.allocator import simulate
    from gpuscope.predict.request import Request
    from gpuscope.predict.tracing import steps

    here = sys.modules["bench.predict.ddp_cards"]
    vars(here)["_case"] = _case = case
    major, minor = torch.cuda.get_device_capability() if torch.cuda.is_available() else (9, 0)
    request = Request(
        "bench.predict.ddp_cards:factory", batch, "bf16" if amp else "off",
        architecture=f"{major}.{minor}",
    )  # fmt: skip
    traced = steps.trace(request)
    peak = simulate(traced.trace).peak_allocated_bytes
    error = sum(doubt.percent for doubt in traced.doubts)
    print(f"  predicted {peak / MIB:9.1f} | doubts {error:.1f} %", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, nargs="*", default=[4, 16, 48])
    parser.add_argument("--case", choices=CASES, nargs="*", default=list(CASES))
    arguments = parser.parse_args()
    cards = torch.cuda.device_count() if torch.cuda.is_available() else 0
    __import__("bench.predict.ddp_cards")
    for case in arguments.case:
        for amp in (False, True):
            for batch in arguments.batch:
                print(f"{case}, {'bf16' if amp else 'fp32'}, batch {batch}: MiB", flush=True)
                if cards >= 2:
                    for pause in (False, True):
                        with tempfile.TemporaryDirectory() as folder:
                            torch.multiprocessing.spawn(
                                _rank, (f"{folder}/store", amp, batch, case, pause), nprocs=2
                            )
                _predicted(amp, batch, case)
    if cards < 2:
        print(f"Nothing was measured: this needs 2 GPUs, and torch sees {cards}.", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
