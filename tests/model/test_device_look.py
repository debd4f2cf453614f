"""A look's rows: what class a kernel has, and that all together are the window."""

from __future__ import annotations

import pytest

from gpuscope.model.look import class_of, classes, notes, read, waited_for
from tests.fakes.cases import each

NAMES = {
    "nvjet_sm90_tst_128x256_64x4_1x2_h_bz_coopA_TNN": "products-half",
    "nvjet_sm90_hsh_64x8_64x16_4x1_v_bz_TNT": "products-half",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_"
    "segment_k_off_kernel__5x_cublas": "products-half",
    "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32_cublas": "products-tf32",
    "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3_warpsize2x2x1_ffma_aligna4_"
    "alignc4_execute_kernel__51_cublas": "products-plain",
    "ampere_sgemm_128x64_nn": "products-plain",
    "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x256_8x4_nn_align1>": "products-plain",
    "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16>": "products-half",
    "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_nn": "products-half",
    "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x128_16x5_nt_align4>": "products-tf32",
    "void gemv2T_kernel_val<int, int, float, float, float, float, 128>": "products-vector",
    "void dot_kernel<float, 128, 0, cublasDotParams<float const>>": "products-vector",
    "ampere_dgemm_64x64_nn": "products-double",
    "void sgemm_largek_lds64<true, false, 5, 5, 4, 4, 4, 34>": "products-plain",
    "void cutlass::Kernel2<cutlass_80_simt_dgemm_128x32_8x5_nn_align1>": "products-double",
    "sm80_xmma_gemm_f64f64_f64f64_f64_tn_n_tilesize64x64x16_cublas": "products-double",
    "magma_sgemmEx_kernel<float, float, float, true, false, 6, 4, 6, 3, 4>": "products-plain",
    "void cublasLt::splitKreduce_kernel<32, 16, int, float>": "products",
    "triton_tem_fused_addmm_3": "products",
    "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64>>": "attention",
    "fmha_cutlassB_bf16_aligned_64x64_k64_sm80(PyTorchMemEffAttention)": "attention",
    "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7": "attention",
    "sm80_xmma_fprop_implicit_gemm_f32f32_tf32f32_f32_nhwckrsc_nchw": "convolution",
    "void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>": "convolution",
    "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>": "norm",
    "void at::native::bn_fw_tr_1C11_kernel_NCHW": "norm",
    "void (anonymous namespace)::softmax_warp_forward<float, float, float, 8, true>": "softmax",
    "void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, float>": "softmax",
    "void at::native::(anonymous namespace)::nll_loss_forward_reduce_cuda_kernel_2d": "softmax",
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<TensorListMetadata<4>, "
    "FusedAdamMathFunctor<float, 4>>": "optimizer",
    "void at::native::(anonymous namespace)::embedding_backward_feature_kernel": "embedding",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, MeanOps>>": "reduction",
    "void at::native::vectorized_elementwise_kernel<4, CUDAFunctor_add<float>>": "elementwise",
    "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda>": "moves",
    "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>": "moves",
    "void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, 2, 64>": "moves",
    "triton_poi_fused_gelu_4": "elementwise",
    "triton_per_fused_native_layer_norm_0": "norm",
    "triton_red_fused__log_softmax_nll_loss_forward_2": "softmax",
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "communication",
    "Memcpy HtoD (Pinned -> Device)": "copies-in",
    "Memcpy DtoH (Device -> Pageable)": "copies-out",
    "Memcpy DtoD (Device -> Device)": "moves",
    "Memset (Device)": "moves",
    "void cudnn::fusion::compute_dot_do_o_specialized<true, 64>(void const*, void*)": "attention",
    "void cudnn::fusion::convert_dq_to_16bits<true>(void const*, void*)": "attention",
    "void at::native::(anonymous namespace)::compute_num_of_partial_segments<long>": "embedding",
    "void at::native::lpnorm_cleanup<float, (at::native::NormType)1, float>": "optimizer",
    "void flip_filter<float, float>(float*, float const*, int, int)": "convolution",
    "void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3>(int, int)": "convolution-plain",
    "sm80_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_nchwkcrs_nchw_cudnn": "convolution-plain",
    "sm90_xmma_wgrad_indexed_implicit_gemm_f32f32_tf32f32_f32_nhwckrsc_nhwc_cudnn": "convolution",
    "void wgrad_alg0_engine_NHWC<float, 128, 5, 5, 3, 3, 3, false, 512>(int)": "convolution-plain",
    "void fft2d_c2r_32x32<float, false, false, 0u, false, false>(float*)": "convolution-plain",
    "void pointwise_mult_and_sum_complex<float2, 8, 4>(float2*, float2*)": "convolution-plain",
    "my_very_own_thing": "other",
}


