"""Measure on a GPU what kernels take besides their results, and fit the rules to it.

``make measure-kernels`` (``python -m bench.predict.measure_kernels --out DIR``) does in order:

1. ``truth_kernels`` measures convolutions and recurrent networks of random shapes.
2. ``fit_convolutions`` and ``fit_recurrent`` say how well the present tables predict them. With
   ``--write`` they write new tables.
3. ``truth`` runs small real trainings, and ``score`` predicts them.
4. With ``--write`` the torch, CUDA, cuDNN and GPU of this run are noted in
   ``gpuscope/predict/data/measured.json``, from which each prediction says what it is based on.

Without a GPU it measures nothing and returns 3. The rules for attention, reductions, indexing and
norms are code: step 3 shows whether they still hold.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import torch

from gpuscope.predict import measured_kernels, tables

SMALL = (
    "gpt_tiny-*,bert_base-b8-off*,llama_like-b2-off*,mlp_small-b128-off*,lstm_lm-b20-*,"
    "gru_lm-b32-off*,dlrm_like-b2048-off*,unet_batch-b8-off*,resnet50-b16-*"
)
ABOUT = (
    "The torch and the card with which the kernels' scratch memory was measured. Written by "
    "python -m bench.predict.measure_kernels."
)


def _run(module: str, *arguments: str) -> None:
    command = [sys.executable, "-m", f"bench.predict.{module}", *arguments]
    print("$", " ".join(command), flush=True)
    subprocess.run(command, check=True)


def _here() -> dict[str, str]:
    return {
        "torch": measured_kernels.minor_version(str(torch.__version__)),
        "cuda": str(torch.version.cuda),
        "cudnn": str(torch.backends.cudnn.version()),
        "gpu": torch.cuda.get_device_name().removeprefix("NVIDIA ").split()[0],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="a folder for the measurements")
    parser.add_argument("--seconds", type=float, default=300, help="for each kind of layer")
    parser.add_argument("--write", action="store_true", help="replace the tables in the package")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print(
            f"Nothing was measured: torch {torch.__version__} sees no GPU.\n"
            "Run this on a machine with an NVIDIA GPU and a CUDA build of torch; nvidia-smi and "
            "python -c 'import torch; print(torch.cuda.is_available())' show what is missing.",
            file=sys.stderr,
        )
        return 3
    out, write = arguments.out, ["--write"] if arguments.write else []
    out.mkdir(parents=True, exist_ok=True)
    for kind in ("conv", "rnn"):
        _run(
            "truth_kernels", "--out", str(out / f"{kind}.jsonl"), "--kind", kind,
            "--seconds", str(arguments.seconds),
        )  # fmt: skip
    _run("fit_convolutions", str(out / "conv.jsonl"), *write)
    _run("fit_recurrent", str(out / "rnn.jsonl"), *write)
    _run("truth", "--out", str(out), "--only", SMALL)
    _run("score", str(out / "rows.jsonl"))
    if arguments.write:
        tables.write(measured_kernels.PATH, ABOUT, [_here()])
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
