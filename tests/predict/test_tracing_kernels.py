"""Kernels' scratch memory has the sizes measured on an H200.

What a kernel that cannot be known does to the bar is tested too.
"""

from __future__ import annotations

from typing import Any

import pytest

from gpuscope.predict.allocator import simulate
from gpuscope.predict.child import Tracer
from gpuscope.predict.errors import (
    FRAGMENTATION,
    Estimate,
    allocated_error,
    downward,
    reserved_error,
)
from gpuscope.predict.request import Doubt, Request

pytestmark = pytest.mark.slow

torch: Any = pytest.importorskip("torch")
PERCENT = 0.1
MEASURED = {
    "graph": (
        Request("bench.predict.families_unseen:graph", batch=5, optimizer="adamw"),
        943_906_816,
    ),
    "tagger": (
        Request("bench.predict.families_unseen:tagger", batch=30, amp="fp16", optimizer="sgd"),
        255_301_632,
    ),
}


BLIND = "bench.predict.families_blind"
MEASURED |= {
    # bags of an embedding, and an optimizer in place of one that had made its state
    "bags": (
        Request(f"{BLIND}_signals:dcn_bags", batch=4096, amp="fp16", optimizer="adamw", fused=True),
        695_442_432,
    ),
    # the gradient of a part of a wider tensor is summed up column by column
    "part": (Request(f"{BLIND}_signals:nerf", batch=512, tf32=False), 1_343_948_288),
    # a backward pass inside of the forward one; weights that are normalised on the host before they
    # are moved
    "critic": (
        Request(f"{BLIND}_vision:gan_step", batch=16, amp="bf16", accumulate=4, tf32=False),
        393_819_136,
    ),
    # a depthwise convolution over what a transposed view holds
    "scan": (Request(f"{BLIND}:mamba_scan", batch=12, tf32=False), 1_115_070_976),
}


def cells(batch: int, device: Any) -> Any:
    """Two steps of an LSTM's cell, of which some rows are picked by two indices."""
    cell = torch.nn.LSTMCell(32, 64).to(device)
    x, rows = torch.randn(batch, 32, device=device), torch.randint(batch, (5000,), device=device)
    columns = torch.randint(64, (5000,), device=device)

    def loss() -> Any:
        first = cell(x)
        return cell(x, first)[0][rows, columns].square().mean()

    return cell, torch.optim.SGD(cell.parameters(), lr=0.1), loss


def pictures(batch: int, device: Any) -> Any:
    """Two convolutions of a shape that was never measured."""
    return convolved(torch.nn.Conv2d, torch.randn(batch, 160, 32, 32, device=device))


def volumes(batch: int, device: Any) -> Any:
    return convolved(torch.nn.Conv3d, torch.randn(batch, 160, 4, 4, 4, device=device))


def convolved(kind: Any, x: Any) -> Any:
    model = torch.nn.Sequential(kind(160, 192, 3, padding=1), kind(192, 160, 3, padding=1)).to(
        x.device
    )
    return model, torch.optim.SGD(model.parameters(), lr=0.1), lambda: model(x).square().mean()


CHANNELS, SIDE, SAMPLES = 80, 56, 21
IMAGES = SAMPLES * CHANNELS * SIDE * SIDE
"""Numbers in a batch of images, of more pixels than 64 Ki."""


class Images(torch.nn.Module):  # type: ignore[misc]  # torch is not type-checked
    """Layer normalization over the channels of images, which lie apart.

    There are also booleans that are counted.
    """

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.norm = (
            torch.nn.Parameter(torch.ones(CHANNELS, 1, 1)),
            torch.nn.LayerNorm(CHANNELS),
        )

    def forward(self, x: Any) -> Any:
        (x > 0).sum(1)
        return self.norm((x * self.scale).permute(0, 2, 3, 1)).square().mean()


def images(batch: int, device: Any) -> Any:
    model = Images().to(device)
    x = torch.randn(batch, CHANNELS, SIDE, SIDE, device=device)
    return model, torch.optim.SGD(model.parameters(), lr=0.1), lambda: model(x)


WIDTH = 64


