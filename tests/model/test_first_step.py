"""A mean of the load is of the time of the job: an idle start says nothing of the work."""

from __future__ import annotations

import pytest
from textual.pilot import Pilot

from gpuscope.doctor.finding import Finding
from gpuscope.doctor.live_scene import LiveScene
from gpuscope.doctor.live_time import launch_bound
from gpuscope.model.first_step import first_step, job_begins
from gpuscope.store.view import History, HistoryOf, HostView
from gpuscope.tui.charts.load_lanes import gpu_lanes
from gpuscope.tui.charts.load_strips import Lane, LoadStrips
from gpuscope.wire import frames as f
from tests.doctor.test_live import one
from tests.fakes import views
from tests.tui.snapshots import run, text
from tests.tui.test_overview import OneStrip

IDLE, SAMPLES = 30, 60


def seen(idle: int, busy: float = 92.0) -> tuple[HostView, HistoryOf]:
    """A job whose GPU is idle for so many of its 60 samples, of half a second, before it steps."""
    frames = one(SAMPLES, {"sm_active_percent": busy, "utilization_percent": 100.0})
    samples = [frame for frame in frames if isinstance(frame, f.Sample)]
    for sample in samples[:idle]:
        for column in ("sm_active_percent", "utilization_percent"):
            sample.g[0][1 + f.DEVICE_COLUMNS.index(column)] = 0.0
        for row in sample.t:
            row[1 + f.TRAINER_COLUMNS.index("step")] = None
    return views.seen(frames)


def test_a_job_begins_at_its_first_step_or_before_the_window():
    host, history = seen(IDLE)
    trainer, device = host.trainers[0], host.devices[0]
    moments = history(device.id, "utilization_percent", 60.0).seconds
    assert job_begins(host, device, history, 60.0) == pytest.approx(moments[IDLE], abs=0.6)
    assert first_step(trainer, history, 60.0) == pytest.approx(moments[IDLE], abs=0.6)
    host, history = seen(0)
    assert job_begins(host, host.devices[0], history, 60.0) is None


def test_without_a_step_it_begins_when_a_process_first_held_memory():
    frames = views.training()
    samples = [frame for frame in frames if isinstance(frame, f.Sample)]
    for number, sample in enumerate(samples):
        sample.t, sample.a = [], []
        if number < 20:
            sample.u = []
    host, history = views.seen(frames)
    begun = job_begins(host, host.devices[0], history, 60.0)
    moments = history(host.devices[0].id, "utilization_percent", 60.0).seconds
    assert begun == pytest.approx(moments[20], abs=0.6)


def test_the_lane_of_a_gpu_says_the_mean_of_its_job():
    host, history = seen(IDLE)
    lanes = gpu_lanes(history, host, host.devices, 60.0, 2)
    assert any(lane.begins is not None for lane in lanes)
    drawn = strips_of(lanes, host.sampled_seconds)
    assert "100 %" in drawn
    assert "ø" not in drawn, "it is the mean of the job too, which was busy all the time"
    host, history = seen(0)
    assert all(lane.begins is None for lane in gpu_lanes(history, host, host.devices, 60.0, 2))


def test_without_a_beginning_the_mean_is_of_all_that_is_shown():
    past = History(tuple(map(float, range(61))), (0.0,) * 30 + (100.0,) * 31)
    assert "100 % ø 5" in strips_of([Lane("GPU 0", past)], 60.0)
    assert "ø" not in strips_of([Lane("GPU 0", past, begins=31.0)], 60.0).replace("ø mean", "")
    assert strips_of([Lane("GPU 0", past, begins=99.0)], 60.0)


def strips_of(lanes: list[Lane], now: float | None) -> str:
    drawn: list[str] = []

    async def body(pilot: Pilot[None]) -> None:
        pilot.app.query_one(LoadStrips).show(lanes, 60.0, now)
        await pilot.pause()
        drawn.append(text(pilot.app).replace("75-100 %", ""))

    run(OneStrip, body, 100, 12)
    return drawn[0]


def test_a_gpu_that_was_idle_before_its_job_stepped_has_no_work_that_is_too_small():
    host, history = seen(58)  # the mean of the half minute is 3 %
    scene = LiveScene(host, history)
    trainer, device = host.trainers[0], host.devices[0]
    assert scene.mean(device, "sm_active_percent") == pytest.approx(92 * 2 / 60, abs=1)
    assert scene.mean_of_job(trainer, device, "sm_active_percent") == pytest.approx(92, abs=1)
    assert "live.launch_bound" not in causes(host, history)
    small = seen(0, busy=4.0)
    assert "live.launch_bound" in causes(*small), (
        "one that is small from its first step on is found"
    )


def causes(host: HostView, history: HistoryOf) -> set[str]:
    scene = LiveScene(host, history)
    found = launch_bound(scene, host.jobs[0])
    return {each.cause for each in found if isinstance(each, Finding)}
