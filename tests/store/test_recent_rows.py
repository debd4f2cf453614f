"""What a trainer tells of the minutes before we looked comes before what was seen of it."""

from __future__ import annotations

from gpuscope.store.history import Ring
from gpuscope.store.recent_rows import MAX_ROWS, recent_device_rows, recent_rows
from gpuscope.wire import frames as f
from tests.fakes import jobs, views

NS = 10**9


def table(first: float, count: int, **columns: list[object]) -> dict[str, object]:
    return {"m": [int((first + 2 * n) * NS) for n in range(count)], **columns}


def test_a_history_begins_with_what_was_told_and_goes_on_with_what_was_seen():
    store = views.store_of(jobs.ranks(2, 20.0))
    host = store.view().host
    trainer = host.trainers[0]
    seen = store.history(views.SOURCE, trainer.id, "step")
    first, oldest = seen.seconds[0], store.oldest_seconds(views.SOURCE)
    told = table(first - 20, 13, step=[3900 + n for n in range(13)], loss=[None, *[0.5] * 12])
    memory = table(first - 20, 10, allocated_bytes=[7] * 10)
    told_all = {"trainer": told, "allocators": [[0, memory], [9, memory]]}
    store.remember(views.SOURCE, trainer.id, "recent", told_all)
    whole = store.history(views.SOURCE, trainer.id, "step")
    assert whole.values[:10] == tuple(3900.0 + n for n in range(10))
    assert whole.seconds[10:] == seen.seconds, "what was told of later than that is left out"
    assert store.history(views.SOURCE, trainer.id, "loss").values[:2] == (None, 0.5)
    assert set(store.history(views.SOURCE, trainer.id, "step_seconds").values[:10]) == {None}
    allocator = trainer.allocators[0]
    held = store.history(views.SOURCE, allocator.id, "allocated_bytes")
    assert held.values[:10] == (7.0,) * 10
    assert store.oldest_seconds(views.SOURCE) == oldest, "no picture is made of that time"
    assert store.host_at(views.SOURCE, first - 5) is None
    before = len(whole)
    store.remember(views.SOURCE, trainer.id, "recent", {"trainer": told})
    assert len(store.history(views.SOURCE, trainer.id, "step")) == before, "it is taken once"


def test_an_answer_that_is_no_table_is_left_out():
    rows = [1 * NS, 3 * NS]
    assert recent_rows({}) == {}
    for bad in (
        None,
        [],
        {"m": []},
        {"m": [3 * NS, 1 * NS]},
        {"m": [-1, 2]},
        {"m": [True, 2]},
        {"m": [0.5, 2]},
        {"m": list(range(MAX_ROWS + 1))},
    ):
        assert recent_rows({"trainer": bad}) == {}
        assert recent_rows({"allocators": [[0, bad], bad, [0]]}) == {}
    good = {"m": rows, "step": [1, "x"], "short": [1], "huge": [1e301, True]}
    assert recent_rows({"trainer": good}) == {
        "trainer": (rows, {"step": [1, None], "huge": [None, None]})
    }


def test_hours_that_were_seen_take_nothing_in():
    ring = Ring(("step",), points=4)
    for n in range(400):
        ring.append(1000.0 + n, [float(n)])
    before = ring.history("step")
    ring.put_before([1.0, 2.0], {"step": [1.0, 2.0]})
    assert ring.history("step") == before


def test_a_trainer_that_is_not_there_is_ignored():
    store = views.store_of(jobs.ranks(2, 20.0))
    store.remember(views.SOURCE, 12345, "recent", {"trainer": {"m": [1], "step": [1]}})
    store.remember("elsewhere", 1, "recent", {})
    assert isinstance(f.REQUESTS.index("recent"), int)


def test_the_history_of_a_gpu_begins_with_what_its_driver_sampled():
    store = views.store_of(views.training(20.0))
    device = store.view().host.devices[0]
    seen = store.history(views.SOURCE, device.id, "utilization_percent")
    assert seen.seen_since is None
    first = seen.seconds[0]
    told = table(first - 10, 8, utilization_percent=[30] * 8, power_watts=[None] * 7 + [400])
    store.remember_devices(views.SOURCE, {"devices": [[device.key, told], ["GPU-none", told]]})
    whole = store.history(views.SOURCE, device.id, "utilization_percent")
    assert whole.values[:5] == (30.0,) * 5
    assert whole.seconds[5:] == seen.seconds, "what was told of later than that is left out"
    assert whole.seen_since == first, "and it can be told apart"
    assert set(store.history(views.SOURCE, device.id, "used_bytes").values[:5]) == {None}
    assert store.history(views.SOURCE, device.id, "used_bytes", 5.0).seen_since is None
    assert store.host_at(views.SOURCE, first - 5) is None, "no picture is made of that time"


def test_an_answer_about_gpus_that_is_no_table_is_left_out():
    good = {"m": [1], "power_watts": [7.0]}
    for bad in (None, {}, 3, [1], [["a"]], [[1, good]], [["a", None]], [["a", {"m": [True]}]]):
        assert recent_device_rows({"devices": bad}) == {}
    assert recent_device_rows({"devices": [["a", good]]}) == {"a": ([1], {"power_watts": [7.0]})}
