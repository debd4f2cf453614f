"""One figure of a training has one value on every surface, and a rate of the past is called so.

There is one scene at a time, made of a host's frames, and every surface is asked for each figure.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from gpuscope.cli.commands.ps import document as ps_document
from gpuscope.cli.commands.ps import text as ps_text
from gpuscope.cli.trainer_times import of_job
from gpuscope.doctor import live
from gpuscope.lab.config import LabConfig
from gpuscope.lab.ledger import entry_of
from gpuscope.model.fullest_account import account_at_the_fullest
from gpuscope.model.memory_layers import of_the_card
from gpuscope.model.memory_room import room_of
from gpuscope.model.standstill import standstill_of
from gpuscope.model.time_ledger import JUDGED_SECONDS, recent
from gpuscope.store.view import HostView
from gpuscope.text.units import amount_text, bytes_text, percent_text
from gpuscope.tui.hosts.rows import host_row
from gpuscope.tui.hosts.summary import summarise
from gpuscope.tui.lab import rows as lab_rows
from gpuscope.tui.lab.run_facts import facts_of
from gpuscope.tui.memory.first_subject import least_headroom, room_of_subject
from gpuscope.tui.memory.side_by_side import side_by_side
from gpuscope.tui.memory.subjects import subjects
from gpuscope.tui.processes.idle import Idle
from gpuscope.tui.processes.rows import Choice, listing
from gpuscope.tui.processes.training_text import training_lines
from gpuscope.tui.runs.run import RunView
from gpuscope.tui.shared.job_rows import NO_STEP, job_lines
from gpuscope.tui.shared.step_split import split_pieces
from gpuscope.tui.theme import THEMES, Tokens
from gpuscope.tui.time.rows import clock_rows, split_rows
from gpuscope.tui.time.text import no_minutes, stopped_lines
from gpuscope.tui.trainer.job_text import head_of, standing_out
from gpuscope.tui.trainer.rank_rows import rank_rows
from gpuscope.wire import frames as f
from tests.fakes import clocks, jobs, views
from tests.fakes.views import flat, seen
from tests.tui import lab_data

TOKENS = Tokens(THEMES[0])
PLACES = {name: 1 + at for at, name in enumerate(f.TRAINER_COLUMNS)}


def changed(frames: list[f.Frame], rank: int, **columns: f.Scalar) -> list[f.Frame]:
    """The same frames with these readings of one rank."""
    for sample in (frame for frame in frames if isinstance(frame, f.Sample)):
        for column, value in columns.items():
            sample.t[rank][PLACES[column]] = value
    return frames


def evaluates() -> list[f.Frame]:
    """Two ranks whose last step was long ago, and whose probes say that they do not stand."""
    frames = jobs.ranks(2)
    for rank in range(2):
        changed(frames, rank, step_age_seconds=47.0, phase="eval")
    for sample in (frame for frame in frames if isinstance(frame, f.Sample)):
        sample.why += [[300 + rank, "stall_at", "not_stalled", "it evaluates"] for rank in range(2)]
    return frames


@dataclass(frozen=True)
class Scene:
    """What a job does, and the steps and the step time that each surface is to show of it."""

    name: str
    frames: Callable[[], list[f.Frame]]
    steps: str
    stopped: bool = False


SCENES = [
    Scene("steps", lambda: jobs.ranks(2), "4,119"),
    Scene("one is read a step later", lambda: changed(jobs.ranks(2), 1, step=4120), "4,119"),
    Scene("a rank runs ahead", lambda: changed(jobs.ranks(2), 1, step=4130), "4,119–4,130"),
    Scene("hangs", lambda: jobs.ranks(stalled=True), "4,024", stopped=True),
    Scene(
        "hangs a step apart",
        lambda: changed(jobs.ranks(stalled=True), 3, step=4023),
        "4,023–4,024",
        stopped=True,
    ),
    Scene("evaluates for long", evaluates, "4,119", stopped=True),
]


@pytest.mark.parametrize("scene", SCENES, ids=[scene.name for scene in SCENES])
def test_all_say_the_same_of_the_steps_of_a_job(scene: Scene) -> None:
    host, history = seen(scene.frames())
    (job,) = host.jobs
    first = job.trainers[0]
    (line,) = job_lines(host, history=history)
    age = "47 s"

    # what it has done: the job's steps on the Overview, its own page and in the list of processes
    steps = scene.steps if len(scene.steps) <= 9 else f"{scene.steps.partition('–')[0]}+"
    assert line.cells["step"][0] == steps
    assert f"step {steps} " in flat([head_of(job)])
    listed = listing(host, history, Choice()).rows
    heading = flat([listed[0].cells["state"]])
    assert scene.stopped or f"step {steps}" in heading

    # each rank, too, where they step together: they are read at different moments
    if "–" not in scene.steps:
        ranked = [flat([row.cells["step"]]) for row in rank_rows(host, job, None, history)]
        assert set(ranked) == {steps}
        if not scene.stopped:
            each = [flat([row.cells["state"]]) for row in listed[1:]]
            pages = [training_lines(host, one, Idle(0.0, False), 200) for one in host.processes]
            assert len(each) == len(pages) == len(ranked)
            assert all(f"step {steps} " in f"{one} " for one in each)
            assert all(f"{steps} " in flat(page) + " " for page in pages)

    # how fast it is, or for how long it was not
    surfaces = {
        "jobs": " ".join(text for text, _ in line.cells.values()),
        "job page": flat([head_of(job), *standing_out(host, job, history)]),
        "ranks": "\n".join(str(row.cells) for row in rank_rows(host, job, None, history)),
        "processes": "\n".join(flat([row.cells["state"]]) for row in listed),
        "process page": flat(
            line
            for process in host.processes
            for line in training_lines(host, process, Idle(0.0, False), 200)
        ),
        "time": flat([*stopped_lines(standstill_of(first)), *no_minutes(host, first)]),
        "fleet": str(host_row(summarise(host, (), history), TOKENS).cells["pace"]),
        "ps": ps_text.text(ps_document.document(host, [])),
        "lab": lab_figures(host, [t.definition.pid for t in job.trainers]),
    }
    assert line.cells["pace"][0] == (NO_STEP if scene.stopped else "500 ms")
    assert bool(line.split) == (not scene.stopped)
    for name, text in surfaces.items():
        present = text.replace("median step 500 ms before", "")
        present = re.sub(r"before: a median step (of rank 3 )?took 500 ms", "", present)
        if scene.stopped:
            assert "500 ms" not in present, f"{name} shows a step time of the past: {present}"
            assert " left" not in present, f"{name} tells when it will end: {present}"
        elif name != "time":
            assert "500 ms" in present, f"{name}: {present}"
    if scene.stopped:
        told = {name for name, text in surfaces.items() if age in text or "47s" in text}
        told |= {"processes"} if "evaluates" in surfaces["processes"] else set()
        assert told >= {"jobs", "job page", "ranks", "processes", "process page", "time", "ps"}
        assert f"last step {age} ago" in surfaces["job page"]
        assert f"{age} ago" in surfaces["lab"]


@pytest.mark.parametrize(
    ("collectives", "told"),
    [(37_080, ["37,071", "37,071"]), (38_071, ["37,071", "38,071"])],
    ids=["a step of them apart", "a thousand apart"],
)
def test_ranks_that_step_together_have_launched_as_many_collectives(
    collectives: int, told: list[str]
) -> None:
    """Each rank is read at a moment of its own; what that does not explain is one of the ranks."""
    frames = changed(jobs.ranks(2), 0, step=4119, collectives=37_071)
    host, history = seen(changed(frames, 1, step=4120, collectives=collectives))
    rows = rank_rows(host, host.jobs[0], None, history)
    assert sorted(flat([row.cells["collectives"]]) for row in rows) == told


def test_a_hang_shows_what_each_rank_has_done() -> None:
    frames = changed(jobs.ranks(stalled=True), 3, step=4023, collectives=36_000)
    host, history = seen(frames)
    rows = rank_rows(host, host.jobs[0], None, history)
    assert {flat([row.cells["step"]]) for row in rows} == {"4,023", "4,024"}
    assert len({flat([row.cells["collectives"]]) for row in rows}) == 2


def test_all_name_a_line_with_its_own_function_where_ranks_wait_in_a_backward_pass() -> None:
    frames, column = jobs.ranks(stalled=True), 1 + f.TRAINER_COLUMNS.index("stall_at")
    for sample in (frame for frame in frames if isinstance(frame, f.Sample)):
        for row in sample.t[:3]:
            row[column] = row[column] and "late.py:19 <module> ← graph.py:979 _engine_run_backward"
    host, history = seen(frames)
    (job,) = host.jobs
    findings = live.examine(host, history).findings
    listed = listing(host, history, Choice()).rows
    for name, text in {
        "doctor": "\n".join(
            " ".join([one.title, *(each.text for each in one.evidence)]) for one in findings
        ),
        "job page": flat(standing_out(host, job, history)),
        "ranks": str([row.cells["at"] for row in rank_rows(host, job, None, history)]),
        "processes": flat(row.cells["state"] for row in listed),
        "ps": ps_text.text(ps_document.document(host, [])),
        "why": " ".join(one.sentence for one in of_job(job, host, history, 300.0, "")),
    }.items():
        assert "late.py:19" in text, name
        assert "_engine_run_backward" not in text, name
        assert "<module> (backward)" in text, name


@pytest.mark.parametrize("ranks", [1, 4])
def test_where_the_wall_clock_goes_has_one_answer(ranks: int) -> None:
    """The ledger's; what the probe timed of its parts would be a second one on the same page."""
    host, history = seen(clocks.of_ranks(ranks, slow=2 if ranks > 2 else None))
    (job,) = host.jobs
    (line,) = job_lines(host, history=history)
    assert line.split is not None
    assert line.split.of_ledger
    trainer = next(t for t in job.trainers if t.definition.rank == (2 if ranks > 2 else 0))
    ledger = recent(trainer)
    shares = [f"{row.words} {percent_text(row.share)}" for row in ledger.rows[:5]]
    time = {row.key: row.cells for row in clock_rows(ledger, {}, TOKENS.glyphs)}
    drawn = [f"{flat([time[row.name]['row']])} {flat([time[row.name]['share']])}"
             for row in ledger.rows[:5]]  # fmt: skip
    assert [one.split(maxsplit=1)[1] for one in drawn] == shares
    (told,) = (one for one in of_job(job, host, history, JUDGED_SECONDS, "") if one.pid
               == trainer.definition.pid)  # fmt: skip
    assert told.ledger == ledger, "why tells of the same window"
    process = next(one for one in host.processes if one.id == trainer.process)
    for name, text in {
        "jobs": flat([split_pieces(line.split, 500)]),
        "job page": flat(standing_out(host, job, history)),
        "process page": flat(training_lines(host, process, Idle(0.0, False), 500)),
        "ps": ps_text.text(ps_document.document(host, [])),
    }.items():
        assert shares[0] in text, f"{name}: {text}"
        assert "compute" not in text, f"{name} has a second answer: {text}"


