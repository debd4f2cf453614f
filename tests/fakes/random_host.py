"""Hosts on which random things happen, determined by one seed, for tests of the screens.

Jobs start, end and hang, processes come and go, GPUs fall off the bus and answer again, and agents
are restarted. Names are as difficult as those of users.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from typing import Any

from gpuscope.wire import frames as f
from tests.fakes import views

SECONDS = 0.5
"""Seconds between two samples, on the host's clock."""
NAMES = (
    "train.py",
    "Xorg",
    "a b.py",
    "学習.py",
    "e\u0301" * 40,
    "x" * 300,
    "",
    "[bold]red[/]",
    "\u202eevil.py",
    "🔥.py",
    "python -m http.server",
    "tab\there",
)
EVENTS = ("oom", "retry", "stall", "resumed", "phase", "note", "problem", "dropped", "skip", "gap")


class RandomHost:
    """One host.

    :meth:`begin` returns what exists at first, and each :meth:`sample` what happens next.
    """

    def __init__(self, seed: object) -> None:
        self.random = random.Random(str(seed))
        self.name = self.random.choice(
            ("node-17", "gpu-host-with-a-very-long-name.cluster.example.org", "ホスト")
        )
        self.gpus = self.random.choice((0, 1, 1, 2, 4, 8, 8, 16))
        self._next = 1000
        self._q = 0
        self._lost: set[int] = set()
        self._processes: list[_Process] = []
        self._alive: set[int] = set()

    def begin(self) -> Iterator[f.Frame]:
        """Return what an agent sends when it is started."""
        self._lost.clear()
        yield views.hello(self.name)
        container = self.random.choice((None, None, None, "docker"))
        yield views.host_def(container=container, driver_version="580.82.07" if self.gpus else None)
        yield from (views.gpu(i) for i in range(self.gpus))
        for process in self._processes:
            yield from process.definitions
        for _ in range(self.random.randrange(4)):
            yield from self._start()
        yield from self.sample()

    def sample(self) -> Iterator[f.Frame]:
        """Return the next half second."""
        if self.random.random() < 0.25:
            yield from self._start()
        if self._processes and self.random.random() < 0.03 + 0.02 * len(self._processes):
            yield from self._end(self.random.choice(self._processes))
        if self.random.random() < 0.005:
            for process in list(self._processes):
                yield from self._end(process)
        if self.random.random() < 0.01:
            yield from self.begin()
        yield self._readings()
        if self._processes and self.random.random() < 0.1:
            yield self._event(self.random.choice(self._processes))

    @property
    def _m(self) -> int:
        return int((views.END - 50 + self._q * SECONDS) * 1e9)

    def _id(self) -> int:
        self._next += 1
        return self._next

    def _start(self) -> Iterator[f.Frame]:
        """Start a job of one to eight ranks with probes, or a process without one."""
        ranks = self.random.choice((0, 0, 0, 1, 1, 2, 8))
        job = f"job-{self._next}" if ranks > 1 else None
        script, user = self.random.choice(NAMES), self.random.choice(("ada", "lin", "ユーザ"))
        for rank in range(max(ranks, 1)):
            process = _Process(
                self._id, self.random, self.gpus, script, user, ranks and rank, ranks, job
            )
            self._processes.append(process)
            yield from process.definitions

    def _end(self, process: _Process) -> Iterator[f.Frame]:
        self._processes.remove(process)
        why = self.random.choice(("ended", "killed by signal 9", "exited: " + "x" * 200))
        for entity in process.ids if self.random.random() < 0.5 else process.ids[:1]:
            yield f.Event(entity, "gone", self._m, why)

    def _event(self, process: _Process) -> f.Event:
        kind = self.random.choice(EVENTS)
        data: dict[str, f.Scalar] = {}
        if kind == "oom":
            data = {
                "requested_bytes": self.random.randrange(1 << 36),
                "state": self.random.choice(("seen", "withdrawn")),
            }
        elif kind == "phase":
            data = {"phase": self.random.choice(("train", "eval"))}
        elif kind in ("stall", "resumed"):
            data = {"seconds": 9.0, "usual_seconds": 0.9}
        return f.Event(
            process.trainer or process.ids[0], kind, self._m, self.random.choice(NAMES), data
        )

    def _readings(self) -> f.Sample:
        self._q += 1
        sample = f.Sample(self._q, self._m, h=[views.host_row(cpu_percent=self._some(100.0))])
        for i in range(self.gpus):
            if self.random.random() < (0.2 if i in self._lost else 0.005):
                self._lost ^= {i}
                code = self.random.choice((f.LOST, f.TIMEOUT)) if i in self._lost else ""
                sample.why += [
                    [10 + i, column, code, "fallen off the bus"] for column in f.DEVICE_COLUMNS
                ]
            if i in self._lost:
                sample.g.append(views.row("g", 10 + i))
            else:
                sample.g.append(
                    views.device_row(i, self.random.uniform(0, 139), self.random.uniform(0, 100))
                )
        for process in self._processes:
            process.readings(sample, self._q)
        return sample

    def _some(self, largest: float) -> float | None:
        return self.random.choice((None, 0.0, largest, self.random.uniform(0, largest)))


