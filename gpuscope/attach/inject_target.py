"""Finds out what an injection needs to know about a running process.

It only reads: nothing in the process is stopped or changed.
"""

from __future__ import annotations

import os
import platform
import re
import struct
import sys
from dataclasses import dataclass
from typing import Dict, Optional, Set, Tuple

from ..process.procfs import read, stat_of, status_values
from . import maps
from .elf import AARCH64, X86_64, BadElf
from .inject_refusal import FAILED, GONE, NEXT_RUN, REFUSED, TRACED, UNSUPPORTED, CannotInject

OLDEST_PTRACE, OLDEST_PEP768 = (3, 8), (3, 14)
COOKIE = b"xdebugpy"
KERNEL_THREAD = 0x00200000
"""PF_KTHREAD of the flags in /proc/PID/stat."""
EXITING = 0x00000004
"""PF_EXITING of the same flags. The kernel sets it before it releases the memory of the process,
which may take seconds.
"""
FREE_DESCRIPTORS = 16
"""A probe opens seven file descriptors, and a trainer that shares tensors between processes needs
several at once. So this many must be left for the trainer.
"""
_VERSIONED = re.compile(r"/(?:lib)?python(3)\.(\d{1,2})(t?)(?:[/.]|$)")
_SYMBOLS = ("Py_AddPendingCall", "PyRun_SimpleString", "Py_Version", "_PyRuntime")


@dataclass(frozen=True)
class Process:
    """A process that may be injected into.

    ``pid`` is its number here, ``inner_pid`` in the process's own namespace; ``start`` is in clock
    ticks since boot.
    """

    pid: int
    start: int
    uid: int
    gid: int
    inner_pid: int
    groups: Tuple[int, ...] = ()


@dataclass(frozen=True)
class Python:
    """The interpreter in a process.

    Addresses are those in the process, 0 if there is none. ``version`` is (3, n). ``offsets`` is
    the beginning of CPython's table for debuggers (3.13 and newer), ``runtime`` the address of
    _PyRuntime.
    """

    version: Tuple[int, int]
    runtime: int
    offsets: bytes
    add_pending_call: int
    run_string: int
    machine: int
    musl: bool
    free_threaded: bool
    path: str


def process(pid: int, start: Optional[int] = None) -> Process:
    """Return a process. Raises :class:`CannotInject` if there is no such process (any more)."""
    try:
        stat = stat_of(pid)
        status = read(f"/proc/{pid}/status")
        leader = status_values(status, b"Tgid")[0]
        found = Process(
            pid,
            stat.start_ticks,
            status_values(status, b"Uid")[1],
            status_values(status, b"Gid")[1],
            (status_values(status, b"NSpid") or [pid])[-1],
            tuple(status_values(status, b"Groups")),
        )
    except (OSError, IndexError, ValueError):
        raise CannotInject(GONE, f"there is no process {pid} here.", "gpuscope ps") from None
    if start is not None and start != found.start:
        raise CannotInject(
            GONE,
            f"pid {pid} now belongs to another process: the one you meant has ended.",
            "gpuscope ps",
        )
    if leader != pid:
        raise CannotInject(
            UNSUPPORTED,
            f"{pid} is a thread of process {leader}.",
            f"gpuscope attach {leader} --inject",
        )
    if stat.flags & KERNEL_THREAD:
        raise CannotInject(UNSUPPORTED, f"{pid} is a kernel thread.", "gpuscope ps")
    if stat.has_ended:
        raise CannotInject(
            GONE, f"process {pid} has ended; its parent has not reaped it.", "gpuscope ps"
        )
    # its memory may already be gone while its state still says that it runs
    if stat.flags & EXITING:
        raise CannotInject(GONE, f"process {pid} is ending.", "gpuscope ps")
    return found


def main_thread_state(pid: int) -> str:
    """Return a letter as in proc(5): R, S, D, T, t, Z; "" if it is not known."""
    try:
        return stat_of(pid).state
    except (OSError, ValueError):
        return ""


