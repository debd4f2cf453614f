"""Measure how long the viewer takes to process its input.

This covers lines, frames, a verdict on growth, and a trace of an allocator.

The bars assume a core of its own. All figures are CPU time, or the shortest of many tries.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import pytest

from gpuscope.model.growth import judge
from gpuscope.predict.allocator import simulate
from gpuscope.store import decode as viewer
from gpuscope.store.step_points import OLD_POINTS, RECENT_POINTS
from gpuscope.store.store import Store
from gpuscope.wire import codec, frames
from gpuscope.wire.codec import WireError, encode
from gpuscope.wire.frames import COLUMNS, Def, Key, Sample
from tests.fakes import wire
from tests.fakes.wire import SECOND, hello, sample
from tests.predict.test_simulator_truth import TRACES, opened
from tests.wire.test_decoders import DECODERS, HOSTILE

pytestmark = pytest.mark.bench


def seconds(act: Callable[[], Any]) -> float:
    began = time.process_time()
    act()
    return time.process_time() - began


@DECODERS
def test_hostile_lines_are_refused_fast(
    decode: Callable[[bytes], object], report: Callable[..., None]
) -> None:
    def refused(line: bytes) -> None:
        with pytest.raises(WireError):
            decode(line)

    took = {
        name: seconds(partial(refused, line))
        for name, line in HOSTILE.items()
        if name != "600 digits"
    }
    longest = max(took, key=lambda name: took[name])
    report("hostile lines", longest=f"{took[longest]:.3f} s", of=longest)
    assert took[longest] < 2.0


def test_the_viewers_decoder_is_the_faster_one(report: Callable[..., None]) -> None:
    """A frame of 8 devices, 64 processes with their uses and 8 trainers."""
    said = frames.Sample(1, 2)
    said.g = [
        wire.row(i, "g", used_bytes=10**10 + i, power_watts=300.5, utilization_percent=97.0)
        for i in range(8)
    ]
    said.p = [[100 + i, 12.5, 10**9 + i] for i in range(64)]
    said.u = [[200 + i, 10**9 + i] for i in range(64)]
    said.t = [wire.row(300 + i, "t", step=i, step_seconds=0.123) for i in range(8)]
    said.a = [
        wire.row(400 + i, "a", allocated_bytes=10**10, reserved_bytes=10**10) for i in range(8)
    ]
    line = encode(said)

    def best(decode: Any) -> float:
        return min(seconds(lambda: [decode(line) for _ in range(10)]) for _ in range(20))

    assert viewer.decode(line) == codec.decode(line)
    fast, usual = best(viewer.decode), best(codec.decode)
    report(
        "ten samples of a large host", viewer=f"{fast * 1e3:.1f} ms", stdlib=f"{usual * 1e3:.1f} ms"
    )
    assert fast * 3 < usual


def test_a_tick_of_a_large_host_is_cheap(report: Callable[..., None]) -> None:
    """A tick of a large host takes about a millisecond on an idle core of 2020 or later.

    The host has 8 devices, 64 processes with a use each, and 8 trainers.
    """
    store = Store()
    store.add_source("k", "label")

    def say(*said: frames.Frame) -> None:
        for frame in said:
            store.apply("k", frame, 1.0)
        store.view()

    say(hello(), *(Def(i, gpu=frames.GpuDef(f"GPU-{i}", i)) for i in range(1, 9)))
    for i in range(64):
        say(Def(100 + i, proc=frames.ProcDef(i, 1, command=f"python /x/train{i}.py")))
        say(Def(200 + i, use=frames.UseDef(100 + i, 1 + i % 8)))
    for i in range(8):
        say(Def(300 + i, trainer=frames.TrainerDef(i, 1, proc=100 + i, rank=i, job="j")))
        say(Def(400 + i, alloc=frames.AllocDef(300 + i, 0, gpu=1 + i)))
    tables = {
        "g": range(1, 9),
        "p": range(100, 164),
        "u": range(200, 264),
        "t": range(300, 308),
        "a": range(400, 408),
    }
    ticks = [
        sample(q, **{t: [[i, *range(len(COLUMNS[t]))] for i in ids] for t, ids in tables.items()})
        for q in range(1, 200)
    ]
    least = min(seconds(partial(say, tick)) for tick in ticks)
    report("a tick of a large host", least=f"{least * 1e3:.2f} ms")
    assert least < 0.002


def test_one_frame_never_stops_the_screen(report: Callable[..., None]) -> None:
    """The dearest frames there are do not stop the screen.

    They are a key frame that ends all, columns in another order, and the largest tables.
    """
    store = Store()
    store.add_source("k", "label")
    store.apply("k", hello(), 1.0)
    store.apply("k", Def(1, gpu=frames.GpuDef("GPU-a", 0)), 1.0)
    for number in range(4096):
        store.apply("k", Def(10_000 + number, proc=frames.ProcDef(number, 1)), 1.0)
        store.apply("k", Def(20_000 + number, use=frames.UseDef(10_000 + number, 1)), 1.0)
    uses: list[frames.Row] = [[20_000 + number, number] for number in range(4096)]
    for q in range(1, 200):
        store.apply("k", Sample(q, (100 + q) * SECOND, u=uses), 1.0)
    turned = {table: list(reversed(columns)) for table, columns in COLUMNS.items()}
    dearest = (
        hello(cols={**turned, "u": ["used_bytes", "x"]}, m=300 * SECOND),
        Sample(201, 301 * SECOND, u=uses, p=[[10_000 + number, 1.0, 2] for number in range(4096)]),
        Key(202, 302 * SECOND, 1e9, 1),
        Def(1, gpu=frames.GpuDef("GPU-a", 0)),
        frames.Ping(),
    )
    took = [seconds(partial(store.apply, "k", frame, 1.0)) for frame in dearest]
    host = store.view().host
    assert host is not None
    assert all(process.gone for process in host.processes)
    report("the dearest frames", longest=f"{max(took):.3f} s")
    assert max(took) < 1.0


def test_a_verdict_on_six_hundred_points_is_quick(report: Callable[..., None]) -> None:
    rng = Random(0)
    old = [(float(i), rng.random()) for i in range(OLD_POINTS)]
    recent = [(1000.0 + i, rng.random()) for i in range(RECENT_POINTS)]
    least = min(seconds(lambda: judge(old, recent)) for _ in range(20))
    report("a verdict on growth", least=f"{least * 1e3:.2f} ms")
    assert least < 0.005


def test_replaying_takes_no_longer_than_training_did(report: Callable[..., None]) -> None:
    traces = [opened(path)[0].trace for path in TRACES]
    events = sum(len(trace.events) for trace in traces)
    rate = events / seconds(lambda: [simulate(trace) for trace in traces])
    report("replayed requests", a_second=f"{rate:,.0f}")  # measured alone: 600,000 and more
    assert rate > 100_000
