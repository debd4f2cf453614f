"""Attention runs on the right kernel, and its backward pass takes the right sizes.

They were recorded on an H200, or are what the kernels' sources say of other GPUs and shapes.
"""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from gpuscope.predict.child import Tracer  # noqa: E402
from gpuscope.predict.request import Request, Traced  # noqa: E402
from gpuscope.predict.tracing.attention import Backward  # noqa: E402

pytestmark = pytest.mark.slow

H200, A100, RTX_4090 = ((9, 0), (132, 2048)), ((8, 0), (108, 2048)), ((8, 9), (128, 1536))


def attention(
    query: tuple[int, ...], heads: int, device: Any, mask: Any = None, dtype: Any = None, **how: Any
) -> Any:
    """``query``: samples, heads, tokens, numbers of a head; ``heads``: of keys and values.

    They lie by tokens, as a layer makes them.
    """
    samples, many, tokens, head = query
    model = torch.nn.Linear(1, 1, bias=False).to(device)
    shapes = [(samples, tokens, count, head) for count in (many, heads, heads)]
    parts = [torch.randn(shape, device=device, dtype=dtype).transpose(1, 2) for shape in shapes]

    def loss() -> Any:
        given = [(part * model.weight.to(part.dtype)) for part in parts]
        seen = torch.nn.functional.scaled_dot_product_attention(*given, attn_mask=mask, **how)
        return (seen.transpose(1, 2).flatten(2) * 2).float().sum()

    return model, torch.optim.SGD(model.parameters(), lr=0.1), loss


def alike(batch: int, device: Any) -> Any:
    return attention((batch, 16, 768, 96), 16, device, dtype=torch.bfloat16)


def grouped(batch: int, device: Any) -> Any:
    return attention((batch, 12, 200, 160), 3, device, dtype=torch.bfloat16, enable_gqa=True)


def broadcast(batch: int, device: Any) -> Any:
    """One head of keys for all, which is not said by ``enable_gqa``."""
    return attention((batch, 12, 200, 64), 1, device, dtype=torch.bfloat16)


def exact(batch: int, device: Any) -> Any:
    torch.use_deterministic_algorithms(True)
    return grouped(batch, device)


def over_heads(batch: int, device: Any) -> Any:
    """A mask of three dimensions, as slopes over distances make it."""
    mask = torch.zeros(12, 640, 640, device=device, dtype=torch.bfloat16)
    return attention((batch, 12, 640, 64), 12, device, mask, torch.bfloat16)


def over_all(batch: int, device: Any) -> Any:
    mask = torch.zeros(1, 12, 640, 640, device=device, dtype=torch.bfloat16)
    return attention((batch, 12, 640, 64), 12, device, mask, torch.bfloat16)


def single(batch: int, device: Any) -> Any:
    return attention((batch, 12, 640, 64), 12, device)


def _by_distance(batch: int, device: Any, lie: Any) -> Any:
    """A bias of each head that is trained; ``lie`` says how it lies in memory."""
    bias = lie(torch.zeros(640, 640, 12, device=device, dtype=torch.bfloat16).requires_grad_())
    return attention((batch, 12, 640, 64), 12, device, bias.unsqueeze(0), torch.bfloat16)


def trained(batch: int, device: Any) -> Any:
    return _by_distance(batch, device, lambda bias: bias.permute(2, 0, 1).contiguous())


def trained_and_turned(batch: int, device: Any) -> Any:
    return _by_distance(batch, device, lambda bias: bias.permute(2, 0, 1))


def backward(
    tracer: Tracer, name: str, batch: int, architecture: str
) -> tuple[set[str], list[int]]:
    """The kernels that ran, and the sizes of all that the backward one took, in order."""
    request = Request(f"{__name__}:{name}", batch=batch, architecture=architecture, steps=1)
    trace = tracer.trace(request, 60).trace
    taken = [
        size for block, size in enumerate(trace.sizes) if _of_backward(trace.owner(block).operation)
    ]
    kernels = {
        owner.operation
        for owner in trace.owner_table
        if owner.operation.startswith("_scaled_dot_product")
    }
    return {kernel.split("_attention")[0].rpartition("_")[2] for kernel in kernels}, taken


def _of_backward(operation: str) -> bool:
    return operation.endswith("_attention_backward")


def test_cudnn_s_workspace_is_what_an_h200_took(tracer: Tracer) -> None:
    kernels, sizes = backward(tracer, "alike", 10, "9.0")
    assert kernels == {"cudnn"}
    assert sizes == [23_592_960] * 3 + [47_677_696]


