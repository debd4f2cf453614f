"""The OOM flight recorder: the state of the allocator and the program when the device was full.

torch calls an observer in the thread that asked for memory, without a lock, right before it raises.
Before that, the observer costs nothing. It can never be removed from torch; after
:meth:`OomRecorder.remove` it does nothing.

A record is a snapshot as torch writes it (``segments``, ``device_traces``), with our part under
``gpuscope``: plain containers and scalars, pickle protocol 2, gzip. Its name contains its state:
*seen* at first; *confirmed* if the process ends, or an exception stays uncaught, within a minute;
*unconfirmed* after that. If an optimizer steps on the device again, the program has caught the
error: the record is withdrawn and its file removed.
"""

from __future__ import annotations

import gzip
import os
import pickle
import re
import sys
import threading
import time
from typing import Any, Callable, Deque, Dict, List, Optional, Tuple

from .. import __version__
from ..wire.code_owner import OWN
from ..wire.frames import Unknown
from . import code_place, cuda, records, rendezvous, segments
from .on_import import debug
from .quick_requests import flat

CONFIRM_SECONDS = 60.0
MAX_BLOCKS = 40_000
"""More blocks are not listed, because their list alone would take longer than the 200 ms that a
record may take.
"""
KEPT_BLOCKS = 12_000
"""Limit of the blocks that are written: about 1.2 MB before compression. Segments of the small pool
are left out first, as a whole.
"""
MAX_ENTRIES = 50_000
MAX_FILE_BYTES = 2 << 20
COST_SHARE = 20
"""After a record, this many times its duration pass before the next complete one. So a training
that catches its OOMs spends at most 5 % of its time on them. Errors in between are noted without
segments.
"""
WRITE_WAIT_SECONDS = 0.15
"""How long the trainer waits for the file: a slow home directory must not delay its error message.
"""
SETTINGS = (
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_HIP_ALLOC_CONF",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
)
SEEN, CONFIRMED, WITHDRAWN, UNCONFIRMED = "seen", "confirmed", "withdrawn", "unconfirmed"
Announce = Callable[..., None]


class _Oom:
    """An out-of-memory error of one device that is not decided yet.

    Later errors with the same cause are counted for it.
    """

    def __init__(self, ordinal: int, data: Dict[str, Any]) -> None:
        self.ordinal = ordinal
        self.first: Optional[_Oom] = None  # of the latest of several: the first, which is kept too
        self.between: List[_Oom] = []  # records whose files are removed
        self.replaced = False
        self.data = data  # of the event
        self.at = time.monotonic()
        self.path = ""
        self.why = ""
        self.state = SEEN


