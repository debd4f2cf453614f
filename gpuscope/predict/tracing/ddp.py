"""Simulate what ``DistributedDataParallel`` allocates on one rank.

It follows the steps of torch's own reducer:

- When it is made, it broadcasts parameters and buffers in flat copies of up to 250 MiB, two at a time.
- It copies each gradient into a bucket. At first one bucket holds all of them, unless unused
  parameters are looked for. The second forward pass replaces it by buckets of 1 MiB and then
  25 MiB, in the order in which the gradients became ready; with a static graph the third does,
  since the order of the first backward pass is not noted.
- With ``gradient_as_bucket_view`` the gradient becomes a view of its bucket, and its own memory is
  freed. A static graph does this at the end of the first backward pass.
- A communication hook runs as it is written, with a bucket of fake tensors.

NCCL keeps the tensors of a collective that nobody waits for until its watchdog thread has seen that
the collective has ended, and another one starts (:class:`KeptTensors`). Nobody waits for the reduction
of a bucket in this sense, so the first bucket, which is as large as all gradients, may outlive its
replacement until the next backward pass. To replace it, the ranks agree on the new buckets by two
broadcasts. After the first step, which loads kernels and is slow, the watchdog has usually looked
by then, and the bucket is freed at once, as in 60 of 74 measured ranks. With a static graph, whose
second step is quick, it has usually not: the bucket was kept in 14 of 16 ranks.
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_map

from ..trace import Trace

FIRST_BUCKET_BYTES, BUCKET_BYTES = 1 << 20, 25 << 20
BROADCAST_BYTES = 250 << 20
IN_FLIGHT = 2
"""How many flat copies are broadcast at the same time."""
SHELF_SINCE = (2, 8)
"""The first torch in which NCCL keeps tensors itself; before, the allocator delays their reuse."""
_BY_CHANCE = (
    "Two runs of this training may differ by chance: NCCL lets go of tensors that DDP has dropped "
    "either before the next backward pass or after it."
)
KEPT = f"{_BY_CHANCE} The higher amount is predicted."
MAY_KEEP = f"{_BY_CHANCE} Plan for the higher amount."
"""That is when its watchdog thread looks, every 100 ms."""


@dataclass(frozen=True)
class DdpOptions:
    """How the wrapper was made, by the names of its arguments."""

    bucket_cap_mb: float | None = None
    gradient_as_bucket_view: bool = False
    find_unused_parameters: bool = False
    static_graph: bool = False
    broadcast_buffers: bool = True
    init_sync: bool = True

    @property
    def limits(self) -> tuple[int, int]:
        """Return the size from which the first bucket is full, and from which the others are."""
        if self.bucket_cap_mb is None:
            return FIRST_BUCKET_BYTES, BUCKET_BYTES
        size = int(self.bucket_cap_mb * (1 << 20))
        return size, size


def torch_keeps() -> bool:
    """Whether NCCL of this torch keeps tensors of collectives that nobody waits for."""
    return tuple(int(part) for part in torch.__version__.split(".")[:2]) >= SHELF_SINCE


class KeptTensors:
    """The tensors that NCCL keeps although the program has dropped them."""

    def __init__(self, keeps: bool):
        self._keeps = keeps
        self._tensors: list[torch.Tensor] = []
        self._since: dict[int, int] = {}
        self.kept: dict[int, tuple[int, int]] = {}
        """For each block, between which events it was kept by the shelf alone."""
        self._late: dict[int, int] = {}
        self.late: list[tuple[int, int, int]] = []
        """Blocks that are freed in the trace, and between which events they may still be kept."""

    def put(self, tensor: torch.Tensor) -> None:
        if self._keeps:
            self._tensors.append(tensor)

    def take(self, tensor: torch.Tensor) -> None:
        """Drop a tensor whose collective was waited for."""
        self._tensors = [kept for kept in self._tensors if kept is not tensor]

    def dropped(self, tensors: Iterable[torch.Tensor]) -> None:
        """Note that the program drops these tensors now."""
        for tensor in tensors:
            mode, block = _block(tensor)
            if block is not None and any(kept is tensor for kept in self._tensors):
                self._since.setdefault(block, len(mode.recorder.trace.events))

    def dropped_all_but(self, used: torch.Tensor) -> None:
        """Note that a communication hook has dropped what it made, and not its bucket."""
        self.dropped([tensor for tensor in self._tensors if tensor is not used])

    def clear(self) -> None:
        """Drop everything, as at the next collective after the watchdog has looked."""
        if not self._tensors:
            return
        mode, _ = _block(self._tensors[0])
        now = len(mode.recorder.trace.events)
        self._end_late(now)
        self.kept.update({block: (since, now) for block, since in self._since.items()})
        self._late = dict.fromkeys(self._since, now)
        self._since.clear()
        self._tensors.clear()

    def dropped_at_once(self, tensors: Sequence[torch.Tensor]) -> None:
        """Note that the program drops these tensors just after a collective, and NCCL with it."""
        on_shelf = [tensor for tensor in tensors if any(tensor is one for one in self._tensors)]
        self.clear()
        for tensor in on_shelf:
            mode, block = _block(tensor)
            if block is not None:
                self._late[block] = len(mode.recorder.trace.events)

    def _end_late(self, now: int) -> None:
        self.late += [(block, since, now) for block, since in self._late.items()]
        self._late.clear()

    def percent(self, trace: Trace) -> tuple[float, float]:
        """Return by how much the peak may be smaller and larger, by what NCCL alone keeps.

        Both outcomes are added to the trace.
        """
        self.clear()
        self._end_late(len(trace.events))
        sooner = {block: since for block, (since, _) in self.kept.items()}
        later = {block: end for block, _, end in self.late}
        trace.frees_instead += [moments for moments in (sooner, later) if moments]
        most = _peak(trace) if trace.frees_instead else 0
        if not most:
            return 0.0, 0.0
        less, more = (
            _peak(trace.freed_instead(moments)) if moments else most for moments in (sooner, later)
        )
        return round(100 * (most - less) / most, 1), round(100 * (more - most) / most, 1)


@dataclass
class _Bucket:
    """One bucket; communication hooks call its methods as those of torch's ``GradBucket``."""

    number: int
    flat: torch.Tensor | None
    """None for a sparse gradient, which is reduced as it is."""
    variables: list[torch.nn.Parameter]
    last: bool
    pending: set[int] = field(default_factory=set)
    future: Any = None

    def begin(self) -> None:
        self.pending = {id(variable) for variable in self.variables}

    def view(self, variable: torch.nn.Parameter) -> torch.Tensor:
        """Return the part of the bucket for one gradient, in the layout of the parameter."""
        assert self.flat is not None
        offset = 0
        for other in self.variables:
            if other is variable:
                break
            offset += other.numel()
        return self.flat.as_strided(variable.shape, variable.stride(), offset)

    def buffer(self) -> torch.Tensor | None:
        return self.flat

    def set_buffer(self, tensor: torch.Tensor) -> None:
        self.flat = tensor

    def index(self) -> int:
        return self.number

    def is_last(self) -> bool:
        return self.last

    def parameters(self) -> list[torch.nn.Parameter]:
        return self.variables

    def gradients(self) -> list[torch.Tensor]:
        return [self.view(variable) for variable in self.variables]


