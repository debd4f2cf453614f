"""Makes the two zips that are sent: the agent (with pynvml) and the probe.

Equal sources give equal bytes. The agent always runs from its zip, on this host as on a remote one,
so that there is only one way to run it. The local zip also holds byte code for this Python, because
compiling pynvml alone would take longer than everything else at the agent's start.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from typing import Any, List, Optional

from ..process import atomic_file
from .probe_source import OF_RUN, WIRE, Contents, in_package, sources_of

SHARED = (
    "errors.py", "exit_status.py", "process/__init__.py", "process/cgroup.py",
    "process/child.py", "process/procfs.py",
    "text/__init__.py", "text/log_figures.py", "text/ranges.py", "wire/clean.py",
)  # fmt: skip
"""The files outside of agent/ and collect/ that the agent needs."""
_STAYS = ("agent/__main__.py", "agent/live_frames.py", "agent/oneshot_frames.py", OF_RUN)
"""What is used only where gpuscope is installed."""
STALE_SECONDS = 7 * 86400.0

_AGENT_MAIN = b"from gpuscope.agent.main import main\n\nmain()\n"
_TRAVELS = re.compile(r"attach/(?:__init__|probe_source|elf|maps|attach_options|inject\w*)\.py$")
"""The files of attach/ that an agent needs to inject a probe, or to check whether it can."""
_ENDING = b"PK\x05\x06"


def probe_zip_bytes() -> bytes:
    """Return the probe as package ``_gpuscope_probe``, for any Python from 3.8 on.

    A trainer that starts with it has all of it.
    """
    return zipped(in_package(sources_of(("__init__.py", *WIRE), ("probe",))), compress=True)


def local_agent_argv(hz: float) -> List[str]:
    """Return the command that starts an agent on this machine.

    It builds the agent's zip if none has been built from these sources yet.
    """
    return [sys.executable, "-I", local_agent_zip(), "--hz", f"{hz:g}"]


def _digest(content: bytes) -> Any:
    """Return a BLAKE2 digest of 24 letters.

    ``hashlib`` would load OpenSSL for it, 5 MiB in every viewer.
    """
    try:
        from _blake2 import blake2b
    except ImportError:
        from hashlib import blake2b
    return blake2b(content, digest_size=12)


def local_agent_zip() -> str:
    """Return the path of the agent's zip for this Python. Raises OSError if it cannot be made.

    The zip is in the user's cache, or else in a private temporary file that is removed when this
    process ends.
    """
    contents = agent_contents()
    tag = f"{sys.implementation.cache_tag}-{sys.hexversion:08x}"
    digest = _digest(tag.encode())
    for name in sorted(contents):
        digest.update(b"%s\0%d\0" % (name.encode(), len(contents[name])))
        digest.update(contents[name])
    name = f"agent-{digest.hexdigest()}.zip"
    folder = trusted_cache_folder()
    if folder is not None:
        path = os.path.join(folder, name)
        if _is_whole(path):
            return path
        try:
            atomic_file.write(path, _local_zip(contents))
            _remove_stale(folder, name)
            return path
        except OSError:
            pass  # the cache is read-only or full, so a temporary file is used
    return _temporary(_local_zip(contents))


# ── what goes in ──────────────────────────────────────────────────────────────────────────────────


def agent_contents() -> Contents:
    own = sources_of(
        ("__init__.py", *WIRE, *SHARED, "wire/environment.py", "wire/files.py"),
        ("collect", "agent", "probe"),
    )
    own.update(
        {
            name: content
            for name, content in sources_of((), ("attach",)).items()
            if _TRAVELS.match(name)
        }
    )
    contents = {f"gpuscope/{name}": content for name, content in own.items() if name not in _STAYS}
    contents["__main__.py"] = _AGENT_MAIN
    pynvml = _pynvml()
    if pynvml is not None:
        with open(pynvml, "rb") as stream:
            contents["pynvml.py"] = stream.read()
    return contents


def _pynvml() -> Optional[str]:
    """Return the single file of nvidia-ml-py, or None if it is not installed.

    An old package of the same name, which lacks newer calls, is ignored.
    """
    for folder in sys.path:
        path = os.path.join(folder or ".", "pynvml.py")
        if os.path.isfile(path):
            return path
    return None


def _local_zip(contents: Contents) -> bytes:
    """Store sources and byte code uncompressed: nothing is compiled or unpacked at the start."""
    import py_compile
    import tempfile

    both = dict(contents)
    with tempfile.TemporaryDirectory(prefix="gpuscope-") as folder:
        source, compiled = os.path.join(folder, "x.py"), os.path.join(folder, "x.pyc")
        for name, content in contents.items():
            if name.startswith("gpuscope/probe/"):
                continue  # runs in trainers, from its source
            with open(source, "wb") as stream:
                stream.write(content)
            py_compile.compile(
                source,
                compiled,
                dfile=name,
                doraise=True,
                invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
            )
            with open(compiled, "rb") as stream:
                both[name + "c"] = stream.read()
    return zipped(both, compress=False)


def zipped(contents: Contents, compress: bool) -> bytes:
    import io
    import zipfile

    method = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name in sorted(contents):
            info = zipfile.ZipInfo(name)  # dated 1980, so that equal sources give equal bytes
            info.compress_type, info.create_system, info.external_attr = method, 3, 0o600 << 16
            archive.writestr(info, contents[name])
    return buffer.getvalue()


# ── where it is kept ──────────────────────────────────────────────────────────────────────────────


def trusted_cache_folder() -> Optional[str]:
    """Return the cache directory, made if needed, or None if it cannot be trusted."""
    from ..paths import cache_folder  # does not travel with the agent, which caches nothing

    folder = str(cache_folder())
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        found = os.stat(folder)
    except OSError:
        return None
    return folder if found.st_uid == os.geteuid() and not found.st_mode & 0o022 else None


def _is_whole(path: str) -> bool:
    """Whether this is our own regular file, complete, and not writable by anybody else."""
    try:
        found = os.lstat(path)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
            return False
        with open(path, "rb") as stream:
            stream.seek(-22, os.SEEK_END)
            return stream.read(4) == _ENDING
    except OSError:
        return False


def _remove_stale(folder: str, keep: str) -> None:
    """Remove zips of earlier versions that were not made again within a week."""
    import time

    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        if name != keep and name.startswith(("agent-", ".agent-")):
            try:
                if time.time() - os.lstat(path).st_mtime > STALE_SECONDS:
                    os.unlink(path)
            except OSError:
                pass


def _temporary(content: bytes) -> str:
    import atexit
    import tempfile

    descriptor, path = tempfile.mkstemp(prefix="gpuscope-agent-", suffix=".zip")
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(content)
    atexit.register(_unlink, path)
    return path


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass
