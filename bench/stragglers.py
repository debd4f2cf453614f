"""Tells how soon a rank that does a little more work is named, in real jobs over gloo.

    python -m bench.stragglers [--ranks 2 4] [--times 1.1] [--seconds 75] [--at-once]

For each number of ranks two jobs run at the same time: in one the last rank sleeps longer in each
step, in the other none does. With ``--at-once`` the jobs of all numbers do. ``gpuscope record``
records them, and each sample is judged as a screen would. Ranks sleep instead of computing, so that
few cores are enough for many of them. Prints a line a job; exit code 1 where a rank is not named
within a minute, or a wrong one is.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gpuscope.model import stragglers
from gpuscope.store.decode import decode
from gpuscope.store.store import Store
from gpuscope.wire.frames import Sample
from gpuscope.wire.recording import RecordingReader

ROOT = Path(__file__).parents[1]
WORK_SECONDS, WITHIN_SECONDS, START_SECONDS = 0.04, 60.0, 120.0
JUDGED_EVERY = 1.0
SOURCE = "here"
Spawn = Callable[[list[str], dict[str, str], Path], "subprocess.Popen[bytes]"]
"""Starts this module with these words and variables; its errors go to the file."""


@dataclass
class Job:
    """A job of some ranks of which ``slow`` works longer; ``named`` is ``(seconds, rank)``."""

    ranks: int
    slow: int | None
    processes: list[subprocess.Popen[bytes]]
    errors: list[Path]
    ended: str = ""
    began: float | None = None
    named: list[tuple[float, int | None]] | None = None

    @property
    def pids(self) -> set[int]:
        return {process.pid for process in self.processes}

    def note_ends(self) -> bool:
        """Note which rank has ended, with the last line that it has written; True for any."""
        for rank, (process, path) in enumerate(zip(self.processes, self.errors, strict=True)):
            if process.poll() is not None:
                last = (path.read_text(errors="replace").strip().splitlines() or ["no word"])[-1]
                self.ended = f"rank {rank} ended with {process.returncode}: {last[-200:]}"
                return True
        return False

    def problem(self) -> str:
        """Return what is wrong with whom was named, "" for nothing."""
        first = (self.named or [(0.0, None)])[0]
        if self.began is None:
            return f"it was not recorded: {self.ended or 'no sample has steps of all its ranks'}"
        wrong = [at for at, rank in self.named or () if rank != self.slow]
        if wrong:
            return f"a rank that is not slower was named after {wrong[0]:.0f} s"
        if self.slow is not None and (not self.named or first[0] > WITHIN_SECONDS):
            return f"rank {self.slow} was not named within {WITHIN_SECONDS:g} s"
        return ""

    def line(self) -> str:
        """Return a line of the table."""
        who = "all alike" if self.slow is None else f"rank {self.slow} slower"
        said = f"named after {self.named[0][0]:.0f} s" if self.named else "nobody named"
        return f"{self.ranks} ranks, {who:15} {said:20} {self.problem() or 'ok'}"


def _spawn(words: list[str], env: dict[str, str], errors: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "bench.stragglers", *words]
    with errors.open("wb") as file:
        return subprocess.Popen(command, cwd=ROOT, env=env, stderr=file)


def start(
    ranks: int, slow: int | None, times: float, seconds: float, folder: Path, spawn: Spawn = _spawn
) -> Job:
    """Start a job with probes inside."""
    store = folder / f"store-{ranks}-{slow}"
    words = [str(ranks), str(store), str(-1 if slow is None else slow), str(times), str(seconds)]
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    port = 20000 + os.getpid() % 20000 + ranks + 100 * (slow is None)
    # All ranks are here, and gloo fails where the name of the host has no address.
    interface = {} if os.environ.get("GLOO_SOCKET_IFNAME") else {"GLOO_SOCKET_IFNAME": "lo"}
    env = {**os.environ, **interface, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1",
           "WORLD_SIZE": str(ranks), "PYTHONWARNINGS": "ignore",
           "GPUSCOPE_BLACKBOX_DIR": str(folder / "box"), "MASTER_ADDR": "127.0.0.1",
           "MASTER_PORT": str(port)}  # fmt: skip
    job = Job(ranks, slow, [], [])
    for rank in range(ranks):
        job.errors.append(folder / f"errors-{ranks}-{slow}-{rank}")
        rank_env = {**env, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        job.processes.append(spawn(["--as-rank", str(rank), *words], rank_env, job.errors[-1]))
    return job


def train(rank: int, ranks: int, store: str, slow: int, times: float, seconds: float) -> None:
    """Be a rank of a job."""
    import torch
    import torch.distributed as dist

    import gpuscope

    torch.set_num_threads(1)
    there = dist.FileStore(store, ranks)
    dist.init_process_group("gloo", store=there, rank=rank, world_size=ranks)

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(16, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            time.sleep(WORK_SECONDS * (times if rank == slow else 1.0))
            out: torch.Tensor = self.layer(x).sum()
            return out

    model = torch.nn.parallel.DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    gpuscope.watch(model=model, optimizer=optimizer)
    over, step, until = torch.zeros(1), 0, time.monotonic() + seconds
    while not over.item():
        model(torch.ones(4, 16)).backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if step % 50 == 0:
            over.fill_(float(time.monotonic() > until))
            dist.all_reduce(over)
    dist.barrier()
    os._exit(0)  # gloo's teardown aborts now and then


def judge(recording: Path, jobs: Sequence[Job]) -> None:
    """Fill in who is named, and how many seconds after all ranks of a job were seen to step."""
    store, last = Store(), 0.0
    store.add_source(SOURCE, "", "")
    for line in RecordingReader(recording):
        frame = decode(line.line)
        store.apply(SOURCE, frame, line.rx)
        host = store.view().host
        if not isinstance(frame, Sample) or host is None or host.sampled_seconds is None:
            continue
        now = host.sampled_seconds
        if now - last < JUDGED_EVERY:
            continue
        last = now
        for job in jobs:
            ranks = [one for one in host.trainers if one.definition.pid in job.pids]
            if sum((one.number("step") or 0) > 0 for one in ranks) < job.ranks:
                continue
            job.began = now if job.began is None else job.began
            job.named = job.named or []
            found = stragglers.straggler(ranks, partial(store.history, host.key), host)
            if found is not None:
                job.named.append((now - job.began, found.trainer.definition.rank))


def run(
    counts: Sequence[int], times: float, seconds: float, folder: Path, spawn: Spawn = _spawn
) -> list[Job]:
    """Run a job with a slower rank and one without for each number of ranks; return them judged."""
    jobs = [
        start(count, slow, times, seconds + START_SECONDS, folder, spawn)
        for count in counts
        for slow in (count - 1, None)
    ]
    try:
        # All begin to step before anything is recorded: importing torch keeps the cores busy.
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until and not all(_steps(job) for job in jobs):
            if any(job.note_ends() for job in jobs):
                break
            time.sleep(0.2)
        if any(job.ended for job in jobs):
            return jobs
        recording = folder / "jobs.gsr"
        words = ["record", str(recording), "--force", "--duration", str(seconds)]
        subprocess.run([sys.executable, "-m", "gpuscope", *words], check=True, cwd=ROOT,
                       capture_output=True)  # fmt: skip
        for job in jobs:
            job.note_ends()
    finally:
        for job in jobs:
            for process in job.processes:
                process.kill()
                process.wait()
    judge(recording, jobs)
    return jobs


def _steps(job: Job) -> bool:
    from tests.fakes.probe_client import sockets

    return all(sockets(process.pid) for process in job.processes)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 4])
    parser.add_argument("--times", type=float, default=1.1, help="how much longer it works")
    parser.add_argument("--seconds", type=float, default=75.0)
    parser.add_argument("--at-once", action="store_true", help="all jobs at the same time")
    args = parser.parse_args()
    problems = []
    for counts in [args.ranks] if args.at_once else [[count] for count in args.ranks]:
        with tempfile.TemporaryDirectory(prefix="ranks-", ignore_cleanup_errors=True) as name:
            for job in run(counts, args.times, args.seconds, Path(name)):
                print(job.line(), flush=True)
                problems.append(job.problem())
    return int(any(problems))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--as-rank"]:
        rank, ranks, store, slow, times, seconds = sys.argv[2:]
        train(int(rank), int(ranks), store, int(slow), float(times), float(seconds))
    sys.exit(main())
