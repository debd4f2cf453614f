"""Starts the capped child, asks it and decodes what it says. Nothing here ever unpickles.

    with open_snapshot("snap.pickle") as reading:
        reading.summary                     # all views of the file
        reading.at(0, "peak")               # stacks of what was live then
        reading.between(0, "50%", "end")    # allocated in between, and still there
        reading.diff("older.pickle")        # what grew since

All calls block: a screen makes them in a thread. ``close()`` may come from any thread at any time;
a call that waits then ends with code ``cancelled``. The child is killed on a timeout, on ``close``
and when this process ends.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from ..errors import UserError
from ..process.line_child import ChildError, Ended, Late, LineChild, TooMuch
from ..text.units import bytes_text
from ..wire.clean import clean
from ..wire.files import NotAFile, open_regular
from . import history, limits
from .model import (
    MAX_MESSAGE_BYTES,
    MAX_ROWS,
    At,
    Between,
    Course,
    Diff,
    ReadFailure,
    Stacks,
    Summary,
)

__all__ = ["Reading", "SnapshotError", "open_snapshot"]

CHILD = Path(__file__).with_name("child.py")
QUERY_SECONDS = 60.0
"""Seconds to wait for an answer about an open snapshot."""

Message = TypeVar("Message")


class SnapshotError(UserError):
    """A snapshot that cannot be read. The text is clean and says what to do.

    ``code`` is one of missing, unreadable, foreign, hostile, truncated, too_big, unusable and
    usage, which the child reports, or of timeout, cancelled and crashed.
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text, code=code)


def open_snapshot(
    path: str | os.PathLike[str],
    memory_limit: int | None = None,
    timeout: float | None = None,
    top: int = 20,
    on_progress: Callable[[float], None] | None = None,
    on_start: Callable[[Reading], None] | None = None,
) -> Reading:
    """Read ``path`` in a child and return once its summary is there.

    ``memory_limit`` in bytes limits the child's address space (default:
    :func:`limits.default_limit`). ``timeout`` limits the reading in seconds (default:
    :func:`limits.default_seconds` for the file's size). ``top`` is the number of stacks in each
    list (1 to ``MAX_ROWS``). ``on_progress`` is called in this thread with the share of the file
    that was read, 0 to 1. ``on_start`` is called with the reading before it is ready, for a caller
    that wants to ``close()`` it from another thread meanwhile.

    Raises only :class:`SnapshotError`, whatever is wrong with the file or the child.
    """
    reading = Reading(Path(path), memory_limit, timeout)
    try:
        if on_start is not None:
            on_start(reading)
        reading._load(min(max(top, 1), MAX_ROWS), on_progress)
    except BaseException:
        reading.close()
        raise
    return reading


