"""The demo scripts: a user's own trainings, which know nothing of this program."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.forking import Forked, script

pytestmark = pytest.mark.slow

pytest.importorskip("torch")
DEMOS = Path(__file__).resolve().parents[2] / "demos"


def losses(code: int | None, out: str, errors: str) -> list[float]:
    """What its progress bar or its lines say."""
    assert code == 0, errors
    return [float(number) for number in re.findall(r"loss[ =]([\d.]+)", out + errors)]


def plain(*words: str, before: str = "") -> list[float]:
    """The losses of ``plain_train.py``, run by a process that has imported torch."""
    process = Forked(
        before + script(str(DEMOS / "plain_train.py"), "--device", "cpu", *words), dict(os.environ)
    )
    try:
        out, errors = process.communicate(timeout=120)
    finally:
        process.kill()
    return losses(process.returncode, out, errors)


@pytest.mark.parametrize("script", ["plain_train.py", "ddp_train.py"])
def test_it_does_not_know_who_watches(script: str) -> None:
    assert "gpuscope" not in (DEMOS / script).read_text()


def test_the_plain_training_learns_and_shows_a_bar() -> None:
    pytest.importorskip("tqdm")
    first, *_, last = plain("--steps", "60")
    assert last < first


def test_without_tqdm_it_prints_lines() -> None:
    assert len(plain("--steps", "20", before="import sys; sys.modules['tqdm'] = None\n")) == 1


def test_two_ranks_learn_together_and_end_well() -> None:
    torchrun = (
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
    )
    command = [*torchrun, str(DEMOS / "ddp_train.py"), "--steps", "60"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    first, *_, last = losses(done.returncode, done.stdout, done.stderr)
    assert last < first
