"""The gym's pitfalls and their cures run on GPUs: ``pytest -m gpu``.

It needs a card that nobody else uses (a few of its scripts fill it). Those that a look at the
device names are in ``test_live_causes_gpu.py``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from . import gym, gym_subjects

pytestmark = pytest.mark.gpu
BESIDE = {1: 8, 2: 3}


def check(chosen: list[gym_subjects.Subject], gpus: int, folder: Path) -> None:
    """Run them on so many GPUs: whatever the doctor answers is right."""
    torch = pytest.importorskip("torch")
    if torch.cuda.device_count() < gpus:
        pytest.skip(f"needs {gpus} CUDA device{'s' * (gpus > 1)}")
    answers = gym.run_all(
        chosen, folder, BESIDE[gpus], lambda answer: print(gym.line_of(answer), flush=True)
    )
    assert len(answers) > len(chosen)
    assert not [gym.line_of(one) for one in answers if one.wrong()]


@pytest.mark.parametrize("gpus", [1, 2])
def test_every_pitfall_is_named_first_and_no_cure_is_troubled(gpus: int, tmp_path: Path):
    every = gym_subjects.pitfall_subjects()
    chosen = [one for one in every if gym_subjects.meant_for(one, gpus) and not one.look]
    assert len(chosen) > 14
    check(chosen, gpus, tmp_path)
