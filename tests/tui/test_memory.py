"""The memory tab has its views and keys.

The tests see what it asks a trainer, in a replay and on a CPU, and how it looks.
"""

from __future__ import annotations

from typing import Any

import pytest
from rich.cells import cell_len

from gpuscope.model.allocator_account import on_cpu
from gpuscope.model.fullest_account import rss_of
from gpuscope.store.pending_requests import SourceError
from gpuscope.store.store import Store
from gpuscope.text.styled import plain
from gpuscope.text.units import MIB
from gpuscope.tui.app.app import GpuscopeApp
from gpuscope.tui.app.help_screen import COLUMNS
from gpuscope.tui.charts.chart_series import process_layers
from gpuscope.tui.memory.more_text import room_text, rss_lines
from gpuscope.tui.shell.session import Session
from gpuscope.wire import frames as f
from tests.fakes import inside, jobs, views
from tests.tui.pilot import feed, in_loop, make_app, until
from tests.tui.snapshots import SIZES, check, grid, text


def asked(frames: list[f.Frame] | None = None, **answers: Any) -> tuple[GpuscopeApp, inside.Asked]:
    """The app on the memory tab over a trainer that answers."""
    source = inside.Asked(inside.crowded(10.0) if frames is None else frames, answers)
    session = Session(Store(), source)
    session.cpu_percent = lambda: 0.9  # type: ignore[method-assign]
    session.doctor.prepare()
    return GpuscopeApp(session, "memory"), source


def line_with(screen: str, part: str) -> str:
    return next(line for line in screen.splitlines() if part in line)


# ── waterfall ─────────────────────────────────────────────────────────────────────────────────────


@in_loop
async def test_the_waterfall_names_everything_and_says_what_is_not_exact():
    app, _ = asked()
    async with app.run_test(size=(160, 50)) as pilot:
        screen = await until(pilot, "used (= nvidia-smi)", "jupyter-lab 51120 (lin)")
        rows = {
            "allocated": "49.9 GiB",
            "private pools, idle": "≈2.00 GiB",
            "awaiting free": "512 MiB",
            "outside torch": "4.00 GiB",
            "2 more": "1.10 GiB",
            "driver reserve": "614 MiB",
        }
        for row, amount in rows.items():
            assert amount in line_with(screen, row), row
        assert "121 GiB" in line_with(screen, "used (= nvidia-smi)")
        assert "biggest saving: other processes" in screen
        left = " ".join(" ".join(line[:79] for line in screen.splitlines()).split())
        assert "live tensors may hold up to 203 MiB more" in left


@in_loop
async def test_all_ranks_stand_below_the_waterfall_where_there_is_room():
    app = make_app(jobs.ranks(leaks=2), "memory")
    async with app.run_test(size=(160, 50)) as pilot:
        screen = await until(
            pilot, "All GPUs", "finding: Rank 2 runs out of memory", "do first: Save a checkpoint"
        )
        assert "3.40 GiB" in line_with(screen, "▸ GPU 2 rank 2 train.py"), "the one that runs out"
        await pilot.press("n")
        await until(pilot, "▸ GPU 3 rank 3 train.py", "4 of 4, n: next")
        await pilot.press("n")
        await until(pilot, "▸ GPU 0 rank 0 train.py", "1 of 4, n: next")
        await pilot.press("N")
        await until(pilot, "▸ GPU 3 rank 3 train.py")
        await pilot.resize_terminal(80, 24)
        await until(pilot, "used (= nvidia-smi)", absent="All GPUs")


@in_loop
async def test_on_a_small_terminal_the_rows_fold_and_the_advice_stays():
    app, _ = asked()
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await until(pilot, "used (= nvidia-smi)", "biggest saving")
        assert "allocated" in screen
        assert "cached" in screen


@in_loop
async def test_what_kind_of_process_it_is_stands_below():
    frames = inside.crowded(200.0)
    for frame in frames:
        if isinstance(frame, f.Def) and frame.proc is not None and frame.proc.pid == 48216:
            frame.proc.command = "/opt/venv/bin/vllm serve llama"
        if isinstance(frame, f.Sample):
            frame.t = []
            frame.a = [inside.counters(100.0, reserved_bytes=120 * views.GIB)]
    app, _ = asked(frames)
    async with app.run_test(size=(160, 50)) as pilot:
        screen = await until(pilot, "seen: vLLM: reserves most of the GPU by design; not a leak")
        left = " ".join(" ".join(line[:79] for line in screen.splitlines()).split())
        assert "its command line names vLLM; reserved 86 % of the GPU" in left


