"""Kills the child that traces a trainer, at a random moment, and checks the trainer.

    python -m bench.soak.kills --victim train --tries 100 [--python PATH]

Each try waits until the child traces the trainer, lets it continue for a random part of its usual
duration, and sends SIGKILL. A try counts as aimed if the child had not answered by then. It prints
one line of JSON at the end; exit code 1 if a trainer died, stopped, kept signals blocked, or did
not accept the probe afterwards.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

from bench.soak.injection import STUCK_SECONDS, Victim, detach, stub_pages
from gpuscope.attach import inject_payload, inject_ptrace
from gpuscope.attach.inject import CannotInject, inject
from gpuscope.attach.inject_target import process, python, tracer

WINDOW_SECONDS = 0.0008


def blocked_signals(pid: int) -> str:
    text = Path(f"/proc/{pid}/task/{pid}/status").read_text()
    return next(line for line in text.splitlines() if line.startswith("SigBlk"))


def kill_its_tracer(pid: int, after: float, over: threading.Event) -> None:
    """Once ``pid`` is traced, kill its tracer ``after`` seconds later."""
    while not over.is_set():
        found = tracer(pid)
        if found:
            end = time.perf_counter() + after
            while time.perf_counter() < end:
                pass
            if tracer(pid) == found:
                os.kill(found, signal.SIGKILL)
            return


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def goes_on(victim: Victim, mask: str) -> str:
    """Return "" if the program runs as before, else what is wrong with it."""
    (pid,) = victim.pids
    end = time.monotonic() + STUCK_SECONDS
    try:
        before = processor_seconds(pid)
        while processor_seconds(pid) <= before or blocked_signals(pid) != mask:
            if not victim.alive() or time.monotonic() > end:
                break
            time.sleep(0.01)
        if victim.alive():
            if blocked_signals(pid) != mask:
                return "signals stay blocked"
            return "" if processor_seconds(pid) > before else "stands still"
    except OSError:
        pass
    return "dead"


def run(args: argparse.Namespace, folder: Path) -> dict[str, object]:
    aimed = answered = 0
    harm: dict[str, int] = {}
    victim: Victim | None = None
    pages = 0
    for _ in range(args.tries):
        if victim is None:
            victim = Victim(args.victim, args.python, 0, 0, folder)
            time.sleep(0.3)
        (pid,) = victim.pids
        found = process(pid)
        task = inject_ptrace.job(
            found, python(found), inject_payload.stub("/tmp/gpuscope-there-is-none.py")
        )
        mask, over = blocked_signals(pid), threading.Event()
        killer = threading.Thread(
            target=kill_its_tracer, args=(pid, WINDOW_SECONDS * random.random(), over)
        )
        killer.start()
        try:
            inject_ptrace.call(task, found)
            answered += 1
        except CannotInject:
            aimed += 1
        over.set()
        killer.join()
        wrong = goes_on(victim, mask)
        if wrong:
            harm[wrong] = harm.get(wrong, 0) + 1
            victim.end()
            victim = None
    if victim is not None:
        time.sleep(2.0)
        pages = len(stub_pages(victim.pids[0]))
        inject(victim.pids[0], patience=30)
        detach(victim.pids[0])
        if not victim.finish():
            harm["did not finish"] = 1
    return {
        "victim": args.victim,
        "python": args.python,
        "tries": args.tries,
        "killed in the window": aimed,
        "answered before": answered,
        "harm": harm,
        "pages of a stub left": pages,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--victim", default="train", choices=("tight", "alloc", "train", "sleep", "loader", "cuda")
    )
    parser.add_argument("--tries", type=int, default=100)
    parser.add_argument("--python", default=sys.executable)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gpuscope-soak-") as folder:
        result = run(args, Path(folder))
    print(json.dumps(result), flush=True)
    return 1 if result["harm"] or result["pages of a stub left"] else 0


if __name__ == "__main__":
    sys.exit(main())
