"""A file is replaced whole or stays as it was."""

from __future__ import annotations

import os
import stat
import threading

import pytest

from gpuscope.process import atomic_file


@pytest.fixture(autouse=True)
def umask():
    before = os.umask(0o077)
    yield
    os.umask(before)


def test_a_new_file_is_private_and_a_shared_one_is_not(tmp_path):
    atomic_file.write(tmp_path / "own", b"1")
    atomic_file.write(tmp_path / "masked", b"1", mode=0o644)
    atomic_file.write(tmp_path / "shared", b"1", mode=0o644, shared=True)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {"own": 0o600, "masked": 0o600, "shared": 0o644}


def test_who_reads_meanwhile_sees_one_content_or_the_other(tmp_path):
    path, contents = tmp_path / "file", [b"a" * 100_000, b"b" * 90_000]
    atomic_file.write(path, contents[0])
    writer = threading.Thread(
        target=lambda: [atomic_file.write(path, contents[n % 2], sync=False) for n in range(40)]
    )
    writer.start()
    seen = set()
    while writer.is_alive():
        seen.add(path.read_bytes())
    writer.join()
    assert seen <= set(contents)
    assert os.listdir(tmp_path) == ["file"]


def test_what_cannot_be_put_there_leaves_nothing_beside_it(tmp_path):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "inside").touch()
    with pytest.raises(OSError, match="taken"):
        atomic_file.write(tmp_path / "taken", b"1")
    with pytest.raises(FileNotFoundError):
        atomic_file.write_text(tmp_path / "nowhere" / "file", "1")
    assert os.listdir(tmp_path) == ["taken"]


def test_a_name_without_a_folder_is_in_the_current_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    atomic_file.write_text("file", "ä")
    assert (tmp_path / "file").read_bytes() == "ä".encode()


def test_what_is_no_file_is_written_to_if_the_user_names_it_and_never_replaced(tmp_path):
    pipe, named, part = tmp_path / "pipe", tmp_path / "named", tmp_path / "part"
    os.mkfifo(pipe)
    named.symlink_to(pipe)
    part.write_bytes(b"1")
    for path in (pipe, named):
        with pytest.raises(OSError, match="not a file"):
            atomic_file.write(path, b"1")
        with pytest.raises(OSError, match="not a file"):
            atomic_file.put_in_place(part, path)
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        atomic_file.write_output(path, b"whole")
        assert os.read(reader, 100) == b"whole"
        os.close(reader)
    assert named.is_symlink()
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert sorted(os.listdir(tmp_path)) == ["named", "part", "pipe"]


def test_an_output_that_is_a_file_is_replaced(tmp_path):
    (tmp_path / "file").write_bytes(b"before")
    atomic_file.write_output(tmp_path / "file", b"after")
    assert (tmp_path / "file").read_bytes() == b"after"
