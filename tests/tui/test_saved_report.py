"""Key R writes the report of what is on the screen: of a host, of the Lab, of a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuscope.lab.ledger import RunLedger
from tests.fakes import clocks, views
from tests.report.test_page import Reader
from tests.tui.pilot import in_loop, make_app, until

SNAPSHOT = Path(__file__).parents[2] / "demos" / "snapshots" / "training.pickle.gz"


@pytest.fixture(autouse=True)
def _own_folders(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("GPUSCOPE_LEDGER", str(tmp_path / "lab.sqlite"))


def saved(folder: Path) -> str:
    """The text of the only page below a folder, which is removed."""
    (path,) = folder.rglob("*.html")
    read = Reader(path.read_text())
    path.unlink()
    return " ".join("".join(f" {one}" for one in read.texts).split())


@in_loop
async def test_the_report_of_a_host_has_the_figures_of_the_screens(tmp_path):
    app = make_app(clocks.of_ranks())
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "─ GPUs")
        await pilot.press("3")
        await until(pilot, "goes into saving checkpoints")
        await pilot.press("R")
        await until(pilot, "report saved: ")
        text = saved(tmp_path)
        for said in ("What happened", "The wall clock of the training thread", "The screen"):
            assert said in text, said
        sentence = next(line for line in text.split(". ") if "goes into saving checkpoints" in line)
        assert sentence.rpartition(" % of the time")[0][-2:].strip().isdigit()


@pytest.mark.slow
@in_loop
async def test_on_the_labs_tab_the_report_has_its_runs(tmp_path):
    RunLedger().add({"device": "cpu", "samples_per_second": 5.0, "steps": 3}, label="mine <b>")
    app = make_app(views.training(4.0))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "─ GPUs")
        await pilot.press("5")
        await until(pilot, "unknown settings")
        await pilot.press("R")
        await until(pilot, "report saved: ")
        text = saved(tmp_path)
        assert "1 run, 0 failed." in text
        assert "mine <b>" in text


@pytest.mark.slow
@in_loop
async def test_the_report_of_a_snapshot_on_the_screen_is_of_that_file(tmp_path):
    app = make_app(views.training(4.0))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "─ GPUs")
        app.open("snapshot", SNAPSHOT)
        await until(pilot, "training.pickle.gz", "83.8 MiB")
        await pilot.press("R")
        await until(pilot, "report saved: ")
        text = saved(tmp_path)
        assert "allocated 83.8 MiB" in text
        assert "What happened" not in text
