"""Inject the probe many times into running programs and count what happens.

It counts the outcomes ok, busy, failed, dead and stuck, and measures the cost for the programs.

    python -m bench.soak.injection --victim train --tries 200 [--python PATH] [--fresh [K]] [--steps
    N --compare]

With ``--fresh K`` every K-th injection loads the probe again, as a first one does (otherwise it is
found in memory). ``--compare`` first runs the same program without injections, and compares loss
and parameters after N steps, to the last bit; ``--untouched FILE`` makes only that run, and
``--against FILE`` compares with an earlier one. ``added stall`` is the longest gap between two
steps from the beginning of each injection until its probe has left, compared with equally long
times between injections in the same run. ``first_added_ms`` is that of the first injection,
compared with the median of these. It prints one line of JSON at the end; exit code 1 if any try did
harm.
"""

from __future__ import annotations

import argparse
import atexit
import itertools
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.quantile import quantile
from gpuscope.attach import inject_payload
from gpuscope.attach.inject import CannotInject, Injected, inject
from gpuscope.attach.inject_place import InjectionDirectory
from gpuscope.attach.inject_target import process
from gpuscope.wire import codec, frames

VICTIMS = Path(__file__).with_name("victims.py")
STUCK_SECONDS = 20.0
STUB = inject_payload.stub("")[:40].encode()
STEADY = ("tight", "alloc", "sleep", "train")
"""Programs whose own threads and descriptors never change."""


class Victim:
    """A running program. ``pids`` are those of its ranks, or a single one."""

    def __init__(self, kind: str, python: str, steps: int, ranks: int, folder: Path) -> None:
        self.out = folder / f"{kind}-{random.getrandbits(32):x}"
        words = [str(VICTIMS), kind, str(self.out), "--steps", str(steps)]
        if ranks:
            words = [
                "-m",
                "torch.distributed.run",
                "--standalone",
                f"--nproc-per-node={ranks}",
                *words,
            ]
        env = {**os.environ, "OMP_NUM_THREADS": "1", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
        env.pop("RANK", None)
        self.ranks = ranks
        self.log = Path(f"{self.out}.log")
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [python, *words], env=env, stdout=log, stderr=log, start_new_session=True
            )
        atexit.register(self.end)
        self.names = [f"{self.out}-{rank}" for rank in range(ranks)] or [str(self.out)]
        end = time.monotonic() + 180
        while not all(os.path.exists(f"{name}.pid") for name in self.names):
            if self.process.poll() is not None or time.monotonic() > end:
                self.kill()
                raise SystemExit(f"the victim did not start: {self.log.read_text()[-2000:]}")
            time.sleep(0.05)
        self.pids = [int(Path(f"{name}.pid").read_text()) for name in self.names]

    def alive(self) -> bool:
        return self.process.poll() is None

    def end(self) -> None:
        """End the program, whatever state it is in."""
        if self.alive():
            self.kill()

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def finish(self, seconds: float = 240) -> list[dict[str, Any]]:
        """Let it run to its end; return what it wrote, [] if it does not reach its end."""
        Path(f"{self.out}.stop").touch()
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
        if self.process.returncode:
            sys.stderr.write(self.log.read_text()[-3000:])
        return [json.loads(Path(name).read_text()) for name in self.names if os.path.exists(name)]


def detach(pid: int) -> bool:
    """Ask the probe to leave; return whether it did."""
    found = process(pid)
    path = f"/proc/{pid}/root/tmp/gpuscope-{found.uid}/{found.inner_pid}-{found.start}.sock"
    with InjectionDirectory(found) as place, socket.socket(socket.AF_UNIX) as link:
        link.settimeout(STUCK_SECONDS)
        try:
            link.connect(path)
            link.sendall(codec.encode(frames.Request("detach", 1, {}, 5.0)))
            while link.recv(65536):
                pass
        except (ConnectionError, FileNotFoundError):
            pass
        end = time.monotonic() + STUCK_SECONDS
        while place.has_probe() and time.monotonic() < end:
            time.sleep(0.005)
        return not place.has_probe()


def quantiles(values: list[float]) -> dict[str, float | None]:
    parts = {"median_ms": 0.5, "p99_ms": 0.99, "max_ms": 1.0}
    return {
        name: round(1e3 * quantile(values, part), 2) if values else None
        for name, part in parts.items()
    }


def longest(gaps: list[list[float]], begin: float, end: float) -> float:
    return max((length for at, length in gaps if begin <= at and at - length <= end), default=0.0)


def collected(collections: list[list[float]], begin: float, end: float) -> float:
    """Sum the seconds of the garbage collections between ``begin`` and ``end``.

    Those on any thread count.
    """
    return sum(seconds for at, seconds, _ in collections if at >= begin and at - seconds <= end)


