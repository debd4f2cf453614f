"""The Lab searches the fastest settings: a question, a screen that follows, the best to take."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gpuscope.lab.config import LabConfig
from gpuscope.lab.ledger import Entry
from gpuscope.lab.sweep import cell_key
from gpuscope.lab.tune.findings import Found, SearchSettings, Trial
from gpuscope.lab.tune.result import SearchResult
from gpuscope.lab.tune.search import Search
from gpuscope.tui.lab.tune_text import step_text
from gpuscope.tui.runs.tuning import Tuning
from tests.fakes import views
from tests.lab.test_tune_search import BASE, CUDA, FREE, Card, drive
from tests.tui.pilot import in_loop, make_app, until
from tests.tui.snapshots import SIZES


@pytest.fixture(autouse=True)
def _ledger(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GPUSCOPE_LEDGER", str(tmp_path / "lab.sqlite"))


@pytest.fixture
def events(tmp_path: Path) -> Path:
    """The lines of a whole search of a simulated training, as the verb writes them."""
    card, entries = Card(memory=24 << 30), list[Entry]()

    def run(trial: Trial) -> Entry:
        entry = replace(card.run(trial), cell=cell_key(trial.config), id=len(entries) + 1)
        entries.append(entry)
        return entry

    def line(kind: str, found: Found) -> str:
        result = SearchResult("tune-test", found, entries, 8.0 * len(entries), 24 << 30)
        return json.dumps({"event": kind, "document": result.document()}, allow_nan=False)

    search = Search(BASE, lambda config: CUDA, SearchSettings(FREE, capacity=24 << 30))
    found = drive(search.run(), run)
    half = Found(BASE, BASE.changed("amp", "bf16"), None, found.rows[:4])
    path = tmp_path / "events"
    path.write_text(
        json.dumps({"event": "trial", "label": "baseline", "purpose": "the baseline", "run": 1,
                    "step": 7, "spent_seconds": 0.0}) + "\n"
        + line("rows", half) + "\n" + line("end", found) + "\n"
    )  # fmt: skip
    return path


def says(monkeypatch: pytest.MonkeyPatch, program: str, *words: object) -> None:
    """Let the search be a child that runs ``program`` with these words."""
    command = [sys.executable, "-c", program, *map(str, words)]
    monkeypatch.setattr(Tuning, "_words", lambda self: command)


def test_a_candidate_is_named_by_what_is_new_in_it():
    assert step_text("amp=bf16", "baseline") == "amp=bf16"
    assert step_text("amp=bf16 batch=16", "amp=bf16") == "+ batch=16"
    assert step_text("amp=bf16 batch=32", "amp=bf16 batch=16 compile=default") == (
        "+ batch=32 without compile"
    )
    assert step_text("baseline", "amp=bf16") == "baseline"


@pytest.mark.parametrize("size", SIZES, ids=str)
@in_loop
async def test_a_search_is_followed_and_its_best_is_taken(events, monkeypatch, size):
    says(monkeypatch, "import sys; print(open(sys.argv[1]).read(), end='')", events)
    app = make_app(views.vacant(), "lab", lab=BASE)
    async with app.run_test(size=size) as pilot:
        await until(pilot, "Demo trainer")
        await pilot.press("T")
        await until(pilot, "Search for the fastest settings", "10 min 00 s")
        await pilot.press("l")
        await until(pilot, "20 min 00 s")
        await pilot.press("enter")
        shown = await until(pilot, "Use amp=bf16 ", "the best", "To paste", "torch.autocast(")
        assert 'torch.autocast("cpu"' not in shown
        assert "does not fit" in shown or size == (80, 24)
        assert "t Take" in shown
        await pilot.press("t")
        await until(pilot, "Demo trainer", "as fast")
        assert app.session.labs.config.amp == "bf16"
        await pilot.press("T")
        await until(pilot, "Gain of each setting" if size[0] > 80 else "To paste")
        await pilot.press("enter")
        await until(pilot, "Candidate", "samples/s")


@in_loop
async def test_a_search_without_time_says_once_which_budget_would_do(monkeypatch, tmp_path):
    card = Card(memory=24 << 30)
    left = {"time_left": lambda: 10.0 - card.seconds}
    found = drive(Search(BASE, lambda config: CUDA, SearchSettings(FREE, **left)).run(), card.run)
    document = SearchResult("tune-test", found, [], card.seconds).document()
    path = tmp_path / "events"
    path.write_text(json.dumps({"event": "end", "document": document}) + "\n")
    says(monkeypatch, "import sys; print(open(sys.argv[1]).read(), end='')", path)
    app = make_app(views.vacant(), "lab", lab=BASE)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, "Demo trainer")
        await pilot.press("T", "enter")
        shown = await until(pilot, "Not decided: ", "n search again for 5 min", "not tried")
        assert "not tried:" not in shown  # the reason is in the sentence
        assert "ended after" in shown
        await pilot.press("n")
        await until(pilot, "budget   5 min 00 s")


@in_loop
async def test_a_search_that_fails_says_why_and_may_share_the_gpu(monkeypatch):
    says(
        monkeypatch,
        "import sys; sys.stderr.write('GPU 0 is in use.\\nNext: --gpu 1\\n'); sys.exit(3)",
    )
    app = make_app(views.vacant(), "lab", lab=BASE)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "Demo trainer")
        await pilot.press("T", "enter")
        await until(pilot, "GPU 0 is in use.", "Run anyway")
        await pilot.press("exclamation_mark")
        await until(pilot, "GPU 0 is in use.")
        assert app.session.labs.tuning is not None
        assert app.session.labs.tuning.share_gpus


@in_loop
async def test_no_trainer_starts_beside_a_search_and_a_key_ends_it(monkeypatch):
    says(monkeypatch, "import time; print('begun', flush=True); time.sleep(60)")
    app = make_app(views.vacant(), "lab", lab=BASE)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "Demo trainer")
        await pilot.press("T", "enter")
        await until(pilot, "looking at torch and the GPU")
        await pilot.press("escape")
        await until(pilot, "searching for the fastest settings")
        await pilot.press("r")
        await until(pilot, "a search uses the GPU")
        await pilot.press("q")
        await until(pilot, "Stop the search for the fastest settings?", "continues from there")
        await pilot.press("escape")
        await until(pilot, "Demo trainer", absent="continues from there")
        await pilot.press("x")
        await until(pilot, "search: ", absent="searching")
        assert app.session.labs.tuning is not None
        assert app.session.labs.tuning.over


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch to train")
@in_loop
async def test_a_real_search_reports_from_its_child():
    heard: list[int] = []
    config = LabConfig(model="mlp-tiny", device="cpu")
    tuning = Tuning(config, 10.0, lambda: heard.append(1))
    tuning.start()
    await tuning.wait()
    assert tuning.found, tuning.failure
    assert tuning.trial["run"] >= 1
    assert tuning.candidates[0]["status"] == "baseline"
    assert tuning.candidates[0]["samples_per_second"] > 0
    assert tuning.spent_seconds > 0
