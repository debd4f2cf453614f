"""Every nanosecond of a trace has one owner, and idle time has the cause that the host gave it."""

from __future__ import annotations

import itertools
import random

import pytest

from gpuscope.probe.look_calls import (
    LATENCY_NS,
    holding,
    launches_of,
    launching,
    own_ns,
    waits,
)
from gpuscope.probe.look_rows import (
    MAX_NAMES,
    HostSpans,
    Stand,
    gaps,
    kind_of,
    step_begins,
    summary,
    union,
)

MS = 1_000_000


def kernel(name, start, end, correlation=0):
    return name, int(start * MS), int(end * MS), correlation


def call(name, start, end, correlation=0, thread=1):
    return name, int(start * MS), int(end * MS), correlation, thread


def launch(correlation, at):
    return call("cudaLaunchKernel", at, at + 0.01, correlation)


def told(activities, calls=(), marks=(0, 100), host=None):
    return summary(activities, calls, [int(mark * MS) for mark in marks], host or HostSpans())


def idle(value):
    return {cause: round(seconds * 1000, 3) for cause, seconds, *_ in value["idle"]}


def adds_up(value):
    busy = sum(row[3] for row in value["kernels"]) + value["left_out"][3]
    return busy + sum(row[1] for row in value["idle"])


ENDS = [kernel("last", 100, 101)]
"""The first kernel of the step after the last: where the window ends."""


def test_each_moment_has_one_owner_and_all_add_up_to_the_window():
    value = told(
        [
            kernel("gemm", 0, 40),
            kernel("add", 30, 50),
            kernel("ncclDevKernel_AllReduce", 45, 70),
            kernel("Memcpy HtoD (Pinned -> Device)", 60, 80),
            *ENDS,
        ]
    )
    own = {row[0]: round(row[3] * 1000, 3) for row in value["kernels"]}
    assert own == {
        "gemm": 40,
        "add": 10,
        "ncclDevKernel_AllReduce": 20,
        "Memcpy HtoD (Pinned -> Device)": 10,
    }
    assert value["communication"] == [0.025, 0.02, 1]
    assert value["copies"] == [0.02, 0.01, 1]
    assert idle(value) == {"launch": 20}
    assert (value["seconds"], adds_up(value)) == (0.1, pytest.approx(0.1))


def test_random_traces_add_up():
    dice = random.Random(7)
    names = ["gemm", "add", "ncclKernel", "Memcpy DtoH (Device -> Pageable)", "Memset (Device)"]
    for _ in range(40):
        activities, calls = [kernel("first", 0, 0.5)], []
        for number in range(1, 300):
            start = dice.uniform(0.2, 100)
            activities.append(
                kernel(dice.choice(names), start, start + dice.expovariate(5), number)
            )
            calls.append(launch(number, start - dice.uniform(0.02, 0.2)))
        host = HostSpans(
            [(int(10 * MS), int(13 * MS))],
            [(int(12 * MS), int(14 * MS))],
            [Stand(t * MS, (t + 5) * MS, "other", "x.py:1 f") for t in range(0, 100, 5)],
        )
        calls += [call("cudaStreamSynchronize", t, t + 2) for t in range(0, 100, 9)]
        value = told([*activities, kernel("end", 100, 101, 999)], [*calls, launch(999, 100)],
                     host=host)  # fmt: skip
        assert adds_up(value) == pytest.approx(value["seconds"], abs=1e-9)
        lengths, rows, rest, spent = value["parts"]
        assert sum(lengths) == pytest.approx(value["seconds"], abs=1e-8)
        for row, own in zip(value["kernels"], rows, strict=True):
            assert sum(own) == pytest.approx(row[3], abs=1e-8)
        assert sum(rest) == pytest.approx(value["left_out"][3], abs=1e-8)
        for row, own in zip(value["idle"], spent, strict=True):
            assert sum(own) == pytest.approx(row[1], abs=1e-8)


