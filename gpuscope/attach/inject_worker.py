"""Stops a trainer's main thread for a moment and hands Python one call, in a child.

This is for x86-64 Linux and Python 3.8–3.13. The source is run from standard input of a separate
Python (``-I -S -c``), in a session of its own, so that it outlives a terminal. It blocks all
signals, collects no garbage, and allocates next to nothing while the thread is stopped. It may
still be killed at any moment: each step leaves the thread with its own registers, or in code that
restores everything by itself (``inject_machine.py``; its bytes and addresses are in the job).

The thread runs two things: the raw system call ``mmap``, and
``Py_AddPendingCall(PyRun_SimpleString, code)``, which takes one small lock but neither malloc nor
the interpreter lock. Python runs ``code`` later, at a safe point of its own.

Input: one JSON object of numbers and text (see :func:`main`). Output: one JSON object: ``ok``,
``code``, ``text``, ``stop_seconds`` (how long the thread was stopped or ran our code, at most),
``asked_seconds`` (the same from the first request to stop), ``released``.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import json
import os
import signal
import struct
import sys
import time
from typing import Any, Dict, List, Optional

PTRACE_POKETEXT, PTRACE_CONT, PTRACE_GETREGS, PTRACE_SETREGS, PTRACE_DETACH, PTRACE_SYSCALL = (
    4,
    7,
    12,
    13,
    17,
    24,
)
PTRACE_GETREGSET, PTRACE_SETREGSET, PTRACE_SEIZE, PTRACE_INTERRUPT = 0x4204, 0x4205, 0x4206, 0x4207
PTRACE_GETSIGMASK, PTRACE_SETSIGMASK, PTRACE_GET_RSEQ_CONFIGURATION = 0x420A, 0x420B, 0x420F
NT_X86_XSTATE, NT_X86_SHSTK = 0x202, 0x204
WALL = 0x40000000
PTRACE_EVENT_STOP = 128
PTRACE_O_TRACESYSGOOD = 1
SYSCALL_STOP = signal.SIGTRAP | 0x80
REGISTERS = 27
R15, R13, RBP, RBX, RAX, RDX, RSI, RDI, ORIG_RAX, RIP, EFLAGS, RSP = (
    0,
    2,
    4,
    5,
    10,
    12,
    13,
    14,
    15,
    16,
    18,
    19,
)
R8, R9, R10 = 9, 8, 7
MMAP, FUTEX, RESTART_SYSCALL = 9, 202, 219
PAGE = 4096
CALL_AT = PAGE - 8  # in the first page, behind the text: the address to call
STATE_BYTES = 8 * PAGE  # vector registers, from the second page on: 11 KiB with AMX today
# and a stack for the call: the thread's own stack is not touched
MAPPED = PAGE + STATE_BYTES + 7 * PAGE
RESTART_BLOCK = 516
# ERESTARTSYS and similar codes: the kernel would repeat the system call
RESTARTED = frozenset((512, 513, 514, RESTART_BLOCK))
SYSCALL_BYTES = 2
TABLE = struct.Struct("<19Q")
SYNCHRONOUS = (signal.SIGTRAP, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)
LONGEST_CALL_SECONDS = 60.0
MASK = (1 << 64) - 1
CALL_CLEAN_FLAGS = 0x400 | 0x100  # direction and trap flag

_library = ctypes.CDLL(None, use_errno=True)
_ptrace = _library.ptrace
_ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_ulong, ctypes.c_ulong]
_ptrace.restype = ctypes.c_long
_Registers = ctypes.c_ulonglong * REGISTERS


class _Vector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


class Failed(Exception):
    def __init__(self, code: str, text: str) -> None:
        Exception.__init__(self, text)
        self.code = code
        self.text = text


def ptrace(request: int, pid: int, address: int = 0, data: int = 0) -> None:
    ctypes.set_errno(0)
    if _ptrace(request, pid, address, data) == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


class Stopped:
    """A seized thread of another process. :meth:`restore` and :meth:`detach` undo everything."""

    def __init__(self, job: Dict[str, Any]) -> None:
        self.pid = job["pid"]
        self.job = job
        self.code_at = job["code_at"]
        self.machine_code = bytes.fromhex(job["machine_code"])
        self.call_seconds = job["call_seconds"]
        self.saved = _Registers()
        self.work = _Registers()
        self.state = ctypes.create_string_buffer(STATE_BYTES)
        self.vectors = _Vector(ctypes.addressof(self.state), STATE_BYTES)
        self.shadow = ctypes.c_ulonglong()
        self.shadows = _Vector(ctypes.addressof(self.shadow), 8)
        self.mask = ctypes.c_ulonglong()
        self.blocked = ctypes.c_ulonglong(MASK)
        for number in (*SYNCHRONOUS, signal.SIGKILL, signal.SIGSTOP):
            self.blocked.value &= ~(1 << (number - 1))
        self.original = b""
        self.poked = self.seized = self.stopped = self.touched = self.masked = self.at_last_call = (
            False
        )
        self.memory: Any = None
        self.clock = -1
        self.stopped_seconds = 0.0
        self.stopped_since: Optional[float] = None

    def seize(self) -> None:
        try:
            ptrace(PTRACE_SEIZE, self.pid, 0, PTRACE_O_TRACESYSGOOD)
        except OSError as error:
            if error.errno == errno.ESRCH:
                raise Failed("gone", "the process has ended") from None
            raise Failed("refused", error.strerror or "the kernel refused") from None
        self.seized = True

    def stop(self, seconds: float) -> None:
        """Stop the thread between two instructions, or in a system call that can be repeated."""
        asked_at, ran = time.perf_counter(), self.on_cpu_seconds()
        ptrace(PTRACE_INTERRUPT, self.pid)
        while True:
            status = self.wait(seconds)
            if status is None:
                raise Failed(
                    "busy", "the main thread waits inside the kernel and cannot be stopped"
                )
            self.stopped = True
            # it is about to get a signal: let it have that, and stop later
            if status >> 16 != PTRACE_EVENT_STOP:
                ptrace(PTRACE_CONT, self.pid, 0, os.WSTOPSIG(status))
                self.stopped = False
            elif os.WSTOPSIG(status) == signal.SIGTRAP:
                # Not stopped yet: add the time in which it ran on, to the end of a fork or in a
                # handler.
                own = max(0.0, self.on_cpu_seconds() - ran)
                self.stopped_since = asked_at + min(own, time.perf_counter() - asked_at)
                return
            else:
                raise Failed("stopped", "the process is stopped (SIGSTOP, or Ctrl-Z)")

    def on_cpu_seconds(self) -> float:
        """Return how long the main thread has run so far, 0 if the scheduler does not tell."""
        try:
            return int(os.pread(self.clock, 64, 0).split()[0]) / 1e9
        except (OSError, ValueError, IndexError):
            return 0.0

    def let_go_again(self) -> None:
        self.go_on()
        self.count()

    def count(self) -> None:
        """End the current period in which the thread is stopped, and add it up."""
        if self.stopped_since is not None:
            self.stopped_seconds += time.perf_counter() - self.stopped_since
            self.stopped_since = None

    def wait(self, seconds: float) -> Optional[int]:
        """Return the thread's next status, or None. Raises :class:`Failed` when it has ended."""
        end = time.monotonic() + seconds
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG | WALL)
            if pid:
                if os.WIFEXITED(status) or os.WIFSIGNALED(status):
                    self.seized = self.stopped = False
                    raise Failed("gone", "the process ended meanwhile")
                return status
            left = end - time.monotonic()
            if left <= 0:
                return None
            signal.sigtimedwait({signal.SIGCHLD}, left)

    def save(self) -> None:
        """Save all registers, the signal mask and the bytes that our code replaces."""
        ptrace(PTRACE_GETREGS, self.pid, 0, ctypes.addressof(self.saved))
        ptrace(PTRACE_GETREGSET, self.pid, NT_X86_XSTATE, ctypes.addressof(self.vectors))
        try:
            ptrace(PTRACE_GETREGSET, self.pid, NT_X86_SHSTK, ctypes.addressof(self.shadows))
        except OSError:
            self.shadows.length = 0  # no shadow stack, as on nearly all machines
        ptrace(PTRACE_GETSIGMASK, self.pid, 8, ctypes.addressof(self.mask))
        self.original = self.read(self.code_at, len(self.machine_code) + TABLE.size)
        # code that a killed injector left, where zeros were
        if self.original.startswith(self.machine_code):
            self.original = bytes(len(self.original))

    def in_its_own_section(self) -> bool:
        """Tell whether the thread is in a restartable sequence (rseq(2)) and must stay there."""
        found = (ctypes.c_ulonglong * 3)()
        try:
            ptrace(PTRACE_GET_RSEQ_CONFIGURATION, self.pid, 24, ctypes.addressof(found))
            return bool(found[0]) and struct.unpack("<Q", self.read(found[0] + 8, 8))[0] != 0
        except OSError:
            return False  # a kernel before 5.13, or none registered

    def lead_away(self) -> None:
        """Write the code and set the thread to its beginning; only then hold signals back.

        The order matters. Before the registers are set, nothing of the thread has changed; from
        then on the code restores everything, including the signal mask.
        """
        self.poked = True
        self.put(self.code_at, self.machine_code + TABLE.pack(*self.registers_to_go_back_with()))
        self.lead_to(
            0,
            self.saved,
            {
                # private, anonymous, read and write
                RAX: MMAP,
                RDI: 0,
                RSI: MAPPED,
                RDX: 3,
                R10: 0x22,
                R8: MASK,
                R9: 0,
                R13: self.job["run_string"],
                R15: MAPPED,
                RBX: 0,
                RBP: 0,
            },
        )
        self.masked = True
        ptrace(PTRACE_SETSIGMASK, self.pid, 8, ctypes.addressof(self.blocked))

    def registers_to_go_back_with(self) -> List[int]:
        """Return the registers with which the interrupted system call is made again."""
        found, again = list(self.saved), self.call_to_make_again()
        if again is not None:
            found[RAX] = again
            found[RIP] -= SYSCALL_BYTES
        return [*found[:ORIG_RAX], found[RIP], found[EFLAGS], found[RSP], self.mask.value]

    def call_to_make_again(self) -> Optional[int]:
        """Return the number of the system call that our stop has interrupted, if there is one."""
        error = MASK + 1 - self.saved[RAX]
        if self.saved[ORIG_RAX] >> 63 or error not in RESTARTED:
            return None
        return RESTART_SYSCALL if error == RESTART_BLOCK else int(self.saved[ORIG_RAX])

    def lead_to(self, offset: int, registers: Any, changes: Dict[int, int]) -> None:
        """Let the thread continue at ``offset``, with ``changes`` to ``registers``, in one step."""
        ctypes.memmove(self.work, registers, ctypes.sizeof(_Registers))
        self.work[ORIG_RAX] = MASK  # no system call is to be repeated here
        self.work[RIP] = self.code_at + offset
        self.work[EFLAGS] &= ~CALL_CLEAN_FLAGS
        for index, value in changes.items():
            self.work[index] = value & MASK
        self.touched = True
        ptrace(PTRACE_SETREGS, self.pid, 0, ctypes.addressof(self.work))

    def run_to(self, end: int) -> None:
        """Let the thread run to the start or the end of the system call that ends at ``end``."""
        limit = time.monotonic() + LONGEST_CALL_SECONDS
        while True:
            ptrace(PTRACE_SYSCALL, self.pid)
            self.stopped = False
            status, overdue = self.wait(self.call_seconds), False
            if status is None:
                ptrace(PTRACE_INTERRUPT, self.pid)
                status, overdue = self.wait(self.call_seconds), True
            if status is None:
                raise Failed("left", "the thread could not be stopped again. It runs on by itself")
            self.stopped = True
            ptrace(PTRACE_GETREGS, self.pid, 0, ctypes.addressof(self.work))
            if status >> 16 != PTRACE_EVENT_STOP:
                if os.WSTOPSIG(status) != SYSCALL_STOP:
                    raise Failed(
                        "failed",
                        f"the call did not return as expected (signal {os.WSTOPSIG(status)})",
                    )
                if self.work[RIP] == self.code_at + end:
                    return
            if overdue and self.waits_for_a_lock():
                raise Failed(
                    "busy",
                    "another thread keeps the lock of Python's pending calls",
                )
            if time.monotonic() > limit:
                self.leave_to_itself()
                raise Failed(
                    "left",
                    f"the call did not return within {LONGEST_CALL_SECONDS:g} s. It may still",
                )

    def give_up(self, page: int) -> None:
        """Lead a thread that waits inside the call past it, as if the call had failed."""
        if self.shadows.length:
            ptrace(PTRACE_SETREGSET, self.pid, NT_X86_SHSTK, ctypes.addressof(self.shadows))
        # On Python 3.13 the lock's holder has a list of the waiting threads, on their stacks: it
        # must stay.
        unmap = 0 if self.job["pending_lock"] else 1
        self.lead_to(self.job["back"], self.work, {RAX: unmap, RBX: page, R15: MAPPED})

    def leave_to_itself(self) -> None:
        """Restore nothing from here, because the code in the thread does it."""
        self.poked = self.touched = self.masked = False

    def go_on(self) -> None:
        ptrace(PTRACE_CONT, self.pid)
        self.stopped = False

    def waits_for_a_lock(self) -> bool:
        """Say whether a thread stopped in its overdue call waits for a lock."""
        # A thread that only got no processor must go on, because it may hold the lock itself.
        return self.work[ORIG_RAX] == FUTEX and MASK + 1 - self.work[RAX] in RESTARTED

    def restore(self) -> None:
        """Restore everything: signal mask, registers with an interrupted call's number, bytes.

        Until the registers are set, which is one step, the thread would still come back by itself.
        At the start of the code's last system call it then makes the interrupted call instead, or
        none.
        """
        if not (self.seized and self.stopped):
            return
        if self.masked:
            ptrace(PTRACE_SETSIGMASK, self.pid, 8, ctypes.addressof(self.mask))
            self.masked = False
        if self.touched:
            ptrace(PTRACE_SETREGSET, self.pid, NT_X86_XSTATE, ctypes.addressof(self.vectors))
            if self.shadows.length:
                ptrace(PTRACE_SETREGSET, self.pid, NT_X86_SHSTK, ctypes.addressof(self.shadows))
            if self.at_last_call:
                again = self.call_to_make_again()
                self.saved[ORIG_RAX] = MASK if again is None else again
            ptrace(PTRACE_SETREGS, self.pid, 0, ctypes.addressof(self.saved))
            self.touched = False
        if self.poked:
            self.put(self.code_at, self.original)
            self.poked = False

    def detach(self) -> None:
        """Let the thread go. The kernel does this for a thread that cannot be stopped."""
        if self.seized and self.stopped:
            ptrace(PTRACE_DETACH, self.pid)
            self.seized = False

    def read(self, address: int, size: int) -> bytes:
        self.memory.seek(address)
        data = bytes(self.memory.read(size))
        if len(data) != size:
            raise OSError(errno.EIO, "not readable")
        return data

    def put(self, address: int, data: bytes) -> None:
        """Write to memory that the program may only read; some kernels allow one word at a time."""
        try:
            self.write(address, data)
        except OSError:
            for at in range(0, len(data), 8):
                ptrace(
                    PTRACE_POKETEXT, self.pid, address + at, struct.unpack_from("<Q", data, at)[0]
                )

    def write(self, address: int, data: bytes) -> None:
        self.memory.seek(address)
        if self.memory.write(data) != len(data):
            raise OSError(errno.EIO, "not writable")


