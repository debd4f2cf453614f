"""A made-up recording of a job on many GPUs, as long as a test or a measurement wants it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from gpuscope.wire import frames
from gpuscope.wire.codec import encode
from gpuscope.wire.frames import Def, Event, Frame, Key, Sample
from gpuscope.wire.recording import RecordingWriter
from tests.fakes.wire import SECOND, hello, row

GIB = 1 << 30
BEGIN = 100 * SECOND
WALL = 1_700_000_000.0
ROWS = "input 18.0 90|forward 12.0 60|backward 24.0 120|optimizer 6.0 30"


def recording(
    path: Path,
    seconds: float = 60.0,
    gpus: int = 2,
    hz: float = 2.0,
    script: str = "/data/train.py",
    host: str = "node-1",
    user: str = "ann",
    model: str = "NVIDIA H100 80GB HBM3",
) -> Path:
    """Write a recording of one job with a rank on each GPU."""
    with RecordingWriter(path, overwrite=True) as writer:
        for frame in _frames(seconds, gpus, hz, script, host, user, model):
            m = getattr(frame, "m", BEGIN)
            writer.write("node", max(0.0, (m - BEGIN) / SECOND), encode(frame))
    return path


def definitions(gpus: int, script: str, user: str, model: str) -> list[Def]:
    """Devices are 1…, processes 100…, their uses 200…, ranks 300…, allocators 400…."""
    facts = frames.HostDef(
        cpu_count=96, memory_total_bytes=1000 * GIB, kernel="6.8.0", driver_version="580.82",
        cuda_driver_version="13.0",
    )  # fmt: skip
    found = [Def(0, host=facts)]
    for n in range(gpus):
        gpu = frames.GpuDef(
            f"GPU-{n:08x}-1111-2222", n, name=model, total_bytes=80 * GIB, compute_capability="9.0"
        )
        process = frames.ProcDef(
            4000 + n, 300 + n, user=user, command=f"python {script}", name="python", mine=True
        )
        rank = frames.TrainerDef(
            4000 + n, 300 + n, proc=100 + n, rank=n, local_rank=n, world_size=gpus, job="run-1",
            script=script, torch_version="2.11.0", python_version="3.12.3", backend="native",
            cuda=True, allocator_settings="expandable_segments:True", step_source="optimizer steps",
        )  # fmt: skip
        found += [
            Def(1 + n, gpu=gpu),
            Def(100 + n, proc=process),
            Def(200 + n, use=frames.UseDef(100 + n, 1 + n)),
            Def(300 + n, trainer=rank),
            Def(400 + n, alloc=frames.AllocDef(300 + n, n, uuid=gpu.uuid, gpu=1 + n)),
        ]
    return found


def _frames(
    seconds: float, gpus: int, hz: float, script: str, host: str, user: str, model: str
) -> Iterator[Frame]:
    yield hello(host=host, m=BEGIN, t=WALL)
    known = definitions(gpus, script, user, model)
    minute = 0
    for q in range(int(seconds * hz) + 1):
        m = BEGIN + int(q / hz * SECOND)
        if q % max(int(60 * hz), 1) == 0:
            yield Key(q, m, WALL + (m - BEGIN) / SECOND, len(known))
            yield from known
        yield _sample(q, m, gpus, (m - BEGIN) / SECOND)
        if (m - BEGIN) // (60 * SECOND) > minute:
            minute += 1
            for n in range(gpus):
                yield _minute(n, m - 60 * SECOND)


def _minute(n: int, m: int) -> Event:
    data = {
        "m": m, "seconds": 60.0, "steps": 240, "looks": 300, "rows": ROWS,
        "places": "input 18.0 data.py:12 __getitem__",
    }  # fmt: skip
    return Event(300 + n, "time", m, "", data)


def _sample(q: int, m: int, gpus: int, now: float) -> Sample:
    wave = math.sin(now / 7)
    return Sample(
        q, m,
        h=[row(0, "h", cpu_percent=40 + 10 * wave, load_1m=30.0, memory_available_bytes=900 * GIB)],
        g=[
            row(
                1 + n, "g", used_bytes=(52 + n) * GIB, free_bytes=20 * GIB,
                driver_reserved_bytes=GIB // 2, utilization_percent=90 + 8 * wave,
                sm_active_percent=80 + 10 * wave, tensor_active_percent=40 + 20 * wave,
                power_watts=550 + 100 * wave + n, power_limit_watts=700.0, temperature_celsius=60,
                sm_clock_mhz=1980, clock_event_reasons=0, performance_state=0,
            )
            for n in range(gpus)
        ],
        p=[row(100 + n, "p", cpu_percent=100.0, rss_bytes=8 * GIB) for n in range(gpus)],
        u=[row(200 + n, "u", used_bytes=(50 + n) * GIB) for n in range(gpus)],
        t=[
            row(
                300 + n, "t", step=4 * int(now), step_seconds=0.25 + 0.01 * wave,
                step_seconds_p95=0.3, step_seconds_mean=0.255, step_age_seconds=0.1,
                loader_wait_seconds=0.07, input_seconds=0.07, h2d_seconds=0.002,
                compute_seconds=0.15, optimizer_seconds=0.02, communication_seconds=0.01,
                other_seconds=0.003, loss=3 + 2 * math.exp(-now / 100), phase="train",
            )
            for n in range(gpus)
        ],
        a=[
            row(
                400 + n, "a", allocated_bytes=int((38 + n + 8 * wave) * GIB),
                reserved_bytes=(48 + n) * GIB, active_bytes=int((38 + n + 8 * wave) * GIB),
                inactive_split_bytes=GIB // 4, requested_bytes=int((37.8 + n + 8 * wave) * GIB),
                peak_allocated_bytes=(46 + n) * GIB, peak_reserved_bytes=(48 + n) * GIB,
                alloc_retries=0, ooms=0, parameter_bytes=6 * GIB, gradient_bytes=6 * GIB,
                optimizer_state_bytes=12 * GIB, statistics_seconds=0.0001,
                step_allocated_bytes=24 * GIB, step_allocated_step=4 * int(now),
            )
            for n in range(gpus)
        ],
    )  # fmt: skip
