"""The gym runs on a CPU.

What needs no GPU is really run, and the doctor is asked by every way that the index names.

Two tests, for each imports torch once and runs its trainings beside each other. On GPUs:
``test_gym_gpu.py``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuscope.doctor import table

from . import gym, gym_forks, gym_subjects

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("_torch")]
LEAST_CONTROLS = 10


@pytest.fixture
def _torch() -> None:
    pytest.importorskip("torch")


def wrong(answers: list[gym.Answer]) -> list[str]:
    return [
        f"{one.subject.name}, by its {one.kind}: {one.wrong()}" for one in answers if one.wrong()
    ]


def test_every_pitfall_is_named_first_and_its_cure_is_quiet(tmp_path: Path):
    chosen = [one for one in gym_subjects.pitfall_subjects() if one.gpus == 0]
    assert len(chosen) > 16
    answers = gym_forks.all_of(chosen, tmp_path)
    assert {one.kind for one in answers} == {*gym_subjects.KINDS}
    assert not wrong(answers)


def test_a_healthy_training_is_left_alone(tmp_path: Path):
    chosen = [one for one in gym_subjects.control_subjects() if one.gpus == 0]
    assert len(chosen) >= LEAST_CONTROLS
    answers = gym_forks.all_of(chosen, tmp_path)
    assert len(answers) == len(gym_subjects.KINDS) * len(chosen)
    assert not wrong(answers)


def test_what_needs_a_gpu_to_run_is_told_from_its_text():
    subjects = [one for one in gym_subjects.subjects() if one.gpus and "script" in one.kinds]
    assert len(subjects) > 16
    assert not wrong([gym.by_script(one, gym.ask_here) for one in subjects])


def test_the_index_names_rows_of_the_table():
    assert {one.named for one in gym_subjects.PITFALLS.values()} <= table.load().keys()


def test_every_control_says_what_it_is_and_why_one_could_cry_wolf():
    found = gym_subjects.controls()
    assert len({one.name for one in found}) == len(found) >= LEAST_CONTROLS
    for one in found:
        assert one.what.endswith(".")
        assert one.why.endswith(".")
        assert len(one.why) > 40
