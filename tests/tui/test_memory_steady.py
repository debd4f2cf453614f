"""The waterfall stands still while a step breathes.

The trainings were recorded on real H200s, and are gone through reading by reading.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from gpuscope.model.allocator_account import AccountRow
from gpuscope.model.fullest import at_the_fullest
from gpuscope.model.memory_account import largest_freeable
from gpuscope.model.memory_room import rooms
from gpuscope.store.decode import decode
from gpuscope.store.store import Store
from gpuscope.store.view import AllocView, History, Link
from gpuscope.tui.app.app import GpuscopeApp
from gpuscope.tui.memory.advice import SaidBefore
from gpuscope.tui.shared.job_rows import job_lines
from gpuscope.tui.shell.session import Session
from gpuscope.wire import frames as f
from gpuscope.wire.recording import RecordingReader
from tests.fakes import views
from tests.fakes.views import GIB
from tests.recordings import REDACTED
from tests.tui.pilot import feed, in_loop, until

MIB = 1 << 20
GROWING = 40
"""Readings, in 20 s, until the allocator of a recorded training has grown and its tensors are
counted.
"""


def changes(looks: list[Any]) -> int:
    return sum(before != after for before, after in pairwise(looks))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["h200x2-ddp.gsr", "h200-lab.gsr"])
@in_loop
async def test_rows_and_advice_stand_still_through_a_recorded_training(name):
    store = Store()
    store.add_source(views.SOURCE, "test")
    store.set_link(views.SOURCE, Link("live"))
    app = GpuscopeApp(Session(store), "memory")
    orders: dict[str, list[list[str]]] = {}
    advice: dict[str, list[list[str]]] = {}
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        for line in RecordingReader(REDACTED / name).lines():
            frame = decode(line.line)
            feed(app, frame)
            host = app.session.host
            if (
                not isinstance(frame, f.Sample)
                or host is None
                or all(t.gone for t in host.trainers)
            ):
                continue
            pane = app.main.pane
            pane.show(host)
            trainer = pane.chosen(host).key
            orders.setdefault(trainer, []).append([part.label for part in pane._waterfall._parts])
            advice.setdefault(trainer, []).append(
                [text for text, token in pane._advice._lines[1] if token == "accent"]
            )
    settled = [trainer for trainer, looks in orders.items() if len(looks) > 2 * GROWING]
    assert settled
    for trainer in settled:
        assert changes(orders[trainer][GROWING:]) == 0
        assert changes(advice[trainer][GROWING:]) == 0


def test_the_room_that_is_left_stands_still_through_a_recorded_training():
    """The room that is left stands still through a recorded training.

    A reading between two steps finds 1.7 GiB more room than the fullest moment of a step leaves.
    """
    store = views.store_of([])
    inside, overview = [], []
    for line in RecordingReader(REDACTED / "h200x2-ddp.gsr").lines():
        frame = decode(line.line)
        store.apply(views.SOURCE, frame, 0.0)
        host = store.view().host
        if not isinstance(frame, f.Sample) or host is None or all(t.gone for t in host.trainers):
            continue
        history = partial(store.history, host.key)
        inside.append(min(room.headroom_bytes or 0 for room in rooms(host.devices, host.trainers)))
        overview.append(job_lines(host, history=history)[0].cells["left"][0])
    assert changes(inside[GROWING:]) > 100, "by one moment of a step it rises and falls"
    assert changes(overview[GROWING:]) < 5


def allocator(live: float, reserved: float, **more: f.Scalar) -> AllocView:
    names = f.COLUMNS["a"]
    values = dict(zip(names, views.allocator_row(0, live, reserved, 1.0, **more)[1:], strict=True))
    return AllocView(1, "a", values, 0.0, None, f.AllocDef(2, 0), 10)  # type: ignore[arg-type]


def fullest(readings: list[AllocView]) -> tuple[float, float, float]:
    """Return allocated and reserved GiB at the fullest moment, and the seconds looked at.

    The readings are half a second apart.
    """

    def history(_: int, column: str, seconds: float) -> History:
        moments = tuple(n / 2 for n in range(len(readings)))
        return History(moments, tuple(reading.number(column) for reading in readings))

    view, seconds = at_the_fullest(readings[-1], history, 30.0)
    return (
        (view.number("allocated_bytes") or 0) / GIB,
        (view.number("reserved_bytes") or 0) / GIB,
        seconds,
    )


def test_the_fullest_moment_counts_since_the_reserve_last_shrank():
    breathing = [allocator(live, 8.0) for live in (2.0, 6.0, 2.0, 5.0, 2.0)]
    assert fullest(breathing) == (6.0, 8.0, 2.0)
    assert fullest([*breathing, allocator(2.0, 9.0)]) == (6.0, 9.0, 2.5), (
        "what it got since is idle"
    )
    emptied = [allocator(live, 4.0) for live in (2.0, 3.0, 1.0)]
    assert fullest([*breathing, *emptied]) == (3.0, 4.0, 1.0)
    assert fullest([allocator(2.0, 8.0)]) == (2.0, 8.0, 0.0)


def test_other_advice_comes_when_something_else_is_clearly_larger():
    def parts(one: int, other: int) -> list[AccountRow]:
        return [
            AccountRow("one", "cached", one * MIB, free_by="x", now=True),
            AccountRow("other", "other", other * MIB, free_by="y"),
        ]

    def advised(one: int, other: int, before: str) -> str:
        found = largest_freeable(parts(one, other), before=before)
        return found.name if found else ""

    assert advised(110, 100, "") == "one"
    assert advised(110, 100, "other") == "other"
    assert advised(150, 100, "other") == "one"
    assert advised(60, 0, "") == ""
    assert advised(60, 0, "one") == "one"
    assert advised(40, 0, "one") == ""


def test_only_a_note_on_two_readings_outlasts_what_it_says():
    said = SaidBefore()
    apart = "rows outside torch are approximate: read 500 ms apart"
    unknown = "live tensors are not divided by category: no optimizer step seen yet"
    assert said.held([apart, unknown], 10.0) == [apart, unknown]
    assert said.held([], 11.0) == [apart], "the categories are known now, and stand above it"
    assert said.held([], 17.0) == []


@in_loop
async def test_a_training_that_holds_next_to_nothing_is_told_no_fixes_but_what_room_there_is():
    store = Store()
    store.add_source(views.SOURCE, "test")
    store.set_link(views.SOURCE, Link("live"))
    app = GpuscopeApp(Session(store), "memory")
    async with app.run_test(size=(120, 40)) as pilot:
        for line in RecordingReader(REDACTED / "h200x2-stall.gsr").lines():
            feed(app, decode(line.line))
        screen = await until(pilot, "Room for a larger micro-batch", "memory is no limit")
        assert "halve the micro-batch" not in screen, "547 KiB of 140 GiB"
