"""The probe's names for a place in the code of a training."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from gpuscope.probe import code_place

LOOP = "n = 0\nwhile n < 3:\n    n += 1\n    last = n\n"


@pytest.mark.skipif(sys.version_info < (3, 10), reason="each instruction has a line there")
def test_an_instruction_without_a_line_has_that_of_the_one_before():
    code = compile(LOOP, "/home/me/train.py", "exec")
    (last,) = [start for start, _, line in code.co_lines() if line == 4][:1]
    frame = SimpleNamespace(f_code=code, f_lineno=None, f_lasti=last, f_back=None)
    found = code_place.place(frame)
    assert found is not None
    assert found.at == "train.py:4 <module>"
    assert code_place.rows(frame) == [["/home/me/train.py", 4, "<module>"]]
    frame.f_lineno = 2
    assert code_place.rows(frame)[0][1] == 2
