"""The gym runs on GPUs: ``pytest -m gpu``.

It needs a card that nobody else uses (a few of its scripts fill it).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from . import gym, gym_fixes, gym_subjects

pytestmark = pytest.mark.gpu
BESIDE = {1: 8, 2: 3}


@pytest.mark.parametrize("gpus", [1, 2])
def test_every_pitfall_is_named_first_and_nobody_healthy_is_troubled(gpus: int, tmp_path: Path):
    torch = pytest.importorskip("torch")
    if torch.cuda.device_count() < gpus:
        pytest.skip(f"needs {gpus} CUDA device{'s' * (gpus > 1)}")
    chosen = [one for one in gym_subjects.subjects() if gym_subjects.meant_for(one, gpus)]
    chosen += gym_fixes.fixed_subjects(gpus, tmp_path)
    assert len(chosen) > 14
    answers = gym.run_all(
        chosen, tmp_path, BESIDE[gpus], lambda answer: print(gym.line_of(answer), flush=True)
    )
    assert len(answers) > len(chosen)
    assert not [gym.line_of(one) for one in answers if one.wrong()]
