"""A recording from two H200s shows a training, then one whose loader sleeps.

The first is a DDP training; in the second, rank 1 goes to sleep inside its loader. It is read as
the screen reads it.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpuscope.cli import past_trainers
from gpuscope.model.device_trainings import told_input
from gpuscope.model.stalls import find_stall
from gpuscope.model.step_parts import step_parts
from gpuscope.model.step_time import shares_of
from gpuscope.model.time_ledger import recent
from gpuscope.store.decode import decode
from gpuscope.store.store import Store
from gpuscope.store.view import HostView, no_history
from gpuscope.text.units import duration_text, percent_text
from gpuscope.tui.trainer.job_text import standing_out
from gpuscope.wire.recording import RecordingReader
from tests.fakes.views import flat
from tests.recordings import REDACTED, SHIPPED

RECORDING = REDACTED / "h200x2-stall.gsr"


def moments() -> Iterator[HostView]:
    """The host after each line of the recording."""
    store = Store()
    store.add_source("k", "label")
    for line in RecordingReader(RECORDING):
        store.apply("k", decode(line.line), line.rx)
        host = store.view().host
        if host is not None:
            yield host


def test_the_rank_that_keeps_the_others_is_named_with_its_line():
    texts = {}
    for host in moments():
        for job in host.jobs:
            stall = find_stall(job.trainers)
            if stall is not None:
                texts[stall.text] = stall
    assert texts, "it stood for twenty seconds"
    last = list(texts)[-1]
    assert (
        last
        == "rank 1 is stuck at <path>:31 in __getitem__; rank 0 waits for it at <path>:62 in main"
    )
    assert [t.definition.rank for t in texts[last].behind] == [1]


def test_a_rank_that_is_stuck_in_its_loader_waited_for_data_as_its_steps_did():
    """One of the two samples before the hang is of that line, and no step waited long for data."""
    ((_, _, job), *_) = past_trainers.read(str(SHIPPED / "h200x2-stall.gsr")).jobs
    stuck = next(t for t in job.trainers if t.definition.rank == 1)
    (row,) = [row for row in recent(stuck).rows if row.name == "input"]
    assert row.share > 0.5, "the line was sampled"
    share, window = told_input(stuck)
    assert share is not None
    assert 0.01 < share < 0.03
    assert window == "the last 32 steps"
    assert told_input(stuck, brief=True) == (share, "a step")


def test_the_time_before_the_hang_is_that_of_the_rank_that_hangs_and_names_it():
    stalled = [(host, job) for host in moments() for job in host.jobs if find_stall(job.trainers)]
    host, job = stalled[-1]
    own = next(one for one in job.trainers if one.definition.rank == 1)
    parts, alone = step_parts(job.trainers, host), step_parts([own], host)
    assert parts is not None
    assert alone is not None
    assert (parts.rank, parts.shares) == ("rank 1", alone.shares)
    assert parts.shares != shares_of(job.trainers), "the mean of the ranks is another one"
    said = flat(standing_out(host, job, no_history))
    took = own.number("step_seconds")
    assert took is not None
    most = percent_text(parts.shares["other"])
    assert f"median step of rank 1 took {duration_text(took)}: other {most}" in said
