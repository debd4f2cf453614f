"""A loss that turns NaN in a log: where it did, what is likely, and what is no such loss."""

from __future__ import annotations

import pytest

from gpuscope.doctor import messages, table

FINITE = tuple(f"step {100 * i} loss: {2.3 - 0.1 * i:.2f}" for i in range(1, 6))


def found(*lines: str):
    return messages.report(list(lines), "log", "log").findings


def fixes(finding):
    return table.load()[finding.pitfall].fixes_for(finding.cause)


def test_a_loss_that_grew_before_points_to_the_learning_rate_and_to_clipping():
    first, *others = found(
        *FINITE, "step 600 loss: 4.1e3", "step 700 loss: 2.0e9", "step 800 loss: nan"
    )
    assert (first.pitfall, first.cause, first.confidence) == (
        "not-finite",
        "loss.diverged",
        "likely",
    )
    assert "NaN since step 701–800, after" in first.title
    assert "steps are too large" in first.title
    assert first.evidence[0].source == "log:8"
    assert "from 2" in first.evidence[1].text
    assert "to 2e+09" in first.evidence[1].text
    codes = [fix.code for fix in fixes(first)]
    assert "LinearLR" in codes[0]
    assert "clip_grad_norm_" in codes[1]
    assert [one.pitfall for one in others] == ["bf16-instead-of-fp16"]
    assert others[0].confidence == "prior"


def test_a_loss_that_is_nan_at_once_points_to_one_operation():
    (first, *_) = found(*FINITE, "step 600 loss: nan", "step 700 loss: nan")
    assert (first.cause, first.evidence[0].source) == ("loss.sudden", "log:6")
    assert "since step 501–600, at once" in first.title
    assert "log(0)" in first.title
    assert "1.8 at step 500" in first.evidence[1].text
    assert "set_detect_anomaly" in fixes(first)[0].code


def test_words_of_fp16_put_its_overflow_first_and_growth_beside_it():
    words = "Using 16bit Automatic Mixed Precision (AMP)"
    first, second, *_ = found(words, *FINITE, "step 600 loss: nan")
    assert (first.pitfall, first.confidence) == ("bf16-instead-of-fp16", "likely")
    assert "at step 501–600, in fp16" in first.title
    assert '"16bit"' in first.evidence[1].text
    assert (second.cause, second.confidence) == ("loss.sudden", "prior")
    first, second, *_ = found(words, *FINITE, "step 600 loss: 900", "step 700 loss: nan")
    assert (second.cause, second.confidence) == ("loss.diverged", "likely")


@pytest.mark.parametrize(
    "words",
    [
        "fp16=False, fp16_backend=auto, bf16=True, half_precision_backend=auto",
        '"fp16": {"enabled": false}',
        "consumed samples: 25600, bf16-mixed, torch.bfloat16",
        "loss scale: 1.0",
    ],
)
def test_settings_that_turn_fp16_off_are_no_evidence_of_it(words):
    first = found(words, *FINITE, "step 600 loss: nan")[0]
    assert first.cause == "loss.sudden"


@pytest.mark.parametrize(
    ("lines", "place"),
    [
        (("{'loss': 2.1, 'epoch': 0.1}", "{'loss': nan, 'epoch': 0.2}"), "epoch 0.2"),
        # The Trainer of transformers logs 0 for a loss that is not finite.
        (
            (
                "{'loss': 2.1, 'grad_norm': 1.5, 'epoch': 0.1}",
                "{'loss': 0.0, 'grad_norm': nan, 'epoch': 0.2}",
            ),
            "epoch 0.2",
        ),
        (
            (
                "Epoch 0:  20%|██        | 20/100 [00:02<00:10, 9.1it/s, loss=2.21, v_num=3]",
                "Epoch 0:  30%|███       | 30/100 [00:03<00:10, 9.1it/s, loss=nan, v_num=3]",
            ),
            "step 21–30 of 100 in epoch 0",
        ),
        (
            (
                "iteration 100/ 500 | lm loss: 7.1E+00 | number of nan iterations: 0 |",
                "iteration 200/ 500 | lm loss: NAN | number of nan iterations: 88 |",
            ),
            "step 101–200 of 500",
        ),
        (("epoch 3, loss 0.9", "epoch 4, loss nan"), "epoch 4"),
        (("step 1 loss 0.9\rstep 2 loss inf\rstep 3 loss nan",), "step 2"),
    ],
)
def test_the_place_is_named_as_each_framework_prints_it(lines, place):
    first = found(*lines)[0]
    assert first.pitfall == "not-finite"
    assert place in first.title


def test_a_loss_that_is_never_finite_points_to_the_data_and_the_first_weights():
    first = found("step 1 loss: nan", "step 2 loss: nan")[0]
    assert (first.cause, first.severity) == ("loss.from-start", "problem")
    assert "isfinite" in fixes(first)[0].code


def test_a_loss_that_recovers_is_only_a_warning():
    first = found(*FINITE, "step 600 loss: nan", "step 700 loss: 1.7")[0]
    assert (first.cause, first.severity) == ("loss.once", "warning")


@pytest.mark.parametrize(
    "lines",
    [
        ("step 1 train_loss=0.9 val_loss=nan val_auc=nan", "step 2 train_loss=0.8 val_loss=nan"),
        ("loading /data/nan/loss/nan_to_num.h5", "shape (nan, 3) of the loss", *FINITE),
        ("Test loss: nan", *FINITE),
        ("UndefinedMetricWarning: no positive samples, the loss of this metric is set to nan",),
        ("step 1 loss 0.9 grad_norm inf", "step 2 loss 0.8 grad_norm 1.0"),
    ],
)
def test_other_numbers_that_are_not_finite_are_no_finding(lines):
    assert [one.pitfall for one in found(*lines)] == []


def test_anomaly_detection_names_the_operation():
    lines = (
        *FINITE,
        "Traceback (most recent call last):",
        '  File "train.py", line 30, in <module>',
        "RuntimeError: Function 'LogBackward0' returned nan values in its 0th output.",
    )
    first = found(*lines)[0]
    assert (first.cause, first.confidence) == ("loss.log", "definite")
    assert "clamp_min" in fixes(first)[0].code
    lines = (*lines[:-1], lines[-1].replace("LogB", "BmmB"))
    assert found(*lines)[0].cause == "loss.operation"


def test_the_first_nan_of_a_large_log_is_found_among_many_others(tmp_path):
    log = tmp_path / "log"
    with log.open("w") as out:
        for i in range(30000):
            out.write(f"Warning: line {i} of another library\n")
            if i % 50 == 0:
                loss = "nan" if i >= 20000 else f"{2 + i % 7 / 10}"
                out.write(f"step {i} loss: {loss} val_loss: nan nan iterations 3\n")
    first = messages.report(log, "log", "log").findings[0]
    assert (first.cause, first.evidence[0].source) == ("loss.sudden", "log:20402")
    assert "step 19,951–20,000" in first.title
    assert "19,950" in first.evidence[1].text


def test_the_first_nan_of_a_progress_bar_in_one_line_is_found(tmp_path):
    log = tmp_path / "log"
    bars = (
        f"Epoch 1: | {i}/20000 [00:01<00:10, 9it/s, loss={'nan' if i >= 7000 else 0.7}] step {i}"
        for i in range(20000)
    )
    log.write_text("\r".join(bars))
    assert "step 7,000" in messages.report(log, "log", "log").findings[0].title
