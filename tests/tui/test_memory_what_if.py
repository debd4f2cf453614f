"""The memory tab lists fixes.

For the lab's model they come from simulation, for any other trainer from what was measured.
"""

from __future__ import annotations

import asyncio
import re
import threading
from dataclasses import replace
from typing import Any

import pytest
from textual.pilot import Pilot

from gpuscope.lab.config import LabConfig
from gpuscope.model.allocator_settings import DEFAULT
from gpuscope.predict.from_lab_config import config_with, request_of
from gpuscope.predict.request import CannotPredict, Doubt, Request, Traced
from gpuscope.predict.whatif import fixes
from gpuscope.store.replay import ReplaySource
from gpuscope.tui.app.app import GpuscopeApp
from gpuscope.tui.memory.what_if import WhatIfView
from gpuscope.tui.shell.session import Session
from gpuscope.wire import frames as f
from tests.fakes import inside, jobs, views
from tests.predict.hand_made import traced
from tests.recordings import SHIPPED
from tests.tui.pilot import in_loop, make_app, until
from tests.tui.snapshots import SIZES, check


@pytest.fixture(autouse=True)
def _own_folders(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("GPUSCOPE_LEDGER", str(tmp_path / "lab.sqlite"))
    monkeypatch.setenv("TZ", "UTC")


@pytest.fixture
def labs(monkeypatch):
    """The trainer on the screen is the lab's."""
    monkeypatch.setattr(WhatIfView, "_is_the_labs", lambda self, host, subject: True)


def memory(tracer: Any = traced, frames: list[f.Frame] | None = None) -> GpuscopeApp:
    app = make_app(inside.crowded(10.0) if frames is None else frames, "memory")
    app.session.predictions.tracer = tracer
    return app


async def look(pilot: Pilot[Any]) -> None:
    """At the fixes, once the tab is drawn."""
    await until(pilot, "used (= nvidia-smi)")
    await pilot.press("W")


@in_loop
async def test_fixes_of_the_labs_model_stand_with_what_they_free(labs):
    app = memory()
    async with app.run_test(size=(120, 40)) as pilot:
        await look(pilot)
        screen = await until(
            pilot,
            "What if: gpt-small, batch 8: 4.84 GiB ± 2 % of the GPU, fits; peak of torch ",
            "PEAK THEN",
            "r: try it in the Lab",
        )
        rows = [
            line
            for line in screen.splitlines()
            if "fits" in line and "GiB" in line and "What if" not in line
        ]
        assert "the loss in 8 chunks" in rows[0]
        assert "1.31 GiB" in next(row for row in rows if "micro-batch 4 instead of 8" in row)
        await until(pilot, "costs     the output layer runs once more")
        await pilot.press("W")
        await until(pilot, "Where the bytes are", absent="What if: gpt-small")


@pytest.mark.parametrize("size", SIZES, ids=lambda s: f"{s[0]}x{s[1]}")
@in_loop
async def test_how_a_fix_is_made_and_what_it_costs_is_told_in_full(labs, size):
    app = memory()
    async with app.run_test(size=size) as pilot:
        await look(pilot)
        await until(pilot, "fused optimizer", "r: try it in the Lab")
        view = app.main._panes["memory"]._what_if
        answer = view._prediction.answer
        heights = set()
        for one in answer.what_if:
            view.table.move_to(one.fix.key)
            app.main.refresh_all()
            await pilot.pause()
            below = " ".join(
                "".join(piece for piece, _ in line).strip() for line in view.about._lines
            )
            told = f"how {one.fix.change} costs {one.fix.cost}"
            if size[1] < 40:
                told = f"how: {one.fix.change} fits cost: {one.fix.cost}"
            assert told in " ".join(below.split())
            heights.add(view.table.size.height)
        assert len(heights) == 1, "the table stands still"


@in_loop
async def test_a_fix_becomes_the_labs_switches(labs):
    app = memory()
    async with app.run_test(size=(120, 40)) as pilot:
        await look(pilot)
        await until(pilot, "micro-batch 4, accumulated over 2", "r: try it in the Lab")
        table = app.main._panes["memory"]._what_if.table
        table.move_to("accumulate")
        await pilot.press("r")
        await until(pilot, "Demo trainer", "set in the Lab")
        config = app.session.labs.config
        assert (config.batch, config.accumulate) == (4, 2)
        await pilot.press("2")
        await until(pilot, "r: try it in the Lab")
        table.move_to("zero1")
        await pilot.press("enter")
        await until(pilot, "the Lab has no setting for it")
        assert app.session.labs.config == config


@in_loop
async def test_a_trainer_whose_model_is_not_known_gets_ranges_from_its_own_bytes():
    def untouched(request: Request) -> Traced:
        raise AssertionError("nothing is traced for a trainer of somebody's own")

    app = memory(untouched)
    async with app.run_test(size=(120, 40)) as pilot:
        await look(pilot)
        screen = await until(
            pilot,
            "allocated at the peak since the start",
            "halve the micro-batch",
            "gpuscope predict MODULE:FACTORY",
        )
        assert "±" in next(line for line in screen.splitlines() if "halve the micro-batch" in line)
        await pilot.press("r")
        await until(pilot, "only a fix for the Lab's model")


@in_loop
@pytest.mark.parametrize("width", [80, 120])
async def test_an_error_of_two_sides_is_told_as_two(labs, width):
    """Where only more is possible no ± may stand."""
    doubt = Doubt(
        "unmeasured", "A kernel may take much scratch memory.", "convolution", 300.0, upward=True
    )
    app = memory(lambda request: replace(traced(request), doubts=[doubt]))
    async with app.run_test(size=(width, 40)) as pilot:
        await look(pilot)
        screen = await until(pilot, "4.84 GiB (+11.0 -0.11 GiB) of the GPU", "r: try it in the Lab")
        row = next(line for line in screen.splitlines() if "micro-batch 4 instead of 8" in line)
        assert re.search(r"\+\d+\.\d+ -0\.\d+ GiB", row), row


@in_loop
async def test_an_idle_card_is_what_the_labs_switches_are_predicted_for():
    app = memory(frames=views.vacant(10.0))
    async with app.run_test(size=(120, 40)) as pilot:
        await look(pilot)
        await until(
            pilot, "What if: gpt-small, batch 8", "of the GPU, fits", "r: try it in the Lab"
        )


@in_loop
async def test_without_a_card_there_is_a_prediction_and_no_verdict():
    frames = [frame for frame in views.cpu_only(5.0) if getattr(frame, "trainer", None) is None]
    frames = [frame for frame in frames if getattr(frame, "alloc", None) is None]
    for frame in frames:
        if isinstance(frame, f.Sample):
            frame.t, frame.a = [], []
    app = memory(frames=frames)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "there is no memory to show")
        await pilot.press("W")
        screen = await until(pilot, "What if: gpt-small, batch 8", "r: try it in the Lab")
        assert "fits" not in screen


