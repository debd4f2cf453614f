"""Measure what monitors cost, compared with each other.

They run on the same machine and terminal at the same interval, one after the other in one run.

python -m bench.monitors.peers --seconds 40 --load --out FOLDER

gpuscope runs first and last, which shows whether the machine changed meanwhile. For each monitor
the whole tree of its processes is counted, including children that have ended. ``--load`` runs a
program with torch that keeps every GPU lightly busy; ``--fake 2`` uses a fake driver for all of
them instead. A monitor that is not installed is reported as missing. FOLDER gets ``peers.json``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bench.terminal import Terminal, cpu_seconds_of, descendants, rss_bytes_of

SETTLE_SECONDS = 5.0
QUIET_SECONDS, LONGEST_SETTLE_SECONDS = 2.0, 20.0
"""Programs that are started once (our doctor examines the environment) have ended when no process
has come or gone for this long.
"""
LOAD = """
import sys, time, torch
device = torch.device("cuda", int(sys.argv[1]))
one = torch.randn(4096, 4096, device=device)
while True:
    for _ in range(20):
        one @ one
    torch.cuda.synchronize(device)
    time.sleep(0.05)
"""


class Peer(NamedTuple):
    """A monitor to measure.

    ``first`` is a pattern in the output of its first frame; ``why_not`` says why it cannot be run,
    "" if it can.
    """

    name: str
    argv: list[str]
    first: str
    why_not: str = ""


def peers() -> dict[str, Peer]:
    def program(name: str, *arguments: str, first: str) -> Peer:
        path = shutil.which(name)
        return Peer(name, [path or name, *arguments], first, "" if path else "not installed")

    nvitop = subprocess.run(
        [sys.executable, "-m", "nvitop", "--version"], capture_output=True, text=True, timeout=60
    )
    why_not = "" if nvitop.returncode == 0 else nvitop.stderr.strip().splitlines()[-1]
    return {
        "gpuscope": Peer("gpuscope", [sys.executable, "-m", "gpuscope"], "Overview"),
        "nvitop": Peer(
            "nvitop",
            [sys.executable, "-m", "nvitop", "-m", "full", "--interval", "1"],
            "Driver Version",
            why_not,
        ),
        "nvidia-smi": program("nvidia-smi", "-l", "1", first="NVIDIA-SMI"),
        "nvtop": program("nvtop", "-d", "10", first="GPU"),
    }


def measure(peer: Peer, size: tuple[int, int], seconds: float, folder: Path) -> dict[str, Any]:
    """Measure one monitor in a terminal of its own.

    Start, settling, and its cost over ``seconds``.
    """
    if peer.why_not:
        return {"name": peer.name, "missing": peer.why_not}
    env = {"XDG_STATE_HOME": str(folder), "XDG_CONFIG_HOME": str(folder), "LANG": "C.UTF-8"}
    with Terminal(peer.argv, *size, env) as terminal:
        try:
            first = terminal.wait_for(peer.first, 20.0)
        except TimeoutError as error:
            return {"name": peer.name, "missing": str(error)[-600:]}
        settled = settle(terminal)
        began, before, drawn = time.perf_counter(), terminal.cpu_by_process(), terminal.bytes_read
        terminal.pump(seconds)
        elapsed, after = time.perf_counter() - began, terminal.cpu_by_process()
        names, rss = {pid: _name(pid) for pid in after}, terminal.rss_bytes()
        if terminal.ended:
            return {"name": peer.name, "missing": f"it ended: {terminal.tail[-600:]!r}"}
        each = {
            names[pid]: round((spent - before.get(pid, 0.0)) / elapsed * 100, 3)
            for pid, spent in after.items()
        }
        return {
            "name": peer.name,
            "settled_after_seconds": round(settled, 1),
            "seconds": round(elapsed, 1),
            "cpu_percent": round((sum(after.values()) - sum(before.values())) / elapsed * 100, 3),
            "cpu_percent_each": each,
            "rss_mib": round(sum(rss.values()) / 2**20, 1),
            "rss_mib_each": {
                names.get(pid, str(pid)): round(v / 2**20, 1) for pid, v in rss.items()
            },
            "bytes_per_second": round((terminal.bytes_read - drawn) / elapsed),
            "first_frame_seconds": round(first, 3),
        }


def settle(terminal: Terminal) -> float:
    """Wait until the program is in its steady state; return the seconds that it took."""
    began = changed = time.perf_counter()
    processes = terminal.processes()
    while (now := time.perf_counter()) - began < LONGEST_SETTLE_SECONDS:
        if now - began >= SETTLE_SECONDS and now - changed >= QUIET_SECONDS:
            break
        terminal.pump(0.5)
        if (found := terminal.processes()) != processes:
            processes, changed = found, time.perf_counter()
    return time.perf_counter() - began


def _name(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        return str(pid)
    return " ".join(word.rsplit("/", 1)[-1] for word in words[:5]).strip() or str(pid)


def measure_collector(seconds: float) -> dict[str, Any]:
    """Run our agent alone at 1 Hz, and discard its frames."""
    from gpuscope.attach.bundle import local_agent_argv

    read = [0]
    with subprocess.Popen(
        [*local_agent_argv(1.0), "--no-ping-timeout"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        output = child.stdout.fileno()

        def drain() -> None:
            while data := os.read(output, 1 << 16):
                read[0] += len(data)

        threading.Thread(target=drain, daemon=True).start()
        time.sleep(SETTLE_SECONDS)

        def spent() -> float:
            return sum(cpu_seconds_of(pid) or 0.0 for pid in descendants(child.pid))

        began, before, was = time.perf_counter(), spent(), read[0]
        time.sleep(seconds)
        elapsed = time.perf_counter() - began
        found = {
            "name": "collector alone",
            "seconds": round(elapsed, 1),
            "cpu_percent": round((spent() - before) / elapsed * 100, 3),
            "rss_mib": round(rss_bytes_of(child.pid) / 2**20, 1),
            "bytes_per_second": round((read[0] - was) / elapsed),
        }
        child.kill()
    return found


@contextlib.contextmanager
def load(wanted: bool, say: Any) -> Iterator[None]:
    """Run a light program with torch on each GPU."""
    running: list[subprocess.Popen[bytes]] = []
    if wanted:
        asked = [sys.executable, "-c", "import torch; print(torch.cuda.device_count())"]
        count = int(
            subprocess.run(asked, capture_output=True, text=True, check=True, timeout=120).stdout
        )
        running = [subprocess.Popen([sys.executable, "-c", LOAD, str(gpu)]) for gpu in range(count)]
        time.sleep(12.0)
        say({"load": count, "alive": sum(one.poll() is None for one in running)})
    try:
        yield
    finally:
        for one in running:
            one.kill()
            one.wait()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--size", default="200x60")
    parser.add_argument("--only", default="gpuscope,nvitop,nvidia-smi,nvtop,collector,gpuscope")
    parser.add_argument("--load", action="store_true")
    parser.add_argument("--fake", type=int, metavar="GPUS")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    if args.fake:
        from tests.fakes import shim

        os.environ.update(shim.environment(gpus=args.fake, pid=os.getpid(), as_measured=1))
    args.out.mkdir(parents=True, exist_ok=True)
    columns, rows = (int(part) for part in args.size.split("x"))
    found: list[dict[str, Any]] = []

    def say(line: dict[str, Any]) -> None:
        found.append(line)
        print(json.dumps(line), flush=True)
        (args.out / "peers.json").write_text(json.dumps(found, indent=1))

    with tempfile.TemporaryDirectory() as home, load(args.load, say):
        folder = Path(home)
        (folder / "gpuscope").mkdir()
        (folder / "gpuscope" / "config.toml").write_text("rate_hz = 1.0\n")
        known = peers()
        for name in args.only.split(","):
            say(
                measure_collector(args.seconds)
                if name == "collector"
                else measure(known[name], (columns, rows), args.seconds, folder)
            )


if __name__ == "__main__":
    main()
