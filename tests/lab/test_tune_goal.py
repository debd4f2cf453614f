"""The goal of a search: the fastest settings, or those whose samples cost least."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuscope.errors import UsageError
from gpuscope.lab.config import LabConfig
from gpuscope.lab.ledger import Entry
from gpuscope.lab.sweep import cell_key
from gpuscope.lab.tune.findings import Found, Trial
from gpuscope.lab.tune.goal import Goal, goal_of
from gpuscope.lab.tune.result import SearchResult
from gpuscope.lab.tune.space import Limits
from gpuscope.report.tuning import chapter
from tests.lab.test_tune_search import BASE, Card

ENERGY = Goal(by_cost=True)
MONEY = Goal(by_cost=True, hour=2.5, kwh=0.3)
PRECISION = Limits({"amp": ["off", "bf16"]})
FUSED = BASE.changed("fused", True)
HALF = BASE.changed("amp", "bf16")


def hungry(config: LabConfig) -> float:
    """bf16 is a fifth faster on this card, and draws twice the power."""
    return 600.0 if config.amp == "bf16" else 300.0


def fast(config: LabConfig) -> float:
    return 120.0 if config.amp == "bf16" else 100.0


class Kept(Card):
    """A card that keeps its runs, as the ledger does."""

    entries: list[Entry]

    def run(self, trial: Trial) -> Entry:
        entry = replace(super().run(trial), cell=cell_key(trial.config))
        self.entries.append(entry)
        return entry


def tuned(goal: Goal, **card: object) -> tuple[Found, SearchResult]:
    simulated = Kept(**{"rate": fast, "watts": hungry, **card})  # type: ignore[arg-type]
    simulated.entries = []
    found = simulated.tune(limits=PRECISION, goal=goal)
    return found, SearchResult("tune-x", found, simulated.entries, 60.0, goal=goal)


def test_the_fastest_is_not_kept_where_its_samples_take_more_energy():
    found, result = tuned(Goal())
    assert found.best.amp == "bf16"
    found, result = tuned(ENERGY)
    assert found.best == BASE
    assert "certainly cheaper than the baseline: keep it" in result.sentence()
    (row,) = [row for row in found.rows if row.config == HALF]
    assert row.speed is not None
    assert row.speed.ratio == pytest.approx(1.2 / 2, rel=0.05)
    assert result.table()[2][-1] == "costs more"


def test_what_is_slower_and_needs_less_energy_is_the_cheapest():
    """Its trial may not end early for being slow: all of its steps are timed."""
    found, result = tuned(
        ENERGY,
        rate=lambda config: 70.0 if config.amp == "bf16" else 100.0,
        watts=lambda config: 200.0 if config.amp == "bf16" else 400.0,
    )
    assert found.best.amp == "bf16"
    assert found.speed is not None
    assert found.speed.certain
    assert found.speed.ratio == pytest.approx(0.7 * 2, rel=0.03)
    assert "× [" in result.sentence()
    assert "as many samples for the same energy as the baseline" in result.sentence()
    head, base, best = result.table()[:3]
    assert head[3] == "kWh/1M samples"
    # a million samples at 100/s and 400 W are 4 MJ
    assert float(base[3]) == pytest.approx(4e6 / 3.6e6, rel=0.03)
    assert float(best[3]) == pytest.approx(float(base[3]) / 1.4, rel=0.03)
    (pace,) = [line for line in result.remarks() if line.startswith("It trains ")]
    after, before = (float(word.rstrip(".")) for word in (pace.split()[2], pace.split()[-1]))
    assert (after, before) == pytest.approx((70, 100), rel=0.03), "that it is slower is said"


def test_no_trial_has_a_rival_where_the_power_decides():
    rivals: dict[bool, list[float | None]] = {}
    for goal in (ENERGY, Goal(by_cost=True, hour=2.5)):
        card = Card(watts=hungry)
        card.tune(goal=goal)
        rivals[goal.needs_power] = [trial.rival for trial in card.trials if trial.rival]
    assert rivals[True] == []
    assert rivals[False]


def test_the_price_of_an_hour_alone_finds_the_fastest_and_says_what_they_cost():
    found, result = tuned(Goal(by_cost=True, hour=3.6), watts=lambda config: None)
    assert found.best.amp == "bf16"
    assert "1.20 × [" in result.sentence()
    assert "as many samples for the same money" in result.sentence()
    head, base, best = result.table()[:3]
    assert head[3] == "price/1M samples"
    assert float(base[3]) == pytest.approx(1e6 / 100 / 3600 * 3.6, rel=0.02)
    assert float(best[3]) < float(base[3])


def test_both_prices_together_decide_and_the_dearer_part_wins():
    dear_hours, dear_energy = Goal(True, hour=2.5, kwh=0.3), Goal(True, hour=0.01, kwh=0.3)
    assert tuned(dear_hours)[0].best.amp == "bf16"
    assert tuned(dear_energy)[0].best == BASE
    assert dear_hours.money_of_second(600.0) == pytest.approx(2.5 / 3600 + 0.6 * 0.3 / 3600)
    assert dear_hours.money_of_second(None) is None, "unknown is not free"


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("goal", [ENERGY, MONEY], ids=["energy", "money"])
def test_what_is_offered_never_costs_more_than_the_baseline(goal: Goal, seed: int):
    """Power and speed of all settings together, with noise: the true cost is known here."""

    def watts(config: LabConfig) -> float:
        drawn = 250.0 * {"off": 1.0, "bf16": 1.7, "fp16": 1.5}[config.amp]
        return drawn * (1.3 if config.compile != "off" else 1.0) * (config.batch or 8) ** 0.3

    card = Card(watts=watts, noise=0.01, seed=seed)
    found = card.tune(goal=goal)

    def cost(config: LabConfig) -> float:
        second = watts(config) if goal.by_energy else goal.money_of_second(watts(config))
        assert second is not None
        return second / card.rate(config)

    assert cost(found.best) <= cost(BASE)
    assert found.best != BASE, "there are cheaper ones"


def test_a_candidate_whose_power_was_not_read_is_not_judged():
    found, _ = tuned(ENERGY, watts=lambda config: None if config.amp == "bf16" else 300.0)
    assert found.best == BASE
    (row,) = [row for row in found.rows if row.config == HALF]
    assert (row.status, row.speed) == ("failed", None)
    assert "did not report its power" in row.reason


def test_a_price_of_nothing_has_no_cheapest():
    for prices in ((0.0, None), (0.0, 0.0), (None, 0.0)):
        with pytest.raises(UsageError, match="cost the same"):
            Goal(True, *prices)
    assert Goal(False, 0.0).money_of_second(None) == 0.0


def test_the_document_and_the_page_name_the_goal():
    _, result = tuned(MONEY)
    document = result.document()
    assert document["goal"] == {"name": "cost", "price_of_hour": 2.5, "price_of_kwh": 0.3}
    assert goal_of(document["goal"]) == MONEY
    assert goal_of(None) == Goal(), "a document of an earlier version has no goal"
    assert [row["cost"]["money"] is not None for row in document["candidates"]] == [True, True]
    assert chapter(document, "x").kind == "Search for the cheapest settings"
    assert chapter(tuned(Goal())[1].document(), "x").kind == "Search for the fastest settings"
