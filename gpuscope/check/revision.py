"""Look at another revision of a git repository, without touching the user's checkout.

The files of the revision are written into a temporary folder with an index of their own. Unlike
``git worktree add``, this leaves nothing in the repository even if gpuscope is killed.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import UserError
from ..process.child import CommandOutput, ask
from ..wire.clean import clean

SECONDS = 120.0
MAX_DIFF_BYTES = 32 << 20
MOST_NEW_FILES, MAX_NEW_BYTES = 500, 1 << 20
_SOURCES = (".py", ".toml", ".json", ".yaml", ".yml", ".cfg", ".ini")
_QUIET = (
    "-c",
    "core.fsmonitor=false",
    "-c",
    "core.hooksPath=/dev/null",
    "-c",
    "core.quotePath=off",
)
_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


@dataclass(slots=True)
class Hunk:
    """One place where a file differs between the revision and the working tree.

    ``old`` and ``new`` are all of its lines on both sides, with some unchanged ones around.
    ``added`` and ``removed`` are the changed lines by number.
    """

    file: str
    old_start: int
    new_start: int
    old: list[str] = field(default_factory=list)
    new: list[str] = field(default_factory=list)
    added: dict[int, str] = field(default_factory=dict)
    removed: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RevisionDifference:
    """The differences between a revision and the working tree."""

    hunks: tuple[Hunk, ...]
    new_files: tuple[str, ...]
    """Files that the revision does not have, also those that git does not track yet."""
    uncommitted: bool
    """Whether the working tree has changes that are in no commit."""


@dataclass(frozen=True, slots=True)
class Revision:
    """A commit of a repository."""

    root: Path
    """The top folder of the user's checkout."""
    name: str
    """As the user named it."""
    commit: str

    @property
    def words(self) -> str:
        short = self.commit[:10]
        return short if self.commit.startswith(self.name) else f"{clean(self.name, 60)} ({short})"


def top(folder: Path) -> Path | None:
    """Return the top folder of the checkout that ``folder`` is in, None if it is in no checkout."""
    try:
        output = _git(folder, "rev-parse", "--show-toplevel")
    except UserError:
        return None
    name = output.output.decode("utf-8", "surrogateescape").rstrip("\n")
    return Path(name) if output.code == 0 and name else None


def revision(folder: Path, name: str) -> Revision:
    """Return the commit that ``name`` means. Raises :class:`UserError`."""
    root = top(folder)
    if root is None:
        raise UserError(
            "--base needs a git repository, and this folder is in none.",
            "",
            "leave --base out: the committed baseline is compared",
            "no_git",
        )
    output = _git(
        root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}"
    )
    if output.code:
        raise UserError(
            f"git knows no revision {clean(name, 60)!r}.",
            "In a shallow clone, as on a CI runner, older revisions are missing.",
            "git fetch origin main; with actions/checkout: fetch-depth: 0",
            "no_revision",
        )
    return Revision(root, name, output.output.decode().strip())


def text_at(revision: Revision, file: str) -> str | None:
    """Return the content of a file at the revision, None where there is no such file."""
    output = _git(revision.root, "show", f"{revision.commit}:{file}")
    return None if output.code else output.output.decode("utf-8", "replace")


def difference(revision: Revision) -> RevisionDifference:
    """Return what the working tree changes, uncommitted changes included."""
    root = revision.root
    marks = ("--src-prefix=a/", "--dst-prefix=b/", "--no-color", "--no-ext-diff", "--no-renames")
    diff = _done(_git(root, "diff", *marks, "--no-textconv", "-U3", revision.commit, "--"), "diff")
    hunks, new = parse(diff.output.decode("utf-8", "surrogateescape"))
    status = _done(_git(root, "status", "--porcelain", "-z", "--untracked-files=all"), "status")
    rows = [row for row in status.output.decode("utf-8", "surrogateescape").split("\0") if row]
    untracked = [row[3:] for row in rows if row.startswith("?? ")]
    return RevisionDifference(tuple(hunks), tuple(dict.fromkeys([*new, *untracked])), bool(rows))