class Reading:
    """An open snapshot, with a child that answers requests about it until :meth:`close`.

    ``summary`` is the first answer (a :class:`~gpuscope.snapshot.model.Summary`). The object is
    thread-safe: requests wait for each other. ``limit_bytes`` is the child's memory limit.
    """

    summary: Summary

    def __init__(self, path: Path, memory_limit: int | None, timeout: float | None) -> None:
        try:
            with open_regular(path) as file:
                size = os.fstat(file.fileno()).st_size
        except OSError as error:
            missing = "missing" if isinstance(error, FileNotFoundError) else "unreadable"
            code = "unusable" if isinstance(error, NotAFile) else missing
            raise SnapshotError(code, clean(f"cannot read it: {error.strerror}")) from None
        limit, seconds = limits.for_files(path)
        self.path = path
        self.file_bytes = size
        self.limit_bytes = memory_limit or limit
        self._seconds = timeout or seconds
        self._lock = threading.Lock()
        self._closed = False
        try:
            self._process = LineChild(
                [
                    sys.executable,
                    "-I",
                    "-S",
                    str(CHILD),
                    str(self.limit_bytes),
                    str(max(1, int(self._seconds))),
                ],
                # One malloc arena is enough, and every other one reserves 64 MiB of the limited
                # address space.
                env={**os.environ, "MALLOC_ARENA_MAX": "1"},
                max_line_bytes=MAX_MESSAGE_BYTES,
            )
        except OSError as error:
            raise SnapshotError(
                "crashed", f"cannot start the reading process: {error.strerror}"
            ) from None

    @property
    def pid(self) -> int:
        return self._process.pid

    # ── questions ─────────────────────────────────────────────────────────────────────────────────

    def at(self, device: int, moment: int | str, top: int = 20) -> At:
        """Return what was live after an entry of the device's trace, by stack.

        ``moment`` is the number of an entry (−1: before the first), or one of ``model.MOMENTS``. If
        there is no such moment or no trace, the error's code is ``usage``.
        """
        return self._ask({"ask": "at", "device": device, "moment": moment, "top": top}, At)

    def course(self, device: int, stack: int) -> Course:
        """Return the live bytes of one stack over the device's trace.

        ``stack`` is the number of a :class:`StackRow`. If there is no trace, the error's code is
        ``usage``.
        """
        return self._ask({"ask": "course", "device": device, "stack": stack}, Course)

    def sized(self, device: int, low_bytes: int, top: int = 20) -> Stacks:
        """Return which stacks hold the live blocks of a :class:`Bucket` of sizes."""
        question = {"ask": "sized", "device": device, "low": low_bytes, "top": top}
        return self._ask(question, Stacks)

    def between(self, device: int, first: int | str, last: int | str, top: int = 20) -> Between:
        """Return what was allocated after ``first`` and is still live after ``last``, by stack."""
        return self._ask(
            {"ask": "between", "device": device, "first": first, "last": last, "top": top}, Between
        )

    def diff(self, before: str | os.PathLike[str], top: int = 20) -> Diff:
        """Return what changed from the snapshot in the file ``before`` to this one.

        That file is read, too, under the same limits. If it is much larger, open this snapshot with
        the limits that :func:`limits.for_files` returns for both.
        """
        question = {"ask": "diff", "path": os.path.abspath(before), "top": top}
        return self._ask(question, Diff, self._seconds + QUERY_SECONDS)

    def history(self, device: int) -> history.History:
        """Return the whole trace of a device, and the segments at its end.

        A million entries take 30 MB and half a second. If there is no trace, the error's code is
        ``usage``.
        """
        found = history.History()
        total = 1
        try:
            while len(found.code) < total:
                question = {"ask": "part", "device": device, "begin": len(found.code)}
                part = self._ask(question, history.Part)
                total = part.total
                history.add_part(found, part)
                if not part.code:
                    break
            history.add_layout(
                found, self._ask({"ask": "layout", "device": device}, history.Layout)
            )
        except history.BadHistory as error:
            raise SnapshotError(
                "crashed", f"the reading process wrote something unexpected: {error}"
            ) from None
        return found

    def close(self) -> None:
        """Ends the child. Never waits long, may be called twice."""
        self._closed = True
        self._process.kill()
        if self._lock.acquire(blocking=False):  # otherwise the thread that waits closes the pipes
            self._process.close()
            self._lock.release()

    def __enter__(self) -> Reading:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ── the pipe ──────────────────────────────────────────────────────────────────────────────────

    def _load(self, top: int, on_progress: Callable[[float], None] | None) -> None:
        question = {"ask": "open", "path": os.path.abspath(self.path), "top": top}
        self.summary = self._ask(question, Summary, self._seconds, on_progress)
        for note in self.summary.notes:
            if note.code == "memory":
                note.text += f" {self._cap()}"

    def _cap(self) -> str:
        cap, size = bytes_text(self.limit_bytes), bytes_text(self.file_bytes)
        return f"The file has {size}, the limit is {cap}: --memory-limit raises it."

    def _ask(
        self,
        question: dict[str, Any],
        kind: type[Message],
        seconds: float = QUERY_SECONDS,
        on_progress: Callable[[float], None] | None = None,
    ) -> Message:
        with self._lock:
            try:
                return self._exchange(question, kind, time.monotonic() + seconds, on_progress)
            except BaseException as error:
                if not isinstance(error, SnapshotError) or error.code in (
                    "timeout",
                    "crashed",
                    "cancelled",
                ):
                    self._closed = True
                raise
            finally:
                if self._closed:
                    self._process.close()

    def _exchange(
        self,
        question: dict[str, Any],
        kind: type[Message],
        deadline: float,
        on_progress: Callable[[float], None] | None,
    ) -> Message:
        if self._closed:
            raise SnapshotError("cancelled", "the snapshot was closed")
        try:
            self._process.write(json.dumps(question).encode() + b"\n")
        except Ended as error:
            raise self._no_answer(error) from None
        while True:
            name, content = self._answer(deadline)
            if name == "progress":
                if on_progress is not None:
                    on_progress(_decode(content, float))
            elif name == "failure":
                failure = _decode(content, ReadFailure)
                more = f" {self._cap()}" if failure.code == "too_big" else ""
                raise SnapshotError(failure.code, clean(failure.text + more))
            else:
                return _decode(content, kind)

    def _answer(self, deadline: float) -> tuple[str, bytes]:
        """Return the word before the first space of the child's line, and the JSON after it."""
        try:
            line = self._process.read_line(deadline)
        except ChildError as error:
            raise self._no_answer(error) from None
        name, _, content = line.partition(b" ")
        return name.decode("ascii", "replace"), content

    def _no_answer(self, error: ChildError) -> SnapshotError:
        """Return why the child gave no answer, as far as its end tells."""
        if self._closed:
            return SnapshotError("cancelled", "the snapshot was closed")
        if isinstance(error, Late):
            text = (
                f"not read within the time limit: {self.path} ({bytes_text(self.file_bytes)}); "
                "try --timeout"
            )
            return SnapshotError("timeout", clean(text))
        if isinstance(error, TooMuch):
            return SnapshotError("crashed", "the reading process wrote more than allowed")
        words = f": {self._process.last_words}" if self._process.last_words else ""
        how = f"the process that read {self.path} gave no answer, {error}{words}"
        return SnapshotError("crashed", clean(f"{how}. The file may be damaged or malicious.", 500))


def _decode(content: bytes, kind: type[Message]) -> Message:
    # Imported while the child already reads, because it takes as long as the child's start.
    import msgspec

    try:
        return msgspec.json.decode(content, type=kind)
    except (ValueError, RecursionError) as error:
        raise SnapshotError(
            "crashed", clean(f"the reading process wrote something unexpected: {error}", 300)
        ) from None
