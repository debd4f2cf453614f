"""Under the traceback of a trainer that ``gpuscope run`` started: what gpuscope's doctor says of it.

The trainer is not supervised: no parent stands between it and the terminal, so pid, signals, exit code and both outputs
stay its own. Instead, when Python ends with an exception that it has shown, a child of gpuscope's own Python gets the
traceback on its standard input and writes what it finds to the same standard error. A trainer that ends well, ends by a
signal or catches its error pays nothing and gets nothing; a black box tells of a signal.

Read at the end of a process of any Python from 3.8 on: standard library only, imported when it is needed."""

from __future__ import annotations

import os
import sys
from typing import Any, List

VARIABLE = "GPUSCOPE_DOCTOR"
"""Set by ``gpuscope run``: JSON of [device, inode of its standard error, gpuscope's Python, the program to run]."""
MAX_CHARS = 200_000
WAIT_SECONDS = 5.0
"""The doctor takes half a second; a host that hangs must not keep the trainer's GPU memory."""


def show(error: BaseException) -> None:
    """Print the diagnosis of an exception whose traceback stands on standard error. Never raises."""
    child: Any = None
    try:
        if _interactive():
            return
        argv = _command()
        held = _only_one() if argv else None
        if not argv or held is False:
            return
        import subprocess
        import traceback

        trace = error.__traceback__
        text = "".join(traceback.format_exception(type(error), error, trace))[-MAX_CHARS:]
        sys.stderr.flush()
        child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=2, stderr=subprocess.DEVNULL)
        child.communicate(text.encode("utf-8", "replace"), timeout=WAIT_SECONDS)
    except BaseException:  # also Ctrl-C: the trainer is ending, and with its own code
        if child is not None and child.poll() is None:
            child.kill()
            child.wait()


def _command() -> List[str]:
    """The child's argv; [] where nobody asked, or where standard error is not the one that ``run`` had: a program that
    the trainer starts and whose output it reads must find there what it wrote."""
    import json

    from . import rendezvous

    device, inode, python, program = json.loads(os.environ.get(VARIABLE, "[0, 0, 0, 0]"))
    here = os.fstat(2)
    if not isinstance(python, str) or (here.st_dev, here.st_ino) != (device, inode):
        return []
    return [python, "-I", program, str(os.getpid()), str(rendezvous.start_ticks())]


def _only_one() -> Any:
    """Of the ranks that one launcher started here only the first to fail is diagnosed: the others fail because of it.
    What is held until this process ends; None for a process by itself; False where another rank was first."""
    if "LOCAL_RANK" not in os.environ:
        return None
    import socket

    name = f"\0gpuscope-doctor-{os.geteuid()}-{os.getppid()}-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    lock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        lock.bind(name)
    except OSError:
        lock.close()
        return False
    return lock


def _interactive() -> bool:
    """At a prompt and in a notebook errors are shown, and nothing ends of them."""
    return bool(sys.flags.interactive) or hasattr(sys, "ps1") or "ipykernel" in sys.modules