class Reducer:
    """Buckets for the gradients of ``module``, filled by hooks of its parameters."""

    def __init__(self, module: torch.nn.Module, options: DdpOptions, shelf: KeptTensors):
        self._module, self._options, self._shelf = module, options, shelf
        ignored = getattr(module, "_ddp_params_and_buffers_to_ignore", ())
        self._sparse = {
            id(part.weight)
            for part in module.modules()
            if isinstance(part, (torch.nn.Embedding, torch.nn.EmbeddingBag)) and part.sparse
        }
        named = [item for item in module.named_parameters() if item[0] not in ignored]
        self._buffers = [part for name, part in module.named_buffers() if name not in ignored]
        self._parameters = [parameter for _, parameter in named if parameter.requires_grad]
        self.hook: Callable[[Any], Any] | None = None
        self._static = options.static_graph
        self._ready: dict[int, torch.nn.Parameter] = {}
        self._rebuilt = self._expects = self._delays = False
        self._iterations = self._next = 0
        if options.init_sync:
            coalesced([*(parameter for _, parameter in named), *self._buffers])
        limits = options.limits if options.find_unused_parameters else (1 << 62, 1 << 62)
        self.buckets: list[_Bucket] = []
        self._make(list(reversed(self._assigned(self._parameters, limits))))
        for parameter in self._parameters:
            parameter.register_post_accumulate_grad_hook(self._became_ready)

    def set_static(self) -> None:
        self._static = True

    # ── the buckets ───────────────────────────────────────────────────────────────────────────────

    def _assigned(
        self, parameters: Sequence[torch.nn.Parameter], limits: tuple[int, int]
    ) -> list[list[torch.nn.Parameter]]:
        """Return the parameters of each bucket: a bucket is full once it reaches its limit."""
        done: list[list[torch.nn.Parameter]] = []
        filling: dict[torch.dtype, list[torch.nn.Parameter]] = {}
        full: set[torch.dtype] = set()
        for parameter in parameters:
            if id(parameter) in self._sparse:
                done.append([parameter])
                continue
            kind = parameter.dtype
            group = filling.setdefault(kind, [])
            group.append(parameter)
            if sum(one.nbytes for one in group) >= limits[kind in full]:
                done.append(filling.pop(kind))
                full.add(kind)
        place = {id(parameter): number for number, parameter in enumerate(parameters)}
        return sorted([*done, *filling.values()], key=lambda group: place[id(group[0])])

    def _make(self, groups: list[list[torch.nn.Parameter]]) -> None:
        self.buckets.clear()
        self._of: dict[int, _Bucket] = {}
        for number, group in enumerate(groups):
            first = group[0]
            flat = None
            if id(first) not in self._sparse:
                size = sum(parameter.numel() for parameter in group)
                flat = torch.empty(size, dtype=first.dtype, device=first.device)
                mode = getattr(flat, "fake_mode", None)
                if mode is not None:
                    mode.decide(flat, "gradient")
            bucket = _Bucket(number, flat, group, number == len(groups) - 1)
            self.buckets.append(bucket)
            self._of.update({id(parameter): bucket for parameter in group})
            if self._options.gradient_as_bucket_view and flat is not None:
                for parameter in group:
                    if parameter.grad is not None:
                        parameter.grad = bucket.view(parameter)

    def _rebuild(self) -> None:
        if self._rebuilt or not self._ready:
            return
        if self._options.find_unused_parameters and not self._static:
            return
        self._rebuilt = True
        drop = self._shelf.dropped if self._static else self._shelf.dropped_at_once
        drop([bucket.flat for bucket in self.buckets if bucket.flat is not None])
        groups = self._assigned(list(self._ready.values()), self._options.limits)
        self._ready.clear()
        self._make(groups)

    # ── a forward pass ────────────────────────────────────────────────────────────────────────────

    def before_forward(self) -> None:
        if torch.is_grad_enabled():
            self._rebuild()
        if self._options.broadcast_buffers and self._buffers:
            coalesced(self._buffers)

    def after_forward(self, outputs: Any, synchronised: bool) -> Any:
        """Return what the wrapper returns, and expect gradients from now on."""
        self._expects = synchronised and torch.is_grad_enabled()
        if not self._expects:
            return outputs
        self._iterations += 1
        self._next = 0
        for bucket in self.buckets:
            bucket.begin()
        first_of_static = self._static and self._iterations == 1
        self._delays = first_of_static
        if self._static and self.buckets:
            mode, block = _block(self.buckets[0].flat)
            if block is not None:
                mode.recorder.next_differs = not self._rebuilt
        if first_of_static or (self._options.find_unused_parameters and not self._static):
            return tree_map(self._passed_on, outputs)
        return outputs

    def _passed_on(self, output: Any) -> Any:
        if not isinstance(output, torch.Tensor) or output.grad_fn is None:
            return output
        copy = output.clone()
        if self._delays:
            copy.register_hook(self._at_the_end)
        return copy

    # ── a backward pass ───────────────────────────────────────────────────────────────────────────

    def _at_the_end(self, _: torch.Tensor) -> None:
        torch.autograd.Variable._execution_engine.queue_callback(self._reduce_all)

    def _reduce_all(self) -> None:
        if self._delays:
            self._delays = False
            for parameter in self._parameters:
                if parameter.grad is not None:
                    self._fill(parameter)

    def _became_ready(self, parameter: torch.nn.Parameter) -> None:
        if not self._expects:
            return
        if self._delays:
            return
        if not self._rebuilt:
            self._ready.setdefault(id(parameter), parameter)
        self._fill(parameter)

    def _fill(self, parameter: torch.nn.Parameter) -> None:
        bucket = self._of[id(parameter)]
        if self._options.gradient_as_bucket_view and bucket.flat is not None:
            gradient, place = parameter.grad, bucket.flat.untyped_storage()._cdata
            if gradient is None or gradient.untyped_storage()._cdata != place:
                parameter.grad = bucket.view(parameter)
        bucket.pending.discard(id(parameter))
        while self._next < len(self.buckets) and not self.buckets[self._next].pending:
            self._reduce(self.buckets[self._next])
            self._next += 1
            if self._next == len(self.buckets):
                self._expects = False

    def _reduce(self, bucket: _Bucket) -> None:
        if self._next == 0:
            self._shelf.clear()
        if bucket.flat is None:
            return
        if self.hook is None:
            self._shelf.put(bucket.flat)
            return
        with torch.no_grad():
            bucket.future = self.hook(bucket)
        self._shelf.dropped_all_but(bucket.flat)


