"""A against B: which interval, what differs, break-even, scaling, loss at equal samples."""

from __future__ import annotations

import math

import pytest

from gpuscope.lab.compare import Comparison, compare
from gpuscope.lab.comparison_row import SINGLE, WITHIN
from gpuscope.lab.intervals import t_quantile
from gpuscope.lab.ledger import entry_of
from gpuscope.lab.measures import loss_at, loss_curve
from tests.fakes.lab_runs import document, entry


def repeats(steps: list[float], group: str = "g", **more: object) -> list:
    return [entry(seconds, repeat=n, group=group, **more) for n, seconds in enumerate(steps)]


def differing(found: Comparison) -> list[str]:
    return [change.name for change in found.changes]


# ── verdicts ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("ratio", "verdict"),
    [(0.9935, "same"), (1.0065, "same"), (0.98, "worse"), (1.02, "better")],
)
def test_what_makes_no_practical_difference_is_called_the_same(ratio: float, verdict: str) -> None:
    """Even where the interval is narrow enough to tell one from the other."""
    row = compare(
        repeats([0.1] * 5), repeats([0.1 / ratio * (1 + n * 1e-5) for n in range(5)])
    ).row("samples_per_second")
    assert row.decided
    assert row.verdict == verdict


def test_a_loss_that_differs_less_than_its_seeds_make_it_differ_is_the_same() -> None:
    """Repeats of one seed differ alike, so only the spread between seeds says what matters."""
    seeds = [4.6, 4.7, 4.8]

    def verdict(factor: float) -> str:
        sides = [
            [
                entry(0.1, repeat=n, group="g", amp=amp, loss_curve=[[8, 5.0], [16, loss * times]])
                for n, loss in enumerate(seeds)
            ]
            for amp, times in (("off", 1.0), ("bf16", factor))
        ]
        row = compare(*sides).row("loss")
        assert row.decided
        return row.verdict

    assert verdict(4.698 / 4.699) == "same"
    assert verdict(0.985) == "same", "the seeds alone make a difference of 2 %"
    assert verdict(0.95) == "better"


@pytest.mark.parametrize("runs", [2, 3, 5])
def test_where_repeats_are_too_noisy_it_is_said_how_many_may_be_enough(runs: int) -> None:
    """With as many that vary as much, the interval is narrow; with one fewer it is still wide."""

    def compared(count: int, spread: float) -> Comparison:
        slow = [0.1 * math.exp(spread * (-1) ** n) for n in range(count)]
        return compare(repeats([0.1] * count), repeats(slow))

    noisy = compared(runs, 1.5 if runs > 2 else 0.3)
    assert noisy.row("step_seconds").wide
    (note,) = (note for note in noisy.notes if "too noisy" in note)
    wanted = int(note.removeprefix("too noisy: ").split()[0])
    row = noisy.row("samples_per_second")
    deviation = math.log(row.high / row.ratio) * math.sqrt(runs) / t_quantile(runs - 1)
    reach = [deviation * t_quantile(n - 1) / math.sqrt(n) for n in (wanted - 1, wanted)]
    assert reach[0] > math.log(2) >= reach[1]
    assert not any("too noisy" in note for note in compared(runs, 0.01).notes)


def test_an_interval_that_says_nothing_is_not_told_and_decides_nothing() -> None:
    row = compare(repeats([0.10, 0.10]), repeats([0.08, 0.12])).row("step_seconds")
    assert row.wide
    assert row.verdict == "undecided"
    steps = {"step_seconds": {"median": 0.1, "p95": 0.4, "low": 0.04, "high": 0.3, "count": 6}}
    alone = compare([entry(**steps)], [entry(0.1)]).row("step_seconds")
    assert alone.wide
    narrow = compare(repeats([0.10] * 5), repeats([0.10, 0.12, 0.10, 0.11, 0.12]))
    assert not narrow.row("step_seconds").wide


def test_a_comparison_says_how_many_pairs_it_is_of() -> None:
    assert compare(repeats([0.1, 0.1, 0.1]), repeats([0.05, 0.05])).paired == 2
    assert compare([entry(0.1)], [entry(0.08)]).paired == 0


# ── ratios ────────────────────────────────────────────────────────────────────────────────────────


