"""Simulate what DeepSpeed's ZeRO allocates on one rank.

It follows the steps of DeepSpeed 0.19, by its public sources (``runtime/engine.py``,
``runtime/zero/stage_1_and_2.py``; ``stage3.py`` is in :mod:`.zero3`). Stages 1 and 2:

- The model is cast to 16 bits, and its trainable parameters are copied into one flat tensor for each
  group of the optimizer, of which they become views.
- A rank has the float32 copy, the optimizer's state and the reduced gradients of its part only.
- During the backward pass there is a bucket of ``reduce_bucket_size`` elements, whether it is needed
  or not, and two with ``overlap_comm``. Gradients are copied into it; when it is full it is reduced.
  If it holds parts of several ranks, they are copied to lie together. Those of other ranks are then
  dropped, those of this rank are copied into a buffer for all of its gradients.
- Stage 1 reduces after the last backward pass of a step, and until then has all gradients.
- The step copies the gradients into one tensor and then to float32, and frees it at the end. The
  norm is computed in float64, one parameter after the other.
- With the optimizer on the host, the GPU keeps no part of it, but a buffer for the largest gradient.

Among the ranks, that one is simulated whose gradients are reduced first: it holds most, because
activations or the other gradients are still there.
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from ..deepspeed import Zero
from ..request import CannotPredict
from . import mixed, optimizers
from .fakes import Fakes

GATHERING, REDUCING = 2, 3
"""The streams beside the program's own with ``overlap_comm``. Their blocks serve no other stream.
"""


def cast(model: nn.Module, kind: str) -> None:
    """Cast the parameters, and what the model is called with, as transformers' Trainer does."""
    if kind != "fp32":
        mixed.cast_parameters(model, mixed.TYPES[kind])
        mixed.cast_inputs(model, mixed.TYPES[kind])


def optimizer_for(zero: Zero, optimizer: Any) -> Any:
    """Return the optimizer that the file names, or else the program's own."""
    groups = getattr(optimizer, "param_groups", None)
    if groups is None:
        raise CannotPredict(
            "DeepSpeed cannot divide this optimizer.",
            f"a {type(optimizer).__name__} has no param_groups.",
            'name one in the file: "optimizer": {"type": "AdamW"}',
        )
    if not zero.optimizer:
        return optimizer
    kept = [{"params": group["params"], "lr": group.get("lr", 1e-3)} for group in groups]
    fused = None if zero.plain else zero.optimizer in ("adam", "adamw")
    return optimizers.make(zero.optimizer, kept, 1e-3, fused=fused)


class Stages12:
    """The engine with ZeRO of stage 1 or 2."""

    def __init__(self, zero: Zero, ranks: int, optimizer: Any, fakes: Fakes):
        self._zero, self._ranks, self._fakes = zero, ranks, fakes
        self.optimizer = optimizer
        self._groups = [_Group(group, ranks, zero, fakes) for group in optimizer.param_groups]
        self._of = {
            id(parameter): group for group in self._groups for parameter in group.parameters
        }
        self._buffers: list[torch.Tensor] = []
        self._place = self._elements = 0
        self._filled: list[nn.Parameter] = []
        self._last = False
        if not zero.offload_optimizer:
            # the engine prepares the optimizer with gradients that it drops at once
            gradients = [torch.zeros_like(group.master) for group in self._groups]
            del gradients
        else:
            largest = max(one.numel() for group in self._groups for one in group.parameters)
            self._largest = self._groups[0].flat.new_zeros(largest)
        for group in self._groups:
            for parameter in group.parameters:
                parameter.register_post_accumulate_grad_hook(self._became_ready)

    # ── a backward pass ───────────────────────────────────────────────────────────────────────────

    def before_backward(self, last: bool) -> None:
        self._last = last

    def _became_ready(self, parameter: nn.Parameter) -> None:
        if not self._buffers and self._zero.contiguous:
            count = 2 if self._zero.overlap else 1
            kind = parameter.dtype
            self._buffers = [
                torch.empty(self._zero.reduce_bucket, dtype=kind, device=parameter.device)
                for _ in range(count)
            ]
            for buffer in self._buffers:
                self._fakes.decide(buffer, "gradient")
            self._place = 0
        if self._zero.stage == 2 or (self._zero.overlap and self._last):
            self._fill(parameter)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _fill(self, parameter: nn.Parameter) -> None:
        size, limit = parameter.numel(), self._zero.reduce_bucket
        if self._elements + size > limit:
            self._reduce()
            self._place = len(self._buffers) - 1 - self._place if self._buffers else 0
        if self._buffers and size <= limit:
            parameter.grad = (
                self._buffers[self._place].narrow(0, self._elements, size).view(parameter.shape)
            )
        self._filled.append(parameter)
        self._elements += size

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _reduce(self) -> None:
        """Reduce what the bucket holds, beside the backward pass with ``overlap_comm``."""
        with self._fakes.recorder.on(REDUCING if self._zero.overlap else 0):
            self._reduce_bucket()

    def _reduce_bucket(self) -> None:
        filled, self._filled, self._elements = self._filled, [], 0
        if not filled:
            return
        pieces: list[tuple[int, int]] = []
        for parameter in filled:
            for rank in self._of[id(parameter)].ranks_of(parameter):
                if not pieces or pieces[-1] != (id(self._of[id(parameter)]), rank):
                    pieces.append((id(self._of[id(parameter)]), rank))
        if self._zero.reduce_scatter and len(pieces) > 1:
            sizes = sum(parameter.numel() for parameter in filled)
            together = filled[0].new_empty(sizes)
            del together
        for parameter in filled:
            group = self._of[id(parameter)]
            if group.owns(parameter):
                if self._zero.contiguous:
                    group.keep(parameter)
            elif self._zero.stage == 2:
                parameter.grad = None

    def after_backward(self) -> None:
        """Reduce what is left, and drop the buckets."""
        if self._zero.stage == 1:
            if not self._last:
                return
            if not self._zero.overlap:
                for group in self._groups:
                    for parameter in group.parameters:
                        if parameter.grad is not None:
                            self._fill(parameter)
        self._reduce()
        with torch.no_grad():
            for group in self._groups:
                group.gather()
        self._buffers = []
        for group in self._groups:
            for parameter in group.parameters:
                parameter.grad = None

    # ── a step ────────────────────────────────────────────────────────────────────────────────────

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self) -> None:
        if self._zero.offload_optimizer:
            return
        for group in self._groups:
            norms(group.averaged)
        every = self.optimizer.param_groups
        for group in self._groups:
            single = group.gradient()
            group.master.grad = single
            del single
            self.optimizer.param_groups = [group.options]
            self.optimizer.step()
            group.master.grad = None
        self.optimizer.param_groups = every