class _Process:
    """A process on some GPUs, with or without a probe."""

    def __init__(
        self,
        number: Callable[[], int],
        chance: random.Random,
        gpus: int,
        script: str,
        user: str,
        rank: int,
        world: int,
        job: str | None,
    ) -> None:
        self.random = chance
        proc, pid, gpu = number(), number() * 10, rank % gpus if gpus else None
        mine = user == "ada"
        command = f"python {script} --lr 3e-4"
        self.ids = [proc]
        self.definitions = [
            f.Def(
                proc, proc=f.ProcDef(pid, 9, views.WALL - 900, user, command, script[:15], 1, mine)
            )
        ]
        self.use = self.trainer = self.allocator = 0
        self._step, self._hung = chance.randrange(10_000), chance.random() < 0.1
        self._seconds = 10 ** chance.uniform(-2, 1.5)
        if gpu is not None:
            self._add("use", number(), use=f.UseDef(proc, 10 + gpu))
        if world:
            uuid = f"GPU-{gpu:08d}-0000-0000-0000-000000000000" if gpu is not None else None
            self._add(
                "trainer",
                number(),
                trainer=f.TrainerDef(
                    pid,
                    9,
                    proc,
                    rank if world > 1 else None,
                    rank,
                    world,
                    job,
                    script,
                    "2.13.0",
                    "3.11.7",
                    "native" if uuid else None,
                    chance.choice(("run", "watch", "inject")),
                    bool(uuid),
                ),
            )
            self._add(
                "allocator",
                number(),
                alloc=f.AllocDef(
                    self.trainer, rank if uuid else -1, uuid, None if gpu is None else 10 + gpu
                ),
            )

    def _add(self, what: str, entity: int, **definition: Any) -> None:
        setattr(self, what, entity)
        self.ids.append(entity)
        self.definitions.append(f.Def(entity, **definition))

    def readings(self, sample: f.Sample, q: int) -> None:
        """Return its rows; some are missing at times."""
        chance = self.random
        sample.p.append(
            views.row(
                "p",
                self.ids[0],
                cpu_percent=chance.uniform(0, 800),
                rss_bytes=chance.randrange(1 << 36),
            )
        )
        if self.use and chance.random() < 0.95:
            sample.u.append(
                views.row(
                    "u", self.use, used_bytes=chance.choice((None, 0, chance.randrange(1 << 37)))
                )
            )
        if self.trainer and chance.random() < 0.95:
            self._step += 0 if self._hung else max(1, int(SECONDS / self._seconds))
            stall: dict[str, f.Scalar] = (
                {"stall_at": "data.py:88 __getitem__", "step_age_seconds": 4.0 + q}
                if self._hung
                else {}
            )
            loss = chance.choice((None, 0.0, -1e9, 2.5, math.exp(-q / 100)))
            stall["loss"] = loss
            row = views.trainer_row(0, self._step, self._seconds, **stall)
            sample.t.append([self.trainer, *row[1:]])
            held = chance.uniform(0, 60)
            row = views.allocator_row(
                0, held, held + chance.uniform(0, 60), chance.choice((0.0, held / 5))
            )
            if chance.random() < 0.05:
                row = views.row("a", 400)
            sample.a.append([self.allocator, *row[1:]])