def start_ticks(pid: int) -> int:
    with open(f"/proc/{pid}/stat", "rb") as stream:
        return int(stream.read().rpartition(b")")[2].split()[19])


def stop_at_a_good_moment(thread: Stopped, job: Dict[str, Any]) -> None:
    """Stop the thread at a moment when it does not hold the lock that the call needs.

    If it does, it is let go and stopped again microseconds later. ``pending_lock`` is the address
    of that lock in Python 3.13, where a waiting call cannot be withdrawn, and 0 for other versions.
    """
    for _ in range(200):
        thread.stop(job["stop_seconds"])
        thread.save()
        lock = job["pending_lock"]
        if not thread.in_its_own_section() and not (lock and thread.read(lock, 1)[0]):
            return
        thread.let_go_again()
        time.sleep(0.005)
    raise Failed("busy", "Python's list of pending calls stays locked")


def hand_over(thread: Stopped, job: Dict[str, Any]) -> None:
    """Have the thread map memory, make the call and come back. Raises :class:`Failed`."""
    if len(job["code"]) + 64 > CALL_AT:  # the code with the numbers filled in
        raise Failed("failed", "the stub is longer than a page")
    thread.lead_away()
    thread.run_to(job["after_map"])
    thread.run_to(job["after_map"])
    page, problem = thread.work[RAX], None
    if page > MASK - PAGE:
        problem = Failed(
            "failed", "no memory could be mapped there: " + os.strerror(MASK + 1 - page)
        )
    else:
        text = (
            job["code"]
            .replace("@PAGE@", hex(page))
            .replace("@MAPPED@", hex(MAPPED))
            .encode("ascii")
            + b"\0"
        )
        thread.write(page, text)
        # now it will be called
        thread.write(page + CALL_AT, struct.pack("<Q", job["add_pending_call"]))
    try:
        thread.run_to(job["after_leave"])
        if thread.work[RBP] & 0xFFFFFFFF:
            problem = Failed(
                "busy",
                "Python's list of pending calls is full: the main thread does not process it",
            )
    except Failed as failure:
        if failure.code != "busy":
            raise
        problem = failure
        thread.give_up(page)
        thread.run_to(job["after_leave"])
    thread.at_last_call = True
    if problem is not None:
        raise problem


