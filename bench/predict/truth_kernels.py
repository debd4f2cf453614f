"""Measure the scratch memory that convolutions and recurrent networks really take.

The rules are fitted to these figures.

``python3 -m bench.predict.truth_kernels --out FILE --seconds 60 --seed 1`` on a GPU draws shapes at
random, runs each once forward and once for each gradient, and writes one line of JSON for each: the
bytes at the peak of the call besides its operands and its result, rounded up to 512 as the
allocator does. ``--kind conv`` or ``rnn``. Several processes may run at the same time with other
seeds, because they do not influence each other's figures.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

MOST_BYTES = 1500 << 20
"""Limit of one operand."""
CHANNELS = (
    1,
    2,
    3,
    4,
    8,
    12,
    16,
    24,
    32,
    48,
    64,
    80,
    96,
    128,
    160,
    192,
    256,
    320,
    384,
    512,
    768,
    1024,
)
SIDES = {
    1: (50, 100, 128, 200, 400, 512, 800, 1000, 1500, 4000),
    2: (4, 7, 8, 14, 16, 24, 28, 32, 48, 56, 64, 96, 112, 128, 192, 224, 256),
    3: (4, 8, 12, 16, 24, 32, 48, 64, 96),
}
MODES = ("tf32", "bf16", "fp16", "fp32")
TYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


def scratch(call: Callable[[], Any]) -> int:
    """Return the bytes at the peak of ``call``, without what existed before and its result."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    result = call()
    torch.cuda.synchronize()
    kept = torch.cuda.memory_allocated() - before
    found: int = torch.cuda.max_memory_allocated() - before - kept
    del result
    return found


