"""The private directory and the socket in it."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import tempfile

import pytest

from gpuscope.probe import rendezvous


@pytest.fixture
def base(tmp_path, monkeypatch):
    monkeypatch.setattr(rendezvous, "BASE", str(tmp_path))
    return tmp_path


def test_makes_a_private_directory_and_a_private_socket(base):
    listener, path, identity = rendezvous.bind()
    with listener:
        assert stat.S_IMODE(os.lstat(rendezvous.directory()).st_mode) == 0o700
        assert stat.S_IMODE(os.lstat(path).st_mode) == 0o600
        assert os.path.basename(path) == f"{os.getpid()}-{rendezvous.start_ticks()}.sock"
        assert rendezvous.is_ours(path, identity)
        assert os.listdir(rendezvous.directory()) == [os.path.basename(path)]


def test_start_ticks_are_the_kernels():
    with open(f"/proc/{os.getpid()}/stat") as file:
        assert rendezvous.start_ticks() == int(file.read().rpartition(")")[2].split()[19])


def refused(base):
    with pytest.raises(rendezvous.RendezvousError) as caught:
        rendezvous.bind()
    return str(caught.value)


def test_refuses_a_symlink(base):
    (base / "elsewhere").mkdir(mode=0o700)
    os.symlink(base / "elsewhere", rendezvous.directory())
    assert "symlink" in refused(base)
    assert list((base / "elsewhere").iterdir()) == []


@pytest.mark.parametrize("mode", [0o777, 0o755, 0o750, 0o701])
def test_refuses_an_open_directory(base, mode):
    os.mkdir(rendezvous.directory())
    os.chmod(rendezvous.directory(), mode)
    assert f"{mode:04o}" in refused(base)


def test_refuses_a_file_in_its_place(base):
    with open(rendezvous.directory(), "w"):
        pass
    assert "not a directory" in refused(base)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_refuses_the_directory_of_another_user(base):
    os.mkdir(rendezvous.directory(), 0o700)
    os.chown(rendezvous.directory(), 12345, -1)
    assert "12345" in refused(base)


def test_refuses_a_path_too_long_for_a_socket(base, monkeypatch):
    long = base / ("x" * 120)
    long.mkdir()
    monkeypatch.setattr(rendezvous, "BASE", str(long))
    assert "too long" in refused(base)


def test_replaces_its_own_leftover(base):
    first, path, _ = rendezvous.bind()
    first.close()
    second, again, fresh = rendezvous.bind()
    with second, socket.socket(socket.AF_UNIX) as client:
        assert again == path
        client.connect(path)
        assert rendezvous.is_ours(path, fresh)


def test_a_peer_is_judged_by_what_the_kernel_says(monkeypatch):
    here, there = socket.socketpair()
    with here, there:
        assert rendezvous.peer_allowed(here)
        root = os.geteuid() == 0
        monkeypatch.setattr(rendezvous.os, "geteuid", lambda: 4711)
        assert rendezvous.peer_allowed(here) == root


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be somebody else")
def test_a_peer_of_another_user_is_not_allowed():
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
        os.chmod(folder, 0o755)
        listener.bind(f"{folder}/s")
        os.chmod(f"{folder}/s", 0o666)
        listener.listen(1)
        words = (
            "import os, socket; os.setuid(65534); s = socket.socket(1); "
            f"s.connect({folder + '/s'!r}); s.recv(1)"
        )
        child = subprocess.Popen([sys.executable, "-I", "-c", words])
        try:
            listener.settimeout(20)
            peer, _ = listener.accept()
            with peer:
                assert rendezvous.peer_pid(peer) == child.pid
                assert not rendezvous.peer_allowed(peer)
        finally:
            child.wait(20)
