"""A trainer is seen from outside.

The end of its own log tells its step and loss; it is known for how long it has computed nothing.
"""

from __future__ import annotations

import io
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gpuscope.collect import log_progress, lost_since, processes
from gpuscope.collect.log_progress import LOG_COLUMNS, OutsideReader, figures
from gpuscope.doctor import messages
from gpuscope.text.log_figures import lost_run
from gpuscope.wire.frames import LOST, NO_PERMISSION, NOT_SUPPORTED, ProcDef, Unknown
from gpuscope.wire.loss_text import NotFinite, read_not_finite
from tests.fakes.probe_client import wait_for


@pytest.mark.parametrize(
    ("text", "step", "total", "loss"),
    [
        ("step 123 loss 0.42", 123, None, 0.42),
        ("iter: 7/100, train_loss=1.5e-2", 7, 100, 0.015),
        (" 45%|####      | 450/1000 [00:10<00:12, 45.1it/s, loss=0.33]", 450, 1000, 0.33),
        ("{'loss': 2.3, 'step': 90}", 90, None, 2.3),
        ("Step [5/500]  Loss: 0.25", 5, 500, 0.25),
        ("epoch 3 global_step=77 lr 1e-4", 77, None, None),
        ("step 1 loss 3.0\nstep 2 loss 2.0\nsaving to /data", 2, None, 2.0),
        (" 1%|  | 1/99 [0s]\r 2%|  | 2/99 [0s]\r", 2, 99, None),
        ("step 5 loss 1.5\nval loss: 0.1\neval_loss=0.2", 5, None, 1.5),
        ("5.3 it/s, 12 tokens, stepping, lossless 7, gloss 3", None, None, None),
        ("", None, None, None),
    ],
)
def test_the_last_step_and_training_loss_of_a_log(text, step, total, loss):
    assert figures(text)[:3] == (step, total, loss)


SB3 = """
-----------------------------
| time/              |      |
|    total_timesteps | 4096 |
| train/             |      |
|    loss            | 5.3  |
|    value_loss      | 31.5 |
-----------------------------
"""
SKORCH = """
  epoch    train_loss    valid_acc    valid_loss     dur
-------  ------------  -----------  ------------  ------
      1        \x1b[36m0.6905\x1b[0m       \x1b[32m0.6150\x1b[0m        \x1b[35m0.6783\x1b[0m  0.0254
      2        \x1b[36m0.5805\x1b[0m       0.6050        0.6783  0.0254
"""  # noqa: E501
FASTAI = """
epoch     train_loss  valid_loss  accuracy  time
0         2.312000    1.200000    0.500000  00:01
1         nan         1.100000    0.500000  00:01
"""
PANDAS = """
   epoch  train_loss  val_loss
0      3        0.69      0.70
1      4         NaN       NaN
"""
YOLO = """
      Epoch    GPU_mem   box_loss   cls_loss   dfl_loss  Instances       Size
\r\x1b[K        2/3         0G        2.5        3.5          4         12         64: 50% ━━━━━━────── 2/4 3.2it/s 1s
"""  # noqa: E501


@pytest.mark.parametrize(
    ("text", "step", "total", "loss", "epoch"),
    [
        ("Train: 0 [   5/20 ( 25%)]  Loss: 6.93 (6.94)  Time: 0.1s", 5, 20, 6.93, 0),
        ("Epoch: [3][  10/5005]\tTime  0.1 ( 0.2)\tLoss 6.9e+00 (6.8e+00)", 10, 5005, 6.9, 3),
        ("Train Epoch: 1 [640/60000 (1%)]\tLoss: 2.29", 640, 60000, 2.29, 1),
        (
            "train  Epoch   2:    4%|█  | 1/25 [00:00<00:09, 5.2ba/s, loss/train/total=2.3]",
            1,
            25,
            2.3,
            2,
        ),
        ("Epoch 1/4 ━━━━━━━━━━ 10/12 0:00:01 • 0:00:00 120.0it/s train_loss: 0.5", 10, 12, 0.5, 1),
        (
            "\x1b[1m 3/10\x1b[0m \x1b[32m━━━━\x1b[0m\x1b[37m━━━\x1b[0m 0s 5ms/step - loss: 0.7",
            3,
            10,
            0.7,
            None,
        ),
        (SB3, 4096, None, 5.3, None),
        (SKORCH, None, None, 0.5805, 2),
        (YOLO, 2, 4, 10.0, 2),
    ],
)
def test_what_frameworks_print(text, step, total, loss, epoch):
    assert figures(text) == (step, total, loss, epoch)


