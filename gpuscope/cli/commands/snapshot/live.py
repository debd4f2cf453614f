"""Take an allocator snapshot of a trainer: ``gpuscope snapshot PID``.

The trainer may run here or on another host; an agent and a probe take the snapshot.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from ....errors import UsageError, UserError
from ....exit_status import ExitStatus
from ....text.units import bytes_text, duration_text, percent_text
from ... import output, remote
from ...args import flag, option, whole_between
from ...progress_line import ProgressLine

if TYPE_CHECKING:
    from ....store.view import TrainerView
    from ....wire.frames import Progress, Scalar
    from ...watched_host import WatchedHost

TRIAL_STEPS = 20


class NotTaken(UserError):
    """No snapshot was taken."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options that only make sense for a running trainer."""
    group = parser.add_argument_group("for a PID")
    option(group, "-o --output FILE", "the file to write (default: one in your data folder)", Path)
    flag(group, "--force", "replace the file if it exists")
    option(
        group,
        "--history N",
        "instead of a snapshot: let torch record the last N allocations with their stacks "
        "from now on; 0 stops it",
        whole_between(0, 10_000_000),
    )
    flag(
        group,
        "--trial",
        f"with --history: only measure its overhead, over {TRIAL_STEPS} steps without it and "
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
    """Run the verb on a trainer."""
    if args.trial and not args.history:
        raise UsageError("--trial needs --history N, N above 0")
    if args.history is not None and args.output is not None:
        raise UsageError("--history takes no snapshot, so -o has nothing to write")
    if args.output is not None and args.output.exists() and not args.force:
        from ....wire.clean import clean

        raise NotTaken(
            f"{clean(str(args.output))} exists already.", next="--force, or another name"
        )
    import asyncio  # imported here, because reading a snapshot file does not need it

    from ... import one_trainer

    place = remote.one_place(args, args.target)
    if place.pid is None:
        raise remote.BadTarget(
            f"{args.target}: which process? Next: gpuscope snapshot {args.target}:PID"
        )
    one_trainer.check_exists(place, NotTaken)
    with contextlib.ExitStack() as stack:
        answer = asyncio.run(_ask(args, place, stack))
    print(
        output.dump(answer)
        if args.json
        else _text(answer, remote.words_for(args, place, place.pid))
    )
    return ExitStatus.OK


async def _ask(
    args: argparse.Namespace, place: remote.Target, stack: contextlib.ExitStack
) -> dict[str, Any]:
    from ....store.pending_requests import SourceError
    from ... import one_trainer
    from ...trainers_of import trainers_of

    async with one_trainer.host_at(args, place, stack) as there:
        trainers = await trainers_of(there, place, "snapshot", error=NotTaken)
        trainer = next((one for one in trainers if one.definition.pid == place.pid), None)
        if trainer is None:  # it has only started some
            raise NotTaken(await one_trainer.not_found(there, place, "snapshot"))
        try:
            return await _request(args, there, trainer)
        except SourceError as error:
            if error.code == "unsupported" and not trainer.definition.cuda:
                itself = remote.words_for(args, place, trainer.definition.pid)
                see = f"gpuscope attach {itself}" if place.is_remote else "gpuscope"
                raise NotTaken(
                    f"{error.what}.\npid {place.pid} trains without CUDA, and only torch's CUDA "
                    "allocator can be inspected.\nIts parameters, gradients and optimizer state: "
                    f"{see}    (tab 2)"
                ) from None
            raise NotTaken(one_trainer.refusal(error.code, error.what, place.pid or 0)) from None


async def _request(
    args: argparse.Namespace, there: WatchedHost, trainer: TrainerView
) -> dict[str, Any]:
    from ....tui.shared.trainer_actions import MAX_SNAPSHOT_BYTES, deadline_of
    from ....tui.shell.result_files import file_for
    from ....wire.clean import clean

    source, number = there.source, there.reach(trainer).number
    line = ProgressLine(sys.stderr)

    def show(progress: Progress) -> None:
        share = "" if progress.fraction is None else f"{percent_text(progress.fraction)} "
        line.draw(f"{share}{clean(progress.text)[:60]}")

    if args.history is not None:
        wanted: dict[str, Scalar] = {"trainer": number, "entries": args.history}
        wanted["trial_steps"] = TRIAL_STEPS if args.trial else 0
        result = await source.request("history", wanted, deadline_of("history", trainer, 0), show)
        line.clear()
        return {"pid": trainer.definition.pid, **_known_numbers(result.value, _HISTORY_KEYS)}
    try:
        path = args.output or file_for("snapshot", there.host.name, trainer)
        result = await source.request(
            "snapshot",
            {"trainer": number},
            deadline_of("snapshot", trainer, 0),
            show,
            Path(path),
            MAX_SNAPSHOT_BYTES,
        )
        size = os.stat(path).st_size
    except OSError as error:
        raise NotTaken(f"cannot write the file: {error.strerror}") from None
    finally:
        line.clear()
    return {
        "pid": trainer.definition.pid,
        "path": str(path),
        **_known_numbers(result.value, _SNAPSHOT_KEYS),
        "bytes": size,
    }


_SNAPSHOT_KEYS = ("bytes", "entries", "snapshot_seconds", "pickle_seconds", "history")
_HISTORY_KEYS = (
    "enabled", "entries", "baseline_step_seconds", "step_seconds", "cost_percent",
    "cost_low_percent", "cost_high_percent", "steps",
)  # fmt: skip


def _known_numbers(value: Mapping[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    """Return the keys that gpuscope defines, null where the probe did not send one.

    Strings and lists from a probe are not passed on.
    """
    return {
        key: found if isinstance(found := value.get(key), (int, float)) else None for key in keys
    }


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
