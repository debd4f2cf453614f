"""One training leaves nothing wrong in the process that traced it.

The child traces many.
"""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from gpuscope.predict.child import Tracer  # noqa: E402
from gpuscope.predict.request import Request, Traced  # noqa: E402
from gpuscope.predict.tracing import steps, switches  # noqa: E402

pytestmark = pytest.mark.slow

PLAIN, SWITCHING = (f"tests.predict.switching_factories:{name}" for name in ("plain", "switching"))
NUMBERS = 64 * 64 + 64


def sizes(traced: Traced, operation: str) -> set[int]:
    trace = traced.trace
    return {
        size for block, size in enumerate(trace.sizes) if trace.owner(block).operation == operation
    }


def held(traced: Traced) -> int:
    trace = traced.trace
    return sum(
        size for block, size in enumerate(trace.sizes) if trace.owner(block).category == "parameter"
    )


def test_what_a_training_sets_is_gone_for_the_next_and_what_its_module_sets_is_set_anew(
    tracer: Tracer,
) -> None:
    plain = Request("mlp-tiny", batch=2)
    first = tracer.trace(plain)
    child = tracer._process
    before = tracer.trace(Request(PLAIN, batch=2))
    switched = tracer.trace(Request(SWITCHING, batch=2))
    after, again = (
        tracer.trace(Request(PLAIN, batch=2, seed=1)),
        tracer.trace(Request("mlp-tiny", batch=2, seed=1)),
    )
    assert tracer._process is child
    assert held(switched) == 2 * NUMBERS
    assert [one.fraction for one in (first, before, switched, after)] == [None, 0.75, 0.5, 0.75]
    assert held(before) == held(after) == 8 * NUMBERS  # float64, which importing the module has set
    assert before.trace == after.trace
    assert first.trace == again.trace


def test_switches_hooks_and_modes_are_as_before_whatever_ends_a_training() -> None:
    hooks = torch.nn.modules.module._global_forward_hooks
    before = (switches._read(), dict(hooks))
    steps.trace(Request(SWITCHING, batch=2))
    assert (switches._read(), dict(hooks)) == before
    assert before[0].keys() == switches._SWITCHES.keys()
    with pytest.raises(RuntimeError, match="in the middle"):
        _ends_in_the_middle()
    assert (switches._read(), dict(hooks)) == before


def _ends_in_the_middle() -> None:
    with switches.restored_after():
        torch.use_deterministic_algorithms(True)
        raise RuntimeError("in the middle")


def rows(batch: int, device: Any) -> Any:
    """A factory with very many rows, and attention in halves.

    There are so many rows that the gradients of the norms' weights may be summed up in two steps.
    """
    layer = torch.nn.LayerNorm(WIDE).to(device)
    scale = torch.nn.Parameter(torch.ones(WIDE, device=device))
    layer.register_parameter("scale", scale)
    heads = torch.randn(2, 4, 64, 64, device=device, dtype=torch.bfloat16)

    def loss() -> Any:
        x = torch.randn(batch, WIDE, device=device)
        normed = (
            torch.nn.functional.rms_norm(x, (WIDE,), scale) if hasattr(torch.nn, "RMSNorm") else x
        )
        wanted = (heads * scale.sum()).requires_grad_()
        seen = torch.nn.functional.scaled_dot_product_attention(wanted, wanted, wanted)
        return layer(normed).square().mean() + seen.float().mean()

    return layer, torch.optim.SGD(layer.parameters(), lr=0.1), loss


WIDE, ROWS = 1920, 70_000


def test_each_request_has_the_kernels_of_its_own_architecture(tracer: Tracer) -> None:
    # An H200 has 132 multiprocessors, an A100 108: 60 blocks of columns are fewer than half of the
    # first.
    partial = -(-ROWS // 32)
    partial = min((32 << 10) // (WIDE // 32), partial) * WIDE * 4
    for architecture, two_steps, attention in (
        ("9.0", True, "cudnn"),
        ("8.0", False, "flash"),
        ("9.0", True, "cudnn"),
    ):
        traced = tracer.trace(
            Request(f"{__name__}:rows", batch=ROWS, steps=1, architecture=architecture), 120
        )
        assert (partial in sizes(traced, "native_layer_norm_backward")) is two_steps
        operations = {owner.operation for owner in traced.trace.owner_table}
        assert f"_scaled_dot_product_{attention}_attention" in operations
        if hasattr(torch.ops.aten, "_fused_rms_norm"):
            assert (partial in sizes(traced, "new_empty")) is two_steps