def test_interleaved_repeats_are_paired() -> None:
    a = repeats([0.10, 0.20, 0.15])
    b = repeats([0.05, 0.10, 0.075], amp="bf16")
    row = compare(a, b[::-1]).row("samples_per_second")
    assert row.basis == "3 interleaved repeats"
    assert (row.ratio, row.low, row.high) == pytest.approx((2.0, 2.0, 2.0))
    assert row.b / row.a == pytest.approx(row.ratio)
    assert row.decided


def test_only_what_was_run_beside_each_other_is_paired() -> None:
    a, b = repeats([0.1, 0.1, 0.1]), repeats([0.05, 0.05])
    assert compare(a, b).row("step_seconds").basis == "2 interleaved repeats"
    row = compare(a, b[1:]).row("step_seconds")
    assert (row.basis, row.a, row.b) == (WITHIN, 0.1, 0.05)


def test_runs_of_other_groups_are_not_paired() -> None:
    a = [entry(x) for x in (0.10, 0.11, 0.12)]
    b = [entry(x) for x in (0.10, 0.11)]
    row = compare(a, b).row("step_seconds")
    assert row.basis == "3 and 2 separate runs"
    assert row.low < row.ratio < row.high
    assert not row.decided


def test_two_runs_have_the_spread_of_their_steps() -> None:
    found = compare([entry(0.1)], [entry(0.08)])
    row = found.row("step_seconds")
    assert row.basis == WITHIN
    assert row.low < 0.8 < row.high
    # each end of 1 % is widened to hold with √0.95: the quotient is between 1.6 and 2.4 % wide on
    # each side
    assert 1.016 < row.high / 0.8 < 1.024
    assert found.row("samples_per_second").basis == SINGLE
    assert found.row("samples_per_second").low is None
    assert any("steps of one run" in note for note in found.notes)


def test_without_an_interval_of_the_steps_it_is_single_figures() -> None:
    few = {"step_seconds": {"median": 0.1, "p95": 0.2, "low": None, "high": None, "count": 4}}
    found = compare([entry(**few)], [entry(0.1)])
    row = found.row("step_seconds")
    assert (row.ratio, row.low, row.basis) == (1.0, None, SINGLE)
    assert "A and B ran only once: the noise between runs is unknown" in found.notes


def test_unknown_is_none_with_its_reason_never_zero() -> None:
    unknown = [
        {
            "path": "peak_allocated_bytes",
            "code": "not_supported",
            "reason": "torch counts no memory on a CPU",
        }
    ]
    row = compare([entry(peak_allocated_bytes=None, unknown=unknown)], [entry()]).row(
        "peak_allocated_bytes"
    )
    assert (row.a, row.b, row.ratio) == (None, 2 << 30, None)
    assert row.reason == "A: torch counts no memory on a CPU"
    zero = compare([entry(input_seconds=0.0)], [entry(input_seconds=0.1)]).row("input_seconds")
    assert (zero.ratio, zero.reason) == (None, "one of them is 0: no ratio")
    assert zero.a == 0.0


def test_memory_that_is_the_same_in_every_repeat_has_a_narrow_interval() -> None:
    row = compare(repeats([0.1] * 3), repeats([0.1] * 3, peak_allocated_bytes=1 << 30)).row(
        "peak_allocated_bytes"
    )
    assert (row.ratio, row.low, row.high) == pytest.approx((0.5, 0.5, 0.5))


@pytest.mark.parametrize(
    "hostile",
    [
        {},
        {
            "step_seconds": 3,
            "loss_curve": "no",
            "unknown": {"a": 1},
            "samples_per_step": "8",
            "world_size": True,
        },
        {
            "step_seconds": {"median": "x", "low": [], "high": None},
            "loss_curve": [[1], None, ["a", "b"], [1, 2, 3]],
        },
        {
            "step_seconds": {"median": -1.0, "low": 5, "high": 2},
            "samples_per_second": 1e999,
            "samples_per_step": -8,
        },
        {
            "config": {"model": 5},
            "error": {"what": ["x"]},
            "loss_curve": [[0, 0], [0, 1]],
            "warmup_seconds": True,
        },
    ],
)
def test_any_document_can_be_compared(hostile: dict) -> None:
    for a, b in (
        (entry_of(hostile), entry()),
        (entry(), entry_of(hostile)),
        (entry_of(hostile), entry_of(hostile)),
    ):
        for row in compare([a], [b]).rows:
            assert row.ratio is not None or row.reason


def test_an_empty_side_is_an_error() -> None:
    with pytest.raises(ValueError, match="each side needs a run"):
        compare([], [entry()])


