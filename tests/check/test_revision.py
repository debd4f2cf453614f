"""Another revision of a repository: its files, its difference, and the checkout left alone."""

from __future__ import annotations

import pytest

from gpuscope.check import revision
from gpuscope.errors import UserError
from tests.check.projects import commit, git, project


def state(folder):
    """Everything that git and the disk know of a checkout."""
    files = sorted((str(path), path.stat().st_mtime_ns) for path in folder.rglob("*"))
    quiet = "--no-optional-locks"
    return git(folder, quiet, "status", "--porcelain"), git(folder, "worktree", "list"), files


def test_the_files_of_a_revision_are_there_for_a_while_and_the_checkout_is_as_before(tmp_path):
    folder = project(tmp_path / "p")
    (folder / "train.py").write_text("x = 1\n")
    (folder / "new.py").write_text("y = 1\n")
    before = state(folder)
    found = revision.revision(folder, "HEAD")
    with revision.tree(found) as files:
        assert "class Net" in (files / "train.py").read_text()
        (difference,) = revision.difference(found).hunks
        with revision.applied(files, [difference]) as fitted:
            assert fitted
            assert (files / "train.py").read_text() == "x = 1\n"
        assert "class Net" in (files / "train.py").read_text()
        kept = files
    assert not kept.exists()
    assert state(folder) == before
    assert revision.difference(found).new_files == ("new.py",)


def test_a_difference_names_added_and_removed_lines(tmp_path):
    folder = project(tmp_path / "p")
    lines = [f"line {number}\n" for number in range(1, 41)]
    (folder / "odd näme.py").write_text("".join(lines))
    commit(folder)
    lines[9] = "new 10\n"
    del lines[29:31]
    (folder / "odd näme.py").write_text("".join(lines).rstrip("\n"))
    first, second, third = revision.difference(revision.revision(folder, "HEAD")).hunks
    assert (first.file, first.added, first.removed) == (
        "odd näme.py", {10: "new 10"}, {10: "line 10"},
    )  # fmt: skip
    assert (second.removed, second.added) == ({30: "line 30", 31: "line 31"}, {})
    assert (third.removed, third.added) == ({40: "line 40"}, {38: "line 40"})


def test_no_git_and_no_such_revision_are_told(tmp_path):
    with pytest.raises(UserError, match="needs a git repository"):
        revision.revision(tmp_path, "HEAD")
    with pytest.raises(UserError, match=r"no revision 'v9'[\s\S]*fetch-depth"):
        revision.revision(project(tmp_path / "p"), "v9")
    with pytest.raises(UserError, match="no revision"):
        revision.revision(tmp_path / "p", "--help")