class Split(torch.nn.Module):  # type: ignore[misc]  # torch is not type-checked
    """RMS normalization of the first third of each row, which is no row of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.all, self.norm = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.RMSNorm(WIDTH)

    def forward(self, x: Any) -> Any:
        return self.norm(self.all(x).split(WIDTH, -1)[0]).square().mean()


def split(batch: int, device: Any) -> Any:
    model = Split().to(device)
    x = torch.randn(batch, WIDTH, device=device)
    return model, torch.optim.SGD(model.parameters(), lr=0.1), lambda: model(x)


@pytest.mark.parametrize("name", MEASURED)
def test_picked_rows_cells_and_two_directions_take_what_they_took(
    tracer: Tracer, name: str
) -> None:
    # Gradients of picked rows are sorted; a GRU's cell is one kernel; an LSTM in two directions is
    # cuDNN's.
    request, peak = MEASURED[name]
    found = simulate(tracer.trace(request, 120).trace)
    assert found.peak_allocated_bytes == pytest.approx(peak, rel=PERCENT / 100)


def test_an_lstm_s_cell_is_one_kernel_and_places_are_sorted(tracer: Tracer) -> None:
    trace = tracer.trace(Request(f"{__name__}:cells", batch=1000, steps=1), 120).trace
    sizes: dict[str, list[int]] = {}
    for block, size in enumerate(trace.sizes):
        sizes.setdefault(trace.owner(block).operation, []).append(size)
    state, gates = 1000 * 64 * 4, 1000 * 256 * 4
    assert sizes["_thnn_fused_lstm_cell"] == [gates, state, state] * 2
    places = 8 * 5000
    # two products and their sum, the sorted copies with a range, and what the sort takes: 64 000
    # places are 16 bits
    assert sorted(sizes["index_put"])[:8] == [places] * 8
    assert len(sizes["index_put"]) == 9
    assert "sigmoid_backward" not in sizes


def test_layer_normalization_copies_what_does_not_lie_in_rows_and_sums_many_rows_in_two_steps(
    tracer: Tracer,
) -> None:
    trace = tracer.trace(Request(f"{__name__}:images", batch=SAMPLES, steps=1), 120).trace
    sizes: dict[str, list[int]] = {}
    for block, size in enumerate(trace.sizes):
        sizes.setdefault(trace.owner(block).operation, []).append(size)
    pixels, one = IMAGES // CHANNELS, 4 * CHANNELS
    partial = -(-pixels // 32) * one
    assert sizes["native_layer_norm"] == [4 * IMAGES, 4 * IMAGES, 4 * pixels, 4 * pixels]
    backward = sizes["native_layer_norm_backward"]
    assert backward[:6] == [4 * IMAGES, 4 * IMAGES, one, one, partial, partial]
    assert [size for size in backward[6:] if size == one] == [one, one]
    copy = next(
        block
        for block in range(len(trace.sizes))
        if trace.owner(block).operation == "native_layer_norm"
    )
    born = trace.events.index(copy)
    assert trace.events[born : born + 5] == [copy, copy + 1, copy + 2, copy + 3, ~copy]
    assert 8 * IMAGES in sizes["sum"]


@pytest.mark.skipif(
    not hasattr(torch.ops.aten, "_fused_rms_norm"), reason="torch before 2.9 has no such kernel"
)
def test_rms_normalization_of_a_part_of_each_row_is_one_kernel_beside_a_copy(
    tracer: Tracer,
) -> None:
    rows = 70_000  # more than 64 Ki: the gradient of the weight is summed up in two steps
    trace = tracer.trace(Request(f"{__name__}:split", batch=rows, steps=1), 120).trace
    inside = [
        (trace.owner(block).operation, size)
        for block, size in enumerate(trace.sizes)
        if trace.owner(block).module == "norm" and trace.owner(block).category != "parameter"
    ]
    size = 4 * rows * WIDTH
    forward = [("clone", size), ("empty_like", size), ("new_empty", 4 * rows)]
    assert inside[:3] == forward
    backward = inside[3:]
    assert backward[:3] == [("clone", size), ("empty_like", size), ("empty_like", 4 * WIDTH)]
    assert ("new_empty", -(-rows // 32) * 4 * WIDTH) in backward
    assert not {"pow", "mean", "rsqrt"} & {operation for operation, _ in inside}


def test_partial_sums_of_layer_normalization_are_as_large_as_on_an_h200() -> None:
    from gpuscope.predict.tracing.multiprocessors import HOPPER
    from gpuscope.predict.tracing.normalization import partial_rows
    from gpuscope.predict.tracing.reductions import buffer_bytes

    rows = partial_rows(150_528, 80, HOPPER[0])
    assert 4 * 80 * rows == 1_505_280
    assert buffer_bytes(rows, 80, False, False, HOPPER)[0] == 757_760
    assert partial_rows(64 << 10, 80, HOPPER[0]) == partial_rows(150_528, 66 * 32, HOPPER[0]) == 0


def test_what_is_cached_of_a_mixer_is_what_was(tracer: Tracer) -> None:
    """Its transposed rows are copied for every normalization."""
    request = Request(
        "bench.predict.families_held_out:mixer", batch=24, amp="bf16", optimizer="adamw"
    )
    found = simulate(tracer.trace(request, 120).trace)
    assert found.peak_reserved_bytes == pytest.approx(1_642_070_016, rel=0.005)


@pytest.mark.parametrize(
    ("count", "bits", "size"),
    [(80_000, 14, 1_303_039), (480_000, 16, 7_792_127), (3600, 64, 75_775)],
)
def test_a_sort_s_scratch_memory(count: int, bits: int, size: int) -> None:
    from gpuscope.predict.tracing.indexing import sort_bytes

    assert sort_bytes(count, bits) == size


@pytest.mark.parametrize(
    ("samples", "dtype", "size"), [(30, "float32", 108_023_040), (250, "float16", 366_149_984)]
)
def test_a_recurrent_network_s_workspace_in_two_directions(
    samples: int, dtype: str, size: int
) -> None:
    from gpuscope.predict.tracing.recurrent import LSTM, workspace_bytes

    x = torch.empty(120, samples, 300, dtype=getattr(torch, dtype), device="meta")
    weights = [torch.empty(1536, columns, device="meta") for columns in (300, 384)] * 2
    assert workspace_bytes(LSTM, x, weights, 384, samples, 1, 2) == size


def _shape(samples: int, channels: int, filters: int, side: int) -> Any:
    from gpuscope.predict.tracing.convolution_sizes import Shape

    x, y = (
        torch.empty(samples, number, side, side, device="meta") for number in (channels, filters)
    )
    return Shape.of(x, torch.empty(filters, channels, 3, 3, device="meta"), y, [1, 1], 1)


def test_only_a_convolution_unlike_all_measured_ones_may_take_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from gpuscope.predict.tracing.convolution import most_bytes, scratch_bytes

    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    measured, unknown, few = (
        _shape(16, 128, 256, 64),
        _shape(20, 160, 192, 32),
        _shape(2, 160, 192, 32),
    )
    assert [most_bytes(measured, direction) for direction in ("forward", "input", "weight")] == [
        0,
        0,
        0,
    ]
    assert most_bytes(unknown, "forward") > scratch_bytes(unknown, "forward")
    assert most_bytes(few, "forward") == most_bytes(few, "input") == 0
    # a gradient of 288 → 96 at 64² with 8 samples really took this much
    assert most_bytes(_shape(8, 288, 96, 64), "weight") == 3_693_084_672
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    assert most_bytes(_shape(20, 160, 192, 32), "forward") == 0


def test_what_convolutions_may_take_is_named_with_the_way_around_it(tracer: Tracer) -> None:
    def doubts(factory: str = "pictures", **options: Any) -> dict[tuple[str, str], Doubt]:
        request = Request(f"tests.predict.test_tracing_kernels:{factory}", batch=20, **options)
        return {(one.code, one.operation): one for one in tracer.trace(request, 60).doubts}

    plain = doubts(tf32=False)
    advice = plain["advice", "convolution"]
    assert advice.text.startswith(
        ("0 (160 to 192 channels, 32 × 32) may take", "1 (192 to 160 channels, 32 × 32) may take")
    )
    assert "--tf32" in advice.text
    assert plain["unmeasured", "convolution"].upward
    assert doubts() == doubts(tf32=True) == doubts(amp="bf16") == {}
    volume = doubts("volumes")
    assert set(volume) == {("unmeasured", "convolution3d")}
    assert volume["unmeasured", "convolution3d"].upward
    key = ("benchmark", "convolution")
    searched, halves = (
        doubts(tf32=True, cudnn_benchmark=True),
        doubts(amp="bf16", cudnn_benchmark=True),
    )
    assert set(searched) == set(halves) == {key}
    assert searched[key].upward
    assert searched[key].percent > 245  # as much as one of the measured trainings took
    assert not halves[key].upward
    assert halves[key].percent < 5


def test_a_doubt_about_fragmentation_widens_reserved_memory_alone() -> None:
    peak, doubts = 1 << 30, [Doubt(FRAGMENTATION, "", "deepspeed", 9.0)]
    allocated = allocated_error(peak, 0.0, doubts)
    assert allocated == allocated_error(peak, 0.0, [])
    wider = reserved_error(peak, allocated, doubts, peak, 0.0)
    assert wider - reserved_error(peak, allocated, [], peak, 0.0) == pytest.approx(0.09 * peak)


def test_an_upward_doubt_widens_the_upper_side_alone() -> None:
    known, upward = (
        Doubt("data_dependent", "", "item", 2.0),
        Doubt("unmeasured", "", "convolution", 300.0, upward=True),
    )
    peak, doubts = 1 << 30, [known, upward]
    above, below = allocated_error(peak, 0.0, doubts), allocated_error(peak, 0.0, downward(doubts))
    assert above - below == pytest.approx(3 * peak, rel=1e-6)
    assert below == allocated_error(peak, 0.0, [known])
    assert reserved_error(peak, above, doubts, peak, True) > 3 * peak
    figure = Estimate(peak, above, below)
    assert figure.low == peak - below
    assert figure.high == peak + above
    assert figure.error_percent == pytest.approx(100 * above / peak, abs=0.01)
    assert Estimate(peak, below).low == peak - below
