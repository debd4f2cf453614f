"""Whose a source file is, told by its path alone."""

from __future__ import annotations

import pytest

from gpuscope.wire.code_owner import OWN, PACKAGE, STDLIB, TORCH, last_own_line, owner

SITE = "/opt/venv/lib/python3.11/site-packages"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/home/ada/train.py", OWN),
        ("train.py", OWN),
        ("/home/ada/torch/train.py", OWN),  # a project of that name
        ("/home/ada/torch-tricks/train.py", OWN),
        ("<stdin>", OWN),
        ("<ipython-input-3-0f2a>", OWN),
        ("/tmp/ipykernel_71/3141.py", OWN),
        (f"{SITE}/torch/nn/modules/module.py", TORCH),
        ("/src/pytorch/torch/nn/functional.py", TORCH),  # a checkout
        ("/src/pytorch/torch/_tensor.py", TORCH),
        ("torch/serialization.py", TORCH),  # as py-spy shortens it
        ("<eval_with_key>.5", TORCH),
        (f"{SITE}/transformers/trainer.py", PACKAGE),
        ("/usr/lib/python3/dist-packages/yaml/__init__.py", PACKAGE),
        ("numpy/core/multiarray.py", PACKAGE),
        ("/usr/lib/python3.11/multiprocessing/queues.py", STDLIB),
        ("multiprocessing/queues.py", STDLIB),
        ("threading.py", STDLIB),
        ("/home/ada/queue.py", OWN),
        ("<frozen runpy>", STDLIB),
        ("<string>", STDLIB),
        ("/pytorch/aten/src/ATen/native/Linear.cpp", STDLIB),
        ("??", STDLIB),
        ("", STDLIB),
    ],
)
def test_the_owner_of_a_file(path, expected):
    assert owner(path) == expected


def test_the_innermost_own_line_of_an_exception(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import json\ndef load(text):\n    return json.loads(text)\n")
    space: dict = {}
    exec(compile(script.read_text(), str(script), "exec"), space)
    with pytest.raises(ValueError, match="Expecting") as caught:
        space["load"]("{")
    assert last_own_line(caught.value) == f"{script}:3"
    assert last_own_line(ValueError("never raised")) == ""
