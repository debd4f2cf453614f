"""The steps leave behind what the sampler reads.

That is memory at a fixed point, phase, retries, communication, and an hour ago.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from gpuscope.model.growth import trend_of_points  # noqa: E402
from gpuscope.probe import ddp_exposed_comm as exposed_module  # noqa: E402
from gpuscope.probe import quick_requests, sampler  # noqa: E402
from gpuscope.probe.ddp_exposed_comm import COUNTED, Exposed  # noqa: E402
from gpuscope.probe.gauges import MAX_POINTS, SPLIT_COLUMNS, YOUNG_READINGS, Gauges, StepMemory  # noqa: E402
from gpuscope.probe.ledger import CPU, Ledger  # noqa: E402
from gpuscope.probe.sampler import Sampler  # noqa: E402
from gpuscope.probe.split import Parts  # noqa: E402
from gpuscope.probe.step_minutes import HOUR, KEPT, Minutes  # noqa: E402
from gpuscope.probe.steps import Steps  # noqa: E402
from gpuscope.store.step_points import Track  # noqa: E402
from gpuscope.wire.frames import ALLOCATOR_COLUMNS, TRAINER_COLUMNS, Unknown  # noqa: E402

# ── an hour ago ───────────────────────────────────────────────────────────────────────────────────


def test_the_median_of_the_minute_one_hour_ago():
    minutes, now = Minutes(), 6000.0
    assert isinstance(minutes.hour_ago(now), Unknown)
    for minute in range(HOUR):
        for step in range(30):
            minutes.add(now + 60 * minute + 2 * step, 9.0 if step == 7 else 1.0 + minute)
        reason = minutes.hour_ago(now + 60 * minute + 59)
        assert reason.text == f"known after an hour of steps, these are {minute} min"
    minutes.add(now + 60 * HOUR, 1.0)
    assert minutes.hour_ago(now + 60 * HOUR) == 1.0
    assert minutes.hour_ago(now + 60 * HOUR + 61) == 2.0


def test_an_hour_of_fast_steps_takes_little_room_and_keeps_the_median():
    minutes = Minutes()
    for step in range(60 * 400):
        minutes.add(6000 + step / 400, 0.001 * (1 + step % 3))
    minutes.add(6060.0, 1.0)
    assert len(minutes._kept) <= KEPT
    assert minutes.medians[0][1] == pytest.approx(0.002)


def test_a_pause_one_hour_ago_is_unknown_and_not_another_minute():
    minutes = Minutes()
    minutes.add(6000.0, 1.0)
    minutes.add(6000.0 + 60 * 5, 1.0)
    minutes.add(6000.0 + 60 * 70, 1.0)
    assert minutes.hour_ago(6000.0 + 60 * 63).text == "no step ended in that minute"
    assert minutes.hour_ago(6000.0 + 60 * 60) == 1.0


# ── memory right after a step ─────────────────────────────────────────────────────────────────────


class Allocators:
    def __init__(self, ordinals):
        self.used, self.reads = ordinals, []

    def ordinals(self):
        return self.used

    def allocated(self, ordinal):
        self.reads.append(ordinal)
        return 100 * (ordinal + 1) + len(self.reads)


@pytest.fixture
def initialised(monkeypatch):
    monkeypatch.setattr("gpuscope.probe.gauges.cuda.initialised", lambda: True)


@pytest.mark.usefixtures("initialised")
def test_memory_is_read_at_most_twice_a_second_and_names_its_step():
    allocators = Allocators([0])
    memory = StepMemory(allocators)
    memory._turn = YOUNG_READINGS
    for step in range(1, 101):
        memory.after_step(step, 50.0 + 0.01 * step, True)
    assert allocators.reads == [0, 0]
    assert memory.of(0) == {"step_allocated_bytes": 102, "step_allocated_step": 51}
    memory.after_step(200, 60.0, False)
    memory.after_step(201, 60.9, False)
    assert len(allocators.reads) == 3
    assert isinstance(memory.of(CPU)["step_allocated_bytes"], Unknown)
    assert isinstance(memory.of(1)["step_allocated_bytes"], Unknown)


@pytest.mark.usefixtures("initialised")
def test_after_ten_seconds_of_steps_it_remembers_enough_to_judge_growth():
    memory = StepMemory(Allocators([0]))
    for step in range(1, 2501):  # 4 ms each
        memory.after_step(step, 50.0 + 0.004 * step, False)
    ((ordinal, points),) = quick_requests.growth(memory)["points"]
    track = Track()
    for step, size in points:
        track.add(step, size)
    assert track.points is not None
    assert (ordinal, trend_of_points(track.points) is not None) == (0, True)
    for step in range(2501, 5000):
        memory.after_step(step, 60.0 + 2.0 * step, False)
    assert len(memory.points[0]) <= MAX_POINTS
    steps = [step for step, _ in memory.points[0]]
    assert steps == sorted(set(steps))
    assert (steps[0], steps[-1]) == (1, 4999)


@pytest.mark.usefixtures("initialised")
def test_several_devices_are_read_in_turn():
    allocators = Allocators([0, 2, 3])
    memory = StepMemory(allocators)
    for step in range(6):
        memory.after_step(step, 50.0 + step, True)
    assert sorted(allocators.reads) == [0, 0, 2, 2, 3, 3]
    assert set(memory.latest) == {0, 2, 3}


# ── communication ─────────────────────────────────────────────────────────────────────────────────


class Parallel:
    def __init__(self):
        self.figures = {}
        self.logger = SimpleNamespace(
            _get_ddp_logging_data=lambda: SimpleNamespace(ints_map=dict(self.figures))
        )

    def measured(self, iteration, comm, overlap):
        self.figures = {
            "iteration": iteration,
            "backward_comm_time": comm,
            "backward_compute_comm_overlap_time": overlap,
        }


@pytest.fixture
def group(monkeypatch):
    monkeypatch.setattr(exposed_module, "distributed", lambda: True)


def test_without_a_process_group_nobody_is_waited_for():
    assert Exposed().reading() == 0.0


@pytest.mark.usefixtures("group")
def test_what_is_not_overlapped_of_ddps_own_figures():
    exposed, module = Exposed(), Parallel()
    refs = [lambda: module]
    assert "profile" in exposed.reading().text
    exposed.after_step(refs, 1, 10.0)
    assert "not measured" in exposed.reading().text
    module.measured(2, 900_000_000, 0)  # connections are made: no iteration like the others
    exposed.after_step(refs, 2, 15.0)
    assert "not measured" in exposed.reading().text
    module.measured(10, 30_000_000, 20_000_000)
    exposed.after_step(refs, 10, 20.0)
    exposed.after_step(refs, 11, 30.0)  # the same iteration counts once
    assert exposed.reading().text.startswith("1 of ")
    module.measured(100, 10_000_000, 12_000_000)  # ended before computing did
    exposed.after_step(refs, 100, 40.0)
    module.measured(200, 14_000_000, 8_000_000)
    exposed.after_step(refs, 200, 50.0)
    assert exposed.reading() == pytest.approx(0.006)
    # one that a pause of the other rank has fallen into
    module.measured(300, 750_000_000, 8_000_000)
    exposed.after_step(refs, 300, 60.0)
    assert exposed.reading() == pytest.approx(0.008)


def test_a_rank_on_a_cpu_tells_what_its_quickest_steps_take_without_their_wait():
    """DDP tells of a step when the next forward pass has begun: the durations are one ahead."""
    exposed, module = Exposed(), Parallel()
    module.device_type = "cpu"
    waits = [3_000_000, 20_000_000, 1_000_000]
    assert isinstance(exposed.own(0.0), Unknown)
    for step in range(1, 61):
        own = 0.040 if step % 3 == 0 else 0.055
        module.measured(step - 1, 5_000_000 + waits[step % 3], 5_000_000)
        durations = [9.9, own + waits[step % 3] * 1e-9, 7.7]
        exposed.after_step([lambda: module], step, 10.0 + 0.06 * step, durations)
    assert exposed.own(13.7) == pytest.approx(0.040)
    module.measured(59, 6_000_000, 5_000_000)
    for step in range(61, 161):  # DDP has not measured any of these
        exposed.after_step([lambda: module], step, 10.0 + 0.06 * step, [0.001, 0.001])
    assert exposed.own(13.7) == pytest.approx(0.040)
    assert isinstance(exposed.own(30.0), Unknown), "those are too old by then"


def test_where_several_iterations_are_a_step_nothing_tells_how_long_each_step_waited():
    exposed, module = Exposed(), Parallel()
    module.device_type = "cpu"
    for step in range(1, 61):
        module.measured(4 * step, 6_000_000, 5_000_000)
        exposed.after_step([lambda: module], step, 10.0 + 0.06 * step, [0.05, 0.05])
    assert isinstance(exposed.own(13.7), Unknown)


@pytest.mark.usefixtures("group")
def test_several_reductions_in_a_step_are_added():
    exposed, module = Exposed(), Parallel()
    for look in range(1, 12):
        module.measured(100 * look, 10_000_000, 5_000_000)
        exposed.after_step([lambda: module], 25 * look, 100.0 * look)
    assert COUNTED < 100 * 11
    assert exposed.reading() == pytest.approx(4 * 0.005)


@pytest.mark.usefixtures("group")
def test_another_ddp_has_no_figures():
    exposed = Exposed()
    exposed.after_step([lambda: SimpleNamespace(logger=None)], 1, 10.0)
    assert isinstance(exposed.reading(), Unknown)


# ── columns ───────────────────────────────────────────────────────────────────────────────────────


def gauges():
    steps, ledger = Steps(), Ledger()
    return Gauges(steps, ledger), steps, ledger


def test_the_parts_add_up_with_communication_and_what_is_unknown_says_why():
    found, steps, _ = gauges()
    assert all(isinstance(found.trainer(True)[name], Unknown) for name in SPLIT_COLUMNS)
    assert "hook" in found.trainer(False)["input_seconds"].text
    found.split.recent.extend([Parts(0.1, 0.5, 0.2, 0.2, 1.0), Parts(0.3, 0.9, 0.2, 0.2, 1.6)])
    steps.last, steps.loader_seen = 1.0, True
    found.exposed.reading = lambda: 0.05
    values = found.trainer(True)
    assert values["communication_seconds"] == 0.05
    assert values["compute_seconds"] == pytest.approx(0.65)
    known = [values[name] for name in SPLIT_COLUMNS if name != "h2d_seconds"]
    assert sum(known) == pytest.approx(1.3)
    assert "nothing is copied" in values["h2d_seconds"].text
    found.split.ordinal = 0
    assert "profile" in found.trainer(True)["h2d_seconds"].text
    found.exposed.reading = lambda: 99.0
    assert sum(
        found.trainer(True)[name] for name in SPLIT_COLUMNS if name != "h2d_seconds"
    ) == pytest.approx(1.3)
    steps.loader_seen = False
    assert "DataLoader" in found.trainer(True)["input_seconds"].text
    assert "DataLoader" in found.trainer(True)["other_seconds"].text


def test_the_phase_is_told_when_it_changes():
    told = []
    found, steps, ledger = gauges()
    sampler = Sampler("watch", steps, ledger, found, lambda *event: told.append(event))
    assert isinstance(found.phase(), Unknown)
    model = torch.nn.Linear(2, 2)
    ledger.add_model(model)

    def phase():
        sampler.tick()
        row = dict(zip(TRAINER_COLUMNS, sampler.tick()[0].t[0][1:], strict=True))
        return row["phase"]

    assert phase() == "train"
    model.eval()
    assert phase() == "eval"
    model.train()
    assert phase() == "train"
    assert [event[2] for event in told] == [{"phase": "eval"}, {"phase": "train"}]


def test_retries_are_told_as_they_come():
    told = []
    found, steps, ledger = gauges()
    sampler = Sampler("watch", steps, ledger, found, lambda *event: told.append(event))
    for count in (3, 3, 4, 9, Unknown("not_supported", "x"), 9):
        sampler._retried(0, count)
    assert [(event[0], event[2], event[3]) for event in told] == [
        ("retry", {"count": 1}, 0),
        ("retry", {"count": 5}, 0),
    ]
    assert "5 times" in told[1][1]


def test_a_server_without_steps_says_what_to_do_and_counts_a_watched_model():
    found, steps, ledger = gauges()
    sampler = Sampler("watch", steps, ledger, found)
    values = sampler._categories(0)
    assert all("watch(model)" in value.text for value in values.values())
    model = torch.nn.Linear(8, 8).requires_grad_(False)
    ledger.add_model(model)
    ledger.wanted = True
    for _ in range(50):
        sampler.tick()
    values = sampler._categories(CPU)
    assert (values["parameter_bytes"], values["gradient_bytes"]) == ((8 * 8 + 8) * 4, 0)
    assert "optimizer" in values["optimizer_state_bytes"].text


def test_other_models_travel_with_their_bytes_the_largest_by_name():
    found, steps, ledger = gauges()
    sampler = Sampler("watch", steps, ledger, found)
    ledger.bytes = {}
    ledger.other_models = {0: {f"model{index}": 1000 + index for index in range(10)}}
    assert sampler._categories(0)["other_models"] == (
        "model9 1009 B, model8 1008 B, model7 1007 B, model6 1006 B, model5 1005 B, model4 1004 B, "
        "model3 1003 B, model2 1002 B, 2 more 2001 B"
    )


def test_every_column_of_an_allocator_has_a_value_or_a_reason_of_its_own():
    found, steps, ledger = gauges()
    sampler = Sampler("watch", steps, ledger, found)
    steps.last = 1.0
    sample, reasons = sampler.tick()
    entity = sample.a[0][0]
    for column, value in zip(ALLOCATOR_COLUMNS, sample.a[0][1:], strict=True):
        assert (
            value is not None or reasons[entity, column][1] != "not measured in this process yet"
        ), column


@pytest.mark.slow
def test_a_model_in_the_loop_is_found_and_its_frozen_parameters_count():
    def train():
        found, steps, ledger = gauges()
        ledger.wanted = True
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
        model[0].requires_grad_(False)
        optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)
        for step in range(1, 60):
            steps.stepped(optimizer, float(step))
            found.after_step(optimizer, True, float(step))
            ledger.after_step(optimizer, float(step))
        return found, ledger, model, optimizer

    assert sys.gettrace() is None
    found, ledger, model, _optimizer = train()
    assert [ref() for ref in ledger.models()] == [model]
    assert ledger.bytes[CPU].parameters == 2 * (8 * 8 + 8) * 4
    assert found.phase() == "train"
    tree = found.tree
    tree.request()
    for _ in range(1000):
        tree.after_step()
        if not tree.wanted:
            break
    assert tree.poll()["source"] == "found in the training loop"


def test_a_sample_rests_no_more_where_the_trainer_holds_the_interpreter_for_long(monkeypatch):
    rests: list[float] = []
    late = 0.0

    def sleep(seconds: float) -> None:
        rests.append(seconds + late)

    monkeypatch.setattr(sampler, "time", SimpleNamespace(sleep=sleep, monotonic=lambda: sum(rests)))
    usual = sampler.Pause(0.02)
    for _ in range(3):
        usual()
    assert rests == [0.02] * 3
    late, held = 0.2, sampler.Pause(0.02)
    for _ in range(3):
        held()
    assert len(rests) == 4
