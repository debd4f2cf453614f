"""Wait until a process ends, stalls or has a loss of NaN, or until GPU memory is free.

These are ``gpuscope wait PID`` and ``gpuscope wait --free SIZE``; the exit code says which event
ended the wait.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from ...exit_status import ExitStatus
from ...model.job_ends import has_ended, is_out_of_sight
from ...text.units import MIB, age_text, bytes_text, duration_text, window_text
from ...wire.clean import clean
from .. import remote
from ..args import flag, option, seconds_between, size_of_at_least, whole_between

if TYPE_CHECKING:
    from ...store.source import Source
    from ...store.view import DeviceView, Entity, HostView
    from ..watched_host import WatchedHost

HZ = 2.0
LOOK_SECONDS = 0.2
SEEN_SECONDS = 15.0
"""Seconds that a process may take to appear among those that the host's agent reports."""
STEADY_SECONDS = 3.0
"""Seconds that memory must stay free: a trainer that restarts frees its GPU for a moment."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Wait until a process ends or stalls, its loss is NaN, or GPUs have enough free memory. "
        "The exit code says which."
    )
    where = (
        "PID, [USER@]HOST:PID; with --free [USER@]HOST, slurm:JOB, k8s:NAMESPACE/POD "
        "(default: this machine)"
    )
    parser.add_argument("target", nargs="?", metavar="TARGET", help=where)
    option(
        parser,
        "--free SIZE",
        "wait until a GPU has this much free: 40GiB, 500MiB",
        size_of_at_least(MIB),
    )
    option(
        parser,
        "--gpus N",
        "with --free: how many GPUs must have it (default 1)",
        whole_between(1, 1024),
        default=1,
    )
    flag(
        parser,
        "--slower",
        "also return when its steps become slower and stay so (exit code 12); to know this "
        "takes 90 s of steps at least",
    )
    option(
        parser,
        "--timeout SECONDS",
        "give up after this long (exit code 124)",
        seconds_between(0.1, 365 * 86400.0),
    )
    flag(parser, "--quiet", "print only errors, and with --free the GPU indices")
    remote.add_arguments(parser)


@dataclass(frozen=True)
class WaitResult:
    """The result of waiting.

    ``code`` is the exit code, ``text`` a line for people, and ``out`` what a script reads on
    standard output.
    """

    code: int
    text: str
    out: str = ""


E = TypeVar("E", bound="Entity")
Judge = Callable[["HostView", float], "WaitResult | None"]
"""Called with the host and the seconds since its first sample; None means to wait on."""


def run(args: argparse.Namespace, make_source: Callable[[float], Source] | None = None) -> int:
    """Run the verb; tests pass ``make_source``."""
    with contextlib.ExitStack() as stack:
        verdict = _prepared(args, stack, make_source)
    if verdict.out:
        print(verdict.out, flush=True)
    if verdict.text and (
        not args.quiet or verdict.code not in (ExitStatus.OK, ExitStatus.TIMED_OUT)
    ):
        print(verdict.text, file=sys.stderr)
    return verdict.code


def _prepared(
    args: argparse.Namespace,
    stack: contextlib.ExitStack,
    make_source: Callable[[float], Source] | None,
) -> WaitResult:
    if args.free is None and args.target is None:
        raise remote.BadTarget(
            "nothing to wait for. Next: gpuscope wait PID    or    gpuscope wait --free 40GiB"
        )
    local = args.target is None or args.target.isdigit()
    if local and not args.via:
        pid = int(args.target) if args.target is not None else None
        if pid is not None and args.free is not None:
            raise remote.BadTarget("a PID or --free, not both")
        from ...config import load
        from ...tui.app.launch import local_source

        source = (make_source or (lambda hz: local_source(hz, load()[0])))(HZ)
        watch = _Local(pid) if pid is not None else None
    else:
        from ...config import load

        target = remote.one_place(args, args.target)
        pid, watch = target.pid, None
        if (pid is None) == (args.free is None):
            if pid is not None:
                raise remote.BadTarget(f"{args.target}: a PID or --free, not both")
            ways = (
                "gpuscope wait PID    or    gpuscope wait HOST:PID    or    gpuscope wait HOST "
                "--free 40GiB"
            )
            raise remote.BadTarget(f"{args.target}: neither a PID nor --free. Next: {ways}")
        source = stack.enter_context(remote.Ways(args, redact=load()[0].redact)).source(target, HZ)
    if watch is not None and watch.ended:
        return WaitResult(
            ExitStatus.UNCHECKED,
            f"gpuscope wait: there is no process {pid} here.\n"
            "Next: gpuscope ps    lists GPU processes and trainers",
        )
    if args.slower and pid is None:
        raise remote.BadTarget("--slower is for a PID. Next: gpuscope wait PID --slower")
    judge: Judge = FreeDevicesWait(args.free, args.gpus) if pid is None else ProcessWait(pid, watch)
    return asyncio.run(_wait(source, judge, watch, args.timeout, args.slower))


async def _wait(
    source: Source,
    judge: Judge,
    local: _Local | None,
    timeout: float | None,
    slower: bool = False,
) -> WaitResult:
    from ..watched_host import watched

    began, first = time.monotonic(), None
    async with watched(source) as there:
        while True:
            now = time.monotonic()
            if local is not None and local.ended:
                return WaitResult(
                    ExitStatus.OK,
                    f"pid {local.pid} has ended, after {duration_text(now - began)} of waiting.",
                )
            host = there.host
            if host.sampled_seconds is not None:
                first = now if first is None else first
                verdict = judge(host, now - first)
                if verdict is None and slower and (text := _slower(there, judge)):
                    sentence = f"pid {_pid(judge)}: {text[:1].lower()}{text[1:]}."
                    verdict = WaitResult(ExitStatus.SLOWER, sentence)
                if verdict is not None:
                    return verdict
            if (there.running.done() or host.link.state == "ended") and local is None:
                return WaitResult(
                    ExitStatus.UNCHECKED,
                    f"gpuscope wait: {clean(host.link.text) or 'the connection ended'}.",
                )
            if timeout is not None and now - began >= timeout:
                words = f"gave up after {window_text(timeout)}: {_still(judge)}"
                also = _slower(there, judge)
                return WaitResult(ExitStatus.TIMED_OUT, words + (also and f". {also}"))
            await asyncio.sleep(LOOK_SECONDS)


def _slower(there: WatchedHost, judge: Judge) -> str:
    """Since when the steps of what is waited for are slower, "" where they are not."""
    from ...model.slowdown import of_trainers

    if not isinstance(judge, ProcessWait):
        return ""
    host, key = there.host, there.source.key
    for trainer in host.trainers:
        if trainer.definition.pid == judge.pid and trainer.gone is None:
            found = of_trainers([trainer], host, lambda *column: there.store.history(key, *column))
            return clean(found.text, 300) if found is not None else ""
    return ""


def _pid(judge: Judge) -> str:
    return str(getattr(judge, "pid", ""))


def _still(judge: Judge) -> str:
    return str(getattr(judge, "still", "nothing has changed"))


class _Local:
    """A process of this machine that may still run.

    It is identified by pid and start time, so that a reused pid is not mistaken for it.
    """

    def __init__(self, pid: int) -> None:
        from ...process.procfs import start_ticks

        self.pid = pid
        self._start = start_ticks(pid)

    @property
    def ended(self) -> bool:
        from ...process.procfs import still_runs

        return not still_runs(self.pid, self._start)


class ProcessWait:
    """Ends with the process; before that when its trainer stands or its loss is lost."""

    def __init__(self, pid: int, local: _Local | None) -> None:
        self.pid, self._local = pid, local
        self._seen = False
        self.still = f"pid {pid} is still running"

    def __call__(self, host: HostView, seconds: float) -> WaitResult | None:
        from ...model.lost_loss import loss_of
        from ...model.stalls import find_stall, is_stalled, stands_text

        pid = self.pid
        process = _latest([p for p in host.processes if p.definition.pid == pid])
        trainer = _latest([t for t in host.trainers if t.definition.pid == pid])
        script = trainer.definition.script if trainer is not None else None
        name = f"pid {pid} ({clean(os.path.basename(script), 60)})" if script else f"pid {pid}"
        then = f"\nNext: gpuscope doctor {pid}    says what to do" if self._local else ""
        if trainer is not None and trainer.gone is None:
            self._seen = True
            if is_stalled(trainer):
                job, age = host.job_of(trainer), trainer.number("step_age_seconds") or 0.0
                stands = stands_text(trainer, find_stall(job.trainers) if job is not None else None)
                where = f", {stands}" if stands else ""
                return WaitResult(
                    ExitStatus.STALLED,
                    f"{name} has stalled: no step for {age_text(age)}{where}.{then}",
                )
        told = (loss_of(host, one) for one in (trainer, process) if one is not None)
        lost = next((one for one in told if one is not None), None)
        if lost is not None:
            text = f"the loss of {name} is {lost.value} {lost.brief}.{then}"
            return WaitResult(ExitStatus.NOT_FINITE, text)
        living = next(
            (one for one in (process, trainer) if one is not None and one.gone is None), None
        )
        if living is not None:
            self._seen = True
        elif self._local is None:
            gone = next(
                (
                    one.gone
                    for one in (process, trainer)
                    if one is not None and one.gone is not None
                ),
                None,
            )
            if gone is not None and is_out_of_sight(gone):
                return None
            if self._seen or gone is not None:
                how = has_ended(gone) if gone else "has ended"
                return WaitResult(ExitStatus.OK, f"pid {pid} {how}.")
            if seconds > SEEN_SECONDS:
                why = "either it has ended, or it uses no GPU and has no probe"
                return WaitResult(
                    ExitStatus.UNCHECKED, f"gpuscope wait: pid {pid} is not seen there: {why}."
                )
        return None


def _latest(found: list[E]) -> E | None:
    """One that lives before one that has ended, the latest of several."""
    return max(found, key=lambda one: (one.gone is None, one.id), default=None)


class FreeDevicesWait:
    """Wait until enough devices have had enough free memory for a while.

    The indices of these devices are printed on standard output.
    """

    def __init__(self, size: int, count: int) -> None:
        self._size, self._count = size, count
        self._since: dict[str, float] = {}
        self.still = "no reading of a GPU arrived"

    def __call__(self, host: HostView, seconds: float) -> WaitResult | None:
        if not host.devices:
            if host.nvml is not None and seconds > SEEN_SECONDS / 3:
                return WaitResult(
                    ExitStatus.UNCHECKED, f"gpuscope wait: no GPU there: {host.nvml.text}"
                )
            return None
        if len(host.devices) < self._count:
            text = f"{self._count} GPUs are requested, but there are {len(host.devices)}"
            return WaitResult(ExitStatus.UNCHECKED, f"gpuscope wait: {text}.")
        totals = [d.definition.total_bytes for d in host.devices]
        if sum(total is None or total >= self._size for total in totals) < self._count:
            text = f"no {self._count} GPUs there have {bytes_text(self._size)} at all"
            return WaitResult(ExitStatus.UNCHECKED, f"gpuscope wait: {text}.")
        now = host.sampled_seconds or 0.0
        room = {
            d.key: d
            for d in host.devices
            if (d.number("free_bytes") or 0) >= self._size and d.gone is None
        }
        self._since = {key: min(self._since.get(key, now), now) for key in room}
        ready = [d for key, d in room.items() if now - self._since[key] >= STEADY_SECONDS]
        # The device with the most free memory comes first, and among equals the one that nobody
        # uses.
        ready.sort(
            key=lambda d: (
                len([u for u in d.uses if u.gone is None]),
                -(d.number("free_bytes") or 0),
            )
        )
        self.still = _holders(host, self._size, {device.key for device in ready})
        if len(ready) < self._count:
            return None
        chosen = sorted(ready[: self._count], key=lambda d: d.definition.index)
        words = ", ".join(_words(host, d) for d in chosen)
        return WaitResult(
            ExitStatus.OK, f"free: {words}", ",".join(str(d.definition.index) for d in chosen)
        )


def _words(host: HostView, device: DeviceView) -> str:
    parts = [bytes_text(device.number("free_bytes"))]
    since, now = device.number("idle_since_seconds"), host.sampled_seconds
    if since and now is not None and now - since >= 1:
        parts.append(f"idle for at least {age_text(now - since)}")
    owners = _owners(host, device)
    parts += [f"with {owners}"] if owners else []
    return f"GPU {device.definition.index} ({', '.join(parts)})"


def _owners(host: HostView, device: DeviceView) -> str:
    using = {use.process for use in device.uses if use.gone is None}
    found = [p.definition for p in host.processes if p.id in using and p.gone is None]
    return ", ".join(dict.fromkeys(f"{d.user or 'someone'} pid {d.pid}" for d in found))


def _holders(host: HostView, size: int, ready: set[str]) -> str:
    """Return which devices have enough free memory and who holds the rest, for the timeout text.

    ``ready`` are the devices that have had enough free memory for long enough.
    """
    parts = []
    for device in host.devices:
        free = device.number("free_bytes")
        if free is not None and free >= size and device.gone is None:
            steady = "" if device.key in ready else f", but for less than {STEADY_SECONDS:g} s"
            parts.append(f"GPU {device.definition.index} has room{steady}")
            continue
        words = f"{bytes_text(free)} free" if free is not None else "free memory unknown"
        owners = _owners(host, device)
        parts.append(
            f"GPU {device.definition.index} {words}{', held by ' + owners if owners else ''}"
        )
    return "; ".join(parts[:8])
