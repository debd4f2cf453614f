"""Lines of styled text: merged, joined, cut, wrapped and hung."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpuscope.text import styled

LINES = st.lists(
    st.tuples(st.text(st.sampled_from("ab  中"), max_size=12), st.sampled_from(["text", "bad"])), max_size=6
)


def test_neighbours_of_one_style_become_one_piece():
    line = [("a", "text"), ("", "bad"), ("b", "text"), ("c", "bad")]
    assert styled.merged(line) == [("ab", "text"), ("c", "bad")]


def test_joined_lines_are_separated_only_where_both_say_something():
    assert styled.plain(styled.join([[], [("a", "bad")], [], [("b", "text")]], " · ")) == "a · b"


def test_a_cut_is_marked_in_the_style_of_its_place():
    assert styled.cut([("abc", "text"), ("def", "bad")], 5) == [("abc", "text"), ("d…", "bad")]
    assert styled.cut([("abc", "text")], 3) == [("abc", "text")]


def test_a_word_of_two_styles_stays_whole():
    line = [("used 2.68", "text"), (" GiB", "muted"), (" of", "text"), ("ten", "bad")]
    assert [styled.plain(one) for one in styled.wrap(line, 8)] == ["used", "2.68 GiB", "often"]


def test_text_hangs_beside_its_label():
    found = styled.hang([("Why: ", "muted")], [("one two three four", "text")], 15)
    assert [styled.plain(line) for line in found] == ["Why: one two", "     three four"]
    assert found[0] == [("Why: ", "muted"), ("one two", "text")]


@given(LINES, st.integers(2, 16))
def test_wrapped_lines_fit_and_nothing_is_lost(line, room):
    found = styled.wrap(line, room)
    assert all(styled.cells(one) <= room for one in found)
    letters = [(char, style) for one in found for text, style in one for char in text if char != " "]
    assert letters == [(char, style) for text, style in line for char in text if char != " "]


@given(LINES, st.integers(0, 16))
def test_a_cut_line_fits(line, room):
    assert styled.cells(styled.cut(line, room)) <= room