@in_loop
async def test_of_more_gpus_than_fit_those_with_the_least_headroom_are_listed():
    app = make_app(views.training(60.0), "memory")
    async with app.run_test(size=(120, 37)) as pilot:
        screen = await until(pilot, "GPUs, 7 of 8: the least headroom", "▸ GPU 3 rank 3")
        assert "27.7 GiB" in line_with(screen, "GPU 3 rank 3 train.py")
        assert "GPU 7" not in screen, "it is free"


@in_loop
async def test_where_most_of_a_card_is_free_nothing_has_to_be_saved():
    frames = jobs.ranks(1, 20.0)
    for frame in frames:
        for row in frame.g if isinstance(frame, f.Sample) else ():
            row[1 + f.DEVICE_COLUMNS.index("free_bytes")] = int(134 * views.GIB)
    app = make_app(frames, "memory")
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "plenty of room: 134 GiB are free", absent="biggest saving")


# ── timeline ──────────────────────────────────────────────────────────────────────────────────────


@in_loop
async def test_events_and_steps_stand_on_the_time_axis():
    app, _ = asked(inside.crowded(60.0))
    async with app.run_test(size=(200, 50)) as pilot:
        screen = await until(pilot, "│eval", "▲ OOM", "↻ retry")
        row = line_with(screen, "│eval")
        assert (row.count("△"), row.count("▲")) == (1, 1)
        assert (
            row.index("△")
            < row.index("↻")
            < row.index("│eval")
            < row.index("│train")
            < row.index("■")
        )
        assert "╵4120" in line_with(screen, "╵")
        assert "▔▔▔▔" in screen or "▁▁▁▁" in screen


@in_loop
async def test_the_timeline_zooms_as_far_as_there_is_history():
    app, _ = asked(inside.crowded(400.0))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "Timeline, GiB", "-60s")
        await pilot.press("z")
        await until(pilot, "Timeline 5 min, GiB", "-5m")
        await pilot.press("z")
        await until(pilot, "Timeline 15 min, GiB", "-10m")
        await pilot.press("z")
        await until(pilot, "-60s", absent="-10m")
        await pilot.press("Z")
        await until(pilot, "Timeline 15 min, GiB")


@in_loop
async def test_there_is_no_zoom_where_there_is_no_history():
    app, _ = asked(inside.crowded(10.0))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "Timeline, GiB")
        await pilot.press("z")
        await until(pilot, "the timeline covers less than 1 min so far")


@pytest.mark.slow
@in_loop
async def test_a_replay_moves_its_marks_and_zooms_over_what_was_recorded(tmp_path):
    from gpuscope.store.replay import ReplaySource
    from gpuscope.wire.codec import encode
    from gpuscope.wire.recording import RecordingWriter

    path = tmp_path / "inside.gsr"
    frames = inside.crowded(200.0)
    defined = [frame for frame in frames if not isinstance(frame, (f.Sample, f.Event))]
    timed = sorted(
        (frame for frame in frames if isinstance(frame, (f.Sample, f.Event))),
        key=lambda frame: frame.m,
    )
    with RecordingWriter(path, False, "made up", "0") as writer:
        for frame in defined:
            writer.write("0", 0.0, encode(frame))
        for frame in timed:
            writer.write("0", frame.m / 1e9 - views.END + 200.0, encode(frame))
    replay = ReplaySource(path)
    replay.pause()
    replay.seek(200.0)
    app = GpuscopeApp(Session(replay=replay), "memory")
    async with app.run_test(size=(160, 40)) as pilot:
        screen = await until(pilot, "│eval", "│train", "step")
        assert line_with(screen, "│eval").count("▲") == 1
        replay.seek(175.0)
        screen = await until(pilot, "│eval", absent="│train")
        assert line_with(screen, "│eval").count("▲") == 0, "what had not happened yet is not there"
        await pilot.press("z")
        await until(pilot, "Timeline 5 min", "14:11:55")
        assert replay.lead_seconds == 300.0
        for key, label in (("c", "Counters"), ("m", "Modules")):
            assert f"{key} {label}" not in text(app).splitlines()[-1]
            await pilot.press(key)
            await until(pilot, f"{label}: only a live trainer answers this")
            app.session.notices.unhint()
            app.session.notices._said -= 60
            app.main.refresh_frame()
            await pilot.pause()


