"""Make the allocator snapshots of this folder, on one H200, with torch's own memory history.

Run it with ``python demos/snapshots/make.py DIRECTORY [SCENE]``. It needs CUDA. Afterwards it only
takes the directories out of the file names in stacks, and compresses.

The snapshots show the lines of this file, so what allocates keeps its line: a test looks.
"""

import gc
import gzip
import os
import pickle
import sys

import torch
from torch import nn

MiB = 1 << 20
SIZES = (3, 5, 7, 4, 6, 8) * 12


def shortened(snapshot: dict) -> dict:
    """Return it with file names relative to their package; stacks share their frames."""
    done = set()

    def frames_of(thing: dict) -> None:
        for key in ("frames", "forward_frames"):
            for frame in thing.get(key) or ():
                if id(frame) not in done:
                    done.add(id(frame))
                    name = frame["filename"]
                    for mark in ("site-packages/", "dist-packages/"):
                        name = name.rpartition(mark)[2]
                    frame["filename"] = os.path.basename(name) if name.startswith("/") else name

    segments, traces = snapshot["segments"], snapshot["device_traces"]
    blocks = (block for segment in segments for block in segment["blocks"])
    for thing in (*segments, *blocks, *(entry for trace in traces for entry in trace)):
        frames_of(thing)
    return snapshot


def keep(directory: str, name: str) -> None:
    """Write the present state of the allocator."""
    snapshot = shortened(torch.cuda.memory._snapshot())
    path = os.path.join(directory, name + ".pickle.gz")
    with gzip.GzipFile(path, "wb", compresslevel=9, mtime=0) as file:
        file.write(pickle.dumps(snapshot, protocol=2))
    print(f"{name}: {sum(map(len, snapshot['device_traces']))} entries")


def fresh(entries: int) -> None:
    """Start with an empty allocator and a new history."""
    torch.cuda.memory._record_memory_history(enabled=None)
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.memory._record_memory_history(stacks="python", max_entries=entries)


def model_and_optimizer() -> tuple:
    """Return a small transformer on the GPU, and AdamW."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(256, 4, 1024, 0.0, batch_first=True, norm_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    model = nn.Sequential(encoder, nn.Linear(256, 256)).cuda()
    return model, torch.optim.AdamW(model.parameters())


def step(model: nn.Module, optimizer: torch.optim.Optimizer, length: int) -> torch.Tensor:
    """Make one training step on random sequences; return the loss with its graph."""
    x = torch.randn(16, length, 256, device="cuda")
    loss = (model(x) - x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def training(directory: str) -> None:
    """Make three ordinary steps, recorded from the first allocation on."""
    fresh(20_000)
    model, optimizer = model_and_optimizer()
    for _ in range(3):
        step(model, optimizer, 128)
    keep(directory, "training")


def leak(directory: str) -> None:
    """Keep every step's output in a list; snapshots before and after four more steps."""
    fresh(20_000)
    model, optimizer = model_and_optimizer()
    kept = []

    def remember(x: torch.Tensor) -> None:
        kept.append(model(x))  # with its graph: the mistake

    step(model, optimizer, 64)
    keep(directory, "leak-before")
    for _ in range(4):
        remember(torch.randn(16, 64, 256, device="cuda"))
        step(model, optimizer, 64)
    keep(directory, "leak-after")


def fragmented(directory: str) -> None:
    """Keep every other block: what is free lies in pieces too small for what comes next."""
    fresh(4_000)
    pieces = [torch.empty(size * MiB, dtype=torch.uint8, device="cuda") for size in SIZES]
    del pieces[::2]
    keep(directory, "fragmented")


def failing(directory: str) -> None:
    """Ask for 2 GiB that do not fit though 4.3 GiB are free: large blocks were cut up."""
    # The rest of the card is taken first. With expandable segments it fits.
    fresh(4_000)
    free, _ = torch.cuda.mem_get_info()
    ballast = torch.empty(free - 6400 * MiB, dtype=torch.uint8, device="cuda")
    large = [torch.empty(1024 * MiB, dtype=torch.uint8, device="cuda") for _ in range(6)]
    large.clear()
    kept = [torch.empty(320 * MiB, dtype=torch.uint8, device="cuda") for _ in range(18)]
    kept = [piece for number, piece in enumerate(kept) if number % 3 == 0]
    try:
        wanted = torch.empty(2048 * MiB, dtype=torch.uint8, device="cuda")
        print(f"failing: it fits, {torch.cuda.max_memory_reserved():,} bytes were reserved at most")
        del wanted
    except torch.OutOfMemoryError as error:
        print(f"failing: {error}")
        keep(directory, "failing")
    print(f"failing: {torch.cuda.memory_stats()['num_alloc_retries']} retries")
    del ballast, kept


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3) or not torch.cuda.is_available():
        sys.exit(
            f"{__doc__}\nThis machine: CUDA {'is' if torch.cuda.is_available() else 'is not'} "
            "available."
        )
    os.makedirs(sys.argv[1], exist_ok=True)
    for scene in (training, leak, fragmented, failing):
        if sys.argv[2:] in ([], [scene.__name__]):
            scene(sys.argv[1])
