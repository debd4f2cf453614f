"""``gpuscope run``: gets its words raw, for all but the first belong to the trainer."""

from __future__ import annotations

import os
import sys
from typing import List

from ...errors import UserError
from ...exit_status import ExitStatus

HELP = """usage: gpuscope run [--history N] [--no-doctor] SCRIPT [ARGS...]
       gpuscope run -m MODULE [ARGS...]
       gpuscope run -- COMMAND [ARGS...]

Start a trainer with gpuscope's probe in it: no code change, no root. The same process becomes the trainer, so exit
code, signals and terminal are its own. SCRIPT and MODULE run under the Python of $VIRTUAL_ENV, $CONDA_PREFIX or PATH.

  gpuscope run train.py --epochs 3
  gpuscope run -- torchrun --nproc-per-node 2 train.py

--history N keeps the last N CUDA allocations with their stacks (50000 at most), for the record of an out-of-memory
error. It slows steps down: by how much is measured, and told to whoever looks.

A trainer that ends with a traceback gets a diagnosis below it, on standard error; its exit code stays its own.
Of several ranks the first to fail gets it. --no-doctor leaves the diagnosis out. One that is killed, or that catches
its own error, gets none: gpuscope doctor says afterwards what it died of.

The probe only reads. GPUSCOPE=0 leaves it out.  GPUSCOPE_DEBUG=1 shows on stderr what keeps it from working.
"""  # noqa: E501


def main(words: List[str]) -> int:
    """Become the trainer. Returns only when that fails: 64 with one line that says why."""
    if words and words[0] in ("-h", "--help"):
        sys.stdout.write(HELP)
        return 0
    from ...attach import run
    from ...wire.clean import clean
    from ..main import tell

    try:
        run.execute(*run.plan(words, os.environ))
    except UserError as error:
        return tell(error, "gpuscope run")
    except OSError as error:
        sys.stderr.write(
            f"gpuscope run: cannot start it: {clean(str(error))}\nSee: gpuscope run --help\n"
        )
    return ExitStatus.USAGE