def medians(gaps: list[list[float]], windows: list[tuple[float, float]]) -> dict[str, float | None]:
    """Return medians of steps longer than 1 ms.

    Before the first injection, with a probe, and between.
    """
    kinds: dict[str, list[float]] = {"before": [], "during": [], "between": []}
    last = max((end for _, end in windows), default=0.0)
    for at, length in gaps:
        if at <= last:  # what comes later is the end of a run that waits for its last step
            inside = any(begin <= at <= end for begin, end in windows)
            kinds["during" if inside else "before" if at < windows[0][0] else "between"].append(
                length
            )
    return {kind: quantiles(values)["median_ms"] for kind, values in kinds.items()}


def salted(number: int) -> bytes:
    body = json.loads(_sources)
    body["digest"] = f"soak-{number}"
    return json.dumps(body).encode()


_sources = b""


def run(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    global _sources
    _sources = inject_payload.sources()
    inject_payload.sources = lambda: _sources
    untouched: list[dict[str, Any]] = []
    if args.compare:
        untouched = Victim(args.victim, args.python, args.steps, args.ranks, folder).finish()
    elif args.against:
        untouched = json.loads(Path(args.against).read_text())
    victim = Victim(args.victim, args.python, args.steps, args.ranks, folder)
    time.sleep(args.settle)
    before = {pid: traces(pid) for pid in victim.pids}
    ok: list[Injected] = []
    windows: list[tuple[int, float, float]] = []
    quiet: list[tuple[int, float, float]] = []
    busy, failed, stayed = 0, [], 0
    limit = time.monotonic() + args.seconds
    targets = itertools.cycle(range(len(victim.pids)))
    tries = 0
    while tries < args.tries and victim.alive() and time.monotonic() < limit:
        rank = next(targets)
        tries += 1
        if args.fresh and not (tries - 1) % args.fresh:
            inject_payload.sources = lambda number=tries: salted(number)  # type: ignore[misc]
        begin = time.monotonic()
        try:
            found = inject(victim.pids[rank], method=args.method, patience=args.patience)
        except CannotInject as error:
            if error.code == "busy":
                busy += 1
            else:
                failed.append(f"{error.code}: {error.why}")
        else:
            ok.append(found)
            stayed += not detach(victim.pids[rank])
            windows.append((rank, begin, time.monotonic()))
        time.sleep(args.pause * random.random())
        if (tries - 1) % args.quiet:
            continue
        begin = time.monotonic()
        time.sleep(0.1 * random.random())
        quiet.append((rank, begin, begin + (windows[-1][2] - windows[-1][1] if windows else 0.1)))
        time.sleep(max(0.0, quiet[-1][2] - time.monotonic()))
    alive = victim.alive()
    leftovers = {pid: settled(pid, before[pid]) for pid in victim.pids if alive}
    books = victim.finish()
    whole = len(books) == len(victim.names) and victim.process.returncode == 0
    result: dict[str, Any] = {
        "victim": args.victim,
        "python": args.python,
        "tries": tries,
        "ok": len(ok),
        "busy": busy,
        "failed": failed[:5],
        "failures": len(failed),
        "dead_or_stuck": 0 if whole and alive else 1,
        "probe_stayed": stayed,
        "methods": sorted({one.method for one in ok}),
        "stop": quantiles([one.stop_seconds for one in ok if one.stop_seconds is not None]),
        "asked": quantiles([one.asked_seconds for one in ok if one.asked_seconds is not None]),
        "callback": quantiles(
            [one.callback_seconds for one in ok if one.callback_seconds is not None]
        ),
        "in_main": quantiles([one.main_seconds for one in ok if one.main_seconds is not None]),
        "ready": quantiles([one.ready_seconds for one in ok]),
        "left_behind": {str(pid): what for pid, what in leftovers.items() if what},
    }
    if whole:
        during = [longest(books[rank]["gaps"], begin, end) for rank, begin, end in windows]
        between = [longest(books[rank]["gaps"], begin, end) for rank, begin, end in quiet]
        result["gap_during"], result["gap_between"] = quantiles(during), quantiles(between)
        # A collection of a large heap stops everything for its own time, with or without a probe,
        # so it is reported separately. One rank's collection stops all ranks that wait for it.
        spent = [
            max(collected(one["collections"], begin, end) for one in books)
            for _, begin, end in windows
        ]
        result["collections_during"] = quantiles(spent)
        result["collections"] = [len(one["collections"]) for one in books]
        result["longest_with_collections_ms"] = [
            [round(1e3 * gap, 1), round(1e3 * one, 1)]
            for gap, one in sorted(zip(during, spent, strict=True))[-3:]
        ]
        for name in ("median_ms", "p99_ms"):
            if during and between:
                result[f"added_stall_{name}"] = round(
                    result["gap_during"][name] - result["gap_between"][name], 2
                )
        if during and between:
            result["first_gap_ms"] = round(1e3 * during[0], 2)
            result["first_added_ms"] = round(
                1e3 * during[0] - result["gap_between"]["median_ms"], 2
            )
        result["step_median_ms"] = [
            medians(one["gaps"], [(begin, end) for at, begin, end in windows if at == rank])
            for rank, one in enumerate(books)
        ]
        result["step_injected"] = [
            {k: round(1e3 * one[k], 3) for k in ("median", "p99", "max")} for one in books
        ]
        result["steps"] = [one["steps"] for one in books]
    if untouched:
        result["step_untouched"] = [
            {k: round(1e3 * one[k], 3) for k in ("median", "p99", "max")} for one in untouched
        ]
        result["loss"] = [one["loss"] for one in books]
        result["bit_identical"] = bool(books) and [
            (one["loss"], one["digest"]) for one in books
        ] == [(one["loss"], one["digest"]) for one in untouched]
    return result


def traces(pid: int) -> tuple[set[str], set[str], set[str]]:
    """Return a process's threads, descriptors and mapped pages of a stub.

    Each comes with what it is.
    """
    found: tuple[set[str], set[str], set[str]] = (
        set(),
        set(),
        {f"at {page:x}" for page in stub_pages(pid)},
    )
    for folder, kept, name in (("task", found[0], "comm"), ("fd", found[1], "")):
        for entry in os.scandir(f"/proc/{pid}/{folder}"):
            try:
                what = (
                    Path(entry.path, name).read_text().strip() if name else os.readlink(entry.path)
                )
            except OSError:
                continue  # gone meanwhile
            kept.add(f"{entry.name} ({what})")
    return found


def stub_pages(pid: int, largest: int = 32 << 20) -> list[int]:
    """Return the addresses of pages that hold a stub's text, in anonymous private memory.

    The kernel merges adjacent mappings, so each page is checked; mappings over ``largest`` bytes
    are skipped.
    """
    found = []
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            parts = line.split()
            begin, end = (int(word, 16) for word in parts[0].split("-"))
            if len(parts) == 5 and parts[1] == "rw-p" and end - begin <= largest:
                try:
                    memory.seek(begin)
                    data = memory.read(end - begin)
                except OSError:
                    continue  # unmapped meanwhile
                found += [
                    begin + at for at in range(0, len(data), 4096) if data.startswith(STUB, at)
                ]
    return found


def settled(
    pid: int, before: tuple[set[str], set[str], set[str]], seconds: float = 10.0
) -> list[str]:
    """Return what exists beyond ``before``, after the last traces had time to disappear.

    New traces of the same kind are included.
    """
    end = time.monotonic() + seconds
    while True:
        names = ("threads", "descriptors", "pages")
        more = [
            f"{len(b) - len(a)} {name} of these: {', '.join(sorted(b - a)[:8])}"
            for name, a, b in zip(names, before, traces(pid), strict=True)
            if len(b) > len(a)
        ]
        if not more or time.monotonic() > end:
            return more
        time.sleep(0.2)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--victim", default="tight")
    parser.add_argument("--tries", type=int, default=200)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--method", default="auto")
    parser.add_argument("--patience", type=float, default=20.0)
    parser.add_argument("--pause", type=float, default=0.05)
    parser.add_argument("--seconds", type=float, default=1e9, help="stop trying after so long")
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=0)
    parser.add_argument("--settle", type=float, default=1.0, help="seconds before the first try")
    parser.add_argument("--fresh", nargs="?", type=int, const=1, default=0, metavar="K")
    parser.add_argument(
        "--quiet", type=int, default=1, metavar="K", help="a time without injection after each K-th"
    )
    parser.add_argument("--compare", action="store_true")
    parser.add_argument("--untouched", metavar="FILE")
    parser.add_argument("--against", metavar="FILE")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gpuscope-soak-") as folder:
        if args.untouched:
            books = Victim(args.victim, args.python, args.steps, args.ranks, Path(folder)).finish()
            Path(args.untouched).write_text(json.dumps(books))
            return 0 if books else 1
        result = run(args, Path(folder))
    print(json.dumps(result), flush=True)
    harm = result["dead_or_stuck"] or result["probe_stayed"] or result["failures"]
    harm = harm or (result["left_behind"] and args.victim in STEADY)
    return 1 if harm or result.get("bit_identical") is False else 0


if __name__ == "__main__":
    sys.exit(main())
