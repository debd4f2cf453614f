"""Imports torch, waits for a line on its standard input, and then runs a script in this process.

Importing torch takes seconds that nobody has to wait for: while one training is measured the next
one imports, and stands here until it is its turn. It has not touched the GPU by then.

``python -m bench.time_gym.gate [--import MODULE] SCRIPT [WORD …]``
"""

from __future__ import annotations

import importlib
import runpy
import sys
from typing import Any

SKIPPED = "skipped:"
"""How the line begins that says why a training cannot run on this machine."""
READY, DEVICE = "ready", "device:"
PREPARE = "prepare"
"""The line on its standard input that has it load what CUDA needs, before it is to train."""


def prepare(torch: Any) -> None:
    """Make the context of CUDA and load its libraries, which takes some seconds."""
    if torch.cuda.is_available():
        some = torch.ones(1, 8, 16, 16, device="cuda")
        torch.nn.functional.conv2d(some, torch.ones(8, 8, 3, 3, device="cuda"))
        torch.matmul(some, some)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def main(words: list[str]) -> None:
    import torch

    needed = []
    while words[0] == "--import":
        needed.append(words[1])
        words = words[2:]
    for module in needed:
        try:
            importlib.import_module(module)
        except ImportError as error:
            print(f"{SKIPPED} {module} cannot be imported: {error}", flush=True)
            return
    print(READY, flush=True)
    told = sys.stdin.readline()
    if told.strip() == PREPARE:
        prepare(torch)
        told = sys.stdin.readline()
    if not told:
        return  # whoever started it has gone
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    print(f"{DEVICE} {device}, torch {torch.__version__}", flush=True)
    sys.argv = words
    runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
