"""Keep the last minutes of a trainer on disk, for when it dies while nobody watches.

This is the black box, a ring buffer in a file on the local disk (``wire/boxes.py`` defines it). Its
slots hold the lines that a client would get at 1 Hz.

The probe's thread opens the file for each write and writes with pwrite. So the kernel keeps what
was written whatever happens to the process. A slow disk delays nobody, because the interpreter lock
is not held. A full disk or a truncated file causes an error and no SIGBUS. And no descriptor stays
open that a fork or a closerange could affect.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import re
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

from .. import __version__
from ..wire import boxes, codec
from ..wire.frames import KEY_SECONDS, Def, Event, Frame, Hello, Key, Sample
from . import file_size, records, rendezvous
from .on_import import debug
from .sampler import Reasons, changes

MAX_BOXES = 16
MAX_AGE_SECONDS = 7 * 86400.0
MAX_REMADE = 3
MARK_BYTES = 24
NAME = re.compile(r"([1-9][0-9]{0,9})-([0-9]{1,19})\.box(?:\.new)?")


class BlackBox:
    """The black box of this trainer.

    It has the interface of a client (``due``, ``hz``, :meth:`sample`, :meth:`event`), and the
    probe's thread calls it. Nothing here raises; if nothing can be kept, ``problem`` says why.
    """

    hz = 1.0

    def __init__(self, hello: Callable[[float], Hello]) -> None:
        self.path = ""
        self.problem = ""
        self.due = 0.0
        self.seconds = 0.0  # duration of all writes so far
        self._hello = hello
        self._nonce = b""
        self._identity = (0, 0)
        self._mark = (0, b"")
        self._generation = 0
        self._record = 0
        self._next = 0
        self._sent_definitions: Dict[int, Def] = {}
        self._reasons: Reasons = {}
        self._key_due = 0.0
        self._remade = 0
        self._lock = threading.Lock()
        self._closed = False
        self._how: Optional[Dict[str, Any]] = None
        if os.environ.get("GPUSCOPE_BLACKBOX") == "0":
            self._give_up("disabled by GPUSCOPE_BLACKBOX=0")

    def sample(
        self,
        sample: Sample,
        reasons: Reasons,
        definitions: Dict[int, Def],
        shared: Dict[bytes, bytes],
    ) -> None:
        """Write a sample. Once a minute a key frame is written before it.

        So the part of the ring that is left can be read by itself.
        """
        now = time.monotonic()
        self.due = max(self.due + 1.0 / self.hz, now + 0.5 / self.hz)
        frames: List[Frame] = []
        if now >= self._key_due or not self.path:
            self._key_due = now + KEY_SECONDS
            self._sent_definitions, self._reasons = {}, {}
            frames.append(Key(q=sample.q, m=sample.m, t=time.time(), n=len(definitions)))
        frames += self._news(definitions)
        why = changes(self._reasons, reasons)
        self._reasons = dict(reasons)
        frames.append(Sample(q=sample.q, m=sample.m, t=sample.t, a=sample.a, why=why))
        self._keep(frames)

    def event(self, event: Event, definitions: Dict[int, Def]) -> None:
        self._keep([*self._news(definitions), event])

    def _news(self, definitions: Dict[int, Def]) -> List[Frame]:
        fresh: List[Frame] = [
            d for entity, d in definitions.items() if self._sent_definitions.get(entity) is not d
        ]
        self._sent_definitions.update(definitions)
        return fresh

    def ended(self, how: Dict[str, Any]) -> None:
        """Write into the header how the trainer ended.

        ``how`` is a JSON object: the kind of end, and what else is known about it.

        If a trainer ends before its first sample, the file does not exist yet, and is made with
        this header.
        """
        with self._lock:
            self._how = how
            if self.path:
                try:
                    header = self._header(how)
                    self._write([header])
                    self._mark = header[0], header[1][:MARK_BYTES]
                except OSError as error:
                    debug("the black box cannot be marked", error)

    def keep(self) -> str:
        """Save a compressed copy among the records, which survives a reboot; return its path.

        The path is "" if that is not possible.
        """
        try:
            with self._lock:
                if not self.path:
                    return ""
                with open(self.path, "rb") as file:
                    data = gzip.compress(file.read(boxes.FILE_BYTES), 1)
            host = re.sub(r"[^\w.-]", "_", os.uname().nodename)[:64]
            name = f"box-{host}-{os.getpid()}-{rendezvous.start_ticks()}-{int(time.time())}.gz"
            return records.write(name, data)
        except OSError as error:
            debug("the black box is not copied", error)
            return ""

    def remove(self) -> None:
        """Remove the box, because the trainer ended well or is no longer watched."""
        with self._lock:
            self._closed = True
            path, self.path = self.path, ""
            if path:
                try:
                    if self._is_ours(os.lstat(path)):
                        os.unlink(path)
                except OSError:
                    pass

    def abandon(self) -> None:
        """In a forked child: forget the box, which belongs to the parent."""
        self._lock = threading.Lock()
        self.path = ""
        self._closed = True

    # ── writing ───────────────────────────────────────────────────────────────────────────────────

    def _keep(self, frames: List[Frame]) -> None:
        with self._lock:
            if self._closed:
                return
            begin = time.perf_counter()
            try:
                if not self.path:
                    self._make()
                self._write(self._slots([line for frame in frames for line in _encoded(frame)]))
            # removed by a cleaner of /tmp, or by a program that was exec'ed
            except FileNotFoundError:
                self.path = ""
                self._remade += 1
                if self._remade > MAX_REMADE:
                    self._give_up("it was repeatedly removed")
            except (OSError, rendezvous.RendezvousError) as error:
                self._give_up(str(error))
            self.seconds += time.perf_counter() - begin

    def _give_up(self, why: str) -> None:
        self.problem = why
        self._closed = True
        self.due = math.inf
        debug("no black box", OSError(why))

    def _slots(self, lines: List[bytes]) -> List[Tuple[int, bytes]]:
        """Return runs of (offset, bytes): one, or two if the ring wraps around."""
        cells: List[bytes] = []
        for line in lines:
            self._record += 1
            cells += boxes.slots(self._nonce, self._record, line)
        room = boxes.SLOTS - self._next
        runs = []
        if cells[:room]:
            runs.append(
                (boxes.SLOTS_OFFSET + self._next * boxes.SLOT_BYTES, b"".join(cells[:room]))
            )
        if cells[room:]:
            runs.append((boxes.SLOTS_OFFSET, b"".join(cells[room:])))
        self._next = (self._next + len(cells)) % boxes.SLOTS
        return runs

    def _write(self, runs: List[Tuple[int, bytes]]) -> None:
        descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            # an inode's number is soon used again, so the header's checksum is compared too
            offset, begin = self._mark
            if (
                not self._is_ours(os.fstat(descriptor))
                or os.pread(descriptor, len(begin), offset) != begin
            ):
                raise FileNotFoundError
            with file_size.no_signal():
                for offset, data in runs:
                    file_size.check(offset + len(data), "the black box")
                    os.pwrite(descriptor, data, offset)
        finally:
            os.close(descriptor)

    def _is_ours(self, found: os.stat_result) -> bool:
        return (found.st_dev, found.st_ino) == self._identity

    def _header(self, ended: Optional[Dict[str, Any]]) -> Tuple[int, bytes]:
        self._generation += 1
        about = {
            "v": boxes.VERSION,
            "version": __version__,
            "nonce": self._nonce.hex(),
            "ended": ended,
        }
        about["hello"] = codec.encode(self._hello(self.hz)).decode("ascii")
        data = json.dumps(about).encode("ascii")
        if len(data) > boxes.HEADER_PAYLOAD_BYTES:  # the stack may have very long names
            about["ended"] = {
                name: str((ended or {}).get(name))[:256] for name in ("how", "type", "message")
            }
            data = json.dumps(about).encode("ascii")
        return boxes.header_offset(self._generation), boxes.header(self._generation, data)

    def _make(self) -> None:
        directory = _directory()
        clean(directory)
        records.check_room(directory, boxes.FILE_BYTES)
        file_size.check(boxes.FILE_BYTES, "the black box")
        self._nonce = os.urandom(16)
        self._generation = self._next = 0
        path = os.path.join(directory, name_of(os.getpid(), rendezvous.start_ticks()))
        fresh = path + ".new"
        try:
            os.unlink(fresh)
        except FileNotFoundError:
            pass
        descriptor = os.open(
            fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
        )
        try:
            with file_size.no_signal():
                os.posix_fallocate(descriptor, 0, boxes.FILE_BYTES)
                offset, header = self._header(self._how)
                os.pwrite(descriptor, header, offset)
            self._mark = offset, header[:MARK_BYTES]
            found = os.fstat(descriptor)
        except OSError:
            os.unlink(fresh)
            raise
        finally:
            os.close(descriptor)
        os.rename(fresh, path)
        self._identity = found.st_dev, found.st_ino
        self.path = path


def _encoded(frame: Frame) -> List[bytes]:
    try:
        return [codec.encode(frame)]
    except codec.WireError:
        return []


def directory() -> str:
    """Return the folder of this user's black boxes, which need not be there."""
    return os.environ.get("GPUSCOPE_BLACKBOX_DIR") or rendezvous.directory()


