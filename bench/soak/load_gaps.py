"""Find where the time of a first load goes.

It injects the probe into a running trainer and tells what every long step met.

    python -m bench.soak.load_gaps --victim train [--also torch._inductor] [--traced] [--loads 2]
    [--keep 40]

Kinds of victims as in ``victims.py``. The trainer notes its steps, its garbage collections and, in
the loading threads, every part of the load; a watchdog writes where its threads stand while a step
is late; from outside its threads' state and system calls are sampled each few milliseconds.
``--traced`` also notes every C call of the loading threads (which slows them). Before the first
load as much time passes without one: its long steps are the trainer's own. One JSON line at the
end.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from bench.soak.injection import detach, salted
from gpuscope.attach import inject_payload
from gpuscope.attach.inject import CannotInject, inject

WATCHED = Path(__file__).with_name("watched_victim.py")
SAMPLE_SECONDS = 0.004
SYSCALLS = {
    "-1": "blocked",
    "0": "read",
    "1": "write",
    "16": "ioctl",
    "202": "futex",
    "running": "running",
}
STAMPED = """
        import time as t
        begin = t.monotonic()
        try:
            self.run(module)
        finally:
            sys._gpuscope_stamps.append((begin, t.monotonic(), module.__name__))

    def run(self, module):
"""
"""Goes between the head of the payload's exec_module and its body."""


class Sampler(threading.Thread):
    """Sample the main thread and those that came later.

    A row is (time, thread, state, what it calls, ticks of CPU).
    """

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid, self.going = pid, True
        self.rows: list[Any] = []
        self.old = set(os.listdir(f"/proc/{pid}/task")) - {str(pid)}

    def run(self) -> None:
        while self.going:
            now = time.monotonic()
            try:
                for tid in set(os.listdir(f"/proc/{self.pid}/task")) - self.old:
                    base = f"/proc/{self.pid}/task/{tid}"
                    stat = Path(f"{base}/stat").read_text().rpartition(")")[2].split()
                    try:
                        call = Path(f"{base}/syscall").read_text().split()[0]
                    except OSError:
                        call = "?"
                    self.rows.append((now, int(tid), stat[0], call, int(stat[11]) + int(stat[12])))
            except OSError:
                if not os.path.exists(f"/proc/{self.pid}"):
                    return
            time.sleep(SAMPLE_SECONDS)


def stamped(script: str) -> str:
    head = "    def exec_module(self, module):\n"
    assert script.count(head) == 1
    return script.replace(head, head.rstrip("\n") + STAMPED)


