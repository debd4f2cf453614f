"""Where nothing runs any more the Doctor says how the job that ended last stood at its end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gpuscope.doctor.finding import Report
from gpuscope.store.view import HostView, no_history
from gpuscope.text import styled
from gpuscope.tui.doctor.as_it_was import as_it_was, last_ended
from gpuscope.tui.doctor.checked_text import about
from gpuscope.tui.doctor.text import about_row
from gpuscope.tui.theme import THEMES, Tokens
from gpuscope.wire import frames as f
from tests.fakes import jobs, views
from tests.tui.pilot import in_loop, make_app, until

GLYPHS = Tokens(THEMES[0]).glyphs


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
    found = as_it_was(session, host, GLYPHS, 100)
    return "\n".join(styled.plain(line) for line in found)


def test_its_end_its_last_figures_its_step_and_its_memory():
    page = text_of(ended("exited: KeyError: 'label'"))
    assert "train.py as it was at its end" in page
    assert "failed at 14:14:21: KeyError: 'label' · step 4,039 · loss 2" in page
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
async def test_the_tab_has_it_above_what_the_checks_of_the_gpus_find():
    frames = jobs.ranks(2, 20.0)
    last = max(frame.m for frame in frames if isinstance(frame, f.Sample))
    ends = [f.Event(300 + n, "gone", last + 10**9, "exited: killed by SIGKILL") for n in range(2)]
    app = make_app([*frames, *ends, f.Sample(10**6, last + 2 * 10**9)], "doctor")
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await until(pilot, "train.py as it was at its end", "What each check finds now")
        assert "killed by SIGKILL · step 4,039" in screen
        assert "Memory of rank 1 by its last sample" in screen


@pytest.mark.parametrize("over", [True, False])
def test_where_nothing_is_examined_any_more_the_page_says_so(over):
    host = ended("exited") if over else views.host_of(views.vacant())
    watch: Any = SimpleNamespace(
        report=Report(), cases=(), pending=(), not_examined="", table={}, problem="",
        cost_seconds=None, unexplained=(), ended=(),
    )  # fmt: skip
    was = [[("as it was", "accent")]] if over else []
    page = about(watch, host, no_history, (), GLYPHS, 100, as_it_was=was)
    said = "\n".join(styled.plain(line) for line in page)
    row = styled.plain(about_row(watch, host, GLYPHS).cells["what"])
    assert ("any more." in said, "has been checked yet." in said) == (over, not over)
    assert ("what ran has ended" in said, "as it was" in said) == (over, over)
    assert ("any more" in row, "has been checked yet" in row) == (over, not over)
