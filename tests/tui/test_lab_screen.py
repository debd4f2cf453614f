"""The lab's tab has switches, runs and their comparison.

The tests see what speaks against the switches, starting, repeating, and pitfalls.
"""

from __future__ import annotations

import asyncio
import importlib.util
import re
import sys
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from gpuscope.lab.config import LabConfig
from gpuscope.lab.ledger import RunLedger
from gpuscope.lab.metrics import RunEnded, RunFailure
from gpuscope.lab.sweep import cell_key, seeded
from gpuscope.lab.toggles import STEPS, TOGGLES
from gpuscope.model.cuda_devices import visible_devices
from gpuscope.predict.errors import Estimate
from gpuscope.tui.app.app import GpuscopeApp
from gpuscope.tui.lab import rows as lab_rows
from gpuscope.tui.lab.pair import ComparedRuns
from gpuscope.tui.lab.run_facts import fact_lines, facts_of, named_events
from gpuscope.tui.runs.choices import SWITCHES, DeviceChoice, choices, does_nothing, next_value
from gpuscope.tui.runs.demo import Demo
from gpuscope.tui.runs.devices import facts, family, occupants
from gpuscope.tui.runs.repeats import order
from gpuscope.tui.runs.run import RunView
from gpuscope.tui.runs.runs import UNDER_WAY, LabRuns
from gpuscope.wire import frames as f
from tests.fakes import views
from tests.fakes.waiting import alive, until_true
from tests.predict.hand_made import traced
from tests.recordings import REDACTED
from tests.tui import lab_data
from tests.tui.pilot import feed, in_loop, make_app, until
from tests.tui.snapshots import SIZES, check, text

CPU, CUDA = DeviceChoice("cpu"), DeviceChoice("cuda")
GIB = 1 << 30
RECORDING = REDACTED / "h200-lab.gsr"
"""Of two trainings on a real H200."""
needs_torch = pytest.mark.skipif(
    not importlib.util.find_spec("torch"), reason="needs torch to train"
)


