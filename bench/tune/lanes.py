"""Measure the bars of ``gpuscope tune`` on many models at once, each on a card of its own.

python -m bench.tune.lanes --out DIR [--seconds 520] [--cards 0,1,2,3] [--budget 110]
    [--bars DIR] [--grids gpt-small,conv-small] [MODEL …]

Whichever card is free takes the next part: first each model is tuned, and its result is run again
beside the baseline in fresh processes; then the grids are run in parts, and what tune found beside
the best of each complete grid. Nothing begins that is not expected to end in time, and everything
is written as it comes: the same command with ``--bars`` continues from the files of ``--out``.
DIR/table.txt has a line for each model.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.tune.bars import missed

FAMILIES = "bench.predict.families:"
VISION = "bench.predict.families_vision:"
MODELS: dict[str, tuple[str, int, int]] = {
    "gpt-small": ("gpt-small", 8, 4),
    "conv-small": ("conv-small", 32, 4),
    "conv-large": ("conv-large", 64, 4),
    "mlp-large": ("mlp-large", 2048, 4),
    "llama-like": (FAMILIES + "llama_like", 4, 4),
    "resnet50": (VISION + "resnet50", 16, 4),
    "bert-base": (FAMILIES + "bert_base", 8, 4),
    "vit-b16": (FAMILIES + "vit_b16", 16, 4),
    "lstm-lm": (VISION + "lstm_lm", 16, 4),
    "unet-batch": (VISION + "unet_batch", 4, 4),
    "gpt-medium": ("gpt-medium", 4, 4),
    "encoder-torch": (FAMILIES + "encoder_torch", 16, 4),
    "convnext-like": (VISION + "convnext_like", 16, 4),
    "gpt-wide": (FAMILIES + "gpt_wide", 8, 4),
    "gpt-tiny": ("gpt-tiny", 8, 4),
    "mlp-small": ("mlp-small", 128, 4),
    "dlrm-like": (VISION + "dlrm_like", 256, 4),
    "gru-lm": (VISION + "gru_lm", 16, 4),
    "mlp-tiny": ("mlp-tiny", 32, 4),
    "gpt-large": ("gpt-large", 2, 4),
}
"""The model, its micro-batch and accumulation: of the Lab, and ten families of bench/predict."""
BESIDE = ("gpt-small", "conv-small", "conv-large", "mlp-large")
"""The models that pytorch-autotune tunes too."""
PARTS = 16
"""Into so many parts a grid is divided."""
AGAIN_SECONDS, TURNS_SECONDS, PART_SECONDS = 60.0, 130.0, 75.0
"""What the runs in turns and a part of a grid are expected to take at least."""
ENDING_SECONDS = 8.0
THREADS = "TORCHINDUCTOR_COMPILE_THREADS"
"""The cards share the cores: without a limit each compiles with up to 32 processes."""


@dataclass(frozen=True, slots=True)
class Part:
    """One call of bench.tune.bars. ``seconds`` is what it is expected to take."""

    name: str
    words: tuple[str, ...]
    seconds: float
    after: str = ""
    """It begins once this model's grid is complete."""


