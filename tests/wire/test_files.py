"""What users name instead of a file is refused in words, and nobody waits for it."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest

from gpuscope import config
from gpuscope.attach import run
from gpuscope.cli.commands.doctor import targets as doctor_targets
from gpuscope.doctor.script import files as script_files
from gpuscope.lab import matrix
from gpuscope.lab.config import ConfigError, LabConfig
from gpuscope.snapshot.limits import for_files
from gpuscope.snapshot.reader import SnapshotError, open_snapshot
from gpuscope.store.blackbox import is_box
from gpuscope.store.trace import read_table
from gpuscope.tui.background import view_state
from gpuscope.wire.files import NotAFile, open_regular, open_regular_descriptor
from gpuscope.wire.recording import RecordingReader
from tests.fakes.cases import each


@pytest.fixture(autouse=True)
def impatient():
    """Who waits for a pipe here waits five seconds."""

    def late(*_: object) -> None:
        raise AssertionError("it waits")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(5)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(params=["a named pipe", "a device", "a socket", "a directory", "a kernel file"])
def odd(request, tmp_path):
    """(path, what it is)"""
    path = tmp_path / "odd"
    if request.param == "a named pipe":
        os.mkfifo(path)
    elif request.param == "a socket":
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(str(path))
    elif request.param == "a directory":
        path.mkdir()
    else:
        path = Path("/dev/zero" if request.param == "a device" else "/proc/kmsg")
    return path, request.param


def snapshot(path):
    for_files(path)
    with pytest.raises(SnapshotError) as caught:
        open_snapshot(path)
    return caught.value.what


def trace(path):
    with pytest.raises(NotAFile) as caught:
        read_table(path)
    return caught.value.strerror


def toggles(path):
    with pytest.raises(ConfigError) as caught:
        matrix.read_file(path, LabConfig())
    return str(caught.value)


def script(path):
    with pytest.raises(script_files.SourceNotChecked) as caught:
        script_files.read(str(path))
    return str(caught.value)


READERS = {
    "config": lambda path: config.load(path)[1][0],
    "state": lambda path: view_state.load(path)[1],
    "snapshot": snapshot,
    "recording": lambda path: RecordingReader(path).problem.text,
    "trace": trace,
    "matrix": toggles,
    "script": script,
}


@each("reader", READERS)
def test_what_is_no_file_is_refused_with_what_to_do(reader, odd):
    path, kind = odd
    said = READERS[reader](path)
    assert f"it is {kind}, not a file. Next: " in said, said


def test_nobody_else_waits_for_it_either(odd, monkeypatch):
    path, kind = odd
    assert not is_box(path)
    if kind not in ("a named pipe", "a directory"):  # these the doctor reads
        assert "not a file" in doctor_targets.examine([str(path)], False, 0.2).problems[0]
    if kind != "a directory":
        run._check_script(str(path))  # for Python to say what it thinks of it


def test_a_file_is_read_also_through_links_and_descriptors(tmp_path):
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "empty").touch()
    (tmp_path / "link").symlink_to("file")
    with open(tmp_path / "file") as held:
        for path in (tmp_path / "file", tmp_path / "link", f"/proc/self/fd/{held.fileno()}"):
            with open_regular(path) as file:
                assert file.read() == b"content"
    with open_regular(tmp_path / "empty") as file:
        assert file.read() == b""
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "none")


@pytest.mark.skipif(not hasattr(os, "O_PATH"), reason="Linux")
def test_a_descriptor_is_of_a_regular_file_and_of_no_link(tmp_path):
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to("file")
    os.mkfifo(tmp_path / "pipe")
    directory = os.open(tmp_path, os.O_RDONLY)
    try:
        for name, flags in (("file", os.O_RDONLY | os.O_NOFOLLOW), ("link", os.O_RDONLY)):
            with open(open_regular_descriptor(name, flags, directory), "rb") as file:
                assert file.read() == b"content"
        for name in ("link", "pipe", "."):
            with pytest.raises(OSError, match="is not a regular file"):
                open_regular_descriptor(name, os.O_RDWR | os.O_NOFOLLOW, directory)
    finally:
        os.close(directory)
