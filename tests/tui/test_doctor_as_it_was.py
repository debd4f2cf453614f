"""Where nothing runs any more the Doctor says how the job that ended last stood at its end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from gpuscope.store.view import HostView, no_history
from gpuscope.text import styled
from gpuscope.tui.doctor.as_it_was import as_it_was, last_ended
from gpuscope.tui.theme import THEMES, Tokens
from gpuscope.wire import frames as f
from tests.fakes import jobs, views
from tests.tui.pilot import in_loop, make_app, until


def ended(reason: str, count: int = 2, of: int | None = None) -> HostView:
    """Return a host with a training of ``count`` ranks, of which ``of`` have ended, else all."""
    frames = jobs.ranks(count, 20.0)
    last = max(frame.m for frame in frames if isinstance(frame, f.Sample))
    gone = range(count if of is None else of)
    ends = [f.Event(300 + n, "gone", last + 10**9, reason) for n in gone]
    return views.host_of([*frames, *ends, f.Sample(10**6, last + 2 * 10**9)])


def text_of(host: HostView) -> str:
    session: Any = SimpleNamespace(
        happened=SimpleNamespace(stopped={}), local=False, replay=None, history=no_history
    )
    found = as_it_was(session, host, Tokens(THEMES[0]).glyphs, 100)
    return "\n".join(styled.plain(line) for line in found)


def test_its_end_its_last_figures_its_step_and_its_memory():
    page = text_of(ended("exited: KeyError: 'label'"))
    assert "train.py as it was at its end" in page
    assert "failed 14:14:21: KeyError: 'label' · step 4,039 · loss 2" in page
    assert "stack of rank 0: " in page
    assert "step time: 500 ms in the median" in page
    assert "Where a step went, last 32 steps" in page
    assert "compute         350 ms   70 %" in page
    assert "Memory of rank 1 by its last sample" in page
    assert "cuda:1      allocated 60.2 GiB · cached 6.00 GiB" in page
    assert "66.2 GiB since the start" in page


def test_nothing_is_said_while_a_rank_runs_or_where_none_ever_ran():
    assert last_ended(ended("exited", of=1)) is None
    assert text_of(ended("exited", of=1)) == ""
    assert text_of(views.host_of(views.vacant())) == ""


@in_loop
async def test_the_tab_does_not_say_that_nothing_has_been_checked_where_a_job_has_ended():
    frames = jobs.ranks(2, 20.0)
    last = max(frame.m for frame in frames if isinstance(frame, f.Sample))
    ends = [f.Event(300 + n, "gone", last + 10**9, "exited: killed by SIGKILL") for n in range(2)]
    app = make_app([*frames, *ends, f.Sample(10**6, last + 2 * 10**9)], "doctor")
    async with app.run_test(size=(120, 60)) as pilot:
        await until(pilot, "No training with a probe runs any more", "as it was at its end")
        await until(pilot, "Checked   nothing now: what ran has ended")
