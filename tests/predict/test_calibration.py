"""The largest batch from measured steps: the law, its range, and what cannot be said.

Figures of the first test are of a GPT of 124.5 M parameters (fp32, AdamW, 512 tokens), whose peak
is 1424.6 + 586.1 × batch MiB.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.predict.calibration import LargestBatch, calibrate

MIB, GIB = 1 << 20, 1 << 30
PARAMETERS = int(474.8 * MIB)


def peak(batch: int) -> int:
    return int((1424.6 + 586.1 * batch) * MIB)


# torch 2.11, H200: model, parameters' bytes, bytes of optimizer state for each of them, limit,
# largest batch by trying, then (batch, peak allocated, peak reserved) of the smallest two batches
# that were tried and fit
BISECTED = [
    (
        "lstm_lm off",
        200_260_312,
        2,
        2_362_232_012,
        41,
        [(24, 1412933632, 1895825408), (33, 1689398272, 1944059904)],
    ),
    (
        "unet_group bf16",
        124_179_284,
        2,
        12_884_901_888,
        26,
        [(24, 10970222592, 11788091392), (26, 11849060352, 12780044288)],
    ),
    (
        "resnet50 off",
        102_228_128,
        1,
        4_294_967_296,
        44,
        [(24, 2412362752, 2709520384), (42, 3952860160, 4167041024)],
    ),
    (
        "vit_b16 fp16",
        346_270_624,
        2,
        6_442_450_944,
        61,
        [(24, 3223011328, 3502243840), (60, 6049619968, 6381633536)],
    ),
    (
        "llama_like bf16 checkpoint",
        784_437_248,
        2,
        10_737_418_240,
        14,
        [(12, 7941061120, 9502195712), (13, 8399301120, 10227810304)],
    ),
]


@pytest.mark.parametrize(("name", "parameters", "states", "limit", "largest", "tried"), BISECTED)
@pytest.mark.parametrize("sizes", [1, 2])
def test_the_range_holds_what_was_found_by_trying(
    name: str,
    parameters: int,
    states: int,
    limit: int,
    largest: int,
    tried: list[tuple[int, int, int]],
    sizes: int,
) -> None:
    told = calibrate(
        (1 + states) * parameters,
        [(batch, allocated) for batch, allocated, _ in tried[:sizes]],
        limit,
        gradient_bytes=parameters,
        reserved_bytes=tried[sizes - 1][2],
    )
    assert told.low is not None
    assert told.batch is not None
    assert told.high is not None
    assert told.low <= largest <= told.high
    assert abs(told.batch - largest) <= 0.2 * largest


def test_two_batch_sizes_give_the_law() -> None:
    found = calibrate(None, [(4, peak(4)), (16, peak(16))], 24 * GIB)
    assert found.law is not None
    assert found.law.fixed_bytes / MIB == pytest.approx(1424.6, abs=0.1)
    assert found.law.per_sample_bytes / MIB == pytest.approx(586.1, abs=0.1)
    assert found.law.assumed == ""
    assert found.residual_bytes is not None
    assert found.residual_bytes < MIB
    assert found.batch == 39  # 1424.6 + 586.1 × 39 = 24,282 MiB of 24,576
    assert found.low is not None
    assert found.high is not None
    assert 36 <= found.low <= 39 <= found.high <= 40


def test_one_batch_size_needs_an_assumption_and_says_so() -> None:
    found = calibrate(3 * PARAMETERS, [(8, peak(8))], 24 * GIB, gradient_bytes=PARAMETERS)
    assert found.law is not None
    assert "one batch size was seen (8)" in found.law.assumed
    assert found.law.fixed_bytes == 3 * PARAMETERS
    assert found.batch == 39
    assert found.low is not None
    assert found.high is not None
    assert found.low <= 38
    assert found.high >= 43  # if all gradients were part of the peak, a sample would take less


def test_more_points_are_fitted_and_their_scatter_widens_the_range() -> None:
    points = [(batch, peak(batch)) for batch in (4, 8, 12, 16)]
    exact = calibrate(None, points, 40 * GIB)
    noisy = calibrate(
        None, [(b, p + (60 * MIB if b in (8, 12) else -60 * MIB)) for b, p in points], 40 * GIB
    )
    assert exact.residual_bytes is not None
    assert noisy.residual_bytes is not None
    assert exact.residual_bytes < MIB
    assert 40 * MIB < noisy.residual_bytes < 80 * MIB
    assert width(noisy) > width(exact)


def width(found: LargestBatch) -> int:
    assert found.high is not None
    assert found.low is not None
    return found.high - found.low


def test_the_floor_of_the_optimizer_step_says_nothing_about_the_batch() -> None:
    floor = 6 * GIB
    points = [(1, floor), (2, floor), (8, max(floor, peak(12))), (16, peak(20))]
    found = calibrate(None, points, 24 * GIB)
    assert found.law is not None
    assert found.law.batches[0] >= 2
    flat = calibrate(3 * PARAMETERS, [(1, floor), (4, floor)], 24 * GIB)
    assert (flat.batch, flat.law) == (None, None)
    assert "did not grow with the batch" in flat.why


def test_reserved_above_allocated_lowers_the_answer() -> None:
    lean = calibrate(None, [(4, peak(4)), (16, peak(16))], 24 * GIB, reserved_bytes=peak(16))
    fat = calibrate(
        None, [(4, peak(4)), (16, peak(16))], 24 * GIB, reserved_bytes=int(1.2 * peak(16))
    )
    assert fat.batch is not None
    assert lean.batch is not None
    assert fat.batch < lean.batch
    assert fat.low is not None
    assert lean.low is not None
    assert fat.low < lean.low
    assert fat.high == lean.high


def test_a_batch_that_runs_is_never_said_not_to_fit() -> None:
    found = calibrate(
        None, [(4, peak(4)), (16, peak(16))], peak(16) + MIB, reserved_bytes=peak(16) + MIB
    )
    assert found.low == found.batch == 16


@pytest.mark.parametrize(
    ("static", "peaks", "capacity", "why"),
    [
        (GIB, [], GIB, "no step with a known batch size"),
        (GIB, [(0, GIB)], GIB, "no step with a known batch size"),
        (None, [(8, 4 * GIB)], GIB, "bytes of parameters and optimizer state are unknown"),
        (4 * GIB, [(8, 4 * GIB)], GIB, "no step was measured"),
        (GIB, [(8, 4 * GIB)], None, "capacity of the GPU is unknown"),
    ],
)
def test_what_is_missing_is_said(
    static: int | None, peaks: list[tuple[int, int]], capacity: int | None, why: str
) -> None:
    found = calibrate(static, peaks, capacity)
    assert (found.batch, found.low, found.high) == (None, None, None)
    assert why in found.why


@given(
    st.integers(0, 40 * GIB),
    st.lists(st.tuples(st.integers(1, 4096), st.integers(1, 200 * GIB)), min_size=1, max_size=5),
    st.integers(1, 200 * GIB),
    st.one_of(st.none(), st.integers(0, 20 * GIB)),
    st.one_of(st.none(), st.integers(0, 300 * GIB)),
)
def test_the_range_holds_the_guess_whatever_comes_in(
    static: int,
    peaks: list[tuple[int, int]],
    capacity: int,
    gradients: int | None,
    reserved: int | None,
) -> None:
    found = calibrate(static, peaks, capacity, gradient_bytes=gradients, reserved_bytes=reserved)
    if found.batch is None:
        assert found.why
        return
    assert found.low is not None
    assert found.high is not None
    assert 0 <= found.low <= found.batch <= found.high
    assert found.law is not None
    assert found.law.per_sample_bytes > 0
