"""Simulate what DeepSpeed's ZeRO of stage 3 allocates on one rank.

By the public source of DeepSpeed 0.19 (``runtime/zero/stage3.py``,
``partitioned_param_coordinator.py``, ``partition_parameters.py``, ``parameter_offload.py``):

- Each rank has its share of the parameters, their gradients, float32 copies and optimizer state, and
  one bucket of ``reduce_bucket_size`` elements from the beginning. Parameters of up to
  ``stage3_param_persistence_threshold`` elements stay whole.
- Parameters of a module are gathered before its forward and its backward pass: one by one into their
  own place, several into a buffer from which each is copied. After the pass they are dropped. The
  first step does exactly this; later ones know the order, gather up to
  ``stage3_prefetch_bucket_size`` elements ahead, and keep what is used again within
  ``stage3_max_reuse_distance`` elements.
- A linear layer keeps its parameter for the backward pass, not the transposed view of it.
- With ``overlap_comm``, which is the default, what is gathered and what is reduced comes from
  streams of its own, whose cached blocks serve nothing else. The blocks are taken to be free as
  soon as they are dropped, although a GPU that lags behind the program frees them later.
- Gradients are copied into the bucket; a full bucket is copied once more to put the ranks' parts
  together, and this rank's are copied into a tensor for all of its gradients.

The model itself is not counted before it is divided: ``zero.Init`` and a model on the host do so.
"""  # noqa: E501

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from ..deepspeed import Zero
from .fakes import Fakes
from .replaced import Replaced
from .zero import GATHERING, REDUCING, norms