@pytest.fixture(autouse=True)
def path(monkeypatch, tmp_path):
    """The ledger of this test."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path / "lab.sqlite"


@pytest.fixture
def launched(monkeypatch) -> list[LabConfig]:
    """What would have been started: no worker is."""
    out: list[LabConfig] = []

    async def launch(self: LabRuns, config: LabConfig) -> None:
        out.append(config)

    monkeypatch.setattr(LabRuns, "launch", launch)
    return out


class Worker:
    """Stands for ``LabRun``: a worker that said what it is told to say."""

    def __init__(self, config: LabConfig, state: str = "running", pid: int = 7021) -> None:
        self.config, self.state, self.pid = config, state, pid
        self.failure: RunFailure | None = None
        self.summary: dict[str, Any] | None = None
        self.lines_printed, self.stderr = 0, list[str]()

    def let_go(self) -> None:
        """Nobody is there."""


def running(app: GpuscopeApp, config: LabConfig, **more: Any) -> LabRuns:
    """A run in progress in ``app``, as far as the screen can tell."""
    runs = app.session.labs
    runs._worker = Worker(config)  # type: ignore[assignment]
    runs.current = RunView(config)
    runs._record(lab_data.started(config, **more))
    return runs


def end(runs: LabRuns, document: dict[str, Any]) -> None:
    worker: Any = runs._worker
    worker.state, worker.summary, worker.pid = "stopped", document, None
    runs._record(RunEnded(document))
    runs._became(worker)


# ── switches ──────────────────────────────────────────────────────────────────────────────────────


def test_every_toggle_is_a_switch_and_walks_through_its_values_and_back():
    assert set(SWITCHES) == {*TOGGLES, STEPS}
    config = LabConfig()
    for toggle in SWITCHES:
        start = getattr(config, toggle.name)
        value, seen = start, []
        for _ in choices(toggle, start):
            seen.append(value)
            config = config.changed(toggle.name, value)  # raises for one it cannot have
            value = next_value(toggle, value, 1)
        assert value == start
        assert len({repr(one) for one in seen}) == len(seen), toggle.name
        assert next_value(toggle, next_value(toggle, start, 1), -1) == start
        config = config.changed(toggle.name, start)
    assert choices(TOGGLES[5], 24) == (None, 1, 2, 4, 8, 16, 24, 32, 64, 128, 256, 512, 1024)


def test_what_does_nothing_says_why():
    plain = does_nothing(LabConfig(), CPU)
    assert plain["tf32"] == "no effect: for CUDA only"
    assert "loader synthetic" in plain["workers"]
    assert "parallel none" in plain["nproc"]
    busy = LabConfig(loader="workers", compile="default", parallel="fsdp", pin_memory=True)
    assert does_nothing(busy, CUDA) == {}
    assert (
        "pinned"
        in does_nothing(LabConfig(loader="workers", non_blocking=True), CUDA)["non_blocking"]
    )
    assert "amp" not in plain, "bf16 and fp16 are real on a CPU"


@pytest.mark.slow
@in_loop
async def test_all_switches_can_be_reached_on_the_smallest_terminal_and_the_cursor_is_always_in_sight():  # noqa: E501
    app = make_app(views.cpu_only(), "lab")
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, "Demo trainer")
        for toggle in SWITCHES:
            screen = text(app)
            name = toggle.name.replace("_", " ")
            assert any(f"▸ {name} " in line for line in screen.splitlines()), (
                f"{name} is not in\n{screen}"
            )
            assert f" {name}  " in screen.splitlines()[-4], "the note below is about it"
            await pilot.press("j")
            await pilot.pause()
        for _ in SWITCHES:
            await pilot.press("k")
        await until(pilot, "▸ model", "  device  ")


@in_loop
async def test_switches_turn_by_key_and_by_mouse_and_start_from_the_given_ones():
    app = make_app(views.cpu_only(), "lab", lab=LabConfig(amp="bf16", batch=24))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "Demo trainer", "bf16")
        config = lambda: app.session.labs.config  # noqa: E731
        assert config().batch == 24
        await pilot.press("right")
        assert config().model == "mlp-small"
        await pilot.press("backspace")
        assert config().model == "gpt"
        await pilot.press("j", "j", "j", "l")
        assert config().amp == "fp16"
        await pilot.press("h", "h")
        assert config().amp == "off"
        row = next(y for y, line in enumerate(text(app).splitlines()) if "   accumulate" in line)
        line = text(app).splitlines()[row]
        value = line.index(" 1 ") + 1
        await pilot.click(offset=(value, row))
        assert config().accumulate == 2
        await pilot.click(offset=(value - 2, row))
        assert config().accumulate == 1
        await pilot.click(offset=(5, row))
        assert config().accumulate == 1, "a click on the name only chooses it"
        await pilot.press("enter")
        await until(pilot, "a whole number from 1 to 4,096")
        await pilot.press("tab", *"5000", "enter")
        await until(pilot, "--accumulate cannot be '5000'")
        await pilot.press("backspace", "enter")
        await until(pilot, "◂ 500 ▸")
        assert config().accumulate == 500


@in_loop
async def test_a_click_in_the_footer_does_what_the_key_does():
    app = make_app(views.cpu_only(), "lab")
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "Demo trainer")
        line = text(app).splitlines()[-1]
        await pilot.click(offset=(line.index("Pitfalls"), 39))
        await until(pilot, "WHAT IS WRONG")
        await pilot.press("q")
        await pilot.click(offset=(line.index("?"), 39))
        await until(pilot, "╭─ Help", "? Close")


# ── what speaks against them ──────────────────────────────────────────────────────────────────────


@in_loop
async def test_a_refused_combination_cannot_be_started_and_the_nearest_is_a_key_away(launched):
    app = make_app(views.vacant(), "lab", lab=LabConfig(parallel="ddp", nproc=16))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "cannot start: 16 processes on 8 GPUs cannot be.", "n: nproc 8")
        await pilot.press("r")
        await until(pilot, "not started: 16 processes")
        assert launched == []
        await pilot.press("n")
        await until(pilot, "Demo trainer", absent="cannot start")
        assert app.session.labs.config == LabConfig(parallel="ddp", nproc=8)


@in_loop
async def test_a_warning_is_shown_before_the_start_and_does_not_keep_from_it(launched):
    app = make_app(views.cpu_only(), "lab", lab=LabConfig(amp="fp16"))
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, "fp16 autocast on a CPU is slow.", "n: amp bf16")
        await pilot.press("r")
        await pilot.pause()
        assert launched == [LabConfig(amp="fp16")]


@in_loop
async def test_a_device_that_another_job_uses_is_refused_unless_forced(launched):
    app = make_app(views.training(4.0), "lab")
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, "Demo trainer")
        await pilot.press("r")
        screen = await until(pilot, "GPU in use")
        row = next(line for line in screen.splitlines() if "48213" in line)
        for part in ("ada", "69.7 GiB", "python train.py --cfg 7b"):
            assert part in row
        assert "51120" not in screen, "one process takes one GPU"
        await pilot.press("escape")
        await until(pilot, "not started: GPU 0: pid 48213 (ada)")
        assert launched == []
        await pilot.press("r", "exclamation_mark")
        await pilot.pause()
        assert launched == [LabConfig()]


def test_a_run_takes_the_devices_it_has_processes_for_and_our_own_workers_are_no_strangers():
    host = views.host_of(views.training(3.0))
    who = lambda config, own=(): {(o.index, o.pid) for o in occupants(config, host, CUDA, own)}  # noqa: E731
    assert who(LabConfig()) == {(0, 48213)}
    assert who(LabConfig(parallel="ddp", nproc=3)) == {
        (0, 48213),
        (1, 48214),
        (2, 48215),
        (2, 51120),
    }
    assert len(who(LabConfig(parallel="fsdp"))) == 8
    assert who(LabConfig(), own=family(host, 48213)) == set()
    assert occupants(LabConfig(), host, CPU) == []


def test_hidden_devices_are_not_taken_and_other_numbers_mean_others():
    host = views.host_of(views.training(3.0))

    def index(value):
        return [
            d.definition.index
            for d in visible_devices(host.devices, {"CUDA_VISIBLE_DEVICES": value})
        ]

    assert index("7,2") == [7, 2]
    assert index("7,99,2") == [7]
    assert index("GPU-00000004") == [4]
    assert index("") == []
    assert [d.definition.index for d in visible_devices(host.devices, {})] == list(range(8))


def test_memory_in_use_by_nobody_who_is_seen_is_somebodys():
    host = views.host_of(views.vacant(container="docker", named=False))
    found = occupants(LabConfig(), host, CUDA)
    assert [(o.index, o.used_bytes) for o in found] == [(0, 40 * GIB)]
    assert occupants(LabConfig(), host, CUDA, alone=False) == []


def test_what_is_known_of_the_machine_comes_from_the_picture():
    host = views.store_of(views.vacant()).view().host
    known = facts(LabConfig(), host, CUDA, None, None)
    assert (known.gpus, known.gpu_name, known.capability) == (8, "NVIDIA H200", (9, 0))
    assert known.free_bytes is not None
    assert len(known.free_bytes) == 8
    assert known.torch_version is None
    cpu = facts(LabConfig(), views.store_of(views.cpu_only()).view().host, CPU, None, None)
    assert (cpu.device_type, cpu.gpus, cpu.free_bytes) == ("cpu", 0, [20 * GIB])


# ── runs ──────────────────────────────────────────────────────────────────────────────────────────


@in_loop
async def test_two_runs_of_the_ledger_stand_side_by_side_with_what_differs(path):
    plain, bf16 = LabConfig(device="cpu"), LabConfig(device="cpu", amp="bf16", checkpoint=True)
    lab_data.ledger(path, lab_data.document(plain, 400.0), lab_data.document(bf16, 800.0))
    app = make_app(views.cpu_only(), "lab")
    async with app.run_test(size=(240, 60)) as pilot:
        screen = await until(pilot, "A #1 · B #2", "≠ amp off → bf16   checkpoint off → on")
        row = next(line for line in screen.splitlines() if "step, median" in line)
        for part in (
            "20.0 ms",
            "10.0 ms",
            "0.50×",
            "0.48 – 0.52",
            "● better",
            "steps within one run",
        ):
            assert part in row, row
        allocated = next(line for line in screen.splitlines() if "peak allocated" in line)
        assert "no allocator here" in allocated, "unknown is a reason, not 0"
        assert "–" in allocated
        assert "gpt-tiny · amp bf16 · checkpoint" in screen
        assert "loss at 800" in screen
        await pilot.resize_terminal(120, 40)
        await until(pilot, "│ loss at 800 ")
        await pilot.press("tab", "end", "A")  # the newest one becomes A
        await until(pilot, "A #2 · B #1", "≠ amp bf16 → off")


@in_loop
async def test_a_large_terminal_has_comparison_curves_and_the_chosen_run_at_once(path):
    plain, bf16 = LabConfig(device="cpu"), LabConfig(device="cpu", amp="bf16")
    lab_data.ledger(path, lab_data.document(plain, 400.0), lab_data.document(bf16, 800.0))
    app = make_app(views.cpu_only(), "lab")
    async with app.run_test(size=(200, 60)) as pilot:
        screen = await until(pilot, "A #1 · B #2", "Loss over samples", "Loss over seconds")
        lines = screen.splitlines()
        top = next(line for line in lines if "A #1 · B #2" in line)
        assert "Loss over samples" in top, "the curves stand beside the comparison"
        head = next(line for line in lines if "SAMPLES/S" in line)
        for column in ("STEP TIME", "P95", "INPUT WAIT", "WARM-UP", "LAST LOSS", "STEPS"):
            assert column in head
        row = next(line for line in lines if "▸ A  #1" in line)
        assert [part in row for part in ("400", "20.0 ms", "24.0 ms", "200 µs", "400 ms")] == [
            True
        ] * 5, row
        assert "─ Run #1 ─" in screen, "the run under the cursor"
        assert "no allocator here" in screen, "unknown is a reason, not 0"
        await pilot.press("tab", "down")
        screen = await until(pilot, "─ Run #2 ─", "--amp bf16")
        await pilot.press("v")
        await until(pilot, "comparison, curves and runs are all on the screen")
        await pilot.resize_terminal(120, 40)
        await until(pilot, "A #1 · B #2", absent="Run #2 ─")
        assert "Loss over seconds" not in text(app)


@in_loop
async def test_many_repeats_are_one_row_and_their_interval_is_theirs(path):
    book = RunLedger(path)
    for repeat, drift in enumerate((1.0, 1.02, 0.97)):
        for cell, config, pace in (("A", LabConfig(), 100.0), ("B", LabConfig(amp="bf16"), 150.0)):
            book.add(lab_data.document(config, pace * drift), group="g", repeat=repeat, cell=cell)
    app = make_app(views.cpu_only(), "lab")
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await until(pilot, "#6 ×3", "#5 ×3")
        assert "1.50×" in screen
        assert "1.500 – 1.500" in screen, "the drift meets both alike"
        assert "95 % over 3 interleaved repeats" in screen
        assert "A #5 ×3 · B #6 ×3" in screen


@in_loop
async def test_the_repeats_of_a_sweep_are_one_row_though_each_has_a_seed_of_its_own(path):
    book = RunLedger(path)
    for repeat, drift in enumerate((1.0, 1.02, 0.97)):
        for amp, pace in (("off", 100.0), ("bf16", 150.0)):
            cell = LabConfig(device="cpu", amp=amp)
            made = lab_data.document(seeded(cell, repeat), pace * drift)
            key = {"group": "sweep-1", "repeat": repeat, "cell": cell_key(cell)}
            book.add(made, source="sweep", **key)
    app = make_app(views.cpu_only(), "lab")
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await until(pilot, "#6 ×3", "#5 ×3", "mean of N runs, ± 95 %")
        assert screen.count(" ×3 ") == 4, "two rows, and the title of the comparison"
        # of 150, 153 and 145.5 the t interval over the logarithms is 6.3 % to each side
        assert "149 ±6 %" in screen
        assert "gpt-tiny · batch 8 · seeds 0-2" in screen
        assert "95 % over 3 interleaved repeats" in screen
        assert "A #5 ×3 · B #6 ×3" in screen
        await pilot.press("tab", "enter")
        shown = await until(pilot, "Run #1 and 2 repeats", "SEED")
        singles = re.findall(r"│ #(\d) +(\d) +(\d+) ", shown)
        assert singles == [("1", "0", "100"), ("3", "1", "102"), ("5", "2", "97")]
        assert re.search(r"│ mean +99.6 ", shown)
        assert re.search(r"│ ± 95 % +±6 % ", shown)


def test_a_repeat_is_never_compared_with_a_repeat_of_the_same_setting(path):
    book, cell = RunLedger(path), LabConfig(device="cpu")
    key = {"group": "sweep-1", "cell": cell_key(cell)}
    for repeat in range(2):
        book.add(lab_data.document(seeded(cell, repeat), 100.0), repeat=repeat, **key)
    pair = ComparedRuns()
    pair.follow(book.entries(), None)
    assert not pair.complete
    other = LabConfig(device="cpu", seed=1)  # outside the sweep: somebody's own second seed
    book.add(lab_data.document(other, 100.0))
    pair.follow(book.entries(), None)
    assert pair.complete


@in_loop
async def test_a_run_of_the_ledger_opens_and_gives_its_switches(path):
    events = {
        "mode": "default",
        "fullgraph": False,
        "first_step_seconds": 21.0,
        "graphs": 3,
        "graph_breaks": [{"where": "train.py:7", "reason": "call to print", "count": 2}],
        "recompiles": [{"function": "forward", "reason": "size mismatch at index 0", "count": 1}],
    }
    config = LabConfig(device="cpu", compile="default")
    lab_data.ledger(path, lab_data.document(config, 400.0, compile=events))
    app = make_app(views.cpu_only(), "lab")
    async with app.run_test(size=(120, 60)) as pilot:
        await until(pilot, "#1")
        await pilot.press("tab", "enter")
        await until(
            pilot,
            "break ×2 train.py:7: call to print",
            "recompile forward: size mismatch at index 0",
        )
        await pilot.press("enter")
        await pilot.pause()
        assert app.session.labs.config.compile == "default"


@pytest.mark.slow
@in_loop
async def test_a_recording_of_a_trainer_stands_beside_a_run(path):
    lab_data.ledger(
        path, lab_data.document(LabConfig(device="cuda"), 400.0, device="cuda", peak=40.0 * GIB)
    )
    app = make_app(views.vacant(), "lab")
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "#1")
        await pilot.press("o", *"/nowhere.gsr", "enter")
        await until(pilot, "▲ ", "nowhere.gsr")
        for _ in "/nowhere.gsr":
            await pilot.press("backspace")
        await pilot.press(*str(RECORDING), "enter")
        await until(pilot, "script-1", "script-2", "STEPS")
        await pilot.press("down", "enter")
        screen = await until(
            pilot, "A #1 · B ~1", "the settings of one are unknown", "Loss over steps"
        )
        assert "peak allocated" in screen


@in_loop
async def test_a_ledger_that_is_none_is_said_and_runs_are_kept_meanwhile(path):
    path.write_bytes(b"this is no database at all" * 200)
    app = make_app(views.cpu_only(), "lab")
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "is not a gpuscope ledger")
        runs = running(app, LabConfig(device="cpu"))
        end(runs, lab_data.document(LabConfig(device="cpu"), 400.0))
        await runs.filed()
        await until(pilot, "~1", "400")


@in_loop
async def test_what_others_add_to_the_ledger_is_there_at_the_next_visit(path):
    app = make_app(views.cpu_only(), "lab")
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "No run yet.")
        lab_data.ledger(
            path, lab_data.document(LabConfig(), 400.0), source="sweep", group="s", cell="1"
        )
        await pilot.press("1", "5")
        await until(pilot, "#1 ", "400")


@in_loop
async def test_a_filter_keeps_the_runs_that_contain_it(path):
    lab_data.ledger(
        path, lab_data.document(LabConfig(amp="bf16"), 400.0), lab_data.document(LabConfig(), 300.0)
    )
    app = make_app(views.cpu_only(), "lab")
    async with app.run_test(size=(200, 60)) as pilot:
        await until(pilot, "  #1", "  #2")
        await pilot.press("slash", *"bf16", "enter")
        await until(pilot, "  #1", absent="  #2 ")


@in_loop
async def test_a_worker_that_reports_often_is_drawn_about_twice_a_second(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr("gpuscope.tui.runs.runs.time.monotonic", lambda: clock[0])
    drawn: list[float] = []
    runs = LabRuns(LabConfig(), lambda: drawn.append(clock[0]))
    runs.current = RunView(runs.config)
    runs._record(lab_data.started(runs.config))
    for n in range(1, 51):  # ten seconds at five reports a second
        clock[0] = 100 + n / 5
        runs._record(lab_data.step(n))
    assert 15 <= len(drawn) <= 26
    assert runs.current.step == 50, "a report that is not drawn is kept all the same"


@in_loop
async def test_the_axis_of_a_growing_curve_stays_while_the_curve_grows_into_it(path):
    config = LabConfig(steps=5000)
    app = make_app(views.vacant(), "lab", lab=config)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "Demo trainer")
        runs = running(app, config)
        axes = set()
        for n in range(1000, 1100, 5):
            runs._record(lab_data.step(n, 1.0 + 1 / n))
            app.main.refresh_all()
            screen = await until(pilot, f"{n:,}/5,000")
            lines = [line[-76:] for line in screen.splitlines()]
            # the curve stands on the axis, whose labels are below it
            axes.update(
                (re.sub("[─┬▀]", "", line), labels)
                for line, labels in pairwise(lines)
                if "0└" in line
            )
        assert 1 <= len(axes) <= 3, axes


@in_loop
async def test_what_a_run_does_now_is_shown_and_ends_in_the_ledger(path):
    config = LabConfig(
        device="cuda", amp="fp16", accumulate=4, steps=500, validate="no-grad", loader="workers"
    )
    app = make_app(views.vacant(), "lab", lab=config)
    app.session.predictions.tracer = traced  # else a child with torch predicts for the ledger
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "Demo trainer")
        devices = [
            {"rank": 0, "device": "cuda:0", "uuid": "GPU-00000000-0000-0000-0000-000000000000"}
        ]
        runs = running(app, config, device="cuda", devices=devices)
        runs._record(
            lab_data.step(
                40, 1.25, 310.0, scale=65536.0, skipped=2, input_seconds=0.004, validation_loss=1.5
            )
        )
        app.main.refresh_all()
        screen = await until(pilot, "40/500")
        for name, value in (
            ("loss", "1.2500"),
            ("samples/s", "310"),
            ("per step", "20.0 ms"),
            ("batch", "32 = 4×8"),
            ("scale", "65,536"),
            ("skipped", "2"),
            ("val. loss", "1.5000"),
            ("tensor", "–"),
            ("input wait", "4.00 ms"),
        ):
            assert any(f" {name} " in line and value in line for line in screen.splitlines()), (
                name,
                screen,
            )
        await pilot.press("j", "j", "j", "l")
        await until(pilot, "r restarts with these settings")
        end(runs, lab_data.document(config, 310.0, device="cuda"))
        await runs.filed()
        await until(pilot, "Run #1 · stopped")
        entry = RunLedger(path).get(1)
        assert entry is not None
        assert entry.document["tensor_active_percent"] is None
        reason = next(
            u["reason"] for u in entry.document["unknown"] if u["path"] == "tensor_active_percent"
        )
        assert "whole GPU, and pid 51120" in reason, "another job's work would be counted as ours"


def test_the_tensor_share_is_the_mean_of_the_steady_steps_and_leaves_the_first_reading_out():
    config = LabConfig(device="cuda")
    run = RunView(config)
    uuid = "GPU-00000007-0000-0000-0000-000000000000"
    run.begin(
        lab_data.started(
            config, "cuda", devices=[{"rank": 0, "device": "cuda:0", "uuid": uuid.upper()}]
        )
    )
    frames = views.training(1.0)
    store = views.store_of(frames)
    run.heard(lab_data.step(10))
    for q, share in enumerate((90.0, 40.0, 60.0)):
        sample = f.Sample(900 + q, int((views.END + 1 + q) * 1e9))
        sample.g = [views.device_row(7, 0.0, 0.0, tensor_active_percent=share)]
        store.apply(views.SOURCE, sample, views.END + 1 + q)
        for _ in range(3):  # reports come more often than readings
            run.see(store.view().host, 1, set())
    assert run.tensor_percent == 50.0
    assert (
        run.finish(lab_data.document(config, 5.0, device="cuda"))["tensor_active_percent"] == 50.0
    )


@pytest.mark.parametrize("state", UNDER_WAY)
def test_the_state_of_a_run_that_made_no_step_has_room_in_its_column(state):
    row = lab_rows.live_row(RunView(LabConfig()), state, None, False)
    ((word, _),) = row.cells["age"]
    (column,) = (one for one in lab_rows.columns(120, [row]) if one.key == "age")
    assert word in ("starts", "runs", "stops")
    assert len(word) <= column.width


def test_compiling_is_counted_in_seconds_then_by_what_it_made():
    config = LabConfig(compile="default", device="cpu")
    run = RunView(config)
    run.begin(lab_data.started(config))
    shown = {name: value for name, value, _ in facts_of(run)}
    assert shown["compile"].startswith("compiling… ")
    assert shown["last loss"] == "–"
    run.heard(lab_data.step(1, graphs=3, graph_breaks=2, recompiles=0))
    shown = {name: value for name, value, _ in facts_of(run)}
    assert shown["compile"] == "3 graphs, 2 breaks"
    assert named_events({"compile": None}) == []
    for columns, cells in ((1, 36), (2, 44)):
        for line in fact_lines(facts_of(run), cells, columns):
            assert len("".join(text for text, _ in line)) <= cells


@pytest.mark.parametrize(
    ("figure", "said"),
    [
        (Estimate(4 * GIB, GIB // 10), "4.00 GiB ± 2 %"),
        (Estimate(4 * GIB, 9 * GIB, GIB // 2), "4.00 GiB (+9.00 -0.50 GiB)"),
    ],
)
def test_a_prediction_says_how_far_it_may_be_off_to_each_side(figure, said):
    run = RunView(LabConfig(device="cuda"))
    run.begin(lab_data.started(run.config, "cuda"))
    run.predicted = figure

    def told(peak: float) -> tuple[str, str]:
        run.heard(lab_data.step(9))
        run.peak_bytes = peak
        return next((value, token) for name, value, token in facts_of(run) if name == "predicted")

    run.peak_bytes = None
    assert next(value for name, value, _ in facts_of(run) if name == "predicted") == said
    assert told(figure.bytes) == (f"{said}, it is +0.0 %", "text")
    assert told(figure.high) == (
        f"{said}, it is {100 * figure.error_bytes / figure.bytes:+.1f} %",
        "text",
    )
    assert told(figure.low)[1] == "text"
    assert told(figure.high + 1e6)[1] == told(figure.low - 1e6)[1] == "warn"
    for across, cells in ((1, 36), (2, 38), (2, 76)):
        lines = [
            "".join(part for part, _ in line) for line in fact_lines(facts_of(run), cells, across)
        ]
        assert max(map(len, lines)) <= cells
        assert f"predicted {said}, it is" in " ".join(" ".join(lines).split())


# ── starting ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@needs_torch
@in_loop
async def test_a_real_run_on_the_cpu_from_the_key_to_the_ledger(path):
    app = make_app(views.cpu_only(), "lab", lab=LabConfig(model="mlp-tiny", device="cpu", steps=12))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "Demo trainer")
        await pilot.press("r")
        runs = app.session.labs
        async with asyncio.timeout(90):
            while runs.current is None or runs.current.entry is None:
                assert not runs.failure, runs.failure
                await asyncio.sleep(0.05)
        await until(pilot, "Run #1 · stopped", "12/12", "mlp-tiny · batch 32")
        entry = RunLedger(path).get(1)
        assert entry is not None
        assert entry.config is not None
        assert (entry.config.model, entry.document["steps"], entry.source) == (
            "mlp-tiny",
            12,
            "lab",
        )
        assert [point[0] for point in entry.document["loss_curve"]][-1] == 12 * 32


@in_loop
async def test_a_run_stopped_while_it_loads_says_so_and_leaves_a_row(path):
    app = make_app(views.cpu_only(), "lab")
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "Demo trainer")
        assert app.session.why_not("lab_stop") == "nothing runs in the Lab"
        runs = running(app, LabConfig())
        runs.current = RunView(LabConfig())  # its worker has not said anything yet
        runs._changed()
        await until(pilot, "loading torch", "x Stop")
        await pilot.press("x")
        end(runs, {})
        screen = await until(pilot, "stopped before its first step: nothing was measured", "○  –")
        assert "No run yet" not in screen
    assert not RunLedger(path).entries()


@in_loop
async def test_a_run_whose_worker_was_killed_is_kept_with_what_it_had_reported(path):
    app = make_app(views.cpu_only(), "lab")
    async with app.run_test(size=(120, 40)) as pilot:
        runs = running(app, LabConfig(model="mlp-small", device="cpu"))
        for number in (1, 2, 3):
            runs._record(lab_data.step(number, 3.0 - number / 2))
        runs._worker.state = "stopping"  # type: ignore[union-attr,misc]
        runs._changed()
        await until(pilot, "stops after the step in progress", "x ends it now")
        end(runs, {})
        await until(pilot, "#1", "▲")
    (entry,) = RunLedger(path).entries()
    assert entry.document["steps"] == 3
    assert entry.document["loss_curve"][-1][1] == entry.document["loss_last"] == 1.5
    assert "killed before it wrote down" in entry.failure


@pytest.mark.slow
@needs_torch
@in_loop
async def test_what_a_worker_says_last_belongs_to_its_own_run(path):
    runs = LabRuns(LabConfig(model="mlp-tiny", batch=2, device="cpu"), lambda: None)

    async def until_step(batch: int) -> RunView:
        async with asyncio.timeout(90):
            while (
                runs.current is None or runs.current.config.batch != batch or runs.current.step < 3
            ):
                assert not runs.failure, runs.failure
                await asyncio.sleep(0.02)
        return runs.current

    assert runs.start() == ""
    assert runs.start() == "busy"
    first = await until_step(2)
    runs.put("batch", 4)
    assert runs.dirty
    assert runs.start() == ""
    second = await until_step(4)
    assert first.summary is not None
    assert first.summary["config"]["batch"] == 2
    assert second.summary is None
    runs.stop()
    await until_true(lambda: second.entry is not None, 30)
    assert [e.config.batch for e in RunLedger(path).entries() if e.config] == [4, 2]


@pytest.mark.gpu
@in_loop
async def test_on_a_gpu_the_driver_s_figures_go_into_the_ledger(path):
    """On a GPU the driver's figures go into the ledger.

    A real agent is beside a real run: peak from torch, tensor share from the driver, and our own
    worker no stranger.
    """
    from gpuscope.config import Settings
    from gpuscope.tui.app.launch import local_source
    from gpuscope.tui.shell.session import Session

    config = LabConfig(device="cuda", model="gpt", amp="bf16")
    session = Session(
        make_source=lambda hz: local_source(hz, Settings()), lab=config, lab_autostart=True
    )
    app = GpuscopeApp(session, "lab")
    async with app.run_test(size=(120, 40)) as pilot:
        runs = session.labs
        async with asyncio.timeout(120):
            while runs.current is None or runs.current.tensor_percent is None:
                assert not runs.failure, runs.failure
                assert not runs.held, runs.held
                assert runs.refusal is None, runs.refusal
                await asyncio.sleep(0.1)
        await until(pilot, "Run · running", "tensor")
        assert runs.occupants() == []
        assert runs.start() == "", "a restart meets its own worker on the device"
        async with asyncio.timeout(120):
            while not (entries := RunLedger(path).entries()):
                await asyncio.sleep(0.1)
    document = entries[0].document
    assert document["peak_allocated_bytes"] > 1 << 28
    assert 0 < document["tensor_active_percent"] <= 100


@in_loop
async def test_a_start_that_nobody_watches_waits_for_the_host_and_takes_no_device_in_use(launched):
    app = make_app(views.training(3.0), "lab", lab=LabConfig(), lab_autostart=True)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "not started: GPU 0: pid 48213 (ada)")
        assert launched == []
    app = make_app(views.cpu_only(), "lab", lab=LabConfig(), lab_autostart=True)
    async with app.run_test(size=(120, 40)) as pilot:
        async with asyncio.timeout(10):
            while not launched:
                await pilot.pause(0.02)


@in_loop
async def test_a_start_waits_until_the_driver_has_said_which_devices_there_are(launched):
    """A real driver takes longer to answer than the first samples of its host take to come."""
    frames = views.vacant(3.0, named=False)
    defined = [frame for frame in frames if not isinstance(frame, f.Sample)]
    samples = [frame for frame in frames if isinstance(frame, f.Sample)]
    of_host = [f.Sample(samples[0].q, samples[0].m, h=samples[0].h)]
    of_devices = [*defined[2:], *samples[1:]]
    app = make_app([*defined[:2], *of_host], "lab", lab=LabConfig(device="cuda", model="gpt"))
    async with app.run_test(size=(120, 40)) as pilot:
        runs = app.session.labs
        assert app.session.host.sampled_seconds is not None
        runs.start_when_known()
        await pilot.pause(0.2)
        assert runs.refusal is None
        assert (launched, runs.held) == ([], [])
        feed(app, *of_devices)
        await until(pilot, "not started: GPU 0: a process that is not visible")


# ── repeats ───────────────────────────────────────────────────────────────────────────────────────


def test_turns_alternate_and_each_repeat_has_both():
    turns = order(3)
    assert "".join(turn.side for turn in turns) == "ABBAAB"
    assert [turn.repeat for turn in turns] == [0, 0, 1, 1, 2, 2]


def scripted(runs: LabRuns, fail_at: int = -1) -> list[LabConfig]:
    """Instead of workers: each run ends at once with a document of its own pace."""
    seen: list[LabConfig] = []

    async def launch(config: LabConfig) -> Any:
        seen.append(config)
        worker: Any = Worker(config)
        runs._worker, runs.current = worker, RunView(config)
        runs._record(lab_data.started(config))
        if len(seen) - 1 == fail_at:
            worker.failure, worker.state = (
                RunFailure("It ran out of memory.", "why", "next"),
                "failed",
            )
            runs._became(worker)
        else:
            end(
                runs,
                lab_data.document(
                    config,
                    200.0 if config.amp == "bf16" else 100.0 + len(seen),
                    steps=config.steps or 0,
                ),
            )

        async def wait() -> None:
            await asyncio.sleep(0)

        worker.wait = wait
        return worker

    runs.launch = launch  # type: ignore[method-assign]
    return seen


@in_loop
async def test_how_often_and_how_long_is_chosen_before_a_series_begins(path, monkeypatch):
    begun: list[Any] = []
    monkeypatch.setattr(LabRuns, "measure", lambda self, *given: begun.append(given))
    now = LabConfig(device="cpu", amp="bf16", batch=8)
    app = make_app(views.cpu_only(), "lab", lab=now)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, "No run yet.")
        await pilot.press("i")
        await until(pilot, "first mark a run as A")
    lab_data.ledger(path, lab_data.document(LabConfig(device="cpu"), 90.0))
    app = make_app(views.cpu_only(), "lab", lab=now)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, "#1")
        await pilot.press("i")
        await until(pilot, "Repeat A and B interleaved", "amp bf16", "10 runs, A B B A A B B A")
        await pilot.press("right", "up")
        screen = text(app).splitlines()
        row = next(y for y, line in enumerate(screen) if "Enter Begin" in line)
        await pilot.click(offset=(screen[row].index("→ More"), row))
        await pilot.click(offset=(screen[row].index("Enter Begin"), row))
        await pilot.pause()
    (given,) = begun
    assert [c.amp for c in given[:2]] == ["off", "bf16"]
    assert given[2:] == (10, 100)


@in_loop
async def test_the_runs_of_a_series_are_a_group_and_a_failure_ends_it(path):
    runs = LabRuns(LabConfig(), lambda: None)
    runs.book.open()
    seen = scripted(runs)
    a, b = LabConfig(device="cpu"), LabConfig(device="cpu", amp="bf16")
    runs.measure(a, b, 3, 20)
    series = runs.repeats
    assert series is not None
    await until_true(lambda: series.over, 20)
    assert (series.state, series.why) == ("done", "")
    assert [c.amp for c in seen] == ["off", "bf16", "bf16", "off", "off", "bf16"]
    assert {c.steps for c in seen} == {20}
    found = RunLedger(path).entries(group=series.group)
    assert sorted((e.cell, e.repeat) for e in found) == [(s, r) for s in "AB" for r in range(3)]
    from gpuscope.lab.compare import compare

    made = compare(series.entries["A"], series.entries["B"])
    assert made.rows[0].basis == "3 interleaved repeats"

    scripted(runs, fail_at=1)
    runs.measure(a, b, 3, 20)
    await until_true(lambda: runs.repeats is not None and runs.repeats.over, 20)
    assert (runs.repeats.state, runs.repeats.why) == ("failed", "B: It ran out of memory.")


@in_loop
async def test_a_series_can_be_stopped_and_what_was_measured_stays(path):
    runs = LabRuns(LabConfig(), lambda: None)
    seen = scripted(runs)
    whole = runs.launch

    async def launch(config: LabConfig) -> Any:
        worker = await whole(config)
        if len(seen) == 2:
            runs.stop()
        return worker

    runs.launch = launch  # type: ignore[method-assign]
    runs.measure(LabConfig(device="cpu"), LabConfig(device="cpu", amp="bf16"), 5, 10)
    await until_true(lambda: not runs._tasks, 20)
    assert runs.repeats is not None
    assert runs.repeats.state == "stopped"
    assert len(seen) == 2
    assert len(RunLedger(path).entries()) >= 1


# ── pitfalls ──────────────────────────────────────────────────────────────────────────────────────


@in_loop
async def test_the_pitfalls_are_listed_with_cure_and_what_shows_them_and_start_with_the_probe(
    monkeypatch,
):
    begun: list[Demo] = []
    monkeypatch.setattr(Demo, "start", lambda self: begun.append(self))
    app = make_app(views.cpu_only(), "lab")
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, "Demo trainer")
        await pilot.press("p")
        await until(pilot, "fix ", "shows ")
        await pilot.press("end")
        await until(pilot, "and 0 are available")
        await pilot.press("enter")
        assert begun == [], "what needs a GPU does not start without one"
        await pilot.press("home")
        await until(pilot, "fix ", absent="and 0 are available")
        await pilot.press("c")
        await pilot.pause()
        assert begun[0].cured
        assert begun[0].command[:5] == [sys.executable, "-m", "gpuscope", "lab", "pitfall"]
        assert begun[0].command[-1] == "--cured"
        assert f"{begun[0].name}, cured" in text(app)


@in_loop
async def test_a_script_on_a_device_in_use_is_asked_about_first(monkeypatch):
    begun: list[Demo] = []
    monkeypatch.setattr(Demo, "start", lambda self: begun.append(self))
    app = make_app(views.training(3.0), "lab")
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "Demo trainer")
        await pilot.press("p")
        await until(pilot, "WHAT IS WRONG", "1 GPU")
        await pilot.press("enter")
        await until(pilot, "not started: GPU 0: pid 48213 (ada)")
        assert begun == []
        await pilot.press("exclamation_mark")
        assert len(begun) == 1


@in_loop
async def test_a_script_is_heard_and_ends_with_all_it_started(tmp_path):
    child = "import time, os; print('child', os.getpid(), flush=True); time.sleep(60)"
    script = (
        "import subprocess, sys; print('begins', flush=True); "
        f"subprocess.run([sys.executable, '-c', {child!r}])"
    )
    demo = Demo("x", False, [sys.executable, "-c", script], lambda: None)
    demo.start()
    await until_true(lambda: len(demo.output) >= 2, 20)
    assert demo.output[0] == "begins"
    pid = int(demo.output[1].split()[1])
    demo.stop()
    await demo.wait()
    assert (demo.state, demo.pid) == ("ended", None)
    await until_true(lambda: not alive(pid), 5)
    missing = Demo("x", False, ["/nowhere/python"], lambda: None)
    missing.start()
    await missing.wait()
    assert missing.state == "failed"
    assert "/nowhere/python cannot be started" in missing.problem


# ── looks ─────────────────────────────────────────────────────────────────────────────────────────


def rich_app(path, monkeypatch) -> GpuscopeApp:
    """Four runs of made-up figures and one in progress."""
    monkeypatch.setattr("gpuscope.tui.lab.rows.short_age_text", lambda seconds: "5m")
    monkeypatch.setattr("gpuscope.tui.lab.run_text.clock_text", lambda *_: "2026-11-27 12:00:00")
    monkeypatch.setattr("gpuscope.lab.ledger.here", lambda document: {})
    base = LabConfig(device="cuda", model="gpt-1.3b")
    configs = (
        (base, 61.0, 96.0),
        (replace(base, amp="bf16"), 118.0, 71.0),
        (replace(base, amp="bf16", checkpoint=True, batch=32), 104.0, 44.0),
        (replace(base, tf32=True), 83.0, 96.0),
    )
    lab_data.ledger(
        path,
        *(lab_data.document(c, pace, device="cuda", peak=peak * GIB) for c, pace, peak in configs),
    )
    app = make_app(views.vacant(), "lab", lab=replace(base, amp="fp16"))
    app.session.cpu_percent = lambda: 0.9  # type: ignore[method-assign]
    return app


@pytest.mark.parametrize("size", SIZES, ids=lambda s: f"{s[0]}x{s[1]}")
@in_loop
async def test_the_lab_looks_as_it_did(size, path, monkeypatch):
    app = rich_app(path, monkeypatch)
    async with app.run_test(size=size) as pilot:
        await until(pilot, "A #3 · B #4")
        runs = running(app, replace(app.session.labs.config, steps=300), device="cuda")
        for n in range(1, 60):
            runs._record(lab_data.step(n, 1.4 + 4.0 / n, 95.0, scale=32768.0, skipped=1))
        app.main.refresh_all()
        await until(pilot, "59/300")
        app.main.refresh_all()
        await check(pilot, "lab-rich")


@in_loop
async def test_runs_of_one_model_are_told_apart_on_the_smallest_terminal(path, monkeypatch):
    app = rich_app(path, monkeypatch)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, "A #3 · B #4")
        await pilot.press("v", "v")
        screen = await until(pilot, "SAMPLES/S")
        told = [
            line.split("gpt-1.3b")[1].split("  ")[0]
            for line in screen.splitlines()
            if re.search(r"#\d +gpt-", line)
        ]
        assert len(told) == len(set(told)) > 1, told


@in_loop
async def test_without_colour_marks_and_words_tell_the_same(path, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    app = rich_app(path, monkeypatch)
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await until(pilot, "A #3 · B #4", "▲ worse")
        assert "≠ amp bf16 → off" in screen
        await pilot.press("tab", "end", "A", "end", "B")
        await until(pilot, "A #1 · B #2", "● better")