@pytest.mark.parametrize(("text", "epoch"), [(FASTAI, 1), (PANDAS, 4)], ids=["fastai", "pandas"])
def test_a_loss_in_a_table_that_is_no_number_is_seen(text, epoch):
    found = figures(text)
    assert math.isnan(found.loss)
    assert found.epoch == epoch
    report = messages.report(io.BytesIO(text.encode()), "train.log", "train.log", "")
    titles = [one.title for one in report.findings if one.pitfall == "not-finite"]
    assert f"The loss is NaN since epoch {epoch}" in titles


def test_the_epoch_of_keras_stands_above_its_bar_and_what_redraws_it_is_left_out():
    text = "Epoch 4/9\n\x1b[1m8/8\x1b[0m ━━━━ 1s 5ms/step - loss: nan" + "\b" * 40 + "\n"
    report = messages.report(io.BytesIO(text.encode()), "train.log", "train.log", "")
    said = next(one for one in report.findings if one.pitfall == "not-finite")
    assert "step 8 of 8 in epoch 4" in said.title + said.evidence[0].text
    assert said.evidence[0].text.endswith("loss: nan")


@pytest.mark.parametrize(
    ("line", "lost"),
    [
        ("{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 4.9e-05, 'epoch': 0.02}", True),
        ("{'loss': '0', 'grad_norm': 'nan', 'learning_rate': '4.9e-05'}", True),
        ("{'loss': 0.0, 'grad_norm': 0.0, 'epoch': 0.02}", False),
        ("{'loss': 1.25, 'grad_norm': nan, 'epoch': 0.02}", False),
    ],
)
def test_a_loss_that_a_trainer_leaves_out_because_it_is_no_number_is_lost(line, lost):
    """A grad scaler skips steps whose gradients are no numbers: that alone loses no loss."""
    loss = figures(line).loss
    assert loss is not None
    assert math.isnan(loss) == lost


@pytest.mark.parametrize(
    "text", ["9" * 16384, "step " * 3000, "loss=" * 3000, "1%|" * 5000, "\x1b[" * 8000]
)
def test_a_line_without_end_or_a_hostile_one_says_nothing(text):
    assert figures(text) == (None, None, None, None)


def definition(pid: int, **more: object) -> ProcDef:
    found = processes.describe(pid)
    assert found is not None
    return replace(found[0], **more)  # type: ignore[arg-type]


@pytest.fixture
def writer(tmp_path):
    """Starts a process that sleeps, its standard output and error where the test wants them."""
    started = []

    def start(out, err):
        child = subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(60)"], stdout=out, stderr=err
        )
        started.append(child)
        return child

    yield start
    for child in started:
        child.kill()
        child.wait()


def test_step_and_loss_come_from_a_log_file_and_follow_it(tmp_path, writer):
    log = tmp_path / "train.log"
    log.write_text("x" * 40_000 + "\nstep 41 loss 0.5\n")
    with log.open("a") as stream:
        child = writer(stream, stream)
    reader = OutsideReader()
    who = definition(child.pid)
    found = reader.sample(who, 50.0, 1.0)
    assert (found["log_step"], found["log_loss"]) == (41, 0.5)
    assert isinstance(found["log_total"], Unknown)
    assert 0 <= found["log_age_seconds"] < 60
    with log.open("a") as stream:
        stream.write("step 42/100 loss nan\n")
    found = reader.sample(who, 50.0, 2.0)
    assert (found["log_step"], found["log_total"]) == (42, 100)
    assert found["log_loss"] == Unknown(NOT_SUPPORTED, "its log says nan")
    log.unlink()  # a file without a name is still its log
    assert reader.sample(who, 50.0, 3.0)["log_step"] == 42
    child.kill()
    child.wait()
    gone = reader.sample(who, 50.0, 4.0)
    assert {gone[name].code for name in LOG_COLUMNS} == {LOST}


