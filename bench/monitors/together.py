"""Compare what monitors cost while they run at the same time on the same GPUs.

python -m bench.monitors.together --nvitop PYTHON --size 120x40 --seconds 60 --tree before=FOLDER

Each runs at its own default settings in a pane of tmux, all of them over the same fake driver
(``--real``: over the driver of this machine), and is measured over the same seconds. So what else
the machine does slows all of them alike, and the ratios can be compared between runs. PYTHON is an
interpreter that has nvitop. A tree is another version of gpuscope; this one is always measured.

With ``--trainers N`` so many of the processes are trainings with a probe, of some 20 steps a
second: on the GPU with ``--real``, else on the processor, where they send the monitors what a
training on a GPU sends but for its memory.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from bench.terminal import descendants

TREE = Path(__file__).resolve().parents[2]
SETTLE_SECONDS, QUIET_SECONDS, LONGEST_SETTLE_SECONDS = 20.0, 5.0, 60.0
"""When a program counts as settled: the least time since its start, the time without a new or ended
process, and the longest wait for that.
"""
TRAINING = """
import sys, time
from gpuscope.probe import core
core.arm("watch")
import torch
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
model.to(sys.argv[1])
optimizer = torch.optim.AdamW(model.parameters())
loader = torch.utils.data.DataLoader(torch.randn(256, 64), batch_size=16)
while True:
    for batch in loader:
        optimizer.zero_grad()
        loss = model(batch.to(sys.argv[1])).square().mean()
        loss.backward()
        optimizer.step()
        time.sleep(0.045)
"""


class Program(NamedTuple):
    """A monitor in a session of tmux, and the first process of it."""

    name: str
    pid: int


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nvitop", metavar="PYTHON")
    parser.add_argument("--tree", action="append", default=[], metavar="NAME=FOLDER")
    parser.add_argument("--size", action="append", metavar="COLUMNSxROWS")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--processes", type=int, default=4, help="how many use the GPUs")
    parser.add_argument("--trainers", type=int, default=0, help="how many of them have a probe")
    parser.add_argument("--real", action="store_true")
    args = parser.parse_args()
    commands = {"gpuscope": ([sys.executable, "-m", "gpuscope"], TREE)}
    for name, folder in (one.split("=", 1) for one in args.tree):
        commands[name] = ([sys.executable, "-m", "gpuscope"], Path(folder).resolve())
    if args.nvitop:
        commands["nvitop"] = ([args.nvitop, "-m", "nvitop"], Path("/"))
    training = [sys.executable, "-c", TRAINING, "cuda" if args.real else "cpu"]
    using = [
        subprocess.Popen(training if at < args.trainers else ["sleep", "3600"], cwd=TREE)
        for at in range(args.processes)
    ]
    try:
        env = dict(os.environ)
        if not args.real:
            from tests.fakes import shim

            owners = ",".join(f"{one.pid}:{at % args.gpus}" for at, one in enumerate(using))
            env = shim.environment(gpus=args.gpus, pid=owners)
        for size in args.size or ["120x40", "200x60"]:
            columns, rows = (int(part) for part in size.split("x"))
            for line in measured(commands, columns, rows, args.seconds, env):
                print(json.dumps({"size": size, **line}), flush=True)
    finally:
        for one in using:
            one.kill()
            one.wait()


def measured(
    commands: dict[str, tuple[list[str], Path]],
    columns: int,
    rows: int,
    seconds: float,
    env: dict[str, str],
) -> list[dict[str, object]]:
    """Run all of them at once in panes of this size, and return a line of figures for each."""
    # a monitor that ends may still write its state when its folder is removed
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        socket = str(Path(home) / "tmux")
        try:
            programs = [
                started(name, argv, tree, columns, rows, socket, Path(home), env)
                for name, (argv, tree) in commands.items()
            ]
            settle(programs)
            before, began = {one: spent(one) for one in programs}, time.perf_counter()
            time.sleep(seconds)
            after, elapsed = {one: spent(one) for one in programs}, time.perf_counter() - began
            return [line(one, before[one], after[one], elapsed, before, after) for one in programs]
        finally:
            subprocess.run(["tmux", "-S", socket, "kill-server"], capture_output=True, check=False)


def started(
    name: str,
    argv: list[str],
    tree: Path,
    columns: int,
    rows: int,
    socket: str,
    home: Path,
    env: dict[str, str],
) -> Program:
    """Start a monitor in a session of its own, with its own settings and state."""
    own = home / name
    own.mkdir()
    set_here = {"XDG_STATE_HOME": own, "XDG_CONFIG_HOME": own, "PYTHONPATH": tree}
    settings = [f"{key}={value}" for key, value in set_here.items()]
    pane = ["-s", name, "-x", str(columns), "-y", str(rows), "-c", str(tree)]
    tmux = ["tmux", "-S", socket, "-f", "/dev/null", "new-session", "-dPF", "#{pane_pid}", *pane]
    made = subprocess.run(
        [*tmux, "env", *settings, "LANG=C.UTF-8", "COLORTERM=truecolor", *argv],
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    return Program(name, int(made.stdout))


def settle(programs: list[Program]) -> None:
    """Wait until processes that monitors start only once have ended."""
    began = changed = time.perf_counter()
    known: list[list[int]] = []
    while (now := time.perf_counter()) - began < LONGEST_SETTLE_SECONDS:
        if now - began >= SETTLE_SECONDS and now - changed >= QUIET_SECONDS:
            return
        time.sleep(1.0)
        if (found := [sorted(descendants(one.pid)) for one in programs]) != known:
            known, changed = found, time.perf_counter()


def spent(program: Program) -> dict[int, float]:
    """Return the processor seconds of each process of a monitor so far."""
    found = {pid: run_seconds(pid) for pid in sorted(descendants(program.pid))}
    if not found[program.pid]:
        raise RuntimeError(f"{program.name} has ended")
    return found


def run_seconds(pid: int) -> float:
    """Return how long the threads of a process ran, which the kernel counts in nanoseconds.

    What ``/proc/PID/stat`` has is counted in steps of 10 ms: too coarse for a percent of a core.
    """
    seconds = 0.0
    for task in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        try:
            seconds += int(task.read_text().split()[0]) / 1e9
        except OSError:  # the thread has ended
            continue
    return seconds


def line(
    program: Program,
    before: dict[int, float],
    after: dict[int, float],
    elapsed: float,
    all_before: dict[Program, dict[int, float]],
    all_after: dict[Program, dict[int, float]],
) -> dict[str, object]:
    """Say what one monitor took, in percent of a core, in MiB, and beside nvitop."""
    each = {pid: (now - before.get(pid, 0.0)) / elapsed * 100 for pid, now in after.items()}
    found: dict[str, object] = {
        "name": program.name,
        "cpu_percent": round(sum(each.values()), 3),
        "each": [round(one, 3) for one in each.values()],
        "pss_mib": round(sum(map(pss_mib, after)), 1),
    }
    peers = [one for one in all_after if one.name == "nvitop"]
    if peers and peers[0] != program:
        theirs = sum(all_after[peers[0]].values()) - sum(all_before[peers[0]].values())
        found["times_nvitop"] = round(sum(each.values()) / (theirs / elapsed * 100), 2)
    return found


def pss_mib(pid: int) -> float:
    """Return the proportional share of memory of a process, 0 when it is gone."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0.0
    return int(text.split("Pss:", 1)[1].split()[0]) / 1024


if __name__ == "__main__":
    main()