def without_a_loader() -> list[f.Frame]:
    """A training of which nothing marks where a step's computation begins."""
    frames = changed(jobs.ranks(1), 0, input_seconds=None, other_seconds=None)
    reason = "without a DataLoader, input cannot be told apart from compute"
    for sample in (frame for frame in frames if isinstance(frame, f.Sample)):
        sample.why += [[300, "other_seconds", f.NOT_INITIALISED, reason]]
    return frames


@pytest.mark.parametrize("loads", [True, False])
def test_what_a_script_does_between_its_steps_is_nowhere_called_compute(loads: bool) -> None:
    host, history = seen(jobs.ranks(1) if loads else without_a_loader())
    (job,) = host.jobs
    (line,) = job_lines(host, history=history)
    assert line.split is not None
    assert not line.split.of_ledger
    process = next(one for one in host.processes if one.id == job.trainers[0].process)
    (told,) = of_job(job, host, history, JUDGED_SECONDS, "")
    for name, text in {
        "jobs": flat([split_pieces(line.split, 500)]),
        "job page": flat(standing_out(host, job, history)),
        "process page": flat(training_lines(host, process, Idle(0.0, False), 500)),
        "time": flat(row.cells["row"] for row in split_rows(job.trainers[0], TOKENS.glyphs)),
        "why": told.sentence,
        "ps": ps_text.text(ps_document.document(host, [])),
    }.items():
        assert "compute" in text, f"{name}: {text}"
        assert ("compute and other code" in text) != loads, f"{name}: {text}"


