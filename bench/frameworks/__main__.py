"""Runs small trainings of many frameworks under gpuscope and writes the support matrix.

    python -m bench.frameworks [NAME…] [--seconds N] [--keep]

Started by ``make test-frameworks`` in an environment of its own. Each script under ``scripts``
trains on synthetic data and writes down what it knows of itself; a reader of the probe's socket
keeps what the probe says meanwhile. NAME picks trainings whose name begins so; rows of others stay
as the page has them.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.frameworks.judge import COLUMNS, Notes, Sample, Verdict, judge
from gpuscope import __version__
from gpuscope.wire import frames
from tests.fakes.probe_client import ROOT, Reader, sockets

HERE = Path(__file__).parent
PAGE = ROOT / "docs" / "frameworks.md"
PYTHON = ROOT / ".venv-frameworks" / "bin" / "python"
LIMIT_SECONDS = 400.0
HZ = 4.0


@dataclass(frozen=True)
class Training:
    name: str
    what: str
    script: str
    attach: bool = False
    ranks: int = 1
    env: dict[str, str] = field(default_factory=dict)


TRAININGS = (
    Training("plain", "plain loop, tqdm over epochs and batches", "plain_loop"),
    Training("rich", "plain loop, Rich's progress", "rich_loop"),
    Training("hf", "HF Trainer (accumulation 2, evaluations)", "hf_trainer"),
    Training("hf-attach", "HF Trainer, attached to", "hf_trainer", attach=True),
    Training("trl", "TRL SFTTrainer with a LoRA adapter of PEFT", "trl_sft"),
    Training("accelerate", "accelerate loop (accumulation 2)", "accelerate_loop"),
    Training("lightning", "Lightning, accumulation 2, Rich's bar", "lightning_auto"),
    Training(
        "lightning-tqdm",
        "Lightning, tqdm's bar",
        "lightning_auto",
        env={"BAR": "tqdm", "ACCUMULATE": "1"},
    ),
    Training(
        "lightning-attach", "Lightning, Rich's bar, attached to", "lightning_auto", attach=True
    ),
    Training("lightning-manual", "Lightning, manual optimization (GAN)", "lightning_manual"),
    Training("fastai", "fastai Learner", "fastai_learner"),
    Training("fastai-attach", "fastai Learner, attached to", "fastai_learner", attach=True),
    Training("keras", "Keras on torch", "keras_fit"),
    Training("keras-attach", "Keras on torch, attached to", "keras_fit", attach=True),
    Training("skorch", "skorch", "skorch_net"),
    Training("composer", "Composer", "composer_trainer"),
    Training("ignite", "ignite", "ignite_engine"),
    Training("sb3", "SB3 PPO", "sb3_ppo"),
    Training("ultralytics", "ultralytics YOLO", "ultralytics_yolo"),
    Training("timm", "the loop of timm's train.py", "timm_loop"),
    Training("nanogpt", "the loop of nanoGPT's train.py (accumulation 2)", "nanogpt_loop"),
    Training("gan", "GAN in a plain loop", "gan"),
    Training("lbfgs", "LBFGS with a closure", "lbfgs"),
    Training("distillation", "teacher, EMA copy and student", "distillation"),
    Training("ddp", "DDP, torchrun, 2 ranks on gloo", "ddp", ranks=2),
    Training("fsdp2", "FSDP2, torchrun, 2 ranks on gloo", "fsdp2", ranks=2),
)
PACKAGES = (
    "torch", "transformers", "accelerate", "peft", "trl", "lightning", "fastai", "keras", "skorch",
    "mosaicml", "pytorch-ignite", "stable_baselines3", "ultralytics", "timm", "tqdm", "rich",
    "torchvision",
)  # fmt: skip


class Watch(threading.Thread):
    """Reads the probe of ``pid`` to its end, and keeps its samples."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid = pid
        self.samples: list[Sample] = []
        self.over = False

    def run(self) -> None:
        path = None
        while path is None and not self.over:
            path = next(iter(sockets(self.pid)), None)
            time.sleep(0.05)
        if path is None:
            return
        try:
            reader = Reader(path, LIMIT_SECONDS)
            reader.send(frames.Request("rate", 1, {"hz": HZ}))
            while not self.over and (frame := reader.next()) is not None:
                if isinstance(frame, frames.Sample):
                    self.samples.append(_sample(reader, frame))
            reader.close()
        except OSError as error:
            print(f"the probe of pid {self.pid}: {error!r}", file=sys.stderr)


