"""Puts the probe into a running Python trainer, and removes it if that fails.

One injection concerns one process and uses one method. During it the probe's files are in the
private directory of the trainer's user; afterwards they are removed. If the main thread does not
return to Python code in time, the process is reported as busy. The prepared call is then withdrawn,
and does nothing if the thread reaches it later.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from typing import Callable, Dict, Optional

from . import inject_payload, inject_pep768, inject_ptrace
from .inject_place import InjectionDirectory
from .inject_refusal import BUSY, FAILED, GONE, UNSUPPORTED, CannotInject
from .inject_target import (
    OLDEST_PEP768,
    Process,
    Python,
    check_open_files,
    check_untraced,
    main_thread_state,
    process,
    python,
)

AUTO, PEP768, PTRACE = "auto", "pep768", "ptrace"
METHODS = (AUTO, PEP768, PTRACE)
PATIENCE_SECONDS = 6.0
"""How long to wait for the main thread; longer than a step of most trainings."""
EVERY_THREAD_SECONDS = 2.0
READY_SECONDS = 30.0
"""How long to wait for a probe whose script has run, because a home directory may be slow or hang.
"""
WITHDRAW_SECONDS = 0.25


@dataclass(frozen=True)
class Injected:
    """The outcome of an injection, with the time that each part of it took.

    ``stop_seconds``: how long the main thread was stopped (None: it was not, or nothing was done).
    ``callback_seconds``: until Python made the call. ``main_seconds``: how long that took in the
    main thread. ``ready_seconds``: until the probe listened. ``asked_seconds``: from the first
    request to stop until the thread ran again, including what it first had to finish. ``method`` is
    "probe" if a probe was already there.
    """

    method: str
    stop_seconds: Optional[float]
    callback_seconds: Optional[float]
    main_seconds: Optional[float]
    ready_seconds: float
    asked_seconds: Optional[float] = None


def inject(
    pid: int,
    start: Optional[int] = None,
    method: str = AUTO,
    patience: float = PATIENCE_SECONDS,
    progress: Callable[[str], None] = lambda text: None,
    go_on: Callable[[], bool] = lambda: True,
    idle_seconds: float = inject_payload.IDLE_SECONDS,
) -> Injected:
    """Put the probe into a running process. Raises :class:`CannotInject` if that fails.

    The process is then as it was before. ``start`` is the start time of process ``pid`` in clock
    ticks, if it is known. ``patience`` is in seconds, and ``go_on`` is called repeatedly while
    waiting.
    """
    found = process(pid, start)
    if pid == os.getpid():
        raise CannotInject(UNSUPPORTED, "that is gpuscope itself.")
    try:
        return _inject(found, method, patience, progress, go_on, idle_seconds)
    except CannotInject as error:
        if error.code != GONE:
            # the process has ended, which explains any other failure
            process(pid, found.start)
        raise


def _inject(
    found: Process,
    method: str,
    patience: float,
    progress: Callable[[str], None],
    go_on: Callable[[], bool],
    idle_seconds: float,
) -> Injected:
    began, pid = time.monotonic(), found.pid
    with InjectionDirectory(found) as place:
        place.lock(patience)
        place.clear()
        if place.has_probe():
            return Injected("probe", None, None, None, time.monotonic() - began)
        known = python(found)
        chosen = choose(known, method)
        if main_thread_state(pid) in ("T", "t"):
            check_untraced(found)
            raise CannotInject(
                BUSY, "it is stopped (SIGSTOP, or Ctrl-Z).", f"kill -CONT {pid}     and try again"
            )
        check_open_files(found)
        script = inject_payload.script(place.inside, place.nonce, idle_seconds)
        try:
            path = place.put(script, inject_payload.sources())
        except OSError as error:
            raise CannotInject(
                FAILED, f"no room for the probe in {place.inside}: {error.strerror}."
            ) from None
        way = _pep768 if chosen == PEP768 else _ptrace
        return way(found, known, place, path, patience, progress, go_on)


def _call_off_or_wait(
    place: InjectionDirectory, answer: Optional[Dict[str, object]]
) -> Optional[Dict[str, object]]:
    """Call the injection off, or wait for a probe that is just being loaded.

    Raises :class:`CannotInject` if that takes too long and can no longer be called off.
    """
    if answer is None and not place.call_off():
        answer = place.answer(READY_SECONDS, lambda: True)
        if answer is None and place.lives():
            raise CannotInject(
                FAILED,
                f"it took the probe up, which was not ready within {READY_SECONDS:g} s: the "
                f"threads there give it no time. It may still start, and removes itself "
                f"{inject_payload.IDLE_SECONDS:.0f} s later.",
                "gpuscope ps     shows it once it listens",
            )
    return answer


def choose(known: Python, method: str) -> str:
    """Return the method for this Python. Raises :class:`CannotInject` if there is none."""
    if method not in METHODS:
        raise CannotInject(
            UNSUPPORTED, f"there is no method {method[:40]!r}: {', '.join(METHODS)}."
        )
    if method == AUTO:
        method = PEP768 if known.version >= OLDEST_PEP768 else PTRACE
    if method == PEP768:
        inject_pep768.check(known)
    return method


def _pep768(
    found: Process,
    known: Python,
    place: InjectionDirectory,
    path: str,
    patience: float,
    progress: Callable[[str], None],
    go_on: Callable[[], bool],
) -> Injected:
    began = time.monotonic()
    with inject_pep768.Sender(found, known) as sender:
        sender.send(path)
        progress("asked Python to run the probe's script at its next safe point")
        answer = place.answer(min(EVERY_THREAD_SECONDS, patience), go_on)
        if answer is None and go_on() and patience > EVERY_THREAD_SECONDS:
            try:
                sender.send(path, every_thread=True)  # a second run of the script does nothing
            except CannotInject as error:
                if error.code != BUSY:
                    raise
            progress("the main thread did not run it: any thread may run it now")
            answer = place.answer(patience - EVERY_THREAD_SECONDS, go_on)
        if answer is None:
            sender.call_off(path)
            # A script that has just begun is opening the file now: if it were gone, an error would
            # be printed in the trainer.
            answer = _call_off_or_wait(place, None)
            if answer is None:
                time.sleep(WITHDRAW_SECONDS)
    return _result(PEP768, found, answer, began, None, patience)


def _ptrace(
    found: Process,
    known: Python,
    place: InjectionDirectory,
    path: str,
    patience: float,
    progress: Callable[[str], None],
    go_on: Callable[[], bool],
) -> Injected:
    check_untraced(found)
    task = inject_ptrace.job(found, known, inject_payload.stub(path))
    began = time.monotonic()
    done = inject_ptrace.call(task, found)
    progress(f"added a call for the main thread, which paused {1e3 * done['stop_seconds']:.1f} ms")
    answer = _call_off_or_wait(place, place.answer(patience, go_on))
    result = _result(
        PTRACE, found, answer, began, float(done["stop_seconds"]), patience, float(done["released"])
    )
    return replace(result, asked_seconds=float(done["asked_seconds"]))


def _result(
    method: str,
    found: Process,
    answer: Optional[Dict[str, object]],
    began: float,
    stop: Optional[float],
    patience: float,
    left: float = 0.0,
) -> Injected:
    if answer is None:
        process(found.pid, found.start)  # raises if it has ended
        raise CannotInject(
            BUSY,
            f"its main thread did not return to Python within {patience:g} s (it waits in C "
            "code: a collective, a synchronisation, a read). Not attached; the request is "
            "withdrawn.",
            f"py-spy dump --pid {found.pid}     shows where it waits; try again when it moves on",
        )
    problem = answer.get("problem")
    if problem:
        raise CannotInject(FAILED, f"the probe could not start there: {str(problem)[:300]}.")
    called, spent = answer.get("called"), answer.get("main_seconds")
    return Injected(
        method,
        stop,
        max(0.0, called - (left or began)) if isinstance(called, float) else None,
        spent if isinstance(spent, float) else None,
        time.monotonic() - began,
    )


__all__ = [
    "AUTO",
    "GONE",
    "METHODS",
    "PEP768",
    "PTRACE",
    "CannotInject",
    "Injected",
    "choose",
    "inject",
]