def test_parts_are_of_whole_steps_and_ten_at_most():
    steps = [kernel("gemm", 10 * number, 10 * number + 4, number + 1) for number in range(26)]
    calls = [launch(number + 1, 10 * number - 0.1) for number in range(26)]
    value = told(steps, calls, marks=[10 * number - 1 for number in range(26)])
    lengths, rows, _, idle_of = value["parts"]
    assert (value["steps"], len(lengths)) == (25, 10)
    assert {round(one, 3) for one in lengths} == {0.02, 0.03}
    for own, length in zip(rows[0], lengths, strict=True):
        assert own == pytest.approx(0.4 * length)
    assert [sum(part) for part in zip(*idle_of, strict=True)] == pytest.approx(
        [0.6 * one for one in lengths]
    )
    few = told(steps[:4], calls[:4], marks=[10 * number - 1 for number in range(4)])
    assert [round(one, 3) for one in few["parts"][0]] == [0.01] * 3


def test_copies_are_told_with_the_lines_that_the_host_stood_at_meanwhile():
    copies = "Memcpy DtoH (Device -> Pageable)"
    host = HostSpans([], [], [Stand(10 * MS, 35 * MS, "read", "x.py:3 save"),
                         Stand(35 * MS, 60 * MS, "forward", "x.py:1 f")])  # fmt: skip
    value = told(
        [kernel("gemm", 0, 10), kernel(copies, 10, 40), kernel("gemm", 36, 60), *ENDS], host=host
    )
    assert value["copied_at"][0] == [copies, "x.py:3 save", pytest.approx(0.025)]
    assert value["copies"][1] == pytest.approx(0.026)


def test_a_step_of_the_device_begins_with_what_was_launched_after_the_mark():
    ordered = [kernel("late", 5, 8, 1), kernel("own", 9, 12, 2), kernel("next", 20, 22, 3)]
    launched = {1: -1 * MS, 2: 1 * MS, 3: 11 * MS}
    assert step_begins(ordered, launched, [0, 10 * MS, 50 * MS]) == [9 * MS, 20 * MS]


def test_the_window_of_a_drained_device_is_from_mark_to_mark():
    marks = [0, 100 * MS, 200 * MS]
    ran = [kernel("gemm", 40, 90, 1), kernel("gemm", 130, 190, 2)]
    host = HostSpans([(5 * MS, 35 * MS)], [], [])
    value = summary(ran, [launch(1, 36), launch(2, 120)], marks, host, drained=True)
    assert (value["seconds"], value["steps"]) == (0.2, 2)
    assert idle(value) == {"input": 30.0, "launch": 60.0}
    assert adds_up(value) == pytest.approx(0.2)
    assert value["parts"][0] == [0.13, 0.07]
    # Of a device that was not, the last step is not known to its end.
    assert summary(ran, [launch(1, 36), launch(2, 120)], marks, host)["steps"] == 1


@pytest.mark.parametrize("ran", [[], [kernel("gemm", 10, 20, 1)], [kernel("gemm", 10, 210, 1)]])
def test_a_drained_device_may_have_little_to_do(ran):
    value = summary(ran, [launch(1, 5)], [0, 100 * MS, 200 * MS], HostSpans(), drained=True)
    assert bool(value) == bool(ran)
    if ran:
        assert (value["steps"], adds_up(value)) == (2, pytest.approx(value["seconds"]))


def test_a_wait_for_a_batch_is_input_and_garbage_within_it_is_garbage():
    value = told(
        [kernel("a", 0, 10, 1), kernel("b", 40, 100, 2), *ENDS],
        [launch(1, 0), launch(2, 39)],
        host=HostSpans([(12 * MS, 32 * MS)], [(20 * MS, 25 * MS)]),
    )
    assert idle(value) == {"input": 15, "launch": 10, "collection": 5}


def test_a_queue_that_a_read_has_drained_is_the_reads():
    value = told(
        [kernel("a", 0, 10, 1), kernel("b", 14, 100, 2), *ENDS],
        [launch(1, 0), call("cudaStreamSynchronize", 2, 11), launch(2, 13.5)],
    )
    assert idle(value) == {"sync": 3.5, "launch": 0.5}


def test_the_users_own_code_after_a_read_is_the_users_own_code():
    value = told(
        [kernel("a", 0, 10, 1), kernel("b", 60, 100, 2), *ENDS],
        [launch(1, 0), call("cudaStreamSynchronize", 2, 10.5), launch(2, 60)],
        host=HostSpans((), (), [Stand(11 * MS, 55 * MS, "other", "train.py:9 main")]),
    )
    assert idle(value) == {"other": 44, "sync": 6}
    (row,) = [row for row in value["idle"] if row[0] == "other"]
    assert row[3:] == ["train.py:9 main", 0.044]


