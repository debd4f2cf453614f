"""One way to write bytes, durations, ages and shares, and one to read sizes."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpuscope.text.units import (
    GIB,
    KIB,
    MIB,
    TIB,
    age_text,
    amount_text,
    amounts_text,
    brief_age_text,
    brief_duration_text,
    brief_left_text,
    bytes_text,
    duration_text,
    error_text,
    left_text,
    parse_size,
    percent_text,
    rate_text,
    short_age_text,
    sides_text,
    signed_bytes_text,
    sizes_text,
    window_text,
)
from tests.fakes.cases import each


@each(
    ("count", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (1023, "1023 B"),
        (1023.7, "1.00 KiB"),
        (1024, "1.00 KiB"),
        (20 * MIB, "20.0 MiB"),
        (486 * MIB, "486 MiB"),
        (1010 * MIB, "1010 MiB"),
        (GIB - 1, "1.00 GiB"),
        (2.68 * GIB, "2.68 GiB"),
        (9.996 * GIB, "10.0 GiB"),
        (139.8 * GIB, "140 GiB"),
        (1.5 * TIB, "1.50 TiB"),
        (-486 * MIB, "-486 MiB"),
        (-0.2, "0 B"),
        (math.nan, "–"),
        (math.inf, "–"),
    ],
)
def test_bytes_have_three_digits_and_one_unit(count, text):
    assert bytes_text(count) == text


@given(st.integers(min_value=1, max_value=1 << 59))
@example(1111)
def test_printed_bytes_are_read_as_nearly_the_same(count):
    text = bytes_text(count)
    digits = re.sub(r"\D", "", text.split(" ")[0])
    assert len(digits.lstrip("0")) <= 3 or 1000 <= int(digits) <= 1023
    whole_byte = 1  # A size is read as a whole number of bytes: 1.08 KiB as 1105, not 1105.92.
    assert abs(parse_size(text) - count) <= 0.0051 * count + whole_byte


def test_differences_and_rates():
    assert [signed_bytes_text(n) for n in (MIB, -MIB, 0)] == ["+1.00 MiB", "-1.00 MiB", "0 B"]
    assert rate_text(1.2 * GIB) == "1.20 GiB/s"


@pytest.mark.parametrize(
    ("count", "unit", "text"),
    [
        (0, GIB, "0"),
        (40 * MIB, GIB, "0.04"),
        (MIB, GIB, "<0.01"),
        (-MIB, GIB, ">-0.01"),
        (2.68 * GIB, GIB, "2.68"),
        (69.7 * GIB, GIB, "69.7"),
        (139.8 * GIB, GIB, "140"),
        (1024 * GIB, GIB, "1024"),
        (6 * MIB, MIB, "6.00"),
        (math.inf, GIB, "–"),
    ],
)
def test_a_column_names_its_unit_once(count, unit, text):
    assert amount_text(count, unit) == text


def test_sizes_beside_each_other_have_one_unit_and_three_digits():
    assert sizes_text(3.78 * GIB, 7.4 * GIB) == "3.78/7.40 GiB"
    assert sizes_text(65.1 * MIB, 68 * MIB) == "65.1/68.0 MiB"
    assert sizes_text(65.1 * MIB) == "65.1 MiB"
    assert sizes_text(65.1 * MIB, 1 * GIB) == "0.06/1.00 GiB", "of one the digits are enough"
    assert sizes_text(None, 68 * MIB) == "–/68.0 MiB"
    assert sizes_text(0.0, 0.0) == "0/0 GiB"
    assert amounts_text(65.1 * MIB, None) == "0.06/–", "the unit stands in the head"


@each(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (312e-6, "312 µs"),
        (0.9999e-3, "1.00 ms"),
        (0.0526, "52.6 ms"),
        (0.99999, "1.00 s"),
        (1.84, "1.84 s"),
        (59.97, "1 min 00 s"),
        (125, "2 min 05 s"),
        (3599.9, "1 h 00 min"),
        (12000, "3 h 20 min"),
        (5 * 86400 + 7200, "5 d 2 h"),
        (-125, "-2 min 05 s"),
        (math.nan, "–"),
    ],
)
def test_durations(seconds, text):
    assert duration_text(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "now"),
        (0.9, "now"),
        (8.9, "8 s"),
        (125, "2 min 05 s"),
        (12000, "3 h 20 min"),
        (86399, "23 h 59 min"),
        (5 * 86400 + 7200, "5 d 2 h"),
        (400 * 86400, "400 d"),
        (math.inf, "–"),
    ],
)
def test_ages(seconds, text):
    assert age_text(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "duration", "age"),
    [
        (0.0526, "52.6 ms", "now"),
        (8.9, "8.90 s", "8 s"),
        (59.2, "59.2 s", "59 s"),
        (92, "1m 32s", "1m 32s"),
        (12000, "3h 20m", "3h 20m"),
        (86399, "23h 59m", "23h 59m"),
        (5 * 86400 + 7200, "5d 2h", "5d 2h"),
        (400 * 86400, "400d", "400d"),
        (math.inf, "–", "–"),
    ],
)
def test_times_in_a_cell(seconds, duration, age):
    assert brief_duration_text(seconds) == duration
    assert brief_age_text(seconds) == age


@given(st.floats(min_value=0))
def test_no_time_is_wider_than_its_cell(seconds):
    for text in (brief_age_text(seconds), brief_duration_text(seconds), brief_left_text(seconds)):
        assert 1 <= len(text) <= 8, "columns of times have eight cells"


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0, "0 %"),
        (0.0001, "<0.1 %"),
        (0.014, "1.4 %"),
        (0.42, "42 %"),
        (0.9996, "99.9 %"),
        (1, "100 %"),
    ],
)
def test_shares(share, text):
    assert percent_text(share) == text


def test_whole_shares_fit_into_a_column():
    texts = [percent_text(share, whole=True) for share in (0, 0.001, 0.014, 0.42, 0.996, 1)]
    assert texts == ["0 %", "<1 %", "1 %", "42 %", "99 %", "100 %"]
    assert percent_text(math.nan, whole=True) == "–"


def test_ages_in_one_unit():
    ages = (-3, 0.9, 59.9, 60, 3599, 3600, 13 * 86400 + 7200, math.inf)
    assert [short_age_text(age) for age in ages] == [
        "now",
        "now",
        "59s",
        "1m",
        "59m",
        "1h",
        "13d",
        "–",
    ]


def test_a_window_that_is_not_round_is_written_like_a_duration():
    assert [window_text(seconds) for seconds in (30, 60, 90, 600, 3600, 5400)] == [
        "30 s",
        "1 min",
        "1 min 30 s",
        "10 min",
        "1 h",
        "1 h 30 min",
    ]
    assert [window_text(seconds) for seconds in (299.6, 240.4)] == ["5 min", "4 min"]
    assert [window_text(seconds) for seconds in (46, 158, 241.2)] == [
        "46 s",
        "2 min 38 s",
        "4 min 01 s",
    ]


def test_two_sides_of_a_figure_have_one_unit():
    assert sides_text(9.1 * GIB, 0.4 * GIB) == "+9.10 -0.40 GiB"
    assert sides_text(50 * MIB, 6 * MIB) == "+50.0 -6.00 MiB"


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("80GiB", 80 * GIB),
        ("80 GB", 80 * GIB),
        (" 1.5g ", 3 * GIB // 2),
        ("500m", 500 * MIB),
        ("512 KiB", 512 * KIB),
        ("1000000", 1_000_000),
        ("3B", 3),
        ("2TiB", 2 * TIB),
    ],
)
def test_sizes_are_read(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "GiB", "-1GiB", "1e9", "80 GiB free", "٣", "1" * 16, "nan", "0x10"]
)
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ValueError, match="not a size"):
        parse_size(text)


@pytest.mark.parametrize(
    ("seconds", "text", "brief"),
    [
        (0.2, "now", "now"),
        (42, "42 s", "42 s"),
        (127, "2 min 10 s", "2m 10s"),
        (300, "5 min", "5m"),
        (754, "13 min", "13m"),
        (3589, "1 h", "1h"),
        (18_840, "5 h 10 min", "5h 10m"),
        (41_940, "12 h", "12h"),
        (442_000, "5 d 3 h", "5d 3h"),
    ],
)
def test_a_time_left_is_no_finer_than_it_is_known(seconds, text, brief):
    assert left_text(seconds) == text
    assert brief_left_text(seconds) == brief


def test_an_error_is_never_called_zero():
    texts = [error_text(percent) for percent in (0.0, 0.03, 0.05, 2.14, 30.0)]
    assert texts == ["<0.1 %", "<0.1 %", "0.1 %", "2.1 %", "30.0 %"]
