"""Made-up streams of jobs whose ranks differ.

One that is stalled, one that leaks, uneven ones, many.

Nothing here is measured.
"""

from __future__ import annotations

from gpuscope.wire import frames as f
from tests.fakes import views
from tests.fakes.views import (
    GIB,
    allocator_row,
    gpu,
    hello,
    host_def,
    host_row,
    row,
    ticks,
    trainer,
    trainer_row,
)

FIRST_PID = 48200
SMALL_CARD = "NVIDIA H100 80GB HBM3", 81559 << 20
OUTSIDE, RESERVE = 10.0, 0.6
"""GiB of a card that are not allocated tensors, and that the driver keeps for itself."""
SPLIT = {
    "input": 0.04,
    "h2d": 0.02,
    "compute": 0.70,
    "optimizer": 0.12,
    "communication": 0.09,
    "other": 0.03,
}


def split(seconds: float, **shares: float) -> dict[str, f.Scalar]:
    """Return the columns of a step of ``seconds`` with these shares; the rest is communication."""
    parts = {**SPLIT, **shares}
    parts["communication"] = max(
        0.0, 1 - sum(value for name, value in parts.items() if name != "communication")
    )
    return {f"{name}_seconds": seconds * share for name, share in parts.items()}


def lose(frames: list[f.Frame], index: int, after: int = 60) -> list[f.Frame]:
    """Return the frames with a device that gives no readings from sample number ``after`` on.

    The driver then also tells no more what its processes hold, as of a GPU that fell off the bus.
    """
    gpu, samples = 10 + index, [frame for frame in frames if isinstance(frame, f.Sample)]
    uses = {
        frame.id
        for frame in frames
        if isinstance(frame, f.Def) and frame.use is not None and frame.use.gpu == gpu
    }
    for sample in samples[after:]:
        sample.g = [row("g", gpu) if one[0] == gpu else one for one in sample.g]
        sample.u = [row("u", one[0]) if one[0] in uses else one for one in sample.u]  # type: ignore[arg-type]
    text = "the device has fallen off the bus"
    why: list[list[int | str]] = [[gpu, column, f.LOST, text] for column in f.DEVICE_COLUMNS]
    why += [[use, column, f.LOST, text] for use in uses for column in f.USE_COLUMNS]
    samples[after].why += why
    return frames


def ranks(
    count: int = 4,
    seconds: float = 60.0,
    stalled: bool = False,
    leaks: int | None = None,
    slow: int | None = None,
    stuck_at: str = "/data/train/data.py:88 __getitem__",
) -> list[f.Frame]:
    """Return a job of ``count`` ranks, one on each device.

    ``stalled``: rank 3 sleeps ``stuck_at``, its loader, for 48 s, and the others wait.
    ``leaks``: the memory of that rank grows by 0.18 GiB a step until 3.4 GiB are left of its card,
    which is a smaller one. ``slow``: the input of that rank is slow.
    """
    card = ("NVIDIA H200", views.TOTAL) if leaks is None else SMALL_CARD
    out: list[f.Frame] = [hello(), host_def(), *(gpu(i, *card) for i in range(count))]
    for rank in range(count):
        out += trainer(FIRST_PID + rank, rank, count, "ada", True, "job-r")
    total, base = card[1] / GIB, 60.0
    if leaks is not None:
        grown = 0.18 * max(0, int(seconds * 2) - 21)
        base = total - RESERVE - 3.4 - OUTSIDE - leaks * 0.2 - grown
    for q, at, s in ticks(seconds):
        sample = f.Sample(q, int(at * 1e9), h=[host_row()])
        for rank in range(count):
            step = 4000 + q
            more: dict[str, f.Scalar] = split(0.5)
            if slow == rank:
                more = split(0.5, input=0.34, compute=0.5, communication=0.0)
            elif slow is not None:
                more = split(0.5, compute=0.5)
            launched = 12 * step
            if stalled:
                step, launched = (
                    4000 + min(q, 24),
                    12 * (4000 + min(q, 24)) + (0 if rank == 3 else 4),
                )
                if s > 12:
                    at_line = (
                        stuck_at
                        if rank == 3
                        else ("/venv/torch/distributed/distributed_c10d.py:2810 all_reduce")
                    )
                    more |= {"stall_at": at_line, "step_age_seconds": s - 12}
            more |= {"collectives": launched, "step_seconds_hour_ago": 0.49, "phase": "train"}
            grown = 0.18 * max(0, q - 20) if leaks == rank else 0.0
            allocated = base + rank * 0.2 + grown
            used = allocated + OUTSIDE
            free = total - used - RESERVE
            sample.g.append(views.device_row(rank, used, 95.0, free_bytes=int(free * GIB)))
            sample.p.append(row("p", 100 + rank, cpu_percent=101.0, rss_bytes=9 * GIB))
            sample.u.append(row("u", 200 + rank, used_bytes=int((used - 0.02) * GIB)))
            sample.t.append(trainer_row(rank, step, 0.5, **more))
            sizes = allocator_row(
                rank,
                allocated,
                allocated + 6.0,
                6.0,
                active_bytes=int(allocated * GIB),
                inactive_split_bytes=6 * GIB,
                step_allocated_bytes=int(allocated * GIB),
                step_allocated_step=step,
            )
            sample.a.append(sizes)
        out.append(sample)
    return out
