"""What torch logs of a compiled model is read, and bounded."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from gpuscope.lab import compiling
from gpuscope.lab.compiling import a_break, a_recompile

BREAK = """Graph break in user code at /home/ada/train.py:12
Graph Break Reason: Encountered graph break when attempting to trace CALL: a function call, e.g. f(x, y):

Failed to trace builtin operator
  Explanation: Dynamo does not know how to trace builtin operator `print`.
  Hint: Avoid calling builtin `print`.
"""  # noqa: E501
OLDER_BREAK = """Graph break in user code at /home/ada/train.py:12
Reason: Unsupported: call_function BuiltinVariable(print) [ConstantVariable()] {}
User code traceback:
"""
RECOMPILE = """Recompiling function forward in /home/ada/train.py:8
    triggered by the following guard failure(s):
    - 0/1: tensor 'x' size mismatch at index 0. expected 5, actual 6
    - 0/0: tensor 'x' size mismatch at index 0. expected 4, actual 6"""


def test_what_torch_logs_is_read() -> None:
    assert a_break(BREAK) == (
        "/home/ada/train.py:12",
        "Failed to trace builtin operator: Dynamo does not know how to trace builtin operator "
        "`print`.",
    )
    assert a_break(OLDER_BREAK) == (
        "/home/ada/train.py:12",
        "Unsupported: call_function BuiltinVariable(print) [ConstantVariable()] {}",
    )
    assert a_recompile(RECOMPILE) == (
        "forward (/home/ada/train.py:8)",
        "tensor 'x' size mismatch at index 0. expected 5, actual 6",
    )
    assert a_break("nothing of the kind") is None
    assert a_recompile("nothing of the kind") is None
    assert len(a_break(BREAK.replace("operator", "operator" * 200))[1]) <= compiling.MOST_CHARACTERS


@pytest.mark.slow  # the counters are in torch._dynamo
def test_names_are_bounded() -> None:
    listener = compiling.Compilation("default", False)
    for line in range(200):
        listener._count_log_line("graph_breaks", BREAK.replace(":12", f":{line}"))
    rows = listener.summary()["graph_breaks"]
    assert len(rows) == compiling.MOST_NAMED + 1
    assert sum(row["count"] for row in rows) == 200