@in_loop
async def test_what_is_under_way_and_what_went_wrong_is_said(labs):
    go = threading.Event()

    def slow(request: Request) -> Traced:
        go.wait(10)
        raise CannotPredict(
            "A prediction needs a Python with PyTorch, and found none.", "nowhere", "pip install …"
        )

    app = memory(slow)
    async with app.run_test(size=(120, 40)) as pilot:
        await look(pilot)
        await until(pilot, "tracing the model, ")
        go.set()
        await until(pilot, "found none. nowhere", "pip install …")
        await pilot.press("r")
        await until(pilot, "only a fix for the Lab's model")


@in_loop
async def test_leaving_amid_a_prediction_is_no_failure_of_it(caplog):
    predictions = memory().session.predictions

    def leave(request: Request) -> Traced:
        predictions.close()
        raise AssertionError("the child is gone")

    predictions.tracer = leave
    found = predictions.want(LabConfig(model="gpt"), None, fixes=False)
    thread = predictions._thread
    assert thread is not None
    await asyncio.to_thread(thread.join)
    assert not caplog.records
    assert not found.problem


@in_loop
async def test_what_frees_nothing_has_no_row_and_workspaces_do_not_halve():
    replay = ReplaySource(SHIPPED / "h200x2-stall.gsr")
    replay.pause()
    replay.seek(70.0)
    app = GpuscopeApp(Session(replay=replay), "memory")
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "cuBLAS workspaces")
        await pilot.press("W")
        words = "64.0 MiB of the 65.1 MiB are cuBLAS workspaces, which stay"
        await until(pilot, words, "Timeline", absent="nothing")


