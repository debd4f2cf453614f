"""Run real trainings on a real GPU, with which predictions are compared.

``python3 -m bench.predict.truth --out DIR`` runs the table of ``truth_table.py``, each run in a
fresh process, several at a time, and writes ``DIR/rows.jsonl`` and ``DIR/traces/NAME.xz`` (see
``recorded.py``). ``--expandable`` runs the other settings of the allocator; ``--bisect`` searches
the largest batch under a cap on what torch reserves. If it is interrupted, finished runs are kept.
With ``--device cpu`` it only shows that everything runs.
"""

from __future__ import annotations

import argparse
import fnmatch
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from . import truth_compiled, truth_table, truth_unseen
from .truth_table import Config

BUDGET_GIB = 118.0
RUN_SECONDS, COMPILED_SECONDS = 75.0, 240.0
AUTOTUNED_SECONDS = 400.0
"""The time for a training whose compilation tries many kernels for each matrix product."""
LARGEST = 96


@dataclass
class Running:
    config: Config
    begin: float
    answer: Path
    gib: float
    attempt: int


class Pool:
    """Runs configurations in forked children, which have torch but no CUDA context yet."""

    def __init__(self, out: Path, device: str, deadline: float):
        self.out, self.device, self.deadline = out, device, deadline
        self.running: dict[int, Running] = {}
        self.done = 0
        self.forks = True
        self._children: list[Any] = []
        (out / "logs").mkdir(parents=True, exist_ok=True)
        self._rows = (out / "rows.jsonl").open("a")

    def start(
        self, config: Config, attempt: int = 0, alone: bool = False, cap_bytes: int | None = None
    ) -> int:
        answer = self.out / "logs" / f"{config.name}.{attempt}.{cap_bytes or 0}.json"
        answer.unlink(missing_ok=True)
        log = answer.with_suffix(".txt")
        sys.stdout.flush()
        # inductor starts processes and threads, which a forked child does not survive
        if config.settings or config.compile or not self.forks:
            words = [
                sys.executable,
                "-m",
                "bench.predict.truth",
                "--one",
                json.dumps(asdict(config)),
                "--out",
                str(self.out),
            ]
            words += ["--answer", str(answer), "--device", self.device] + (
                ["--alone"] if alone else []
            )
            words += ["--cap", str(cap_bytes)] if cap_bytes is not None else []
            environment = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": config.settings}
            with log.open("wb") as file:
                child = subprocess.Popen(
                    words, stdout=file, stderr=file, env=environment, start_new_session=True
                )
            pid = child.pid
            self._children.append(child)  # kept, so that no other caller waits for it
        else:
            pid = os.fork()
            if not pid:
                _child(config, self.device, self.out, answer, log, alone, cap_bytes)
        self.running[pid] = Running(config, time.monotonic(), answer, config.gib, attempt)
        return pid

    def wait(self) -> Iterator[tuple[Running, dict[str, Any]]]:
        """Return the runs that have ended; kill those that take too long."""
        for pid, run in list(self.running.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if not ended:
                most = COMPILED_SECONDS if run.config.compile else RUN_SECONDS
                if "autotune" in run.config.compile:
                    most = AUTOTUNED_SECONDS
                if time.monotonic() - run.begin > most:
                    os.kill(pid, signal.SIGKILL)
                continue
            del self.running[pid]
            try:
                row = json.loads(run.answer.read_text())
            except (OSError, ValueError):
                tail = run.answer.with_suffix(".txt").read_text(errors="replace")[-800:]
                row = {
                    "name": run.config.name,
                    **run.config.toggles(),
                    "error": f"ended with status {status}: {tail}",
                }
            yield run, row

    def try_forking(self) -> None:
        """Check whether a forked child can use the device.

        Otherwise every run has to import torch itself.
        """
        config = Config(f"{truth_table.VISION}:mlp_small", 7, record=False)
        self.start(config)
        while self.running:
            time.sleep(0.05)
            for _run, row in self.wait():
                if row["error"]:
                    self.forks = False
                    print(
                        f"forked children do not work here: {str(row['error'])[:400]}", flush=True
                    )

    def keep(self, row: dict[str, Any]) -> None:
        self._rows.write(json.dumps(row, separators=(",", ":")) + "\n")
        self._rows.flush()
        self.done += 1
        peak = row.get("peak_allocated_bytes")
        figures = (
            ""
            if peak is None
            else f"{peak / 2**30:.2f} / {row['peak_reserved_bytes'] / 2**30:.2f} GiB"
        )
        problem = f"  {str(row['error'])[:150]}" if row.get("error") else ""
        print(
            f"{self.done:4} {row['name']:55} {figures} {row.get('seconds')} s{problem}", flush=True
        )

    def all(self, configs: list[Config], parallel: int) -> None:
        """Run all of them; a run that its neighbours have disturbed is repeated with more room."""
        waiting = [(config, 0) for config in configs]
        while (waiting or self.running) and time.monotonic() < self.deadline:
            used = sum(run.gib for run in self.running.values())
            for place, (config, attempt) in enumerate(waiting):
                fits = used + config.gib <= BUDGET_GIB or not self.running
                if len(self.running) < parallel and fits:
                    del waiting[place]
                    self.start(config, attempt, alone=parallel == 1)
                    break
            else:
                time.sleep(0.03)
            for run, row in self.wait():
                disturbed = row.get("out_of_memory") or (row.get("num_alloc_retries") or 0) > 0
                broken_stacks = row.get("error") and run.config.stacks
                if disturbed and not run.attempt:
                    waiting.append((replace(run.config, gib=min(100.0, 3 * run.config.gib)), 1))
                elif broken_stacks and not run.attempt:
                    print(
                        f"     {run.config.name}: {str(row['error'])[:200]}; again without stacks",
                        flush=True,
                    )
                    waiting.append((replace(run.config, stacks=False), 1))
                else:
                    self.keep(row)
        self.stop()
        if waiting:
            print(f"{len(waiting)} configurations were not run for want of time", flush=True)

    def stop(self) -> None:
        for pid in self.running:
            os.kill(pid, signal.SIGKILL)
        for pid in self.running:
            os.waitpid(pid, 0)
        self.running.clear()

    def bisect(self, found: Path, sought: list[tuple[Config, float]]) -> None:
        """Find the largest batch of each of the table's configurations under its cap.

        All are searched at the same time.
        """
        searches = [Search(config, int(gib * 2**30)) for config, gib in sought]
        with found.open("a") as file:
            while time.monotonic() < self.deadline and (
                self.running or any(not search.over for search in searches)
            ):
                used = sum(run.gib for run in self.running.values())
                for search in searches:
                    if (
                        not search.over
                        and search.pid is None
                        and used + search.cap / 2**30 + 1 <= BUDGET_GIB
                    ):
                        config = replace(
                            search.config,
                            batch=search.next,
                            gib=search.cap / 2**30 + 1,
                            record=False,
                        )
                        search.pid = self.start(config, cap_bytes=search.cap)
                        used += config.gib
                time.sleep(0.03)
                pids = {id(run): pid for pid, run in self.running.items()}
                for run, row in self.wait():
                    search = next(search for search in searches if search.pid == pids[id(run)])
                    search.tell(row)
                    if search.over:
                        print(f"     {search.row()}", flush=True)
                        file.write(json.dumps(search.row(), separators=(",", ":")) + "\n")
                        file.flush()
            for search in searches:
                if not search.over:
                    print(f"     not finished: {search.row()}", flush=True)
        self.stop()


@dataclass
class Search:
    """A bisection: ``low`` fits, ``high`` does not.

    The cap changes if the answer is outside of 8 … 64.
    """

    config: Config
    cap: int
    low: int = 0
    high: int = LARGEST
    pid: int | None = None
    error: str | None = None

    def __post_init__(self) -> None:
        self.trials: list[dict[str, Any]] = []

    @property
    def over(self) -> bool:
        return self.error is not None or (self.high - self.low == 1 and 8 <= self.low <= 64)

    @property
    def next(self) -> int:
        return 24 if not self.low and self.high == LARGEST else (self.low + self.high) // 2

    def tell(self, row: dict[str, Any]) -> None:
        self.pid = None
        batch, failed = row["batch"], row.get("out_of_memory", False)
        if row.get("error") and not failed:
            self.error = row["error"]
            return
        peak = {
            key: row.get(key)
            for key in ("peak_allocated_bytes", "peak_reserved_bytes", "num_alloc_retries")
        }
        self.trials.append({"batch": batch, "fits": not failed, "cap_bytes": self.cap, **peak})
        if failed:
            self.high = batch
        else:
            self.low = batch
        if self.high - self.low == 1 and not 8 <= self.low <= 64:
            self.cap = int(self.cap * (1.6 if self.low < 8 else 0.6))
            self.low, self.high = 0, LARGEST
        if len(self.trials) > 24:
            self.error = "no cap was found that puts the largest batch between 8 and 64"

    def row(self) -> dict[str, Any]:
        toggles = {key: value for key, value in self.config.toggles().items() if key != "batch"}
        largest = None if self.error else self.low
        return {
            **toggles,
            "cap_bytes": self.cap,
            "largest_batch": largest,
            "error": self.error,
            "trials": self.trials,
        }


def _child(
    config: Config,
    device: str,
    out: Path,
    answer: Path,
    log: Path,
    alone: bool,
    cap_bytes: int | None,
) -> None:
    """Run a configuration in the forked child; never returns."""
    try:
        os.setsid()
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(file, 1)
        os.dup2(file, 2)
        _one(config, device, out, answer, alone, cap_bytes)
        sys.stdout.flush()
    finally:
        os._exit(0)


def _one(
    config: Config, device: str, out: Path, answer: Path, alone: bool, cap_bytes: int | None
) -> None:
    from .truth_run import run

    row = run(config, device, out, alone, cap_bytes)
    part = answer.with_suffix(".part")
    part.write_text(json.dumps(row))
    part.rename(answer)


def import_everything() -> None:
    """Import everything before forking. Nothing here makes a CUDA context."""

    from . import truth_run  # noqa: F401  # torch, and the lab's models

    for name in (
        "bench.predict.families_vision",
        "bench.predict.families_public",
        "bench.predict.families_held_out",
        "bench.predict.families_blind_vision",
        "bench.predict.families_blind_public",
        "bench.predict.families_blind_signals",
        "torch._dynamo",
        "gpuscope.lab.training",
        "torchvision.models",
    ):
        _try(partial(importlib.import_module, name))
    for name in (
        "GPT2LMHeadModel",
        "BertForMaskedLM",
        "DistilBertForSequenceClassification",
        "LlamaForCausalLM",
    ):
        _try(partial(_of_transformers, name))
    for name in (
        "T5ForConditionalGeneration",
        "ViTForImageClassification",
        "WhisperForConditionalGeneration",
    ):
        _try(partial(_of_transformers, name))
    for name in ("Wav2Vec2ForCTC", "DebertaV2ForSequenceClassification", "ViTMAEForPreTraining"):
        _try(partial(_of_transformers, name))
    import torch

    assert not torch.cuda.is_initialized()


def _of_transformers(name: str) -> Any:
    return getattr(importlib.import_module("transformers"), name)


def _try(action: Callable[[], Any]) -> None:
    try:
        action()
    except Exception as error:
        print(f"not imported beforehand: {type(error).__name__}: {error}"[:200], flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python3 -m bench.predict.truth", description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--only", default="*", help="names of configurations, as patterns of the shell, with commas"
    )
    parser.add_argument("--parallel", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--alone", action="store_true", help="those that are run one at a time")
    parser.add_argument("--held-out", action="store_true", help="models that nothing was fitted to")
    parser.add_argument("--bisect", action="store_true")
    parser.add_argument("--expandable", action="store_true")
    parser.add_argument("--blind", action="store_true", help="models that nobody has predicted")
    parser.add_argument("--frozen", action="store_true", help="backbones without gradients")
    parser.add_argument("--compiled", action="store_true", help="compiled trainings")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--cap", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--answer", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    begin = time.monotonic()
    # resolving lines takes minutes, and names are enough
    os.environ.setdefault("TORCH_SYMBOLIZE_MODE", "dladdr")
    # asking for devices must not make a context
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    os.environ.setdefault("OMP_NUM_THREADS", "2")
    if arguments.one:
        _one(
            Config(**json.loads(arguments.one)),
            arguments.device,
            arguments.out,
            arguments.answer,
            arguments.alone,
            arguments.cap,
        )
        return 0
    arguments.out.mkdir(parents=True, exist_ok=True)
    own_processes = arguments.expandable or arguments.compiled
    if not own_processes:
        import_everything()
    print(f"imports: {time.monotonic() - begin:.1f} s", flush=True)
    pool = Pool(arguments.out, arguments.device, begin + arguments.seconds)
    if not own_processes:
        pool.try_forking()
    only = arguments.only.split(",")

    def chosen(config: Config) -> bool:
        return any(fnmatch.fnmatch(config.name, pattern) for pattern in only)

    if arguments.bisect:
        sought = truth_table.bisected_held_out() if arguments.held_out else truth_table.bisected()
        if arguments.blind:
            sought = truth_unseen.bisected_blind()
        pool.bisect(
            arguments.out / "bisect.jsonl",
            [(config, gib) for config, gib in sought if chosen(config)],
        )
        return 0
    configs = truth_table.table()
    if arguments.expandable:
        configs = truth_table.expandable()
    elif arguments.blind:
        configs = list(truth_unseen.blind())
    elif arguments.frozen:
        configs = list(truth_unseen.frozen())
    elif arguments.compiled:
        configs = list(truth_compiled.compiled())
    elif arguments.alone:
        configs = truth_table.alone()
    elif arguments.held_out:
        configs = list(truth_table.held_out())
    configs = [config for config in configs if chosen(config)]
    pool.all(configs, 1 if arguments.alone else arguments.parallel)
    print(f"{pool.done} of {len(configs)} runs in {time.monotonic() - begin:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
