"""Root puts the probe into a trainer whose owner turns names against it.

What root then does is what the owner may do.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuscope.attach.inject import CannotInject
from gpuscope.attach.inject_place import InjectionDirectory
from gpuscope.attach.inject_rights import rights_of
from gpuscope.attach.inject_target import process

NOBODY = 65534
TOOLS = ("setpriv", "unshare", "mount")
pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux"),
    pytest.mark.skipif(
        os.geteuid() != 0 or not all(map(shutil.which, TOOLS)), reason=f"needs root and {TOOLS}"
    ),
]


@pytest.fixture
def folders() -> Iterator[tuple[Path, Path]]:
    """A directory that is root's, and one that everybody may write into, as /tmp."""
    base = Path(tempfile.mkdtemp(prefix="gpuscope-test-"))
    base.chmod(0o755)
    of_root, like_tmp = base / "root", base / "tmp"
    of_root.mkdir(mode=0o755)
    like_tmp.mkdir()
    like_tmp.chmod(0o1777)
    yield of_root, like_tmp
    shutil.rmtree(base)


@contextmanager
def process_of_nobody(code: str) -> Iterator[subprocess.Popen[str]]:
    """Start a shell of ``nobody`` that may mount in a namespace of its own.

    Every user may do so. It has said "ready".
    """
    drop = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
    running = subprocess.Popen(
        [*drop, "unshare", "-Urm", "sh", "-c", code],
        cwd="/",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert running.stdout is not None
        if running.stdout.readline() != "ready\n":
            pytest.skip(f"no user can mount anything here: {running.communicate()[1]}")
        yield running
    finally:
        running.kill()
        running.communicate()


def test_nothing_is_made_in_a_directory_that_its_owner_only_mounted_there(folders):
    of_root, _ = folders
    with process_of_nobody(
        f"mount --bind {of_root} /tmp && echo ready && exec sleep 60"
    ) as running:
        with (
            pytest.raises(CannotInject, match="uid 65534, may not write there"),
            InjectionDirectory(process(running.pid)),
        ):
            pass
        assert list(of_root.iterdir()) == []


def test_nothing_is_given_away_that_is_mounted_between_two_steps(folders, monkeypatch):
    of_root, like_tmp = folders
    code = f"cd {of_root} && mount --bind {like_tmp} /tmp && echo ready && read _ && "
    make = os.mkdir
    with process_of_nobody(
        code + "mount -c --bind . /tmp/gpuscope-0 && echo mounted && exec sleep 60"
    ) as running:

        def make_and_let_them_mount(name, *mode, **where):
            make(name, *mode, **where)
            print(file=running.stdin, flush=True)
            assert running.stdout.readline() == "mounted\n"

        monkeypatch.setattr(os, "mkdir", make_and_let_them_mount)
        with (
            pytest.raises(CannotInject, match="belongs to another user"),
            InjectionDirectory(process(running.pid)),
        ):
            pass
        assert (of_root.stat().st_uid, of_root.stat().st_mode & 0o777) == (0, 0o755)
        assert (like_tmp / "gpuscope-0").stat().st_uid == NOBODY, (
            "and what was made is the user's from the first"
        )


def test_the_files_are_the_user_s_also_where_root_has_no_number():
    """In a file system of the user's own namespace root cannot own anything; the user can."""
    with process_of_nobody("mount -t tmpfs tmpfs /tmp && echo ready && exec sleep 60") as running:
        with InjectionDirectory(process(running.pid)) as place:
            place.lock(1.0)
            place.put(b"script", b"sources")
            inside = Path(f"/proc/{running.pid}/root{place.inside}")
            assert len(list(inside.iterdir())) == 3
            assert {one.stat().st_uid for one in inside.iterdir()} == {NOBODY}
        assert list(inside.iterdir()) == []


def test_a_lock_that_is_no_file_is_not_even_opened(folders):
    """It could be a device that does something as soon as it is opened."""
    _, like_tmp = folders
    code = f"mount --bind {like_tmp} /tmp && echo ready && exec sleep 60"
    with process_of_nobody(code) as running, InjectionDirectory(process(running.pid)) as place:
        os.mkfifo(like_tmp / "gpuscope-0" / f"inject-{running.pid}.lock", 0o666)
        with pytest.raises(CannotInject, match="not a regular file"):
            place.lock(1.0)


def test_the_rights_are_taken_for_a_moment_only():
    def credentials() -> list[str]:
        wanted = ("Uid", "Gid", "Groups", "CapEff")
        text = Path("/proc/thread-self/status").read_text()
        return [line for line in text.splitlines() if line.startswith(wanted)]

    before = credentials()
    with rights_of(NOBODY, NOBODY, (NOBODY,)):
        inside = credentials()
        with pytest.raises(PermissionError):
            os.mkdir("/etc/gpuscope-test")
    assert inside == [
        f"Uid:\t0\t0\t0\t{NOBODY}",
        f"Gid:\t0\t0\t0\t{NOBODY}",
        f"Groups:\t{NOBODY} ",
        "CapEff:\t0000000000000000",
    ]
    assert credentials() == before
