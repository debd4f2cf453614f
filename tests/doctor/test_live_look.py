"""A look's rows become findings by their share of the wall clock, and a healthy look makes none."""

from __future__ import annotations

from typing import Any

import pytest

from gpuscope.doctor import report, table
from gpuscope.doctor.finding import Finding
from gpuscope.doctor.look_evidence import cure_of
from gpuscope.doctor.order import rank
from gpuscope.model.look import classes
from tests.fakes import clocks, views

KERNELS = {
    "products-plain": "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3_ffma_cublas",
    "products-half": "nvjet_sm90_tst_128x256_64x4_1x2_h_bz_coopA_TNN",
    "elementwise": "void at::native::vectorized_elementwise_kernel<4, CUDAFunctor_add<float>>",
    "communication": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "copies-out": "Memcpy DtoH (Device -> Pageable)",
    "copies-in": "Memcpy HtoD (Pageable -> Device)",
}
STEPS, PARTS = 10, 10
LINE = "train.py:31 main"
LOOKED = {
    "tensor-cores-idle", "host-bound-launches", "host-sync-in-loop", "copies-to-host",
    "pin-memory", "allocation-in-steps", "too-small-workload", "ddp-no-sync",
}  # fmt: skip


def a_look(
    kernels: int = 2000, once: bool = False, seconds: float = 0.25, **shares: float
) -> dict[str, Any]:
    """An answer to ``look``: rows by their share of the window, named with ``_`` or ``-``.

    What is left of the window are products in 16 bits. ``once``: each row is in one part alone.
    """
    named = {name.replace("_", "-"): share for name, share in shares.items()}
    named["products-half"] = 1 - sum(named.values())

    def parts(share: float) -> list[float]:
        if once:
            return [seconds * share, *[0.0] * (PARTS - 1)]
        return [seconds / PARTS * share * (1 + 0.02 * (-1) ** at) for at in range(PARTS)]

    ran = {name: share for name, share in named.items() if not name.startswith("idle-")}
    idle = {name[5:]: share for name, share in named.items() if name.startswith("idle-")}
    return {
        "seconds": seconds,
        "steps": STEPS,
        "began": views.WALL + 55.0,
        "kernels": [
            [KERNELS[n], max(1, round(kernels * s)), seconds * s, seconds * s]
            for n, s in ran.items()
        ],
        "left_out": [0, 0, 0.0, 0.0],
        "idle": [[cause, seconds * s, 40, LINE, seconds * s] for cause, s in idle.items()],
        "copied_at": [[KERNELS[n], LINE, seconds * s] for n, s in ran.items() if "copies" in n],
        "communication": [0.0, 0.0, 0],
        "copies": [0.0, 0.0, 0],
        "parts": [
            [seconds / PARTS] * PARTS,
            [parts(share) for share in ran.values()],
            [0.0] * PARTS,
            [parts(share) for share in idle.values()],
        ],
    }


def found(
    look: dict[str, Any],
    used: float = 100.0,
    pauses: dict[str, float] | None = None,
    facts: dict[str, Any] | None = None,
    card: str = "9.0",
    load: float = 97.0,
) -> list[Finding]:
    """One trainer on one card that was looked at, of whose minute pauses took these shares."""
    minute = clocks.rows_of(pauses or {}, 2400) | {"places": []} | (facts or {})
    store = clocks.one_trainer(minute, 0.025, load, used, card, look=look)
    return rank(one for one in views.judged(store).findings if one.pitfall in LOOKED)


CASES = {
    "products-plain": ("look.products_plain", "tensor-cores-idle", "warning", 14 / 15),
    "idle-launch": ("look.launches", "host-bound-launches", "warning", 1.0),
    "idle-sync": ("look.reads", "host-sync-in-loop", "warning", 1.0),
    "copies-out": ("look.copies_out", "copies-to-host", "warning", 1.0),
    "copies-in": ("look.copies_in", "pin-memory", "warning", 1.0),
    "idle-allocate": ("look.allocates", "allocation-in-steps", "warning", 1.0),
}


@pytest.mark.parametrize("name", CASES)
def test_a_row_is_a_finding_with_its_gain_its_interval_and_its_line(name):
    cause, pitfall, severity, part = CASES[name]
    (one,) = found(a_look(**{name: 0.6}))
    assert (one.cause, one.pitfall, one.severity) == (cause, pitfall, severity)
    assert one.effect is not None
    assert one.effect.bound == "at most"
    assert one.effect.saved_share == pytest.approx(0.6 * part, abs=1e-3)
    low, high = one.effect.saved_share_low, one.effect.saved_share_high
    assert low is not None
    assert high is not None
    assert low < 0.6 * part <= high < 0.7
    assert "of the wall clock" in one.effect.text
    text = "\n".join(part.text for part in one.evidence)
    assert "15.0 ms of a step of 25.0 ms in the 10 traced steps: 60 %" in text
    if name not in ("products-plain", "idle-launch"):
        assert f"most of it at {LINE}" in text
    (told,) = report.finish(report.Report(findings=(one,)), table.load()).findings
    assert told.fixes
    assert told.verify or pitfall in ("allocation-in-steps",)


