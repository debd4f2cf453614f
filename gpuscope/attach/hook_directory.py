"""Makes the directory that ``gpuscope run`` puts at the front of PYTHONPATH.

It contains only ``sitecustomize.py`` and ``probe.zip``. It is in the user's private directory, and
its name is a digest of its content. So all trainers of one version share it, and a training that
runs for weeks keeps the directory it was started with when gpuscope is upgraded.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tempfile
from typing import Dict

from ..probe import on_import, rendezvous
from .bundle import probe_zip_bytes

ATTEMPTS = 8
"""Number of attempts. All ranks of a job may start at once and make the directory at the same time.
"""


def contents() -> Dict[str, bytes]:
    """Return {file name: bytes}. Raises OSError if gpuscope's own files cannot be read."""
    with open(os.path.abspath(on_import.__file__), "rb") as file:
        return {"sitecustomize.py": file.read(), "probe.zip": probe_zip_bytes()}


def prepare() -> str:
    """Return the path of a directory with exactly these contents, made if needed.

    It appears complete or not at all. Raises :class:`rendezvous.RendezvousError` or OSError if it
    cannot be made.
    """
    files = contents()
    digest = hashlib.sha256()
    for name, content in sorted(files.items()):
        digest.update(b"%s %d\n" % (name.encode(), len(content)) + content)
    base = rendezvous.checked_directory()
    path = os.path.join(base, "hook-" + digest.hexdigest()[:16])
    if is_intact(path, files):
        return path
    fresh = tempfile.mkdtemp(prefix="hook-new-", dir=base)  # 0700
    try:
        for name, content in files.items():
            descriptor = os.open(
                os.path.join(fresh, name),
                os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC,
                0o600,
            )
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
        _put(fresh, path, files)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)  # another process was faster, or it failed
    return path


def _put(fresh: str, path: str, files: Dict[str, bytes]) -> None:
    """Rename ``fresh`` to ``path``, unless another process has put the same there meanwhile.

    A directory that is in use is never moved away. Raises OSError.
    """
    for attempt in range(ATTEMPTS):
        if is_intact(path, files):
            return
        try:
            # damaged: it is moved away and not removed, because a running trainer may still read it
            if os.path.lexists(path):
                os.rename(
                    path, tempfile.mkdtemp(prefix="hook-old-", dir=os.path.dirname(path)) + "/aside"
                )
            os.rename(fresh, path)
            return
        except OSError:
            if attempt == ATTEMPTS - 1:  # otherwise another process acted between our two steps
                raise


def is_intact(path: str, files: Dict[str, bytes]) -> bool:
    """Tell whether a directory is our own, private, and holds exactly these files.

    It may also hold Python's byte code cache. A symbolic link is never intact.
    """
    try:
        found = os.lstat(path)
        if (
            not stat.S_ISDIR(found.st_mode)
            or found.st_uid != os.geteuid()
            or stat.S_IMODE(found.st_mode) != 0o700
        ):
            return False
        if set(os.listdir(path)) - {"__pycache__"} != set(files):
            return False
        for name, content in files.items():
            descriptor = os.open(
                os.path.join(path, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
            )
            with os.fdopen(descriptor, "rb") as file:
                if (
                    os.fstat(file.fileno()).st_uid != os.geteuid()
                    or file.read(len(content) + 1) != content
                ):
                    return False
    except OSError:
        return False
    return True
