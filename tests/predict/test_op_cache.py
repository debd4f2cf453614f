"""Answers from memory are torch's own.

The trace is the same as without, and the second time torch is not asked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from gpuscope.predict.request import Request, Traced  # noqa: E402
from gpuscope.predict.tracing import op_cache, steps  # noqa: E402
from gpuscope.predict.tracing.fakes import DEVICE, Fakes  # noqa: E402
from gpuscope.predict.tracing.op_cache import Quick  # noqa: E402
from gpuscope.predict.tracing.recorder import Recorder  # noqa: E402

pytestmark = pytest.mark.slow


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The operators that torch was asked about, from a memory that is empty."""
    names: list[Any] = []
    plain = FakeTensorMode.dispatch

    def dispatch(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        names.append(func)
        return plain(self, func, types, args, kwargs or {})

    monkeypatch.setattr(FakeTensorMode, "dispatch", dispatch)
    monkeypatch.setattr(Quick, "recipes", {})
    return names


def mode() -> Quick:
    return Quick(Recorder(), {}, {})


def numbers(*shape: int) -> Any:
    return torch.empty(shape, device=DEVICE)


def facts(result: Any) -> list[Any]:
    """What is seen of tensors from outside."""
    results = result if isinstance(result, (tuple, list)) else [result]
    return [
        (
            one.shape,
            one.stride(),
            one.storage_offset(),
            one.dtype,
            one.device,
            one.untyped_storage().nbytes(),
        )
        for one in results
    ]


# ── whole trainings ───────────────────────────────────────────────────────────────────────────────


def recurrent(batch: int, device: Any) -> Any:
    """Steps of a cell, picked one by one out of a sequence."""
    cell, x = torch.nn.GRUCell(16, 32).to(device), torch.randn(batch, 9, 16, device=device)

    def loss() -> Any:
        state = None
        for at in range(9):
            state = cell(x[:, at], state)
        return torch.stack([state, state.flip(0)]).square().mean()

    return cell, torch.optim.Adam(cell.parameters()), loss


def convolved(batch: int, device: Any) -> Any:
    layers = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(inplace=True)
    )
    model, x = layers.to(device), torch.randn(batch, 3, 16, 16, device=device)
    half = batch // 2

    def loss() -> Any:
        left, right = model(x).split([half, batch - half])
        return left.mean() + (right[right.detach() > 0]).mean()

    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), loss


def in_order(traced: Traced) -> Any:
    """Return a trace with blocks that are freed together in the order of their numbers.

    autocast frees its casts in the order of their addresses.
    """
    trace, events, freed = traced.trace, [], []
    for event in [*trace.events, 0]:
        if event < 0:
            freed.append(event)
            continue
        events += [*sorted(freed), event]
        freed = []
    return trace.sizes, trace.owners, trace.owner_table, trace.marks, events, traced.doubts


@pytest.mark.parametrize(
    "request_",
    [
        Request("gpt-tiny", batch=4, amp="bf16", checkpoint=1),
        Request("conv-small", batch=4, optimizer="sgd", steps=4),
        Request(f"{__name__}:recurrent", batch=4, fused=True),
        Request(f"{__name__}:convolved", batch=5),
    ],
    ids=lambda request: f"{request.model.rpartition(':')[2]} {request.amp}",
)
def test_a_training_is_traced_as_torch_alone_would_have_it(
    request_: Request, asked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = in_order(steps.trace(request_, emulate=False))
    asked.clear()
    again = in_order(steps.trace(request_, emulate=False))
    few = len(asked)
    monkeypatch.setattr(steps, "Quick", Fakes)
    asked.clear()
    truth = in_order(steps.trace(request_, emulate=False))
    assert first == again == truth
    assert few < len(asked) / 8


def test_the_cpus_own_kernels_are_traced_after_cudas_too() -> None:
    """A trace for CUDA replaces rules and kernels of the process; the next one may be of a CPU."""
    request = Request(f"{__name__}:recurrent", batch=4, amp="bf16")
    plain = in_order(steps.trace(request, emulate=False))
    cuda = in_order(steps.trace(request))
    assert in_order(steps.trace(request, emulate=False)) == plain != cuda


# ── one operator ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x @ x.t(),
        lambda x: x.t().contiguous(),
        lambda x: x.split(2),
        lambda x: x.chunk(3, dim=1),
        lambda x: x.to(torch.float16),
        lambda x: x.add_(1),
        lambda x: torch.max(x, dim=0),
        lambda x: x[:, None].expand(6, 4, 8),
        lambda x: x.unbind(),
        lambda x: torch.softmax(x, dim=1),
        lambda x: x.new_zeros(3),
        lambda x: x[torch.zeros(5, dtype=torch.int64, device=DEVICE)],
    ],
)
def test_a_result_from_memory_looks_like_the_first(
    call: Callable[[Any], Any], asked: list[Any]
) -> None:
    def result() -> tuple[list[Any], list[bool]]:
        with mode():
            x = numbers(6, 8)
            out = call(x)
            parts = out if isinstance(out, (tuple, list)) else [out]
            shared = [part.untyped_storage()._cdata == x.untyped_storage()._cdata for part in parts]
            return facts(out), shared

    first = result()
    asked.clear()
    assert result() == first
    assert not asked


