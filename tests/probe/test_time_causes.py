"""What dynamo recorded of its compilations becomes a fact of the time ledger."""

from __future__ import annotations

import json
import sys
import time
from types import SimpleNamespace

import pytest

from gpuscope.probe import time_causes
from tests.fakes import forking
from tests.fakes.forking import completed
from tests.fakes.probe_client import environment


def compilation(line: int, reason: str | None, age: float = 10.0) -> SimpleNamespace:
    return SimpleNamespace(
        co_filename="/home/ada/train.py",
        co_firstlineno=line,
        co_name="forward",
        recompile_reason=reason,
        start_time_us=int((time.time() - age) * 1e6),
    )


@pytest.fixture
def record(monkeypatch):
    kept: list[SimpleNamespace] = []
    utils = SimpleNamespace(get_compilation_metrics=lambda: list(kept))
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", utils)
    return kept


def test_the_function_that_is_compiled_again_most_is_told_with_its_last_guard(record):
    record += [compilation(3, None), compilation(9, "0/0: tensor 'y' stride mismatch")]
    record += [
        compilation(3, f"0/{n}: tensor 'x' size mismatch. expected {n}\n- more") for n in (4, 5)
    ]
    record.append(compilation(3, "0/0: long ago", age=time_causes.WINDOW_SECONDS + 1))
    assert time_causes.recompiles() == {
        "recompiles": 2,
        "guard": "tensor 'x' size mismatch. expected 5",
        "compiled_at": "/home/ada/train.py:3 forward",
    }


def test_a_model_that_is_compiled_once_is_no_fact(record):
    record.append(compilation(3, None))
    assert time_causes.recompiles() == {}


def test_another_torch_tells_nothing(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", SimpleNamespace())
    assert time_causes.recompiles() == {}
    monkeypatch.delitem(sys.modules, "torch._dynamo.utils")
    assert time_causes.recompiles() == {}


COMPILES = """
import json, sys
from gpuscope.probe import time_causes
import torch
before = "torch._dynamo.utils" in sys.modules, time_causes.recompiles()

@torch.compile(dynamic=False, backend="eager")
def double(x):
    return x * 2

for size in range(3, 8):
    double(torch.ones(size))
print(json.dumps([before, time_causes.recompiles()]))
"""


@pytest.mark.slow
def test_real_dynamo_tells_which_size_changed(tmp_path):
    pytest.importorskip("torch")
    script = tmp_path / "train.py"
    script.write_text(COMPILES)
    done = completed(forking.script(str(script)), environment())
    assert done.returncode == 0, done.stderr
    _, told = json.loads(done.stdout)
    assert told["recompiles"] == 4
    assert "size mismatch at index 0" in told["guard"]
    assert told["compiled_at"] == f"{script}:7 double"