def coalesced(tensors: Sequence[torch.Tensor]) -> None:
    """Allocate the flat copies in which ``tensors`` are broadcast."""
    groups: list[list[torch.Tensor]] = []
    filling: dict[torch.dtype, list[torch.Tensor]] = {}
    for tensor in tensors:
        group = filling.setdefault(tensor.dtype, [])
        group.append(tensor)
        if sum(one.nbytes for one in group) >= BROADCAST_BYTES:
            groups.append(filling.pop(tensor.dtype))
    flying: list[torch.Tensor] = []
    for group in [*groups, *filling.values()]:
        if len(group) == 1:
            continue  # it is already flat
        if len(flying) == IN_FLIGHT:
            flying.pop(0)
        size = sum(tensor.numel() for tensor in group)
        flying.append(torch.empty(size, dtype=group[0].dtype, device=group[0].device))


def _peak(trace: Trace) -> int:
    """Return the most bytes that are live at once."""
    live = most = 0
    for event in trace.events:
        live += trace.sizes[event] if event >= 0 else -trace.sizes[~event]
        most = max(most, live)
    return most


def _block(tensor: torch.Tensor | None) -> tuple[Any, int | None]:
    """Return the mode that made a fake tensor, and the tensor's block."""
    mode = getattr(tensor, "fake_mode", None)
    return mode, None if mode is None else mode.block(tensor)
