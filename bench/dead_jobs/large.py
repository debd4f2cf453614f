"""Write the logs of a large job that died: 256 ranks with 10 MB each, always the same bytes.

    python -m bench.dead_jobs.large FOLDER [--ranks 256] [--megabytes 10]

The text is made up, in the forms that torch 2.13 and NCCL's watchdog write. Rank 137 raised; all
others waited for it until the watchdog ended them. On the way there are warnings and a traceback
that was caught, as long jobs have them.
"""

from __future__ import annotations

import argparse
import random
import time
from pathlib import Path

BEGIN = 1795658400.0  # seconds since 1970, UTC
STEP_SECONDS = 1.5
CULPRIT = 137
CAUGHT = 12
PER_NODE = 8
TIMEOUT_SECONDS = 600.0
ENDINGS = 997
CHUNK = 4000

ERROR = """Traceback (most recent call last):
  File "/srv/train/train.py", line 406, in <module>
    main()
  File "/srv/train/train.py", line 399, in main
    trainer.train()
  File "/srv/train/train.py", line 221, in train_step
    batch = next(batches)
  File "/srv/train/data.py", line 88, in collate
    labels = [table[row.label] for row in rows]
KeyError: 'unlabelled'
"""
WATCHDOG = (
    "[rank{rank}]:[E{clock} ProcessGroupNCCL.cpp:683] [Rank {rank}] Watchdog caught collective "
    "operation timeout: WorkNCCL(SeqNum={number}, OpType=ALLREDUCE, NumelIn=26214400, "
    "NumelOut=26214400, Timeout(ms)=600000) ran for 600029 milliseconds before timing out.\n"
)


def write(folder: Path, ranks: int = 256, megabytes: float = 10.0) -> Path:
    """Write the logs below ``folder``, in torchrun's layout, and return it."""
    culprit = min(CULPRIT, ranks - 1)
    chance = random.Random(4211)
    endings = [ending(chance) for _ in range(ENDINGS)]
    mean = sum(map(len, endings)) / ENDINGS + len(f"{clock(0)} INFO [rank 100] train: step 30000")
    steps = int(megabytes * 1e6 / mean)
    beginnings = [(f"{clock(step)} INFO [rank ", f"] train: step {step}") for step in range(steps)]
    for rank in range(ranks):
        run = folder / f"node{rank // PER_NODE:02}" / "job4211_x7k2m9qa" / "attempt_0"
        place = run / str(rank % PER_NODE)
        place.mkdir(parents=True)
        with (place / "stderr.log").open("w", encoding="utf-8") as file:
            for first in range(0, steps, CHUNK):
                chunk = beginnings[first : first + CHUNK]
                file.write(
                    "".join(
                        [
                            f"{one}{rank}{two}{endings[(7 * number + 31 * rank) % ENDINGS]}"
                            for number, (one, two) in enumerate(chunk, first)
                        ]
                    )
                )
                file.write(trouble(rank, first + len(chunk)))
            file.write(end(rank, steps, rank == culprit))
    return folder


def ending(chance: random.Random) -> str:
    """Return what a rank logs of a step, after its number."""
    return (
        f" loss {2.5 + chance.random():.4f} grad_norm {chance.random():.3f} lr 3.0e-04 "
        f"tokens/s {chance.randrange(9000, 12000)} memory {chance.randrange(610, 750) / 10} GiB\n"
    )


def trouble(rank: int, step: int) -> str:
    """Return what a rank logs now and then though nothing is wrong."""
    if rank == CAUGHT and step == 5 * CHUNK:
        return ERROR.replace("KeyError: 'unlabelled'", "TimeoutError: metrics server")
    return f"{clock(step)} WARNING [rank {rank}] data: error: a shard is slow, retry 1 of 5\n"


def end(rank: int, step: int, culprit: bool) -> str:
    """Return the last that a rank logs."""
    if culprit:
        return "".join(f"[rank{rank}]: {line}\n" for line in ERROR.splitlines())
    moment = BEGIN + step * STEP_SECONDS + TIMEOUT_SECONDS
    when = time.strftime("%m%d %H:%M:%S.000000000", time.gmtime(moment))
    return WATCHDOG.format(rank=rank, clock=when, number=3 * step)


def clock(step: int) -> str:
    """Return when a step was logged."""
    moment = BEGIN + step * STEP_SECONDS
    return time.strftime("%Y-%m-%d %H:%M:%S,000", time.gmtime(moment))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", type=int, default=256)
    parser.add_argument("--megabytes", type=float, default=10.0)
    args = parser.parse_args()
    write(args.folder, args.ranks, args.megabytes)
