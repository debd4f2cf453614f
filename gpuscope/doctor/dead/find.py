"""Find what a dead job left, by what each file contains, and which rank it belongs to."""

from __future__ import annotations

import os
import re
import stat
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...wire.files import open_regular
from ..file_kinds import GZIP, HEAD_BYTES, XZ, Kind, kind_of, unpacked

MOST_FILES = 20_000
"""Of a folder with more files, only the first are looked at."""
MOST_TEXTS = 400
"""How many texts are read to decide whether a folder belongs to a job."""
_SKIPPED_FOLDERS = frozenset(
    (".git", "__pycache__", "node_modules", "site-packages", ".venv", "venv")
)
_SKIPPED_NAMES = re.compile(
    r"\.(?:pyc?|pyi|ipynb|md|rst|toml|ya?ml|cfg|ini|sh|bash|html?|css|js|svg|png|jpe?g|gif|pdf|csv|tsv"
    r"|parquet|arrow|safetensors|pth?|ckpt|bin|npy|npz|h5|so|o|c|cc|cpp|cu|h|hpp|zip|whl|tar|lock"
    r"|jsonl|db|sqlite3?)$|^(?:README|LICENSE|Makefile|requirements.*\.txt)",
    re.I,
)
_OF_A_JOB = re.compile(
    rb"torch|nccl|gloo|c10d|cuda|traceback \(most|\bgpu\b|\bepoch|\bloss\b|\bsteps?\b|\bit/s"
    rb"|\brank(?:\b|\d)"
    rb"|slurm|srun|^JobID\||Xid|kernel:|killed process|most recent call first|Process \d+: ",
    re.I | re.M,
)
_ATTEMPT = re.compile(r"(?:^|/)attempt_(\d+)/(\d+)/[^/]+$")
_RANK = re.compile(r"(?:^|[^a-z])(?:global[_-]?)?rank[_\-=.]?(\d{1,5})(?!\d)", re.I)
_TASK = re.compile(r"(?:^|[^a-z])(?:task|proc|worker|trainer|gpu|r)[_\-=.]?(\d{1,5})(?!\d)", re.I)
_NODE = re.compile(
    r"(?:^|/)(?P<node>(?:node|host|machine|n)[_-]?\d+[\w.-]*?)(?=/|\.log|\.out|\.txt|$)", re.I
)
_NUMBER = re.compile(r"\d+(?=[^\d/]*$)")


@dataclass(slots=True)
class FoundFile:
    """A file of a job, with what its path says.

    ``rank`` is the rank in the job, ``local`` that on its host; ``run`` is the folder that one
    launcher made for its ranks. What the path does not say is None or "".
    """

    path: Path
    name: str
    kind: Kind
    size: int
    modified: float
    rank: int | None = None
    local: int | None = None
    run: str = ""
    attempt: int = 0
    host: str = ""


def is_of_a_job(folder: Path) -> bool:
    """Return whether a folder holds the files of a job, and not scripts with a log among them.

    It stops at the first file that nothing but a job leaves.
    """
    texts = 0
    for one in find_each([folder], []):
        if one.kind in ("flight", "elastic", "box") or _ATTEMPT.search(one.name):
            return True
        texts += one.kind in ("text", "core", "recording")
        if texts >= MOST_TEXTS:
            break
    scripts = next(folder.glob("*.py"), None) or next(folder.glob("*/*.py"), None)
    return texts > 0 and scripts is None


def are_of_one_job(files: Sequence[Path]) -> bool:
    """Return whether files that were named together are those of the ranks of one job."""
    found, _ = find(files)
    ranks = {one.rank if one.local is None else (one.run, one.local) for one in found}
    return (
        any(one.kind in ("flight", "elastic", "core") for one in found) or len(ranks - {None}) > 1
    )


def walk(paths: Sequence[Path]) -> Iterator[tuple[Path, str]]:
    """Yield the files below these paths, each with its name in the report."""
    count = 0
    for path in paths:
        if not path.is_dir():
            yield path, path.name
            continue
        for folder, folders, names in os.walk(path):
            folders[:] = sorted(one for one in folders if one not in _SKIPPED_FOLDERS)
            for name in sorted(names):
                count += 1
                if count > MOST_FILES:
                    return
                full = Path(folder, name)
                yield full, str(full.relative_to(path))


