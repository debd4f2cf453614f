"""What happened is marked on the time axis.

There are marks of the store, their glyphs and labels, step numbers, and windows.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.store.view import History, Mark
from gpuscope.text.width import cells as text_cells
from gpuscope.tui.charts.bins import Bins
from gpuscope.tui.charts.marks import Tick, event_row, step_row, step_text
from gpuscope.tui.memory.timeline import longest_window, next_window, ticks
from gpuscope.tui.theme import ASCII, UNICODE
from gpuscope.wire import frames as f
from tests.fakes import inside, views

BINS = Bins.ending(100.0, 60.0, 60)


def text(pieces: list[tuple[str, str]]) -> str:
    return "".join(piece for piece, _ in pieces)


def test_marks_are_kept_apart_from_the_log_and_outlive_it():
    frames = inside.crowded(4.0)
    frames += [f.Event(160, "note", int(views.END * 1e9), f"note {n}") for n in range(400)]
    host = views.host_of(frames)
    assert [mark.kind for mark in host.marks] == [
        "oom",
        "oom",
        "retry",
        "phase",
        "phase",
        "stall",
        "resumed",
        "oom",
    ]
    assert not any(event.e == "oom" for event in host.events), "the log has forgotten them"
    assert host.marks[2].seconds == pytest.approx(views.END - 38.0)


def test_marks_follow_the_clock_of_the_view_over_a_reboot():
    frames = inside.crowded(4.0)
    again = views.hello()
    again.boot, again.m, again.t = "b1", int(5e9), views.WALL + 160.0
    frames += [
        again,
        *views.trainer(48216, 3, 8, "ada", True, "job-a"),
        f.Event(316, "phase", int(8e9), data={"phase": "eval"}),
    ]
    host = views.host_of(frames)
    assert host.marks[-1].seconds == pytest.approx(views.END + 100.0 + 3.0), "100 s down, then 3 s"


def test_an_oom_that_was_survived_becomes_another_glyph_where_it_was():
    marks = [
        Mark(4, "oom", 50.0, data={"state": "seen", "requested_bytes": 7}),
        Mark(4, "oom", 70.0, data={"state": "seen", "requested_bytes": 9}),
        Mark(4, "oom", 80.0, data={"state": "withdrawn", "requested_bytes": 7}),
        Mark(5, "oom", 85.0, data={"state": "seen"}),
    ]
    assert ticks(marks, {4}) == (Tick(50.0, "spared", "warn"), Tick(70.0, "oom", "bad"))


def test_an_oom_whose_beginning_was_missed_is_drawn_when_it_is_judged():
    assert ticks([Mark(4, "oom", 80.0, data={"state": "confirmed"})], {4}) == (
        Tick(80.0, "oom", "bad"),
    )


def test_each_kind_has_its_glyph_and_the_worst_wins_a_cell():
    row = [
        Tick(50.2, "retry", "warn"),
        Tick(50.4, "oom", "bad"),
        Tick(60.0, "stall", "bad"),
        Tick(70.0, "phase", "accent", "eval"),
        Tick(30.0, "oom", "bad"),
    ]
    drawn = text(event_row(row, BINS, UNICODE))
    assert len(drawn) == 60
    assert drawn[9:11] == "▲ "
    assert drawn[19] == "■"
    assert drawn[29:34] == "│eval"
    plain = text(event_row(row, BINS, ASCII))
    assert plain.isascii()
    assert (plain[9], plain[19], plain[29]) == ("!", "#", "|")
    assert event_row([Tick(10.0, "oom", "bad")], BINS, UNICODE) == [], "outside the window"


def test_a_label_gives_way_to_the_next_mark():
    drawn = text(
        event_row([Tick(70.0, "phase", "accent", "eval"), Tick(73.0, "oom", "bad")], BINS, UNICODE)
    )
    assert drawn[29:33] == "│  ▲"


def test_a_label_without_room_behind_its_mark_stands_in_front_of_it():
    row = event_row([Tick(98.0, "begin", "accent", "train.py begins")], BINS, UNICODE)
    assert text(row).rstrip().endswith(" train.py begins▸")


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(
            st.floats(0, 200),
            st.sampled_from(["oom", "retry", "stall", "phase"]),
            st.text(max_size=9),
        )
    )
)
def test_a_row_is_never_wider_than_its_chart(found):
    row = event_row(
        [Tick(at, kind, "bad", "x" * len(label)) for at, kind, label in found], BINS, UNICODE
    )
    assert row == [] or text_cells(text(row)) == 60


def test_round_step_numbers_stand_where_they_were_reached():
    seconds = [40.0 + i for i in range(61)]
    row = step_row(seconds, [4100 + i for i in range(61)], BINS, UNICODE)
    assert row.split() == ["╵4120", "╵4140"]
    assert row.index("╵4120") == BINS.index(60.0)
    assert step_row(seconds, [4100 + i for i in range(61)], BINS, ASCII).split() == [
        "'4120",
        "'4140",
    ]


def test_slow_and_fast_trainings_have_labels_with_room_between():
    seconds = [40.0 + i / 2 for i in range(121)]
    slow = step_row(seconds, [7 + i // 50 for i in range(121)], BINS, UNICODE)
    assert slow.split() == ["╵8", "╵9"]
    fast = step_row(seconds, [i * 997.0 for i in range(121)], BINS, UNICODE).split()
    assert 2 <= len(fast) <= 6
    assert len(set(fast)) == len(fast)


def test_no_steps_no_row():
    assert step_row([50.0, 60.0], [None, None], BINS, UNICODE) == ""
    assert step_row([50.0, 60.0], [5, 5], BINS, UNICODE) == ""
    assert step_row([], [], BINS, UNICODE) == ""
    assert step_row([99.5, 100.0], [99_998, 99_999], BINS, UNICODE) == "", "its label has no room"


def test_a_trainer_that_began_anew_does_not_count_backwards():
    row = step_row([50.0, 55.0, 60.0, 65.0, 70.0], [900, 910, 0, 950, 1000], BINS, UNICODE)
    assert all(label.startswith("╵") for label in row.split())


def test_step_numbers_are_short():
    assert [step_text(n) for n in (0, 99_999, 120_000, 4_120_000)] == [
        "0",
        "99999",
        "120k",
        "4.12M",
    ]


def test_windows_go_round_as_far_as_there_is_history():
    kept = History((0.0, 250.0), (1.0, 1.0))
    assert longest_window(kept) == 300.0
    assert longest_window(kept, 3000.0) == 3600.0
    assert longest_window(kept, 4000.0) == 4 * 3600.0
    assert longest_window(kept, 20 * 3600.0) == 12 * 3600.0
    assert longest_window(History()) == 60.0
    assert [
        next_window(60.0, 300.0, 1),
        next_window(300.0, 300.0, 1),
        next_window(60.0, 3600.0, -1),
    ] == [
        300.0,
        60.0,
        3600.0,
    ]
