"""Prepares an injection by ptrace and has ``inject_worker.py`` do it in a child.

Everything that can be looked up beforehand is looked up here, before the trainer is stopped.
"""

from __future__ import annotations

import json
import os
import struct
import sys
from typing import Any, Dict

from ..process import child
from . import inject_machine, maps
from .inject_refusal import BUSY, FAILED, GONE, NEXT_RUN, REFUSED, TRACED, UNSUPPORTED, CannotInject
from .inject_target import Process, Python, check_ptrace, permission, tracer

CALL_SECONDS = 1.0
"""The call takes microseconds. If it waits this long for a lock, it is given up."""
STOP_SECONDS = 2.0
WORKER_SECONDS = 150.0
"""The limit for the whole worker: longer than all its own limits together."""
_LOADER = "import sys;exec(sys.stdin.readline())"
_PENDING_MAX, _PENDING_SCAN_BYTES = 32, 1 << 16
_CALL_BYTES, _CALLS = 24, 300


def job(found: Process, python: Python, code: str) -> Dict[str, Any]:
    """Return the worker's input. Raises :class:`CannotInject`."""
    check_ptrace(python)
    try:
        code_at = inject_machine.place_for_code(found.pid, maps.mappings(found.pid))
        lock = pending_lock(found.pid, python) if python.version >= (3, 13) else 0
    except PermissionError:
        raise CannotInject(REFUSED, *permission(found)) from None
    except (OSError, struct.error) as error:
        raise CannotInject(FAILED, f"its memory could not be read: {error}") from None
    if not code_at:
        raise CannotInject(
            UNSUPPORTED, "none of its code has room for what its main thread would run.", NEXT_RUN
        )
    return {
        "pid": found.pid,
        "start": found.start,
        "code_at": code_at,
        "machine_code": inject_machine.CODE.hex(),
        "after_map": inject_machine.AFTER_MAP,
        "back": inject_machine.BACK,
        "after_leave": inject_machine.AFTER_LEAVE,
        "add_pending_call": python.add_pending_call,
        "run_string": python.run_string,
        "pending_lock": lock,
        "code": code,
        "call_seconds": CALL_SECONDS,
        "stop_seconds": STOP_SECONDS,
    }


def call(task: Dict[str, Any], found: Process) -> Dict[str, Any]:
    """Have the worker make the call, and return its answer.

    Raises :class:`CannotInject` with the reason, after everything has been restored.
    """
    source = _worker_source()
    text = b"exec(" + ascii(source).encode("ascii") + b")\n" + json.dumps(task).encode("ascii")
    try:
        output = child.ask(
            [sys.executable, "-I", "-S", "-c", _LOADER], WORKER_SECONDS, input=text, folder="/"
        )
    except OSError as error:
        raise CannotInject(
            FAILED, f"{sys.executable} could not be started: {error.strerror}"
        ) from None
    if output.code is None:
        raise CannotInject(FAILED, "the child that stops its main thread did not return.")
    try:
        answer = json.loads(output.output.decode("utf-8", "replace"))
    except ValueError:
        last_words = output.last_words or "it sent no message"
        raise CannotInject(
            FAILED, f"the child that stops its main thread failed: {last_words}"
        ) from None
    if answer["ok"]:
        return dict(answer)
    raise _refusal(str(answer["code"]), str(answer["text"]), found)


def pending_lock(pid: int, python: Python) -> int:
    """Return where Python 3.13 keeps the lock of the main thread's pending calls.

    The pending calls are a list of 32 entries in _PyRuntime. Threads that wait for the lock are
    queued on their own stacks, so a call that waits for it cannot be given up safely; we look at
    the lock before we make the call. Raises :class:`CannotInject` if the lock is not found.
    """
    data = maps.memory(pid, python.runtime, _PENDING_SCAN_BYTES) if python.runtime else b""
    for at in range(0, len(data) - 32 - _CALL_BYTES * _CALLS, 8):
        lock, waiting, most, at_once = struct.unpack_from("<B3xiii", data, at + 8)
        if most == _PENDING_MAX and at_once == 0 and 0 <= waiting <= most and lock <= 3:
            first, following = struct.unpack_from("<ii", data, at + 24 + _CALL_BYTES * _CALLS)
            if 0 <= first < _CALLS and 0 <= following < _CALLS:
                return python.runtime + at + 8
    raise CannotInject(
        FAILED, "the list of pending calls of this Python 3.13 was not found.", NEXT_RUN
    )


def _refusal(code: str, text: str, found: Process) -> CannotInject:
    if code == "refused":
        other = tracer(found.pid)
        if other:
            return CannotInject(
                TRACED, f"pid {other} traces it already.", "end that one, or wait, and try again"
            )
        return CannotInject(REFUSED, *permission(found))
    if code == "gone":
        return CannotInject(GONE, f"{text}.", "gpuscope ps")
    if code in ("busy", "stopped"):
        return CannotInject(BUSY, f"{text}. It was restored.", "try again later")
    if code == "left":
        return CannotInject(FAILED, f"{text}.")
    return CannotInject(FAILED, f"{text}. It was restored.")


def _worker_source() -> str:
    """Return the worker's source, read as data because an agent runs from a zip."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "inject_worker.py")
    loader = globals().get("__loader__")
    data = loader.get_data(path) if loader is not None and hasattr(loader, "get_data") else b""
    return str(data.decode("utf-8"))