def test_a_view_from_memory_is_of_its_own_tensor(asked: list[Any]) -> None:
    """Rows differ by where they begin alone, so that the third need not be asked for."""
    with mode():
        one, other = numbers(4, 6)[1:], numbers(5, 6)[2:]
        second, first = one[1], one[0]
        asked.clear()
        third = other[1]
    assert not asked
    assert [row.storage_offset() for row in (first, second, third)] == [6, 12, 18]
    assert (
        third.untyped_storage()._cdata
        == other.untyped_storage()._cdata
        != one.untyped_storage()._cdata
    )


def test_what_decides_a_result_is_part_of_its_key() -> None:
    with mode():
        x, whole = numbers(4), torch.ones(4, dtype=torch.int64, device=DEVICE)
        for _ in range(2):
            assert (whole * 2).dtype == torch.int64
            assert (whole * 2.0).dtype == torch.float32
            assert torch.full((2,), True, device=DEVICE).dtype == torch.bool
            assert torch.full((2,), 1, device=DEVICE).dtype == torch.int64
            assert (x + torch.empty(4, dtype=torch.float64, device=DEVICE)).dtype == torch.float64
            assert numbers(4, 2).t().clone().stride() != numbers(2, 4).clone().stride()
            assert torch.empty(4, device=DEVICE).device != torch.empty(4, device="cpu").device
        before = torch.get_default_dtype()
        try:
            torch.set_default_dtype(torch.float64)
            assert torch.zeros(3, device=DEVICE).dtype == torch.float64
            assert (whole * 2.0).dtype == torch.float64
        finally:
            torch.set_default_dtype(before)


def test_what_changes_a_tensor_or_depends_on_values_is_torchs_each_time(asked: list[Any]) -> None:
    with mode():
        for _ in range(2):
            asked.clear()
            x = numbers(4, 6)
            x.resize_(30)
            assert x.shape == (30,)
            assert asked.count(torch.ops.aten.resize_.default) == 1
            y = numbers(4, 6)
            y.t_()
            assert y.shape == (6, 4)
            row = numbers(4, 6)[1].as_strided((2,), (1,))
            assert row.storage_offset() == 6
        with pytest.raises(Exception, match=r"(?i)nonzero|data-dependent|dynamic"):
            Quick.dispatch(mode(), torch.ops.aten.nonzero.default, (), (x,), {})


def test_the_memory_has_an_end(asked: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(op_cache, "MOST_RECIPES", 10)
    with mode():
        for size in range(1, 60):
            assert (numbers(size) * 2).shape == (size,)
    assert len(Quick.recipes) <= 10


def test_blocks_that_are_freed_together_stand_in_the_order_they_were_made_in() -> None:
    recorder = Recorder()
    recorder.mark("forward")
    one, two, three, four = (recorder.allocate(512, "empty") for _ in range(4))
    recorder.free(three)
    recorder.free(one)
    recorder.mark("backward")
    recorder.free(four)
    recorder.free(two)
    assert recorder.finish().events == [one, two, three, four, ~one, ~three, ~two, ~four]
