"""Install the probe permanently in a Python environment: ``gpuscope enable``.

It consists of one ``.pth`` file and one zip file.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from typing import Any

from ...attach import enable
from ...attach.enable import HookState
from ...attach.enable_target import CannotEnable, EnableTarget, find
from ...errors import UsageError
from ...exit_status import ExitStatus
from ...text.units import bytes_text
from ...wire.clean import clean
from ..args import flag, option
from ..output import dump

PRICE = (
    "--allow-attach: any process of the same user may attach to such a training after its first "
    "step, and read and change its memory, even if the system forbids it (Yama's ptrace_scope)."
)
_STATES = {
    enable.INTACT: (ExitStatus.OK, "enabled"),
    enable.OUTDATED: (
        ExitStatus.WARNINGS,
        "enabled by another version of gpuscope: update it with  gpuscope enable",
    ),
    enable.ABSENT: (ExitStatus.WARNINGS, "not enabled"),
    enable.HALF: (ExitStatus.PROBLEMS, "incomplete, without effect"),
    enable.CHANGED: (ExitStatus.PROBLEMS, "changed since"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Install the probe into a Python environment: two files in its site-packages, without a "
        "package or a dependency. gpuscope then sees every PyTorch training that is started there, "
        "from its first optimizer step on; other programs are not affected. Undo it with: gpuscope "
        "disable."
    )
    parser.epilog = (
        "The environment is that of $VIRTUAL_ENV, else of $CONDA_PREFIX, else of python3 in PATH. "
        "GPUSCOPE=0 and python -S start a program without the probe; python -E does not, and "
        "python -I only with --user. GPUSCOPE_DEBUG=1 prints on stderr why the probe does not work."
    )
    add_target(parser)
    flag(parser, "--allow-attach", PRICE.partition(": ")[2].replace("such ", ""))
    flag(parser, "--dry-run", "show what would be written, and write nothing")
    flag(parser, "--status", "show whether the environment is enabled")
    flag(parser, "--json", "with --status: a JSON document instead of text")
    flag(
        parser,
        "--break-system-packages",
        "do it even if the environment belongs to the system's package manager, as with pip",
    )


def add_target(parser: argparse.ArgumentParser) -> None:
    """Which environment: for both verbs."""
    option(parser, "--python PATH", "the environment: its directory or its Python")
    flag(parser, "--user", "use your own site-packages (~/.local) instead of the environment's")


def run(args: argparse.Namespace) -> int:
    if args.json and not args.status:
        raise UsageError("--json goes with --status", next="gpuscope enable --status --json")
    try:
        target = find(args.python, os.environ)
        if args.status:
            return _status(target, args.user, args.json)
        plan = enable.plan(
            target,
            args.user,
            args.allow_attach,
            args.break_system_packages,
            args.python is not None,
        )
        where = describe(target)
        if plan.nothing_to_do:
            print(f"Already enabled: {where}")
            _print_files(plan.before)
            return ExitStatus.OK
        if args.dry_run:
            verb = "replaced" if plan.before.state == enable.OUTDATED else "written"
            print(
                f"Dry run: nothing was written. In {where} these files would be {verb}:\n  "
                f"{plan.before.zip}\n"
                f"  {plan.before.pth}"
            )
            print(PRICE if args.allow_attach else "No other file is touched.")
            return ExitStatus.OK
        found = enable.apply(plan)
        if found.state != enable.INTACT:
            raise CannotEnable(
                f"{found.folder} does not contain what was written: {found.reason or found.state}. "
                "Try again"
            )
    except CannotEnable as error:
        if args.status:
            error.exit_status = ExitStatus.UNCHECKED
        raise
    except OSError as error:
        print(f"gpuscope enable: {failed(error)}", file=sys.stderr)
        return ExitStatus.UNCHECKED if args.status else ExitStatus.PROBLEMS
    print(f"{'Renewed' if plan.before.state == enable.OUTDATED else 'Enabled'}: {where}")
    _print_files(found)
    print(_next(target, args))
    return ExitStatus.OK


def describe(target: EnableTarget) -> str:
    """The environment, its Python, and why this one."""
    own = ", gpuscope's own environment" if target.is_own else ""
    return clean(f"{target.prefix} (Python {target.version}, {target.why}{own})")


def failed(error: OSError) -> str:
    """Say in words what the system refused."""
    at = f"{error.filename}: " if error.filename else ""
    return clean(f"{at}{error.strerror or error}. For one training:  gpuscope run SCRIPT")


def _print_files(found: HookState) -> None:
    for path in (found.pth, found.zip):
        print(f"  {clean(path)}  {bytes_text(os.path.getsize(path))}")


def _next(target: EnableTarget, args: argparse.Namespace) -> str:
    words = f" --python {shlex.quote(args.python)}" if args.python else ""
    words += " --user" if args.user else ""
    lines = [
        "A PyTorch training started there from now on is seen from its first optimizer step:  "
        "gpuscope ps",
        f"Undo:  gpuscope disable{words}    Skip for one program:  GPUSCOPE=0 python train.py",
    ]
    if args.allow_attach:
        lines.insert(1, PRICE)
    if not target.torch:
        lines.insert(0, "No torch is installed yet: nothing happens until it is.")
    return "\n".join(lines)


def _status(target: EnableTarget, user: bool, as_json: bool) -> int:
    """Report what is enabled in the environment's site-packages.

    The user's site-packages are included where this Python reads them and no other folder was asked
    for.
    """
    folders = [enable.folder_of(target, user)]
    if not user and target.reads_user_site:
        folders.append(target.user_site)
    found = [enable.look(folder, target) for folder in folders]
    shown = [one for one in found if one.state != enable.ABSENT] or found[:1]
    code = max(_STATES[one.state][0] for one in shown)
    if as_json:
        print(dump({**_about(target), "places": [_place(one) for one in found], "exit_code": code}))
        return code
    print(describe(target))
    for one in shown:
        version = f" (gpuscope {one.enabled.version})" if one.enabled is not None else ""
        reason = f": {one.reason}" if one.reason else ""
        print(f"  {clean(one.folder)}: {_STATES[one.state][1]}{version}{reason}")
        if one.enabled is not None and one.enabled.allow_attach:
            print(f"  {PRICE}")
    return code


def _about(target: EnableTarget) -> dict[str, Any]:
    return {
        "python": clean(target.python),
        "python_version": target.version,
        "prefix": clean(target.prefix),
        "has_torch": target.torch,
    }


def _place(found: HookState) -> dict[str, Any]:
    enabled = found.enabled
    return {
        "folder": clean(found.folder),
        "state": found.state,
        "reason": clean(found.reason) or None,
        "version": None if enabled is None else enabled.version,
        "allow_attach": None if enabled is None else enabled.allow_attach,
    }
