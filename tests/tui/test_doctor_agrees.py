"""The doctor and the other tabs do not contradict each other about the same state."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from gpuscope.doctor import live
from gpuscope.doctor.finding import Finding
from gpuscope.doctor.order import rank
from gpuscope.model.device_state import judge
from gpuscope.model.memory_account import account
from gpuscope.store.view import HostView, no_history
from gpuscope.text.units import percent_text
from gpuscope.tui.app.app import GpuscopeApp
from gpuscope.tui.hosts.summary import Grade, summarise
from gpuscope.tui.memory.advice import MEMORY, advice
from gpuscope.tui.memory.subjects import subjects
from gpuscope.tui.shared.job_rows import job_lines
from gpuscope.tui.shell.session import Session
from gpuscope.tui.trainer.job_text import standing_out
from gpuscope.tui.trainer.rank_rows import columns_for, rank_rows
from gpuscope.wire import frames as f
from tests.doctor.test_live import one, put
from tests.fakes import clocks, jobs, paces, views
from tests.fakes.views import GIB
from tests.tui import snapshots
from tests.tui.pilot import feed, in_loop, make_app, until


def told(frames: list[f.Frame]) -> tuple[HostView, dict[str, Finding], str, str]:
    """Return what the doctor and the screen say of a host.

    That is the host, the doctor's findings by cause, the verdict on GPU 0 and the notes of the
    first job.
    """
    store = views.store_of(frames)
    host = views.host_in(store)
    report = views.judged(store)
    verdict = judge(host, host.devices[0])
    notes = " ".join(text for note in job_lines(host)[0].notes for text, _ in note)
    worst = {finding.cause: finding for finding in reversed(rank(report.findings))}
    return host, worst, f"{verdict.kind} {verdict.word}", notes


def advised(host: HostView, said: Finding | None) -> str:
    subject = subjects(host, "")[0]
    assert subject.device is not None
    found = account(host, subject.device, subject.allocator)
    return "\n".join(
        "".join(text for text, _ in line)
        for line in advice(host, subject, found, None, said, None, 30.0)
    )


def test_a_card_that_is_full_and_steady_is_a_warning_nowhere():
    _, found, verdict, _ = told(one(80, used=137.5))
    assert found["live.full_but_steady"].severity == "info"
    assert verdict == "ok full"


@pytest.mark.parametrize("retries", [True, False])
def test_a_full_card_that_tries_again_or_of_which_too_little_is_known_is_one(retries):
    frames = one(80 if retries else 8, used=137.5)
    if retries:
        put(frames, "alloc_retries", lambda q: q)
        frames.append(f.Event(401, "retry", int(views.END * 1e9), "cudaMalloc was tried again"))
    _, found, verdict, _ = told(frames)
    assert "live.full_but_steady" not in found
    assert verdict == "warn full"


@pytest.mark.parametrize(("sm", "starves"), [(95.0, False), (30.0, True)])
def test_a_thread_that_waits_while_the_gpu_works_starves_nobody(sm, starves):
    frames = one(80, device={"sm_active_percent": sm}, loader_wait_seconds=0.15)
    _, found, verdict, notes = told(frames)
    assert ("live.input_bound" in found) == starves
    assert (verdict == "warn input-bound") == starves
    assert ("waits for data" in notes) == starves


@pytest.mark.parametrize("share", [0.05, 0.15, 0.25, 0.6])
def test_where_the_wait_was_measured_all_tell_the_same(share):
    _, found, verdict, notes = told(one(80, **jobs.split(0.5, input=share)))
    assert ("live.input_bound" in found) == (share >= 0.2) == (verdict == "warn input-bound")
    assert ("waits for data" in notes) == (share >= 0.2)


def test_beside_the_wall_clock_a_wait_for_input_has_the_figure_of_its_row():
    """The last steps wait for 74 % of their time, the minutes before for another share."""
    frames = one(80, **jobs.split(0.5, input=0.74, compute=0.2, optimizer=0.02, h2d=0.0, other=0.0))
    (trainer,) = (x.id for x in frames if isinstance(x, f.Def) and x.trainer is not None)
    frames += [clocks.minute(trainer, number, 5, input=9.0) for number in range(5)]
    host, found, _, notes = told(frames)
    line = job_lines(host)[0]
    share = percent_text(line.split.shares["input"])
    assert line.split.of_ledger
    assert share != "74 %"
    assert f"waits for data {share} of the {line.split.basis}" in notes
    assert share in found["live.input_bound"].title
    assert line.cells["input"][0] == percent_text(line.split.shares["input"], whole=True)
    assert judge(host, host.devices[0]).reason.startswith(f"{share} of ")


@pytest.mark.parametrize(("step", "state"), [(15, "ok"), (40, "warn")])
def test_the_first_batches_of_a_training_are_no_state_of_it(step, state):
    frames = put(one(80, **jobs.split(0.1, input=0.5)), "step", lambda _: step)
    _, found, verdict, notes = told(frames)
    warns = state == "warn"
    assert ("live.input_bound" in found) == warns
    assert verdict.startswith(state)
    assert ("waits for data" in notes) == warns


@in_loop
async def test_between_two_looks_of_the_doctor_the_shares_are_those_of_its_findings():
    """The doctor looks once a second; the screen is drawn with each sample."""
    frames = one(80, **jobs.split(0.5, input=0.3))
    app = make_app(frames)

    def shares_and_findings() -> tuple[set[str], str]:
        rows = [line for line in snapshots.text(app).splitlines() if "input" in line]
        (found,) = (case.finding.title for case in app.session.doctor.cases)
        return set(re.findall(r"(?:data|input|input-bound) (\d+) %", " ".join(rows))), found

    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "input: waits for data 26 %", "input-bound 26 %")
        app.session.doctor._next = float("inf")
        sample = next(copy.deepcopy(x) for x in reversed(frames) if isinstance(x, f.Sample))
        sample.q, sample.m = sample.q + 1, sample.m + int(5e8)
        for values in sample.t:
            for column, seconds in jobs.split(0.5, input=0.7).items():
                values[1 + f.TRAINER_COLUMNS.index(column)] = seconds
            values[1 + f.TRAINER_COLUMNS.index("step")] = 5000
        feed(app, sample)
        app.main.refresh_all()
        await until(pilot, "5,000")
        shares, found = shares_and_findings()
        assert shares == {"26"}
        assert "26 %" in found
        app.session.doctor._next = 0.0
        app.main.refresh_all()
        shares, found = shares_and_findings()
        assert shares == {"45"}, "in the very frame in which it was judged"
        assert "45 %" in found


@in_loop
async def test_the_overview_marks_a_job_of_which_the_doctor_finds_what_no_line_below_it_tells():
    minute = clocks.rows_of({"validation": 0.9}, 500)
    session = Session(clocks.one_trainer(minute, 0.1, 97.0))
    session.doctor.prepare()
    app = GpuscopeApp(session, "overview")
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "Validation takes 90 %", "◆ train.py")
        (case,) = (one for one in session.doctor.cases if "Validation" in one.finding.title)
        session.doctor._next = float("inf")
        graver = replace(case, finding=replace(case.finding, severity="problem"))
        session.doctor._cases = (graver,)
        app.main.refresh_all()
        await until(pilot, "▲ train.py")
        session.doctor._cases = (replace(graver, past=True),)
        app.main.refresh_all()
        await until(pilot, "train.py", absent="▲ train.py")


def test_one_wait_for_input_has_one_figure_everywhere():
    """The steps that were taken apart took 116 ms on average, the median step 100 ms."""
    parts = jobs.split(0.116, input=0.74, compute=0.2, optimizer=0.02, h2d=0.0, other=0.0)
    frames = put(one(80, **parts), "step_seconds", lambda _: 0.1)
    host, found, _, notes = told(frames)
    line = job_lines(host)[0]
    assert line.cells["input"][0] == "74 %"
    assert f"{line.split.shares['input']:.2f}" == "0.74"
    assert line.cells["pace"][0] == "100 ms"
    assert "waits for data 74 % of the last 32 steps" in notes
    assert judge(host, host.devices[0]).reason == "74 % of a step"
    said = found["live.input_bound"]
    assert said.title.endswith("74 % of the last 32 steps")
    assert said.fixes[0].effect == "at best 30.2 ms instead of 116 ms per step on average"
    assert "74 %" in said.evidence[0].text


def test_what_cannot_help_against_growth_is_not_advised_beside_it():
    sizes = {"inactive_split_bytes": 1 * GIB, "active_bytes": 40 * GIB, "allocated_bytes": 40 * GIB}
    frames = one(
        80, used=120.0, sizes=[30 + 0.9 * n for n in range(80)], allocator=sizes, eta_seconds=None
    )
    host, found, _, _ = told(frames)
    grows = found["live.memory_grows"]
    assert "empty_cache() cannot help" in " ".join(line.text for line in grows.evidence)
    before, after = advised(host, None), advised(host, grows)
    assert after.splitlines()[0] == f"finding: {grows.title}   4: why and what helps"
    assert "empty_cache" in before, "else this proves nothing"
    assert "biggest saving" in before
    assert "saving" not in after, "what is freed fills up again"


def test_what_is_no_fragmentation_gets_no_advice_against_it():
    sizes = {
        "peak_allocated_bytes": 130 * GIB,
        "peak_reserved_bytes": 132 * GIB,
        "inactive_split_bytes": 90 * GIB,
    }
    frames = put(one(60, used=134.0, allocator=sizes), "alloc_retries", lambda q: q)
    host, found, _, _ = told(frames)
    edge = found["live.at_the_edge"]
    assert edge.cause in MEMORY
    assert "expandable_segments" in advised(host, None), "else this proves nothing"
    assert "expandable_segments" not in advised(host, edge)


@pytest.mark.parametrize(
    ("slope", "eta"), [(0.9, None), (0.9, 5.0), (0.9, 9e5), (0.05, None), (0.012, None)]
)
def test_growth_has_the_same_weight_in_a_jobs_line(slope, eta):
    frames = one(400, used=100.0, sizes=[30 + slope * n for n in range(400)], eta_seconds=eta)
    host, found, _, _ = told(frames)
    severity = found["live.memory_grows"].severity
    (token,) = {note[0][1] for note in job_lines(host)[0].notes if note[0][0] == "memory: "} or {
        "muted"
    }
    assert token == {"problem": "bad", "warning": "warn", "info": "muted"}[severity]


@pytest.mark.parametrize(
    "kind", [views.training, views.crowd, views.vacant, views.cpu_only, views.hung]
)
def test_no_device_is_called_input_bound_that_the_doctor_leaves_in_peace(kind):
    store = views.store_of(kind())
    host = views.host_in(store)
    report = views.judged(store)
    named = {finding.where for finding in report.findings if finding.cause == "live.input_bound"}
    for device in host.devices:
        if judge(host, device).word == "input-bound":
            assert any(f"GPU {device.definition.index}" in where for where in named)


def on_cpu(share: float) -> list[f.Frame]:
    """A trainer without CUDA that waits for its input for this share of a step."""
    frames = one(80, **jobs.split(0.5, input=share, compute=0.85 - share, optimizer=0.0))
    for frame in frames:
        if isinstance(frame, f.Def) and frame.trainer is not None:
            frame.trainer.cuda = False
    return frames


GRAVE = {"bad": "problem", "warn": "warning"}
SCENES: dict[str, Callable[[], list[f.Frame]]] = {
    "well": jobs.ranks,
    "a rank with slow input": lambda: jobs.ranks(slow=1),
    "a rank that leaks": lambda: jobs.ranks(leaks=2),
    "stalled": lambda: jobs.ranks(stalled=True),
    "a rank a tenth slower": lambda: paces.job(minutes=5),
    "ranks that wait for input and save checkpoints": clocks.of_ranks,
    "input on a CPU": lambda: on_cpu(0.3),
    "much input on a CPU": lambda: on_cpu(0.8),
    "a GPU below it that is lost": lambda: jobs.lose(jobs.ranks(), 1),
    "out of memory, survived": lambda: one(80, allocator={"ooms": 3}),
}


@pytest.mark.parametrize("scene", SCENES)
def test_nothing_warns_of_a_job_that_the_doctor_does_not_warn_of(scene: str) -> None:
    store = views.store_of(SCENES[scene]())
    host = views.host_in(store)
    history = partial(store.history, views.SOURCE)
    told = {finding.severity for finding in live.examine(host, history).findings}
    (line,) = job_lines(host, history=history)
    drawn = [*line.cells.values(), *(piece for note in line.notes for piece in note)]
    (job,) = host.jobs
    drawn += [piece for said in standing_out(host, job, history) for piece in said]
    drawn += [(line.kind, line.kind)]
    for text, token in drawn:
        if token in GRAVE:
            assert GRAVE[token] in told or "problem" in told, f"{text!r} is {token}, {told}"
    warned = ("a rank with slow input", "ranks that wait for input and save checkpoints")
    assert (line.kind == "warn") == (scene in (*warned, "much input on a CPU"))
    grade = summarise(host, (), history).grade
    worst = {one: "problem" for one in Grade if one <= Grade.PROBLEM} | {Grade.WARNING: "warning"}
    assert worst.get(grade, "info") in {*told, "info"}


def test_a_rank_on_a_broken_device_gives_no_advice_and_all_broken_devices_are_named():
    host, _, _, notes = told(views.hung())
    assert notes == "hung:  GPU 3 of rank 3  · lost:  GPU 5 of rank 5"
    assert "waits for data" in told(views.training())[3], "rank 5 starves as long as it can tell"
    assert job_lines(host)[0].cells["input"][0] == "4 %"


def test_the_rank_that_waits_for_data_is_marked_with_its_wait_among_the_ranks():
    host, _, _, notes = told(views.training())
    rows = rank_rows(host, host.jobs[0], None, no_history)
    assert "rank 5 waits for data 31 %" in notes
    assert [row.cells["rank"] for row in rows][:2] == [[("◆ 5", "warn")], [("0", "text")]]
    assert rows[0].cells["input"] == [("31 %", "warn")]
    keys = [column.key for column in columns_for(rows, 120)]
    assert keys.index("input") < keys.index("pid")
    assert "rank 3 holds 1.57× the mean" in str(list(standing_out(host, host.jobs[0], no_history)))
