"""Tells how soon ``gpuscope why`` answers about a training on this machine.

    python -m bench.look.answers [--kind gpt-bf16] [--times 8] [--device cuda]

Each answer is a process of its own, from its start to its end. Exit code 1 where a bar is missed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from .started import Training
from .trainings import KINDS

BARS = {"--no-look": 1.5, "": 10.0}
ROOT = Path(__file__).parents[2]


def answered(pid: int, option: str) -> float:
    """Ask once; return the seconds that it took."""
    words = [sys.executable, "-m", "gpuscope", "why", str(pid), *option.split()]
    begin = time.monotonic()
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode not in (0, 1, 3):  # 3: it is not known, which is an answer too
        raise SystemExit(f"why {option} says {done.returncode}: {done.stderr[-500:]}")
    return time.monotonic() - begin


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kind", default="gpt-bf16", choices=sorted(KINDS))
    parser.add_argument("--times", type=int, default=8, help="answers without a look; two with")
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    late = False
    with tempfile.TemporaryDirectory(prefix="look-", ignore_cleanup_errors=True) as folder:
        training = Training(args.kind, Path(folder), args.device)
        try:
            training.connect()
            time.sleep(15.0)  # before that there are too few steps
            for option, bar in BARS.items():
                times = args.times if option else 2
                found = [answered(training.processes[0].pid, option) for _ in range(times)]
                late = late or max(found) > bar
                name = f"why {option}".strip()
                print(f"{name:14} median {median(found):5.2f} s, most {max(found):5.2f} s "
                      f"of {times} (bar {bar:g} s)", flush=True)  # fmt: skip
        finally:
            training.end()
    return int(late)


if __name__ == "__main__":
    sys.exit(main())