@pytest.mark.parametrize(
    ("text", "run"),
    [
        ("step 1 loss 2.0\nstep 2 loss nan\n", ("step 2", 1, False)),
        ("step 1 loss 2.0\nstep 2 loss nan\nstep 3 loss inf\n", ("step 2", 2, False)),
        ("step 25 loss 2.0\nstep 50 loss nan\nstep 75 loss nan\n", ("step 26–50", 2, False)),
        ("step 900 loss 2.0\nstep 1000 loss nan\n", ("step 901–1,000", 1, False)),
        ("step 990 loss 2.0\nstep 10 loss nan\n", ("step 10", 1, False)),  # of another epoch
        ("Epoch: [3][ 10/5005] Loss 2.0\nEpoch: [3][ 20/5005] Loss nan\n",
         ("step 11–20 of epoch 3", 1, False)),
        ("step 8 loss nan\nstep 9 loss nan\n", ("step 8", 2, True)),
        ("step 1 loss nan\nstep 2 loss 2.0\n", None),
        ("step 1 loss 2.0\nstep 2 loss 1.9 val_loss nan\n", None),
        ("step 1 loss nan val_loss 2.0\nstep 2 loss nan val_loss 2.0\n", ("step 1", 2, True)),
        ("50%|#| 5/10 [00:01, loss=nan]\r50%|#| 5/10 [00:02, loss=nan]\r", ("step 5", 1, True)),
        ("{'loss': 2.0}\n{'loss': nan}\n{'loss': nan}\n", ("", 2, False)),
        ("Epoch 7: loss=2.0\nEpoch 8: loss=nan\nEpoch 9: loss=nan\n", ("epoch 8", 2, False)),
        ("epoch 8 loss nan\nepoch 8 loss nan\n", ("epoch 8", 2, True)),
        ("{'loss': nan, 'epoch': 0.5}\n{'loss': nan, 'epoch': 1.0}\n", ("", 2, True)),
        (
            "Epoch 4/9\n8/8 ━━━━ 1s 5ms/step - loss: nan\nEpoch 5/9\n8/8 ━━━━ 1s - loss: nan\n",
            ("step 8 of epoch 4", 2, True),
        ),
        ("Epoch: [3][ 10/5005] Loss nan\nEpoch: [3][ 20/5005] Loss nan\n",
         ("step 10 of epoch 3", 2, True)),
        (FASTAI, ("epoch 1", 1, False)),
        ("nothing", None),
    ],
)  # fmt: skip
def test_the_losses_at_the_end_of_a_log_that_are_not_finite_are_counted(text, run):
    assert lost_run(text) == run


def test_a_loss_that_stays_nan_is_told_with_the_step_at_which_it_began(tmp_path, writer):
    log = tmp_path / "train.log"
    log.write_text("".join(f"step {n} loss {2.0 if n < 12 else 'nan'}\n" for n in range(10, 14)))
    with log.open("a") as stream:
        child = writer(stream, stream)
    reader, who = OutsideReader(), definition(child.pid)

    def told(by: OutsideReader) -> NotFinite | None:
        reading = by.sample(who, 50.0, 1.0)["log_loss"]
        return read_not_finite(reading.text) if isinstance(reading, Unknown) else None

    assert told(reader) == NotFinite("nan", "step 12", True)
    with log.open("a") as stream:
        stream.writelines(f"step {n} loss nan\n" for n in range(14, 1500))
    assert told(reader) == NotFinite("nan", "step 12", True), "it has seen the beginning"
    assert told(OutsideReader()) == NotFinite("nan", "step 12", True), "it has searched for it"
    with log.open("a") as stream:
        stream.write("step 1500 loss 1.5\n")
    assert told(reader) is None
    with log.open("a") as stream:
        stream.write("step 1501 loss inf\n")
    assert told(reader) == NotFinite("inf", "", False), "once is no trouble"


@pytest.mark.parametrize(
    ("before", "line", "since"),
    [
        ("step 0 loss 2.0\nstep 25 loss 1.9\n", "step {} loss nan\n", "step 26–50"),
        ("step 0 loss nan\nstep 25 loss 1.9\n", "step {} loss nan val_loss 2\n", "step 26–50"),
        ("step 49 val_loss 1.9\n", "step {} loss nan\n", "step 50 or earlier"),
        ("1%|#| 25/9000 [00:01<01:00, loss=1.9]\r", "1%|#| {}/9000 [00:02<01:00, loss=nan]\r",
         "step 26–50"),
        ("{{'loss': 1.9, 'step': 25}}\n", "{{'loss': 0.0, 'grad_norm': nan, 'step': {}}}\n",
         "step 26–50"),
        ("| total_timesteps | 25 |\n| loss | 1.9 |\n", "| total_timesteps | {} |\n| loss | nan |\n",
         ""),
        ("x" * 3_000_000 + "\nstep 25 loss 1.9\n", "step {} loss inf\n", "step 26–50"),
    ],
)  # fmt: skip
def test_the_first_lost_step_stays_the_same_however_long_the_log_has_become(
    tmp_path, writer, before, line, since
):
    log = tmp_path / "train.log"
    log.write_text(before.format() + line.format(50) + line.format(75))
    with log.open("a") as stream:
        child = writer(stream, stream)
    reader, who = OutsideReader(), definition(child.pid)
    step = 100
    for size in (0, 2, 20, 200):
        while log.stat().st_size < len(before) + size * 1024:
            with log.open("a") as stream:
                stream.writelines(line.format(n) for n in range(step, step + 2500, 25))
            step += 2500
        for one in (reader, OutsideReader()):
            reading = one.sample(who, 50.0, 1.0)["log_loss"]
            assert isinstance(reading, Unknown)
            told = read_not_finite(reading.text)
            assert told is not None
            assert told.since == since, (size, one is reader)