def test_failed_runs_are_left_out_and_said() -> None:
    failed = entry(
        group="g",
        repeat=2,
        error={"what": "Out of memory.", "why": "80 GiB"},
        samples_per_second=None,
    )
    found = compare([*repeats([0.1, 0.1]), failed], repeats([0.05, 0.05, 0.05]))
    assert found.row("samples_per_second").basis == "2 interleaved repeats"
    assert (
        "A: 1 of 3 runs ended early (left out): failed after 100 steps: Out of memory: 80 GiB"
        in found.notes
    )
    alone = compare([failed], [entry()])
    assert alone.row("samples_per_second").reason == "A: Out of memory: 80 GiB"


# ── what differs ──────────────────────────────────────────────────────────────────────────────────


def test_differing_toggles_and_surroundings() -> None:
    a = entry_of(document(), environment={"host": "one", "driver": "570", "system": "Linux"})
    b = entry_of(
        document(
            amp="bf16", batch=16, foreach=False, torch_version="2.11", device_name="NVIDIA H200"
        ),
        environment={"host": "two", "driver": "570", "python": "3.12"},
    )
    found = compare([a], [b])
    assert differing(found) == ["amp", "batch", "foreach", "device_name", "torch_version", "host"]
    assert [(c.a, c.b) for c in found.changes if c.toggle] == [
        ("off", "bf16"),
        ("8", "16"),
        ("torch's choice", "off"),
    ]
    assert "different devices: a CPU and NVIDIA H200" in found.notes
    assert "different torch: 2.13.0 and 2.11" in found.notes
    assert any(note.startswith("a step has 8 and 16 samples") for note in found.notes)


def test_nothing_differs_between_a_run_and_itself() -> None:
    found = compare([entry()], [entry()])
    assert differing(found) == []
    assert all(row.ratio == 1.0 for row in found.rows if row.ratio is not None)


def test_a_longer_step_of_more_samples_is_no_worse() -> None:
    found = compare([entry(0.1)], [entry(0.15, batch=16)])
    assert (found.row("step_seconds").better, found.row("sample_seconds").better) == ("", "lower")
    assert found.row("sample_seconds").ratio == pytest.approx(0.75)


# ── compiling ─────────────────────────────────────────────────────────────────────────────────────


def test_break_even() -> None:
    eager, compiled = (
        entry(0.10, warmup_seconds=1.0),
        entry(0.08, warmup_seconds=31.0, compile="default"),
    )
    assert compare([eager], [compiled]).break_even_step == 1500
    assert compare([compiled], [eager]).break_even_step == 1500, "whichever is A"
    cached = entry(0.08, warmup_seconds=0.5, compile="default")
    assert compare([eager], [cached]).break_even_step == 0


@pytest.mark.parametrize(
    ("b", "reason"),
    [
        (entry(0.11, compile="default"), "not faster"),
        (entry(0.0999, compile="default"), "undecided"),
        (entry(0.05, compile="default", warmup_seconds=None), "is unknown"),
        (entry(0.05, compile="default", batch=16), "different numbers of samples"),
        (entry(0.05), "neither is compiled"),
        (entry(0.11, compile="default", seed=1), "not faster"),
        (
            entry(0.11, compile="default", amp="bf16", fused=True),
            "not all that differs: amp, fused",
        ),
        (entry(0.11, compile="default", torch_version="2.6.0"), "differs: torch version"),
    ],
)
def test_no_break_even_says_why(b: object, reason: str) -> None:
    found = compare([entry(0.10)], [b])  # type: ignore[list-item]
    assert found.break_even_step is None
    assert reason in found.break_even_reason


def test_a_compiled_run_is_not_called_slower_where_its_noise_is_unknown() -> None:
    """Three repeats against one run have no interval, so chance may have made it slower."""
    found = compare(repeats([0.10, 0.11, 0.12]), [entry(0.2, compile="default")])
    assert found.row("step_seconds").low is None
    assert "undecided: the step's interval is unknown" in found.break_even_reason
    faster = compare(repeats([0.10, 0.11, 0.12]), [entry(0.05, compile="default")])
    assert faster.break_even_step is None


# ── scaling ───────────────────────────────────────────────────────────────────────────────────────