class Lanes:
    """The parts that wait, and the cards that take them."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.ends: float = time.monotonic() + args.seconds - ENDING_SECONDS
        self.waiting: deque[Part] = deque()
        self.running: set[subprocess.Popen[bytes]] = set()
        self.lock = threading.Lock()
        self.threads = max(2, (os.cpu_count() or 2) // len(args.cards.split(",")))

    @property
    def left(self) -> float:
        return self.ends - time.monotonic()

    def plan(self, autotune: bool) -> None:
        """List the parts, in their order."""
        args = self.args
        for name in args.models:
            beside = autotune and name in BESIDE
            steps = "tune,autotune,again" if beside else "tune,again"
            seconds = args.budget * (2 if beside else 1) + AGAIN_SECONDS
            self.waiting.append(Part(name, ("--steps", steps), seconds))
        for name in args.grids:
            for part in range(1, PARTS + 1):
                words = ("--steps", "grid", "--shard", f"{part}/{PARTS}")
                self.waiting.append(Part(name, words, PART_SECONDS))
            self.waiting.append(Part(name, ("--steps", "turns"), TURNS_SECONDS, after=name))

    def take(self) -> Part | None:
        """Return the first part that can begin and is expected to end in time."""
        with self.lock:
            for part in self.waiting:
                if part.seconds < self.left and (not part.after or self.is_complete(part.after)):
                    self.waiting.remove(part)
                    return part
        return None

    def is_complete(self, name: str) -> bool:
        grid = read(self.args.out / name).get("grid", {})
        return bool(grid) and grid["done"] == grid["configurations"]

    def follow(self, card: str) -> None:
        """Take parts for one card until nothing is left that would end in time."""
        while self.left > 0:
            part = self.take()
            if part is None:
                if not any(part.seconds < self.left for part in self.waiting):
                    return
                time.sleep(1.0)
                continue
            began = time.monotonic()
            code = self.make(part, card)
            took = time.monotonic() - began
            print(
                f"card {card}: {part.name} {' '.join(part.words)}: {code}, {took:.0f} s", flush=True
            )

    def make(self, part: Part, card: str) -> int | None:
        """Run one part, and end it when the time is up."""
        model, batch, accumulate = MODELS[part.name]
        out = self.args.out / part.name
        out.mkdir(parents=True, exist_ok=True)
        words = [
            model, "--batch", str(batch), "--accumulate", str(accumulate), "--cards", card,
            "--budget", str(self.args.budget), "--out", str(out), "--device", self.args.device,
            *part.words,
        ]  # fmt: skip
        with (out / "log.txt").open("ab") as log:
            child = subprocess.Popen(
                [sys.executable, "-m", "bench.tune.bars", *words],
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, THREADS: str(self.threads)},
            )
            self.running.add(child)
            try:
                child.wait(timeout=max(1.0, self.left))
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGTERM)
                try:
                    child.wait(timeout=ENDING_SECONDS / 2)
                except subprocess.TimeoutExpired:
                    os.killpg(child.pid, signal.SIGKILL)
                    child.wait()
            self.running.discard(child)
        return child.returncode

    def end(self, *_: object) -> None:
        """End everything soon."""
        self.ends = 0.0
        for child in list(self.running):
            try:
                os.killpg(child.pid, signal.SIGTERM)
            except ProcessLookupError:
                pass


def read(folder: Path) -> dict[str, Any]:
    """Return what bench.tune.bars has found in a folder."""
    try:
        found = json.loads((folder / "bars.json").read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def ratio(found: dict[str, Any] | None) -> str:
    """Return a ratio with its interval."""
    if not found:
        return "–"
    low, high = found.get("low"), found.get("high")
    return (
        f"{found['ratio']:.3f} [{low:.3f}, {high:.3f}]" if low and high else f"{found['ratio']:.3f}"
    )


def table(out: Path, names: list[str]) -> str:
    """Return a line for each model, and what all of them say."""
    lines, again, slower, memory = [], 0, 0, 0
    for name in names:
        found = read(out / name)
        tune, turns, grid = (found.get(key, {}) for key in ("tune", "turns", "grid"))
        if not tune and not grid:
            continue
        measured = found.get("again", {})
        ours = measured.get("tune")
        again += bool(tune)
        slower += bool(ours and ours["ratio"] < 1)
        memory += found.get("out_of_memory", 0)
        other = found.get("autotune", {})
        lines += [
            f"{name}: {tune.get('sentence', 'not tuned')}",
            f"    {tune.get('seconds', 0):.0f} s; again {ratio(ours)}"
            + (f"; missed: {', '.join(missed(found))}" if missed(found) else ""),
        ]
        if other:
            lines.append(
                f"    pytorch-autotune {ratio(measured.get('autotune'))} in "
                f"{other.get('seconds') or 0:.0f} s "
                f"({other.get('process_seconds') or 0:.0f} s with its start), with our "
                f"micro-batch {ratio(measured.get('autotune_with_our_batch'))}; tune of these "
                f"{ratio(measured.get('tune_of_autotune'))}, "
                f"{ratio(measured.get('tune_of_autotune_with_our_batch'))}"
            )
        if grid:
            lines.append(
                f"    grid {grid['done']} of {grid['configurations']} in {grid['seconds']:.0f} s"
                + (f"; of its best {ratio(turns['tune_of_it'])}" if turns else "")
                + (f" in {turns['time_of_the_grid']:.1%} of its time" if turns else "")
            )
    lines.append(f"{again} results, {slower} slower than the baseline when measured again")
    lines.append(f"{memory} trials of tune out of memory")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run the lanes, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(MODELS))
    parser.add_argument("--grids", default="gpt-small,conv-small")
    parser.add_argument("--budget", type=float, default=110.0)
    parser.add_argument("--seconds", type=float, default=520.0)
    parser.add_argument("--cards", required=True, help="such as 0,1,2,3")
    parser.add_argument("--device", default="cuda", choices=("cpu", "cuda"))
    parser.add_argument("--bars", type=Path, help="the files of an earlier call")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    args.models = args.models or list(MODELS)
    args.grids = [name for name in args.grids.split(",") if name]
    if unknown := {*args.models, *args.grids} - set(MODELS):
        parser.error(f"{', '.join(sorted(unknown))}: not one of {', '.join(MODELS)}")
    if args.bars is not None and args.bars.is_dir():
        shutil.copytree(args.bars, args.out, dirs_exist_ok=True)
    args.out.mkdir(parents=True, exist_ok=True)
    lanes = Lanes(args)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lanes.end)
    probe = [sys.executable, "-c", "import pytorch_autotune"]
    lanes.plan(subprocess.run(probe, capture_output=True, check=False).returncode == 0)
    threads = [
        threading.Thread(target=lanes.follow, args=(card,)) for card in args.cards.split(",")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    text = table(args.out, list(MODELS))
    (args.out / "table.txt").write_text(text)
    print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
