"""Starts a training of :mod:`.trainings`, and asks its probe."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from gpuscope.wire.frames import Error, Request, Result
from tests.fakes.forked_scripts import free_port
from tests.fakes.probe_client import ROOT, Reader, sockets

CONNECTION = "connections to the probe"
"""The name of the probe's connections, of which every watching program has one, not only ours."""
START_SECONDS, LOOK_SECONDS = 150.0, 60.0


class Training:
    """A training in processes of its own, one a rank."""

    def __init__(
        self, kind: str, folder: Path, device: str, watch: bool = True, ranks: int = 1,
        pause: float = 0.0, cold: bool = False, tree: Path = ROOT,
    ) -> None:  # fmt: skip
        """Start it; it has the gpuscope that lies in ``tree``."""
        self.kind, self.watch = kind, watch
        self.outs = [folder / f"{kind}-{'looked' if watch else 'alone'}-{n}" for n in range(ranks)]
        port = free_port()
        self.processes = []
        self.readers: list[Reader] = []
        for rank, out in enumerate(self.outs):
            words = ["-m", "bench.look.trainings", kind, str(out), "--device", device]
            words += ["--watch"] if watch else []
            words += ["--pause", str(pause)] if pause else []
            words += ["--cold"] if cold else []
            with open(f"{out}.printed", "wb") as printed:
                self.processes.append(
                    subprocess.Popen(
                        [sys.executable, *words],
                        cwd=tree,
                        env=_environment(rank, ranks, port, folder),
                        stdin=subprocess.PIPE,
                        stdout=printed,
                        stderr=subprocess.STDOUT,
                        text=True,
                    )
                )

    def connect(self) -> None:
        """Wait until it trains, and connect to its probes where it has any."""
        until = time.monotonic() + START_SECONDS
        while not all(Path(f"{out}.ready").exists() for out in self.outs):
            self._running()
            if time.monotonic() > until:
                raise SystemExit(f"{self.kind} did not begin to train")
            time.sleep(0.05)
        if self.watch:
            self.readers = [
                Reader(sockets(process.pid)[0], LOOK_SECONDS) for process in self.processes
            ]

    def _running(self) -> None:
        if any(process.poll() is not None for process in self.processes):
            raise SystemExit(f"{self.kind} ended: {self.printed()[-2000:]}")

    def look(self, number: int) -> list[Result | Error]:
        """Look at all ranks at the same moment."""
        self._running()
        for reader in self.readers:
            reader.send(Request("look", number, {}, LOOK_SECONDS))
        return [_answer(reader, number) for reader in self.readers]

    def tell(self, command: str) -> None:
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write(command + "\n")
            process.stdin.flush()

    def trace(self, steps: int) -> dict[str, Any]:
        """Return what torch's own profiler records on the device."""
        self.tell(f"trace {steps}")
        path = Path(f"{self.outs[0]}.trace")
        until = time.monotonic() + START_SECONDS
        while not path.exists():
            self._running()
            if time.monotonic() > until:
                raise SystemExit(f"{self.kind}: torch's profiler did not end")
            time.sleep(0.05)
        found: dict[str, Any] = json.loads(path.read_text())
        return found

    def finish(self, steps: int = 1) -> list[dict[str, Any]]:
        """End it after ``steps`` steps or now; return what its ranks have written."""
        for reader in self.readers:
            reader.close()
        self.tell(f"stop {steps}")
        for process in self.processes:
            try:
                process.wait(START_SECONDS)
            except subprocess.TimeoutExpired:
                self.end()
                raise SystemExit(f"{self.kind} did not end") from None
            if process.returncode:
                raise SystemExit(f"{self.kind} ended: {self.printed()[-2000:]}")
        return [json.loads(out.read_text()) for out in self.outs]

    def end(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                os.kill(process.pid, signal.SIGKILL)
            process.wait()

    def printed(self) -> str:
        return "".join(Path(f"{out}.printed").read_text(errors="replace") for out in self.outs)

    def left(self) -> list[Counter[str]]:
        """Return the threads of each rank, and its descriptors by what they are of."""
        return [_left(process.pid) for process in self.processes]


def _left(pid: int) -> Counter[str]:
    found = Counter(threads=len(os.listdir(f"/proc/{pid}/task")))
    lines = Path("/proc/net/unix").read_text().splitlines()
    paths = {row[6]: row[7] for line in lines if len(row := line.split()) > 7}
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            kind, _, number = os.readlink(link).partition(":[")
        except OSError:
            continue  # it has just been closed
        if kind == "socket":
            kind = paths.get(number.rstrip("]"), kind)
            if kind.endswith(".sock"):
                kind = CONNECTION
        found[kind if kind != "anon_inode" else f"anon_inode:[{number}"] += 1
    return found


def _answer(reader: Reader, number: int) -> Result | Error:
    while True:
        frame = reader.next()
        if frame is None:
            raise SystemExit("the probe has gone")
        if isinstance(frame, (Result, Error)) and frame.id == number:
            return frame


def _environment(rank: int, ranks: int, port: int, folder: Path) -> dict[str, str]:
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GPUSCOPE")}
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONWARNINGS": "ignore",
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "GPUSCOPE_BLACKBOX_DIR": str(folder / "box"),
    }
