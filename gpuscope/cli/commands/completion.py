"""Print the script with which a shell completes gpuscope's commands: ``gpuscope completion``."""

from __future__ import annotations

import argparse
import sys

from ...exit_status import ExitStatus

SHELLS = ("bash", "zsh", "fish")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Print a script that completes verbs, options, their values and files. Save it where the "
        "shell finds it, and print it again after an upgrade. The script does not start Python."
    )
    parser.add_argument("shell", choices=SHELLS, help="the shell to complete in")


def run(args: argparse.Namespace) -> int:
    from ..command_tree import commands
    from ..completion_scripts import SHELLS as SCRIPTS

    sys.stdout.write(SCRIPTS[args.shell](list(commands())))
    return ExitStatus.OK
