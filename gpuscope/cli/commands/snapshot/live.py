"""Take an allocator snapshot of a trainer: ``gpuscope snapshot PID``.

The trainer is here or elsewhere; an agent and a probe take it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from ....errors import UsageError, UserError
from ....exit_status import ExitStatus
from ....text.units import bytes_text, duration_text, percent_text
from ... import remote
from ...args import whole_between

if TYPE_CHECKING:
    import asyncio

    from ....store.source import Source
    from ....store.store import Store
    from ....store.view import HostView, TrainerView
    from ....wire.frames import Progress, Scalar

FIND_SECONDS = 8.0
"""So long the agent has to find the probe: it looks for sockets twice a second."""
FIND_THERE_SECONDS = 4.0
"""Once an agent elsewhere has told of its host: there is no start of one here to wait for."""
CONNECT_SECONDS = 60.0
"""For the way to another host, and what ssh may ask meanwhile."""
HZ = 2.0
TRIAL_STEPS = 20


class NotTaken(UserError):
    """No snapshot was taken."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options that only make sense for a running trainer."""
    group = parser.add_argument_group("for a PID")
    group.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="the file to write (default: one in your data folder)",
    )
    group.add_argument("--force", action="store_true", help="replace the file if it exists")
    group.add_argument(
        "--history",
        type=whole_between(0, 10_000_000),
        metavar="N",
        help="no snapshot: record the stacks of the last N allocations from now on; 0 stops it",
    )
    group.add_argument(
        "--trial",
        action="store_true",
        help=f"with --history: only measure its overhead, {TRIAL_STEPS} steps without and "
        f"{TRIAL_STEPS} with it",
    )


def is_pid(target: str) -> bool:
    """Whether a target means a process: digits, and no file of that name."""
    return (
        target.isascii()
        and target.isdigit()
        and 0 < int(target) < 1 << 22
        and not Path(target).exists()
    )


def run_live(args: argparse.Namespace) -> int:
    """Run the verb on a trainer and return its exit code.

    0: taken (or history set); 3: it could not be, and why is said; 64: the options contradict each
    other.
    """
    if args.trial and not args.history:
        raise UsageError("--trial needs --history N, N above 0")
    if args.history is not None and args.output is not None:
        raise UsageError("--history takes no snapshot, so -o has nothing to write")
    if args.output is not None and args.output.exists() and not args.force:
        from ....wire.clean import clean

        raise NotTaken(
            f"{clean(str(args.output))} exists already.", next="--force, or another name"
        )
    import asyncio  # here: reading a file needs none of it

    with contextlib.ExitStack() as stack:
        answer = asyncio.run(_ask(args, _place(args), stack))
    print(json.dumps(answer, indent=2) if args.json else _text(answer, args.target))
    return ExitStatus.OK


def _place(args: argparse.Namespace) -> remote.Target:
    """Where the trainer is, and its pid. Raises BadTarget."""
    place = remote.one_place(args, args.target)
    if place.pid is None:
        raise remote.BadTarget(
            f"{args.target}: which process? Next: gpuscope snapshot {args.target}:PID"
        )
    return place


async def _ask(
    args: argparse.Namespace, place: remote.Target, stack: contextlib.ExitStack
) -> dict[str, Any]:
    import asyncio

    from ....config import load
    from ....store.pending_requests import SourceError
    from ....store.store import Store
    from ....tui.shell.launch import local_source

    pid = place.pid or 0
    if not place.is_remote and not Path(f"/proc/{pid}").exists() and sys.platform == "linux":
        raise NotTaken(f"no process has pid {pid} here.\nWhich trainers run: gpuscope ps")
    settings, _ = load()
    source: Source
    if place.is_remote:
        source = stack.enter_context(remote.Ways(args, redact=settings.redact)).source(place, HZ)
    else:
        source = await asyncio.to_thread(local_source, HZ, settings)
    store = Store()
    store.add_source(source.key, source.label)
    running = asyncio.create_task(
        source.run(
            lambda frame, at: store.apply(source.key, frame, at),
            lambda link: store.set_link(source.key, link),
        )
    )
    try:
        trainer = await _find(store, running, place)
        number = store.wire_id(source.key, trainer.id)
        assert number is not None
        try:
            return await _request(args, source, trainer, number, store)
        except SourceError as error:
            if error.code == "unsupported" and not trainer.definition.cuda:
                raise NotTaken(
                    f"{error.what}.\npid {pid} trains without CUDA, and only on CUDA has torch "
                    f"an allocator to look into.\nIts parameters, gradients and optimizer state: "
                    "gpuscope    (tab 2)"
                ) from None
            raise NotTaken(_refusal(error.code, error.what, pid)) from None
    finally:
        await source.close()
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