def find(paths: Sequence[Path]) -> tuple[list[FoundFile], list[str]]:
    """Return the files that a job left, and why others could not be read."""
    unread: list[str] = []
    found = list(find_each(paths, unread))
    _place(found)
    return found, unread


def find_each(paths: Sequence[Path], unread: list[str]) -> Iterator[FoundFile]:
    """Yield the files that a job left, not yet placed, and add to ``unread`` why others are not.

    A text below a folder counts where it says something that jobs say. One that the user named
    counts in any case.
    """
    for path, name in walk(paths):
        named = path in paths
        if not named and _SKIPPED_NAMES.search(path.name):
            continue
        try:
            about = os.stat(path)
            if not stat.S_ISREG(about.st_mode) or not about.st_size:
                continue
            with open_regular(path) as file:
                head = file.read(HEAD_BYTES)
                kind = kind_of(head)
                of_a_rank = named or _ATTEMPT.search(name)
                if kind == "text" and not (of_a_rank or _says_something(file, head, about.st_size)):
                    continue
        except OSError as error:
            unread.append(f"{name}: cannot be read ({error.strerror or error}).")
            continue
        if kind == "packed" and not path.name.startswith("core"):
            continue  # nothing else of what is packed so can be told from its name
        if kind not in ("binary", "zip"):
            yield FoundFile(path, name, kind, about.st_size, about.st_mtime)


def _says_something(file: object, head: bytes, size: int) -> bool:
    """Return whether the beginning or the end of a text reads like what jobs and kernels write."""
    packed = head.startswith((GZIP, XZ))
    if _OF_A_JOB.search(unpacked(head) if packed else head):
        return True
    if size <= len(head) or packed:
        return False
    file.seek(max(0, size - HEAD_BYTES))  # type: ignore[attr-defined]
    return _OF_A_JOB.search(file.read(HEAD_BYTES)) is not None  # type: ignore[attr-defined]


def _place(found: Iterable[FoundFile]) -> None:
    """Read from the paths to which rank, host and attempt each file belongs."""
    rest = []
    for one in found:
        match = _ATTEMPT.search(one.name)
        if match:
            one.attempt, one.local = int(match[1]), int(match[2])
            one.run = one.name[: match.start()]
        node = _NODE.search(one.name)
        if node:
            one.host = node["node"]
        folder, _, last = one.name.rpartition("/")
        ranked = _RANK.search(last) or _RANK.search(folder)
        if ranked:
            one.rank = int(ranked[1])
        elif not match:
            rest.append(one)
    _place_by_numbers(rest)


def _place_by_numbers(found: Iterable[FoundFile]) -> None:
    """Take the number in which files differ for their rank, where they count from 0 on."""
    alike: defaultdict[tuple[str, str], list[tuple[int, FoundFile]]] = defaultdict(list)
    for one in found:
        match = _NUMBER.search(one.name)
        folder = one.name.rpartition("/")[0]
        inner = re.search(r"(\d+)(?=/[^/]*$)", one.name)
        for number in (match, inner):
            if number is not None:
                pattern = one.name[: number.start()] + "#" + one.name[number.end() :]
                alike[one.kind, pattern].append((int(number[0]), one))
        task = _TASK.search(one.name.rpartition("/")[2]) or _TASK.search(folder)
        if task and one.kind == "flight":
            one.rank = int(task[1])
    for group in alike.values():
        numbers = sorted({number for number, _ in group})
        if len(numbers) > 1 and numbers == list(range(len(numbers))) == sorted(n for n, _ in group):
            for count, one in group:
                if not _NODE.search(one.name) or f"{count}" not in (one.host or ""):
                    one.rank = count
    for one in found:
        match = _NUMBER.search(one.name.rpartition("/")[2])
        if one.rank is None and one.kind == "flight" and match:
            one.rank = int(match[0])