def lab_figures(host: HostView, pids: list[int]) -> str:
    """Return what the Lab shows of its run, as if it were this one."""
    run = RunView(LabConfig(device="cpu"))
    run.begin(lab_data.started(run.config))
    run.heard(lab_data.step(4024, pace=16.0))
    run.see(host, None, pids)
    row = lab_rows.live_row(run, "running", None, False)
    shown = [f"{name} {value}" for name, value, _ in facts_of(run)]
    return "\n".join([*shown, flat([row.cells["pace"], row.cells["step"]])])


def test_the_lab_shows_of_a_run_that_has_ended_what_its_row_shows() -> None:
    config = LabConfig(device="cpu")
    run = RunView(config)
    run.begin(lab_data.started(config))
    run.heard(lab_data.step(99, loss=7.0, pace=999.0))
    document = run.finish(lab_data.document(config, 104.0))
    facts = {name: value for name, value, _ in facts_of(run)}
    entry = entry_of(document, id=1)
    row = lab_rows.row_of(lab_rows.ShownRun("1", entry, (entry,)), None, None, None, False)
    for fact, column in (("last loss", "loss"), ("samples/s", "pace"), ("per step", "step")):
        assert facts[fact] == flat([row.cells[column]])


# ── memory ──


def breathes(full: bool = False) -> list[f.Frame]:
    """Two ranks whose memory rises and falls within each step; rank 1 has less room."""
    frames = jobs.ranks(2, seconds=10.0 if full else 60.0)
    places = {name: 1 + at for at, name in enumerate(f.ALLOCATOR_COLUMNS)}
    device = {name: 1 + at for at, name in enumerate(f.DEVICE_COLUMNS)}
    for sample in (frame for frame in frames if isinstance(frame, f.Sample)):
        for rank, values in enumerate(sample.a):
            live = (40 + 5 * rank if sample.q % 2 else 55 + 5 * rank) * views.GIB
            values[places["allocated_bytes"]] = values[places["active_bytes"]] = live
            values[places["requested_bytes"]] = live
            values[places["inactive_split_bytes"]] = (4 if full else 2) * views.GIB
            sample.g[rank][device["free_bytes"]] = (1 if full else 20 - 10 * rank) * views.GIB
            if full:
                sample.g[rank][device["used_bytes"]] = int(0.98 * views.TOTAL)
    return frames