def inject(job: Dict[str, Any]) -> Dict[str, Any]:
    thread = Stopped(job)
    answer: Dict[str, Any] = {"ok": False, "code": "", "text": ""}
    answer["stop_seconds"] = answer["asked_seconds"] = answer["released"] = None
    began = 0.0
    try:
        thread.seize()
        # From here on the pid cannot be given to another process without our noticing its end.
        if start_ticks(thread.pid) != job["start"]:
            raise Failed("gone", "this pid belongs to another process now")
        thread.memory = open(f"/proc/{thread.pid}/mem", "r+b", buffering=0)  # noqa: SIM115
        try:
            thread.clock = os.open(f"/proc/{thread.pid}/task/{thread.pid}/schedstat", os.O_RDONLY)
        except FileNotFoundError:
            pass  # a kernel that lacks this system call
        began = time.perf_counter()
        stop_at_a_good_moment(thread, job)
        hand_over(thread, job)
        answer["ok"] = True
    except Failed as failure:
        answer["code"], answer["text"] = failure.code, failure.text
    except OSError as error:
        gone = error.errno in (errno.ESRCH, errno.ECHILD)
        answer["code"] = "gone" if gone else "failed"
        answer["text"] = "the process ended meanwhile" if gone else str(error)
    finally:
        try:
            thread.restore()
            thread.detach()
        except OSError as error:
            if error.errno != errno.ESRCH:
                answer["ok"], answer["code"], answer["text"] = (
                    False,
                    "failed",
                    f"while detaching: {error}",
                )
        if began:
            thread.count()
            answer["stop_seconds"], answer["asked_seconds"] = (
                thread.stopped_seconds,
                time.perf_counter() - began,
            )
            answer["released"] = time.monotonic()
        if thread.memory is not None:
            thread.memory.close()
    return answer


def main() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, set(signal.Signals))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    gc.disable()
    job = json.load(sys.stdin)
    answer = inject(job)
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
