"""The time ledger: its rows add up to the clock, and it leaves nothing behind."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import threading
import time
from itertools import pairwise

import pytest
import torch

from gpuscope.probe import time_ledger
from gpuscope.probe.steps import Steps
from gpuscope.probe.time_ledger import MAX_PLACES, MINUTES, Minute, TimeLedger, even_looks
from gpuscope.store.time_minutes import of_event
from gpuscope.wire import codec
from gpuscope.wire.frames import Event, Request, Result
from tests.fakes.probe_client import PLACE_APART, Reader, sockets, wait_for


@pytest.fixture
def ledger():
    steps = Steps()
    steps.thread = threading.get_ident()
    made = TimeLedger(steps)
    yield made
    made.close()


@pytest.mark.slow
def test_rows_add_up_to_the_clock_with_the_time_of_collections(ledger):
    ledger._look()
    began = ledger._last
    for _ in range(5):
        gc.collect()
        time.sleep(0.001)
        ledger._look()
    (minute,) = ledger.answer({})["minutes"]
    rows = {row: seconds for row, seconds, _ in minute["rows"]}
    assert rows["collection"] > 0
    assert sum(rows.values()) == pytest.approx(minute["seconds"], abs=1e-5)
    assert minute["seconds"] == pytest.approx(ledger._last - began, abs=1e-5)
    assert (minute["looks"], minute["collections"] >= 5) == (5, True)


def test_a_call_of_gc_collect_has_its_line_and_python_s_own_collections_have_none(ledger):
    ledger._look()
    kept = [[] for _ in range(20_000)]
    line = sys._getframe().f_lineno + 1
    gc.collect()
    ledger._look()
    (minute,) = ledger.answer({})["minutes"]
    rows = {row: seconds for row, seconds, _ in minute["rows"]}
    places = {place: seconds for row, place, seconds in minute["places"] if row == "collection"}
    (called,) = [place for place in places if place.startswith(f"test_time_recorded.py:{line} ")]
    assert 0 < places[called] <= rows["collection"]
    assert _line_of_a_collection_without_a_call(ledger) == ""
    assert len(kept) == 20_000


def _line_of_a_collection_without_a_call(ledger):
    ledger._called_at = "?"
    ledger._on_collection("start", {"generation": 2})
    return ledger._called_at


def test_a_collection_counts_to_its_end_whenever_a_look_comes(ledger):
    """The end of a collection calls us first, and calling us lets the look in."""
    ledger._look()
    begin = ledger._last
    ledger._on_collection("start", {})
    time.sleep(0.02)
    ledger._look()
    between = ledger._last
    ledger._on_collection("stop", {})
    end = time.perf_counter()
    ledger._look()
    (minute,) = ledger.answer({})["minutes"]
    rows = {row: seconds for row, seconds, _ in minute["rows"]}
    assert rows["collection"] == pytest.approx(end - begin, abs=0.002)
    assert rows["collection"] >= between - begin - 0.001
    assert sum(rows.values()) == pytest.approx(minute["seconds"], abs=1e-5)
    assert (minute["collections"], len(ledger._collected)) == (1, 0)


@pytest.mark.slow
def test_collections_of_a_training_are_booked_as_they_were(ledger):
    """Each step collects among many objects, while another thread looks all the time."""
    objects = [[number] for number in range(100_000)]
    truth, began = [], []

    def on_collection(phase, info):
        if phase == "start":
            began[:] = [time.perf_counter()]
        else:
            truth.append(time.perf_counter() - began[0])

    over = threading.Event()

    def look():
        while not over.wait(0.003):
            ledger._look()

    weight = torch.zeros(64, 64, requires_grad=True)
    optimizer = torch.optim.SGD([weight], 0.1)
    ledger._listen()
    gc.callbacks.append(on_collection)
    looker = threading.Thread(target=look)
    looker.start()
    try:
        time.sleep(0.05)
        del truth[:]
        for _ in range(8):
            (weight @ weight + weight).sum().backward()
            optimizer.step()
            gc.collect()
    finally:
        over.set()
        looker.join()
        gc.callbacks.remove(on_collection)
    ledger._look()
    (minute,) = ledger.answer({})["minutes"]
    booked = {row: seconds for row, seconds, _ in minute["rows"]}["collection"]
    assert len(objects) == 100_000
    assert sum(truth) > 0.02
    assert booked == pytest.approx(sum(truth), rel=0.05, abs=0.005)


def test_minutes_are_kept_apart_and_the_oldest_go(ledger, monkeypatch):
    monkeypatch.setattr(time_ledger, "MINUTE", 0.0)
    for step in range(MINUTES + 6):
        ledger._steps.total = 10 * step
        ledger._look()
    minutes = ledger.answer({})["minutes"]
    assert len(minutes) == MINUTES
    ages = [minute["age_seconds"] for minute in minutes]
    assert ages == sorted(ages, reverse=True)
    assert [minute["looks"] for minute in minutes] == [1] * MINUTES


def test_a_minute_keeps_so_many_lines_by_name():
    minute = Minute(0.0, 0)
    for number in range(200):
        minute.book("other", f"train.py:{number} main", 0.5)
    assert len(minute.places) == MAX_PLACES + 1
    assert sum(minute.places.values()) == 100.0
    assert minute.rows == {"other": [100.0, 200]}


def test_looks_that_were_long_in_coming_make_shares_less_sure():
    even, uneven = Minute(0.0, 0), Minute(0.0, 0)
    for number in range(100):
        even.book("other", "", 0.1)
        uneven.book("other", "", 0.9 if number < 10 else 0.01)
    assert even_looks(even) == 100.0
    assert 10 < even_looks(uneven) < 13
    assert even_looks(Minute(0.0, 0)) == 0.0


def test_before_the_first_step_nothing_is_looked_at():
    made = TimeLedger(Steps())
    made.tick()
    assert made.answer({}) == {"minutes": [], "problem": time_ledger.NO_STEP}
    assert made.due > time.monotonic() + 0.5, "and not often"
    assert made._on_collection not in gc.callbacks


def test_what_listens_to_collections_is_taken_out(ledger):
    ledger._look()
    assert ledger._on_collection in gc.callbacks
    ledger.close()
    ledger.close()
    assert ledger._on_collection not in gc.callbacks


def test_collections_of_other_threads_are_theirs(ledger):
    ledger._look()
    other = threading.Thread(target=gc.collect)
    other.start()
    other.join()
    assert not ledger._collected


def test_minutes_are_announced_when_they_are_over_and_the_first_earlier(ledger, monkeypatch):
    answer = []
    ledger.announce = lambda e, text="", data=None: answer.append((e, data))
    monkeypatch.setattr(time_ledger, "MINUTE", 0.02)
    ledger._early = [0.0, 1e9]
    ledger._look()
    ledger._look()
    assert [data["looks"] for _, data in answer] == [1], "early"
    ledger._minutes[-1].began -= 1.0
    ledger._look()
    assert [data["looks"] for _, data in answer] == [1, 1], "over"
    assert answer[0][1]["m"] == answer[1][1]["m"]
    ledger.end()
    assert len(answer) == 3
    assert answer[2][1]["m"] > answer[1][1]["m"]
    assert {e for e, _ in answer} == {"time"}
    ledger._look()
    ledger.end()
    assert len(answer) == 3, "nobody listens any more"
    ledger.close()


def test_an_announced_minute_is_what_an_answer_tells(ledger):
    minute = Minute(0.0, 0)
    minute.book("input", "data.py:7 __getitem__", 20.0)
    for number in range(200):
        minute.book("other", f"{'folder/' * 40}train.py:{number} main", 0.5)
    minute.until = 120.0
    data = time_ledger.event_data(minute)
    assert len(data["places"]) <= 1200, "as much as an agent passes on"
    assert len(codec.encode(Event(1, "time", 1, "", data))) < 1500
    answer, again = time_ledger._minute_answer(minute, 130.0), of_event(data)
    assert [again[name] for name in ("m", "seconds", "steps", "looks", "rows")] == [
        answer[name] for name in ("m", "seconds", "steps", "looks", "rows")
    ]
    assert ["input", "data.py:7 __getitem__", 20.0] in again["places"]


def test_what_a_very_long_step_did_is_told_apart_while_it_lasts_and_after_it(ledger):
    steps = ledger._steps
    steps.durations.extend([0.02] * 20)

    def step(took, total):
        steps.durations.append(took)
        steps.total, steps.last = total, time.perf_counter()

    told = []
    ledger.announce = lambda e, text="", data=None: told.append(data)
    step(0.02, 20)
    ledger._look()
    ledger._look()
    steps.last -= 7.0
    ledger._long._began = steps.last
    ledger._look()
    assert len(told) == 1
    ledger._look()
    assert len(told) == 1, "not at each look"
    ledger._long._told -= 10.0
    ledger._look()
    assert len(told) == 2, "again while it lasts"
    (minute,) = ledger.answer({})["minutes"]
    assert sum(looks for _, _, looks, _ in minute["hang"]) == 3
    assert "long" not in minute
    again = of_event(time_ledger.event_data(ledger._minutes[-1]))
    assert again["hang"] == minute["hang"]
    began = steps.last
    step(7.1, 21)
    ledger._look()
    (minute,) = ledger.answer({})["minutes"]
    assert "hang" not in minute
    assert len(told) == 3
    assert sum(looks for _, _, looks, _ in minute["long"]) == 3
    assert (minute["long_steps"], minute["long_seconds"]) == (1, 7.1)
    assert minute["long_m"] == int(began * 1e9)
    assert of_event(time_ledger.event_data(ledger._minutes[-1]))["long_m"] == minute["long_m"]
    step(0.02, 22)
    ledger._look()
    assert ledger.answer({})["minutes"][0]["long_steps"] == 1, "a usual step is none"


def test_somebody_who_asks_is_looked_for_closely_and_not_for_ever(ledger):
    ledger.tick()
    usual = ledger.due - time.monotonic()
    assert 0.05 < usual <= 0.3
    ledger.answer({"close_seconds": 1e9})
    assert ledger._close_until <= time.monotonic() + time_ledger.MAX_CLOSE
    ledger.tick()
    assert ledger.due - time.monotonic() < 0.05


def test_an_answer_fits_into_a_line():
    made = TimeLedger(Steps())
    for number in range(MINUTES):
        minute = Minute(0.0, 0)
        for place in range(100):
            minute.book("other", f"{'folder/' * 20}{place}-{number}.py:{place} function", 0.1)
        made._minutes.append(minute)
    assert len(codec.encode(Result(0, made.answer({})))) < 900_000


TRAINING = """
import json, sys, time
{apart}
from gpuscope.probe import core
core.arm("watch")
import torch
torch.set_num_threads(1)
torch.manual_seed(0)

