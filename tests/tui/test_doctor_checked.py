"""What the Doctor says of what it checked and found fine: figures of now, by area."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpuscope.doctor import live
from gpuscope.doctor.finding import Evidence, Finding, Report
from gpuscope.doctor.table import load
from gpuscope.model.device_state import judge
from gpuscope.store.view import History, HostView, no_history
from gpuscope.text import styled
from gpuscope.tui.background.finding_history import Case, FindingHistory
from gpuscope.tui.doctor.checked_courses import course_lines
from gpuscope.tui.doctor.checked_figures import AREAS, area_of, sources_of
from gpuscope.tui.doctor.checked_text import about, related
from gpuscope.tui.theme import THEMES, Tokens
from gpuscope.wire import frames as f
from tests.fakes import jobs, views
from tests.fakes.views import host_of

GLYPHS = Tokens(THEMES[0]).glyphs
FIGURES = {area.name: area.figures for area in AREAS}


def text(name: str, host: HostView) -> str:
    return " · ".join(one.text for one in FIGURES[name](host, sources_of(host, no_history)))


def lines(host: HostView, *cases: Case, pending: Sequence[tuple[Finding, float]] = ()) -> str:
    """Return the page of what was checked, with these findings."""
    watch = SimpleNamespace(
        report=Report(examined=("train.py",)), cases=cases, pending=pending, not_examined="",
        table={}, problem="", cost_seconds=None, unexplained=(),
    )  # fmt: skip
    page = about(watch, host, no_history, (), GLYPHS, 140, tight=True)  # type: ignore[arg-type]
    return "\n".join(styled.plain(line) for line in page)


def found(cause: str) -> Finding:
    return Finding(
        pitfall="num-workers", cause=cause, title="Something", severity="warning",
        confidence="likely", evidence=(Evidence("a figure"),),
    )  # fmt: skip


def beginning(row: f.Row, **device: f.Scalar) -> HostView:
    """One trainer on one GPU, with this row of readings."""
    out: list[f.Frame] = [
        views.hello(), views.host_def(), views.gpu(0),
        *views.trainer(48201, 0, 1, "ada", True, "job-1"),
    ]  # fmt: skip
    for q, at, _ in views.ticks(5):
        sample = f.Sample(q, int(at * 1e9), h=[views.host_row()])
        sample.g.append(views.device_row(0, 6, 95.0, **device))
        sample.t.append(row)
        sample.a.append(views.allocator_row(1, 5, 5, 5.0))
        out.append(sample)
    return host_of(out)


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


def test_a_hang_of_a_trainer_that_has_ended_is_no_hang_of_what_runs():
    host = host_of(views.training())
    page = lines(host, Case(1, found("stall.alone"), "left"))
    assert f"{GLYPHS.ok} Nothing wrong was found." in page
    assert f"{GLYPHS.ok} hangs" in page
    assert "before the hang" not in page
    page = lines(host, Case(1, found("stall.alone"), "live"))
    assert f"{GLYPHS.warn} hangs" in page
    assert page.count("before the hang") == 2


def test_what_is_not_known_yet_is_never_called_fine():
    page = lines(beginning(views.row("t", 301, step=0)))
    assert "0 of 1 has stepped" in page
    for area in ("hangs", "step time", "input"):
        assert f"{GLYPHS.dash} {area}" in page, page
    assert f"{GLYPHS.ok} host" in page
    assert f"{GLYPHS.idle} Nothing wrong was found so far." in page


def test_a_check_that_waits_for_more_steps_says_when_it_decides():
    page = lines(beginning(views.trainer_row(1, 12, 0.5)))
    assert re.search(rf"{GLYPHS.idle} step time .*\(known in 9 s\)", page), page
    assert re.search(rf"{GLYPHS.idle} input .*\(known in 9 s\)", page)
    assert f"{GLYPHS.ok} hangs" in page
    assert f"{GLYPHS.idle} Nothing wrong was found so far." in page


def test_a_finding_that_must_hold_for_a_while_is_announced():
    page = lines(host_of(views.training()), pending=[(found("live.tensor_idle"), 2.0)])
    assert re.search(rf"{GLYPHS.idle} GPU use .*\(known in 2 s\)", page), page
    assert f"{GLYPHS.ok} input" in page
    history = FindingHistory()
    for now in (1.0, 2.0):
        history.follow([("live", "job-1", found("live.tensor_idle"))] if now > 1 else [], now)
    assert [(one.cause, seconds) for one, seconds in history.pending] == [("live.tensor_idle", 3.0)]
    history.follow([], 3.0)
    assert history.pending == [], "it was found once, and is not any more"


def test_gpu_use_is_not_fine_where_the_row_of_the_device_says_tensor_idle():
    hard = {"tensor_active_percent": 1.8, "sm_active_percent": 92.0, "power_watts": 630.0}
    host = beginning(views.trainer_row(1, 400, 0.5), **hard)
    assert judge(host, host.devices[0]).word == "tensor idle"
    assert f"{GLYPHS.dash} GPU use    SMs active 92 % of the time · tensor cores idle" in lines(
        host
    )
    assert f"{GLYPHS.warn} GPU use" in lines(host, Case(1, found("live.tensor_idle"), "live"))


@pytest.mark.parametrize(("area", "column"), [("step time", "step_seconds"), ("input", "input")])
def test_the_course_of_a_step_is_drawn_to_the_last_one_and_not_to_now(area: str, column: str):
    host, history = views.seen(jobs.ranks(stalled=True))

    def readings(entity: int, name: str, seconds: float | None) -> History:
        past = history(entity, name, seconds)
        if not name.startswith(column):
            return past
        return replace(past, values=tuple(0.4 + n % 5 / 50 for n in range(len(past))))

    (line,) = course_lines(area, host, sources_of(host, readings), GLYPHS)
    drawn, said, _ = (text for text, _ in line)
    assert said.strip() == "400–480 ms"
    assert len(drawn.rstrip()) < len(drawn) / 2, "it has made no step for 48 s of the minute"
    assert drawn.strip()


def test_a_course_is_drawn_for_all_the_time_that_its_words_name():
    """The tensor cores of a GPU that does nothing more are at 0, which is no unknown reading."""
    host, history = views.seen(jobs.ranks(2))

    def readings(entity: int, name: str, seconds: float | None) -> History:
        past = history(entity, name, seconds)
        if name != "tensor_active_percent":
            return past
        return replace(past, values=tuple(2.0 if n < 30 else 0.0 for n in range(len(past))))

    (line,) = course_lines("GPU use", host, sources_of(host, readings), GLYPHS)
    assert " " not in line[0][0].strip()
    assert len(line[0][0].strip()) >= 23
    assert line[2][0] == "tensor cores of GPU 0, last 59.5 s"
