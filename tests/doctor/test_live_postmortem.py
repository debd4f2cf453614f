"""What trainers left behind is examined.

These are real snapshots and recordings from H200s, and records made without a GPU.
"""

from __future__ import annotations

import gzip
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpuscope.cli.commands.doctor import targets as doctor_targets
from gpuscope.doctor import live, postmortem, postmortem_oom
from gpuscope.doctor.finding import Finding, Report
from gpuscope.doctor.live_scene import WORDINGS
from gpuscope.doctor.order import rank
from gpuscope.doctor.postmortem_oom import OomFacts
from gpuscope.doctor.report import finish
from gpuscope.doctor.table import load
from tests.fakes.probe_client import environment
from tests.fakes.watched import WATCHED
from tests.recordings import REDACTED, SHIPPED
from tests.snapshot import synthetic

DEMOS = Path(__file__).parents[2] / "demos"
GIB, MIB = 1 << 30, 1 << 20


def found(path: Path, kind: str) -> list[Finding]:
    report = postmortem.examine(path, kind)
    assert report.problems == ()
    return rank(report.findings)


def text(finding: Finding) -> str:
    return " ".join(one.text for one in finding.evidence)


# ── recordings ────────────────────────────────────────────────────────────────────────────────────


FP32 = "Tensor cores idle on GPU 0, 1: matmuls likely in FP32"


def test_a_healthy_recording_gives_nothing_of_warning_or_worse():
    findings = found(REDACTED / "h200-lab.gsr", "recording")
    assert [one.title for one in findings if one.severity != "info"] == []


def test_findings_of_a_recording_name_their_script():
    findings = found(DEMOS / "recordings/h200x2-stall.gsr", "recording")
    assert {(one.job, one.pitfall) for one in findings if one.severity != "info"} == {
        ("ddp_train.py", "tensor-cores-idle"),
        ("stall_train.py", "hang-in-loader"),
    }
    (one, *_) = found(DEMOS / "recordings/h200x2-ddp.gsr", "recording")
    assert one.job == "ddp_train.py", "also where it is the only one"


def test_a_recorded_training_in_float32_is_told_that_its_tensor_cores_are_idle():
    findings = found(REDACTED / "h200x2-ddp.gsr", "recording")
    (only,) = [one for one in findings if one.severity != "info"]
    assert (only.title, only.severity, only.confidence) == (FP32, "warning", "likely")
    assert "tensor cores active 1.8 %" in text(only)
    assert "of 700 W" in text(only)


def test_the_recorded_stall_names_rank_line_and_that_it_is_the_loader():
    first, *others = found(REDACTED / "h200x2-stall.gsr", "recording")
    assert (first.pitfall, first.severity, first.confidence) == (
        "hang-in-loader",
        "problem",
        "definite",
    )
    assert first.title == (
        "Hang: rank 1 is stuck at <path>:31 in __getitem__; rank 0 waits for it at "
        "<path>:62 in main"
    )
    assert "collectives launched: rank 1: 55, rank 0: 56" in text(first)
    assert [one.title for one in others if one.severity != "info"] == [FP32]


def test_the_shipped_hang_is_told_with_the_names_of_its_files():
    first = found(SHIPPED / "h200x2-stall.gsr", "recording")[0]
    assert first.title == (
        "Hang: rank 1 is stuck at stall_train.py:34 in __getitem__; rank 0 waits for it at "
        "stall_train.py:69 in main"
    )


def test_why_an_ended_training_became_slower_is_asked_of_its_file(monkeypatch):
    slower = WORDINGS.finding("live.slower", {"times": "2.3 times"}, evidence=(), where="pid 1")
    monkeypatch.setattr(live, "examine", lambda *_: Report(findings=(slower,)))
    path = REDACTED / "h200-lab.gsr"
    told = finish(postmortem.examine(path, "recording"), load()).findings[0]
    assert [fix.command for fix in told.fixes] == [f"gpuscope why {path}"]
    assert told.verify == f"gpuscope replay {path}"


def test_what_is_no_recording_is_a_problem_in_words(tmp_path):
    path = tmp_path / "cut.gsr"
    path.write_bytes((REDACTED / "h200-lab.gsr").read_bytes()[:40])
    report = postmortem.examine(path, "recording")
    assert report.findings == ()
    assert len(report.problems) == 1
    assert postmortem.examine(tmp_path / "gone.box", "box").problems


BUILD = "raise AssertionError('Torch not compiled with CUDA enabled')"


@pytest.mark.parametrize(
    ("end", "pitfall"), [(BUILD, "problem"), ("os.kill(os.getpid(), 9)", "open")]
)
def test_a_black_box_tells_how_it_ended(tmp_path, end, pitfall):
    more = {"GPUSCOPE_BLACKBOX_DIR": str(tmp_path / "boxes"), "XDG_STATE_HOME": str(tmp_path)}
    subprocess.run(
        [sys.executable, "-c", WATCHED + end],
        env=environment(**more),
        capture_output=True,
        timeout=60,
    )
    (path,) = (tmp_path / "boxes").glob("*.box")
    report = doctor_targets.examine([str(path)], False, 5.0)
    assert report.problems == ()
    if pitfall == "open":
        assert report.findings == ()
        assert ["dmesg" in one.missing for one in report.abstained] == [True]
    else:
        assert rank(report.findings)[0].severity == "problem"
        assert (
            "failed: AssertionError: Torch not compiled with CUDA enabled (at "
            in report.ended[0].text
        )


# ── snapshots ─────────────────────────────────────────────────────────────────────────────────────


