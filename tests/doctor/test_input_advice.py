"""What is advised against a wait for input follows from what loading does while it is waited for.

The figures of ``MEASURED`` are those of a training on two cores whose batches of 16 rows each sleep
or compute for 4 ms a row, with 0 to 8 workers.
"""

from __future__ import annotations

from typing import Any

import pytest

from gpuscope.doctor.finding import Finding
from gpuscope.model.input_cure import Waiting
from gpuscope.wire import frames as f
from tests.doctor.test_live import one
from tests.doctor.test_live_on_cpu import on_a_cpu
from tests.fakes import jobs, views
from tests.fakes.views import SOURCE

MEASURED = {1: 0.0679, 2: 0.0342, 4: 0.0174, 8: 0.0084}
"""Seconds of a step where each row sleeps, by the number of workers; 0.0713 without any."""


def advised(
    workers: int | None = 0,
    needs: float | None = None,
    busy: float = 97.0,
    cores: int = 2,
    share: float = 0.9,
    cuda: bool = False,
    framework: str | None = None,
) -> Finding:
    """The finding of a training with a step of 100 ms, which waits for its input for a share."""
    frames = one(
        host={"cpu_percent": busy},
        loader_wait_seconds=0.1 * share,
        step_seconds_mean=0.1,
        **jobs.split(0.1, input=share, compute=1 - share, h2d=0, optimizer=0, other=0),
    )
    frames = frames if cuda else on_a_cpu(frames)
    for frame in frames:
        if isinstance(frame, f.Def) and frame.host is not None:
            frame.host.cpu_count = cores
        if isinstance(frame, f.Def) and frame.trainer is not None:
            frame.trainer.framework = framework
    store = views.store_of(frames)
    host = views.host_in(store)
    facts: dict[str, Any] = {"loader_workers": workers, "loading_cores": needs}
    known = {name: value for name, value in facts.items() if value is not None}
    minute = {"m": 1_000_000_000, "seconds": 60.0, "steps": 600, "looks": 0, "rows": [], **known}
    store.remember(SOURCE, host.trainers[0].id, "time", {"minutes": [minute]})
    return next(one for one in views.judged(store).findings if one.cause == "live.input_bound")


def test_hugging_faces_trainer_is_given_its_own_option_for_workers():
    fixes = advised(cores=8, busy=10.0, framework="transformers").fixes
    assert any("dataloader_num_workers=" in fix.code for fix in fixes)
    assert not any("DataLoader(" in fix.code for fix in fixes)


def reasons(finding: Finding) -> str:
    return " ".join(one.text for one in finding.evidence)


@pytest.mark.parametrize("workers", MEASURED)
def test_the_shortest_possible_step_is_the_one_that_was_measured(workers):
    waits = Waiting(step=0.0713, wait=0.0700, loading=0.0700)
    assert waits.best(workers, now=0) == pytest.approx(MEASURED[workers], rel=0.05)
    with_one = Waiting(step=0.0679, wait=0.0668, loading=0.0668)
    assert with_one.best(workers, now=1) == pytest.approx(MEASURED[workers], rel=0.05)


def test_one_worker_hides_no_more_than_the_shorter_of_loading_and_computing():
    assert Waiting(0.1, wait=0.9 * 0.1, loading=0.09).best(1, now=0) == pytest.approx(0.09)
    assert Waiting(0.1, wait=0.3 * 0.1, loading=0.03).best(1, now=0) == pytest.approx(0.07)


def test_a_loader_that_waits_itself_gets_workers_however_busy_the_cores_are():
    finding = advised(needs=0.05, busy=100.0)
    assert "num_workers=8," in finding.fixes[0].code
    assert "at best 11.3 ms instead of 100 ms" in finding.fixes[0].effect, "90 ms in 8 workers"
    assert finding.effect is not None
    assert finding.effect.saved_share == pytest.approx(1 - 0.09 / 8 / 0.1, abs=1e-3)
    assert "of each step with 8 workers: up to 8.9 times" in finding.effect.text
    assert "it mostly waits itself" in reasons(finding)
    assert "less than one core" not in reasons(finding)
    assert "torch's warning about more workers than cores does not apply" in reasons(finding), (
        "as it will, for 8 on 2"
    )


def test_no_more_workers_than_hide_the_wait_are_advised():
    finding = advised(needs=0.05, busy=100.0, share=0.6)
    assert "num_workers=4," in finding.fixes[0].code, "60 ms beside 40 ms, and some to spare"
    assert finding.effect is not None
    assert finding.effect.saved_share == pytest.approx(0.6)
    assert "60 % of each step with 4 workers" in finding.effect.text


@pytest.mark.parametrize("share", [0.58, 0.6, 0.64])
def test_a_little_more_or_less_wait_changes_no_number_of_workers(share):
    assert "num_workers=4," in advised(needs=0.05, busy=100.0, share=share).fixes[0].code


@pytest.mark.parametrize(("workers", "wanted"), [(1, 8), (4, 8), (8, 16), (40, 32)])
def test_workers_that_wait_themselves_and_are_too_few_get_more(workers, wanted):
    assert f"num_workers={wanted}," in advised(workers, needs=0.04, busy=90.0).fixes[0].code


def test_a_loader_that_computes_needs_a_core_and_without_one_less_work():
    finding = advised(needs=0.98, busy=100.0)
    assert finding.fixes[0].title.startswith("Make preprocessing cheaper")
    assert "with half the loading time 55.0 ms instead of 100 ms" in finding.fixes[0].effect
    assert "num_workers=1," in finding.fixes[1].code
    assert finding.fixes[1].effect == "", "a worker would only take the training's core"
    assert finding.effect is not None
    assert finding.effect.saved_share == pytest.approx(0.45)
    assert "it computes, so each worker needs a core" in reasons(finding)


def test_a_loader_that_computes_gets_the_cores_that_are_free():
    finding = advised(needs=0.98, busy=13.0, cores=8, share=0.6, cuda=True)
    assert "num_workers=7," in finding.fixes[0].code, "6.96 idle, and what loading computes now"
    assert finding.effect is not None
    assert finding.effect.saved_share == pytest.approx(0.6)


def test_one_free_core_for_a_loader_that_computes_far_longer_than_the_training_is_the_second_way():
    first, second = advised(needs=1.0, busy=50.0, share=0.95).fixes
    assert first.title.startswith("Make preprocessing cheaper")
    assert "at best 95.0 ms instead of 100 ms" in second.effect


def test_what_is_not_measured_promises_no_more_than_the_fix_can_bring():
    finding = advised(workers=None, busy=97.0)
    assert "num_workers=1," in finding.fixes[0].code
    assert "at best 90.0 ms instead of 100 ms" in finding.fixes[0].effect
    assert finding.effect is not None
    assert finding.effect.saved_share == pytest.approx(0.1)
    assert "only if loading waits" in reasons(finding)
