"""Open the TUI on processes and hosts: ``gpuscope attach [TARGET…]``.

Without a target, list what can be attached to.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ....errors import UsageError, UserError
from ....exit_status import ExitStatus
from ....text.units import duration_text
from ... import output, remote
from ...args import add_theme, driver_timeout, flag, option
from ...remote import Target
from . import inject as attach_inject

if TYPE_CHECKING:
    from ....tui.background.sources import Hosts

TARGETS = (
    "one or several of PID, [USER@]HOST, [USER@]HOST:PID, slurm:JOB[@LOGIN-NODE] and "
    "k8s:NAMESPACE/POD[/CONTAINER]. Default: list what runs here, and how to attach to each"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=TARGETS)
    option(parser, "--hosts FILE", "one target per line (repeatable)", action="append", default=[])
    option(parser, "-l --selector app=NAME", "every running pod with this Kubernetes label")
    option(parser, "-n --namespace NAME", "the pods' namespace (default: kubectl's)", default="")
    option(parser, "-c --container NAME", "the container in each pod", default="")
    flag(parser, "--json", "without a target, or with --inject: a JSON document instead of text")
    option(
        parser,
        "--timeout SECONDS",
        "without a target: the longest wait for the driver (default 5)",
        driver_timeout,
        default=5.0,
    )
    option(
        parser,
        "--inject METHOD",
        "attach a probe to each PID that has none, by auto (default), pep768 or ptrace. Asks "
        "first, and shows the overhead",
        nargs="?",
        const="auto",
        choices=("auto", "pep768", "ptrace"),
    )
    flag(
        parser,
        "--this-pid",
        "with --inject or --detach: exactly this process, even if it is a launcher (torchrun, "
        "accelerate), instead of the ranks that it started",
    )
    flag(parser, "--detach", "remove an injected probe from each PID. Asks first")
    flag(parser, "--yes", "with --inject or --detach: do not ask")
    flag(parser, "--readonly", "read only: no signal, attach or snapshot")
    add_theme(parser)
    # The error belongs to gpuscope itself, whose help describes the target.
    flag(parser, "--debug", argparse.SUPPRESS)
    remote.add_arguments(parser, explained=True)


def run(args: argparse.Namespace) -> int:
    if not (args.targets or args.hosts or args.selector or args.via):
        from . import listing as attach_listing

        return attach_listing.run(args) if not (args.inject or args.detach) else _which(args)
    if args.json and not (args.inject or args.detach):
        raise UsageError(
            "--json goes with --inject, or without a target",
            next="gpuscope ps --json    has what the screen shows of the trainers",
        )
    places = _places(args)
    rows: list[dict[str, Any]] = []
    if args.inject or args.detach:
        code = _act(args, places, rows)
        if code != ExitStatus.OK or args.detach:
            return code
    if args.inject and args.json:
        return ExitStatus.OK
    return _watch(args, places, rows)


def _act(args: argparse.Namespace, places: list[Target], rows: list[dict[str, Any]]) -> int:
    """Attach to or detach from each process in turn, and stop at the first failure.

    ``rows`` collects the processes that have a probe now, and ``places`` the ranks in place of
    their launcher. With ``--json`` the rows are printed, also after a failure.
    """
    chosen = [one for one in places if one.pid is not None]
    if args.inject and args.detach:
        raise UsageError("--inject and --detach cannot be combined")
    if not chosen:
        return _which(args)
    code: int = ExitStatus.OK
    why_not = ""
    for number, target in enumerate(chosen):
        if args.detach:
            from . import detach as attach_detach

            code, why_not = attach_detach.out_of(args, target)
        else:
            done = attach_inject.into(args, target)
            code, why_not = done.code, done.why
            rows += done.rows
            # The process is a launcher, so its ranks are meant.
            if done.rows and target.pid not in (row["pid"] for row in done.rows):
                at = places.index(target)
                places[at : at + 1] = [replace(target, pid=row["pid"]) for row in done.rows]
        if code != ExitStatus.OK:
            print(f"gpuscope attach: {why_not}", file=sys.stderr)
            if len(chosen) > 1:
                left = ", ".join(str(one.pid) for one in chosen[number + 1 :]) or "none"
                print(
                    f"Done before: {number} of {len(chosen)}. Not tried: {left}.", file=sys.stderr
                )
            break
    if args.inject and args.json:
        problems = (
            [{"pid": target.pid, "host": target.host or None, "reason": why_not}] if why_not else []
        )
        print(output.dump({"attached": rows, "problems": problems, "exit_code": code}))
    return code


def _which(args: argparse.Namespace) -> int:
    option = "--detach" if args.detach else "--inject"
    print(
        f"gpuscope attach: {option}: which process? Next: gpuscope attach    (lists them)",
        file=sys.stderr,
    )
    return ExitStatus.USAGE


def _places(args: argparse.Namespace) -> list[Target]:
    """Return everything that is asked for.

    Raises :class:`BadTarget`, and :class:`UserError` for a process that does not exist.
    """
    from ....attach import clusters
    from ....attach.inject_refusal import CannotInject
    from ....attach.inject_target import process
    from ....attach.targets import MAX_TARGETS, prefix_words, too_many

    found: list[Target] = []
    if args.targets or args.hosts or not args.selector:
        found += remote.places(args, args.targets, args.hosts)
    if args.selector:
        via = prefix_words(args.via) if args.via else ()
        found += clusters.pods_of(args.selector, args.namespace, args.container, via)
    if len({one.where for one in found}) > MAX_TARGETS:
        raise too_many(f"{len({one.where for one in found})} hosts")
    for pid in [one.pid for one in found if not one.is_remote and one.pid is not None]:
        try:
            process(pid)
        except CannotInject as error:
            raise UserError(error.why, next=error.next) from None
    return found


def _watch(
    args: argparse.Namespace, places: Sequence[Target], rows: Sequence[dict[str, Any]] = ()
) -> int:
    """The TUI on these places: one source each, whatever number of processes is meant there."""
    from ....tui.app.launch import run_app, why_unusable
    from ....tui.hosts.ssh_dialog import Prompts

    reason = why_unusable(sys.stdin, sys.stdout, sys.stderr)
    if reason:
        if args.inject:
            print("\n".join(_attached(rows)))
            return ExitStatus.OK
        print(
            f"gpuscope attach: needs a terminal: {reason}. Next: {_one_shot(args, places[0])}",
            file=sys.stderr,
        )
        return ExitStatus.UNCHECKED
    prompts = Prompts()
    ways: list[remote.Ways] = []

    def make(hz: float) -> Hosts:
        hosts, used = hosts_of(args, places, hz, prompts)
        ways.append(used)
        return hosts

    try:
        several = len({one.where for one in places}) > 1
        one_process = any(one.pid is not None for one in places)
        return run_app(
            start_screen="fleet" if several and not one_process else "overview",
            make_hosts=make,
            debug=args.debug,
            prompts=prompts,
            readonly=args.readonly,
            theme=args.theme,
            remote_options=args,
        )
    finally:
        for one in ways:
            one.close()


def _one_shot(args: argparse.Namespace, place: Target) -> str:
    """Return the command that describes a place without a screen."""
    words = ["gpuscope", "ps" if place.pid is not None else "devices"]
    words += ["--via", args.via] if args.via else []
    words += ["--ssh-command", args.ssh_command] if args.ssh_command != "ssh" else []
    if place.kind not in ("local", "prefix"):
        words.append(place.text.rpartition(":")[0] if place.pid is not None else place.text)
    return f"{shlex.join(words)} --json"


def _attached(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return lines that say what was done, if no screen opens on it."""
    from ....attach.inject_payload import IDLE_SECONDS

    lines = []
    for row in rows:
        where = f" on {row['host']}" if row["host"] else ""
        rank = f"rank {row['rank']}, " if row["rank"] is not None else ""
        if row["method"] == "probe":
            lines.append(f"{rank}pid {row['pid']}{where}: it already has a probe")
            continue
        stop_seconds = row["stop_seconds"]
        stop = (
            f", main thread paused {duration_text(stop_seconds)}"
            if stop_seconds is not None
            else ""
        )
        ready = (
            f", ready in {duration_text(row['ready_seconds'])}"
            if row["ready_seconds"] is not None
            else ""
        )
        lines.append(
            f"{rank}pid {row['pid']}{where}: the probe is attached ({row['method']}){stop}{ready}"
        )
    if any(row["method"] != "probe" for row in rows):
        lines.append(
            "gpuscope ps shows it. Without a viewer the probe removes itself after "
            f"{IDLE_SECONDS:.0f} s; that of gpuscope run or enable stays."
        )
    return lines


