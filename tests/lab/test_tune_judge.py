"""How ``gpuscope tune`` judges runs: how sure a ratio is, which losses differ, and what is kept."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest

from gpuscope.lab.ledger import Entry, entry_of
from gpuscope.lab.tune import judge
from gpuscope.lab.tune.space import Limits
from tests.lab.test_tune_search import Card


def run(rate: float, steps: Sequence[float] = (1.0, 1.0, 1.0, 1.0), loss: float = 1.0) -> Entry:
    """A run with the median, the interval's two ends and the slow end of its steps."""
    times = dict(zip(("median", "low", "high", "p95"), steps, strict=True))
    return entry_of(
        {
            "samples_per_second": rate,
            "samples_per_step": 8,
            "step_seconds": {**times, "count": 40},
            "loss_curve": [[8, 0.7], *([8 * n, loss] for n in range(2, 40))],
        }
    )


def test_a_single_pair_holds_what_other_processes_of_steps_that_wait_for_the_host_take():
    """A U-Net on an H200: 24 ms in the processes of a search, 33 to 36 ms in fresh ones."""
    before = run(199.0, (0.08131, 0.07729, 0.0824, 0.08288))
    after = run(648.3, (0.02377, 0.02271, 0.02516, 0.03346))
    fresh = math.sqrt(527.8 / 235.7 * 496.1 / 214.9)
    steps = judge.speed([before], [after])
    found = judge.each_pair([before], [after], much=1.5)
    assert steps is not None
    assert found is not None
    assert steps.low is not None
    assert found.low is not None
    assert steps.low > fresh > found.low
    assert found.certain


def test_a_single_pair_of_steady_steps_stays_narrow():
    before = run(628.0, (0.1018, 0.10173, 0.10205, 0.10241))
    after = run(1344.7, (0.04755, 0.04753, 0.04759, 0.04762))
    found = judge.each_pair([before], [after], much=1.5)
    assert found is not None
    assert found.low is not None
    assert found.high is not None
    assert found.high < 1.03 * found.low


def test_pairs_that_agree_by_chance_are_no_surer_than_all_runs_of_a_search_vary():
    """A recommender on an H200, whose first run was 11 % slower than those of the proof."""
    before = [run(rate) for rate in (51983.3, 57915.6, 57417.0, 58994.1)]
    after = [run(rate) for rate in (231658.7, 231063.6, 230126.3, 231428.3)]
    pairs = judge.in_turns(before[1:], after[1:])
    found = judge.in_turns(before[1:], after[1:], known=(before, after))
    assert pairs is not None
    assert found is not None
    assert found.ratio == pairs.ratio
    assert pairs.low is not None
    assert found.low is not None
    assert found.high is not None
    assert found.low < 0.95 * pairs.low
    assert found.high > found.ratio**2 / pairs.low


def test_what_is_proved_after_pairs_that_look_sure_holds_the_truth_as_often_as_it_says():
    """The proof ends as soon as its pairs agree, which they also do by chance."""
    source = random.Random(3)
    held = {True: 0, False: 0}
    for _ in range(400):
        sides = [[run(rate * math.exp(source.gauss(0, 0.04))) for _ in range(6)] for rate in (1, 2)]
        for with_earlier in held:
            for pairs in (3, 4, 5):
                first, second = (side[1 : pairs + 1] for side in sides)
                earlier = sides if with_earlier else [[], []]
                before, after = (side[: pairs + 1] for side in earlier)
                found = judge.in_turns(first, second, known=(before, after))
                assert found is not None
                assert found.low is not None
                assert found.high is not None
                if found.high <= 1.1 * found.low:
                    break
            held[with_earlier] += found.low <= 2 <= found.high
    assert held[True] >= 0.95 * 400 > held[False]


@pytest.mark.parametrize(("before", "after", "as_well"), [
    (1.2e-7, 4.6e-7, True),  # both have learnt all: the rest is rounding
    (1.2e-7, 1e-3, False),
    (0.5, 0.52, False),
    (0.5, 0.503, True),
])  # fmt: skip
def test_a_loss_that_has_fallen_to_nothing_is_not_compared_by_its_rounding(
    before: float, after: float, as_well: bool
):
    found = judge.loss(run(1.0, loss=before), run(1.0, loss=after), by_step=False)
    assert found.excess is not None
    assert found.within(0.01) is as_well


@pytest.mark.parametrize(("same_batch", "after", "as_well"), [
    (True, 0.0103, True),  # of a batch that it knows by heart a part of a step is 3 %
    (False, 0.0103, False),
    (True, 0.02, False),
])  # fmt: skip
def test_what_is_left_of_a_batch_that_is_learnt_by_heart_is_a_share_of_the_first_loss(
    same_batch: bool, after: float, as_well: bool
):
    runs = [run(1.0, loss=last) for last in (0.01, after)]
    for one in runs:
        one.document["same_batch"] = same_batch
    assert judge.loss(*runs, by_step=False).within(0.01) is as_well


def test_what_the_last_look_takes_back_is_no_longer_said_to_be_kept():
    card = Card(noise=0.0001)
    # bf16 was only lucky in its first runs
    card.rate = lambda config: 102.0 if config.amp == "bf16" and len(card.trials) <= 4 else 100.0
    found = card.tune(limits=Limits({"amp": ["off", "bf16"]}))
    assert found.best == found.baseline
    baseline, amp = found.rows
    assert baseline.status == "baseline"
    assert (amp.status, amp.reason) == ("no_difference", "as good without amp")