def name_of(pid: int, start: int) -> str:
    """Return the name of the box of a process, by its pid and its start time in clock ticks."""
    return f"{pid}-{start}.box"


def _directory() -> str:
    chosen = os.environ.get("GPUSCOPE_BLACKBOX_DIR")
    if not chosen:
        return rendezvous.checked_directory()
    os.makedirs(chosen, mode=0o700, exist_ok=True)
    records.check_private(chosen)
    return os.path.abspath(chosen)


def note_exit(pid: int, start: int, status: int) -> None:
    """Write into the box that a process has left how it ended, or remove it if it ended well.

    Whoever has seen the end of a trainer calls this: a signal and ``os._exit`` leave the trainer no
    time to write anything. ``status`` is what :func:`os.waitpid` would say. What the trainer has
    written of its end stays. Never raises.
    """
    path = os.path.join(directory(), name_of(pid, start))
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return
    try:
        head = os.pread(descriptor, boxes.SLOTS_OFFSET, 0)
        about = json.loads(boxes.read_header(head) or b"{}")
        if "nonce" not in about or about.get("ended") is not None:
            return
        if status == 0:
            os.unlink(path)
            return
        how = {"how": "exit", "code": os.WEXITSTATUS(status)}
        if os.WIFSIGNALED(status):
            how = {"how": "signal", "signal": os.WTERMSIG(status)}
        about["ended"] = {**how, "time": os.fstat(descriptor).st_mtime}
        generation = boxes.newest_generation(head) + 1
        payload = json.dumps(about).encode("ascii")
        os.pwrite(descriptor, boxes.header(generation, payload), boxes.header_offset(generation))
        os.utime(descriptor, (about["ended"]["time"], about["ended"]["time"]))
    except (OSError, ValueError, AttributeError) as error:
        debug("how it ended is not written into its black box", error)
    finally:
        os.close(descriptor)


def clean(directory: str) -> None:
    """Remove old boxes of processes that have ended.

    Boxes that are older than a week are removed, and all but the newest :data:`MAX_BOXES`.
    """
    found: List[Tuple[float, str]] = []
    for name in os.listdir(directory)[:4096]:
        match = NAME.fullmatch(name)
        if match is None or runs(int(match[1]), int(match[2])):
            continue
        path = os.path.join(directory, name)
        try:
            found.append((os.lstat(path).st_mtime, path))
        except OSError:
            pass
    found.sort()
    oldest = time.time() - MAX_AGE_SECONDS
    for index, (modified, path) in enumerate(found):
        if modified < oldest or index < len(found) - MAX_BOXES or path.endswith(".new"):
            records.remove(path)


def runs(pid: int, start: int) -> bool:
    """Whether that process still runs."""
    return start > 0 and rendezvous.start_ticks(pid) == start
