"""The agent's outbox keeps its order.

The tests see what goes first, what is dropped, and that a large blob leaves the samples on time.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuscope.agent.outbox import MAX_WAITING_BYTES, Outbox
from gpuscope.store.decode import decode
from gpuscope.wire.codec import encode
from gpuscope.wire.frames import Ack, Blob, Bye, Frame, Pong, Result, Sample
from tests.fakes.waiting import until

ROOT = Path(__file__).parent.parent.parent


class Reader:
    """The other end of the pipe: reads a line when told to."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.buffer = b""

    def next(self, seconds: float = 10.0) -> Frame:
        deadline = time.monotonic() + seconds
        while b"\n" not in self.buffer:
            ready, _, _ = select.select([self.fd], [], [], max(deadline - time.monotonic(), 0))
            assert ready, "no line came"
            data = os.read(self.fd, 1 << 16)
            assert data, "the pipe was closed"
            self.buffer += data
        line, _, self.buffer = self.buffer.partition(b"\n")
        return decode(line)

    def nothing(self, seconds: float = 0.1) -> bool:
        return not self.buffer and not select.select([self.fd], [], [], seconds)[0]


@contextlib.contextmanager
def box(size: int = 65536) -> Iterator[tuple[Outbox, Reader]]:
    read_fd, write_fd = os.pipe()
    fcntl.fcntl(write_fd, fcntl.F_SETPIPE_SZ, size)
    outbox = Outbox(write_fd)
    try:
        yield outbox, Reader(read_fd)
    finally:
        outbox.close()
        os.close(read_fd)


def start(outbox: Outbox) -> threading.Thread:
    def run() -> None:
        with contextlib.suppress(OSError):
            outbox.run()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def sample(q: int) -> bytes:
    return encode(Sample(q, q, g=[[1, 0.5]]))


def test_control_lines_then_the_sample_then_a_chunk():
    with box() as (outbox, reader):
        outbox.put(encode(Blob(9, 0, "QUJD", last=True)))
        outbox.put(encode(Result(9)))
        outbox.put_sample(sample(1))
        outbox.put(encode(Ack(1)))
        outbox.put(encode(Ack(2)))
        start(outbox)
        got = [type(reader.next()) for _ in range(5)]
        assert got == [Ack, Ack, Sample, Blob, Result]


def test_the_newest_sample_is_dropped_while_one_waits():
    with box() as (outbox, reader):
        assert outbox.put_sample(sample(1)) is True
        assert outbox.put_sample(sample(2)) is False
        start(outbox)
        assert reader.next().q == 1
        until(lambda: outbox.put_sample(sample(3)), 5)
        assert reader.next().q == 3


def test_chunks_wait_for_the_pipe_to_drain():
    with box() as (outbox, reader):
        for n in range(2):
            outbox.put(encode(Blob(9, n, "QUJD")))
        start(outbox)
        until(lambda: select.select([reader.fd], [], [], 0)[0], 5)
        time.sleep(0.05)
        first = os.read(reader.fd, 1 << 20)
        assert first.count(b"\n") == 1, "a second chunk was written before the first was read"
        assert reader.next().n == 1
        assert reader.nothing()


def test_a_relayed_result_does_not_overtake_its_chunks():
    with box() as (outbox, reader):
        for n in range(3):
            outbox.put(encode(Blob(7, n, "QUJD", last=n == 2)))
        outbox.put(encode(Result(7)))
        outbox.put(encode(Pong()))
        start(outbox)
        assert [type(reader.next()) for _ in range(5)] == [Pong, Blob, Blob, Blob, Result]


def test_a_reader_that_does_not_read_costs_bounded_memory():
    with box() as (outbox, _):
        line = encode(Bye("x" * 1_000_000))[:-1] + b"\n"
        taken = sum(outbox.put(line) for _ in range(20))
        assert taken == MAX_WAITING_BYTES // len(line)


def test_close_writes_what_waits_and_never_hangs():
    with box() as (outbox, reader):
        thread = start(outbox)
        outbox.put(encode(Bye("done")))
        outbox.close()
        thread.join(5)
        assert not thread.is_alive()
        assert reader.next() == Bye("done")
        assert outbox.put(encode(Pong())) is False
    with box(4096) as (outbox, reader):
        thread = start(outbox)
        outbox.put(encode(Bye("x" * 500_000)))
        until(lambda: select.select([reader.fd], [], [], 0)[0], 5)
        outbox.close()  # nobody reads
        thread.join(5)
        assert not thread.is_alive()


def test_a_reader_that_is_gone_is_an_os_error():
    read_fd, write_fd = os.pipe()
    outbox = Outbox(write_fd)
    os.close(read_fd)
    outbox.put(encode(Pong()))
    with pytest.raises(OSError):
        outbox.run()
    os.close(write_fd)
