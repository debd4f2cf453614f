"""Before its first run the Lab says what that would take, and asks for the prediction only then."""

from __future__ import annotations

import pytest

from gpuscope.predict.request import CannotPredict
from gpuscope.text import styled
from gpuscope.tui.background.predictions import Question
from gpuscope.tui.lab import first_run
from gpuscope.tui.lab.empty_states import no_run
from gpuscope.tui.theme import Glyphs
from tests.fakes import views
from tests.predict.hand_made import traced
from tests.tui.pilot import in_loop, make_app, until

GLYPHS = Glyphs()


@pytest.fixture(autouse=True)
def _all_devices(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def predicting(tracer=traced):
    app = make_app(views.training(), "lab")
    app.session.predictions.tracer = tracer
    return app


@in_loop
async def test_the_prediction_comes_once_the_switches_are_still(monkeypatch):
    asked = []

    def tracer(request):
        asked.append(request)
        return traced(request)

    app = predicting(tracer)
    async with app.run_test(size=(200, 60)) as pilot:
        await until(pilot, "No run yet.", "predicted in a moment", "A first comparison")
        await pilot.press("right")
        await until(pilot, "predicted once you stop changing settings")
        assert not asked, "nothing is computed while somebody walks through the switches"
        monkeypatch.setattr(first_run, "SETTLED_SECONDS", 0.0)
        await pilot.press("j")  # a picture is drawn, as each sample would
        screen = await until(pilot, "Predicted for these settings", "whole GPU", "at the peak")
        assert "on NVIDIA H200: " in screen
        assert "± " in screen, "a predicted figure has its error"
        assert len(asked) == 1


@in_loop
async def test_a_narrow_lab_has_the_verdict_and_why_there_is_none(monkeypatch):
    monkeypatch.setattr(first_run, "SETTLED_SECONDS", 0.0)
    app = predicting()
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await until(pilot, "Predicted for these settings", "on NVIDIA H200")
        assert "whole GPU" not in screen

    def no_torch(request):
        raise CannotPredict("No torch here.", "the model cannot be traced", "pip install torch")

    app = predicting(no_torch)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "No torch here.", "pip install torch", "Settings to try first")


def test_each_width_keeps_its_lines_and_marks_the_switch_under_the_cursor():
    question = Question(None, None, doing="tracing the model")
    for cells, rows in ((42, 15), (74, 31), (156, 51)):
        lines = no_run(False, question, "amp", GLYPHS, cells, rows)
        assert len(lines) <= rows
        assert all(styled.cells(line) <= cells for line in lines)
        shown = "\n".join(map(styled.plain, lines))
        assert "No run yet." in shown
        assert "tracing the model" in shown
        assert ("Settings to try first" in shown) == (cells == 74)
        assert ("A first comparison" in shown) == (cells >= 74)
        assert ("What the settings do" in shown) == (cells == 156)
    bold = [line for line in lines if line and line[0] == (f"{'amp':21}", "bold accent")]
    assert len(bold) == 1
    on_cpu = "\n".join(map(styled.plain, no_run(True, None, "amp", GLYPHS, 74, 31)))
    assert "Nothing is predicted for a CPU" in on_cpu
