"""The rank that the others wait for is one rank with one gain, whichever surface is asked."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest

from gpuscope.cli import time_document, time_report, trainer_times
from gpuscope.cli.commands import oneline
from gpuscope.doctor import live
from gpuscope.doctor.finding import Finding
from gpuscope.doctor.live_causes import of_ledger
from gpuscope.doctor.live_scene import LiveScene
from gpuscope.model.late_rank import WARNED_SHARE, LateRank, late_rank
from gpuscope.model.time_ledger import recent
from gpuscope.report import time_rows
from gpuscope.store.view import HistoryOf, HostView, TrainerView
from gpuscope.text.units import percent_text
from gpuscope.tui.shared.job_notes import running_notes
from gpuscope.tui.time.text import answer
from gpuscope.tui.trainer.job_text import standing_out
from gpuscope.tui.trainer.rank_rows import rank_rows
from gpuscope.wire import frames as f
from tests.fakes import clocks, jobs, views

FLAT = views.flat
Seen = tuple[HostView, HistoryOf]


def job(
    seconds: float,
    late: float = 0.5,
    cuda: bool = False,
    samples: bool = True,
    parts: bool = True,
    row: str = "forward",
) -> list[f.Frame]:
    """Return a job of two ranks that has run for so long; the others wait for rank 1.

    They wait ``late`` of each step of 60 ms, which the parts of the steps tell; below 0 it is the
    one that waits. The samples tell that it spends 20 % more of its time than rank 0 on a ``row``
    of the clock.
    """
    frames = jobs.ranks(2, seconds)
    for frame in frames:
        if isinstance(frame, f.Def) and frame.trainer is not None:
            frame.trainer.cuda = cuda
        for values in frame.t if isinstance(frame, f.Sample) else ():
            waits = max(0.0, late if values[0] == 300 else -late)
            told = jobs.split(0.06, compute=0.79 - waits, communication=0.0)
            for name, spent in told.items():
                values[1 + f.TRAINER_COLUMNS.index(name)] = spent if parts else None
    ids = [one.id for one in frames if isinstance(one, f.Def) and one.trainer is not None]
    for rank, entity in enumerate(ids if samples else ()):
        more = {row: 0.3 if rank else 0.1, "backward": 0.4 if rank else 0.6, "input": 0.0}
        rest = dict.fromkeys(clocks.SHARES, 0.0) | {"optimizer": 0.3} | more
        frames.append(clocks.minute(entity, 0, 1, 1000, **rest))
    return frames


def late_in(host: HostView, history: HistoryOf) -> LateRank:
    found = late_rank(host.jobs[0].trainers, history, host)
    assert found is not None
    return found


# ── every surface, asked of the same state ──


def finding_of(host: HostView, history: HistoryOf) -> Finding:
    (found,) = (
        one for one in live.examine(host, history).findings if one.cause.startswith("ranks.")
    )
    return found


def doctor(host: HostView, history: HistoryOf) -> str:
    found = finding_of(host, history)
    effect = found.effect.text if found.effect is not None else ""
    return f"{found.title}. {' '.join(one.text for one in found.evidence)} Gain: {effect}"


def why(host: HostView, history: HistoryOf) -> str:
    ranks = trainer_times.of_job(host.jobs[0], host, history, 600.0, "gpuscope why")
    return " ".join(time_report.text(ranks, 100)).partition("RANK ")[0]


def why_of_the_other(host: HostView, history: HistoryOf) -> str:
    ranks = trainer_times.of_job(host.jobs[0], host, history, 600.0, "gpuscope why")
    return ranks[0].sentence


def report(host: HostView, history: HistoryOf) -> str:
    ranks = trainer_times.of_job(host.jobs[0], host, history, 600.0, "gpuscope why")
    return time_rows._lead(time_document.document("train.py", ranks))


def time_tab(rank: int) -> Callable[[HostView, HistoryOf], str]:
    def said(host: HostView, history: HistoryOf) -> str:
        trainer, late = host.jobs[0].trainers[rank], late_in(host, history)
        judged = of_ledger(LiveScene(host, history), trainer, recent(trainer), late)
        causes = tuple(one.cause for one in judged)
        calm = not any(one.warns for one in judged)
        how = (recent(trainer), trainer, late, None, "", causes, None, False, None, calm)
        return FLAT(answer(*how))

    return said


def overview(host: HostView, history: HistoryOf) -> str:
    trainers = list(host.jobs[0].trainers)
    return FLAT(running_notes(host, host.jobs[0], trainers, trainers, [], history))


def job_page(host: HostView, history: HistoryOf) -> str:
    return FLAT(standing_out(host, host.jobs[0], history)).partition("wall clock")[0]


SURFACES: dict[str, Callable[[HostView, HistoryOf], str]] = {
    "doctor": doctor,
    "why": why,
    "why of the other rank": why_of_the_other,
    "report": report,
    "Time, the late rank": time_tab(1),
    "Time, the other rank": time_tab(0),
    "Overview's row": overview,
    "Job page": job_page,
    "--oneline": lambda host, history: oneline.line(host),
}
MOMENTS = {
    "a few seconds after the start": {"seconds": 15.0},
    "when it has lasted for a minute": {"seconds": 90.0},
    "on GPUs": {"seconds": 90.0, "cuda": True},
    "before any sample": {"seconds": 90.0, "samples": False},
    "without the parts of a step": {"seconds": 15.0, "parts": False},
}
ONLY_WITH_SAMPLES = {
    *("Time, the late rank", "Time, the other rank", "why", "why of the other rank", "report"),
    "--oneline",  # it looks once, and on a CPU one look at the parts of a step tells nothing
}


def asked() -> Iterator[tuple[str, str]]:
    for moment, how in MOMENTS.items():
        for surface in SURFACES:
            if how.get("samples", True) or surface not in ONLY_WITH_SAMPLES:
                yield moment, surface


@pytest.mark.parametrize(("moment", "surface"), list(asked()))
def test_every_surface_names_the_same_rank_with_the_same_gain(moment, surface):
    how = MOMENTS[moment]
    host, history = views.seen(job(**how))
    late = late_in(host, history)
    assert late.trainer.definition.rank == 1
    assert late.share == pytest.approx(0.5 if how.get("parts", True) else 0.2, abs=0.01)
    said = SURFACES[surface](host, history)
    assert re.search("(?i)rank 1", said), said
    assert percent_text(late.share, whole=True) in said
    assert "Nothing to warn of" not in said
    assert "worth fixing" not in said
    if surface not in ("--oneline", "doctor"):
        assert late.brief in said.replace("The others", "the others")
    assert not re.search(r"could be up to .* shorter", said), "a second gain for the same rank"


def both_augment(late_rank_too: bool) -> list[f.Frame]:
    """Rank 0 spends 30 % on a line of its own while it waits; rank 1 does as well, or not."""
    frames = job(90.0, 0.5, row="other")
    for frame in frames:
        if isinstance(frame, f.Event) and frame.data is not None:
            waits = frame.id == 300
            rows = "backward 24.0 116|other 18.0 87|forward 18.0 87"
            late = "other 48.0 232|backward 12.0 58" if late_rank_too else "forward 60.0 290"
            frame.data["rows"] = rows if waits else late
            frame.data["places"] = "other 18.0 /data/train/train.py:40 augment" if waits else ""
    return frames


def test_a_rank_that_waits_is_promised_no_shorter_step():
    host, history = views.seen(both_augment(late_rank_too=True))
    for said in (time_tab(0)(host, history), why_of_the_other(host, history)):
        assert "f rank 0 itself: 30 % of the time" in said, said
        assert "would take" not in said


@pytest.mark.parametrize("too", [True, False])
def test_the_rank_that_is_waited_for_comes_before_what_a_rank_does_that_waits(too: bool):
    host, history = views.seen(both_augment(late_rank_too=too))
    waits, late = trainer_times.of_job(host.jobs[0], host, history, 600.0, "gpuscope why")
    told = time_report.text([waits], 100)
    numbered = [line for line in told if re.match(r"\d+\. ", line)]
    assert numbered[0] == "1. Rank 1 keeps the others waiting in every step"
    document = time_document.document("train.py", [waits])
    assert document["readings"][0]["pitfall"] == "rank-straggler"
    own = time_report.text([late], 100)
    assert [line for line in own if line.startswith("1. ")] == numbered[:1], "one name for it"
    assert not any(line.startswith("2. ") for line in own)
    # where both do it, a cure on both wins it; else the others are waited for just as long
    gains = [one.finding.effect.text for one in waits.judged if one.finding.effect is not None]
    assert [text.partition(" at best")[0] for text in gains] == ["cured on all ranks"] * too
    assert len(numbered) == 1 + too
    pitfalls = {one.pitfall for one in live.examine(host, history).findings}
    assert ("own-code-in-loop" in pitfalls) == too


def test_it_is_as_grave_as_what_it_costs_on_any_device():
    for late, cuda in ((0.45, False), (0.45, True), (0.11, True)):
        host, history = views.seen(job(90.0, late, cuda))
        found = late_in(host, history)
        assert found.warns == (late >= WARNED_SHARE)
        told = finding_of(host, history)
        assert (told.severity == "warning") == found.warns
        line = running_notes(host, host.jobs[0], *2 * [list(host.jobs[0].trainers)], [], history)
        assert (line[0][0][1] == "warn") == found.warns
        rows = rank_rows(host, host.jobs[0], None, history)
        assert ("warn" in {token for _, token in rows[0].cells["rank"]}) == found.warns


def test_the_gain_has_an_interval_once_a_minute_of_windows_is_known():
    host, history = views.seen(job(90.0))
    effect = finding_of(host, history).effect
    assert effect is not None
    assert effect.saved_share == pytest.approx(0.5, abs=0.01)
    assert effect.saved_share_low is not None
    assert effect.saved_share_high is not None
    assert effect.saved_share_low <= effect.saved_share <= effect.saved_share_high
    early = finding_of(*views.seen(job(15.0))).effect
    assert early is not None
    assert early.saved_share_low is None


def test_no_part_takes_more_longer_than_the_others_wait_in_all():
    """Each rank measures other steps: compute alone differs by more than the own work does."""
    frames = job(90.0, 0.4)
    for frame in frames:
        for values in frame.t if isinstance(frame, f.Sample) else ():
            if values[0] == 301:
                values[1 + f.TRAINER_COLUMNS.index("compute_seconds")] = 0.09
                values[1 + f.TRAINER_COLUMNS.index("optimizer_seconds")] = 0.001
    slow = late_in(*views.seen(frames)).slow
    assert slow is not None
    assert slow.mostly == "compute"
    assert slow.mostly_seconds <= slow.late_seconds


# ── who it is ──


def test_samples_alone_name_nobody_whose_own_work_is_shorter_than_the_others():
    frames = job(15.0, late=-0.1)
    host, history = views.seen(frames)
    assert late_rank(host.jobs[0].trainers, history, host) is None


def test_a_pause_between_steps_is_in_no_part_of_a_step_and_keeps_the_others_waiting():
    host, history = views.seen(job(90.0, late=0.0, row="checkpoint"))
    late = late_in(host, history)
    assert late.slow is None
    saving = "saving checkpoints at train.py:91 save"
    assert late.text.endswith(f"a step on {saving}, the others 6.00 ms")
    assert late.share == pytest.approx(0.2, abs=0.01)


def test_a_rank_that_is_late_by_its_own_code_is_one_finding_that_begins_with_the_line(monkeypatch):
    monkeypatch.setitem(clocks.PLACES, "other", "/data/train/train.py:40 augment")
    line = "train.py:40 augment"
    host, history = views.seen(job(90.0, late=0.25, cuda=True, row="other"))
    findings = live.examine(host, history).findings
    (found,) = (one for one in findings if "rank 1" in one.where)
    assert found.cause == "ranks.straggler"
    assert found.fixes[0].title == f"Look at {line}: 30 % of the time"
    assert "the same amount of work" in found.fixes[1].title
    assert any(line in one.text and one.source == "stack" for one in found.evidence)
    late = late_in(host, history)
    assert late.slow is not None
    assert late.text.endswith(f", mostly other code at {line} (+12.0 ms)")
    assert "compute" not in late.text


def test_where_the_samples_show_only_a_little_of_the_lateness_the_part_of_the_step_is_named():
    late = late_in(*views.seen(job(90.0, late=0.5, row="other")))
    assert ", mostly compute (+" in late.text
    assert "other code" not in late.text


def test_ranks_that_are_alike_have_none_and_one_rank_has_none():
    host, history = views.seen(job(90.0, late=0.0, samples=False))
    trainers: list[TrainerView] = list(host.jobs[0].trainers)
    assert late_rank(trainers, history, host) is None
    slow = views.seen(job(90.0))
    assert late_rank(slow[0].jobs[0].trainers[:1], slow[1], slow[0]) is None
