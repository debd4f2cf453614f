"""Estimate what fixes would free in a running training whose model is not known.

The answers are ranges that follow from what the probe has measured.

Parameters and optimizer state exist all through a step, so sharding them also lowers the peak. It
is not measured how many of the gradients exist at the peak, so the range goes from none of them to
all.
"""

from __future__ import annotations

from dataclasses import dataclass

COSTS = {
    "batch-half": "fewer samples per step: noisier gradients, smaller kernels",
    "accumulate": "the same samples and gradients per step (unless layers mix samples, as batch "
    "norm does); smaller kernels",
    "bf16": "8 bits of mantissa in matmuls; weights, gradients and optimizer state stay fp32",
    "fp16": "11 bits of mantissa and a small range in matmuls: steps that overflow are skipped",
    "checkpoint": "slower: the forward pass of the blocks runs once more in the backward pass "
    "(Chen et al., 2016)",
    "checkpoint-2": "slower: half of the blocks run once more",
    "fused-optimizer": "none: one kernel per list and no temporary lists (torch's Adam, AdamW, "
    "SGD, Adagrad have it)",
    "sgd": "one state per parameter instead of two: another training, which needs its own learning "
    "rate",
    "sequence-half": "the model sees half the context",
    "resolution-half": "the model sees a quarter of the pixels",
    "zero1": "the communication of DDP (Rajbhandari et al., 2020); shards the optimizer state",
    "fsdp": "1.5 times the communication of DDP (Rajbhandari et al., 2020); shards parameters, "
    "gradients and state",
    "fsdp-reshard": "the blocks are gathered a second time, in the backward pass",
    "fsdp-params": "the whole model computes in bf16, also what autocast leaves in float32",
    "fsdp-offload": "parameters cross PCIe in both passes, and the optimizer runs on the CPU",
    "set-to-none": "none: gradients are created again in each step",
    "expandable-segments": "none for the model: the same tensors in growing segments; frees cache, "
    "not tensors",
    "chunked-loss": "the output layer runs once more in the backward pass; the same loss and "
    "gradients",
}
"""What each fix costs, in words, with a figure only if a source gives one."""
CODE = {
    "batch-half": """\
loader = DataLoader(dataset, batch_size=batch // 2)
# the same samples in a step: (loss / 2).backward() twice, then optimizer.step()""",
    "zero1": """\
from torch.distributed.optim import ZeroRedundancyOptimizer
optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=AdamW, lr=lr)""",
    "fsdp": """\
from torch.distributed.fsdp import fully_shard
for block in model.blocks:
    fully_shard(block)
fully_shard(model)  # and only then: optimizer = AdamW(model.parameters(), lr=lr)""",
}
"""Lines to paste, with the names that most scripts use."""


@dataclass(frozen=True, slots=True)
class Larger:
    """How many times as large the micro-batch could be: from ``low`` to ``high``.

    ``each_low`` and ``each_high`` are the bytes that one more of the present micro-batch needs.
    """

    low: float
    high: float
    each_low: int
    each_high: int


@dataclass(frozen=True, slots=True)
class Freed:
    """A fix and the bytes of the peak that it frees: from ``low`` to ``high``.

    ``why`` says what the range is based on, ``cost`` what the fix costs, and ``code`` has lines to
    paste.
    """

    key: str
    title: str
    low: int
    high: int
    change: str
    why: str
    cost: str
    code: str

    @property
    def middle(self) -> int:
        return (self.low + self.high) // 2

    @property
    def error(self) -> int:
        """The error, ± around :attr:`middle`."""
        return (self.high - self.low + 1) // 2


def freed_by(
    peak_allocated: int,
    parameters: int | None,
    gradients: int | None,
    optimizer: int | None,
    ranks: int | None,
    workspaces: int = 0,
) -> list[Freed]:
    """Return what fixes free, from measured bytes.

    ``workspaces`` are those of cuBLAS, which have one size for any micro-batch.
    ``ranks`` is the number of ranks that could share the model, None if there is only one. The fix
    that frees most comes first.
    """
    if parameters is None or peak_allocated <= parameters:
        return []
    grads, state = gradients or 0, optimizer or 0
    grows = max(0, peak_allocated - parameters - state - workspaces)
    found = [
        Freed(
            "batch-half",
            "halve the micro-batch",
            max(0, grows - grads) // 2,
            grows // 2,
            "batch // 2",
            "half of everything but parameters, optimizer state and workspaces; that may include "
            "gradients",
            COSTS["batch-half"],
            CODE["batch-half"],
        )
    ]
    if ranks is not None and ranks > 1:
        rest = 1 - 1 / ranks
        found.append(
            Freed(
                "zero1",
                f"ZeRO-1: optimizer state over {ranks} ranks",
                int(state * rest),
                int(state * rest),
                "ZeroRedundancyOptimizer(parameters, optimizer_class=…)",
                "all of the state except this rank's part",
                COSTS["zero1"],
                CODE["zero1"],
            )
        )
        found.append(
            Freed(
                "fsdp",
                f"FSDP2 over {ranks} ranks",
                int(state * rest),
                int((parameters + grads + state) * rest),
                "fully_shard(block) for every block, then fully_shard(model)",
                "at least the optimizer state; parameters and gradients except what is gathered "
                "at the peak",
                COSTS["fsdp"],
                CODE["fsdp"],
            )
        )
    return sorted((one for one in found if one.high > 0), key=lambda one: -one.middle)


def larger_batch(
    peak_allocated: int,
    parameters: int | None,
    gradients: int | None,
    optimizer: int | None,
    headroom: float | None,
    workspaces: int = 0,
) -> Larger | None:
    """Return how much larger the micro-batch could be, None where that cannot be said.

    ``headroom`` are the bytes that torch can still get at its peak. What is neither parameters nor
    optimizer state nor workspaces grows with the micro-batch; gradients, which may be part of it,
    do not.
    """
    if parameters is None or headroom is None or headroom <= 0:
        return None
    most = peak_allocated - parameters - (optimizer or 0) - workspaces
    least = most - (gradients or 0)
    if least <= 0:
        return None
    return Larger(1 + headroom / most, 1 + headroom / least, least, most)
