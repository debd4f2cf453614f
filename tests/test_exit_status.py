"""Exit codes that scripts rely on."""

from __future__ import annotations

import json

from gpuscope.exit_status import ExitStatus


def test_no_code_ever_changes():
    assert {one.name: one.value for one in ExitStatus} == {
        "OK": 0,
        "WARNINGS": 1,
        "PROBLEMS": 2,
        "UNCHECKED": 3,
        "STALLED": 10,
        "NOT_FINITE": 11,
        "SLOWER": 12,
        "USAGE": 64,
        "CRASHED": 70,
        "TIMED_OUT": 124,
        "INTERRUPTED": 130,
        "NO_READER": 141,
    }


def test_a_code_is_a_number_in_documents_and_messages():
    code = ExitStatus.UNCHECKED
    assert (json.dumps({"exit_code": code}), f"{code}", str(code)) == ('{"exit_code": 3}', "3", "3")