class _Linear(torch.autograd.Function):  # type: ignore[misc]  # torch is Any here
    """A linear layer that keeps its parameters themselves for the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, bias: Any) -> Any:
        ctx.save_for_backward(x, weight, bias)
        out = x.matmul(weight.t())
        return out if bias is None else out + bias

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        x, weight, bias = ctx.saved_tensors
        rows = gradient.reshape(-1, gradient.shape[-1])
        back = gradient.matmul(weight) if ctx.needs_input_grad[0] else None
        grown = rows.t().matmul(x.reshape(-1, x.shape[-1])) if ctx.needs_input_grad[1] else None
        summed = rows.sum(0) if bias is not None and ctx.needs_input_grad[2] else None
        return back, grown, summed


class _Before(torch.autograd.Function):  # type: ignore[misc]
    """Calls ``act`` when the backward pass comes to this tensor."""

    @staticmethod
    def forward(ctx: Any, tensor: Any, act: Callable[[], None]) -> Any:
        ctx.act = act
        return tensor.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        ctx.act()
        return gradient, None


@contextlib.contextmanager
def linear_keeps_parameters() -> Iterator[None]:
    replaced = Replaced()
    replaced.change(
        functional, "linear", lambda x, weight, bias=None: _Linear.apply(x, weight, bias)
    )
    try:
        yield
    finally:
        replaced.restore()


class _Parameters(dict[str, Any]):
    """The parameters of a module, which tells ``used`` which of them is looked at."""

    def __init__(self, values: Any, used: Callable[[Any], None]):
        super().__init__(values)
        self._used = used

    def __getitem__(self, name: str) -> Any:
        found = super().__getitem__(name)
        self._used(found)
        return found


class _Share:
    """One parameter: its part of this rank, and whether it is whole now."""

    def __init__(self, parameter: nn.Parameter, ranks: int):
        self.parameter, self.shape = parameter, parameter.shape
        self.elements = parameter.numel()
        self.part = -(-self.elements // ranks)
        self.kind, self.device = parameter.dtype, parameter.device
        self.stays = False
        self.whole = False
        self.coming: torch.Tensor | None = None
        """The buffer into which it is being gathered."""
        self.held: torch.Tensor | None = None
        """The buffer from which it was copied, until its own module asks for it."""
        self.alone = False
        self.users: set[int] = set()
        self.gradient: torch.Tensor | None = None
        self.wanted = -1
        """The last step of the recorded order for which it was gathered."""


class Stage3:
    """The engine with ZeRO of stage 3."""

    def __init__(
        self, zero: Zero, ranks: int, model: nn.Module, optimizer: Any, fakes: Fakes
    ) -> None:
        self._zero, self._ranks, self._fakes = zero, ranks, fakes
        self.optimizer = optimizer
        self._gathering, self._reducing = (GATHERING, REDUCING) if zero.overlap else (0, 0)
        self._shares = {id(one): _Share(one, ranks) for one in model.parameters()}
        self._kind = next(iter(self._shares.values())).kind
        self._divide()
        self._masters()
        self._filled: list[_Share] = []
        self._elements = 0
        self._order: list[nn.Module] = []
        self._known: list[nn.Module] = []
        self._queue: deque[tuple[_Share, int]] = deque()
        self._at = self._available = 0
        self._running: list[nn.Module] = []
        self._left: dict[int, int] = {}
        self._of: dict[int, list[_Share]] = {}
        for module in model.modules():
            own = [self._shares[id(one)] for one in module.parameters(recurse=False)]
            self._of[id(module)] = own
            module.__dict__["_parameters"] = _Parameters(module._parameters, self._used)
            module.register_forward_pre_hook(self._before_forward_of)
            module.register_forward_hook(self._after_forward_of)
        for share in self._shares.values():
            if share.parameter.requires_grad:
                share.parameter.register_post_accumulate_grad_hook(self._became_ready)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _divide(self) -> None:
        zero, persistent = self._zero, 0
        for share in self._shares.values():
            fits = share.elements + persistent <= zero.model_persistence
            if fits and share.elements <= zero.persistence:
                share.stays = True
                persistent += share.elements
            share.parameter.data = self._empty(share)
        self._flat: list[torch.Tensor] = []
        first = next(iter(self._shares.values()))
        if not zero.offload_parameters:
            parts = sum(share.part for share in self._shares.values())
            self._flat.append(torch.empty(parts, dtype=first.kind, device=first.device))
            self._fakes.decide(self._flat[0], "parameter")

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _masters(self) -> None:
        """Make the float32 copies, the bucket and the tensor for all gradients."""
        zero = self._zero
        first = next(iter(self._shares.values()))
        self._groups: list[tuple[dict[str, Any], list[_Share], Any]] = []
        for options in self.optimizer.param_groups:
            shares = [self._shares[id(one)] for one in options["params"] if one.requires_grad]
            options["params"] = []
            for group in self._sub_groups(shares):
                parts = sum(share.part for share in group)
                place = torch.device("cpu") if zero.offload_optimizer else first.device
                if self._kind == torch.float32 and not zero.offload_optimizer and self._flat:
                    # also a copy: the engine compares the device with its name, which differ
                    master = torch.empty(parts, dtype=torch.float32, device=place)
                else:
                    wide = torch.empty(parts, dtype=torch.float32, device=place)
                    master = wide.clone()
                    del wide
                self._groups.append((options, group, master))
        trained = [share for _, group, _ in self._groups for share in group]
        if self._groups and not zero.offload_optimizer:
            # the engine prepares the optimizer with gradients that it drops at once
            largest = max(sum(share.part for share in group) for _, group, _ in self._groups)
            gradients = torch.empty(largest, dtype=torch.float32, device=first.device)
            del gradients
        self._bucket = (
            torch.empty(zero.reduce_bucket, dtype=self._kind, device=first.device)
            if zero.contiguous
            else None
        )
        if self._bucket is not None:
            self._fakes.decide(self._bucket, "gradient")
        if not zero.offload_optimizer:
            parts = sum(share.part for share in trained)
            whole = torch.empty(parts, dtype=self._kind, device=first.device)
            self._fakes.decide(whole, "gradient")
            at = 0
            for share in trained:
                share.gradient = whole.narrow(0, at, share.part)
                at += share.part
        for _, _, master in self._groups:
            self._fakes.decide(master, "optimizer")

    def _sub_groups(self, shares: list[_Share]) -> list[list[_Share]]:
        if sum(share.part for share in shares) <= self._zero.group:
            return [shares] if shares else []
        found: list[list[_Share]] = [[]]
        for share in shares:
            if sum(one.part for one in found[-1]) >= self._zero.group:
                found.append([])
            found[-1].append(share)
        return found

    @staticmethod
    def _empty(share: _Share) -> torch.Tensor:
        return torch.empty(0, dtype=share.kind, device=share.device)

    # ── gathering ─────────────────────────────────────────────────────────────────────────────────

    def before_forward(self) -> None:
        """Begin a micro-batch: the second knows which modules run, in which order."""
        if self._order:
            self._known, self._order = self._order, []
        self._queue.clear()
        for at, module in enumerate(self._known):
            self._queue.extend((share, at) for share in self._of[id(module)])
        for share in self._shares.values():
            share.wanted = -1
        self._at = self._available = 0
        self._running.clear()

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _fetch(self, module: nn.Module) -> None:
        shares = self._of[id(module)]
        if not self._known:
            self._order.append(module)
        self._gather([share for share in shares if not share.whole and share.coming is None])
        for share in shares:
            share.users.add(id(module))
        self._wait(shares)
        for share in shares:
            share.held = None
        if self._known:
            late = {id(share) for share in shares if share.wanted < self._at}
            while self._queue and late:
                share, at = self._queue.popleft()
                share.wanted = at
                late.discard(id(share))
            self._gather_ahead()
        self._at += 1

    def _gather_ahead(self) -> None:
        limit = min(self._zero.live - self._available, self._zero.prefetch)
        ahead: list[_Share] = []
        size = 0
        while self._queue and size < limit:
            share, at = self._queue.popleft()
            share.wanted = max(share.wanted, at)
            if share.whole or share.coming is not None or share in ahead:
                continue
            ahead.append(share)
            size += share.elements
        self._gather(ahead)

    def _gather(self, shares: list[_Share]) -> None:
        if not shares:
            return
        self._available += sum(share.elements for share in shares)
        parts = sum(share.part for share in shares) * self._ranks
        with self._fakes.recorder.on(self._gathering):
            buffer = torch.empty(parts, dtype=shares[0].kind, device=shares[0].device)
        for share in shares:
            share.coming, share.alone = buffer, len(shares) == 1

    def _wait(self, shares: list[_Share]) -> None:
        """Give all parameters that come in the same buffers their places."""
        for buffer in {id(one.coming): one.coming for one in shares if one.coming is not None}:
            for share in self._shares.values():
                if share.coming is None or id(share.coming) != buffer:
                    continue
                if share.alone:
                    whole = share.coming.narrow(0, 0, share.elements).view(share.shape)
                else:
                    with self._fakes.recorder.on(self._gathering):
                        whole = torch.empty(share.shape, dtype=share.kind, device=share.device)
                share.parameter.data = whole
                self._fakes.decide(whole, "parameter")
                share.held, share.coming, share.whole = share.coming, None, True

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _used(self, parameter: Any) -> None:
        """Gather a parameter that another module's code uses; from now on it belongs to both."""
        share = self._shares.get(id(parameter))
        if share is None or share.whole or not self._running:
            return
        module = self._running[-1]
        if share not in self._of[id(module)]:
            self._of[id(module)].append(share)
        if share.coming is None:
            self._gather([share])
        share.users.add(id(module))
        self._wait([share])
        share.held = None

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _release(self, module: nn.Module) -> None:
        shares = list(self._of[id(module)])
        dropped = {id(share) for share in shares}
        if self._known:
            dropped = {
                id(one) for one in shares if not one.stays and one.wanted <= self._at
            } - self._used_soon()
        for share in shares:
            share.users.discard(id(module))
            if id(share) in dropped and share.whole and not share.users:
                self._drop(share)

    def _used_soon(self) -> set[int]:
        """Return the parameters that are used again within the distance of the file."""
        passed, found = 0, set()
        for module in self._known[self._at :]:
            if passed >= self._zero.reuse:
                break
            for share in self._of[id(module)]:
                found.add(id(share))
                passed += share.elements
        return found

    def _drop(self, share: _Share) -> None:
        share.parameter.data = self._empty(share)
        share.whole = False
        self._available -= share.elements

    # ── around each module ────────────────────────────────────────────────────────────────────────

    def _before_forward_of(self, module: nn.Module, inputs: Any) -> Any:
        self._fetch(module)
        self._running.append(module)
        self._left[id(module)] = 0

        def passed() -> None:
            self._left[id(module)] -= 1
            if self._left[id(module)] == 0:
                self._release(module)

        def watched(value: Any) -> Any:
            if isinstance(value, torch.Tensor) and value.requires_grad:
                self._left[id(module)] += 1
                return _Before.apply(value, passed)
            return value

        return tuple(_mapped(watched, value) for value in inputs)

    def _after_forward_of(self, module: nn.Module, _: Any, output: Any) -> Any:
        if self._running:
            self._running.pop()
        self._release(module)
        waiting = [0]

        def come() -> None:
            if waiting[0]:
                waiting[0] -= 1
                self._fetch(module)

        def watched(value: Any) -> Any:
            if isinstance(value, torch.Tensor) and value.requires_grad:
                waiting[0] = 1
                return _Before.apply(value, come)
            return value

        return _mapped(watched, output)

    # ── gradients ─────────────────────────────────────────────────────────────────────────────────

    def before_backward(self, last: bool) -> None:
        pass

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _became_ready(self, parameter: nn.Parameter) -> None:
        share = self._shares[id(parameter)]
        limit = self._zero.reduce_bucket
        if self._elements and self._elements + share.elements > limit:
            self._reduce()
        if self._bucket is not None and self._elements + share.elements <= limit:
            place = self._bucket.narrow(0, self._elements, share.elements)
            parameter.grad = place.view(share.shape)
        self._filled.append(share)
        self._elements += share.elements

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _reduce(self) -> None:
        filled, self._filled, self._elements = self._filled, [], 0
        if not filled:
            return
        if len(filled) > 1 or filled[0].elements % self._ranks:
            parts = sum(share.part for share in filled) * self._ranks
            with self._fakes.recorder.on(self._reducing):
                together = torch.empty(parts, dtype=self._kind, device=filled[0].device)
            del together
        for share in filled:
            share.parameter.grad = None

    def after_backward(self) -> None:
        """Reduce what is left, and drop what no module has dropped."""
        self._reduce()
        with torch.no_grad():
            for share in self._shares.values():
                share.users.clear()
                share.coming = share.held = None
                if share.whole and not share.stays:
                    self._drop(share)

    # ── a step ────────────────────────────────────────────────────────────────────────────────────

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self) -> None:
        for share in self._shares.values():
            if share.whole:
                self._drop(share)
        if not self._zero.offload_optimizer:
            self._update()
        for share in self._shares.values():
            if share.stays:
                parts = share.part * self._ranks
                buffer = torch.empty(parts, dtype=share.kind, device=share.device)
                self._fakes.decide(buffer, "parameter")
                share.parameter.data = buffer.narrow(0, 0, share.elements).view(share.shape)
                share.whole = True
                self._available += share.elements

    def _update(self) -> None:
        for _, group, _ in self._groups:
            norms([share.gradient for share in group if share.gradient is not None])
        every = self.optimizer.param_groups
        for options, group, master in self._groups:
            parts = [share.gradient for share in group if share.gradient is not None]
            whole = torch.cat(parts) if len(parts) > 1 else parts[0]
            master.grad = whole.to(torch.float32)
            self._fakes.decide(master.grad, "gradient")
            del whole
            options["params"] = [master]
            self.optimizer.param_groups = [options]
            self.optimizer.step()
            options["params"] = []
            master.grad = None
        self.optimizer.param_groups = every


def _mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """Return ``value`` with its tensors replaced, in the containers that DeepSpeed looks into."""
    if isinstance(value, (tuple, list)) and type(value) in (tuple, list):
        return type(value)(_mapped(function, part) for part in value)
    if isinstance(value, dict):
        for name, part in list(value.items()):
            value[name] = _mapped(function, part)
        return value
    return function(value)
