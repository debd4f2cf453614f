"""Agents for tests, and a reader of their frames.

One is a real process from the zip; another runs in this process (for a fake driver).
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from gpuscope.agent import main as agent_main
from gpuscope.agent.outbox import Outbox
from gpuscope.agent.picture import Collector
from gpuscope.attach import bundle
from gpuscope.wire import frames
from gpuscope.wire.codec import decode, encode

PATIENCE = 20.0
F = TypeVar("F", bound=frames.Frame)


class Viewer:
    """The other end of an agent: collects its frames on a thread, and sends requests."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self.frames: list[frames.Frame] = []
        self.arrived: list[float] = []  # monotonic seconds
        self.ended = False
        self._write_fd = write_fd
        self._read_fd = read_fd
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._read, daemon=True)

    def start(self) -> Viewer:
        self._thread.start()
        return self

    def join(self) -> None:
        """Wait for the end of the stream, if it was being read."""
        if self._thread.ident is not None:
            self._thread.join(PATIENCE)

    def _read(self) -> None:
        buffer = b""
        while True:
            data = os.read(self._read_fd, 65536)
            with self._changed:
                *lines, buffer = (buffer + data).split(b"\n")
                self.frames.extend(decode(line) for line in lines)
                self.arrived.extend([time.monotonic()] * len(lines))
                self.ended = not data
                self._changed.notify_all()
            if not data:
                return

    def send(self, frame: frames.Frame | bytes) -> None:
        os.write(self._write_fd, frame if isinstance(frame, bytes) else encode(frame))

    def close_requests(self) -> None:
        if self._write_fd >= 0:
            os.close(self._write_fd)
            self._write_fd = -1

    def wait(self, condition: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
        """Return the first true result of ``condition``, which is called after each frame."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while True:
                answer = condition()
                if answer:
                    return answer
                left = deadline - time.monotonic()
                assert left > 0, f"no {what} within {seconds} s; last frames: {self.frames[-8:]}"
                assert not self.ended or condition(), (
                    f"the stream ended without {what}: {self.frames[-3:]}"
                )
                self._changed.wait(min(left, 0.5))

    def wait_end(self) -> frames.Bye | None:
        self.wait(lambda: self.ended, "end of the stream")
        self._thread.join()
        return next((f for f in self.frames if isinstance(f, frames.Bye)), None)

    # ── what the frames say ──

    def all(self, kind: type[F], **values: Any) -> list[F]:
        with self._changed:
            found = [f for f in self.frames if isinstance(f, kind)]
        return [
            f for f in found if all(getattr(f, name) == value for name, value in values.items())
        ]

    def wait_for(
        self, kind: type[F], test: Callable[[F], Any] = lambda frame: True, what: str = ""
    ) -> F:
        found: F = self.wait(
            lambda: next((f for f in self.all(kind) if test(f)), None), what or kind.__name__
        )
        return found

    def definition(
        self, kind: str, test: Callable[[Any], Any] = lambda definition: True
    ) -> tuple[int, Any]:
        """Return id and content of the newest definition of this kind that passes the test."""

        def find() -> tuple[int, Any] | None:
            hits = [
                (f.id, getattr(f, kind))
                for f in self.all(frames.Def)
                if getattr(f, kind) is not None
            ]
            return next(((number, it) for number, it in reversed(hits) if test(it)), None)

        return self.wait(find, f"definition of {kind}")  # type: ignore[no-any-return]

    def rows(self, table: str, number: int) -> list[dict[str, Any]]:
        """Return all rows of one entity, by column."""
        found: list[dict[str, Any]] = []
        for sample in self.all(frames.Sample):
            for row in getattr(sample, table):
                if row[0] == number:
                    whole = len(row) == 1 + len(frames.COLUMNS[table])
                    assert whole or (found and len(row) == 1 + frames.KEPT[table]), (
                        "seldom-read columns are all or none"
                    )
                    found.append(
                        {
                            **(found[-1] if found else {}),
                            **dict(zip(frames.COLUMNS[table], row[1:], strict=False)),
                        }
                    )
        return found

    def reasons(self, number: int) -> dict[str, tuple[str, str]]:
        """Return why columns and fields of one entity are unknown now: code and text."""
        held: dict[str, tuple[str, str]] = {}
        for sample in self.all(frames.Sample):
            for row in sample.why:
                if row[0] == number:
                    held[str(row[1])] = (str(row[2]), str(row[3]))
        return {name: reason for name, reason in held.items() if reason[0]}


@contextlib.contextmanager
def process(
    *options: str,
    env: dict[str, str] | None = None,
    read: bool = True,
) -> Iterator[tuple[Viewer, subprocess.Popen[bytes]]]:
    """Start a real agent from the zip.

    ``read=False`` leaves its frames in the pipe until ``viewer.start()``.
    """
    child = subprocess.Popen(
        [sys.executable, "-I", bundle.local_agent_zip(), *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=None if env is None else {**os.environ, **env},
    )
    assert child.stdin is not None
    assert child.stdout is not None
    viewer = Viewer(child.stdout.fileno(), os.dup(child.stdin.fileno()))
    child.stdin.close()
    if read:
        viewer.start()
    try:
        yield viewer, child
    finally:
        viewer.close_requests()
        child.kill()
        child.wait()
        viewer.join()
        assert child.stderr is not None
        child.stderr.close()
        child.stdout.close()


@contextlib.contextmanager
def inside(*options: str, directories: Sequence[str] = ()) -> Iterator[Viewer]:
    """Run an agent in this process, so that it sees an installed FakeNvml.

    It ends with the block.
    """
    args = agent_main.parse(list(options))
    read_fd, frames_fd = os.pipe()
    requests_fd, write_fd = os.pipe()
    collector = Collector(args.hz, directories=directories)
    agent = agent_main.Agent(args, Outbox(frames_fd), collector, requests_fd)
    viewer = Viewer(read_fd, write_fd).start()

    def run() -> None:
        agent.leave(agent.run())
        # it is not waited for without end elsewhere; here its descriptor is closed
        agent._writer.join()
        os.close(frames_fd)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield viewer
    finally:
        viewer.close_requests()
        thread.join(PATIENCE)
        assert not thread.is_alive(), "the agent does not end"
        viewer.wait_end()
        # otherwise it would read from whatever gets the number of its descriptor next
        agent._requests._reader.join(PATIENCE)
        os.close(read_fd)
        os.close(requests_fd)