# ── summary ───────────────────────────────────────────────────────────────────────────────────────


@in_loop
async def test_the_summary_is_asked_of_the_trainer_while_it_is_shown_and_not_before():
    app, source = asked()
    async with app.run_test(size=(120, 60)) as pilot:
        await until(pilot, "used (= nvidia-smi)")
        question = ("statistics", {"device": 3, "trainer": 316})
        assert question not in source.asked
        await pilot.press("c")
        screen = await until(pilot, "torch.cuda.memory_summary, cuda:3", "large pool")
        assert source.asked.count(question) == 1
        assert "48.0 GiB" in line_with(screen, "│ allocated")
        assert "4,113" in line_with(screen, "allocations")
        assert "3" in line_with(screen, "cudaMalloc retries")
        assert "one call: 10.0 µs" in screen
        await pilot.press("c")
        await until(pilot, "Where the bytes are", absent="large pool")


@in_loop
async def test_the_second_answer_brings_rates(monkeypatch):
    from gpuscope.tui.memory.views import SummaryView

    monkeypatch.setattr(SummaryView, "every_seconds", 0.0)
    app, source = asked()
    async with app.run_test(size=(120, 60)) as pilot:
        await until(pilot, "used (= nvidia-smi)")
        await pilot.press("c")
        screen = await until(pilot, "ALLOC/S", "GiB/s")
        assert len(source.asked) >= 2
        assert "/s" in line_with(screen, "│ allocated")


@in_loop
async def test_a_frozen_screen_asks_nothing(monkeypatch):
    from gpuscope.tui.memory.views import SummaryView

    monkeypatch.setattr(SummaryView, "every_seconds", 0.0)
    app, source = asked()
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "used (= nvidia-smi)")
        await pilot.press("c")
        await until(pilot, "large pool")
        await pilot.press("space")
        await until(pilot, "PAUSED")
        before = len(source.asked)
        for _ in range(5):
            app.main.refresh_all()
            await pilot.pause(0.01)
        assert len(source.asked) <= before + 1, "one may have been under way"


@in_loop
async def test_the_summary_can_be_copied_as_text(monkeypatch, tmp_path):
    from gpuscope.tui.terminal import copying

    written: list[str] = []
    monkeypatch.setattr(copying, "write", lambda content: written.append(content) or tmp_path / "x")
    app, _ = asked()
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, "used (= nvidia-smi)")
        await pilot.press("c")
        await until(pilot, "large pool")
        await pilot.press("y")
        await until(pilot, "copied, and written to")
        assert "allocated/s" in written[0]
        assert "syncs of all streams" not in written[0]
        assert "cudaFree calls" in written[0], "all of it, not only what is on the screen"
        await pilot.press("w", "y")
        await pilot.pause(0.05)
        assert "Where the bytes are" in written[-1]


@in_loop
async def test_a_trainer_that_cannot_answer_says_why():
    app, _ = asked(statistics=SourceError("unsupported", "this probe is too old to tell"))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "used (= nvidia-smi)")
        await pilot.press("c")
        await until(pilot, "this probe is too old to tell")


@in_loop
async def test_w_gives_the_timeline_the_whole_tab_and_enter_opens_the_page_of_the_gpu():
    app = make_app(jobs.ranks(1, 20.0), "memory")
    async with app.run_test(size=(80, 24)) as pilot:
        shown = await until(pilot, "used (= nvidia-smi)", "driver reserve", absent="Timeline, GiB")
        assert "%" not in line_with(shown, "driver reserve").partition("driver reserve")[2]
        await pilot.press("w")
        await until(pilot, "Timeline, GiB", "now", absent="used (= nvidia-smi)")
        await pilot.press("w")
        await until(pilot, "used (= nvidia-smi)", absent="Timeline, GiB")
        await pilot.press("enter")
        await until(pilot, "GPU 0  NVIDIA H200", "GPU-Util")


@in_loop
async def test_on_a_cpu_enter_opens_the_job():
    app = make_app(views.cpu_only(), "memory")
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, "gpuscope lab")
        await pilot.press("enter")
        await until(pilot, "Job  gpuscope lab", "Findings")


