"""Observe the trainers that run here for a short time and judge them.

This is for ``gpuscope doctor`` without a target and for ``gpuscope doctor PID``. As for ``gpuscope
ps``, the agent's workers run inside this process, for some two seconds if there is a trainer. The
history comes from the trainer's probe, which remembers the memory after each step and the readings
of the last minutes, so growth can be judged at once.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....agent.live_frames import LiveFrames
from ....agent.oneshot import Answered
from ....doctor.finding import Report
from ....process.procfs import descends
from ....store.decode import decode
from ....store.store import PAST_REQUESTS, Store
from ....text.units import bytes_text, window_text
from ....wire import codec
from ....wire.frames import Frame, Request, Result

if TYPE_CHECKING:
    from ....collect.probe_link import ProbeLink
    from ....store.view import History, HostView, TrainerView

WATCH_SECONDS = 2.2
"""Seconds to watch trainers: enough samples for a mean, and to see a counter rise."""
HZ, PROBE_HZ = 2.0, 5.0
MAX_REQUESTS = 64
NO_TRAINER = (
    "no trainer with a probe runs here. gpuscope run train.py starts one; gpuscope doctor FILE "
    "examines a script, a log, or what a trainer left"
)
_KEY = "here"


def examine(
    pid: int | None = None, timeout: float = 5.0, agent: LiveFrames | None = None
) -> Report:
    """Judge the job of the process ``pid``, or every trainer here.

    Tests pass ``agent``.
    """
    if pid is not None and not Path(f"/proc/{pid}").exists() and Path("/proc/self").exists():
        from ...dead_trainers import nothing_has

        said, following = nothing_has(pid)
        return Report(problems=(f"{said[0].upper()}{said[1:]}. Next: {following}",))
    store, complete = watch(timeout, agent, ask=True, pid=pid)
    host = store.view().host
    if host is None:
        return Report(problems=("Nothing on this machine answered. Try: gpuscope ps",))
    trainers = [trainer for trainer in host.trainers if trainer.gone is None]
    chosen = (
        None
        if pid is None
        else {t.definition.pid for t in trainers if descends(t.definition.pid, pid)}
    )
    if pid is not None and not chosen:
        here = {one.definition.pid for one in host.processes}
        by_log = judge(store, {one for one in here if descends(one, pid)})
        return by_log + Report(problems=(_not_seen(host, pid, timeout),))
    if not trainers:
        from ....doctor import live

        none = Report(examined=(NO_TRAINER,), problems=_unanswered(complete, timeout))
        return none + live.examine(host)
    from ... import tune_offer
    from . import live_script

    report = judge(store, chosen)
    if not report.examined:
        report += Report(
            problems=(f"pid {pid}: another process has replaced it in its job. Try: gpuscope ps",)
        )
    judged = [one for one in trainers if chosen is None or one.definition.pid in chosen]
    report += live_script.examine(judged, report)
    report += Report(problems=_unanswered(complete, timeout))
    return tune_offer.with_offers(report, judged)


def judge(store: Store, pids: Collection[int] | None) -> Report:
    """Judge the trainers of a look; with ``pids`` only the jobs of these processes."""
    from ....doctor import live

    host = store.view().host
    if host is None:
        return Report()

    def history(entity: int, column: str, seconds: float | None) -> History:
        return store.history(_KEY, entity, column, seconds)

    return live.examine(host, history, pids)


def _unanswered(complete: bool, timeout: float) -> tuple[str, ...]:
    return (
        ()
        if complete
        else (
            f"Not everything here answered within {window_text(timeout)}: the missing parts "
            "were not checked.",
        )
    )


def _not_seen(host: HostView, pid: int, timeout: float) -> str:
    from ...one_trainer import has_socket, is_started_with_us, not_started_yet, out_of_reach

    if is_started_with_us(pid) and not has_socket(pid):
        what, following = not_started_yet(pid, "doctor")
        return f"P{what[1:]} {following}"
    if has_socket(pid):
        return (
            f"The probe in pid {pid} has not answered within {window_text(timeout)}: this "
            "machine is busy, or the training is stopped or holds Python's lock for long. Next: "
            f"gpuscope doctor {pid} again, or with --timeout {2 * timeout:g}"
        )
    held = [
        use
        for one in host.processes
        if one.definition.pid == pid
        for use in one.uses
        if use.gone is None
    ]
    sizes = [size for use in held if (size := use.number("used_bytes")) is not None]
    shown = (
        f" From outside: it holds {bytes_text(sum(sizes))} on {len(sizes)} GPU." if sizes else ""
    )
    if (stranger := out_of_reach(pid, "doctor")) is not None:
        what, following = stranger
        return f"P{what[1:]}{shown} {following}"
    return (
        f"There is no probe in pid {pid}: its steps and allocator are unknown. It was not "
        f"touched.{shown} Next run: gpuscope run train.py"
    )


# ── looking ───────────────────────────────────────────────────────────────────────────────────────


def watch(
    timeout: float, agent: LiveFrames | None = None, ask: bool = False, pid: int | None = None
) -> tuple[Store, bool]:
    """Return the store after a look, and whether everything has answered.

    The look is short where no trainer is running, or none of the process ``pid``. With ``ask``, the
    trainers' probes are asked for their history.
    """
    watched = LocalWatch(agent, ask)
    try:
        return watched.store, watched.first(timeout, pid)
    finally:
        watched.stop()


class LocalWatch:
    """This machine while it is being watched, from the first look until :meth:`stop`.

    ``store`` contains what is known. With ``ask``, the trainers' probes are asked for their
    history.
    """

    def __init__(self, agent: LiveFrames | None = None, ask: bool = False) -> None:
        self.store = Store()
        self._agent = agent or LiveFrames(HZ, PROBE_HZ)
        self._memories = _RememberedHistory() if ask else None
        self.store.add_source(_KEY, os.uname().nodename)
        self._agent.start(self._memories.hear if self._memories is not None else None)
        _feed(self.store, [self._agent.hello])

    def first(self, timeout: float, pid: int | None = None) -> bool:
        """Look until enough was seen, or for ``timeout``. Return whether everybody has answered.

        With ``pid`` the trainers of other jobs are not enough: their probes may answer long before
        the one that is asked for.
        """

        def take() -> list[TrainerView]:
            return [one for one in self.tick() if pid is None or descends(one.definition.pid, pid)]

        def enough(trainers: list[TrainerView], now: Answered, seconds: float) -> bool:
            if trainers:
                return now.all and seconds >= WATCH_SECONDS
            return now.all and not (now.searching or (pid is not None and now.connecting))

        _, complete = self._agent.until(max(timeout, 0.2), take, enough)
        if self._memories is not None:
            self._memories.tell(self.store)
        return complete

    def tick(self) -> list[TrainerView]:
        """Take what is new, and return the trainers that live."""
        _feed(self.store, self._agent.tick())
        host = self.store.host(_KEY)
        trainers = [one for one in host.trainers if one.gone is None] if host is not None else []
        if self._memories is not None:
            self._memories.ask(self._agent, self.store, trainers)
        return trainers

    def history(self, entity: int, column: str, seconds: float | None) -> History:
        """Return the recorded values of a column."""
        return self.store.history(_KEY, entity, column, seconds)

    def stop(self) -> None:
        """Ask nobody any more."""
        self._agent.stop()


def _feed(store: Store, frames: list[Frame]) -> None:
    """Feed frames to the store through the wire's own codec.

    The codec applies the same limits and the same cleaning as to frames from an agent.
    """
    for frame in frames:
        try:
            store.apply(_KEY, decode(codec.encode(frame).rstrip(b"\n")), time.monotonic())
        except codec.WireError:
            continue


# ── what was before ───────────────────────────────────────────────────────────────────────────────


class _RememberedHistory:
    """The history of the last minutes that probes remember.

    The requests are :data:`~gpuscope.store.store.PAST_REQUESTS`. Each trainer is asked once, in the
    collector's threads.
    """

    def __init__(self) -> None:
        self._requested: set[int] = set()  # ids of trainers in the view
        # Request id → the trainer, and what it was asked.
        self._requests: dict[int, tuple[int, str]] = {}
        self._answers: dict[int, Mapping[str, Any]] = {}  # request id → its answer

    def ask(self, agent: LiveFrames, store: Store, trainers: list[TrainerView]) -> None:
        for trainer in trainers:
            number = store.wire_id(_KEY, trainer.id)
            link = agent.link_of(number) if number is not None else None
            if (
                link is None
                or trainer.id in self._requested
                or len(self._requested) >= MAX_REQUESTS
            ):
                continue
            self._requested.add(trainer.id)
            for name in PAST_REQUESTS:
                self._requests[agent.ask(link, Request(name, 0, {}))] = trainer.id, name

    def hear(self, link: ProbeLink, answer: object) -> None:
        """An answer of a probe, which may hold anything."""
        if isinstance(answer, Result):
            self._answers[answer.id] = answer.value

    def tell(self, store: Store) -> None:
        """Add the history that probes remember to the store."""
        for request, value in list(self._answers.items()):
            if request in self._requests:
                trainer, name = self._requests[request]
                store.remember(_KEY, trainer, name, value)
