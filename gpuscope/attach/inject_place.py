"""Keeps the files of an injection where the trainer can read them.

They are in the private directory of the trainer's user, inside the trainer's own root. The injector
may be root and the trainer hostile. So every step is made with the rights of the trainer's user,
goes through an open directory that was checked, follows no symbolic link, and only makes new files.
Root makes nothing there that the user could not make, and gives nothing away. Only one injection at
a time can run for one process.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
import socket
import stat
import time
from typing import Callable, ContextManager, Dict, Optional

from ..wire import injected
from ..wire.files import open_regular_descriptor
from .inject_payload import names
from .inject_refusal import BUSY, FAILED, GONE, NEXT_RUN, REFUSED, CannotInject
from .inject_rights import CannotTakeRights, rights_of
from .inject_target import Process, main_thread_state, permission, process

BASE = "tmp"
MAX_ANSWER_BYTES = 4096
POLL_SECONDS = 0.01
DYING_SECONDS = 1.0


def inner_uid(found: Process) -> int:
    """Return the user's id inside the process's user namespace."""
    try:
        with open(f"/proc/{found.pid}/uid_map", "rb") as stream:
            for line in stream.read(4096).splitlines():
                inside, outside, count = (int(part) for part in line.split())
                if outside <= found.uid < outside + count:
                    return found.uid - outside + inside
    except (OSError, ValueError):
        pass
    return found.uid


class InjectionDirectory:
    """An open directory of the trainer's user, for one injection.

    It is a context manager, which holds the lock and removes the files at its end.
    """

    def __init__(self, found: Process) -> None:
        self._found = found
        self.nonce = f"{found.inner_pid}-{secrets.token_hex(8)}"
        self.inside = f"/{BASE}/gpuscope-{inner_uid(found)}"
        """The directory's path as the trainer sees it."""
        self._directory = self._lock = -1
        self._lock_name = ""

    def __enter__(self) -> InjectionDirectory:
        found = self._found
        try:
            # Only a path (O_PATH): it needs just the right to look into the process, and opens
            # nothing yet.
            root = os.open(f"/proc/{found.pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except PermissionError:
            raise CannotInject(REFUSED, *permission(found)) from None
        except OSError as error:
            raise self._no_room(error) from None
        try:
            # the process is still the same, so this root is its own
            process(found.pid, found.start)
            with self._rights():
                self._directory = self._open_directory(root)
        except OSError as error:
            self._close()
            raise self._no_room(error) from None
        finally:
            os.close(root)
        return self

    def _open_directory(self, root: int) -> int:
        """Return a path to the private directory, made if needed. Raises OSError."""
        flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        base = os.open(BASE, flags, dir_fd=root)
        try:
            name = os.path.basename(self.inside)
            try:
                os.mkdir(name, 0o700, dir_fd=base)
            except FileExistsError:
                pass
            directory = os.open(name, flags, dir_fd=base)
        finally:
            os.close(base)
        seen = os.fstat(directory)
        if seen.st_uid != self._found.uid or stat.S_IMODE(seen.st_mode) != 0o700:
            os.close(directory)
            raise OSError(
                errno.EINVAL, "it belongs to another user, or others can open it (chmod 700)"
            )
        return directory

    def _no_room(self, error: OSError) -> CannotInject:
        found = self._found
        if error.errno in (errno.ESRCH, errno.ENOENT) and not os.path.exists(f"/proc/{found.pid}"):
            return CannotInject(GONE, f"process {found.pid} ended meanwhile.", "gpuscope ps")
        why = error.strerror
        if isinstance(error, CannotTakeRights):
            why = f"{why}, and writing needs more rights than the trainer's user has"
        elif isinstance(error, PermissionError):
            why = f"its user, uid {found.uid}, may not write there ({why})"
        return CannotInject(
            FAILED,
            f"the probe cannot be written to {self.inside} of that process: {why}.",
            NEXT_RUN,
        )

    def _rights(self) -> ContextManager[None]:
        return rights_of(self._found.uid, self._found.gid, self._found.groups)

    def __exit__(self, *_: object) -> None:
        self.withdraw()
        self._close()

    def lock(self, seconds: float) -> None:
        """Wait for others who attach to the same process. Raises :class:`CannotInject`."""
        end = time.monotonic() + seconds
        name = f"inject-{self._found.inner_pid}.lock"
        while True:
            held = self._open_lock(name)
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(held).st_nlink:  # otherwise its holder has removed it meanwhile
                    self._lock, self._lock_name = held, name
                    return
            except OSError:
                if time.monotonic() > end:
                    os.close(held)
                    raise CannotInject(
                        BUSY,
                        "another gpuscope is attaching to it right now.",
                        "try again in a moment",
                    ) from None
                time.sleep(POLL_SECONDS)
            os.close(held)

    def _open_lock(self, name: str) -> int:
        """Return the open lock file, made if needed. Raises :class:`CannotInject`."""
        with self._rights():
            while True:
                try:
                    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                    return os.open(name, flags, 0o600, dir_fd=self._directory)
                except FileExistsError:
                    try:
                        return open_regular_descriptor(
                            name, os.O_RDWR | os.O_NOFOLLOW, self._directory
                        )
                    except FileNotFoundError:
                        continue  # just removed by its holder
                    except OSError as error:
                        raise self._no_room(error) from None
                except OSError as error:
                    raise self._no_room(error) from None

    def has_probe(self) -> bool:
        """Whether a probe listens in this process."""
        name = f"{self._found.inner_pid}-{self._found.start}.sock"
        with socket.socket(
            socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK
        ) as link, self._rights():
            try:
                link.connect(f"/proc/self/fd/{self._directory}/{name}")
            except OSError as error:
                return error.errno == errno.EAGAIN  # the probe is busy with other connections
            return True

    def put(self, script: bytes, sources: bytes) -> str:
        """Write the files and return the script's path as the trainer sees it. Raises OSError."""
        script_name, sources_name, _ = names(self.nonce)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with self._rights():
            for name, content in ((sources_name, sources), (script_name, script)):
                with os.fdopen(os.open(name, flags, 0o600, dir_fd=self._directory), "wb") as stream:
                    stream.write(content)
        return f"{self.inside}/{script_name}"

    def withdraw(self) -> None:
        """Remove the files, so that anything that still runs there finds nothing and does nothing.

        If a process is being killed, its main thread ends first, and another thread may still
        finish making a file.
        """
        end = time.monotonic() + DYING_SECONDS
        while self._directory >= 0:
            script, sources, answer = names(self.nonce)
            for name in (sources, script, answer, sources + ".taken", answer + ".new"):
                self._unlink(name)
            if not self._is_dying() or time.monotonic() > end:
                return
            time.sleep(POLL_SECONDS)

    def clear(self) -> None:
        """Remove the files that killed injectors have left here."""
        try:
            with self._rights():
                injected.remove_left(f"/proc/self/fd/{self._directory}")
        except OSError:
            pass  # files that stay take a little room, but prevent no injection

    def _is_dying(self) -> bool:
        """Whether the main thread has ended while other threads have not."""
        try:
            return (
                main_thread_state(self._found.pid) in ("Z", "X")
                and len(os.listdir(f"/proc/{self._found.pid}/task")) > 1
            )
        except OSError:
            return False

    def call_off(self) -> bool:
        """Return True if the probe will not be loaded, whatever runs there later.

        False means that it is already being loaded.
        """
        return self._unlink(names(self.nonce)[1])

    def _unlink(self, name: str) -> bool:
        try:
            with self._rights():
                os.unlink(name, dir_fd=self._directory)
        except OSError:
            return False
        return True

    def answer(self, seconds: float, go_on: Callable[[], bool]) -> Optional[Dict[str, object]]:
        """Return the script's answer, or None if there was none in time.

        It is also None if ``go_on`` returned false. A script that could open no file makes a
        symbolic link whose name says why; the name is read as text and never followed.
        """
        end = time.monotonic() + seconds
        while True:
            try:
                with self._rights():
                    answer = open_regular_descriptor(
                        names(self.nonce)[2], os.O_RDONLY | os.O_NOFOLLOW, self._directory
                    )
                with os.fdopen(answer, "rb") as stream:
                    found = json.loads(stream.read(MAX_ANSWER_BYTES).decode("utf-8", "replace"))
                    return found if isinstance(found, dict) else {}
            except FileNotFoundError:
                pass
            except (OSError, ValueError, RecursionError):
                return {"problem": self._link() or "its answer cannot be read"}
            if time.monotonic() >= end or not go_on() or not self.lives():
                return None
            time.sleep(POLL_SECONDS)

    def lives(self) -> bool:
        """Whether the process is still alive."""
        return main_thread_state(self._found.pid) not in ("", "Z", "X")

    def _link(self) -> str:
        try:
            with self._rights():
                return os.readlink(names(self.nonce)[2], dir_fd=self._directory)
        except OSError:
            return ""

    def _close(self) -> None:
        if self._lock >= 0:
            self._unlink(self._lock_name)
            os.close(self._lock)
            self._lock = -1
        if self._directory >= 0:
            os.close(self._directory)
            self._directory = -1