@in_loop
async def test_on_a_cpu_a_category_has_one_colour_in_the_waterfall_and_in_the_timeline():
    app = make_app(views.cpu_only(), "memory")
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, "optimizer state")
        trainer = app.session.host.trainers[0]
        allocator = trainer.allocators[0]
        layers, _ = process_layers(app.session.history, trainer.process, allocator, 60.0)
        drawn = {layer.label: layer.token for layer in layers}
        rows = {row.name: row.token for row in on_cpu(allocator)}
        assert rows.items() <= drawn.items()
        assert drawn.keys() - rows.keys() == {"rest of the process"}


def test_on_a_cpu_there_is_no_rest_of_a_process_whose_parts_are_not_all_known():
    frames = views.cpu_only()
    host = views.host_of(frames)
    (known,) = host.trainers[0].allocators
    assert [row.name for row in on_cpu(known, 9e9)][-1] == "rest of the process"
    for sample in frames:
        if isinstance(sample, f.Sample) and sample.a:
            sample.a[0][views.PLACES["a"]["gradient_bytes"]] = None
    (partly,) = views.host_of(frames).trainers[0].allocators
    assert "rest of the process" not in [row.name for row in on_cpu(partly, 9e9)]


def test_on_a_cpu_the_change_of_the_resident_memory_is_that_between_two_readings():
    """It grows by 1 MiB from one reading to the next, two a second; the last one is of its end."""
    frames = views.cpu_only(130.0)
    samples = [one for one in frames if isinstance(one, f.Sample) and one.p]
    place = views.PLACES["p"]["rss_bytes"]
    for number, sample in enumerate(samples):
        sample.p[0][place] = (1000 + number) * MIB
    samples[-1].p[0][place] = 0
    host, history = views.seen(frames)
    lines = [plain(line) for line in rss_lines(host.processes[0], history, 120)]
    assert " ".join(lines[0].split()) == "change of RSS +120 MiB in 1 min"
    assert " ".join(lines[1].split()) == "highest RSS 1.23 GiB in the last 2 min 09 s"
    assert rss_of(host, host.trainers[0]) is None, "nothing is told of what was given back"


@in_loop
async def test_on_a_cpu_a_wide_tab_says_how_full_the_host_is_and_what_happened():
    app = make_app(views.cpu_only(), "memory")
    async with app.run_test(size=(200, 60)) as pilot:
        screen = await until(pilot, "What happened", "started", "20.0 GiB of 32.0 GiB free")
        assert "Memory of the process" not in screen, "the line of the process says it"
        assert "rest of the process" in screen, "the timeline has all of its resident memory"
        readings = "CPU, ", "host memory", "load average, 1 min"  # two alone would be a desert
        screen = await until(pilot, "The host over", *readings)
        left = [line[:100] for line in screen.splitlines()]
        empty = [not line.strip(" │") for line in left]
        runs = "".join("x" if one else " " for one in empty).split()
        assert max(map(len, runs), default=0) <= 12, "even where no module is known"


@in_loop
async def test_on_a_cpu_the_summary_is_a_sentence_and_nothing_is_asked():
    app, source = asked(views.cpu_only(5.0))
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, "On a CPU torch keeps no allocator statistics")
        await pilot.press("c")
        await until(pilot, "no allocator statistics on a CPU")
        assert source.asked == []


@in_loop
async def test_without_a_probe_the_tables_say_how_to_get_one():
    app, source = asked(views.vacant(5.0))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "used (= nvidia-smi)")
        for key in "cm":
            await pilot.press(key)
            await until(pilot, "no probe here. Next run: gpuscope run")
        assert source.asked == []


# ── modules ───────────────────────────────────────────────────────────────────────────────────────


@in_loop
async def test_the_tree_of_modules_opens_closes_and_sorts():
    app, source = asked()
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "used (= nvidia-smi)")
        await pilot.press("m")
        screen = await until(pilot, "Modules, largest first", "from watch(model)", "▸ blocks")
        assert source.asked == [("modules", {"trainer": 316})]
        assert "19.6 GiB" in line_with(screen, "▾ GPT")
        assert "CLASS" in screen
        await pilot.press("j", "enter")
        await until(pilot, "▾ blocks", "▸ 23")
        await pilot.press("enter")
        await until(pilot, "▸ blocks", absent="▸ 23")
        await pilot.press("l")
        await until(pilot, "▸ 23")
        await pilot.press("j", "h")
        await until(pilot, "▸ blocks", absent="▸ 23")
        await pilot.press("x", "x")
        await until(pilot, "▾ 0", "attn", "mlp")
        await pilot.press("X", "X", "X")
        await until(pilot, "▸ GPT", absent="wte")
        await pilot.press("x", "o")
        screen = await until(pilot, "Modules, in the model's order", "wte", "lm_head")
        assert screen.index("wte") < screen.index("blocks") < screen.index("lm_head")
        await pilot.press("escape")
        await until(pilot, "Where the bytes are", absent="lm_head")


