"""The demo scripts: a user's own trainings, which know nothing of this program."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
DEMOS = Path(__file__).resolve().parents[2] / "demos"


def losses(*command: str) -> list[float]:
    """What its progress bar or its lines say."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return [float(number) for number in re.findall(r"loss[ =]([\d.]+)", done.stdout + done.stderr)]


@pytest.mark.parametrize("script", ["plain_train.py", "ddp_train.py"])
def test_it_does_not_know_who_watches(script: str) -> None:
    assert "gpuscope" not in (DEMOS / script).read_text()


def test_the_plain_training_learns_and_shows_a_bar() -> None:
    pytest.importorskip("tqdm")
    first, *_, last = losses(sys.executable, str(DEMOS / "plain_train.py"), "--steps", "60", "--device", "cpu")
    assert last < first


def test_without_tqdm_it_prints_lines() -> None:
    start = (
        "import runpy, sys; sys.modules['tqdm'] = None; del sys.argv[0]; runpy.run_path(sys.argv[0], {}, '__main__')"
    )
    assert (
        len(losses(sys.executable, "-c", start, str(DEMOS / "plain_train.py"), "--steps", "20", "--device", "cpu")) == 1
    )


def test_two_ranks_learn_together_and_end_well() -> None:
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    first, *_, last = losses(*torchrun, str(DEMOS / "ddp_train.py"), "--steps", "60")
    assert last < first
