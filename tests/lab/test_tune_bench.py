"""The instruments of bench/tune: searches replayed on a recorded grid, and lanes of many models."""

from __future__ import annotations

import argparse
import gzip
import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from bench.tune.bars import WITHIN_SHARE, Bars, missed
from bench.tune.grids import Kept, day, load, pack
from bench.tune.lanes import Lanes, table
from bench.tune.plan import grid
from bench.tune.replay import GRID, Recorded, base_of, entries_of, replay
from gpuscope.lab.config import LabConfig
from gpuscope.lab.intervals import scatter
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
    recorded = Recorded(entries_of(ledger))
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
    recorded = Recorded(entries_of(ledger))
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
    recorded = Recorded(entries_of(ledger))
    in_grid = recorded.cold(cell_key(BASE.changed("compile", "reduce-overhead")))
    assert recorded.cold(cell_key(config)) == 51.0
    assert in_grid == 51.0  # of the same graph in the other mode
    other = config.changed("amp", "bf16")
    assert recorded.cold(cell_key(other)) > 2 * Card().seconds_of(other)


@pytest.fixture(scope="module")
def recordings() -> dict[str, Kept]:
    """Real grids, and searches of the same models, on H200s."""
    return load()


def test_a_model_that_waits_for_its_host_gets_cuda_graphs_in_a_quarter_of_its_grids_time(
    recordings: dict[str, Kept],
):
    """The runs are those of a search that found half of it: they did not say all they do today."""
    base, recorded = recordings["dlrm-like"].base, recordings["dlrm-like"].recorded
    budget = WITHIN_SHARE * recorded.grid_seconds
    found, played = replay(recorded, base, budget, start=9.0)
    assert recorded.rate(recorded.nearest(found.best)) >= 0.97 * recorded.rate(recorded.best())
    assert found.speed is not None
    assert found.speed.certain
    assert played.seconds <= recorded.grid_seconds / 4


@pytest.mark.parametrize(
    ("model", "least"),
    # of tabular's three best, which differ by less than the runs of each, one is at 95.2 %
    [("dlrm-like", 0.97), ("lstm-lm", 0.97), ("mlp-large", 0.97), ("tabular", 0.95)],
)
def test_a_quarter_of_a_recorded_grids_time_finds_nearly_its_best_on_other_days_too(
    recordings: dict[str, Kept], model: str, least: float
):
    kept = recordings[model]
    assert kept.recorded.complete
    days = [day(kept, WITHIN_SHARE, seed) for seed in range(12)]
    assert min(one.share for one in days) >= least
    assert all(one.played.seconds <= kept.recorded.grid_seconds / 4 for one in days)
    assert all(one.true_ratio > 1 for one in days)
    assert sum(one.missed for one in days) <= 2  # of intervals that hold the truth in 95 of 100
    assert len({one.found.speed for one in days}) == len(days)  # the days differ


def test_runs_deviate_by_chance_as_recorded_runs_whose_steps_varied_alike(
    recordings: dict[str, Kept],
):
    """Steps that wait for the host differ from process to process, replayed CUDA graphs hardly."""
    base, recorded = recordings["dlrm-like"].base, recordings["dlrm-like"].recorded
    graphs = base.changed("compile", "reduce-overhead").changed("batch", 1024)
    luck = random.Random(0)
    spread = {}
    for name, config in (("host", base), ("graphs", graphs.changed("accumulate", 1))):
        run = recorded.runs[cell_key(config)][0]
        spread[name] = scatter([recorded.deviation(run, luck) for _ in range(200)])
    assert 0.03 < spread["host"] < 0.15
    assert spread["graphs"] < 0.01


def test_a_grid_that_is_packed_and_read_again_leads_to_the_same_search(
    ledger: RunLedger, tmp_path: Path
):
    file = tmp_path / "grids.json.gz"
    packed = json.loads(json.dumps({"simulated": pack(ledger.path.parent)}))
    file.write_bytes(gzip.compress(json.dumps(packed).encode()))
    kept, before = load(file)["simulated"], Recorded(entries_of(ledger))
    assert kept.base == base_of(ledger)
    assert kept.recorded.runs.keys() == before.runs.keys()
    assert kept.recorded.grid_seconds == pytest.approx(before.grid_seconds, rel=1e-3)
    found, _ = replay(kept.recorded, kept.base, 110.0, start=5.0)
    assert found.best == replay(before, base_of(ledger), 110.0, start=5.0)[0].best


def test_a_part_of_a_grid_counts_with_the_time_of_the_whole(recordings: dict[str, Kept]):
    whole = recordings["tabular"].recorded
    recorded = Recorded(whole.grid[:22], 36)
    assert whole.complete
    assert not recorded.complete
    ran = sum(entry.environment["tune_seconds"] for entry in recorded.grid)
    assert recorded.grid_seconds == pytest.approx(ran * 36 / len(recorded.grid))


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
