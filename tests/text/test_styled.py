"""Lines of styled text: merged, joined, cut, wrapped and hung."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.text import styled

LINES = st.lists(
    st.tuples(st.text(st.sampled_from("ab  中"), max_size=12), st.sampled_from(["text", "bad"])),
    max_size=6,
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


def test_a_number_stays_with_its_unit():
    line = [("input 4 %, held 2.68 GiB, 30 jobs for 2 min 05 s", "text")]
    assert [styled.plain(one) for one in styled.wrap(line, 10)] == [
        "input 4 %,",
        "held",
        "2.68 GiB,",
        "30 jobs",
        "for 2 min",
        "05 s",
    ]


def test_text_hangs_beside_its_label():
    found = styled.hang([("Why: ", "muted")], [("one two three four", "text")], 15)
    assert [styled.plain(line) for line in found] == ["Why: one two", "     three four"]
    assert found[0] == [("Why: ", "muted"), ("one two", "text")]


def test_lines_hang_below_the_piece_behind_their_label():
    lines = [
        [("Why: ", "muted"), ("one two three four", "text")],
        [],
        [("a label alone goes on", "text")],
    ]
    found = styled.hang_lines(lines, 15)
    assert [styled.plain(line) for line in found] == [
        "Why: one two",
        "     three four",
        "",
        "a label alone",
        "goes on",
    ]
    two = [("> ", "accent"), ("TERM  ", "title"), ("one two three four", "text")]
    assert [styled.plain(line) for line in styled.hang_lines([two], 19, 2)] == [
        "> TERM  one two",
        "        three four",
    ]


def test_the_last_of_the_first_rows_says_that_there_are_more():
    lines = styled.hang([("Why: ", "muted")], [("one two three four five six", "text")], 15)
    assert [styled.plain(line) for line in styled.first_rows(lines, 2, 15)] == [
        "Why: one two",
        "     three fou…",
    ]
    assert styled.first_rows(lines, len(lines), 15) == lines
    assert styled.first_rows(lines, 0, 15) == []


def test_a_line_is_padded_on_the_side_that_is_asked_for():
    line = [("中", "bad")]
    assert [styled.plain(styled.pad(line, 5, align)) for align in ("left", "right", "centre")] == [
        "中   ",
        "   中",
        " 中  ",
    ]
    assert styled.pad(line, 1) == line


def test_one_line_has_a_left_and_a_right_end():
    left, right = [("node-17", "title")], [("2 Hz", "muted")]
    assert styled.plain(styled.spread(left, right, 16)) == "node-17     2 Hz"
    assert styled.plain(styled.spread([("a" * 40, "text")], right, 12)) == "aaaaaa… 2 Hz"
    assert styled.plain(styled.spread(left, right, 6)) == "node-…", (
        "the right goes where the left would lose half"
    )


@given(LINES, st.integers(2, 16))
def test_wrapped_lines_fit_and_nothing_is_lost(line, room):
    found = styled.wrap(line, room)
    assert all(styled.cells(one) <= room for one in found)
    letters = [
        (char, style) for one in found for text, style in one for char in text if char != " "
    ]
    assert letters == [(char, style) for text, style in line for char in text if char != " "]


@pytest.mark.parametrize(
    ("code", "room", "lines"),
    [
        (
            "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
            46,
            ["torch.nn.utils.clip_grad_norm_(", "  model.parameters(), 1.0)"],
        ),
        ("f(/a/name/without/a/call/in/it)", 20, ["f(/a/name/without/a/", "  call/in/it)"]),
    ],
)
def test_code_that_is_wider_than_a_line_is_broken_where_a_call_begins(code, room, lines):
    assert [styled.plain(one) for one in styled.wrap([(code, "text")], room, 2)] == lines


@given(LINES, st.integers(0, 16))
def test_a_cut_line_fits(line, room):
    assert styled.cells(styled.cut(line, room)) <= room


def test_a_line_that_is_too_long_keeps_its_whole_parts():
    line: styled.Line = [
        ("▲ ", "bad"),
        ("GPU 0 is lost: fallen off the bus", "text"),
        ("  pid 7", ""),
    ]
    assert styled.plain(styled.cut_whole(line, 60)) == "▲ GPU 0 is lost: fallen off the bus  pid 7"
    for room in (41, 36, 35):
        assert styled.plain(styled.cut_whole(line, room)) == "▲ GPU 0 is lost: fallen off the bus"
    assert styled.plain(styled.cut_whole(line, 30)) == "▲ GPU 0 is lost"
    assert styled.plain(styled.cut_whole(line, 14)) == "▲ GPU 0 is…"
    assert styled.cut_whole(line, 36)[-1][1] == "text"
    stuck: styled.Line = [("stuck at train.py:34 in the __getitem__ of data", "text")]
    assert styled.plain(styled.cut_whole(stuck, 28)) == "stuck at train.py:34…"
    bracket: styled.Line = [("died without cleanup (SIGTERM, SIGKILL or a crash)", "text")]
    assert styled.plain(styled.cut_whole(bracket, 36)) == "died without cleanup"
    announced: styled.Line = [("forward in bf16; weights stay float32", "text")]
    announced += [(" · how: tab 4, Doctor", "muted")]
    for room in range(43, 46):  # the colon is the last that has room, or "how" is
        assert styled.plain(styled.cut_whole(announced, room)) == announced[0][0]
    assert styled.plain(styled.cut_whole(announced, 50)) == f"{announced[0][0]} · how: tab 4"
    for room in range(50):
        assert styled.cells(styled.cut_whole(line, room)) <= room


def test_a_list_that_is_cut_ends_with_a_whole_item_and_an_ellipsis() -> None:
    def shown(text: str, room: int) -> str:
        line = styled.cut_items([(text[:9], "muted"), (text[9:], "text")], room)
        assert styled.cells(line) <= room
        return styled.plain(line)

    sizes = "by size  4 of 16 MiB, 20 of 4 MiB, 1 of 1 MiB"
    assert shown(sizes, 45) == sizes
    assert shown(sizes, 44) == shown(sizes, 36) == "by size  4 of 16 MiB, 20 of 4 MiB, …"
    assert shown(sizes, 35) == "by size  4 of 16 MiB, …"
    assert shown("ZeRO-1: optimizer state over 8 ranks", 22) == "ZeRO-1: optimizer …"
    assert shown("antidisestablishmentarianism", 12) == "antidisesta…"
