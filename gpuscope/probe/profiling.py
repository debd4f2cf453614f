"""Profile some steps with torch.profiler on request, recording all threads.

Two profilers at the same time crash the process (seen in torch 2.13: segmentation faults, whichever
stops first). So ours is not started while another one runs or is about to. While ours runs, a
profiler that the training starts has to wait until ours has stopped, which it then does at once.
Stopping synchronizes CUDA, and torch holds the interpreter lock while it processes its events and
while it writes the trace: the training stands still for the times that the result names.
"""

from __future__ import annotations

import gc
import os
import shutil
import sys
import tempfile
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

from . import cuda, file_size
from .blob_file import OwnFile, directory, refuse_without_memory
from .history import count_of
from .long_requests import Answer, LongRequest, Refusal
from .steps import Steps

MAX_STEPS = 50
DEFAULT_STEPS = 5
LONGEST_SECONDS = 60.0
RESERVE_SHARE = 0.5
"""The share of the time until the deadline that is kept for stopping, writing and sending."""
NEEDED_BYTES = 512 << 20
"""Host memory that must be free: about 1 KiB for each recorded operation, for half a million of
them.
"""
_POLL_SECONDS = 0.01
_ENTRIES = ("_prepare_profiler", "_enable_profiler", "_enable_profiler_legacy")


def serve(act: LongRequest, steps: Steps) -> Answer:
    """Serve the request: ``steps`` from 1 to 50.

    The result has ``steps`` (whole ones in the trace), ``seconds`` (recorded), ``bytes``,
    ``stopped`` (``steps``, ``timeout``, or ``other_profiler``: the training started its own),
    ``start_seconds``, ``stop_seconds`` and ``export_seconds`` (the training stood still in the last
    two), and ``cuda`` (whether it has kernels). The blob is the trace as Chrome's JSON. Raises
    :class:`Refusal` if a profile is not possible or not allowed.
    """
    wanted = count_of(act.args, "steps", 1, MAX_STEPS, DEFAULT_STEPS)
    torch: Any = sys.modules.get("torch")
    if torch is None:
        raise Refusal("unsupported", "torch is not imported in this process yet")
    config = _config(torch)
    refuse_without_memory(NEEDED_BYTES, "a profile")
    place = tempfile.mkdtemp(prefix=".gpuscope-", dir=directory())
    try:
        path = os.path.join(place, "trace.json")
        with file_size.no_signal():
            value = _record(act, torch, config, steps, wanted, path)
        most = file_size.limit()
        # torch does not report a trace that was cut, and keeps none after its temporary file
        # disappeared
        if most is not None and (not os.path.exists(path) or os.path.getsize(path) >= most):
            raise Refusal(
                "refused",
                f"the trace is larger than the file size limit of {most} bytes (ulimit -f)",
            )
        descriptor = os.open(path, os.O_RDONLY)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    file = act.file = OwnFile(descriptor, place)
    value["bytes"] = size = file.length()
    return Answer(value, file.rewind(), size)


def _config(torch: Any) -> Any:
    """Return a configuration that profiles all threads.

    If this torch allows it, no Python objects are made for events, which halves the time of a stop.
    """
    make = getattr(
        getattr(getattr(torch, "_C", None), "_profiler", None), "_ExperimentalConfig", None
    )
    for more in ({"trace_only": True}, {}):
        try:
            return make(profile_all_threads=True, **more)  # type: ignore[misc]
        except TypeError:
            continue
    raise Refusal(
        "unsupported",
        f"torch {torch.__version__} cannot profile other threads (2.7 and later can)",
    )


def refuse_beside_another(torch: Any) -> None:
    """Raise :class:`Refusal` if there is another profiler.

    It may be recording, prepared, or about to start.
    """
    module = sys.modules.get("torch.autograd.profiler")
    running = getattr(module, "_is_profiler_enabled", None)
    if running is None:
        raise Refusal(
            "unsupported", f"torch {torch.__version__} does not show whether another profiler runs"
        )
    if running or torch.autograd._profiler_enabled():
        raise Refusal("refused", "another profiler runs in this training; two at once would end it")
    if _prepared(module):
        raise Refusal(
            "refused", "another profiler of this training is warming up; two at once would end it"
        )
    if os.environ.get("NSYS_PROFILING_SESSION_ID"):
        raise Refusal(
            "refused",
            "Nsight Systems profiles this process, and CUDA serves one profiler at a time",
        )


_without_any: List[int] = []
"""How many references torch's class of profilers had when there was no object of it."""


def note_none(search: bool = False) -> None:
    """Note that there is no profiler yet, because torch has only just been imported.

    With ``search`` it may have been imported long ago: then it is noted if none is found.
    """
    module = sys.modules.get("torch.autograd.profiler")
    if hasattr(module, "profile"):
        if search:
            _prepared(module)
        else:
            _without_any[:] = [_references(module)]


def _references(module: Any) -> int:
    return sys.getrefcount(module.profile)


def _prepared(module: Any) -> bool:
    """Tell whether a profiler was prepared and has not recorded yet.

    torch has no function for that, so its objects are searched for. That keeps the interpreter for
    about 0.1 s among a million objects. Each object refers to its class, so there is nothing to
    search for where the class has no more references than it had without an object.
    """
    locked = getattr(sys, "_is_gil_enabled", lambda: True)()  # else not all of them are counted
    if locked and _without_any and _references(module) <= _without_any[0]:
        return False
    before = _references(module)
    found = [one for one in gc.get_referrers(module.profile) if type(one) is module.profile]
    if not found:
        _without_any[:] = [before]
    return any(
        getattr(one, "entered", False)
        and getattr(one, "kineto_activities", None)
        and getattr(one, "kineto_results", None) is None
        for one in found
    )


