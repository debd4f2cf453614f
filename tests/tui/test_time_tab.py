"""The Time tab shows the whole clock of a trainer, and says why where it cannot."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from gpuscope.cli.trainer_times import of_job
from gpuscope.config import Settings
from gpuscope.doctor.finding import Finding
from gpuscope.doctor.live import examine
from gpuscope.model import step_colours
from gpuscope.model.look import read as read_look
from gpuscope.model.step_time import SPLIT_WORDS, split_of
from gpuscope.model.time_ledger import WORDS, of_trainer, read, recent
from gpuscope.store.replay import ReplaySource
from gpuscope.store.time_minutes import of_event
from gpuscope.store.view import Gone, History, no_history
from gpuscope.text import styled
from gpuscope.text.units import percent_text
from gpuscope.tui.app.app import GpuscopeApp
from gpuscope.tui.app.launch import local_source
from gpuscope.tui.charts.load_strips import Lane, LoadStrips
from gpuscope.tui.charts.stack_columns import stack_columns
from gpuscope.tui.shell.selection import keys_of
from gpuscope.tui.shell.session import Session
from gpuscope.tui.theme import THEMES, Tokens
from gpuscope.tui.time.hang_rows import add_hang, hang_lines
from gpuscope.tui.time.pane import TimePane
from gpuscope.tui.time.rows import SHORT, clock_rows, split_rows
from gpuscope.tui.time.text import coverage_text, row_detail
from gpuscope.tui.time.without_ledger import (
    SHORT_PARTS,
    STRIP_FRAME,
    fitted_strip_rows,
    part_detail,
    rank_columns,
    rank_rows,
    strip_rows,
)
from gpuscope.tui.trainer import time_history as history
from gpuscope.tui.trainer.step_layers import of_ledger
from gpuscope.tui.widgets.text import with_rest_counted
from gpuscope.wire import frames as f
from gpuscope.wire.codec import encode
from gpuscope.wire.recording import RecordingWriter
from tests.cli.test_snapshot_live import frames_of
from tests.fakes import clocks, jobs, paces, views
from tests.fakes.asked import AskedSource, gives
from tests.fakes.probe_client import TRAINING, trainer
from tests.recordings import REDACTED, SHIPPED
from tests.tui.pilot import feed, in_loop, make_app, until
from tests.tui.snapshots import SIZES, check, text


def pane_of(app: GpuscopeApp) -> TimePane:
    return app.screen.query_one(TimePane)


def looked_at(app: GpuscopeApp, look: dict[str, Any] = clocks.LOOK) -> None:
    """All trainers have answered to a look."""
    host, store = app.session.host, app.session._store
    assert host is not None
    assert store is not None
    for one in host.trainers:
        store.remember(host.key, one.id, "look", look)
    app.session._gather()


@in_loop
async def test_before_the_first_trainer_of_a_recording_a_key_goes_to_it():
    app = GpuscopeApp(Session(replay=ReplaySource(SHIPPED / "h200-lab.gsr")))
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await until(pilot, "in no training yet: the first starts at 00:13")
        assert "(key . goes there)" in screen
        await pilot.press("3")
        await until(pilot, "runs yet: the first starts at 00:13", "Load of the GPUs")
        await pilot.press("2")
        await until(pilot, "no probe yet: the first starts at 00:13")
        await pilot.press("3")
        await pilot.press("full_stop")
        screen = await until(pilot, "gpuscope lab", absent="No trainer")
        assert "the first starts" not in screen


@in_loop
async def test_the_rank_that_the_others_wait_for_is_shown_first_with_the_answer_on_top():
    app = make_app(clocks.of_ranks(), "time")
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await until(pilot, "goes into saving checkpoints", "◆ rank 2", "Doctor ◆2")
        assert "saving checkpoints ◆" in screen, "the doctor warns of it"
        assert "input wait ◆" in screen, "the doctor warns that the others wait for it"
        assert "◆ see Doctor" in screen, "the marks are explained"
        assert "train.py rank 2" in screen
        assert "at /data/train/train.py:91 save" in screen
        assert "then: the others wait for rank 2" in screen, "it brings less"
        assert "most to gain: 21 %" in screen
        assert "Rank 2 keeps the others waiting" not in screen, "the sentence above says it"
        assert "data.py:31 __getitem__" in screen, "the line of code of the chosen row"


@in_loop
async def test_the_fix_of_a_wait_for_input_promises_the_same_on_top_in_its_row_and_in_doctor():
    frames = frames_of(48201, cuda=False)
    data = {"m": 100_000_000_000, "seconds": 60.0, "steps": 100, "looks": 300}
    facts = {"rows": "input 54 270|forward 6 30"}
    frames.append(f.Event(301, "time", 160_000_000_000, "", {**data, **facts}))
    app = make_app(frames, "time")
    async with app.run_test(size=(160, 50)) as pilot:
        screen = await until(pilot, "goes into input wait. With ", " at best ")
        host, history = app.session.host, app.session.history
        assert host is not None
        (told,) = (x for x in examine(host, history).findings if x.cause == "live.input_bound")
        assert told.effect is not None
        by, _, text = told.effect.text.partition(" at best ")
        left = text.partition(" a step instead of 600 ms on average (")[0]
        assert by in ("with 2 workers", "with 8 workers"), "as the host's cores allow"
        assert f"{by.capitalize()} a step would take {left} or more" in screen
        share = percent_text(told.effect.saved_share or 0.0)
        assert f"{by} at best {left} a step instead of 600 ms ({share} less)" in screen


@in_loop
async def test_what_the_doctor_does_not_warn_of_is_told_calmly_on_top():
    for share, calm in ((0.3, True), (0.5, False)):
        frames = frames_of(48201, cuda=False)
        rows = f"input {60 * share} 150|forward {60 * (1 - share)} 150"
        data = {"m": 100_000_000_000, "seconds": 60.0, "steps": 100, "looks": 300, "rows": rows}
        frames.append(f.Event(301, "time", 160_000_000_000, "", data))
        app = make_app(frames, "time")
        async with app.run_test(size=(120, 40)) as pilot:
            said = f"{share * 100:.0f} % of the time"
            mark, badge = ("input wait ○", "") if calm else ("input wait ◆", "Doctor ◆1")
            screen = await until(pilot, said, mark, badge)
            assert ("Nothing to warn of; the most to gain: " + said in screen) == calm
            assert f"waits for input {share * 100:.0f} % of the last 1 min" in screen


@in_loop
async def test_what_the_other_ranks_spend_too_is_no_gain_of_the_rank_they_wait_for():
    app = make_app(clocks.of_ranks(), "time")
    async with app.run_test(size=(160, 45)) as pilot:
        gain = "the others wait for rank 2, 210 ms a step (17 %): "
        screen = await until(pilot, gain, "Doctor ◆2")
        assert "883 ms" not in screen, "that is a step without any wait, on all ranks"
        await pilot.press("enter")
        await until(pilot, "up to 210 ms (17 %) of a step", "the other ranks spend 107 ms on it")
    store = views.store_of(clocks.of_ranks())
    host = views.host_in(store)
    found = {one.cause: one for one in examine(host).findings if isinstance(one, Finding)}
    told = found["ranks.slow_input"]
    assert told.severity == "warning"
    assert told.effect is not None
    assert told.effect.text.startswith("saves at most 17 % of the wall clock")
    assert "beyond the 9 % of the other ranks" in told.effect.text
    ranks = of_job(host.jobs[0], host, no_history, 300.0, "")
    (cause,) = (c for one in ranks for c in one.causes if c.usual_share is not None)
    assert (cause.name, told.effect.saved_share) == ("input", round(cause.share, 4))


@pytest.mark.slow
@in_loop
async def test_a_rank_that_is_a_tenth_slower_is_named_here_on_the_overview_and_by_the_doctor():
    app = make_app(paces.job(minutes=5), "time")
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await until(pilot, "the others wait for rank 3, ", " ms a step (", " %) since ")
        assert "train.py rank 3" in screen
        assert "▸   rank 3" in screen, "the cursor begins at the rank that is told of"
        # the legend does not fit, and the rows have it
        await until(pilot, "as in the table")
        await pilot.press("1")
        await until(pilot, "straggler: the others wait for rank 3, ", " %) since ")
        await pilot.press("4")
        await until(pilot, "Rank 3 keeps the others waiting")
        await pilot.press("j")
        await until(pilot, "▸ ○ Rank 3 keeps the others waiting", " %) since ")


@in_loop
async def test_the_rows_add_up_to_the_clock_and_the_smallest_is_not_hidden():
    app = make_app(clocks.of_ranks(1, slow=None), "time")
    async with app.run_test(size=(160, 40)) as pilot:
        await until(pilot, "wall clock", "not attributed")
        host = app.session.host
        assert host is not None
        ledger = recent(host.trainers[0])
        assert sum(row.share for row in ledger.whole) == pytest.approx(1.0)
        checkpoints = next(x for x in text(app).splitlines() if "█ saving checkpoints" in x)
        forward = next(x for x in text(app).splitlines() if "█ forward pass" in x)
        assert " pause " in checkpoints
        assert " step " in forward
        assert "saving checkpoints ◆" in checkpoints, "it could be saved"
        assert "◆" not in forward


@in_loop
async def test_the_next_rank_is_chosen_by_key_and_from_the_list_of_ranks():
    app = make_app(clocks.of_ranks(), "time")
    async with app.run_test(size=(160, 45)) as pilot:
        await until(pilot, "rank 2 (pid")
        await pilot.press("n")
        await until(pilot, "rank 3 (pid")
        await pilot.press("n")
        await until(pilot, "rank 0 (pid")
        await pilot.press("tab")
        while not app.screen.query_one("#time-ranks").has_focus:
            await pilot.press("tab")
        await pilot.press("j", "enter")  # the cursor was on the rank that is shown
        await until(pilot, "rank 1 (pid")


@in_loop
async def test_enter_tells_the_lines_of_a_row_and_its_kernels():
    app = make_app(clocks.of_ranks(), "time")
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "input wait")
        looked_at(app)
        await until(pilot, "On the GPU, just now: busy 48 %")
        await pilot.press("enter")
        screen = await until(pilot, "Line     /data/train/data.py:31", "Esc Close")
        assert "idle: waits for input" in screen
        assert "num_workers" in screen
        await pilot.press("escape", "tab", "j", "enter")
        await until(pilot, "Longest kernels", "sm90_xmma_gemm")


@pytest.mark.slow
@in_loop
async def test_what_a_look_has_found_is_a_finding_of_the_tab_and_says_its_cure():
    app = make_app(clocks.of_ranks(), "time")
    async with app.run_test(size=(160, 60)) as pilot:
        await until(pilot, "input wait")
        idle = [["sync", 0.08, 8, "/data/train/train.py:77 log_loss", 0.08]]
        kernels: list[Any] = clocks.LOOK["kernels"]
        parts = [[0.047] * 4, [[row[3] / 4] * 4 for row in kernels], [0.0] * 4, [[0.02] * 4]]
        looked_at(app, {**clocks.LOOK, "idle": idle, "parts": parts})
        last = next(one for one in reversed(clocks.of_ranks()) if isinstance(one, f.Sample))
        for number in range(1, 100):  # the doctor judges a picture once a second
            feed(app, replace(last, q=last.q + number, m=last.m + number * 500_000_000))
            await pilot.pause(0.1)
            if "Syncs such as .item() leave the GPU idle for 3" in text(app):
                break
        await until(pilot, "On the GPU", "leave the GPU idle for 3")
        await pilot.press("tab", "enter")
        await until(pilot, "43 % with 95 % confidence, as its steps differ")
        await until(pilot, "Fix", "Sum on the GPU, read every N steps", "train.py:77 log_loss")


@in_loop
async def test_a_look_says_its_price_first_and_what_it_has_cost_afterwards():
    source = AskedSource(clocks.of_ranks(), look=gives(clocks.LOOK))
    app = GpuscopeApp(Session(make_source=lambda hz: source), "time")
    async with app.run_test(size=(120, 45)) as pilot:
        await until(pilot, "input wait", "w Work")
        await pilot.press("l")
        screen = await until(pilot, "Trace the GPU", "Enter Trace")
        assert "about 0.15 s of training time" in screen
        assert source.asked == []
        await pilot.press("enter")
        await until(pilot, "48 % of the time", "The GPU trace cost")
        assert source.asked == [("look", {"trainer": 302})]
        await pilot.press("escape")
        await until(pilot, "On the GPU, just now: busy 48 %", "idle: slow kernel")


@in_loop
async def test_a_trainer_on_the_cpu_has_no_gpu_to_look_at():
    source = AskedSource(views.cpu_only(6.0), look=gives(clocks.LOOK))
    app = GpuscopeApp(Session(make_source=lambda hz: source), "time")
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "once its probe has sampled 10 s of steps", "w Work")
        await pilot.press("l")
        await until(pilot, "no trainer here uses CUDA yet", "no GPU to", absent="l GPU trace")


@in_loop
async def test_a_replay_shows_the_same_and_cannot_be_asked(tmp_path):
    path = tmp_path / "clock.gsr"
    with RecordingWriter(path, False, "made up", "0") as writer:
        for frame in sorted(clocks.of_ranks(), key=lambda one: isinstance(one, f.Sample)):
            at = frame.m / 1e9 - views.END + 10 if isinstance(frame, f.Sample) else 0.0
            writer.write("0", at, encode(frame))
    app = GpuscopeApp(Session(replay=ReplaySource(path)), "time")
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "REPLAY", "goes into saving checkpoints", "rank 2 (pid")
        await pilot.press("l")
        await until(pilot, "GPU trace: only a live trainer answers this")


@pytest.mark.slow
@in_loop
async def test_the_rows_of_a_real_trainer_add_up_and_name_its_line():
    code = TRAINING + "import gpuscope; gpuscope.watch(); train(600, 0.02)"
    with trainer(code, fork=True) as process:
        app = GpuscopeApp(Session(make_source=lambda hz: local_source(hz, Settings())), "time")
        async with app.run_test(size=(140, 45)) as pilot:
            await until(pilot, "wall clock")
            while not (
                ours := [t for t in app.session.host.trainers if t.definition.pid == process.pid]
            ):
                await pilot.pause()
            # others may train on this machine
            app.session.selection.choose(*keys_of(app.session.host, ours[0]))
            app.main.refresh_all()
            await until(
                pilot, f"(pid {process.pid})", "goes into other code", "train", "wall clock"
            )
            await pilot.press("enter")
            await until(pilot, "<string>:13 train", "S: where all its threads are now")
            host = app.session.host
            assert host is not None
            found = next(t for t in host.trainers if t.definition.pid == process.pid)
            ledger = of_trainer(found)
            assert ledger.steps > 0
            assert sum(row.seconds for row in ledger.rows) == pytest.approx(ledger.seconds)
            app.leave()


@in_loop
async def test_a_finding_opens_in_the_doctor():
    app = make_app(clocks.of_ranks(), "time")
    async with app.run_test(size=(200, 60)) as pilot:
        await until(pilot, "Saving checkpoints takes")
        while not app.screen.query_one("#time-findings").has_focus:
            await pilot.press("tab")
        await pilot.press("enter")
        await until(pilot, "How sure  likely", "▸ ◆ Saving checkpoints")


@in_loop
@pytest.mark.parametrize(("minutes", "window"), [(1, "1 min"), (3, "3 min"), (7, "10 min")])
async def test_the_clock_is_drawn_over_as_much_time_as_is_known(minutes, window):
    app = make_app(clocks.of_ranks(1, minutes, slow=None), "time")
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, f"Time per step over {window}")


@in_loop
async def test_on_a_narrow_terminal_a_key_turns_what_stands_below_the_rows():
    app = make_app(clocks.of_ranks(), "time")
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, "input wait")
        await pilot.press("tab")
        await until(pilot, "Time per step over 10 min")
        await pilot.press("tab")
        await until(pilot, "Load of its GPUs", absent="Time per step over 10 min")
        await pilot.press("tab")
        await until(pilot, "Findings", absent="Load of its GPUs")
        await pilot.press("tab")
        await until(pilot, "Time per step, by rank")
        await pilot.press("tab")
        await until(pilot, "wall clock", absent="Time per step, by")


@in_loop
async def test_a_ledger_is_computed_once_for_each_minute():
    app = make_app(clocks.of_ranks(1, minutes=3, slow=None), "time")
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "last 3 min")
        host = app.session.host
        assert host is not None
        pane, trainer = pane_of(app), host.trainers[0]
        before, drawn = recent(trainer), pane._drawn
        sample = f.Sample(999, int(views.END * 1e9) + 500_000_000, h=[views.host_row()])
        feed(app, sample)
        await pilot.pause()
        host = app.session.host
        assert host is not None
        assert recent(host.trainers[0]) is before
        assert pane._drawn is drawn
        entity = next(x.id for x in clocks.of_ranks(1) if isinstance(x, f.Def) and x.trainer)
        feed(app, clocks.minute(entity, 3, 3))
        await until(pilot, "last 4 min")


# ── where there is nothing to show ──


@in_loop
async def test_without_a_trainer_it_says_how_to_get_one():
    app = make_app(views.vacant(), "time")
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, "gpuscope run train.py", "attach one", "Load of the GPUs")
        await pilot.resize_terminal(120, 40)
        await until(pilot, "gpuscope run train.py", "GPU 1", "51120")


@in_loop
async def test_a_trainer_without_a_step_and_one_that_told_nothing_have_a_reason():
    app = make_app(views.training(4.0), "time")
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, "Where its time goes is shown once its probe has sampled")
    unstarted: list[Any] = []
    for frame in views.training(4.0):
        if isinstance(frame, f.Sample):
            at = f.COLUMNS["t"].index("step") + 1
            for row in frame.t:
                row[at] = 0
        unstarted.append(frame)
    app = make_app(unstarted, "time")
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, "No optimizer step was seen yet")


@in_loop
async def test_a_filter_that_nobody_passes_says_so():
    app = make_app(clocks.of_ranks(), "time")
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, "input wait")
        app.main.set_filter("nobody")
        await until(pilot, "no trainer contains 'nobody'")


@in_loop
async def test_rows_in_which_no_chart_has_room_say_what_to_do_about_the_row():
    app = make_app(clocks.of_ranks(), "time")
    async with app.run_test(size=(80, 27)) as pilot:
        await until(pilot, "input wait", "─ Input wait ─", "Gain")
        chart = app.main.query_one("TimeChart")
        assert not chart.display or not chart.region


# ── the history ──


def test_rows_keep_their_colours_and_the_layers_add_up_to_the_step():
    events = [clocks.minute(1, n, 10) for n in range(10)]
    minutes = [of_event(event.data or {}) for event in events]
    tokens = history.tokens_of(read({"minutes": minutes}))
    assert {tokens[name] for name in tokens if name not in step_colours.TOKENS} == {history.REST}
    for measured, row in step_colours.SAME.items():
        assert step_colours.SPLIT_TOKENS[measured] == tokens.get(row, step_colours.TOKENS[row])
    layers, moments = history.layers(minutes, tokens)
    assert moments == sorted(moments)
    small = [name for name, token in tokens.items() if token == history.REST]
    others = WORDS[small[1]] if len(small) == 2 else f"{len(small) - 1} others"
    assert layers[-1].label == f"other code + {others}", "it is most of them"
    for at in range(len(moments)):
        whole = sum(layer.values[at] or 0.0 for layer in layers)
        assert whole == pytest.approx(60e9 / 64, rel=1e-3)


def test_a_minute_without_a_step_is_unknown():
    minutes = [of_event(clocks.minute(1, n, 2, steps=0).data or {}) for n in range(2)]
    layers, _ = history.layers(minutes, {"forward": "allocated", "other": history.REST})
    assert layers[-1].label == "other code"
    assert {value for layer in layers for value in layer.values} == {None}


def test_the_steps_of_a_training_that_has_ended_are_not_drawn_to_now():
    """Its last minute speaks for some seconds more, as one of a training that steps does."""
    trainer = views.host_of(clocks.of_ranks(1)).trainers[0]
    end = max(one["m"] / 1e9 + one["seconds"] for one in trainer.minutes)
    for gone, known in ((None, True), (Gone(end, None, "exited"), False)):
        one = replace(trainer, gone=gone)
        found = of_ledger(Session(), one, of_trainer(one), 60.0, end + 10.0)
        drawn = stack_columns(found.layers, found.moments, 60.0, end + 10.0, 60)
        assert drawn[40] is not None
        assert (drawn[-6] is not None) is known


def test_the_layer_of_small_rows_is_other_code_where_that_is_most_of_it():
    rows = {"other code": [20.0, 20.0], "garbage collection": [0.0, None]}
    assert history._together(rows) == "other code"
    assert history._together({**rows, "logging": [5.0, 5.0]}) == "other code + logging"
    assert (
        history._together({"other code": [2.0], "logging": [3.0], "read": [2.0]})
        == "logging + 2 others"
    )


def test_the_made_up_look_is_one():
    look = read_look(clocks.LOOK)
    assert look is not None
    assert sum(row.share for row in look.rows) == pytest.approx(1.0)


# ── pictures ──


@pytest.mark.parametrize("size", SIZES)
def test_the_tab_looks_as_it_did(size: tuple[int, int]) -> None:
    @in_loop
    async def run() -> None:
        app = make_app(clocks.of_ranks(), "time")
        async with app.run_test(size=size) as pilot:
            await until(pilot, "input wait", "wall clock")
            looked_at(app)
            await until(pilot, "21 % of the time", "210 ms a step (17 %)")
            if size[0] > 80:
                below = "Saving checkpoints takes" if size[0] > 120 else "up to 210 ms (17 %) of a"
                await until(pilot, "On the GPU", below, "Time per step over 10 min")
            await check(pilot, "tab-time")

    run()


@in_loop
async def test_without_colour_each_row_has_its_pattern(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    app = make_app(clocks.of_ranks(), "time")
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "▒ input wait", "█ forward pass")
        await check(pilot, "tab-time-mono")


@in_loop
async def test_the_work_of_a_step_is_counted_after_its_price_and_derived_by_class():
    source = AskedSource(clocks.of_ranks(), work=gives(clocks.WORK))
    app = GpuscopeApp(Session(make_source=lambda hz: source), "time")
    async with app.run_test(size=(140, 45)) as pilot:
        await until(pilot, "input wait", "w Work")
        await pilot.press("w")
        screen = await until(pilot, "Count the work of a step", "Enter Count")
        assert "one step takes longer, once" in screen
        assert source.asked == []
        await pilot.press("enter")
        await until(pilot, "at least 66 TFLOP a step", "cost the training 120 ms")
        assert source.asked == [("work", {"trainer": 302})]
        await pilot.press("escape")
        await until(pilot, "useful work:", "MFU at least", "dense bf16 of H200 SXM")
        await pilot.press("w")
        screen = await until(pilot, "Useful work of a step", "matmuls, bf16")
        assert "13.2 TFLOP of them computed again by checkpoints" in screen
        assert "aten::_fft_c2c (2)" in screen
        assert "H200 SXM, 4800 GB/s; dense peaks of the NVIDIA H200" in screen
        await pilot.press("w")
        await until(pilot, "Count the work of a step", "Enter Count")


@in_loop
async def test_a_large_terminal_lists_the_longest_kernels_below_their_class():
    app = make_app(clocks.of_ranks(), "time")
    async with app.run_test(size=(200, 60)) as pilot:
        await until(pilot, "input wait")
        looked_at(app)
        screen = await until(pilot, "sm90_xmma_gemm", "busy 48 %")
        lines = screen.splitlines()
        place = next(i for i, line in enumerate(lines) if "matmuls on tensor cores" in line)
        assert "    sm90_xmma_gemm_bf16bf16" in lines[place + 1]
        await pilot.resize_terminal(120, 40)
        await until(pilot, "matmuls on tensor cores", absent="sm90_xmma_gemm")


@in_loop
async def test_without_a_ledger_the_parts_of_the_last_steps_are_shown():
    app = make_app(jobs.ranks(1, 10.0), "time")
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await until(pilot, "compute  forward, backward", absent="not divided")
        row = next(line for line in screen.splitlines() if "forward, backward" in line)
        assert "350 ms" in row
        assert "70 %" in row
        assert screen.index("forward, backward") < screen.index("input  waiting for data")


@in_loop
async def test_a_part_of_a_step_has_one_name_in_rows_legend_and_table_of_ranks():
    app = make_app(jobs.ranks(4), "time")
    async with app.run_test(size=(120, 40)) as pilot:
        legend = "█ communication  █ input + 2 others"
        screen = await until(pilot, "COMPUTE", "█ compute  █ optimizer", legend)
        for name in SPLIT_WORDS.values():
            in_rest = name in {SPLIT_WORDS[thin] for thin in ("other", "h2d")}
            assert screen.count(f"█ {name}") == 2 - in_rest, "in a row, and in the legend"
        assert all(SPLIT_WORDS[one].startswith(name.lower()) for one, name in SHORT_PARTS.items())


def empty_share(screen: str) -> float:
    """How many lines of a screen have nothing but frames on them."""
    lines = screen.splitlines()
    return sum(not line.strip("│╭╮╰╯─ ") for line in lines) / len(lines)


@in_loop
async def test_without_a_ledger_the_page_has_all_that_is_measured():
    app = make_app(jobs.ranks(4), "time")
    async with app.run_test(size=(200, 60)) as pilot:
        screen = await until(
            pilot,
            *("Step breakdown, mean of the last 32 of rank 0", "Time per step, by rank", "tensor"),
            *("Step breakdown over", "Load of its GPUs", "Processes"),
        )
        assert empty_share(screen) < 0.25
        rank = next(line for line in screen.splitlines() if "rank 3" in line)
        assert "500 ms" in rank
        assert "45.0 ms" in rank, "what it waits for the others"
        await pilot.press("j", "j", "enter")
        screen = await until(pilot, "Communication that overlaps with no computation", "rank 3")
        assert "45.0 ms of 500 ms, 9 %" in screen


@in_loop
async def test_a_recording_without_a_ledger_shows_steps_and_load():
    source = ReplaySource(REDACTED / "h200x2-ddp.gsr")
    source.pause()
    source.seek(60.0)
    app = GpuscopeApp(Session(replay=source), "time")
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await until(
            pilot,
            "No part of a step is known in this recording: it has no samples",
            "step, 2 ranks",
            "GPU 1",
            "tensor",
        )
        assert "76.5 ms" in next(line for line in screen.splitlines() if "rank 1" in line)
        assert empty_share(screen) < 0.26
        await pilot.resize_terminal(200, 57)
        screen = await until(pilot, "Process", "child of pid 567", "of one core · RSS")
        assert " more " not in screen, "texts are whole before the lanes of the load are high"
        lanes = screen.split("Load of its GPUs")[1].splitlines()
        assert "▇▇▇" in lanes[1], "no row is blank at the top"


@in_loop
async def test_what_the_doctor_found_on_two_gpus_comes_first_for_each_of_their_ranks():
    source = ReplaySource(SHIPPED / "h200x2-ddp.gsr")
    source.pause()
    source.seek(60.0)
    app = GpuscopeApp(Session(replay=source), "time")
    async with app.run_test(size=(120, 40)) as pilot:
        found = "Tensor cores idle on GPU 0, 1: matmuls likely in FP32 · how: tab 4, Doctor"
        for rank in ("rank 1 (", "rank 0 ("):
            await until(pilot, rank, found, absent="Nothing but forward")
            await pilot.press("n")


@in_loop
async def test_in_a_hang_no_part_of_the_steps_before_is_marked_as_its_cause():
    source = ReplaySource(REDACTED / "h200x2-stall.gsr")
    source.pause()
    source.seek(76.0)
    app = GpuscopeApp(Session(replay=source), "time")
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await until(pilot, "stalled for", "▲ rank 1", "COMPUTE")
        row = next(line for line in screen.splitlines() if "▲ rank 1" in line)
        assert "1.79 ms" in row
        assert row.count("▲") == 1


@in_loop
async def test_the_cursor_of_the_ranks_is_on_the_one_that_is_told_of_until_the_user_moves_it():
    source = ReplaySource(SHIPPED / "h200x2-stall.gsr")
    source.pause()

    def ranks() -> tuple[str, str]:
        shown = text(app)
        told, row = re.search(r"rank (\d) \(pid", shown), re.search(r"▸ \W*rank (\d)", shown)
        return (told[1], row[1]) if told and row else ("no", "row")

    app = GpuscopeApp(Session(replay=source), "time")
    async with app.run_test(size=(120, 40)) as pilot:
        source.seek(40.0)
        await until(pilot, "00:40/", "Time per step, by rank")
        pane = app.query_one(TimePane)
        pane.focus_on(pane._steps)
        for second in (50.0, 56.0, 60.0, 62.0, 64.0, 76.0):
            source.seek(second)
            await until(pilot, f" {int(second) // 60:02}:{int(second) % 60:02}/")
            app.main.refresh_all()
            await pilot.pause()
            told, row = ranks()
            assert told == row, second
        pane.focus_on(pane._steps)
        await pilot.press("up")
        app.main.refresh_all()
        await until(pilot, "▸ ◆ rank 0", "rank 1 (pid")


@in_loop
async def test_the_odd_rank_comes_first_is_marked_and_its_finding_stands_on_a_small_terminal():
    app = make_app(views.training(), "time")
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await until(pilot, "◆ Rank 5 waits for input", "train.py rank 5")
        lines = screen.splitlines()
        first = lines[next(at for at, line in enumerate(lines) if "RANK" in line) + 1]
        assert "◆ rank 5" in first
        assert "◆ 280 ms" in first


@in_loop
async def test_the_details_of_a_part_follow_the_cursor_where_there_is_no_ledger():
    source = ReplaySource(SHIPPED / "h200-lab.gsr")
    source.pause()
    source.seek(74.0)
    app = GpuscopeApp(Session(replay=source), "time")
    async with app.run_test(size=(200, 60)) as pilot:
        await until(pilot, "▸ █ compute", "The forward and the backward pass on the GPU.")
        await pilot.press("down")
        await until(pilot, "▸ █ optimizer", "The optimizer's step on the GPU.")
        app.main.refresh_all()
        await until(pilot, "▸ █ optimizer", absent="▸ █ compute")


def test_without_a_gpu_no_part_of_a_step_is_on_one():
    on_gpu = views.host_of(jobs.ranks(2)).trainers[0]
    on_cpu = replace(on_gpu, definition=replace(on_gpu.definition, cuda=False))
    for rank, ends in ((on_gpu, " on the GPU."), (on_cpu, ".")):
        _, lines = part_detail("compute", [rank])
        assert styled.plain(lines[0]) == "The forward and the backward pass" + ends
        _, lines = part_detail("optimizer", [rank])
        assert styled.plain(lines[0]) == "The optimizer's step" + ends


def test_where_nothing_marks_its_begin_a_step_s_computation_is_called_the_rest():
    mixed = views.host_of(views.training()).trainers[0]
    assert mixed.number("other_seconds") is None, "else no test"
    heading, lines = part_detail("compute", [mixed])
    assert heading == "Compute and other code"
    assert "whatever the script does between two steps" in styled.plain(lines[0])


def with_the_hang(minutes: int, steps: int, **rows: float) -> list[f.Frame]:
    """Return ranks that hang, of which each minute before and the hang itself were sampled."""
    frames = jobs.ranks(stalled=True)
    ids = [one.id for one in frames if isinstance(one, f.Def) and one.trainer is not None]
    for entity in ids:
        for number in range(minutes):
            event = clocks.minute(entity, number, minutes, steps, **rows)
            assert event.data is not None
            if number == minutes - 1:
                event.data["hang"] = "input 38.0 190 data.py:88 __getitem__"
            frames.append(event)
    return frames


@in_loop
async def test_the_steps_before_a_hang_and_the_hang_itself_are_one_table():
    app = make_app(with_the_hang(1, 40, input=3.0), "time")
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await until(pilot, "Where the time went before", "IN HANG")
        rows = [line for line in screen[screen.index("IN HANG") :].splitlines() if "█ " in line]
        hung = next(line for line in rows if "input wait" in line)
        assert "210 ms" in hung, "a step before the hang"
        assert " 100 % " in hung, "the hang"
        other = next(line for line in rows if "backward pass" in line)
        assert "147 ms" in other
        assert " – " in other
        assert "In hang  100 % of it at data.py:88 __getitem__" in screen


@in_loop
async def test_a_hang_of_which_alone_there_are_samples_stands_beside_the_parts_of_steps():
    frames = with_the_hang(1, 0)
    for frame in frames:
        if isinstance(frame, f.Event) and frame.data and "hang" in frame.data:
            frame.data |= {"seconds": 38.0, "looks": 190, "rows": "input 38.0 190", "places": ""}
    app = make_app(frames, "time")
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await until(pilot, "Step breakdown, mean of the last 32 of rank 3", "IN HANG")
        table = screen[screen.index("WHAT") : screen.index("Time per step, by rank")].splitlines()
        first = next(line for line in table if "▸" in line)
        assert "input" in first, "what it does now stands first"
        assert " 100 % " in first
        for name in ("input", "compute", "optimizer", "other"):
            assert any(f"█ {name} " in line for line in table), "as in the legend of the chart"


@in_loop
async def test_the_backward_pass_of_a_rank_that_waits_for_others_in_a_hang_is_communication():
    frames = with_the_hang(1, 0)
    for frame in frames:
        if isinstance(frame, f.Event) and frame.data and "hang" in frame.data:
            frame.data |= {"seconds": 38.0, "looks": 190, "places": ""}
            waits = "backward 37.0 185 train.py:60 <module>"
            frame.data |= {"rows": "backward 37.0 185\nother 1.0 5", "hang": waits}
    app = make_app(frames, "time")
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "Step breakdown, mean of the last 32 of rank 3", "IN HANG")
        await pilot.press("n")
        screen = await until(pilot, "mean of the last 32 of rank 0", "█ communication", "by rank")
        table = screen[screen.index("WHAT") : screen.index("Time per step, by rank")].splitlines()
        (hung,) = [line for line in table if "█ " in line[:6] and " 100 % " in line]
        assert "█ communication " in hung


def test_own_code_in_a_hang_is_of_the_part_that_it_is_in_before():
    """Without a loader nothing marks where compute begins: the part is called after both."""
    columns = ("other", "input")
    frames = jobs.ranks(stalled=True)
    for sample in (one for one in frames if isinstance(one, f.Sample)):
        for row in sample.t:
            for name in columns:
                row[1 + f.TRAINER_COLUMNS.index(f"{name}_seconds")] = None
    host, _ = views.seen(frames)
    (job,) = host.jobs
    stuck = job.trainers[3]
    hang = read({"minutes": [{"rows": [["other", 38.0, 190]], "looks": 190, "steps": 0}]})
    glyphs = Tokens(THEMES[0]).glyphs
    first, *_, last = add_hang(split_rows(stuck, glyphs), hang, glyphs)
    assert "compute and other code" in str(first.cells["row"])
    assert "100 %" in str(first.cells["hang"])
    assert "step" in str(last.cells["row"])
    assert "100 % of it" in str(hang_lines(first.key, hang, split_of(stuck)))
    assert "COMPUTE+OTHER" in [one.title for one in rank_columns(rank_rows(host, job.trainers, {}))]


@in_loop
async def test_a_long_hang_still_shows_the_steps_before_it_on_all_surfaces():
    app = make_app(with_the_hang(1, 40, input=3.0), "time")
    async with app.run_test(size=(200, 60)) as pilot:
        screen = await until(
            pilot, "Where the time went before", "Time per step, last 30 s of steps"
        )
        assert "22 s up to the last step: 40 steps, mean 550 ms" in screen
        await pilot.press("1")
        overview = await until(pilot, "Where a step went, 22 s up to the last step")
        row = next(line for line in overview.splitlines() if "█ input wait" in line)
        assert "210 ms" in row, "the Overview divides the same steps in the same way"


@in_loop
async def test_a_hang_is_a_finding_of_the_tab():
    app = make_app(jobs.ranks(stalled=True), "time")
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "stalled for 47 s: rank 3 is", "do first: Read the stacks")


@in_loop
async def test_a_hang_is_no_slow_step_and_its_minute_is_no_part_of_one():
    frames = jobs.ranks(stalled=True)
    ids = [one.id for one in frames if isinstance(one, f.Def) and one.trainer is not None]
    for rank, entity in enumerate(ids):
        for number in range(10):
            more = {"input": 9.0} if number == 9 and rank == 3 else {}
            frames.append(clocks.minute(entity, number, 10, 64, **more))
    app = make_app(frames, "time")
    async with app.run_test(size=(160, 45)) as pilot:
        await pilot.press("n")
        screen = await until(
            pilot, "stalled for 47 s: rank 3 is stuck at data.py:88", "a median step took 500 ms"
        )
        told = "5 min up to the last step: 320 steps, mean 938 ms"
        assert told in screen, "without the minute of the hang"
        assert "▲ rank 3" in screen
        assert all(f"◆ rank {rank}" in screen for rank in range(3))
        for word in ("goes into", "shorter", "could be", "The others wait", "too little to gain"):
            assert word not in screen, f"nothing is to be gained while it hangs: {word}"


@in_loop
async def test_on_a_small_terminal_all_rows_stay_and_the_chart_has_the_rest():
    frames = clocks.of_ranks(1, slow=None)
    app = make_app(frames, "time")
    async with app.run_test(size=(80, 26)) as pilot:
        screen = await until(pilot, "wall clock", "backward pass")
        assert "250 steps, mean 1.20 s" in screen
        assert "…" not in next(line for line in screen.splitlines() if "(pid " in line)


@in_loop
async def test_a_small_terminal_shows_the_course_of_each_row_beside_its_share():
    app = make_app(clocks.of_ranks(), "time")
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await until(pilot, "10 MIN", "saving checkpoints ◆")
        row = next(line for line in screen.splitlines() if "saving checkpoints ◆" in line)
        course = row.split(" % ")[-1].strip("│ ")
        assert course[0] == "▁", "it took no time at first"
        assert course[-1] > "▃", "and a fifth of it now"
        assert "at train.py:91 save." in screen, "the folder is in the details"


def test_a_minute_that_is_missing_is_a_gap_in_the_courses():
    minutes = [of_event(clocks.minute(1, n, 10).data or {}) for n in range(10)]
    whole = history.courses(minutes, 10)
    gap = history.courses([*minutes[:-3], *minutes[-2:]], 10)
    for name, values in gap.items():
        assert values[-3] is None
        assert values[-2:] == whole[name][-2:]


def test_a_ledger_of_few_samples_has_no_intervals_and_counts_one_step_as_one():
    minute = {"m": 0, "seconds": 1.0, "steps": 1, "looks": 2, "rows": [["forward", 1.0, 2]]}
    few, many = (read({"minutes": [{**minute, **more}]}) for more in ({}, {"looks": 200}))
    assert coverage_text(few) == "last 1 s: 1 step, mean 1.00 s · 2 samples"
    tokens: dict[str, str] = {}
    glyphs = Tokens(THEMES[0]).glyphs
    told = [clock_rows(one, tokens, glyphs)[0].cells["interval"] for one in (few, many)]
    assert told[0] == [("", "faint")]
    assert told[1] != told[0]
    detail = "".join(part for line in row_detail(few.rows[0], few, None) for part, _ in line)
    assert "too few samples yet: 2" in detail
    assert "confidence" not in detail


@pytest.mark.parametrize(("lanes", "devices"), [(2, 0), (3, 0), (6, 4), (8, 2), (10, 2), (18, 8)])
def test_the_load_takes_only_rows_that_its_lanes_fill(lanes: int, devices: int) -> None:
    for room in range(lanes + devices + STRIP_FRAME, 80):
        rows = fitted_strip_rows(room, lanes, devices)
        assert rows <= min(room, strip_rows(lanes))
        strips = LoadStrips()
        strips.may_be_high = True
        each = (lanes - 2) // devices if devices else 0
        firsts = {at * each for at in range(devices)} if each > 1 else set()
        firsts |= {lanes - 2} if devices else set()
        strips._lanes = tuple(Lane(f"{at}", History(), at in firsts) for at in range(lanes))
        shares = strips._shares(180, rows - 2)
        assert shares.axis == 2
        assert shares.over == sum(shares.blanks[1:]), "no row is blank at the top"
    assert strips._shares(180, strip_rows(lanes) - 2)[1] == 2, "two rows where there is room"


def test_what_has_no_room_below_a_heading_is_counted() -> None:
    lines = [[("Takes", "muted")], [], [("Lines of code", "title")], *[[("a.py:1", "text")]] * 5]
    shown = with_rest_counted(lines, 5, 20, "…")
    assert styled.plain(shown[4]) == "a.py:1      … 3 more"
    assert list(shown[:4]) == lines[:4]
    for rows in (2, 3):
        assert with_rest_counted(lines, rows, 20, "…") == [lines[0], [("… 5 more", "muted")]]
    assert styled.plain(with_rest_counted(lines, 1, 20, "…")[0]) == "Takes       … 5 more"


@pytest.mark.parametrize("name", sorted(SHORT.keys() - {"unattributed", "release"}))
def test_the_table_of_ranks_calls_a_row_as_the_clock_does(name):
    """Shortened; the two others have no short word of their own: REST and RELEASE."""
    assert SHORT[name][:4].lower() in WORDS[name]
