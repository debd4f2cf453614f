"""What the Doctor says of what it checked and found fine: figures of now, by area."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpuscope.doctor import live
from gpuscope.doctor.table import load
from gpuscope.store.view import HostView, no_history
from gpuscope.text import styled
from gpuscope.tui.doctor.checked_figures import AREAS, area_of, sources_of
from gpuscope.tui.doctor.checked_text import related
from tests.fakes import jobs, views
from tests.fakes.views import host_of

FIGURES = {area.name: area.figures for area in AREAS}


def text(name: str, host: HostView) -> str:
    return " · ".join(FIGURES[name](host, sources_of(host, no_history)))


def test_each_area_has_the_figures_that_its_rules_judge():
    host = host_of(views.training())
    assert "train.py: 7 of 7 stepping; last step " in text("hangs", host)
    assert re.search(r"waits 4 % to 31 % of a step, most: rank 5", text("input", host))
    assert re.search(r"tensor cores active \d+ % to \d+ % of the time", text("GPU use", host))
    assert re.search(
        r"least headroom [\d.]+ GiB of 140 GiB \(rank 3, GPU 3\)", text("memory", host)
    )
    assert "8 of 8 answer · none throttled" in text("GPUs", host)
    assert "XIDs: not reported" in text("GPUs", host), "what is unknown is not 0"
    assert "CPU 23 % of 96 cores" in text("host", host)


def test_what_is_wrong_is_in_the_figures_too():
    host = host_of(views.hung())
    assert "6 of 8 answer, not GPU 3, 5" in text("GPUs", host)
    host = host_of(jobs.ranks(stalled=True))
    assert "train.py: 0 of 4 step" in text("hangs", host)


def test_many_jobs_share_a_line_and_nothing_is_said_of_what_is_not_there():
    host = host_of(views.crowd())
    assert text("hangs", host).startswith("8 jobs: 8 of 8 step")
    host = host_of(views.cpu_only())
    assert text("GPUs", host) == text("GPU use", host) == text("memory", host) == ""


def test_every_cause_of_a_live_rule_is_in_an_area():
    files = Path(live.__file__).parent.glob("live*.py")
    causes = {
        cause
        for file in files
        for cause in re.findall(r'"((?:live|stall|ranks|device|host)\.[a-z_]+)"', file.read_text())
    }
    assert len(causes) > 30
    assert [cause for cause in sorted(causes) if not area_of(cause)] == []
    assert area_of("live.input_bound") == "input"
    assert area_of("live.memory_grows") == "memory"
    assert area_of("live.recompiles") == "step time"
    assert area_of("oom.fragmentation") == ""


@pytest.mark.parametrize("first", ["hang-in-loader", "num-workers"])
def test_related_pitfalls_name_each_other(first):
    table = load()
    found = [styled.plain(line) for line in related(table[first], table, 100)]
    other = "num-workers" if first == "hang-in-loader" else "hang-in-loader"
    assert any(line.strip().startswith(other) for line in found), found