class _Group:
    """The parameters of one group of the optimizer, in one flat tensor."""

    def __init__(self, options: dict[str, Any], ranks: int, zero: Zero, fakes: Fakes):
        self.options, self._zero, self._ranks = options, zero, ranks
        self.parameters = [one for one in options["params"] if one.requires_grad]
        self._offsets: dict[int, int] = {}
        total = 0
        for parameter in self.parameters:
            self._offsets[id(parameter)] = total
            total += parameter.numel()
        if not total:
            raise CannotPredict(
                "A group of the optimizer has no parameter that is trained.",
                "DeepSpeed divides what is trained among the ranks.",
                "leave the group out",
            )
        align = 2 * ranks
        self._share = -(-total // align) * align // ranks
        with torch.no_grad():
            kind, device = self.parameters[0].dtype, self.parameters[0].device
            self.flat = torch.empty(self._share * ranks, dtype=kind, device=device)
            for parameter in self.parameters:
                start = self._offsets[id(parameter)]
                parameter.data = self.flat.narrow(0, start, parameter.numel()).view(parameter.shape)
            part = self.flat.narrow(0, 0, self._share).clone()
            host = torch.device("cpu")
            self.master = part.to(device=host) if zero.offload_optimizer else part
            self.master = nn.Parameter(self.master.to(torch.float32))
        fakes.decide(self.master, "optimizer")
        options["params"] = [self.master]
        in_order = zero.stage == 1 and not zero.overlap
        self._rank = 0 if in_order else ranks - 1
        self._kept: torch.Tensor | None = None
        self._kept_elements = 0
        self._sums: list[torch.Tensor] = []
        self.averaged: list[torch.Tensor] = []
        self._fakes = fakes

    def ranks_of(self, parameter: nn.Parameter) -> range:
        start = self._offsets[id(parameter)]
        return range(start // self._share, (start + parameter.numel() - 1) // self._share + 1)

    def _most(self, rank: int) -> int:
        return sum(one.numel() for one in self.parameters if rank in self.ranks_of(one))

    def owns(self, parameter: nn.Parameter) -> bool:
        return self._rank in self.ranks_of(parameter)

    def keep(self, parameter: nn.Parameter) -> None:
        """Copy a reduced gradient out of the bucket."""
        if self._zero.offload_optimizer:
            norms([self._part(parameter, parameter.grad)])
            parameter.grad = None
            return
        if self._kept is None:
            self._kept = parameter.new_empty(self._most(self._rank))
            self._fakes.decide(self._kept, "gradient")
            self._kept_elements = 0
        size = parameter.numel()
        parameter.grad = self._kept.narrow(0, self._kept_elements, size).view(parameter.shape)
        self._kept_elements += size

    def gather(self) -> None:
        """Add this micro-batch's gradients to those of the step."""
        if self._zero.offload_optimizer:
            return
        mine = [one for one in self.parameters if self.owns(one)]
        found = [one.grad if one.grad is not None else torch.zeros_like(one) for one in mine]
        if self._sums:
            for total, more in zip(self._sums, found, strict=True):
                total.add_(more)
        else:
            self._sums = found
        self.averaged = [
            self._part(one, total) for one, total in zip(mine, self._sums, strict=True)
        ]
        self._kept = None

    def _part(self, parameter: nn.Parameter, gradient: torch.Tensor) -> torch.Tensor:
        """Return what of a gradient lies within this rank's part."""
        start = self._offsets[id(parameter)] - self._rank * self._share
        first = max(0, -start)
        last = min(parameter.numel(), self._share - start)
        return gradient.reshape(-1).narrow(0, first, last - first)

    def gradient(self) -> torch.Tensor:
        """Return the gradients of this part in float32, and drop the others."""
        whole = self.averaged[0] if len(self.averaged) == 1 else torch.cat(self.averaged)
        single = whole.to(torch.float32)
        if single.numel() < self._share:
            single = nn.functional.pad(single, (0, self._share - single.numel()))
        self._sums, self.averaged = [], []
        self._fakes.decide(single, "gradient")
        return single


def norms(gradients: Sequence[torch.Tensor]) -> None:
    """Take the norm of each gradient in float64."""
    for gradient in gradients:
        wide = gradient.to(torch.float64)
        del wide