def test_memory_that_is_allocated_and_copies_that_hold_the_host_have_their_names():
    value = told(
        [kernel("a", 0, 10, 1), kernel("b", 30, 60, 2), kernel("c", 80, 100, 3), *ENDS],
        [
            launch(1, 0),
            call("cudaMalloc", 11, 29),
            launch(2, 30),
            call("cudaMemcpyAsync", 50, 75),
            launch(3, 80),
        ],
    )
    assert idle(value) == {"allocate": 18, "sync": 5, "copy": 15, "launch": 2}


def test_the_host_is_held_by_waits_and_by_launches_that_take_long():
    calls = [
        launch(1, 0),
        call("cudaStreamSynchronize", 2, 11),
        call("cudaLaunchKernel", 20, 30, 2),
        call("cudaMalloc", 40, 60),
    ]
    value = told([kernel("a", 0, 10, 1), kernel("b", 30, 100, 2), *ENDS], calls)
    assert value["held_seconds"] == pytest.approx(0.009 + 0.010 - 0.00001)


def needed(calls, begin, end):
    threads = launching(calls)
    waited = waits(calls, threads, holding(calls, threads))
    return own_ns(calls, threads, waited, begin, end)


def test_what_the_host_needs_itself_leaves_out_waits_and_the_way_from_them():
    """It launches every 0.1 ms. A read waits 5 ms, and the next launch is 0.15 ms after it."""
    calls, at = [launch(1, 0)], 0.0
    for number in range(2, 42):
        if number % 4 == 0:
            calls.append(call("cudaStreamSynchronize", at + 0.01, at + 5.01))
            at += 5.15
        else:
            at += 0.1
        calls.append(launch(number, at))
    own = needed(calls, 0, int(at * MS))
    assert own == pytest.approx(40 * 0.1 * MS, rel=0.03)
    slow = [*calls, call("cudaStreamSynchronize", at, at + 5), launch(99, at + 35)]
    more = needed(slow, 0, int((at + 35) * MS))
    assert more == pytest.approx(own + 30 * MS, rel=0.01), "what it does for long is not the wait's"
    assert needed(calls[:9], 0, int(at * MS)) is None


def test_what_was_launched_in_a_pause_is_told_by_its_kind():
    host = HostSpans((), (), [Stand(10 * MS, 20 * MS, "validation", "train.py:9 evaluate"),
                         Stand(20 * MS, 30 * MS, "forward", "train.py:5 main")])  # fmt: skip
    activities = [kernel("a", 15, 40, 1), kernel("b", 40, 60, 2), *ENDS]
    value = told(activities, [launch(1, 12), launch(2, 22)], host=host)
    assert value["paused"] == [["validation", pytest.approx(0.025)]]
    assert told(activities, [launch(1, 12), launch(2, 22)])["paused"] == []


def test_calls_of_threads_that_launch_nothing_explain_nothing():
    value = told(
        [kernel("a", 0, 10, 1), kernel("b", 30, 100, 2), *ENDS],
        [launch(1, 0), call("cudaEventSynchronize", 5, 30, thread=9), launch(2, 30)],
    )
    assert idle(value) == {"launch": 20}


def test_what_was_launched_long_before_waits_in_the_queue():
    value = told(
        [kernel("a", 0, 10, 1), kernel("b", 10.002, 100, 2), *ENDS], [launch(1, 0), launch(2, 1)]
    )
    assert idle(value) == {"queue": 0.002}


def test_kernels_of_many_names_are_told_in_one_sum():
    many = [kernel(f"k{number}", number / 2, number / 2 + 0.4) for number in range(200)]
    value = told([*many, *ENDS])
    assert len(value["kernels"]) == MAX_NAMES
    assert value["left_out"][:2] == [200 - MAX_NAMES, 200 - MAX_NAMES]
    assert adds_up(value) == pytest.approx(0.1)


def test_a_trace_without_a_whole_step_tells_nothing():
    assert told([]) == {}
    assert told([kernel("a", 0, 10)], marks=(0, 50)) == {}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
         "communication"),
        ("Memcpy PtoP (Device -> Device)", "communication"),
        ("Memcpy HtoD (Pageable -> Device)", "copy"),
        ("Memcpy DtoH (Device -> Pinned)", "copy"),
        ("Memcpy DtoD (Device -> Device)", "compute"),
        ("Memset (Device)", "compute"),
        ("nvjet_sm90_hsh_128x256_64x4_1x2_h_bz_coopA_TNN", "compute"),
    ],
)  # fmt: skip
def test_kinds(name, kind):
    assert kind_of(name) == kind


