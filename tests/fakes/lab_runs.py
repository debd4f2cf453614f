"""Documents of lab runs as the worker writes them, and a Python that stands in for one with torch.

The substitute speaks the worker's real protocol in a real process, at once. What it does depends on
the requested micro-batch, so a test can choose how a sweep fails.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpuscope.lab.config import LabConfig
from gpuscope.lab.ledger import Entry, entry_of
from tests.fakes import pythons

FAILS, HANGS, DIES, SLOW = 13, 14, 15, 16
"""Micro-batches with which the substitute runs out of memory, never ends, or is killed. With the
last it makes steps of half a second, and ends a step and a half after it was asked to.
"""

_STAND_IN = """#!{python}
import json, os, signal, sys, time
if sys.argv[1] == "-c":
    code = sys.argv[2]
    asked = {{"gpus": 0, "names": [], "capability": None, "free": None, "torch": "2.13.0", "cxx": True,
             "cuda_compiler": False}}
    print(json.dumps(asked) if "import torch" in code else "3 11 1")
    sys.exit()
sys.path.insert(0, {root!r})
from gpuscope.lab import metrics
config = json.loads(sys.argv[sys.argv.index("--config") + 1])
batch = config["batch"] or 8
with open({log!r}, "a") as log:
    log.write(f"{{batch}} {{config['seed']}}\\n")
def say(record):
    sys.stdout.buffer.write(metrics.encode(record))
    sys.stdout.buffer.flush()
started = metrics.Started({{**config, "batch": batch}}, "mlp-tiny", "cpu", "a CPU", "2.13.0", 1000, batch)
say(started)
say(metrics.Step(1, 1.0, None, None, warming_up=True))
if batch == {fails}:
    failure = metrics.RunFailure("CUDA ran out of memory.", "it asked for 1 TiB", "--batch 1")
    say(metrics.RunFailure(failure.what, failure.why, failure.next,
                        metrics.document(config, {{}}, {{}}, started=started, error=failure)))
    sys.exit(1)
if batch == {dies}:
    os.kill(os.getpid(), signal.SIGKILL)
if batch == {slow}:
    def end(*_):
        time.sleep(0.75)
        say(metrics.RunEnded(metrics.document(config, {{}}, {{}}, steps=2, started=started)))
        sys.exit(0)
    signal.signal(signal.SIGTERM, end)
    say(metrics.Step(2, 0.9, 2.0 * batch, 0.5))
    time.sleep(60)
if batch == {hangs}:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    time.sleep(60)
time.sleep({seconds})
values = {{"samples_per_second": 100.0 * batch, "warmup_seconds": 0.5, "loss_first": 2.0, "loss_last": 1.0,
          "step_seconds": {{"median": 0.01, "p95": 0.02, "low": 0.009, "high": 0.011, "count": 20}}}}
say(metrics.RunEnded(metrics.document(config, values, {{}}, steps=config["steps"], started=started)))
"""  # noqa: E501


def stand_in(folder: Path, seconds: float = 0.0) -> tuple[Path, Path]:
    """Write a Python for ``$GPUSCOPE_LAB_PYTHON``, and the log that it writes.

    It writes "batch seed" into the log for each run, which takes ``seconds``.
    """
    path, log = folder / "python-with-torch", folder / "runs.log"
    root = str(Path(__file__).resolve().parents[2])
    path.write_text(
        _STAND_IN.format(
            python=pythons.by_plain_path(),
            root=root,
            log=str(log),
            fails=FAILS,
            hangs=HANGS,
            dies=DIES,
            slow=SLOW,
            seconds=seconds,
        )
    )
    path.chmod(0o755)
    return path, log


def document(seconds: float = 0.1, batch: int = 8, world: int = 1, **more: Any) -> dict[str, Any]:
    """Return the document of a successful run; toggles by name, and other keys in ``more``."""
    toggles = {
        name: more.pop(name)
        for name in list(more)
        if name in LabConfig.__dataclass_fields__ and name != "steps"
    }
    config = LabConfig(model="gpt-tiny", device="cpu", steps=100, batch=batch, **toggles)
    samples = batch * config.accumulate * world
    return {
        "config": config.to_mapping(),
        "device": "cpu",
        "device_name": "a CPU",
        "torch_version": "2.13.0",
        "world_size": world,
        "samples_per_step": samples,
        "steps": 100,
        "samples_per_second": samples / seconds,
        "step_seconds": {
            "median": seconds,
            "p95": seconds * 1.2,
            "low": seconds * 0.99,
            "high": seconds * 1.01,
            "count": 95,
        },
        "warmup_seconds": 2.0,
        "peak_allocated_bytes": 2 << 30,
        "peak_reserved_bytes": 3 << 30,
        "loss_curve": [[samples, 4.0], [100 * samples, 2.0]],
        "unknown": [],
        "error": None,
        **more,
    }


def entry(
    seconds: float = 0.1, *, repeat: int = 0, group: str = "", source: str = "lab", **more: Any
) -> Entry:
    return entry_of(
        document(seconds, **more), id=1, at=0.0, source=source, group=group, repeat=repeat
    )
