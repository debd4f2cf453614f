"""Send a signal to a process of this host, only if pid and start time agree.

``args``: ``pid``, ``start`` (clock ticks since boot) and ``signal`` (a name of :data:`SIGNALS`).
The pidfd is opened first and the start time is read afterwards. If the pid was given to another
process before, the start time differs; if it is given away later, the descriptor does not mean the
new process. Each attempt writes a line to the agent's log.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import time
from typing import Any, Mapping, Optional

from ..errors import UserError
from ..process.procfs import read, stat_of, status_values
from ..wire import frames
from . import audit

SIGNALS = ("TERM", "INT", "HUP", "QUIT", "KILL", "STOP", "CONT", "USR1", "USR2")
"""The signals that may be sent, the mildest first."""
_PIDFD_SEND_SIGNAL, _PIDFD_OPEN = 424, 434
"""System call numbers, which are the same on all architectures that use Linux's common table."""
_KERNEL_THREAD = 0x00200000
"""PF_KTHREAD of include/linux/sched.h, a bit of the ninth field of /proc/PID/stat."""
_CAP_KILL = 5


class CannotSignal(UserError):
    """The process got no signal.

    ``code`` is one of the wire's; the text says why and what else could be done.
    """

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason, code=code)


def answer(request: frames.Request) -> Any:
    pid, start, name = (request.args.get(key) for key in ("pid", "start", "signal"))
    began = time.time()
    try:
        send(request.args)
    except CannotSignal as error:
        _audit(pid, start, name, began, f"{error.code}: {error.what}")
        return frames.Error(request.id, error.code, error.what)
    _audit(pid, start, name, began, "sent")
    return frames.Result(request.id, {"pid": pid, "signal": name})


def send(args: Mapping[str, Any]) -> None:
    """Send the signal. Raises :class:`CannotSignal`; then no process was signalled."""
    pid, start, name = (args.get(key) for key in ("pid", "start", "signal"))
    if not audit.is_number(pid) or not audit.is_number(start):
        raise CannotSignal(
            "refused", "signal needs args.pid and args.start: a process and its start time"
        )
    if name not in SIGNALS:
        raise CannotSignal("refused", f"signal needs args.signal: one of {', '.join(SIGNALS)}")
    assert isinstance(pid, int)
    assert isinstance(start, int)
    if pid == 1:
        raise CannotSignal(
            "refused", "pid 1 is the system's first process: everything here depends on it"
        )
    if pid in (os.getpid(), os.getppid()):
        raise CannotSignal("refused", f"pid {pid} is gpuscope itself: press q to quit")
    descriptor = _open(pid)
    try:
        _check(pid, start)
        _send(descriptor, pid, int(getattr(signal, f"SIG{name}")))
    finally:
        os.close(descriptor)


def _check(pid: int, start: int) -> None:
    """Check that it is still the process that was meant, and that it may be signalled."""
    try:
        stat = stat_of(pid)
        status = read(f"/proc/{pid}/status")
        # Real and saved user: the kernel compares the sender's real and effective user with these.
        theirs = status_values(status, b"Uid")
    except PermissionError:
        raise CannotSignal(
            "refused", f"pid {pid} belongs to another user, and /proc hides it (hidepid)"
        ) from None
    except (OSError, ValueError, IndexError):
        raise CannotSignal("gone", f"pid {pid} has ended") from None
    if stat.start_ticks != start:
        raise CannotSignal(
            "gone",
            f"pid {pid} has ended and now belongs to another process, which was not touched",
        )
    if stat.flags & _KERNEL_THREAD or pid == 2:
        raise CannotSignal("refused", f"pid {pid} is a kernel thread: it takes no signals")
    if stat.has_ended:
        raise CannotSignal(
            "gone", f"pid {pid} has ended; its parent (pid {stat.ppid}) has not reaped it yet"
        )
    ours = {os.getuid(), os.geteuid()}
    if not ours & {theirs[0], theirs[2]} and not _privileged():
        raise CannotSignal(
            "refused",
            f"pid {pid} belongs to another user, and this needs root (or CAP_KILL). Next: ask its "
            "owner",
        )


def _privileged() -> bool:
    """Whether this process may signal processes of all users (in its own user namespace)."""
    try:
        status = read("/proc/self/status")
        at = status.rfind(b"\nCapEff:")
        return bool(int(status[at + 8 :].split(None, 1)[0], 16) >> _CAP_KILL & 1)
    except (OSError, ValueError, IndexError):
        return os.geteuid() == 0


def _open(pid: int) -> int:
    """Return a descriptor for this process, which never means another one with its pid."""
    try:
        if hasattr(os, "pidfd_open"):  # Python 3.9
            return os.pidfd_open(pid)
        return _call(_PIDFD_OPEN, pid, 0)
    except OSError as error:
        raise _why(error, pid) from None


def _send(descriptor: int, pid: int, number: int) -> None:
    try:
        if hasattr(signal, "pidfd_send_signal"):
            signal.pidfd_send_signal(descriptor, number)
        else:
            _call(_PIDFD_SEND_SIGNAL, descriptor, number, None, 0)
    except OSError as error:
        raise _why(error, pid) from None


def _call(number: int, *args: Optional[int]) -> int:
    library = ctypes.CDLL(None, use_errno=True)
    result = library.syscall(
        ctypes.c_long(number),
        *(ctypes.c_void_p(a) if a is None else ctypes.c_long(a) for a in args),
    )
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return int(result)


def _why(error: OSError, pid: int) -> CannotSignal:
    if error.errno == errno.ESRCH:
        return CannotSignal("gone", f"pid {pid} has ended")
    if error.errno == errno.EPERM:
        return CannotSignal("refused", f"the kernel does not let this user signal pid {pid}")
    if error.errno == errno.ENOSYS:
        return CannotSignal(
            "unsupported",
            f"this kernel has no pidfd (Linux 5.3 and newer), without which a signal may hit "
            f"another process with the same pid. Next: kill {pid}",
        )
    if error.errno == errno.EINVAL:
        return CannotSignal("refused", f"{pid} is a thread, not a process")
    return CannotSignal("failed", f"pid {pid}: {os.strerror(error.errno or 0)}")


def _audit(pid: object, start: object, name: object, began: float, outcome: str) -> None:
    what = (
        f"signal {str(name)[:12]!r} to pid {str(pid)[:20]} start {str(start)[:20]} by uid "
        f"{os.getuid()}"
    )
    audit.write_line(what, began, outcome)