def test_unions_and_gaps():
    assert union([(5, 6), (1, 3), (2, 4), (4, 5), (9, 9)]) == [(1, 6)]
    assert gaps([(1, 6), (8, 9)], 0, 10) == [(0, 1), (6, 8), (9, 10)]


def test_launches_that_were_not_recorded_change_no_answer_where_the_device_waits_for_the_host():
    """A device that has nothing to do begins with each activity a moment after its launch."""
    activities, calls, at = [], [], 0
    count = itertools.count(1)
    for number in range(1, 400):
        at += random.Random(number).choice((4_000, 14_000, 30_000))
        correlation = next(count)
        calls.append(("cudaLaunchKernel", at, at + 3_000, correlation, 7 + (number > 200)))
        begin = max(at + LATENCY_NS, activities[-1][2] if activities else 0)
        activities.append((f"kernel {number % 9}", begin, begin + 3_000, correlation))
        if number % 20 == 0:
            calls.append(("cudaMemcpyAsync", at + 4_000, at + 5_000, next(count), 7))
            calls.append(("cudaStreamSynchronize", at + 5_000, begin + 4_000, next(count), 7))
            at = begin + 4_000
        if number == 300:
            calls.append(("cudaMalloc", at + 4_000, at + 54_000, next(count), 8))
            at += 54_000
    marks = [0, at + 20_000]
    stands = [Stand(one, one + 90_000, "read", "train.py:3") for one in range(0, at, 200_000)]
    host = HostSpans((), [(1_000_000, 1_100_000)], stands)
    few = [one for one in calls if "Launch" not in one[0]]
    more = launches_of(activities, few, (7, 0), marks[-1] - 1)
    whole = summary(activities, calls, marks, host, drained=True)
    without = summary(activities, few, marks, host, drained=True, more=more)
    assert {"sync", "allocate", "launch", "collection"} <= {row[0] for row in whole["idle"]}
    assert whole["calls"][0][0] == "cudaLaunchKernel"
    assert not [row for row in without["calls"] if "Launch" in row[0]]
    for row in whole["idle"]:
        (same,) = [one for one in without["idle"] if one[0] == row[0]]
        assert same[1] == pytest.approx(row[1], abs=1e-5)
    assert without["host_step_seconds"] == pytest.approx(whole["host_step_seconds"], rel=0.02)
    different = {"idle", "calls", "parts", "host_step_seconds"}
    assert {key: one for key, one in without.items() if key not in different} == {
        key: one for key, one in whole.items() if key not in different
    }


def test_a_launch_that_was_not_recorded_is_of_the_training_thread_and_before_its_step_ended():
    """CUPTI may name a thread by 32 bits of what the C library calls it."""
    named = -0x10C0
    calls = [("cudaEventRecord", 5, 6, 1, named), ("cudaMemsetAsync", 5, 6, 2, 3)]
    activities = [("memset", 20_000, 21_000, 2), ("a", 20_000, 21_000, 3), ("b", 60_000, 70_000, 4)]
    found = launches_of(activities, calls, (4242, 0x7F00_FFFF_EF40), 50_000)
    assert found.moments == {3: 20_000 - LATENCY_NS, 4: 50_000}
    assert found.threads == {named, 3}


def test_an_activity_whose_launch_was_not_recorded_is_of_the_step_in_which_it_was_launched():
    """Also where the device lags behind for a moment at the end of a step."""
    marks, count = [0, 100_000, 200_000, 300_000], itertools.count(1)
    activities, calls = [], []
    for mark in marks[:-1]:
        for start in (mark + 20_000, mark + 60_000, min(mark + 115_000, 290_000)):
            activities.append((f"{mark}", start, start + 5_000, next(count)))
        calls.append(("cudaEventRecord", mark + 99_000, mark + 99_500, next(count), 7))
    more = launches_of(activities, calls, (7, 0), marks[-1] - 1)
    value = summary(activities, calls, marks, HostSpans(), drained=True, more=more)
    assert value["steps"] == 3
    assert value["parts"][0] == [120e-6, 100e-6, 80e-6]
