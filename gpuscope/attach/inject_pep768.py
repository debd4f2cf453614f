"""Injects through the debugger interface of Python 3.14 and 3.15 (PEP 768).

No thread is stopped. The path of a script and two flags are written into a thread's state, and the
thread runs the script at its next safe point. ``sys.remote_exec`` needs the same version of Python
on both sides; this module works from any version. A table in the process says where the fields are,
and this module knows where they are in the table. The table's layout changed from 3.14 to 3.15, so
a minor version that is not known here is refused (``Include/internal/pycore_debug_offsets.h``).
"""

from __future__ import annotations

import os
import struct
from typing import Dict, List, Tuple

from .inject_refusal import (
    BUSY,
    DISABLED,
    FAILED,
    GONE,
    NEXT_RUN,
    REFUSED,
    UNSUPPORTED,
    CannotInject,
)
from .inject_target import OLDEST_PEP768, Process, Python, permission

PLEASE_STOP = 1 << 5
MAX_THREADS = 4096
MAX_INTERPRETERS = 256
MAX_PATH_BYTES = 512
MAX_OFFSET = 1 << 20
_COMMON = {"interpreters_head": 40, "id": 56, "next": 64, "threads_head": 72, "thread_next": 192}
_TABLE: Dict[int, Dict[str, int]] = {
    14: {**_COMMON, "native_id": 224, "debugger": 712},
    15: {**_COMMON, "native_id": 248, "debugger": 840},
}
"""The position of each offset in the table. From ``debugger`` on there are six in a row:
eval_breaker, remote_debugger_support, remote_debugging_enabled, debugger_pending_call,
debugger_script_path, debugger_script_path_size.
"""
CANDIDATE = 0xC


