"""Minutes of a trainer's time reach the view by event and by answer, once each."""

from __future__ import annotations

from typing import Any

import pytest

from gpuscope.model.time_ledger import of_trainer
from gpuscope.store.decode import decode
from gpuscope.store.store import Store
from gpuscope.store.time_minutes import MAX_MINUTES, Minutes, of_answer, of_event
from gpuscope.wire.codec import encode
from gpuscope.wire.frames import Event, Frame
from tests.fakes.wire import SECOND, definitions, heard, hello, sample

KEY = "k"
TRAINER = 8


def take(store: Store, frame: Frame) -> None:
    """Take a frame in as it comes from an agent or a file, cleaned."""
    store.apply(KEY, decode(encode(frame).rstrip()), 1.0)


@pytest.fixture
def store() -> Store:
    return heard(hello(), *definitions(), sample(1))


def data(number: int, seconds: float = 60.0, **more: Any) -> dict[str, Any]:
    half = seconds / 2
    return {
        "m": (100 + 60 * number) * SECOND,
        "seconds": seconds,
        "steps": 100,
        "looks": 300,
        "rows": f"input {half:.3f} 150|forward {half:.3f} 150",
        "places": f"input {half:.2f} data.py:12 __getitem__ of a set",
        **more,
    }


def trainer(store: Store) -> Any:
    host = store.view().host
    assert host is not None
    return next(one for one in host.trainers if one.definition.rank == 0)


def test_an_event_becomes_a_minute_and_no_line_of_the_log(store):
    take(store, Event(TRAINER, "time", 160 * SECOND, "", data(0)))
    ledger = of_trainer(trainer(store))
    assert (ledger.seconds, ledger.steps, ledger.looks) == (60.0, 100, 300)
    assert [(row.name, row.seconds) for row in ledger.rows] == [("input", 30.0), ("forward", 30.0)]
    assert ledger.rows[0].places == (("data.py:12 __getitem__ of a set", 30.0),)
    host = store.view().host
    assert host is not None
    assert not [event for event in host.events if event.e == "time"]


def test_a_minute_that_is_told_again_is_kept_once_as_it_was_told_last(store):
    for seconds in (10.0, 20.0, 60.0, 40.0):
        take(store, Event(TRAINER, "time", 160 * SECOND, "", data(0, seconds)))
    (trainer_id,) = {trainer(store).id}
    answer = {"minutes": [{**of_event(data(0, 50.0))}, {**of_event(data(1, 20.0))}]}
    store.remember(KEY, trainer_id, "time", answer)
    assert of_trainer(trainer(store)).seconds == 80.0
    assert of_trainer(trainer(store), 30.0).seconds == 20.0


def test_minutes_are_bounded_and_rubbish_is_left_out(store):
    minutes = Minutes()
    for number in range(MAX_MINUTES + 9):
        minutes.add(of_event(data(number)))
    assert len(minutes.all) == MAX_MINUTES
    assert minutes.all[0]["m"] == (100 + 60 * 9) * SECOND
    for wild in ({}, {"m": "x"}, {"m": -1}, {"m": True}, {"m": 1 << 70}):
        minutes.add(wild)
    assert len(minutes.all) == MAX_MINUTES
    assert of_answer({"minutes": [4, None]}) == of_answer({}) == of_answer({"minutes": "x"}) == []
    wild = {**data(0, rows="input x y||1|input 1.0 5 6 7", places=7), "seconds": "x"}
    take(store, Event(TRAINER, "time", 160 * SECOND, "", wild))
    take(store, Event(1, "time", 160 * SECOND, "", data(0)))
    ledger = of_trainer(trainer(store))
    assert [(row.name, row.seconds, row.looks) for row in ledger.rows] == [("input", 1.0, 0)]
