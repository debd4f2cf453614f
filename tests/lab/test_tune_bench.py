"""The instruments of bench/tune: searches replayed on a recorded grid, and lanes of many models."""

from __future__ import annotations

import argparse
import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from bench.tune.bars import WITHIN_SHARE, Bars, missed
from bench.tune.lanes import Lanes, table
from bench.tune.plan import grid
from bench.tune.replay import GRID, Recorded, base_of, replay
from gpuscope.lab.config import LabConfig
from gpuscope.lab.ledger import RunLedger
from gpuscope.lab.sweep import cell_key
from gpuscope.lab.tune.findings import Trial
from tests.lab.test_tune_search import BASE, CUDA, Card


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> RunLedger:
    """A grid of simulated trainings, as bench.tune.bars leaves it."""
    ledger, card = RunLedger(tmp_path_factory.mktemp("grid") / "ledger.sqlite"), Card(noise=0.001)
    ledger.keep_plan(GRID, {"baseline": BASE.to_mapping()})
    for config in grid(BASE, 8, lambda config: CUDA)[0]:
        entry = card.run(Trial(config, 0, "the grid"))
        environment = entry.environment
        ledger.add(entry.document, group=GRID, cell=cell_key(config), environment=environment)
    return ledger


def test_a_replay_finds_nearly_the_best_of_a_grid_where_the_budget_allows_it(ledger: RunLedger):
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


def test_what_is_asked_for_a_second_time_takes_as_long_as_what_the_cache_has(ledger: RunLedger):
    recorded = Recorded(ledger)
    cell = cell_key(BASE.changed("compile", "default"))
    assert recorded.warm(cell) < recorded.cold(cell) == recorded.parts(cell).warm_up


def test_a_first_compilation_takes_as_long_as_with_an_empty_cache(
    ledger: RunLedger, tmp_path: Path
):
    """The runs of a grid share a cache: the second mode of a graph compiles faster there."""
    ledger = RunLedger(Path(shutil.copy(ledger.path, tmp_path)))
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


def recorded_search(folder: Path) -> tuple[RunLedger, LabConfig]:
    """A ledger with a real search of a model whose host is the slower part, and with its grid.

    Each configuration has the runs of that search first. They did not yet say whether the model has
    convolutions.
    """
    path = Path(__file__).parents[1] / "data" / "tune-dlrm-h200.json.gz"
    data = json.loads(gzip.decompress(path.read_bytes()))
    ledger, base = RunLedger(folder / "ledger.sqlite"), LabConfig.from_mapping(data["baseline"])
    for row in data["rows"]:
        config = {**base.to_mapping(), **row["config"]}
        ledger.add(
            {**row["document"], "config": config, "convolutions": False},
            group=row["group"],
            repeat=row["repeat"],
            environment=row["environment"],
            cell=cell_key(LabConfig.from_mapping(config)),
        )
    return ledger, base


def test_a_model_that_waits_for_its_host_gets_cuda_graphs_in_a_quarter_of_its_grids_time(
    tmp_path: Path,
):
    ledger, base = recorded_search(tmp_path)
    recorded = Recorded(ledger)
    budget = WITHIN_SHARE * recorded.grid_seconds
    found, played = replay(recorded, base, budget, start=9.0)
    assert recorded.rate(recorded.nearest(found.best)) >= 0.97 * recorded.rate(recorded.best())
    assert found.speed is not None
    assert found.speed.certain
    assert played.seconds <= recorded.grid_seconds / 4


def lanes(out: Path, seconds: float, **given: Any) -> Lanes:
    parts: dict[str, Any] = {"quarter": [], "beside": [], "models": [], "grids": [], "bars": []}
    found = Lanes(
        argparse.Namespace(
            **{**parts, **given}, budget=60.0, seconds=seconds, cards="0,1", out=out, device="cuda"
        )
    )
    found.plan(autotune=True)
    return found


def folders(found: Lanes) -> list[str]:
    taken = []
    while part := found.take():
        taken.append(part.folder)
    return taken


def test_a_card_takes_only_what_is_expected_to_end_in_time(tmp_path: Path):
    given = {"beside": ["gpt-small"], "models": ["gpt-tiny"], "grids": [("conv-small", 2)]}
    assert folders(lanes(tmp_path, 900.0, **given))[:3] == [
        "beside/gpt-small", "models/gpt-tiny", "grid/conv-small"
    ]  # fmt: skip
    assert folders(lanes(tmp_path, 200.0, **given))[0] == "models/gpt-tiny"
    assert set(folders(lanes(tmp_path, 100.0, **given))) == {"grid/conv-small"}
    assert lanes(tmp_path, 30.0, **given).take() is None


def test_what_an_earlier_call_has_completed_is_not_done_again(tmp_path: Path):
    baseline = {"model": "mlp-tiny"}
    earlier = {
        "beside/gpt-small": {"tune": {"config": {}}, "again": {"tune": {"ratio": 2.0}}},
        "models/mlp-tiny": {"baseline": baseline, "tune": {"config": baseline}},
        "models/gpt-tiny": {"baseline": baseline, "tune": {"config": {}}},
    }
    for folder, found in earlier.items():
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "bars.json").write_text(json.dumps(found))
    given = {"beside": ["gpt-small", "mlp-large"], "models": ["mlp-tiny", "gpt-tiny"]}
    assert folders(lanes(tmp_path, 900.0, **given)) == ["beside/mlp-large", "models/gpt-tiny"]