def hosts_of(
    args: argparse.Namespace, places: Sequence[Target], hz: float, prompts: Any
) -> tuple[Hosts, remote.Ways]:
    """Return the sources of a session.

    This may build the agent's zip file, so it must not run in the event loop. If a process cannot
    be seen (it has no probe and uses no GPU, or the users of the GPUs are hidden), the list of what
    each process needs is opened.
    """
    from ....attach import bootstrap
    from ....config import load
    from ....store.view import LOCAL
    from ....tui.app.launch import local_source
    from ....tui.background.sources import Hosts
    from ....tui.shell.session import USUAL_HZ

    settings, _ = load()
    ways = remote.Ways(args, prompts.answer, settings.redact)
    sources: dict[str, Any] = {}
    wanted: list[tuple[str, int]] = []
    bootstrap.prepare()
    hz = min(hz, USUAL_HZ) if len({place.where for place in places}) > 1 else hz
    for place in places:
        key = place.where or LOCAL
        if key not in sources:
            sources[key] = ways.source(place, hz) if place.is_remote else local_source(hz, settings)
        if place.pid is not None:
            wanted.append((sources[key].key, place.pid))

    def unseen(pid: int) -> None:
        if prompts.app is not None:
            prompts.app.open("attach", pid)

    return Hosts(list(sources.values()), wanted, unseen), ways
