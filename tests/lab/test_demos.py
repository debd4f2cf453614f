"""The demo scripts: a user's own trainings, which know nothing of this program."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.fakes.forking import Forked, forking_python, script

pytestmark = pytest.mark.slow

pytest.importorskip("torch")
DEMOS = Path(__file__).resolve().parents[2] / "demos"


def ended(code: str, environ: Mapping[str, str] = os.environ) -> list[float]:
    """The losses in the progress bar or the lines of a program that finds torch imported."""
    process = Forked(code, dict(environ))
    try:
        out, errors = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 0, errors
    return [float(number) for number in re.findall(r"loss[ =]([\d.]+)", out + errors)]


def plain(*words: str, before: str = "") -> list[float]:
    """The losses of ``plain_train.py``."""
    return ended(before + script(str(DEMOS / "plain_train.py"), "--device", "cpu", *words))


@pytest.mark.parametrize("script", ["plain_train.py", "ddp_train.py"])
def test_it_does_not_know_who_watches(script: str) -> None:
    assert "gpuscope" not in (DEMOS / script).read_text()


def test_the_plain_training_learns_and_shows_a_bar() -> None:
    pytest.importorskip("tqdm")
    first, *_, last = plain("--steps", "60")
    assert last < first


def test_without_tqdm_it_prints_lines() -> None:
    assert len(plain("--steps", "20", before="import sys; sys.modules['tqdm'] = None\n")) == 1


def test_two_ranks_learn_together_and_end_well(tmp_path: Path) -> None:
    words = ["--standalone", "--nproc-per-node", "2", str(DEMOS / "ddp_train.py"), "--steps", "60"]
    environ = {**os.environ, "PYTHON_EXEC": forking_python(tmp_path)}
    first, *_, last = ended(script("torch.distributed.run", *words), environ)
    assert last < first