def parse(diff: str) -> tuple[list[Hunk], list[str]]:
    """Return the hunks of a unified diff, and the files that it adds."""
    hunks: list[Hunk] = []
    new: list[str] = []
    file, before = "", ""
    left_old = left_new = 0
    for line in diff.split("\n"):
        if left_old > 0 or left_new > 0:
            hunk, sign, text = hunks[-1], line[:1], line[1:]
            if sign in (" ", "", "-"):
                if sign == "-":
                    hunk.removed[hunk.old_start + len(hunk.old)] = text
                hunk.old.append(text)
                left_old -= 1
            if sign in (" ", "", "+"):
                if sign == "+":
                    hunk.added[hunk.new_start + len(hunk.new)] = text
                hunk.new.append(text)
                left_new -= 1
        elif line.startswith("--- "):
            before = line[4:].split("\t")[0]
        elif line.startswith("+++ "):
            after = line[4:].split("\t")[0]
            file = (after if after != "/dev/null" else before)[2:]
            if before == "/dev/null":
                new.append(file)
        elif (found := _HUNK.match(line)) is not None:
            old_start, old_count, new_start, new_count = found.groups()
            left_old, left_new = int(old_count or 1), int(new_count or 1)
            # Where one side has no line, git names the line before it.
            hunks.append(
                Hunk(file, int(old_start) + (left_old == 0), int(new_start) + (left_new == 0))
            )
    return hunks, new


@contextmanager
def tree(revision: Revision) -> Iterator[Path]:
    """Write the files of a revision into a temporary folder, which is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="gpuscope-base-", ignore_cleanup_errors=True) as name:
        folder = Path(name).resolve()
        files = folder / "tree"
        files.mkdir()
        index = {"GIT_INDEX_FILE": str(folder / "index")}
        root = revision.root
        _done(_git(root, "read-tree", revision.commit, more=index), "read-tree")
        out = ("checkout-index", "--all", "--force", f"--prefix={files}{os.sep}")
        _done(_git(root, *out, more=index), "checkout-index")
        yield files


def apply(files: Path, hunks: Sequence[Hunk]) -> bool:
    """Apply hunks to the files of a revision; False, with nothing changed, if one does not fit."""
    texts: dict[str, list[str]] = {}
    for hunk in sorted(hunks, key=lambda one: -one.old_start):
        path = _inside(files, hunk.file)
        if path is None or not path.is_file():
            return False
        if hunk.file not in texts:
            texts[hunk.file] = _read(path).split("\n")
        lines, begin = texts[hunk.file], hunk.old_start - 1
        end = begin + len(hunk.old)
        if lines[begin:end] != hunk.old:
            return False
        lines[begin:end] = hunk.new
    for name, lines in texts.items():
        (files / name).write_bytes("\n".join(lines).encode("utf-8", "surrogateescape"))
    return True


@contextmanager
def applied(files: Path, hunks: Sequence[Hunk]) -> Iterator[bool]:
    """Apply hunks as :func:`apply` does, and take them back afterwards."""
    names = {hunk.file for hunk in hunks}
    before = {
        path: path.read_bytes()
        for name in names
        if (path := _inside(files, name)) is not None and path.is_file()
    }
    try:
        yield apply(files, hunks)
    finally:
        for path, content in before.items():
            path.write_bytes(content)


def copy_new(revision: Revision, files: Path, names: Sequence[str]) -> None:
    """Copy files that the revision lacks into it, as far as they are code or settings."""
    for name in [one for one in names if one.endswith(_SOURCES)][:MOST_NEW_FILES]:
        source, target = revision.root / name, _inside(files, name)
        if target is None or source.is_symlink() or not source.is_file():
            continue
        if source.stat().st_size <= MAX_NEW_BYTES:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())


def _inside(files: Path, name: str) -> Path | None:
    """Return the file's path in the folder, None for one that leads out of it."""
    path = files / name
    return path if files in path.resolve().parents else None


def _read(path: Path) -> str:
    return path.read_bytes().decode("utf-8", "surrogateescape")


def _git(folder: Path, *words: str, more: dict[str, str] | None = None) -> CommandOutput:
    """Run git with ``words``. Raises :class:`UserError` if there is no git."""
    environ = {key: value for key, value in os.environ.items() if key not in _PLACES}
    environ |= {"LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"}
    environ |= {"GIT_LFS_SKIP_SMUDGE": "1", **(more or {})}
    try:
        return ask(["git", *_QUIET, *words], SECONDS, environ, MAX_DIFF_BYTES, folder=str(folder))
    except OSError:
        raise UserError(
            "--base needs git, and there is none.", "", "apt install git", "no_git"
        ) from None


_PLACES = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX")
"""Variables that git sets for its hooks, which would name another repository or index."""


def _done(output: CommandOutput, doing: str) -> CommandOutput:
    if output.code:
        raise UserError(f"git {doing} failed.", output.last_words, "git status", "git_failed")
    if output.failure:
        raise UserError(f"git {doing} failed.", output.failure, "git status", "git_failed")
    return output
