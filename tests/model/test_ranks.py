"""Ranks are compared rightly with each other.

That is who stands and who waits, stragglers, imbalance, and shares of a step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial

import pytest

from gpuscope.model import memory_room, ranks, stalls, step_time, stragglers
from gpuscope.wire import frames as f
from tests.fakes import jobs, views
from tests.fakes.views import host_of


def with_last_row(frames: list[f.Frame], per_rank: dict[int, dict[str, f.Scalar]]) -> list[f.Frame]:
    """The stream and one more sample, in which some ranks have these readings."""
    last = frames[-1]
    assert isinstance(last, f.Sample)
    rows = [
        views.row(
            "t",
            row[0],
            **{
                **dict(zip(f.TRAINER_COLUMNS, row[1:], strict=True)),
                **per_rank.get(row[0] - 300, {}),
            },
        )
        for row in last.t
    ]
    return [*frames, f.Sample(last.q + 1, last.m + 500_000_000, t=rows)]


def test_the_rank_with_fewest_collectives_is_named_and_the_others_wait_for_it():
    stall = stalls.find_stall(host_of(jobs.ranks(stalled=True)).trainers)
    assert stall is not None
    assert [t.definition.rank for t in stall.behind] == [3]
    assert [t.definition.rank for t in stall.waiting] == [0, 1, 2]
    assert (
        stall.text == "rank 3 is stuck at data.py:88 in __getitem__; ranks 0–2 wait in all_reduce"
    )


def test_it_is_the_worst_rank_of_the_job():
    (job,) = host_of(jobs.ranks(stalled=True)).jobs
    worst, reason = stalls.worst_rank(job.trainers)
    assert worst is not None
    assert worst.definition.rank == 3
    assert "data.py:88" in reason


def test_without_counts_the_one_outside_a_collective_is_behind():
    alike = {rank: {"collectives": None} for rank in range(4)}
    stall = stalls.find_stall(host_of(with_last_row(jobs.ranks(stalled=True), alike)).trainers)
    assert stall is not None
    assert [t.definition.rank for t in stall.behind] == [3]


def test_the_rank_that_is_behind_by_steps_is_named_where_collectives_are_not_counted():
    rows: dict[int, dict[str, f.Scalar]] = {
        rank: {"collectives": None, "stall_at": None} for rank in range(4)
    }
    rows[1] = {**rows[1], "step": 4000}
    stall = stalls.find_stall(host_of(with_last_row(jobs.ranks(stalled=True), rows)).trainers)
    assert stall is not None
    assert [t.definition.rank for t in stall.behind] == [1]


def test_nobody_is_blamed_without_evidence():
    alike: dict[int, dict[str, f.Scalar]] = {
        rank: {"collectives": None, "stall_at": None} for rank in range(4)
    }
    stall = stalls.find_stall(host_of(with_last_row(jobs.ranks(stalled=True), alike)).trainers)
    assert stall is not None
    assert stall.behind == ()
    assert "is unknown" in stall.text


def test_a_job_that_steps_does_not_stand():
    host = host_of(jobs.ranks())
    assert stalls.find_stall(host.trainers) is None
    assert stalls.worst_rank(host.trainers) == (None, "")


def test_a_trainer_by_itself_stands_somewhere():
    rows: dict[int, dict[str, f.Scalar]] = {
        0: {"step_age_seconds": 33.0, "stall_at": "train.py:7 main ← x.py:1 read"}
    }
    stall = stalls.find_stall(host_of(with_last_row(jobs.ranks(1), rows)).trainers)
    assert stall is not None
    assert stall.text == "no step for 33 s: stuck at train.py:7 in main (read)"


@pytest.mark.parametrize("hostile", ["", " ", "←", " ← ", "x" * 5000, "\x1b]52;c;AAAA\x07:1 f"])
def test_any_text_may_stand_where_a_place_should(hostile):
    rows: dict[int, dict[str, f.Scalar]] = {rank: {"stall_at": hostile} for rank in range(4)}
    stall = stalls.find_stall(host_of(with_last_row(jobs.ranks(stalled=True), rows)).trainers)
    assert stall is not None


def test_a_straggler_is_the_one_that_works_longest_not_the_ones_that_wait():
    slow = stragglers.straggler(host_of(jobs.ranks(slow=1)).trainers)
    assert slow is not None
    assert slow.trainer.definition.rank == 1
    assert slow.mostly == "input"
    assert (slow.own_seconds, slow.usual_seconds) == pytest.approx((0.50125, 0.35625))
    assert stragglers.straggler(host_of(jobs.ranks()).trainers) is None


def two_ranks(
    cuda: bool, own: Callable[[float], tuple[float, float]], told: tuple[bool, bool] = (True, True)
):
    """Return two minutes of a job of two ranks that step together.

    ``own(seconds)`` is the milliseconds that each works in a step of 60 ms. ``told``: whether a
    rank's wait for the other is known.
    """
    frames = jobs.ranks(2, 120.0)
    for frame in frames:
        if isinstance(frame, f.Def) and frame.trainer is not None:
            frame.trainer.cuda = cuda
        for row in frame.t if isinstance(frame, f.Sample) else ():
            rank, parts = row[0] - 300, dict.fromkeys(step_time.SPLIT, 0.0)
            compute = own(frame.q / 2)[rank] / 1000
            parts |= {"compute": compute, "communication": 0.06 - compute}
            if not told[rank]:
                parts |= {"compute": 0.06, "communication": None}
            for name, seconds in parts.items():
                row[1 + f.TRAINER_COLUMNS.index(f"{name}_seconds")] = seconds
    store = views.store_of(frames)
    host = views.host_in(store)
    return stragglers.straggler(host.trainers, partial(store.history, host.key))


# Put together from courses measured of two healthy ranks over gloo on two busy cores: from that
# second on, the work of each in a step, in ms.
NOISE = (
    (0, 20, 23),
    (20, 22, 13),
    (24, 22, 18),
    (40, 23, 16),
    (62, 26, 24),
    (76, 21, 25),
    (81, 21, 39),
    (89, 8, 32),
    (94, 12, 25),
    (100, 27, 17),
    (110, 35, 9),
)


def noise(seconds: float) -> tuple[float, float]:
    return [(zero, one) for since, zero, one in NOISE if since <= seconds][-1]


def test_noise_between_healthy_ranks_on_a_cpu_makes_no_straggler():
    assert two_ranks(False, noise) is None
    assert two_ranks(False, lambda _: (20.0, 21.0)) is None, (
        "a rank that prints and one that does not"
    )
    assert two_ranks(False, lambda s: (20.0, 20.0 if s < 90 else 45.0)) is None, (
        "not for long enough"
    )


@pytest.mark.parametrize("cuda", [True, False])
def test_a_rank_that_works_twice_as_long_is_a_straggler(cuda):
    slow = two_ranks(cuda, lambda s: (20.0 + s % 3, 40.0 + s % 7))
    assert slow is not None
    assert slow.trainer.definition.rank == 1


def test_ranks_with_gpus_of_their_own_are_judged_by_smaller_differences_that_last():
    assert two_ranks(True, lambda _: (20.0, 26.0)) is not None
    assert two_ranks(True, lambda s: (20.0, 26.0) if s > 90 else (26.0, 20.0)) is None, (
        "now one, now the other"
    )
    assert two_ranks(True, lambda s: (20.0, 26.0) if s > 90 else (20.0, 20.0)) is None


def test_a_rank_of_which_it_is_not_known_how_long_it_waits_is_not_said_to_work_all_of_the_step():
    assert two_ranks(True, lambda _: (20.0, 20.0), told=(False, True)) is None
    assert two_ranks(False, lambda _: (20.0, 20.0), told=(True, False)) is None


def test_without_a_history_only_ranks_with_gpus_are_judged():
    frames = jobs.ranks(slow=1)
    assert stragglers.straggler(host_of(frames).trainers) is not None
    for frame in frames:
        if isinstance(frame, f.Def) and frame.trainer is not None:
            frame.trainer.cuda = False
    assert stragglers.straggler(host_of(frames).trainers) is None


def test_shares_add_up_to_one():
    host = host_of(jobs.ranks())
    assert sum(step_time.shares_of(host.trainers).values()) == pytest.approx(1.0)
    assert step_time.shares_of(host_of(views.training(4.0)).trainers) == {}


def test_shares_are_of_the_step_that_is_shown_beside_them():
    """Shares are of the step that is shown beside them.

    The steps taken apart took 0.6 s on average, the median of others is 0.5 s: shares are of the
    0.6 s.
    """
    parts = {rank: jobs.split(0.55 + 0.1 * (rank % 2)) for rank in range(4)}
    trainers = host_of(with_last_row(jobs.ranks(), parts)).trainers
    step, shares = step_time.measured_step(trainers), step_time.shares_of(trainers)
    assert step == pytest.approx(0.6)
    assert {t.number("step_seconds") for t in trainers} == {0.5}
    mean = sum(t.number("compute_seconds") or 0.0 for t in trainers) / 4
    assert shares["compute"] * step == pytest.approx(mean)
    assert sum(step_time.split_of(trainers[0]).values()) == pytest.approx(
        step_time.measured_step(trainers[:1])
    )
    assert step_time.measured_step(host_of(views.training(4.0)).trainers) is None


def test_the_wait_for_the_loader_is_divided_by_the_mean_of_the_same_steps():
    """The wait for the loader is divided by the mean of the same steps.

    Every tenth step waits two seconds: the mean wait is more than a median step, and a fifth of the
    mean step.
    """
    row: dict[str, f.Scalar] = {f"{name}_seconds": None for name in step_time.SPLIT}
    row |= {"loader_wait_seconds": 0.2, "step_seconds": 0.1, "step_seconds_mean": 1.0}
    (trainer,) = host_of(with_last_row(jobs.ranks(1), {0: row})).trainers
    assert step_time.input_wait(trainer) == (0.2, 1.0)
    assert step_time.input_share(trainer) == pytest.approx(0.2)


def test_imbalance_is_the_largest_over_the_mean():
    assert ranks.imbalance(host_of(jobs.ranks(leaks=2)).trainers) == pytest.approx(1.26, abs=0.02)
    assert ranks.imbalance(host_of(jobs.ranks(1)).trainers) is None


def test_headroom_is_what_is_free_and_what_the_cache_gives_back():
    host = host_of(jobs.ranks(1))
    (room,) = memory_room.rooms(host.devices, host.trainers)
    free = host.devices[0].number("free_bytes")
    assert free is not None
    assert room.headroom_bytes == free, "all of the cache is split: nothing can be released"


def test_headroom_is_what_the_fullest_moment_of_a_step_leaves():
    """Headroom is what the fullest moment of a step leaves.

    In the forward pass 60 GiB are live, after the step 40: the 20 between them are needed again in
    each step.
    """
    frames = jobs.ranks(1, 40.0)
    for sample in (frame for frame in frames if isinstance(frame, f.Sample)):
        live = (60 if sample.q % 4 == 1 else 40) << 30
        sizes = {"allocated_bytes": live, "active_bytes": live, "inactive_split_bytes": 2 << 30}
        for name, size in sizes.items():
            sample.a[0][1 + f.ALLOCATOR_COLUMNS.index(name)] = size
    store = views.store_of(frames)
    host = views.host_in(store)
    (room,) = memory_room.rooms(host.devices, host.trainers, partial(store.history, host.key))
    free, reserved = host.devices[0].number("free_bytes"), room.allocator.number("reserved_bytes")
    assert (free, reserved) != (None, None)
    assert room.allocator.number("active_bytes") == 40 << 30, (
        "the last reading is between two steps"
    )
    assert room.headroom_bytes == free + reserved - (60 << 30) - (2 << 30)
    (alone,) = memory_room.rooms(host.devices, host.trainers)
    assert alone.headroom_bytes == room.headroom_bytes + (20 << 30), (
        "where nothing is known of before"
    )


def test_slower_than_an_hour_ago():
    rows: dict[int, dict[str, f.Scalar]] = {
        2: {"step_seconds": 0.637, "step_seconds_hour_ago": 0.49}
    }
    host = host_of(with_last_row(jobs.ranks(), rows))
    assert step_time.slower_than_before(host.trainers) == pytest.approx(1.3)


def test_names_of_ranks():
    trainers = host_of(jobs.ranks(6)).trainers
    assert ranks.names_of([trainers[0], trainers[1], trainers[2], trainers[5]]) == "ranks 0–2, 5"
    assert ranks.names_of([trainers[3], trainers[4]]) == "ranks 3, 4"
    assert ranks.names_of(trainers[4:5]) == "rank 4"


@pytest.mark.parametrize(
    ("rank", "script", "subject", "first"),
    [
        (3, "/home/a/train.py", "rank 3", "Rank 3"),
        (None, "/home/a/train.py", "train.py", "train.py"),
        (None, "", "pid 7", "Pid 7"),
        (None, None, "pid 7", "Pid 7"),
    ],
)
def test_a_trainer_without_a_rank_is_called_by_its_script(rank, script, subject, first):
    (trainer, *_) = host_of(jobs.ranks(1)).trainers
    definition = dataclasses.replace(trainer.definition, rank=rank, script=script, pid=7)
    trainer = dataclasses.replace(trainer, definition=definition)
    assert ranks.subject_of(trainer) == subject
    assert ranks.subject_of(trainer, first=True) == first


def test_a_rank_that_gets_on_with_something_else_does_not_stand_and_the_others_wait_for_it():
    """Rank 3 writes a checkpoint, the others wait in the next collective."""
    frames = jobs.ranks(stalled=True)
    last = frames[-1]
    assert isinstance(last, f.Sample)
    busy: list[int | str] = [
        303,
        "stall_at",
        f.NOT_INITIALISED,
        "overdue, but the thread is doing something else",
    ]
    moved = with_last_row(frames, {3: {"stall_at": None}})
    assert isinstance(moved[-1], f.Sample)
    moved[-1].why.append(busy)
    stall = stalls.find_stall(host_of(moved).trainers)
    assert stall is not None
    assert stall.busy
    assert stall.text.startswith("rank 3 is busy outside of a step")
    assert "ranks 0–2 wait in all_reduce" in stall.text


def test_an_overdue_trainer_that_gets_on_is_not_said_to_stand():
    moved = with_last_row(jobs.ranks(1), {0: {"step_age_seconds": 33.0, "stall_at": None}})
    assert isinstance(moved[-1], f.Sample)
    moved[-1].why.append(
        [300, "stall_at", f.NOT_INITIALISED, "the training thread is doing something else"]
    )
    assert stalls.find_stall(host_of(moved).trainers) is None
