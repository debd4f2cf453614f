"""Pauses are judged by their share of the wall clock, whatever the median of step times says."""

from __future__ import annotations

from typing import Any

import pytest

from gpuscope.doctor import table
from gpuscope.doctor.finding import Finding
from gpuscope.doctor.live_causes import FINDINGS, MIN_LOOKS
from gpuscope.doctor.live_scene import WORDINGS
from gpuscope.doctor.live_syncs import won_by_one_sync
from gpuscope.doctor.order import rank
from gpuscope.model.time_cause import BARS, PAUSES, SETTINGS, WORDS
from gpuscope.model.time_causes import won_while_idle
from tests.fakes import clocks, views

PAUSE_IDS = {"ddp-no-sync", "dynamic-shapes-recompile", "debug-settings"} | {
    "checkpoint-pause",
    "validation-pause",
    "garbage-collection",
    "allocation-in-steps",
    "host-sync-in-loop",
    "logging-in-loop",
    "own-code-in-loop",
}


def found(
    load: float = 97.0,
    looks: int = 300,
    steps: int = 500,
    more: Any = (),
    cuda: bool = True,
    framework: str | None = None,
    **shares: float,
) -> list[Finding]:
    """One trainer on one H200, a minute of whose time went into rows by these shares.

    Without ``cuda`` it trains on the CPU, and has a look at a device that it does not use.
    """
    places = [[name, f"train.py:7 {name}", 60 * share] for name, share in shares.items()]
    minute = clocks.rows_of(shares, steps, looks) | {"places": places} | dict(more)
    store = clocks.one_trainer(
        minute,
        0.1,
        load,
        cuda=cuda,
        look=None if cuda else clocks.LOOK,
        framework=framework,
        communication_seconds=0.06,
    )
    return rank(one for one in views.judged(store).findings if one.pitfall in PAUSE_IDS)


@pytest.mark.parametrize("name", [*PAUSES, "release"])
def test_a_pause_is_told_from_its_bar_on_with_its_line_and_what_it_costs(name):
    cause, bar = FINDINGS[name][0], BARS[name]
    cause += ".called" if name == "collection" else ""  # a line is known, so the script calls it
    (one,) = found(**{name: bar.warned + 0.01})
    assert (one.cause, one.severity) == (cause, "warning")
    assert any(f"train.py:7 {name}" in part.text for part in one.evidence)
    assert one.effect is not None
    assert one.effect.saved_share == pytest.approx(bar.warned + 0.01)
    assert "120 ms, pauses included" in one.effect.text, "60 s of 500 steps, no median"
    assert ("(" in one.effect.text) == (name != "collection"), "collections are timed, not seen"
    (one,) = found(**{name: bar.told + 0.001})
    assert one.severity == "info"
    assert not found(**{name: bar.told - 0.001})


def test_the_step_that_is_left_at_best_is_what_the_gain_leaves_of_it():
    (one,) = found(validation=0.98)
    assert one.effect is not None
    assert "a step then takes 2.40 ms or more instead of 120 ms" in one.effect.text


@pytest.mark.parametrize(
    ("name", "framework", "option"),
    [
        ("checkpoint", "transformers", "save_steps=2000"),
        ("validation", "transformers", "eval_steps=2000"),
        ("logging", "transformers", "logging_steps=100"),
        ("checkpoint", "lightning", "ModelCheckpoint(every_n_train_steps=2000)"),
        ("validation", "lightning", "val_check_interval=2000"),
        ("logging", "lightning", "log_every_n_steps=100"),
        ("checkpoint", "keras", "save_freq=2000"),
        ("validation", "keras", "validation_freq=5"),
        ("logging", "keras", "update_freq=100"),
        ("checkpoint", "composer", 'save_interval="2000ba"'),
        ("validation", "composer", 'eval_interval="2000ba"'),
        ("checkpoint", "fastai", "every_epoch=10"),
    ],
)
def test_a_frameworks_own_option_is_the_fix_where_it_runs_the_loop(name, framework, option):
    (one,) = found(load=30.0, framework=framework, **{name: 0.5})
    assert option in one.fixes[0].code
    assert {fix.framework for fix in one.fixes} == {framework}
    for other in (None, "ignite"):
        (one,) = found(load=30.0, framework=other, **{name: 0.5})
        fixes = one.fixes or table.load()[one.pitfall].fixes_for(one.cause)
        assert fixes
        assert {fix.framework for fix in fixes} == {""}


def test_few_looks_or_few_steps_are_no_warning_but_of_what_is_timed():
    def severity(**more: float) -> str:
        (one,) = found(**more)
        return one.severity

    assert severity(checkpoint=0.5, looks=MIN_LOOKS) == "warning"
    assert severity(checkpoint=0.5, looks=MIN_LOOKS - 1) == "info", "why lists it too"
    assert severity(checkpoint=0.5, steps=2) == "info"
    timed = severity(collection=0.5, looks=9)
    assert timed == "warning", "the collector keeps the thread from being looked at"


