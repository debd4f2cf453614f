"""The rows of the Log tab are in the order in which things happened.

They are what the source told and what the program said.
"""

from __future__ import annotations

from gpuscope.tui.log.rows import SHOWN, TOKENS, entries, row
from gpuscope.tui.shell.notices import Notice
from gpuscope.wire.frames import Event
from tests.fakes import views


def notice(seconds: float, text: str) -> Notice:
    return Notice(seconds, "warn", text)


def host():
    frames = views.training(3.0)
    last = max(frame.m for frame in frames if hasattr(frame, "m"))
    found = views.store_of([*frames, Event(0, "dropped", last, "12 samples")]).view().host
    assert found is not None
    return found


def test_words_of_the_program_stand_between_events_by_their_time():
    told = host()
    ends = told.wall_seconds
    assert ends is not None
    found = entries(told, [notice(ends + 1, "later"), notice(1.0, "long ago")])
    assert found[0].text == "long ago"
    assert [one.text for one in found[-2:]] == ["12 samples", "later"]
    assert found[-2].token == TOKENS["dropped"]
    assert row(found[-1]).cells["text"] == "later"
    assert [one.text for one in entries(told, [notice(ends + 1, "later")], until_seconds=ends)][
        -1
    ] == "12 samples"


def test_a_filter_looks_at_all_that_is_shown_and_the_newest_stay():
    told = host()
    assert [one.text for one in entries(told, [notice(1.0, "Something else")], "DROPPED")] == [
        "12 samples"
    ]
    many = [notice(float(number), f"line {number}") for number in range(SHOWN + 5)]
    assert [entries(None, many)[at].text for at in (0, -1)] == ["line 5", f"line {SHOWN + 4}"]
