"""A process that listens like a probe, well-behaved or hostile.

It is started by ``python -m tests.fakes.probe_process DIR MODE``.

``start(directory, mode)`` runs one and waits until it listens. Modes: good, endless (a line without
end), garbage (random bytes), mute (accepts, says nothing), late (is good, but greets after four
seconds), flood (samples as fast as the socket takes them), freeze (stops itself after some
samples), misnamed (under another pid's name), foreign (speaks protocol 2), huge (definitions
without number), lies (claims to be pid 1), leaves (says good-bye after some samples), leaks
(remembers 60 steps of growing memory), level (the same of memory that does not grow), babbles
(answers that with nonsense).
"""

from __future__ import annotations

import contextlib
import os
import random
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from gpuscope.process.procfs import start_ticks
from gpuscope.wire import frames
from gpuscope.wire.codec import decode, encode

ROOT = Path(__file__).parent.parent.parent
UUID = "00000001-0000-4000-8000-000000000000"  # of the first card of FakeNvml, as torch writes it
TRAINER, ALLOC = 1, 2
MINUTES_BEFORE = 5
"""What it remembers of its readings begins so long before it is asked."""
LATE_SECONDS = 4.0
COLS = {"t": ["step", "step_seconds", "loss"], "a": ["reserved_bytes", "allocated_bytes"]}


@contextlib.contextmanager
def start(directory: Path, mode: str = "good") -> Iterator[subprocess.Popen[bytes]]:
    """One such process; killed at the end of the block."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.fakes.probe_process", str(directory), mode],
        stdout=subprocess.PIPE,
        cwd=ROOT,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"listening\n"
        yield process
    finally:
        process.kill()
        process.wait()


def make_directory(path: Path, mode: int = 0o700) -> Path:
    path.mkdir()
    path.chmod(mode)
    return path


def socket_path(directory: Path, pid: int) -> Path:
    return directory / f"{pid}-{start_ticks(pid)}.sock"


class _Server:
    def __init__(self, client: socket.socket, mode: str) -> None:
        self.client, self.mode = client, mode
        self.step = 0
        self.hz = 10.0
        self.snapshot = 0  # id of a snapshot that is being taken

    def greet(self) -> None:
        if self.mode == "mute":
            return
        if self.mode == "late":
            time.sleep(LATE_SECONDS)
        if self.mode == "garbage":
            self.client.sendall(random.Random(7).randbytes(20000) + b"\n")
            return
        requests = ["rate", "environment", "snapshot", "cancel", "growth", "recent"]
        hello = frames.Hello("probe", pid=os.getpid(), hz=self.hz, cols=COLS, requests=requests)
        hello.v = 2 if self.mode == "foreign" else frames.PROTOCOL
        self.send(hello)
        if self.mode == "endless":
            self.client.setblocking(True)
            with contextlib.suppress(OSError):
                while True:
                    self.client.sendall(b"x" * 65536)
        pid = 1 if self.mode == "lies" else os.getpid()
        trainer = frames.TrainerDef(
            pid=pid, start=5, rank=0, world_size=2, job="job-1", script="train.py"
        )
        self.send(frames.Def(TRAINER, trainer=trainer))
        self.send(frames.Def(ALLOC, alloc=frames.AllocDef(TRAINER, 0, uuid=UUID)))
        self.send(frames.Def(ALLOC + 1, alloc=frames.AllocDef(TRAINER, 1)))
        if self.mode == "huge":
            for number in range(150):
                self.send(frames.Def(100 + number, alloc=frames.AllocDef(TRAINER, number)))
        self.send(frames.Event(ALLOC, "oom", time.monotonic_ns(), "out of memory"))

    def send(self, frame: frames.Frame) -> None:
        self.client.sendall(encode(frame))

    def sample(self) -> None:
        if self.mode in ("mute", "garbage"):
            return
        self.step += 1
        sample = frames.Sample(self.step, time.monotonic_ns())
        sample.t = [[TRAINER, self.step, 0.25, None]]
        sample.a = [[ALLOC, 3000, 2000], [ALLOC + 1, 30, 20]]
        if self.step == 1:
            sample.why = [[TRAINER, "loss", "not_supported", "no progress bar"]]
        self.send(sample)
        if self.mode == "leaves" and self.step == 3:
            self.send(frames.Bye(frames.DETACHED))
        if self.mode == "freeze" and self.step == 3:
            os.kill(os.getpid(), signal.SIGSTOP)

    def answer(self, line: bytes) -> None:
        request = decode(line)
        assert isinstance(request, frames.Request)
        if request.r == "rate":
            self.hz = float(request.args["hz"] or 1.0)
        elif request.r == "environment":
            self.send(frames.Result(request.id, {"hz": self.hz, "args": request.args}))
        elif request.r == "growth":
            points = [[100 + 40 * n, (8 << 30) + n * (30 << 20)] for n in range(60)]
            known = {
                "leaks": [[0, points]],
                "level": [[0, [[step, 8 << 30] for step, _ in points]]],
                "babbles": [[0, [[1], "x", [2, -1], [3, 1 << 80], None]], ["a"], 7],
            }
            self.send(frames.Result(request.id, {"points": known.get(self.mode, [])}))
        elif request.r == "recent":
            now = time.monotonic_ns()
            before = [now - (MINUTES_BEFORE * 60 - 2 * n) * 10**9 for n in range(60)]
            told = {"m": before, "step_seconds": [0.5] * 60}
            self.send(
                frames.Result(request.id, {"trainer": "x" if self.mode == "babbles" else told})
            )
        elif request.r == "snapshot":
            self.snapshot = request.id
            self.send(frames.Ack(request.id))
            self.send(frames.Progress(request.id, 0.5, "half"))
        elif request.r == "cancel":
            self.snapshot = 0


def main(directory: str, mode: str) -> None:
    pid = os.getppid() if mode == "misnamed" else os.getpid()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(socket_path(Path(directory), pid)))
    listener.listen(8)
    print("listening", flush=True)
    while True:
        client, _ = listener.accept()
        with contextlib.suppress(OSError):
            server = _Server(client, mode)
            server.greet()
            serve(server)


def serve(server: _Server) -> None:
    rest = b""
    due = time.monotonic()
    while True:
        wait = 0.0 if server.mode == "flood" else max(0.0, due - time.monotonic())
        readable, _, _ = select.select([server.client], [], [], wait)
        if readable:
            data = server.client.recv(65536)
            if not data:
                return
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                server.answer(line)
        if server.mode == "flood" or time.monotonic() >= due:
            due = time.monotonic() + 1 / server.hz
            server.sample()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
