"""Print the doctor's diagnosis under the traceback of a trainer that ``gpuscope run`` started.

The trainer is not supervised: there is no parent between it and the terminal, so pid, signals, exit
code and both outputs stay its own. Instead, when Python ends with an exception that it has printed,
a child (gpuscope's own Python) gets the traceback on its standard input and writes its findings to
the same standard error. A trainer that ends well, ends by a signal or catches its error is not
affected and gets no diagnosis. A script that catches an error has dealt with it, and to see that it
exits with 1 nevertheless we would have to patch ``sys.exit``. ``gpuscope doctor`` can examine what
such trainers left behind.

This runs at the end of a process of any Python from 3.8 on. It uses only the standard library, and
imports modules only when it needs them.
"""

from __future__ import annotations

import os
import re
import sys
import time
from typing import Any, List, Optional

VARIABLE = "GPUSCOPE_DOCTOR"
"""Set by ``gpuscope run``: JSON of [device, inode of its standard error, gpuscope's Python, the
program to run].
"""
MAX_CHARS = 200_000
WAIT_SECONDS = 5.0
"""How long to wait for the doctor, which usually takes half a second. A doctor that hangs must not
keep the trainer's GPU memory. Only time in which it ran or slept counts, so it gets longer if other
programs use the cores, as when eight ranks fail at once.
"""
LONGEST_SECONDS, LOOK_SECONDS = 30.0, 0.25
MARK = "diagnosed-"
_STARTERS = {
    b"LOCAL_RANK",
    b"RANK",
    b"SLURM_PROCID",
    b"OMPI_COMM_WORLD_RANK",
    b"PMI_RANK",
    b"PMIX_RANK",
}
"""Variables by which a launcher tells a process that it is one of several."""
PATIENCE_SECONDS = 3.0
_MARK_NAME = re.compile(MARK + r"([1-9][0-9]{0,9})-([0-9]{1,19})-[0-9]{1,9}")
_FOLLOWS = re.compile(
    r"(closed|reset) by (remote )?peer|broken pipe|socket (was )?closed|ncclRemoteError"
    r"|communicator was aborted",
    re.I,
)
"""Messages of a rank that fails because its peer has failed."""


def _without_torch() -> str:
    """Say which Python ran a script that found no torch, and how to choose another."""
    return (
        f"\ngpuscope: {sys.executable} has no torch. gpuscope run takes the Python of "
        "$VIRTUAL_ENV, $CONDA_PREFIX or PATH.\n"
        "Next: activate the environment that has torch, or name its Python:  "
        f"gpuscope run -- /path/to/python {sys.argv[0] or 'SCRIPT'}\n"
    )


def show(error: BaseException) -> None:
    """Print the diagnosis of an exception whose traceback is on standard error.

    Never raises.
    """
    child: Any = None
    try:
        from .exit_reason import is_interactive

        if is_interactive():
            return
        argv = _command()
        if not argv:
            return
        import subprocess
        import traceback

        trace = error.__traceback__
        text = "".join(traceback.format_exception(type(error), error, trace))[-MAX_CHARS:]
        if not _is_first(text):
            return
        if isinstance(error, ImportError) and error.name == "torch":
            sys.stderr.write(_without_torch())
        sys.stderr.flush()
        child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=2, stderr=subprocess.DEVNULL)
        given: Optional[bytes] = text.encode("utf-8", "replace")
        began = time.monotonic()
        while True:
            try:
                child.communicate(given, timeout=LOOK_SECONDS)
                return
            except subprocess.TimeoutExpired:
                given, took = None, time.monotonic() - began
                if took > LONGEST_SECONDS or took - _without_core(child.pid) > WAIT_SECONDS:
                    raise
    except BaseException:  # also for Ctrl-C: the trainer is ending, with its own exit code
        if child is not None and child.poll() is None:
            child.kill()
            child.wait()


def _without_core(pid: int) -> float:
    """Return the seconds in which a process was ready to run and had no core.

    0 if the kernel does not tell.
    """
    try:
        with open(f"/proc/{pid}/schedstat", "rb") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def _command() -> List[str]:
    """Return the child's argv, or [] if there shall be no child.

    There is none if nobody asked for it, or if standard error is not the one that ``run`` had. If a
    trainer starts a program and reads its output, it must find only what that program wrote.
    """
    import json

    from . import rendezvous

    device, inode, python, program = json.loads(os.environ.get(VARIABLE, "[0, 0, 0, 0]"))
    here = os.fstat(2)
    if not isinstance(python, str) or (here.st_dev, here.st_ino) != (device, inode):
        return []
    return [python, "-I", program, str(os.getpid()), str(rendezvous.start_ticks())]


def _is_first(text: str) -> bool:
    """Tell whether this rank is the first to fail of those that one launcher started here.

    Only the first failure is diagnosed, because the others fail in consequence, at once or minutes
    later. The first rank leaves a marker file in our private directory, named by its launcher and
    the attempt; the next rank removes markers of launchers that have ended. True for a process
    without a launcher. The launcher itself fails last, and gets a diagnosis only if no rank had one
    because all were killed.
    """
    from . import rendezvous

    try:
        place = rendezvous.checked_directory()
    except rendezvous.RendezvousError:
        return True
    _clean(place)
    if "LOCAL_RANK" not in os.environ:
        own = f"{MARK}{os.getpid()}-{rendezvous.start_ticks()}-"
        return not any(name.startswith(own) for name in os.listdir(place))
    launcher = _launcher()
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if not attempt.isdigit():
        attempt = "0"
    path = os.path.join(place, f"{MARK}{launcher}-{rendezvous.start_ticks(launcher)}-{attempt[:9]}")
    if _FOLLOWS.search(text):
        # The rank that this message is about may still be printing its own reason.
        until = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < until and not os.path.lexists(path):
            time.sleep(0.02)
    try:
        os.close(
            os.open(
                path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
            )
        )
    except FileExistsError:
        return False
    return True


def _launcher() -> int:
    """Return the pid of the process that started this rank.

    A rank whose first environment did not contain its number has set the number itself: Lightning's
    first rank does so, and starts the others.
    """
    try:
        with open("/proc/self/environ", "rb") as file:
            names = {entry.partition(b"=")[0] for entry in file.read().split(b"\0")}
    except OSError:
        return os.getppid()
    return os.getppid() if names & _STARTERS else os.getpid()


def _clean(place: str) -> None:
    from . import records, rendezvous

    for name in os.listdir(place)[:4096]:
        match = _MARK_NAME.fullmatch(name)
        if match is not None and rendezvous.start_ticks(int(match.group(1))) != int(match.group(2)):
            records.remove(os.path.join(place, name))
