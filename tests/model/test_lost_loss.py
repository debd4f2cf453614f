"""A training whose loss stays NaN is in a bad state, whichever surface is asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

pytest.importorskip("prometheus_client", reason="the exporter is one of the surfaces")

from gpuscope.cli import time_document, time_report, trainer_times
from gpuscope.cli.commands import oneline
from gpuscope.cli.commands.ps import document as ps_document
from gpuscope.cli.commands.ps import text as ps_text
from gpuscope.cli.commands.wait import ProcessWait
from gpuscope.doctor import live
from gpuscope.exit_status import ExitStatus
from gpuscope.export import page
from gpuscope.model.alerts import Alerts
from gpuscope.model.alerts_settings import AlertSettings
from gpuscope.model.job_state import job_state, worst_of_jobs
from gpuscope.model.lost_loss import lost_loss
from gpuscope.report import host as report_host
from gpuscope.report.timelines import Span
from gpuscope.store.view import HistoryOf, HostView, Link, View
from gpuscope.tui.hosts.summary import Grade, summarise
from gpuscope.tui.processes.rows import Choice, listing
from gpuscope.tui.shared.job_rows import job_lines
from gpuscope.tui.trainer.job_text import standing_out
from gpuscope.wire import frames as f
from tests.fakes import jobs
from tests.fakes.views import flat, seen

PID = jobs.FIRST_PID
SAMPLES, LOST_AT = 60, 26
SINCE = "since step 4,026"


def telling(
    value: str,
    at_log: bool = False,
    since: str = SINCE,
    finite_again: bool = False,
    count: int = 1,
    scaler: bool = True,
    course: Callable[[int], float] = lambda n: 2.0 + 1 / (n + 1),
    stalled: bool = False,
) -> list[f.Frame]:
    """Return a job whose rank 0 tells such a loss from half of the samples on."""
    frames = jobs.ranks(count, SAMPLES / 2, stalled=stalled)
    source = "its log says" if at_log else "the progress bar shows loss"
    text = f"{source} {value} {since}".rstrip()
    samples = [frame for frame in frames if isinstance(frame, f.Sample)]
    place = 1 + f.PROCESS_COLUMNS.index("log_loss"), 1 + f.TRAINER_COLUMNS.index("loss")
    skipped = 1 + f.TRAINER_COLUMNS.index("skipped_steps")
    for n, sample in enumerate(samples):
        loss = course(n) if n < LOST_AT or (finite_again and n > LOST_AT) else None
        sample.t[0][place[1]] = None if at_log else loss
        sample.p[0][place[0]] = loss if at_log else None
        for row in sample.t if not scaler else ():
            row[skipped] = None
    entity, column = (100, "log_loss") if at_log else (300, "loss")
    samples[LOST_AT].why.append([entity, column, f.NOT_SUPPORTED, text])
    return frames


# ── every surface, asked of the same state ──


def overview(host: HostView, history: HistoryOf) -> str:
    (line,) = job_lines(host, history=history)
    assert line.kind == "bad"
    assert line.cells["loss"][1] == "bad"
    return f"{line.cells['loss'][0]} · {flat(line.notes)}"


def processes(host: HostView, history: HistoryOf) -> str:
    rows = listing(host, history, Choice()).rows
    state = next(row.cells["state"] for row in rows if row.key.startswith(f"{PID}"))
    assert state[0][1] == "bad"
    return flat([state])


def doctor(host: HostView, history: HistoryOf) -> str:
    found = [one for one in live.examine(host, history).findings if one.cause[:5] == "loss."]
    assert {one.severity for one in found} == {"problem"}
    assert found[0].fixes[0].command == f"kill {PID}", "what helps now"
    assert all(len(one.fixes) > 1 for one in found), "and what prevents it in the next run"
    return " ".join(one.title for one in found if one.pitfall == "not-finite")


def why(host: HostView, history: HistoryOf) -> str:
    ranks = trainer_times.of_job(host.jobs[0], host, history, 600.0, "gpuscope why")
    assert "Nothing to warn of" not in ranks[0].sentence
    assert time_document.document("train.py", ranks)["loss_not_finite"]
    return " ".join(time_report.text(ranks, 2000))


def ps(host: HostView, history: HistoryOf) -> str:
    return ps_text.text(ps_document.document(host, []))


def fleet(host: HostView, history: HistoryOf) -> str:
    found = summarise(host, (), history)
    assert found.grade == Grade.PROBLEM
    (run,) = found.runs()
    assert run.loss is not None
    assert run.loss[1] == "bad"
    return f"{run.loss[0]} {' '.join(word.text for word in found.words)}"


def alert(host: HostView, history: HistoryOf) -> str:
    alerts = Alerts(AlertSettings(not_finite=True, for_seconds=0.0))
    return " ".join(one.text for one in alerts.look(host, history))


def waited(host: HostView, history: HistoryOf) -> str:
    found = ProcessWait(PID, None)(host, 1.0)
    assert found is not None
    assert found.code == ExitStatus.NOT_FINITE
    return found.text


def report(host: HostView, history: HistoryOf) -> str:
    return " ".join(report_host._job_row(host, host.jobs[0], Span(0.0, 60.0, None, 1)))


def job_page(host: HostView, history: HistoryOf) -> str:
    said = flat(standing_out(host, host.jobs[0], history))
    assert "healthy" not in said
    return said


def state(host: HostView, history: HistoryOf) -> str:
    found = job_state(host, host.jobs[0], history)
    assert found.kind == worst_of_jobs(host, history) == "bad"
    return f"{found.word}: {found.text}"


SURFACES: dict[str, Callable[[HostView, HistoryOf], str]] = {
    "job's state": state,
    "Overview": overview,
    "Job page": job_page,
    "Processes": processes,
    "doctor": doctor,
    "why": why,
    "ps": ps,
    "Fleet": fleet,
    "report": report,
    "alert": alert,
    "wait": waited,
}


@pytest.mark.parametrize("surface", SURFACES)
@pytest.mark.parametrize("at_log", [False, True], ids=["by the framework", "by its log"])
@pytest.mark.parametrize("value", ["nan", "inf"])
def test_every_surface_says_that_the_loss_is_lost_and_since_when(surface, at_log, value):
    said = SURFACES[surface](*seen(telling(value, at_log))).replace("NaN", "nan")
    assert value in said.replace("infinite", "inf"), said
    assert SINCE in said, said


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_a_status_bar_has_its_mark_and_no_step_time(value):
    line = oneline.line(seen(telling(value))[0])
    assert f"train.py ▲ loss {value}" in line
    assert "/step" not in line


@pytest.mark.parametrize("at_log", [False, True])
def test_the_exporter_says_so_and_has_no_loss_of_zero(at_log):
    for frames, lost in ((telling("nan", at_log), 1), (jobs.ranks(1), 0)):
        host, _ = seen(frames)
        live_host = replace(host, link=Link("live", "", 0.0))
        series = page.draw(View(1, (live_host,)), page.Memory(), page.SeriesLimits()).samples
        assert [*series["gpuscope_train_loss_not_finite"].values()] == [lost]
        assert bool(series.get("gpuscope_train_loss")) == (not lost)


# ── what is no bad state ──


@pytest.mark.parametrize(
    "frames",
    [telling("nan", since=""), telling("nan", finite_again=True), telling("nan", True, since="")],
    ids=["once so far", "finite again", "once so far in the log"],
)
def test_one_loss_that_is_not_finite_is_no_bad_state(frames):
    host, history = seen(frames)
    assert lost_loss(host, host.jobs[0], history) is None
    assert job_state(host, host.jobs[0], history).kind == "ok"
    assert not [one for one in live.examine(host, history).findings if one.cause[:5] == "loss."]
    assert "healthy" in flat(standing_out(host, host.jobs[0], history))
    assert ProcessWait(PID, None)(host, 1.0) is None
    assert not alert(host, history)
    (line,) = job_lines(host, history=history)
    assert line.kind == "ok"
    assert line.cells["loss"][1] == "text"


def test_a_hang_is_told_before_it():
    host, history = seen(telling("nan", count=4, stalled=True))
    assert job_state(host, host.jobs[0], history).word == "stalled"
    (line,) = job_lines(host, history=history)
    heads = [flat([note]).split()[0] for note in line.notes]
    assert heads.index("stalled:") < heads.index("loss")


# ── since when, whose, and why ──


def test_it_is_so_for_as_long_as_it_was_watched_and_of_the_rank_that_tells_it():
    host, history = seen(telling("nan", count=4))
    found = lost_loss(host, host.jobs[0], history)
    assert found is not None
    assert found.seconds == pytest.approx((SAMPLES - 1 - LOST_AT) / 2)
    assert found.text == f"loss of rank 0 is nan {SINCE}, for 16 s"
    assert lost_loss(host, host.jobs[0]).brief == SINCE, "a single look knows no age"


def test_what_the_loss_did_before_tells_the_likely_cause_and_its_grad_scaler_the_precision():
    def causes(**how: object) -> list[str]:
        found = live.examine(*seen(telling("nan", **how))).findings
        return [one.cause for one in found if one.cause.startswith("loss.")]

    assert causes() == ["loss.fp16", "loss.sudden"]
    assert causes(scaler=False) == ["loss.sudden"]
    grown = causes(course=lambda n: 2.0 + n / 100 if n < LOST_AT - 2 else 200.0 * n, scaler=False)
    assert grown == ["loss.diverged"]
    assert causes(course=lambda n: 2.0, scaler=False) == ["loss.turned"], "too few to tell"
    assert causes(course=lambda n: 2.0) == ["loss.fp16"], "the other would say no more"


def test_a_training_without_a_probe_has_the_finding_by_its_log():
    def findings(value: str, pids: set[int] | None = None) -> tuple[tuple[str, ...], str]:
        frames = telling(value, at_log=True)
        frames = [x for x in frames if not (isinstance(x, f.Def) and (x.trainer or x.alloc))]
        for sample in frames:
            if isinstance(sample, f.Sample):
                sample.t, sample.a = [], []
        host, history = seen(frames)
        assert not host.trainers
        report = live.examine(host, history, pids)
        return report.examined, " ".join(f"{x.title} {x.where}" for x in report.findings)

    for pids in (None, {PID}):
        examined, said = findings("nan", pids)
        assert f"The loss is NaN {SINCE}" in said
        assert f"pid {PID}" in said
        assert examined[0] == f"the log of train.py (pid {PID}), without a probe"
    assert findings("nan", {PID + 1}) == ((), "")
    examined, said = findings("1.25")
    assert "loss" not in said
    assert "the log of" not in " ".join(examined), "a log that says nothing wrong proves nothing"


def test_its_alert_ends_when_the_loss_is_finite_again():
    alerts = Alerts(AlertSettings(not_finite=True, for_seconds=0.0))
    assert [one.state for one in alerts.look(*seen(telling("nan")))] == ["fired"]
    (over,) = alerts.look(*seen(jobs.ranks(1, 40.0)))
    assert (over.state, over.pid) == ("cleared", PID)


@pytest.mark.parametrize(
    ("at_log", "said"),
    [
        (True, "its log does not print each step: the"),
        (False, "the probe does not read each step: the"),
    ],
)
def test_of_several_steps_it_is_said_why_it_is_not_known_which_was_the_first(at_log, said):
    host, history = seen(telling("nan", at_log, "since step 801–812"))
    found = [one for one in live.examine(host, history).findings if one.cause[:5] == "loss."]
    assert any(one.text.startswith(said) for one in found[0].evidence)