def test_a_log_that_is_too_long_to_search_names_no_step(tmp_path, writer, monkeypatch):
    monkeypatch.setattr(lost_since, "SEARCH_BYTES", 100_000)
    log = tmp_path / "train.log"
    lost = [f"step {n} loss nan\n" for n in range(50, 12_000)]
    log.write_text("step 49 loss 1.5\n" + "".join(lost))
    with log.open("a") as stream:
        child = writer(stream, stream)
    reader, who = OutsideReader(), definition(child.pid)

    def told() -> NotFinite | None:
        reading = reader.sample(who, 50.0, 1.0)["log_loss"]
        return read_not_finite(reading.text) if isinstance(reading, Unknown) else None

    before = NotFinite("nan", "before the part of its log that was read", True)
    assert told() == before
    with log.open("a") as stream:
        stream.write("step 12000 loss nan\n")
    assert told() == before


def test_the_last_figures_of_a_log_stay_while_its_process_ends(tmp_path, writer):
    """An ending process closes its files before it is gone, and may stay as a zombie."""
    log = tmp_path / "train.log"
    log.write_text("step 77 loss 0.5\n")
    with log.open("a") as file:
        child = writer(file, file)
    reader, who = OutsideReader(), definition(child.pid)
    assert reader.sample(who, 5.0, 1.0)["log_loss"] == 0.5
    child.kill()
    wait_for(lambda: "State:\tZ" in Path(f"/proc/{child.pid}/status").read_text(), 10.0)
    assert reader.sample(who, 5.0, 2.0)["log_loss"] == 0.5
    new = OutsideReader().sample(who, 5.0, 2.0)
    assert isinstance(new["log_loss"], Unknown), "of a process that was never seen before"


def test_the_bar_on_standard_error_and_the_loss_on_standard_output_are_put_together(
    tmp_path, writer
):
    (tmp_path / "out").write_text("loss: 0.25\n")
    (tmp_path / "err").write_text("10%|#  | 10/100 [00:01<00:09]\r20%|##  | 20/100 [00:02<00:08]")
    with (tmp_path / "out").open("a") as out, (tmp_path / "err").open("a") as err:
        child = writer(out, err)
    found = OutsideReader().sample(definition(child.pid), 5.0, 1.0)
    assert (found["log_step"], found["log_total"], found["log_loss"]) == (20, 100, 0.25)


def test_what_is_no_file_is_not_read_and_says_why(writer):
    child = writer(subprocess.PIPE, subprocess.DEVNULL)
    found = OutsideReader().sample(definition(child.pid), 0.0, 1.0)
    assert found["log_step"] == Unknown(
        NOT_SUPPORTED, "its output goes to /dev/null and a pipe, not to a readable file"
    )
    child.stdout.close()


def test_another_users_log_is_not_opened(tmp_path, writer, monkeypatch):
    log = tmp_path / "log"
    log.write_text("step 3\n")
    with log.open("a") as stream:
        child = writer(stream, stream)
    who = definition(child.pid, mine=False)
    monkeypatch.setattr(log_progress.os, "open", lambda *_: pytest.fail("it was opened"))
    found = OutsideReader().sample(who, 0.0, 1.0)
    assert {found[name].code for name in LOG_COLUMNS} == {NO_PERMISSION}
    assert found["idle_seconds"] == 0.0


def test_no_more_than_the_end_of_a_log_is_read(tmp_path, writer):
    log = tmp_path / "log"
    log.write_text("step 1\n" + "." * (log_progress.TAIL_BYTES + 10))
    with log.open("a") as stream:
        child = writer(stream, subprocess.DEVNULL)
    assert isinstance(OutsideReader().sample(definition(child.pid), 0.0, 1.0)["log_step"], Unknown)


def test_idle_counts_from_the_last_work_and_is_unknown_where_the_load_is():
    reader, who = OutsideReader(), ProcDef(1, 1)
    why = Unknown(LOST, "gone")
    values = [
        reader.sample(who, load, at)["idle_seconds"]
        for load, at in [(0.0, 10.0), (0.0, 70.0), (35.0, 80.0), (0.2, 95.0), (why, 99.0)]
    ]
    assert values == [0.0, 60.0, 0.0, 15.0, why]
    assert isinstance(reader.sample(who, None, 100.0)["idle_seconds"], Unknown)


def test_the_agents_worker_samples_it():
    from gpuscope.agent.host_workers import ProcessWorker

    worker = ProcessWorker(lambda: None)
    worker.want(frozenset([os.getpid(), (1 << 22) - 1]))
    worker.start()
    wait_for(lambda: worker.settled or worker.known)
    worker.stop()
    readings = worker.known[os.getpid()].readings
    assert set(LOG_COLUMNS) < set(readings)
    assert not any(isinstance(value, float) and math.isnan(value) for value in readings.values())
    assert Path(f"/proc/{os.getpid()}").exists()
