"""Run the threads that read /proc and /sys: one for the host, one for processes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Callable, Dict, FrozenSet, Optional, Set, Tuple

from ..process.procfs import start_ticks, still_runs
from ..wire.frames import PROCESS_COLUMNS, HostDef, ProcDef, Reading, Unknown
from .ticker import Beat
from .worker import Doing, Worker, hung

if TYPE_CHECKING:
    from ..collect.log_progress import OutsideReader
    from ..collect.processes import ProcessSampler

PROCESSES_SECONDS = 1.0


class HostWorker(Worker):
    """Static facts and readings of the host, from /proc and /sys."""

    def __init__(self, hz: float, on_answer: Callable[[], None]) -> None:
        super().__init__("host", on_answer)
        self.interval = 1.0 / hz
        self.definition: Optional[Tuple[HostDef, Dict[str, Unknown]]] = None
        self.latest: Optional[Tuple[float, Dict[str, Reading]]] = None
        self._since: Optional[float] = None

    @property
    def doing(self) -> Doing:
        return ("reading /proc", self._since) if self._since is not None else None

    def run(self) -> None:
        from ..collect.host import HostSampler, host_definition

        self._since = time.monotonic()
        self.definition = host_definition()
        sampler = HostSampler()
        beat = Beat(self.interval, time.monotonic())
        while not self.stopping:
            now = time.monotonic()
            beat.set(self.interval, now)
            if beat.due(now):
                self._since = now
                readings = sampler.sample()
                self._since = None
                first = self.latest is None
                self.latest = (time.monotonic(), readings)
                if first:
                    self.on_answer()
            self.bell.wait(beat.next - time.monotonic())

    def late(self, now: float) -> Optional[Unknown]:
        """Return why the host's readings are too old, or None while new ones come."""
        if self.failure is not None:
            return self.failure
        last = self.latest[0] if self.latest else self.started
        return hung(self.doing, last, now) if now - last > max(2 * self.interval, 1.0) else None


class Described:
    """One process as /proc describes it.

    It holds the definition, the reasons why parts of it are unknown, the readings, and when they
    were taken.
    """

    __slots__ = ("definition", "readings", "reasons", "seconds")

    def __init__(
        self,
        definition: ProcDef,
        reasons: Dict[str, Unknown],
        readings: Dict[str, Reading],
        seconds: float,
    ) -> None:
        self.definition, self.reasons, self.readings, self.seconds = (
            definition,
            reasons,
            readings,
            seconds,
        )

    @property
    def key(self) -> Tuple[int, Optional[int]]:
        return self.definition.pid, self.definition.start


