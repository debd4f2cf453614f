"""Traces written by hand.

Each is a training as it asks the allocator for blocks, with sizes that are easy to add up.
"""

from __future__ import annotations

from gpuscope.predict.request import Request, Traced
from gpuscope.predict.trace import Owner, PhaseMark, Trace

MIB = 1 << 20
LAYERS = 4
WEIGHT = 64 * MIB
PER_SAMPLE = 12 * MIB
LOSS_PER_SAMPLE = 96 * MIB


class Writer:
    """Writes a trace block by block."""

    def __init__(self) -> None:
        self.trace = Trace()
        self._owners: dict[Owner, int] = {}

    def mark(self, name: str) -> None:
        self.trace.marks.append(PhaseMark(len(self.trace.events), name))

    def make(self, size: int, category: str, module: str = "", operation: str = "") -> int:
        owner = Owner(category, module, operation)
        if owner not in self._owners:
            self._owners[owner] = len(self.trace.owner_table)
            self.trace.owner_table.append(owner)
        self.trace.sizes.append(size)
        self.trace.owners.append(self._owners[owner])
        self.trace.events.append(len(self.trace.sizes) - 1)
        return len(self.trace.sizes) - 1

    def drop(self, block: int) -> None:
        self.trace.events.append(~block)


def training(request: Request, batch: int | None = None) -> Trace:
    """Return the trace of four layers and a loss under AdamW.

    64 MiB of weights each, 12 MiB of activations a sample and layer, half of that under bf16;
    logits of 96 MiB a sample, and their log-softmax and gradient.
    """
    batch = batch or request.batch or 8
    half = 2 if request.amp != "off" else 1
    activation = PER_SAMPLE * batch // half
    logits = LOSS_PER_SAMPLE * batch
    write = Writer()
    for layer in range(LAYERS):
        write.make(
            WEIGHT // request.ranks if request.sharding == "fsdp" else WEIGHT,
            "parameter",
            f"layers.{layer}",
        )
    states: list[int] = []
    for step in (1, 2):
        write.mark(f"step {step}")
        write.mark("forward")
        kept, parts = [], []
        for layer in range(LAYERS):
            made = write.make(activation, "activation", f"layers.{layer}", "addmm")
            again = request.checkpoint == 1 or (
                request.checkpoint > 1 and layer % request.checkpoint
            )
            if again:
                write.drop(made)
                made = write.make(activation // 8, "activation", f"layers.{layer}", "addmm")
            kept.append(made)
        parts = [
            write.make(logits, "activation", "", "linear"),
            write.make(logits, "activation", "", "_log_softmax"),
        ]
        write.mark("backward")
        gradient = write.make(logits, "temporary", "", "_log_softmax_backward_data")
        for block in [*parts, gradient]:
            write.drop(block)
        gradients = []
        for layer in reversed(range(LAYERS)):
            scratch = write.make(activation, "temporary", f"layers.{layer}", "mm")
            gradients.append(write.make(WEIGHT, "gradient", f"layers.{layer}"))
            write.drop(kept[layer])
            write.drop(scratch)
        write.mark("optimizer")
        if not states:
            count = 1 if request.optimizer == "sgd" else 2
            states = [
                write.make(WEIGHT, "optimizer", f"layers.{n % LAYERS}")
                for n in range(count * LAYERS)
            ]
        if not request.fused:
            lists = [write.make(WEIGHT, "temporary", "", "_foreach_sqrt") for _ in range(LAYERS)]
            for block in lists:
                write.drop(block)
        for block in gradients:
            write.drop(block)
    write.mark("end")
    return write.trace


def traced(request: Request) -> Traced:
    """What the tracing child would answer."""
    batch = request.batch or 8
    return Traced(training(request, batch), batch, LAYERS * WEIGHT // 4, "2.11.0+cu130")