@pytest.mark.parametrize("name", CASES)
def test_below_the_bar_or_where_steps_differ_too_much_nothing_is_said(name):
    assert not found(a_look(**{name: 0.04}))
    assert not found(a_look(once=True, **{name: 0.12})), "its interval begins at nothing"


def test_a_healthy_look_makes_no_finding():
    rows = {"elementwise": 0.2, "communication": 0.04, "idle-launch": 0.05, "idle-sync": 0.02}
    assert not found(a_look(**rows, **{"copies-in": 0.02, "products-plain": 0.03}))


def test_pauses_between_steps_that_the_look_has_not_met_make_the_gain_smaller():
    """A step takes 25 ms with its pauses; the steps of the look took 12.5 ms."""
    (one,) = found(a_look(seconds=0.125, idle_sync=0.6), pauses={"checkpoint": 0.5})
    assert one.effect is not None
    assert one.effect.saved_share == pytest.approx(0.3)


def test_a_trace_that_made_the_steps_longer_leaves_the_work_of_the_gpu_and_shrinks_its_idle_time():
    """A step takes 25 ms. With the trace it took 50 ms, for 20 of which the GPU worked."""
    (one,) = found(a_look(seconds=0.5, idle_sync=0.6))
    assert one.effect is not None
    assert one.effect.saved_share == pytest.approx(0.2)


@pytest.mark.parametrize(("card", "told"), [("9.0", True), ("8.6", True), ("7.5", False)])
def test_products_are_told_of_where_tensor_cores_could_do_them(card, told):
    findings = found(a_look(products_plain=0.5), card=card)
    assert bool(findings) == told
    if told:
        sources = {part.source for part in findings[0].evidence}
        assert ("data sheet" in sources) == (card == "9.0"), "factors are known of this card alone"
        assert findings[0].effect is not None
        part = 14 / 15 if card == "9.0" else 1.0
        assert findings[0].effect.saved_share == pytest.approx(0.5 * part, abs=1e-3)


def test_a_batch_is_small_where_kernels_are_tiny_and_few_and_memory_is_free():
    small = a_look(kernels=20_000, idle_launch=0.8)
    (one,) = found(small, used=20.0)
    assert (one.cause, one.pitfall, one.severity) == (
        "look.small_batch", "too-small-workload", "info",
    )  # fmt: skip
    assert any("memory of GPU 0 is free: a larger batch fits" in p.text for p in one.evidence)
    (full,) = found(small, used=100.0)
    (many,) = found(a_look(kernels=60_000, idle_launch=0.8), used=20.0)
    (long,) = found(a_look(kernels=500, idle_launch=0.8), used=20.0)
    assert {full.cause, many.cause, long.cause} == {"look.launches"}


def test_copies_of_single_numbers_are_reads_and_no_copies():
    many = a_look(kernels=500_000, copies_out=0.3, idle_sync=0.4)
    (one,) = found(many)
    assert one.cause == "look.reads"
    assert one.effect is not None
    assert one.effect.saved_share == pytest.approx(0.7), "who does not read does not copy either"
    (one,) = found(a_look(kernels=500_000, copies_out=0.1, idle_copy=0.5))
    assert (one.cause, one.effect and one.effect.saved_share) == ("look.reads", 0.6)


def test_copies_that_hold_the_host_count_with_their_direction():
    held = {"copies_in": 0.05, "copies_out": 0.2, "idle_copy": 0.3}
    out, back = found(a_look(**held))
    assert (out.cause, back.cause) == ("look.copies_out", "look.copies_in")
    assert out.effect is not None
    assert out.effect.saved_share == pytest.approx(0.5)


def test_the_time_of_copies_is_not_told_again_as_that_of_reads():
    """The driver calls a GPU idle that copies: the thread stands in the same line meanwhile."""
    minute = {"rows": [["read", 54.0, 270], ["forward", 6.0, 30]]}
    look = a_look(copies_out=0.85, idle_sync=0.02)
    assert [one.cause for one in found(look, facts=minute, load=10.0)] == ["look.copies_out"]
    without = [one.cause for one in found({}, facts=minute, load=10.0)]
    assert sorted(without) == ["live.launch_bound", "live.reads"]


def test_an_old_look_says_so_and_a_very_old_one_says_nothing():
    look = a_look(idle_sync=0.6)
    (one,) = found({**look, "began": views.WALL - 660})
    assert "traced steps, 12 min 00 s ago" in one.evidence[0].text
    assert not found({**look, "began": views.WALL - 7200})


def test_one_reduction_a_step_saves_what_the_look_has_seen_of_them():
    (one,) = found(a_look(communication=0.4), facts={"gradient_syncs": 8})
    assert (one.pitfall, one.severity) == ("ddp-no-sync", "warning")
    assert one.effect is not None
    assert one.effect.saved_share == pytest.approx(0.4 * 7 / 8)
    assert one.evidence[0].source == "GPU trace"


def test_every_row_with_a_finding_has_a_cure_in_words():
    assert all(cure_of(name) for name in (*CASES, "idle-copy", "communication"))
    assert not cure_of("elementwise")
    assert {name for name in CASES if not name.startswith("idle-")} <= classes().keys()


def test_what_is_no_look_is_no_finding():
    assert not found({})
    assert not found({"seconds": "x", "steps": 3, "kernels": [[1]], "parts": "no"})