def _sample(reader: Reader, frame: frames.Sample) -> Sample:
    of_trainer = {column: value for (entity, column), value in reader.values.items() if entity == 1}
    reasons = {
        column: reason[1] for (entity, column), reason in reader.reasons.items() if entity == 1
    }
    row = reader.alloc(-1)
    memory = {column: value for (entity, column), value in reader.values.items() if entity == row}
    why = reader.reasons.get((row or 0, "parameter_bytes"))
    return Sample(frame.m, of_trainer, reasons, {**memory, **({"why": why[1]} if why else {})})


def run(training: Training, seconds: float, keep: Path | None) -> tuple[Verdict, str]:
    """The verdict, and how its process ended."""
    with tempfile.TemporaryDirectory(prefix="gpuscope-frameworks-") as name:
        folder = Path(name)
        notes_file, output = folder / "truth", folder / "output"
        notes_file.touch()
        command = [str(PYTHON), str(HERE / "scripts" / f"{training.script}.py")]
        if training.ranks > 1:
            torchrun = [
                "-m",
                "torch.distributed.run",
                f"--nproc-per-node={training.ranks}",
                "--standalone",
            ]
            command[1:1] = torchrun
        if not training.attach:
            command = [sys.executable, "-m", "gpuscope", "run", "--", *command]
        env = {
            **{
                key: value
                for key, value in os.environ.items()
                if not key.startswith(("GPUSCOPE", "VIRTUAL_ENV"))
            },
            "PYTHONPATH": str(ROOT) if not training.attach else "",
            "OMP_NUM_THREADS": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "TRUTH_FILE": str(notes_file),
            "TRUTH_SECONDS": str(seconds),
            "HF_HUB_OFFLINE": "1",
            "KERAS_HOME": name,
            "YOLO_CONFIG_DIR": name,
            "MPLCONFIGDIR": name,
            "TERM": "xterm",
            "GPUSCOPE_BLACKBOX_DIR": f"{name}/boxes",
            "XDG_STATE_HOME": name,
            **({"TRUTH_GO": f"{name}/go"} if training.attach else {}),
            **training.env,
        }
        with output.open("wb") as log:
            child = subprocess.Popen(
                command,
                cwd=folder,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            # A pipe, so that no log can be read beside it.
            lines = child.stdout
            assert lines is not None
            pump = threading.Thread(
                target=lambda: [log.write(piece) for piece in iter(lines.readline, b"")]
            )
            pump.start()
            watch = None
            deadline = time.monotonic() + LIMIT_SECONDS
            try:
                while child.poll() is None and time.monotonic() < deadline:
                    pid = _pid(notes_file)
                    if watch is None and pid is not None:
                        if training.attach:
                            _attach(pid, env, log)
                            (folder / "go").touch()
                        watch = Watch(pid)
                        watch.start()
                    time.sleep(0.1)
                late = child.poll() is None
            finally:
                if child.poll() is None:
                    os.killpg(child.pid, signal.SIGKILL)
                code = child.wait()
                if watch is not None:
                    watch.over = True
                    watch.join(5)
                pump.join(5)
        rows = [json.loads(line) for line in notes_file.read_text().splitlines()]
        samples = watch.samples if watch is not None else []
        verdict = judge(Notes(rows), samples, training.attach)
        how = (
            ""
            if code == 0
            else f"took longer than {LIMIT_SECONDS:.0f} s"
            if late
            else f"ended with exit code {code}"
        )
        if keep is not None:
            (keep / f"{training.name}.log").write_bytes(output.read_bytes())
            (keep / f"{training.name}.truth").write_bytes(notes_file.read_bytes())
            kept = [{"m": s.m, **s.values, "why": s.reasons, "a": s.allocator} for s in samples]
            (keep / f"{training.name}.samples").write_text("\n".join(map(json.dumps, kept)))
        if how:
            print(output.read_text(errors="replace")[-2000:], file=sys.stderr)
        return verdict, how


def _pid(path: Path) -> int | None:
    first = path.read_text().partition("\n")[0]
    try:
        return int(json.loads(first)["pid"]) if first else None
    except (ValueError, KeyError):
        return None


def _attach(pid: int, env: dict[str, str], log: Any) -> None:
    command = [sys.executable, "-m", "gpuscope", "attach", str(pid), "--inject", "--yes"]
    done = subprocess.run(
        command,
        env={**env, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
        check=False,
    )
    log.write(done.stdout + done.stderr)


# ── the page ──────────────────────────────────────────────────────────────────────────────────────

HEAD = """# Frameworks

This page compares what gpuscope reports about a training with what the training itself knows. `make test-frameworks`
generates it. It runs small scripts from `bench/frameworks/scripts` on synthetic data, each written in the documented
style of its framework. They run under `gpuscope run`, or, where the name says so, without it and with
`gpuscope attach PID --inject`. Each script writes down its step, loss, progress, phase and bytes through the framework's
own callbacks, and the probe's samples are compared with these. Standard output is a pipe, so nothing here comes from a log.

✓ gpuscope agrees with the script · ✗ it does not · – unknown, with the reason below · `epoch` gpuscope knows the end of
the epoch and labels it as such · `·` not asked of this script. *split* compares the parts of a step with sleeps of known
length. *nan*: in the last quarter of the training the loss is not a number, and `gpuscope wait` would return 11.

Ultralytics runs with substitutes for torchvision's compiled operators, which cannot be loaded beside a torch for the CPU,
so the boxes it predicts mean nothing. Composer asks for a torch below 2.7.1; it is installed with `pip install --no-deps`
and runs with the torch named here.
"""  # noqa: E501


def page(rows: dict[str, tuple[str, list[str], str]], versions: str) -> str:
    """Rows by name: what it is, the cells, remarks."""
    lines = [
        HEAD,
        versions,
        "",
        f"| training | {' | '.join(COLUMNS)} |",
        f"|---|{'---|' * len(COLUMNS)}",
    ]
    known = [training.name for training in TRAININGS]
    ordered = [name for name in known if name in rows]
    lines += [f"| {rows[name][0]} (`{name}`) | {' | '.join(rows[name][1])} |" for name in ordered]
    lines += ["", "## What is not right, or not known", ""]
    lines += [f"- `{name}`: {rows[name][2]}" for name in ordered if rows[name][2]]
    return "\n".join(lines) + "\n"


def read_page(text: str) -> dict[str, tuple[str, list[str], str]]:
    """The rows of a page that was written before."""
    remarks = dict(re.findall(r"^- `([a-z0-9-]+)`: (.*)$", text, re.M))
    rows = {}
    for what, name, cells in re.findall(r"^\| (.*) \(`([a-z0-9-]+)`\) \| (.*) \|$", text, re.M):
        rows[name] = (what, cells.split(" | "), remarks.get(name, ""))
    return rows


def versions() -> str:
    code = (
        "import importlib.metadata as m, sys\nfor name in sys.argv[1:]:\n"
        "    try: print(name, m.version(name))\n    except m.PackageNotFoundError: pass"
    )
    told = subprocess.run(
        [PYTHON, "-c", code, *PACKAGES], capture_output=True, text=True, check=True
    ).stdout
    listed = ", ".join(told.split("\n")[:-1])
    day = datetime.datetime.now(datetime.timezone.utc).date()
    return f"{day}, gpuscope {__version__}, on a CPU, Python {platform.python_version()}: {listed}."


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.frameworks", description=__doc__.partition("\n")[0]
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="trainings whose name begins so (default: all)"
    )
    parser.add_argument(
        "--seconds", type=float, default=14.0, help="how long each should train (default 14)"
    )
    parser.add_argument(
        "--keep", action="store_true", help="leave notes, samples and output in .frameworks/"
    )
    args = parser.parse_args()
    chosen = [
        t
        for t in TRAININGS
        if not args.names or any(t.name.startswith(name) for name in args.names)
    ]
    if not chosen:
        parser.error(
            f"no training has such a name; there are {', '.join(t.name for t in TRAININGS)}"
        )
    keep = ROOT / ".frameworks" if args.keep else None
    if keep is not None:
        keep.mkdir(exist_ok=True)
    rows = read_page(PAGE.read_text()) if PAGE.exists() else {}
    for training in chosen:
        began = time.monotonic()
        verdict, how = run(training, args.seconds, keep)
        remarks = "; ".join([*([f"**{how}**"] if how else []), *verdict.remarks])
        cells = [verdict.cells[column] for column in COLUMNS]
        rows[training.name] = (training.what, cells, " ".join(remarks.split()))
        print(
            f"{time.monotonic() - began:4.0f} s  {training.name:18} "
            f"{' '.join(f'{c:6}' for c in cells)} {remarks}",
            flush=True,
        )
        PAGE.write_text(page(rows, versions()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
