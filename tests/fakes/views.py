"""Made-up streams of frames for tests of the screens: test data, not measured.

They go through ``Store.apply``.

A scenario is a list of frames as an agent would send them at 2 Hz, ending at monotonic second
``END``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from gpuscope.store.store import Store
from gpuscope.store.view import HistoryOf, HostView, Link
from gpuscope.text.styled import Line, plain
from gpuscope.wire import frames as f

if TYPE_CHECKING:
    from gpuscope.doctor.finding import Report

END = 10_000.0
WALL = 1_790_000_000.0
GIB = 1 << 30
TOTAL = int(139.8 * GIB)
SOURCE = "test"


def hello(host: str = "node-17") -> f.Hello:
    return f.Hello(
        role="agent",
        version="0.1.0",
        host=host,
        boot="b0",
        py="3.11.7",
        pid=4000,
        uid=1000,
        t=WALL,
        m=int((END - 60) * 1e9),
        hz=2.0,
        cols={k: list(v) for k, v in f.COLUMNS.items()},
        requests=["rate"],
    )


PLACES = {
    table: {column: place for place, column in enumerate(columns, 1)}
    for table, columns in f.COLUMNS.items()
}


def row(table: str, entity: int, **values: f.Scalar) -> f.Row:
    """A row with these columns, null elsewhere."""
    places = PLACES[table]
    made: f.Row = [entity, *[None] * len(places)]
    for column, value in values.items():
        made[places[column]] = value
    return made


def host_def(**values: object) -> f.Def:
    facts: dict[str, object] = {
        "cpu_count": 96,
        "memory_total_bytes": 1511 * GIB,
        "shm_total_bytes": 755 * GIB,
        "kernel": "6.8.0",
        "driver_version": "580.82.07",
        "cuda_driver_version": "13.0",
    }
    return f.Def(f.HOST_ID, host=f.HostDef(**{**facts, **values}))  # type: ignore[arg-type]


def gpu(index: int, name: str = "NVIDIA H200", total: int = TOTAL) -> f.Def:
    uuid = f"GPU-{index:08d}-0000-0000-0000-000000000000"
    return f.Def(
        10 + index,
        gpu=f.GpuDef(uuid, index, name, f"00000000:{index:02X}:00.0", total, "9.0", 1980, 5, 16),
    )


def trainer(
    pid: int, rank: int, world: int, user: str, mine: bool, job: str, script: str = "train.py"
) -> list[f.Def]:
    """Return the frames of a process with a probe, and its allocator.

    The allocator is on the device of its rank; ids are 100+, 200+, 300+, 400+ of the pid.
    """
    n = pid % 100
    return [
        f.Def(
            100 + n,
            proc=f.ProcDef(
                pid, 5000 + n, WALL - 7200, user, f"python {script} --cfg 7b", "python", 1, mine
            ),
        ),
        f.Def(200 + n, use=f.UseDef(100 + n, 10 + rank)),
        f.Def(
            300 + n,
            trainer=f.TrainerDef(
                pid,
                5000 + n,
                100 + n,
                rank,
                rank,
                world,
                job,
                script,
                "2.13.0",
                "3.11.7",
                "native",
                "run",
                True,
            ),
        ),
        f.Def(
            400 + n,
            alloc=f.AllocDef(
                300 + n, rank, f"GPU-{rank:08d}-0000-0000-0000-000000000000", 10 + rank
            ),
        ),
    ]


def device_row(index: int, used: float, load: float, **more: f.Scalar) -> f.Row:
    values: dict[str, f.Scalar] = {
        "used_bytes": int(used * GIB),
        "free_bytes": TOTAL - int((used + 0.6) * GIB),
        "driver_reserved_bytes": int(0.6 * GIB),
        "utilization_percent": load,
        "memory_utilization_percent": load / 2,
        "sm_active_percent": load * 0.9,
        "tensor_active_percent": load * 0.55,
        "power_watts": 90 + load * 5.6,
        "power_limit_watts": 700.0,
        "temperature_celsius": 38 + load / 3,
        "sm_clock_mhz": 1980,
        "memory_clock_mhz": 3201,
        "clock_event_reasons": 0,
        "performance_state": 0,
        "ecc_uncorrected_count": 0,
        "pcie_generation": 5,
        "pcie_width": 16,
    }
    return row("g", 10 + index, **{**values, **more})


def allocator_row(
    n: int, allocated: float, reserved: float, model: float, **more: f.Scalar
) -> f.Row:
    """``model`` GiB of parameters; gradients the same, Adam twice that."""
    values: dict[str, f.Scalar] = {
        "allocated_bytes": int(allocated * GIB),
        "reserved_bytes": int(reserved * GIB),
        "active_bytes": int((allocated + 0.1) * GIB),
        "inactive_split_bytes": int((reserved - allocated) * 0.7 * GIB),
        "requested_bytes": int((allocated + 0.1) * 0.998 * GIB),
        "private_pool_bytes": 0,
        "peak_allocated_bytes": int((allocated + 6) * GIB),
        "peak_reserved_bytes": int(reserved * GIB),
        "alloc_retries": 3,
        "ooms": 0,
        "allocation_count": 4113,
        "segment_count": 1178,
        "parameter_bytes": int(model * GIB),
        "gradient_bytes": int(model * GIB),
        "optimizer_state_bytes": int(2 * model * GIB),
        "statistics_seconds": 0.0004,
    }
    return row("a", 400 + n, **{**values, **more})


def trainer_row(n: int, step: int, seconds: float, **more: f.Scalar) -> f.Row:
    values: dict[str, f.Scalar] = {
        "step": step,
        "step_seconds": seconds,
        "step_seconds_p95": seconds * 1.1,
        "step_seconds_mean": seconds,
        "step_age_seconds": seconds * 0.4,
        "loader_wait_seconds": seconds * 0.04,
        "skipped_steps": 0,
        "loss": 2.0 + 4.0 * math.exp(-step / 400),
        "progress_done": step,
        "progress_total": 20_000,
        "eta_seconds": (20_000 - step) * seconds,
        "probe_cpu_percent": 0.1,
        "probe_step_seconds": 0.00002,
    }
    return row("t", 300 + n, **{**values, **more})


def ticks(seconds: float = 60.0) -> Iterator[tuple[int, float, float]]:
    """(number, monotonic seconds, seconds into the scenario) of every sample."""
    for q in range(int(seconds * 2)):
        yield q, END - seconds + (q + 1) / 2, q / 2


def host_row(**more: f.Scalar) -> f.Row:
    values: dict[str, f.Scalar] = {
        "cpu_percent": 23.0,
        "load_1m": 18.2,
        "memory_available_bytes": 1200 * GIB,
        "swap_used_bytes": 0,
        "shm_used_bytes": 12 * GIB,
        "agent_cpu_percent": 0.7,
        "agent_rss_bytes": 21 << 20,
    }
    return row("h", f.HOST_ID, **{**values, **more})


LOADS = (95, 92, 86, 92, 96, 49, 96, 0)
USED = (69.7, 68.2, 88.6, 120.0, 69.4, 71.5, 74.2, 0.01)


def training(seconds: float = 20.0, container: str | None = None) -> list[f.Frame]:
    """Return the frames of eight H200 with a job of seven ranks of ours.

    A minute of them takes three times as long to build and hear as the 20 s most tests need.
    One foreign process is on GPU 2, GPU 7 is free, and GPU 5 is starved.
    """
    out: list[f.Frame] = [hello(), host_def(container=container), *(gpu(i) for i in range(8))]
    for rank in range(7):
        out += trainer(48213 + rank, rank, 7, "ada", True, "job-a")
    out.append(
        f.Def(150, proc=f.ProcDef(51120, 9, WALL - 90000, "lin", "jupyter", "jupyter", 1, False))
    )
    out.append(f.Def(250, use=f.UseDef(150, 12)))
    for q, at, s in ticks(seconds):
        sample = f.Sample(q, int(at * 1e9), h=[host_row()])
        for i in range(8):
            wave = 4 * math.sin(s / 3 + i) if LOADS[i] else 0.0
            dip = 42.0 if i == 5 and (s // 6) % 2 else 0.0
            sample.g.append(device_row(i, USED[i], max(0.0, min(100.0, LOADS[i] + wave - dip / 2))))
        for rank in range(7):
            n = 13 + rank
            used = USED[rank] - (21.6 if rank == 2 else 0.0)
            wait = 0.28 if rank == 5 else 0.036
            breath = 3 * math.sin(s / 2)
            sample.p.append(row("p", 100 + n, cpu_percent=104.0, rss_bytes=9 * GIB))
            sample.u.append(row("u", 200 + n, used_bytes=int((used - 0.02) * GIB)))
            sample.t.append(trainer_row(n, 4000 + int(s), 0.901, loader_wait_seconds=wait))
            sample.a.append(allocator_row(n, used * 0.72 + breath, used - 2.0, used * 0.1))
        sample.p.append(row("p", 150, cpu_percent=1.0, rss_bytes=2 * GIB))
        sample.u.append(row("u", 250, used_bytes=int(21.6 * GIB)))
        out.append(sample)
    out.append(f.Event(313, "attach", int(END * 1e9), "probe of pid 48213 answers"))
    return out


def crowd(seconds: float = 10.0) -> list[f.Frame]:
    """Eight trainers of three users on eight devices; two are ours."""
    users = [("ada", True), ("ada", True), *[("lin", False)] * 3, *[("max", False)] * 3]
    out: list[f.Frame] = [hello(), host_def(), *(gpu(i) for i in range(8))]
    for i, (user, mine) in enumerate(users):
        out += trainer(48220 + i, i, 1, user, mine, f"job-{i}", f"train{i}.py")
    for q, at, s in ticks(seconds):
        sample = f.Sample(q, int(at * 1e9), h=[host_row()])
        for i in range(8):
            n = 20 + i
            sample.g.append(device_row(i, 60.0 + i, 90.0))
            sample.p.append(row("p", 100 + n, cpu_percent=99.0, rss_bytes=4 * GIB))
            sample.u.append(row("u", 200 + n, used_bytes=int((59.0 + i) * GIB)))
            sample.t.append(trainer_row(n, 100 + int(s), 0.5))
            sample.a.append(allocator_row(n, 40.0 + i, 55.0 + i, 5.0))
        out.append(sample)
    return out


def vacant(
    seconds: float = 10.0, container: str | None = None, named: bool = True
) -> list[f.Frame]:
    """Eight devices, no trainer of ours; somebody without a probe holds GPU 0 and 1 and is idle.

    Not ``named``: the driver does not say who.
    """
    out: list[f.Frame] = [hello(), host_def(container=container), *(gpu(i) for i in range(8))]
    if named:
        out.append(
            f.Def(
                150, proc=f.ProcDef(51120, 9, WALL - 90000, "lin", "jupyter", "jupyter", 1, False)
            )
        )
        out += [f.Def(250, use=f.UseDef(150, 10)), f.Def(251, use=f.UseDef(150, 11))]
    for q, at, _ in ticks(seconds):
        sample = f.Sample(q, int(at * 1e9), h=[host_row()])
        sample.g = [device_row(i, 40.0 if i < 2 else 0.0, 0.0) for i in range(8)]
        if named:
            sample.p.append(row("p", 150, cpu_percent=0.0, rss_bytes=2 * GIB))
            sample.u += [
                row("u", 250, used_bytes=int(39.98 * GIB)),
                row("u", 251, used_bytes=int(39.98 * GIB)),
            ]
        out.append(sample)
    return out


def cpu_only(seconds: float = 20.0, trains: bool = True) -> list[f.Frame]:
    """No driver; a small trainer with a probe trains on the processor, or nothing does."""
    why: list[int | str] = [f.HOST_ID, "nvml", f.DRIVER_ERROR, "libnvidia-ml.so.1 is not here"]
    out: list[f.Frame] = [
        hello("laptop"),
        host_def(
            cpu_count=8,
            memory_total_bytes=32 * GIB,
            shm_total_bytes=16 * GIB,
            driver_version=None,
            cuda_driver_version=None,
        ),
    ]
    trainer: list[f.Frame] = [
        f.Def(
            121,
            proc=f.ProcDef(
                7021, 700, WALL - 300, "ada", "python -m gpuscope.lab.worker", "python", 1, True
            ),
        ),
        f.Def(
            321,
            trainer=f.TrainerDef(
                7021,
                700,
                121,
                None,
                None,
                None,
                None,
                "gpuscope.lab.worker",
                "2.13.0",
                "3.11.7",
                None,
                "lab",
                False,
            ),
        ),
        f.Def(421, alloc=f.AllocDef(321, -1)),
    ]
    out += trainer if trains else []
    for q, at, s in ticks(seconds):
        sample = f.Sample(q, int(at * 1e9), why=[why] if q == 0 else [])
        load = 40 + 20 * math.sin(s / 5)
        sample.h.append(
            host_row(
                cpu_percent=load, load_1m=3.1, memory_available_bytes=20 * GIB, shm_used_bytes=0
            )
        )
        out.append(sample)
        if not trains:
            continue
        sample.p.append(row("p", 121, cpu_percent=380.0, rss_bytes=int(1.4 * GIB)))
        sample.t.append(
            trainer_row(
                21, int(s * 20), 0.05, progress_done=None, progress_total=None, eta_seconds=None
            )
        )
        sizes = {
            "parameter_bytes": 12 << 20,
            "gradient_bytes": 12 << 20,
            "optimizer_state_bytes": 24 << 20,
        }
        sample.a.append(row("a", 421, **sizes))
    return out


def hung(seconds: float = 10.0) -> list[f.Frame]:
    """:func:`training` whose GPU 3 has stopped answering and whose GPU 5 has fallen off the bus."""
    out = training(seconds)
    last = int((END + 1) * 1e9)
    sample = f.Sample(10_000, last, h=[host_row()])
    sample.g = [device_row(i, USED[i], LOADS[i]) for i in range(8) if i not in (3, 5)] + [
        row("g", 13),
        row("g", 15),
    ]
    for column in f.DEVICE_COLUMNS:
        sample.why.append(
            [13, column, f.TIMEOUT, "nvmlDeviceGetUtilizationRates has not returned for 12 s"]
        )
        sample.why.append([15, column, f.LOST, "the device has fallen off the bus"])
    return [*out, sample]


def ended(seconds: float = 10.0) -> list[f.Frame]:
    """:func:`crowd` whose first trainer, one of ours, is gone."""
    out = crowd(seconds)
    return [
        *out,
        *(
            f.Event(i, "gone", int((END + 0.5) * 1e9), "killed by signal 9")
            for i in (120, 220, 320, 420)
        ),
    ]


def store_of(frames: list[f.Frame], badge: str = "") -> Store:
    """A store that has heard these frames, its link live."""
    store = Store()
    store.add_source(SOURCE, "test", badge)
    for frame in frames:
        store.apply(SOURCE, frame, getattr(frame, "m", 0) / 1e9)
    store.set_link(SOURCE, Link("live"))
    return store


def host_in(store: Store) -> HostView:
    host = store.view().host
    assert host is not None
    return host


def seen(frames: list[f.Frame]) -> tuple[HostView, HistoryOf]:
    """The host of such a store, and its histories."""
    store = store_of(frames)
    return host_in(store), partial(store.history, SOURCE)


def judged(store: Store, pids: set[int] | None = None) -> Report:
    """What the doctor says of the host of a store."""
    from gpuscope.doctor import live

    return live.examine(host_in(store), partial(store.history, SOURCE), pids)


def host_of(frames: list[f.Frame]) -> HostView:
    """The host of such a store."""
    return host_in(store_of(frames))


def flat(lines: Iterable[Line]) -> str:
    """The text of styled lines, without their styles."""
    return "\n".join(map(plain, lines))