model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
spent = {{"input": 0.0, "validation": 0.0, "checkpoint": 0.0}}

class Data(torch.utils.data.Dataset):
    def __len__(self): return 1 << 30
    def __getitem__(self, index):
        time.sleep(0.004)
        return torch.zeros(64)

def validate():
    time.sleep(0.02)

def save_checkpoint():
    time.sleep(0.02)

def main():
    batches, step = iter(torch.utils.data.DataLoader(Data(), batch_size=1)), 0
    while True:
        begin = time.perf_counter()
        batch = next(batches)
        spent["input"] += time.perf_counter() - begin
        model(batch).sum().backward()
        optimizer.step()
        step += 1
        pauses = (("validation", validate, 10), ("checkpoint", save_checkpoint, 20))
        for name, call, every in pauses:
            if step % every == 0:
                begin = time.perf_counter()
                call()
                spent[name] += time.perf_counter() - begin
        if step % 5 == 0:
            print(json.dumps([time.perf_counter(), spent]), flush=True)
main()
"""


def booked(value: dict) -> dict[str, float]:  # type: ignore[type-arg]
    """The seconds of every row since the ledger began."""
    seconds: dict[str, float] = {}
    for minute in value["minutes"]:
        for row, took, _ in minute["rows"]:
            seconds[row] = seconds.get(row, 0.0) + took
    return seconds


def at(lines: list, moment: float, name: str) -> float:  # type: ignore[type-arg]
    """What the training had spent at a moment between two of its lines."""
    for (before, old), (after, new) in pairwise(lines):
        if before <= moment <= after:
            return old[name] + (new[name] - old[name]) * (moment - before) / (after - before)
    raise AssertionError(f"no line of the training is as late as {moment}")


@pytest.mark.slow
def test_a_real_training_s_rows_are_what_the_training_measures_itself():
    child = subprocess.Popen(
        [sys.executable, "-c", TRAINING.format(apart=PLACE_APART)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    lines: list = []  # type: ignore[type-arg]

    def read() -> None:
        lines.extend(json.loads(line) for line in child.stdout or ())

    answers = []  # when each came, and what it says of the time until then
    reader_of_lines = threading.Thread(target=read)
    try:
        lines.append(json.loads(child.stdout.readline()))
        reader_of_lines.start()
        (path,) = wait_for(lambda: sockets(child.pid))
        reader = Reader(path)
        looks: list[int] = []
        for number in range(200):  # until there are enough looks, however busy the machine is
            value = reader.answer(Request("time", number + 1, {"close_seconds": 5.0})).value
            looks.append(sum(minute["looks"] for minute in value["minutes"]))
            if looks[-1] >= looks[0] + 20:  # from here on it looks closely
                answers.append((time.perf_counter(), booked(value)))
            if looks[-1] >= looks[0] + 420:
                break
            time.sleep(0.1)
        reader.close()
        wait_for(lambda: lines[-1][0] > answers[-1][0])
    finally:
        child.kill()
        child.wait()
        reader_of_lines.join()
        child.stdout.close()
    (began, before), *_, (ended, after) = answers
    total = sum(after.values()) - sum(before.values())
    assert total == pytest.approx(ended - began, rel=0.1)
    for row, tolerance in (("input", 0.1), ("validation", 0.08), ("checkpoint", 0.06)):
        truth = (at(lines, ended, row) - at(lines, began, row)) / (ended - began)
        seen = (after.get(row, 0.0) - before.get(row, 0.0)) / total
        assert seen == pytest.approx(truth, abs=tolerance), row