def convolution(draw: random.Random) -> dict[str, Any] | None:
    dims = draw.choice((1, 2, 2, 2, 2, 3))
    channels, filters = draw.choice(CHANNELS), draw.choice(CHANNELS)
    side, batch = (
        draw.choice(SIDES[dims]),
        draw.choice((1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96)),
    )
    kernel = draw.choice((1, 2, 3, 3, 3, 3, 4, 5, 7))
    stride = draw.choice((1, 1, 1, 2)) if kernel < 4 else draw.choice((1, 2, kernel))
    groups = draw.choice((1, 1, 1, 1, 1, 1, channels, 32))
    transposed = draw.random() < 0.1
    last = dims == 2 and draw.random() < 0.15
    mode = draw.choice(MODES)
    if groups > 1:
        filters = channels if groups == channels else filters
        if channels % groups or filters % groups:
            return None
    padding = kernel // 2 if kernel % 2 and not transposed else 0
    dtype = TYPES.get(mode, torch.float32)
    size = dtype.itemsize
    if (
        kernel > side
        or batch * max(channels, filters) * (side * (stride if transposed else 1)) ** dims * size
        > MOST_BYTES
    ):
        return None
    if channels * filters * kernel**dims > 64 << 20:
        return None
    torch.backends.cudnn.allow_tf32 = mode != "fp32"
    shape = (filters, channels // groups) if not transposed else (channels, filters // groups)
    x = torch.randn(batch, channels, *[side] * dims, device="cuda", dtype=dtype)
    w = torch.randn(*shape, *[kernel] * dims, device="cuda", dtype=dtype)
    if last:
        x, w = x.to(memory_format=torch.channels_last), w.to(memory_format=torch.channels_last)
    options = ([stride] * dims, [padding] * dims, [1] * dims, transposed, [0] * dims, groups)
    row: dict[str, Any] = {
        "dims": dims,
        "batch": batch,
        "channels": channels,
        "filters": filters,
        "side": side,
        "kernel": kernel,
        "stride": stride,
        "groups": groups,
        "transposed": transposed,
        "last": last,
        "mode": mode,
    }
    row["forward"] = scratch(lambda: torch.ops.aten.convolution(x, w, None, *options))
    grad = torch.ops.aten.convolution(x, w, None, *options)
    backward = torch.ops.aten.convolution_backward
    row["input"] = scratch(lambda: backward(grad, x, w, None, *options, [True, False, False]))
    row["weight"] = scratch(lambda: backward(grad, x, w, None, *options, [False, True, False]))
    row["again"] = scratch(lambda: torch.ops.aten.convolution(x, w, None, *options))
    return row


def recurrent(draw: random.Random) -> dict[str, Any] | None:
    kind = draw.choice(("LSTM", "LSTM", "GRU", "RNN"))
    width, inputs = (
        draw.choice((64, 96, 128, 256, 320, 512, 650, 1024)),
        draw.choice((32, 80, 128, 384, 512, 1024)),
    )
    layers, both, batch = (
        draw.choice((1, 1, 2, 3, 4, 6)),
        draw.random() < 0.5,
        draw.choice((1, 4, 8, 12, 20, 33, 64)),
    )
    steps, mode = (
        draw.choice((1, 10, 35, 50, 128, 200, 400)),
        draw.choice(("fp32", "fp16", "tf32", "bf16")),
    )
    dropout, biases, projected = draw.choice((0.0, 0.0, 0.3)), draw.random() < 0.85, 0
    if kind == "LSTM" and draw.random() < 0.1:
        projected = width // 2
    if batch * steps * width * layers > 40 << 20:
        return None
    torch.backends.cudnn.allow_tf32 = mode != "fp32"
    extra: dict[str, Any] = {"nonlinearity": draw.choice(("tanh", "relu"))} if kind == "RNN" else {}
    extra |= {"proj_size": projected} if projected else {}
    dtype = TYPES.get(mode, torch.float32)
    model = getattr(torch.nn, kind)(
        inputs,
        width,
        layers,
        bias=biases,
        batch_first=draw.random() < 0.5,
        dropout=dropout if layers > 1 else 0.0,
        bidirectional=both,
        **extra,
    ).to("cuda", dtype)
    shape = (batch, steps, inputs) if model.batch_first else (steps, batch, inputs)
    x = torch.randn(*shape, device="cuda", dtype=dtype, requires_grad=True)
    model(x)[0].sum().backward()  # makes the dropout's state and the gradients
    model.zero_grad(set_to_none=True)
    x.grad = None
    trace = _history(model, x)
    return {
        "kind": kind,
        "relu": extra.get("nonlinearity") == "relu",
        "inputs": inputs,
        "width": width,
        "layers": layers,
        "both": both,
        "batch": batch,
        "steps": steps,
        "mode": mode,
        "dropout": dropout if layers > 1 else 0.0,
        "biases": biases,
        "projected": projected,
        "first": model.batch_first,
        **trace,
    }


def _history(model: Any, x: Any) -> dict[str, Any]:
    """Return the requests in order: + bytes, and − bytes for a free."""
    memory = torch.cuda.memory
    found = {}
    memory._record_memory_history(enabled="all", context=None, max_entries=100_000)
    seen = 0
    kept = None
    for name in ("forward", "backward"):
        kept = model(x)[0] if kept is None else kept.backward(torch.ones_like(kept))
        torch.cuda.synchronize()
        entries = memory._snapshot()["device_traces"][0]
        new = entries[seen:]
        seen = len(entries)
        signs = {"alloc": 1, "free_completed": -1}
        found[name] = [signs[one["action"]] * one["size"] for one in new if one["action"] in signs]
    memory._record_memory_history(enabled=None)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python3 -m bench.predict.truth_kernels", description=__doc__
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--kind", choices=("conv", "rnn"), default="conv")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    draw, ends, count = random.Random(arguments.seed), time.monotonic() + arguments.seconds, 0
    measure = convolution if arguments.kind == "conv" else recurrent
    with arguments.out.open("w") as file:
        while time.monotonic() < ends:
            try:
                row = measure(draw)
            except (RuntimeError, ValueError) as error:
                row = {"error": f"{type(error).__name__}: {error}"[:200]}
            if row is not None:
                file.write(json.dumps(row, separators=(",", ":")) + "\n")
                count += 1
            if not count % 200:
                torch.cuda.empty_cache()
    print(f"{count} shapes")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