def test_a_quarter_of_the_time_is_that_of_the_most_complete_grid_that_is_known(tmp_path: Path):
    card = Card(noise=0.001)
    configs = grid(BASE, 8, lambda config: CUDA)[0]
    for folder, part in (("old", configs[:6]), ("new", configs[:4])):
        (tmp_path / folder / "gpt-small").mkdir(parents=True)
        ledger = RunLedger(tmp_path / folder / "gpt-small" / "ledger.sqlite")
        for config in part:
            document = card.run(Trial(config, 0, "the grid")).document
            seconds = {"tune_seconds": 10.0}
            ledger.add(document, group=GRID, cell=cell_key(config), environment=seconds)
        ledger.add({"config": BASE.to_mapping()}, source="tune", group="tune-of-then")
    bars = [tmp_path / "old", tmp_path / "new"]
    (part,) = lanes(tmp_path, 900.0, quarter=["gpt-small", "mlp-large"], bars=bars).waiting
    assert part.folder == "quarter/gpt-small"
    assert part.seconds > WITHIN_SHARE * 10.0 * len(configs)
    copied = RunLedger(tmp_path / "quarter" / "gpt-small" / "ledger.sqlite").entries(limit=None)
    assert {entry.config for entry in copied} == set(configs[:6])
    assert {entry.group for entry in copied} == {GRID}


def test_tune_gets_its_share_as_soon_as_the_grid_is_complete(tmp_path: Path):
    folder = tmp_path / "grid" / "dlrm-like"
    folder.mkdir(parents=True)
    base = LabConfig(
        model="bench.predict.families_vision:dlrm_like", device="cuda", batch=256, accumulate=4
    )
    configs = grid(base, 256, lambda config: CUDA, ["channels_last"])[0]
    assert not any(config.channels_last for config in configs)
    ledger, card = RunLedger(folder / "ledger.sqlite"), Card(noise=0.001)
    for config in configs:
        document = {
            **card.run(Trial(config, 0, "the grid")).document,
            "config": config.to_mapping(),
        }
        ledger.add(document, group=GRID, cell=cell_key(config), environment={"tune_seconds": 10.0})
    given = {"grids": [("dlrm-like", 1), ("lstm-lm", 1)]}
    done = {"configurations": len(configs), "done": len(configs) - 1}
    (folder / "bars.json").write_text(json.dumps({"grid": done}))
    found = lanes(tmp_path, 900.0, **given)
    part = found.take()
    assert part is not None
    assert part.folder == "grid/dlrm-like"
    found.after(part)
    assert found.waiting[0].folder == "grid/lstm-lm"  # one configuration is missing
    (folder / "bars.json").write_text(json.dumps({"grid": {**done, "done": len(configs)}}))
    found.after(part)
    assert found.waiting[0].folder == "quarter/dlrm-like"
    assert found.waiting[0].seconds > WITHIN_SHARE * 10.0 * len(configs)
    # and a later call does not run the grid again
    assert folders(lanes(tmp_path, 900.0, **given)) == ["quarter/dlrm-like", "grid/lstm-lm"]


def test_the_table_counts_what_is_slower_and_names_missed_bars(tmp_path: Path):
    for name, speed in (("quarter/gpt-small", 2.0), ("models/conv-small", 0.9)):
        (tmp_path / name).mkdir(parents=True)
        found = {
            "tune": {"sentence": f"{speed} ×", "seconds": 100.0, "budget": 110.0},
            "again": {"tune": {"ratio": speed, "low": speed - 0.01, "high": speed + 0.01}},
            "grid": {"done": 9, "configurations": 9, "seconds": 300.0},
            "turns": {"tune_of_it": {"ratio": speed, "low": None, "high": None},
                      "time_of_the_grid": 1 / 3},
            "out_of_memory": 0,
        }  # fmt: skip
        (tmp_path / name / "bars.json").write_text(json.dumps(found))
    text = table(tmp_path)
    assert "2 results, 1 slower than the baseline when measured again" in text
    assert "missed: 33.3% of the grid's time\n" in text
    assert "90.0% of the best of the grid" in text
    assert "100 s of 110 s" in text
    assert missed({}) == []


def test_the_table_says_what_both_searches_took(tmp_path: Path):
    (tmp_path / "beside" / "gpt-small").mkdir(parents=True)
    found = {
        "tune": {"sentence": "a result", "seconds": 77.0, "process_seconds": 79.0, "budget": 79.0},
        "autotune": {"seconds": 72.0, "process_seconds": 81.0},
        "again": {
            "tune": {"ratio": 4.0}, "autotune": {"ratio": 4.4}, "tune_of_autotune": {"ratio": 0.91}
        },
    }  # fmt: skip
    (tmp_path / "beside" / "gpt-small" / "bars.json").write_text(json.dumps(found))
    text = table(tmp_path)
    assert "77 s (79 s with its start and end) of 79 s" in text
    assert "pytorch-autotune 4.400 in 72 s (81 s with its start and end)" in text
    assert "missed: 91.0% of the speed that pytorch-autotune found" in text


def test_tune_is_given_the_seconds_of_the_other_or_a_share_of_the_grid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("GPUSCOPE_LEDGER", str(tmp_path / "ledger.sqlite"))
    given = argparse.Namespace(
        out=tmp_path, cards="0", window=None, budget=110.0, model="gpt-small", device="cuda",
        batch=8, accumulate=4, within="autotune",
    )  # fmt: skip
    bars = Bars(given, tmp_path)
    assert bars.budget() == 110.0  # it could not run
    bars.keep(autotune={"process_seconds": 81.0})
    assert bars.budget() < 81.0
    bars.args.within = "grid"
    bars.keep(grid={"seconds": 300.0, "done": 9, "configurations": 36})
    assert bars.budget() == WITHIN_SHARE * 1200.0
