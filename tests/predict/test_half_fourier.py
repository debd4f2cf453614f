"""Fourier transforms of half precision are traced as a GPU computes them."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from gpuscope.predict.child import Tracer  # noqa: E402
from gpuscope.predict.request import CannotPredict, Request  # noqa: E402
from gpuscope.predict.tracing import half_fourier  # noqa: E402
from gpuscope.predict.tracing.fakes import DEVICE  # noqa: E402

ODD = "tests.predict.odd_factories"
ONE: list[dict[str, Any]] = [{}, {"n": 10}, {"n": 4}, {"n": 5, "dim": 0}, {"dim": 1}]
MANY: list[dict[str, Any]] = [{}, {"s": (10, 4)}, {"s": (3, 5), "dim": (0, 1)}, {"dim": (2, 0)}]


@pytest.mark.parametrize("function", half_fourier.INSTEAD, ids=lambda one: one.__name__)
@pytest.mark.parametrize("complex_numbers", [False, True])
def test_a_transform_has_the_shape_that_torch_gives_it(
    monkeypatch: pytest.MonkeyPatch, function: Any, complex_numbers: bool
) -> None:
    """In float32, in which a CPU computes them, too."""
    monkeypatch.setattr(half_fourier, "_HALVES", (torch.float32, torch.complex64))
    monkeypatch.setattr(half_fourier, "DEVICE", torch.device("cpu"))
    if complex_numbers and function.__name__.startswith(("fft_rfft", "fft_ihfft")):
        pytest.skip("it takes real numbers only")
    monkeypatch.setattr(torch, "complex32", torch.complex64)
    x = torch.randn(4, 6, 8, dtype=torch.complex64 if complex_numbers else torch.float32)
    instead = half_fourier.INSTEAD[function]
    for given in MANY if function.__name__[-1] in "2n" else ONE:
        wanted = function(x, **given)
        made = instead(torch.no_grad(), function, (x,), given)
        assert (made.shape, made.dtype) == (wanted.shape, wanted.dtype), given


def test_a_transform_of_a_power_of_two_is_traced_in_half_precision(tracer: Tracer) -> None:
    batch = 4096
    traced = tracer.trace(Request(f"{ODD}:transforms", batch=batch, amp="fp16"), 60)
    assert batch * 33 * torch.complex32.itemsize in traced.trace.sizes
    assert batch * 33 * torch.complex64.itemsize not in traced.trace.sizes


@pytest.mark.parametrize(
    ("factory", "amp", "why"),
    [
        ("transforms_odd_sizes", "fp16", "sizes of powers of two, and gets 60"),
        ("transforms", "bf16", "Unsupported dtype BFloat16"),
        ("mixes_frequencies", "fp16", "mm has no kernel for complex32"),
    ],
)
def test_a_transform_that_a_gpu_refuses_is_told_with_its_line(
    tracer: Tracer, factory: str, amp: str, why: str
) -> None:
    with pytest.raises(CannotPredict) as caught:
        tracer.trace(Request(f"{ODD}:{factory}", amp=amp), 60)
    assert "fails on a GPU in its first step (" in caught.value.what
    assert "odd_factories.py:" in caught.value.what
    assert why in caught.value.why
    assert "x.float()" in caught.value.next


def test_a_tensor_of_the_host_or_of_float32_is_left_to_torch() -> None:
    x = torch.randn(4, 6)
    assert x.device != DEVICE
    for function, instead in half_fourier.INSTEAD.items():
        if function.__name__[-1] not in "2n":
            assert torch.equal(instead(None, function, (x,), {}), function(x))