@in_loop
async def test_keys_of_the_tree_say_where_they_act():
    app, _ = asked()
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "used (= nvidia-smi)")
        await pilot.press("x")
        await until(pilot, "that key acts on the tree of modules: m")


@in_loop
async def test_modules_found_without_a_model_say_so():
    app, _ = asked(modules=lambda: {**inside.modules("optimizers only"), "complete": False})
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "used (= nvidia-smi)")
        await pilot.press("m")
        await until(pilot, "from the optimizers; modules unknown", "deeper levels folded")


@in_loop
async def test_another_device_is_another_trainer():
    app, source = asked(views.training(4.0))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "rank 3 (pid 48216)")  # that with the least headroom
        await pilot.press("n")
        await until(pilot, "GPU 4 H200 · train.py rank 4 (pid 48217)")
        host = app.session.host
        assert host is not None
        chosen = app.main.pane.chosen(host)
        assert chosen is not None
        assert chosen.definition.pid == 48217, "what an action asks is the trainer on the screen"
        await pilot.press("c")
        await until(pilot, "cuda:4")
        assert source.asked[-1] == ("statistics", {"device": 4, "trainer": 317})
        await pilot.press("N")
        await until(pilot, "rank 3 (pid 48216)", "cuda:3")


@in_loop
async def test_the_numbers_go_on_while_a_table_is_shown():
    app, _ = asked()
    async with app.run_test(size=(200, 60)) as pilot:
        await until(pilot, "used (= nvidia-smi)")
        await pilot.press("c")
        await until(pilot, "large pool", "49.9 GiB", "Timeline")
        feed(app, f.Sample(900, int((views.END + 0.5) * 1e9), a=[inside.counters(60.0)]))
        await until(pilot, "60.2 GiB")


# ── looks ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("size", SIZES, ids=lambda s: f"{s[0]}x{s[1]}")
@pytest.mark.parametrize(
    ("view", "keys", "wanted"),
    [
        ("crowded", "", "used (= nvidia-smi)"),
        ("summary", "c", "large pool"),
        ("modules", "mx", "attn"),
    ],
)
@in_loop
async def test_the_memory_tab_looks_as_it_did(view, keys, wanted, size):
    app, _ = asked(inside.crowded(60.0))
    async with app.run_test(size=size) as pilot:
        await until(pilot, "train.py")
        for key in keys:
            await pilot.press(key)
            await pilot.pause(0.1)
        if view == "modules":
            await pilot.press("x")
        await until(pilot, wanted)
        await check(pilot, f"memory-{view}")
        for row in grid(app):
            assert sum(cell_len(char) for char, _ in row) == size[0]


@in_loop
async def test_without_colour_marks_and_layers_are_told_by_their_glyphs(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    app, _ = asked(inside.crowded(60.0))
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await until(pilot, "│eval", "▲", "△", "↻")
        assert "▒" in screen
        assert "░" in screen
        assert "━" in screen
        await check(pilot, "memory-mono")


@in_loop
async def test_in_light_nothing_is_lost():
    app, _ = asked(inside.crowded(60.0))
    app.session.state.theme = "light"
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "│eval", "OOM")
        assert "used (= nvidia-smi)" in text(app)


@in_loop
async def test_a_store_without_a_source_shows_tables_that_wait():
    app = make_app(inside.crowded(5.0), "memory")
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "used (= nvidia-smi)")
        await pilot.press("c")
        await until(pilot, "asking the trainer")


def test_how_much_larger_a_batch_may_be_is_no_finer_than_it_is_known():
    assert room_text(2.04, 2.46) == "room for a micro-batch 2.0 to 2.5 times as large"
    assert "47.7 to 151 times" in room_text(47.7, 151.4)
    assert "over 1,000 times" in room_text(133_588.1, 135_943.0)


def test_the_help_says_why_the_headroom_is_more_than_what_is_free():
    said = dict(COLUMNS)["HEADROOM"]
    assert "free" in said
    assert "torch's cache gives back" in said
