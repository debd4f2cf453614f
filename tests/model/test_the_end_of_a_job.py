"""Every surface says the same of a job that is being ended, and of one that has ended."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuscope.doctor import live
from gpuscope.doctor.finding import Finding
from gpuscope.model.alerts import Alerts
from gpuscope.model.alerts_settings import AlertSettings
from gpuscope.model.job_ends import End, job_end
from gpuscope.store.view import HostView, no_history
from gpuscope.text import styled
from gpuscope.tui.background.journal import Journal
from gpuscope.tui.hosts.summary import Grade, summarise
from gpuscope.tui.processes.entries import entries, state_of
from gpuscope.tui.processes.idle import Idleness
from gpuscope.tui.shared.job_rows import job_lines
from gpuscope.tui.theme import Glyphs
from gpuscope.tui.trainer.job_text import standing_out
from gpuscope.wire import frames as f
from tests.fakes import jobs, views
from tests.fakes.views import host_of

OF_RANKS, OF_PROCESSES = range(300, 304), range(100, 104)
SOON = "the probe is gone (the program has ended); the process continues"
TAKEN_OUT = [
    f"the probe is gone ({why}); the process continues"
    for why in (f.PROBE_REMOVED, f.DETACHED, f.UNWATCHED)
]


def sample_at(frames: list[f.Frame], seconds: float, **tables: list[object]) -> list[f.Frame]:
    """Return the frames with the last sample once more, so many seconds later."""
    last = [frame for frame in frames if isinstance(frame, f.Sample)][-1]
    return [*frames, replace(last, q=last.q + 1, m=last.m + int(seconds * 1e9), **tables)]


def gone(frames: list[f.Frame], ids: range, reason: str, after: float = 1.0) -> list[f.Frame]:
    """Return the frames with the end of these, so many seconds after the last sample."""
    last = [frame for frame in frames if isinstance(frame, f.Sample)][-1]
    ends = [f.Event(number, "gone", last.m + int(after * 1e9), reason) for number in ids]
    rest = [row for row in last.t if row[0] not in ids]
    return sample_at([*frames, *ends], after, t=rest)


def stalls(host: HostView) -> list[str]:
    found = live.examine(host, no_history).findings
    return [one.cause for one in found if isinstance(one, Finding) and "stall." in one.cause]


def notes(host: HostView) -> str:
    return "".join(styled.plain(note) for line in job_lines(host) for note in line.notes)


@pytest.mark.parametrize(
    ("reason", "seconds"),
    [("exited: the program has ended", 6.0), (f"exited: {f.INTERRUPTED}", 25.0)],
)
def test_a_rank_that_has_just_ended_is_no_hang_of_the_others(reason: str, seconds: float):
    before = jobs.ranks(stalled=True)
    assert stalls(host_of(before)) == ["stall.loader"]
    frames = sample_at(gone(before, OF_RANKS[3:], reason), seconds)
    host = host_of(frames)
    assert stalls(host) == []
    assert "ending: rank 3 has ended, ranks 0–2 have not yet" in notes(host)
    assert "ending: rank 3 has ended" in "".join(
        styled.plain(line) for line in standing_out(host, host.jobs[0], no_history)
    )
    assert not [word for word in summarise(host).words if word[0] is Grade.STALLED]
    states = [
        styled.plain(state_of(one, Glyphs())) for one in entries(host, no_history, Idleness())
    ]
    assert not [state for state in states if "stalled" in state]


def test_ranks_that_wait_for_one_that_ended_long_ago_hang():
    frames = gone(jobs.ranks(stalled=True), OF_RANKS[3:], "exited: the program has ended")
    assert "stall.rank_gone" in stalls(host_of(sample_at(frames, 15.0)))


def test_a_process_that_outlives_its_probe_has_ended_once_it_is_gone():
    frames = gone(jobs.ranks(), OF_RANKS, SOON)
    between = host_of(frames)
    journal, alerts = Journal(), Alerts(AlertSettings(gone=True, for_seconds=0.0))
    alerts.look(host_of(jobs.ranks()))
    journal.look(between, (), {})
    assert not [one for one in alerts.look(between) if one.kind == "gone"]
    assert "its process has not exited yet" in "".join(
        text for line in job_lines(between) for text, _ in line.span
    )
    after = host_of(gone(frames, OF_PROCESSES, "exited", 3.0))
    journal.look(after, (), {})
    end = job_end(after.jobs[0])
    assert end is not None
    assert (end.word, end.text) == ("ended", "")
    rows = {one.word: one for one in journal.entries.values() if one.serial.endswith("/end")}
    assert list(rows) == ["ended"]
    assert rows["ended"].wall_seconds == pytest.approx(after.wall_seconds)
    assert [one.kind for one in alerts.look(after)].count("gone") == 4


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        (SOON, "exited: exit code 3", "failed: exit code 3"),
        (SOON, "killed by signal 11", "killed by SIGSEGV"),
        (SOON, "exited: the program has ended", "ended"),
        (SOON, "no longer there", "ended"),
        (TAKEN_OUT[0], "killed by signal 15", "killed by SIGTERM"),
        (
            "the probe is gone (ValueError: labels); the process continues",
            "exited: exit code 1",
            "failed: ValueError: labels",
        ),
    ],
)
def test_how_a_process_ended_after_its_probe_is_said_by_the_kernel(before, after, sentence):
    frames = gone(jobs.ranks(), OF_RANKS, before)
    end = job_end(host_of(gone(frames, OF_PROCESSES, after, 3.0)).jobs[0])
    assert end is not None
    assert end.sentence == sentence


@pytest.mark.parametrize("reason", TAKEN_OUT)
def test_how_a_process_ended_whose_probe_was_taken_out_is_not_known(reason: str):
    frames = gone(jobs.ranks(), OF_RANKS, reason)
    end = job_end(host_of(frames).jobs[0])
    text = "its probe was taken out, the process continues"
    assert end == End("left", "muted", text)
    end = job_end(host_of(gone(frames, OF_PROCESSES, "exited", 600.0)).jobs[0])
    assert end is not None
    assert (end.word, end.text) == ("ended", "how is not known")


@pytest.mark.parametrize(
    ("reason", "word", "kind"),
    [
        ("exited: its owner went home", "ended", "muted"),
        ("the probe is gone (it failed: KeyError); the process continues", "left", "muted"),
        ("exited: torch.OutOfMemoryError: CUDA out\nof memory", "out of memory", "bad"),
        ("exited: main.<locals>.Wrong", "failed", "bad"),
        ("the probe is gone (exit code 3); the process continues", "failed", "bad"),
    ],
)
def test_only_what_is_known_to_be_a_failure_is_called_one(reason: str, word: str, kind: str):
    end = job_end(host_of(gone(jobs.ranks(), OF_RANKS, reason)).jobs[0])
    assert end is not None
    assert (end.word, end.kind) == (word, kind)


def test_the_row_of_the_log_follows_when_only_the_judgement_changes():
    """The last rank ends as the one before, and until then another one seemed to run on."""
    journal, frames = Journal(), jobs.ranks()
    frames = gone(frames, OF_RANKS[:1], "runs on, without a GPU")
    frames = gone(frames, OF_RANKS[1:], "exited: the program has ended")
    journal.look(host_of(frames), (), {})
    assert [one.word for one in journal.entries.values()] == ["started", "probe lost"]
    frames = gone(frames, OF_PROCESSES[:1], "exited")
    journal.look(host_of(frames), (), {})
    assert [one.word for one in journal.entries.values()] == ["started", "ended"]


def test_jobs_that_have_ended_are_listed_the_newest_first():
    frames: list[f.Frame] = [views.hello(), views.host_def()]
    for number, job in enumerate(("first", "second", "third")):
        pid = 48300 + number
        frames += views.trainer(pid, 0, 1, "ada", True, job, f"{job}.py")
    frames.append(f.Sample(1, int(views.END * 1e9), h=[views.host_row()]))
    for number, at in ((301, 3.0), (300, 5.0), (302, 9.0)):
        frames.append(
            f.Event(number, "gone", int((views.END + at) * 1e9), f"exited: {f.PROGRAM_ENDED}")
        )
    frames = sample_at(frames, 10.0)
    host = host_of(frames)
    assert [line.cells["job"][0] for line in job_lines(host)] == [
        "3 ended while watched, the last 1 s ago: ",
        "third.py",
        "first.py",
        "second.py",
    ]


def test_a_job_that_lives_on_without_its_probe_is_not_among_those_that_ended():
    frames: list[f.Frame] = [views.hello(), views.host_def()]
    for number, job in enumerate(("first", "second", "third")):
        pid = 48300 + number
        frames += views.trainer(pid, 0, 1, "ada", True, job, f"{job}.py")
    frames.append(f.Sample(1, int(views.END * 1e9), h=[views.host_row()]))
    for number, at, why in ((300, 5.0, f"exited: {f.PROGRAM_ENDED}"), (301, 6.0, TAKEN_OUT[0])):
        frames.append(f.Event(number, "gone", int((views.END + at) * 1e9), why))
    frames.append(f.Event(302, "gone", int((views.END + 7) * 1e9), f.NO_LAST_WORDS))
    lines = job_lines(host_of(sample_at(frames, 10.0)))
    names = [line.cells["job"][0] for line in lines]
    assert names == [
        "second.py",
        "2 ended while watched, the last 3 s ago: ",
        "third.py",
        "first.py",
    ]
    said = "1 ended without an error message, 1 ended without an error"
    assert styled.plain(lines[1].span) == said
    assert lines[1].entity is not None
    assert getattr(lines[1].entity, "gone", None) is not None


def test_a_rank_that_the_kernel_killed_explains_those_that_its_launcher_asked_to_end():
    frames = gone(jobs.ranks(), OF_RANKS, "killed by signal 15")
    (job,) = host_of(frames).jobs
    assert job_end(job) == End("killed", "muted", how="by SIGTERM")
    ends = gone(jobs.ranks(), OF_RANKS[:3], "killed by signal 15")
    (job,) = host_of(gone(ends, OF_RANKS[3:], "killed by signal 9")).jobs
    end = job_end(job)
    assert end is not None
    assert (end.kind, end.phrase) == ("bad", "killed by SIGKILL")
