"""A made-up trainer as the memory tab sees it.

It has marks, other processes, and a source that answers questions about it.

Test data, not measured; the statistics are consistent with each other as an allocator's are.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from gpuscope.store.pending_requests import SourceError
from gpuscope.store.store import PAST_REQUESTS
from gpuscope.store.view import Capabilities, Link
from gpuscope.wire import frames as f
from tests.fakes import views
from tests.fakes.views import GIB, gpu, hello, host_def, host_row, row, ticks, trainer, trainer_row

MIB = 1 << 20
RANK = 3
"""The rank whose memory is described completely."""


def event(
    seconds_ago: float, kind: str, text: str = "", entity: int = 416, **data: f.Scalar
) -> f.Event:
    return f.Event(entity, kind, int((views.END - seconds_ago) * 1e9), text, data)


def crowded(seconds: float = 60.0) -> list[f.Frame]:
    """Return the frames of one H200 that is crowded.

    They have a trainer of ours with CUDA graphs and blocks awaiting a free, four other processes,
    and a history with two OOMs, a retry, a stall and an evaluation.
    """
    out: list[f.Frame] = [
        hello(),
        host_def(),
        gpu(RANK),
        *trainer(48216, RANK, 8, "ada", True, "job-a"),
    ]
    others = (
        (60, 51120, "lin", "jupyter-lab", False, 20.9),
        (61, 51200, "max", "python serve.py --port 80", False, 6.2),
        (62, 51300, "ada", "python eval.py", True, 3.1),
        (63, 51400, "lin", "python -m http.server", False, 0.4),
        (64, 51500, "lin", "Xorg", False, 0.7),
    )
    for n, pid, user, command, mine, _ in others:
        out.append(
            f.Def(
                100 + n,
                proc=f.ProcDef(
                    pid, 9, views.WALL - 9000, user, command, command.split()[0], 1, mine
                ),
            )
        )
        out.append(f.Def(200 + n, use=f.UseDef(100 + n, 10 + RANK)))
    for q, at, s in ticks(seconds):
        sample = f.Sample(q, int(at * 1e9), h=[host_row()], g=[views.device_row(RANK, 121.4, 94.0)])
        sample.p = [row("p", 116, cpu_percent=101.0, rss_bytes=9 * GIB)]
        sample.u = [row("u", 216, used_bytes=int(90.0 * GIB))]
        sample.u += [row("u", 200 + n, used_bytes=int(size * GIB)) for n, *_, size in others]
        sample.t = [trainer_row(16, 4100 + int(s / 0.9), 0.9)]
        sample.a = [counters(44.0 + 6 * ((s / 9) % 1))]
        out.append(sample)
    marks: list[f.Frame] = [
        event(50.0, "oom", "tried 2.00 GiB", requested_bytes=2 * GIB, state="seen"),
        event(48.0, "oom", "the training went on", requested_bytes=2 * GIB, state="withdrawn"),
        event(38.0, "retry", "cudaMalloc failed once more", count=1),
        event(30.0, "phase", "evaluates", 316, phase="eval"),
        event(22.0, "phase", "trains", 316, phase="train"),
        event(12.0, "stall", "no step for 9 s", 316, seconds=9.0, usual_seconds=0.9),
        event(8.0, "resumed", "steps again", 316, seconds=13.0),
        event(3.0, "oom", "tried 6.00 GiB", requested_bytes=6 * GIB, state="seen"),
    ]
    return [*out, *marks]


def counters(live: float, **more: f.Scalar) -> f.Row:
    """Return a consistent row of counters.

    It has ``live`` GiB requested, 0.4 % of rounding, 0.5 GiB awaiting free, and 2 GiB idle in graph
    pools.
    """
    allocated = int(live * 1.004 * GIB)
    active = allocated + int(0.5 * GIB)
    values: dict[str, f.Scalar] = {
        "allocated_bytes": allocated,
        "active_bytes": active,
        "requested_bytes": int((live + 0.5) * GIB),
        "reserved_bytes": 86 * GIB,
        "inactive_split_bytes": 16 * GIB,
        "private_pool_bytes": 9 * GIB,
        "private_pool_idle_bytes": 2 * GIB,
        "private_pool_inactive_split_bytes": int(0.5 * GIB),
        "workspace_bytes": 64 * MIB,
        "peak_allocated_bytes": 58 * GIB,
        "peak_reserved_bytes": 86 * GIB,
        "alloc_retries": 3,
        "ooms": 2,
        "allocation_count": 4113,
        "segment_count": 1178,
        "parameter_bytes": int(6.7 * GIB),
        "gradient_bytes": int(6.7 * GIB),
        "optimizer_state_bytes": int(13.4 * GIB),
        "statistics_seconds": 0.000011,
    }
    return row("a", 416, **{**values, **more})


def statistics(call: int = 1, backend: str = "native") -> dict[str, Any]:
    """Return what a probe answers to ``statistics`` the ``call``-th time.

    Totals grow by 3 GiB and 1,200 blocks a call.
    """
    flat: dict[str, int] = {}
    sizes = {
        "allocated_bytes": 48,
        "active_bytes": 49,
        "requested_bytes": 48,
        "reserved_bytes": 86,
        "inactive_split_bytes": 16,
    }
    counts = {"allocation": 4113, "active": 4200, "segment": 1178, "inactive_split": 902}
    for pool, share in (("all", 100), ("large_pool", 97), ("small_pool", 3)):
        for key, size in sizes.items():
            total = size * GIB * share // 100
            _four(
                flat, f"{key}.{pool}", total, total + 6 * GIB, total + call * 3 * GIB * share // 100
            )
        for key, count in counts.items():
            _four(
                flat,
                f"{key}.{pool}",
                count * share // 100,
                count,
                count + call * 1200 * share // 100,
            )
    for key in ("oversize_allocations", "oversize_segments"):
        _four(flat, key, 0, 0, 0)
    flat |= {
        "num_alloc_retries": 3,
        "num_ooms": 2,
        "num_device_alloc": 1301,
        "num_device_free": 123,
        "max_split_size": -1,
    }
    pinned: dict[str, int] = {}
    _four(pinned, "active_bytes", 512 * MIB, 768 * MIB, 4 * GIB)
    _four(pinned, "allocated_bytes", GIB, GIB, GIB)
    return {
        "statistics": flat,
        "seconds": 0.0000113,
        "backend": backend,
        "device": RANK,
        "host_statistics": pinned,
        "host_reason": "",
    }


def _four(flat: dict[str, int], prefix: str, current: int, peak: int, allocated: int) -> None:
    flat |= {
        f"{prefix}.current": current,
        f"{prefix}.peak": peak,
        f"{prefix}.allocated": allocated,
        f"{prefix}.freed": allocated - current,
    }


def modules(source: str = "watch") -> dict[str, Any]:
    """Return the modules of a small GPT of 24 blocks.

    It has an embedding, blocks of attention and MLP, and a head that shares the embedding's
    storage.
    """
    rows: list[list[Any]] = []

    def add(depth: int, name: str, kind: str, size: int) -> None:
        rows.append([depth, name, kind, size, size, 2 * size])

    attention, mlp, embedding = 64 * MIB, 128 * MIB, 400 * MIB
    block = attention + mlp
    add(0, "GPT", "GPT", embedding + 24 * block)
    add(1, "wte", "Embedding", embedding)
    add(1, "blocks", "ModuleList", 24 * block)
    for number in range(24):
        add(2, str(number), "Block", block)
        add(3, "attn", "CausalSelfAttention", attention)
        add(4, "qkv", "Linear", attention * 3 // 4)
        add(4, "proj", "Linear", attention // 4)
        add(3, "mlp", "MLP", mlp)
    add(1, "lm_head", "Linear", 0)
    return {"source": source, "seconds": 0.004, "complete": True, "rows": rows}


class Asked:
    """A source over ``frames`` whose one trainer answers questions.

    It answers ``statistics`` and ``modules``, and notes what was asked.
    """

    key, label, badge = views.SOURCE, "node-17", ""

    def __init__(self, frames: list[f.Frame], answers: Mapping[str, Any] | None = None) -> None:
        self.frames, self.taps, self.asked = frames, [], []  # type: ignore[var-annotated]
        self.answers = {"statistics": statistics, "modules": modules, **(answers or {})}
        self.calls = 0

    @property
    def capabilities(self) -> Capabilities:
        # which a screen asks by itself
        return Capabilities({name: "" for name in f.REQUESTS if name not in PAST_REQUESTS})

    async def run(self, sink: Any, on_link: Any) -> None:
        on_link(Link("live"))
        for frame in self.frames:
            sink(frame, time.monotonic())
        await asyncio.Event().wait()

    async def request(
        self, name: str, args: Mapping[str, f.Scalar], deadline: float = 10.0, **more: Any
    ) -> f.Result:
        self.asked.append((name, dict(args)))
        self.calls += 1
        answer = self.answers.get(name, SourceError("unsupported", f"{name}: not here"))
        if isinstance(answer, Exception):
            raise answer
        return f.Result(1, answer(self.calls) if name == "statistics" else answer())

    def prelude(self) -> list[bytes]:
        return []

    async def close(self) -> None:
        pass