def run(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    out = folder / "victim"
    words = [
        args.python,
        str(WATCHED),
        args.victim,
        str(out),
        *(["--traced"] if args.traced else []),
    ]
    words += [word for name in args.also for word in ("--also", name)]
    log = open(f"{out}.log", "wb")  # noqa: SIM115
    began = time.monotonic()
    child = subprocess.Popen(
        words,
        stdout=log,
        stderr=log,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    while not os.path.exists(f"{out}.pid"):
        if child.poll() is not None or time.monotonic() - began > 120:
            child.kill()
            raise SystemExit(Path(f"{out}.log").read_text()[-2000:])
        time.sleep(0.05)
    started = time.monotonic() - began
    time.sleep(args.settle)
    inject_payload.REST = args.rest
    inject_payload._SCRIPT = stamped(inject_payload._SCRIPT)
    body = inject_payload.sources()
    sampler = Sampler(child.pid)
    sampler.start()
    quiet = time.monotonic()
    time.sleep(args.seconds)
    loads: list[dict[str, Any]] = []
    import bench.soak.injection as soak

    soak._sources = body
    for number in range(args.loads):
        inject_payload.sources = lambda number=number: salted(number)  # type: ignore[misc]
        begin = time.monotonic()
        problem = ""
        try:
            inject(child.pid)
        except CannotInject as error:
            problem = error.why
        loads.append({"begin": begin, "ready": time.monotonic(), "problem": problem})
        time.sleep(args.seconds)
        if not problem and number + 1 < args.loads:
            detach(child.pid)
            time.sleep(0.5)
    sampler.going = False
    Path(f"{out}.stop").touch()
    try:
        child.wait(60)
    except subprocess.TimeoutExpired:
        child.kill()
    dumps = Path(f"{out}.dumps").read_text() if os.path.exists(f"{out}.dumps") else ""
    if not os.path.exists(out):
        raise SystemExit(
            "the victim came to nothing: " + Path(f"{out}.log").read_text()[-2000:] + dumps[-3000:]
        )
    book = json.loads(out.read_text())
    return told(args, book, sampler, loads, quiet, child.pid, dumps, started)


def told(
    args: argparse.Namespace,
    book: dict[str, Any],
    sampler: Sampler,
    loads: list[dict[str, Any]],
    quiet: float,
    pid: int,
    dumps: str,
    started: float,
) -> dict[str, Any]:
    median = book["median"]
    limit = max(2.5 * median, median + 1e-3 * args.keep)
    rows = []
    for at, length in book["gaps"]:
        if length < limit or at < quiet:
            continue
        load = max((n for n, one in enumerate(loads) if one["begin"] <= at), default=None)
        zero = loads[load]["begin"] if load is not None else quiet
        rows.append(
            {
                "load": load,
                "at_ms": round(1e3 * (at - length - zero), 1),
                "ms": round(1e3 * length, 1),
                "before_ready": load is not None and at - length < loads[load]["ready"],
                "gc": within(book["collections"], at - length, at, 2e-3),
                "modules": within(book["stamps"], at - length, at, 0.0),
                "calls": within(book["calls"], at - length, at, 3e-3),
                "main": states(sampler, at - length, at, pid),
                "ours": states(sampler, at - length, at, None),
            }
        )
    for one in loads:
        one["seconds"] = one["ready"] - one["begin"]
        inside = [
            length
            for at, length in book["gaps"]
            if one["begin"] <= at and at - length <= one["ready"] + 0.5
        ]
        one["longest_step_ms"] = round(1e3 * max(inside, default=0.0), 1)
        mine = [stamp for stamp in book["stamps"] if one["begin"] <= stamp[0] <= one["ready"]]
        mine.sort(key=lambda stamp: stamp[0] - stamp[1])
        one["slowest_modules_ms"] = [
            [name, round(1e3 * (end - begin), 1)] for begin, end, name in mine[:6]
        ]
    before = (
        [length for at, length in book["gaps"] if quiet <= at < loads[0]["begin"]] if loads else []
    )
    return {
        "victim": args.victim,
        "also": args.also,
        "traced": args.traced,
        "rest": args.rest,
        "started_seconds": round(started, 1),
        "step_median_ms": round(1e3 * median, 2),
        "objects": book["objects"],
        "longest_step_without_ms": round(1e3 * max(before, default=0.0), 1),
        "loads": loads,
        "long_steps": rows,
        "python": book["python"],
        "torch": book["torch"],
        "late": late(dumps),
    }


def within(rows: list[list[Any]], begin: float, end: float, least: float) -> list[list[Any]]:
    found = [(b, e, what) for b, e, what in rows if b < end and e > begin and e - b >= least]
    found.sort(key=lambda row: row[0] - row[1])
    return [
        [what, round(1e3 * (b - begin), 1), round(1e3 * (e - b), 1)] for b, e, what in found[:8]
    ]


def states(sampler: Sampler, begin: float, end: float, tid: int | None) -> dict[str, int]:
    """How often a thread (None: any of the new ones) was seen in which state and system call."""
    counts: dict[str, int] = {}
    for at, thread, state, call, _ in sampler.rows:
        if begin <= at <= end and (thread == tid if tid else thread != sampler.pid):
            name = f"{state}:{SYSCALLS.get(call, call)}"
            counts[name] = counts.get(name, 0) + 1
    return counts


def late(dumps: str) -> list[str]:
    """Of what the watchdog wrote: the innermost lines of each thread, the most frequent first."""
    counts: dict[str, int] = {}
    for dump in dumps.split("Timeout (")[1:]:
        places = []
        for part in dump.split("hread 0x")[1:]:
            lines = [
                line.strip() for line in part.splitlines()[1:] if line.strip().startswith("File")
            ]
            short = [line.replace('File "', "").rpartition("/")[2] for line in lines[:5]]
            places.append(" < ".join(short) or "-")
        text = " || ".join(sorted(places))
        counts[text] = counts.get(text, 0) + 1
    return [f"{n} x {text}" for text, n in sorted(counts.items(), key=lambda item: -item[1])][:30]


def show(result: dict[str, Any]) -> None:
    case = f"{result['victim']} {' '.join(result['also'])}{' traced' if result['traced'] else ''}"
    print(
        f"== {case} rest {result['rest']:g}: step {result['step_median_ms']} ms, longest without a "
        f"load {result['longest_step_without_ms']} ms, {result['objects']} objects, Python "
        f"{result['python']}, torch {result['torch']}"
    )
    for number, load in enumerate(result["loads"]):
        print(
            f"load {number}: {1e3 * load['seconds']:.0f} ms, longest step "
            f"{load['longest_step_ms']} ms {load['problem']} slowest modules "
            f"{load['slowest_modules_ms']}"
        )
    for row in result["long_steps"]:
        print("  long step", json.dumps(row))
    for text in result["late"]:
        print("  late:", text)
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--victim", default="train")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument(
        "--also", action="append", default=[], help="a module that the trainer imports besides"
    )
    parser.add_argument("--traced", action="store_true")
    parser.add_argument(
        "--rest", type=float, default=inject_payload.REST, help="pauses of the load, 0: none"
    )
    parser.add_argument("--loads", type=int, default=2)
    parser.add_argument("--settle", type=float, default=3.0)
    parser.add_argument(
        "--seconds", type=float, default=2.0, help="before the first load, and after each"
    )
    parser.add_argument(
        "--keep", type=float, default=20.0, help="a step so many ms over the median is told"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gpuscope-gaps-") as folder:
        result = run(args, Path(folder))
    show(result)
    print(json.dumps(result), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
