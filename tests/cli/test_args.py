"""Types of options: what they take, and the sentence that refuses the rest."""

from __future__ import annotations

from argparse import ArgumentTypeError

import pytest

from gpuscope.cli.args import number_between, seconds_between, size_of_at_least, whole_between
from gpuscope.text.units import GIB, MIB


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (size_of_at_least(MIB), "24GiB", 24 * GIB),
        (size_of_at_least(MIB), "1048576", MIB),
        (seconds_between(0.1, 600), "0.1", 0.1),
        (seconds_between(0.1, 600), "600", 600.0),
        (number_between(1, 10), "2.5", 2.5),
        (whole_between(0, 9), "0", 0),
        (whole_between(0, 9), "9", 9),
    ],
)
def test_what_lies_between_the_bounds_is_taken(parse, text, value):
    assert parse(text) == value


@pytest.mark.parametrize(
    ("parse", "texts", "refusal"),
    [
        (
            size_of_at_least(64 * MIB),
            ["63MiB", "much", "", "-1", "nan", "2PiB"],
            "must be a size such as 24GiB or 500MiB, at least 64.0 MiB",
        ),
        (
            seconds_between(0.1, 600),
            ["0", "601", "nan", "inf", "-1", "x", ""],
            "must be a number of seconds from 0.1 to 600",
        ),
        (number_between(1, 10), ["0.9", "10.1", "nan", "x"], "must be a number from 1 to 10"),
        (
            whole_between(1, 1000),
            ["0", "1001", "-1", "1e3", "1.0", "²", " 1", "9" * 5000],
            "must be a whole number from 1 to 1000",
        ),
    ],
)
def test_what_lies_outside_is_refused_in_one_sentence(parse, texts, refusal):
    for text in texts:
        with pytest.raises(ArgumentTypeError, match=refusal):
            parse(text)
