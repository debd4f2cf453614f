"""The tracing child as its parent sees it: real processes, real torch, whatever a factory does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuscope.predict.child import Tracer, trace
from gpuscope.predict.request import CannotPredict, Request, Traced
from gpuscope.predict.trace import CATEGORIES

pytest.importorskip("torch")
ODD = "tests.predict.odd_factories"
MIB = 1 << 20


def peak(traced: Traced, step: int = 0) -> int:
    """Bytes as requested, from the mark ``step N`` on; 0: of the whole trace."""
    live = most = 0
    first = next((mark.at for mark in traced.trace.marks if mark.name == f"step {step}"), 0)
    for at, event in enumerate(traced.trace.events):
        live += traced.trace.sizes[event] if event >= 0 else -traced.trace.sizes[~event]
        if at >= first:
            most = max(most, live)
    return most


def held(traced: Traced, category: str) -> int:
    """Bytes of a category at the end."""
    freed = {~event for event in traced.trace.events if event < 0}
    return sum(
        size
        for block, size in enumerate(traced.trace.sizes)
        if block not in freed and traced.trace.owner(block).category == category
    )


@pytest.mark.slow
def test_a_preset_is_traced_with_everything_named(tracer: Tracer) -> None:
    traced = tracer.trace(Request("gpt-tiny", batch=8))
    assert traced.setup == ["input 8×64 int64", "float32 weights", "AdamW"]
    columns = traced.trace
    assert traced.batch == 8
    assert traced.parameters == 470_528
    assert {columns.owner(block).category for block in range(len(columns.sizes))} <= set(CATEGORIES)
    assert held(traced, "parameter") == 4 * traced.parameters
    assert held(traced, "optimizer") == 8 * traced.parameters
    names = [mark.name for mark in columns.marks]
    steps = [(f"step {step}", "forward", "backward", "optimizer") for step in (1, 2, 3)]
    assert names == ["build", "empty_cache", *(name for step in steps for name in step), "end"]
    kept = {columns.owner(block).module for block in range(len(columns.sizes))}
    assert {"blocks.0.mlp.0", "blocks.1.attention_in", "tokens"} <= kept
    live: set[int] = set()
    for event in columns.events:
        if event >= 0:
            assert event not in live
            live.add(event)
        else:
            live.remove(~event)


@pytest.mark.slow
def test_precision_checkpointing_and_optimizer_change_what_they_must(tracer: Tracer) -> None:
    def of(**options: object) -> int:
        return peak(tracer.trace(Request("gpt-tiny", batch=64, **options)), 2)  # type: ignore[arg-type]

    plain = of()
    assert of(amp="bf16") < 0.9 * plain
    assert of(checkpoint=1) < of(checkpoint=2) < plain
    assert of(accumulate=2) > plain
    small = [
        peak(
            tracer.trace(
                Request("mlp-large", batch=8, optimizer=kind, foreach=foreach, fused=fused)
            ),
            2,
        )
        for kind, foreach, fused in (
            ("adamw", None, None),
            ("adamw", None, True),
            ("sgd", False, None),
        )
    ]
    parameters = 4 * tracer.trace(Request("mlp-large", batch=8)).parameters
    # foreach makes a list as large as the model
    assert small[0] - small[1] == pytest.approx(parameters, rel=0.05)
    # momentum alone instead of two moments
    assert small[1] - small[2] == pytest.approx(parameters, rel=0.05)


def test_the_third_step_is_the_copy_of_a_second_that_is_like_it(tracer: Tracer) -> None:
    three, five = (tracer.trace(Request("conv-small", steps=steps)) for steps in (3, 5))
    assert peak(three) == peak(five)
    marks = [mark.at for mark in five.trace.marks if mark.name.startswith("step")]
    lengths = [
        after - before
        for before, after in zip(marks, [*marks[1:], five.trace.marks[-1].at], strict=True)
    ]
    assert len(set(lengths[1:])) == 1


def test_a_program_that_speaks_of_cuda_alone_is_traced(tracer: Tracer) -> None:
    traced = tracer.trace(Request(f"{ODD}:ignores_device", batch=4))
    assert held(traced, "parameter") == 4 * (64 * 64 + 64)
    assert not traced.doubts
    cloned = tracer.trace(Request(f"{ODD}:cloned", batch=4))
    assert held(cloned, "parameter") == 2 * 4 * (64 * 64 + 64)
    assert not cloned.doubts


def test_values_that_nobody_has_are_doubts(tracer: Tracer) -> None:
    traced = tracer.trace(Request(f"{ODD}:reads_values"))
    assert {(doubt.code, doubt.operation) for doubt in traced.doubts} == {
        ("data_dependent", "item"),
        ("data_dependent", "index"),
    }
    assert all(doubt.percent > 0 for doubt in traced.doubts)
    host = tracer.trace(Request(f"{ODD}:on_host"))
    assert [doubt.code for doubt in host.doubts] == ["not_on_gpu"]


@pytest.mark.parametrize(
    ("factory", "code", "words"),
    [
        ("raises", "factory_failed", "the data is not there"),
        ("raises_forward", "factory_failed", "odd_factories.py"),
        ("exits", "factory_failed", "SystemExit"),
        ("two_things", "factory_failed", "not (model, optimizer, forward)"),
        ("vector_loss", "factory_failed", "not a scalar loss"),
        ("number_for_a_loss", "factory_failed", "returned a float (loss.item()?), not the loss"),
        ("backward_inside", "factory_failed", "leave backward() out of forward()"),
        ("mixed_devices", "factory_failed", "same device"),
        ("mixed_devices", "factory_failed", "cpu and cuda:0"),
        ("mixed_devices", "factory_failed", "x.to(device)"),
        ("half_convolution", "factory_failed", "fails in its first step"),
        ("half_convolution", "factory_failed", "cast one of them"),
        ("short_labels", "factory_failed", "cross-entropy takes classes as int64, and gets int32"),
        ("short_labels", "factory_failed", "labels.long()"),
        ("long_sequence", "factory_failed", "row 64 is looked up in a table of 64 rows"),
        ("one_class_more", "factory_failed", "a label is class 64 of 64 classes"),
        ("needs_a_library", "factory_failed", "pip install a_library_that_is_nowhere"),
        ("builds_in_half_precision", "factory_failed", "linalg_qr has no kernel for bfloat16"),
        ("into_numpy", "data_dependent", "reads a tensor's memory"),
        ("custom_kernel", "no_fake_kernel", "gpuscope_tests"),
        ("classes_in_clusters", "data_dependent", "a size that was assumed before, of the result"),
        ("derivative_forwards", "no_fake_kernel", "torch.func.jacrev in place of jacfwd"),
        # the child ends and another one is started
        pytest.param("hoards", "memory", "", marks=pytest.mark.slow),
        ("missing", "factory_failed", "has no missing"),
    ],
)
def test_a_bad_factory_is_answered_in_words(
    tracer: Tracer, factory: str, code: str, words: str
) -> None:
    with pytest.raises(CannotPredict) as caught:
        tracer.trace(Request(f"{ODD}:{factory}"))
    assert caught.value.code == code
    assert words in " ".join(map(str, caught.value.args))
    assert all(isinstance(word, str) and word for word in caught.value.args)


@pytest.mark.parametrize(
    ("factory", "amp", "words"),
    [
        ("half_weights", "off", "addmm gets tensors of float32 and bfloat16"),
        ("half_weights", "bf16", ""),
        ("half_attention", "off", "scaled_dot_product_attention gets tensors of float32"),
        ("half_attention", "bf16", ""),
        ("sums_along_edges", "off", ""),
        ("sums_along_edges", "bf16", "index_add gets tensors of bfloat16 and float32"),
        ("sums_along_edges", "fp16", "index_add gets tensors of float16 and float32"),
        ("fills_by_mask", "off", ""),
        ("fills_by_mask", "bf16", ""),
        ("writes_by_index", "bf16", "index_copy gets tensors of bfloat16 and float32"),
        ("weighted_classes", "off", "nll_loss_forward gets tensors of bfloat16 and float32"),
        ("weighted_classes", "bf16", ""),
        ("weighted_bags", "bf16", "embedding_bag gets tensors of bfloat16 and float32"),
        ("half_distances", "off", "cdist_forward has no kernel for bfloat16"),
        ("half_distances", "bf16", ""),
        ("half_singular_values", "off", ""),
        ("half_singular_values", "fp16", "linalg_svd has no kernel for float16"),
        ("half_margins", "off", ""),
        ("probabilities", "off", ""),
        ("probabilities", "bf16", "binary_cross_entropy (BCELoss) is not allowed under autocast"),
        ("probabilities_outside", "bf16", ""),
        pytest.param("weighted_classes", "compiled", "", marks=pytest.mark.slow),
        pytest.param("half_distances", "compiled", "cdist", marks=pytest.mark.slow),
        pytest.param("half_weights", "compiled", "addmm gets", marks=pytest.mark.slow),
        pytest.param("writes_by_index", "bf16 compiled", "", marks=pytest.mark.slow),
        pytest.param("sums_along_edges", "bf16 compiled", "index_add", marks=pytest.mark.slow),
    ],
)
def test_tensors_of_types_that_a_gpu_would_refuse_are_told(
    tracer: Tracer, factory: str, amp: str, words: str
) -> None:
    """What inductor compiles is as its code for a CPU was: some operators cast there."""
    precision, compiled = amp.replace("compiled", "").strip() or "off", amp.endswith("compiled")
    request = Request(f"{ODD}:{factory}", amp=precision, compile=compiled)
    if not words:
        assert tracer.trace(request).parameters
        return
    with pytest.raises(CannotPredict) as caught:
        tracer.trace(request)
    what, why, then, *_ = caught.value.args
    assert "fails on a GPU in its first step (" in what
    assert "odd_factories.py:" in what
    assert why.startswith(words)
    if "under autocast" in why:
        assert "BCEWithLogitsLoss" in then
    else:
        assert ("compute this in float32" if "no kernel" in why else "cast one of them") in then


def test_labels_that_are_left_out_are_no_classes(tracer: Tracer) -> None:
    assert tracer.trace(Request(f"{ODD}:padded_classes")).parameters


@pytest.mark.slow
def test_labels_of_32_bits_are_taken_where_inductor_compiles_the_loss(tracer: Tracer) -> None:
    assert tracer.trace(Request(f"{ODD}:short_labels", compile=True)).parameters


@pytest.mark.slow
def test_a_child_that_dies_is_replaced(tracer: Tracer) -> None:
    with pytest.raises(CannotPredict) as caught:
        tracer.trace(Request(f"{ODD}:aborts"))
    assert caught.value.code == "aborted"
    assert "about to abort" in " ".join(map(str, caught.value.args))
    assert tracer.trace(Request("mlp-tiny")).batch == 32


@pytest.mark.slow
def test_the_ranks_of_a_sharded_training_need_no_trace_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Request] = []
    plain = Tracer._ask

    def ask(self: Tracer, request: Request, seconds: float) -> Traced:
        asked.append(request)
        return plain(self, request, seconds)

    monkeypatch.setattr(Tracer, "_ask", ask)
    single = Request("gpt-tiny", batch=2)
    with Tracer() as own:
        whole, whole_again = own.trace(single), own.trace(single)
        child = own._process
        parts = [
            own.trace(Request("gpt-tiny", batch=2, sharding="fsdp", ranks=ranks))
            for ranks in (2, 8)
        ]
        assert asked == [single, single]
        other = own.trace(Request("gpt-tiny", batch=4, sharding="zero1", ranks=2))
        assert asked[2:] == [Request("gpt-tiny", batch=4, sharding="ddp")]
        assert own._process is child
    assert whole.trace == whole_again.trace
    assert held(whole, "parameter") > held(parts[0], "parameter") > held(parts[1], "parameter")
    assert [doubt.code for doubt in whole.doubts] == []
    assert {doubt.code for doubt in (*parts[0].doubts, *other.doubts)} == {"sharding"}
    assert [doubt.operation for doubt in other.doubts] == ["nccl watchdog", ""]


@pytest.mark.slow
def test_traces_are_alike_whatever_order_autocast_frees_its_casts_in(tracer: Tracer) -> None:
    one, other = (
        tracer.trace(Request("conv-small", batch=batch, amp="bf16")).trace for batch in (24, 32)
    )
    assert one.events == other.events


@pytest.mark.slow
def test_leaving_and_printing_spoil_nothing_for_what_is_traced_next() -> None:
    with Tracer() as one:
        with pytest.raises(CannotPredict) as caught:
            one.trace(Request(f"{ODD}:leaves"))
        assert caught.value.code == "aborted"
        assert one.trace(Request(f"{ODD}:prints")).trace.events
        assert one.trace(Request("mlp-tiny", batch=2)).trace.events


@pytest.mark.slow
def test_what_never_returns_is_killed_with_its_group() -> None:
    with pytest.raises(CannotPredict) as caught:
        trace(Request(f"{ODD}:sleeps"), seconds=4)
    assert caught.value.code == "timeout"
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
    if children.exists():
        running = [
            Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children.read_text().split()
        ]
        assert not any(b"predict.tracing" in line and b"sleeps" in line for line in running)
