"""Has CUPTI set itself up in a thread of the probe, before a trace begins in the training thread.

The first activity that is enabled in a process makes CUPTI hook itself into the driver and take
its buffers, which stops the thread that asks for it for 0.05 to 0.4 s. A trace is started by the
training thread. So the same activity is enabled and disabled here first, through ctypes, which
leaves the interpreter to the training meanwhile. torch itself did so at its start, from the
training thread, as long as CUPTI needed even longer.

No buffers are offered, so nothing is recorded, and torch's own callbacks are not touched.
"""

from __future__ import annotations

import os
import time
from typing import Any, List, Optional, Tuple

from .on_import import debug

CONCURRENT_KERNEL = 10
"""``CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL``: the kind that needs buffers on the device."""
LAUNCHES = (
    ("cuptiActivityEnableRuntimeApi", (211, 214, 269, 270, 430, 431, 505, 506)),
    ("cuptiActivityEnableDriverApi", (307, 442, 477, 478, 652, 653)),
)
"""Functions of CUPTI since CUDA 12.5, with the calls that launch a kernel by their numbers in
``cupti_runtime_cbid.h`` and ``cupti_driver_cbid.h``. They never change; an older CUPTI refuses
those that it does not have."""
_NAME = "libcupti.so"
_set_up: List[int] = []
"""The process in which CUPTI has been set up."""
_library: List[Any] = []
"""What :func:`loaded` has found: to read a process's list of libraries takes a millisecond."""


def is_set_up() -> bool:
    """Tell whether :func:`set_up` or :func:`note_set_up` was called in this process before."""
    return _set_up == [os.getpid()]


def note_set_up() -> None:
    """Note that a trace has set CUPTI up itself."""
    _set_up[:] = [os.getpid()]


def set_up(maps: str = "/proc/self/maps") -> Optional[Tuple[float, float]]:
    """Set CUPTI up, once in a process; return when that began and ended (``perf_counter()``).

    None where it has been done before, or where torch has loaded no CUPTI library: then the trace
    does it. No profiler may run or start meanwhile.
    """
    if is_set_up():
        return None
    note_set_up()
    begin = time.perf_counter()
    try:
        library = loaded(maps)
        if library is None:
            return None
        if library.cuptiActivityEnable(CONCURRENT_KERNEL) == 0:
            library.cuptiActivityDisable(CONCURRENT_KERNEL)
    except Exception as error:
        debug("CUPTI is set up by the trace itself", error)
        return None
    return begin, time.perf_counter()


def record_launches(recorded: bool) -> bool:
    """Have a trace that runs record the calls that launch kernels, or not; return whether it does.

    CUPTI's documentation says that whoever enables all calls, as torch does at the start of each
    trace, overrides this. So there is nothing to take back.
    """
    try:
        if not _library:
            _library.append(loaded())
        (library,) = _library
        if library is None:
            return False
        changes = [(getattr(library, name), numbers) for name, numbers in LAUNCHES]
        answers = [change(one, int(recorded)) for change, numbers in changes for one in numbers]
        return bool(answers[0] == 0)
    except Exception as error:
        debug("it is not changed which calls are recorded", error)
        return False


def loaded(maps: str = "/proc/self/maps") -> Any:
    """Return the CUPTI library that this process has loaded already, None if it has none."""
    with open(maps, encoding="utf-8", errors="replace") as lines:
        paths = [line.split(maxsplit=5)[-1].strip() for line in lines if _NAME in line]
    path = next((one for one in paths if os.path.basename(one).startswith(_NAME)), None)
    if path is None:
        return None
    # Only now: a process that is injected into would keep libffi for a look that nobody asks for.
    import ctypes

    return ctypes.CDLL(path, mode=getattr(os, "RTLD_NOLOAD", 0) | os.RTLD_NOW)
