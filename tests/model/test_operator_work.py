"""FLOPs and bytes of operators follow from their shapes; what nobody knows is named."""

from __future__ import annotations

import json

import pytest

from gpuscope.model.operator_work import NoFormula, bytes_of, flops_of
from tests.fakes.cases import each


def text(*args, out=(), **kwargs):
    """What a probe writes down of a call; tuples are shapes of tensors."""

    def plain(value):
        if isinstance(value, tuple):
            return {"t": list(value), "d": "bfloat16"}
        return [plain(one) for one in value] if isinstance(value, list) else value

    return json.dumps(
        {
            "args": [plain(one) for one in args],
            "kwargs": {name: plain(one) for name, one in kwargs.items()},
            "out": [plain(out)],
        }
    )


NO = None
CONV = ([1, 1], [0, 0], [1, 1])
Q, KV = (2, 8, 64, 16), (2, 2, 64, 16)
SCORES = 2 * 2 * 8 * 64 * 64 * 16
"""FLOPs of all products of a row of q with a row of k, with 8 heads of each."""


@each(("name", "call", "expected"), [
        ("mm", text((3, 4), (4, 5)), 2 * 3 * 4 * 5),
        ("addmm", text((5,), (3, 4), (4, 5)), 120),
        ("bmm", text((7, 3, 4), (7, 4, 5)), 7 * 120),
        ("baddbmm", text((7, 3, 5), (7, 3, 4), (7, 4, 5)), 7 * 120),
        ("mv", text((3, 4), (4,)), 24),
        ("addmv", text((3,), (3, 4), (4,)), 24),
        ("dot", text((9,), (9,)), 18),
        ("matmul", text((2, 1, 3, 4), (6, 4, 5)), 2 * 6 * 120),
        ("linear", text((2, 3, 4), (5, 4)), 2 * 120),
        ("_grouped_mm", text((10, 4), (3, 4, 5), (3,)), 2 * 10 * 4 * 5),
        ("_grouped_mm", text((4, 10), (10, 5), (3,)), 2 * 4 * 10 * 5),
        # (2, 6, 8, 8) with weights (12, 3, 3, 3) in two groups gives (2, 12, 6, 6)
        ("convolution", text((2, 6, 8, 8), (12, 3, 3, 3), NO, *CONV, False, [0, 0], 2,
                             out=(2, 12, 6, 6)), 2 * (2 * 12 * 36) * 27),
        # transposed, each of 2·6·8·8 inputs goes to 4 · 9 places
        ("convolution", text((2, 6, 8, 8), (6, 4, 3, 3), NO, *CONV, True, [0, 0], 1,
                             out=(2, 4, 10, 10)), 2 * (2 * 6 * 64) * 36),
        ("convolution_backward", text((2, 12, 6, 6), (2, 6, 8, 8), (12, 3, 3, 3), NO, *CONV, False,
                                      [0, 0], 2, [True, True, True]), 2 * 2 * (2 * 12 * 36) * 27),
        ("convolution_backward", text((2, 12, 6, 6), (2, 6, 8, 8), (12, 3, 3, 3), NO, *CONV, False,
                                      [0, 0], 2, [False, True, False]), 2 * (2 * 12 * 36) * 27),
        # LSTM of 5 steps and a batch of 3: (16, 4) and (16, 4) are multiplied at each step
        ("_cudnn_rnn", text((5, 3, 4), [(16, 4), (16, 4), (16,), (16,)], 4), 2 * 15 * 128),
    ])  # fmt: skip
def test_a_product_is_a_multiplication_and_an_addition_for_each_pair(name, call, expected):
    found = flops_of(f"aten::{name}", call)
    assert found is not None
    assert (found.hardware, found.model, found.least) == (expected, expected, expected)


def test_attention_shares_heads_of_keys_and_its_backward_pass_computes_the_scores_again():
    forward = flops_of("aten::_scaled_dot_product_flash_attention", text(Q, KV, KV, 0.0, False))
    assert forward is not None
    assert (forward.hardware, forward.model, forward.least) == (2 * SCORES,) * 3
    backward = flops_of(
        "aten::_scaled_dot_product_flash_attention_backward",
        text(Q, Q, KV, KV, Q, (1,), NO, NO, 64, 64, 0.0, False),
    )
    assert backward is not None
    assert (backward.hardware, backward.model) == (5 * SCORES, 4 * SCORES)


def test_a_causal_mask_leaves_what_a_row_may_see():
    found = flops_of("aten::_scaled_dot_product_flash_attention", text(Q, KV, KV, 0.0, True))
    assert found is not None
    assert found.hardware == 2 * SCORES
    assert found.least == pytest.approx(found.hardware * (64 * 65 / 2) / (64 * 64))


def test_the_package_flash_attn_has_its_heads_behind_the_length():
    q, kv = (2, 64, 8, 16), (2, 64, 2, 16)
    call = text(q, kv, kv, 0.0, 0.25, True, -1, -1, 0.0, NO, False)
    found = flops_of("flash_attn::_flash_attn_forward", call)
    assert found is not None
    assert (found.hardware, found.least < found.hardware) == (2 * SCORES, True)
    windowed = text(q, q, kv, kv, q, (2, 8, 64), q, kv, kv, 0.0, 0.25, True, 16, 0, 0.0, NO, False)
    found = flops_of("flash_attn::_flash_attn_backward", windowed)
    assert found is not None
    assert (found.hardware, found.model, found.least) == (5 * SCORES, 4 * SCORES, 0.0)


@pytest.mark.parametrize(
    "name",
    ["aten::_fft_c2c", "aten::linalg_qr", "aten::_cdist_forward", "flash_attn_3::fwd",
     "higher_order::flex_attention", "aten::_cslt_sparse_mm", "aten::mm"],
)  # fmt: skip
def test_what_has_flops_that_its_shapes_do_not_tell_has_no_formula(name):
    with pytest.raises(NoFormula):
        flops_of(name, "{}")


@pytest.mark.parametrize("broken", ["", "[]", '{"args": 1, "kwargs": {}, "out": []}',
                                    text((3, 4), (5, 6)), text((3, 4)), text((3, -1), (5, 6)),
                                    text("x", [])])  # fmt: skip
def test_a_call_that_cannot_be_read_is_unknown(broken):
    with pytest.raises(NoFormula):
        flops_of("aten::mm", broken)


@pytest.mark.parametrize(
    "name",
    ["aten::gelu_backward", "aten::relu_", "aten::_softmax", "aten::native_layer_norm",
     "aten::convert_element", "aten::cummax", "aten::_foreach_addcdiv_", "c10d::allreduce_",
     "aten::upsample_bilinear2d", "profiler::_record_function_enter_new"],
)  # fmt: skip
def test_elementwise_operators_and_communication_have_no_flops(name):
    assert flops_of(name, "") is None


@pytest.mark.parametrize(
    ("name", "read", "written", "expected"),
    [
        ("aten::add", 80, 40, 120),
        ("aten::copy_", 80, 40, 80),
        ("aten::zero_", 40, 40, 40),
        ("aten::zeros_like", 40, 40, 40),
        ("aten::embedding", 10_000, 40, 80),
        ("aten::index_add_", 1040, 1000, 80),
        ("aten::_unsafe_view", 40, 40, 0),
        ("c10d::allreduce_", 40, 40, 0),
    ],
)
def test_bytes_are_those_that_must_move(name, read, written, expected):
    assert bytes_of(name, read, written) == expected
