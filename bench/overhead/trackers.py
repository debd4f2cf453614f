"""What one report to an experiment tracker costs: CPU of the calling thread and of the process.

The library is the real one, and writes into a folder that is removed. Prints one line.

    python bench/overhead/trackers.py tensorboardX --reports 300
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from gpuscope.probe.tracker_libraries import MLflow, TensorBoard, TrackedNumbers, WandB  # noqa: E402

QUIET = {
    "WANDB_MODE": "offline",
    "WANDB_SILENT": "true",
    "MLFLOW_ALLOW_FILE_STORE": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}
LIBRARIES = ("torch.utils.tensorboard", "tensorboardX", "wandb", "mlflow-files", "mlflow-sqlite")
SETTLE_SECONDS = 0.5
"""A pause for what the library's own threads still have to do."""


def opened(name: str, folder: str) -> tuple[Any, Any]:
    """Return the part of the probe for a library, and what keeps its run open."""
    module = importlib.import_module(name.partition("-")[0])
    if name == "wandb":
        return WandB(), module.init(project="p", dir=folder)
    if name.startswith("mlflow"):
        store = f"file://{folder}/runs" if name.endswith("files") else f"sqlite:///{folder}/runs.db"
        module.set_tracking_uri(store)
        return MLflow(), module.start_run()
    tensorboard = TensorBoard()
    tensorboard.install()
    return tensorboard, module.SummaryWriter(folder)


def report(step: int) -> TrackedNumbers:
    names = ("allocated_gib", "reserved_gib", "peak_allocated_gib", "alloc_retries", "ooms")
    memory = {f"cuda0/{name}": 1.5 + step for name in names}
    times = {"step_seconds": 0.1 + step, "input_share": 0.2, "stalled": 0.0}
    return TrackedNumbers(step, {**times, **memory}, None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library", choices=LIBRARIES)
    parser.add_argument("--reports", type=int, default=300)
    options = parser.parse_args()
    os.environ.update(QUIET)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        library, run = opened(options.library, folder)
        for step in range(3):
            library.log(library.find(0), report(step))
        time.sleep(SETTLE_SECONDS)
        thread, process = time.thread_time(), time.process_time()
        for step in range(3, 3 + options.reports):
            library.log(library.find(0), report(step))
        thread = time.thread_time() - thread
        time.sleep(SETTLE_SECONDS)
        process = time.process_time() - process
        each = 1e3 / options.reports
        print(f"{options.library}: {thread * each:.2f} ms in the calling thread, ", end="")
        print(f"{process * each:.2f} ms in the process", flush=True)
        del run
    os._exit(0)  # the libraries' own endings are not of interest


if __name__ == "__main__":
    main()
