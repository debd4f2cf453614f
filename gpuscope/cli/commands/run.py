"""``gpuscope run``: gets its words raw, for all but the first belong to the trainer."""

from __future__ import annotations

import argparse
import os
import sys
from typing import List

from ...errors import UserError
from ...exit_status import ExitStatus


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what help, completion and manual page say; ``main`` reads the words itself."""
    parser.usage = (
        "gpuscope run [--on-call[=FOLDER]] [--history N] [--track] [--no-doctor] SCRIPT [ARGS...]\n"
        "       gpuscope run -m MODULE [ARGS...]\n"
        "       gpuscope run -- COMMAND [ARGS...]"
    )
    parser.description = (
        "Start a trainer with gpuscope's probe in it: no code change, no root. The same process "
        "becomes the trainer, so exit code, signals and terminal are its own."
    )
    parser.add_argument(
        "script",
        metavar="SCRIPT",
        help="runs under the Python of $VIRTUAL_ENV, $CONDA_PREFIX or PATH, or gpuscope's own "
        "where only that has torch; so do -m MODULE and python SCRIPT. A command after -- is run "
        "unchanged",
    )
    parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="ARGS", help="belong to the trainer"
    )
    parser.add_argument("-m", metavar="MODULE", help="a module instead of a script")
    parser.add_argument(
        "--history",
        metavar="N",
        help="keep the last N CUDA allocations with their stacks (50000 at most), for the record "
        "of an out-of-memory error. It slows steps down; the viewer shows by how much",
    )
    parser.add_argument(
        "--track",
        action="store_true",
        help="add memory, input share, step time and stalls every 10 s to the run that the "
        "trainer has open in W&B, TensorBoard or MLflow. It opens none. GPUSCOPE_TRACK=1 "
        "does the same without gpuscope run",
    )
    parser.add_argument(
        "--on-call",
        nargs="?",
        const="",
        metavar="FOLDER",
        help="set what gpuscope doctor FOLDER needs if this run dies, where you have not set it: "
        "torch's flight recorder and where it is written, torchrun's error files, Python's fault "
        "handler. It costs next to nothing. All is printed first. The folder is by default "
        "gpuscope-on-call/ and Slurm's job or the time; all ranks may share it. on_call = true in "
        "config.toml does the same for each run, and --no-on-call leaves it out once",
    )
    parser.add_argument("--no-on-call", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument(
        "--no-doctor",
        action="store_true",
        help="print no diagnosis after a failed trainer's traceback",
    )
    parser.epilog = (
        "After a traceback a diagnosis follows on standard error; the exit code is still the "
        "trainer's. Of several ranks, only the first to fail gets one. A trainer that is killed, "
        "or catches its own error, gets none: gpuscope doctor then says how it ended. The probe "
        "only reads. GPUSCOPE=0 leaves it out. GPUSCOPE_DEBUG=1 shows on stderr why it does not "
        "work."
    )


def main(words: List[str]) -> int:
    """Become the trainer. Returns only when that fails: 64 with one line that says why."""
    if words and words[0] in ("-h", "--help"):
        from ..main import parser

        parser("run").print_help()
        return ExitStatus.OK
    from ...attach import run
    from ...wire.clean import clean
    from ..main import tell

    try:
        run.execute(*run.plan(words, os.environ, _on_call()))
    except UserError as error:
        return tell(error, "gpuscope run")
    except OSError as error:
        sys.stderr.write(
            f"gpuscope run: cannot start it: {clean(str(error))}\nSee: gpuscope run --help\n"
        )
    return ExitStatus.USAGE


def _on_call() -> bool:
    """Tell whether the user's settings ask for ``--on-call``, and print what is wrong in them."""
    if sys.version_info < (3, 10):  # the settings are read where the viewer runs
        return False
    from ...config import load

    settings, problems = load()
    for problem in problems:
        sys.stderr.write(f"gpuscope: {problem}\n")
    return settings.on_call
