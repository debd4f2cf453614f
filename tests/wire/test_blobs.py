"""Blobs: chunks on credit, checked and bounded at the receiving end."""

from __future__ import annotations

import base64
import errno
import hashlib
import io
import os
import random
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from gpuscope.store import blob_receiver
from gpuscope.store.blob_receiver import BlobReceiver
from gpuscope.store.decode import decode
from gpuscope.wire import blobs as blobs_module
from gpuscope.wire.blobs import CHUNK_BYTES, WINDOW_CHUNKS, BlobError, BlobSender
from gpuscope.wire.codec import MAX_CHUNK_CHARS, encode
from gpuscope.wire.frames import MAX_LINE_BYTES, Blob

ROOT = Path(__file__).parent.parent.parent


def noise(size: int) -> bytes:
    return random.Random(7).randbytes(size)


def chunks(content: bytes | io.BytesIO, **options: int) -> list[Blob]:
    """All frames of a blob, the receiver granting credit as it goes."""
    sender = BlobSender(5, content, **options)
    blobs = []
    while not sender.done:
        line = sender.next_line()
        if line is not None:
            assert len(line) < MAX_LINE_BYTES // 4
            blobs.append(decode(line))
            sender.allow(1)
    return blobs


def hand_made(content: bytes, **changes: object) -> Blob:
    """One chunk that holds all of ``content`` as it is."""
    values = {
        "data": base64.b64encode(content).decode(),
        "last": True,
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    return Blob(5, 0, **{**values, **changes})


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES, 300_000, 3_000_000])
def test_content_arrives_whole(tmp_path, size):
    content = noise(size // 2) + b"\0" * (size - size // 2)
    target = tmp_path / "blob"
    receiver = BlobReceiver(5, str(target))
    blobs = chunks(content)
    assert [receiver.feed(blob) for blob in blobs] == [False] * (len(blobs) - 1) + [True]
    assert target.read_bytes() == content
    assert receiver.size == size
    assert all(len(blob.data) <= MAX_CHUNK_CHARS for blob in blobs)
    assert os.listdir(tmp_path) == ["blob"]


def test_a_file_is_read_as_it_is_sent_and_closed_at_the_end(tmp_path):
    (tmp_path / "source").write_bytes(noise(200_000))
    file = open(tmp_path / "source", "rb")  # noqa: SIM115
    sender = BlobSender(5, file)
    sender.next_line()
    assert file.tell() < 200_000
    while not sender.done:
        sender.next_line()
        sender.allow(1)
    assert file.closed


def test_without_credit_nothing_more_is_sent():
    sender = BlobSender(5, noise(2_000_000))
    sent = 0
    while sender.wants_turn:
        sent += sender.next_line() is not None
    assert sent == WINDOW_CHUNKS
    sender.allow(2)
    while sender.wants_turn:
        sent += sender.next_line() is not None
    assert sent == WINDOW_CHUNKS + 2


def test_a_turn_on_content_that_compresses_well_is_bounded():
    content = io.BytesIO(b"\0" * 50_000_000)
    sender = BlobSender(5, content)
    assert sender.next_line() is None
    assert content.tell() <= 1 << 20


def test_too_large_or_unreadable_content_ends_the_sender():
    sender = BlobSender(5, noise(100_000), max_bytes=50_000)
    with pytest.raises(BlobError, match="50000"):
        sender.next_line()
    assert sender.done

    class Broken(io.BytesIO):
        def read(self, *_: object) -> bytes:
            raise OSError("disk on fire")

    with pytest.raises(BlobError, match="disk on fire"):
        BlobSender(5, Broken()).next_line()


def refused(tmp_path: Path, blobs: list[Blob], match: str, max_bytes: int = 10_000_000) -> None:
    receiver = BlobReceiver(5, str(tmp_path / "blob"), max_bytes)
    with pytest.raises(BlobError, match=match):
        [receiver.feed(blob) for blob in blobs]
    assert os.listdir(tmp_path) == []


def test_the_receiver_refuses_what_is_not_whole(tmp_path):
    good = chunks(noise(200_000))
    refused(tmp_path, [*good[:2], *good[3:]], "chunk 2 is missing")
    refused(tmp_path, [good[0], good[0]], "chunk 1 is missing")
    refused(
        tmp_path, [*good[:-1], Blob(5, good[-1].n, good[-1].data, True, None, "0" * 64)], "sha256"
    )
    refused(tmp_path, [hand_made(zlib.compress(noise(1000))[:-10])], "ended early")
    refused(tmp_path, [hand_made(zlib.compress(b"x") + b"more")], "after its end")
    refused(tmp_path, [hand_made(b"no zlib at all")], "damaged")


def test_the_receiver_refuses_what_is_too_large(tmp_path):
    bomb = zlib.compress(b"\0" * 50_000_000, 9)
    assert len(bomb) < 60_000
    refused(tmp_path, [hand_made(bomb)], "unpacks to more than the 1000000", max_bytes=1_000_000)
    refused(tmp_path, chunks(noise(300_000)), "more than the 100000", max_bytes=100_000)
    refused(tmp_path, [hand_made(b"", size=1 << 40)], "allowed")
    # Compressed bytes that unpack to nothing are bounded too.
    empty_blocks = b"\x78\x01" + b"\x00\x00\x00\xff\xff" * 20_000
    refused(tmp_path, [hand_made(empty_blocks, last=False)], "were sent", max_bytes=10_000)


def test_one_chunk_unpacks_to_a_bounded_size(tmp_path):
    limit = blob_receiver.MAX_CHUNK_UNPACKS_BYTES
    bomb = zlib.compress(b"\0" * (limit + 1), 9)
    assert len(bomb) < CHUNK_BYTES, "it would fit a usual chunk"
    refused(
        tmp_path,
        [hand_made(bomb)],
        f"one chunk of it unpacks to more than {limit}",
        max_bytes=1 << 40,
    )
    receiver = BlobReceiver(5, str(tmp_path / "blob"))
    with pytest.raises(BlobError):
        receiver.feed(hand_made(zlib.compress(b"\0" * 8 * limit, 9)))
    assert receiver.written_bytes <= limit + (1 << 20), "nor was more of it unpacked first"


def test_what_compresses_well_is_cut_into_chunks_that_pass(tmp_path):
    content = b"\0" * 3 * blob_receiver.MAX_CHUNK_UNPACKS_BYTES
    blobs = chunks(content)
    assert len(blobs) >= 3 * blob_receiver.MAX_CHUNK_UNPACKS_BYTES // (2 * blobs_module.FLUSH_BYTES)
    receiver = BlobReceiver(5, str(tmp_path / "blob"))
    assert [receiver.feed(blob) for blob in blobs][-1]
    assert (tmp_path / "blob").stat().st_size == len(content)
    assert (
        hashlib.sha256((tmp_path / "blob").read_bytes()).digest()
        == hashlib.sha256(content).digest()
    )


def test_the_size_that_was_announced_holds(tmp_path):
    refused(
        tmp_path,
        [hand_made(zlib.compress(b"x" * 101), size=100)],
        "more than the 100 bytes that were announced",
    )
    refused(
        tmp_path,
        [hand_made(zlib.compress(b"x" * 99), size=100)],
        "99 bytes, but 100",
    )


def test_the_target_is_not_touched_before_the_end(tmp_path):
    target = tmp_path / "blob"
    target.write_text("old")
    receiver = BlobReceiver(5, str(target))
    blobs = chunks(noise(200_000))
    for blob in blobs[:-1]:
        receiver.feed(blob)
    assert target.read_text() == "old"
    receiver.abort()
    assert os.listdir(tmp_path) == ["blob"]


def test_a_full_disk_is_said_and_nothing_stays_there(tmp_path):
    # A limit of the file's size stands for the disk: what is still in the buffer cannot be written
    # at the end.
    code = (
        "import os, resource, sys\n"
        "from gpuscope.store.blob_receiver import BlobReceiver\n"
        "from gpuscope.wire.blobs import BlobError\n"
        "from gpuscope.wire.codec import decode\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "receiver = BlobReceiver(5, os.path.join(sys.argv[1], 'blob'))\n"
        "try:\n"
        "    for line in sys.stdin.buffer:\n"
        "        receiver.feed(decode(line))\n"
        "except BlobError as error:\n"
        "    print(error)\n"
    )
    lines = b"".join(encode(blob) for blob in chunks(noise(100_000), chunk_bytes=3000))
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        input=lines,
        capture_output=True,
        timeout=60,
        cwd=ROOT,
    )
    assert done.stdout.decode() == f"cannot write {tmp_path}/blob: {os.strerror(errno.EFBIG)}\n", (
        done.stderr
    )
    assert os.listdir(tmp_path) == []


def test_a_directory_that_cannot_be_written_is_said(tmp_path):
    with pytest.raises(BlobError, match="cannot write"):
        BlobReceiver(5, str(tmp_path / "missing" / "blob"))
