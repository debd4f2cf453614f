"""This is the Lab as the screens see it.

It has the switches, what speaks against them, the run in progress, and the ledger.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...lab.config import LabConfig
from ...lab.rules import RuleVerdict, check
from ...lab.toggles import Toggle, Value
from ...model.cuda_devices import visible_devices
from ...model.occupants import Occupant
from ..tasks import Tasks
from .choices import DeviceChoice, next_value
from .devices import driver_has_answered, facts, family, occupants, where
from .ledger_view import Book
from .run import RunView

if TYPE_CHECKING:
    from ...lab.launch import LabRun
    from ...lab.metrics import Record, Started
    from ...store.view import HostView
    from .demo import Demo
    from .repeats import Repeats
    from .tuning import Tuning

log = logging.getLogger("gpuscope.lab")

UNDER_WAY = ("starting", "running", "stopping")
AFTER_SECONDS = 5.0
"""How long after a run of ours unowned memory may still be its own."""
HOST_WAIT_SECONDS = 5.0
"""How long an automatic start waits for the first picture of the host: it must not take a GPU that
is in use.
"""

DRAWN_SECONDS = 0.4
"""The worker reports five times a second. The figures of a run are drawn about twice a second:
nobody reads faster.
"""


class LabRuns:
    """What starts and stops the runs of the Lab, and remembers them.

    ``changed`` is called when there is something new to draw; ``host`` gives the picture of
    this moment, None before the first.
    """

    def __init__(
        self,
        config: LabConfig | None,
        changed: Callable[[], None],
        host: Callable[[], HostView | None] = lambda: None,
        book: Book | None = None,
    ) -> None:
        self.config = config or LabConfig()
        self.current: RunView | None = None
        """The newest run of this session, in progress or ended."""
        self.book = book or Book(changed)
        self.repeats: Repeats | None = None
        self.demo: Demo | None = None
        self.tuning: Tuning | None = None
        """The newest search for the fastest settings, under way or ended."""
        self.held: list[Occupant] = []
        """Why the last start was not made: who is on its devices."""
        self._changed, self._host = changed, host
        self._worker: LabRun | None = None
        self._known: Started | None = None  # what the last worker said about its torch and device
        self._tasks: set[asyncio.Task[Any]] = set()
        self._filing = Tasks()
        self._own: set[int] = set()
        self.stopped: dict[int, str] = {}
        """Processes of ours that the user has stopped, and how."""
        self._told: dict[int, int] = {}
        self._judged: tuple[object, tuple[RuleVerdict, ...]] = (None, ())
        self._drawn = -math.inf

    # ── state ──

    @property
    def state(self) -> str:
        """idle, starting, running, stopping, stopped or failed."""
        return self._worker.state if self._worker else "idle"

    @property
    def busy(self) -> bool:
        """Whether a run is under way."""
        return self.state in UNDER_WAY

    @property
    def ends_something(self) -> bool:
        """Whether there is anything to stop: a run, repeats or a search, also before it begins."""
        repeated = self.repeats is not None and not self.repeats.over
        return self.busy or self.searching or repeated or bool(self._tasks)

    @property
    def stopped_early(self) -> bool:
        """Whether the newest run was stopped before its first step: nothing was measured."""
        run = self.current
        return self.state == "stopped" and run is not None and run.entry is None and not run.last

    @property
    def pid(self) -> int | None:
        """The worker's pid while there is one."""
        return self._worker.pid if self._worker else None

    @property
    def failure(self) -> tuple[str, ...]:
        """What happened, why, what next, when the run has failed."""
        failure = self._worker.failure if self._worker else None
        return (failure.what, f"Why: {failure.why}", f"Next: {failure.next}") if failure else ()

    @property
    def dirty(self) -> bool:
        """Whether the switches differ from those of the run in progress."""
        return bool(
            self.current
            and self.state in ("starting", "running")
            and self.current.config != self.config
        )

    @property
    def device(self) -> DeviceChoice:
        """Where these switches would train, as far as it is known."""
        return where(self.config, self._host(), self._known)

    def verdicts(self) -> tuple[RuleVerdict, ...]:
        """Return what speaks against the switches as they are, refusals first.

        There is nothing while the device is not known.
        """
        device = self.device
        if not device.kind:
            return ()
        known = facts(self.config, self._host(), device, self._known, self.pid)
        if self._judged[0] != (self.config, known):
            self._judged = ((self.config, known), tuple(check(self.config, known)))
        return self._judged[1]

    @property
    def refusal(self) -> RuleVerdict | None:
        """Why these switches cannot be started; None where they can."""
        return next((verdict for verdict in self.verdicts() if verdict.level == "refuse"), None)

    @property
    def nearest(self) -> LabConfig | None:
        """The nearest combination that works.

        There is one where these switches are refused or warned about.
        """
        return next(
            (
                v.nearest
                for v in self.verdicts()
                if v.nearest is not None and v.nearest != self.config
            ),
            None,
        )

    # ── switches ──

    def turn(self, toggle: Toggle, by: int) -> None:
        """Turn a switch to its next or previous value.

        It acts at the next start.
        """
        self.put(toggle.name, next_value(toggle, getattr(self.config, toggle.name), by))

    def put(self, name: str, value: Value | str) -> None:
        """Set a switch; raises :class:`~gpuscope.lab.config.ConfigError`."""
        self.take(self.config.changed(name, value))

    def take(self, config: LabConfig) -> None:
        """All switches at once."""
        self.config, self.held = config, []
        self._changed()

    # ── runs ──

    def occupants(self, config: LabConfig | None = None) -> list[Occupant]:
        """Return who else is on the devices that a run would take."""
        config, host = config or self.config, self._host()
        self._note_own()
        lately = self.current is not None and (
            self.current.ended is None or time.monotonic() - self.current.ended < AFTER_SECONDS
        )
        return occupants(
            config,
            host,
            where(config, host, self._known),
            self._own,
            not (lately or self._demo_runs),
        )

    @property
    def _demo_runs(self) -> bool:
        return self.demo is not None and not self.demo.over

    def _note_own(self) -> None:
        """Remember the pids of what we run.

        A picture of the host is older than the end of a process.
        """
        host = self._host()
        children = (self.demo, self.tuning)
        for pid in (self.pid, *(one.pid for one in children if one is not None)):
            if pid is not None:
                self._own |= family(host, pid) if host is not None else {pid}

    @property
    def searching(self) -> bool:
        """Whether a search for the fastest settings is under way."""
        return self.tuning is not None and not self.tuning.over

    def start(self, force: bool = False) -> str:
        """Start, or restart with the switches as they are, and return what keeps it from that.

        That is "" when it is under way, else ``refused`` (:attr:`refusal`), ``held``
        (:attr:`held`; not with ``force``), ``searching``, or ``busy``.
        """
        if self.searching:
            return "searching"
        if self.state in ("starting", "stopping") or self._tasks:
            return "busy"
        if self.refusal is not None:
            return "refused"
        self.held = [] if force else self.occupants()
        if self.held:
            self._changed()
            return "held"
        self._later(self.launch(self.config))
        return ""

    def start_when_known(self) -> None:
        """Start once the host is known, for a start that nobody watches.

        It starts as :meth:`start` does, and waits its time. Who starts a run meanwhile keeps
        that one.
        """
        self._filing.begin(self._start_when_known())

    async def _start_when_known(self) -> None:
        end = asyncio.get_running_loop().time() + HOST_WAIT_SECONDS
        while not self.device.kind or not driver_has_answered(self._host()):
            if asyncio.get_running_loop().time() > end:
                break
            await asyncio.sleep(0.05)
        if self._worker is None and not self._tasks:
            self.start()
        self._changed()

    async def launch(self, config: LabConfig) -> LabRun:
        """End the worker there is, and start one with ``config``, without asking anybody."""
        from ...lab.launch import LabRun

        if self._worker is None:
            self._worker = LabRun(config, self._record, self._became, keep=True)
        await self._worker.restart(config)
        return self._worker

    def stop(self) -> None:
        """Ask the trainer to end, also one that is to start when the one before has ended.

        A series of repeats ends with it, and so does a search.
        """
        if self.tuning is not None:
            self.tuning.stop()
        if self.repeats is not None:
            self.repeats.stop()
        if self._tasks or self.state in ("starting", "running"):
            self._note_own()
            self.stopped.update(dict.fromkeys(self._own, "in the Lab"))
            self._later(self._stop())

    def stop_or_kill(self) -> None:
        """Ask the trainer to end; one that was asked before ends at once."""
        if self._worker is not None and self.state == "stopping":
            self._worker.kill()
        else:
            self.stop()

    async def _stop(self) -> None:
        """End the worker, after a restart that has already begun."""
        if self._worker is not None:
            await self._worker.stop()

    def new_output(self) -> list[tuple[str, str]]:
        """Return what the trainer and a script have said since the last call, with their names."""
        out: list[tuple[str, str]] = []
        worker, demo = self._worker, self.demo
        sources = (
            [("gpuscope lab", worker.lines_printed, worker.stderr)] if worker is not None else []
        )
        sources += [(demo.name, demo.lines_printed, demo.output)] if demo is not None else []
        for who, seen, lines in sources:
            fresh = seen - self._told.get(id(lines), 0)
            self._told[id(lines)] = seen
            out += [(who, line) for line in list(lines)[-fresh:]] if fresh > 0 else []
        return out

    def measure(self, a: LabConfig, b: LabConfig, repeats: int, steps: int) -> None:
        """Measure both in turns, A B B A …, each time in a fresh process."""
        from .repeats import Repeats

        if self.repeats is None or self.repeats.over:
            self.repeats = Repeats(self, a, b, repeats, steps)
            self._later(self.repeats.run())

    def tune(self, budget_seconds: float, free_batch: bool, share_gpus: bool = False) -> None:
        """Search for the fastest settings; a trainer that runs is stopped first."""
        from .tuning import Tuning

        if self.searching:
            return
        self.stop()
        self.tuning = Tuning(self.config, budget_seconds, self._changed, free_batch, share_gpus)
        self._filing.begin(self._tune(self.tuning))
        self._changed()

    async def _tune(self, tuning: Tuning) -> None:
        if self._worker is not None:
            await self._worker.wait()
        tuning.start()
        await tuning.wait()
        self.book.open()

    async def end(self, seconds: float) -> None:
        """Stop the trainer, and wait until its run is written down, but no longer than this."""
        self.stop()

        async def written() -> None:
            while self._tasks:
                await asyncio.wait(set(self._tasks))
            await self.filed()

        try:
            await asyncio.wait_for(written(), seconds)
        except asyncio.TimeoutError:
            pass

    def let_go(self) -> None:
        """The program leaves: trainer, search and demo end by themselves.

        The trainer then writes its run down itself.
        """
        if self.tuning is not None:
            self.tuning.let_go()
        if self.repeats is not None:
            self.repeats.stop()
        if self._worker:
            self._worker.let_go()
        if self.demo is not None:
            self.demo.let_go()

    # ── demonstration scripts ──

    @property
    def gpus(self) -> int | None:
        """GPUs that a child of ours would see; None while the host is not known."""
        host = self._host()
        return (
            len(visible_devices(host.devices))
            if host is not None and host.sampled_seconds is not None
            else None
        )

    def on_first(self, count: int) -> list[Occupant]:
        """Return who else is on the first ``count`` GPUs; none for a script that needs none."""
        config = (
            LabConfig(device="cuda", parallel="ddp", nproc=count)
            if count
            else LabConfig(device="cpu")
        )
        return self.occupants(config)

    def show_demo(self, demo: Demo) -> None:
        """Start a script; the one before is asked to end."""
        if self.demo is not None:
            self.demo.stop()
        self.demo = demo
        demo.start()

    # ── what the worker says ──

    def _later(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception():
            log.error("the lab failed", exc_info=task.exception())
        self._changed()

    def _became(self, worker: LabRun) -> None:
        """Begin a run when its worker does, and end it with it.

        Until then what comes is of the run before, its summary above all.
        """
        if worker.state == "starting":
            self.current = RunView(worker.config)
        elif worker.state in ("stopped", "failed") and self.current is not None:
            self._ended(self.current, worker)
        self._changed()

    def _record(self, record: Record) -> None:
        from ...lab.metrics import Started, Step

        run = self.current
        if run is None:
            return
        if isinstance(record, Started):
            run.begin(record)
            self._known = record
        elif isinstance(record, Step):
            first = run.last is None or run.last.warming_up != record.warming_up
            run.heard(record)
            self._note_own()
            self.see()
            if not first and time.monotonic() - self._drawn < DRAWN_SECONDS:
                return  # the next report, or the end of the run, draws this one too
        self._drawn = time.monotonic()
        self._changed()

    def see(self) -> None:
        """Let the run in progress take what the host's picture shows of it."""
        if self.current is not None and self.busy:
            self.current.see(self._host(), self.pid, self._own)

    def _ended(self, run: RunView, worker: LabRun) -> None:
        """Write the run down, where it has measured anything."""
        if run.ended is not None:
            return
        document = run.finish(worker.summary or run.reported(worker.failure))
        if not document.get("steps"):
            return
        mark = self.repeats.mark if self.repeats is not None and not self.repeats.over else None
        self._filing.begin(self._file(run, document, mark))

    async def _file(
        self, run: RunView, document: dict[str, Any], mark: tuple[str, int, str] | None
    ) -> None:
        group, repeat, cell = mark or ("", 0, "")
        run.entry = await self.book.add(document, group=group, repeat=repeat, cell=cell)
        run.name = run_name(run.entry.id)
        if self.repeats is not None and mark is not None:
            self.repeats.filed(run.entry)
        self._changed()

    async def filed(self) -> None:
        """Returns when all runs that have ended are written down."""
        await self._filing.ended()


def run_name(number: int) -> str:
    """Return how a run is called, which is its number in the ledger.

    It is ``~1`` where the run could not be written there.
    """
    return f"#{number}" if number > 0 else f"~{-number}"


def sides(entries: Sequence[Any], chosen: Any) -> list[Any]:
    """Return the runs that stand for ``chosen``.

    They are the repeats of its configuration in its group, or it alone. In a sweep each repeat has
    a seed of its own.
    """
    if not chosen.group:
        return [chosen]
    alike = [
        e
        for e in entries
        if e.group == chosen.group
        and e.cell == chosen.cell
        and (e.config == chosen.config or (chosen.cell and _alike_but_seed(e, chosen)))
        and not e.cut_short
    ]
    return sorted(alike, key=lambda e: e.repeat) if chosen in alike and len(alike) > 1 else [chosen]


def _alike_but_seed(one: Any, other: Any) -> bool:
    if one.config is None or other.config is None:
        return False
    return bool(replace(one.config, seed=other.config.seed) == other.config)
