"""The names of jobs, and why they ended, are not cut where there is room."""

from __future__ import annotations

from gpuscope.text import styled
from gpuscope.tui.overview.job_list import HEADINGS, JobList, columns_in, narrowed
from gpuscope.tui.shared.job_rows import JobLine

CELLS = {
    "gpu": "0, 1",
    "step": "50",
    "pace": "no step",
    "memory": "65.1/66.0 MiB",
    "left": "138 GiB",
}


def line(name: str, **more) -> JobLine:
    return JobLine(
        "k", {"job": (name, "text"), **{k: (v, "text") for k, v in CELLS.items()}}, **more
    )


def test_columns_give_a_long_name_what_their_own_words_do_not_need():
    columns = columns_in(76)
    short = narrowed(columns, [line("a.py")], 74)
    assert short == columns, "nothing moves while the name fits"
    shown = narrowed(columns, [line("stall_train.py ×2")], 74)
    assert 74 - sum(cells + 1 for _, cells, _ in shown) >= len("stall_train.py ×2")
    for name, cells, _ in shown:
        assert cells >= max(len(HEADINGS[name]), len(CELLS.get(name, "")))


def test_why_a_job_ended_goes_on_in_a_second_line():
    why = [("killed 14:14:20: SIGKILL; often the kernel's OOM killer", "bad")]
    ended = line("train.py", span=why, over=True)
    jobs = JobList()
    jobs.show([ended])
    assert jobs.wanted(76, full=True) == jobs.wanted(76, full=False) + 1
    (below,) = jobs._below(ended, 76, full=True)
    assert styled.plain(below).strip() == "OOM killer"
