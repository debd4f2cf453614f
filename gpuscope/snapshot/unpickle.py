"""Unpickle plain containers and scalars only, and refuse every global.

It runs only in the child process with limits. A pickle can do nothing by itself: every effect needs
a callable, and callables come only from globals, extension codes (which look up a global) and
persistent ids. All three are refused.

Torch writes the segments first, then the traces. When a file ends early or memory runs out, the
finished objects are still in the unpickler's memo, in the order of the file, and :func:`salvage`
assembles them.
"""

from __future__ import annotations

import gzip
import io
import os
import pickle
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from ..wire.files import open_regular

BUFFER_BYTES = 1 << 20
HEAD_BYTES = 4096
PADDING_BYTES = 1 << 18
"""More bytes than remain to be read of any frame of a pickle."""
_PROGRESS_BYTES = 8 << 20
# The first object of a torch.save() file before torch 1.6.
_LEGACY_CHECKPOINT = 0x1950A86A20F9469CFC6C


class ForbiddenPickle(Exception):
    """The pickle asks for a global: it wants to run something."""


class Unreadable(Exception):
    """A file cannot be read. ``code`` is as in :class:`gpuscope.snapshot.model.ReadFailure`."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class Restricted(pickle.Unpickler):
    """An unpickler that refuses every global.

    Extension codes are looked up in an empty registry, so they are refused as well.
    """

    def find_class(self, module: str, name: str, /) -> NoReturn:
        raise ForbiddenPickle(f"{module}.{name}"[:200])

    def persistent_load(self, pid: Any, /) -> NoReturn:
        raise ForbiddenPickle("a persistent id")


@dataclass
class Loaded:
    """The content of a pickle, or what could be recovered of it.

    ``problem`` says why ``root`` is incomplete: "" | truncated | memory | damaged, with the text of
    the error in ``text``. ``read_bytes`` counts the pickle after decompression.
    """

    root: Any
    read_bytes: int
    file_bytes: int
    packed: bool
    protocol: int | None
    problem: str = ""
    text: str = ""


class _Counting(io.RawIOBase):
    """A file that counts the bytes read and reports the count now and then.

    After the end it returns ``padding`` bytes of ".", the opcode that ends a pickle.
    """

    def __init__(
        self,
        source: io.RawIOBase | gzip.GzipFile,
        say: Callable[[int], None] | None = None,
        padding: int = 0,
    ) -> None:
        self.source, self.say, self.padding = source, say, padding
        self.count, self._next = 0, _PROGRESS_BYTES

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        try:
            number = self.source.readinto(buffer) or 0
        except EOFError:  # gzip raises this for a file that was cut
            number = 0
        if not number and self.padding:
            number = min(self.padding, len(buffer))
            self.padding -= number
            buffer[:number] = b"." * number
            return number
        self.count += number
        if self.say is not None and self.count >= self._next:
            self._next = self.count + _PROGRESS_BYTES
            self.say(self.count)
        return number


def load(
    path: str, on_progress: Callable[[float], None], more_memory: Callable[[], None]
) -> Loaded:
    """Read the pickle at ``path``.

    ``more_memory`` is called when the memory limit is reached, before anything is recovered. Raises
    :class:`Unreadable`, also for :class:`ForbiddenPickle`: nothing is shown of a file that tries to
    run code.

    From protocol 4 on, a pickle has frames of 64 KiB, and the unpickler needs a whole frame before
    it starts on it. A file that was cut is therefore read once more with an end added, so that the
    part of its last frame counts, too.
    """
    with open_regular(path).detach() as file:  # type: ignore[attr-defined]
        loaded = _attempt(file, on_progress, more_memory, 0)
        if loaded.problem == "truncated" and (loaded.protocol or 0) >= 4:
            loaded.root = None
            file.seek(0)
            again = _attempt(file, on_progress, more_memory, PADDING_BYTES)
            loaded.root = again.root
        return loaded


def _attempt(
    file: io.FileIO,
    on_progress: Callable[[float], None],
    more_memory: Callable[[], None],
    padding: int,
) -> Loaded:
    size = os.fstat(file.fileno()).st_size
    counted = _Counting(file, lambda done: on_progress(done / max(size, 1)), padding)
    stream: Any = io.BufferedReader(counted, BUFFER_BYTES)
    head = stream.peek(HEAD_BYTES)[:HEAD_BYTES]
    packed = head[:2] == b"\x1f\x8b"
    if packed:
        counted.padding = 0
        counted = _Counting(gzip.GzipFile(fileobj=stream), None, padding)
        stream = io.BufferedReader(counted, BUFFER_BYTES)
        try:
            head = stream.peek(HEAD_BYTES)[:HEAD_BYTES]
        except (OSError, zlib.error) as error:
            raise Unreadable(
                "foreign", f"compressed by gzip, and damaged at the start: {error}"
            ) from None
        if not head:
            raise Unreadable("foreign", "compressed by gzip, and empty or cut off near its start.")
    _refuse_foreign(head)
    protocol = head[1] if head[:1] == b"\x80" and len(head) > 1 else None
    unpickler = Restricted(stream, fix_imports=False, encoding="utf-8", errors="replace")
    problem = text = ""
    root: Any = None
    try:
        root = unpickler.load()
    except ForbiddenPickle as error:
        raise Unreadable(
            "hostile",
            f"this pickle tries to import {error}: a snapshot never does. Nothing was run or "
            f"shown.",
        ) from None
    except MemoryError:
        more_memory()
        problem, text = "memory", "memory reached its limit"
    except EOFError as error:
        problem, text = "truncated", str(error)
    except Exception as error:
        problem = (
            "truncated" if "truncated" in str(error) or "exhausted" in str(error) else "damaged"
        )
        text = f"{type(error).__name__}: {str(error)[:200]}"
    if problem or padding:
        root = salvage(unpickler)
    return Loaded(root, counted.count, size, packed, protocol, problem, text)


def _refuse_foreign(head: bytes) -> None:
    """Refuse files that people mistake for snapshots, with what they are and what to do."""
    begin = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    lower = begin[:512].lower()
    what = ""
    if not head:
        what = "the file is empty."
    elif head[:4] == b"PK\x03\x04":
        what = "a zip file, as torch.save() writes: a checkpoint, not an allocator snapshot."
    elif lower.startswith((b"<!doctype html", b"<html")):
        what = (
            "a page drawn by _memory_viz. Read its pickle instead, which "
            "torch.cuda.memory._dump_snapshot() wrote."
        )
    elif begin[:1] == b"{" and b'"k":"hello"' in head[:512]:
        what = "a gpuscope recording. Next: gpuscope replay FILE"
    elif begin[:1] in (b"{", b"[") and b'"' in head[:64]:
        trace = b"traceEvents" in head or b'"ph"' in head
        what = (
            "a torch.profiler Chrome trace, not a snapshot."
            if trace
            else "JSON; a snapshot is a pickle."
        )
    elif head[:15] == b"SQLite format 3":
        what = "an SQLite database; a snapshot is a pickle."
    elif head[:1] not in (b"\x80", b"(", b"}", b"]") and not re.match(rb"c[\w.]+\n[\w.]+\n", head):
        # The pickle of a dictionary or a list does not begin like this, nor does the oldest form of
        # a pickle that tries to run code.
        what = "not a pickle, and so no allocator snapshot."
    if what:
        raise Unreadable("foreign", what)


def check_root(loaded: Loaded) -> dict[str, Any]:
    """Return the snapshot's dictionary. Raises :class:`Unreadable` where there is none.

    A bare list of segments (``torch.cuda.memory_snapshot()``) is wrapped in one.
    """
    root = loaded.root
    if (
        isinstance(root, list)
        and root
        and all(isinstance(one, dict) and "blocks" in one for one in root)
    ):
        return {"segments": root}
    if isinstance(root, dict) and ("segments" in root or "device_traces" in root):
        return root
    if loaded.problem == "truncated":
        at = f"it ends after {loaded.read_bytes:,} bytes, before any data that can be shown"
        raise Unreadable("truncated", f"a truncated pickle: {at}.")
    if loaded.problem == "damaged":
        raise Unreadable("foreign", f"not a pickle, or a damaged one ({loaded.text}).")
    if loaded.problem == "memory":
        raise Unreadable(
            "too_big",
            f"memory ran out after {loaded.read_bytes:,} bytes, before any data that can be shown.",
        )
    if root == _LEGACY_CHECKPOINT:
        raise Unreadable(
            "foreign",
            "a torch.save() checkpoint in the old format, not an allocator snapshot.",
        )
    keys = ", ".join(str(key)[:40] for key in list(root)[:5]) if isinstance(root, dict) else ""
    what = (
        f"a dictionary with {keys or 'nothing'}"
        if isinstance(root, dict)
        else f"a {type(root).__name__}"
    )
    raise Unreadable(
        "foreign", f"a pickle, but of {what}: a snapshot has segments and device_traces."
    )


def salvage(unpickler: pickle.Unpickler) -> dict[str, Any] | None:
    """Return what was finished when loading stopped, in the order of the file.

    These are segments, and the entries of each device. Python's pickler memoizes every container
    when it begins, so the memo holds every finished entry, even those not yet appended to their
    list. If the pickler memoized nothing, nothing can be recovered and the result is None.
    """
    try:
        memo: Any = unpickler.memo.copy()
    except MemoryError:
        return None
    segments: list[Any] = []
    traces: list[list[Any]] = []
    top: dict[str, Any] = {}
    inner: set[int] = set()  # lists inside entries, which are their frames
    in_traces = outer = False
    for one in memo.values():
        kind = type(one)
        if kind is dict:
            if "action" in one:
                if not traces:
                    traces.append([])
                traces[-1].append(one)
                inner.update(id(value) for value in one.values() if type(value) is list)
            elif "blocks" in one and "total_size" in one:
                segments.append(one)
            elif "max_split_size" in one or "PYTORCH_CUDA_ALLOC_CONF" in one:
                top["allocator_settings"] = one
        elif kind is str and one == "host_segments":
            break  # what follows is in pinned host memory, not on a device
        elif kind is str:
            in_traces = in_traces or one == "device_traces"
        elif kind is list and in_traces:
            # The outer list comes first, then one list per device.
            if (
                outer
                and id(one) not in inner
                and (not one or (type(one[0]) is dict and "action" in one[0]))
            ):
                traces.append([])
            outer = True
    # A list of frames that has just begun looks like a device without entries.
    while len(traces) > 1 and not traces[-1]:
        traces.pop()
    if not segments and not any(traces):
        return None
    return {"segments": segments, "device_traces": traces, **top}
