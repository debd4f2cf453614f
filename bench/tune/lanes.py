"""Measure the bars of ``gpuscope tune`` on many models at once, each on a card of its own.

python -m bench.tune.lanes --out DIR --cards 0,1,2,3 [--seconds 520] [--bars DIR[:DIR…]]
    [--quarter MODEL,…] [--beside MODEL,…] [--models MODEL,…] [--grids MODEL[:PARTS],…]
    [--budget 60]

Whichever card is free takes the next part, in this order:
quarter/MODEL: tune has a part of the time of the model's grid, and what it finds runs in turns with
    the best of the grid. The grid is the most complete one in the ledgers of ``--bars``.
beside/MODEL: pytorch-autotune tunes first, and tune has the very seconds that it took. What both
    have found runs in turns with the baseline, in fresh processes.
models/MODEL: tune has ``--budget`` seconds, and its result is run again beside the baseline.
grid/MODEL: the grid, in parts that several cards can share. Once it is complete, quarter/MODEL
    comes next.

Nothing begins that is not expected to end in time, and everything is written as it comes. Where a
folder of ``--bars`` is the output of an earlier call, that is continued, and what it has completed
is not done again. DIR/table.txt has a line for each part.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.tune.bars import GRID, WITHIN_SHARE, missed
from bench.tune.plan import grid, seconds_of
from bench.tune.replay import facts
from gpuscope.lab.config import LabConfig
from gpuscope.lab.ledger import Entry, RunLedger
from gpuscope.lab.sweep import cell_key

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
    "tabular": ("bench.predict.families_unseen:tabular", 512, 4),
    "nerf": ("bench.predict.families_blind_signals:nerf", 1024, 4),
    "decoder-tiny": (FAMILIES + "gpt_tiny", 32, 4),
    "mlp-wide": (VISION + "mlp", 512, 4),
}
"""The model, its micro-batch and accumulation: of the Lab, and families of bench/predict."""
NO_CONVOLUTIONS = frozenset(
    {"decoder-tiny", "dlrm-like", "gpt-wide", "gru-lm", "lstm-lm", "mlp-wide", "nerf", "tabular"}
)
"""Factories of the Lab may have convolutions. Those of these families have none, so their grid
does not have ``channels_last``.
"""
PART_SECONDS = 75.0
"""What a part of a grid is expected to take at least."""
AUTOTUNE_SECONDS = {"gpt-small": 81.0, "conv-small": 73.0, "conv-large": 91.0, "mlp-large": 36.0}
AUTOTUNE_BUDGET = 110.0
RUN_SECONDS, COMPILED_SECONDS = 14.0, 20.0
"""What a run in a fresh process is expected to take, and how much longer each configuration takes
whose graph no cache has.
"""
ROUNDS = {"conv-small": 4}
"""How often the turns beside a grid's best are repeated where it is more often than usual: the
speed of such small steps changes much from one process to the next.
"""
ENDING_SECONDS = 8.0
THREADS = "TORCHINDUCTOR_COMPILE_THREADS"
"""The cards share the cores: without a limit each compiles with up to 32 processes."""


@dataclass(frozen=True, slots=True)
class Part:
    """One call of bench.tune.bars, whose output is in ``folder``.

    ``seconds`` is what it is expected to take. ``last`` is the key of bars.json that it writes
    last.
    """

    folder: str
    steps: str
    seconds: float
    last: str

    @property
    def model(self) -> str:
        return self.folder.rpartition("/")[2]


class Lanes:
    """The parts that wait, and the cards that take them."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.ends: float = time.monotonic() + args.seconds - ENDING_SECONDS
        self.waiting: deque[Part] = deque()
        self.running: set[subprocess.Popen[bytes]] = set()
        self.lock = threading.Lock()
        cards = args.cards.split(",")
        cores = sorted(os.sched_getaffinity(0))
        share = max(1, len(cores) // len(cards))
        self.cores = {card: cores[i * share : (i + 1) * share] for i, card in enumerate(cards)}
        self.threads = max(2, share)

    @property
    def left(self) -> float:
        return self.ends - time.monotonic()

    def plan(self, autotune: bool) -> None:
        """List the parts, in their order, without those that an earlier call has completed."""
        args = self.args
        parts: list[Part | None] = []
        for name in args.quarter:
            part = self.quarter(name, args.bars)
            if part is None:
                print(f"no grid of {name} is known: --bars", flush=True)
            parts.append(part)
        for name in args.beside if autotune else ():
            both = 2 * AUTOTUNE_SECONDS.get(name, AUTOTUNE_BUDGET)
            seconds = both + 6 * RUN_SECONDS + COMPILED_SECONDS
            steps = "--steps autotune,tune,again --within autotune --rounds 2"
            steps += f" --budget {AUTOTUNE_BUDGET}"
            parts.append(Part(f"beside/{name}", steps, seconds, "again"))
        for name in args.models:
            steps = f"--steps tune,again --rounds 2 --budget {args.budget}"
            parts.append(Part(f"models/{name}", steps, args.budget + 4 * RUN_SECONDS, "again"))
        for name, count in args.grids:
            if self.has_grid(name):
                parts.append(self.quarter(name, [args.out / "grid"]))
                continue
            for shard in range(1, count + 1):
                steps = f"--steps grid --shard {shard}/{count}"
                parts.append(Part(f"grid/{name}", steps, PART_SECONDS, ""))
        self.waiting.extend(part for part in parts if part and not self.is_complete(part))

    def quarter(self, name: str, grids: Iterable[Path]) -> Part | None:
        """Return the part that tunes in a share of the time of a grid in ``grids``, if any is."""
        whole = grid_for(name, grids, self.args.out / "quarter" / name)
        if not whole:
            return None
        rounds = ROUNDS.get(name, 3)
        seconds = WITHIN_SHARE * whole + 3 * rounds * RUN_SECONDS + COMPILED_SECONDS
        steps = f"--steps known,tune,turns --within grid --rounds {rounds}"
        return Part(f"quarter/{name}", steps, seconds, "turns")

    def has_grid(self, name: str) -> bool:
        """Say whether every configuration of a grid has run."""
        found = read(self.args.out / "grid" / name).get("grid", {})
        return bool(found) and found["done"] == found["configurations"]

    def after(self, part: Part) -> None:
        """Let what needs a whole grid come next, once a part has completed it."""
        with self.lock:
            if part.folder == f"grid/{part.model}" and self.has_grid(part.model):
                found = self.quarter(part.model, [self.args.out / "grid"])
                if found is not None and not self.is_complete(found):
                    self.waiting.appendleft(found)

    def take(self) -> Part | None:
        """Return the first part that is expected to end in time."""
        with self.lock:
            for part in self.waiting:
                if part.seconds < self.left:
                    self.waiting.remove(part)
                    return part
        return None

    def is_complete(self, part: Part) -> bool:
        found = read(self.args.out / part.folder)
        alone = part.last == "again" and "autotune" not in found
        return part.last in found or (alone and is_baseline(found))

    def follow(self, card: str) -> None:
        """Take parts for one card until nothing is left that would end in time."""
        while self.left > 0:
            part = self.take()
            if part is None:
                return
            began = time.monotonic()
            code = self.make(part, card)
            took = time.monotonic() - began
            print(f"card {card}: {part.folder} {part.steps}: {code}, {took:.0f} s", flush=True)
            self.after(part)
            with self.lock:
                (self.args.out / "table.txt").write_text(table(self.args.out))

    def make(self, part: Part, card: str) -> int | None:
        """Run one part, and end it when the time is up."""
        model, batch, accumulate = MODELS[part.model]
        out = self.args.out / part.folder
        out.mkdir(parents=True, exist_ok=True)
        words = [
            model, "--batch", str(batch), "--accumulate", str(accumulate), "--cards", card,
            "--out", str(out), "--device", self.args.device,
            *part.steps.split(),
            *(word for switch in left_out(part.model) for word in ("--without", switch)),
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
            os.sched_setaffinity(child.pid, self.cores[card])  # no card's lane slows another one's
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


def left_out(name: str) -> list[str]:
    """Return the switches that the grid of a model does not have, as they do nothing to it."""
    return ["channels_last"] if name in NO_CONVOLUTIONS else []


def is_baseline(found: dict[str, Any]) -> bool:
    """Say whether tune has kept the baseline, so that there is nothing to run again."""
    return "tune" in found and found["tune"].get("config") == found.get("baseline")


def grid_for(name: str, folders: Iterable[Path], to: Path) -> float:
    """Put the most complete grid of a model into a new ledger, and return the seconds of all of it.

    They are 0 where no ledger has one. Of equally complete grids it is the last.
    """
    runs: dict[LabConfig, Entry] = {}
    for path in (path for one in folders for path in sorted(one.rglob(f"{name}/ledger.sqlite"))):
        with tempfile.TemporaryDirectory() as copies:  # it may lie where nothing can be written
            copy = shutil.copy(path, copies)
            entries = RunLedger(Path(copy)).entries(limit=None, group=GRID)
        entries.sort(key=lambda entry: entry.id)
        found = {entry.config: entry for entry in entries if entry.config is not None}
        runs = found if len(found) >= len(runs) else runs
    if not runs:
        return 0.0
    if not (to / "ledger.sqlite").exists():
        to.mkdir(parents=True, exist_ok=True)
        ledger = RunLedger(to / "ledger.sqlite")
        for config, entry in runs.items():
            ledger.add(
                entry.document,
                source=entry.source,
                group=GRID,
                repeat=entry.repeat,
                label=entry.label,
                environment=entry.environment,
                cell=cell_key(config),
            )
    model, batch, accumulate = MODELS[name]
    base = LabConfig(model=model, device="cuda", batch=batch, accumulate=accumulate)
    seconds = sum(map(seconds_of, runs.values()))
    return seconds * len(grid(base, batch, facts, left_out(name))[0]) / len(runs)


def table(out: Path) -> str:
    """Return some lines for each part, and what all of them say."""
    lines, results, slower, memory = [], 0, 0, 0
    for path in sorted(out.rglob("bars.json")):
        found = read(path.parent)
        tune, turns, known = (found.get(key, {}) for key in ("tune", "turns", "grid"))
        if not tune and not known:
            continue
        measured = found.get("again", {})
        ours = measured.get("tune")
        results += bool(ours) or is_baseline(found)
        slower += bool(ours and ours["ratio"] < 1)
        memory += found.get("out_of_memory", 0)
        lines.append(f"{path.parent.relative_to(out)}: {tune.get('sentence', 'not tuned')}")
        if tune:
            lines.append(
                f"    {time_of(tune)}; again {ratio(ours)}"
                + (f"; missed: {', '.join(missed(found))}" if missed(found) else "")
            )
        if other := found.get("autotune", {}):
            lines.append(
                f"    pytorch-autotune {ratio(measured.get('autotune'))} in {time_of(other)}"
                f"{': ' + other['error'] if 'error' in other else ''}; "
                f"tune is {ratio(measured.get('tune_of_autotune'))} times as fast"
            )
        if known:
            lines.append(
                f"    grid {known['done']} of {known['configurations']} in {known['seconds']:.0f} s"
                + (f"; of its best {ratio(turns['tune_of_it'])}" if turns else "")
                + (f" in {turns['time_of_the_grid']:.1%} of its time" if turns else "")
            )
    lines.append(f"{results} results, {slower} slower than the baseline when measured again")
    lines.append(f"{memory} trials of tune out of memory")
    return "\n".join(lines) + "\n"


def time_of(found: dict[str, Any]) -> str:
    """Return how long a search took, with the start of its process, and its budget."""
    words = f"{found.get('seconds') or 0:.0f} s"
    if found.get("process_seconds"):
        words += f" ({found['process_seconds']:.0f} s with its start and end)"
    return words + (f" of {found['budget']:.0f} s" if found.get("budget") else "")


def names(text: str) -> list[str]:
    """Return the models of a list with commas. Raises ``ArgumentTypeError``."""
    found = [name for name in text.split(",") if name]
    if unknown := set(found) - set(MODELS):
        raise argparse.ArgumentTypeError(
            f"{', '.join(sorted(unknown))}: not one of {', '.join(MODELS)}"
        )
    return found


def in_parts(text: str) -> list[tuple[str, int]]:
    """Return the models of a list with commas, and into how many parts each grid is divided."""
    words = [word.partition(":") for word in text.split(",") if word]
    models = names(",".join(name for name, _, _ in words))
    try:
        return [
            (name, max(1, int(count or 1)))
            for name, (_, _, count) in zip(models, words, strict=True)
        ]
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text}: {error}") from None


def main() -> int:
    """Run the lanes, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for kind in ("quarter", "beside", "models"):
        parser.add_argument(f"--{kind}", type=names, default=[], metavar="MODEL,…")
    parser.add_argument("--grids", type=in_parts, default=[], metavar="MODEL[:PARTS],…")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds, for --models")
    parser.add_argument("--seconds", type=float, default=520.0)
    parser.add_argument("--cards", required=True, help="such as 0,1,2,3")
    parser.add_argument("--device", default="cuda", choices=("cpu", "cuda"))
    parser.add_argument("--bars", default="", help="outputs of earlier calls: DIR[:DIR…]")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    args.bars = [Path(name) for name in args.bars.split(":") if name]
    args.out.mkdir(parents=True, exist_ok=True)
    for earlier in args.bars:
        for kind in ("quarter", "beside", "models", "grid"):
            if (earlier / "lanes.json").exists() and (earlier / kind).is_dir():
                shutil.copytree(earlier / kind, args.out / kind, dirs_exist_ok=True)
    (args.out / "lanes.json").write_text(json.dumps({"cards": args.cards, "argv": sys.argv[1:]}))
    lanes = Lanes(args)
    for one in (signal.SIGINT, signal.SIGTERM):
        signal.signal(one, lanes.end)
    probe = [sys.executable, "-c", "import pytorch_autotune"]
    lanes.plan(subprocess.run(probe, capture_output=True, check=False).returncode == 0)
    threads = [
        threading.Thread(target=lanes.follow, args=(card,)) for card in args.cards.split(",")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for part in lanes.waiting:
        print(f"no time was left for {part.folder}", flush=True)
    print(table(args.out), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
