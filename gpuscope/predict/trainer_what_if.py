"""Estimate what fixes would free in a running training whose model is not known.

The answers are ranges that follow from what the probe has measured.

Parameters and optimizer state exist all through a step, so sharding them also lowers the peak. It
is not measured how many of the gradients exist at the peak, so the range goes from none of them to
all.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Freed:
    """A fix and the bytes of the peak that it frees: from ``low`` to ``high``.

    ``why`` says what the range is based on.
    """

    key: str
    title: str
    low: int
    high: int
    change: str
    why: str

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
) -> list[Freed]:
    """Return what fixes free, from measured bytes.

    ``ranks`` is the number of ranks that could share the model, None if there is only one. The fix
    that frees most comes first.
    """
    if parameters is None or peak_allocated <= parameters:
        return []
    grads, state = gradients or 0, optimizer or 0
    grows = max(0, peak_allocated - parameters - state)
    found = [
        Freed(
            "batch-half",
            "half the micro-batch",
            max(0, grows - grads) // 2,
            grows // 2,
            "batch // 2",
            "half of everything but parameters and optimizer state; that may include gradients",
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
            )
        )
    return sorted((one for one in found if one.high > 0), key=lambda one: -one.middle)
