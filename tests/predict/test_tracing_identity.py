"""Fake tensors ask for the same blocks as real ones.

The same training on the CPU, with the CPU's own kernels, asks for them in the same order and gives
them back at the same moments.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils.checkpoint import checkpoint as recompute  # noqa: E402

from gpuscope.predict.request import Request  # noqa: E402
from gpuscope.predict.tracing import steps  # noqa: E402

SMALL = 512
"""Bytes below which blocks are left out: counters that live on the host even when the training does
not.
"""


class Block(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, width)
        self.into = nn.Linear(width, 3 * width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        parts = self.into(self.norm(x)).view(*x.shape[:2], 3, 4, -1).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)
        weights = torch.softmax(query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5, dim=-1)
        return x + self.mlp(x + self.out((weights @ value).transpose(1, 2).reshape(x.shape)))


class TinyGpt(nn.Module):
    def __init__(self, again: bool, reentrant: bool):
        super().__init__()
        self.words = nn.Embedding(300, 64)
        self.blocks = nn.ModuleList(Block(64) for _ in range(3))
        self.again, self.reentrant = again, reentrant

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        for block in self.blocks:
            x = recompute(block, x, use_reentrant=self.reentrant) if self.again else block(x)
        return functional.linear(x, self.words.weight)


class TinyConv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, 2, padding=1)
        self.norm, self.head = nn.BatchNorm2d(16), nn.Linear(16 * 64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.second(functional.relu(self.norm(self.first(x)))).flatten(1))


def _classes(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs.flatten(0, -2), targets.flatten())


def _factory(make: Callable[[], nn.Module], tokens: bool, adam: bool = True) -> Callable[..., Any]:
    def factory(batch: int, device: Any) -> Any:
        model = make().to(device)
        kind = torch.optim.AdamW if adam else torch.optim.SGD
        optimizer = kind(model.parameters(), lr=0.01, foreach=True)
        shape = (batch, 32) if tokens else (batch, 3, 16, 16)
        inputs = (
            torch.randint(300, shape, device=device)
            if tokens
            else torch.randn(shape, device=device)
        )
        targets = torch.randint(10, (batch, 32) if tokens else (batch,), device=device)
        return model, optimizer, lambda: _classes(model(inputs), targets)

    return factory


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(768, 256), nn.ReLU(), nn.Linear(256, 10))


mlp = _factory(_mlp, tokens=False)
mlp_sgd = _factory(_mlp, tokens=False, adam=False)
gpt = _factory(lambda: TinyGpt(False, False), tokens=True)
gpt_again = _factory(lambda: TinyGpt(True, False), tokens=True)
gpt_reentrant = _factory(lambda: TinyGpt(True, True), tokens=True)
conv = _factory(TinyConv, tokens=False)


class Recorded(TorchDispatchMode):
    """The sizes of real storages, as they come (+) and go (−).

    Each has its number in the order in which they came.
    """

    def __init__(self) -> None:
        super().__init__()
        self.events: list[tuple[int, int]] = []
        self._live: dict[int, Any] = {}
        self._made = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for part in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(part, Tensor):
                self._hold(part)
        return out

    def _hold(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._live or size < SMALL:
            return

        number = self._made
        self._made += 1

        def gone(_: Any) -> None:
            del self._live[key]
            self.events.append((-size, number))

        self._live[key] = weakref.ref(storage, gone)
        self.events.append((size, number))


def _ordered(events: list[tuple[int, int]]) -> list[int]:
    """Sizes.

    What goes one right after the other, which is the same for an allocator in any order, goes in
    the order in which it came: a trace has it so.
    """
    found: list[int] = []
    gone: list[tuple[int, int]] = []
    for size, number in [*events, (0, -1)]:
        if size < 0:
            gone.append((number, size))
            continue
        found += [freed for _, freed in sorted(gone)]
        found.append(size)
        gone = []
    return found[:-1]


def _real(factory: Callable[..., Any], accumulate: int) -> list[int]:
    with Recorded() as recorded:
        _model, optimizer, forward = factory(batch=4, device="cpu")
        recorded.events.clear()
        for _ in range(2):
            optimizer.zero_grad(set_to_none=True)
            total = None
            for _ in range(accumulate):
                loss = forward()
                loss = loss / accumulate if accumulate > 1 else loss
                loss.backward()
                total = loss.detach() if total is None else total + loss.detach()
            optimizer.step()
        return _ordered(recorded.events)  # before what is local here is thrown away


@pytest.mark.parametrize(
    ("name", "accumulate"),
    [
        ("mlp", 1),
        ("mlp_sgd", 1),
        ("gpt", 1),
        pytest.param("gpt_again", 2, marks=pytest.mark.slow),
        pytest.param("gpt_reentrant", 1, marks=pytest.mark.slow),
        ("conv", 1),
        pytest.param("conv", 2, marks=pytest.mark.slow),
    ],
)
def test_fake_and_real_tensors_ask_for_the_same(name: str, accumulate: int) -> None:
    real = _real(globals()[name], accumulate)
    request = Request(f"{__name__}:{name}", batch=4, accumulate=accumulate, steps=2)
    trace = steps.trace(request, emulate=False).trace
    first, last = (
        next(mark.at for mark in trace.marks if mark.name == mark_name)
        for mark_name in ("step 1", "end")
    )
    fake = []
    for event in trace.events[first:last]:
        size = trace.sizes[event] if event >= 0 else -trace.sizes[~event]
        if abs(size) >= SMALL:
            fake.append((size, event if event >= 0 else ~event))
    assert len(real) > 20
    assert _ordered(fake) == real


def test_a_copied_step_is_what_tracing_it_would_have_given(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("gpt_again", "conv"):
        request = Request(f"{__name__}:{name}", batch=4, steps=4)
        copied = steps.trace(request, emulate=False).trace
        monkeypatch.setattr(steps, "TRACED_STEPS", 4)
        traced = steps.trace(request, emulate=False).trace
        monkeypatch.undo()

        def seen(trace: Any) -> list[tuple[int, Any]]:
            return [
                (trace.sizes[event], trace.owner(event))
                if event >= 0
                else (-trace.sizes[~event], None)
                for event in trace.events
            ]

        assert seen(copied) == seen(traced)
        assert copied.marks == traced.marks