class OomRecorder:
    """Record out-of-memory errors.

    ``errand(call)`` has ``call`` run in the probe's thread soon. ``step()`` returns the number of
    steps so far, and ``history()`` the length of a history that we have switched on, 0 without.
    """

    def __init__(
        self,
        announce: Announce,
        errand: Callable[[Callable[[], None]], bool],
        step: Callable[[], int],
        history: Callable[[], int] = lambda: 0,
    ) -> None:
        self.count = 0
        self.seconds = 0.0  # how long the last record took in its thread
        self._announce = announce
        self._errand = errand
        self._step = step
        self._history = history
        self._open: Deque[_Oom] = Deque()
        self._rest_until = 0.0
        self._active = True
        self._attached = False
        self._busy = threading.local()

    @property
    def waiting(self) -> bool:
        """Whether an error is undecided, so that the next step decides it.

        It is cheap enough for every step.
        """
        return bool(self._open)

    def attach(self) -> None:
        """Register the observer when CUDA is being initialised.

        Without a CUDA allocator this does nothing.
        """
        attach = getattr(
            getattr(sys.modules.get("torch"), "_C", None),
            "_cuda_attach_out_of_memory_observer",
            None,
        )
        if attach is None or self._attached or not self._active:
            return
        self._attached = True

        def gpuscope_oom_observer(device: int, requested: int, total: int, free: int) -> None:
            # An exception that a signal handler of the user's raises in here must propagate; our
            # own must not.
            if self._active:
                try:
                    self._observed(device, requested, total, free)
                except Exception as error:
                    debug("an OOM is not recorded", error)

        try:
            attach(gpuscope_oom_observer)
        except Exception as error:
            debug("OOMs are not observed", error)

    def remove(self) -> None:
        self._active = False

    def stepped(self, optimizer: Any) -> None:
        """Note that an optimizer has stepped: the program survived the errors on its devices."""
        ordinals = _devices(optimizer)
        for oom in list(self._open):
            if oom.ordinal in ordinals:
                self._decide(
                    oom, WITHDRAWN, "The training goes on: the out-of-memory error was caught."
                )

    def uncaught(self) -> None:
        """Note that an exception ends the program or a thread, or that the program ends."""
        for oom in list(self._open):
            if time.monotonic() - oom.at <= CONFIRM_SECONDS:
                self._decide(
                    oom,
                    CONFIRMED,
                    "The program ended because of the out-of-memory error, or right after it.",
                )

    def tick(self) -> None:
        """Decide and write what is due; called in the probe's thread, about once a second."""
        for oom in list(self._open):
            if time.monotonic() - oom.at > CONFIRM_SECONDS:
                self._decide(
                    oom, UNCONFIRMED, "Neither a step nor an end followed the out-of-memory error."
                )

    # ── in the thread that wanted memory ──────────────────────────────────────────────────────────

    def _observed(self, device: int, requested: int, total: int, free: int) -> None:
        if getattr(self._busy, "on", False):
            return
        self._busy.on = True
        begin = time.monotonic()
        try:
            self.count += 1
            data: Dict[str, Any] = {
                "requested_bytes": requested,
                "free_bytes": free,
                "total_bytes": total,
                "state": SEEN,
                "count": self.count,
                "record": "",
            }
            snapshot = self._taken(device, data, begin)
            last = next((oom for oom in self._open if oom.ordinal == device), None)
            oom = _Oom(device, data)
            if last is not None:  # nothing was decided in between: the latest record stands for all
                self._open.remove(last)
                oom.first = last.first or last
                if last is not oom.first:
                    last.replaced = True
                    oom.between = [*(one for one in last.between if one.path), last]
            self._open.append(oom)
            done = threading.Event()
            whole = begin >= self._rest_until
            if self._errand(lambda: self._write(oom, snapshot, done)) and whole:
                done.wait(WRITE_WAIT_SECONDS)
            self.seconds = time.monotonic() - begin
            if whole:
                self._rest_until = begin + self.seconds * COST_SHARE
        finally:
            self._busy.on = False

    def _taken(self, device: int, data: Dict[str, Any], begin: float) -> Dict[str, Any]:
        torch: Any = sys.modules["torch"]
        about: Dict[str, Any] = {
            "v": 1,
            "kind": "oom",
            "device": device,
            "time": time.time(),
            **data,
        }
        about.update(
            step=self._step(),
            torch_version=str(torch.__version__),
            python_version=sys.version.split()[0],
            gpuscope_version=__version__,
            host=os.uname().nodename,
            pid=os.getpid(),
            start=rendezvous.start_ticks(),
            thread=threading.current_thread().name[:128],
            backend=cuda.backend() or "",
            settings={name: os.environ[name][:1024] for name in SETTINGS if name in os.environ},
            stack=code_place.rows(sys._getframe(1)),
        )
        snapshot: Dict[str, Any] = {"segments": [], "device_traces": [], "gpuscope": about}
        stats: Any = None
        try:
            stats = torch._C._cuda_memoryStats(device)
            about["statistics"] = flat(stats)
        except Exception as error:
            about["statistics_why"] = f"the allocator does not answer: {str(error)[:200]}"
        about["statistics_seconds"] = time.monotonic() - begin
        if begin < self._rest_until:
            about["segments_why"] = "not listed: the last record is too recent"
            return snapshot
        self._list(torch, stats, snapshot)
        about["snapshot_seconds"] = time.monotonic() - begin - about["statistics_seconds"]
        return snapshot

    def _list(self, torch: Any, stats: Any, snapshot: Dict[str, Any]) -> None:
        about = snapshot["gpuscope"]
        history = self._history()
        about["history"] = history
        try:
            blocks = sum(
                int(stats[name]["all"]["current"]) for name in ("active", "inactive_split")
            )
        except (TypeError, KeyError, ValueError):
            blocks = 0
        if blocks > MAX_BLOCKS:
            about["segments_why"] = f"not listed: {blocks} blocks would take too long"
            return
        wanted = (None,) if history else segments.argument(torch)
        if isinstance(wanted, Unknown):
            about["segments_why"] = wanted.text
            return
        try:
            found = torch._C._cuda_memorySnapshot(*wanted)
        except Exception as error:
            about["segments_why"] = f"this torch does not list them: {type(error).__name__}"
            return
        for name in ("segments", "device_traces", "allocator_settings"):
            if isinstance(found, dict) and name in found:
                snapshot[name] = found[name]
        if not history:
            snapshot["device_traces"] = [[] for _ in snapshot["device_traces"]]

    # ── in the probe's thread ─────────────────────────────────────────────────────────────────────

    def _write(self, oom: _Oom, snapshot: Dict[str, Any], done: threading.Event) -> None:
        if oom.replaced:  # replaced by a later record before it was written
            done.set()
            return
        try:
            data = packed(snapshot)
            oom.path = records.write(_name(oom, snapshot["gpuscope"]), data)
            oom.data["record"] = oom.path
            if oom.state != SEEN:  # decided while it was being written
                self._rename(oom)
        except Exception as error:
            oom.why = str(getattr(error, "strerror", None) or error)[:300]
            debug("an OOM is not written", error)
        finally:
            done.set()
        for one in oom.between:
            if one.path:
                records.remove(one.path)
        self._tell(oom, _text(oom, snapshot["gpuscope"]))

    def _decide(self, oom: _Oom, state: str, text: str) -> None:
        try:
            self._open.remove(oom)
        except ValueError:
            return
        oom.state = oom.data["state"] = state
        for one in (oom, oom.first):
            if one is not None and one.path:
                one.state = state
                self._rename(one)
        self._tell(oom, text)

    def _rename(self, oom: _Oom) -> None:
        try:
            if oom.state == WITHDRAWN:
                os.unlink(oom.path)
                oom.path = oom.data["record"] = ""
            else:
                fresh = oom.path.replace(f".{SEEN}.", f".{oom.state}.")
                os.rename(oom.path, fresh)
                oom.path = oom.data["record"] = fresh
        except OSError as error:
            debug("a record does not get its state", error)

    def _tell(self, oom: _Oom, text: str) -> None:
        self._announce("oom", text, dict(oom.data), oom.ordinal)


