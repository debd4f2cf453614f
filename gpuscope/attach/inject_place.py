"""Where the files of an injection lie: in the private directory of the trainer's user, in the trainer's own root.

Whoever injects may be root and the trainer hostile, so every step goes through an open directory that was checked:
a symlink is never followed, and what is written is new. One injection at a time into one process."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
import socket
import stat
import time
from typing import Callable, Dict, List, Optional

from ..wire import injected
from .inject_payload import names
from .inject_refusal import BUSY, FAILED, GONE, NEXT_RUN, REFUSED, CannotInject
from .inject_target import Process, main_thread_state, permission

BASE = "tmp"
MAX_ANSWER_BYTES = 4096
POLL_SECONDS = 0.01
DYING_SECONDS = 1.0


def inner_uid(found: Process) -> int:
    """The user's number inside the process's user namespace."""
    try:
        with open(f"/proc/{found.pid}/uid_map", "rb") as stream:
            for line in stream.read(4096).splitlines():
                inside, outside, count = (int(part) for part in line.split())
                if outside <= found.uid < outside + count:
                    return found.uid - outside + inside
    except (OSError, ValueError):
        pass
    return found.uid


class Place:
    """An open directory of the trainer's user. A context manager: the lock is held, and the files are gone after."""

    def __init__(self, found: Process) -> None:
        self._found = found
        self.nonce = f"{found.inner_pid}-{secrets.token_hex(8)}"
        self.inside = f"/{BASE}/gpuscope-{inner_uid(found)}"
        """The directory's path as the trainer sees it."""
        self._directory = self._lock = -1
        self._lock_name = ""

    def __enter__(self) -> Place:
        found = self._found
        opened: List[int] = []
        try:
            opened.append(os.open(f"/proc/{found.pid}/root", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            opened.append(os.open(BASE, flags, dir_fd=opened[-1]))
            name = os.path.basename(self.inside)
            made = False
            try:
                os.mkdir(name, 0o700, dir_fd=opened[-1])
                made = True
            except FileExistsError:
                pass
            self._directory = os.open(name, flags, dir_fd=opened[-1])
            if made:
                os.fchown(self._directory, found.uid, found.gid)
                os.fchmod(self._directory, 0o700)
            self._check()
        except PermissionError:
            self._close()
            raise CannotInject(REFUSED, *permission(found)) from None
        except OSError as error:
            self._close()
            if error.errno in (errno.ESRCH, errno.ENOENT) and not os.path.exists(f"/proc/{found.pid}"):
                raise CannotInject(GONE, f"process {found.pid} ended meanwhile.", "gpuscope ps") from None
            raise CannotInject(
                FAILED, f"there is no room for the probe in {self.inside} of that process: {error.strerror}.", NEXT_RUN
            ) from None
        finally:
            for number in opened:
                os.close(number)
        return self

    def __exit__(self, *_: object) -> None:
        self.withdraw()
        self._close()

    def lock(self, seconds: float) -> None:
        """Wait for others who attach to this very process. Raises :class:`CannotInject`."""
        end = time.monotonic() + seconds
        name = f"inject-{self._found.inner_pid}.lock"
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        while True:
            held = os.open(name, flags, 0o600, dir_fd=self._directory)
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(held).st_nlink:  # else whoever held it has removed it meanwhile
                    self._lock, self._lock_name = held, name
                    return
            except OSError:
                if time.monotonic() > end:
                    os.close(held)
                    raise CannotInject(
                        BUSY, "another gpuscope is attaching to it at this moment.", "try again in a moment"
                    ) from None
                time.sleep(POLL_SECONDS)
            os.close(held)

    def has_probe(self) -> bool:
        """Whether a probe of this very process listens."""
        name = f"{self._found.inner_pid}-{self._found.start}.sock"
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as link:
            try:
                link.connect(f"/proc/self/fd/{self._directory}/{name}")
            except OSError as error:
                return error.errno == errno.EAGAIN  # too many are being let in
            return True

    def put(self, script: bytes, sources: bytes) -> str:
        """Write the files; the script's path as the trainer sees it. Raises OSError."""
        script_name, sources_name, _ = names(self.nonce)
        for name, content in ((sources_name, sources), (script_name, script)):
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open(name, flags, 0o600, dir_fd=self._directory), "wb") as stream:
                if self._found.uid != os.geteuid():
                    os.fchown(stream.fileno(), self._found.uid, self._found.gid)
                stream.write(content)
        return f"{self.inside}/{script_name}"

    def withdraw(self) -> None:
        """Remove the files. What is still to run there finds nothing, and does nothing. Of a process that is being
        killed the main thread ends first: another may still finish the making of a file."""
        end = time.monotonic() + DYING_SECONDS
        while self._directory >= 0:
            script, sources, answer = names(self.nonce)
            for name in (sources, script, answer, sources + ".taken", answer + ".new"):
                try:
                    os.unlink(name, dir_fd=self._directory)
                except OSError:
                    pass
            if not self._dying() or time.monotonic() > end:
                return
            time.sleep(POLL_SECONDS)

    def clear(self) -> None:
        """Remove what injectors have left here that were killed."""
        try:
            injected.remove_left(f"/proc/self/fd/{self._directory}")
        except OSError:
            pass  # it costs a little room, and no injection

    def _dying(self) -> bool:
        """Whether the main thread has ended and others have not."""
        try:
            return (
                main_thread_state(self._found.pid) in ("Z", "X")
                and len(os.listdir(f"/proc/{self._found.pid}/task")) > 1
            )
        except OSError:
            return False

    def call_off(self) -> bool:
        """True: the probe is not loaded, whatever runs there later. False: it is being loaded already."""
        try:
            os.unlink(names(self.nonce)[1], dir_fd=self._directory)
        except OSError:
            return False
        return True

    def answer(self, seconds: float, go_on: Callable[[], bool]) -> Optional[Dict[str, object]]:
        """What the script has answered; None when nothing came in time, or ``go_on`` was false meanwhile. A link says
        why a script that could open no file has failed; what it names is read as words, and never followed."""
        end = time.monotonic() + seconds
        while True:
            try:
                flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
                with os.fdopen(os.open(names(self.nonce)[2], flags, dir_fd=self._directory), "rb") as stream:
                    found = json.loads(stream.read(MAX_ANSWER_BYTES).decode("utf-8", "replace"))
                    return found if isinstance(found, dict) else {}
            except FileNotFoundError:
                pass
            except (OSError, ValueError, RecursionError):
                return {"problem": self._link() or "what it answers cannot be read"}
            if time.monotonic() >= end or not go_on() or not self.lives():
                return None
            time.sleep(POLL_SECONDS)

    def lives(self) -> bool:
        """Whether the process has not ended."""
        return main_thread_state(self._found.pid) not in ("", "Z", "X")

    def _link(self) -> str:
        try:
            return os.readlink(names(self.nonce)[2], dir_fd=self._directory)
        except OSError:
            return ""

    def _check(self) -> None:
        seen = os.fstat(self._directory)
        if seen.st_uid != self._found.uid or stat.S_IMODE(seen.st_mode) != 0o700:
            raise OSError(errno.EINVAL, "it belongs to somebody else, or is open to others (chmod 700)")

    def _close(self) -> None:
        if self._lock >= 0:
            try:
                os.unlink(self._lock_name, dir_fd=self._directory)
            except OSError:
                pass
            os.close(self._lock)
            self._lock = -1
        if self._directory >= 0:
            os.close(self._directory)
            self._directory = -1