@each(("name", "kind"), NAMES.items())
def test_classes(name, kind):
    assert class_of(name) == kind


def test_every_class_has_a_name_that_this_test_knows():
    assert set(classes()) - set(NAMES.values()) <= {"products-fp8", "rnn", "sort"}


def parts(*shares):
    """Ten parts of 0.1 s; the plain products take these shares of them in turn."""
    own = [0.1 * shares[at % len(shares)] for at in range(10)]
    rest = [0.1 - one for one in own]
    return {
        "kernels": [["ampere_sgemm_128x64_nn", 40, sum(own), sum(own)]],
        "left_out": [0, 0, 0.0, 0.0],
        "idle": [["launch", sum(rest), 12, "", 0.0]],
        "parts": [[0.1] * 10, [own], [0.0] * 10, [rest]],
    }


def test_a_share_has_the_interval_that_the_steps_of_the_look_allow():
    even, uneven = read(answer(**parts(0.4))), read(answer(**parts(0.2, 0.6)))
    assert even is not None
    assert uneven is not None
    for look, half in ((even, 0.0), (uneven, 2.262 * 0.2 * (10 / 9) ** 0.5 / 10**0.5)):
        row = look.row("products-plain")
        assert row is not None
        assert row.share == pytest.approx(0.4)
        assert row.low == pytest.approx(0.4 - half)
        assert row.high == pytest.approx(0.4 + half)


@pytest.mark.parametrize(
    "bad", [None, [], [[0.1] * 10], [[0.1, 0.1], [[0.1, 0.1]], [0, 0], []], [[1], ["x"], 3, {}]]
)
def test_without_parts_or_with_two_of_them_there_is_no_interval(bad):
    look = read(answer(**{**parts(0.4), "parts": bad}))
    assert look is not None
    row = look.row("products-plain")
    assert row is not None
    assert (row.low, row.high) == (None, None)


def test_copies_have_the_line_that_most_of_them_are_at():
    copies = [["Memcpy DtoH (Device -> Pageable)", 4, 0.4, 0.4]]
    told = [["Memcpy DtoH (Device -> Pageable)", "train.py:9 main", 0.3], ["x"], 7]
    look = read(answer(kernels=copies, copied_at=told))
    assert look is not None
    row = look.row("copies-out")
    assert row is not None
    assert (row.kind, row.place) == ("copies", "train.py:9 main")


def answer(**more):
    return {
        "seconds": 1.0,
        "steps": 2,
        "kernels": [["ampere_sgemm_128x64_nn", 4, 0.4, 0.4], ["my_own", 2, 0.2, 0.1]],
        "left_out": [7, 30, 0.1, 0.1],
        "idle": [["launch", 0.3, 12, "", 0.0], ["queue", 0.1, 3, "", 0.0]],
        "communication": [0.0, 0.0, 0],
        "copies": [0.0, 0.0, 0],
        **more,
    }


def test_rows_add_up_and_an_unknown_kernel_is_another_kernel():
    look = read(answer())
    assert look is not None
    rows = {row.name: (round(row.seconds, 6), row.count) for row in look.rows}
    assert rows == {
        "products-plain": (0.4, 4),
        "idle-launch": (0.3, 12),
        "other": (0.2, 32),
        "idle-queue": (0.1, 3),
    }
    assert sum(row.seconds for row in look.rows) == pytest.approx(look.seconds)
    assert look.busy_share == pytest.approx(0.6)


