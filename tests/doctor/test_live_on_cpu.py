"""A training on a CPU is told of its own device: no finding about it speaks of a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

import pytest

from gpuscope.doctor import table
from gpuscope.doctor.finding import Finding, Fix
from gpuscope.doctor.live_causes import FINDINGS
from gpuscope.doctor.live_scene import WORDINGS
from gpuscope.store.decode import decode
from gpuscope.store.store import Store
from gpuscope.wire import frames as f
from gpuscope.wire.recording import RecordingReader
from tests.doctor import test_live_causes
from tests.doctor.test_live import one
from tests.fakes import jobs, views
from tests.recordings import REDACTED

RECORDING = REDACTED.parent / "slow-input-cpu.gsr"
ON_ANY_DEVICE = (
    *("live.input_bound", "live.recompiles", "live.checkpoint_pause", "live.validation_pause"),
    *("live.logging", "live.garbage_collection", "live.garbage_collection.called"),
    *("live.other_code", "live.profiler"),
    *("live.debug_setting", "live.debug_setting.anomaly", "live.syncs_each_micro_batch"),
    *("live.communication", "live.slower", "live.skipped_steps", "ranks.straggler"),
    *("ranks.slow_input", "stall.all_in_collective", "stall.loader", "stall.ranks_differ"),
    *("stall.alone", "stall.rank_gone", "stall.rank_gone.one_left"),
    *("host.memory_short", "host.shm_full"),
)
"""The findings that need no GPU: all others are of a device, of a trace of it, or say that the
host has GPUs which a training does not use."""


def on_a_cpu(frames: list[f.Frame]) -> list[f.Frame]:
    """Return the frames of the same job on a host without a GPU."""
    kept = []
    for frame in frames:
        if isinstance(frame, f.Def):
            if frame.gpu is not None or frame.use is not None or frame.alloc is not None:
                continue
            if frame.trainer is not None:
                frame.trainer.cuda = False
        if isinstance(frame, f.Sample):
            frame.g, frame.u, frame.a = [], [], []
        kept.append(frame)
    return kept


def examined(store: Store) -> list[Finding]:
    return list(views.judged(store).findings)


def words_of_fix(fix: Fix) -> str:
    return " ".join(str(value) for value in asdict(fix).values())


def words_of_row(pitfall: str) -> str:
    row = table.load()[pitfall]
    fixes = " ".join(map(words_of_fix, row.fixes))
    return " ".join((row.title, row.symptom, row.now, row.not_when, row.cost, fixes))


def words(finding: Finding) -> str:
    """All that the Doctor tab shows of a finding."""
    effect = finding.effect.text if finding.effect is not None else ""
    evidence = " ".join(one.text for one in finding.evidence)
    fixes = " ".join(map(words_of_fix, finding.fixes))
    parts = (finding.title, finding.where, evidence, effect, fixes)
    return " ".join((*parts, words_of_row(finding.pitfall)))


@pytest.mark.parametrize("name", ON_ANY_DEVICE)
def test_the_fixed_texts_of_findings_that_need_no_gpu_name_none(name):
    wording = WORDINGS.findings[name]
    fixes = " ".join(words_of_fix(WORDINGS.fix_rows[fix]) for fix in wording.fixes)
    assert "GPU" not in f"{wording.title} {fixes} {words_of_row(wording.pitfall)}"


@pytest.mark.parametrize(
    "scene",
    [
        lambda: one(**jobs.split(0.5, input=0.6, compute=0.2, optimizer=0.05)),
        lambda: jobs.ranks(slow=1),
        lambda: jobs.ranks(stalled=True),
        lambda: one(skipped_steps=1000),
        lambda: one(stall_at="train.py:60 backward", step_age_seconds=60.0),
        lambda: one(stall_at="data.py:88 __getitem__", step_age_seconds=60.0),
    ],
)
def test_a_job_on_a_cpu_has_findings_without_a_gpu(scene: Callable[[], list[f.Frame]]):
    findings = examined(views.store_of(on_a_cpu(scene())))
    assert findings, "this job has something to find"
    for finding in findings:
        assert finding.cause in ON_ANY_DEVICE
        assert "GPU" not in words(finding)


def test_the_recording_of_a_cpu_training_says_that_the_training_waits():
    frames = [decode(line.line) for line in RecordingReader(RECORDING).lines()]
    while_it_trains = frames[: len(frames) // 2]
    (finding,) = examined(views.store_of(while_it_trains))
    assert "went into input wait: 9" in finding.evidence[0].text
    assert "num_workers=8" in finding.fixes[0].code, "its loader sleeps, so it needs no free core"
    assert "GPU" not in words(finding)


@pytest.mark.parametrize("name", sorted(FINDINGS))
def test_what_the_clock_shows_of_a_cpu_training_names_no_gpu(name):
    found = test_live_causes.found(cuda=False, **{name: 0.5})
    assert all("GPU" not in words(one) for one in found if one.cause in ON_ANY_DEVICE)
    assert {one.cause for one in found} <= set(ON_ANY_DEVICE)