class ProcessWorker(Worker):
    """Describes and samples the processes of interest, every second.

    Reading ``/proc/PID`` of a process that hangs in the kernel can block, so this is a thread of
    its own.
    """

    def __init__(self, on_answer: Callable[[], None], redact: bool = True) -> None:
        super().__init__("processes", on_answer)
        self.known: Dict[int, Described] = {}
        self.departed: Dict[Tuple[int, Optional[int]], str] = {}
        """How processes that are no longer listed ended, by pid and start time; only the newest
        256.
        """
        self.named = False
        """In a pid namespace of our own: a pid that the driver lists is a process here that uses a
        GPU, which shows that the driver translates pids.
        """
        self._redact = redact
        self.ready = False
        """Whether :meth:`hidden` can tell."""
        self._wanted: FrozenSet[int] = frozenset()
        self._note: Optional[Unknown] = None
        self._listed: FrozenSet[int] = frozenset()
        self._used_gpu: Set[int] = set()
        """Those of the known processes that the driver has listed at any time."""
        self._judged: FrozenSet[int] = frozenset()
        self._doing: Doing = None
        self._outside: Optional[OutsideReader] = None

    @property
    def doing(self) -> Doing:
        return self._doing

    def want(self, pids: FrozenSet[int]) -> None:
        """Set the processes to describe from now on."""
        if pids != self._wanted:
            self._wanted = pids
            self.bell.ring()

    def hidden(self, listed: FrozenSet[int], used: bool) -> Optional[Unknown]:
        """Return why the driver's pids have no meaning here, or None if they have.

        They are valid only in their own pid namespace. ``listed`` holds all pids that the driver
        names. ``used`` says that a device's memory is in use although no process is listed for it.
        """
        if listed != self._listed:
            self._listed = listed
            self.bell.ring()
        if self.named:
            return None
        return self._note if listed or used else None

    @property
    def asked_for(self) -> Tuple[FrozenSet[int], FrozenSet[int]]:
        """The processes to describe, and those that the driver names."""
        return self._wanted, self._listed

    @property
    def settled(self) -> bool:
        """Whether every process of interest has been examined."""
        return self.ready and self._wanted <= self.known.keys() and self._judged == self._listed

    def run(self) -> None:
        from ..collect import processes
        from ..collect.log_progress import OutsideReader

        self._note = processes.pid_namespace_note()
        self.ready = True
        sampler = processes.ProcessSampler()
        self._outside = OutsideReader()
        beat = Beat(PROCESSES_SECONDS, time.monotonic())
        while not self.stopping:
            sample = beat.due(time.monotonic())
            wanted, listed, named = self._wanted, self._listed, self.named
            if self._note is not None and not named:
                self._doing = ("reading /proc/*/fd", time.monotonic())
                self.named = any(processes.holds_gpu(pid) for pid in listed)
            known = {}
            for pid in wanted:
                self._doing = (f"reading /proc/{pid}", time.monotonic())
                old, found = self.known.get(pid), self._look(pid, sampler, sample)
                if found.definition.start is None and old is not None and old.definition.start:
                    continue  # it has just ended; if it is still wanted, the next look says so
                known[pid] = found
            self._used_gpu = {*self._used_gpu & self.known.keys(), *listed}
            ended = {
                described.key: _ending(described.definition, pid in self._used_gpu)
                for pid, described in self.known.items()
                if pid not in known or known[pid].key != described.key
            }
            self._doing = None
            if ended:
                self.departed = dict(list({**self.departed, **ended}.items())[-256:])
            changed = (
                ended
                or known.keys() != self.known.keys()
                or listed != self._judged
                or named != self.named
            )
            self.known, self._judged = known, listed
            if changed:
                self.on_answer()
            self.bell.wait(beat.next - time.monotonic())

    def _look(self, pid: int, sampler: ProcessSampler, sample: bool) -> Described:
        from ..collect import processes

        old = self.known.get(pid)
        readings: Optional[Dict[str, Reading]] = None
        if old is not None and sample:  # the sample contains the start time
            readings, start = sampler.sample(pid), sampler.start
        else:
            start = start_ticks(pid)
        if old is None or old.definition.start != start:
            found = processes.describe(pid, redact=self._redact)
            if found is None:
                reason = processes.invisible(pid, foreign=not self.named)
                unknown = dict.fromkeys(("start", "user", "command"), reason)
                return Described(
                    ProcDef(pid), unknown, dict.fromkeys(PROCESS_COLUMNS, reason), time.monotonic()
                )
            old, readings = Described(found[0], found[1], {}, 0.0), None
        elif not sample or start is None:
            return old
        if readings is None:
            readings = sampler.sample(pid)
        now = time.monotonic()
        if self._outside is not None:
            readings.update(self._outside.sample(old.definition, readings.get("cpu_percent"), now))
        return Described(old.definition, old.reasons, readings, now)


def _ending(definition: ProcDef, used_gpu: bool) -> str:
    """Return what became of a process that is not looked at any more."""
    if not still_runs(definition.pid, definition.start):
        return "exited"
    return "runs on, without a GPU" if used_gpu else "runs on, without a probe"