def packed(snapshot: Dict[str, Any]) -> bytes:
    """Return the file's content, at most :data:`MAX_FILE_BYTES`.

    What does not fit is left out in whole segments, those of the small pool and of the smallest
    blocks first, then the oldest entries of the history. ``gpuscope.left_out`` says how much it
    was.
    """
    about = snapshot["gpuscope"]
    blocks, entries = KEPT_BLOCKS, MAX_ENTRIES
    while True:
        kept, about["left_out"] = _fewer(snapshot["segments"], blocks)
        traces = [trace[-entries:] for trace in snapshot["device_traces"]]
        about["left_out"]["entries"] = sum(map(len, snapshot["device_traces"])) - sum(
            map(len, traces)
        )
        data = gzip.compress(
            pickle.dumps({**snapshot, "segments": kept, "device_traces": traces}, 2), 1
        )
        if len(data) <= MAX_FILE_BYTES or blocks < 16:
            return data
        blocks, entries = blocks // 2, entries // 2


def _fewer(found: List[Any], limit: int) -> Tuple[List[Any], Dict[str, int]]:
    total = sum(len(segment["blocks"]) for segment in found)
    out = {"segments": 0, "blocks": 0, "bytes": 0}
    if total <= limit:
        return found, out
    gone = set()
    # Segments with the most blocks for the fewest bytes are left out first.
    for segment in sorted(found, key=lambda one: one["total_size"] / max(1, len(one["blocks"]))):
        if total <= limit:
            break
        gone.add(id(segment))
        total -= len(segment["blocks"])
        out["segments"] += 1
        out["blocks"] += len(segment["blocks"])
        out["bytes"] += segment["total_size"]
    return [segment for segment in found if id(segment) not in gone], out


def _name(oom: _Oom, about: Dict[str, Any]) -> str:
    host = re.sub(r"[^\w-]", "_", about["host"])[:64]
    return f"oom-{host}-{about['pid']}-{about['start']}-{about['count']}.{oom.state}.pickle.gz"


def _text(oom: _Oom, about: Dict[str, Any]) -> str:
    gib = 1 << 30
    stack = about["stack"]
    own = next(
        (row for row in stack if code_place.kind(row[0]) == OWN),
        stack[0] if stack else None,
    )
    where = f" at {os.path.basename(own[0])}:{own[1]} {own[2]}" if own else ""
    data = oom.data
    kept = f"Recorded in {oom.path}" if oom.path else f"Not recorded: {oom.why}"
    return (
        f"cuda:{oom.ordinal} is out of memory{where}: {data['requested_bytes'] / gib:.2f} GiB "
        f"requested, {data['free_bytes'] / gib:.2f} of {data['total_bytes'] / gib:.2f} GiB free. "
        f"{kept}."
    )


def _devices(optimizer: Any) -> List[int]:
    """Return the ordinals of the CUDA devices that hold its parameters."""
    found = {
        getattr(p.device, "index", None)
        for group in optimizer.param_groups
        for p in group["params"]
    }
    return [ordinal for ordinal in found if ordinal is not None]
