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
        "gpuscope run [OPTIONS] SCRIPT [ARGS ...]\n"
        "       gpuscope run [OPTIONS] -m MODULE [ARGS ...]\n"
        "       gpuscope run [OPTIONS] -- COMMAND [ARGS ...]"
    )
    parser.description = (
        "Start a trainer with gpuscope's probe in it: no code change, no root. The same process "
        "becomes the trainer, so exit code, signals and terminal are its own."
    )
    parser.add_argument(
        "script",
        metavar="SCRIPT",
        help="the training script. It runs under the Python of $VIRTUAL_ENV, else of "
        "$CONDA_PREFIX, else of PATH (or gpuscope's own, if only that has torch). A command after "
        "-- is run unchanged",
    )
    parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="ARGS", help="arguments of the script"
    )
    parser.add_argument("-m", metavar="MODULE", help="a module instead of a script")
    parser.add_argument(
        "--history",
        metavar="N",
        help="let torch record the last N CUDA allocations with their stacks (50000 at most): an "
        "out-of-memory error is then saved with the lines of code that hold the memory. Steps "
        "become slower; the TUI shows by how much",
    )
    parser.add_argument(
        "--track",
        action="store_true",
        help="log memory, input wait, step time and stalls every 10 s to the W&B, TensorBoard or "
        "MLflow run that the script has opened itself. GPUSCOPE_TRACK=1 does the same without "
        "gpuscope run",
    )
    parser.add_argument(
        "--on-call",
        nargs="?",
        const="",
        metavar="FOLDER",
        help="write what gpuscope doctor FOLDER needs to explain a crash or hang of this run: "
        "dumps of torch's flight recorder, torchrun's error files, stacks of Python's fault "
        "handler. The environment variables that this sets are printed; those that you have set "
        "stay. It costs next to nothing, and all ranks may share the folder. Written "
        "--on-call=FOLDER (default: gpuscope-on-call/ with Slurm's job id or the time). on_call = "
        "true in config.toml does this for every run; --no-on-call switches it off for one",
    )
    parser.add_argument("--no-on-call", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument(
        "--no-doctor",
        action="store_true",
        help="print no diagnosis after a failed trainer's traceback",
    )
    parser.epilog = (
        "If the trainer ends with a traceback, gpuscope prints a diagnosis below it, on standard "
        "error; of several ranks, only for the first that fails. After a kill, or an error that "
        "the script catches, there is none: gpuscope doctor then says how it ended. The probe only "
        "reads. GPUSCOPE=0 starts the trainer without it. GPUSCOPE_DEBUG=1 prints why the probe "
        "does not work."
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
