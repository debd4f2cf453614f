"""What makes a verdict of figures, and the table of claims: no torch, no processes."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.checked_rows import TableError
from gpuscope.lab import claims, intervals
from gpuscope.lab.claim_run import OF_CLAIMS, Machine, why_not
from gpuscope.lab.claims import BY_ID, CLAIMS, ClaimFigure, MeasuredFigure
from gpuscope.lab.measures import BY_KEY

NUMBER = st.floats(-1e6, 1e6, allow_nan=False)
BOUND = st.none() | NUMBER
CPU_BOX = Machine("cpu", 0, {"gpus": [], "cores": 2, "load": 0.1})


def gpus(count: int) -> Machine:
    memory = {"name": "NVIDIA H200", "free_bytes": 140 << 30, "total_bytes": 141 << 30}
    return Machine("cuda", count, {"gpus": [memory] * count, "cores": 16, "load": 0.1})


# ── the interval against the threshold ────────────────────────────────────────────────────────────


@given(NUMBER, NUMBER, BOUND, BOUND)
def test_a_verdict_says_where_the_interval_lies(
    one: float, other: float, least: float | None, most: float | None
):
    low, high = sorted((one, other))
    if least is not None and most is not None and least > most:
        least, most = most, least
    inside = (least is None or least <= low) and (most is None or high <= most)
    outside = (least is not None and high < least) or (most is not None and low > most)
    found = claims.verdict(low, high, least, most)
    assert found == ("holds" if inside else "does_not_hold" if outside else "undecided")
    assert not (inside and outside)


@given(NUMBER, NUMBER, NUMBER, st.floats(0, 1e6))
def test_a_wider_interval_never_decides_what_a_narrow_one_left_open(
    middle: float, half: float, least: float, more: float
):
    half = abs(half)
    narrow = claims.verdict(middle - half, middle + half, least, None)
    wide = claims.verdict(middle - half - more, middle + half + more, least, None)
    assert wide in (narrow, "undecided")


@pytest.mark.parametrize(
    ("low", "high"), [(None, 1.0), (1.0, None), (None, None), (math.nan, 1.0), (0.5, math.nan)]
)
def test_no_interval_decides_nothing(low: float | None, high: float | None):
    assert claims.verdict(low, high, 0.0, 2.0) == "undecided"


def test_both_ends_of_a_threshold_belong_to_it():
    assert claims.verdict(0.95, 1.05, 0.95, 1.05) == "holds"
    assert claims.verdict(0.55, 0.55, None, 0.55) == "holds"


@given(st.lists(st.floats(0.01, 100), min_size=2, max_size=20))
def test_the_interval_of_ratios_holds_their_geometric_mean_and_turns_round_with_them(
    values: list[float],
):
    mean, low, high = intervals.of_ratios(values)
    assert low is not None
    assert high is not None
    assert low <= mean * (1 + 1e-9)
    assert mean <= high * (1 + 1e-9)
    assert mean == pytest.approx(math.exp(math.fsum(map(math.log, values)) / len(values)))
    turned = intervals.of_ratios([1 / value for value in values])
    assert turned.middle == pytest.approx(1 / mean)
    if high < 1e12:
        assert turned.low == pytest.approx(1 / high)


def test_the_interval_of_values_is_students():
    # mean 10, standard deviation 1 of 5: t(4) = 2.776
    found = intervals.of_mean([9, 9.5, 10, 10.5, 11])
    half = 2.7764451 * math.sqrt(2.5 / 4) / math.sqrt(5)
    assert found == pytest.approx((10, 10 - half, 10 + half), rel=1e-6)


# ── a figure and a claim ──────────────────────────────────────────────────────────────────────────

HALF = ClaimFigure(key="memory", title="peak", over="a.x", at_most=0.55)


@pytest.mark.parametrize(
    ("values", "verdict", "reason"),
    [
        ([0.5, 0.51, 0.5], "holds", ""),
        ([0.8, 0.81, 0.8], "does_not_hold", ""),
        ([0.4, 0.7, 0.5], "undecided", "includes the threshold"),
        ([0.5], "undecided", "one repeat shows no spread"),
        ([], "undecided", "it was stopped"),
        ([0.5, None, 0.5, 0.5], "undecided", "1 of 4 repeats gave no figure"),
        ([0.5, math.nan, 0.5, math.inf], "undecided", "2 of 4 repeats gave no figure"),
        ([0.5, 0.5, -0.5, 0.0], "undecided", "2 of 4 repeats gave no figure"),
    ],
)
def test_a_figure_is_judged_by_all_of_its_repeats(
    values: list[float | None], verdict: str, reason: str
):
    found = claims.judge(HALF, values, "cuda", 1, "it was stopped")
    assert found.verdict == verdict
    assert reason in found.reason
    assert bool(found.reason) == (verdict == "undecided")


def test_a_figure_this_machine_cannot_give_says_so():
    four = ClaimFigure(
        key="4", title="efficiency", over="a.x", at_least=0.95, devices=("cuda",), gpus=4
    )
    assert claims.judge(four, [], "cuda", 2).reason == "needs 4 GPUs, 2 here"
    assert claims.judge(four, [], "cpu", 0).verdict == "cannot_be_tested"
    assert claims.judge(four, [0.97, 0.971, 0.972], "cuda", 4).verdict == "holds"


def judged(verdict: claims.Verdict, counts: bool = True) -> MeasuredFigure:
    figure = ClaimFigure(key="x", title="x", over="a.x", at_least=1.0, counts=counts)
    return MeasuredFigure(figure, [], None, verdict, "why" if verdict[0] in "uc" else "")


@pytest.mark.parametrize(
    ("parts", "whole"),
    [
        (["holds", "holds"], "holds"),
        (["holds", "does_not_hold"], "does_not_hold"),
        (["undecided", "does_not_hold"], "does_not_hold"),
        (["holds", "undecided"], "undecided"),
        (["cannot_be_tested", "cannot_be_tested"], "cannot_be_tested"),
        (["cannot_be_tested", "holds"], "holds"),
        (["cannot_be_tested", "undecided"], "undecided"),
    ],
)
def test_a_claim_holds_where_every_part_that_can_be_tested_holds(
    parts: list[claims.Verdict], whole: str
):
    verdict, reason = claims.conclude([judged(part) for part in parts])
    assert verdict == whole
    if "cannot_be_tested" in parts or whole == "undecided":
        assert reason


def test_what_is_only_shown_decides_nothing():
    assert claims.conclude([judged("holds"), judged("does_not_hold", counts=False)])[0] == "holds"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.55, "0.55"),
        (1.0, "1"),
        (1708.4, "1,708"),
        (0.46442, "0.4644"),
        (1.25e-7, "1.25e-07"),
        (0.0, "0"),
        (100, "100"),
    ],
)
def test_numbers_have_four_digits(value: float, text: str):
    assert claims.short(value) == text


# ── the table ─────────────────────────────────────────────────────────────────────────────────────


def test_every_claim_is_there_once_and_has_a_threshold_that_can_fail():
    assert len(CLAIMS) == len(BY_ID) == 22
    for claim in CLAIMS:
        assert any(figure.judged and figure.counts for figure in claim.figures.values()), claim.id
        for figure in claim.figures.values():
            assert (
                figure.at_least is None
                or figure.at_most is None
                or figure.at_least <= figure.at_most
            )


def test_every_claim_says_what_it_measures_and_takes_it_from_cells_that_can_be():
    for claim in CLAIMS:
        for device in ("cpu", "cuda"):
            said = (
                claim.configuration(device) or (device == "cpu" and claim.cannot_cpu) or claim.only
            )
            assert said, (claim.id, device)
            assert claim.configs(device, 8).keys() == {
                cell
                for figure in claim.figures.values()
                if not figure.lacks(device, 8)
                for cell in figure.cells
            }
        for name in (
            name
            for figure in claim.figures.values()
            for name in (figure.over, figure.under)
            if name
        ):
            cell, _, measure = name.partition(".")
            assert cell in claim.cells, (claim.id, name)
            assert measure in {*BY_KEY, *OF_CLAIMS, "loss_apart"}, (claim.id, name)


BAD = {
    "no such key: colour": ('only = "cpu"', 'colour = "red"'),
    "unit cannot be 3": ("at_most = 1.05 }", "at_most = 1.05, unit = 3 }"),
    "kind cannot be 'sum'. It is one of: ratio, value": (
        "at_most = 1.05 }",
        'at_most = 1.05, kind = "sum" }',
    ),
    "missing 1 required keyword-only argument: 'title'": (
        'title = "step time, without / with DataParallel", ',
        "",
    ),
    "cells cannot be 'none'": (
        'cells.plain = {}\ncells.wrapped = { parallel = "dp" }',
        'cells = "none"',
    ),
    "statement cannot be ''": ('statement = "', 'statement = ""  # '),
}


@pytest.mark.parametrize("what", BAD)
def test_a_row_that_is_wrong_is_named_with_its_file_and_key(what: str, tmp_path: Path):
    rows = claims.FILE.read_text().split("[[claim]]")
    row = next(row for row in rows if 'id = "dp-cpu"' in row)
    assert BAD[what][0] in row
    file = tmp_path / "claims.toml"
    file.write_text("[[claim]]" + row.replace(*BAD[what], 1))
    with pytest.raises(TableError, match=r"claims\.toml: dp-cpu: ") as caught:
        claims.load(file)
    assert what in str(caught.value)


def test_what_a_machine_lacks_is_said_before_anything_starts():
    needs = {claim.id: why_not(claim, gpus(1)) for claim in CLAIMS}
    assert {name for name, why in needs.items() if why} == {
        "dp-vs-ddp",
        "dp-bottleneck",
        "ddp-scaling",
    }
    assert needs["dp-vs-ddp"] == "needs 2 GPUs, 1 here"
    assert not any(why_not(claim, gpus(4)) for claim in CLAIMS)
    assert "GPU" in why_not(BY_ID["empty-cache-scope"], CPU_BOX)
    assert why_not(BY_ID["dp-cpu"], CPU_BOX) == ""


def test_a_gpu_that_others_use_is_mentioned():
    busy = {"name": "NVIDIA H200", "free_bytes": 100 << 30, "total_bytes": 141 << 30}
    machine = Machine("cuda", 1, {"gpus": [busy], "cores": 16, "load": 0.1})
    assert "GPU 0 has 41.0 GiB in use by others" in machine.warnings[0]
    assert gpus(2).warnings == []


def test_cores_that_others_use_are_mentioned():
    machine = Machine("cpu", 0, {"gpus": [], "cores": 2, "load": 1.26})
    assert machine.warnings == [
        "2 cores with a load average of 1.3, in use by others: their load may distort the figures"
    ]
    assert CPU_BOX.warnings == []
