"""The process that trains: ``python -m gpuscope.lab.worker --config JSON``.

It runs in any Python that has torch, and writes the records of ``metrics.py`` to stdout; all other
output goes to stderr. It ends cleanly on SIGTERM and SIGINT, and with ``--stop-on-eof`` also when
the process at the other end of its stdin has ended. A configuration that trains in several
processes is handed to torchrun's agent (``elastic.py``), unless a launcher has already given this
process a rank.

Exit code 0: all steps were done, or it was stopped on request; 2: an ``error`` record says what
happened; 64: the configuration is not valid.
"""

from __future__ import annotations

import argparse
import atexit
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, BinaryIO, NoReturn

from . import machine, metrics
from .advice import explain, is_explained
from .config import ConfigError, LabConfig
from .ledger_keeper import KEEP, Keeper
from .run_statistics import Tally

if TYPE_CHECKING:
    from .run import Run

GRACE_SECONDS = 3.0
"""How long a worker whose parent has ended may take to finish its micro-batch."""
UNSEEN_SECONDS = 2.0
"""How long a worker that was told to end keeps its probe. The parent kills it soon, and a black box
that stays behind would look as if something had gone wrong.
"""


def take_stdout() -> BinaryIO:
    """Return the stream for records.

    From now on all other output to stdout goes to stderr, so that a record stays one line.
    """
    sys.stdout.flush()
    stream = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return stream


def end_with_parent(end: Callable[[], None], keep: Callable[[], None]) -> None:
    """End this process when its stdin ends, which happens when its parent ends.

    It runs in a thread. ``end`` asks the training to end; ``keep`` writes down what it has
    measured, where a step takes longer than there is time for.
    """
    try:
        while os.read(0, 4096):
            pass
    except OSError:
        pass
    end()
    time.sleep(GRACE_SECONDS)
    leave_unseen()
    keep()
    os._exit(0)


def leave_unseen() -> None:
    """Remove the probe, if there is one."""
    from ..probe import detach

    detach()


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m gpuscope.lab.worker", description="The lab's trainer."
    )
    parser.add_argument(
        "--config",
        default="{}",
        metavar="JSON",
        help="settings by name; the others have their defaults",
    )
    parser.add_argument("--stop-on-eof", action="store_true", help="stop when stdin ends")
    parser.add_argument(
        KEEP, action="store_true", help="then also write the run down in the ledger"
    )
    arguments = parser.parse_args(argv)
    stream = take_stdout()
    try:
        config = LabConfig.from_json(arguments.config)
    except ConfigError as error:
        stream.write(
            metrics.encode(
                metrics.RunFailure("The lab cannot run this.", str(error), "gpuscope lab --help")
            )
        )
        stream.close()
        return 64
    machine.prepare(config)  # before torch is imported
    if config.processes and "RANK" not in os.environ:
        from . import elastic

        return elastic.main(config, stream, arguments.stop_on_eof, Keeper(arguments.keep))
    return work(config, stream, arguments.stop_on_eof, Keeper(arguments.keep))


def work(config: LabConfig, stream: BinaryIO, stop_on_eof: bool, keeper: Keeper) -> int:
    """Train in this process and return the exit code.

    While torch is still being imported it ends at once when told to.
    """
    stop = threading.Event()

    def report(record: metrics.Record) -> None:
        try:
            stream.write(metrics.encode(record))
            stream.flush()
        except BrokenPipeError:
            stop.set()

    run: Run | None = None

    def keep() -> None:
        if run is not None:
            keeper.keep(run.tally.document())

    def end(*_: object) -> None:
        if not stop.is_set():
            late = threading.Timer(UNSEEN_SECONDS, leave_unseen)
            late.daemon = True
            late.start()
        stop.set()
        if importing:  # there is nothing to finish
            report(metrics.RunEnded(Tally(config).document()))
            os._exit(0)

    importing = True
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    if stop_on_eof:
        threading.Thread(
            target=end_with_parent, args=(end, keep), name="lab-parent", daemon=True
        ).start()

    from .run import Run

    importing = False
    run = Run(config, report, stop)
    code = _train(run, config, report, keeper)
    if run.world is not None and run.world.backend:
        from . import parallel

        parallel.leave(run.world, code)
    return code


def _train(
    run: Run, config: LabConfig, report: Callable[[metrics.Record], None], keeper: Keeper
) -> int:
    """Train, and return the exit code after the last record."""
    try:
        run.train()
    except Exception as error:
        failure = explain(error, config, run.tally, run.batch)
        if not is_explained(error):
            traceback.print_exc()
        document = run.tally.document(failure)
        if not keeper.keep(document):
            report(replace(failure, summary=document))
        return 2
    if run.world is None or run.world.rank == 0:
        document = run.tally.document()
        if not keeper.keep(document):
            report(metrics.RunEnded(document))
    return 0


def leave(code: int) -> NoReturn:
    """End this process without taking torch down module by module.

    That alone takes most of a second, and the next run would wait for it. Functions that are
    registered with atexit still run.
    """
    sys.stderr.flush()
    atexit._run_exitfuncs()
    os._exit(code)


if __name__ == "__main__":
    leave(main())