@in_loop
async def test_a_prediction_is_made_once_and_again_for_other_switches():
    app = memory()
    asked: list[Request] = []

    def counted(request: Request) -> Traced:
        asked.append(request)
        return traced(request)

    predictions = app.session.predictions
    predictions.tracer = counted
    async with app.run_test(size=(80, 24)) as pilot:
        first = predictions.want(LabConfig(model="gpt"), None, fixes=False)
        for _ in range(200):
            await pilot.pause()
            if first.done:
                break
            await asyncio.sleep(0.02)
        assert len(asked) == 1
        assert (
            predictions.want(LabConfig(model="gpt", steps=7, loader="slow"), None, fixes=False)
            is first
        )
        assert (
            predictions.peak_of(LabConfig(model="gpt", steps=9))
            == first.answer.prediction.allocated
        )
        assert predictions.peak_of(LabConfig(model="gpt", batch=9)) is None


@pytest.mark.parametrize(
    ("key", "changed"),
    [
        ("batch-half", {"batch": 4}),
        ("accumulate", {"batch": 4, "accumulate": 2}),
        ("bf16", {"amp": "bf16"}),
        ("checkpoint", {"checkpoint": True}),
        ("sgd", {"optimizer": "sgd"}),
        ("fused-optimizer", {"fused": True}),
        ("fsdp", {"parallel": "fsdp", "nproc": 8}),
        ("expandable-segments", {"expandable_segments": True}),
        ("zero1", None),
        ("checkpoint-2", None),
        ("chunked-loss", None),
    ],
)
def test_each_fix_is_a_switch_or_has_none(key, changed):
    config = LabConfig(model="gpt", batch=8, tf32=True)
    request = request_of(config, "9.0")
    assert (request.model, request.tf32, request.checkpoint) == ("gpt-small", True, 0)
    fix = next(one for one in fixes(request, 8, DEFAULT)[0] if one.key == key)
    found = config_with(config, fix)
    if changed is None:
        assert isinstance(found, str)
    else:
        assert found == LabConfig(**{"model": "gpt", "batch": 8, "tf32": True, **changed})


@pytest.mark.parametrize("size", SIZES)
@in_loop
async def test_how_it_looks(labs, size):
    app = memory()
    async with app.run_test(size=size) as pilot:
        await look(pilot)
        await until(pilot, "fused optimizer", "r: try it", "the output layer runs")
        await pilot.pause(0.3)  # until the panes have shared out their rows
        app.main.refresh_all()
        await check(pilot, "memory-what-if")


@in_loop
async def test_under_growth_only_what_stops_it_counts_and_the_rest_says_how_long_it_delays():
    app = make_app(jobs.ranks(leaks=2), "memory")
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "rank 2 (pid 48202)", "Doctor ▲1")
        await pilot.press("W")
        screen = await until(
            pilot, "What if: +184 MiB per step, out of memory in about 19 steps, ~9 s"
        )
        rows = [line for line in screen.splitlines() if "stops it" in line]
        assert [" likely " in row for row in rows] == [True, False], "the doctor's, surest first"
        assert "Keep numbers, not tensors" in rows[0]
        assert "GiB" not in "".join(rows)
        (folded,) = (line for line in screen.splitlines() if "delays it" in line)
        assert "3 others only delay it, by 149 steps at most" in folded
        view = app.main._panes["memory"]._what_if
        await until(pilot, "How each is done", "+ losses.append(loss.item())")
        view.table.move_to("delays")
        app.main.refresh_all()
        # the most that half a batch can free is 27 GiB, at 184 MiB a step
        screen = await until(pilot, "How each is done", "batch_size=batch // 2")
        assert "by 149 steps at most; each still adds 184 MiB" in screen
