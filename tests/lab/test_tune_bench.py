"""The instruments of bench/tune: searches replayed on a recorded grid, and lanes of many models."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from bench.tune.bars import missed
from bench.tune.lanes import Lanes, table
from bench.tune.plan import grid
from bench.tune.replay import GRID, Recorded, base_of, replay
from gpuscope.lab.ledger import Ledger
from gpuscope.lab.sweep import cell_key
from gpuscope.lab.tune.findings import Trial
from tests.lab.test_tune_search import BASE, CUDA, Card


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """A grid of simulated trainings, as bench.tune.bars leaves it."""
    ledger, card = Ledger(tmp_path / "ledger.sqlite"), Card(noise=0.001)
    ledger.keep_plan(GRID, {"baseline": BASE.to_mapping()})
    for config in grid(BASE, 8, lambda config: CUDA)[0]:
        entry = card.run(Trial(config, 0, "the grid"))
        seconds = {**entry.environment, "trial_seconds": entry.environment["tune_seconds"]}
        ledger.add(entry.document, group=GRID, cell=cell_key(config), environment=seconds)
    return ledger


def test_a_replay_finds_nearly_the_best_of_a_grid_where_the_budget_allows_it(ledger: Ledger):
    recorded = Recorded(ledger)
    base = base_of(ledger)
    best = recorded.rate(recorded.best())
    shares = []
    for budget in (40.0, 110.0, 240.0):
        found, played = replay(recorded, base, budget, start=5.0)
        assert played.seconds <= budget
        shares.append(recorded.rate(recorded.nearest(found.best)) / best)
    assert shares[0] < 0.97  # there is no time to compile
    assert shares[2] >= shares[1] >= 0.97
    assert played.seconds <= recorded.grid_seconds / 4


def test_what_is_asked_for_a_second_time_takes_as_long_as_what_the_cache_has(ledger: Ledger):
    recorded = Recorded(ledger)
    cell = cell_key(BASE.changed("compile", "default"))
    assert recorded.warm(cell) < recorded.cold(cell) == recorded.parts(cell).warm_up


def test_a_first_compilation_takes_as_long_as_with_an_empty_cache(ledger: Ledger):
    """The runs of a grid share a cache: the second mode of a graph compiles faster there."""
    config = BASE.changed("compile", "default")
    entry = Card().run(Trial(config, 0, "again"))
    seconds = {**entry.environment, "trial_seconds": 60.0}
    document = {**entry.document, "warmup_seconds": 51.0}
    ledger.add(document, group="bars-again-x", cell=cell_key(config), environment=seconds)
    recorded = Recorded(ledger)
    in_grid = recorded.cold(cell_key(BASE.changed("compile", "reduce-overhead")))
    assert recorded.cold(cell_key(config)) == 51.0
    assert in_grid == 51.0  # of the same graph in the other mode
    other = config.changed("amp", "bf16")
    assert recorded.cold(cell_key(other)) > 2 * Card().seconds_of(other)


def lanes(out: Path, seconds: float) -> Lanes:
    given = argparse.Namespace(
        models=["gpt-small"], grids=["conv-small"], budget=100.0, seconds=seconds, cards="0,1",
        out=out, device="cuda",
    )  # fmt: skip
    found = Lanes(given)
    found.plan(autotune=False)
    return found


def test_a_card_takes_only_what_is_expected_to_end_in_time(tmp_path: Path):
    part = lanes(tmp_path, 400.0).take()
    assert part is not None
    assert part.name == "gpt-small"
    short = lanes(tmp_path, 100.0)
    part = short.take()
    assert part is not None
    assert part.words[:2] == ("--steps", "grid")
    assert lanes(tmp_path, 30.0).take() is None


def test_the_best_of_a_grid_is_compared_only_once_the_grid_is_complete(tmp_path: Path):
    found = lanes(tmp_path, 1000.0)
    names = []
    while part := found.take():
        names.append(part.words[1])
    assert "turns" not in names
    (tmp_path / "conv-small").mkdir()
    done = {"grid": {"done": 9, "configurations": 9, "seconds": 90.0}}
    (tmp_path / "conv-small" / "bars.json").write_text(json.dumps(done))
    part = found.take()
    assert part is not None
    assert part.words[1] == "turns"


def test_the_table_counts_what_is_slower_and_names_missed_bars(tmp_path: Path):
    for name, ratio in (("gpt-small", 2.0), ("conv-small", 0.9)):
        (tmp_path / name).mkdir()
        found = {
            "tune": {"sentence": f"{ratio} ×", "seconds": 100.0},
            "again": {"tune": {"ratio": ratio, "low": ratio - 0.01, "high": ratio + 0.01}},
            "grid": {"done": 9, "configurations": 9, "seconds": 300.0},
            "turns": {"tune_of_it": {"ratio": ratio, "low": None, "high": None},
                      "time_of_the_grid": 1 / 3},
            "out_of_memory": 0,
        }  # fmt: skip
        (tmp_path / name / "bars.json").write_text(json.dumps(found))
    text = table(tmp_path, ["gpt-small", "conv-small", "mlp-tiny"])
    assert "2 results, 1 slower than the baseline when measured again" in text
    assert "missed: 33.3% of the grid's time\n" in text
    assert "90.0% of the best of the grid" in text
    assert missed({}) == []
