"""A memory snapshot on request: the file that ``torch.cuda.memory._dump_snapshot`` would write.

``_snapshot()`` is torch's own, and holds the interpreter lock while it builds its dictionary (0.1–1
s for 120k entries of history on an H200). Everything after that is ours and lets the training run:
pickle protocol 4 writes a frame of 64 KiB at a time, each write is a system call without the lock,
and the dictionary is freed in slices. The pickle goes to an unlinked file on disk. So the trainer's
memory holds the dictionary only while it is written (about 1 KiB an entry), and never the pickle.
"""

from __future__ import annotations

import sys
import time
from pickle import Pickler  # only written here; the viewer reads what must be read back
from typing import Any, Optional

from . import cuda, symbols
from .blob_file import OwnFile, refuse_without_memory, unlinked
from .long_requests import Answer, LongRequest, Refusal

PROTOCOL = 4
"""It has frames, and every viewer of snapshots can read it, unlike protocol 5
(pytorch.org/memory_viz).
"""
ENTRY_BYTES = 1024
"""Host memory that one history entry takes in torch's dictionary: 842 bytes, for a million entries.
"""
USUAL_BYTES = 256 << 20
"""Memory that must be free if the length of the history is not known."""
SLICE = 500


class _Writer:
    """The pickler's output. At every frame it checks whether somebody still wants the snapshot."""

    def __init__(self, act: LongRequest, file: OwnFile) -> None:
        self._act = act
        self._file = file

    def write(self, data: Any) -> int:
        self._act.check()
        return self._file.write(data)


def take(act: LongRequest, entries: Optional[int]) -> Answer:
    """Take a snapshot of the allocator.

    The result has ``bytes`` (of the pickle), ``entries`` (of history in it), ``snapshot_seconds``
    (torch's part, in which the training stands still), ``pickle_seconds`` (in which it goes on),
    and ``history`` (whether torch is recording one). The blob is the pickle.

    ``entries`` is the length of a history that we have switched on. Raises :class:`Refusal` without
    CUDA, memory or disk space.
    """
    memory = cuda_memory()
    refuse_without_memory(USUAL_BYTES if entries is None else entries * ENTRY_BYTES, "a snapshot")
    if recording() is not False:
        symbols.load()
    file = act.file = unlinked()
    try:
        act.stage = "torch records the state of its allocator"
        begin = time.perf_counter()
        snapshot = memory._snapshot()
        taken = time.perf_counter()
        try:
            act.progress(None, "writing the snapshot")
            act.stage = "the snapshot is being written"
            Pickler(_Writer(act, file), PROTOCOL).dump(snapshot)
            written = time.perf_counter()
            count = sum(len(trace) for trace in snapshot.get("device_traces", ()))
        finally:
            give_back(snapshot)
        value = {
            "bytes": file.size,
            "entries": count,
            "snapshot_seconds": taken - begin,
            "pickle_seconds": written - taken,
            "history": recording() is True or (recording() is None and count > 1),
        }
        return Answer(value, file.rewind(), file.size)
    except BaseException:
        file.close()
        raise


def give_back(snapshot: Any) -> None:
    """Free a snapshot's dictionary a slice at a time.

    All at once, 120k entries would hold the interpreter lock for tens of milliseconds.
    """
    if not isinstance(snapshot, dict):
        return
    for entries in (*snapshot.get("device_traces", ()), snapshot.get("segments")):
        while isinstance(entries, list) and entries:
            del entries[-SLICE:]
            time.sleep(0)


def cuda_memory() -> Any:
    """Return ``torch.cuda.memory``, if a CUDA allocator works.

    Otherwise raises :class:`Refusal` ``unsupported``.
    """
    torch: Any = sys.modules.get("torch")
    if not cuda.initialised():
        raise Refusal("unsupported", f"there is no CUDA allocator to ask: {cuda.why_not().text}")
    if cuda.backend() == "cudaMallocAsync":
        raise Refusal(
            "unsupported", "the cudaMallocAsync allocator has no snapshots and no history"
        )
    memory = getattr(torch.cuda, "memory", None)
    if not hasattr(memory, "_snapshot") or not hasattr(memory, "_record_memory_history"):
        raise Refusal("unsupported", f"torch {torch.__version__} has no memory snapshots")
    return memory


def recording() -> Optional[bool]:
    """Whether torch is recording allocation history; None if this torch does not tell."""
    ask = getattr(getattr(sys.modules.get("torch"), "_C", None), "_cuda_isHistoryEnabled", None)
    try:
        return None if ask is None else bool(ask())
    except Exception:
        return None