class Alone:
    """A context manager that makes other threads wait when they start a profiler.

    ``wanted`` says that one waits. With ``give_way`` none waits: it is called in that thread, and
    ends our profile.
    """

    entered = False
    """Whether it is entered in this process, or was when this process was forked."""

    def __init__(self, give_way: Optional[Callable[[], None]] = None) -> None:
        self.wanted = threading.Event()
        self._give_way = give_way
        self._left = threading.Event()
        self._owner = threading.get_ident()
        self._pid = os.getpid()
        self._patched: List[Tuple[Any, str, Any, Any]] = []

    def __enter__(self) -> Alone:
        Alone.entered = True
        for name in ("torch.autograd.profiler", "torch.autograd.profiler_legacy"):
            module = sys.modules.get(name)
            for entry in _ENTRIES:
                original = getattr(module, entry, None)
                if original is not None:
                    guarded = self._guarded(original)
                    self._patched.append((module, entry, original, guarded))
                    setattr(module, entry, guarded)
        return self

    def _guarded(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def start(*args: Any, **kwargs: Any) -> Any:
            # A child that is forked meanwhile has this function too, and nobody there would ever
            # leave it.
            other = threading.get_ident() != self._owner and os.getpid() == self._pid
            if other and not self._left.is_set():
                self.wanted.set()
                (self._give_way or self._left.wait)()
            return original(*args, **kwargs)

        return start

    def __exit__(self, *_: object) -> None:
        for module, entry, original, guarded in self._patched:
            if getattr(module, entry, None) is guarded:
                setattr(module, entry, original)
        Alone.entered = False
        self._left.set()
        # The patched functions refer to this object, and it to what ``give_way`` uses. Without the
        # collector nothing of that would be freed, and with it perhaps in a forked child.
        self._patched.clear()
        self._give_way = None


def abandon() -> None:
    """In a forked child: disable a profiler that was recording all threads.

    It is not stopped, because that would call CUDA; it is only made to record no more, since a
    worker would otherwise fill its memory.
    """
    if not Alone.entered:
        return
    Alone.entered = False
    module: Any = sys.modules.get("torch.autograd.profiler")
    clear = getattr(getattr(sys.modules["torch"]._C, "_autograd", None), "_clear_callbacks", None)
    if clear is not None:
        clear()
    if module is not None:
        module._is_profiler_enabled = False


def _record(
    act: LongRequest, torch: Any, config: Any, steps: Steps, wanted: int, path: str
) -> Dict[str, Any]:
    activities = [torch.profiler.ProfilerActivity.CPU]
    with_cuda = False
    if (
        cuda.initialised()
        and torch.profiler.ProfilerActivity.CUDA in torch.profiler.supported_activities()
    ):
        ordinal = used_device()
        if ordinal is not None:
            # Stopping synchronizes the current device of this thread. By default that is device 0,
            # on which a rank of another device has no context, and would get one.
            torch.cuda.set_device(ordinal)
            activities.append(torch.profiler.ProfilerActivity.CUDA)
            with_cuda = True
    until = min(time.monotonic() + LONGEST_SECONDS, act.deadline - RESERVE_SHARE * act.seconds)
    act.stage = "looking for other profilers"
    with Alone() as alone:
        refuse_beside_another(torch)
        begin = time.perf_counter()
        profiler = torch.profiler.profile(activities=activities, experimental_config=config)
        profiler.start()
        started = time.perf_counter()
        try:
            whole, stopped = _wait(act, steps, wanted, until, alone)
        finally:
            act.stage = "the profiler is being stopped"
            recorded = time.perf_counter()
            profiler.stop()
        ended = time.perf_counter()
    act.progress(None, "writing the trace")
    act.stage = "the trace is being written"
    try:
        profiler.export_chrome_trace(path)
    finally:
        # torch keeps a file that it could not write completely open until these results are freed.
        # In the profiler's reference cycle they would be freed, and the rest written, in the thread
        # that trains.
        profiler.profiler = None
    return {
        "steps": whole,
        "seconds": recorded - started,
        "stopped": stopped,
        "start_seconds": started - begin,
        "stop_seconds": ended - recorded,
        "export_seconds": time.perf_counter() - ended,
        "cuda": with_cuda,
    }


def _wait(
    act: LongRequest, steps: Steps, wanted: int, until: float, alone: Alone
) -> Tuple[int, str]:
    """Wait until ``wanted`` whole steps are over; the step under way at the start is not whole."""
    first = steps.total
    reported = 0.0
    while True:
        whole = max(0, steps.total - first - 1)
        if whole >= wanted:
            return whole, "steps"
        now = time.monotonic()
        if alone.wanted.is_set():
            return whole, "other_profiler"
        if now >= until:
            return whole, "timeout"
        act.stage = f"{whole} of {wanted} steps recorded"
        if now - reported > 0.5:
            reported = now
            act.progress(whole / wanted, act.stage)
        act.wait(_POLL_SECONDS)


def used_device() -> Optional[int]:
    """Return an ordinal that already has a context."""
    ordinals = cuda.Allocators().ordinals()
    return ordinals[0] if ordinals else None