def test_heads_that_are_broadcast_leave_only_plain_mathematics(tracer: Tracer) -> None:
    assert backward(tracer, "grouped", 4, "9.0")[0] == {"cudnn"}
    assert backward(tracer, "broadcast", 4, "9.0")[0] == set()


def test_a_mask_of_three_dimensions_is_none_for_cudnn(tracer: Tracer) -> None:
    kernels, sizes = backward(tracer, "over_heads", 16, "9.0")
    assert kernels == {"efficient"}
    assert sizes == [15_728_640] * 3 + [491_520, 31_488_000]
    assert backward(tracer, "over_all", 16, "9.0")[0] == {"cudnn"}


def test_a_trained_mask_leaves_the_memory_efficient_kernel_where_it_lies_by_rows(
    tracer: Tracer,
) -> None:
    """Two compiled trainings with biases by distance took what these kernels keep, on an H200."""
    assert backward(tracer, "trained", 4, "9.0")[0] == {"efficient"}
    assert backward(tracer, "trained_and_turned", 4, "9.0")[0] == set()


def test_kernels_for_fp32_write_the_product_down_that_they_sum_up(tracer: Tracer) -> None:
    kernels, sizes = backward(tracer, "single", 4, "9.0")
    assert kernels == {"efficient"}
    assert sizes == [7_864_320] * 4 + [122_880, 122_880, 7_872_000]


@pytest.mark.parametrize(
    ("shape", "half", "gpu", "size"),
    [
        ((4, 12, 640, 64), False, H200, 7_872_000),  # recorded, as the next two
        ((2, 16, 768, 96), False, H200, 12_589_056),
        ((16, 12, 640, 64), True, H200, 31_488_000),
        ((2, 16, 768, 96), False, RTX_4090, 32 * 12 * 2 * (16 + 4 * 64 * 64)),
        ((2, 16, 768, 96), True, RTX_4090, 32 * 6 * 2 * (16 + 4 * 128 * 64)),
        ((2, 16, 768, 128), True, A100, 32 * 6 * (16 + 4 * 128 * 128)),
        # Too wide for registers: 200 // 32 parts of the keys, each with a gradient of key and of
        # value.
        ((2, 16, 768, 160), True, A100, 32 * (6 * 3 * (16 + 4 * 128 * 64) + 4 * 6 * 64 * 2 * 256)),
    ],
)
def test_the_memory_efficient_kernel_s_workspace(
    shape: Any, half: bool, gpu: Any, size: int
) -> None:
    assert Backward(*gpu).workspace_bytes(shape, shape[2], shape[3], half) == size


def test_flash_attention_expands_shared_heads_and_splits_where_it_must_be_deterministic(
    tracer: Tracer,
) -> None:
    """200 tokens are rounded up to 256, 160 numbers of a head to 192.

    An A100 has 108 multiprocessors.
    """
    kernels, sizes = backward(tracer, "grouped", 2, "8.0")
    assert kernels == {"flash"}
    query, rows = 2 * 2 * 12 * 200 * 160, 2 * 12 * 256
    assert sizes == [query, query // 4, query // 4, 4 * rows, 4 * rows * 192, query, query]
    kernels, split = backward(tracer, "exact", 2, "8.0")
    assert kernels == {"flash"}
    assert split == [*sizes[:4], 5 * sizes[4], *sizes[5:]]


def test_copied_are_gradients_whose_rows_do_not_lie_one_behind_the_other(tracer: Tracer) -> None:
    found: Traced = tracer.trace(
        Request(f"{__name__}:summed", batch=2, architecture="8.0", steps=1), 60
    )
    trace = found.trace
    sizes = [
        size for block, size in enumerate(trace.sizes) if _of_backward(trace.owner(block).operation)
    ]
    one = 2 * 2 * 4 * 128 * 64
    assert sizes[:5] == [one] * 5  # the gradient, the result, and three gradients
    assert len(sizes) == 7


def summed(batch: int, device: Any) -> Any:
    """Its result lies as the query does, by heads, and the gradient of a sum is one number."""
    parts = [torch.randn(batch, 4, 128, 64, device=device, dtype=torch.bfloat16) for _ in range(3)]
    model = torch.nn.Linear(1, 1, bias=False).to(device)

    def loss() -> Any:
        given = [part * model.weight.to(part.dtype) for part in parts]
        return torch.nn.functional.scaled_dot_product_attention(*given).sum()

    return model, torch.optim.SGD(model.parameters(), lr=0.1), loss
