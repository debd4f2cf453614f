"""Sends what a dead job left on another host: a tar of its files, of long ones what matters.

It is sent as a script through the standard input of ``python3 - MARKER JOB PATH ...`` and needs
nothing there. Of a text longer than ``WHOLE_BYTES`` it sends the beginning, the end, and the
surroundings of tracebacks between them. JOB is a job's number, or "-": of a folder, only files with
that number in their path are then sent. The tar begins behind a line with MARKER, because a login
may print first. Nothing is written there. This module uses only the standard library and the syntax
of Python 3.8.
"""

import io
import os
import re
import stat
import sys
import tarfile
from typing import Iterator, List, Optional, Tuple

WHOLE_BYTES = 1 << 20
BINARY_BYTES = 64 << 20
HEAD_BYTES = 32 << 10
TAIL_BYTES = 512 << 10
AROUND_BYTES = 8 << 10
MOST_AROUND = 32
MOST_FILES = 20000
MOST_BYTES = 192 << 20
CHUNK_BYTES = 4 << 20
CORE, CORE_BYTES = b"\x04\x00", 8 << 20
NEEDLES = (
    b"Traceback (most",
    b"Watchdog caught",
    b"Fatal Python",
    b"exitcode",
    b"slurmstepd",
    b"Xid",
)
SKIPPED = (".git", "__pycache__", "node_modules", "site-packages", ".venv", "venv")
UNREAD = (
    ".pt",
    ".pth",
    ".ckpt",
    ".safetensors",
    ".bin",
    ".npy",
    ".npz",
    ".parquet",
    ".arrow",
    ".zip",
)


def files_of(path: str, job: str) -> Iterator[Tuple[str, str]]:
    """Yield the regular files at or below a path, each with its name in the tar."""
    if not os.path.isdir(path):
        yield path, os.path.basename(path)
        return
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(one for one in folders if one not in SKIPPED)
        for name in sorted(names):
            full = os.path.join(folder, name)
            short = os.path.relpath(full, path)
            if not name.endswith(UNREAD) and (job == "-" or of_job(short, job)):
                yield full, short


def of_job(name: str, job: str) -> bool:
    """Return whether a job's number stands in a name, and not as a part of another number."""
    return re.search(r"(?<!\d)" + re.escape(job) + r"(?!\d)", name) is not None


def content_of(path: str, size: int) -> Optional[bytes]:
    """Return what is sent of a file, or None for one that is too large and no text."""
    with open(path, "rb") as file:
        head = file.read(HEAD_BYTES)
        binary = b"\0" in head or head[:1] == b"\x80" or head[:2] == b"\x1f\x8b"
        if head[:4] == b"\x7fELF" and head[16:18] == CORE:
            return head + file.read(CORE_BYTES - len(head))  # its notes are at the beginning
        if size <= WHOLE_BYTES or (binary and size <= BINARY_BYTES):
            return head + file.read()
        if binary:
            return None
        windows: List[bytes] = []
        rest, at = b"", len(head)
        while at < size - TAIL_BYTES and len(windows) < MOST_AROUND:
            chunk = file.read(min(CHUNK_BYTES, size - TAIL_BYTES - at))
            if not chunk:
                break
            at += len(chunk)
            data = rest + chunk
            windows += windows_of(data)[: MOST_AROUND - len(windows)]
            rest = data[-AROUND_BYTES:]
        file.seek(max(size - TAIL_BYTES, len(head)))
        tail = file.read()
    left_out = b"\n[gpuscope left out a part of this file]\n"
    return left_out.join([head, *windows, tail])


def windows_of(data: bytes) -> List[bytes]:
    """Return the surroundings of what looks like trouble in a part of a file."""
    hits: List[int] = []
    for needle in NEEDLES:
        at = data.find(needle)
        while at >= 0 and len(hits) < 4 * MOST_AROUND:
            hits.append(at)
            at = data.find(needle, at + AROUND_BYTES)
    found: List[bytes] = []
    end = -1
    for at in sorted(hits):
        if at > end:
            begin = data.rfind(b"\n", 0, max(at - 1024, 0)) + 1
            end = at + AROUND_BYTES
            found.append(data[begin:end])
    return found


def main(marker: str, job: str, paths: List[str]) -> None:
    """Write the marker and the tar to standard output."""
    out = sys.stdout.buffer
    out.write(b"\n" + marker.encode() + b"\n")
    count = sent = 0
    with tarfile.open(fileobj=out, mode="w|gz") as tar:
        for number, path in enumerate(paths):
            for full, short in files_of(os.path.expanduser(path), job):
                try:
                    about = os.stat(full)
                    if not stat.S_ISREG(about.st_mode) or not about.st_size:
                        continue
                    data = content_of(full, about.st_size)
                except OSError:
                    continue
                if data is None:
                    continue
                count, sent = count + 1, sent + len(data)
                if count > MOST_FILES or sent > MOST_BYTES:
                    return
                entry = tarfile.TarInfo(short if len(paths) == 1 else f"{number}/{short}")
                entry.size, entry.mtime, entry.mode = len(data), int(about.st_mtime), 0o600
                tar.addfile(entry, io.BytesIO(data))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