def check_open_files(found: Process) -> None:
    """Check that a process may open more files. Raises :class:`CannotInject` near its limit.

    Otherwise the descriptors of the probe could be those that the trainer needs later. If the limit
    cannot be read, nothing is refused.
    """
    try:
        with open(f"/proc/{found.pid}/limits", "rb") as stream:
            line = next(
                line
                for line in stream.read(8192).splitlines()
                if line.startswith(b"Max open files")
            )
        limit = int(line.split()[3])
        used = len(os.listdir(f"/proc/{found.pid}/fd"))
    except (OSError, StopIteration, IndexError, ValueError):
        return  # unlimited, or we may not read it
    if used + FREE_DESCRIPTORS > limit:
        raise CannotInject(
            REFUSED,
            f"it has {used} of {limit} possible files open: the probe would use up those it "
            f"still needs.",
            f"prlimit --pid {found.pid} --nofile={max(4096, 2 * limit)}:    and try again",
        )


def tracer(pid: int) -> int:
    """Return the pid of the process that traces it, 0 if none does."""
    try:
        return (status_values(read(f"/proc/{pid}/status"), b"TracerPid") or [0])[0]
    except (OSError, ValueError):
        return 0


def python(found: Process) -> Python:
    """Return the interpreter in a process.

    Raises :class:`CannotInject` if it cannot be examined, or if there is none.
    """
    pid = found.pid
    try:
        mappings = maps.mappings(pid)
        if not mappings:
            raise CannotInject(
                GONE, f"process {pid} has ended, or is a kernel thread.", "gpuscope ps"
            )
        images = list(maps.python_images(pid, mappings))
    except PermissionError:
        raise CannotInject(REFUSED, *permission(found)) from None
    except maps.FileReplaced as error:
        raise CannotInject(
            UNSUPPORTED,
            f"{error} was replaced on disk since the start: the running program cannot be read.",
            NEXT_RUN,
        ) from None
    except BadElf as error:
        raise CannotInject(
            UNSUPPORTED, f"its program is {error}; only 64-bit Linux is supported.", NEXT_RUN
        ) from None
    except (OSError, ValueError) as error:
        if not os.path.exists(f"/proc/{pid}"):
            raise CannotInject(GONE, f"process {pid} ended meanwhile.", "gpuscope ps") from None
        raise CannotInject(FAILED, f"its memory could not be read: {error}", "") from None
    paths = {one.path for one in mappings}
    for image in images:
        symbols = {name: at + image.bias for name, at in image.elf.exported(_SYMBOLS).items()}
        section = image.elf.section(".PyRuntime")
        runtime = symbols.get("_PyRuntime") or (
            section.address + image.bias if section and section.address else 0
        )
        if not runtime and "Py_AddPendingCall" not in symbols:
            continue
        offsets = _offsets(pid, runtime)
        version = _version(pid, symbols, offsets, image.path, paths)
        if version is None:
            raise CannotInject(UNSUPPORTED, "its Python version is unknown.", NEXT_RUN)
        free = struct.unpack_from("<Q", offsets, 16)[0] != 0 if offsets else False
        return Python(
            version,
            runtime if offsets else 0,
            offsets,
            symbols.get("Py_AddPendingCall", 0),
            symbols.get("PyRun_SimpleString", 0),
            image.elf.machine,
            any("/ld-musl-" in path for path in paths),
            free,
            image.path,
        )
    raise CannotInject(UNSUPPORTED, _no_python(paths), NEXT_RUN)


def permission(found: Process) -> Tuple[str, str]:
    """Return why we may not look into a process, and the command that would allow it."""
    if found.uid != os.geteuid() and os.geteuid() != 0:
        return (
            f"it belongs to uid {found.uid}, and you are uid {os.geteuid()}.",
            f"sudo gpuscope attach {found.pid} --inject\n{NEXT_RUN}",
        )
    scope = yama_scope()
    if scope == 1:
        return (
            "this kernel lets only a parent process or root attach (ptrace_scope=1).",
            f"{NEXT_RUN}\nNow, with root:  sudo gpuscope attach {found.pid} --inject",
        )
    if scope == 2:
        return (
            "this kernel lets only root attach (ptrace_scope=2).",
            f"sudo gpuscope attach {found.pid} --inject\n{NEXT_RUN}",
        )
    if scope == 3:
        return "this kernel forbids attaching until it is rebooted (ptrace_scope=3).", NEXT_RUN
    if tracer(found.pid):
        return (
            f"pid {tracer(found.pid)} (a debugger, strace or py-spy) traces it already.",
            "end that one first",
        )
    if os.geteuid() == 0:
        return (
            "this container does not have the right to trace (CAP_SYS_PTRACE), or a filter "
            "forbids it.",
            f"start the container with --cap-add SYS_PTRACE\n{NEXT_RUN}",
        )
    return (
        "the kernel forbids it: the process is not dumpable, runs in another namespace, or a "
        "filter (seccomp) of this container prevents it.",
        f"sudo gpuscope attach {found.pid} --inject\n{NEXT_RUN}",
    )


