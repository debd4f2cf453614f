"""Nobody healthy is troubled on GPUs: the gym's controls, and scripts with their fixes followed.

It needs a card that nobody else uses (one of its scripts fills it).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from . import gym_fixes, gym_subjects
from .test_gym_gpu import check

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("gpus", [1, 2])
def test_nobody_healthy_is_troubled(gpus: int, tmp_path: Path):
    every = gym_subjects.control_subjects() + gym_fixes.fixed_subjects(gpus, tmp_path)
    chosen = [one for one in every if gym_subjects.meant_for(one, gpus) and not one.look]
    assert chosen
    check(chosen, gpus, tmp_path)
