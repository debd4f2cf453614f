"""Run the process of one rank, as torchrun's agent starts it.

The command is ``python -m gpuscope.lab.rank FOLDER AGENT CONFIG``.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

from ..process.parent import die_with
from .elastic import GRACE_SECONDS


def main(folder: str, agent: int, config: str) -> int:
    """Run a rank.

    Its output goes into its pipes, it dies with the agent, and it always ends when it is told to.
    """
    rank = os.environ["LOCAL_RANK"]
    for number, name in ((1, "out"), (2, "err")):
        pipe = os.open(os.path.join(folder, f"{rank}.{name}"), os.O_WRONLY)
        os.dup2(pipe, number)
        os.close(pipe)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    die_with(agent)
    _end_after_signal()
    from . import worker  # by now this output goes into the pipes

    return int(worker.main(["--config", config]))


def _end_after_signal() -> None:
    """End the process ``GRACE_SECONDS`` after SIGTERM or SIGINT in any case.

    The main thread may be waiting inside a collective for a rank that has ended, where no handler
    in Python can run.
    """
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)

    def wait() -> None:
        while True:
            signalled = os.read(read, 1)
            if signalled and signalled[0] in (signal.SIGTERM, signal.SIGINT):
                time.sleep(GRACE_SECONDS)
                os._exit(128 + signalled[0])

    threading.Thread(target=wait, name="lab-end", daemon=True).start()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