def _refusal(code: str, reason: str, pid: int) -> str:
    hint = {
        "busy": "One such request at a time: try again when it is done.",
        "timeout": f"Is it stopped, or stuck in C code? Its stacks: gpuscope    (S on pid {pid})",
        "gone": "Which trainers run now: gpuscope ps",
    }.get(code, "The training was not touched.")
    return f"{reason}.\n{hint}".replace("..\n", ".\n")


async def _find(store: Store, running: asyncio.Task[None], place: remote.Target) -> TrainerView:
    """The trainer with this pid, once the agent has seen it with its readings."""
    import asyncio

    pid, deadline = (
        place.pid or 0,
        time.monotonic() + (CONNECT_SECONDS if place.is_remote else FIND_SECONDS),
    )
    host: HostView | None = None
    while time.monotonic() < deadline:
        host = store.view().host
        if host is not None and host.sampled_seconds is not None:
            deadline = min(
                deadline,
                time.monotonic() + (FIND_THERE_SECONDS if place.is_remote else FIND_SECONDS),
            )
        trainers = [t for t in host.trainers if t.gone is None] if host is not None else []
        for trainer in trainers:
            if trainer.definition.pid == pid and trainer.sampled_seconds is not None:
                return trainer
        lost = host is not None and "trying again" in host.link.text and place.is_remote
        if running.done() or lost or not (place.is_remote or Path(f"/proc/{pid}").exists()):
            break
        await asyncio.sleep(0.1)
    raise NotTaken(_not_found_there(host, place) if place.is_remote else _not_found(host, pid))


def _not_found_there(host: HostView | None, place: remote.Target) -> str:
    if host is None or host.sampled_seconds is None:
        why = host.link.text.partition("; trying again")[0] if host is not None else ""
        return f"the host sent nothing{': ' + why if why else ''}"
    there = [f"  {t.definition.pid}    ({_rank(t)})" for t in host.trainers if t.gone is None][:16]
    return "\n".join(
        [
            f"there is no probe in pid {place.pid} on {host.name}. It was not touched.",
            "Trainers with a probe there:" if there else "No trainer there has a probe.",
            *there,
            f"Now: gpuscope attach {place.text} --inject    (asks first, and names the overhead)",
            "Next run, there: gpuscope run train.py",
        ]
    )


def _not_found(host: HostView | None, pid: int) -> str:
    if not Path(f"/proc/{pid}").exists():
        return f"pid {pid} has ended.\nWhich trainers run: gpuscope ps"
    leader = _leader(pid)
    if leader not in (0, pid):
        return f"{pid} is a thread of process {leader}.\nNext: gpuscope snapshot {leader}"
    if host is None or host.sampled_seconds is None:
        why = f": {host.link.text}" if host is not None and host.link.text else ""
        return f"the agent on this machine does not answer{why}.\nTry: gpuscope ps"
    from ....process.procfs import descends

    below = [
        t
        for t in host.trainers
        if t.gone is None and t.definition.pid != pid and descends(t.definition.pid, pid)
    ]
    if below:
        names = [f"  gpuscope snapshot {t.definition.pid}    ({_rank(t)})" for t in below[:16]]
        one = "a trainer" if len(below) == 1 else f"{len(below)} trainers"
        return "\n".join([f"pid {pid} is not a trainer, but it started {one}. Choose one:", *names])
    command = _command(pid)
    return (
        f"there is no probe in pid {pid}{f' ({command})' if command else ''}. It was not touched.\n"
        "Only a probe inside the process can ask torch's allocator.\n"
        f"Now: gpuscope attach {pid} --inject    (asks first, and names the overhead)\n"
        "Next run: gpuscope run train.py    or, in the script, import gpuscope; "
        "gpuscope.watch()"
    )


def _rank(trainer: TrainerView) -> str:
    from ....model.ranks import name_of

    return f"{name_of(trainer)}, {(trainer.definition.script or 'trainer').rsplit('/', 1)[-1]}"


def _leader(pid: int) -> int:
    """The process that a number of /proc belongs to: another one where it is a thread's.

    0: not told.
    """
    try:
        lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
        return int(next(line for line in lines if line.startswith("Tgid:")).split()[1])
    except (OSError, ValueError, StopIteration, IndexError):
        return 0


def _command(pid: int) -> str:
    from ....wire.clean import clean

    try:
        words = (
            Path(f"/proc/{pid}/cmdline").read_bytes()[:2000].decode("utf-8", "replace").split("\0")
        )
    except OSError:
        return ""
    return clean(" ".join(word for word in words[:3] if word))[:80]


