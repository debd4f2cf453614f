"""Numbers in documents that others wrote."""

from __future__ import annotations

import json
import math

import pytest

from gpuscope.model import look
from gpuscope.text.numbers import amount, number, whole


@pytest.mark.parametrize(
    "value", [None, True, "3", [3], math.nan, math.inf, 10**400], ids=lambda one: str(one)[:5]
)
def test_what_is_no_finite_number_is_none(value):
    assert number(value) is amount(value) is None


def test_numbers_are_kept_within_their_bounds():
    assert (number(-2), amount(-2), amount(2)) == (-2.0, None, 2.0)
    assert [whole(one) for one in (-1, 0, 7, 1 << 63, 2.0, True)] == [None, 0, 7, None, None, None]
    assert (whole(0, 1), whole(9, 1, 8)) == (None, None)


def test_an_answer_with_an_endless_number_is_no_look():
    assert look.read(json.loads('{"steps": 2, "seconds": 1' + "0" * 400 + "}")) is None