def test_what_is_missing_is_shown_as_not_attributed():
    look = read(answer(idle=[["launch", 0.3, 12, "", 0.0], ["a new cause", 0.1, 3, "", 0.0]]))
    assert look is not None
    rows = {row.name: row.seconds for row in look.rows}
    assert rows["unattributed"] == pytest.approx(0.1)
    assert sum(rows.values()) == pytest.approx(1.0)


@pytest.mark.parametrize(
    "bad",
    [{}, {"seconds": "much", "steps": 2}, {"seconds": 1.0, "steps": 0}, {"seconds": float("nan")}],
)
def test_an_answer_without_a_window_is_none(bad):
    assert read(bad) is None


def test_rows_that_are_no_rows_are_left_out():
    look = read(answer(kernels=[["x"], 3, None, ["y", "many", [], {}]], left_out=5, idle="none"))
    assert look is not None
    assert [(row.name, row.seconds) for row in look.rows] == [("unattributed", 1.0)]


def rank(seconds):
    look = read(answer(communication=[seconds, seconds, 10]))
    assert look is not None
    return look


def test_the_rank_whose_collectives_run_least_is_the_one_that_others_wait_for():
    found = waited_for({0: rank(0.30), 1: rank(0.02), 2: rank(0.28), 3: rank(0.31)})
    assert found == (1, pytest.approx(0.14))
    assert waited_for({0: rank(0.30), 1: rank(0.28)}) is None
    assert waited_for({0: rank(0.30)}) is None


def test_what_the_trace_made_longer_is_taken_off_the_idle_time():
    plain = read(answer())
    assert plain is not None
    busy = sum(row.seconds for row in plain.rows if row.kind not in ("idle", "rest"))
    usual = (0.5 * plain.seconds + 0.5 * busy) / plain.steps
    look = read(answer(usual_seconds=usual))
    assert look is not None
    assert look.step_seconds == pytest.approx(usual)
    assert look.slowed_seconds == pytest.approx(plain.step_seconds - usual)
    assert sum(row.seconds for row in look.rows) == pytest.approx(look.seconds)
    for row in look.rows:
        before = plain.row(row.name)
        assert before is not None
        factor = 0.5 if row.kind in ("idle", "rest") else 1.0
        assert row.seconds == pytest.approx(factor * before.seconds)
    assert "longer; this is subtracted" in notes(look)[-1]


@pytest.mark.parametrize("usual", [None, 0.0, "slow", 1e3])
def test_a_usual_step_that_is_unknown_or_longer_changes_nothing(usual):
    assert read(answer(usual_seconds=usual)) == read(answer())


@pytest.mark.parametrize("usual", [None, 1e3])
def test_a_look_at_short_steps_has_the_idle_time_of_a_steady_one(usual):
    plain = read(answer())
    assert plain is not None
    steady = 1.2 * plain.step_seconds
    look = read(answer(usual_seconds=usual, steady_seconds=steady))
    assert look is not None
    assert (look.step_seconds, look.slowed_seconds) == (pytest.approx(steady), 0.0)
    assert sum(row.seconds for row in look.rows) == pytest.approx(look.seconds)
    for row in look.rows:
        before = plain.row(row.name)
        assert before is not None
        if row.kind not in ("idle", "rest"):
            assert row.seconds == before.seconds


def test_a_device_that_is_busy_all_the_time_gets_no_idle_time_of_other_steps():
    full = {"seconds": 0.1, "steps": 1, "kernels": [["gemm", 1, 0.097, 0.097]],
            "left_out": [0, 0, 0.0, 0.0], "idle": [["queue", 0.003, 5, "", 0.0]]}  # fmt: skip
    assert read({**full, "steady_seconds": 0.12}) == read(full)


def test_a_look_of_few_steps_says_why():
    look, other, three = (
        read(answer(steps=steps, left_out=[7, kernels, 0.1, 0.1]))
        for steps, kernels in ((1, 5000), (1, 30), (3, 5000))
    )
    assert look is not None
    assert other is not None
    assert three is not None
    assert notes(look) == [
        "Only 1 step traced, as each of the 5,006 kernels costs time: the shares have no interval."
    ]
    assert notes(other) == ["Only 1 step traced: the shares have no interval."]
    assert notes(three) == []