async def _request(
    args: argparse.Namespace, source: Source, trainer: TrainerView, number: int, store: Store
) -> dict[str, Any]:
    from ....tui.shell.result_files import file_for
    from ....tui.trainer.trainer_actions import MAX_SNAPSHOT_BYTES, deadline_of

    if args.history is not None:
        wanted: dict[str, Scalar] = {"trainer": number, "entries": args.history}
        wanted["trial_steps"] = TRIAL_STEPS if args.trial else 0
        result = await source.request(
            "history", wanted, deadline_of("history", trainer, 0), _show_progress
        )
        _show_progress(None)
        return {"pid": trainer.definition.pid, **_known(result.value, _HISTORY_KEYS)}
    host = store.view().host
    assert host is not None
    try:
        path = args.output or file_for("snapshot", host.name, trainer)
        result = await source.request(
            "snapshot",
            {"trainer": number},
            deadline_of("snapshot", trainer, 0),
            _show_progress,
            Path(path),
            MAX_SNAPSHOT_BYTES,
        )
        size = os.stat(path).st_size
    except OSError as error:
        raise NotTaken(f"cannot write the file: {error.strerror}") from None
    finally:
        _show_progress(None)
    return {
        "pid": trainer.definition.pid,
        "path": str(path),
        **_known(result.value, _SNAPSHOT_KEYS),
        "bytes": size,
    }


_SNAPSHOT_KEYS = ("bytes", "entries", "snapshot_seconds", "pickle_seconds", "history")
_HISTORY_KEYS = (
    "enabled", "entries", "baseline_step_seconds", "step_seconds", "cost_percent",
    "cost_low_percent", "cost_high_percent", "steps",
)  # fmt: skip


def _known(value: Mapping[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    """Return the keys that are ours, null where the probe did not say.

    Strings and lists of a probe are not passed on.
    """
    return {
        key: found if isinstance(found := value.get(key), (int, float)) else None for key in keys
    }


def _show_progress(progress: Progress | None) -> None:
    """One line on standard error while it lasts, where that is a terminal."""
    from ....wire.clean import clean

    if not sys.stderr.isatty():
        return
    share = (
        f"{percent_text(progress.fraction)} "
        if progress is not None and progress.fraction is not None
        else ""
    )
    words = clean(progress.text)[:60] if progress is not None else ""
    print(f"\r{share}{words}\x1b[K", end="", file=sys.stderr, flush=True)


def _text(answer: Mapping[str, Any], target: str) -> str:
    if "path" not in answer:
        return _history_text(answer, target)
    from ....wire.clean import clean

    size, entries, path = answer["bytes"], answer["entries"], clean(answer["path"])
    lines = [f"{path}: {bytes_text(size)}"]
    if answer["snapshot_seconds"] is not None:
        lines[0] += f", the trainer paused {duration_text(answer['snapshot_seconds'])}"
    held = f"{entries:,} events of history" if entries else "no events"
    stacks = "with stacks" if answer["history"] else "no stacks, because history was off"
    lines.append(f"In it: every segment and block of the allocator, {held}; {stacks}")
    if not answer["history"]:
        lines.append(
            f"Stacks next time: gpuscope snapshot {target} --history 100000 --trial    shows "
            f"their overhead"
        )
    lines.append(
        f"Read it: gpuscope snapshot {clean(quote(answer['path']))}    (or pytorch.org/memory_viz)"
    )
    return "\n".join(lines)


def _history_text(answer: Mapping[str, Any], target: str) -> str:
    pid, cost = answer["pid"], answer["cost_percent"]
    lines = []
    if cost is not None:
        low, high = answer["cost_low_percent"], answer["cost_high_percent"]
        between = f" ({low:+.1f} to {high:+.1f})" if low is not None and high is not None else ""
        lines.append(
            f"History costs {cost:+.1f} %{between} per step in pid {pid}, measured over "
            f"{answer['steps']} steps."
        )
    if answer["enabled"]:
        lines.append(
            f"On in pid {pid}: the last {answer['entries']:,} allocations are recorded with "
            f"their stacks."
        )
        lines.append(
            f"Next: gpuscope snapshot {target}    and to stop: gpuscope snapshot {target} "
            "--history 0"
        )
    else:
        lines.append(f"Off in pid {pid}.")
        if cost is not None:
            lines.append(f"Turn it on: gpuscope snapshot {target} --history 100000")
    return "\n".join(lines)