def yama_scope() -> Optional[int]:
    """Return kernel.yama.ptrace_scope, None if the kernel has no Yama."""
    try:
        with open("/proc/sys/kernel/yama/ptrace_scope", "rb") as stream:
            return int(stream.read(16))
    except (OSError, ValueError):
        return None


def check_untraced(found: Process) -> None:
    """Check that nobody traces a process. Raises :class:`CannotInject` if somebody does.

    The kernel allows only one tracer for a process.
    """
    other = tracer(found.pid)
    if other:
        raise CannotInject(
            TRACED,
            f"pid {other} traces it already (a debugger, strace, py-spy, or another gpuscope).",
            "end that one, or wait, and try again",
        )


def check_ptrace(found: Python) -> None:
    """Check that an injection by ptrace supports this interpreter and this machine.

    Raises :class:`CannotInject` if it does not.
    """
    name = f"Python 3.{found.version[1]}"
    if platform.machine() not in ("x86_64", "AMD64") or found.machine != X86_64:
        what = "aarch64" if found.machine == AARCH64 else f"this processor ({platform.machine()})"
        raise CannotInject(UNSUPPORTED, f"ptrace attach supports x86-64, not {what}.", NEXT_RUN)
    if struct.calcsize("P") != 8:
        raise CannotInject(
            UNSUPPORTED, f"{sys.executable} is a 32-bit program.", "a 64-bit Python for gpuscope"
        )
    if found.musl:
        raise CannotInject(
            UNSUPPORTED, f"{name} there is built on musl, which is untested.", NEXT_RUN
        )
    if found.free_threaded:
        raise CannotInject(
            UNSUPPORTED, f"{name} there is free-threaded, which is untested.", NEXT_RUN
        )
    if found.version >= OLDEST_PEP768:
        raise CannotInject(
            UNSUPPORTED, f"{name} has PEP 768 attach; ptrace is for older versions.", ""
        )
    if found.version < OLDEST_PTRACE:
        raise CannotInject(UNSUPPORTED, f"{name} is too old for the probe (3.8 or newer).", "")
    if not found.add_pending_call or not found.run_string:
        raise CannotInject(
            UNSUPPORTED,
            f"{found.path} does not export the two functions needed (a static build).",
            NEXT_RUN,
        )


def _version(
    pid: int, symbols: Dict[str, int], offsets: bytes, image: str, paths: Set[str]
) -> Optional[Tuple[int, int]]:
    """Return the version of an interpreter.

    It comes from the interpreter's memory if that has it (3.11 and newer), else from the names of
    its files.
    """
    number = 0
    if "Py_Version" in symbols:
        try:
            number = struct.unpack("<Q", maps.memory(pid, symbols["Py_Version"], 8))[0]
        except OSError:
            number = 0
    elif offsets:
        number = struct.unpack_from("<Q", offsets, 8)[0]
    if number >> 24 == 3:
        return 3, number >> 16 & 0xFF
    names = [image]
    try:
        names.append(os.readlink(f"/proc/{pid}/exe"))
    except OSError:
        pass
    for group in (names, sorted(paths)):
        found = {int(match.group(2)) for match in map(_VERSIONED.search, group) if match}
        if len(found) == 1:
            return 3, found.pop()
    return None


def _offsets(pid: int, runtime: int) -> bytes:
    if not runtime:
        return b""
    try:
        data = maps.memory(pid, runtime, 1024)
    except OSError:
        return b""
    return data if data.startswith(COOKIE) else b""


def _no_python(paths: Set[str]) -> str:
    if any("pypy" in os.path.basename(path) for path in paths):
        return "it runs PyPy; only CPython is supported."
    return "no CPython found in it: a static build without symbols, or no Python at all."
