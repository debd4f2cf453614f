"""The claim about DataParallel on a machine without GPUs. Started with every GPU hidden."""

from __future__ import annotations

import sys

from torch import nn

from .bench import Bench, Loop, in_turn, main


def dp_cpu(bench: Bench) -> None:
    batch = bench.batch(128)
    plain = Loop("mlp-small", bench.device, batch=batch)
    wrapped = Loop("mlp-small", bench.device, batch=batch, change=nn.DataParallel)
    sides = {"plain": (plain.step, bench.device), "wrapped": (wrapped.step, bench.device)}
    for took in in_turn(bench, sides):
        bench.value("ratio", took["plain"] / took["wrapped"])
    bench.note("step without", took["plain"] * 1e3, "ms")


MEASURES = {"dp-cpu": dp_cpu}

if __name__ == "__main__":
    sys.exit(main(MEASURES))
