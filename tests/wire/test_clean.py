"""What is invisible or piles up is made visible or bounded.

What people write in any language stays as it is.
"""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.wire.clean import MAX_MARKS, clean, clean_lines
from tests.fakes.cases import each


@each(
    "text",
    [
        "train.py --lr 3e-4",
        "Việt Nam",
        "Zoë naïve €",
        "日本語 テキスト",
        "葛\U000e0100城",
        "❤️ 1️⃣ 👍🏽 🇩🇪 ↔︎",
        unicodedata.normalize("NFD", "Việt Nam 한국어 ё"),
        "שָׁלוֹם",
        "नमस्ते",
        "ที่",
        "مَرْحَبًا",
        "Добрый день",
        "𝔘𝔫𝔦",
    ],
)
def test_what_people_write_stays(text):
    assert clean(text) == text


@each(
    "char",
    [
        *"\u00ad\u034f\u061c\u115f\u1160\u180e\u200b\u200c\u200d\u200e\u2028\u202e\u2060\u2066\u3164\ufe00\ufe0f\ufeff",
        *"\uffa0\ufff9\U000e0001\U000e0041\U000e0100\U000e0fff\U0001d173\U0001bca0\U00013430",
    ],
)
def test_the_invisible_is_seen(char):
    assert clean(f"a{char}b") == "a\ufffdb"


def test_no_control_or_format_character_passes():
    kinds = ("Cc", "Cf", "Cs", "Zl", "Zp")
    hidden = [char for char in map(chr, range(0x110000)) if unicodedata.category(char) in kinds]
    passed = {char for char in hidden if clean(f"a{char}b") == f"a{char}b"}
    assert passed == set(
        "\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u0890\u0891\u08e2\U000110bd\U000110cd"
    )
    """These are drawn: signs around Arabic and Kaithi numbers."""


@pytest.mark.parametrize("base", ["e", "日", "ה", "ᄒ", "❤️"])
@pytest.mark.parametrize("mark", ["\u0301", "\u20dd", "\u1161", "\U0001e8d0", "\u302a"])
def test_marks_do_not_pile_up(base, mark):
    for text in (base + mark * 500, (base + mark * 9) * 5):
        found = clean(text)
        assert mark * (MAX_MARKS + 1) not in found
        assert "\ufffd" in found
    assert clean(mark * 3) == "\u25cc" + mark * 3, "on nothing of ours"


def test_lines_stay_lines_and_nothing_else_does():
    assert clean_lines("a\x1b[2J\n" + "b" * 9000 + "\r\n") == "a\\x1b[2J\n" + "b" * 9000 + "\\x0d\n"


@given(
    st.text(
        alphabet=st.one_of(
            st.characters(), st.sampled_from("\u0301\u1161\ufe0f\u200d❤e\U000e0100葛")
        )
    )
)
def test_what_is_clean_stays_clean(text):
    assert clean(clean(text)) == clean(text)
