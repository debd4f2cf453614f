"""FLOPs become a utilization and a floor by the peaks of a card, or a reason why not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpuscope.model import useful_work
from gpuscope.model.card_peaks import card_named, cards
from gpuscope.model.useful_work import cost, read, sentence, unknown_text
from tests.fakes.cases import each
from tests.model.test_operator_work import text

CARD = cards()["H100 SXM"]


def row(name, count=1, read_bytes=0, written=0, dtype="bfloat16", call="", again=0) -> list[Any]:
    return [name, again, count, read_bytes, written, dtype, call]


def answer(*rows, **more) -> dict[str, Any]:
    return {"operators": list(rows), "tf32": [False, True], "cuda": True, "devices": 1, **more}


MM = text((4096, 4096), (4096, 4096))
FLOPS = 2.0 * 4096**3
MOVED = 3 * 2 * 4096**2


def test_the_floor_is_the_longer_of_computing_and_moving_for_each_operator():
    work = read(
        answer(
            row("aten::mm", 4, 4 * 2 * MOVED // 3, 4 * MOVED // 3, call=MM),
            row("aten::add", 2, 6_700_000_000, 0),
        ),
        CARD,
        "",
    )
    assert work is not None
    products, elementwise = sorted(work.rows, key=lambda one: one.kind != "products")
    assert products.floor_seconds == pytest.approx(4 * FLOPS / 989.5e12)
    assert elementwise.floor_seconds == pytest.approx(2.0e-3)
    assert (elementwise.hardware_flops, elementwise.bytes) == (0.0, 6.7e9)
    assert work.floor_seconds == pytest.approx(4 * FLOPS / 989.5e12 + 2.0e-3)
    assert work.mfu(0.01) == pytest.approx(4 * FLOPS / (0.01 * 989.5e12))


def test_what_a_checkpoint_computes_again_is_in_hardware_flops_alone():
    work = read(answer(row("aten::mm", 3, call=MM), row("aten::mm", call=MM, again=1)), CARD, "")
    assert work is not None
    assert work.model_flops == 3 * FLOPS
    assert work.hardware_flops == 4 * FLOPS
    assert work.recomputed_flops == FLOPS
    assert work.hfu(1.0) == pytest.approx(4 / 3 * (work.mfu(1.0) or 0.0))


def test_single_precision_has_the_peak_that_its_switch_allows():
    products = row("aten::mm", dtype="float32", call=MM)
    plain = read(answer(products), CARD, "")
    fast = read(answer(products, tf32=[True, True]), CARD, "")
    old = read(answer(products, tf32=[True, True]), cards()["V100 SXM"], "")
    assert plain is not None
    assert fast is not None
    assert old is not None
    assert (plain.type, plain.peak) == ("fp32", 67e12)
    assert (fast.type, fast.peak) == ("tf32", 494.5e12)
    assert (old.type, old.peak) == ("fp32", 15.7e12)


def test_a_type_without_a_peak_has_neither_floor_nor_utilization():
    work = read(answer(row("aten::mm", call=MM)), cards()["T4"], "")
    assert work is not None
    assert (work.floor_seconds, work.mfu(1.0)) == (None, None)
    assert "no data sheet has a peak of T4 for bf16" in sentence(work, 1.0)


def test_an_unknown_operator_is_named_and_makes_a_lower_bound_of_the_total():
    work = read(answer(row("aten::mm", call=MM), row("aten::_fft_c2c", 6, 10, 10)), CARD, "")
    assert work is not None
    assert not work.complete
    assert work.unknown == (("aten::_fft_c2c", 6),)
    assert "MFU at least" in sentence(work, 0.01)
    assert unknown_text(work) == "The FLOPs of aten::_fft_c2c (6) are not known."


def test_the_sentence_has_the_step_the_floor_and_the_convention():
    work = read(answer(row("aten::mm", 100, call=MM)), CARD, "")
    assert work is not None
    said = sentence(work, 0.05)
    assert said.startswith(
        "50.0 ms a step; this GPU could do it in 13.9 ms (roofline floor); MFU 28 %"
    )
    assert "PaLM convention: 13.7 TFLOP of the model" in said
    assert "989.5 TFLOPS, dense bf16 of H100 SXM" in said
    nobody = replace(work, card=None, problem=useful_work.MIG)
    assert useful_work.MIG in sentence(nobody, 0.05)


def test_what_a_probe_sends_is_not_trusted():
    assert read({}, CARD, "") is None
    assert read({"operators": [1, [], row("x", -1), [None] * 7]}, CARD, "") is None
    work = read(answer(row("aten::mm", call=MM), ["aten::mm", 0, "many", 0, 0, "x", ""]), CARD, "")
    assert work is not None
    assert (work.left_out, work.complete) == (1, False)


def test_the_price_is_what_the_steps_lost_or_what_the_counted_one_took():
    work = read(answer(row("aten::mm", call=MM), lost_seconds=0.04, seconds=0.1), CARD, "")
    assert work is not None
    assert cost(work) == "Counting the step cost the training 40.0 ms."
    unsure = replace(work, lost_seconds=None, usual_seconds=0.06)
    assert cost(unsure) == "The step whose FLOPs were counted took 100 ms; usual: 60.0 ms."


@each(
    ("name", "card"),
    [
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H200", "H200 SXM"),
        ("NVIDIA A100-SXM4-40GB", "A100 40 GB"),
        ("NVIDIA A100 80GB PCIe", "A100 80 GB PCIe"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA L4", "L4"),
        ("Tesla T4", "T4"),
        ("Tesla V100-SXM2-32GB", "V100 SXM"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("NVIDIA GeForce RTX 4090 D", None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
    ],
)
def test_a_card_is_known_by_the_name_that_the_driver_gives_it(name, card):
    found = card_named(name)
    assert (found.id if found is not None else None) == card


def test_peaks_are_dense_and_ordered():
    for card in cards().values():
        peaks = card.peaks
        assert peaks["fp32"] <= peaks["fp16"], card.id
        assert peaks.get("bf16", peaks["fp16"]) == peaks["fp16"], card.id
        # FLOPs for each byte from memory: with sparsity it would be twice that and beyond 500
        assert 70 < peaks["fp16"] * 1e3 / card.bandwidth < 450, card.id
        assert card.source