def test_all_say_the_same_of_the_memory_of_a_rank() -> None:
    host, history = seen(breathes())
    (job,) = host.jobs
    trainer = job.trainers[1]
    (allocator,) = trainer.allocators
    room = room_of(host.devices, trainer, allocator, history)
    peak, left = room.fullest.number("allocated_bytes"), room.headroom_bytes
    assert peak == 60 * views.GIB > (allocator.number("allocated_bytes") or 0.0), "else no test"
    assert left is not None

    (line,) = job_lines(host, history=history)
    assert line.cells["memory"][0].startswith(f"{amount_text(peak)}/")
    assert line.cells["left"][0] == bytes_text(left)
    row = next(r for r in rank_rows(host, job, None, history) if r.key == trainer.key)
    assert str(row.cells["memory"]).startswith(f"{amount_text(peak)}/")
    assert row.cells["left"][0][0] == amount_text(left)  # type: ignore[index]
    assert f"rank 1 has the least headroom: {bytes_text(left)}" in flat(
        standing_out(host, job, history)
    )

    everything = subjects(host)
    first = least_headroom(host, everything, history)
    chosen = next(one for one in everything if one.key == first)
    assert chosen.trainer is not None
    assert chosen.trainer.key == trainer.key, "the page opens with the least headroom"
    found = account_at_the_fullest(host, chosen.device, chosen.allocator, history)
    assert next(part.known for part in found.account.parts if part.name == "allocated") == peak
    own = flat(side_by_side(host, everything, chosen, history, 120)).splitlines()
    (beside,) = [text for text in own if text.startswith("▸")]
    sizes = beside.rstrip(" ━╸╺─█░▒▓")  # a bar of the card stands behind them
    assert sizes.endswith(f" {bytes_text(left)}")
    assert f" {bytes_text(peak)} " in sizes
    assert chosen.device is not None
    room = room_of_subject(host, chosen, history)
    assert room is not None
    assert room.headroom_bytes == left
    assert f"headroom {bytes_text(left)}" in of_the_card(chosen.device, left)


def test_the_doctor_and_the_fleet_name_the_headroom_that_the_overview_shows() -> None:
    host, history = seen(breathes(full=True))
    (line,) = job_lines(host, history=history)
    left = line.cells["left"][0]
    told = [
        evidence.text for one in live.examine(host, history).findings for evidence in one.evidence
    ]
    assert any("headroom of" in text and text.endswith(f": {left}") for text in told), told
    words = " ".join(word.text for word in summarise(host, (), history).words)
    assert f"{left} headroom" in words
