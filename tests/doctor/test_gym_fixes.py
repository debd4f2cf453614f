"""No fix is wrong advice.

Each fix that a CPU can show is applied to the script that needs it, and that then runs clean.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from gpuscope.doctor.script import report
from tests.fakes.forked_scripts import Scripts
from tests.lab.test_pitfall_scripts import ANYWHERE, committed

from .gym_fixes import followed
from .gym_subjects import LOOKED_AT, PITFALLS

torch = pytest.importorskip("torch")
BY_COMMAND = "ddp-no-environment"
"""Its script is as it should be."""
BY_HAND = {"dataparallel-autocast"}
SILENT = {
    "cuda-slower-than-cpu",
    "dataparallel-gil",
    "convolution-speed",
    "not-reproducible",
    BY_COMMAND,
}
"""What their scripts show is worth a word at most: there is nothing to follow."""
WHILE_IT_RUNS = {
    "checkpoint-pause",
    "ddp-no-sync",
    "garbage-collection",
    "recompiles",
    "straggler",
    "validation-pause",
    *LOOKED_AT,
}
"""How long their pauses take, and what their GPU does, is seen in a running training only: the
script itself is sound.
"""


@pytest.mark.slow
def test_the_fixes_followed_make_the_faulty_script_a_sound_one(tmp_path: Path):
    scripts = Scripts(tmp_path, CUDA_VISIBLE_DEVICES="")
    tried = []
    try:
        for name, (check, words) in ANYWHERE.items():
            if name == BY_COMMAND or name in WHILE_IT_RUNS:
                continue
            path = tmp_path / PITFALLS[name].faulty.name
            text, done = followed(str(path), PITFALLS[name].faulty.read_text())
            assert PITFALLS[name].named in done
            fixed = replace(PITFALLS[name], cured=path)
            assert path.read_text() == text
            committed(scripts, fixed, check, words)
            tried.append(name)
    finally:
        scripts.end()
    assert len(tried) >= 9


@pytest.mark.parametrize("name", sorted({*PITFALLS} - SILENT - BY_HAND - WHILE_IT_RUNS))
def test_following_the_fixes_leaves_nothing_to_say(name: str, tmp_path: Path):
    """Following the fixes leaves nothing to say.

    That holds also for those that only a GPU can run: the text is right, and no longer faulty to
    the checks.
    """
    path = tmp_path / "train.py"
    _, done = followed(str(path), PITFALLS[name].faulty.read_text())
    assert done
    assert {*done} == {PITFALLS[name].named}
    assert not [one for one in report([str(path)]).findings if one.severity != "info"]


def test_the_type_of_autocast_is_a_threads_own():
    """The type of autocast is a thread's own.

    autocast-inside-forward rests on it: its threads are told "on" alone
    (torch/nn/parallel/parallel_apply.py).
    """
    seen = []

    def inside() -> None:
        layer, inputs = torch.nn.Linear(4, 4), torch.randn(2, 4)
        with torch.autocast("cpu", enabled=True):
            seen.append(layer(inputs).dtype)
        with torch.autocast("cpu", dtype=torch.float16):
            seen.append(layer(inputs).dtype)

    with torch.autocast("cpu", dtype=torch.float16):
        thread = threading.Thread(target=inside)
        thread.start()
        thread.join()
        own = torch.nn.Linear(4, 4)(torch.randn(2, 4)).dtype
    assert own == torch.float16
    assert seen == [torch.bfloat16, torch.float16], (
        "the CPU's own default, until the thread itself says otherwise"
    )
