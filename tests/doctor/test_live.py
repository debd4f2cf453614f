"""Live rules judge made-up streams that go through the real store.

The tests see what is named, and what is left in peace.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from random import Random

import pytest

from gpuscope.doctor import table
from gpuscope.doctor.finding import Finding
from gpuscope.doctor.order import rank
from gpuscope.doctor.report import lines
from gpuscope.text.styled import Line, plain
from gpuscope.wire import frames as f
from tests.fakes import clocks, jobs, memories, views
from tests.fakes.cases import each
from tests.fakes.views import (
    GIB,
    TOTAL,
    allocator_row,
    device_row,
    host_row,
    row,
    trainer,
    trainer_row,
)


def found(frames: list[f.Frame]) -> list[Finding]:
    return rank(views.judged(views.store_of(frames)).findings)


def named(frames: list[f.Frame], pitfall: str) -> Finding:
    one = [finding for finding in found(frames) if finding.pitfall == pitfall]
    assert len(one) == 1, [finding.pitfall for finding in found(frames)]
    return one[0]


def text(finding: Finding) -> str:
    return " ".join(one.text for one in finding.evidence)


def one(
    count: int = 60,
    device: dict[str, f.Scalar] | None = None,
    used: float = 60.0,
    host: dict[str, f.Scalar] | None = None,
    sizes: list[float] | None = None,
    allocator: dict[str, f.Scalar] | None = None,
    extra: list[f.Frame] | None = None,
    uses: list[f.Row] | None = None,
    **more: f.Scalar,
) -> list[f.Frame]:
    """One trainer on one H200, ``count`` samples, a step each.

    ``sizes``: GiB allocated after each step.
    """
    out: list[f.Frame] = [
        views.hello(),
        views.host_def(),
        views.gpu(0),
        *trainer(48201, 0, 1, "ada", True, "job-1"),
    ]
    out += extra or []
    for q, at, _ in views.ticks(count / 2):
        step = 4000 + q
        after = sizes[q] if sizes else 40.0
        sample = f.Sample(q, int(at * 1e9), h=[host_row(**(host or {}))], u=uses or [])
        sample.g.append(device_row(0, used, 95.0, **(device or {})))
        sample.p.append(row("p", 101, cpu_percent=101.0, rss_bytes=9 * GIB))
        sample.u = [row("u", 201, used_bytes=int((used - 0.6) * GIB)), *(uses or [])]
        sample.t.append(trainer_row(1, step, 0.5, **more))
        values = {
            "step_allocated_bytes": int(after * GIB),
            "step_allocated_step": step,
            "alloc_retries": 0,
        }
        values |= allocator or {}
        sample.a.append(allocator_row(1, 40.0, used - 1.0, 5.0, **values))
        out.append(sample)
    return out


def put(frames: list[f.Frame], column: str, value: Callable[[int], float]) -> list[f.Frame]:
    """The same with one column of the trainer or of its allocator by the number of the sample."""
    table, columns = (
        ("t", f.TRAINER_COLUMNS) if column in f.TRAINER_COLUMNS else ("a", f.ALLOCATOR_COLUMNS)
    )
    for number, sample in enumerate(frame for frame in frames if isinstance(frame, f.Sample)):
        for values in getattr(sample, table):
            values[1 + columns.index(column)] = value(number)
    return frames


def severe(findings: list[Finding]) -> list[str]:
    return [f"{one.cause}: {one.title}" for one in findings if one.severity != "info"]


# ── what is well ──────────────────────────────────────────────────────────────────────────────────


@each("series", memories.HEALTHY)
def test_memory_that_moves_as_it_should_is_no_warning(series):
    assert severe(found(one(240, sizes=[size / GIB for size in series(Random(5), 240)]))) == []


def test_a_trainer_at_97_percent_with_steady_peaks_is_told_that_it_is_well():
    finding = named(one(120, used=0.97 * TOTAL / GIB), "benign-warning")
    assert (finding.severity, finding.confidence) == ("info", "definite")
    assert "97 %" in finding.title
    assert severe(found(one(120, used=0.97 * TOTAL / GIB))) == []


def test_a_cache_that_fills_in_the_first_epoch_is_not_called_a_leak():
    """A cache that fills in the first epoch is not called a leak.

    It takes 10 MiB a step, and 80 GiB are free: a cache that is full at the end of the epoch looks
    the same.
    """
    filling = [40 + 0.01 * n for n in range(240)]
    assert severe(found(one(240, sizes=filling))) == []
    assert named(one(240, sizes=filling), "detach-loss-accumulation").severity == "info"


@pytest.mark.parametrize(
    "scene", [views.training, views.crowd, views.vacant, views.cpu_only, jobs.ranks]
)
def test_healthy_scenes_give_no_problem(scene):
    worst = {finding.severity for finding in found(scene())}
    assert "problem" not in worst


def test_a_healthy_job_of_four_ranks_gives_nothing_of_warning_or_worse():
    assert severe(found(jobs.ranks())) == []


def test_a_job_whose_readings_are_all_unknown_is_left_open_and_not_judged():
    frames = [
        views.hello(),
        views.host_def(),
        views.gpu(0),
        *trainer(48201, 0, 1, "ada", True, "job-1"),
    ]
    frames.append(
        f.Sample(
            1,
            int(views.END * 1e9),
            t=[row("t", 301)],
            a=[row("a", 401)],
            g=[row("g", 10)],
            h=[row("h", 0)],
        )
    )
    report = views.judged(views.store_of(frames))
    assert report.findings == ()
    assert {one.pitfall for one in report.abstained} == {"detach-loss-accumulation"}
    assert report.examined == ("train.py (pid 48201)", "GPU 0")


# ── memory ────────────────────────────────────────────────────────────────────────────────────────


def test_growth_that_runs_out_is_a_problem_with_its_arithmetic():
    findings = found(jobs.ranks(leaks=2, seconds=60))
    first = findings[0]
    assert (first.pitfall, first.severity) == ("detach-loss-accumulation", "problem")
    assert "headroom 3.40 GiB / 184 MiB per step" in text(first)
    assert "Rank 2 runs out of memory in about 19 steps" in first.title
    assert first.where.startswith("rank 2, GPU 2, pid ")
    assert any(fix.now for fix in first.fixes)
    assert [one.pitfall for one in findings if one.confidence == "prior"] == [
        "memory-leak-in-user-list"
    ]


@pytest.mark.parametrize(("kept", "in_time"), [(0.9, False), (0.1, True)])
def test_a_record_of_a_minute_is_advised_only_where_the_memory_lasts_for_it(kept, in_time):
    frames = one(80, sizes=[30 + kept * n for n in range(80)], eta_seconds=None, used=110.0)
    first = next(finding for finding in found(frames) if finding.cause == "live.memory_grows")
    recorded = [fix for fix in first.fixes if "; sleep 60; " in fix.command]
    assert (len(recorded), first.fixes[0].now) == (in_time, True), first.title


def test_tried_again_with_much_that_was_never_allocated_is_fragmentation():
    sizes = {"peak_allocated_bytes": 100 * GIB, "peak_reserved_bytes": 130 * GIB}
    frames = put(one(60, used=132.0, allocator=sizes), "alloc_retries", lambda q: 2 + q)
    finding = named(frames, "expandable-segments")
    assert finding.severity == "warning"
    assert "30.0 GiB of the GPU's 140 GiB could not be used" in text(finding)
    assert finding.effect.freed_bytes == 30 * GIB


def test_tried_again_on_a_card_that_is_really_full_is_not_fragmentation():
    sizes = {"peak_allocated_bytes": 130 * GIB, "peak_reserved_bytes": 132 * GIB}
    sizes |= {"parameter_bytes": 10 * GIB, "gradient_bytes": 10 * GIB}
    sizes |= {"optimizer_state_bytes": 20 * GIB}
    frames = put(one(60, used=134.0, allocator=sizes), "alloc_retries", lambda q: q)
    full = named(frames, "reduce-batch-size")
    assert full.confidence == "definite"
    # half of what a batch takes: (130 − 10 − 10 − 20) / 2
    assert (full.effect.freed_bytes, full.effect.bound) == (45 * GIB, "at most")
    assert not any(finding.pitfall == "expandable-segments" for finding in found(frames))


def test_retries_of_long_ago_are_no_warning():
    sizes = {
        "alloc_retries": 3,
        "peak_allocated_bytes": 100 * GIB,
        "peak_reserved_bytes": 130 * GIB,
    }
    assert severe(found(one(60, allocator=sizes))) == []


# ── time ──────────────────────────────────────────────────────────────────────────────────────────


def test_waiting_for_input_on_the_device_is_definite():
    finding = named(one(**jobs.split(0.5, input=0.6, compute=0.2, optimizer=0.05)), "num-workers")
    assert (finding.severity, finding.confidence) == ("warning", "definite")
    assert "the GPU waits for the loader 60 % of the last 32 steps" in text(finding)
    effect = finding.effect
    assert (effect.saved_share, effect.bound) == (pytest.approx(0.6, abs=0.01), "at most")
    assert "2.5 times as many steps" in effect.text


def test_on_a_cpu_two_fifths_of_waiting_are_a_warning_however_busy_its_cores_are():
    for busy in (20.0, 97.0):
        for share, severity in ((0.3, "info"), (0.39, "info"), (0.41, "warning")):
            parts = jobs.split(0.1, input=share, compute=1 - share, h2d=0, optimizer=0, other=0)
            frames = one(host={"cpu_percent": busy}, **parts)
            for frame in frames:
                if isinstance(frame, f.Def) and frame.trainer is not None:
                    frame.trainer.cuda = False
            assert named(frames, "num-workers").severity == severity


@pytest.mark.parametrize(
    ("cores", "busy", "own", "workers"),
    [
        (2, 83.0, None, "1"),
        (96, 23.0, None, "8"),
        (96, 23.0, 4.0, "4"),
        (96, 97.0, None, "2"),
        (2, None, None, "1"),
        (None, 23.0, None, "N"),
    ],
)
def test_as_many_workers_are_advised_as_there_are_cores_for(cores, busy, own, workers):
    frames = one(
        host={"cpu_percent": busy}, **jobs.split(0.5, input=0.6, compute=0.2, optimizer=0.05)
    )
    for frame in frames:
        if isinstance(frame, f.Def) and frame.host is not None:
            frame.host.cpu_count = cores
        if isinstance(frame, f.Def) and frame.trainer is not None:
            frame.trainer.cores, frame.trainer.cuda = own, own is not None
    finding = named(frames, "num-workers")
    pinned = ", pin_memory=True" if own else ""
    codes = [fix.code for fix in finding.fixes if fix.code]
    assert codes == [f"DataLoader(…, num_workers={workers}{pinned}, persistent_workers=True)"]
    busy_cores = cores == 2 and busy is not None
    assert ("less than one core" in text(finding)) == busy_cores == (len(finding.fixes) == 2)
    assert ("may use 4 of them" in text(finding)) == (own == 4.0)


def test_ranks_that_share_cores_share_the_workers():
    frames = jobs.ranks(slow=1)
    for frame in frames:
        if isinstance(frame, f.Def) and frame.host is not None:
            frame.host.cpu_count = 8
    assert "num_workers=2," in " ".join(fix.code for fix in named(frames, "num-workers").fixes)


def test_a_thread_that_waits_while_the_gpu_works_is_not_input_bound():
    busy = {"sm_active_percent": 93.0}
    assert severe(found(one(device=busy, loader_wait_seconds=0.12))) == []
    starved = named(one(device={"sm_active_percent": 40.0}, loader_wait_seconds=0.3), "num-workers")
    assert starved.confidence == "likely"
    thin = named(one(device={"sm_active_percent": 38.0}, loader_wait_seconds=0.33), "num-workers")
    assert thin.effect is not None
    assert "saves at most 62 % of each step with 8 workers" in thin.effect.text, (
        "what the wait takes while a kernel runs is not to be won"
    )
    report = views.judged(
        views.store_of(one(device={"sm_active_percent": None}, loader_wait_seconds=0.3))
    )
    assert "num-workers" in {one.pitfall for one in report.abstained}
    assert severe(rank(report.findings)) == []


def test_warm_up_steps_are_not_judged():
    frames = put(
        one(20, **jobs.split(0.5, input=0.6, compute=0.2, optimizer=0.05)), "step", lambda q: q
    )
    assert found(frames) == []


def test_a_busy_gpu_whose_sms_idle_has_too_little_work():
    finding = named(
        one(device={"sm_active_percent": 3.0}, loader_wait_seconds=0.01), "too-small-workload"
    )
    assert finding.severity == "info"
    assert "SM activity 3.0 %" in text(finding)


def test_a_slow_rank_is_named_with_the_part_that_is_slow():
    finding = named(jobs.ranks(slow=1), "num-workers")
    assert "Rank 1" in finding.title
    slow = [one for one in found(jobs.ranks(slow=1)) if one.cause.startswith("ranks.")]
    assert all("rank 1" in one.where for one in slow)


def test_what_the_others_wait_for_a_slow_rank_is_the_most_that_can_be_won():
    """A share of the 0.5 s that the parts add up to: the median of other steps is half of that."""
    frames = put(jobs.ranks(), "step_seconds", lambda _: 0.25)
    rest = sum(
        share for name, share in jobs.SPLIT.items() if name not in ("compute", "communication")
    )
    for sample in (frame for frame in frames if isinstance(frame, f.Sample)):
        for number, values in enumerate(sample.t):
            compute = (1.0 if number == 1 else 0.6) - rest  # what is left is communication
            for name, seconds in jobs.split(0.5, compute=compute).items():
                values[1 + f.TRAINER_COLUMNS.index(name)] = seconds
    (slow,) = [finding for finding in found(frames) if finding.cause == "ranks.straggler"]
    assert slow.effect.saved_share == pytest.approx(0.4, abs=0.05)
    assert "the time for which the others wait for it" in slow.effect.text


def test_communication_that_nothing_hides_is_named_where_no_rank_is_behind():
    frames = jobs.ranks()
    for name, seconds in jobs.split(0.5, compute=0.3, optimizer=0.05).items():
        put(frames, name, lambda _, seconds=seconds: seconds)
    finding = named(frames, "nccl-config")
    assert (finding.cause, finding.severity) == ("live.communication", "warning")
    assert 0.4 < finding.effect.saved_share < 1
    assert "all of the exposed communication" in finding.effect.text


def test_a_scaler_that_goes_on_leaving_out_steps():
    finding = named(one(skipped_steps=1000), "bf16-instead-of-fp16")
    assert "20 %" in finding.title
    assert finding.effect.saved_share == pytest.approx(0.2, abs=0.01)
    assert severe(found(one(skipped_steps=9))) == []


# ── standing ──────────────────────────────────────────────────────────────────────────────────────


def test_a_stall_names_rank_line_and_collective():
    finding = found(jobs.ranks(stalled=True))[0]
    assert (finding.severity, finding.confidence) == ("problem", "definite")
    assert finding.title == (
        "Hang: rank 3 is stuck at data.py:88 in __getitem__; ranks 0–2 wait in all_reduce"
    )
    assert finding.where.startswith("rank 3, GPU 3")
    assert "rank 3: last step 47" in text(finding)


@pytest.mark.parametrize(
    ("stuck_at", "first"),
    [
        ("/data/train/train.py:12 read_rates", "Find out what train.py:12 waits for"),
        ("/venv/torch/distributed/distributed_c10d.py:2810 all_reduce", "Make every rank take"),
        ("/venv/torch/autograd/graph.py:979 _engine_run_backward", "Make every rank take"),
    ],
    ids=["in its own code", "in a collective", "in backward"],
)
def test_a_rank_that_hangs_in_no_collective_is_asked_what_it_waits_for(stuck_at, first):
    finding = named(jobs.ranks(stalled=True, stuck_at=stuck_at), "hang-in-collective")
    later = [fix.title for fix in finding.fixes if not fix.now]
    assert later[0].startswith(first)
    assert later[-1].startswith("Make every rank take"), "it may be that too"
    assert ("rank 3 is in no collective" in text(finding)) == (len(later) > 1)


def test_a_hang_is_no_habit_of_the_rank_that_hangs():
    def causes(stalled: bool) -> set[str]:
        frames = jobs.ranks(stalled=stalled)
        ids = [one.id for one in frames if isinstance(one, f.Def) and one.trainer is not None]
        for entity in ids:
            more = {"input": 9.0} if entity == ids[3] else {}
            frames += [clocks.minute(entity, number, 5, **more) for number in range(5)]
        return {finding.cause for finding in found(frames)}

    assert "ranks.slow_input" in causes(False)
    assert {one.partition(".")[0] for one in causes(True)} == {"stall"}


def test_a_lone_training_that_hangs_at_a_known_line_is_told_to_look_at_it():
    scene = one(stall_at="train.py:60 load", step_age_seconds=60.0)
    for frame in scene:
        if isinstance(frame, f.Def) and frame.trainer is not None:
            frame.trainer.cuda = False
    finding = found(scene)[0]
    later = [fix.title for fix in finding.fixes if not fix.now]
    assert later[0].startswith("Find out what train.py:60 waits for")
    shown = [part.text for part in finding.evidence]
    assert not any("train.py:60" in text for text in shown), "the title has it"
    assert "train.py:60 in load" in finding.title


@pytest.mark.parametrize(
    ("scene", "pitfall"),
    [
        (jobs.ranks(stalled=True), "hang-in-loader"),
        (one(stall_at="train.py:60 backward", step_age_seconds=60.0), "hang-alone"),
        (one(stall_at="data.py:88 __getitem__", step_age_seconds=60.0), "hang-in-loader"),
        (
            put(jobs.ranks(stalled=True), "stall_at", lambda _: "train.py:70 evaluate"),
            "hang-in-collective",
        ),
        (
            put(jobs.ranks(2, stalled=True), "stall_at", lambda _: "c10d.py:9 all_reduce"),
            "hang-in-collective",
        ),
    ],
)
def test_a_hang_is_a_pitfall_of_its_own_and_shows_the_stacks(scene, pitfall):
    finding = found(scene)[0]
    assert (finding.pitfall, finding.severity) == (pitfall, "problem")
    pid = re.search(r"pid (\d+)", finding.where)
    assert pid is not None
    look = finding.fixes[0]
    assert (look.now, look.command) == (True, f"gpuscope attach {pid[1]}")
    assert "stacks" in look.title
    row = table.load()[pitfall]
    assert finding.cause in row.causes
    assert row.fixes[0].now
    assert "S on" in row.now


def test_a_rank_that_was_killed_while_the_others_wait():
    frames = jobs.ranks(stalled=True)
    frames += [
        f.Event(i, "gone", int((views.END - 20.0) * 1e9), "killed by signal 9")
        for i in (103, 203, 303, 403)
    ]
    finding = next(one for one in found(frames) if one.cause == "stall.rank_gone")
    assert finding.severity == "problem"
    assert "rank 3: killed by SIGKILL" in text(finding)


# ── who is where ──────────────────────────────────────────────────────────────────────────────────


def other(name: str = "jupyter", mine: bool = False) -> list[f.Frame]:
    return [
        f.Def(150, proc=f.ProcDef(51120, 9, views.WALL - 90000, "lin", name, name, 1, mine)),
        f.Def(250, use=f.UseDef(150, 10)),
    ]


def test_memory_of_others_is_a_warning_only_where_it_is_tight():
    there = [row("u", 250, used_bytes=60 * GIB)]
    roomy = one(used=110.0, extra=other(), uses=there)
    assert named(roomy, "other-process-holds-gpu").severity == "info"
    tight = one(
        used=138.0,
        extra=other(),
        uses=there,
        allocator={"active_bytes": 77 * GIB, "reserved_bytes": 77 * GIB},
    )
    finding = named(tight, "other-process-holds-gpu")
    assert finding.severity == "warning"
    assert "pid 51120 (lin, jupyter) 60.0 GiB" in text(finding)
    assert (finding.effect.freed_bytes, finding.effect.bound) == (60 * GIB, "exactly")


def test_one_process_with_weights_on_the_first_of_two_cards_is_data_parallel():
    second = [
        views.gpu(1),
        f.Def(451, alloc=f.AllocDef(301, 1, "GPU-00000001-0000-0000-0000-000000000000", 11)),
    ]
    frames = one(extra=second)
    for sample in (x for x in frames if isinstance(x, f.Sample)):
        sample.a.append(
            row(
                "a",
                451,
                allocated_bytes=20 * GIB,
                reserved_bytes=25 * GIB,
                peak_allocated_bytes=21 * GIB,
                parameter_bytes=0,
            )
        )
        sample.g.append(device_row(1, 27.0, 60.0))
    finding = named(frames, "ddp-instead-of-dp")
    assert "parameters on cuda:0 only" in text(finding)
    assert named(frames, "dp-imbalance-gpu0").severity == "info"


def test_a_model_on_the_cpu_beside_an_idle_gpu():
    frames: list[f.Frame] = [views.hello(), views.host_def(), views.gpu(0)]
    frames += [
        f.Def(
            101, proc=f.ProcDef(7021, 700, views.WALL, "ada", "python train.py", "python", 1, True)
        ),
        f.Def(
            301,
            trainer=f.TrainerDef(
                7021, 700, 101, script="train.py", torch_version="2.13.0", cuda=False
            ),
        ),
        f.Def(401, alloc=f.AllocDef(301, -1)),
    ]
    for q, at, _ in views.ticks(10):
        sample = f.Sample(q, int(at * 1e9), h=[host_row()], g=[device_row(0, 0.0, 0.0)])
        sample.t.append(trainer_row(1, 400 + q, 0.5))
        sample.a.append(row("a", 401, parameter_bytes=512 << 20))
        frames.append(sample)
    finding = named(frames, "move-model-to-device")
    assert "512 MiB of parameters on the CPU, none on a GPU" in text(finding)


def test_the_host_short_of_memory_is_a_warning_and_names_the_largest():
    finding = named(one(host={"memory_available_bytes": 1 * GIB}), "host-memory-limit")
    assert "1.00 GiB of the host's 1.48 TiB are available" in text(finding)
    assert "pid 48201 (python) holds 9.00 GiB" in text(finding)


def test_only_the_job_that_is_asked_for():
    store = views.store_of(views.crowd())
    assert views.judged(store, {48223}).examined == ("train3.py (pid 48223)", "GPU 3")
    assert len(views.judged(store).examined) == 8 + 1, "and the GPUs"


def headings(text: list[Line]) -> list[str]:
    return [plain(line) for line in text if plain(line)[:1] in "▲◆" and plain(line)]


def test_the_heading_of_a_finding_names_the_script():
    """A reader knows the trainings by their scripts, not by their process numbers."""
    lost = "its log says nan since step 26–50"

    def told(count: int) -> list[str]:
        frames = [views.hello(), views.host_def(), *(views.gpu(i) for i in range(count))]
        for i in range(count):
            frames += trainer(48220 + i, i, 1, "ada", True, f"job-{i}", f"train{i}.py")
        for q, at, s in views.ticks(10):
            sample = f.Sample(q, int(at * 1e9), h=[host_row()])
            for i in range(count):
                sample.g.append(device_row(i, 60.0, 90.0))
                sample.p.append(row("p", 120 + i, cpu_percent=99.0))
                sample.t.append(trainer_row(20 + i, 100 + int(s), 0.5))
                for column in ("loss", "skipped_steps"):
                    sample.t[-1][1 + f.TRAINER_COLUMNS.index(column)] = None
                sample.why.append([120 + i, "log_loss", f.NOT_SUPPORTED, lost])
            frames.append(sample)
        judged = views.judged(views.store_of(frames))
        return [one for one in headings(lines(judged, None, 120)) if "NaN" in one]

    place = "▲ The loss is NaN since step 26–50  definite, "
    first, second = "rank 0, GPU 0, pid 48220", "rank 1, GPU 1, pid 48221"
    assert told(1) == [f"{place}train0.py, {first}"]
    assert told(2) == [f"{place}train0.py, {first}", f"{place}train1.py, {second}"]