class Sender:
    """Writes into one process. Raises :class:`CannotInject` if that must not be done."""

    def __init__(self, found: Process, python: Python) -> None:
        self._found = found
        check(python)
        table = _TABLE[python.version[1]]
        try:
            self._memory = os.open(f"/proc/{found.pid}/mem", os.O_RDWR | os.O_CLOEXEC)
        except PermissionError:
            raise CannotInject(REFUSED, *permission(found)) from None
        except OSError as error:
            raise CannotInject(FAILED, f"its memory cannot be opened: {error.strerror}") from None
        try:
            self._read_offsets(python, table)
        except BaseException:
            os.close(self._memory)
            raise

    def __enter__(self) -> Sender:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._memory)

    def send(self, path: str, every_thread: bool = False) -> int:
        """Ask the main thread, or every thread, to run the script; return how many were asked.

        Raises :class:`CannotInject`.
        """
        data = os.fsencode(path) + b"\0"
        if len(data) > min(MAX_PATH_BYTES, self._path_bytes):
            raise CannotInject(FAILED, "the path of the script is too long for the target.")
        threads = self._threads()
        main = [state for state, native in threads if native == self._found.inner_pid]
        chosen = [state for state, _ in threads] if every_thread or not main else main
        requests = 0
        for state in chosen:
            support = state + self._support
            if self._int(support + self._pending):
                continue  # a call of somebody else is waiting there
            self._write(support + self._path, data)
            self._write(support + self._pending, struct.pack("<i", 1))
            flags = self._read(state + self._breaker, 1)[0]
            self._write(state + self._breaker, bytes([flags | PLEASE_STOP]))
            requests += 1
        if not requests:
            raise CannotInject(
                BUSY,
                "another tool's call is already pending in this process.",
                "try again in a moment",
            )
        return requests

    def call_off(self, path: str) -> None:
        """Withdraw the script from all threads that have not started it yet."""
        data = os.fsencode(path) + b"\0"
        try:
            for state, _ in self._threads():
                support = state + self._support
                if (
                    self._int(support + self._pending)
                    and self._read(support + self._path, len(data)) == data
                ):
                    self._write(support + self._pending, struct.pack("<i", 0))
        except (CannotInject, OSError):
            pass  # it has ended

    def _read_offsets(self, python: Python, table: Dict[str, int]) -> None:
        def offset(at: int) -> int:
            value = int(struct.unpack_from("<Q", python.offsets, at)[0])
            if value > MAX_OFFSET:
                raise CannotInject(UNSUPPORTED, "its debugger table has an unknown format.")
            return value

        self._breaker, self._support, enabled, self._pending, self._path, self._path_bytes = (
            offset(table["debugger"] + 8 * number) for number in range(6)
        )
        self._thread_next, self._native = offset(table["thread_next"]), offset(table["native_id"])
        self._interpreter = self._main_interpreter(
            python, offset(table["interpreters_head"]), offset(table["id"]), offset(table["next"])
        )
        self._threads_head = offset(table["threads_head"])
        if self._int(self._interpreter + enabled) != 1:
            raise CannotInject(
                DISABLED,
                "it was started with remote debugging switched off (PYTHON_DISABLE_REMOTE_DEBUG or "
                "-X disable-remote-debug), and gpuscope respects that.",
                NEXT_RUN,
            )

    def _main_interpreter(self, python: Python, head: int, number: int, following: int) -> int:
        at = self._pointer(python.runtime + head)
        for _ in range(MAX_INTERPRETERS):
            if not at:
                break
            if struct.unpack("<q", self._read(at + number, 8))[0] == 0:
                return at
            at = self._pointer(at + following)
        raise CannotInject(
            BUSY, "its Python is just starting or shutting down.", "try again in a moment"
        )

    def _threads(self) -> List[Tuple[int, int]]:
        """Return (address of the state, native id) of each thread of the main interpreter.

        Threads may come and go while the list is read.
        """
        found: List[Tuple[int, int]] = []
        at = self._pointer(self._interpreter + self._threads_head)
        while at and len(found) < MAX_THREADS:
            found.append((at, struct.unpack("<Q", self._read(at + self._native, 8))[0]))
            at = self._pointer(at + self._thread_next)
        return found

    def _pointer(self, at: int) -> int:
        return int(struct.unpack("<Q", self._read(at, 8))[0])

    def _int(self, at: int) -> int:
        return int(struct.unpack("<i", self._read(at, 4))[0])

    def _read(self, at: int, size: int) -> bytes:
        try:
            data = os.pread(self._memory, size, at)
        except (OSError, OverflowError):
            data = b""
        if len(data) != size:
            raise self._why_unreadable()
        return data

    def _write(self, at: int, data: bytes) -> None:
        try:
            written = os.pwrite(self._memory, data, at)
        except PermissionError:
            raise CannotInject(REFUSED, *permission(self._found)) from None
        except OSError:
            written = 0
        if written != len(data):
            raise self._why_unreadable()

    def _why_unreadable(self) -> CannotInject:
        if os.path.exists(f"/proc/{self._found.pid}"):
            return CannotInject(
                FAILED, "its memory does not look like this version of Python.", NEXT_RUN
            )
        return CannotInject(GONE, f"process {self._found.pid} ended meanwhile.", "gpuscope ps")


def check(python: Python) -> None:
    """Check that a Python has this interface. Raises :class:`CannotInject` if it has not.

    It also raises if this version of gpuscope does not know the layout of the interface.
    """
    minor = python.version[1]
    if python.version < OLDEST_PEP768:
        raise CannotInject(
            UNSUPPORTED, f"Python 3.{minor} has no remote debugging (3.14 and newer have).", ""
        )
    if not python.offsets:
        raise CannotInject(UNSUPPORTED, f"Python 3.{minor} there has no debugger table.", NEXT_RUN)
    version = struct.unpack_from("<Q", python.offsets, 8)[0]
    if minor not in _TABLE or version >> 16 != 3 << 8 | minor:
        raise CannotInject(
            UNSUPPORTED, f"Python 3.{minor} is newer than this gpuscope supports.", NEXT_RUN
        )
    if version >> 4 & 0xF < CANDIDATE:
        raise CannotInject(
            UNSUPPORTED,
            f"an alpha or beta of Python 3.{minor}: its internals may differ.",
            NEXT_RUN,
        )
    if struct.unpack_from("<Q", python.offsets, 16)[0]:
        raise CannotInject(
            UNSUPPORTED, f"Python 3.{minor} there is free-threaded: untested.", NEXT_RUN
        )