def test_weak_scaling_efficiency() -> None:
    one = repeats([0.10, 0.10, 0.10])
    four = repeats([0.105, 0.104, 0.106], parallel="ddp", world=4)
    row = compare(one, four).row("efficiency")
    assert row.title == "efficiency, weak scaling 1 → 4"
    assert row.ratio == pytest.approx(0.10 / 0.105, rel=1e-3)
    assert row.low < row.ratio < row.high
    assert row.basis == "3 interleaved repeats"
    assert not row.decided or row.high < 1


def test_strong_scaling_efficiency_and_neither() -> None:
    row = compare([entry(0.10, batch=32)], [entry(0.03, batch=8, parallel="ddp", world=4)]).row(
        "efficiency"
    )
    assert row.title == "efficiency, strong scaling 1 → 4"
    assert row.ratio == pytest.approx(0.10 / 0.03 / 4)
    assert (
        compare([entry(0.1, batch=32)], [entry(0.1, batch=16, parallel="ddp", world=4)]).row(
            "efficiency"
        )
        is None
    )
    assert compare([entry(0.1)], [entry(0.2)]).row("efficiency") is None


def test_what_differs_in_model_or_device_gets_no_verdict() -> None:
    other = entry(0.1, parallel="ddp", world=4, preset="mlp-tiny")
    found = compare([entry(0.1, preset="gpt-tiny")], [other])
    assert found.row("efficiency") is None
    assert found.notes[0] == "not comparable: gpt-tiny on CPU, mlp-tiny on CPU"
    assert found.row("step_seconds").ratio == pytest.approx(1)
    assert not any(row.better for row in found.rows)
    model = found.changes[0]
    assert (model.name, model.a, model.b) == ("model", "gpt-tiny", "mlp-tiny")
    alike = compare([entry(0.1)], [entry(0.2)])
    assert alike.apart == ""
    assert alike.row("step_seconds").better == "lower"


# ── loss ──────────────────────────────────────────────────────────────────────────────────────────


def test_loss_at_equal_samples_is_interpolated() -> None:
    a = entry(loss_curve=[[0, 4.0], [100, 3.0], [1000, 1.0]])
    b = entry(batch=16, loss_curve=[[0, 4.0], [400, 2.0]])
    row = compare([a], [b]).row("loss")
    assert row.title == "loss after 400 samples"
    assert (row.a, row.b) == (pytest.approx(3.0 - 2.0 * 300 / 900), 2.0)


def test_loss_without_a_common_number_of_samples() -> None:
    row = compare(
        [entry(loss_curve=[[1000, 2.0], [2000, 1.0]])], [entry(loss_curve=[[8, 4.0], [100, 3.0]])]
    ).row("loss")
    assert (row.ratio, row.reason) == (None, "they share no number of samples")
    assert row.b == 3.0


def test_loss_at_equal_steps_where_a_trainer_tells_no_samples() -> None:
    recorded = entry_of(
        {"loss_by_step": [[10, 3.0], [50, 1.5]], "samples_per_step": None}, source="recording"
    )
    row = compare([entry(batch=8, loss_curve=[[8, 4.0], [800, 2.0]])], [recorded]).row("loss")
    assert row.title == "loss after 50 steps"
    assert row.b == 1.5
    assert row.a == pytest.approx(4.0 - 2.0 * (400 - 8) / 792)


def test_a_loss_below_zero_has_no_ratio() -> None:
    row = compare([entry(loss_curve=[[8, -1.0]])], [entry(loss_curve=[[8, 1.0]])]).row("loss")
    assert (row.a, row.b, row.ratio) == (-1.0, 1.0, None)
    assert "0 or below" in row.reason


def test_points_that_are_none_are_left_out() -> None:
    found = entry_of(
        {"loss_curve": [[10, 2.0], [5, 3.0], [7, None], ["x", 1], [True, 1.0], [20, float("inf")]]}
    )
    assert loss_curve(found) == [(5.0, 3.0), (10.0, 2.0)]
    assert loss_at([], 1) is None
    assert loss_at([(5.0, 3.0)], 5) == 3.0
    assert math.isclose(loss_at([(5.0, 3.0), (10.0, 2.0)], 7.5), 2.5)


def test_the_seeds_of_repeats_are_no_difference() -> None:
    a = [entry(group="g", repeat=n, seed=n) for n in (0, 1)]
    b = [entry(group="g", repeat=n, seed=n, amp="bf16") for n in (1, 2)]
    assert differing(compare(a, b)) == ["amp"]
