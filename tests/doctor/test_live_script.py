"""The script of a running trainer is judged with what its probe says of the device.

That is the device that it trains on.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpuscope.cli.commands.doctor import live_script
from gpuscope.process.procfs import start_ticks
from gpuscope.wire.frames import TrainerDef

from .script_cases import HEAD, LOOP, MODEL

READS_EACH_LOSS = (
    HEAD + MODEL + "total_loss = 0\n" + LOOP + "    total_loss += loss\n    print(loss.item())\n"
)


@pytest.mark.parametrize(
    ("cuda", "step", "told"),
    [
        (False, 40.0, {"loss-kept"}),
        (True, 40.0, {"loss-kept", "waits-each-step"}),
        (False, None, {"loss-kept", "waits-each-step"}),  # it may be about to begin
    ],
    ids=["on the CPU", "on a GPU", "before its first step"],
)
def test_a_training_on_the_cpu_waits_for_no_gpu(
    tmp_path: Path, monkeypatch, cuda, step, told
) -> None:
    """A training on the CPU waits for no GPU.

    The text alone does not say where it runs: it names CUDA, as a script does that takes what is
    there.
    """
    path = tmp_path / "train.py"
    path.write_text(READS_EACH_LOSS)
    os.utime(path, (1, 1))  # written before the process that stands for the trainer began
    monkeypatch.chdir(tmp_path)
    pid = os.getpid()
    definition = TrainerDef(pid=pid, start=start_ticks(pid), script="train.py", cuda=cuda)
    rank = SimpleNamespace(definition=definition, number={"step": step}.get)
    report = live_script.examine([rank])  # type: ignore[list-item]
    assert {one.cause.removeprefix("script.") for one in report.findings} == told
