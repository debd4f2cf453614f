"""``gpuscope disable``: take out of a Python environment what ``gpuscope enable`` put there."""

from __future__ import annotations

import argparse
import os
import sys

from ...attach import enable
from ...attach.enable_target import find
from ...exit_status import ExitStatus
from ...wire.clean import clean
from ..args import flag
from .enable import add_target, describe, failed


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Remove the probe from a Python environment: exactly the two files that `gpuscope enable` "
        "wrote. A file that was changed since then is reported and kept. Running trainings keep "
        "the probe until they end."
    )
    add_target(parser)
    flag(parser, "--dry-run", "show what would be removed, and remove nothing")


def run(args: argparse.Namespace) -> int:
    try:
        target = find(args.python, os.environ)
        found = enable.look(enable.folder_of(target, args.user, "disable"), target)
        where = describe(target)
        if found.state == enable.ABSENT:
            print(f"Nothing to do: it is not enabled in {where}")
            elsewhere = target.reads_user_site and not args.user
            if elsewhere and enable.look(target.user_site, target).state != enable.ABSENT:
                print("But it is enabled for your account:  gpuscope disable --user")
            return ExitStatus.OK
        if args.dry_run:
            print(
                f"Dry run: nothing was removed. From {where} it would remove:\n  "
                f"{clean(found.pth)}\n"
                f"  {clean(found.zip)}"
            )
            return ExitStatus.OK
        gone = enable.remove(found)
    except OSError as error:
        print(f"gpuscope disable: {failed(error)}", file=sys.stderr)
        return ExitStatus.PROBLEMS
    print(f"Disabled: {where}")
    for path in gone:
        print(f"  removed {clean(path)}")
    return ExitStatus.OK