def test_a_leak_is_named_by_its_line_and_by_the_graph_it_keeps():
    first = found(DEMOS / "snapshots" / "leak-after.pickle.gz", "snapshot")[0]
    assert (first.pitfall, first.severity) == ("detach-loss-accumulation", "warning")
    assert first.where.startswith("make.py:95")
    assert "27.1 MiB from the second quarter of the history, 27.1 MiB from the third" in text(first)
    assert "a whole graph is kept" in text(first)


@pytest.mark.parametrize("name", ["leak-before", "training"])
def test_a_healthy_snapshot_gives_nothing(name):
    assert found(DEMOS / "snapshots" / f"{name}.pickle.gz", "snapshot") == []


def test_scattered_free_memory_without_a_failure_is_no_warning():
    only = found(DEMOS / "snapshots" / "fragmented.pickle.gz", "snapshot")
    assert [(one.pitfall, one.severity) for one in only] == [("expandable-segments", "info")]
    assert "inactive split 192 MiB of 486 MiB reserved (40 %)" in text(only[0])
    assert "the largest 20.0 MiB" in text(only[0])


def test_a_file_that_is_no_snapshot_is_a_problem_in_words(tmp_path):
    path = tmp_path / "x.pickle"
    path.write_bytes(b"\x80\x04nonsense")
    report = postmortem.examine(path, "snapshot")
    assert report.findings == ()
    assert report.problems[0].startswith("x.pickle: ")


# ── records of out-of-memory errors ───────────────────────────────────────────────────────────────


def record(path: Path, **about: Any) -> Path:
    """The demo's scattered blocks as the record of an error on a card of 512 MiB."""
    data = pickle.loads(
        gzip.decompress((DEMOS / "snapshots" / "fragmented.pickle.gz").read_bytes())
    )
    values = {
        "v": 1,
        "kind": "oom",
        "device": 0,
        "requested_bytes": 64 * MIB,
        "free_bytes": 8 * MIB,
        "total_bytes": 520 * MIB,
        "stack": [["/home/ada/train.py", 88, "forward"]],
        **about,
    }
    return synthetic.write({**data, "gpuscope": values}, path, packed=True)


def test_a_record_whose_free_pieces_are_too_small_is_definitely_fragmentation(tmp_path):
    first = found(record(tmp_path / "oom.pickle.gz"), "snapshot")[0]
    assert (first.pitfall, first.severity, first.confidence) == (
        "expandable-segments",
        "problem",
        "definite",
    )
    assert "212 MiB were free in the cache" in text(first)
    assert "the largest piece 20.0 MiB: 64.0 MiB did not fit in one piece" in text(first)
    assert first.where == "cuda:0, train.py:88"


def test_the_same_record_with_a_small_request_is_not_fragmentation(tmp_path):
    findings = found(record(tmp_path / "oom.pickle.gz", requested_bytes=9 * MIB), "snapshot")
    assert "expandable-segments" not in {one.pitfall for one in findings}


def test_with_expandable_segments_on_they_are_not_advised(tmp_path):
    settings = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    findings = found(record(tmp_path / "oom.pickle.gz", settings=settings), "snapshot")
    assert "expandable-segments" not in {one.pitfall for one in findings}


CARD = 80 * GIB


@pytest.mark.parametrize(
    ("facts", "pitfall"),
    [
        (
            OomFacts(
                requested=90 * GIB, free=60 * GIB, total=CARD, allocated=10 * GIB, reserved=12 * GIB
            ),
            "reduce-seq-length-or-resolution",
        ),
        (
            OomFacts(
                requested=4 * GIB, free=1 * GIB, total=CARD, allocated=30 * GIB, reserved=31 * GIB
            ),
            "other-process-holds-gpu",
        ),
        (
            OomFacts(
                requested=2 * GIB, free=40 * GIB, total=CARD, allocated=38 * GIB, reserved=39 * GIB
            ),
            "memory-fraction-cap",
        ),
        (
            OomFacts(
                requested=2 * GIB, free=GIB, total=CARD, allocated=75 * GIB, reserved=78 * GIB
            ),
            "expandable-segments",
        ),
        (
            OomFacts(
                requested=2 * GIB,
                free=1 * GIB,
                total=CARD,
                allocated=77 * GIB,
                reserved=78 * GIB,
                cached=1 * GIB,
                parameters=14 * GIB,
                gradients=14 * GIB,
                optimizer=40 * GIB,
            ),
            "optimizer-state",
        ),
        (
            OomFacts(
                requested=2 * GIB,
                free=1 * GIB,
                total=CARD,
                allocated=77 * GIB,
                reserved=78 * GIB,
                cached=1 * GIB,
                parameters=2 * GIB,
                gradients=2 * GIB,
                optimizer=4 * GIB,
            ),
            "reduce-batch-size",
        ),
        (
            OomFacts(
                requested=2 * GIB,
                free=1 * GIB,
                total=CARD,
                allocated=60 * GIB,
                reserved=78 * GIB,
                cached=18 * GIB,
                largest_free=1 * GIB,
            ),
            "expandable-segments",
        ),
        (
            OomFacts(
                requested=2 * GIB,
                free=1 * GIB,
                total=CARD,
                allocated=60 * GIB,
                reserved=78 * GIB,
                cached=18 * GIB,
                largest_free=3 * GIB,
            ),
            "reduce-batch-size",
        ),
    ],
)
def test_each_cause_by_its_numbers(facts, pitfall):
    first = rank(postmortem_oom.judge(facts))[0]
    assert first.pitfall == pitfall
    apart = facts.largest_free is not None and facts.largest_free >= (facts.requested or 0)
    assert (
        (first.severity, first.confidence) == ("info", "prior")
        if apart
        else first.severity == "problem"
    )


def test_without_numbers_nothing_is_likely():
    assert [(one.pitfall, one.confidence) for one in postmortem_oom.judge(OomFacts())] == [
        ("reduce-batch-size", "prior")
    ]
