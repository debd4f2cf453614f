"""``gpuscope attach`` without a target prints a list.

As text it fits the terminal, ranks stand together, and reasons are whole.
"""

from __future__ import annotations

from typing import Any

import pytest

from gpuscope.cli.commands.attach.listing import text
from gpuscope.text import width

REASON = (
    "this kernel lets only a parent process or root attach (ptrace_scope=1), and nobody else "
    "whatever they try."
)
LONG = (
    "/home/ann/miniconda3/envs/training/bin/python /home/ann/projects/models/train.py --config "
    "conf/large.yaml"
)


def row(pid: int, **more: Any) -> dict[str, Any]:
    return {
        "pid": pid,
        "user": "ann",
        "command": LONG,
        "mine": True,
        "devices": [],
        "job": None,
        "rank": None,
        "launcher": None,
        "probe": False,
        "method": "ptrace",
        "needs": "your consent (ptrace)",
        "next": "",
        **more,
    }


RANKS = [
    row(700 + rank, job="n1:29500", rank=rank, launcher=699, devices=[rank]) for rank in (1, 0)
]


def words(lines: list[str]) -> str:
    return " ".join(" ".join(lines).split())


@pytest.mark.parametrize("columns", [70, 80, 120])
@pytest.mark.parametrize("command", [LONG, "训练" * 40], ids=["long", "wide"])
def test_every_line_fits_and_no_reason_is_cut(columns, command):
    rows = [
        *RANKS,
        row(12, command=command),
        row(4194303, method=None, needs=REASON, user="a" * 12),
    ]
    problem = {"reason": "no NVIDIA driver here: libnvidia-ml.so.1 was not found. " * 2}
    lines = text("node-1", rows, [problem], columns)
    assert max(map(width.cells, lines)) <= columns, "\n".join(lines)
    assert columns < 80 or "your consent (ptrace)" in words(lines)
    # A reason in several lines: what else stands in them is not between its words but at their end.
    at = next(index for index, line in enumerate(lines) if "4194303" in line)
    start = lines[at].index("this kernel")
    told = [lines[at][start:]]
    for line in lines[at + 1 :]:
        if line[:start].strip() or not line:
            break
        told.append(line.strip())
    assert " ".join(told) == REASON


def test_without_a_terminal_a_row_is_a_line():
    lines = text("node-1", [row(12, method=None, needs=REASON)], [], 0)
    assert next(line for line in lines if line.lstrip().startswith("12")).endswith(REASON)


def test_the_ranks_of_a_job_stand_below_one_line_with_what_leads_into_all_of_them():
    lines = text("node-1", [row(5), *RANKS], [], 100)
    at = next(index for index, line in enumerate(lines) if line.startswith("job "))
    assert lines[at] == "job n1:29500, 2 ranks: gpuscope attach 699 --inject"
    assert [line.split()[:4] for line in lines[at + 1 : at + 3]] == [
        ["700", "ann", "0", "0"],
        ["701", "ann", "1", "1"],
    ]
    assert sum(line.startswith("job ") for line in lines) == 1


def test_a_job_that_has_its_probes_or_no_launcher_asks_for_nothing():
    inside = [
        {**one, "probe": True, "method": None, "needs": "nothing: it has a probe"} for one in RANKS
    ]
    assert "job n1:29500, 2 ranks" in text("node-1", inside, [], 100)
    lines = text("node-1", [{**one, "launcher": None} for one in RANKS], [], 100)
    assert "job n1:29500, 2 ranks" in lines
