"""A training that ended well is said to have, and nothing is guessed of it."""

from __future__ import annotations

import json

import pytest

from gpuscope.cli import main as cli
from gpuscope.doctor.messages.ending import ended_well
from gpuscope.exit_status import ExitStatus

CONFIG = ["config:", "  oom_retry: 3", "  on OOM: halve the batch", "  expandable_segments: true"]
STEPS = [
    f"INFO step {i}/3000 loss {2 + 100 / (i + 40):.4f} mem 41.2 GiB" for i in range(0, 2950, 50)
]
LAST = "INFO step 3000/3000 loss 2.0310 mem 41.2 GiB"
WELL = "It ended well: the last step it printed is 3,000 of 3,000, the last loss 2.031."


def asked(capsys, tmp_path, lines, *options):
    path = tmp_path / "train.log"
    path.write_text("\n".join(lines) + "\n")
    code = cli.main(["doctor", str(path), *options])
    return code, capsys.readouterr().out


def test_of_a_log_that_ends_well_nothing_is_guessed(capsys, tmp_path):
    lines = [*CONFIG, *STEPS, LAST, "Saved checkpoint to out/last.pt", "Training finished in 312 s"]
    code, out = asked(capsys, tmp_path, lines)
    out = " ".join(out.split())
    assert code == ExitStatus.OK
    assert out == f"{WELL} Nothing wrong was found in train.log. Exit code 0."
    _, out = asked(capsys, tmp_path, lines, "--json")
    document = json.loads(out)
    assert (document["ended_well"], document["findings"], document["abstained"]) == (WELL, [], [])


def test_guesses_stay_where_it_failed_or_the_symptom_is_given(capsys, tmp_path):
    failed = [*CONFIG, *STEPS, "torch.OutOfMemoryError: CUDA out of memory."]
    _, out = asked(capsys, tmp_path, failed, "--json")
    document = json.loads(out)
    assert document["findings"]
    assert "ended_well" not in document
    _, out = asked(capsys, tmp_path, [*STEPS, LAST], "--json", "--symptom", "it is slow")
    assert json.loads(out)["findings"]


def test_a_setting_that_names_oom_is_no_failure_while_the_training_goes_on(capsys, tmp_path):
    _, out = asked(capsys, tmp_path, [*CONFIG, *STEPS])
    assert out == "Nothing wrong was found in train.log. Exit code 0.\n"
    for failed in (["WARNING: OOM in step 7, skipping the batch", *STEPS], [*STEPS, "OOM again"]):
        _, out = asked(capsys, tmp_path, failed, "--json")
        assert "oom.genuine" in [one["cause"] for one in json.loads(out)["findings"]]


def test_a_warning_stays_beside_the_good_end(capsys, tmp_path):
    told = (
        "UserWarning: This DataLoader will create 96 worker processes in total. Our suggested max "
        "number of worker in current system is 8"
    )
    code, out = asked(capsys, tmp_path, [told, *STEPS, LAST])
    assert "num-workers" in out
    assert WELL in " ".join(out.split())
    assert code in (ExitStatus.OK, ExitStatus.WARNINGS)


@pytest.mark.parametrize(
    ("end", "said"),
    [
        ([LAST], WELL),
        (["all steps done"], "the last step it printed is 2,900, the last loss 2.034"),
        (
            ["{'train_runtime': 312.1, 'train_loss': 2.1}", "100%|####| 30/30 [05:12<00:00]"],
            "30 of 30",
        ),
        (["`Trainer.fit` stopped: `max_epochs=2` reached."], "2,900"),
    ],
)
def test_what_says_that_it_is_over(end, said):
    steps = [line.replace("/3000", "") for line in STEPS]
    assert said in ended_well([*CONFIG, *steps, *end])


@pytest.mark.parametrize(
    "end",
    [
        [],
        ["Killed"],
        ["saving the checkpoint is done"],
        ["epoch 3 done"],
        [LAST, "Traceback (most recent call last):", "ValueError: no space"],
        [LAST, "slurmstepd: error: Detected 1 oom_kill event in StepId=81.0"],
        [LAST, "upload failed, giving up"],
        ["step 3000/3000 loss nan"],
        ["Epoch 1: 100%|####| 118/118 [00:31<00:00]"],
        ["Loading shards: 100%|####| 4/4 [00:31<00:00]"],
        ["training finished", "INFO step 3001/9000 loss 2.02"],
    ],
)
def test_what_may_have_failed_is_not_called_well(end):
    assert ended_well([*CONFIG, *STEPS, *end]) == ""


def test_a_text_without_a_step_or_a_loss_is_no_training():
    assert ended_well(["the download is finished", "all done"]) == ""


def test_a_setting_of_pinned_memory_beside_the_word_for_a_full_gpu_is_no_failure(capsys, tmp_path):
    told = ["dataloader_pin_memory=True,", "oom_retry: 3 (after CUDA out of memory)"]
    code, out = asked(capsys, tmp_path, [*told, *STEPS, LAST])
    assert code == ExitStatus.OK
    assert "pin-memory" not in out