def test_reads_cost_no_more_than_the_device_is_idle():
    assert not found(load=99.0, read=0.8), "it waits for what the device has to do anyway"
    (one,) = found(load=40.0, read=0.8)
    assert (one.cause, one.severity) == ("live.reads", "warning")
    assert one.title.endswith("for 60 % of the last 1 min"), "other screens look further back"
    assert one.effect is not None
    assert one.effect.saved_share == pytest.approx(0.6, abs=0.01)
    assert any("train.py:7 read" in part.text for part in one.evidence)


def test_without_a_gpu_no_cause_and_no_cure_speaks_of_one():
    assert found(load=40.0, read=0.8, copy=0.1), "the same on a GPU"
    told = found(load=40.0, read=0.4, copy=0.1, other=0.3, cuda=False, more={"launch_blocking": 1})
    assert [one.cause for one in told] == ["live.other_code"]
    assert "GPU" not in str(told)


def test_every_cause_has_its_words_and_a_finding_with_a_way_out():
    assert set(BARS) == set(WORDS) == set(FINDINGS)
    for name, _ in FINDINGS.values():
        row = WORDINGS.findings[name]
        assert table.load()[row.pitfall].fixes_for(name), name


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_that_is_on_is_a_cause_at_once(name):
    (one,) = found(more={name.replace("-", "_"): 1}, backward=0.4)
    assert (one.cause, one.severity, one.confidence) == (
        "live.debug_setting",
        "warning",
        "definite",
    )
    assert any("is on in the trainer" in part.text for part in one.evidence)
    assert not found(more={name.replace("-", "_"): 0}, backward=0.4)


def test_idle_time_is_won_only_once():
    assert won_while_idle({"read": 0.5}, 0.3) == pytest.approx(0.3)
    assert won_while_idle({"read": 0.5, "checkpoint": 0.2}, 0.3) == pytest.approx(0.1)
    assert won_while_idle({"read": 0.5, "input": 0.4}, 0.3) == 0.0
    assert won_while_idle({}, 0.9) == 0.0
    rows = {"read": 0.2, "logging": 0.2, "other": 0.3}
    won = [won_while_idle(rows, 0.5, name) for name in rows]
    assert won == pytest.approx([0.2, 0.2, 0.1])
    both = found(load=40.0, read=0.5, checkpoint=0.4)
    saved = [one.effect.saved_share for one in both if one.effect is not None]
    assert sum(share for share in saved if share) <= 0.61


@pytest.mark.parametrize(
    ("name", "cause"), [("logging", "live.logging"), ("other", "live.other_code")]
)
def test_code_beside_the_steps_is_told_with_its_line_where_the_device_is_idle_meanwhile(
    name, cause
):
    assert not found(load=97.0, **{name: 0.6}), "the device works meanwhile"
    (one,) = found(load=30.0, **{name: 0.6})
    assert (one.cause, one.severity) == (cause, "warning")
    assert one.effect is not None
    assert one.effect.saved_share == pytest.approx(0.6, abs=0.01)
    assert any(f"train.py:7 {name}" in part.text for part in one.evidence)
    assert not found(load=30.0, **{name: 0.04})


def test_recompiles_are_told_with_the_guard_and_not_those_of_the_start():
    facts = {"recompiles": 9, "guard": "size of 'x'", "compiled_at": "train.py:3 forward"}
    (one,) = found(more=facts, compile=0.4, collection=0.1)
    assert (one.cause, one.severity) == ("live.recompiles", "warning")
    text = " ".join(part.text for part in one.evidence)
    assert "size of 'x'" in text
    assert "train.py:3 forward" in text
    assert not found(more={**facts, "recompiles": 2}, compile=0.4), "train, eval, a last batch"
    assert not found(more=facts, compile=0.01)
    assert not found(compile=0.9), "the first compilation takes minutes"


def test_a_step_that_reduces_more_than_once_is_told_with_what_one_would_save():
    (one,) = found(more={"gradient_syncs": 4})
    assert (one.cause, one.severity) == ("live.syncs_each_micro_batch", "warning")
    assert one.effect is not None
    assert one.effect.saved_share == pytest.approx(0.06 / 0.12 * 3 / 4)
    assert not found(more={"gradient_syncs": 1})
    assert not found(more={"gradient_syncs": "x", "recompiles": "y"}, compile=0.9)
    assert won_by_one_sync(None, 0.1, 4) is None
    assert won_by_one_sync(0.5, 0.1, 4) == 0.75
